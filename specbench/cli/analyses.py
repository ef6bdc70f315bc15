"""The kinds of `specbench analyze`: from a run to figures, from figures to findings, and to cells of a paper's table.

Imported by a command only once it runs, for it imports every analysis.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from specbench.analysis import acceptance as acceptance_analysis
from specbench.analysis import collaboration as collaboration_analysis
from specbench.analysis import complementarity as complementarity_analysis
from specbench.analysis import frontier as frontier_analysis
from specbench.analysis import rejections as rejections_analysis
from specbench.analysis import strength as strength_analysis
from specbench.analysis.texts import load_decode
from specbench.base.console import progress
from specbench.papers import cells
from specbench.report.finding import Finding
from specbench.report.views import acceptance as acceptance_view
from specbench.report.views import arbitrator as arbitrator_view
from specbench.report.views import collaboration as collaboration_view
from specbench.report.views import complementarity as complementarity_view
from specbench.report.views import counterfactual as counterfactual_view
from specbench.report.views import frontier as frontier_view
from specbench.report.views import multidraft as multidraft_view
from specbench.report.views import rejections as rejections_view
from specbench.report.views import strength as strength_view
from specbench.results.stored import StoredRun
from specbench.studies import arbitrator as arbitrator_study
from specbench.studies import counterfactual as counterfactual_study
from specbench.studies import multidraft

Findings: TypeAlias = Finding | Sequence[Finding]
Analyzed: TypeAlias = tuple[Findings, Callable[[], list[dict[str, Any]]]]  # and what makes the cells, often none


def rejections(run: Path, method: str | None) -> Analyzed:
    stored = StoredRun(run)
    decode = load_decode(stored)
    rejected = rejections_analysis.rejections(stored, method, decode)
    return rejections_view.view(rejected, rejections_analysis.rescues(stored, method, decode)), list


def acceptance(run: Path, method: str | None) -> Analyzed:
    return acceptance_view.view(acceptance_analysis.acceptance(StoredRun(run), method)), list


def frontier(run: Path, method: str, against: str | None, best: str | None) -> Analyzed:
    return frontier_view.view(frontier_analysis.frontier(StoredRun(run), method, against, best)), list


def collaboration(run: Path) -> Analyzed:
    return collaboration_view.view(collaboration_analysis.collaboration(StoredRun(run))), list


def multi_draft(run: Path, method: str | None, drafts: Sequence[int], aside: bool) -> Analyzed:
    stored = StoredRun(run)
    texts = multidraft.texts_to_read(stored, method)
    with progress("reading texts", len(texts), aside) as advance:
        return multidraft_view.view(multidraft.multi_draft(stored, texts, drafts, advance)), list


def complementarity(run: Path, method: str | None, draft: Path | None, allowed: Sequence[str]) -> Analyzed:
    stored, alone = StoredRun(run), StoredRun(draft) if draft else None
    figures = complementarity_analysis.complementarity(stored, method, alone, allowed)
    return complementarity_view.view(figures), partial(cells.complementarity, stored, figures)


def counterfactual(
    run: Path, method: str | None, amounts: tuple[int, int, int], folder: Path | None, aside: bool
) -> Analyzed:
    """`amounts`: states, seed, batch. `aside`: progress is printed on stderr, as stdout is for programs."""
    stored = StoredRun(run)
    figures = counterfactual_study.carry_out(stored, method, *amounts, folder, aside)
    return counterfactual_view.view(figures), partial(cells.counterfactual, stored, figures)


def arbitrator(run: Path, method: str | None, seed: int, aside: bool) -> Analyzed:
    return arbitrator_view.view(arbitrator_study.carry_out(StoredRun(run), method, seed, aside)), list


def strength(runs: Sequence[Path], allowed: Sequence[str]) -> Analyzed:
    return strength_view.view(strength_analysis.strength(list(map(StoredRun, runs)), allowed)), list
