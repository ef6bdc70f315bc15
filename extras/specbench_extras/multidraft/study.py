"""`specbench analyze multi-draft`: the acceptance that several drafts per position would have had in a run's texts.

Target and draft read every committed text again. At each position, their two distributions give the acceptance of one
draft, of several drafts under recursive rejection, and of several drafts under the best lossless rule (`transport`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis.complementarity import pooled
from specbench.analysis.drafts import recorded_rounds
from specbench.base.stats import Floats, Interval
from specbench.config import MethodSpec, UserError
from specbench.engine.types import Sampling
from specbench.measure.prepare import load_models_of
from specbench.methods.drafting import FULL
from specbench.results.stored import StoredRun
from specbench_extras.drafts.read_again import Prompts
from specbench_extras.drafts.two_readings import KEY, KINDS, distributions
from specbench_extras.multidraft import transport

ALL = "all tasks"
ROUNDING = 1e-9  # the error up to which figures count as ordered


@dataclass(frozen=True)
class Kind:
    """A figure to compute at each position."""

    drafts: int
    replacement: bool | None  # None: one draft
    rule: str  # single, recursive or optimal

    def at(self, p: Floats, q: Floats) -> transport.Expected:
        """The acceptance at a position with the distributions p and q [V]."""
        if self.rule == "single":
            return transport.Expected(transport.single(p, q), 0.0)
        if self.rule == "recursive":
            return transport.recursive(p, q, self.drafts, bool(self.replacement))
        return transport.Expected(transport.optimal(p, q, self.drafts, bool(self.replacement)), 0.0)


@dataclass(frozen=True)
class MultiDraft:
    """Acceptance at every position of the texts of `methods` after the first, which no method drafts."""

    sampling: str
    methods: list[str]
    positions: int
    documents: int
    # task (all of them last), drafts, replacement (None: one draft), rule, positions, value, low, high (95 %, bootstrap
    # over documents), left_out (how much higher the value may be: see `transport.recursive`)
    figures: pd.DataFrame
    outside: int  # figures of recursive rejection that do not lie between one draft's and the best rule's
    # method, drafts, replacement, rounds, accepted (share of rounds whose first level was accepted), foretold (mean
    # prediction at these positions; NaN: no formula), value (accepted less foretold), low and high (the range that
    # chance allows if the formula is right)
    measured: pd.DataFrame


def multi_draft(
    run: StoredRun,
    texts: Sequence[dict[str, Any]],
    drafts: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
) -> MultiDraft:
    """Read texts (from `texts_to_read`) again; `advance` is called after each.

    Raises UserError if models or prompts have changed since the run, for a draft with another tokenizer, and for
    numbers of drafts without a formula.
    """
    if not drafts or not all(2 <= k <= transport.MOST for k in drafts):
        raise UserError(f"--drafts: give some of 2 to {transport.MOST}, such as 2,3")
    pair = load_models_of(run)
    pair.need_one_tokenizer("it cannot read the texts token by token")
    names = {row["method"] for row in texts}
    specs = [spec for spec in run.plan.methods if spec.name in names]
    kind_of = {spec.name: first_level_kind(spec) for spec in specs}
    kinds = kinds_of(sorted(set(drafts)))
    computed = list(dict.fromkeys([*kinds, *(kind for kind in kind_of.values() if kind)]))
    starts = {spec.name: first_levels(run, spec.name) for spec in specs if spec.method in KINDS}
    prompts = Prompts(run, pair)
    sampling = Sampling(**run.plan.sampling.model_dump())
    sessions = pair.session("target"), pair.session("draft")
    values, tests = [], []
    for row in texts:
        prompt, tokens, kind = prompts.tokens(row), list(row["tokens"]), kind_of[row["method"]]
        pairs = distributions(*sessions, prompt, tokens, sampling)
        rows = [[kind.at(p, q) for kind in computed] for p, q in pairs]  # [positions][kinds]
        key = {name: row[name] for name in ("task", "doc_id", "method")}
        if rows:
            figure = np.array(rows)[:, : len(kinds)]  # [positions, kinds, 2]
            values.append(key | {"values": figure[..., 0], "left_out": figure[..., 1]})
        for place, accepted in starts.get(row["method"], {}).get(tuple(row[name] for name in KEY), ()):
            foretold, left_out = rows[place - 1][computed.index(kind)] if kind else (np.nan, 0.0)
            tests.append(key | {"accepted": accepted, "foretold": foretold, "left_out": left_out})
        advance(1)
    return MultiDraft(
        run.sampling,
        [spec.name for spec in specs],
        sum(len(text["values"]) for text in values),
        len({(text["task"], text["doc_id"]) for text in values}),
        figure_table(values, kinds, [line.task for line in run.plan.tasks]),
        count_disordered(values, kinds),
        measured_table(tests, specs, kind_of),
    )


def kinds_of(drafts: Sequence[int]) -> list[Kind]:
    """One draft first, then each number of drafts, with replacement and without, by recursive rejection and at best."""
    several = [
        Kind(k, replacement, rule) for k in drafts for replacement in (True, False) for rule in ("recursive", "optimal")
    ]
    return [Kind(1, None, "single"), *several]


def first_level_kind(spec: MethodSpec) -> Kind | None:
    """The figure for the first level of a method's drafts; None if there is no formula."""
    values = spec.values
    if values.get("rule", "token") not in ("token", "recursive", "exact"):
        return None
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
    """By text: the tokens at which drafts began, and whether their first level was accepted."""
    drafts: dict[tuple[Any, ...], list[tuple[int, bool]]] = {}
    lengths: dict[tuple[Any, ...], int] = {}
    for row in recorded_rounds(run, name):  # in order within a text
        key = tuple(name if column == "method" else row[column] for column in KEY)
        start = lengths.get(key, 0)
        lengths[key] = start + row["committed"]
        if row["drafted"] and row["committed"]:
            if row["accepted"] is None:
                raise UserError(f"{run.folder} is damaged: a draft of {name} has no number of accepted tokens")
            drafts.setdefault(key, []).append((start, row["accepted"] > 0))
    return drafts


