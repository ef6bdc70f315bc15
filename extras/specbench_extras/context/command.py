"""The command `specbench analyze context`."""

from specbench.cli.analyze.shared import PlainFormat, Run, show
from specbench.cli.errors import user_errors
from specbench.cli.options import Plain


def context(run: Run, format: PlainFormat = Plain.table) -> None:
    """Acceptance, τ and speed by position in the context, and prefill, memory and decoding by the prompt's length.

    `specbench analyze context runs/one`
    """
    with user_errors():
        from specbench.analysis.context import context as figures
        from specbench.results.stored import stored_run
        from specbench_extras.context.view import view

        show(view(figures(stored_run(run))), format)
