"""What a machine can do at best: bytes read or copied a second, and operations a second in large matrix products.

Measured once for each device, number of threads, type and version of torch, and kept in a file of the cache folder.
"""

import hashlib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench import environment
from specbench.errors import UserError
from specbench.files import write_json
from specbench.measure import Stopwatch
from specbench.stats import Floats
from specbench.stored_manifest import Ceilings as Told
from specbench.untrusted import read_object

SCHEMA = 1
# Bytes, 1 MiB to 1 GiB: small models lie in a cache, and where the caches end the steps are smaller.
SIZES = tuple(sorted([*(2**k for k in range(20, 31)), *(3 * 2**k for k in range(21, 26))]))
SIDES = (256, 512, 1024, 2048, 4096, 8192)  # of square matrices
STEPS = len(SIZES) + len(SIDES)
REPEATS = 7
SHORTEST = 0.02  # seconds of a repeat
LONGEST = 0.15  # seconds of one product; larger ones are left out
MACHINE = ("device", "cpu", "cores", "threads", "driver")  # of the environment

Work = Callable[[], object]


@dataclass(frozen=True)
class Ceilings:
    """`speeds` (bytes/s) of arrays of so many `sizes` (bytes), which rise; `operations` a second."""

    sizes: Floats
    speeds: Floats
    operations: float

    def bandwidth(self, size: Any) -> Any:
        """Bytes/s at which `size` bytes, a number or an array, can be read over and over again.

        Between measured sizes on a line over the logarithm of the size; beyond them as at the nearest.
        """
        return np.interp(np.log(size), np.log(self.sizes), self.speeds)


def read(told: Mapping[str, Any]) -> Ceilings:
    """The ceilings as `measure` tells them.

    A small array can be read at least as fast as a large one, of which it might be a part: what starting the work
    costs more there, on a GPU above all, is none of the memory's doing.
    """
    rows = sorted(told["bandwidth"], key=lambda row: float(row["bytes"]))
    sizes, speeds = (np.array([row[name] for row in rows], float) for name in ("bytes", "median"))
    best = max(float(row["median"]) for row in told["products"])
    return Ceilings(sizes, np.maximum.accumulate(speeds[::-1])[::-1], best)


def known(device: torch.device, dtype: torch.dtype) -> dict[str, Any] | None:
    """What was measured on this machine with as many threads, as a manifest keeps it; None: nothing yet."""
    machine = _machine(device)
    try:
        told = read_object(_path(machine, dtype))
        Told.model_validate(told)
        same = (told["schema"], told["machine"], told["dtype"]) == (SCHEMA, machine, _name(dtype))
    except (UserError, ValueError, LookupError, TypeError, ArithmeticError):
        return None  # damaged files too: they are measured anew
    return told if same else None


def keep(told: Mapping[str, Any]) -> Path:
    """Put what was measured where `known` finds it; returns the file. Raises OSError."""
    path = _path(told["machine"], told["dtype"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, told)
    return path


def measure(
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int] = SIZES,
    sides: Sequence[int] = SIDES,
    repeats: int = REPEATS,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Measure a device: seconds, and a quarter of the free memory at most. `advance` is told of each size and side.

    Bytes are bytes whatever their type, so arrays are of float32; the products are of `dtype`, as torch is set for the
    models too (TF32). Every figure is the median of the repeats, with its quartiles.
    """
    bandwidth: list[dict[str, Any]] = []
    for size in sizes:
        if not bandwidth or size <= _free(device) / 4:
            bandwidth.append({"bytes": size} | _fastest(device, _movers(size, device), size, repeats))
        advance(1)
    products: list[dict[str, Any]] = []
    for side in sides:
        # Eight times the operations of half the side.
        if not products or 8 * 2 * (side / 2) ** 3 / products[-1]["median"] <= LONGEST:
            a, b = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
            work = _products(a, b)
            products.append({"side": side} | _fastest(device, work, 2 * side**3, repeats))
        advance(1)
    return {
        "schema": SCHEMA,
        "machine": _machine(device),
        "dtype": _name(dtype),
        "measured": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load": environment.load(),
        "bandwidth": bandwidth,
        "products": products,
    }


def _movers(size: int, device: torch.device) -> dict[str, Work]:
    """Ways to move `size` bytes: to read them all, or to read one half and write the other."""
    array = torch.ones(size // 4, device=device)
    half = len(array) // 2
    one, other = array[:half], array[half : 2 * half]
    return {"sum": lambda: array.sum(), "copy": lambda: one.copy_(other)}


def _products(a: Tensor, b: Tensor) -> dict[str, Work]:
    """Ways to multiply two square matrices; on a CPU also by oneDNN, with the second one laid out for it."""
    ways: dict[str, Work] = {"product": lambda: torch.mm(a, b)}
    if a.device.type == "cpu" and a.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(b, len(a))
        ways["laid out"] = lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")
    return ways


def _fastest(device: torch.device, ways: Mapping[str, Work], amount: int, repeats: int) -> dict[str, Any]:
    """The amount a second of the fastest way: its name, median and quartiles. The ways take turns."""
    passes = {}
    for name, work in ways.items():
        _seconds(device, work, 2)
        passes[name] = max(1, math.ceil(SHORTEST / max(_seconds(device, work, 1), 1e-6)))
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            speeds[name].append(amount / _seconds(device, work, passes[name]))
    best = max(speeds, key=lambda name: statistics.median(speeds[name]))
    low, median, high = np.quantile(speeds[best], [0.25, 0.5, 0.75]).tolist()
    return {"how": best, "median": median, "low": low, "high": high}


def _seconds(device: torch.device, work: Work, passes: int) -> float:
    """Of one pass of several that are started one behind the other."""
    watch = Stopwatch(device)
    watch.start()
    with watch.forward("", 0, 0):
        for _ in range(passes):
            work()
    watch.lap()
    return watch.laps()[0].forwards[0].seconds / passes


def _machine(device: torch.device) -> dict[str, Any]:
    found = environment.describe(device)
    return {name: found[name] for name in MACHINE} | {"torch": found["versions"]["torch"]}


def _free(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))


def _path(machine: Mapping[str, Any], dtype: torch.dtype | str) -> Path:
    digest = hashlib.sha256(json.dumps([dict(machine), _name(dtype)], sort_keys=True).encode()).hexdigest()[:16]
    return environment.cache_folder() / f"ceilings-{digest}.json"


def _name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")
