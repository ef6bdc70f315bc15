"""The command `specbench analyze collaboration`."""

from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.options import Plain


def collaboration(run: Run, format: PlainFormat = Plain.table) -> None:
    """Whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say.

    `specbench analyze collaboration runs/one --format json`
    """
    with user_errors():
        from specbench.results.stored import stored_run

        stored = stored_run(run)
        from specbench_extras.collaboration.analysis import collaboration as figures
        from specbench_extras.collaboration.view import view

        show(view(figures(stored)), format)
