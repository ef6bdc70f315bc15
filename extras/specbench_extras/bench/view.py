"""The bench's figures for the terminal; 80 columns are enough."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from specbench.base.console import console, say
from specbench.base.stats import Interval
from specbench_extras.bench.claims import BenchTimes, Claim
from specbench_extras.bench.engines import CONTEXT, WIDTHS
from specbench_extras.bench.interleave import speed_ratio

UNWATCHED = ", unwatched"


def print_engines(title: str, times: BenchTimes, same: Mapping[str, int] | None, documents: int) -> None:
    """Print every watched engine and peer; without texts to compare (`same`) the tokens per round take their place."""
    table = _table(title, "method", "engine", "tok/s", "over eager", "same text" if same else "τ", "outside")
    gains = times.against_reference()
    for name, engine in times.by_name.items():
        if name.endswith(UNWATCHED):
            continue
        outside = f"{engine.outside.value:.1%}" if engine.outside else ""
        last = f"{same[name]}/{documents}" if same else f"{engine.tau:.2f}"
        table.add_row(*name.split(", "), f"{engine.rate:.0f}", _interval(gains[name]), last, outside)
    console.print(table)
    _notes(
        "over eager: tokens/s, prefill included, over the same method on the eager runtime [95 %];",
        "outside: share of decode time outside forwards, prefill left out",
    )


def print_instruments(times: BenchTimes) -> None:
    """Print the cost of the stopwatch: the speed of engines without it over the same engines with it."""
    bare = [name for name in times.by_name if name.endswith(UNWATCHED)]
    table = _table("cost of the instrument: unwatched over watched, tokens/s", "method", "engine", "ratio")
    for name in bare:
        watched = name.removesuffix(UNWATCHED)
        table.add_row(*watched.split(", "), _interval(speed_ratio(times.by_name[name], times.by_name[watched])))
    if bare:
        console.print(table)


def print_claims(title: str, times: BenchTimes, claims: Sequence[Claim]) -> None:
    """Print figures, their bars, and whether they are reached."""
    table = _table(title, "", "found [95 %]", "bar", "")
    for claim in claims:
        sign = "≥" if claim.at_least else "≤"
        bar = "" if claim.bar is None else f"{sign} {claim.bar:.0%}" if claim.share else f"{sign} {claim.bar:g}"
        table.add_row(
            claim.what, _share(claim.measured) if claim.share else _interval(claim.measured), bar, claim.verdict
        )
    console.print(table)
    _notes("best: the fastest runtime, " + ", ".join(f"{method} {times.best(method)}" for method in times.methods))
    if any("close" in claim.verdict for claim in claims):
        _notes("close: the interval holds the bar")
    for claim in claims:
        if claim.measured is None:
            say(f"not measured: {claim.what}: {claim.why}")


def print_runs(claims: Sequence[Claim]) -> None:
    """Print the figures of each run alone, where there are several."""
    shown = [claim for claim in claims if claim.by_run]
    if not shown:
        return
    table = _table("by run", "", *map(str, range(1, 1 + len(shown[0].by_run))))
    for claim in shown:
        table.add_row(claim.what, *(f"{one:.1%}" if claim.share else f"{one:.2f}" for one in claim.by_run))
    console.print(table)
    _notes("the intervals above hold what documents and what runs differ by; other processes may differ by more")


def words_of_runs(runs: int) -> str:
    """Part of a title."""
    return f", {runs} runs" if runs > 1 else ""


def print_forwards(title: str, forwards: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
    """Print milliseconds by runtime, role and width."""
    table = _table(f"{title}forward, ms (median, context {CONTEXT}), by width", "model", "engine", *map(str, WIDTHS))
    for role in next(iter(forwards.values())):
        for name, by_role in forwards.items():
            table.add_row(role, name, *(f"{by_role[role][width]:.2f}" for width in WIDTHS))
    console.print(table)


def print_missing(missing: Mapping[str, str]) -> None:
    """Print the runtimes and peers that are missing, and why."""
    for name, why in missing.items():
        say(f"without {name}: {why}")


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for heading in headings:
        words = heading in ("method", "engine", "model", "")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    return table


def _notes(*lines: str) -> None:
    for line in lines:
        console.print(line, style="dim", highlight=False)


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.2f}" + ("" if math.isnan(interval.low) else f" [{interval.low:.2f}, {interval.high:.2f}]")


def _share(interval: Interval | None) -> str:
    return f"{interval.value:.1%} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" if interval else "-"
