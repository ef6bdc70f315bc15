"""The state of the GPUs, as nvidia-smi tells it."""

import csv
import os
import shutil
import subprocess
from dataclasses import dataclass

FIELDS = "index,uuid,name,utilization.gpu,memory.used,temperature.gpu"
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new drivers, old drivers


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
    if not shutil.which("nvidia-smi"):
        return []
    for reasons in REASONS:
        query = ["nvidia-smi", f"--query-gpu={FIELDS},{reasons}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            return []
        if done.returncode == 0:
            break
    else:
        return []
    rows = [row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if len(row) == 7]
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


def number(text: str) -> float | None:
    """A text as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
