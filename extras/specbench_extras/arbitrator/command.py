"""The command `specbench analyze arbitrator`."""

from typing import Annotated

from typer import Option

from specbench.cli.analyze.shared import Method, PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.groups import JudgedAgain, with_groups
from specbench.cli.options import Plain


@with_groups
def arbitrator(
    run: Run,
    method: Method = None,
    seed: Annotated[int, Option(help="seed of the random tokens")] = 0,
    format: PlainFormat = Plain.table,
    *,
    allowed: JudgedAgain,
) -> None:
    """How many decisions of cospec's trained arbitrator change with the target's tokens; reads the rounds again.

    `specbench analyze arbitrator runs/one`

    `specbench analyze arbitrator runs/one --method cospec[mask=causal] --format csv`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        stored = stored_run(run, method)
        from specbench_extras.arbitrator import study
        from specbench_extras.arbitrator.view import view

        show(view(study.carry_out(stored, method, seed, format is not Plain.table)), format)
