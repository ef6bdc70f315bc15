"""The command `specbench analyze drafts`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from specbench.base.console import progress
from specbench.cli.analyze.shared import Method, PlainFormat, show
from specbench.cli.errors import user_errors
from specbench.cli.groups import ReadAgain, with_groups
from specbench.cli.options import AllowMismatch, Plain

if TYPE_CHECKING:
    from specbench.report.finding import Finding


@with_groups
def drafts(
    runs: Annotated[list[Path], Argument(help="sampled runs, one for each draft of one target")],
    method: Method = None,
    allow_mismatch: AllowMismatch = None,
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """What drafts of one target are worth to sps: α, measured and as predicted by 1 - TVD, τ, MBSU and speedup.

    τ is compared with that of the first run. Both models read the texts again.

    `specbench analyze drafts better.before better.after`
    """
    with user_errors(), allowed.permitted():
        show(drafts_finding(runs, method, allow_mismatch or [], format is not Plain.table), format)


def drafts_finding(runs: Sequence[Path], method: str | None, allowed: Sequence[str], aside: bool) -> "Finding":
    """What `drafts` shows; `aside`: progress is printed on stderr. Raises UserError."""
    from specbench.results.stored import stored_run
    from specbench_extras.drafts import study
    from specbench_extras.drafts.two_readings import texts_to_read
    from specbench_extras.drafts.view import view

    stored = [stored_run(run, method) for run in runs]
    with progress("reading texts", sum(len(texts_to_read(run, method)) for run in stored), aside) as advance:
        return view(study.drafts(stored, method, allowed, advance))
