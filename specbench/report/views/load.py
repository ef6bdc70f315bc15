"""Requests that come while others are decoded: each method at each rate, and where it stops paying."""

import math
from collections.abc import Iterator

from specbench.report.finding import Finding, Sheet, number
from specbench.studies.under_load import BASE, Loaded


def view(figures: Loaded) -> Finding:
    title = f"UNDER LOAD ({figures.pair}, {figures.suite}, {figures.sampling})"
    return Finding("load", title, [_sheet(figures)], [*sentences(figures)], [*notes(figures)], vars(figures))


def _sheet(figures: Loaded) -> Sheet:
    rows = []
    for row in figures.table.to_dict("records"):
        milliseconds = [f"{1000 * row[name]:.0f}" for name in ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")]
        milliseconds.append(f"{1000 * row['tpot_p50']:.1f}")
        rate = f"{row['rate']:.3g}" + "*" * (not row["stable"])
        speed = [f"{row['tokens_per_s']:.0f}", number(row["latency_ratio"])]
        rows.append([row["method"], rate, *speed, *milliseconds, f"{row['rows']:.1f}"])
    headings = ["method", "req/s", "tok/s", "faster", "TTFT", "p99", "E2E", "p99", "TPOT", "rows"]
    return Sheet(headings, rows)


def sentences(figures: Loaded) -> Iterator[str]:
    """For each method, up to which rate its texts end sooner than the target's alone."""
    for name, rows in figures.table[figures.table.method != BASE].groupby("method", sort=False):
        ordered = rows.sort_values("rate")
        sooner = ordered[ordered.latency_ratio > 1].rate.tolist()
        if len(sooner) == len(ordered):
            yield f"{name}: texts end sooner than the target's alone at every rate measured."
        elif sooner:
            first = ordered[ordered.latency_ratio <= 1].rate.min()
            rates = ", ".join(f"{rate:.3g}" for rate in sooner)
            yield f"{name}: texts end sooner at {rates} req/s, not at {first:.3g}."
        else:
            yield f"{name}: texts end no sooner than the target's alone at any rate measured."
    for name, rate in figures.saturation.items():
        yield f"{name}: the queue does not grow up to {rate:.3g} requests a second."


def notes(figures: Loaded) -> Iterator[str]:
    yield (
        f"{figures.requests} requests, {figures.arrivals}, the same for all methods; up to {figures.rows} texts "
        "together; each method once at each rate, so differences of some percent are noise"
    )
    yield (
        "faster: the median time from a request's arrival to its end, vanilla's over the method's; TTFT, E2E and TPOT "
        "in ms, from the arrival, the median and the 99th percentile; rows: texts decoded together, the mean over time"
    )
    if not figures.table.stable.all():
        yield "*: the queue grows, so the times are those of a queue that had not ended growing"
    if any(math.isinf(rate) for rate in figures.table.rate):
        yield "inf: all requests come at once"
