"""Analyses of what a run recorded; no model is loaded."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench.cli.analyze.shared import Method, PlainFormat, PrintedFormat, Run, show
from specbench.cli.errors import check_out, user_errors
from specbench.cli.options import AllowMismatch, CellsOut, FetchModels, Plain, Printed, TrustRemoteCode
from specbench.permissions import permitted


def rejections(
    run: Run,
    method: Method = None,
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    fetch_models: FetchModels = False,
) -> None:
    """How few token pairs make up most rejections, what kinds of tokens are rescued, and which rescues hurt.

    `specbench analyze rejections runs/one --method csd`

    `specbench analyze rejections runs/one --format csv`
    """
    with user_errors(), permitted(trust_remote_code, fetch_models=fetch_models):
        from specbench.analysis import rejections as analysis
        from specbench.analysis.texts import load_decode
        from specbench.report.views.rejections import view
        from specbench.results.stored import stored_run

        stored = stored_run(run, method)
        decode = load_decode(stored)
        show(view(analysis.rejections(stored, method, decode), analysis.rescues(stored, method, decode)), format)


def acceptance(run: Run, method: Method = None, format: PlainFormat = Plain.table) -> None:
    """How reliable a length policy's predictions are, and whether they say more than the draft's confidence.

    `specbench analyze acceptance runs/one --method specdecpp`
    """
    with user_errors():
        from specbench.analysis.acceptance import acceptance as figures
        from specbench.report.views.acceptance import view
        from specbench.results.stored import stored_run

        show(view(figures(stored_run(run, method), method)), format)


def frontier(
    run: Run,
    method: Annotated[str, Option(help="the method whose variants are one curve")] = "specdecpp",
    against: Annotated[
        str | None, Option(help="the method whose variants are the other curve; default: the one with variants by γ")
    ] = None,
    best: Annotated[str | None, Option(help="the method that gains are counted from, such as sps-eos[gamma=4]")] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """Whether variants of a method discard less than those of another at the same verification rate.

    `specbench analyze frontier runs/one --method specdecpp --against sps-eos`

    `specbench analyze frontier runs/one --best sps-eos[gamma=4]`
    """
    with user_errors():
        from specbench.analysis.frontier import frontier as figures
        from specbench.report.views.frontier import view
        from specbench.results.stored import stored_run

        show(view(figures(stored_run(run), method, against, best)), format)


def complementarity(
    run: Run,
    method: Method = None,
    draft: Annotated[Path | None, Option(help="a run in which the draft decodes alone; default: this one")] = None,
    allow_mismatch: AllowMismatch = None,
    out: CellsOut = None,
    format: PrintedFormat = Printed.table,
) -> None:
    """What target, draft or either of them solves, and how much of it lossy methods recover.

    `specbench analyze complementarity runs/one --draft runs/draft-alone`

    `specbench analyze complementarity runs/one --out cells.csv`
    """
    with user_errors():
        check_out(out)
        from specbench.analysis.complementarity import complementarity as analysis
        from specbench.papers import cells
        from specbench.report.views.complementarity import view
        from specbench.results.stored import StoredRun, stored_run

        stored, alone = stored_run(run, method), StoredRun(draft) if draft else None
        figures = analysis(stored, method, alone, allow_mismatch or [])
        show(view(figures), format, lambda: cells.complementarity(stored, figures), out)


def strength(
    runs: Annotated[list[Path], Argument(help="run folders, one for each draft of one target")],
    allow_mismatch: AllowMismatch = None,
    format: PlainFormat = Plain.table,
) -> None:
    """How accuracy, acceptance and speed of each method change as the draft gets stronger.

    Each run needs the target and the draft alone: `specbench run --pair pocket-weak --suite strength` has both.

    `specbench analyze strength runs/weak runs/fair runs/strong`
    """
    with user_errors():
        from specbench.analysis.strength import strength as figures
        from specbench.report.views.strength import view
        from specbench.results.stored import StoredRun

        show(view(figures(list(map(StoredRun, runs)), allow_mismatch or [])), format)


def requests(
    run: Run,
    slo: Annotated[
        str | None,
        Option(metavar="ttft=S,tpot=S", help="limits in seconds that a request must meet to count as goodput"),
    ] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """How long requests to servers took: to the first token, per token, between chunks and in total; goodput.

    `specbench analyze requests runs/one --slo ttft=0.3,tpot=0.03`
    """
    with user_errors():
        from specbench.analysis.requests import request_figures
        from specbench.report.views.requests import view
        from specbench.results.stored import stored_run
        from specbench.studies.under_load import parse_slo

        kept = parse_slo(slo)
        show(view(request_figures(stored_run(run), kept), kept), format)
