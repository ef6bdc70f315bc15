"""What loading a checkpoint of a 1B model takes, over reading its files, and how much memory.

Run by `make bench`. A Llama of 1.1 B parameters in bfloat16 is written to a temporary folder; new processes read its
files and load them, in turn: in the stored type (every page of the weights is read then, too), and in float32, as
methods on a CPU have it. There, merely filling new memory of that size is measured, too. Wall and processor seconds;
the files are in the system's cache, or were dropped from it (`cold`). Exits with 1 if loading in the stored type takes
longer than 1.3 times as long as reading, by processor seconds, or if the most memory is more than a twentieth above the
weights'.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from benches import by_turns
from loading import Took, measured, write_checkpoint

from specbench.base.stats import Interval, Paired, speedup

TURNS = 5
WAYS = (("bfloat16", False), ("bfloat16", True), ("float32", False))  # the type on loading, files not in the cache
MOST, MOST_MEMORY = 1.3, 1.05


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parameters = write_checkpoint(folder, hidden=2048, inner=5632, layers=22, vocabulary=32000, heads=32)
        print(f"Llama of {parameters / 1e9:.2f} B parameters, bfloat16; one thread; ratios with 95 % intervals")
        return max([shown(folder, *way, parameters) for way in WAYS])


def shown(folder: Path, dtype: str, cold: bool, parameters: int) -> int:
    """Measure and print one way to load; 1 if it takes too much."""
    size = getattr(torch, dtype).itemsize
    took: dict[str, list[Took]] = {"read": [], "load": []} | ({"write": []} if dtype == "float32" else {})
    for names in by_turns(list(took), TURNS):
        for name, one in measured(folder, dtype, *names, *["cold"] * cold).items():
            took[name].append(one)
    once = np.ones(TURNS)

    def over_reading(name: str) -> str:
        """Wall and processor seconds as a multiple of those of reading."""
        values = (ratio(name, at) for at in (0, 1))
        facts = (f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" if one else "-" for one in values)
        return "wall {}, cpu {}".format(*facts)

    def ratio(name: str, at: int) -> Interval | None:
        return speedup(Paired(*(part for of in (name, "read") for part in (np.array([t[at] for t in took[of]]), once))))

    wall, cpu = (np.median([[t[at] for t in took[name]] for name in took], axis=1) for at in (0, 1))
    anonymous, resident = (max(t[at] for t in took["load"]) / (parameters * size) for at in (2, 3))
    print(
        f"  into {dtype}{', cold' if cold else ''}: read {wall[0]:.2f} s (cpu {cpu[0]:.2f}), load {wall[1]:.2f} s (cpu "
        f"{cpu[1]:.2f}): {over_reading('load')}; memory over the weights' {anonymous:.2f} anonymous, {resident:.2f} "
        "with files"
    )
    if "write" in took:
        print(f"    to fill new memory of that size: {wall[2]:.2f} s (cpu {cpu[2]:.2f}): {over_reading('write')}")
    loaded = ratio("load", 1)
    slow = dtype == "bfloat16" and not cold and (loaded is None or loaded.value > MOST)
    return int(slow or anonymous > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
