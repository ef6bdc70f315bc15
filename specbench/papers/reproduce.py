"""`specbench tables`: run what the papers' tables still need, and write the tables next to our figures."""

import math
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.text import Text

from specbench import config
from specbench.analysis import compare
from specbench.base import files
from specbench.base.console import console, say
from specbench.base.escape import markdown_text
from specbench.config import MethodSpec, PairSpec, SamplingSpec, UserError, task_info
from specbench.engine.models.pair import Pair
from specbench.measure import command, loop, pool, prepare
from specbench.measure.prompts import load_tasks
from specbench.measure.staffing import Staffing
from specbench.papers.cells import write_cells
from specbench.papers.checks import ALIKE, COLLAPSED, Check, claims
from specbench.papers.orders import ORDER_NAMES, orders
from specbench.papers.ours import Ours
from specbench.papers.published import Paper, papers
from specbench.papers.side_by_side import written
from specbench.papers.stored import DOCUMENTS, FIGURES, Stored, is_stored
from specbench.plan import Plan, resolve_plan
from specbench.report.finding import Finding, Sheet, show
from specbench.report.tables import markdown
from specbench.results import records
from specbench.results.shard import SHARDS
from specbench.results.stored import StoredRun

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
    staffing: Staffing | None = None,
    **options: Any,
) -> int:
    """Write every table of the papers to `out`; without `folders`, first run what is missing. Returns the exit code.

    Beside them stand the verdicts on the papers' claims, and what they rest on: every document's counts and times, and
    figures that come from no run. A folder of tables instead of runs gives the verdicts again from these.

    Missing runs are made by the workers of `staffing`, or by this process without it.

    A paper that names bundled pairs is run on these if `pair` is bundled too, else on `pair`. Figures that come from no
    run are read from the files in MEASURED, if there are any.
    """
    chosen = papers(names)
    if len(folders) == 1 and is_stored(folders[0]):
        out.mkdir(parents=True, exist_ok=True)
        _write_verdicts(chosen, Stored(folders[0], chosen), out, check)
        say(f"checks.md, from the documents in {folders[0]}: {out}/")
        return 0
    runs: list[StoredRun] | None = [StoredRun(folder) for folder in folders]
    if not folders:
        runs = measure(chosen, pair, suite, limit, staffing, **options)
    if runs is None:
        return 130
    ours = Ours(runs, allowed, sorted(MEASURED.glob("*.csv")), _default_pair(runs, pair, chosen))
    out.mkdir(parents=True, exist_ok=True)
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
        f" tokens (for speeds, in forwards too). The {of_claims} intervals and p values of claims are not corrected for"
        " their number: if nothing differed, one in twenty would differ significantly by chance. Those of an order "
        "are, by Holm's rule; the bounds of its τ count the pairs of methods that are not significantly different "
        "either way. Without a number of documents, a claim rests on figures of figures.csv, which were measured apart "
        "(results/README.md says how)."
    )
    title = f"# Which claims of the papers hold on {markdown_text(', '.join(ours.pairs))}"
    table = markdown(pd.DataFrame(vars(verdict) | {"documents": verdict.documents or "-"} for verdict in checked))
    files.write_text(out / "checks.md", f"{title}\n\n{textwrap.fill(rules, 120)}\n\n{table}\n")
    if check:
        show(_claims(checked))


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


def measure(
    chosen: Sequence[Paper],
    pair: str,
    suite: str | None,
    limit: int | None,
    staffing: Staffing | None = None,
    **options: Any,
) -> list[StoredRun] | None:
    """The stored runs that these papers need, after running what was missing; None if the user stopped."""
    loaded: tuple[str, Pair] | None = None
    folders: list[Path] = []
    for template, specs in _wanted(chosen, pair, suite, limit, options):
        if staffing:
            template = staffing.fitted(template)
        stored = _stored(template)
        plans = {folder: plan for folder, plan in stored.items() if not _finished(folder)}
        stored_methods = {spec.identity for plan in stored.values() for spec in plan.methods}
        if missing := [spec for spec in specs if spec.identity not in stored_methods]:
            (baseline,) = template.methods
            methods = (baseline, *(spec for spec in missing if spec.identity != baseline.identity))
            top = f"-top{template.top_k}" if template.top_k else ""
            sampling = f"T{template.temperature:g}{top}"
            name = f"{template.pair.name}-{template.suite}-{sampling}-{time.strftime('%Y%m%d-%H%M%S')}"
            plans[STORE / files.safe_name(name)] = template.model_copy(update={"methods": methods})
        for folder, plan in plans.items():
            begun = folder in stored
            if _in_shards(folder) if begun else staffing:
                by = staffing or Staffing(1)
                _say_what(plan, folder)
                say(f"by {by.workers} worker{'s' * (by.workers > 1)}; if stopped, the same command continues")
                if not (pool.run(None, None, folder, by) if begun else pool.run(plan, folder, None, by)):
                    return None
            else:
                if loaded is None or loaded[0] != plan.pair.name:
                    loaded = plan.pair.name, prepare.load_models(plan)
                _announce(plan, folder, loaded[1])
                if not command.carry_out(plan, folder, loaded[1]):
                    return None
            compare.write_summary(folder)
        folders += dict.fromkeys([*stored, *plans])
    if not folders:
        raise UserError(
            "none of these papers' tables asks for a method of this version on these tasks; choose another --suite"
        )
    return [StoredRun(folder) for folder in folders]


