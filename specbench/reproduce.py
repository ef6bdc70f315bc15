"""`specbench tables`: run what the papers' tables need and nobody has run yet, and write them next to our figures."""

import math
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from specbench import commands, config, files, records
from specbench import run as engine
from specbench.config import MethodSpec, PairSpec, SamplingSpec, UserError, task_info
from specbench.console import console
from specbench.escape import markdown_text
from specbench.models import Pair
from specbench.plan import Plan
from specbench.published import Paper, papers
from specbench.report.checks import Check, checks
from specbench.report.ours import Ours
from specbench.report.side_by_side import written
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

    Papers that name bundled pairs of their own are met by these, where `pair` is bundled too; all others by `pair`.
    Figures that come from no run are taken from the files in MEASURED, where somebody has put some.
    """
    chosen = papers(names)
    runs: list[StoredRun] | None = [StoredRun(folder) for folder in folders]
    if not folders:
        runs = measure(chosen, pair, suite, limit, **options)
    if runs is None:
        return 130
    ours = Ours(runs, allowed, sorted(MEASURED.glob("*.csv")), _default_pair(runs, pair, chosen))
    out.mkdir(parents=True, exist_ok=True)
    count = sum(_write(paper, ours, out) for paper in chosen)
    verdicts = checks(chosen, ours)
    frame = pd.DataFrame([vars(one) for one in verdicts])
    title = f"# Which claims of the papers hold on {markdown_text(', '.join(ours.pairs))}"
    files.write_text(out / "checks.md", f"{title}\n\n{markdown(frame)}\n")
    if check:
        _print_checks(verdicts)
    console.print(f"{count} tables as Markdown and LaTeX, and checks.md: {out}/", highlight=False, soft_wrap=True)
    return 0


def _default_pair(runs: Sequence[StoredRun], pair: str, chosen: Sequence[Paper]) -> PairSpec | None:
    """`pair`, where the runs are of that one and of bundled ones that stand for a paper's; None: of one pair only."""
    found = {run.plan.pair.name: run.plan.pair for run in runs}
    stand_ins = {name for paper in chosen for name in paper.bundled.values()}
    default = next((spec for name, spec in found.items() if name not in stand_ins), None) or config.load_pair(pair)
    return default if default.bundled and found.keys() <= {default.name, *stand_ins} else None


def _print_checks(found: Sequence[Check]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("paper", "claim", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in found:
        claim = Text.assemble(one.claim, "\n", (one.detail, "dim"))
        table.add_row(Text(f"{one.paper} {one.table}"), claim, Text(one.verdict))
    console.print(table)


def _write(paper: Paper, ours: Ours, out: Path) -> int:
    """The tables of a paper that have numbers, as files; returns how many."""
    numbered = [table for table in paper.tables if paper.figures(table)]
    for table in numbered:
        as_markdown, as_latex = written(paper, table, ours)
        files.write_text(out / f"{paper.paper}-table{table}.md", as_markdown)
        files.write_text(out / f"{paper.paper}-table{table}.tex", as_latex)
    return len(numbered)


def measure(
    chosen: Sequence[Paper], pair: str, suite: str | None, limit: int | None, **options: Any
) -> list[StoredRun] | None:
    """The stored runs that serve these papers, after running what was missing; None if stopped."""
    loaded: tuple[str, Pair] | None = None
    runs = []
    for want, specs in _wanted(chosen, pair, suite, limit, options):
        stored = _stored(want)
        plans = [(run.plan, run.folder) for run in stored if not run.finished]
        have = {spec.identity for run in stored for spec in run.plan.methods}
        if missing := [spec for spec in specs if spec.identity not in have]:
            (baseline,) = want.methods
            methods = (baseline, *(spec for spec in missing if spec.identity != baseline.identity))
            top = f"-top{want.top_k}" if want.top_k else ""
            name = f"{want.pair.name}-{want.suite}-T{want.temperature:g}{top}-{time.strftime('%Y%m%d-%H%M%S')}"
            folder = STORE / files.safe_name(name)
            plans.append((want.model_copy(update={"methods": methods}), folder))
        for plan, folder in plans:
            if loaded is None or loaded[0] != plan.pair.name:
                loaded = plan.pair.name, engine.load_models(plan)
            _announce(plan, folder, loaded[1])
            if not commands.carry_out(plan, folder, loaded[1]):
                return None
        runs += [*stored, *(StoredRun(folder) for plan, folder in plans if folder not in [s.folder for s in stored])]
    if not runs:
        raise UserError(
            "none of these papers' tables asks for a method of this version on these tasks; choose another --suite"
        )
    return runs


def _wanted(
    chosen: Sequence[Paper], pair: str, suite: str | None, limit: int | None, options: dict[str, Any]
) -> Iterator[tuple[Plan, list[MethodSpec]]]:
    """Plans of a baseline alone, and the methods that the papers' tables want beside it."""
    default = config.load_pair(pair)
    for name, suites in _places(chosen, pair, default).items():
        for one in [suite] if suite else suites:
            template = commands.plan(["vanilla"], one, name, [], "vanilla", limit, **options)
            tasks = {line.task for line in template.tasks}
            for sampling, specs in needed(chosen, default, template.pair.name, tasks).items():
                own: dict[str, list[MethodSpec]] = {}
                for spec in specs:
                    own.setdefault(config.baseline_of(spec).name, []).append(spec)
                for base, of_base in own.items():
                    changes = {"methods": (config.baseline_of(of_base[0]),), "baseline": base}
                    yield template.model_copy(update=changes | sampling.model_dump()), of_base


def _places(chosen: Sequence[Paper], pair: str, default: PairSpec) -> dict[str, list[str]]:
    """The pairs that the papers' tables are measured on, and the suites whose tasks: those of most tables, then of few.

    `pair` is how the user named `default`.
    """
    found: dict[str, list[str]] = {}
    for paper in chosen:
        own = paper.bundled if default.bundled else {}
        for name in filter(None, own.values()):
            found.setdefault(name, []).extend([paper.suite] if paper.suite else [])
        if not own:
            found.setdefault(pair, ["pocket" if default.bundled else "csd", "csd-generality"])
    return {name: list(dict.fromkeys(suites)) for name, suites in found.items()}


def needed(
    chosen: Sequence[Paper], default: PairSpec, pair: str, tasks: Collection[str]
) -> dict[SamplingSpec, list[MethodSpec]]:
    """The methods that the papers' cells on some tasks, or on their counterparts, ask for on a pair, by sampling.

    `default` is the pair for papers that name none of their own.
    """
    found: dict[SamplingSpec, dict[str, MethodSpec]] = {}
    for paper in chosen:
        for table in paper.tables:
            for figure in paper.figures(table):
                if paper.pair_of(figure, default) != pair:
                    continue
                spec = paper.method_spec(figure, pair)
                task = paper.tasks.get(figure.task)
                here = task is not None and bool({task, *task_info(task).counterparts} & {*tasks})
                if spec and here and (paper.metrics.get(figure.metric) or figure.metric in paper.gains):
                    found.setdefault(paper.sampling_of(figure), {})[spec.name] = spec
    return {sampling: list(specs.values()) for sampling, specs in found.items()}


def _stored(plan: Plan) -> list[StoredRun]:
    """Earlier runs of the store that differ from a plan in their methods only.

    Those that an older version left unfinished cannot go on, and are passed over.
    """
    runs = [StoredRun(path.parent) for path in sorted(STORE.glob("*/manifest.json"))]
    runs = [run for run in runs if run.finished or run.manifest["schema"] == records.VERSION]
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
