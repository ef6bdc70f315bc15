"""Replay recorded texts as a target: how well do drafts without a model fit them? Needs no weights.

A drafter proposes at every position of a recorded text after its first token, which comes from a prefill. The result
there is the acceptance length: the longest path of the draft that the text follows. The rounds of greedy decoding, from
one start to the next, are counted as well.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from specbench import config, methods
from specbench.analysis.context import end_of, spans_of
from specbench.analysis.metrics import interval_columns
from specbench.base.stats import pooled_rate
from specbench.base.untrusted import BRIEF, parse_json, read_lines
from specbench.config import UserError
from specbench.engine.clock import now
from specbench.engine.drafters import Drafter, Remembering
from specbench.engine.models.pair import Pair
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.engine.types import Draft, Sampling
from specbench.measure.prompts import encode, recorded_answers

ALL = "all tasks"
NAMES = {  # the last of each are those of vLLM's responses
    "prompt": ("prompt", "prompt_ids", "prompt_token_ids"),
    "generated": ("generated", "generated_ids", "generated_token_ids"),
}
GREEDY = Sampling()
NOTHING = "nothing to replay: no text has a second generated token"


@dataclass(frozen=True)
class Trace:
    """A recorded text, as token ids; texts of one conversation have one `document`."""

    prompt: list[int]
    generated: list[int]
    task: str
    id: str
    document: str = ""


@dataclass(frozen=True)
class Replayed:
    """The `positions` have a row for each proposed draft; texts with fewer than two tokens have none.

    context: tokens before it; drafted: the draft's tokens; levels: the draft's levels within the text; tested: levels
    that the text reached; accepted: levels that it followed; microseconds: time of the host for the draft; committed:
    tokens of the round that begins there, including the target's token at its end (null if no round begins there).
    """

    method: str
    texts: int
    positions: pd.DataFrame


def read_traces(path: Path) -> list[Trace]:
    """Read JSON Lines of {"prompt": [ids], "generated": [ids]}; `id` and `task` are optional, empty lines are skipped.

    Raises UserError with the line number for anything else, and for a file without texts.
    """
    lines = read_lines(path, remedy="give a file of JSON Lines")
    traces = [_trace(line, f"{path}, line {at}", at) for at, line, _ in lines if line.strip()]
    if not traces:
        raise UserError(f'{path} holds no texts; write a line {{"prompt": [ids], "generated": [ids]}} for each')
    if all(len(trace.generated) < 2 for trace in traces):
        raise UserError(NOTHING)
    return traces


def read_trajectories(path: Path, pair: str) -> list[Trace]:
    """The answers of recorded conversations as texts, each after what was recorded before it, up to its end token.

    Ids are those of the tokenizer of `pair`, whose chat template wraps the messages; without one they are joined.
    Raises UserError for a file that is none, and for what the template refuses.
    """
    spec = config.load_pair(pair)
    models = Pair(spec.name, {}, load_tokenizer(spec.target), spec.models)
    traces = []
    for request, answer, name, turn in recorded_answers(path, models):
        ids = models.tokenizer(answer, add_special_tokens=False)["input_ids"]
        end = next((at for at, token in enumerate(ids, 1) if token in models.eos_ids), len(ids))
        prompt = encode(models, request.prompt)
        traces.append(Trace(prompt, ids[:end], request.task, f"{name}, turn {turn}", name))
    return traces


def _trace(line: str, where: str, at: int) -> Trace:
    record = parse_json(line, where)
    if not isinstance(record, dict):
        raise UserError(f'{where} is not an object; write {{"prompt": [ids], "generated": [ids]}}')
    ids = {}
    for name, keys in NAMES.items():
        key = next((key for key in keys if key in record), None)
        if key is None:
            raise UserError(f"{where} has no {' or '.join(map(repr, keys))}; it has {', '.join(record) or 'nothing'}")
        ids[name] = record[key]
        if not isinstance(ids[name], list):
            raise UserError(f"{where}: {key!r} must be a list of token ids; tokenise texts first")
        wrong = next((x for x in ids[name] if type(x) is not int or not 0 <= x < 2**31), None)
        if wrong is not None:
            value = json.dumps(wrong)[:BRIEF]
            raise UserError(f"{where}: {key!r} holds {value}, which is not a token id (a whole number from 0)")
    return Trace(**ids, task=str(record.get("task", "-")), id=str(record.get("id", at)))


def check_ids(traces: Iterable[Trace], pair: str) -> None:
    """Raise UserError for the first text with an id that a pair's tokenizer does not have."""
    size = 1 + max(load_tokenizer(config.load_pair(pair).target).get_vocab().values())
    for trace in traces:
        if (largest := max([*trace.prompt, *trace.generated], default=0)) >= size:
            raise UserError(
                f"text {trace.id} has the id {largest}, but {pair} has {size} tokens; name the pair that wrote it"
            )


