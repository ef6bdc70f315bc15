"""The gate between a plan and its work: whether it can be carried out, and whether this command line permits it.

Nothing is loaded before. One question is left for afterwards, as only loaded documents can answer it: whether a method
was made from them (`prepare.leaked`).
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specbench import config, permissions
from specbench.config import UserError
from specbench.methods import module
from specbench.plan import Plan


@dataclass(frozen=True)
class Admitted:
    """A plan that this command line permits; `prepare` takes no other."""

    plan: Plan
    code_execution: dict[str, str] | None  # who permits the programs that its tasks ask for, and their isolation


def admit(plan: Plan) -> Admitted:
    """Let a plan through. Imports its methods, and torch with them.

    Raises:
        UserError: the plan needs a permission that the command line lacks, has a setting that its method does not
            accept, or asks for something that servers cannot do.
    """
    _check_alone()
    permissions.check_loading(plan)
    for line in plan.tasks:
        if line.file:
            permissions.check_task_file(Path(line.file))
    runs_code = check_code(plan)
    if plan.servers:
        from specbench.measure.clients import check_served

        check_served(plan)
    check_settings(plan)
    return Admitted(plan, runs_code)


def code_execution(plan: Plan) -> dict[str, str] | None:
    """Who permits running the programs that a plan's tasks ask for, and in what isolation; None if no task does.

    The bundled pair on bundled tasks needs no flag if the isolation is complete. Raises UserError without permission.
    """
    tasks = [line.task for line in plan.tasks if plan.info(line.task).runs_code]
    if not tasks:
        return None
    from specbench.tasks import sandbox  # here and below: few tasks run code

    isolation = sandbox.isolation()
    if isolation.name == sandbox.UNSAFE and not permissions.code_execution_allowed(unsafe=True):
        raise UserError(
            f"{', '.join(tasks)}: scoring runs what models wrote, and {isolation.missing}; install bubblewrap, run "
            f"specbench as another user, or permit it with --allow-code-execution={permissions.UNSAFE}"
        )
    if permissions.code_execution_allowed():
        return {"allowed_by": "flag", "isolation": isolation.name}
    bundled = plan.pair.bundled and all(plan.info(task).hub is None for task in tasks)
    if bundled and isolation.complete:
        return {"allowed_by": "bundled", "isolation": isolation.name}
    reason = f", and {isolation.missing}" if bundled else ""
    raise UserError(
        f"{', '.join(tasks)}: scoring runs what models wrote{reason}; to let it run, add --allow-code-execution"
    )


def may_run_code(plan: Plan) -> bool:
    """True if all tasks of a plan may be scored."""
    try:
        code_execution(plan)
    except UserError:
        return False
    return True


def check_code(plan: Plan) -> dict[str, str] | None:
    """What `code_execution` says, before anything is decoded; warns if scoring is not fully isolated."""
    allowed = code_execution(plan)
    if not allowed:
        return None
    from specbench.tasks import sandbox

    isolation = sandbox.isolation()
    if not isolation.complete:
        permissions.tell(f"WARNING: {isolation.missing}", "bold yellow")
    return allowed


def check_settings(plan: Plan) -> None:
    """Raise UserError for a setting that its method does not accept; imports the methods, and torch with them."""
    for spec in plan.own:
        with importing():
            method = module(spec.method)
        config.check_settings(method.Settings, spec)


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage meanwhile: what is imported stays, and imports take a quarter less."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _check_alone() -> None:
    """Raise UserError in one of several processes of torchrun: each would make the whole run."""
    count = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and count != "1":
        raise UserError(
            f"torchrun has started {count} processes of one run, and there is no tensor parallelism here; start it "
            "without torchrun, with --device spread or --workers N --gpus-per-worker M"
        )
