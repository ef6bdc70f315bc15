"""Requests that come while others are decoded: each method at each rate, and where it stops paying."""

import math
from collections.abc import Iterator

from specbench.report.finding import Finding, Sheet, number
from specbench.studies.under_load import BASE, Loaded

FEWEST = 20  # steps with as many texts that are enough to tell a speed
NOISE = 0.05  # of latencies that were measured once
COUNTS = 8  # columns of the sheet by texts


def view(figures: Loaded) -> Finding:
    title = f"UNDER LOAD ({figures.pair}, {figures.suite}, {figures.sampling})"
    sheets = [_sheet(figures), *_company(figures)]
    return Finding("load", title, sheets, [*sentences(figures)], [*notes(figures)], vars(figures))


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


def _company(figures: Loaded) -> Iterator[Sheet]:
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
    title = f"by texts decoded together: tok/s of {BASE}, and of others over its"
    yield Sheet(["method", *map(str, chosen)], rows, title)


def sentences(figures: Loaded) -> Iterator[str]:
    """For each method, up to which rate its texts end sooner than the target's alone, by more than NOISE."""
    for name, rows in figures.table[figures.table.method != BASE].groupby("method", sort=False):
        ordered = rows.sort_values("rate")
        sooner = ordered[ordered.latency_ratio > 1 + NOISE].rate.tolist()
        if len(sooner) == len(ordered):
            yield f"{name}: texts end sooner than the target's alone at every rate measured."
        elif sooner:
            first = ordered[ordered.latency_ratio <= 1 + NOISE].rate.min()
            rates = ", ".join(f"{rate:.3g}" for rate in sooner)
            yield f"{name}: texts end sooner at {rates} req/s, not at {first:.3g}."
        else:
            yield f"{name}: texts end no sooner than the target's alone at any rate measured."
    for name, rate in figures.saturation.items():
        yield f"{name}: the queue does not grow up to {rate:.3g} requests a second."


def notes(figures: Loaded) -> Iterator[str]:
    yield (
        f"{figures.requests} requests, {figures.arrivals}, the same for all methods; up to {figures.rows} texts "
        f"together; each method once at each rate, so a difference of {100 * NOISE:.0f} % is noise"
    )
    yield (
        "faster: the median time from a request's arrival to its end, vanilla's over the method's; TTFT, E2E and TPOT "
        "in ms, from the arrival, the median and the 99th percentile; rows: texts decoded together, the mean over time"
    )
    yield f"by texts: of all rates, steps in which none joined, where there are {FEWEST} or more"
    if not figures.table.stable.all():
        yield "*: the queue grows, so the times are those of a queue that had not ended growing"
    if any(math.isinf(rate) for rate in figures.table.rate):
        yield "inf: all requests come at once"