def find_drafter(name: str, assignments: Iterable[str], pair: str | None = None) -> tuple[str, Drafter, int]:
    """The name of a method, its drafter, and its γ.

    `assignments` are `METHOD.KEY=VALUE` texts. `pair` names the pair whose tokenizer wrote the texts, for methods that
    need it; None if unknown. Raises UserError for a method that drafts with a model, and for settings that do not fit.
    """
    spec = config.load_method(name)
    changes = config.parse_assignments(assignments)
    if unknown := set(changes) - {spec.name}:
        raise UserError(f"--set {unknown.pop()}.…: the method is {spec.name}; write --set {spec.name}.KEY=VALUE")
    spec = config.variant(spec, changes.get(spec.name, {}))
    module = methods.module(spec.method)
    if not hasattr(module, "drafter"):
        raise UserError(f"{spec.name} has no drafter that works without models; choose pld, suffix or rest")
    settings = config.validated(module.Settings, spec.values, spec.name)
    tokenizer = vocabulary_hash(load_tokenizer(config.load_pair(pair).target)) if pair else None
    return spec.name, module.drafter(settings, tokenizer, torch.device("cpu")), cast(Any, settings).gamma


def replay(
    method: str, drafter: Drafter, gamma: int, traces: Iterable[Trace], advance: Callable[[int], None] = lambda _: None
) -> Replayed:
    """Ask a drafter for at most γ tokens (levels of a tree) at each position of the texts.

    `advance` is called with 1 after each text. Raises UserError where no text has a position.
    """
    rows: list[dict[str, Any]] = []
    texts = 0
    for texts, trace in enumerate(traces, 1):
        drafts = positions(drafter, gamma, trace)
        committed = rounds(drafter, gamma, trace)
        labels = {"text": texts, "id": trace.id, "task": trace.task, "document": trace.document or str(texts)}
        before = len(trace.prompt)
        rows += [
            labels | row | {"context": before + row["position"], "committed": committed.get(row["position"])}
            for row in drafts
        ]
        if isinstance(drafter, Remembering):
            drafter.remember(trace.generated)
        advance(1)
    if not rows:
        raise UserError(NOTHING)
    return Replayed(method, texts, pd.DataFrame(rows).astype({"committed": "Int64"}))


def positions(drafter: Drafter, gamma: int, trace: Trace) -> list[dict[str, Any]]:
    """A draft after each token of a text but the last, in order; the drafter sees the text grow token by token."""
    rng = torch.Generator()
    drafter.begin(trace.prompt)
    context, rows = list(trace.prompt), []
    for at in range(1, len(trace.generated)):
        context.append(trace.generated[at - 1])
        start = now()
        draft = drafter.propose(context, gamma, GREEDY, rng)
        microseconds = 1e6 * (now() - start)
        accepted, tested, levels = follow(draft, trace.generated, at)
        counts = {"drafted": len(draft.tokens), "levels": levels, "tested": tested, "accepted": accepted}
        rows.append({"position": at, **counts, "microseconds": microseconds})
    return rows


