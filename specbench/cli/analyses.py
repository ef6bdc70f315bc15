"""The kinds of `specbench analyze`: from a run to figures, from figures to findings, and to cells of a paper's table.

What a command names is checked first. Each kind imports only its own analysis, as some import models.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from specbench.base.console import progress
from specbench.config import PairSpec, load_method
from specbench.report.finding import Finding
from specbench.results.stored import StoredRun, stored_run

Findings: TypeAlias = Finding | Sequence[Finding]
Analyzed: TypeAlias = tuple[Findings, Callable[[], list[dict[str, Any]]]]  # and what makes the cells, often none


def rejections(run: Path, method: str | None) -> Analyzed:
    from specbench.analysis import rejections as analysis
    from specbench.analysis.texts import load_decode
    from specbench.report.views.rejections import view

    stored = stored_run(run, method)
    decode = load_decode(stored)
    return view(analysis.rejections(stored, method, decode), analysis.rescues(stored, method, decode)), list


def acceptance(run: Path, method: str | None) -> Analyzed:
    from specbench.analysis.acceptance import acceptance as figures
    from specbench.report.views.acceptance import view

    return view(figures(stored_run(run, method), method)), list


def frontier(run: Path, method: str, against: str | None, best: str | None) -> Analyzed:
    from specbench.analysis.frontier import frontier as figures
    from specbench.report.views.frontier import view

    return view(figures(stored_run(run), method, against, best)), list


def collaboration(run: Path) -> Analyzed:
    stored = stored_run(run)
    from specbench.analysis.collaboration import collaboration as figures
    from specbench.report.views.collaboration import view

    return view(figures(stored)), list


def overlap(run: Path) -> Analyzed:
    from specbench.analysis.overlap import overlap as figures
    from specbench.report.views.overlap import view

    return view(figures(stored_run(run))), list


def context(run: Path) -> Analyzed:
    from specbench.analysis.context import context as figures
    from specbench.report.views.context import view

    return view(figures(stored_run(run))), list


def mirror(run: Path, method: str | None, layers: Sequence[int], aside: bool) -> Analyzed:
    stored = stored_run(run, method)
    from specbench.report.views.mirror import view
    from specbench.studies.mirror import carry_out

    with progress("reading texts", len(stored.manifest["requests"]), aside) as advance:
        return view(carry_out(stored, method, layers, advance)), list


def multi_draft(run: Path, method: str | None, drafts: Sequence[int], aside: bool) -> Analyzed:
    stored = stored_run(run, method)
    from specbench.report.views.multidraft import view
    from specbench.studies import multidraft

    texts = multidraft.texts_to_read(stored, method)
    with progress("reading texts", len(texts), aside) as advance:
        return view(multidraft.multi_draft(stored, texts, drafts, advance)), list


def rules(run: Path, method: str | None, aside: bool) -> Analyzed:
    stored = stored_run(run, method)
    from specbench.report.views.rules import view
    from specbench.studies.multidraft import texts_to_read
    from specbench.studies.rules import compared

    with progress("reading drafts", len(texts_to_read(stored, method)), aside) as advance:
        return view(compared(stored, method, advance)), list


def tree(run: Path, method: str | None, nodes: int, forward_times: str | None) -> Analyzed:
    from specbench.analysis.tree_sizes import tree_sizes
    from specbench.report.views.tree_sizes import view

    return view(tree_sizes(stored_run(run, method), method, nodes, forward_times)), list


def complementarity(run: Path, method: str | None, draft: Path | None, allowed: Sequence[str]) -> Analyzed:
    from specbench.analysis.complementarity import complementarity as analysis
    from specbench.papers import cells
    from specbench.report.views.complementarity import view

    stored, alone = stored_run(run, method), StoredRun(draft) if draft else None
    figures = analysis(stored, method, alone, allowed)
    return view(figures), lambda: cells.complementarity(stored, figures)


def counterfactual(
    run: Path, method: str | None, amounts: tuple[int, int, int], folder: Path | None, aside: bool
) -> Analyzed:
    """`amounts`: states, seed, batch. `aside`: progress is printed on stderr, as stdout is for programs."""
    stored = stored_run(run, method)
    from specbench.papers import cells
    from specbench.report.views.counterfactual import view
    from specbench.studies import counterfactual as study

    figures = study.carry_out(stored, method, *amounts, folder, aside)
    return view(figures), lambda: cells.counterfactual(stored, figures)


def arbitrator(run: Path, method: str | None, seed: int, aside: bool) -> Analyzed:
    stored = stored_run(run, method)
    from specbench.report.views.arbitrator import view
    from specbench.studies import arbitrator as study

    return view(study.carry_out(stored, method, seed, aside)), list


def strength(runs: Sequence[Path], allowed: Sequence[str]) -> Analyzed:
    from specbench.analysis.strength import strength as figures
    from specbench.report.views.strength import view

    return view(figures(list(map(StoredRun, runs)), allowed)), list


def drafts(runs: Sequence[Path], method: str | None, allowed: Sequence[str], aside: bool) -> Analyzed:
    from specbench.report.views.drafts import view
    from specbench.studies import drafts as study
    from specbench.studies.multidraft import texts_to_read

    stored = [stored_run(run, method) for run in runs]
    with progress("reading texts", sum(len(texts_to_read(run, method)) for run in stored), aside) as advance:
        return view(study.drafts(stored, method, allowed, advance)), list


def losses(
    pair: PairSpec,
    drafts: Sequence[Path],
    temperatures: Sequence[float],
    device: str,
    dtype: str,
    suite: str | None,
    documents: int,
    aside: bool,
) -> Analyzed:
    from specbench.plan import preparing
    from specbench.report.views.losses import view
    from specbench.training.draft import compare as study

    test = preparing(pair, suite, load_method("vanilla"), documents, 0, None) if suite else None
    with progress("measuring drafts", len(drafts), aside) as advance:
        return view(study.losses(pair, drafts, temperatures, device, dtype, test, advance)), list


def requests(run: Path, slo: str | None) -> Analyzed:
    from specbench.analysis.requests import request_figures
    from specbench.report.views.requests import view
    from specbench.studies.under_load import parse_slo

    kept = parse_slo(slo)
    return view(request_figures(stored_run(run), kept), kept), list
