"""Measure speculative decoding: every method on one engine, accuracy and speed from the same generations.

The Python API. Nothing heavy is imported before it is used.

    import specbench

    plan = specbench.resolve_plan(["sps", "csd"], suite="pocket", limit=5)
    run = specbench.run_plan(plan, "runs/first")
    run.samples()[["method", "tokens", "decode_seconds"]]

    table = specbench.compare(["runs/first", "runs/second"])
    table[["task", "method", "accuracy", "speedup_decode"]]

What is wrong with an input is a `UserError` of one line. Models and tasks that bring their own code run only within
`with specbench.permitted(trust_remote_code=True): ...`.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from specbench.base.errors import UserError as UserError
    from specbench.permissions import permitted as permitted
    from specbench.plan import Plan as Plan
    from specbench.plan import resolve_plan as resolve_plan
    from specbench.results.stored import StoredRun as StoredRun

_HOMES = {
    "Plan": "specbench.plan",
    "StoredRun": "specbench.results.stored",
    "UserError": "specbench.base.errors",
    "permitted": "specbench.permissions",
    "resolve_plan": "specbench.plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specbench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def load_run(folder: str | Path) -> "StoredRun":
    """A run folder, finished or not; its tables are read when they are asked for.

        run = specbench.load_run("runs/first")
        run.plan.methods, run.finished
        run.samples(), run.rounds().to_table(), run.scores()

    Raises:
        UserError: there is no run in the folder, or it is damaged.
    """
    from specbench.results.stored import StoredRun

    run = StoredRun(Path(folder))
    run.plan  # noqa: B018 (a folder without a run is refused here)
    return run


def compare(
    folders: Sequence[str | Path], against: str | None = None, allow_mismatch: Sequence[str] = ()
) -> "pd.DataFrame":
    """The table that `specbench compare` prints, as a pandas DataFrame.

    It has a row for each pair, sampling, task and method, with averages over the tasks. Runs of the same pair and
    method are pooled as repeats.

        table = specbench.compare(["runs/first"], against="vanilla")
        table.loc[table.task == "average", ["method", "speedup_decode", "tau"]]

    Args:
        folders: finished runs.
        against: the baseline of all methods; default: the one that each was run with.
        allow_mismatch: conditions, such as `cpu`, in which the runs may differ.

    Raises:
        UserError: a run is unfinished or damaged, the runs must not be compared, or no method is called `against`.
    """
    from specbench.analysis import compare as compared

    measured = compared.measured([load_run(folder) for folder in folders], allow_mismatch)
    return compared.summary(measured if against is None else measured.against(against))


def run_plan(plan: "Plan", folder: str | Path) -> "StoredRun":
    """Carry out a plan in a folder and return the run, with its `summary.parquet` if it finished.

    A folder that holds an unfinished run of the same plan is continued. After Ctrl-C the run that is returned is not
    `finished`.

        plan = specbench.resolve_plan(["sps"], suite="math", assignments=["sps.gamma=6"], temperature=1.0)
        run = specbench.run_plan(plan, "runs/sps-6")

    Raises:
        UserError: settings are wrong, or the folder cannot be used or belongs to another plan.
    """
    from specbench.analysis import compare as compared
    from specbench.run import command

    folder = Path(folder)
    begun = (folder / "manifest.json").exists()
    if command.run(plan, None if begun else folder, folder if begun else None):
        compared.write_summary(folder)
    return load_run(folder)
