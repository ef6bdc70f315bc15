"""Commands that say what serving many texts costs."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from specbench.base.console import PlainConsole, progress
from specbench.cli.errors import check_out, numbers, user_errors, whole_numbers
from specbench.cli.groups import Machine, Texts, with_groups
from specbench.cli.options import (
    AllowCodeExecution,
    AllowLeak,
    CellsOut,
    Printed,
    known,
)
from specbench.config import UserError
from specbench.permissions import permitted
from specbench.plan import check_batches, resolve_plan

SHARES = (0.25, 0.5, 0.75, 1.0)  # rates without --rate, over what vanilla can serve
SLOWEST, FASTEST = 1e-6, 1e6  # requests a second


@with_groups
def throughput(
    *,
    method: Annotated[
        list[str] | None,
        Option(help="by name or YAML file; may be repeated; default: cospec", autocompletion=known("methods")),
    ] = None,
    texts: Texts,
    batch: Annotated[str, Option(help="how many texts are decoded together")] = "1,2,4,8,16,32",
    batches: Annotated[int, Option(min=2, help="the least number of batches of each size; prompts may repeat")] = 6,
    limit: Annotated[int, Option(min=1, help="documents of each task")] = 8,
    place: Machine,
    out: CellsOut = None,
    format: Annotated[Printed, Option(help="how to print it")] = Printed.table,
    allow_code_execution: AllowCodeExecution = None,
) -> None:
    """Tokens per second in fixed batches, by the target alone and by methods that speculate, interleaved.

    The texts of a batch start together; the batch ends with the longest. Exit code 1 if a greedy text of a lossless
    method is not vanilla's.

    `specbench throughput --method cospec --batch 1,2,4,8,16,32`

    `specbench throughput --method sps --method cospec --set sps.gamma=4 --set cospec.arbiter=always`

    `specbench throughput --method sps --prompts question.jsonl --max-new-tokens 64 --batch 1,4`
    """
    from specbench.papers import cells
    from specbench.report.finding import show

    allowed = permitted(
        allow_code_execution=allow_code_execution,
        assignments=texts.set_,
        fetch_models=True,
        methods=method,
        task_folders=texts.folders,
    )
    with user_errors(), allowed:
        sizes = list(dict.fromkeys(whole_numbers("--batch", batch)))
        if min(sizes) < 1:
            raise UserError(f"--batch {batch}: batches have at least one text, such as 1,2,4,8")
        check_out(out)
        wanted = texts.of_plan() | place.of_plan()
        plan = resolve_plan(method or ["cospec"], baseline="vanilla", limit=limit, **wanted)

        from specbench.measure import prepare  # after the names are checked, for these imports take seconds
        from specbench.report.views.throughput import view
        from specbench.studies.throughput import Bench

        bench = Bench(plan, prepare.load_models(plan), sizes, batches)
        with progress("throughput", bench.total, aside=format is not Printed.table) as advance:
            bench.carry_out(advance)
        figures = bench.result()
        show(view(figures), format.value)
        if out:
            cells.write_cells(out, cells.throughput(figures, plan.methods))
        raise typer.Exit(int(bool(figures.bugs)))


@with_groups
def load(
    *,
    method: Annotated[
        list[str] | None,
        Option(help="by name or YAML file; may be repeated; default: sps", autocompletion=known("methods")),
    ] = None,
    texts: Texts,
    rate: Annotated[
        str | None,
        Option(
            metavar="R1,R2,…",
            help="requests a second; inf: all arrive at once; default: a quarter, a half, three quarters and all of "
            "what vanilla can serve, which is measured first",
        ),
    ] = None,
    to_saturation: Annotated[
        bool, Option("--to-saturation", help="scale the rates so that vanilla's queue begins to grow at the highest")
    ] = False,
    saturation: Annotated[
        bool, Option("--saturation", help="also find the rate at which each method's queue begins to grow")
    ] = False,
    arrivals: Annotated[
        str, Option(help="poisson, constant, or a file with one arrival time in seconds on each line")
    ] = "poisson",
    rows: Annotated[int, Option(min=1, help="the most texts to decode together")] = 16,
    requests: Annotated[int, Option(min=8, help="requests at each rate; documents may repeat")] = 100,
    repeats: Annotated[int, Option(min=1, help="how many times to measure each rate, with new arrivals each time")] = 1,
    limit: Annotated[int, Option(min=1, help="documents of each task")] = 25,
    slo: Annotated[
        str | None,
        Option(metavar="ttft=S,tpot=S", help="limits in seconds that a request must meet to count as goodput"),
    ] = None,
    place: Machine,
    out: Annotated[
        Path | None,
        Option(metavar="FOLDER", help="keep every request and step in this folder; the same command continues there"),
    ] = None,
    plot: Annotated[Path | None, Option(help="also draw it: FILE.svg, .png or .pdf")] = None,
    cells: CellsOut = None,
    allow_leak: AllowLeak = False,
    format: Annotated[Printed, Option(help="how to print it")] = Printed.table,
) -> None:
    """Latency and throughput of requests that arrive while others are decoded, for the target alone and for methods.

    Every method gets the same requests at the same times. Up to --rows texts are decoded together; a waiting request
    joins between rounds. What a method learns from one text to the next is forgotten after each text.

    `specbench load --method sps --method csd --rate 2,4,8 --rows 8 --requests 60 --repeats 3`

    `specbench load --method cospec --rate 2,4,8,12,16 --to-saturation --out runs/load`
    """
    from specbench.base.arrivals import Arrivals
    from specbench.measure.machine import quick_lines
    from specbench.papers import cells as paper_cells
    from specbench.report.finding import show
    from specbench.report.plots.kinds import writable
    from specbench.report.plots.load import load as load_plot
    from specbench.report.plots.style import save
    from specbench.report.views.load import view
    from specbench.results.load_folder import opened
    from specbench.studies.under_load import Asked, Study, parse_slo

    with user_errors(), permitted(fetch_models=True, allow_leak=allow_leak):
        rates = _rates(rate, to_saturation)
        coming = Arrivals.of(arrivals)
        coming.times(1.0, requests, 0)
        kept = parse_slo(slo)
        check_out(cells)
        if plot:
            writable(plot)
        check_batches(place.runtime)
        wanted = texts.of_plan() | place.of_plan() | {"repeats": repeats}
        plan = resolve_plan(method or ["sps"], baseline="vanilla", limit=limit, **wanted)
        asked = Asked(rows, requests, coming, rates, to_saturation or rate is None, saturation, kept)
        with opened(out) if out else nullcontext() as folder:
            study = Study(plan, asked, folder)
            for line in quick_lines(out or Path(), plan.device):
                PlainConsole(stderr=True, soft_wrap=True, highlight=False).print(line, style="yellow")
            with progress("load", study.total, aside=format is not Printed.table) as advance:
                figures = study.carry_out(advance)
        show(view(figures), format.value)
        if plot:
            save(load_plot(figures), plot)
        if cells:
            paper_cells.write_cells(
                cells, paper_cells.load(figures.table, plan.methods, figures.pair, plan.temperature, rates)
            )


def _rates(text: str | None, to_saturation: bool) -> tuple[float, ...]:
    """The rates of --rate, each once; without it, shares of what vanilla can serve. Raises UserError for none."""
    if text is None:
        return SHARES
    rates = tuple(dict.fromkeys(numbers("--rate", text)))
    for rate in rates:
        if not (SLOWEST <= rate <= FASTEST or (rate == math.inf and not to_saturation)):
            stretched = ", and --to-saturation cannot stretch inf" * (rate == math.inf)
            raise UserError(
                f"--rate {text}: rates are from {SLOWEST:g} to {FASTEST:g} requests a second, such as 1,2,4, or inf, "
                f"which lets all requests come at once{stretched}"
            )
    return rates
