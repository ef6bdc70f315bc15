"""`specbench profile`: run what a profile of a pair needs, time its forwards, and write the figures.

The fits to the runs are in `analysis.time_fits`.
"""

import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specbench import config
from specbench.analysis import compare, time_fits
from specbench.analysis.drafts import recorded_times
from specbench.analysis.forward_times import Times
from specbench.analysis.simulated_rows import ALL
from specbench.base import files
from specbench.base.escape import csv_text
from specbench.config import MethodSpec, PairSpec, UserError
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import Unwatched
from specbench.measure import command, prepare
from specbench.plan import Plan
from specbench.results.records import rows_of
from specbench.results.stored import StoredRun

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (32, 128, 512, 2048)
FORWARDS = 40  # timed forwards of each width and context
WARM = 3  # further forwards that come first and are not counted
LABELS = {"sps": "SpecDec", "specdecpp": "SpecDec++"}  # as in the paper's Table 2
COLUMNS = ["paper", "table", "pair", "task", "temperature", "method", "setting", "metric", "value", "unit"]


@dataclass(frozen=True)
class Profile:
    pair: str
    sampling: str
    temperature: float
    environment: dict[str, Any]
    models: dict[str, Any]
    forwards: pd.DataFrame  # model, runtime, context, width, and seconds of `measure_forwards`; may be empty
    fits: pd.DataFrame  # method, task, t_draft, t_target (seconds) and R²: r2, or r2_draft and r2_target if alone
    throughput: pd.DataFrame  # method, task, documents, and the relative error of Eq. 5.1: median, p90
    times: Times | None  # for `specbench simulate`
    ceilings: dict[str, Any] | None = None  # of the machine, as `ceilings.measure` returns them
    limits: pd.DataFrame = field(default_factory=pd.DataFrame)  # from `roofline.table`; empty if not known
    batches: pd.DataFrame = field(default_factory=pd.DataFrame)  # of `measure_batches`; may be empty


