"""The command that says how many documents a comparison needs."""

from typing import Annotated

from typer import Option

from specbench.cli.errors import user_errors
from specbench.cli.options import AllowMismatch, Printed, Runs
from specbench.config import UserError


def plan(
    runs: Runs,
    speedup: Annotated[float, Option(help="the speedup to tell from 1, such as 1.05 or 0.95")] = 1.05,
    points: Annotated[float, Option(help="the difference in accuracy to detect, in points")] = 5.0,
    discordant: Annotated[
        float | None,
        Option(help="share of documents that only one of two methods solves, from 0 to 1; default: as in the runs"),
    ] = None,
    allow_mismatch: AllowMismatch = None,
    format: Annotated[Printed, Option(help="how to print it")] = Printed.table,
) -> None:
    """How many documents a comparison needs for a difference of a given size, from the noise of runs.

    With that many, such a difference is shown in 80 of 100 comparisons, at the 5 % level.

    `specbench plan runs/one --speedup 1.1 --points 3`

    `specbench plan runs/one --discordant 0.1`
    """
    from specbench.analysis.documents_needed import needed
    from specbench.analysis.pooled import measured
    from specbench.report.finding import show
    from specbench.report.views.documents_needed import view
    from specbench.results.stored import StoredRun

    with user_errors():
        if not 0.01 <= speedup <= 100 or speedup == 1:
            raise UserError(f"--speedup {speedup:g}: name one from 0.01 to 100 that is not 1")
        if not 0.1 <= points <= 100:
            raise UserError(f"--points {points:g}: name a difference from 0.1 to 100 points")
        if discordant is not None and not 0 <= discordant <= 1:
            raise UserError(f"--discordant {discordant:g}: a share is from 0 to 1")
        folders = dict.fromkeys(folder.resolve() for folder in runs)
        stored = measured([StoredRun(folder) for folder in folders], allow_mismatch or [])
        figures = needed(stored, speedup, points, discordant)
        if figures.table.empty:
            raise UserError("no method in these runs has a baseline; `specbench run --baseline vanilla` makes one")
        show(view(figures), format.value)
