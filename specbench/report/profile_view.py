"""A profile for the terminal; 80 columns are enough."""

import math
from collections.abc import Iterator

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.profile_pair import Profile
from specbench.report.roofline_view import ceiling_notes, limits_table
from specbench.simulate import ALL


def print_profile(console: Console, profile: Profile) -> None:
    """Print forward times, fits, and how well they tell throughput."""
    if len(profile.forwards):
        console.print(_forwards(profile.forwards))
    if len(profile.limits):
        console.print(limits_table(profile.limits))
    console.print(_fits(profile))
    for line in [*notes(profile), *(ceiling_notes(profile.ceilings) if profile.ceilings else [])]:
        console.print(line, style="dim", highlight=False, markup=False)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)


def _forwards(forwards: pd.DataFrame) -> Table:
    widths = list(dict.fromkeys(forwards.width))
    table = _table("forward, ms (median) by context and width")
    several = forwards.runtime.nunique() > 1
    for heading in ("model", *["runtime"] * several):
        table.add_column(heading)
    for heading in ("context", *map(str, widths)):
        table.add_column(heading, justify="right", no_wrap=True)
    for (model, runtime, context), rows in forwards.groupby(["model", "runtime", "context"], sort=False):
        by_width = rows.set_index("width")["median"]
        names = [model, *[runtime] * several, context]
        table.add_row(*(Text(str(name)) for name in names), *(_ms(by_width[width]) for width in widths))
    return table


def _fits(profile: Profile) -> Table:
    table = _table("T = t_draft · N_draft + t_target · N_target, fitted to documents; ms")
    table.add_column("task", overflow="fold")
    for heading in ("t_draft", "t_target", "R²", "off by", "90 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    errors = {(row["method"], row["task"]): row for row in profile.throughput.to_dict("records")}
    last = ""
    for row in profile.fits.to_dict("records"):
        if row["method"] != last:
            last = row["method"]
            table.add_row(Text(last, "bold"))
        fit = _number(row["r2"], ".4f")
        if not math.isnan(row["r2_target"]):
            fit = " & ".join(_number(row[name], ".4f") for name in ("r2_draft", "r2_target"))
        spread = [f" ±{_ms(row[name])}" if not math.isnan(row[name]) else "" for name in ("t_draft_sd", "t_target_sd")]
        error = errors.get((row["method"], row["task"]), {})
        table.add_row(
            Text(f"  {row['task']}"),
            _ms(row["t_draft"]) + spread[0],
            _ms(row["t_target"]) + spread[1],
            "" if row["task"] == "average" else fit,
            *(_number(error[name], ".1%") if error else "" for name in ("median", "p90")),
        )
    return table


def notes(profile: Profile) -> Iterator[str]:
    """What the figures mean."""
    yield f"{profile.pair}, {profile.sampling}; decoding without prefill; R² about the mean, of a fit without intercept"
    least = profile.fits.r2_about_zero.min()
    if not math.isnan(least):
        yield f"about 0, as fits without intercept often tell it, R² is {least:.4f} or more in every line"
    yield "stand-alone: the draft alone & the target alone; average: over tasks ± their standard deviation"
    yield "off by: of a document's tokens/s from discard and verification rate (Eq. 5.1), median and 90th percentile"
    speculative = profile.fits[profile.fits.r2_target.isna() & ~profile.fits.task.isin(["average", ALL])]
    unsettled = list(dict.fromkeys(speculative.method[speculative.t_target.isna()]))
    if unsettled:
        yield f"not settled (-): {', '.join(unsettled)}: too few documents, or one draft length alone"


def _ms(seconds: float) -> str:
    return _number(1000 * seconds, ".3f" if seconds < 0.01 else ".2f" if seconds < 0.1 else ".1f")


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
