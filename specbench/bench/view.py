"""The bench's figures for the terminal; 80 columns are enough."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table

from specbench.bench.claims import Claim, Took
from specbench.bench.engines import CONTEXT, WIDTHS
from specbench.bench.interleave import over
from specbench.console import console
from specbench.stats import Interval

UNWATCHED = ", unwatched"


def print_engines(title: str, took: Took, same: Mapping[str, int] | None, documents: int) -> None:
    """Every watched engine and peer; without texts to compare (`same`) the tokens of a round stand in their place."""
    table = _table(title, "method", "engine", "tok/s", "over eager", "same text" if same else "τ", "outside")
    gains = took.against_reference()
    for name, one in took.by_name.items():
        if name.endswith(UNWATCHED):
            continue
        outside = f"{one.outside.value:.1%}" if one.outside else ""
        last = f"{same[name]}/{documents}" if same else f"{one.tau:.2f}"
        table.add_row(*name.split(", "), f"{one.rate:.0f}", _interval(gains[name]), last, outside)
    console.print(table)
    _notes(
        "over eager: tokens/s, prefill included, over the same method on the eager runtime [95 %];",
        "outside: share of decode time outside forwards, prefill left out",
    )


def print_instruments(took: Took) -> None:
    """What it costs to be watched: an engine that is not over the same one that is."""
    bare = [name for name in took.by_name if name.endswith(UNWATCHED)]
    table = _table("cost of the instrument: unwatched over watched, tokens/s", "method", "engine", "ratio")
    for name in bare:
        watched = name.removesuffix(UNWATCHED)
        table.add_row(*watched.split(", "), _interval(over(took.by_name[name], took.by_name[watched])))
    if bare:
        console.print(table)


def print_claims(title: str, took: Took, claims: Sequence[Claim]) -> None:
    """Figures, their bars, and whether they are reached."""
    table = _table(title, "", "found [95 %]", "bar", "")
    for one in claims:
        sign = "≥" if one.at_least else "≤"
        bar = "" if one.bar is None else f"{sign} {one.bar:.0%}" if one.share else f"{sign} {one.bar:g}"
        table.add_row(one.what, _share(one.found) if one.share else _interval(one.found), bar, one.verdict)
    console.print(table)
    _notes("best: the fastest runtime, " + ", ".join(f"{method} {took.best(method)}" for method in took.methods))
    if any("close" in one.verdict for one in claims):
        _notes("close: the interval holds the bar")
    for one in claims:
        if one.found is None:
            console.print(f"not measured: {one.what}: {one.why}", highlight=False, markup=False, soft_wrap=True)


def print_forwards(title: str, forwards: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
    """Milliseconds by runtime, role and width."""
    table = _table(f"{title}forward, ms (median, context {CONTEXT}), by width", "model", "engine", *map(str, WIDTHS))
    for role in next(iter(forwards.values())):
        for name, by_role in forwards.items():
            table.add_row(role, name, *(f"{by_role[role][width]:.2f}" for width in WIDTHS))
    console.print(table)


def print_missing(missing: Mapping[str, str]) -> None:
    """Which runtimes and peers are not here."""
    for name, why in missing.items():
        console.print(f"without {name}: {why}", highlight=False, markup=False, soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for heading in headings:
        words = heading in ("method", "engine", "model", "")
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    return table


def _notes(*lines: str) -> None:
    for line in lines:
        console.print(line, style="dim", highlight=False)


def _interval(one: Interval | None) -> str:
    if one is None:
        return "-"
    return f"{one.value:.2f}" + ("" if math.isnan(one.low) else f" [{one.low:.2f}, {one.high:.2f}]")


def _share(one: Interval | None) -> str:
    return f"{one.value:.1%} [{100 * one.low:.1f}, {100 * one.high:.1f}]" if one else "-"
