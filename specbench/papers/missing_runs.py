"""The runs that the papers' tables need, on a pair: those in the store, and those that are still to be made."""

import math
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench import config
from specbench.analysis import compare
from specbench.base import files
from specbench.base.console import console, say, warn
from specbench.config import MethodSpec, PairSpec, SamplingSpec, TaskLine, UserError, task_info
from specbench.engine.models.pair import Pair
from specbench.measure import command, loop, pool, prepare
from specbench.measure.prompts import NoDocuments, load_tasks
from specbench.measure.staffing import Staffing
from specbench.papers.published import Paper
from specbench.plan import Plan, resolve_plan
from specbench.results import records
from specbench.results.shard import SHARDS
from specbench.results.stored import StoredRun

STORE = Path("runs") / "tables"


def measure(
    chosen: Sequence[Paper],
    pair: str,
    suite: str | None,
    limit: int | None,
    staffing: Staffing | None = None,
    **options: Any,
) -> list[StoredRun] | None:
    """The stored runs that these papers need, after running what was missing; None if the user stopped.

    Tasks without documents here, and methods that need a head or another input that the pair does not have, are named
    and left out.
    """
    loaded: tuple[str, Pair] | None = None
    folders: list[Path] = []
    reasons: list[str] = []
    for template, specs in _wanted(chosen, pair, suite, limit, options, reasons):
        if staffing:
            template = staffing.fitted(template)
        stored = _stored(template)
        plans = {folder: plan for folder, plan in stored.items() if not _finished(folder)}
        stored_methods = {spec.identity for plan in stored.values() for spec in plan.methods}
        missing = [spec for spec in specs if spec.identity not in stored_methods]
        if missing and not staffing:
            if loaded is None or loaded[0] != template.pair.name:
                loaded = template.pair.name, prepare.load_models(template)
            missing = _usable(missing, loaded[1])
        if missing:
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
        if reasons:
            raise UserError(f"none of these tasks has documents here: {reasons[0]}")
        raise UserError(
            "none of these papers' tables asks for a method of this version on these tasks; choose another --suite"
        )
    return [StoredRun(folder) for folder in folders]


def _wanted(
    chosen: Sequence[Paper],
    pair: str,
    suite: str | None,
    limit: int | None,
    options: dict[str, Any],
    left_out: list[str],
) -> Iterator[tuple[Plan, list[MethodSpec]]]:
    """Plans of a baseline alone, each with the methods that the papers' tables need next to it.

    Why tasks are left out is added to `left_out`, in place.
    """
    default = config.load_pair(pair)
    for name, suites in _places(chosen, pair, default).items():
        for suite_name in [suite] if suite else suites:
            template = resolve_plan(["vanilla"], suite_name, name, [], "vanilla", limit, **options)
            template = template.model_copy(update={"tasks": tuple(_with_documents(template, left_out))})
            tasks = {line.task for line in template.tasks}
            for sampling, specs in needed(chosen, default, template.pair.name, tasks).items():
                by_baseline: dict[str, list[MethodSpec]] = {}
                for spec in specs:
                    by_baseline.setdefault(config.baseline_of(spec).name, []).append(spec)
                for baseline, methods in by_baseline.items():
                    changes: dict[str, Any] = {"methods": (config.baseline_of(methods[0]),), "baseline": baseline}
                    changes["repeats"] = template.repeats if sampling.temperature else 1  # greedy texts stay the same
                    yield template.model_copy(update=changes | sampling.model_dump()), methods


def _with_documents(plan: Plan, left_out: list[str]) -> Iterator[TaskLine]:
    """The tasks of a plan whose documents can be loaded, as bundled ones can; the others are named.

    Why is added to `left_out`, in place.
    """
    if plan.pair.bundled and not plan.data_dir:
        yield from plan.tasks
        return
    for line in plan.tasks:
        try:
            load_tasks(plan.model_copy(update={"tasks": (line,), "limit": 1}), None)
        except NoDocuments as error:
            warn(f"left out: {error}")
            left_out.append(str(error))
        else:
            yield line


def _usable(specs: Sequence[MethodSpec], pair: Pair) -> list[MethodSpec]:
    """The methods that can be built on a pair; the others are named with what they need."""
    usable = []
    for spec in specs:
        try:
            prepare.build_alone(spec, pair)
        except UserError as error:
            warn(f"left out: {spec.name}: {error}")
        else:
            usable.append(spec)
    return usable


def _places(chosen: Sequence[Paper], pair: str, default: PairSpec) -> dict[str, list[str]]:
    """The pairs that the papers' tables are measured on, each with its suites, the one of most tables first.

    `pair` is how the user named `default`.
    """
    places: dict[str, list[str]] = {}
    for paper in chosen:
        bundled = paper.bundled if default.bundled else {}
        for name in filter(None, bundled.values()):
            places.setdefault(name, []).extend([paper.suite] if paper.suite else [])
        if bundled.keys() < paper.pairs.keys():
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
            for figure in [] if paper.tables[table].needs else paper.figures(table):
                if paper.pair_of(figure, default) != pair:
                    continue
                task = paper.tasks.get(figure.task)
                here = {task, *task_info(task).counterparts} & {*tasks} if task else set()
                of_claims = [s for c in paper.claims if c.table == table and here for s in paper.rivals(c)]
                of_cell = (paper.method_spec(figure, pair, ours) for ours in sorted(here))
                for spec in (*filter(None, of_cell), *of_claims):
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
