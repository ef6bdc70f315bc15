"""The group `specbench analyze`: a command for each analysis of one run, with only its own options."""

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from specbench import config
from specbench.cli.options import (
    AllowCodeExecution,
    AllowMismatch,
    AllowPickle,
    CellsOut,
    Device,
    Dtype,
    FetchModels,
    Pair,
    Plain,
    TrustRemoteCode,
    check_out,
    user_errors,
    whole_numbers,
)
from specbench.permissions import permitted

if TYPE_CHECKING:
    from specbench.report.finding import Finding

Printed = Enum("Printed", {"table": "table", "md": "md", "csv": "csv", "json": "json"}, type=str)
HELP = (
    "What a run rejected and rescued, how good its predictions were, which curve is better, what an arbitrator or "
    "a stronger draft is worth."
)
Run = Annotated[Path, Argument(help="a run folder")]
Method = Annotated[str | None, Option(help="a method of the run; default: the first that has what the analysis needs")]
PlainFormat = Annotated[Plain, Option(help="how to print it")]
PrintedFormat = Annotated[Printed, Option(help="how to print it")]


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

        _show(*analyses.rejections(run, method), format)


def acceptance(run: Run, method: Method = None, format: PlainFormat = Plain.table) -> None:
    """How reliable a length policy's predictions are, and whether they say more than the draft's confidence.

    `specbench analyze acceptance runs/one --method specdecpp`
    """
    with user_errors():
        from specbench.cli import analyses

        _show(*analyses.acceptance(run, method), format)


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

        _show(*analyses.frontier(run, method, against, best), format)


def collaboration(run: Run, format: PlainFormat = Plain.table) -> None:
    """Whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say.

    `specbench analyze collaboration runs/one --format json`
    """
    with user_errors():
        from specbench.cli import analyses

        _show(*analyses.collaboration(run), format)


def overlap(run: Run, format: PlainFormat = Plain.table) -> None:
    """How fast pearl would be if draft and target worked at the same time; modelled from its rounds' seconds.

    `specbench analyze overlap runs/one`
    """
    with user_errors():
        from specbench.cli import analyses

        _show(*analyses.overlap(run), format)


