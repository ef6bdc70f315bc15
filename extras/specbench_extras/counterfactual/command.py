"""The command `specbench analyze counterfactual`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from specbench.cli.analyze.shared import Method, PrintedFormat, Run, show
from specbench.cli.errors import check_out, user_errors
from specbench.cli.groups import JudgedAgain, with_groups
from specbench.cli.options import CellsOut, Printed


@with_groups
def counterfactual(
    run: Run,
    method: Method = None,
    states: Annotated[int, Option(min=1, help="how many mismatches to try")] = 200,
    seed: Annotated[int, Option(help="seed for drawing them")] = 0,
    batch: Annotated[int, Option(min=1, help="mismatches to try between two saves")] = 10,
    folder: Annotated[
        Path | None, Option(help="folder of what was tried; default: counterfactual-METHOD in RUN")
    ] = None,
    out: CellsOut = None,
    format: PrintedFormat = Printed.table,
    *,
    allowed: JudgedAgain,
) -> None:
    """Whether cospec's arbiter kept the better token; decodes on from both, and can be resumed.

    `specbench analyze counterfactual runs/one --states 200`

    `specbench analyze counterfactual runs/one --states 400 --out cells.csv`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        check_out(out)
        stored = stored_run(run, method)
        from specbench_extras.counterfactual import study
        from specbench_extras.counterfactual.cells import cells
        from specbench_extras.counterfactual.view import view

        aside = format is not Printed.table  # progress is printed on stderr, as stdout is for programs
        figures = study.carry_out(stored, method, states, seed, batch, folder, aside)
        show(view(figures), format, lambda: cells(stored, figures), out)
