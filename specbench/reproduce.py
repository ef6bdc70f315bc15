"""`specbench tables`: run what the papers' tables need and nobody has run yet, and write them next to our figures."""

import math
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from specbench import commands
from specbench import run as engine
from specbench.config import MethodSpec, Plan, SamplingSpec, UserError, task_info
from specbench.console import console
from specbench.models import Pair
from specbench.published import Paper, papers
from specbench.report.checks import Check, checks
from specbench.report.side_by_side import Ours, written
from specbench.report.tables import markdown
from specbench.stored import StoredRun

STORE = Path("runs") / "tables"
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
    **options: Any,
) -> int:
    """Write every table of the papers to `out`; without `folders`, first run what is missing. Returns the exit code.

    Figures that come from no run are taken from the files in MEASURED, where somebody has put some.
    """
    chosen = papers(names)
    runs: list[StoredRun] | None = [StoredRun(folder) for folder in folders]
    if not folders:
        runs = measure(chosen, pair, [suite] if suite else _suites(pair), limit, **options)
    if runs is None:
        return 130
    ours = Ours(runs, allowed, sorted(MEASURED.glob("*.csv")))
    out.mkdir(parents=True, exist_ok=True)
    count = sum(_write(paper, ours, out) for paper in chosen)
    verdicts = checks(chosen, ours)
    frame = pd.DataFrame([vars(one) for one in verdicts])
    (out / "checks.md").write_text(f"# Which claims of the papers hold on {ours.pair}\n\n{markdown(frame)}\n")
    if check:
        _print_checks(verdicts)
    console.print(f"{count} tables as Markdown and LaTeX, and checks.md: {out}/", highlight=False, soft_wrap=True)
    return 0


def _print_checks(found: Sequence[Check]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("paper", "claim", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in found:
        table.add_row(f"{one.paper} {one.table}", f"{one.claim}\n[dim]{escape(one.detail)}[/]", one.verdict)
    console.print(table)


def _write(paper: Paper, ours: Ours, out: Path) -> int:
    """The tables of a paper that have numbers, as files; returns how many."""
    numbered = [table for table in paper.tables if paper.figures(table)]
    for table in numbered:
        as_markdown, as_latex = written(paper, table, ours)
        (out / f"{paper.paper}-table{table}.md").write_text(as_markdown)
        (out / f"{paper.paper}-table{table}.tex").write_text(as_latex)
    return len(numbered)


def _suites(pair: str) -> list[str]:
    """Whose tasks the papers' tables are measured on: those of most tables, and those of few."""
    return ["pocket" if pair == "pocket" else "csd", "csd-generality"]


def measure(
    chosen: Sequence[Paper], pair: str, suites: Sequence[str], limit: int | None, **options: Any
) -> list[StoredRun] | None:
    """The stored runs that serve these papers on a pair, after running what was missing; None if stopped."""
    templates = [commands.plan(["vanilla"], suite, pair, [], "vanilla", limit, **options) for suite in suites]
    loaded = None
    runs = []
    for want, specs in [
        (template.model_copy(update=sampling.model_dump()), specs)
        for template in templates
        for sampling, specs in needed(chosen, template.pair.name, {line.task for line in template.tasks}).items()
    ]:
        stored = _stored(want)
        plans = [(run.plan, run.folder) for run in stored if not run.finished]
        have = {spec.identity for run in stored for spec in run.plan.methods}
        if missing := [spec for spec in specs if spec.identity not in have]:
            baseline = want.methods[0]
            methods = (baseline, *(spec for spec in missing if spec != baseline))
            top = f"-top{want.top_k}" if want.top_k else ""
            name = f"{want.pair.name}-{want.suite}-T{want.temperature:g}{top}-{time.strftime('%Y%m%d-%H%M%S')}"
            folder = STORE / name
            plans.append((want.model_copy(update={"methods": methods}), folder))
        for plan, folder in plans:
            loaded = loaded or engine.load_models(plan)
            _announce(plan, folder, loaded)
            if not commands.carry_out(plan, folder, loaded):
                return None
        runs += [*stored, *(StoredRun(folder) for plan, folder in plans if folder not in [s.folder for s in stored])]
    if not runs:
        raise UserError(
            "none of these papers' tables asks for a method of this version on these tasks; choose another --suite"
        )
    return runs


def needed(chosen: Sequence[Paper], pair: str, tasks: Collection[str]) -> dict[SamplingSpec, list[MethodSpec]]:
    """The methods that the papers' cells on some tasks, or on their counterparts, ask for, by sampling."""
    found: dict[SamplingSpec, dict[str, MethodSpec]] = {}
    for paper in chosen:
        for table in paper.tables:
            for figure in paper.figures(table):
                spec = paper.method_spec(figure, pair)
                task = paper.tasks.get(figure.task)
                here = task is not None and bool({task, *task_info(task).counterparts} & {*tasks})
                if spec and here and (paper.metrics.get(figure.metric) or figure.metric in paper.gains):
                    found.setdefault(paper.sampling_of(figure), {})[spec.name] = spec
    return {sampling: list(specs.values()) for sampling, specs in found.items()}


def _stored(plan: Plan) -> list[StoredRun]:
    """Earlier runs of the store that differ from a plan in their methods only."""
    runs = [StoredRun(path.parent) for path in sorted(STORE.glob("*/manifest.json"))]
    return [run for run in runs if run.plan.model_copy(update={"methods": plan.methods}) == plan]


def _announce(plan: Plan, folder: Path, pair: Pair) -> None:
    """Say how long a plan will take, by a trial of one document a task."""
    console.print(f"to run in {folder}: {', '.join(spec.name for spec in plan.methods)}", highlight=False, markup=False)
    documents = Counter(request.task for request in engine.load_tasks(plan, pair).requests())
    with tempfile.TemporaryDirectory() as scratch:
        engine.execute(plan.model_copy(update={"limit": 1, "repeats": 1}), Path(scratch), lambda _: True, pair)
        samples = StoredRun(Path(scratch)).samples(["task", "warmup", "prefill_seconds", "decode_seconds"])
    timed = samples[~samples.warmup]
    a_document = (timed.prefill_seconds + timed.decode_seconds).groupby(timed.task).sum()
    seconds = plan.repeats * sum(a_document.get(task, 0.0) * count for task, count in documents.items())
    console.print(
        f"about {math.ceil(seconds / 60)} min for {documents.total()} documents by {len(plan.methods)} methods; if "
        "stopped, the same command goes on",
        highlight=False,
    )
