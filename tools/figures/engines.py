"""Tables of the page on runtimes: engines next to each other, forwards by width, waits of a round, batches, load."""

import json
import re
from typing import Any

import pandas as pd

from figures.markdown import rows as _rows
from figures.stored import figure, path_of, table

METHODS = ("vanilla", "sps", "csd")
OTHERS = {"transformers": ("transformers' generation", "assisted"), "genai": ("OpenVINO GenAI", "speculative")}


def _read(name: str) -> Any:
    return json.loads(path_of(name).read_text(encoding="utf-8"))


def _speeds(name: str, corner: str) -> str:
    """Tokens a second of each engine by method; other engines' way to draft stands behind theirs."""
    speeds = {engine: f"{facts['tokens_per_s']:.0f}" for engine, facts in _read(name)["engines"].items()}
    runtimes = dict.fromkeys(engine.split(", ")[1] for engine in speeds)
    lines = []
    for runtime in runtimes:
        label, way = OTHERS.get(runtime, (runtime, ""))
        cells = [speeds.get(f"{method}, {runtime}", "") for method in METHODS]
        if way:
            cells[1] += f" ({way})"
        lines.append([label, *cells])
    return _rows([corner, *METHODS], lines)


def bench_cpu() -> str:
    return _speeds("bench-cpu.json", "tokens/s")


def bench_h200() -> str:
    return _speeds("bench-h200.json", "tokens/s")


def static_widths() -> str:
    """Milliseconds of forwards over 1, 5 and 8 tokens, before and after rows were made equal."""
    places = {width: at for at, width in enumerate((1, 2, 3, 4, 5, 8, 16))}
    found: dict[str, list[str]] = {}
    for line in path_of("static-widths.txt").read_text(encoding="utf-8").splitlines():
        if match := re.match(r"(.+), (before|after) +([\d. /]+?)(?:  |$| \d+ \()", line):
            times = [float(one) for one in match[3].split(" / ")]
            cells = [times[places[width]] for width in (1, 5, 8)]
            found.setdefault(match[1], []).append(" / ".join(f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}" for ms in cells))
    return _rows(["", "before", "now"], [[name, *cells] for name, cells in found.items()])


def waits() -> str:
    """Waits and launches of a round of each head, before and after its drafts were captured."""
    counts = _read("round-waits.json")
    before, after = (counts[time]["rounds"] for time in ("before", "after"))

    def cells(head: str, name: str) -> list[str]:
        every = (rounds.get(head, {}).get(name) for rounds in (before, after))
        return ["" if count is None else f"{count:.1f}".removesuffix(".0") for count in every]

    heads = ["", "waits before", "waits now", "launches before", "launches now"]
    labels = {"mtp": "mtp (a chain of four)"}
    return _rows(heads, [[labels.get(head, head), *cells(head, "waits"), *cells(head, "launches")] for head in after])


def batches() -> str:
    """Speed over vanilla in fixed batches, by their size."""
    methods = {"cospec": "cospec (γ = 25)", "sps": "sps (γ = 6)", "csd": "csd (γ = 6)", "specdecpp-pocket": ""}

    def cell(method: str, texts: int) -> str:
        found = figure("batches-methods.txt", "number", (f"vanilla {texts} ", f"{method} {texts} ", "2"))
        return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"

    lines = [[str(texts), *(cell(method, texts) for method in methods)] for texts in (1, 4, 16)]
    return _rows(["texts", *(label or method for method, label in methods.items())], lines)


def load() -> str:
    """How much sooner texts end than the target's alone, by the share of its own saturation that comes in."""
    rows = table("load-methods.table")
    methods = {"cospec": "cospec (γ = 25)", "sps": "sps (γ = 6)", "csd": "csd (γ = 6)", "specdecpp": "specdecpp-pocket"}
    found = {method: rows[rows.method.str.startswith(method)].sort_values("rate") for method in methods}

    def cell(row: pd.Series) -> str:
        return f"{row.sooner:.2f} [{row.sooner_low:.2f}, {row.sooner_high:.2f}]"

    shares = ("1/8", "1/4", "1/2", "3/4", "1")
    lines = [[share, *(cell(found[m].iloc[at]) for m in methods)] for at, share in enumerate(shares)]
    return _rows(["share of the target's saturation", *methods.values()], lines)


TABLES = {
    "bench-cpu": bench_cpu,
    "bench-h200": bench_h200,
    "static-widths": static_widths,
    "waits": waits,
    "batches": batches,
    "load": load,
}
