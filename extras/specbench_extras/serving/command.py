"""The command that says what the methods of a run cost to serve."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from specbench.base.console import progress
from specbench.cli.analyze.shared import PrintedFormat, show
from specbench.cli.errors import check_out, user_errors
from specbench.cli.groups import DecodedAgain, with_groups
from specbench.cli.options import CellsOut, Printed


@with_groups
def serving(
    run: Annotated[Path, Argument(help="a finished run folder, with vanilla among its methods")],
    out: CellsOut = None,
    format: PrintedFormat = Printed.table,
    *,
    allowed: DecodedAgain,
) -> None:
    """What the methods of a run cost to serve: memory by part, and how much later the first token comes.

    Times are the run's own; for memory its models are loaded again, and its longest text is decoded by each method.

    `specbench serving runs/one --out runs/tables/measured/cospec-table11.csv`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        check_out(out)
        stored = stored_run(run)
        from specbench_extras.serving import study  # after the run is found, for these imports take seconds
        from specbench_extras.serving.cells import cells
        from specbench_extras.serving.view import view

        with progress("serving", len(stored.plan.methods), aside=format is not Printed.table) as advance:
            figures = study.serving(stored, advance)
        show(view(figures), format, lambda: cells(stored, figures), out)
