"""`specbench profile`: what the forwards of a pair cost, and whether counts of them tell the time of decoding.

The analysis of SpecDec++ (arXiv 2405.19715, §3.2, §5.2, D.2): T = t_draft · N_draft + t_target · N_target, fitted to
documents, and the throughput that follows from discard and verification rates. Prefill is left out of times and counts.
"""

import csv
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench import commands, config, files, forward_times, metrics
from specbench import run as engine
from specbench.config import MethodSpec, PairSpec, UserError
from specbench.decoding.session import Unwatched
from specbench.escape import cell
from specbench.forward_times import Times
from specbench.measure import Stopwatch
from specbench.models import Pair
from specbench.plan import Plan
from specbench.runtimes.types import Runtime
from specbench.simulate import ALL, recorded_times
from specbench.stats import Floats
from specbench.stored import StoredRun

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (32, 128, 512, 2048)
FORWARDS = 40  # of each width and context
WARM = 3  # more of them, that are not counted
LABELS = {"sps": "SpecDec", "specdecpp": "SpecDec++"}  # as in the paper's Table 2
ALONE = "stand-alone"
AVERAGE = "average"
COLUMNS = ["paper", "table", "pair", "task", "temperature", "method", "setting", "metric", "value", "unit"]


@dataclass(frozen=True)
class Profile:
    pair: str
    sampling: str
    temperature: float
    environment: dict[str, Any]
    models: dict[str, Any]
    forwards: pd.DataFrame  # model, runtime, context, width, and seconds: median, low, high quartile; or empty
    fits: pd.DataFrame  # method, task, t_draft, t_target (seconds) and their R²: r2, or alone r2_draft and r2_target
    throughput: pd.DataFrame  # method, task, documents, and relative errors of Eq. 5.1: median, p90
    times: Times | None  # for `specbench simulate`
    ceilings: dict[str, Any] | None = None  # of the machine, as `ceilings.measure` tells them
    limits: pd.DataFrame = field(default_factory=pd.DataFrame)  # of `roofline.table`; empty: not known


def plans(chosen: Plan, gammas: Sequence[int], fits: Callable[[MethodSpec], bool]) -> tuple[Plan, Plan | None]:
    """What is run: the methods of a plan that `fits` lets through, and the draft alone (None: the pair has none).

    Methods of a fixed draft length are run at every γ: at one alone, N_draft is γ · N_target and nothing can be fitted.
    """
    methods: list[MethodSpec] = []
    for spec in filter(fits, chosen.methods):
        fixed = "gamma" in spec.values and spec.values.get("length", "fixed") == "fixed"
        methods += config.grid(spec, {"gamma": gammas}) if fixed else [spec]
    whole = chosen.model_copy(update={"methods": tuple(methods)})
    if chosen.pair.draft is None:
        return whole, None
    alone = PairSpec(name=f"{chosen.pair.name}-draft", description="the draft alone", target=chosen.pair.draft)
    vanilla = tuple(spec for spec in methods if spec.name == chosen.baseline)
    return whole, chosen.model_copy(update={"pair": alone, "methods": vanilla})


def carry_out(pair: Pair, whole: Plan, alone: Plan | None, folder: Path) -> tuple[StoredRun, StoredRun | None] | None:
    """Run the plans into two folders in `folder`, or go on there; None if the user stopped it.

    Raises UserError where the draft cannot decode alone.
    """
    jobs = [("pair", whole, pair)]
    if alone:
        pair.need_one_tokenizer("its own times are taken by letting it decode the target's prompts")
        draft = Pair(alone.pair.name, {"target": pair.models["draft"]}, pair.tokenizer, {"target": alone.pair.target})
        jobs.append(("draft", alone, draft))
    runs = []
    for name, plan, models in jobs:
        run = StoredRun(folder / name)
        if (run.folder / "manifest.json").exists() and run.plan != plan:
            raise UserError(
                f"{run.folder} holds a profile with other settings; remove {folder}, or choose another --out"
            )
        if not commands.carry_out(plan, run.folder, models):
            return None
        runs.append(StoredRun(run.folder))
    return runs[0], runs[1] if alone else None


def available(pair: Pair, named: bool, say: Callable[[str], None]) -> Callable[[MethodSpec], bool]:
    """Whether a method can be had; what was not `named` is left out where it cannot (for want of a head, perhaps)."""

    def fits(spec: MethodSpec) -> bool:
        if named:
            return True
        try:
            engine.build(spec, pair, Unwatched())
        except UserError as error:
            say(f"left out: {spec.name}: {error}")
            return False
        return True

    return fits


