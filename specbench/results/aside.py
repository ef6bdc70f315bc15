"""What a run keeps aside from its tables.

`gpu.json`: what its GPUs did while it decoded: clocks, power, heat, and whether they were slowed. `apart.json`: its
seconds, by what they were spent on.
"""

from collections.abc import Iterable
from typing import Any

from specbench.base.folder import FolderFile
from specbench.base.untrusted import read_json
from specbench.config import UserError

GPUS, SECONDS = "gpu.json", "apart.json"
PARTS = ("loading", "warm-up", "prefill", "decoding", "scoring")  # of `total`; the rest has no name
TOTAL = "total"
# Of NVML's reasons for lower clocks, those that slow work down; others are idleness and settings.
SLOWDOWNS = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


def reasons(bits: int) -> str:
    """Why a GPU is slowed down, in words; "" if it is not."""
    return ", ".join(dict.fromkeys(text for bit, text in SLOWDOWNS.items() if bits & bit))


def slowed(watched: Any) -> str:
    """In words, which of the GPUs that were `watched` were slowed down, and why; "" if none was."""
    rows: Iterable[Any] = watched if isinstance(watched, list) else ()
    parts = []
    for row in rows:
        bits, index = (row.get(name) if isinstance(row, dict) else None for name in ("slowed", "index"))
        if isinstance(bits, int) and isinstance(index, int) and (why := reasons(bits)):
            parts.append(f"GPU {index} was slowed down ({why})")
    return "; ".join(parts)


def read_slowed(path: FolderFile) -> str:
    """`slowed` of a run's file; "" if it has none. A damaged one tells nothing."""
    try:
        return slowed(read_json(path)) if path.folder.has(path.name) else ""
    except UserError:
        return ""


def read_seconds(path: FolderFile) -> dict[str, float]:
    """The seconds of a run's file, by what they were spent on."""
    try:
        stored = read_json(path) if path.folder.has(path.name) else {}
    except UserError:  # a damaged file is worth no more than the seconds in it
        return {}
    items = stored.items() if isinstance(stored, dict) else ()
    return {what: seconds for what, seconds in items if isinstance(seconds, float)}
