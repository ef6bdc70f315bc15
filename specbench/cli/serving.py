"""Commands that say what serving many texts costs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from specbench.base.console import progress
from specbench.cli.analyze import Printed
from specbench.cli.options import (
    AllowEntryPoint,
    AllowPickle,
    CellsOut,
    Draws,
    FetchModels,
    Place,
    TrustRemoteCode,
    check_out,
    known,
    user_errors,
    whole_numbers,
    with_groups,
)
from specbench.config import UserError
from specbench.permissions import permitted
from specbench.plan import resolve_plan


@with_groups
def throughput(
    *,
    method: Annotated[
        list[str] | None,
        Option(help="cospec or sps, or a YAML file of theirs; default: cospec", autocompletion=known("methods")),
    ] = None,
    prompts: Draws,
    batch: Annotated[str, Option(help="how many texts are decoded together")] = "1,2,4,8,16,32",
    batches: Annotated[int, Option(min=2, help="batches of each size, at least; prompts may come again")] = 6,
    limit: Annotated[int, Option(min=1, help="documents of each task")] = 8,
    place: Place,
    out: CellsOut = None,
    format: Annotated[Printed, Option(help="how to print it")] = Printed.table,
) -> None:
    """Tokens per second in fixed batches, by the target alone and by methods that speculate, interleaved.

    A batch begins as one and ends with its longest text. Exit code 1 if a lossless greedy text is not vanilla's.

    `specbench throughput --method cospec --batch 1,2,4,8,16,32`

    `specbench throughput --method sps --method cospec --set sps.gamma=4 --set cospec.arbiter=always`
    """
    from specbench.measure import prepare
    from specbench.papers import cells
    from specbench.report.finding import show
    from specbench.report.views.throughput import view
    from specbench.studies.throughput import Bench

    with user_errors(), permitted(fetch_models=True):
        sizes = list(dict.fromkeys(whole_numbers("--batch", batch)))
        if min(sizes) < 1:
            raise UserError(f"--batch {batch}: batches have at least one text, such as 1,2,4,8")
        check_out(out)
        wanted = prompts.of_plan() | place.of_plan()
        plan = resolve_plan(method or ["cospec"], baseline="vanilla", limit=limit, **wanted)
        bench = Bench(plan, prepare.load_models(plan), sizes, batches)
        with progress("throughput", bench.total, aside=format is not Printed.table) as advance:
            bench.carry_out(advance)
        figures = bench.result()
        show(view(figures), format.value)
        if out:
            cells.write_cells(out, cells.throughput(figures, plan.methods))
        raise typer.Exit(int(bool(figures.bugs)))


def serving(
    run: Annotated[Path, Argument(help="a finished run folder, with vanilla among its methods")],
    out: CellsOut = None,
    format: Annotated[Printed, Option(help="how to print it")] = Printed.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_entry_point: AllowEntryPoint = None,
    fetch_models: FetchModels = False,
) -> None:
    """What the methods of a run cost to serve: memory by part, and how much later the first token comes.

    Times are the run's own; for memory its models are loaded again, and its longest text is decoded by each method.

    `specbench serving runs/one --out runs/tables/measured/cospec-table11.csv`
    """
    from specbench.papers import cells
    from specbench.report.finding import show
    from specbench.report.views.serving import view
    from specbench.results.stored import StoredRun
    from specbench.studies import serving as study

    allowed = permitted(trust_remote_code, allow_pickle, entry_points=allow_entry_point, fetch_models=fetch_models)
    with user_errors(), allowed:
        check_out(out)
        stored = StoredRun(run)
        with progress("serving", len(stored.plan.methods), aside=format is not Printed.table) as advance:
            figures = study.serving(stored, advance)
        show(view(figures), format.value)
        if out:
            cells.write_cells(out, cells.serving(stored, figures))
