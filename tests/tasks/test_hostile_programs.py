"""Programs that set out to do harm, under every isolation that this machine has, as this user and as another.

Every program is also run where it is not stopped, so that a test that lets nothing through for the wrong reason fails.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import ENDLESS, FOOLING, NEEDS_ROOT, REACHING, WRONG
from sandboxed import PACKAGE, each_kind, run, weakened

from specbench.tasks import sandbox
from specbench.tasks.sandbox import Outcome, jail, launch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """What the programs want: a secret in a file, in the environment and in an open file, a server, a process."""
    home, outside = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("outside")
    (home / "secret").write_text("planted")
    unique = f"specbench-{os.urandom(8).hex()}"
    environment = {"SPECBENCH_SECRET": "planted", "HOME": str(home)}
    os.environ["SPECBENCH_SECRET"] = "planted"
    opened = os.open(home / "secret", os.O_RDONLY)
    os.set_inheritable(opened, True)
    named = socket.socket(socket.AF_UNIX)
    named.bind("\0" + unique)
    named.listen()
    victim = subprocess.Popen(["/bin/sleep", "300"], env=environment, start_new_session=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        yield {
            "secret": str(home / "secret"),
            "outside": str(outside),
            "own": __file__,
            "unique": unique,
            "victim": victim.pid,
            "port": server.getsockname()[1],
            "server": server,
        }
    victim.kill()
    victim.wait()
    named.close()
    os.close(opened)
    del os.environ["SPECBENCH_SECRET"]


def fill(program: str, target: dict[str, object]) -> str:
    return re.sub(
        r"\{(secret|outside|own|unique|victim|port)(!r)?\}",
        lambda found: repr(target[found[1]]) if found[2] else str(target[found[1]]),
        program,
    )


def arrived(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("name", REACHING)
@each_kind
def test_what_a_program_cannot_reach(name: str, kind: str, target: dict) -> None:
    program, open_to = REACHING[name]
    outcome = run(kind, fill(program, target))
    if kind in open_to:
        if os.getuid() == 0 or name not in NEEDS_ROOT:
            assert name == "read the environment of a process" or outcome.passed, outcome
    else:
        assert not outcome.passed and outcome.reason in ("failed", "exited"), outcome
        assert not list(Path(target["outside"]).iterdir())
    assert not arrived(target["server"])
    for left in Path(target["outside"]).iterdir():
        left.unlink()


@pytest.mark.parametrize("name", REACHING)
def test_what_it_would_reach_plainly(name: str, target: dict, tmp_path: Path) -> None:
    if name in NEEDS_ROOT and os.getuid():
        pytest.skip("needs rights")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", fill(REACHING[name][0], target)],
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


def claim_line() -> int:
    lines = (PACKAGE / "supervise.py").read_text().splitlines()
    return lines.index("        write(DOOR, DONE)") + 1


@pytest.mark.parametrize("name", FOOLING)
@each_kind
def test_success_cannot_be_claimed(name: str, kind: str) -> None:
    for claim in {claim_line(), 1} if name == "jump in the checker" else {0}:
        outcome = run(kind, FOOLING[name].replace("{claim}", str(claim)) + WRONG)
        assert not outcome.passed, outcome
        assert outcome.reason in ("failed", "exited", "killed", "timeout")


@pytest.mark.parametrize(
    "name", ["speak the watcher's language", "speak it in a handler", "speak it at the end", "walk frames for a secret"]
)
def test_a_watcher_that_does_not_look_would_believe(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weakened(monkeypatch, tmp_path, {"supervise": ("SLACK = 2048", "SLACK = 1 << 60")})
    program = FOOLING["speak the watcher's language"] if name.startswith("walk") else FOOLING[name]
    assert run("limits", program + WRONG).passed


def test_a_checker_with_lines_would_be_jumped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [
        (name, compile((PACKAGE / f"{name}.py").read_text(), name, "exec", dont_inherit=True))
        for name in ("syscalls", "jail", "supervise")
    ]
    monkeypatch.setattr(launch, "_modules", lambda: modules)
    assert run("limits", FOOLING["jump in the checker"].replace("{claim}", str(claim_line())) + WRONG).passed


def test_equality_of_ones_own_is_not_stopped() -> None:
    """As in lm-eval: the tests are the program's own interpreter's."""
    assert run("limits", WRONG.replace("a - b", "type('', (), {'__eq__': lambda *_: True})()")).passed


@pytest.mark.parametrize("name", ENDLESS)
@each_kind
def test_programs_without_an_end_time_out(name: str, kind: str) -> None:
    start = time.monotonic()
    outcome = run(kind, ENDLESS[name], seconds=0.3)
    assert not outcome.passed and outcome.reason == "timeout"
    assert len(outcome.detail) <= sandbox.STDERR_TAIL and time.monotonic() - start < 20


@each_kind
def test_recursion_without_an_end(kind: str) -> None:
    program = "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(x): return f([x]) + 1\nf(0)"
    assert run(kind, program, seconds=2.0).reason in ("failed", "killed", "timeout")


@pytest.mark.parametrize(
    "name", ["connect", "connect by name", "signal a process", "signal its group", "limit a process"]
)
@each_kind
def test_namespaces_hold_without_the_filter(
    name: str, kind: str, target: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weakened(monkeypatch, tmp_path, {"jail": ("    syscalls.refuse(libc)\n", "")})
    outcome = run(kind, fill(REACHING[name][0], target))
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
    alone = kind == "namespaces" and os.getuid() == 0  # a user namespace keeps its maker's groups, for nothing to read
    program = program.replace("SHUT", str(kind != "limits")).replace("ALONE", str(alone))
    assert run(kind, program) == Outcome(True, "passed", "")


@pytest.mark.skipif(not launch._hidden(), reason="this interpreter has no folder of installed packages")
@each_kind
def test_installed_packages_are_not_there(kind: str) -> None:
    program = f"import os\nassert not any(map(os.listdir, {launch._hidden()!r}))"
    assert run(kind, program).passed == (kind != "limits" or not any(map(os.listdir, launch._hidden())))


# Becomes a user without rights, to whom the interpreter and the tests are shown where their folders are shut to others.
AS_NOBODY = """
import os, sys
from specbench.tasks.sandbox import jail
paths = {shown!r}
jail.call("unshare", jail.NEWNS)
jail.mount("none", "/", None, jail.MS_REC | jail.MS_PRIVATE)
opened = {{path: os.open(path, os.O_PATH) for path in paths}}
for path in paths:
    above = path.split("/")
    for length in range(2, len(above) + 1):
        folder = "/".join(above[:length])
        if os.path.isdir(folder) and not os.stat(folder).st_mode & 1:
            jail.mount("tmpfs", folder, "tmpfs", 0, "mode=755")
    if not os.path.exists(path):
        os.makedirs(path)
        jail.mount(f"/proc/self/fd/{{opened[path]}}", path, None, jail.MS_BIND | jail.MS_REC)
for number in opened.values():
    os.close(number)
os.setgroups([])
os.setresgid(jail.NOBODY, jail.NOBODY, jail.NOBODY)
os.setresuid(jail.NOBODY, jail.NOBODY, jail.NOBODY)
os.chdir({folder!r})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="this user is without rights already")
def test_all_of_this_as_another_user(tmp_path: Path) -> None:
    shown = sorted({sys.base_prefix, sys.prefix, str(ROOT)})
    folder = tempfile.mkdtemp(prefix="specbench-nobody-")
    os.chown(folder, jail.NOBODY, jail.NOBODY)
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(ROOT / "pyproject.toml")]
    options += [f"--basetemp={folder}/pytest", "-k", "not plainly", __file__]
    options.append(str(Path(__file__).with_name("test_hostile_leftovers.py")))
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY.format(shown=shown, folder=folder), "-m", "pytest", *options],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(folder)
    if "unshare: Operation not permitted" in done.stderr:
        pytest.skip("root of a container without the rights of root")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100
