"""The command `specbench analyze mirror`."""

from typing import Annotated

from typer import Option

from specbench.base.console import progress
from specbench.cli.analyze.shared import Method, PlainFormat, Run, show
from specbench.cli.errors import user_errors, whole_numbers
from specbench.cli.groups import ReadAgain, with_groups
from specbench.cli.options import Plain


@with_groups
def mirror(
    run: Run,
    method: Method = None,
    layers: Annotated[
        str | None, Option(help="exits of the target, such as 4,8; default: a quarter, half and three quarters")
    ] = None,
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """How often an early layer predicts where the next draft begins, so that it could be ready (Mirror-SD).

    The target reads the texts again; the time that would be saved is modelled from the rounds' seconds.

    `specbench analyze mirror runs/one --method sps --layers 6`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        exits = whole_numbers("--layers", layers)
        stored = stored_run(run, method)
        from specbench_extras.mirror.study import carry_out
        from specbench_extras.mirror.view import view

        with progress("reading texts", len(stored.manifest["requests"]), format is not Plain.table) as advance:
            show(view(carry_out(stored, method, exits, advance)), format)
