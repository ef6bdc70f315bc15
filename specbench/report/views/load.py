"""Requests that come while others are decoded: each method at each rate, and where it stops paying."""

import math
from collections.abc import Iterator

import pandas as pd

from specbench.report.finding import Finding, Sheet, bounds, number
from specbench.studies.under_load import BASE, LoadFigures

FEWEST = 20  # steps with as many texts that are enough to tell a speed
COUNTS = 8  # columns of the sheet by texts


def view(figures: LoadFigures) -> Finding:
    title = f"UNDER LOAD ({figures.pair}, {figures.suite}, {figures.sampling})"
    sheets = [_speeds(figures), _latencies(figures), *paying(figures), *_company(figures)]
    return Finding("load", title, sheets, [*sentences(figures)], [*notes(figures)], vars(figures))


def _speeds(figures: LoadFigures) -> Sheet:
    rows = []
    for row in figures.table.to_dict("records"):
        sooner = number(row["sooner"]) + bounds(row["sooner_low"], row["sooner_high"]) * (row["method"] != BASE)
        kept = [number(row["goodput"])] if figures.slo else []
        rate = _rate(row["rate"]) + "*" * (not row["stable"])
        texts = number(row["rows"], ".1f")
        rows.append([row["method"], rate, number(row["tokens_per_s"], ".0f"), *kept, texts, sooner])
    headings = ["method", "req/s", "tok/s", *["goodput"] * bool(figures.slo), "rows", "sooner [95 %]"]
    return Sheet(headings, rows)


def _latencies(figures: LoadFigures) -> Sheet:
    rows = []
    for row in figures.table.to_dict("records"):
        cells = [number(1000 * row[f"{name}_p{p}"], ".0f") for name in ("ttft", "e2e") for p in (50, 99)]
        cells += [number(1000 * row[f"tpot_p{p}"], ".1f") for p in (50, 99)]
        rows.append([row["method"], _rate(row["rate"]), *cells])
    headings = [f"{name} p{p}" for name in ("TTFT", "E2E", "TPOT") for p in (50, 99)]
    return Sheet(["method", "req/s", *headings], rows, "latencies in ms")


def paying(figures: LoadFigures) -> Iterator[Sheet]:
    """Where each method's requests end sooner than the target's alone, later, or neither for sure."""
    others = figures.table[figures.table.method != BASE]
    rows = []
    for name, of_method in others.groupby("method", sort=False):
        ordered = of_method.sort_values("rate")
        sooner, later = ordered.sooner_low > 1, ordered.sooner_high < 1
        cells = [_rates(ordered[chosen]) for chosen in (sooner, ~sooner & ~later, later)]
        rows.append([str(name), *cells])
    if rows:
        title = f"where each pays off: the req/s at which its texts end sooner than those of {BASE}"
        yield Sheet(["method", "sooner at", "no difference at", "later at"], rows, title, "llll")


def _rate(rate: float) -> str:
    return f"{rate:.3g}"


def _rates(rows: pd.DataFrame) -> str:
    return ", ".join(map(_rate, rows.rate)) or "-"


def _company(figures: LoadFigures) -> Iterator[Sheet]:
    """What steps gave by how many texts they decoded: some numbers up to the most, each with enough steps."""
    known = figures.by_rows[figures.by_rows.steps >= FEWEST]
    counts = sorted(known["rows"].unique())
    if not counts:
        return
    chosen = list(dict.fromkeys(counts[round(i * (len(counts) - 1) / (COUNTS - 1))] for i in range(COUNTS)))
    rows = []
    for name in figures.settings:
        of_method = known[known.method == name].set_index("rows")
        cells = []
        for count in chosen:
            row = of_method.loc[count] if count in of_method.index else None
            value = None if row is None else row.tokens_per_s if name == BASE else row.speedup
            cells.append(number(value, ".0f" if name == BASE else ".2f"))
        rows.append([name, *cells])
    title = f"by texts decoded together: tok/s of {BASE}, and speedups over it"
    yield Sheet(["method", *map(str, chosen)], rows, title)


def sentences(figures: LoadFigures) -> Iterator[str]:
    for name, rate in figures.saturation.items():
        yield f"{name}: the queue does not grow up to {rate:.3g} requests a second."
    errors = figures.table.groupby("method", sort=False).errors.sum()
    for name, why in figures.failures.items():
        yield f"{name}: {errors[name]} requests failed and are left out; the first: {why}"


def notes(figures: LoadFigures) -> Iterator[str]:
    for name, count in figures.leaks.items():
        yield f"LEAK: the memory of {name} was made from {count} of the documents that it serves"
    times = "once" if figures.repeats == 1 else f"{figures.repeats} times"
    yield (
        f"{figures.requests} requests at each rate, {times}, {figures.arrivals}, the same for all methods; up to "
        f"{figures.rows} texts together"
    )
    yield (
        f"sooner: the times of the same requests from arrival to end, {BASE}'s over the method's, all together; [ ]: "
        "95 %, over tenths of consecutive requests, as requests wait for one another"
    )
    yield (
        "TTFT, E2E: from the arrival to the first token and to the end; TPOT: for each token after the first; p50, "
        "p99: the median and the 99th percentile; rows: texts decoded together, the mean over time"
    )
    if figures.slo:
        kept = " and ".join(f"{name.upper()} of at most {bound:g} s" for name, bound in figures.slo.items())
        yield f"goodput: requests a second that kept a {kept}"
    yield f"by texts: of all rates, {FEWEST} or more steps in which no request joined"
    if not figures.table.stable.all():
        yield "*: more came than were served; the queue grew to the end, and longer runs would have longer times"
    if any(math.isinf(rate) for rate in figures.table.rate):
        yield "inf: all requests come at once"
