"""`make gpu-check`: the gate tests and the bench on a CUDA device, with whatever torch and transformers 5 there are.

Run it from a checkout as `python tests/gpu_check.py`; it needs pytest and hypothesis, but no lm-eval.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

GATES = (
    *("test_exactness.py", "test_session.py", "test_trees.py", "test_sampling.py", "test_generate.py"),
    *("test_csd.py", "test_lossy.py", "test_fly.py", "test_reflective.py", "test_lookahead.py", "test_swift.py"),
    *("test_judge.py", "test_lengths.py", "test_combine.py", "test_cos_exactness.py", "test_cos_counts.py"),
    *("test_pld.py", "test_aasd.py", "test_rest.py", "test_rsd.py", "test_mdsd.py", "test_recursive_rejection.py"),
    *(
        "test_eagle3.py",
        "test_dflash.py",
        "test_translate.py",
        "test_draft_output.py",
        "test_cospec.py",
        "test_arbitrator.py",
    ),
    *("test_batch.py", "test_runtimes.py", "test_graph.py", "test_prefix.py", "test_rows.py"),
)
TESTS = Path(__file__).parent
NEEDED = (
    *("torch", "transformers", "peft", "safetensors", "pytest", "hypothesis", "typer", "rich"),
    *("pydantic", "yaml", "scipy", "pandas", "pyarrow"),
)
DTYPES = ("float32", "float16", "bfloat16")
SHAPES = ("160m-1b", "1b-8b")


def main() -> int:
    """Returns the exit code: 0 if all is well, or if there is no GPU to check."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"gpu-check: this Python lacks {', '.join(missing)}; install them and try again")
        return 2
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: this machine has no CUDA device that torch can use; nothing was checked")
        return 0
    print(f"gpu-check: {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    environment = {**os.environ, "SPECBENCH_TEST_DEVICE": "cuda"}
    gates = [str(path) for name in GATES for path in TESTS.rglob(name)]
    failed = subprocess.run([sys.executable, "-m", "pytest", "-q", *gates], env=environment).returncode
    for dtype in DTYPES:
        print(f"gpu-check: bench in {dtype}", flush=True)
        bench = ["bench", "--device", "cuda", "--dtype", dtype, "--out", f"gpu-check-{dtype}.json"]
        failed |= subprocess.run([sys.executable, "-m", "specbench.cli", *bench]).returncode
    for shapes in SHAPES:
        print(f"gpu-check: synthetic bench of the shapes {shapes}", flush=True)
        bench = ["bench", "--device", "cuda", "--dtype", "bfloat16", "--shapes", shapes, "--force-acceptance", "0.8"]
        bench += ["--out", f"gpu-check-{shapes}.json"]
        failed |= subprocess.run([sys.executable, "-m", "specbench.cli", *bench]).returncode
    print("gpu-check: " + ("something failed, see above" if failed else "all passed"))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
