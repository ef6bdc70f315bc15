"""The command that looks into one run."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli.options import AllowCodeExecution, AllowMismatch, AllowPickle, TrustRemoteCode, user_errors
from specbench.config import UserError


class Analysis(str, Enum):
    rejections = "rejections"
    acceptance = "acceptance"
    frontier = "frontier"
    collaboration = "collaboration"
    multi_draft = "multi-draft"
    complementarity = "complementarity"
    counterfactual = "counterfactual"


class Printed(str, Enum):
    table = "table"
    md = "md"
    csv = "csv"
    json = "json"


TABLES = (Analysis.complementarity, Analysis.counterfactual)  # whose figures are a paper's table
# The options that belong to some analyses only.
OWN = {
    "against": (Analysis.frontier,),
    "best": (Analysis.frontier,),
    "drafts": (Analysis.multi_draft,),
    "draft": (Analysis.complementarity,),
    "allow_mismatch": (Analysis.complementarity,),
    "states": (Analysis.counterfactual,),
    "seed": (Analysis.counterfactual,),
    "batch": (Analysis.counterfactual,),
    "folder": (Analysis.counterfactual,),
    "out": TABLES,
}
STATES, SEED, BATCH = 200, 0, 10


def analyze(
    what: Annotated[Analysis, typer.Argument(help="what to look into")],
    run: Annotated[Path, typer.Argument(help="a run folder")],
    method: Annotated[
        str | None,
        typer.Option(help="a method of the run; default: one that has what is asked (frontier: specdecpp)"),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="frontier: whose variants are the other curve; default: those by γ"),
    ] = None,
    best: Annotated[
        str | None, typer.Option(help="frontier: gains are counted from this one, such as sps-eos[gamma=4]")
    ] = None,
    drafts: Annotated[str | None, typer.Option(help="multi-draft: how many drafts of a token; default: 2,3")] = None,
    draft: Annotated[
        Path | None, typer.Option(help="complementarity: a run in which the draft decodes alone; default: this one")
    ] = None,
    allow_mismatch: AllowMismatch = None,
    states: Annotated[
        int | None, typer.Option(min=1, help=f"counterfactual: how many mismatches to play; default: {STATES}")
    ] = None,
    seed: Annotated[int | None, typer.Option(help=f"counterfactual: of which ones; default: {SEED}")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help=f"counterfactual: mismatches from save to save; default: {BATCH}")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="counterfactual: where they are kept; default: counterfactual-METHOD in RUN")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="complementarity, counterfactual: a CSV file for `specbench tables`")
    ] = None,
    format: Annotated[Printed, typer.Option(help="how to print it; md: the last two only")] = Printed.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
) -> None:
    """What a run rejected and rescued, how well it was foretold, which curve is better, what an arbiter is worth.

    rejections: how few pairs make up most, of what kind rescued tokens are, which ones hurt.

    acceptance: how reliable a length policy's predictions are, and whether they tell more than the draft's confidence.

    frontier: whether variants of a method discard less than those of another at the same verification rate.

    collaboration: whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say.

    multi-draft: what several drafts of a token are worth, up to the bound of optimal transport; reads the texts again.

    complementarity: what target, draft or either of them solves, and how much of it lossy methods recover.

    counterfactual: whether cospec's arbiter kept the better token; decodes on from both. Once stopped, it goes on.

    `specbench analyze rejections runs/one --method csd`

    `specbench analyze acceptance runs/one --method specdecpp`

    `specbench analyze frontier runs/one --method specdecpp --against sps-eos`

    `specbench analyze collaboration runs/one --format json`

    `specbench analyze multi-draft runs/sampled --drafts 2,3`

    `specbench analyze complementarity runs/one --draft runs/draft-alone`

    `specbench analyze counterfactual runs/one --states 200`
    """
    from specbench.permissions import permitted

    given: dict[str, Any] = {"against": against, "best": best, "drafts": drafts, "draft": draft, "out": out}
    given |= {"states": states, "seed": seed, "batch": batch, "folder": folder, "allow_mismatch": allow_mismatch}
    with user_errors(), permitted(trust_remote_code, allow_pickle, allow_code_execution):
        for name, value in given.items():
            if value not in (None, []) and what not in OWN[name]:
                owners = " and ".join(f"`analyze {one.value}`" for one in OWN[name])
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option} belongs to {owners}; leave it out of `analyze {what.value}`")
        if what is Analysis.collaboration and method is not None:
            raise UserError("`analyze collaboration` tells of all methods of the family; leave out --method")
        if format is Printed.md and what not in TABLES:
            raise UserError(f"`analyze {what.value}` prints table, csv or json; choose one of them")
        if what is Analysis.rejections:
            from specbench.report import analysis_view

            analysis_view.main(run, method, format.value)
        elif what is Analysis.acceptance:
            from specbench.report import acceptance_view

            acceptance_view.main(run, method, format.value)
        elif what is Analysis.collaboration:
            from specbench.report import cos_view

            cos_view.main(run, format.value)
        elif what is Analysis.multi_draft:
            from specbench.report import multidraft_view

            multidraft_view.main(run, method, drafts or "2,3", format.value)
        elif what is Analysis.complementarity:
            from specbench.report import complementarity_view

            complementarity_view.main(run, method, draft, out, allow_mismatch or [], format.value)
        elif what is Analysis.counterfactual:
            from specbench.report import counterfactual_view

            counterfactual_view.main(
                run, method, states or STATES, SEED if seed is None else seed, batch or BATCH, folder, out, format.value
            )
        else:
            from specbench.report import frontier_view

            frontier_view.main(run, method or "specdecpp", against, best, format.value)