def plans(chosen: Plan, gammas: Sequence[int], fits: Callable[[MethodSpec], bool]) -> tuple[Plan, Plan | None]:
    """The plans to run: the methods that `fits` accepts, and the draft alone (None if the pair has no draft).

    Methods with a fixed draft length are run at every γ. With a single γ, N_draft is γ · N_target and nothing can be
    fitted.
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
    """Run or resume the plans in two folders within `folder`; None if the user stopped it.

    Raises UserError if the draft cannot decode alone.
    """
    jobs = [("pair", whole, pair)]
    if alone:
        pair.need_one_tokenizer("its own times are taken by letting it decode the target's prompts")
        hashes = {"target": pair.hashes.get("draft", {})}
        specs = {"target": alone.pair.target}
        draft = Pair(alone.pair.name, {"target": pair.models["draft"]}, pair.tokenizer, specs, hashes=hashes)
        jobs.append(("draft", alone, draft))
    runs = []
    for name, plan, models in jobs:
        run = StoredRun(folder / name)
        if (run.folder / "manifest.json").exists() and run.plan != plan:
            raise UserError(
                f"{run.folder} holds a profile with other settings; remove {folder}, or choose another --out"
            )
        if not command.carry_out(plan, run.folder, models):
            return None
        compare.write_summary(run.folder)
        runs.append(StoredRun(run.folder))
    return runs[0], runs[1] if alone else None


def available(pair: Pair, named: bool, say: Callable[[str], None]) -> Callable[[MethodSpec], bool]:
    """A test that is True if a method can be built, or if the user `named` the methods.

    A method that cannot be built, for lack of a trained head perhaps, is announced with `say`.
    """

    def fits(spec: MethodSpec) -> bool:
        if named:
            return True
        try:
            prepare.build(spec, pair, Unwatched())
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
    """Seconds of a warm forward by model, runtime, context and width: median, quartiles and `fast`, the fifth
    percentile, of `repeats`.

    The runtimes are the pair's own and the `further` ones. Every repeat goes through the runtimes in a random order, so
    that a drifting machine favours none. It finishes all forwards of one runtime, in random order, before the next,
    because each runtime has its own copy of the weights and a processor's cache does not hold them all. `advance` is
    called after each repeat. Raises UserError if no context fits.
    """
    fitting = [context for context in contexts if context + max(widths) <= pair.context]
    if not fitting:
        raise UserError(f"{pair.name} has only {pair.context} positions; forwards cannot be measured")
    pairs = {runtime.name: replace(pair, runtime=runtime) for runtime in (pair.runtime, *further)}
    watches = {name: Stopwatch(pair.device) for name in pairs}
    rng = random.Random(0)
    sessions = {}
    for name, pair_there in pairs.items():
        watches[name].start()
        for role in pair.models:
            for context in fitting:
                sessions[name, role, context] = pair_there.session(role, watches[name])
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
                seconds.setdefault((timed.model, name, timed.context, timed.width), []).append(timed.seconds)
            if repeat < 0:
                pairs[name].runtime.settle()
        advance(1)
    keys = itertools.product(pair.models, pairs, fitting, widths)
    rows = [(*key, *np.quantile(seconds[key], [0.5, 0.25, 0.75, 0.05])) for key in keys]
    return pd.DataFrame(rows, columns=["model", "runtime", "context", "width", "median", "low", "high", "fast"])


def describe(run: StoredRun, alone: StoredRun | None, forwards: pd.DataFrame | None = None) -> Profile:
    """The profile of a run with drafts, and of its draft alone. Raises UserError if the run has no times."""
    implementations = {spec.name: spec.method for spec in run.plan.methods}
    counts = time_fits.document_counts(run)
    several = set(counts.method[counts.G != counts.D])  # not one draft forward per drafted token: another model
    drafting = counts[(counts.D > 0) & ~counts.method.isin(several)]
    if drafting.empty:
        raise UserError(f"{run.folder} has no method with timed draft forwards; `specbench run --method sps` makes one")
    labels = {name: LABELS.get(method, method) for name, method in implementations.items()}
    drafting = drafting.assign(label=drafting.method.map(labels))
    plain = counts[counts.method.map(implementations) == "vanilla"]
    fits = pd.DataFrame(
        [
            *time_fits.fit_alone(plain, time_fits.document_counts(alone) if alone else None),
            *time_fits.fit_together(drafting),
        ]
    )
    first = next((s.name for s in run.plan.methods if s.name in set(drafting.method) and s.method == "sps"), None)
    method = first or drafting.method.iloc[0]
    alike = [name for name, implementation in implementations.items() if implementation == implementations[method]]
    models = run.manifest["models"] or {}
    return Profile(
        pair=run.plan.pair.name,
        sampling=run.sampling,
        temperature=run.plan.temperature,
        environment=run.manifest["environment"],
        models=models,
        forwards=forwards if forwards is not None else pd.DataFrame(),
        fits=time_fits.with_averages(fits),
        throughput=pd.DataFrame(time_fits.throughput_errors(drafting, fits)),
        times=recorded_times(run, alike),
    )


def write(profile: Profile, path: Path) -> Path:
    """Write the profile as JSON and the fits as tidy CSV next to it; return the path of the CSV."""
    facts = {
        **{name: getattr(profile, name) for name in ("pair", "sampling", "environment", "models", "ceilings")},
        **{name: rows_of(getattr(profile, name)) for name in ("forwards", "batches", "limits", "fits", "throughput")},
        "times": vars(profile.times) if profile.times else None,
    }
    files.write_text(path, json.dumps(facts, indent=1) + "\n")
    table = path.with_suffix(".csv")
    write_table(table, tidy(profile))
    return table


def write_table(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows of COLUMNS as CSV."""
    files.write_text(path, csv_text(pd.DataFrame(list(rows), columns=COLUMNS)))


def tidy(profile: Profile) -> Iterator[list[Any]]:
    """Rows in the form of the paper's Table 2, in seconds, without fits that failed."""
    names = {"t_draft": "t_draft", "t_draft_sd": "t_draft ±", "t_target": "t_target", "t_target_sd": "t_target ±"}
    names |= {"r2": "R2", "r2_draft": "R2 t_draft", "r2_target": "R2 t_target"}
    for row in profile.fits[profile.fits.task != ALL].to_dict("records"):
        for key, name in names.items():
            if not math.isnan(row[key]):
                unit = "ratio" if name.startswith("R2") else "s"
                start = ["specdecpp", 2, profile.pair, row["task"], f"{profile.temperature:g}", row["method"], ""]
                yield [*start, name, f"{row[key]:.6g}", unit]
