"""`specbench simulate --batch 1,4,16`: what draft lengths would give in batches, next to what a server gave."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from specbench.analysis.drafts import drafting_method
from specbench.analysis.load import by_rows
from specbench.analysis.simulate import Options, Simulation, simulate
from specbench.analysis.simulated_rows import ALL
from specbench.config import MethodSpec
from specbench.results.load_folder import served_steps
from specbench.results.stored import StoredRun

BASE = "vanilla"
FEWEST = 20  # steps of a server with as many texts that are enough to measure its speed


@dataclass(frozen=True)
class SimulatedBatches:
    """Simulations of several batch sizes; `table` has those of `Simulation` with `batch`.

    And, if a server was measured with the same draft length and as many texts: `served_tokens_per_s`, `served_speedup`
    over vanilla, and `error`, the simulated speedup over that less 1.
    """

    first: Simulation
    load: str  # the server's folder; "": none
    table: pd.DataFrame


def simulate_batches(
    run: StoredRun,
    method: str | None,
    given: str | None,
    gammas: Sequence[int],
    sizes: Sequence[int],
    load: Path | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> SimulatedBatches:
    """Replay a method of a run in batches of several sizes. Raises UserError as `simulate` does, and for damaged files.

    All times are those of `given`, which must be a profile or say what a batch costs. `load`: the folder of `specbench
    load`. `advance` is called after each size.
    """
    simulations = []
    for size in sizes:
        options = Options(batch=size, by_context=True)
        simulations.append(simulate(run, method, given, gammas, options=options))
        advance(1)
    frames = [figures.table.assign(batch=figures.batch) for figures in simulations]
    table = pd.concat(frames, ignore_index=True)
    if load:
        table = with_served(table, drafting_method(run, method), load)
    return SimulatedBatches(replace(simulations[0], table=table), str(load or ""), table)


def with_served(table: pd.DataFrame, spec: MethodSpec, folder: Path) -> pd.DataFrame:
    """The table with what a server gave in steps of as many texts, at the same settings; the times of all tasks."""
    plan, steps = served_steps(folder)
    known = by_rows(steps, BASE)
    known = known[known.steps >= FEWEST].set_index(["method", "rows"])
    rows = []
    for row in table.to_dict("records"):
        values = {**spec.values, "gamma": int(row["setting"].removeprefix("gamma="))}
        name = next(
            (method.name for method in plan.methods if method.method == spec.method and method.values == values), ""
        )
        key = (name, row["batch"])
        there = row["task"] == ALL and key in known.index
        speed, speedup = (known.loc[key, ["tokens_per_s", "speedup"]].tolist()) if there else (math.nan, math.nan)
        rows.append(
            {"served_tokens_per_s": speed, "served_speedup": speedup, "error": float(row["speedup"]) / speedup - 1}
        )
    return table.join(pd.DataFrame(rows))