def figure_table(values: list[dict[str, Any]], kinds: Sequence[Kind], tasks: Sequence[str]) -> pd.DataFrame:
    """The table `MultiDraft.figures`, from the values of every text [positions, kinds]."""
    rows = []
    present = [task for task in dict.fromkeys(tasks) if any(text["task"] == task for text in values)]
    for task in [*present, *([ALL] if len(present) > 1 else [])]:
        mine = [text for text in values if task in (ALL, text["task"])]
        documents = [(text["task"], text["doc_id"]) for text in mine]
        sums = np.array([text["values"].sum(0) for text in mine]).T  # [kinds, texts]
        counts = np.array([len(text["values"]) for text in mine], float)
        left_out = sum(text["left_out"].sum(0) for text in mine) / counts.sum()
        for kind, numerators, missing in zip(kinds, sums, left_out, strict=True):
            interval = mean(documents, numerators, counts)
            rows.append({"task": task} | vars(kind) | {"positions": int(counts.sum())} | vars(interval))
            rows[-1]["left_out"] = float(missing)
    return pd.DataFrame(rows)


def mean(documents: Sequence[tuple[str, int]], numerators: Floats, counts: Floats) -> Interval:
    """A pooled mean over positions, with a bootstrap over documents; NaN bounds if there is only one."""
    places = {document: i for i, document in enumerate(dict.fromkeys(documents))}
    at = np.array([places[document] for document in documents])
    above, below = (np.bincount(at, sums, len(places)).astype(float) for sums in (numerators, counts))
    return pooled(above, below)


def count_disordered(texts: list[dict[str, Any]], kinds: Sequence[Kind]) -> int:
    """How often recursive rejection is below one draft or above the best rule, which would be an error."""
    wrong = 0
    for i, kind in enumerate(kinds):
        if kind.rule == "recursive":
            for text in texts:
                values = text["values"]
                low = values[:, i] + text["left_out"][:, i] < values[:, 0] - ROUNDING
                wrong += int((low | (values[:, i] > values[:, i + 1] + ROUNDING)).sum())
    return wrong


def measured_table(
    tests: list[dict[str, Any]], specs: Sequence[MethodSpec], kinds: dict[str, Kind | None]
) -> pd.DataFrame:
    """The table `MultiDraft.measured`, from the rounds that drafted."""
    rows = []
    for spec in specs:
        mine = [test for test in tests if test["method"] == spec.name]
        if not mine:
            continue
        kind = kinds[spec.name]
        accepted, foretold, left_out = (
            np.array([test[name] for test in mine], float) for name in ("accepted", "foretold", "left_out")
        )
        # The variance of rounds that are accepted as predicted is known. A bootstrap would see none if all rounds were
        # accepted.
        value, chance = (accepted - foretold).mean(), 1.96 * np.sqrt((foretold * (1 - foretold)).sum()) / len(mine)
        facts = {"method": spec.name, "drafts": kind and kind.drafts, "replacement": kind and kind.replacement}
        facts |= {"rounds": len(mine), "accepted": accepted.mean(), "foretold": foretold.mean()}
        rows.append(facts | {"value": value, "low": value - left_out.mean() - chance, "high": value + chance})
    columns = ["method", "drafts", "replacement", "rounds", "accepted", "foretold", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
