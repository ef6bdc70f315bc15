"""Spec-Bench's answer files."""

from collections import defaultdict
from pathlib import Path

from pydantic import Field, model_validator

from specbench.config import UserError, validated
from specbench.importers.told import LARGEST, Count, Entry, Row, Seconds, Told, entries

MOST_NAMED = 10  # questions in a warning
FAILED = "ERROR"  # the text that Spec-Bench gives a prompt that raised


class Choice(Entry):
    turns: list[str]
    new_tokens: list[Count]
    wall_time: list[Seconds]
    accept_lengths: list[Count | list[Count]] | None = None

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


def read(path: Path, by_category: bool) -> Told:
    """What an answer file tells; each category is a task, or all questions are one."""
    found, digest = entries(path)
    answers = [(where, validated(Answer, entry, where)) for where, entry in found]
    names = {one.model_id for _, one in answers}
    if len(names) > 1:
        raise UserError(f"{path} mixes answers of {', '.join(sorted(names))}; give each method a file of its own")
    told = Told(path, digest, names.pop() or path.stem)
    seen: dict[int, str] = {}
    times = defaultdict(list)
    for where, one in answers:
        if one.question_id in seen:
            raise UserError(f"{where}: question {one.question_id} is there twice (first: {seen[one.question_id]})")
        seen[one.question_id] = where
        for repeat, choice in enumerate(one.choices):
            failed = FAILED in choice.turns
            sample: Row = {"text": "\n\n".join(choice.turns)}
            if failed:
                sample |= {"finish": "error", "error": f"{where}: a turn failed in Spec-Bench"}
            else:
                sample |= {"new_tokens": sum(choice.new_tokens), "wall_seconds": sum(choice.wall_time)}
                for turn, seconds in enumerate(choice.wall_time, 1):
                    times[seconds].append(f"{one.question_id} (turn {turn})")
            lengths = [n for x in choice.accept_lengths or [] for n in (x if isinstance(x, list) else [x])]
            rounds = [{"committed": n, "target_forwards": 1} for n in lengths]
            told.add((by_category and one.category) or "spec-bench", one.question_id, repeat, sample, rounds)
    for seconds, same in times.items():
        if len(same) > 1:
            named = ", ".join(same[:MOST_NAMED]) + (
                f" and {len(same) - MOST_NAMED} more" if len(same) > MOST_NAMED else ""
            )
            told.warnings.append(
                f"{path.name}: questions {named} have exactly the same wall_time, {seconds} s; Spec-Bench "
                "gives a failed prompt the time of the one before it, so look at them"
            )
    return told
