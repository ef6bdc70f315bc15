"""A file of prompts without scores: JSON Lines of specbench's own form, of Spec-Bench or of MT-Bench."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import MIB, brief, parse_json, read_lines
from specbench.config.specs import TaskInfo, TaskLine

MOST_PROMPT = 16 * MIB  # bytes of a line
MOST_FILE = 256 * MIB  # bytes of all lines
MOST_TURNS = 100
TAKEN = "average"  # the last rows of tables
MOST_NAME = 200  # characters of an id and of a category
NEW_TOKENS = 256  # of an answer, unless the command line says otherwise
SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}  # beside those of MT-Bench
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
MOST_STOPS = 100
FORM = 'write {"id": …, "prompt": TEXT or [TURN, TURN, …], "category": …}, one on a line'


@dataclass(frozen=True)
class Prompt:
    """One conversation: what the user says, turn by turn. `reference` is a text for each turn that has one.

    An answer ends before the first of `stop`, and after `max_new_tokens` where the file gives a limit for this prompt.
    """

    id: str
    category: str  # as in the file; empty if it has none
    task: str  # under which it stands in tables
    turns: tuple[str, ...]
    reference: tuple[str, ...]
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file, in its order.

    The task of a prompt is its category, or the file's name without one. In Spec-Bench's questions, MT-Bench's eight
    categories are one task, as in Spec-Bench's own tables.

    Raises:
        UserError: a line is not JSON, has no prompt, has turns that are not texts, or has an id that was there before;
            the line's number is named. Or the file is empty, or too large.
    """
    prompts: list[Prompt] = []
    places: dict[str, int] = {}
    for number, line in _lines(path):
        prompt = _prompt(parse_json(line, f"{path}, line {number}", FORM), f"{path}, line {number}", len(prompts))
        if prompt.id in places:
            raise UserError(
                f"{path}, line {number}: the id {prompt.id!r} is there twice (first: line {places[prompt.id]})"
            )
        if prompt.category == TAKEN:
            raise UserError(f"{path}, line {number}: tables call their last rows {TAKEN}; rename this category")
        places[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{path} holds no prompts; {FORM}")
    spec_bench = bool(SPEC_BENCH & {prompt.category for prompt in prompts})
    names = dict.fromkeys(MT_BENCH, "mt_bench") if spec_bench else {}
    return [replace(p, task=names.get(p.category, p.category) or path.stem) for p in prompts]


def prompt_lines(path: Path, max_new_tokens: int | None) -> tuple[TaskLine, ...]:
    """The tasks of a file of prompts, in the order in which they first appear. Raises UserError as `read_prompts`."""
    names = dict.fromkeys(prompt.task for prompt in read_prompts(path))
    info = TaskInfo(description="", hub=None, data=None, metric="", max_new_tokens=max_new_tokens or NEW_TOKENS)
    return tuple(TaskLine(task=name, own=info) for name in names)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    size = 0
    for number, line, count in read_lines(path, MOST_PROMPT):
        if (size := size + count) > MOST_FILE:
            raise UserError(f"{path} has more than {MOST_FILE} bytes of prompts; split it into several files")
        if line.strip():
            yield number, line


def _prompt(value: Any, where: str, place: int) -> Prompt:
    """A prompt from a line's value; one without an id is called by its `place`, from 0."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object; {FORM}")
    said = value["turns"] if "turns" in value else value.get("prompt")
    if said is None:
        raise UserError(f'{where} has no "prompt" (and no "turns", as Spec-Bench and MT-Bench have); {FORM}')
    turns = said if isinstance(said, list) else [said]
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise UserError(f"{where}: a prompt is a text or a list of texts, one for each turn, and none is empty; {FORM}")
    if len(turns) > MOST_TURNS:
        raise UserError(f"{where}: {len(turns)} turns, and a conversation has at most {MOST_TURNS}")
    return Prompt(
        id=_name(value, ("id", "question_id"), where) or str(place),
        category=_name(value, ("category",), where),
        task="",
        turns=tuple(turns),
        reference=_reference(value.get("reference"), where),
        stop=_stop(value.get("stop"), where),
        max_new_tokens=_limit(value.get("max_new_tokens"), where),
    )


def _name(value: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    """An id or a category as text; empty if there is none."""
    for key in keys:
        name = value.get(key)
        if name is None:
            continue
        if not isinstance(name, str | int) or isinstance(name, bool) or len(str(name)) > MOST_NAME:
            raise UserError(f"{where}: `{key}` is {brief(repr(name))}; write a text of at most {MOST_NAME} characters")
        return str(name)
    return ""


def _reference(value: Any, where: str) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: `reference` is a text, or a list of texts, one for each turn")
    return tuple(texts)


def _stop(value: Any, where: str) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) > MOST_STOPS or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"{where}: `stop` is a text, or a list of at most {MOST_STOPS} texts, and none is empty")
    return tuple(texts)


def _limit(value: Any, where: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31):
        return value
    raise UserError(f"{where}: `max_new_tokens` is {brief(repr(value))}; write a number of tokens from 1 on")
