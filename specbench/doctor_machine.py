"""What would make this machine's numbers wrong: threads, limits, load, clocks, memory, the timer, torch, GPU and disk.

Every check reads a few small files, needs no model, and says `ok` where the system does not tell.
"""

import csv
import os
import platform
import shutil
import subprocess
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch

from specbench import environment
from specbench.measure import now

Level = Literal["ok", "warning", "error"]

ROOT = Path("/")  # of /proc and /sys
UNKNOWN = "not told by this system"
HOT, ABSURD = 90, 130  # degrees Celsius: throttling is near; a sensor that cannot be right
COARSE_TIMER = 5e-6  # seconds: 1 % of a forward of 0.5 ms, which is the fastest one to expect
LOW_MEMORY = 0.1  # share of memory that is left when swap begins to hurt
NO_SPACE, LITTLE_SPACE = 100 * 2**20, 2**30  # bytes: what `run` refuses, and what a long run may fill
GPU_BUSY, GPU_USED = 25, 2048  # percent and MiB that a desktop does not explain
GPU_FIELDS = "index,uuid,name,utilization.gpu,memory.used,temperature.gpu"
GPU_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new drivers, old drivers
SLOWDOWNS = {0x04: "power cap", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
# Governors that follow the load, and the drivers under which `powersave` does so, too.
FOLLOWING = {"schedutil", "ondemand"}
FOLLOWING_DRIVERS = {"intel_pstate", "amd-pstate", "amd-pstate-epp", "amd_pstate", "amd_pstate_epp"}


@dataclass(frozen=True)
class Finding:
    """What a check found; `remedy` is empty where there is nothing to do."""

    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Gpu:
    """One GPU as nvidia-smi tells it: percent, MiB, degrees Celsius, a bit mask; None where it does not tell."""

    index: str
    name: str
    busy: float | None
    used: float | None
    temperature: float | None
    slowed: int | None


def machine_findings(folder: Path, device: str = "auto") -> list[Finding]:
    """All checks of this machine; `folder` is where a run will be written, `device` what it will be given."""
    gpus = [] if device == "cpu" else read_gpus(device)
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
        gpu(gpus),
        disk(folder),
    ]


def threads() -> Finding:
    """More threads than cores take turns, and a forward waits for the slowest."""
    count, cpus, cores = torch.get_num_threads(), _usable_cpus(), _cores()
    if count > len(cpus):
        message = f"torch starts {_count(count, 'thread')}, but this process may use {_count(len(cpus), 'CPU')}"
    elif cores and count > cores:
        message = f"torch starts {_count(count, 'thread')} on {_count(cores, 'core')}: two on one core slow each other"
    else:
        return Finding("threads", "ok", f"{count}, for {_count(cores or len(cpus), 'core' if cores else 'CPU')}")
    return Finding("threads", "warning", message, f"set OMP_NUM_THREADS={min(cores or len(cpus), len(cpus))}")


def cpu_limit() -> Finding:
    """A container that uses up its share of CPU time is paused for the rest of every tenth of a second."""
    quota, total, count = _quota(), os.cpu_count() or 1, torch.get_num_threads()
    if quota is None:
        return Finding("CPU limit", "ok", UNKNOWN)
    if quota >= total:
        return Finding("CPU limit", "ok", "none below the number of CPUs")
    if count <= quota:
        return Finding("CPU limit", "ok", f"{quota:g} of {total} CPUs, enough for {_count(count, 'thread')}")
    more = " and give the container one CPU or more" if quota < 1 else ""
    return Finding(
        "CPU limit",
        "warning",
        f"the container may use {quota:g} of {total} CPUs, but torch starts {_count(count, 'thread')}: they are paused "
        "again and again",
        f"set OMP_NUM_THREADS={max(1, int(quota))}{more}",
    )


def busy() -> Finding:
    """Whether others compute: by the load of the last minute, if something other than this process runs right now."""
    try:
        load = environment.load()
    except OSError:
        return Finding("load", "ok", UNKNOWN)
    total = os.cpu_count() or 1
    if load > max(1.0, total / 2) and _others_run():
        message = f"{load:.1f} processes ran at a time in the last minute, on {_count(total, 'CPU')}, and still do"
        return Finding("load", "warning", message, "stop other work, or wait for its end")
    return Finding("load", "ok", f"{load:.1f} on {_count(total, 'CPU')}")