def measure_forwards(
    pair: Pair,
    widths: Sequence[int] = WIDTHS,
    contexts: Sequence[int] = CONTEXTS,
    repeats: int = FORWARDS,
    advance: Callable[[int], None] = lambda count: None,
    further: Sequence[Runtime] = (),
) -> pd.DataFrame:
    """Seconds of a forward by model, runtime, context and width: median and quartiles of `repeats`, warm.

    The runtimes are the pair's own and `further` ones. Every repeat goes through all of them in an order drawn anew, so
    that a drifting machine favours none, and through all forwards of one, also in any order, before the next: each has
    weights of its own, and a processor's cache does not hold them all. `advance` is told of each repeat. Raises
    UserError if no context fits.
    """
    fitting = [context for context in contexts if context + max(widths) <= pair.context]
    if not fitting:
        raise UserError(f"{pair.name} has only {pair.context} positions; forwards cannot be measured")
    pairs = {one.name: replace(pair, runtime=one) for one in (pair.runtime, *further)}
    watches = {name: Stopwatch(pair.device) for name in pairs}
    rng = random.Random(0)
    sessions = {}
    for name, one in pairs.items():
        watches[name].start()
        for role in pair.models:
            for context in fitting:
                sessions[name, role, context] = one.session(role, watches[name])
                sessions[name, role, context].restart(rng.choices(range(pair.vocabulary), k=context))
    cells = {name: [(key, width) for key in sessions for width in widths if key[0] == name] for name in pairs}
    seconds: dict[tuple[str, str, int, int], list[float]] = {}
    for repeat in range(-WARM, repeats):
        for watch in watches.values():
            watch.start()
        for name in rng.sample(list(pairs), len(pairs)):
            for key, width in rng.sample(cells[name], len(cells[name])):
                sessions[key].forward(rng.choices(range(pair.vocabulary), k=width))
                sessions[key].truncate(key[2])
        for name, watch in watches.items():
            watch.lap()
            for timed in watch.laps()[0].forwards if repeat >= 0 else []:
                seconds.setdefault((name, timed.model, timed.context, timed.width), []).append(timed.seconds)
            if repeat < 0:
                pairs[name].runtime.settle()
        advance(1)
    rows = []
    for role in pair.models:
        for name in pairs:
            for context in fitting:
                for width in widths:
                    low, median, high = np.quantile(seconds[name, role, context, width], [0.25, 0.5, 0.75])
                    rows.append((role, name, context, width, median, low, high))
    return pd.DataFrame(rows, columns=["model", "runtime", "context", "width", "median", "low", "high"])


def describe(run: StoredRun, alone: StoredRun | None, forwards: pd.DataFrame | None = None) -> Profile:
    """The profile of a run with drafts, and of its draft alone. Raises UserError if the run has no times."""
    implementations = {spec.name: spec.method for spec in run.plan.methods}
    counts = _documents(run)
    several = set(counts.method[counts.G != counts.D])  # not one draft forward for each drafted token: another model
    drafting = counts[(counts.D > 0) & ~counts.method.isin(several)]
    if drafting.empty:
        raise UserError(f"{run.folder} has no method with timed draft forwards; `specbench run --method sps` makes one")
    labels = {name: LABELS.get(method, method) for name, method in implementations.items()}
    drafting = drafting.assign(label=drafting.method.map(labels))
    plain = counts[counts.method.map(implementations) == "vanilla"]
    fits = pd.DataFrame([*_fit_alone(plain, _documents(alone) if alone else None), *_fit_together(drafting)])
    first = next((s.name for s in run.plan.methods if s.name in set(drafting.method) and s.method == "sps"), None)
    method = first or drafting.method.iloc[0]
    like = [name for name, implementation in implementations.items() if implementation == implementations[method]]
    models = run.manifest["models"] or {}
    return Profile(
        pair=run.plan.pair.name,
        sampling=run.sampling,
        temperature=run.plan.temperature,
        environment=run.manifest["environment"],
        models=models,
        forwards=forwards if forwards is not None else pd.DataFrame(),
        fits=_with_averages(fits),
        throughput=pd.DataFrame(_throughput(drafting, fits)),
        times=recorded_times(run, like),
    )


def _documents(run: StoredRun) -> pd.DataFrame:
    """Counts of every document and its decode seconds: the median over repeats that took the same forwards."""
    columns = [*metrics.SAMPLE, "warmup", "finish", "prefill_seconds", "decode_seconds", "peak_memory"]
    samples = run.samples([*columns, "new_tokens", "wall_seconds"])
    known = metrics.per_document(samples, run.rounds()).reset_index()
    known = known[(known.C > 0) & known.decode.notna()]
    same = ["task", "method", "doc_id", "D", "A", "C", "F", "G"]
    return known.groupby(same, sort=False).decode.median().reset_index()


def regression(forwards: Floats, seconds: Floats) -> tuple[list[float], float, float]:
    """Seconds per forward of each kind [k], by least squares without an intercept, and R² about the mean and about 0.

    `forwards` [n, k] are counts of n documents whose decoding took `seconds` [n]. NaN where they do not settle it.
    """
    kinds = forwards.shape[1]
    scale = np.abs(forwards).max(0)
    if len(forwards) <= kinds or not scale.all() or np.linalg.cond(forwards / scale) > 1e6:
        return [math.nan] * kinds, math.nan, math.nan
    found, *_ = np.linalg.lstsq(forwards, seconds, rcond=None)
    spread = ((seconds - seconds.mean()) ** 2).sum()
    left = ((seconds - forwards @ found) ** 2).sum()
    about_zero = float(1 - left / (seconds**2).sum())
    return found.tolist(), float(1 - left / spread) if spread else math.nan, about_zero


