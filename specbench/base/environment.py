"""The machine and its software: hardware, driver, versions, threads, and how busy it is."""

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LIBRARIES = (
    "specbench-harness",
    "torch",
    "transformers",
    "tokenizers",
    "lm_eval",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
)
# Runs may be compared only if these agree.
MUST_AGREE = ("device", "cpu", "cores", "threads", "driver", "versions")
# What --allow-mismatch may name.
MISMATCHES = (
    *MUST_AGREE,
    *(
        "draft_device",
        "dtype",
        "weights",
        "runtime",
        "prefix",
        "batch",
        "requests",
        "baseline",
        "documents",
        "prompts",
        "models",
    ),
)


def cache_folder() -> Path:
    """Where exports and measured ceilings are kept: $SPECBENCH_CACHE, else `specbench` in the user's cache folder."""
    if folder := os.environ.get("SPECBENCH_CACHE"):
        return Path(folder).expanduser()
    common = os.environ.get("XDG_CACHE_HOME")
    return (Path(common) if common else Path.home() / ".cache") / "specbench"


def describe(device: "torch.device", draft_device: "torch.device | None" = None) -> dict[str, Any]:
    """This machine and its software, as a manifest records them; with the draft's device if it is another one."""
    import torch  # here, as what reads runs needs only the other functions, and no torch

    cuda = device.type == "cuda"
    apart = {} if draft_device is None else {"draft_device": _name(draft_device)}
    return {
        "device": _name(device),
        **apart,
        "device_memory": torch.cuda.get_device_properties(device).total_memory if cuda else _memory_total(),
        "driver": _driver() if cuda or (draft_device and draft_device.type == "cuda") else "",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(),
        "git": git_state(),
        "load": load_average(),
        "clock_mhz": clock_mhz(),
        "temperature_c": temperature_c(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _name(device: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def origin(device: "torch.device") -> dict[str, str]:
    """The host's name and what `device` is there: a GPU's UUID, or the CPU's name and number of cores."""
    import torch

    name = f"{os.cpu_count()} cores of {_cpu_model()}" if device.type == "cpu" else str(device)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        uuid = getattr(properties, "uuid", None)  # not of every build of torch
        name = f"GPU-{uuid}" if uuid else f"{properties.name}, {device}"
    return {"host": platform.node(), "device": name}


def versions() -> dict[str, str]:
    """The versions of the libraries that figures depend on; empty for one that is not installed."""
    return {name: _version(name) for name in LIBRARIES}


def load_average() -> float:
    """The number of runnable processes, averaged over the last minute."""
    return os.getloadavg()[0]


def clock_mhz() -> float | None:
    """The mean clock of the cores; None if the system does not tell it."""
    clocks = [float(line.split(":")[1]) for line in _lines("/proc/cpuinfo") if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None


def temperature_c() -> float | None:
    """The temperature of the hottest thermal zone; None if the system does not tell it."""
    zones = [_lines(path) for path in Path("/sys/class/thermal").glob("thermal_zone*/temp")]
    readings = [int(lines[0]) / 1000 for lines in zones if lines and lines[0].strip().lstrip("-").isdigit()]
    return max(readings, default=None)


def git_state() -> str:
    """The commit of the package's checkout, with `+changes` if files differ from it; empty outside a checkout."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5)
        status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return commit.stdout.strip()[:12] + ("+changes" if status.stdout.strip() else "") if commit.returncode == 0 else ""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.split("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cpu_model() -> str:
    names = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory_total() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def number(text: str) -> float | None:
    """A text as a number; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