def clock() -> Finding:
    """Governors that follow the load are common and merely noted; one that holds the clock low is a warning."""
    folders = sorted(ROOT.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq"))
    governors = sorted({_text(folder / "scaling_governor") for folder in folders} - {""})
    drivers = {_text(folder / "scaling_driver") for folder in folders}
    if not governors:
        return Finding("clock", "ok", f"frequency scaling: {UNKNOWN}")
    boost = {"0": "on", "1": "off"}.get(_text("sys/devices/system/cpu/intel_pstate/no_turbo"))
    boost = boost or {"1": "on", "0": "off"}.get(_text("sys/devices/system/cpu/cpufreq/boost"))
    text = f"governor {', '.join(governors)}" + (f", turbo {boost}" if boost else "")
    follows = FOLLOWING | ({"powersave"} if drivers <= FOLLOWING_DRIVERS else set())
    if low := [name for name in governors if name != "performance" and name not in follows]:
        message = f"{text}: {', '.join(low)} holds the clock down or raises it late"
        return Finding("clock", "warning", message, "sudo cpupower frequency-set -g performance")
    if governors != ["performance"] or boost == "on":
        text += "; the clock follows load and heat: compare within a run, whose methods take turns"
    return Finding("clock", "ok", text)


def power() -> Finding:
    """A computer on its battery lowers its clocks."""
    for supply in ROOT.glob("sys/class/power_supply/*"):
        own = _text(supply / "scope") != "Device"  # not a mouse's
        if own and _text(supply / "type") == "Battery" and _text(supply / "status") == "Discharging":
            return Finding("power", "warning", "this computer runs on its battery", "plug it in")
    return Finding("power", "ok", "no battery is being discharged")


def heat() -> Finding:
    found = environment.temperature_c()
    if found is None or not 0 < found < ABSURD:
        return Finding("temperature", "ok", UNKNOWN)
    if found >= HOT:
        return Finding(
            "temperature", "warning", f"{found:.0f} °C: the clock will drop", "let it cool, or cool it better"
        )
    return Finding("temperature", "ok", f"{found:.0f} °C")


def memory() -> Finding:
    """Swap in use is common and harmless as long as memory is left."""
    pairs = (line.split(":") for line in _text("proc/meminfo").splitlines() if ":" in line)
    size = {name: number for name, rest in pairs if (number := _number(rest.replace("kB", ""))) is not None}
    if not {"MemTotal", "MemAvailable", "SwapTotal", "SwapFree"} <= size.keys():
        return Finding("memory", "ok", UNKNOWN)
    left, swapped = size["MemAvailable"] / 2**20, (size["SwapTotal"] - size["SwapFree"]) / 2**20
    text = f"{left:.1f} GiB left, {swapped:.1f} GiB in swap"
    if swapped > 0.05 and size["MemAvailable"] < LOW_MEMORY * size["MemTotal"]:
        return Finding("memory", "warning", f"{text}: models may be swapped out", "end other programs")
    return Finding("memory", "ok", text)


def timer() -> Finding:
    """The clock's step, or the time that reading it takes, whichever is longer."""
    looks = [[now() for _ in range(200)] for _ in range(10)]  # the quickest look was not interrupted
    steps = [later - earlier for look in looks for earlier, later in pairwise(look) if later > earlier]
    fine = max(min(steps, default=1.0), min(look[-1] - look[0] for look in looks) / len(looks[0]))
    if fine > COARSE_TIMER:
        source = _text("sys/devices/system/clocksource/clocksource0/current_clocksource")
        message = f"the clock has steps of {fine * 1e6:.0f} µs" + (f" (source {source})" if source else "")
        return Finding("timer", "warning", message, "choose the clock source tsc, or another machine")
    return Finding("timer", "ok", f"steps of {fine * 1e9:.0f} ns")


def torch_build(device: str = "auto") -> Finding:
    """Whether torch has its fast kernels, and can use the GPU that is there."""
    has = {"MKL": torch.backends.mkl.is_available(), "oneDNN": torch.backends.mkldnn.is_available()}
    lacks = [name for name, there in has.items() if not there]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    there = any(ROOT.glob("proc/driver/nvidia/gpus/*")) and not hidden and device != "cpu"
    if there and not torch.cuda.is_available():
        if torch.version.cuda is None:
            message = f"there is an NVIDIA GPU, but torch {torch.__version__} is built without CUDA"
            return Finding("torch", "warning", message, "install a torch with CUDA, or say --device cpu")
        message = f"there is an NVIDIA GPU, but torch (CUDA {torch.version.cuda}) cannot use it"
        return Finding("torch", "warning", message, "update the driver, or say --device cpu")
    if len(lacks) == len(has) and platform.machine().lower() in ("x86_64", "amd64"):
        message = "torch has neither MKL nor oneDNN: forwards on this CPU are slow"
        return Finding("torch", "warning", message, "install torch from pytorch.org's wheels")
    text = ", ".join([*(name for name in has if name not in lacks), *([f"CUDA {torch.version.cuda}"] if there else [])])
    return Finding("torch", "ok", f"{torch.__version__} with {text or 'its own kernels'}")


def gpu(gpus: list[Gpu]) -> Finding:
    """Whether others use the GPU, or it is slowed down."""
    wrong = []
    for one in gpus:
        if one.busy is not None and one.busy >= GPU_BUSY:
            wrong.append(f"GPU {one.index} is busy ({one.busy:.0f} %)")
        if one.used is not None and one.used >= GPU_USED and not torch.cuda.is_initialized():
            wrong.append(f"others hold {one.used / 1024:.1f} GiB of GPU {one.index}")
        reasons = {text: None for bit, text in SLOWDOWNS.items() if (one.slowed or 0) & bit}
        if reasons:
            wrong.append(f"GPU {one.index} is slowed down ({', '.join(reasons)})")
    if wrong:
        return Finding("GPU", "warning", "; ".join(wrong), "see nvidia-smi; wait, cool it, or choose another --device")
    idle = "; ".join(
        f"{one.index}: {one.name}, {_value(one.busy, '%')}, {_value(one.temperature, '°C')}" for one in gpus
    )
    return Finding("GPU", "ok", idle or "none that is used")


def disk(folder: Path) -> Finding:
    """Whether the folder of a run, which need not exist yet, can be written and has room."""
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(place).free
    room = f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.0f} MiB"
    if not os.access(place, os.W_OK):
        return Finding("disk", "error", f"{place} cannot be written", "choose another folder with --out")
    if free < LITTLE_SPACE:
        level: Level = "error" if free < NO_SPACE else "warning"
        return Finding("disk", level, f"{place} has {room} left", "make room, or choose another folder with --out")
    return Finding("disk", "ok", f"{room} left")


