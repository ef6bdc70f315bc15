"""Judged mismatches of vanilla speculative decoding: what the arbitrator of CoSpec is warmed up on (appendix C.1)."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch

from specbench.config import UserError, task_info
from specbench.decoding.generate import Ending, Limits
from specbench.decoding.types import Sampling
from specbench.heads import fingerprint
from specbench.models import Pair
from specbench.seeds import stable_seed
from specbench.train.collected import put_table, read_collected
from specbench.train.cospec_reading import Asked, Reading
from specbench.train.cospec_recipe import Sft
from specbench.train.cospec_rollouts import Text, Turn, decode
from specbench.train.documents import Document
from specbench.train.eagle3_data import answer, grouped

ROWS = 32  # documents that are traced together
MOST_BRANCHES = 64  # that are finished together
GRADED = (
    "rouge",
    "bleu",
    "judge",
    "bypass",
    "contains",
    "4096",
)  # metrics that say how good an answer is, not whether it is right


@dataclass(frozen=True)
class Lesson:
    """A traced text with its mismatches, and for each of these, in order, the label y of keeping the draft's token."""

    document: str
    reading: Reading
    labels: list[float]


class Judge(Protocol):
    """Labels the mismatches of a traced text; `name` tells it from others."""

    name: str

    def labels(self, document: Document, text: Text, asked: Sequence[Sequence[int]]) -> list[list[float]]:
        """Of each turn, a label from 0 (the target's token) to 1 (the draft's) for each position that is `asked`."""


class RolloutJudge:
    """Finishes both branches of each mismatch by the target, greedily, and scores them as the task does."""

    name = "rollout"

    def __init__(self, pair: Pair, recipe: Sft) -> None:
        self.pair, self.recipe = pair, recipe

    def labels(self, document: Document, text: Text, asked: Sequence[Sequence[int]]) -> list[list[float]]:
        branches = []
        for turn, positions in zip(text.turns, asked, strict=True):
            before = text.tokens[len(document.prompt) : turn.context]
            for i in positions:
                for token in (turn.block.drafted[i], turn.block.targets[i]):
                    branches.append([*before, *turn.block.drafted[:i], token])
        worth = iter(self.worth(document, branches))
        return [[self._label(next(worth), next(worth)) for _ in positions] for positions in asked]

    def _label(self, ours: float, theirs: float) -> float:
        if ours != theirs:
            return float(ours > theirs)
        return self.recipe.both_right if ours >= 1 else self.recipe.both_wrong

    def worth(self, document: Document, branches: Sequence[list[int]]) -> list[float]:
        """The score of each beginning of an answer after the target has finished it."""
        endings = [new_ending(self.pair, document) for _ in branches]
        for ending, tokens in zip(endings, branches, strict=True):
            ending.keep(tokens)
        open_ = [i for i, ending in enumerate(endings) if not ending.reason]
        for some in grouped(sorted(open_, key=lambda i: len(branches[i])), MOST_BRANCHES):
            room = [document.max_new_tokens - len(branches[i]) for i in some]
            rest = answer(
                self.pair.models["target"],
                [[*document.prompt, *branches[i]] for i in some],
                room,
                self.pair.eos_ids,
                self.pair.vocabulary,
                Sampling(0.0),
                torch.Generator(self.pair.device),
            )
            for i, tokens in zip(some, rest, strict=True):
                endings[i].keep(tokens)
        scores: dict[str, float] = {}
        for text in {ending.text() for ending in endings}:
            scores[text] = document.score(text)
        return [scores[ending.text()] for ending in endings]


class ContextJudge:
    """A causal LM that scores both candidates in their context."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def labels(self, document: Document, text: Text, asked: Sequence[Sequence[int]]) -> list[list[float]]:
        return [
            self.model.labels(text.tokens[: turn.context], turn.block.drafted, turn.block.targets, list(positions))
            for turn, positions in zip(text.turns, asked, strict=True)
        ]


def new_ending(pair: Pair, document: Document) -> Ending:
    return Ending(Limits(document.max_new_tokens, pair.eos_ids, document.until), pair.detokenizer)


def within(turn: Turn, document: Document, eos_ids: frozenset[int]) -> list[int]:
    """The mismatches of a turn that lie within the text, should the draft be followed up to them."""
    room = document.max_new_tokens - (turn.context - len(document.prompt))
    ends = next((i + 1 for i, token in enumerate(turn.block.drafted) if token in eos_ids), room)
    return [i for i in turn.block.mismatches if i < min(ends, room)]


def stopped(pair: Pair, document: Document, text: Text, turn: Turn, position: int) -> bool:
    """Whether a stop string ends the text in front of a position of a turn's block, should the draft be followed."""
    ending = new_ending(pair, document)
    ending.keep([*text.tokens[len(document.prompt) : turn.context], *turn.block.drafted[:position]])
    return ending.reason == "stop"


