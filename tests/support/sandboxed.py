"""How tests run a program: under each isolation that this machine has, and under ones that were weakened on purpose."""

import ctypes
import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from specbench.tasks import sandbox
from specbench.tasks.sandbox import Outcome, launch
from specbench.tasks.sandbox.unit_tests import UnitTests

ROOT = Path(__file__).parents[2]
PACKAGE = Path(sandbox.__file__).parent
_OWN_USER = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
# What the system's own programs do, which says what must work here: the sandbox under test is never asked.
SYSTEM = {
    "bubblewrap": ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"],
    "namespaces": [
        *("unshare", *_OWN_USER, "--mount", "--cgroup", "--uts", "--ipc", "--net", "--pid", "--fork"),
        *("mount", "-t", "tmpfs", "tmpfs", "/mnt"),
    ],
}


@functools.cache
def lacking(kind: str) -> str:
    """Why the system has no isolation of this kind; empty if it has."""
    try:
        done = subprocess.run(SYSTEM[kind], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return f"{kind}: {error}"
    return f"{kind}: {done.stderr.strip()}" if done.returncode else ""


if os.environ.get("SPECBENCH_ISOLATION") == "required" and all(map(lacking, SYSTEM)):
    raise RuntimeError("; ".join(map(lacking, SYSTEM)))


def _kinds(*more: pytest.MarkDecorator) -> pytest.MarkDecorator:
    """All kinds of isolation that the system has, those with namespaces with `more` marks."""
    marks = {name: pytest.mark.skipif(bool(lacking(name)), reason=lacking(name)) for name in SYSTEM}
    return pytest.mark.parametrize(
        "kind", [*(pytest.param(name, marks=[mark, *more]) for name, mark in marks.items()), "limits"]
    )


each_kind = _kinds()
mostly_limits = _kinds(pytest.mark.long)  # of what the kind makes no difference to: the least of them in the short run


def run(kind: str, program: str, tests: UnitTests = launch.NO_TESTS, seconds: float = 8.0) -> Outcome:
    return sandbox.run_in(kind, program, tests, seconds=seconds, memory_mb=512)


def weakened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, tuple[str, str]]) -> None:
    """Run with modules whose text is changed: {module: (old, new)}."""
    for module in launch.MODULES:
        text = (PACKAGE / f"{module}.py").read_text()
        if module in changes:
            assert text.count(changes[module][0]) == 1
            text = text.replace(*changes[module])
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.setattr(launch, "__file__", str(tmp_path / "launch.py"))
    monkeypatch.setattr(launch, "_modules", launch._modules.__wrapped__)


@contextmanager
def targets(home: Path, outside: Path) -> Iterator[dict[str, object]]:
    """What hostile programs want: a secret in a file, in the environment and in an open file, a server, a process."""
    (home / "secret").write_text("planted")
    unique = f"specbench-{os.urandom(8).hex()}"
    environment = {"SPECBENCH_SECRET": "planted", "HOME": str(home)}
    os.environ["SPECBENCH_SECRET"] = "planted"
    opened = os.open(home / "secret", os.O_RDONLY)
    os.set_inheritable(opened, True)
    named = socket.socket(socket.AF_UNIX)
    named.bind("\0" + unique)
    named.listen()
    packets = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    packets.bind(f"\0{unique}-packets")
    shared, segment = shared_memory(b"planted")
    victim = subprocess.Popen(["/bin/sleep", "1000"], env=environment, start_new_session=True)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.05)
            yield {
                "secret": str(home / "secret"),
                "outside": str(outside),
                "own": __file__,
                "unique": unique,
                "shared": shared,
                "victim": victim.pid,
                "port": server.getsockname()[1],
                "server": server,
            }
    finally:
        victim.kill()
        victim.wait()
        named.close()
        packets.close()
        segment()
        os.close(opened)
        del os.environ["SPECBENCH_SECRET"]


def shared_memory(content: bytes) -> tuple[int, Callable[[], object]]:
    """The number of a new segment of System V's shared memory that all may read, and what removes it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(0, 4096, 0o644)
    place = libc.shmat(number, None, 0)
    assert place != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    ctypes.memmove(place, content, len(content))
    libc.shmdt(ctypes.c_void_p(place))
    return number, lambda: libc.shmctl(number, 0, None)


def fill(program: str, target: dict[str, object]) -> str:
    """A program with the targets' names in it."""
    return re.sub(
        r"\{(secret|outside|own|unique|shared|victim|port)(!r)?\}",
        lambda result: repr(target[result[1]]) if result[2] else str(target[result[1]]),
        program,
    )


def arrived(server: socket.socket) -> bool:
    """True if somebody connected."""
    try:
        server.accept()[0].close()
    except TimeoutError:
        return False
    return True


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


def as_nobody(arguments: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """Run Python as another user, in a folder that is theirs. Needs the rights of root."""
    program = AS_NOBODY.format(shown=sorted({sys.base_prefix, sys.prefix, str(ROOT)}), folder=folder)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
