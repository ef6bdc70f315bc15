"""What forwards take next to the least that they can take, and a machine's ceilings."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from specbench.report.finding import Finding, Sheet
from specbench.results import ceilings

LONGEST = 512  # the context that is shown, or the next shorter one; the file has all


def limits(table: pd.DataFrame) -> Sheet:
    """Rows of `roofline.table` after one context."""
    contexts = sorted(set(table.context))
    context = max((length for length in contexts if length <= LONGEST), default=contexts[0])
    rows = []
    for row in table[table.context == context].to_dict("records"):
        work = _short(row["bytes"] / 1e6), _short(row["operations"] / 1e6), _short(1000 * row["limit"]), row["binds"]
        times = _short(1000 * row["median"]), _short(row["median"] / row["limit"])
        rows.append([str(row["model"]), str(row["runtime"]), str(row["width"]), *work, *times])
    headings = ["model", "runtime", "width", "MB", "MFLOP", "limit ms", "by", "ms", "ms/limit"]
    title = f"a forward after {context} tokens, and the least that it can take"
    return Sheet(headings, rows, title, align="ll" + "r" * 7)


def view(measured: Mapping[str, Any]) -> Finding:
    """The ceilings as `ceilings.measure` returns them, with their quartiles."""
    rows = []
    for sizes, key, what, unit in (
        (measured["bandwidth"], "bytes", "read or copied", "GB/s"),
        (measured["products"], "side", "matrix product", "GFLOP/s"),
    ):
        for row in sizes:
            size = f"{row[key] / 2**20:g} MiB" if key == "bytes" else f"{row[key]}²"
            rows.append([what, size, *(_short(row[name] / 1e9) for name in ("median", "low", "high")), unit])
    title = f"{name_of(measured)}: ceilings, medians and quartiles"
    return Finding("ceilings", sheets=[Sheet(["what", "of", "median", "low", "high", ""], rows, title, "lrrrrl")])


def ceiling_notes(measured: Mapping[str, Any]) -> Iterator[str]:
    """What a limit is made of, and at which figures."""
    known = ceilings.read(measured)
    small, large = (_short(known.bandwidth(size) / 1e9) for size in (known.sizes[0], known.sizes[-1]))
    yield "limit: the longer of bytes / bandwidth and operations / speed of a large matrix product; by: which it is"
    yield (
        f"bandwidth of an array as large as what the forward moves, which a cache may hold: {small} GB/s at "
        f"{_size(known.sizes[0])}, {large} at {_size(known.sizes[-1])}"
    )
    speed = f"{_short(known.operations / 1e9)} GFLOP/s, {measured['dtype']}"
    yield f"matrix product: {speed}; measured {measured['measured'][:10]}"


def name_of(measured: Mapping[str, Any]) -> str:
    """The machine, its threads and the type, in words."""
    machine = measured["machine"]
    if machine["device"] != "cpu":
        return f"{machine['device']}, {measured['dtype']}"
    threads = machine["threads"]
    return f"{machine['cpu']}, {threads} thread{'' if threads == 1 else 's'}, {measured['dtype']}"


def _size(count: float) -> str:
    return f"{count / 2**20:g} MiB" if count < 2**30 else f"{count / 2**30:g} GiB"


def _short(value: float) -> str:
    """Three digits that count, and no exponent."""
    digits = next((digits for digits, bound in ((3, 1), (2, 10), (1, 100)) if value < bound), 0)
    return f"{value:.{digits}f}"
