"""What a played nvidia-smi tells: facts of a manifest, looks while a run decodes, and no verdict of a slow GPU."""

import json
import time

import pytest
from fake_smi import HEAT, HOT, IDLE, LOOKS
from fake_smi import smi as smi
from made_runs import large

from specbench.measure import gpus
from specbench.report import comparison
from specbench.results.aside import GPUS, slowed


def looked(folder, device="cuda"):
    with gpus.recorded(folder, device):
        time.sleep(0.3)  # the program has printed its looks
    return json.loads((folder / GPUS).read_text()) if (folder / GPUS).exists() else None


def test_facts_of_a_manifest(smi):
    smi(IDLE, HOT)
    (facts,) = gpus.facts("cuda")
    assert facts["clock_mhz"] == 345 and facts["most_clock_mhz"] == 1980 and facts["application_clock_mhz"] == "[N/A]"
    assert (facts["power_w"], facts["most_power_w"], facts["ecc"], facts["ecc_errors"]) == (71.5, 700, "Enabled", 0)
    assert gpus.facts("cpu") == []


def test_looks_while_a_run_decodes(smi, tmp_path):
    """A run that goes on keeps those of its first part."""
    smi(IDLE, HOT)
    (row,) = looked(tmp_path)
    assert row == {
        **{"index": 0, "looks": 2, "clock_mhz": [1755, 1867.5, 1980], "memory_clock_mhz": 3201},
        **{"power_w": 699.9, "temperature_c": 83, "memory_mib": 1300, "slowed": 0},
    }
    smi(IDLE, HOT, looks=(*LOOKS, HEAT, LOOKS[0]))
    assert [row["slowed"] for row in looked(tmp_path)] == [0, 0x20]
    assert slowed(json.loads((tmp_path / GPUS).read_text())) == "GPU 0 was slowed down (heat)"


def test_without_nvidia_smi_and_on_a_cpu_nothing_is_kept(smi, tmp_path, monkeypatch):
    smi(IDLE)
    assert looked(tmp_path, "cpu") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert looked(tmp_path) is None


@pytest.mark.parametrize("bits, why", [(0x04, "power cap"), (0x40, "heat"), (0x80, "power brake"), (0x01, "")])
def test_which_reasons_slow_a_gpu(bits, why):
    assert slowed([{"index": 2, "slowed": bits}]) == (why and f"GPU 2 was slowed down ({why})")


@pytest.mark.parametrize(
    "damaged", ([], {}, [1], [{"index": "x", "slowed": 4}], [{"index": 0, "slowed": "heat"}], None)
)
def test_a_damaged_file_tells_nothing(damaged):
    assert slowed(damaged) == ""


def run_of(folder, hot: bool):
    """A run of made rounds, in which sps is always faster; its GPU was hot or not."""
    large(folder, ["one"], ["vanilla", "sps"], 12, rounds=4)
    (folder / GPUS).write_text(json.dumps([{"index": 0, "looks": 3, "slowed": 0x20 if hot else 0x01}]))


@pytest.mark.parametrize("hot", (False, True))
def test_a_run_whose_gpu_was_slowed_gives_no_verdict_on_speed(hot, tmp_path, capsys):
    run_of(tmp_path / "run", hot)
    comparison.compare([tmp_path / "run"], "md", out=tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text()
    assert ("GPU 0 was slowed down (heat) while it decoded: no verdict" in text) == hot
    assert ("no verdict on its speed on one (GPU 0 was slowed down (heat))" in text) == hot
