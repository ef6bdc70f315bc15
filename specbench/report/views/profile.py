"""A profile: forward times, the least that they can take, fits of decoding, and how well they predict throughput."""

import math
from collections.abc import Iterator

import pandas as pd
from rich.text import Text

from specbench.analysis.forward_times import step_costs
from specbench.analysis.simulated_rows import ALL
from specbench.report.finding import Finding, Sheet, number
from specbench.report.views.roofline import ceiling_notes, limits
from specbench.studies.profile_pair import Profile


def view(figures: Profile) -> Finding:
    sheets = [_forwards(figures.forwards)] if len(figures.forwards) else []
    sheets += [limits(figures.limits)] if len(figures.limits) else []
    sheets += [_batches(figures.batches)] if len(figures.batches) else []
    of_machine = ceiling_notes(figures.ceilings) if figures.ceilings else []
    return Finding("profile", sheets=[*sheets, _fits(figures)], notes=[*notes(figures), *of_machine])


def _forwards(forwards: pd.DataFrame) -> Sheet:
    widths = list(dict.fromkeys(forwards.width))
    named = ["model", *["runtime"] * (forwards.runtime.nunique() > 1)]
    rows = []
    for (model, runtime, context), of_context in forwards.groupby(["model", "runtime", "context"], sort=False):
        by_width = of_context.set_index("width")["median"]
        names = {"model": model, "runtime": runtime}
        rows.append([*(str(names[name]) for name in named), str(context), *(_ms(by_width[width]) for width in widths)])
    headings = [*named, "context", *map(str, widths)]
    title = "forward, ms (median) by context and width"
    return Sheet(headings, rows, title, align="l" * len(named) + "r" * (len(widths) + 1))


def _batches(batches: pd.DataFrame) -> Sheet:
    widths = list(dict.fromkeys(batches.width))
    rows = []
    for (model, texts, context), some in batches.groupby(["model", "rows", "context"], sort=False):
        by_width = some.set_index("width")["median"]
        rows.append([str(model), str(texts), str(context), *(_ms(by_width[width]) for width in widths)])
    title = "forward over several texts, ms (median) by texts, context and width"
    return Sheet(["model", "texts", "context", *map(str, widths)], rows, title, align="l" + "r" * (len(widths) + 2))


def _fits(figures: Profile) -> Sheet:
    errors = {(row["method"], row["task"]): row for row in figures.throughput.to_dict("records")}
    last = ""
    rows: list[list[str | Text]] = []
    for row in figures.fits.to_dict("records"):
        if row["method"] != last:
            last = row["method"]
            rows.append([Text(last, "bold")])
        fit = number(row["r2"], ".4f")
        if not math.isnan(row["r2_target"]):
            fit = " & ".join(number(row[name], ".4f") for name in ("r2_draft", "r2_target"))
        spread = [f" ±{_ms(row[name])}" if not math.isnan(row[name]) else "" for name in ("t_draft_sd", "t_target_sd")]
        times = _ms(row["t_draft"]) + spread[0], _ms(row["t_target"]) + spread[1]
        error = errors.get((row["method"], row["task"]), {})
        off = [number(error[name], ".1%") if error else "" for name in ("median", "p90")]
        rows.append([f"  {row['task']}", *times, "" if row["task"] == "average" else fit, *off])
    title = "T = t_draft · N_draft + t_target · N_target, fitted to documents; ms"
    return Sheet(["task", "t_draft", "t_target", "R²", "off by", "90 %"], rows, title)


def notes(figures: Profile) -> Iterator[str]:
    yield f"{figures.pair}, {figures.sampling}; decoding without prefill; R² about the mean, of a fit without intercept"
    below = figures.fits[(figures.fits[["r2", "r2_draft", "r2_target"]] < 0).any(axis=1)]
    if len(below):
        named = ", ".join(dict.fromkeys(f"{row.method} on {row.task}" for row in below.itertuples()))
        yield (
            f"R² below 0: {named}: the fit predicts these documents' times worse than their mean does; its times tell "
            "nothing (too few documents, or a busy machine)"
        )
    least = figures.fits.r2_about_zero.min()
    if not math.isnan(least):
        yield f"R² about 0, which is common for fits without intercept, is {least:.4f} or more in every line"
    yield "stand-alone: the draft alone & the target alone; average: over tasks ± their standard deviation"
    yield "off by: error of tokens/s predicted from discard and verification rate (Eq. 5.1), median and 90th percentile"
    if len(figures.batches):
        costs = ", ".join(f"{name}={value:.3g}" for name, value in step_costs(figures.batches).items())
        yield f"for the method goodput, in target forwards: {costs}"
    speculative = figures.fits[figures.fits.r2_target.isna() & ~figures.fits.task.isin(["average", ALL])]
    unsettled = list(dict.fromkeys(speculative.method[speculative.t_target.isna()]))
    if unsettled:
        yield f"not settled (-): {', '.join(unsettled)}: too few documents, or one draft length alone"


def _ms(seconds: float) -> str:
    return number(1000 * seconds, ".3f" if seconds < 0.01 else ".2f" if seconds < 0.1 else ".1f")
