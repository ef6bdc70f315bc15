"""Spec-Bench's answer files."""

from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from specbench.config import UserError, validated
from specbench.results.importers import origin
from specbench.results.importers.foreign import LARGEST, Count, Entry, Figures, Row, Seconds, each_entry, text_of
from specbench_extras.other_tools.kinds import check_kind

OPTIONS = ("by_category",)

MOST_NAMED = 10  # questions named in a warning
FAILED = "ERROR"  # the text that Spec-Bench gives a prompt that raised
# The categories of MT-Bench's questions; Spec-Bench's own tables have one column for them.
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}


class Choice(Entry):
    turns: list[str]
    new_tokens: list[Count]
    wall_time: list[Seconds]
    accept_lengths: Any = None  # a number for each round, or a list of them for each turn; afterwards an array
    idxs: list[Count] | None = None  # EAGLE's: the last round of each turn, from 0

    @model_validator(mode="before")
    @classmethod
    def _untimed(cls, data: Any) -> Any:
        """A prompt that failed may have no time (NaN): it is an error row, and its times do not count."""
        times = data.get("wall_time") if isinstance(data, dict) else None
        if isinstance(times, list) and isinstance(data.get("turns"), list) and FAILED in data["turns"]:
            return data | {"wall_time": [0.0 if seconds != seconds else seconds for seconds in times]}
        return data

    @field_validator("accept_lengths")
    @classmethod
    def _counts(cls, value: Any) -> "np.ndarray[Any, Any] | None":
        """All lengths in their order; there may be millions in a file, so they are checked as one array."""
        if value is None:
            return None
        if not isinstance(value, list):
            raise ValueError("accept_lengths must be a list")
        nested = list in set(map(type, value))
        flat = list(chain.from_iterable(x if isinstance(x, list) else [x] for x in value)) if nested else value
        if set(map(type, flat)) - {int}:
            raise ValueError("accept_lengths must be whole numbers")
        lengths = np.array(flat, dtype=object if max(flat, default=0) > LARGEST else np.int64)
        if flat and (lengths.min() < 0 or lengths.max() > LARGEST):
            raise ValueError(f"accept_lengths must be from 0 to {LARGEST}")
        return lengths.astype(np.int32)

    @model_validator(mode="after")
    def _alike(self) -> "Choice":
        if not len(self.turns) == len(self.new_tokens) == len(self.wall_time) > 0:
            raise ValueError("turns, new_tokens and wall_time must be as many")
        if sum(self.new_tokens) > LARGEST:
            raise ValueError(f"more than {LARGEST} new_tokens")
        return self


class Answer(Entry):
    question_id: Count
    category: str = ""
    model_id: str = ""
    choices: list[Choice] = Field(min_length=1)
    tstamp: Any = None  # when it was written


def _of_idxs(choice: Choice) -> Row:
    """The rounds of a choice by EAGLE's `idxs`, where it has no accept_lengths; what all of them committed is known."""
    if choice.accept_lengths is not None or choice.idxs is None or len(choice.idxs) != len(choice.turns):
        return {}
    rounds = sum(choice.idxs) + len(choice.idxs)
    accepted = sum(choice.new_tokens) - rounds
    if accepted < 0:
        return {}
    return {"verify_rounds": rounds, "accepted_tokens": accepted, "evidence": "histogram"}


def read(path: Path, by_category: bool = False) -> list[Figures]:
    """The figures in an answer file; with `by_category`, each category is a task, and MT-Bench's are one."""
    text, digest = text_of(path)
    answers: list[tuple[str, Answer]] = []
    for where, entry in each_entry(path, text):
        if not answers:
            check_kind(path, entry, "spec-bench")
        answers.append((where, validated(Answer, entry, where)))
    names = {answer.model_id for _, answer in answers}
    if len(names) > 1:
        raise UserError(f"{path} mixes answers of {', '.join(sorted(names))}; give each method a file of its own")
    figures = Figures(path, digest, names.pop() or path.stem)
    figures.origin = origin.span(answer.tstamp for _, answer in answers)
    seen: dict[int, str] = {}
    times = defaultdict(list)
    for where, answer in answers:
        if answer.question_id in seen:
            raise UserError(
                f"{where}: question {answer.question_id} is there twice (first: {seen[answer.question_id]})"
            )
        seen[answer.question_id] = where
        for repeat, choice in enumerate(answer.choices):
            failed = FAILED in choice.turns
            sample: Row = {"text": "\n\n".join(choice.turns)}
            if failed:
                sample |= {"finish": "error", "error": f"{where}: a turn failed in Spec-Bench"}
            else:
                sample |= {"new_tokens": sum(choice.new_tokens), "wall_seconds": sum(choice.wall_time)}
                for turn, seconds in enumerate(choice.wall_time, 1):
                    times[seconds].append(f"{answer.question_id} (turn {turn})")
            sample |= {} if failed else _of_idxs(choice)
            lengths = choice.accept_lengths
            rounds = (
                {} if lengths is None else {"committed": lengths, "target_forwards": np.ones(len(lengths), np.int32)}
            )
            category = "mt_bench" if answer.category in MT_BENCH else answer.category
            figures.add((by_category and category) or "spec-bench", answer.question_id, repeat, sample, rounds)
    for seconds, same in times.items():
        if len(same) > 1:
            named = ", ".join(same[:MOST_NAMED]) + (
                f" and {len(same) - MOST_NAMED} more" if len(same) > MOST_NAMED else ""
            )
            figures.warnings.append(
                f"{path.name}: questions {named} have exactly the same wall_time, {seconds} s; Spec-Bench "
                "gives a failed prompt the time of the one before it, so look at them"
            )
    return [figures]