def need_checkable(documents: Sequence[Document]) -> None:
    """Raise UserError for a task whose answers are graded, not right or wrong."""
    for task in dict.fromkeys(document.task for document in documents):
        metric = task_info(task).metric
        if metric.startswith(GRADED):
            raise UserError(
                f"{task}: its answers are graded ({metric}), not right or wrong, so rollouts cannot judge them; "
                "name tasks such as gsm8k by --data TASK:SPLIT, or a judge model by --judge"
            )


def trace_all(
    pair: Pair,
    documents: Sequence[Document],
    judge: Judge,
    recipe: Sft,
    gamma: int,
    seed: int,
    folder: Path,
    advance: Callable[[int], None],
) -> list[Lesson]:
    """`recipe.answers` traced and judged texts of each document, ROWS to a file in `folder`, or what is there already.

    `advance` is called with the texts done. Raises UserError if a file is damaged or was made otherwise.
    """
    whose = {role: fingerprint(pair.models[role]) for role in ("target", "draft")}
    rules = {"temperature": float(recipe.temperature), "gamma": gamma, "judge": judge.name, "seed": seed}
    if judge.name == RolloutJudge.name:
        rules |= {"both_right": float(recipe.both_right), "both_wrong": float(recipe.both_wrong)}
    else:
        rules |= {"judge_temperature": float(recipe.judge_temperature)}
    found = []
    for time in range(recipe.answers):
        for number, some in enumerate(grouped(documents, ROWS)):
            told = [[one.name, one.prompt_hash, one.max_new_tokens, one.until] for one in some]
            digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
            facts = {**whose, **rules, "documents": digest, "time": time}
            path = folder / f"{time:02d}-{number:05d}.parquet"
            if not path.exists():
                table = _traced(pair, some, judge, recipe, gamma, stable_seed(seed, "traces", time, number))
                put_table(path, table, {"facts": facts})
            found += read_collected(path, facts, lessons_of)
            advance(len(some))
    return found


def _traced(pair: Pair, documents: Sequence[Document], judge: Judge, recipe: Sft, gamma: int, seed: int) -> pa.Table:
    texts = [Text(one.prompt, new_ending(pair, one)) for one in documents]
    rng = torch.Generator(pair.device).manual_seed(seed)
    decode(pair, None, texts, gamma, Sampling(float(recipe.temperature)), rng, lambda *_: repeat(False))
    rows = []
    for document, text in zip(documents, texts, strict=True):
        asked = [
            [i for i in within(turn, document, pair.eos_ids) if not stopped(pair, document, text, turn, i)]
            for turn in text.turns
        ]
        labels = judge.labels(document, text, asked)
        rounds = [
            {"context": turn.context, "block": [*turn.block.drafted, *turn.block.targets], "positions": positions}
            for turn, positions in zip(text.turns, asked, strict=True)
            if positions
        ]
        flat = [label for one in labels for label in one]
        rows.append({"document": document.name, "tokens": text.tokens, "rounds": rounds, "labels": flat})
    return pa.Table.from_pylist(rows, LESSONS)


_ids = pa.list_(pa.int32())
LESSONS = pa.schema(
    [
        pa.field("document", pa.string()),
        pa.field("tokens", _ids),
        pa.field("rounds", pa.list_(pa.struct({"context": pa.int32(), "block": _ids, "positions": _ids}))),
        pa.field("labels", pa.list_(pa.float32())),
    ]
)


def lessons_of(table: pa.Table) -> list[Lesson]:
    return [
        Lesson(row["document"], Reading(row["tokens"], [Asked(**one) for one in row["rounds"]]), row["labels"])
        for row in table.to_pylist()
    ]
