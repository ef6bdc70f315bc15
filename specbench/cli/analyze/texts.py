"""Analyses for which models read a run's texts again, or decode on from them."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench import config
from specbench.cli.analyze.shared import Method, PlainFormat, PrintedFormat, Run, show
from specbench.cli.errors import check_out, user_errors, whole_numbers
from specbench.cli.groups import JudgedAgain, ReadAgain, with_groups
from specbench.cli.options import AllowMismatch, CellsOut, Device, Dtype, Pair, Plain, Printed


@with_groups
def mirror(
    run: Run,
    method: Method = None,
    layers: Annotated[
        str | None, Option(help="exits of the target, such as 4,8; default: a quarter, half and three quarters")
    ] = None,
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """How often an early layer predicts where the next draft begins, so that it could be ready (Mirror-SD).

    The target reads the texts again; the time that would be saved is modelled from the rounds' seconds.

    `specbench analyze mirror runs/one --method sps --layers 6`
    """
    with user_errors(), allowed.permitted():
        exits = whole_numbers("--layers", layers)
        from specbench.cli import analyses

        show(*analyses.mirror(run, method, exits, aside=format is not Plain.table), format)


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
        counts = whole_numbers("--drafts", drafts)
        from specbench.cli import analyses

        show(*analyses.multi_draft(run, method, counts, aside=format is not Plain.table), format)


@with_groups
def rules(
    run: Run,
    method: Method = None,
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """How many drafted tokens each rule of acceptance keeps; reads the drafts of a sampled run again.

    `specbench analyze rules runs/sampled`
    """
    with user_errors(), allowed.permitted():
        from specbench.cli import analyses

        show(*analyses.rules(run, method, aside=format is not Plain.table), format)


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
        check_out(out)
        from specbench.cli import analyses

        amounts = states, seed, batch
        show(*analyses.counterfactual(run, method, amounts, folder, aside=format is not Printed.table), format, out)


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
        from specbench.cli import analyses

        show(*analyses.arbitrator(run, method, seed, aside=format is not Plain.table), format)


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
        from specbench.cli import analyses

        show(*analyses.drafts(runs, method, allow_mismatch or [], aside=format is not Plain.table), format)


@with_groups
def losses(
    drafts: Annotated[list[Path], Argument(help="drafts that `specbench train --method draft` wrote, from one pair")],
    pair: Pair = "pocket",
    temperature: Annotated[
        list[float] | None, Option(min=0, help="measure at this one; 0 is greedy; may be repeated; default: 0 and 1")
    ] = None,
    suite: Annotated[
        str | None, Option(help="measure on test documents of this suite; default: on those held out from training")
    ] = None,
    documents: Annotated[int, Option(min=1, help="with --suite: documents of each task")] = 25,
    device: Device = "auto",
    dtype: Dtype = "auto",
    format: PlainFormat = Plain.table,
    *,
    allowed: ReadAgain,
) -> None:
    """Which loss, on which texts, makes a draft accepted: Σ min(p, q) by task on documents that none was trained on.

    Each draft is a folder with its NAME.held-out.jsonl beside it. Several seeds of one loss and texts are one row.

    `specbench analyze losses by-tvd by-rkl --pair pocket-weak --suite pocket`
    """
    with user_errors(), allowed.permitted():
        from specbench.cli import analyses

        chosen, aside = config.load_pair(pair), format is not Plain.table
        measured = analyses.losses(chosen, drafts, temperature or [0.0, 1.0], device, dtype, suite, documents, aside)
        show(*measured, format)