def read_gpus(device: str = "auto") -> list[Gpu]:
    """The GPUs that a device of this name means, by nvidia-smi; none where there is no such program or it fails."""
    if not shutil.which("nvidia-smi"):
        return []
    for reasons in GPU_REASONS:
        query = ["nvidia-smi", f"--query-gpu={GPU_FIELDS},{reasons}", "--format=csv,noheader,nounits"]
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
        named = [name.strip() for name in visible.split(",") if name.strip()]
        rows = [row for name in named for row in rows if row[0] == name or row[1].startswith(name)]
    if device != "spread":
        at = int(device[5:]) if device.startswith("cuda:") and device[5:].isdigit() else 0
        rows = rows[at : at + 1]
    return [
        Gpu(index, name, _number(use), _number(used), _number(degrees), int(bits, 16) if bits[:2] == "0x" else None)
        for index, _, name, use, used, degrees, bits in rows
    ]


def _usable_cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _cores() -> int | None:
    """Physical cores among the CPUs that this process may use."""
    folders = [ROOT / f"sys/devices/system/cpu/cpu{cpu}/topology" for cpu in _usable_cpus()]
    found = {(_text(folder / "physical_package_id"), _text(folder / "core_id")) for folder in folders}
    return len(found) if found and all(core for _, core in found) else None


def _quota() -> float | None:
    """CPUs that the control group and those above it may use (infinite: no limit); None if there is no such file."""
    own = next((line[3:] for line in _text("proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    top = ROOT / "sys/fs/cgroup"
    inner = top / own.strip("/")
    texts = [_text(folder / "cpu.max") for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    for old in (top / "cpu", top / "cpu,cpuacct"):  # version 1
        texts.append(f"{_text(old / 'cpu.cfs_quota_us').replace('-1', 'max')} {_text(old / 'cpu.cfs_period_us')}")
    limits = [text.split() for text in texts if len(text.split()) == 2]
    numbers = [(_number(quota), _number(period)) for quota, period in limits if quota != "max"]
    return min((q / p for q, p in numbers if q and p), default=float("inf")) if limits else None


def _others_run() -> bool:
    """Whether something besides this process is ready to run, at each of a few looks; true if it is not told."""
    for _ in range(5):
        fields = _text("proc/loadavg").split()
        running = _number(fields[3].partition("/")[0]) if len(fields) > 3 else None
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


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _value(number: float | None, unit: str) -> str:
    return "-" if number is None else f"{number:.0f} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
