"""Measure what a machine can do at best, once, for `results.ceilings` to keep."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.base import environment
from specbench.base.console import progress, say, warn
from specbench.config import PairSpec
from specbench.config import load_pair as read_pair
from specbench.engine.clock import Stopwatch, free_memory
from specbench.engine.models.pair import Pair, load_pair
from specbench.measure import machine
from specbench.results import ceilings
from specbench.results.ceilings import SCHEMA, dtype_name, machine_facts

# Bytes, 1 MiB to 1 GiB. Small models lie in a cache, and the steps are smaller where caches end.
SIZES = tuple(sorted([*(2**k for k in range(20, 31)), *(3 * 2**k for k in range(21, 26))]))
SIDES = (256, 512, 1024, 2048, 4096, 8192)  # of square matrices
STEPS = len(SIZES) + len(SIDES)
REPEATS = 7
SHORTEST = 0.02  # seconds of a repeat
LONGEST = 0.15  # seconds of one product; larger products are left out

Work = Callable[[], object]


def measure_ceilings(pair: str | PairSpec, device: str, dtype: str) -> dict[str, Any]:
    """Measure the ceilings of the machine, in the type of a pair's target, and keep them unless it is busy."""
    loaded = load_pair(read_pair(pair), device, dtype)
    others = machine.busy()
    measured = _measured(loaded)
    if others.remedy:
        warn(f"not kept, as ceilings of a busy machine are too low ({others.message}): {others.remedy}")
    else:
        _keep(measured)
    return measured


def machine_ceilings(pair: Pair) -> dict[str, Any] | None:
    """The ceilings of the machine for a pair, measured now if they are not known; None on a busy machine."""
    if known := ceilings.stored(pair.device, pair.models["target"].dtype):
        return known
    if (others := machine.busy()).remedy:
        warn(f"ceilings are not measured on a busy machine ({others.message}), so limits are not known")
        return None
    measured = _measured(pair)
    _keep(measured)
    return measured


def _measured(pair: Pair) -> dict[str, Any]:
    with progress("ceilings", STEPS) as advance, torch.inference_mode():
        return measure(pair.device, pair.models["target"].dtype, advance=advance)


def _keep(measured: Mapping[str, Any]) -> None:
    try:
        say(f"written: {ceilings.save(measured)}")
    except OSError as error:
        warn(f"the ceilings of this machine cannot be kept ({error}); set SPECBENCH_CACHE to a writable folder")


def measure(
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int] = SIZES,
    sides: Sequence[int] = SIDES,
    repeats: int = REPEATS,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """Measure a device, which takes some seconds and at most a quarter of the free memory.

    Arrays are float32, since only their bytes count. Products are of `dtype`, with torch set as it is for the models
    (TF32). Every figure is the median of the repeats, with its quartiles. `advance` is called after each size and side.
    """
    bandwidth: list[dict[str, Any]] = []
    for size in sizes:
        if not bandwidth or size <= free_memory(device) / 4:
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
        "machine": machine_facts(device),
        "dtype": dtype_name(dtype),
        "measured": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "load": environment.load_average(),
        "bandwidth": bandwidth,
        "products": products,
    }


def _movers(size: int, device: torch.device) -> dict[str, Work]:
    """Ways to move `size` bytes: read all of them, or read one half and write the other."""
    array = torch.ones(size // 4, device=device)
    half = len(array) // 2
    target, source = array[:half], array[half : 2 * half]
    return {"sum": lambda: array.sum(), "copy": lambda: target.copy_(source)}


def _products(a: Tensor, b: Tensor) -> dict[str, Work]:
    """Ways to multiply two square matrices; on a CPU also oneDNN with the second matrix in its own layout."""
    ways: dict[str, Work] = {"product": lambda: torch.mm(a, b)}
    if a.device.type == "cpu" and a.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(b, len(a))
        ways["laid out"] = lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")
    return ways


def _fastest(device: torch.device, ways: Mapping[str, Work], amount: int, repeats: int) -> dict[str, Any]:
    """The fastest way: its name, and the median and quartiles of its amount per second. The ways take turns."""
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
    """Seconds of one pass, from several passes started back to back."""
    watch = Stopwatch(device)
    watch.start()
    with watch.forward("", 0, 0):
        for _ in range(passes):
            work()
    watch.lap()
    return watch.laps()[0].forwards[0].seconds / passes