def rounds(drafter: Drafter, gamma: int, trace: Trace) -> dict[int, int]:
    """The tokens that each round of greedy decoding commits, by the position where it begins.

    The rounds have separate drafts, so that the drafter remembers the draft that it would have made before.
    """
    rng = torch.Generator()
    drafter.begin(trace.prompt)
    text, at, committed = trace.generated, 1, {}
    context = [*trace.prompt, *text[:1]]
    while at < len(text):
        accepted, _, _ = follow(drafter.propose(context, gamma, GREEDY, rng), text, at)
        committed[at] = min(accepted + 1, len(text) - at)  # a text that ends within a draft ends the round
        context += text[at : at + committed[at]]
        at += committed[at]
    return committed


def follow(draft: Draft, text: list[int], start: int) -> tuple[int, int, int]:
    """How far `text`, from `start` on, follows a chain or a tree: the numbers of levels accepted, tested, and drafted.

    A level is tested if the text follows the path above it; levels beyond the end of the text do not count.
    """
    tokens = draft.tokens.tolist()
    parents = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents
    children: dict[tuple[int, int], int] = {}
    depths: list[int] = []
    for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        children.setdefault((parent, token), node)
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    left = len(text) - start
    at, accepted = -1, 0
    while accepted < left and (node := children.get((at, text[start + accepted]), -1)) >= 0:
        at, accepted = node, accepted + 1
    goes_on = accepted < left and at in parents
    return accepted, accepted + goes_on, min(max(depths, default=0), left)


def by_task(replayed: Replayed) -> pd.DataFrame:
    """Figures of each task, then of all tasks together: means over positions and over rounds."""
    groups = [*replayed.positions.groupby("task", sort=False), (ALL, replayed.positions)]
    return pd.DataFrame([{"task": task, **_figures(mine)} for task, mine in groups])


def _figures(positions: pd.DataFrame) -> dict[str, float]:
    rounds = positions.committed.dropna()
    return {
        "texts": positions.text.nunique(),
        "positions": len(positions),
        "found": float((positions.drafted > 0).mean()),  # the share of positions with a draft
        "drafted": float(positions.drafted.mean()),
        "accepted": float(positions.accepted.mean()),
        "rounds": len(rounds),
        "tau": float(rounds.mean()),  # committed tokens a round
        "microseconds": float(positions.microseconds.mean()),
    }


def by_context(replayed: Replayed) -> pd.DataFrame:
    """Figures by the tokens before a position, of all tasks together; `tau` has its 95 % interval over documents.

    A round counts where it begins. The turns of a conversation are one document.
    """
    span = spans_of(replayed.positions.context)
    rows = []
    for start, mine in replayed.positions.groupby(span):
        rounds = mine.dropna(subset=["committed"]).groupby("document").committed.agg(["sum", "size"]).astype(float)
        tau = pooled_rate(rounds["sum"].to_numpy(), rounds["size"].to_numpy())
        bounds = {"from": int(start), "to": end_of(start), "documents": mine.document.nunique()}
        rows.append(bounds | _figures(mine) | interval_columns("tau", tau))
    return pd.DataFrame(rows)


def by_depth(replayed: Replayed) -> pd.DataFrame:
    """For each task (then all together) and level: the positions whose draft has it, that test it, and that accept it.

    `acceptance` is the share of tested positions that accept the level, `joint` the share of all positions.
    """
    rows = []
    for task, mine in [*replayed.positions.groupby("task", sort=False), (ALL, replayed.positions)]:
        for depth in range(1, int(mine.levels.max()) + 1):
            levels, tested, accepted = (int((mine[name] >= depth).sum()) for name in ("levels", "tested", "accepted"))
            shares = accepted / tested if tested else math.nan, accepted / len(mine)
            rows.append((task, depth, levels, tested, accepted, *shares))
    return pd.DataFrame(rows, columns=["task", "depth", "drafted", "tested", "accepted", "acceptance", "joint"])
