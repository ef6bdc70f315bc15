"""What the sandbox lets pass, what it stops, and what it leaves behind."""

import os
import time
from pathlib import Path

import pytest

from specbench.sandbox import STDERR_TAIL, Outcome, passes

GOOD = "def add(a, b):\n    return a + b\n"
CHECK = "\ndef check(f):\n    assert f(2, 3) == 5\ncheck(add)\n"
PID_SHOWN = (
    "import subprocess, os\nchild = subprocess.Popen(['/bin/sleep', '60'])\nopen({path!r}, 'w').write(str(child.pid))\n"
)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_right_solution_passes() -> None:
    assert passes(GOOD + CHECK) == Outcome(True, "passed", "")


def test_a_wrong_solution_fails_with_the_last_line_of_its_error() -> None:
    assert passes(GOOD.replace("+", "-") + CHECK) == Outcome(False, "failed", "AssertionError")


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("def f(:", "SyntaxError: "),
        ("def f():\n    f()\nf()", "RecursionError: "),
        ("import torch", "ModuleNotFoundError: "),
        ("input()", "EOFError: "),
    ],
)
def test_errors_fail(program: str, detail: str) -> None:
    outcome = passes(program)
    assert (outcome.passed, outcome.reason) == (False, "failed")
    assert outcome.detail.startswith(detail)


def test_text_that_is_no_program_is_an_outcome() -> None:
    for program in ("", "\ud800", "x = 1\n\0"):
        assert passes(program).passed is (program == "")


@pytest.mark.parametrize(
    "program", ["while True: pass", "import time\ntime.sleep(60)", "import os\nos.close(2)\nwhile 1: 1"]
)
def test_endless_programs_time_out(program: str) -> None:
    start = time.monotonic()
    assert passes(program, seconds=0.5).reason == "timeout"
    assert time.monotonic() - start < 2


def test_a_loop_that_swallows_exceptions_times_out() -> None:
    program = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    assert passes(program, seconds=0.5).reason == "timeout"


def test_memory_is_limited() -> None:
    program = "data = bytearray({} << 20)"
    assert passes(program.format(64), memory_mb=512).passed
    assert passes(program.format(1024), memory_mb=512) == Outcome(False, "failed", "MemoryError")


@pytest.mark.parametrize(
    ("early", "reason"),
    [
        ("import sys\nsys.exit(0)", "failed"),
        ("raise SystemExit", "failed"),
        ("import os\nos._exit(0)", "exited"),
        ("import os\nos.execv('/bin/true', ['true'])", "exited"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed"),
        (
            "import os\nfor fd in range(64):\n    try: os.write(fd, b'passed')\n    except OSError: pass\nos._exit(0)",
            "exited",
        ),
        ("print('passed')\nprint(True)\nraise ValueError", "failed"),
        ("import atexit, os\natexit.register(os._exit, 0)\nassert 0", "failed"),
    ],
)
def test_success_cannot_be_claimed_before_the_check(early: str, reason: str) -> None:
    outcome = passes(early + "\n" + GOOD.replace("+", "-") + CHECK)
    assert (outcome.passed, outcome.reason) == (False, reason)


def test_the_nonce_is_nowhere_in_the_names_of_the_program() -> None:
    assert passes(
        "import sys\nassert sys.argv == ['-c'] and 'nonce' not in globals()\nassert not sys.stdin.read()"
    ).passed


def test_a_flood_of_output_is_dropped() -> None:
    assert passes("for _ in range(3000): print('x' * 10000)").passed
    outcome = passes("import sys\nfor _ in range(3000): sys.stderr.write('x' * 10000)\nassert 0")
    assert outcome == Outcome(False, "failed", "AssertionError")
    assert len(passes("import sys\nwhile True: sys.stderr.write('x' * 10000)", seconds=0.5).detail) <= STDERR_TAIL


def test_the_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_SECRET", "hush")
    assert passes("import os\nassert set(os.environ) <= {'LC_CTYPE'}, os.environ").passed


def test_files_stay_in_a_folder_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = tmp_path / "told"
    program = "import os\nopen('left', 'w').write('x')\nassert os.listdir() == ['left']\n"
    assert passes(program + f"open({str(told)!r}, 'w').write(os.getcwd())").passed
    assert not Path(told.read_text()).exists()
    assert os.listdir(tmp_path) == ["told"]


def test_a_file_cannot_grow_without_end() -> None:
    outcome = passes("file = open('big', 'wb')\nfor _ in range(100): file.write(bytes(1 << 20))")
    assert not outcome.passed and outcome.reason in ("failed", "killed")


@pytest.mark.parametrize("then", ["", "import time\ntime.sleep(60)"])
def test_children_are_killed(then: str, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    start = time.monotonic()
    outcome = passes(PID_SHOWN.format(path=str(path)) + then, seconds=1.0)
    assert time.monotonic() - start < 3
    if outcome.reason == "failed":  # the process limit already forbade the child
        assert "BlockingIOError" in outcome.detail and not path.exists()
        return
    assert outcome.reason == ("timeout" if then else "passed")
    deadline = time.monotonic() + 2
    while _alive(int(path.read_text())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(int(path.read_text()))


def test_a_fork_does_not_speak_for_its_parent() -> None:
    fork = "import os\ntry: child = os.fork()\nexcept BlockingIOError: child = 1\n"
    assert passes(fork).passed
    assert not passes(fork + "if child: os._exit(0)").passed


def test_starting_is_fast_and_nothing_stays_open() -> None:
    passes("pass")
    before = len(os.listdir("/proc/self/fd"))
    taken = []
    for _ in range(10):
        start = time.monotonic()
        passes("pass")
        taken.append(time.monotonic() - start)
    assert min(taken) < 0.06
    assert len(os.listdir("/proc/self/fd")) == before
