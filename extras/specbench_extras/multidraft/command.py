"""The command `specbench analyze multi-draft`."""

from typing import Annotated

from typer import Option

from specbench.base.console import progress
from specbench.cli.analyze.shared import Method, PlainFormat, Run, show
from specbench.cli.errors import user_errors, whole_numbers
from specbench.cli.groups import ReadAgain, with_groups
from specbench.cli.options import Plain


@with_groups
def multi_draft(
    run: Run,
    method: Method = None,
    drafts: Annotated[str, Option(help="how many drafts of a token, such as 2,3")] = "2,3",
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """What several drafts of a token are worth, up to the bound of optimal transport; reads the texts again.

    `specbench analyze multi-draft runs/sampled --drafts 2,3`
    """
    with user_errors(), allowed.permitted():
        from specbench.results.stored import stored_run

        counts = whole_numbers("--drafts", drafts)
        stored = stored_run(run, method)
        from specbench_extras.drafts.two_readings import texts_to_read
        from specbench_extras.multidraft.study import multi_draft as figures
        from specbench_extras.multidraft.view import view

        texts = texts_to_read(stored, method)
        with progress("reading texts", len(texts), format is not Plain.table) as advance:
            show(view(figures(stored, texts, counts, advance)), format)