def _fit_alone(plain: pd.DataFrame, draft: pd.DataFrame | None) -> Iterator[dict[str, Any]]:
    for task, rows in _by_task(plain):
        (t_target,), r2_target, zero = regression(rows[["F"]].to_numpy(), rows.decode.to_numpy())
        row = {"method": ALONE, "task": task, "t_target": t_target, "r2_target": r2_target, "documents": len(rows)}
        row["r2_about_zero"] = zero
        if draft is not None:
            own = draft if task == ALL else draft[draft.task == task]
            (t_draft,), r2_draft, other = regression(own[["F"]].to_numpy(), own.decode.to_numpy())
            row |= {"t_draft": t_draft, "r2_draft": r2_draft, "r2_about_zero": min(zero, other)}
        yield row


def _fit_together(drafting: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for label, mine in drafting.groupby("label", sort=False):
        for task, rows in _by_task(mine):
            (t_draft, t_target), r2, zero = regression(rows[["G", "F"]].to_numpy(), rows.decode.to_numpy())
            fit = {"t_draft": t_draft, "t_target": t_target, "r2": r2, "r2_about_zero": zero}
            yield {"method": label, "task": task, **fit, "documents": len(rows)}


def _by_task(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each task and, if there are several, all of them."""
    tasks = list(rows.groupby("task", sort=False))
    yield from ((str(task), part) for task, part in tasks)
    if len(tasks) > 1:
        yield ALL, rows


def _with_averages(fits: pd.DataFrame) -> pd.DataFrame:
    """The fits and, behind those of each method, the means of times over the tasks with their population deviations."""
    parts = []
    for method, rows in fits.groupby("method", sort=False):
        parts.append(rows)
        rows = rows[rows.task != ALL]  # which has all documents, the average each task once
        if len(rows) > 1:
            average: dict[str, Any] = {"method": method, "task": AVERAGE}
            for name in {"t_draft", "t_target"} & set(rows.columns):
                average |= {name: rows[name].mean(skipna=False), f"{name}_sd": rows[name].std(ddof=0, skipna=False)}
            parts.append(pd.DataFrame([average]))
    wanted = ["method", "task", "t_draft", "t_target", "r2", "r2_draft", "r2_target", "t_draft_sd", "t_target_sd"]
    return pd.concat(parts, ignore_index=True).reindex(columns=[*wanted, "r2_about_zero", "documents"])


def _throughput(drafting: pd.DataFrame, fits: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """How far off Eq. 5.1 is with the fitted times: t_draft (1 + discard) + (t_target - t_draft) verification."""
    merged = drafting.merge(fits.drop(columns="documents"), left_on=["label", "task"], right_on=["method", "task"])
    discard, verification = (merged.D - merged.A) / merged.C, merged.F / merged.C
    per_token = merged.t_draft * (1 + discard) + (merged.t_target - merged.t_draft) * verification
    merged = merged.assign(error=(merged.decode / merged.C / per_token - 1).abs())
    for (label, task), rows in merged.groupby(["label", "task"], sort=False):
        found = rows.error.dropna()
        median, p90 = found.quantile([0.5, 0.9]) if len(found) else (math.nan, math.nan)
        yield {"method": label, "task": task, "documents": len(rows), "median": median, "p90": p90}


def write(profile: Profile, path: Path) -> Path:
    """Write the profile as JSON, and the fits as tidy CSV beside it, whose path is returned."""
    facts = {
        "pair": profile.pair,
        "sampling": profile.sampling,
        "environment": profile.environment,
        "models": profile.models,
        "ceilings": profile.ceilings,
        "forwards": _rows(profile.forwards),
        "limits": _rows(profile.limits),
        "fits": _rows(profile.fits),
        "throughput": _rows(profile.throughput),
        "times": forward_times.as_json(profile.times) if profile.times else None,
    }
    files.write_text(path, json.dumps(facts, indent=1) + "\n")
    table = path.with_suffix(".csv")
    with files.whole(table) as new, open(new, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(cell, row) for row in tidy(profile))
    return table


def tidy(profile: Profile) -> Iterator[list[Any]]:
    """Rows like those of the paper's Table 2, in seconds; what could not be fitted is left out."""
    names = {"t_draft": "t_draft", "t_draft_sd": "t_draft ±", "t_target": "t_target", "t_target_sd": "t_target ±"}
    names |= {"r2": "R2", "r2_draft": "R2 t_draft", "r2_target": "R2 t_target"}
    for row in profile.fits[profile.fits.task != ALL].to_dict("records"):
        for key, name in names.items():
            if not math.isnan(row[key]):
                unit = "ratio" if name.startswith("R2") else "s"
                start = ["specdecpp", 2, profile.pair, row["task"], f"{profile.temperature:g}", row["method"], ""]
                yield [*start, name, f"{row[key]:.6g}", unit]


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]
