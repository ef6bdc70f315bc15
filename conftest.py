"""Shared by all tests: one thread (tiny models are faster so), the bundled pair, real documents if they are here."""

import atexit
import gc
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["SPECBENCH_CACHE"] = tempfile.mkdtemp(prefix="specbench-cache-")  # what a machine remembers is not tested
atexit.register(shutil.rmtree, os.environ["SPECBENCH_CACHE"], ignore_errors=True)
ROOT = Path(__file__).parent


def declare_extras() -> None:
    """Find the extras by their pyproject.toml where they are not installed, as where a machine has its own torch."""
    from specbench.config import plugins

    if plugins.extras("methods"):
        return
    text = (ROOT / "extras" / "pyproject.toml").read_text()
    groups = re.findall(r'^\[project\.entry-points\."(.+)"\]\n((?:.+ = .+\n)+)', text, re.M)
    place = Path(os.environ["SPECBENCH_CACHE"], "extras")
    facts = place / "specbench_extras-0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: specbench-extras\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("".join(f"[{group}]\n{lines}".replace('"', "") for group, lines in groups))
    sys.path += [str(place), str(ROOT / "extras")]


declare_extras()


freeze = gc.freeze


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is loaded for the tests stays to the end: no garbage is looked for meanwhile, nor later among all of it.

    A run would unfreeze it, so that the next one looks through all of it before it times: half a second for each run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 20, 20)
        gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture(autouse=True, scope="module")
def _kept():
    """What the tests of a file have loaded stays as well; what they left is garbage."""
    yield
    gc.collect()
    freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _imported_once():
    """What scores mathematics is imported and used before the first scoring process is forked, not again in each."""
    from specbench.tasks import timed

    fork, ready = timed._child, []

    def child(function):
        if not ready:
            from math_verify import parse, verify

            ready.append(verify(parse("$1$"), parse(r"$\\boxed{x + \\frac{1}{2}}$")))
        return fork(function)

    timed._child = child


@pytest.fixture(scope="session")
def pocket():
    """The bundled pair, in float32 on the CPU."""
    from specbench.config import load_pair as read
    from specbench.engine.models.pair import load_pair

    return load_pair(read("pocket"), device="cpu")


@pytest.fixture(scope="session")
def pocket_weak():
    """The bundled target with the draft that disagrees with it most."""
    from specbench.config import load_pair as read
    from specbench.engine.models.pair import load_pair

    return load_pair(read("pocket-weak"), device="cpu")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """A folder of real benchmark documents; tests that need it are skipped where there is none."""
    folder = Path(os.environ.get("SPECBENCH_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "gsm8k_test.jsonl").exists():
        pytest.skip("no folder of real benchmark documents")
    return folder


@pytest.fixture
def own_cache(tmp_path_factory, monkeypatch):
    """What `datasets` keeps of files goes into a folder of the test's own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def pytest_sessionfinish():
    """Remove the copies of the library for programs that ran as nobody: a worker of xdist ends without doing so."""
    launch = sys.modules.get("specbench.tasks.sandbox.launch")
    for copy in launch.COPIES if launch else ():
        copy.cleanup()
