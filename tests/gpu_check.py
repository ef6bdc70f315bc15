"""`make gpu-check`: the gate tests and the bench on a CUDA device, with whatever torch and transformers 5 there are.

Run it from a checkout as `python tests/gpu_check.py`; it needs pytest and hypothesis, but no lm-eval.
Each figure and the tests' report lie in files of the folder --out; a bench's file names its machine.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
OWN = TESTS / "test_gpu_check.py"
# Tests of these folders run on the device, unless they are named below with the reason; of all others, those of DEVICE.
FOLDERS = (TESTS / "engine", TESTS / "methods", TESTS.parent / "extras")
DEVICE = re.compile(r"\bDEVICE\b|is_available\(\), reason=\"no GPU\"")  # what a test reads that runs on the device
TRAINS, READS = "trains, on the CPU", "reads a run"
NOT_GATES = {
    "test_collaboration_settings.py": "reads settings",
    "test_rest_datastore.py": "reads files of the host",
    "test_eagle_head.py": "reads configurations",
    "test_folders.py": "reads files of the host",
    "test_gguf_files.py": "reads files of the host",
    "test_in_file.py": "reads files of the host",
    "test_llamacpp.py": "llama.cpp computes on the CPU",
    "test_heads.py": "reads files of the host",
    "test_csd_memory.py": "reads files of the host",
    "test_models.py": "reads files of the host",
    "test_openvino.py": "OpenVINO computes on the CPU",
    "test_oracle.py": "checks the oracle, on the CPU",
    "test_own_methods.py": "needs lm-eval",
    "test_runtime_choice.py": "needs lm-eval",
    "test_settings.py": "reads settings",
    **{f"test_{name}_training.py": TRAINS for name in ("chimera", "gto", "specblock", "speckv")},
    **{f"test_{name}_training.py": TRAINS for name in ("dflash", "draft_heads", "judge", "kangaroo")},
    **{f"test_{name}.py": TRAINS for name in ("acceptance_training", "soft_labels", "cospec_reward")},
    **{f"test_{name}.py": "reads files of the host" for name in ("released_heads", "block_released", "datastore")},
    **{f"test_released_{name}.py": "reads files of the host" for name in ("eagle3", "acceptance", "forms")},
    **dict.fromkeys(("test_importers.py", "test_other_tools.py", "test_servers.py"), "reads files of the host"),
    **dict.fromkeys(("test_recipes.py", "test_bench.py"), "needs lm-eval, or prints a command"),
    **dict.fromkeys(("test_draft_losses.py", "test_vocabulary_size.py", "test_cos_theory.py"), "computes on the CPU"),
    **{
        f"test_{name}.py": READS for name in ("context", "draft_compare", "mirror", "mt_judge", "multidraft", "overlap")
    },
    **{
        f"test_{name}.py": READS
        for name in ("arbitrator_reads", "counterfactual", "drafts", "leaderboard", "leaderboard_page", "rules")
    },
    **{f"test_{name}.py": READS for name in ("serving", "transport", "tree_rules", "tree_sizes")},
}
NEEDED = (
    *("torch", "transformers", "peft", "safetensors", "pytest", "hypothesis", "typer", "rich"),
    *("pydantic", "yaml", "scipy", "pandas", "pyarrow"),
)
DTYPES = ("float32", "float16", "bfloat16")
SHAPES = ("160m-1b", "1b-8b")
WORKERS = min(12, os.cpu_count() or 1)  # each holds the device's context, half a GB or more


def gates() -> list[Path]:
    """The files of the gate tests."""
    paths = {path for folder in FOLDERS for path in folder.rglob("test_*.py")}
    paths |= {path for path in TESTS.rglob("test_*.py") if path != OWN and DEVICE.search(path.read_text())}
    return sorted(path for path in paths if path.name not in NOT_GATES)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="leave out the tests that are marked long")
    parser.add_argument("--workers", type=int, default=WORKERS, help=f"processes of the tests (default {WORKERS})")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the results (default: this one)")
    return parser.parse_args()


def main() -> int:
    """Returns the exit code: 0 if all is well, or if there is no GPU to check."""
    chosen = arguments()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"gpu-check: this Python lacks {', '.join(missing)}; install them and try again")
        return 2
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: this machine has no CUDA device that torch can use; nothing was checked")
        return 0
    print(f"gpu-check: {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    chosen.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SPECBENCH_TEST_DEVICE": "cuda"}
    failed = subprocess.run(tests(chosen.out, chosen.short, chosen.workers), env=environment).returncode
    for dtype in DTYPES:
        print(f"gpu-check: bench in {dtype}", flush=True)
        failed |= bench(chosen.out / f"gpu-check-{dtype}.json", "--dtype", dtype)
    for shapes in SHAPES:
        print(f"gpu-check: synthetic bench of the shapes {shapes}", flush=True)
        more = ("--dtype", "bfloat16", "--shapes", shapes, "--force-acceptance", "0.8")
        failed |= bench(chosen.out / f"gpu-check-{shapes}.json", *more)
    print("gpu-check: " + ("something failed, see above" if failed else "all passed"))
    return int(bool(failed))


def tests(out: Path, short: bool, workers: int) -> list[str]:
    """The command of the gate tests, with several processes where pytest-xdist is installed."""
    command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(out / "gpu-check-tests.xml")]
    if importlib.util.find_spec("xdist") and workers > 1:
        command += ["-n", str(workers), "--max-worker-restart", "0"]
    if short:
        command += ["-m", "not long"]
    return [*command, *map(str, gates())]


def bench(out: Path, *options: str) -> int:
    """Run a bench on the GPU; returns its exit code."""
    command = [sys.executable, "-m", "specbench.cli", "bench", "--device", "cuda", *options, "--out", str(out)]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
