"""Tables of the page on runtimes: engines next to each other, forwards by width, waits of a round, batches, load."""

import json
from typing import Any

import pandas as pd

from figures.markdown import rows as _rows
from figures.stored import figure, path_of, table

METHODS = ("vanilla", "sps", "csd")
WIDEST = 10  # times its lower end is the upper end of an interval that still says something
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


def widths(file: str = "widths-cpu") -> str:
    """Milliseconds of each target's forwards of 1 to 16 tokens, and how far those of up to eight are over the limit."""
    rows = table(file).query("model == 'target'")
    counts = list(dict.fromkeys(rows.width))
    lines = []
    for (pair, dtype), some in rows.groupby(["pair", "dtype"], sort=False):
        times = some.set_index("width").fast * 1000
        limit = 1000 * float(some.limit.iloc[0])
        few = times[times.index <= 8]
        over = f"{few.min() / limit:.1f} to {few.max() / limit:.1f}"
        name = pair if "-int" in str(pair) else f"{pair}, {dtype}"
        lines.append([str(name), *(f"{times[count]:.3g}" for count in counts), f"{limit:.2g}", over])
    heads = ["target", *map(str, counts), "limit", "over it, up to 8"]
    return _rows(heads, lines)


def widths_avx2() -> str:
    """The same of a processor with avx2 alone."""
    return widths("widths-avx2")


def peers() -> str:
    """Tokens a second of engines on the same file, and over llama.cpp's own vanilla decoding."""
    files = {
        "smollm2, 4 bits": "smollm2-int4",
        "smollm2": "smollm2-bfloat16",
        "qwen2.5-coder": "qwen2.5-coder-bfloat16",
    }
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name, file in files.items():
        for row in _read(f"bench-peers-{file}.json")["engines"]:
            over, low, high = row["over_llama_cpp"]
            known = f"{over:.2f} [{low:.2f}, {high:.2f}]" if high <= WIDEST * low else "too few prompts"
            cells.setdefault((row["method"], row["by"]), {})[name] = f"{row['tokens_per_s']:.3g} ({known})"
    order = sorted(cells, key=lambda key: ("vanilla", "pld", "sps").index(key[0]))
    return _rows(["method", "engine", *files], [[*key, *(cells[key].get(name, "") for name in files)] for key in order])


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


def simulate_errors() -> str:
    """By how many percent a simulation is off, and how uncertain that is, by what it replays and what it foretells."""
    rows = table("simulate-errors")
    settings = sorted(dict.fromkeys(rows.setting))

    def cell(pair: str, recorded: str, setting: str) -> str:
        found = rows[(rows.pair == pair) & (rows.recorded == recorded) & (rows.setting == setting)]
        if recorded == setting or found.empty:
            return ""
        error, uncertain = 100 * found.error.iloc[0], 100 * found.uncertain.iloc[0]
        return "not given" if pd.isna(error) else f"{error:+.1f} ± {uncertain:.1f} %".replace("-", "−")

    lines = [
        [pair, recorded.replace("gamma=", "γ = "), *(cell(pair, recorded, setting) for setting in settings)]
        for pair, recorded in dict.fromkeys(zip(rows.pair, rows.recorded, strict=True))
    ]
    return _rows(["pair", "replayed", *(f"to {one.replace('gamma=', 'γ = ')}" for one in settings)], lines)


TABLES = {
    "bench-cpu": bench_cpu,
    "bench-h200": bench_h200,
    "widths": widths,
    "widths-avx2": widths_avx2,
    "peers": peers,
    "waits": waits,
    "batches": batches,
    "load": load,
    "simulate-errors": simulate_errors,
}
