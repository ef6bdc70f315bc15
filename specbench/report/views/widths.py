"""Forwards by width next to the time that reading the weights takes."""

import math
from collections.abc import Iterator

import pandas as pd

from specbench.analysis.widths import FLAT, uneven
from specbench.report.finding import Finding, Sheet, number
from specbench.studies.profile_widths import Curves


def view(curves: Curves) -> Finding:
    widths = list(dict.fromkeys(curves.table.width))
    rows: list[list[str]] = []
    for (model, runtime), some in curves.table.groupby(["model", "runtime"], sort=False):
        times = some.set_index("width").fast
        limit = float(some.limit.iloc[0])
        rows.append([f"{model}, {runtime}", _ms(limit), *(_ms(times[width]) for width in widths)])
        rows.append(["  over the limit", "", *(number(times[width] / limit, ".2f") for width in widths)])
    title = f"a forward after {curves.context} tokens, ms by its tokens; limit: reading the weights once"
    sheets = [Sheet(["model", "limit", *map(str, widths)], rows, title)]
    return Finding("widths", sheets=sheets, sentences=[*sentences(curves.table)], notes=[*notes(curves)])


def sentences(table: pd.DataFrame) -> Iterator[str]:
    """What of each curve is uneven, or that it is flat."""
    for (model, runtime), some in table.groupby(["model", "runtime"], sort=False):
        times = some.set_index("width").fast.to_dict()
        few = [times[width] for width in times if width <= 8]
        rise = max(few) / min(few)
        flat = f"flat to eight tokens, within {rise:.2f} ×" if rise <= FLAT else f"within {rise:.2f} × to eight tokens"
        yield f"{model}, {runtime}: {uneven(str(model), times) or flat}."


def notes(curves: Curves) -> Iterator[str]:
    for model, some in curves.table.groupby("model", sort=False):
        size, speed = float(some.weight_bytes.iloc[0]), float(some.bandwidth.iloc[0])
        if math.isnan(speed):
            yield f"{model}: how much its forwards read is not known"
            continue
        yield (
            f"{model}: {size / 1e6:.0f} MB of weights at {speed / 1e9:.1f} GB/s, which an array of that size was read "
            "at just before or after, the faster of both (medians of 7 repeats)"
        )
    machine, dtypes = curves.environment, {str(facts["dtype"]) for facts in curves.models.values()}
    where = f"{machine['threads']} threads of {machine['cpu']}" if machine["device"] == "cpu" else machine["device"]
    yield (
        f"{curves.pair}, {' and '.join(sorted(dtypes))}, {where}, load {machine['load']:.1f}; the fifth percentile of "
        f"{curves.turns} turns, in random order"
    )


def _ms(seconds: float) -> str:
    return number(1000 * seconds, ".3g" if seconds < 0.1 else ".0f")
