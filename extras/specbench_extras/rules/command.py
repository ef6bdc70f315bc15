"""The command `specbench analyze rules`."""

from specbench.base.console import progress
from specbench.cli.analyze.shared import Method, PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.groups import ReadAgain, with_groups
from specbench.cli.options import Plain


@with_groups
def rules(
    run: Run,
    method: Method = None,
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """How many drafted tokens each rule of acceptance keeps; reads the drafts of a sampled run again.

    `specbench analyze rules runs/sampled`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        stored = stored_run(run, method)
        from specbench_extras.drafts.two_readings import texts_to_read
        from specbench_extras.rules.study import compared
        from specbench_extras.rules.view import view

        with progress("reading drafts", len(texts_to_read(stored, method)), format is not Plain.table) as advance:
            show(view(compared(stored, method, advance)), format)
