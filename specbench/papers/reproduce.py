"""`specbench tables`: write the papers' tables next to our figures, once the runs that they need are there."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from specbench import config
from specbench.base import files
from specbench.base.console import say
from specbench.base.escape import markdown_text
from specbench.config import PairSpec
from specbench.measure.staffing import Staffing
from specbench.papers.cells import write_cells
from specbench.papers.checks import ALIKE, COLLAPSED, PACE_APART, Check, claims
from specbench.papers.missing_runs import STORE, measure
from specbench.papers.orders import ORDER_NAMES, orders
from specbench.papers.ours import Ours
from specbench.papers.published import Paper, papers
from specbench.papers.side_by_side import written
from specbench.papers.stored import DOCUMENTS, FIGURES, Stored, is_stored
from specbench.report.finding import Finding, Sheet, show
from specbench.report.tables import markdown
from specbench.results import records
from specbench.results.stored import StoredRun

MEASURED = STORE / "measured"  # figures that come from no run, in the form of results/published/*.csv


def tables(
    folders: Sequence[Path],
    names: list[str] | None,
    pair: str,
    suite: str | None,
    limit: int | None,
    check: bool,
    out: Path,
    allowed: Sequence[str] = (),
    staffing: Staffing | None = None,
    **options: Any,
) -> int:
    """Write every table of the papers to `out`; without `folders`, first run what is missing. Returns the exit code.

    Next to them stand the verdicts on the papers' claims, and what they rest on: every document's counts and times, and
    figures that come from no run. A folder of tables as the first gives tables and verdicts again from these, with the
    runs after it added.

    Missing runs are made by the workers of `staffing`, or by this process without it.

    A paper that names bundled pairs is run on these if `pair` is bundled too, else on `pair`. Figures that come from no
    run are read from the files in MEASURED, if there are any.
    """
    chosen = papers(names)
    stored = folders[0] if folders and is_stored(folders[0]) else None
    runs: list[StoredRun] | None = [StoredRun(folder) for folder in (folders[1:] if stored else folders)]
    if not folders:
        runs = measure(chosen, pair, suite, limit, staffing, **options)
    if runs is None:
        return 130
    read = [Ours(runs, allowed, sorted(MEASURED.glob("*.csv")), _default_pair(runs, pair, chosen))] if runs else []
    ours = Stored(stored, papers(None), read) if stored else read[0]
    out.mkdir(parents=True, exist_ok=True)
    if read:
        records.write_frame(out / DOCUMENTS, ours.every_document())
        write_cells(out / FIGURES, [figure.model_dump() for figure, _ in ours.figures])
    count = sum(_write(paper, ours, out) for paper in chosen)
    _write_verdicts(chosen, ours, out, check)
    say(f"{count} tables as Markdown and LaTeX, checks.md and the documents that it rests on: {out}/")
    return 0


def _write_verdicts(chosen: Sequence[Paper], ours: Ours, out: Path, check: bool) -> None:
    """Write checks.md, and print it if `check`."""
    checked = verdicts(chosen, ours)
    of_claims = sum(verdict.tests for verdict in checked if verdict.claim not in ORDER_NAMES.values())
    rules = (
        f"A claim is void where a method keeps less than {COLLAPSED:.0%} of its baseline's score, or where both decode "
        f"alike: fewer than {ALIKE:.0%} of the documents differ in rounds or in drafted, accepted, rescued or committed"
        f" tokens (for speeds, in forwards too), or where speeds are of two runs of which one decodes the baseline "
        f"more than {PACE_APART:g} times as fast. A verdict on several data sets that differ says on how many "
        f"it is so. {_shipped(checked)}The {of_claims} intervals and p values of claims are not corrected for"
        " their number: if nothing differed, one in twenty would differ significantly by chance. Those of an order "
        "are, by Holm's rule; the bounds of its τ count the pairs of methods that are not significantly different "
        "either way. Without a number of documents, a claim rests on figures of figures.csv, which were measured apart "
        "(results/README.md says how)."
    )
    title = f"# Which claims of the papers hold on {markdown_text(', '.join(ours.pairs))}"
    table = markdown(pd.DataFrame(vars(verdict) | {"documents": verdict.documents or "-"} for verdict in checked))
    files.write_text(out / "checks.md", f"{title}\n\n{textwrap.fill(rules, 120, break_on_hyphens=False)}\n\n{table}\n")
    if check:
        show(_claims(checked))


def _shipped(checked: Sequence[Check]) -> str:
    """In a sentence what the labels of the methods that claims compare leave out: draft lengths and thresholds."""
    labels = {label.partition(" on ")[0] for c in checked for label in f"{c.method}, {c.baseline}".split(", ")}
    told = []
    for key, name in (("gamma", "γ"), ("threshold", "threshold")):
        of: dict[float, list[str]] = {}
        for method in sorted({label.partition("[")[0] for label in labels if f"{key}=" not in label}):
            known = config.load_method(method).values.get(key) if method in config.names("methods") else None
            if isinstance(known, int | float):
                of.setdefault(known, []).append(method)
        each = "; ".join(f"{value:g} of {', '.join(names)}" for value, names in sorted(of.items()))
        told += [f"{name} {each}"] if of else []
    return f"What a method's brackets leave out it has as it ships: {' and '.join(told)}. " if told else ""


def _default_pair(runs: Sequence[StoredRun], pair: str, chosen: Sequence[Paper]) -> PairSpec | None:
    """`pair`, if the runs are of it and of bundled pairs that stand for a paper's; None if they are of one pair."""
    pairs = {run.plan.pair.name: run.plan.pair for run in runs}
    stand_ins = {name for paper in chosen for name in paper.bundled.values()}
    default = next((spec for name, spec in pairs.items() if name not in stand_ins), None) or config.load_pair(pair)
    return default if default.bundled and pairs.keys() <= {default.name, *stand_ins} else None


def verdicts(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """All claims of the papers, then the orders of their tables."""
    return [*claims(chosen, ours), *orders(chosen, ours)]


def _claims(checked: Sequence[Check]) -> Finding:
    rows: list[list[str | Text]] = [
        [
            f"{check.paper} {check.table}",
            Text.assemble(
                check.claim,
                "\n",
                (f"against {check.baseline}: " if check.baseline != "-" else "", "dim"),
                (check.detail, "dim"),
            ),
            check.verdict,
        ]
        for check in checked
    ]
    return Finding("checks", sheets=[Sheet(["paper", "claim", "verdict"], rows, align="lll")])


def _write(paper: Paper, ours: Ours, out: Path) -> int:
    """Write the tables of a paper that have numbers; returns how many."""
    numbered = [table for table in paper.tables if paper.figures(table)]
    for table in numbered:
        as_markdown, as_latex = written(paper, table, ours)
        files.write_text(out / f"{paper.paper}-table{table}.md", as_markdown)
        files.write_text(out / f"{paper.paper}-table{table}.tex", as_latex)
    return len(numbered)
