"""What may run code that specbench did not bring: what the command line in force permits, and nothing that a file says.

A plan in a manifest, or a YAML file, may be somebody else's: it tells what a run was begun with, and permits nothing.
Permissions hold for the calls within `permitted`, in its thread; outside of it nothing is permitted.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from specbench import sandbox
from specbench.config import UserError, task_info
from specbench.console import PlainConsole
from specbench.plan import Plan

ENTRY_POINT = "combine"  # the setting of methods that can name a function of the user's own


@dataclass(frozen=True)
class Permissions:
    trust_remote_code: bool = False
    allow_pickle: bool = False
    allow_code_execution: bool = False
    entry_points: frozenset[str] = frozenset()  # as `module:function` or `FILE.py:function`
    told: set[str] = field(default_factory=set)  # what has been named in the output


_NONE = Permissions()
_in_force: ContextVar[Permissions] = ContextVar("permissions", default=_NONE)


@contextmanager
def permitted(
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    allow_code_execution: bool = False,
    entry_points: Iterable[str] | None = None,
    assignments: Iterable[str] | None = None,
) -> Iterator[None]:
    """Permit what a command line permits, and nothing else, within the block.

    Functions of the user's own are permitted by `entry_points`, and by `assignments` as `--set` (METHOD.combine=VALUE)
    and `--param` (combine=VALUE,VALUE) have them, as the user has typed them.
    """
    typed = set(entry_points or ())
    for text in assignments or ():
        key, _, values = text.partition("=")
        if key.rpartition(".")[2] == ENTRY_POINT:
            typed |= {value.strip().strip("'\"") for value in (values, *values.split(","))}
    granted = Permissions(trust_remote_code, allow_pickle, allow_code_execution, frozenset(typed))
    token = _in_force.set(granted)
    try:
        yield
    finally:
        _in_force.reset(token)


def flags() -> str:
    """The flags in force, as they stand on a command line, each behind a blank."""
    now = _in_force.get()
    named = {"--trust-remote-code": now.trust_remote_code, "--allow-pickle": now.allow_pickle}
    named |= {"--allow-code-execution": now.allow_code_execution}
    given = [flag for flag, permitted in named.items() if permitted]
    return "".join(f" {one}" for one in [*given, *(f"--allow-entry-point {one}" for one in sorted(now.entry_points))])


def check_loading(plan: Plan, weights: bool = True) -> None:
    """Before a plan's models, or without `weights` their tokenizers, are loaded.

    Raises UserError where the plan was made with flags that are not given now.
    """
    now = _in_force.get()
    flags = {"--trust-remote-code": plan.trust_remote_code and not now.trust_remote_code}
    flags |= {"--allow-pickle": plan.allow_pickle and weights and not now.allow_pickle}
    if missing := " ".join(flag for flag, lacks in flags.items() if lacks):
        raise UserError(
            f"this run was begun with {missing}, by which its models may run code of their own; "
            f"if you trust them, add {missing}"
        )


def check_entry_point(text: str) -> None:
    """Before a user's function is imported. UserError where it was not named on this command line."""
    if text not in _in_force.get().entry_points:
        raise UserError(
            f"{ENTRY_POINT}={text} runs code of that name, and a file asks for it, not this command line; "
            f"if you trust it, add --allow-entry-point {text}"
        )


def tell(line: str, style: str = "") -> None:
    """Print a line, once for a command; on stderr, as stdout may be for a program."""
    told = _in_force.get().told
    if line not in told:
        told.add(line)
        PlainConsole(stderr=True).print(line, style=style, highlight=False, soft_wrap=True)


def code_execution(plan: Plan) -> dict[str, str] | None:
    """Who lets the programs that a plan's tasks ask for be run, and in what isolation; None where there are none.

    The bundled pair on bundled tasks needs no flag where the isolation is complete. UserError without permission.
    """
    tasks = [line.task for line in plan.tasks if task_info(line.task).runs_code]
    if not tasks:
        return None
    found = sandbox.isolation()
    if _in_force.get().allow_code_execution:
        return {"allowed_by": "flag", "isolation": found.name}
    bundled = plan.pair.bundled and all(task_info(task).hub is None for task in tasks)
    if bundled and found.complete:
        return {"allowed_by": "bundled", "isolation": found.name}
    why = f", and {found.missing}" if bundled else ""
    named = ", ".join(tasks)
    raise UserError(f"{named}: scoring runs what models wrote{why}; to let it run, add --allow-code-execution")


def may_run_code(plan: Plan) -> bool:
    """Whether all tasks of a plan may be scored."""
    try:
        code_execution(plan)
    except UserError:
        return False
    return True


def check_code(plan: Plan) -> None:
    """Before anything is decoded whose score runs it. UserError if not permitted; says what is not isolated."""
    found = sandbox.isolation() if code_execution(plan) else None
    if found and not found.complete:
        tell(f"WARNING: {found.missing}", "bold yellow")
