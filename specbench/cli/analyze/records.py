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
        from specbench.cli import analyses

        show(*analyses.rejections(run, method), format)


def acceptance(run: Run, method: Method = None, format: PlainFormat = Plain.table) -> None:
    """How reliable a length policy's predictions are, and whether they say more than the draft's confidence.

    `specbench analyze acceptance runs/one --method specdecpp`
    """
    with user_errors():
        from specbench.cli import analyses

        show(*analyses.acceptance(run, method), format)


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
        from specbench.cli import analyses

        show(*analyses.frontier(run, method, against, best), format)


def collaboration(run: Run, format: PlainFormat = Plain.table) -> None:
    """Whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say.

    `specbench analyze collaboration runs/one --format json`
    """
    with user_errors():
        from specbench.cli import analyses

        show(*analyses.collaboration(run), format)


def overlap(run: Run, format: PlainFormat = Plain.table) -> None:
    """How fast pearl and mirror would be if draft and target worked at the same time; modelled from rounds' seconds.

    `specbench analyze overlap runs/one`
    """
    with user_errors():
        from specbench.cli import analyses

        show(*analyses.overlap(run), format)


def context(run: Run, format: PlainFormat = Plain.table) -> None:
    """Acceptance and times by position in the context, and prefill, memory and decoding by the prompt's length.

    `specbench analyze context runs/one`
    """
    with user_errors():
        from specbench.cli import analyses

        show(*analyses.context(run), format)


def tree(
    run: Run,
    method: Method = None,
    nodes: Annotated[int, Option(min=1, max=512, help="the most tokens of a tree")] = 64,
    forward_times: Annotated[
        str | None,
        Option(help="a profile's FILE.json, or KEY=SECONDS,…; default: from the run's records"),
    ] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """How often each rank of a tree's tokens is accepted, and the best tree for that and for this machine (Sequoia).

    `specbench analyze tree runs/ranks --forward-times profile.json`
    """
    with user_errors():
        from specbench.cli import analyses

        show(*analyses.tree(run, method, nodes, forward_times), format)


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
        from specbench.cli import analyses

        show(*analyses.complementarity(run, method, draft, allow_mismatch or []), format, out)


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
        from specbench.cli import analyses

        show(*analyses.strength(runs, allow_mismatch or []), format)


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
        from specbench.cli import analyses

        show(*analyses.requests(run, slo), format)
