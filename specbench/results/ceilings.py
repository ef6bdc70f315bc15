"""What a machine can do at best: bytes read or copied per second, and operations per second in large matrix products.

`studies.ceilings` measures it once for each device, number of threads, type and version of torch. It is kept in a file
in the cache folder.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.base import environment
from specbench.base.errors import UserError
from specbench.base.files import write_json
from specbench.base.hashes import short_hash
from specbench.base.stats import Floats
from specbench.base.untrusted import read_object
from specbench.results.check_manifest import StoredCeilings as Measured

if TYPE_CHECKING:
    import torch

SCHEMA = 1
MACHINE = ("device", "cpu", "cores", "threads", "driver")  # of the environment


@dataclass(frozen=True)
class Ceilings:
    """Measured `speeds` (bytes/s) by array size in bytes (`sizes`, ascending), and `operations` per second."""

    sizes: Floats
    speeds: Floats
    operations: float

    def bandwidth(self, size: Any) -> Any:
        """Bytes/s at which `size` bytes (a number or an array) can be read over and over again.

        Interpolates linearly in the logarithm of the size; outside the measured sizes, the nearest one counts.
        """
        return np.interp(np.log(size), np.log(self.sizes), self.speeds)


def read(measured: Mapping[str, Any]) -> Ceilings:
    """The ceilings in what `studies.ceilings.measure` returned.

    A small array can be read at least as fast as a larger one that contains it. If it measured slower, that is the cost
    of starting the work (on a GPU above all), not the memory, so speeds never rise with size.
    """
    rows = sorted(measured["bandwidth"], key=lambda row: float(row["bytes"]))
    sizes, speeds = (np.array([row[name] for row in rows], float) for name in ("bytes", "median"))
    best = max(float(row["median"]) for row in measured["products"])
    return Ceilings(sizes, np.maximum.accumulate(speeds[::-1])[::-1], best)


def stored(device: "torch.device", dtype: "torch.dtype") -> dict[str, Any] | None:
    """What was measured on this machine with the same number of threads; None if nothing was.

    A damaged file counts as nothing, so that the machine is measured again.
    """
    machine = machine_facts(device)
    try:
        kept = read_object(_path(machine, dtype))
        Measured.model_validate(kept)
        same = (kept["schema"], kept["machine"], kept["dtype"]) == (SCHEMA, machine, dtype_name(dtype))
    except (UserError, ValueError, LookupError, TypeError, ArithmeticError):
        return None
    return kept if same else None


def save(measured: Mapping[str, Any]) -> Path:
    """Write what was measured to where `load` looks for it; return the file. Raises OSError."""
    path = _path(measured["machine"], measured["dtype"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, measured)
    return path


def machine_facts(device: "torch.device") -> dict[str, Any]:
    """What the ceilings depend on: the processor, the number of threads, the version of torch."""
    facts = environment.describe(device)
    return {name: facts[name] for name in MACHINE} | {"torch": facts["versions"]["torch"]}


def _path(machine: Mapping[str, Any], dtype: "torch.dtype | str") -> Path:
    digest = short_hash(json.dumps([dict(machine), dtype_name(dtype)], sort_keys=True))
    return environment.cache_folder() / f"ceilings-{digest}.json"


def dtype_name(dtype: "torch.dtype | str") -> str:
    return str(dtype).removeprefix("torch.")
