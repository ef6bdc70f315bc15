"""A file of prompts without scores: JSON Lines, in the forms that `prompt_forms` and `trajectories` read."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.base.errors import UserError
from specbench.base.untrusted import MIB, parse_json, read_lines
from specbench.config.prompt_forms import FORM, Prompt, prompt_of
from specbench.config.specs import ConstraintSpec, TaskInfo, TaskLine
from specbench.config.trajectories import FORM as RECORDED
from specbench.config.trajectories import trajectory_of

MOST_PROMPT = 8 * MIB  # bytes of a line: two million tokens
MOST_VALUES = 100_000  # of a line's JSON
MOST_FILE = 256 * MIB  # bytes of all lines
SCHEMA = "schema"  # the field of a line that holds one
TAKEN = "average"  # the last rows of tables
NEW_TOKENS = 256  # of an answer, unless the command line says otherwise
SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}  # besides those of MT-Bench
MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
COLUMNS = {"question_id", "category", "turns", "reference"}  # of Spec-Bench, MT-Bench and EAGLE, and no others


@dataclass(frozen=True)
class PromptsRead:
    """The prompts of a file in its order, and how many lines have each key that changes nothing here."""

    prompts: list[Prompt]
    unread: dict[str, int]


def read_file(path: Path, recorded: bool = False) -> PromptsRead:
    """The prompts of a file, and the keys of its lines that are not read; with `recorded`, they are trajectories.

    The task of a prompt is its category, or the file's name without one. In Spec-Bench's questions, which are known by
    their columns and categories, MT-Bench's eight categories are one task, as in Spec-Bench's own tables.

    Raises:
        UserError: a line is not JSON, has no prompt, asks for more than text, or has an id that was there before; the
            line's number is named. Or the file is empty, or too large.
    """
    prompts: list[Prompt] = []
    places: dict[str, int] = {}
    unread: Counter[str] = Counter()
    columns: set[str] = set()
    read, form = (trajectory_of, RECORDED) if recorded else (prompt_of, FORM)
    for number, line in _lines(path):
        value = parse_json(line, f"{path}, line {number}", form, MOST_VALUES)
        prompt = read(value, f"{path}, line {number}", len(prompts))
        if prompt.id in places:
            raise UserError(
                f"{path}, line {number}: the id {prompt.id!r} is there twice (first: line {places[prompt.id]})"
            )
        if prompt.category == TAKEN:
            raise UserError(f"{path}, line {number}: tables call their last rows {TAKEN}; rename this category")
        places[prompt.id] = number
        columns |= value.keys()
        unread.update(prompt.unread)
        prompts.append(prompt)
    if not prompts:
        raise UserError(f"{path} holds no {'conversations' if recorded else 'prompts'}; {form}")
    categories = {prompt.category for prompt in prompts}
    spec_bench = columns <= COLUMNS and categories & SPEC_BENCH and categories <= SPEC_BENCH | MT_BENCH
    names = dict.fromkeys(MT_BENCH, "mt_bench") if spec_bench else {}
    named = [replace(p, task=names.get(p.category, p.category) or path.stem) for p in prompts]
    return PromptsRead(named, dict(unread))


def read_prompts(path: Path, recorded: bool = False) -> list[Prompt]:
    """The prompts of a file alone. Raises UserError as `read_file`."""
    return read_file(path, recorded).prompts


def prompt_constraint(path: Path, asked: ConstraintSpec | None, recorded: bool = False) -> ConstraintSpec | None:
    """What answers to a file's prompts must be: what is `asked` for, else the schemas that its lines have, if any.

    Raises UserError if there are both, or `asked` names another field.
    """
    if asked and asked.field not in (None, SCHEMA):
        raise UserError(f"the lines of {path} have their schemas in the field {SCHEMA!r}, not {asked.field!r}")
    schemas = any(prompt.schema for prompt in read_prompts(path, recorded))
    if asked and asked.text is not None and schemas:
        raise UserError(f"lines of {path} have schemas of their own; leave them out, or --schema, --regex and --lark")
    if asked and asked.text is None and not schemas:
        raise UserError(f"no line of {path} has a schema in the field {SCHEMA!r}")
    return asked or (ConstraintSpec(kind="schema", field=SCHEMA) if schemas else None)


def prompt_lines(path: Path, max_new_tokens: int | None, recorded: bool = False) -> tuple[TaskLine, ...]:
    """The tasks of a file of prompts, in the order in which they first appear. Raises UserError as `read_prompts`."""
    names = dict.fromkeys(prompt.task for prompt in read_prompts(path, recorded))
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
