"""Checks of the machine: threads, limits, load, clocks, memory, the timer, torch, GPU and disk.

They find what would make measured times wrong. Each one reads a few small files, needs no model, and says `ok` if the
system does not tell.
"""

import os
import platform
import shutil
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from specbench.base import environment
from specbench.base.environment import number
from specbench.engine.clock import now
from specbench.results.aside import reasons

if TYPE_CHECKING:
    from specbench.measure.gpus import Gpu

Level = Literal["ok", "warning", "error"]

ROOT = Path("/")  # of /proc and /sys
UNKNOWN = "unknown on this system"
HOT, ABSURD = 90, 130  # degrees Celsius: throttling is near; a sensor that cannot be right
COARSE_TIMER = 5e-6  # seconds: 1 % of a forward of 0.5 ms, the fastest to expect
LOW_MEMORY = 0.1  # with less than this share of the memory free, swap hurts
NO_SPACE, LITTLE_SPACE = 100 * 2**20, 2**30  # bytes: `run` refuses less; a long run may fill more
GPU_BUSY, GPU_USED = 25, 2048  # percent and MiB: more than a desktop takes
# Governors that follow the load, and the drivers under which `powersave` does so too.
FOLLOWING = {"schedutil", "ondemand"}
FOLLOWING_DRIVERS = {"intel_pstate", "amd-pstate", "amd-pstate-epp", "amd_pstate", "amd_pstate_epp"}


@dataclass(frozen=True)
class Diagnosis:
    """The result of a check; `remedy` is empty if there is nothing to do."""

    check: str
    level: Level
    message: str
    remedy: str = ""


def machine_findings(folder: Path, device: str = "auto") -> list[Diagnosis]:
    """All checks, for a run on `device` that will be written to `folder`."""
    return [
        threads(),
        cpu_limit(),
        busy(),
        clock(),
        power(),
        heat(),
        memory(),
        timer(),
        torch_build(device),
        gpu(_gpus(device)),
        disk(folder),
    ]


def _gpus(device: str) -> "list[Gpu]":
    """The GPUs that `device` means; none where no driver tells."""
    if device == "cpu" or not shutil.which("nvidia-smi"):
        return []
    from specbench.measure.gpus import read_gpus

    return read_gpus(device)


def threads() -> Diagnosis:
    """Threads: if there are more than cores they take turns, and a forward waits for the slowest."""
    count, cpus, cores = torch.get_num_threads(), _usable_cpus(), _cores()
    if count > len(cpus):
        message = f"torch starts {_count(count, 'thread')}, but this process may use {_count(len(cpus), 'CPU')}"
    elif cores and count > cores:
        message = f"torch starts {_count(count, 'thread')} on {_count(cores, 'core')}: two on one core slow each other"
    else:
        return Diagnosis("threads", "ok", f"{count}, for {_count(cores or len(cpus), 'core' if cores else 'CPU')}")
    return Diagnosis("threads", "warning", message, f"set OMP_NUM_THREADS={min(cores or len(cpus), len(cpus))}")


def cpu_limit() -> Diagnosis:
    """A container's limit: one that has used its share of CPU time is paused for the rest of each tenth of a second."""
    quota, total, count = _quota(), os.cpu_count() or 1, torch.get_num_threads()
    if quota is None:
        return Diagnosis("CPU limit", "ok", UNKNOWN)
    if quota >= total:
        return Diagnosis("CPU limit", "ok", "none below the number of CPUs")
    if count <= quota:
        return Diagnosis("CPU limit", "ok", f"{quota:g} of {total} CPUs, enough for {_count(count, 'thread')}")
    more = " and give the container one CPU or more" if quota < 1 else ""
    return Diagnosis(
        "CPU limit",
        "warning",
        f"the container may use {quota:g} of {total} CPUs, but torch starts {_count(count, 'thread')}: they are paused "
        "again and again",
        f"set OMP_NUM_THREADS={max(1, int(quota))}{more}",
    )


def busy() -> Diagnosis:
    """Other work: a high load over the last minute, and something besides this process running right now."""
    try:
        load = environment.load_average()
    except OSError:
        return Diagnosis("load", "ok", UNKNOWN)
    total = os.cpu_count() or 1
    if load > max(1.0, total / 2) and _others_run():
        message = f"{load:.1f} processes ran at a time in the last minute, on {_count(total, 'CPU')}, and still do"
        return Diagnosis("load", "warning", message, "stop other work, or wait for its end")
    return Diagnosis("load", "ok", f"{load:.1f} on {_count(total, 'CPU')}")


