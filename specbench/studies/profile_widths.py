"""`specbench profile --widths`: forwards by width, next to the time that reading the weights takes at least."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from specbench.analysis.widths import WIDTHS
from specbench.base import environment, files
from specbench.base.console import progress, warn
from specbench.base.escape import csv_text
from specbench.config import UserError
from specbench.engine.models import cost
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes import choose
from specbench.measure import prepare
from specbench.measure.machine import quick_lines
from specbench.plan import Plan
from specbench.studies import ceilings
from specbench.studies.profile_pair import WARM, measure_forwards

CONTEXT = 300  # tokens in the cache
TURNS = 40  # forwards of each width


@dataclass(frozen=True)
class Curves:
    """Forwards of a pair's models by width; `table` is as `measure_forwards` returns it, with these columns besides:
    `limit`, seconds, and what it is made of, `weight_bytes` and `bandwidth` (bytes/s), NaN for a model of unknown form.
    """

    pair: str
    context: int
    turns: int
    models: dict[str, Any]
    environment: dict[str, Any]
    table: pd.DataFrame


def carry_out(plan: Plan, runtimes: Sequence[str], turns: int = TURNS) -> Curves:
    """Time the forwards of a plan's models, on its runtime and the others that are named. Raises UserError."""
    for line in quick_lines(Path(), plan.device):
        warn(line)
    pair = prepare.load_models(plan)
    further = [choose.runtime(name, pair) for name in dict.fromkeys(runtimes) if name != pair.runtime.name]
    context = min(CONTEXT, pair.context - max(WIDTHS))
    if context < 1:
        raise UserError(f"{pair.name} has only {pair.context} positions; forwards cannot be measured")
    sizes = {role: cost.facts(model).get("weight_bytes") for role, model in pair.models.items()}
    before = bandwidths(pair, sizes)
    with progress("forwards", turns + WARM) as advance:
        table = measure_forwards(pair, WIDTHS, (context,), turns, advance, further)
    after = bandwidths(pair, sizes)
    speeds = {role: max(before[role], after[role]) for role in before}
    table["weight_bytes"] = table.model.map(sizes).astype(float)
    table["bandwidth"] = table.model.map(speeds).astype(float)
    table["limit"] = table.weight_bytes / table.bandwidth
    facts = environment.describe(pair.device, pair.draft_device)
    return Curves(pair.name, context, turns, pair.describe(), facts, table)


def bandwidths(pair: Pair, sizes: dict[str, int | None]) -> dict[str, float]:
    """Bytes a second at which an array as large as each model's weights is read or copied, over and over, right now."""
    return {
        role: ceilings.measure(pair.models[role].device, torch.float32, [size], [])["bandwidth"][0]["median"]
        for role, size in sizes.items()
        if size
    }


def write(curves: Curves, path: Path) -> None:
    """Write a CSV file with a row for each model, runtime and width; times are in seconds."""
    machine = curves.environment
    models = {role: (facts["model"], facts["dtype"]) for role, facts in curves.models.items()}
    table = curves.table.assign(
        pair=curves.pair,
        name=curves.table.model.map(lambda role: models[role][0]),
        dtype=curves.table.model.map(lambda role: models[role][1]),
        turns=curves.turns,
        cpu=machine["cpu"],
        device=machine["device"],
        threads=machine["threads"],
        torch=machine["versions"]["torch"],
        load=machine["load"],
        git=machine["git"],
    )
    files.write_text(path, csv_text(table))
