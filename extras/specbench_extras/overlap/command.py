"""The command `specbench analyze overlap`."""

from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.options import Plain


def overlap(run: Run, format: PlainFormat = Plain.table) -> None:
    """How fast pearl and mirror would be if draft and target worked at the same time; modelled from rounds' seconds.

    `specbench analyze overlap runs/one`
    """
    with user_errors():
        from specbench.results.stored import stored_run
        from specbench_extras.overlap.analysis import overlap as figures
        from specbench_extras.overlap.view import view

        show(view(figures(stored_run(run))), format)