def clock() -> Diagnosis:
    """The frequency governor: one that follows the load is common and only noted, one that holds it low is not."""
    folders = sorted(ROOT.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq"))
    governors = sorted({_text(folder / "scaling_governor") for folder in folders} - {""})
    drivers = {_text(folder / "scaling_driver") for folder in folders}
    if not governors:
        return Diagnosis("clock", "ok", f"frequency scaling: {UNKNOWN}")
    boost = {"0": "on", "1": "off"}.get(_text("sys/devices/system/cpu/intel_pstate/no_turbo"))
    boost = boost or {"1": "on", "0": "off"}.get(_text("sys/devices/system/cpu/cpufreq/boost"))
    text = f"governor {', '.join(governors)}" + (f", turbo {boost}" if boost else "")
    follows = FOLLOWING | ({"powersave"} if drivers <= FOLLOWING_DRIVERS else set())
    if low := [name for name in governors if name != "performance" and name not in follows]:
        message = f"{text}: {', '.join(low)} holds the clock down or raises it late"
        return Diagnosis("clock", "warning", message, "sudo cpupower frequency-set -g performance")
    if governors != ["performance"] or boost == "on":
        text += "; the clock follows load and heat: compare within a run, whose methods take turns"
    return Diagnosis("clock", "ok", text)


def power() -> Diagnosis:
    """The battery: a computer that runs on it lowers its clocks."""
    for supply in ROOT.glob("sys/class/power_supply/*"):
        is_computers = _text(supply / "scope") != "Device"  # a mouse's battery is a device's
        if is_computers and _text(supply / "type") == "Battery" and _text(supply / "status") == "Discharging":
            return Diagnosis("power", "warning", "this computer runs on its battery", "plug it in")
    return Diagnosis("power", "ok", "no battery is being discharged")


def heat() -> Diagnosis:
    """The temperature."""
    celsius = environment.temperature_c()
    if celsius is None or not 0 < celsius < ABSURD:
        return Diagnosis("temperature", "ok", UNKNOWN)
    text = f"{celsius:.0f} °C"
    if celsius >= HOT:
        return Diagnosis("temperature", "warning", f"{text}: the clock will drop", "let it cool, or cool it better")
    return Diagnosis("temperature", "ok", text)


def memory() -> Diagnosis:
    """Memory: swap in use is common, and harmless as long as memory is free."""
    pairs = (line.split(":") for line in _text("proc/meminfo").splitlines() if ":" in line)
    size = {name: kib for name, rest in pairs if (kib := number(rest.replace("kB", ""))) is not None}
    if not {"MemTotal", "MemAvailable", "SwapTotal", "SwapFree"} <= size.keys():
        return Diagnosis("memory", "ok", UNKNOWN)
    left, swapped = size["MemAvailable"] / 2**20, (size["SwapTotal"] - size["SwapFree"]) / 2**20
    text = f"{left:.1f} GiB left, {swapped:.1f} GiB in swap"
    if swapped > 0.05 and size["MemAvailable"] < LOW_MEMORY * size["MemTotal"]:
        return Diagnosis("memory", "warning", f"{text}: models may be swapped out", "end other programs")
    return Diagnosis("memory", "ok", text)


def timer() -> Diagnosis:
    """The timer: its step, or the time that it takes to read it, whichever is longer."""
    series = [[now() for _ in range(200)] for _ in range(10)]  # the quickest series was not interrupted
    steps = [later - earlier for times in series for earlier, later in pairwise(times) if later > earlier]
    step = max(min(steps, default=1.0), min(times[-1] - times[0] for times in series) / len(series[0]))
    if step > COARSE_TIMER:
        source = _text("sys/devices/system/clocksource/clocksource0/current_clocksource")
        message = f"the clock has steps of {step * 1e6:.0f} µs" + (f" (source {source})" if source else "")
        return Diagnosis("timer", "warning", message, "choose the clock source tsc, or another machine")
    return Diagnosis("timer", "ok", f"steps of {step * 1e9:.0f} ns")


def torch_build(device: str = "auto") -> Diagnosis:
    """The build of torch: its fast kernels, and its use of a GPU that is there."""
    has = {"MKL": torch.backends.mkl.is_available(), "oneDNN": torch.backends.mkldnn.is_available()}
    lacks = [name for name, there in has.items() if not there]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    there = any(ROOT.glob("proc/driver/nvidia/gpus/*")) and not hidden and device != "cpu"
    if there and not torch.cuda.is_available():
        if torch.version.cuda is None:
            message = f"there is an NVIDIA GPU, but torch {torch.__version__} is built without CUDA"
            return Diagnosis("torch", "warning", message, "install a torch with CUDA, or say --device cpu")
        message = f"there is an NVIDIA GPU, but torch (CUDA {torch.version.cuda}) cannot use it"
        return Diagnosis("torch", "warning", message, "update the driver, or say --device cpu")
    if len(lacks) == len(has) and platform.machine().lower() in ("x86_64", "amd64"):
        message = "torch has neither MKL nor oneDNN: forwards on this CPU are slow"
        return Diagnosis("torch", "warning", message, "install torch from pytorch.org's wheels")
    text = ", ".join([*(name for name in has if name not in lacks), *([f"CUDA {torch.version.cuda}"] if there else [])])
    return Diagnosis("torch", "ok", f"{torch.__version__} with {text or 'its own kernels'}")


def gpu(gpus: "list[Gpu]") -> Diagnosis:
    """The GPUs: others that use them, and reasons why they are slowed down."""
    wrong = []
    for device in gpus:
        if device.busy is not None and device.busy >= GPU_BUSY:
            wrong.append(f"GPU {device.index} is busy ({device.busy:.0f} %)")
        if device.used is not None and device.used >= GPU_USED and not torch.cuda.is_initialized():
            wrong.append(f"others hold {device.used / 1024:.1f} GiB of GPU {device.index}")
        if why := reasons(device.slowed or 0):
            wrong.append(f"GPU {device.index} is slowed down ({why})")
    if wrong:
        return Diagnosis(
            "GPU", "warning", "; ".join(wrong), "see nvidia-smi; wait, cool it, or choose another --device"
        )
    idle = "; ".join(
        f"{device.index}: {device.name}, {_value(device.busy, '%')}, {_value(device.temperature, '°C')}"
        for device in gpus
    )
    return Diagnosis("GPU", "ok", idle or "none that is used")


def disk(folder: Path) -> Diagnosis:
    """The disk: the folder of a run, which need not exist yet, must be writable and have room."""
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    room = f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.0f} MiB"
    if not os.access(place, os.W_OK):
        return Diagnosis("disk", "error", f"{place} cannot be written", "choose another folder with --out")
    if free < LITTLE_SPACE:
        level: Level = "error" if free < NO_SPACE else "warning"
        return Diagnosis("disk", level, f"{place} has {room} left", "make room, or choose another folder with --out")
    return Diagnosis("disk", "ok", f"{room} left")


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _cores() -> int | None:
    """Physical cores among the CPUs that this process may use."""
    folders = [ROOT / f"sys/devices/system/cpu/cpu{cpu}/topology" for cpu in _usable_cpus()]
    cores = {(_text(folder / "physical_package_id"), _text(folder / "core_id")) for folder in folders}
    return len(cores) if cores and all(core for _, core in cores) else None


