"""The command that analyses one run."""

from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from specbench.cli.options import (
    AllowCodeExecution,
    AllowPickle,
    AnalysisOptions,
    FetchModels,
    TrustRemoteCode,
    check_out,
    user_errors,
    with_groups,
)
from specbench.config import UserError
from specbench.permissions import permitted


class Analysis(str, Enum):
    rejections = "rejections"
    acceptance = "acceptance"
    frontier = "frontier"
    collaboration = "collaboration"
    multi_draft = "multi-draft"
    complementarity = "complementarity"
    counterfactual = "counterfactual"


Printed = Enum("Printed", {"table": "table", "md": "md", "csv": "csv", "json": "json"}, type=str)
# The options that belong to some analyses only.
OWNED = {
    Analysis.frontier: ("against", "best"),
    Analysis.multi_draft: ("drafts",),
    Analysis.complementarity: ("draft", "allow_mismatch", "out"),
    Analysis.counterfactual: ("states", "seed", "batch", "folder", "out"),
}
TABLES = [analysis for analysis, names in OWNED.items() if "out" in names]  # their figures are a table of a paper


@with_groups
def analyze(
    what: Annotated[Analysis, Argument(help="the analysis")],
    run: Annotated[Path, Argument(help="a run folder")],
    *,
    options: AnalysisOptions,
    out: Annotated[
        Path | None, Option(help="complementarity, counterfactual: a CSV file for `specbench tables`")
    ] = None,
    format: Annotated[
        Printed, Option(help="how to print it; md: complementarity and counterfactual only")
    ] = Printed.table,
    trust_remote_code: TrustRemoteCode = False,
    allow_pickle: AllowPickle = False,
    allow_code_execution: AllowCodeExecution = False,
    fetch_models: FetchModels = False,
) -> None:
    """What a run rejected and rescued, how good its predictions were, which curve is better, what an arbiter is worth.

    rejections: how few pairs make up most rejections, of what kinds rescued tokens are, and which of them hurt.

    acceptance: how reliable a length policy's predictions are, and whether they tell more than the draft's confidence.

    frontier: whether variants of a method discard less than those of another at the same verification rate.

    collaboration: whether acceptance and speed of cos, cos-naive and cos-sd are what the paper's theorems say.

    multi-draft: what several drafts of a token are worth, up to the bound of optimal transport; reads the texts again.

    complementarity: what target, draft or either of them solves, and how much of it lossy methods recover.

    counterfactual: whether cospec's arbiter kept the better token; decodes on from both, and can be resumed.

    `specbench analyze rejections runs/one --method csd`

    `specbench analyze acceptance runs/one --method specdecpp`

    `specbench analyze frontier runs/one --method specdecpp --against sps-eos`

    `specbench analyze collaboration runs/one --format json`

    `specbench analyze multi-draft runs/sampled --drafts 2,3`

    `specbench analyze complementarity runs/one --draft runs/draft-alone`

    `specbench analyze counterfactual runs/one --states 200`
    """
    with user_errors(), permitted(trust_remote_code, allow_pickle, allow_code_execution, fetch_models=fetch_models):
        _check(what, format, options, out)
        from specbench.cli.analyses import KINDS
        from specbench.papers.cells import write_cells
        from specbench.report.finding import show
        from specbench.results.stored import StoredRun

        check_out(out)
        stored, kind = StoredRun(run), KINDS[what.value]
        figures = kind.figures(stored, options, format is not Printed.table)
        show(kind.view(figures), format.value)
        if out and kind.cells:
            write_cells(out, kind.cells(stored, figures))


def _check(what: Analysis, format: Printed, options: AnalysisOptions, out: Path | None) -> None:
    """Raise UserError for an option that the analysis does not have."""
    for name, value in (vars(options) | {"out": out}).items():
        owners = [analysis for analysis, names in OWNED.items() if name in names]
        if value not in (None, []) and owners and what not in owners:
            named = " and ".join(f"`analyze {owner.value}`" for owner in owners)
            raise UserError(f"--{name.replace('_', '-')} belongs to {named}; leave it out of `analyze {what.value}`")
    if what is Analysis.collaboration and options.method is not None:
        raise UserError("`analyze collaboration` is of all methods of the family; leave out --method")
    if format is Printed.md and what not in TABLES:
        raise UserError(f"`analyze {what.value}` prints table, csv or json; choose one of them")
