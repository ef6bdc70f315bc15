"""The kinds of `specbench analyze`: from a run to figures, from figures to a finding, and to cells of a paper's table.

Imported by the command only once it runs, for it imports every analysis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.analysis.acceptance import acceptance
from specbench.analysis.collaboration import collaboration
from specbench.analysis.complementarity import Complementarity, complementarity
from specbench.analysis.counterfactual import Counterfactual
from specbench.analysis.frontier import Frontier, frontier
from specbench.analysis.rejections import Rejections, Rescues, rejections, rescues
from specbench.analysis.texts import load_decode
from specbench.base.console import progress
from specbench.cli.options import BATCH, SEED, STATES, AnalysisOptions, whole_numbers
from specbench.papers import cells
from specbench.report.finding import Finding
from specbench.report.views.acceptance import view as acceptance_view
from specbench.report.views.collaboration import view as collaboration_view
from specbench.report.views.complementarity import view as complementarity_view
from specbench.report.views.counterfactual import view as counterfactual_view
from specbench.report.views.frontier import view as frontier_view
from specbench.report.views.multidraft import view as multidraft_view
from specbench.report.views.rejections import view as rejections_view
from specbench.results.stored import StoredRun
from specbench.studies import counterfactual
from specbench.studies.multidraft import MultiDraft, multi_draft, texts_to_read


@dataclass(frozen=True)
class Kind:
    figures: Callable[[StoredRun, AnalysisOptions, bool], Any]  # True: progress to stderr, as stdout is for programs
    view: Callable[[Any], Finding | Sequence[Finding]]
    cells: Callable[[StoredRun, Any], list[dict[str, Any]]] | None = None


def _rejections(run: StoredRun, options: AnalysisOptions, aside: bool) -> tuple[Rejections, Rescues]:
    decode = load_decode(run)
    return rejections(run, options.method, decode), rescues(run, options.method, decode)


def _frontier(run: StoredRun, options: AnalysisOptions, aside: bool) -> Frontier:
    return frontier(run, options.method or "specdecpp", options.against, options.best)


def _multi_draft(run: StoredRun, options: AnalysisOptions, aside: bool) -> MultiDraft:
    drafts = whole_numbers("--drafts", options.drafts or "2,3")
    texts = texts_to_read(run, options.method)
    with progress("reading texts", len(texts), aside) as advance:
        return multi_draft(run, texts, drafts, advance)


def _complementarity(run: StoredRun, options: AnalysisOptions, aside: bool) -> Complementarity:
    draft = StoredRun(options.draft) if options.draft else None
    return complementarity(run, options.method, draft, options.allow_mismatch or [])


def _counterfactual(run: StoredRun, options: AnalysisOptions, aside: bool) -> Counterfactual:
    amounts = options.states or STATES, options.seed or SEED, options.batch or BATCH
    return counterfactual.carry_out(run, options.method, *amounts, options.folder, aside)


KINDS = {
    "rejections": Kind(_rejections, lambda figures: rejections_view(*figures)),
    "acceptance": Kind(lambda run, options, aside: acceptance(run, options.method), acceptance_view),
    "frontier": Kind(_frontier, frontier_view),
    "collaboration": Kind(lambda run, options, aside: collaboration(run), collaboration_view),
    "multi-draft": Kind(_multi_draft, multidraft_view),
    "complementarity": Kind(_complementarity, complementarity_view, cells.complementarity),
    "counterfactual": Kind(_counterfactual, counterfactual_view, cells.counterfactual),
}
