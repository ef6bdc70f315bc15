"""Permissions to run foreign code, fetch models or test on calibration documents. Only the command line grants them.

A plan in a manifest, or a YAML file, may be somebody else's: it records with which permissions a run began, but grants
none. Permissions hold within the block of `permitted`, in its thread; outside of it nothing is permitted.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from specbench.base.console import PlainConsole
from specbench.base.untrusted import brief
from specbench.config import UserError, names
from specbench.plan import Plan

ENTRY_POINT = "combine"  # the setting that may name a function of the user
METHODS = ("length", "output")  # the settings that may name an own method
UNSAFE = "unsafe"  # programs that models wrote may run as root, too, where they cannot run as nobody


@dataclass(frozen=True)
class Permissions:
    trust_remote_code: bool = False
    allow_pickle: bool = False
    allow_code_execution: bool | str = False  # UNSAFE permits more
    allow_leak: bool = False
    fetch_models: bool | frozenset[str] = False  # any, or those of these names
    entry_points: frozenset[str] = frozenset()  # as `module:function` or `FILE.py:function`
    task_folders: frozenset[Path] = frozenset()  # with the user's own tasks
    keys: frozenset[str] = frozenset()  # environment variables whose API keys a run that goes on may send
    printed: set[str] = field(default_factory=set)  # lines that `tell` printed


_NONE = Permissions()
_in_force: ContextVar[Permissions] = ContextVar("permissions", default=_NONE)


@contextmanager
def permitted(
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    allow_code_execution: bool | str | None = False,
    entry_points: Iterable[str] | None = None,
    assignments: Iterable[str] | None = None,
    allow_leak: bool = False,
    fetch_models: bool | Iterable[str] = False,
    methods: Iterable[str] | None = None,
    task_folders: Iterable[str | Path] = (),
    keys: Iterable[str] = (),
) -> Iterator[None]:
    """Permit what a command line permits, and nothing else, within the block.

    `fetch_models`: models and data sets that are not here may be fetched from the hub, all of them or some by name. A
    command permits it for names that its user chose, and for those that a run holds with --fetch-models only.

    `allow_code_execution` may be UNSAFE.

    `task_folders`: where the user's own tasks may lie. They run code, so `allow_code_execution` is needed, too.

    The user's functions are permitted if they are in `entry_points`, or in `assignments`, which are texts of `--set`
    (METHOD.combine=VALUE) and `--param` (combine=VALUE,VALUE) as they were typed. Own methods are permitted if they are
    in `methods`, in `assignments` (length=VALUE, output=VALUE) or in `entry_points`.
    """
    typed = {_own(text) or text for text in entry_points or ()}
    named = list(methods or ())
    for text in assignments or ():
        key, _, values = text.partition("=")
        if key.rpartition(".")[2] == ENTRY_POINT:
            typed |= {value.strip().strip("'\"") for value in (values, *values.split(","))}
        if key.rpartition(".")[2] in METHODS:
            named += [value.strip() for value in values.split(",")]
    named = [text for text in named if text not in names("methods")]
    typed |= {own for text in named if (own := _own(text))}
    granted = Permissions(
        trust_remote_code=trust_remote_code,
        allow_pickle=allow_pickle,
        allow_code_execution=UNSAFE if allow_code_execution == UNSAFE else bool(allow_code_execution),
        allow_leak=allow_leak,
        fetch_models=fetch_models if isinstance(fetch_models, bool) else frozenset(fetch_models),
        entry_points=frozenset(typed),
        task_folders=frozenset(Path(folder).resolve() for folder in task_folders),
        keys=frozenset(keys),
    )
    token = _in_force.set(granted)
    try:
        yield
    finally:
        _in_force.reset(token)


def in_force() -> Permissions:
    """What is permitted now, to be sent to another process of this command."""
    return _in_force.get()


@contextmanager
def under(granted: Permissions) -> Iterator[None]:
    """Permit within the block what another process of the same command was permitted."""
    token = _in_force.set(granted)
    try:
        yield
    finally:
        _in_force.reset(token)


def flags() -> str:
    """The flags in force, as they stand on a command line, each after a space."""
    now = _in_force.get()
    named = {"--trust-remote-code": now.trust_remote_code, "--allow-pickle": now.allow_pickle}
    unsafe = f"={UNSAFE}" * (now.allow_code_execution == UNSAFE)
    named |= {f"--allow-code-execution{unsafe}": bool(now.allow_code_execution), "--allow-leak": now.allow_leak}
    granted = [flag for flag, permitted in named.items() if permitted]
    granted += [f"--allow-entry-point {entry_point}" for entry_point in sorted(now.entry_points)]
    granted += [f"--task-dir {folder}" for folder in sorted(now.task_folders)] if now.allow_code_execution else []
    granted += [f"--allow-key {key}" for key in sorted(now.keys)]
    return "".join(f" {flag}" for flag in granted)


def flags_of(plan: Plan) -> str:
    """The flags in force, and those that a run of this plan needs for its API keys when it goes on."""
    needed = {f" --allow-key {key}" for key in _keys(plan)}
    return flags() + "".join(sorted(flag for flag in needed if flag not in flags()))


def check_keys(plan: Plan) -> None:
    """Check the plan of a run that goes on. Raises UserError if it would send an API key that is not permitted."""
    for key, url in _keys(plan).items():
        if key not in _in_force.get().keys:
            raise UserError(
                f"this run sends what the environment variable {brief(key)} holds to {brief(url)}; if that is your "
                f"server, add --allow-key {brief(key)}"
            )


def _keys(plan: Plan) -> dict[str, str]:
    """The environment variables with API keys that a plan names, and where each is sent."""
    servers = [spec.values for spec in plan.servers]
    return {str(values["key_variable"]): str(values["url"]) for values in servers if values.get("key_variable")}


def check_loading(plan: Plan, weights: bool = True) -> None:
    """Check a plan before its models (without `weights`: its tokenizers) are loaded.

    Raises:
        UserError: the plan was made with flags that the command line does not have now.
    """
    now = _in_force.get()
    flags = {"--trust-remote-code": plan.trust_remote_code and not now.trust_remote_code}
    flags |= {"--allow-pickle": plan.allow_pickle and weights and not now.allow_pickle}
    if missing := " ".join(flag for flag, lacks in flags.items() if lacks):
        raise UserError(
            f"this run began with {missing}, which lets its models run code; if you trust them, add {missing}"
        )


def check_entry_point(text: str, what: str) -> None:
    """Check code of the user before it is imported. Raises UserError if the command line does not name it."""
    if text not in _in_force.get().entry_points:
        raise UserError(
            f"{what} runs code that specbench did not bring, and a file or a run asks for it, not this command line; "
            f"if you trust it, add --allow-entry-point {text}"
        )


def check_task_file(path: Path) -> None:
    """Check a task's YAML of the user before lm-eval reads it: functions, metrics and templates in it are code.

    Raises UserError unless the command line names its folder, and permits code.
    """
    now = _in_force.get()
    if not any(path.resolve().is_relative_to(folder) for folder in now.task_folders):
        raise UserError(
            f"the task {path} runs code of its own, and a file names it, not this command line; if you trust it, add "
            f"--task-dir {path.parent} --allow-code-execution"
        )
    if not now.allow_code_execution:
        raise UserError(
            f"task files run code of their own (functions, metrics, templates), and {path} is not specbench's; if you "
            "trust it, add --allow-code-execution"
        )


def code_execution_allowed(unsafe: bool = False) -> bool:
    """True if this command line has --allow-code-execution, or if `unsafe`, --allow-code-execution=unsafe."""
    allowed = _in_force.get().allow_code_execution
    return allowed == UNSAFE if unsafe else bool(allowed)


def may_fetch(name: str) -> bool:
    """True if this command may fetch a model or a data set of this name from the hub."""
    granted = _in_force.get().fetch_models
    return granted if isinstance(granted, bool) else name in granted


def leak_allowed() -> bool:
    """True if this command line has --allow-leak."""
    return _in_force.get().allow_leak


def _own(text: str) -> str | None:
    """What `MethodSpec.method` is for an own method; None for other texts."""
    from specbench.config import own_methods  # few command lines name one

    return own_methods.implementation(text)


def tell(line: str, style: str = "") -> None:
    """Print a line on stderr, once for a command."""
    printed = _in_force.get().printed
    if line not in printed:
        printed.add(line)
        PlainConsole(stderr=True).print(line, style=style, highlight=False, soft_wrap=True)
