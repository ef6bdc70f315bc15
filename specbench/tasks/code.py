"""Permission to run programs that models wrote, in order to score them, and the isolation they run in."""

from specbench import permissions
from specbench.config import UserError
from specbench.plan import Plan


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
    """The same before anything is decoded: warns if scoring is not fully isolated."""
    allowed = code_execution(plan)
    if not allowed:
        return None
    from specbench.tasks import sandbox

    isolation = sandbox.isolation()
    if not isolation.complete:
        permissions.tell(f"WARNING: {isolation.missing}", "bold yellow")
    return allowed
