"""What forwards take and what they must take, and a machine's ceilings, for the terminal; 80 columns are enough."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from specbench import ceilings

LONGEST = 512  # the context that is shown, or the next shorter one; the file has all


def limits_table(limits: pd.DataFrame) -> Table:
    """Rows of `roofline.table` behind one context."""
    contexts = sorted(set(limits.context))
    context = max((one for one in contexts if one <= LONGEST), default=contexts[0])
    table = _table(f"a forward behind {context} tokens, and the least that it can take")
    for heading in ("model", "runtime"):
        table.add_column(heading, overflow="fold")
    for heading in ("width", "MB", "MFLOP", "limit ms", "by", "ms", "ms/limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in limits[limits.context == context].to_dict("records"):
        table.add_row(
            Text(str(row["model"])),
            Text(str(row["runtime"])),
            str(row["width"]),
            _short(row["bytes"] / 1e6),
            _short(row["operations"] / 1e6),
            _short(1000 * row["limit"]),
            row["binds"],
            _short(1000 * row["median"]),
            _short(row["median"] / row["limit"]),
        )
    return table


def ceilings_table(told: Mapping[str, Any]) -> Table:
    """The ceilings as `ceilings.measure` tells them, with their quartiles."""
    table = _table(f"{name_of(told)}: ceilings, medians and quartiles")
    table.add_column("what")
    for heading in ("of", "median", "low", "high"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for rows, key, what, unit in (
        (told["bandwidth"], "bytes", "read or copied", "GB/s"),
        (told["products"], "side", "matrix product", "GFLOP/s"),
    ):
        for row in rows:
            of = f"{row[key] / 2**20:g} MiB" if key == "bytes" else f"{row[key]}²"
            table.add_row(what, of, *(_short(row[name] / 1e9) for name in ("median", "low", "high")), unit)
    return table


def ceiling_notes(told: Mapping[str, Any]) -> Iterator[str]:
    """What a limit is made of, and at which figures."""
    found = ceilings.read(told)
    small, large = (_short(found.bandwidth(size) / 1e9) for size in (found.sizes[0], found.sizes[-1]))
    yield "limit: the longer of bytes / bandwidth and operations / speed of a large matrix product; by: which it is"
    yield (
        f"bandwidth of an array as large as what the forward moves, which a cache may hold: {small} GB/s at "
        f"{_size(found.sizes[0])}, {large} at {_size(found.sizes[-1])}"
    )
    yield f"matrix product: {_short(found.operations / 1e9)} GFLOP/s, {told['dtype']}; measured {told['measured'][:10]}"


def name_of(told: Mapping[str, Any]) -> str:
    """The machine, its threads and the type, in words."""
    machine = told["machine"]
    if machine["device"] != "cpu":
        return f"{machine['device']}, {told['dtype']}"
    threads = machine["threads"]
    return f"{machine['cpu']}, {threads} thread{'' if threads == 1 else 's'}, {told['dtype']}"


def _table(title: str) -> Table:
    return Table(title=Text(title, "italic"), title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)


def _size(count: float) -> str:
    return f"{count / 2**20:g} MiB" if count < 2**30 else f"{count / 2**30:g} GiB"


def _short(value: float) -> str:
    """Three digits that count, and no exponent."""
    digits = next((digits for digits, bound in ((3, 1), (2, 10), (1, 100)) if value < bound), 0)
    return f"{value:.{digits}f}"
