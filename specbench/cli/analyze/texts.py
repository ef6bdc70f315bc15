"""Analyses for which models read a run's texts again, or decode on from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from specbench.base.console import progress
from specbench.cli.analyze.shared import Method, PlainFormat, PrintedFormat, Run, show
from specbench.cli.errors import check_out, user_errors
from specbench.cli.groups import JudgedAgain, ReadAgain, with_groups
from specbench.cli.options import AllowMismatch, CellsOut, Plain, Printed

if TYPE_CHECKING:
    from specbench.report.finding import Finding


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
        from specbench.papers import cells
        from specbench.report.views.counterfactual import view
        from specbench.studies import counterfactual as study

        aside = format is not Printed.table  # progress is printed on stderr, as stdout is for programs
        figures = study.carry_out(stored, method, states, seed, batch, folder, aside)
        show(view(figures), format, lambda: cells.counterfactual(stored, figures), out)


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
        from specbench.report.views.arbitrator import view
        from specbench.studies import arbitrator as study

        show(view(study.carry_out(stored, method, seed, format is not Plain.table)), format)


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
    from specbench.report.views.drafts import view
    from specbench.results.stored import stored_run
    from specbench.studies import drafts as study
    from specbench.studies.two_readings import texts_to_read

    stored = [stored_run(run, method) for run in runs]
    with progress("reading texts", sum(len(texts_to_read(run, method)) for run in stored), aside) as advance:
        return view(study.drafts(stored, method, allowed, advance))