def mirror(
    run: Run,
    method: Method = None,
    layers: Annotated[
        str | None, Option(help="exits of the target, such as 4,8; default: a quarter, half and three quarters")
    ] = None,
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """How often an early layer foretells where the next draft begins, so that it could be ready (Mirror-SD).

    The target reads the texts again; the time that would be saved is modelled from the rounds' seconds.

    `specbench analyze mirror runs/one --method sps --layers 6`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        exits = whole_numbers("--layers", layers)
        from specbench.cli import analyses

        _show(*analyses.mirror(run, method, exits, aside=format is not Plain.table), format)


def context(run: Run, format: PlainFormat = Plain.table) -> None:
    """Acceptance and times by the place in the context, and prefill, memory and decoding by the prompt's length.

    `specbench analyze context runs/one`
    """
    with user_errors():
        from specbench.cli import analyses

        _show(*analyses.context(run), format)


def multi_draft(
    run: Run,
    method: Method = None,
    drafts: Annotated[str, Option(help="how many drafts of a token, such as 2,3")] = "2,3",
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """What several drafts of a token are worth, up to the bound of optimal transport; reads the texts again.

    `specbench analyze multi-draft runs/sampled --drafts 2,3`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        counts = whole_numbers("--drafts", drafts)
        from specbench.cli import analyses

        _show(*analyses.multi_draft(run, method, counts, aside=format is not Plain.table), format)


def rules(
    run: Run,
    method: Method = None,
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """How many drafted tokens each rule of acceptance keeps; reads the drafts of a sampled run again.

    `specbench analyze rules runs/sampled`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        from specbench.cli import analyses

        _show(*analyses.rules(run, method, aside=format is not Plain.table), format)


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

        _show(*analyses.tree(run, method, nodes, forward_times), format)


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

        _show(*analyses.complementarity(run, method, draft, allow_mismatch or []), format, out)


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
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
    fetch_models: FetchModels = False,
) -> None:
    """Whether cospec's arbiter kept the better token; decodes on from both, and can be resumed.

    `specbench analyze counterfactual runs/one --states 200`

    `specbench analyze counterfactual runs/one --states 400 --out cells.csv`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, allow_code_execution, fetch_models=fetch_models):
        check_out(out)
        from specbench.cli import analyses

        amounts = states, seed, batch
        _show(*analyses.counterfactual(run, method, amounts, folder, aside=format is not Printed.table), format, out)


def arbitrator(
    run: Run,
    method: Method = None,
    seed: Annotated[int, Option(help="seed of the random tokens")] = 0,
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
    fetch_models: FetchModels = False,
) -> None:
    """How many decisions of cospec's trained arbitrator change with the target's tokens; reads the rounds again.

    `specbench analyze arbitrator runs/one`

    `specbench analyze arbitrator runs/one --method cospec[mask=causal] --format csv`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, allow_code_execution, fetch_models=fetch_models):
        from specbench.cli import analyses

        _show(*analyses.arbitrator(run, method, seed, aside=format is not Plain.table), format)


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

        _show(*analyses.strength(runs, allow_mismatch or []), format)


def drafts(
    runs: Annotated[list[Path], Argument(help="sampled runs, one for each draft of one target")],
    method: Method = None,
    allow_mismatch: AllowMismatch = None,
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """What drafts of one target are worth to sps: α, measured and as predicted by 1 - TVD, τ, MBSU and speedup.

    τ is compared with that of the first run. Both models read the texts again.

    `specbench analyze drafts better.before better.after`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        from specbench.cli import analyses

        _show(*analyses.drafts(runs, method, allow_mismatch or [], aside=format is not Plain.table), format)


def losses(
    drafts: Annotated[list[Path], Argument(help="drafts that `specbench train --method draft` wrote, from one pair")],
    pair: Pair = "pocket",
    temperature: Annotated[
        list[float] | None, Option(min=0, help="measure at this one; 0 is greedy; may be repeated; default: 0 and 1")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    format: PlainFormat = Plain.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    fetch_models: FetchModels = False,
) -> None:
    """Which loss, on which texts, makes a draft accepted: Σ min(p, q) by task on documents that none has learned from.

    Each draft is a folder with its NAME.held-out.jsonl beside it. Several seeds of one loss and texts are one row.

    `specbench analyze losses runs/draft-losses/target-tvd-0 runs/draft-losses/target-fkl-0 --pair pocket-weak`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, fetch_models=fetch_models):
        from specbench.cli import analyses

        chosen, aside = config.load_pair(pair), format is not Plain.table
        _show(*analyses.losses(chosen, drafts, temperature or [0.0, 1.0], device, dtype, aside), format)


def requests(
    run: Run,
    slo: Annotated[
        str | None,
        Option(metavar="ttft=S,tpot=S", help="limits in seconds that a request must meet to count as goodput"),
    ] = None,
    format: PlainFormat = Plain.table,
) -> None:
    """What requests to servers took: times to the first token, per token, between chunks and in all; goodput.

    `specbench analyze requests runs/one --slo ttft=0.3,tpot=0.03`
    """
    with user_errors():
        from specbench.cli import analyses

        _show(*analyses.requests(run, slo), format)


ANALYSES = (
    requests,
    rejections,
    acceptance,
    frontier,
    collaboration,
    overlap,
    mirror,
    context,
    multi_draft,
    rules,
    tree,
    complementarity,
    counterfactual,
    arbitrator,
    strength,
    drafts,
    losses,
)


def _show(
    findings: "Finding | Sequence[Finding]",
    cells: Callable[[], list[dict[str, Any]]],
    format: Enum,
    out: Path | None = None,
) -> None:
    """Print the findings, and write the cells of a paper's table if there is a file for them."""
    from specbench.papers.cells import write_cells
    from specbench.report.finding import show

    show(findings, format.value)
    if out:
        write_cells(out, cells())
