"""The kinds of `specbench analyze`: from a run to figures, from figures to a finding, and to cells of a paper's table.

Imported by the command only once it runs, for it imports every analysis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.analysis.acceptance import acceptance
from specbench.analysis.collaboration import collaboration
from specbench.analysis.complementarity import Complementarity, complementarity
from specbench.analysis.counterfactual import Counterfactual
from specbench.analysis.frontier import Frontier, frontier
from specbench.analysis.rejections import Rejections, Rescues, rejections, rescues
from specbench.analysis.texts import load_decode
from specbench.base.console import progress
from specbench.cli.parse import whole_numbers
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
class Options:
    """What the user asked of an analysis; each kind reads those of its own, and None is its default."""

    method: str | None
    against: str | None
    best: str | None
    drafts: str | None
    draft: Path | None
    allow_mismatch: Sequence[str]
    states: int
    seed: int
    batch: int
    folder: Path | None
    aside: bool  # progress goes to stderr, as stdout is for programs


@dataclass(frozen=True)
class Kind:
    figures: Callable[[StoredRun, Options], Any]
    view: Callable[[Any], Finding | Sequence[Finding]]
    cells: Callable[[StoredRun, Any], list[dict[str, Any]]] | None = None


def _rejections(run: StoredRun, options: Options) -> tuple[Rejections, Rescues]:
    decode = load_decode(run)
    return rejections(run, options.method, decode), rescues(run, options.method, decode)


def _frontier(run: StoredRun, options: Options) -> Frontier:
    return frontier(run, options.method or "specdecpp", options.against, options.best)


def _multi_draft(run: StoredRun, options: Options) -> MultiDraft:
    drafts = whole_numbers("--drafts", options.drafts or "2,3")
    texts = texts_to_read(run, options.method)
    with progress("reading texts", len(texts), options.aside) as advance:
        return multi_draft(run, texts, drafts, advance)


def _complementarity(run: StoredRun, options: Options) -> Complementarity:
    draft = StoredRun(options.draft) if options.draft else None
    return complementarity(run, options.method, draft, options.allow_mismatch)


def _counterfactual(run: StoredRun, options: Options) -> Counterfactual:
    how = options.states, options.seed, options.batch, options.folder, options.aside
    return counterfactual.carry_out(run, options.method, *how)


KINDS = {
    "rejections": Kind(_rejections, lambda figures: rejections_view(*figures)),
    "acceptance": Kind(lambda run, options: acceptance(run, options.method), acceptance_view),
    "frontier": Kind(_frontier, frontier_view),
    "collaboration": Kind(lambda run, options: collaboration(run), collaboration_view),
    "multi-draft": Kind(_multi_draft, multidraft_view),
    "complementarity": Kind(_complementarity, complementarity_view, cells.complementarity),
    "counterfactual": Kind(_counterfactual, counterfactual_view, cells.counterfactual),
}
