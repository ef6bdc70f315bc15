"""The state of the GPUs, as nvidia-smi tells it: before a run, and while it decodes."""

import csv
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.base.environment import number
from specbench.base.files import write_json
from specbench.base.untrusted import parse_json
from specbench.config import UserError
from specbench.results.aside import GPUS

FIELDS = "index,uuid,name,utilization.gpu,memory.used,temperature.gpu"
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new drivers, old drivers
# Of the manifest. Clocks that were locked show in that they did not move: no field tells it.
FACTS = {
    "clocks.sm": "clock_mhz",
    "clocks.max.sm": "most_clock_mhz",
    "clocks.applications.graphics": "application_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "power.draw": "power_w",
    "power.limit": "most_power_w",
    "temperature.gpu": "temperature_c",
    "ecc.mode.current": "ecc",
    "ecc.errors.uncorrected.volatile.total": "ecc_errors",
    "persistence_mode": "persistence",
}
WATCHED = "index,clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used"
EVERY = 500  # milliseconds between two looks; one program that stays does not start again each time


@dataclass(frozen=True)
class Gpu:
    """One GPU; None where nvidia-smi does not tell."""

    index: str
    name: str
    busy: float | None  # percent
    used: float | None  # MiB
    temperature: float | None  # degrees Celsius
    slowed: int | None  # a bit mask of reasons


def read_gpus(device: str = "auto") -> list[Gpu]:
    """The GPUs that `device` means; none if nvidia-smi is missing or fails."""
    told = next(filter(None, (_asked(f"{FIELDS},{reasons}") for reasons in REASONS)), [])
    rows = [row for row in told if len(row) == 7]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",") if name.strip()]
        rows = [row for name in names for row in rows if row[0] == name or row[1].startswith(name)]
    if device != "spread":
        place = int(device[5:]) if device.startswith("cuda:") and device[5:].isdigit() else 0
        rows = rows[place : place + 1]
    return [
        Gpu(index, name, number(use), number(used), number(degrees), int(bits, 16) if bits[:2] == "0x" else None)
        for index, _, name, use, used, degrees, bits in rows
    ]


def facts(device: str) -> list[dict[str, Any]]:
    """What a manifest keeps of the GPUs that `device` means: clocks, power, ECC and its errors; none on a CPU."""
    chosen = [] if device == "cpu" else [gpu.index for gpu in read_gpus(device)]
    kept = []
    for row in _asked("index," + ",".join(FACTS)) if chosen else ():
        if row[0] in chosen and len(row) == len(FACTS) + 1:
            values = (text if (value := number(text)) is None else value for text in row[1:])
            kept.append({"index": int(row[0]), **dict(zip(FACTS.values(), values, strict=True))})
    return kept


@contextmanager
def watched(device: str) -> Iterator[list[dict[str, Any]]]:
    """Look at the GPUs that `device` means all the while; at the end the list has a row for each.

    A row has the number of looks, the least, median and highest clock, the highest power, temperature and memory in
    use, and as `slowed` every reason for lower clocks that was active in any look, as NVML's bits.
    """
    found: list[dict[str, Any]] = []
    chosen = [] if device == "cpu" else read_gpus(device)
    if not chosen:
        yield found
        return
    reasons = next((one for one in REASONS if _asked(f"index,{one}")), REASONS[0])
    query = ["nvidia-smi", f"--id={','.join(gpu.index for gpu in chosen)}", f"--query-gpu={WATCHED},{reasons}"]
    with tempfile.TemporaryFile("w+") as told:
        looking = subprocess.Popen(
            [*query, "--format=csv,noheader,nounits", f"--loop-ms={EVERY}"], stdout=told, stderr=subprocess.DEVNULL
        )
        try:
            yield found
        finally:
            looking.terminate()
            looking.wait()
            told.seek(0)
            found += _summed([row for row in csv.reader(told, skipinitialspace=True) if len(row) == 7])


def _summed(rows: list[list[str]]) -> list[dict[str, Any]]:
    """A row for each GPU of all looks at it."""
    found = []
    for index in dict.fromkeys(row[0] for row in rows if row[0].isdigit()):
        own = [row for row in rows if row[0] == index]
        columns = [[value for row in own if (value := number(row[place])) is not None] for place in range(1, 6)]
        clocks, memory_clocks, power, heat, memory = columns
        bits = 0
        for row in own:
            bits |= int(row[6], 16) if row[6][:2] == "0x" else 0
        found.append(
            {
                "index": int(index),
                "looks": len(own),
                "clock_mhz": [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None,
                "memory_clock_mhz": max(memory_clocks, default=None),
                "power_w": max(power, default=None),
                "temperature_c": max(heat, default=None),
                "memory_mib": max(memory, default=None),
                "slowed": bits,
            }
        )
    return found


@contextmanager
def recorded(folder: Path, device: str) -> Iterator[None]:
    """`watched`, into a run's folder, after what earlier parts of the run have put there."""
    with watched(device) as found:
        yield
    if found:
        path = folder / GPUS
        try:
            before = parse_json(path.read_text(), str(path), "") if path.exists() else []
        except UserError:
            before = []
        write_json(path, [*(before if isinstance(before, list) else []), *found])


def _asked(fields: str) -> list[list[str]]:
    """What nvidia-smi tells of all GPUs; nothing if it is missing, fails, or does not know a field."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(csv.reader(done.stdout.splitlines(), skipinitialspace=True)) if done.returncode == 0 else []
