"""Programs that set out to do harm, under every isolation that this machine has, as this user and as another.

Every program is also run where it is not stopped, so that a test that lets nothing through for the wrong reason fails.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forging import FORGING, TESTS
from hostile import ENDLESS, NEEDS_ROOT, PROGRAMS
from sandboxed import (
    ROOT,
    SYSTEM,
    arrived,
    as_nobody,
    each_kind,
    fill,
    lacking,
    mostly_limits,
    run,
    targets,
    weakened,
)

from specbench.tasks import sandbox
from specbench.tasks.sandbox import Outcome, jail, launch


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    with targets(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("outside")) as places:
        yield places


def read_by_all(path: Path) -> bool:
    """False if a folder above a file keeps others out: root's programs run as nobody."""
    return all(one.stat().st_mode & 0o001 for one in path.parents)


@pytest.mark.parametrize("name", PROGRAMS)
@each_kind
def test_what_a_program_cannot_reach(name: str, kind: str, target: dict) -> None:
    program, open_to = PROGRAMS[name]
    outcome = run(kind, fill(program, target))
    if kind in open_to:
        if os.getuid() == 0 or name not in NEEDS_ROOT:
            hidden = name == "files: read the tests" and not read_by_all(Path(target["own"]))
            assert name == "other processes: read the environment of a process" or outcome.passed or hidden, outcome
    else:
        assert not outcome.passed and outcome.reason in ("failed", "exited"), outcome
        assert not list(Path(target["outside"]).iterdir())
    assert not arrived(target["server"])
    for left in Path(target["outside"]).iterdir():
        left.unlink()


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_it_would_reach_plainly(name: str, target: dict, tmp_path: Path) -> None:
    if name in NEEDS_ROOT and os.getuid():
        pytest.skip("needs rights")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", fill(PROGRAMS[name][0], target)],
        cwd=tmp_path,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0
    for left in Path(target["outside"]).iterdir():
        left.unlink()
    while arrived(target["server"]):
        pass


@pytest.mark.parametrize("name", FORGING)
@mostly_limits
def test_a_wrong_program_is_wrong(name: str, kind: str) -> None:
    outcome = run(kind, FORGING[name], TESTS)
    assert not outcome.passed and outcome.reason in ("failed", "exited", "killed"), outcome


def test_a_right_program_that_does_the_same_is_right() -> None:
    """So it is the answer that counts, and not that a program misbehaves."""
    for name in ("hooks: audit", "hooks: errors", "patched names: names that the tests use", "rewritten tests: thread"):
        assert run("limits", FORGING[name].replace("return a - b", "return a + b"), TESTS).passed, name


# Checkers that some forgeries would get by, made from ours: (module, what stands there, what is put there).
TRUSTING = {
    "answers out of turn: before they are asked for": (
        "examine",
        'exec(compile(tests["text"], "tests.py", "exec", dont_inherit=True), module.__dict__)',
        "assert answer() is not None",
    ),
    "expected values: texts in memory": (
        "supervise",
        "    solution = os.fork()\n",
        "    held = message()\n    message = lambda: held\n    solution = os.fork()\n",
    ),
    "the end of life: leave with status 0": ("supervise", "if line and line != GONE:", 'if line := "passed":'),
    "equal to everything: object": (
        "examine",
        "    def __getattr__",
        "    __eq__ = lambda *_: True\n\n    def __getattr__",
    ),
    "descriptors: a verdict": (
        "supervise",
        "_confine(work, 2, asked, answering, confined)",
        "_confine(work, 2, asked, answering, confined, reported)",
    ),
}


@pytest.mark.parametrize("name", TRUSTING)
def test_a_checker_that_trusts_more_would_believe(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, old, new = TRUSTING[name]
    weakened(monkeypatch, tmp_path, {module: (old, new)})
    assert run("limits", FORGING[name], TESTS).passed


@pytest.mark.parametrize("name", ENDLESS)
@mostly_limits
def test_programs_without_an_end_time_out(name: str, kind: str) -> None:
    start = time.monotonic()
    outcome = run(kind, ENDLESS[name], seconds=0.3)
    assert not outcome.passed and outcome.reason == "timeout"
    assert len(outcome.detail) <= sandbox.STDERR_TAIL and time.monotonic() - start < 20


@mostly_limits
def test_recursion_without_an_end(kind: str) -> None:
    program = "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(x): return f([x]) + 1\nf(0)"
    assert run(kind, program, seconds=2.0).reason in ("failed", "killed", "timeout")


@pytest.mark.parametrize(
    "name",
    [
        *("network: connect", "network: connect by name"),
        *(f"other processes: {name}" for name in ("signal a process", "signal its group", "limit a process")),
    ],
)
@each_kind
def test_namespaces_hold_without_the_filter(
    name: str, kind: str, target: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weakened(monkeypatch, tmp_path, {"jail": ("    syscalls.refuse(libc)\n", "")})
    outcome = run(kind, fill(PROGRAMS[name][0], target))
    if kind != "limits":
        assert outcome.reason == "failed" and not arrived(target["server"]), outcome
    while arrived(target["server"]):
        pass


@each_kind
def test_what_is_shown_is_read_only(kind: str) -> None:
    program = (
        f"import os\nfor path in ['/', *{launch.readable()!r}]: assert os.statvfs(path).f_flag & os.ST_RDONLY, path"
    )
    assert run(kind, program).passed or kind == "limits"


@each_kind
def test_no_rights_are_left_or_to_be_had(kind: str) -> None:
    program = """
import ctypes, os, resource
libc = ctypes.CDLL(None)
held = (ctypes.c_uint32 * 6)(*[1] * 6)
assert libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and not any(held), list(held)
assert libc.prctl(39, 0, 0, 0, 0) == 1  # PR_GET_NO_NEW_PRIVS
assert libc.prctl(21, 0, 0, 0, 0) == 2  # PR_GET_SECCOMP: a filter
assert resource.getrlimit(resource.RLIMIT_NPROC) == (0, 0)
assert not ALONE or not os.getgroups(), os.getgroups()
assert not SHUT or os.getresuid() == os.getresgid() == (65534,) * 3
"""
    alone = (
        kind in ("namespaces", "limits") and os.getuid() == 0
    )  # a user namespace keeps its maker's groups, for nothing to read
    program = program.replace("SHUT", str(kind != "limits" or os.getuid() == 0)).replace("ALONE", str(alone))
    assert run(kind, program) == Outcome(True, "passed", "")


@pytest.mark.skipif(not launch._hidden(), reason="this interpreter has no folder of installed packages")
@each_kind
def test_installed_packages_are_not_there(kind: str) -> None:
    program = f"import os\nassert not any(map(os.listdir, {launch._hidden()!r}))"
    assert run(kind, program).passed == (kind != "limits" or not any(map(os.listdir, launch._hidden())))


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="this user is without rights already")
def test_all_of_this_as_another_user(tmp_path: Path) -> None:
    if why := lacking("namespaces"):
        pytest.skip(why)
    folder = tempfile.mkdtemp(prefix="specbench-nobody-")
    os.chown(folder, jail.NOBODY, jail.NOBODY)
    options = ["-v", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(ROOT / "pyproject.toml")]
    options += [f"--basetemp={folder}/pytest", "-k", "not plainly", __file__]
    options.append(str(Path(__file__).with_name("test_hostile_leftovers.py")))
    done = as_nobody(["-m", "pytest", *options], folder)
    shutil.rmtree(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for kind in ("limits", *(name for name in SYSTEM if not lacking(name))):
        assert len(re.findall(rf"\b{kind}\b.*PASSED", done.stdout)) > 80, kind
