"""Nothing of a program goes on when it is over, or when those who asked for it are gone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandboxed import each_kind, run, weakened

from specbench.tasks.sandbox import launch

ROOT = Path(__file__).parents[2]

# Leaves its session, is adopted, and ignores what can be ignored.
SURVIVOR = """
import ctypes, os, signal, sys, time
ready, done = os.pipe()
if not os.fork():
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    if os.fork(): os._exit(0)
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    os.closerange(0, done)
    ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)
    os.write(done, b"x")
    time.sleep(20)
    os._exit(0)
os.read(ready, 1)
{then}
"""


def running(name: str) -> list[str]:
    results = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == name and "\nState:\tZ" not in (folder / "status").read_text():
                results.append(folder.name)
        except OSError:
            continue
    return results


@pytest.mark.parametrize("then", ["", "time.sleep(60)", "os._exit(0)"], ids=["passes", "stays", "leaves"])
@each_kind
def test_nothing_goes_on(then: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even where neither filter nor limit keep a program from starting processes."""
    jailed = "    die_with_parent()  # a change of user resets it\n    syscalls.refuse(libc)\n"
    weakened(monkeypatch, tmp_path, {"jail": (jailed, "")})
    monkeypatch.setattr(launch, "PROCESSES", 50)
    name = f"sb{os.urandom(6).hex()}"
    start = time.monotonic()
    outcome = run(kind, SURVIVOR.format(name=name.encode(), then=then), seconds=1.0 if then else 8.0)
    if outcome.detail.startswith("BlockingIOError"):
        pytest.skip("this kernel counts the user's processes, of which there are too many")
    assert outcome.reason == {"": "passed", "time.sleep(60)": "timeout", "os._exit(0)": "exited"}[then], outcome
    while running(name) and time.monotonic() < start + 12:
        time.sleep(0.02)
    assert time.monotonic() < start + 12 and not running(name)


def test_a_survivor_would_be_seen() -> None:
    name = f"sb{os.urandom(6).hex()}"
    subprocess.run([sys.executable, "-c", SURVIVOR.format(name=name.encode(), then="")], check=True)
    found = running(name)
    assert len(found) == 1
    os.kill(int(found[0]), 9)


@each_kind
def test_nothing_goes_on_when_those_who_asked_are_killed(kind: str) -> None:
    name = f"sb{os.urandom(6).hex()}"
    program = f"import ctypes, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\ntime.sleep(30)"
    code = f"from specbench.tasks.sandbox import run_in\nrun_in({kind!r}, {program!r}, seconds=30, memory_mb=512)"
    asker = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 20
    while not running(name) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert running(name)
    asker.kill()
    asker.wait()
    deadline = time.monotonic() + 5
    while running(name) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(name)
