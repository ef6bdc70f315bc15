"""Our figures as texts, in the unit and with the digits of a printed one."""

import math
from dataclasses import dataclass

import pandas as pd

from specbench.papers.published import Figure

SCALES = {"%": 100.0, "GB": 1e-9, "MB": 1e-6, "points": 10.0}  # from our columns to a printed unit
WITH_INTERVAL = ("speedup_decode", "speedup_e2e")
SIGNIFICANT = 3  # digits of a time; times of small models are far below the printed ones
MOST_DIGITS = 6  # that a bound next to 1 may take


@dataclass(frozen=True)
class Cell:
    """Our counterpart of a figure, or why there is none."""

    text: str
    runs: tuple[str, ...] = ()
    reason: str = ""
    bounds: tuple[float, float] | None = None  # of a figure from a file, if it has an interval


def text(row: pd.Series, metric: str, figure: Figure) -> str:
    scale = SCALES.get(figure.unit, 1.0)
    if metric in ("accuracy", "tau") or (metric in WITH_INTERVAL and row.method != row.baseline):
        return interval(figure, *(row[name] * scale for name in (metric, f"{metric}_low", f"{metric}_high")))
    return number(row[metric] * scale, figure)


def gain(ratio: float, direct: pd.Series | None, metric: str, figure: Figure) -> str:
    """How much larger a metric is, from the ratio of two cells; with an interval if the two methods ran together.

    `direct` is the row of one method against the other. Over several tasks it has the average of their ratios, which is
    what an interval is known for.
    """
    names = (metric, f"{metric}_low", f"{metric}_high")
    ratios = [math.nan] * 3 if direct is None else [float(direct.get(name, math.nan)) for name in names]
    ratios = [ratio, math.nan, math.nan] if math.isnan(ratios[0]) else ratios
    scale = SCALES.get(figure.unit, 1.0)
    return interval(figure, *((ratio - 1) * scale for ratio in ratios))


def interval(figure: Figure, value: float, low: float, high: float) -> str:
    if math.isnan(low):
        return number(value, figure)
    digits = len(figure.value.partition(".")[2])
    if figure.unit != "x":
        return f"{number(value, figure)} [{low:.{digits}f}, {high:.{digits}f}]"
    return ratio_text(value, low, high, digits=digits)


def ratio_text(value: float, low: float, high: float, unit: str = "", digits: int = 2) -> str:
    """A ratio with its interval, in as many digits as tell on which side of 1 each bound is."""
    while digits < MOST_DIGITS and any(bound != 1 and round(bound, digits) == 1 for bound in (low, high)):
        digits += 1
    return f"{value:.{digits}f}{unit} [{low:.{digits}f}, {high:.{digits}f}]"


def number(value: float, figure: Figure) -> str:
    """With the digits of the printed figure; with SIGNIFICANT ones for seconds, and where it would be printed as 0."""
    text = f"{value:.{len(figure.value.partition('.')[2])}f}"
    if value and math.isfinite(value) and (figure.unit == "s" or float(text) == 0):
        return f"{value:.{max(0, SIGNIFICANT - 1 - math.floor(math.log10(abs(value))))}f}"
    return text
