"""What the commands `run`, `show` and `compare` do: from a request to a folder, and from folders to a table."""

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from specbench import config
from specbench import run as engine
from specbench.config import MethodSpec, Plan, UserError
from specbench.console import RunProgress, console
from specbench.environment import MUST_AGREE
from specbench.report.tables import render

FREE_SPACE = 100 * 2**20  # bytes that a run folder's disk must have left


def plan(
    methods: Sequence[str],
    suite: str,
    pair: str,
    assignments: Sequence[str],
    baseline: str | None,
    limit: int | None,
    data_dir: str | None,
    **options: Any,
) -> Plan:
    """Resolve names into a plan; the baseline joins the methods, and `--set` changes their settings."""
    pair_spec, suite_spec = config.load_pair(pair), config.load_suite(suite)
    specs: dict[str, MethodSpec] = {}
    for name in [*([baseline] if baseline else []), *methods]:
        spec = config.load_method(name)
        if specs.get(spec.name, spec) != spec:
            raise UserError(f"two different methods are called {spec.name}; rename the file of one")
        specs[spec.name] = spec
    changes = config.parse_assignments(assignments)
    for name, settings in changes.items():
        if name not in specs:
            raise UserError(f"--set {name}.…: this run has no method {name!r}; it has {', '.join(specs)}")
        specs[name] = config.override(specs[name], settings)
    tasks = config.resolve_tasks(suite_spec, pair_spec, data_dir)
    if [line.task for line in tasks] != [line.task for line in suite_spec.tasks]:
        console.print(f"[dim]pair pocket: the bundled tasks stand in: {', '.join(line.task for line in tasks)}[/]")
    return config.validated(
        Plan,
        {
            "pair": pair_spec,
            "methods": tuple(specs.values()),
            "baseline": baseline and config.load_method(baseline).name,
            "suite": suite_spec.name,
            "tasks": tasks,
            "limit": limit or suite_spec.limit,
            "data_dir": data_dir,
            **options,
        },
        "run",
    )


