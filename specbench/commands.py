"""What the commands `run` and `audit` do: from a request to a plan, and from a plan to records or findings."""

import itertools
import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench import audit as auditing
from specbench import config, files, permissions, reading
from specbench import run as engine
from specbench.claim import unused
from specbench.config import MethodSpec, SamplingSpec, UserError
from specbench.console import RunProgress, console, progress
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Method
from specbench.doctor import quick_lines
from specbench.doctor_machine import disk
from specbench.methods import module
from specbench.models import Pair
from specbench.plan import Plan, resolve_tasks
from specbench.report.audit_view import print_audit
from specbench.stored import StoredRun

LONG_NAME = 80  # characters of methods in the name of a folder
EACH = "each"  # each method's own baseline


def plan(
    methods: Sequence[str],
    suite: str,
    pair: str,
    assignments: Sequence[str],
    baseline: str | None,
    limit: int | None,
    data_dir: str | None = None,
    params: Sequence[str] = (),
    **options: Any,
) -> Plan:
    """Resolve names into a plan; `--set` changes settings, then the baselines join the methods.

    `baseline` is one for all methods (which joins before), EACH for each method's own, or None. Without `methods` the
    suite's own are taken. `params` sweeps settings of the methods (not of the baseline): a variant for each combination
    of values. `options` are further fields of the plan; temperature, top_k and top_p are the suite's where they are
    missing or None.
    """
    pair_spec, suite_spec = config.load_pair(pair), config.load_suite(suite)
    if not (methods or suite_spec.methods):
        raise UserError(f"the suite {suite} brings no methods; name some: --method csd --suite {suite}")
    own = [] if methods else config.suite_methods(suite_spec)
    specs: dict[str, MethodSpec] = {}
    common = config.load_method(baseline) if baseline not in (None, EACH) else None
    for spec in [*([common] if common else []), *map(config.load_method, methods), *own]:
        if specs.get(spec.name, spec) != spec:
            raise UserError(f"two different methods are called {spec.name}; rename the file of one")
        specs[spec.name] = spec
    changes = config.parse_assignments(assignments)
    for name, settings in changes.items():
        variants = [one for one in specs if one == name or one.startswith(f"{name}[")]
        if not variants:
            raise UserError(f"--set {name}.…: this run has no method {name!r}; it has {', '.join(specs)}")
        for one in variants:  # what a variant is named after stays
            specs[one] = config.override(specs[one], {k: v for k, v in settings.items() if f"{k}=" not in one})
    if params:
        kept: list[MethodSpec] = []
        swept: list[MethodSpec] = []
        for spec in specs.values():
            (kept if spec == common else swept).append(spec)
        if not swept or (baseline == EACH and not any(spec.settings for spec in swept)):
            raise UserError(f"{[*kept, *swept][0].name} is the baseline and is not swept; choose another --method")
        axes = config.parse_params(params)
        specs = {spec.name: spec for spec in [*kept, *(one for spec in swept for one in config.grid(spec, axes))]}
    against = dict.fromkeys(specs, common and common.name)
    if baseline == EACH:
        specs, against = _with_baselines(specs)
    tasks = resolve_tasks(suite_spec, pair_spec, data_dir)
    if [line.task for line in tasks] != [line.task for line in suite_spec.tasks]:
        named = ", ".join(line.task for line in tasks)
        console.print(f"pair {pair_spec.name}: the bundled tasks stand in: {named}", style="dim", markup=False)
    asked = {key: options.pop(key, None) for key in SamplingSpec.model_fields}
    sampling = suite_spec.sampling.model_dump() | {key: value for key, value in asked.items() if value is not None}
    return config.validated(
        Plan,
        {
            "pair": pair_spec,
            "methods": tuple(specs.values()),
            "baseline": (main := next(iter(against.values()))),
            "baselines": {name: base for name, base in against.items() if base != main},
            "suite": suite_spec.name,
            "tasks": tasks,
            "limit": limit or suite_spec.limit,
            "max_length": suite_spec.max_length,
            "data_dir": data_dir,
            **sampling,
            **options,
        },
        "run",
    )