def _quota() -> float | None:
    """The CPUs that the control group and those above it may use: infinite without a limit, None if unknown."""
    group = next((line[3:] for line in _text("proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    top = ROOT / "sys/fs/cgroup"
    inner = top / group.strip("/")
    texts = [_text(folder / "cpu.max") for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    for old in (top / "cpu", top / "cpu,cpuacct"):  # version 1
        texts.append(f"{_text(old / 'cpu.cfs_quota_us').replace('-1', 'max')} {_text(old / 'cpu.cfs_period_us')}")
    limits = [text.split() for text in texts if len(text.split()) == 2]
    numbers = [(number(quota), number(period)) for quota, period in limits if quota != "max"]
    return min((q / p for q, p in numbers if q and p), default=float("inf")) if limits else None


def _others_run() -> bool:
    """True if something besides this process is ready to run, each time of a few; also if the system does not tell."""
    for _ in range(5):
        fields = _text("proc/loadavg").split()
        running = number(fields[3].partition("/")[0]) if len(fields) > 3 else None
        states = [_text(path).rpartition(")")[2].split() for path in ROOT.glob("proc/self/task/*/stat")]
        if running is not None and running <= sum(state[:1] == ["R"] for state in states):
            return False
        time.sleep(0.01)
    return True


def _text(path: str | Path) -> str:
    try:
        return (ROOT / path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _value(number: float | None, unit: str) -> str:
    return "-" if number is None else f"{number:.0f} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def quick_lines(folder: Path, device: str = "auto") -> list[str]:
    """The warnings, one line each, for the start of a run in `folder`; an error ends the run by itself."""
    return [
        f"{finding.level}: {finding.check}: {finding.message}; {finding.remedy}"
        for finding in machine_findings(folder, device)
        if finding.level == "warning"
    ]
