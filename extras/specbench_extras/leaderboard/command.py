"""The command that puts many runs into one sortable table."""

from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Option

from specbench.cli.errors import user_errors
from specbench.cli.options import Runs


class Rows(str, Enum):
    """What a row of a leaderboard is."""

    method = "method"
    run = "run"


def leaderboard(
    runs: Runs,
    out: Annotated[Path, Option(help="FILE.html, .csv or .md")] = Path("leaderboard.html"),
    by: Annotated[
        Rows, Option(help="method: runs that repeat each other are pooled; run: each by itself, in their order")
    ] = Rows.method,
    sort: Annotated[str | None, Option(help="a column: largest first; COLUMN:asc: smallest first")] = None,
) -> None:
    """Write one sortable table of many runs: a row for each pair, task and method, with what it was measured on.

    Runs of other machines, versions, dtypes, runtimes, documents or prompts may be given: they are in groups, and
    speeds are compared within a group only. A page also has the figures run by run, as a history.

    `specbench leaderboard runs/one runs/other --out leaderboard.html`

    `specbench leaderboard runs/one runs/other --out history.csv --by run`

    `specbench leaderboard runs/one runs/other --out leaderboard.md --sort speedup`
    """
    from specbench_extras.leaderboard import page

    with user_errors():
        page.leaderboard(runs, out, by.value, sort)