def _with_baselines(specs: dict[str, MethodSpec]) -> tuple[dict[str, MethodSpec], dict[str, str]]:
    """The methods behind the baselines that they need, each once, and the baseline of every one by name.

    A method that shares no setting with its baseline takes the one variant of it that the others have.
    """
    known = {spec.identity: spec for spec in specs.values()}
    bases = {name: config.baseline_of(spec) for name, spec in specs.items()}
    own = {name: known.get(base.identity, base) for name, base in bases.items()}
    alone = [name for name, spec in specs.items() if not spec.settings.keys() & own[name].settings.keys()]
    for name in alone:
        others = [*specs.values(), *(base for other, base in own.items() if other not in alone)]
        there = {one.identity: one for one in others if one.method == own[name].method}
        if len(there) == 1:
            (own[name],) = there.values()
    for name, base in own.items():
        if (same := specs.get(base.name)) and same.identity != base.identity:
            raise UserError(
                f"{name} needs {base.name} with its own settings as the baseline, and this run has another "
                f"{base.name}; give both the same settings, or --baseline {base.name}"
            )
    found = {one.name: one for one in [*own.values(), *specs.values()]}
    return found, {name: own[name].name if name in own else name for name in found}


def run(given: Plan | None, out: Path | None, resume: Path | None) -> int:
    """Carry out a plan in a new folder, or go on with the one in `resume`; returns the exit code."""
    if resume:
        folder, chosen = resume, StoredRun(resume).plan
        if given and given != chosen:
            raise UserError(
                f"{resume} belongs to other settings ({_difference(chosen, given)}); give it --resume alone"
            )
    else:
        assert given is not None
        if out and not unused(out):
            on = f"go on with it by --resume {out}, or " if (out / "manifest.json").exists() else ""
            raise UserError(f"{out} exists; {on}choose another --out")
        folder, chosen = out or default_folder(given), given
    for line in quick_lines(folder, chosen.device):
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    if chosen.temperature:
        console.print(f"sampled: {chosen.sampling.name}", style="dim", highlight=False, markup=False)
    try:
        finished = carry_out(chosen, folder)
    finally:
        if not (out or resume):
            with suppress(OSError):  # they are not empty
                folder.rmdir()
                folder.parent.rmdir()
    if not finished:
        return 130
    for task, count in StoredRun(folder).manifest.get("left_out", {}).items():
        console.print(
            f"{task}: {count} documents left out, whose prompts leave no room in {chosen.max_length} tokens",
            style="yellow",
            highlight=False,
            markup=False,
        )
    if shared := ((StoredRun(folder).manifest.get("models") or {}).get("draft") or {}).get("shared_tokens"):
        console.print(
            f"the draft has another tokenizer: it proposed only the {shared} tokens that the target has too",
            highlight=False,
        )
    summary = reading.show(folder, "table")
    for line in (
        f"\nrecords: {folder}/ (samples, rounds, scores and summary.parquet, manifest.json)",
        f"next:    specbench show {folder} --format md",
        f"         specbench compare {folder} OTHER_RUN",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return 3 if summary.errors.any() else 0


def carry_out(chosen: Plan, folder: Path, pair: Pair | None = None) -> bool:
    """Run a plan into `folder`, or go on there, with progress; returns whether it was finished.

    `pair` may be loaded already. Raises UserError for wrong settings and for what the disk refuses.
    """
    _check_disk(folder)
    permissions.check_loading(chosen)
    permissions.check_code(chosen)
    for spec in chosen.methods:
        config.validated(module(spec.method).Settings, spec.values, spec.name)
    with stop_requests() as stopping, RunProgress() as bar:

        def started() -> None:
            stopping.patient = True

        def report(state: engine.Progress) -> bool:
            bar.update(state.done, state.total, state.request.task, state.rounds)
            stopping.patient = state.done < state.total
            return not stopping.asked

        try:
            finished = engine.execute(chosen, folder, report, pair, started)
        except OSError as error:
            raise UserError(f"{error}; {_how_to_go_on(folder)}") from None
        except KeyboardInterrupt:
            finished = False
    if not finished:
        console.print(f"stopped; {_how_to_go_on(folder)}", markup=False, soft_wrap=True)
    return finished


def audit(chosen: Plan, length: int, draws: int, out: Path | None, named: bool = True) -> int:
    """Audit the methods of a plan on its documents and print what was found; returns 1 if there is a defect.

    Methods that were not `named` are left out where they cannot be had (without a trained head, for example).
    """
    if out and not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder {out.parent}; make it, or choose another --out")
    eager = engine.load_models(chosen.model_copy(update={"runtime": "eager"}))
    prompts = auditing.prompts_of(chosen, eager)
    pair, _ = engine.at_runtime(chosen, eager, prompts[0].ids, len(prompts[0].ids), chosen.runtime)
    methods: dict[str, Method] = {}
    for spec in chosen.methods:
        try:
            methods[spec.name] = engine.build(spec, pair, Unwatched())
        except UserError as error:
            if named:
                raise
            line = f"left out: {spec.name}: {error}"
            console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)
    sampled = sum(len(auditing.samplings(method)) for method in methods.values())
    texts = len(prompts) * (len(methods) + sampled * auditing.POSITIONS * draws)
    with progress("auditing", texts) as advance:

        def between(count: int) -> None:
            advance(count)
            pair.runtime.settle()

        found = list(auditing.audit(eager, methods, prompts, length, draws, between))
    print_audit(console, found)
    if out:
        auditing.write(out, found, pair)
    return int(any(one.verdict == "defect" for one in found))