def run(given: Plan | None, out: Path | None, resume: Path | None) -> int:
    """Carry out a plan in a new folder, or go on with the one in `resume`; returns the exit code."""
    if resume:
        folder, chosen = resume, stored_plan(resume)
        if given and given != chosen:
            raise UserError(
                f"{resume} belongs to other settings ({_difference(chosen, given)}); give it --resume alone"
            )
    else:
        assert given is not None
        folder, chosen = out or default_folder(given), given
        if folder.exists():
            raise UserError(f"{folder} exists; go on with it by --resume {folder}, or choose another --out")
    _check_space(folder)
    for spec in chosen.methods:
        config.validated(engine.module(spec.method).Settings, spec.values, spec.name)
    with stop_requests() as stopping, RunProgress() as progress:

        def report(state: engine.Progress) -> bool:
            progress.update(state.done, state.total, state.request.task, state.rounds)
            return not stopping

        try:
            finished = engine.execute(chosen, folder, report)
        except OSError as error:
            raise UserError(f"{error}; {_how_to_go_on(folder)}") from None
        except KeyboardInterrupt:
            finished = False
    if not finished:
        console.print(f"stopped; {_how_to_go_on(folder)}", soft_wrap=True)
        return 130
    summary = show(folder, "table")
    for line in (
        f"\nrecords: {folder}/ (samples, rounds, scores and summary.parquet, manifest.json)",
        f"next:    specbench show {folder} --format md",
        f"         specbench compare {folder} OTHER_RUN",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    return 3 if summary.errors.any() else 0


def show(folder: Path, format: str) -> pd.DataFrame:
    """Print the table of one run; returns its summary."""
    summary = engine.read_summary(folder)
    _print(summary, format)
    if format == "table":
        for line in caption(folder, summary):
            console.print(line, style="dim", highlight=False)
    return summary


def compare(folders: Sequence[Path], format: str) -> None:
    """Print the rows of several runs in one table; raises UserError if they cannot be compared."""
    summaries = [engine.read_summary(folder) for folder in folders]
    first = _conditions(folders[0])
    for folder in folders[1:]:
        other = _conditions(folder)
        if differing := [key for key in first if first[key] != other[key]]:
            details = "; ".join(f"{key}: {first[key]} / {other[key]}" for key in differing)
            raise UserError(f"{folders[0]} and {folder} cannot be compared, they differ in {details}")
    labelled = [s.assign(run=f.name) if len(folders) > 1 else s for f, s in zip(folders, summaries, strict=True)]
    _print(pd.concat(labelled, ignore_index=True), format)


def caption(folder: Path, summary: pd.DataFrame) -> Iterator[str]:
    """What a reader must know beside the figures."""
    manifest = _manifest(folder)
    plan, machine = manifest["plan"], manifest["environment"]
    where = machine["device"] if machine["device"] != "cpu" else f"{machine['cores']} cores of {machine['cpu']}"
    sampling = "greedy" if plan["temperature"] == 0 else f"T={plan['temperature']}"
    dtype = manifest["models"]["target"]["dtype"]
    documents = int(summary.documents.max()) // plan["repeats"] if len(summary) else 0
    yield f"{plan['pair']['name']}, {sampling}, {dtype}, {where}, up to {documents} documents a task"
    if plan["baseline"]:
        yield "score (± standard error), accept and α in %; = marks a speedup whose 95 % interval holds 1"
        yield f"speedup: decode time per token of {plan['baseline']} over the method's, on the same documents"
    if summary.errors.any():
        yield f"failed samples: {int(summary.errors.sum())}; their tracebacks are in samples.parquet"
    for row in summary[summary.drift.abs() > engine.metrics.DRIFT_BOUND].drop_duplicates("task").itertuples():
        yield f"{row.task}: the baseline's time per token drifted by {row.drift:+.0%} within the run; repeat it"
    if machine["load"] > machine["cores"]:
        yield f"the machine was busy at the start (load {machine['load']:.1f} on {machine['cores']} cores)"


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list that fills when the user asks to stop (Ctrl-C, SIGTERM); asked twice, the program stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        console.print("finishing this document; once more to stop at once", style="yellow")

    kept = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def stored_plan(folder: Path) -> Plan:
    return Plan.model_validate(_manifest(folder)["plan"])


def default_folder(chosen: Plan) -> Path:
    methods = "-".join(spec.name for spec in chosen.methods if spec.name != chosen.baseline) or chosen.baseline
    return Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{chosen.suite}-{methods}"


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder (it has no manifest.json)")
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise UserError(f"{path} is damaged (not JSON); this run cannot be used") from None


def _conditions(folder: Path) -> dict[str, Any]:
    """What must agree between two runs before their figures may stand side by side."""
    manifest = _manifest(folder)
    conditions = {key: manifest["environment"][key] for key in MUST_AGREE}
    conditions["dtype"] = {role: model["dtype"] for role, model in manifest["models"].items()}
    return conditions | {"prompts": manifest["prompts_hash"]}


def _how_to_go_on(folder: Path) -> str:
    begun = (folder / "manifest.json").exists()
    return f"to go on: specbench run --resume {folder}" if begun else "nothing was written"


def _difference(one: Plan, other: Plan) -> str:
    a, b = one.model_dump(mode="json"), other.model_dump(mode="json")
    key = next(key for key in a if a[key] != b[key])
    if key == "methods":
        a, b = ({m["name"]: {k: s["value"] for k, s in m["settings"].items()} for m in x[key]} for x in (a, b))
        name = next((name for name in {**a, **b} if a.get(name) != b.get(name)), "their order")
        return f"methods: {name} with {json.dumps(a.get(name))} there, with {json.dumps(b.get(name))} here"
    return f"{key}: {json.dumps(a[key])} there, {json.dumps(b[key])} here"


def _check_space(folder: Path) -> None:
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < FREE_SPACE:
        raise UserError(
            f"{place} has {free // 2**20} MB left and a run wants {FREE_SPACE // 2**20}; choose another --out"
        )


def _print(summary: pd.DataFrame, format: str) -> None:
    sys.stdout.write(render(summary, format, console.width).rstrip() + "\n")
