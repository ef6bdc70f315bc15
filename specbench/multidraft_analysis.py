"""`specbench analyze multi-draft`: what several drafts for each position would have had accepted in the texts of a run.

Target and draft read every committed text once more. At each position, their two distributions tell the acceptance of
one draft, what recursive rejection would make of several, and the most that any lossless rule could (`transport`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench import run as engine
from specbench import transport
from specbench.config import MethodSpec, UserError
from specbench.decoding.sampling import probabilities
from specbench.decoding.session import Session
from specbench.decoding.types import Sampling
from specbench.methods.drafting import FULL
from specbench.models import Pair
from specbench.ready import load_models_of
from specbench.simulate import recorded_rounds
from specbench.stats import Interval, resampled_rates
from specbench.stored import StoredRun

Floats = NDArray[np.float64]

KINDS = ("sps", "mdsd", "rsd")  # methods whose first level is what is foretold here
ALL = "all tasks"
ROUNDING = 1e-9  # by which figures that are ordered may be out of order
AT_ONCE = 64  # positions whose distributions are held in float64
EXAMPLE = "`specbench run --method mdsd --suite pocket --temperature 1` makes one"
KEY = ["repeat", "task", "doc_id", "method"]


@dataclass(frozen=True)
class Kind:
    """What is asked at each position."""

    drafts: int
    replacement: bool | None  # None: of one draft, or of no draft
    rule: str  # single, recursive or optimal

    def at(self, p: Floats, q: Floats) -> transport.Expected:
        if self.rule == "single":
            return transport.Expected(transport.single(p, q), 0.0)
        if self.rule == "recursive":
            return transport.recursive(p, q, self.drafts, bool(self.replacement))
        return transport.Expected(transport.optimal(p, q, self.drafts, bool(self.replacement)), 0.0)


@dataclass(frozen=True)
class MultiDraft:
    """Acceptance at every position of the texts of `methods` behind the first, which no draft precedes."""

    sampling: str
    methods: list[str]
    positions: int
    documents: int
    # task (all of them last), drafts, replacement (None: one draft), rule, positions, value, low, high (95 %, bootstrap
    # over documents), left_out (how much more it may be: see `transport.recursive`)
    figures: pd.DataFrame
    outside: int  # figures of recursive rejection that are not between one draft's and the best rule's
    # method, drafts, replacement, rounds, accepted (share of rounds whose first level was), foretold (mean at those
    # very positions; NaN: no formula), value (accepted less foretold), low, high: of chance, were the formula right
    measured: pd.DataFrame


def texts_to_read(run: StoredRun, method: str | None) -> list[dict[str, Any]]:
    """The texts of a method, or without one those of KINDS (of all methods, if there are none), as rows of samples.

    Raises UserError for a run that is greedy, imported or without a draft, and for a method that it does not have.
    """
    if not run.manifest.get("models") or "imported" in run.manifest:
        raise UserError(f"{run.folder} was imported, so its texts cannot be read again; {EXAMPLE}")
    if run.plan.pair.draft is None:
        raise UserError(f"the pair of {run.folder} has no draft model; choose a run of one that has")
    if run.plan.temperature == 0:
        raise UserError(f"{run.folder} is greedy, so it has no distributions to compare; {EXAMPLE}")
    every = list(run.plan.methods)
    wanted = [spec for spec in every if spec.name == method or (method is None and spec.method in KINDS)]
    if method is not None and not wanted:
        raise UserError(f"{run.folder} has no method {method}; it has {', '.join(spec.name for spec in every)}")
    samples = run.samples([*KEY, "warmup", "finish", "tokens", "prompt_hash"])
    samples = samples[~samples.warmup & (samples.finish != "error")]
    samples = samples[samples.method.isin([spec.name for spec in wanted or every])]
    if not any(len(tokens) > 1 for tokens in samples.tokens):
        raise UserError(f"{run.folder} has no text with a second token; run more documents")
    return samples.to_dict("records")


def multi_draft(
    run: StoredRun,
    texts: Sequence[dict[str, Any]],
    drafts: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
) -> MultiDraft:
    """Read texts (of `texts_to_read`) again; `advance` is told of each.

    Raises UserError for other models or prompts than the run had, a draft that reads another tokenizer's tokens, and
    numbers of drafts that have no formula.
    """
    if not drafts or not all(2 <= k <= transport.MOST for k in drafts):
        raise UserError(f"--drafts: give some of 2 to {transport.MOST}, such as 2,3")
    pair = load_models_of(run)
    same_models(run, pair)
    names = {row["method"] for row in texts}
    specs = [spec for spec in run.plan.methods if spec.name in names]
    own = {spec.name: own_kind(spec) for spec in specs}
    kinds = kinds_of(sorted(set(drafts)))
    asked = list(dict.fromkeys([*kinds, *(kind for kind in own.values() if kind)]))
    starts = {spec.name: first_levels(run, spec.name) for spec in specs if spec.method in KINDS}
    prompts = {(r.task, r.doc_id): r for r in engine.load_tasks(run.plan, pair).requests()}
    sampling = Sampling(**run.plan.sampling.model_dump())
    sessions = pair.session("target"), pair.session("draft")
    found, tests = [], []
    for row in texts:
        request = prompts.get((row["task"], row["doc_id"]))
        if request is None or request.prompt_hash != row["prompt_hash"]:
            raise UserError(f"{run.folder}: the prompts of {row['task']} are others now; run it anew")
        prompt, tokens, kind = engine.encode(pair, request.prompt), list(row["tokens"]), own[row["method"]]
        rows = [
            [kind.at(p, q) for kind in asked] for p, q in distributions(*sessions, prompt, tokens, sampling)
        ]  # [positions][kinds]
        key = {name: row[name] for name in ("task", "doc_id", "method")}
        if rows:
            figure = np.array(rows)[:, : len(kinds)]  # [positions, kinds, 2]
            found.append(key | {"values": figure[..., 0], "left_out": figure[..., 1]})
        for place, accepted in starts.get(row["method"], {}).get(tuple(row[name] for name in KEY), ()):
            foretold, left_out = rows[place - 1][asked.index(kind)] if kind else (np.nan, 0.0)
            tests.append(key | {"accepted": accepted, "foretold": foretold, "left_out": left_out})
        advance(1)
    return MultiDraft(
        run.sampling,
        [spec.name for spec in specs],
        sum(len(one["values"]) for one in found),
        len({(one["task"], one["doc_id"]) for one in found}),
        figures(found, kinds, [line.task for line in run.plan.tasks]),
        outside(found, kinds),
        measured(tests, specs, own),
    )


def same_models(run: StoredRun, pair: Pair) -> None:
    if pair.translations:
        raise UserError(f"the draft of {pair.name} has another tokenizer, so it cannot read the texts token by token")
    now = pair.describe()
    for role in ("target", "draft"):
        if (run.manifest["models"].get(role) or {}).get("weights_hash") != now[role]["weights_hash"]:
            raise UserError(f"{run.folder} was decoded with another {role} model than {pair.name} has now")


def kinds_of(drafts: Sequence[int]) -> list[Kind]:
    """One draft first, then each number of drafts, with replacement and without, by recursive rejection and at best."""
    several = [
        Kind(k, replacement, rule) for k in drafts for replacement in (True, False) for rule in ("recursive", "optimal")
    ]
    return [Kind(1, None, "single"), *several]


def own_kind(spec: MethodSpec) -> Kind | None:
    """What a method does at the first level of its drafts; None if there is no formula for it."""
    values = spec.values
    if spec.method == "sps":
        return Kind(1, None, "single") if values.get("output", FULL) == FULL else None
    if spec.method == "mdsd":
        drafts, replacement = values["drafts"], values["replacement"]
    elif spec.method == "rsd":
        drafts, replacement = values["width"] if values["search"] == "beam" else [*values["branching"], 1][0], False
    else:
        return None
    known = drafts <= transport.MOST or replacement
    return Kind(drafts, replacement, "recursive") if known else None


def first_levels(run: StoredRun, name: str) -> dict[tuple[Any, ...], list[tuple[int, bool]]]:
    """By text: at which of its tokens a draft began, and whether its first level was accepted."""
    found: dict[tuple[Any, ...], list[tuple[int, bool]]] = {}
    known: dict[tuple[Any, ...], int] = {}
    for row in recorded_rounds(run, name):  # of a text they come in their order
        key = tuple(name if one == "method" else row[one] for one in KEY)
        start = known.get(key, 0)
        known[key] = start + row["committed"]
        if row["drafted"] and row["committed"]:
            found.setdefault(key, []).append((start, row["accepted"] > 0))
    return found


@torch.inference_mode()
def distributions(
    target: Session, draft: Session, prompt: list[int], tokens: list[int], sampling: Sampling
) -> Iterator[tuple[Floats, Floats]]:
    """p and q [V] at each token of a text behind its first one."""

    def rows(session: Session) -> Tensor:
        session.truncate(0)
        return session.forward([*prompt, *tokens[:-1]], keep=len(tokens)).logits[1:]

    if len(tokens) < 2:
        return
    logits = rows(target), rows(draft)
    for start in range(0, len(tokens) - 1, AT_ONCE):
        some = (probabilities(one[start : start + AT_ONCE].double(), sampling).cpu().numpy() for one in logits)
        yield from zip(*some, strict=True)


def figures(found: list[dict[str, Any]], kinds: Sequence[Kind], tasks: Sequence[str]) -> pd.DataFrame:
    rows = []
    present = [task for task in dict.fromkeys(tasks) if any(one["task"] == task for one in found)]
    for task in [*present, *([ALL] if len(present) > 1 else [])]:
        mine = [one for one in found if task in (ALL, one["task"])]
        documents = [(one["task"], one["doc_id"]) for one in mine]
        sums = np.array([one["values"].sum(0) for one in mine]).T  # [kinds, texts]
        counts = np.array([len(one["values"]) for one in mine], float)
        left_out = sum(one["left_out"].sum(0) for one in mine) / counts.sum()
        for kind, numerators, missing in zip(kinds, sums, left_out, strict=True):
            interval = mean(documents, numerators, counts)
            rows.append({"task": task} | vars(kind) | {"positions": int(counts.sum())} | vars(interval))
            rows[-1]["left_out"] = float(missing)
    return pd.DataFrame(rows)


def mean(documents: Sequence[tuple[str, int]], numerators: Floats, counts: Floats) -> Interval:
    """A pooled mean over positions, with a bootstrap over documents; NaN bounds where there is one."""
    places = {document: i for i, document in enumerate(dict.fromkeys(documents))}
    at = np.array([places[document] for document in documents])
    above, below = (np.bincount(at, one, len(places)).astype(float) for one in (numerators, counts))
    low = high = float("nan")
    if len(places) > 1:
        low, high = np.quantile(resampled_rates(above[None], below[None])[0], [0.025, 0.975])
    return Interval(float(above.sum() / below.sum()), float(low), float(high))


def outside(found: list[dict[str, Any]], kinds: Sequence[Kind]) -> int:
    """How often recursive rejection is below one draft, or above the best rule: never, unless something is wrong."""
    wrong = 0
    for i, kind in enumerate(kinds):
        if kind.rule == "recursive":
            for one in found:
                values = one["values"]
                low = values[:, i] + one["left_out"][:, i] < values[:, 0] - ROUNDING
                wrong += int((low | (values[:, i] > values[:, i + 1] + ROUNDING)).sum())
    return wrong


def measured(tests: list[dict[str, Any]], specs: Sequence[MethodSpec], own: dict[str, Kind | None]) -> pd.DataFrame:
    rows = []
    for spec in specs:
        mine = [one for one in tests if one["method"] == spec.name]
        if not mine:
            continue
        kind = own[spec.name]
        accepted, foretold, left_out = (
            np.array([one[name] for one in mine], float) for name in ("accepted", "foretold", "left_out")
        )
        # What chance makes of rounds that are accepted as foretold is known; to a bootstrap, rounds that were all
        # accepted would leave no doubt.
        value, chance = (accepted - foretold).mean(), 1.96 * np.sqrt((foretold * (1 - foretold)).sum()) / len(mine)
        facts = {"method": spec.name, "drafts": kind and kind.drafts, "replacement": kind and kind.replacement}
        facts |= {"rounds": len(mine), "accepted": accepted.mean(), "foretold": foretold.mean()}
        rows.append(facts | {"value": value, "low": value - left_out.mean() - chance, "high": value + chance})
    columns = ["method", "drafts", "replacement", "rounds", "accepted", "foretold", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