@dataclass
class Stopping:
    """Whether the user asked to stop, and whether what is under way is finished first."""

    asked: bool = False
    patient: bool = False


@contextmanager
def stop_requests() -> Iterator[Stopping]:
    """Notes that the user asks to stop (Ctrl-C, SIGTERM); asked twice, or with nothing to finish, it stops at once."""
    stopping = Stopping()

    def ask(number: int, frame: object) -> None:
        if stopping.asked or not stopping.patient:
            raise KeyboardInterrupt
        stopping.asked = True
        console.print("finishing this document; once more to stop at once", style="yellow")

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def default_folder(chosen: Plan) -> Path:
    """Make a new folder in runs/, named after the time, the suite and the methods."""
    names = [spec.name for spec in chosen.methods if spec.name != chosen.against(spec.name)]
    methods = "-".join(names) or chosen.baseline
    if methods and len(methods) > LONG_NAME:
        methods = f"{len(names)}-methods"
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{files.safe_name(f'{chosen.suite}-{methods}')}"
    for number in itertools.count(1):  # another run may have begun in this second
        folder = Path("runs") / (f"{name}-{number}" if number > 1 else name)
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def _how_to_go_on(folder: Path) -> str:
    begun = (folder / "manifest.json").exists()
    return f"to go on: specbench run --resume {folder}{permissions.flags()}" if begun else "nothing was written"


def _difference(one: Plan, other: Plan) -> str:
    a, b = one.model_dump(mode="json"), other.model_dump(mode="json")
    key = next(key for key in a if a[key] != b[key])
    if key == "methods":
        a, b = ({m["name"]: {k: s["value"] for k, s in m["settings"].items()} for m in x[key]} for x in (a, b))
        name = next((name for name in {**a, **b} if a.get(name) != b.get(name)), "their order")
        return f"methods: {name} with {json.dumps(a.get(name))} there, with {json.dumps(b.get(name))} here"
    return f"{key}: {json.dumps(a[key])} there, {json.dumps(b[key])} here"


def _check_disk(folder: Path) -> None:
    found = disk(folder)
    if found.level == "error":
        remedy = "make room or let it be written" if (folder / "manifest.json").exists() else found.remedy
        raise UserError(f"{found.message}; {remedy}")
