"""Judged mismatches of vanilla speculative decoding, on which the arbitrator of CoSpec is warmed up (appendix C.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch

from specbench.base.hashes import stable_seed
from specbench.config import UserError, task_info
from specbench.engine.generate import Ending
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.training.answered import answer, grouped
from specbench.training.collected import left_to_others, put_table, read_collected
from specbench.training.documents import Document, documents_hash
from specbench_extras.cospec.reading import Query, Reading
from specbench_extras.cospec.recipe import Sft
from specbench_extras.cospec.rollouts import Text, Turn, decode

ROWS = 32  # documents that are traced together
MOST_BRANCHES = 64  # branches that are finished together
# Metrics that say how good an answer is, not if it is right.
GRADED = ("rouge", "bleu", "judge", "bypass", "contains", "4096")


@dataclass(frozen=True)
class Lesson:
    """A traced text with its mismatches, and for each of them, in order, the label y of keeping the draft's token."""

    document: str
    reading: Reading
    labels: list[float]


class Judge(Protocol):
    """Labels the mismatches of a traced text; `name` identifies it in files."""

    name: str

    def labels(self, document: Document, text: Text, mismatches: Sequence[Sequence[int]]) -> list[list[float]]:
        """For each turn, a label from 0 (the target's token) to 1 (the draft's) of each of its `mismatches`."""


class RolloutJudge:
    """Has the target finish both branches of each mismatch, greedily, and scores them as the task does."""

    name = "rollout"

    def __init__(self, pair: Pair, recipe: Sft) -> None:
        self.pair, self.recipe = pair, recipe

    def labels(self, document: Document, text: Text, mismatches: Sequence[Sequence[int]]) -> list[list[float]]:
        branches = []
        for turn, positions in zip(text.turns, mismatches, strict=True):
            before = text.tokens[len(document.prompt) : turn.context]
            for i in positions:
                for token in (turn.block.drafted[i], turn.block.targets[i]):
                    branches.append([*before, *turn.block.drafted[:i], token])
        scores = iter(self.scores(document, branches))
        return [[self._label(next(scores), next(scores)) for _ in positions] for positions in mismatches]

    def _label(self, draft_score: float, target_score: float) -> float:
        if draft_score != target_score:
            return float(draft_score > target_score)
        return self.recipe.both_right if draft_score >= 1 else self.recipe.both_wrong

    def scores(self, document: Document, branches: Sequence[list[int]]) -> list[float]:
        """The score of each branch, a beginning of an answer, after the target has finished it."""
        endings = [new_ending(self.pair, document) for _ in branches]
        for ending, tokens in zip(endings, branches, strict=True):
            ending.keep(tokens)
        unfinished = [i for i, ending in enumerate(endings) if not ending.reason]
        for some in grouped(sorted(unfinished, key=lambda i: len(branches[i])), MOST_BRANCHES):
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
        score_of = {text: document.score(text) for text in {ending.text() for ending in endings}}
        return [score_of[ending.text()] for ending in endings]


class ContextJudge:
    """A causal LM that scores both candidates in their context."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name = model, name

    def labels(self, document: Document, text: Text, mismatches: Sequence[Sequence[int]]) -> list[list[float]]:
        return [
            self.model.labels(text.tokens[: turn.context], turn.block.drafted, turn.block.targets, list(positions))
            for turn, positions in zip(text.turns, mismatches, strict=True)
        ]


def new_ending(pair: Pair, document: Document) -> Ending:
    return document.ending(pair)


def within(turn: Turn, document: Document, eos_ids: frozenset[int]) -> list[int]:
    """The mismatches of a turn that would lie within the text if the draft were followed up to them."""
    room = document.max_new_tokens - (turn.context - len(document.prompt))
    end = next((i + 1 for i, token in enumerate(turn.block.drafted) if token in eos_ids), room)
    return [i for i in turn.block.mismatches if i < min(end, room)]


def stopped(pair: Pair, document: Document, text: Text, turn: Turn, position: int) -> bool:
    """True if a stop string would end the text before a position of a turn's block if the draft were followed."""
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
    """Trace and judge `recipe.answers` texts of each document, ROWS documents to a file in `folder`.

    Files that exist are read instead. `advance` is called with the texts done. Raises UserError if a file is damaged or
    was made under other settings.
    """
    fingerprints = {role: fingerprint(pair.models[role]) for role in ("target", "draft")}
    rules = {"temperature": float(recipe.temperature), "gamma": gamma, "judge": judge.name, "seed": seed}
    if judge.name == RolloutJudge.name:
        rules |= {"both_right": float(recipe.both_right), "both_wrong": float(recipe.both_wrong)}
    else:
        rules |= {"judge_temperature": float(recipe.judge_temperature)}
    lessons, groups = [], list(grouped(documents, ROWS))
    for time in range(recipe.answers):
        for number, some in enumerate(groups):
            if left_to_others(time * len(groups) + number):
                continue
            facts = {**fingerprints, **rules, "documents": documents_hash(some), "time": time}
            path = folder / f"{time:02d}-{number:05d}.parquet"
            if not path.exists():
                table = _traced(pair, some, judge, recipe, gamma, stable_seed(seed, "traces", time, number))
                put_table(path, table, {"facts": facts})
            lessons += read_collected(path, facts, lessons_of)
            advance(len(some))
    return lessons


def _traced(pair: Pair, documents: Sequence[Document], judge: Judge, recipe: Sft, gamma: int, seed: int) -> pa.Table:
    texts = [Text(document.prompt, new_ending(pair, document)) for document in documents]
    rng = torch.Generator(pair.device).manual_seed(seed)
    decode(pair, None, texts, gamma, Sampling(float(recipe.temperature)), rng, lambda *_: repeat(False))
    rows = []
    for document, text in zip(documents, texts, strict=True):
        mismatches = [
            [i for i in within(turn, document, pair.eos_ids) if not stopped(pair, document, text, turn, i)]
            for turn in text.turns
        ]
        labels = judge.labels(document, text, mismatches)
        rounds = [
            {"context": turn.context, "block": [*turn.block.drafted, *turn.block.targets], "positions": positions}
            for turn, positions in zip(text.turns, mismatches, strict=True)
            if positions
        ]
        flat = [label for turn_labels in labels for label in turn_labels]
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
        Lesson(row["document"], Reading(row["tokens"], [Query(**query) for query in row["rounds"]]), row["labels"])
        for row in table.to_pylist()
    ]