def _wanted(
    chosen: Sequence[Paper], pair: str, suite: str | None, limit: int | None, options: dict[str, Any]
) -> Iterator[tuple[Plan, list[MethodSpec]]]:
    """Plans of a baseline alone, each with the methods that the papers' tables need beside it."""
    default = config.load_pair(pair)
    for name, suites in _places(chosen, pair, default).items():
        for suite_name in [suite] if suite else suites:
            template = resolve_plan(["vanilla"], suite_name, name, [], "vanilla", limit, **options)
            tasks = {line.task for line in template.tasks}
            for sampling, specs in needed(chosen, default, template.pair.name, tasks).items():
                by_baseline: dict[str, list[MethodSpec]] = {}
                for spec in specs:
                    by_baseline.setdefault(config.baseline_of(spec).name, []).append(spec)
                for baseline, methods in by_baseline.items():
                    changes = {"methods": (config.baseline_of(methods[0]),), "baseline": baseline}
                    yield template.model_copy(update=changes | sampling.model_dump()), methods


def _places(chosen: Sequence[Paper], pair: str, default: PairSpec) -> dict[str, list[str]]:
    """The pairs that the papers' tables are measured on, each with its suites, the one of most tables first.

    `pair` is how the user named `default`.
    """
    places: dict[str, list[str]] = {}
    for paper in chosen:
        bundled = paper.bundled if default.bundled else {}
        for name in filter(None, bundled.values()):
            places.setdefault(name, []).extend([paper.suite] if paper.suite else [])
        if not bundled:
            places.setdefault(pair, ["pocket" if default.bundled else "csd", "csd-generality"])
    return {name: list(dict.fromkeys(suites)) for name, suites in places.items()}


def needed(
    chosen: Sequence[Paper], default: PairSpec, pair: str, tasks: Collection[str]
) -> dict[SamplingSpec, list[MethodSpec]]:
    """The methods, by sampling, that a pair needs for the papers' cells on some tasks or their counterparts.

    `default` is the pair for papers that name no bundled ones.
    """
    methods: dict[SamplingSpec, dict[str, MethodSpec]] = {}
    for paper in chosen:
        for table in paper.tables:
            for figure in paper.figures(table):
                if paper.pair_of(figure, default) != pair:
                    continue
                task = paper.tasks.get(figure.task)
                here = {task, *task_info(task).counterparts} & {*tasks} if task else set()
                for spec in filter(None, (paper.method_spec(figure, pair, ours) for ours in sorted(here))):
                    if paper.metrics.get(figure.metric) or figure.metric in paper.gains:
                        methods.setdefault(paper.sampling_of(figure), {})[spec.name] = spec
    return {sampling: list(specs.values()) for sampling, specs in methods.items()}


def _stored(plan: Plan) -> dict[Path, Plan]:
    """The folders of the store whose plans differ from this one in their methods only, with their plans.

    Runs that an older version left unfinished cannot go on, and are left out.
    """
    plans = {}
    for folder in sorted(STORE.glob("*")):
        shards = _in_shards(folder)
        if not shards and not (folder / "manifest.json").exists():
            continue
        run = StoredRun(shards[0] if shards else folder)
        if not run.finished and run.manifest["schema"] != records.VERSION:
            continue
        if run.plan.model_copy(update={"methods": plan.methods}) == plan:
            plans[folder] = run.plan
    return plans


def _in_shards(folder: Path) -> list[Path]:
    """The shards that workers have begun of a run that is not joined yet."""
    if (folder / "manifest.json").exists():
        return []
    return [path.parent for path in sorted((folder / SHARDS).glob("*/manifest.json"))]


def _finished(folder: Path) -> bool:
    return not _in_shards(folder) and StoredRun(folder).finished


def _say_what(plan: Plan, folder: Path) -> None:
    console.print(f"to run in {folder}: {', '.join(spec.name for spec in plan.methods)}", highlight=False, markup=False)


def _announce(plan: Plan, folder: Path, pair: Pair) -> None:
    """Print how long a plan will take, from a trial of one document a task."""
    _say_what(plan, folder)
    documents = Counter(request.task for request in load_tasks(plan, pair).requests())
    with tempfile.TemporaryDirectory() as scratch:
        trial = {"limit": 1, "repeats": 1, "batch": 1, "time_documents": 0, "untimed": False}
        loop.execute(plan.model_copy(update=trial), Path(scratch), lambda _: True, pair)
        samples = StoredRun(Path(scratch)).samples(["task", "warmup", "prefill_seconds", "decode_seconds"])
    timed = samples[~samples.warmup]
    a_document = (timed.prefill_seconds + timed.decode_seconds).groupby(timed.task).sum()
    seconds = plan.repeats * sum(a_document.get(task, 0.0) * count for task, count in documents.items())
    console.print(
        f"about {math.ceil(seconds / 60)} min, one by one, for {documents.total()} documents by {len(plan.methods)} "
        "methods; if stopped, the same command continues",
        highlight=False,
    )
