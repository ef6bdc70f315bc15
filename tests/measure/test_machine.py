"""What is said of a machine: every check made to fail by a fake, and quiet where all is well or nothing is told."""

import shutil
import time
from pathlib import Path

import pytest
import torch
from fake_smi import HOT, IDLE
from fake_smi import smi as smi

from specbench.base import environment
from specbench.measure import machine as machine_checks
from specbench.measure.gpus import read_gpus
from specbench.measure.machine import Diagnosis
from specbench.studies import doctor

UNKNOWN = "unknown on this system"
CPU = "sys/devices/system/cpu"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Make a machine of files: a function of {path: text}. It has 8 CPUs, and torch 2 threads."""
    monkeypatch.setattr(machine_checks, "ROOT", tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(machine_checks, "_usable_cpus", lambda: set(range(8)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        return tmp_path

    return make


def topology(cores: int, cpus: int) -> dict[str, str]:
    """CPUs dealt to the cores of one package."""
    files = {f"{CPU}/cpu{i}/topology/core_id": str(i % cores) for i in range(cpus)}
    return files | {f"{CPU}/cpu{i}/topology/physical_package_id": "0" for i in range(cpus)}


def test_a_machine_that_tells_nothing_is_well(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "load_average", lambda: (_ for _ in ()).throw(OSError()))
    monkeypatch.setattr(environment, "temperature_c", lambda: None)
    monkeypatch.setenv("PATH", "")
    machine({})
    by_name = {finding.check: finding for finding in doctor.machine_findings(tmp_path)}
    assert {one.level for one in by_name.values()} == {"ok"}
    unknown = {"CPU limit", "load", "clock", "temperature", "memory"}
    assert {name for name, one in by_name.items() if UNKNOWN in one.message} == unknown
    assert machine_checks.quick_lines(tmp_path) == []


def test_the_machine_is_looked_at_quickly(tmp_path):
    began = time.process_time()
    doctor.machine_findings(tmp_path)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("count", "cores", "usable", "level", "remedy"),
    [
        (4, 4, 8, "ok", ""),
        (1, 4, 8, "ok", ""),
        (8, 4, 8, "warning", "OMP_NUM_THREADS=4"),  # two threads of a core
        (4, 4, 2, "warning", "OMP_NUM_THREADS=2"),  # pinned to two CPUs
        (8, None, 8, "ok", ""),
        (9, None, 8, "warning", "OMP_NUM_THREADS=8"),
    ],
)
def test_threads(machine, monkeypatch, count, cores, usable, level, remedy):
    machine(topology(cores, 8) if cores else {})
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    monkeypatch.setattr(machine_checks, "_usable_cpus", lambda: set(range(usable)))
    finding = machine_checks.threads()
    assert finding.level == level and remedy in finding.remedy and bool(finding.remedy) == (level != "ok")


@pytest.mark.parametrize(
    ("files", "level", "words"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, "ok", "none"),
        ({"sys/fs/cgroup/cpu.max": "800000 100000"}, "ok", "none"),
        ({"sys/fs/cgroup/cpu.max": "200000 100000"}, "ok", "2 of 8"),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, "warning", "1.5 of 8"),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, "warning", "one CPU or more"),
        (
            {
                "proc/self/cgroup": "0::/box/inner",
                "sys/fs/cgroup/box/inner/cpu.max": "max 100000",
                "sys/fs/cgroup/box/cpu.max": "100000 100000",
            },
            "warning",
            "1 of 8",
        ),
        ({"proc/self/cgroup": "0::/box", "sys/fs/cgroup/other/cpu.max": "1000 100000"}, "ok", UNKNOWN),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, "ok", "none"),
        (
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            "warning",
            "OMP_NUM_THREADS=1",
        ),
    ],
)
def test_cpu_limit(machine, files, level, words):
    machine(files)
    finding = machine_checks.cpu_limit()
    assert finding.level == level and words in f"{finding.message} {finding.remedy}"


@pytest.mark.parametrize(
    ("load", "running", "own", "level"),
    [
        (7.5, 3, "S", "warning"),
        (7.5, 1, "R", "ok"),  # what ran in the last minute has ended
        (7.5, 2, "S", "warning"),
        (3.9, 9, "R", "ok"),
    ],
)
def test_load(machine, monkeypatch, load, running, own, level):
    machine({"proc/loadavg": f"{load} 1.0 1.0 {running}/900 77", "proc/self/task/7/stat": f"7 (a) b) {own} 1 7"})
    monkeypatch.setattr(environment, "load_average", lambda: load)
    assert machine_checks.busy().level == level


@pytest.mark.parametrize(
    ("governor", "driver", "boost", "level", "words"),
    [
        ("performance", "acpi-cpufreq", None, "ok", "governor performance"),
        ("powersave", "intel_pstate", {"intel_pstate/no_turbo": "0"}, "ok", "turbo on"),
        ("schedutil", "acpi-cpufreq", {"cpufreq/boost": "0"}, "ok", "turbo off"),
        ("powersave", "acpi-cpufreq", None, "warning", "powersave holds"),
        ("userspace", "acpi-cpufreq", None, "warning", "userspace holds"),
    ],
)
def test_clock(machine, governor, driver, boost, level, words):
    folder = f"{CPU}/cpu0/cpufreq"
    boost_files = {f"{CPU}/{name}": text for name, text in (boost or {}).items()}
    machine({f"{folder}/scaling_governor": governor, f"{folder}/scaling_driver": driver, **boost_files})
    finding = machine_checks.clock()
    assert finding.level == level and words in finding.message


def test_battery(machine):
    supply = "sys/class/power_supply"
    machine({f"{supply}/mouse/{name}": text for name, text in BATTERY.items()} | {f"{supply}/mouse/scope": "Device"})
    assert machine_checks.power().level == "ok"
    machine({f"{supply}/BAT0/{name}": text for name, text in BATTERY.items()})
    assert machine_checks.power().level == "warning"
    machine({f"{supply}/BAT0/status": "Charging"})
    assert machine_checks.power().level == "ok"


BATTERY = {"type": "Battery", "status": "Discharging"}


@pytest.mark.parametrize(("degrees", "level"), [(60, "ok"), (95, "warning"), (6553, "ok"), (-273, "ok")])
def test_temperature(monkeypatch, degrees, level):
    monkeypatch.setattr(environment, "temperature_c", lambda: degrees)
    assert machine_checks.heat().level == level


@pytest.mark.parametrize(
    ("available", "free", "level"), [(8_000_000, 0, "ok"), (900_000, 2_000_000, "ok"), (900_000, 500_000, "warning")]
)
def test_swap_matters_where_memory_is_short(machine, available, free, level):
    sizes = {"MemTotal": 16_000_000, "MemAvailable": available, "SwapTotal": 2_000_000, "SwapFree": free}
    machine({"proc/meminfo": "\n".join(f"{name}:   {kb} kB" for name, kb in sizes.items()) + "\nHugePages_Total:  0"})
    assert machine_checks.memory().level == level


def test_timer(machine, monkeypatch):
    assert machine_checks.timer().level == "ok"
    machine({"sys/devices/system/clocksource/clocksource0/current_clocksource": "acpi_pm"})
    ticks = iter(range(10**6))
    monkeypatch.setattr(machine_checks, "now", lambda: (next(ticks) // 50) * 1e-3)  # coarse
    finding = machine_checks.timer()
    assert finding.level == "warning" and "1000 µs" in finding.message and "acpi_pm" in finding.message
    monkeypatch.setattr(machine_checks, "now", lambda: next(ticks) * 8e-6)  # fine, but slow to read
    assert machine_checks.timer().level == "warning"
    monkeypatch.setattr(machine_checks, "now", lambda: 5.0)
    assert machine_checks.timer().level == "warning"


def test_torch_without_cuda_beside_a_gpu(machine, monkeypatch):
    machine({"proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: H100"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "without CUDA" in machine_checks.torch_build().message
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "cannot use it" in machine_checks.torch_build().message
    assert machine_checks.torch_build("cpu").level == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine_checks.torch_build().level == "ok"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert machine_checks.torch_build().level == "ok"


def test_torch_without_fast_kernels(machine, monkeypatch):
    machine({})
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert machine_checks.torch_build().level == "ok", "oneDNN is enough"
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert machine_checks.torch_build().level == "warning"
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert machine_checks.torch_build().level == "ok", "torch has other kernels there"


def test_gpu(smi, monkeypatch):
    def heat(device: str) -> Diagnosis:
        return machine_checks.gpu(read_gpus(device))

    smi(IDLE, HOT)
    assert heat("auto").level == "ok" and "31 °C" in heat("auto").message
    hot = heat("cuda:1")
    assert hot.level == "warning" and hot == heat("spread")
    assert "GPU 1 is busy (97 %)" in hot.message and "58.7 GiB" in hot.message and "power cap, heat" in hot.message
    for visible in ("1", "1,0", "GPU-bbbb"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert heat("auto") == hot, "the first GPU that torch sees"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert heat("auto").level == "ok"


def test_gpu_of_an_old_driver_and_one_that_tells_nothing(smi, monkeypatch):
    monkeypatch.setenv("OLD_DRIVER", "1")
    smi(HOT)
    assert machine_checks.gpu(read_gpus()).level == "warning"
    smi("0, GPU-aaaa, NVIDIA A100-SXM4-40GB MIG 1g.5gb, [N/A], [N/A], [N/A], [N/A]")
    assert machine_checks.gpu(read_gpus()).level == "ok"
    smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert read_gpus() == []


def test_disk(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "one"
    for free, level in ((50 * 2**30, "ok"), (500 * 2**20, "warning"), (50 * 2**20, "error")):
        monkeypatch.setattr(shutil, "disk_usage", lambda place, free=free: shutil._ntuple_diskusage(0, 0, free))
        assert machine_checks.disk(folder).level == level
        assert len(machine_checks.quick_lines(folder)) >= (level == "warning")
    monkeypatch.setattr("os.access", lambda place, mode: Path(place) != tmp_path)
    finding = machine_checks.disk(folder)
    assert finding.level == "error" and str(tmp_path) in finding.message


def test_quick_lines_tell_the_remedy_in_one_line(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    machine({})
    line = next(line for line in machine_checks.quick_lines(tmp_path) if "threads" in line)
    assert line.startswith("warning: threads: torch starts 64 threads") and line.endswith("set OMP_NUM_THREADS=8")
    assert "\n" not in line
