"""Starts the watcher, the program's process and the tests' in a new interpreter, and reads the watcher's verdict."""

import functools
import marshal
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from specbench.base.errors import UserError
from specbench.tasks.sandbox import jail, supervise
from specbench.tasks.sandbox.leftovers import remove
from specbench.tasks.sandbox.unit_tests import UnitTests

STDERR_TAIL = 4096  # bytes of stderr kept
DETAIL_CHARS = 300
WRITABLE_MB = 64  # all files of the program together
OPEN_FILES = 64
PROCESSES = 0  # that the program may start; threads count too
NO_TESTS = UnitTests()
COPIES: list[tempfile.TemporaryDirectory[str]] = []  # of the standard library; removed when this process ends
SPARE_SECONDS = 5.0  # the watcher may be this late before it is killed itself
SYSTEM = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix/store", "/usr/share/zoneinfo")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
MODULES = ("syscalls", "jail", "values", "solution", "examine", "supervise")  # each after those it needs
# Runs in the new interpreter, which cannot import our modules: their code comes with the work, in a message; the tests
# follow in a second one. A read takes what belongs to its message and no more.
BOOT = """
import marshal, os, sys
def message():
    parts, left = [], int.from_bytes(os.read(0, 4), "big")
    while left:
        parts.append(os.read(0, left))
        left -= len(parts[-1]) or sys.exit(1)
    return marshal.loads(b"".join(parts))
package = type(sys)("specbench.tasks.sandbox")
for name in ("specbench", "specbench.tasks", "specbench.tasks.sandbox"):
    sys.modules[name] = package
modules, work = message()
for name, code in modules:
    module = sys.modules["specbench.tasks.sandbox." + name] = type(sys)(name)
    setattr(package, name, module)
    exec(code, module.__dict__)
module.supervise(work, message)
"""


@dataclass(frozen=True)
class Outcome:
    """`reason`: passed, failed (an exception), exited (early), timeout or killed; `detail`: the error, one line.

    `detail` may be the program's own text: show it with `specbench.base.console.plain`.
    """

    passed: bool
    reason: str
    detail: str


def run_in(kind: str, program: str, tests: UnitTests = NO_TESTS, *, seconds: float, memory_mb: int) -> Outcome:
    """Run `program` to its end, then `tests` on it, in the isolation `kind`: bubblewrap, namespaces, limits or unsafe.

    Raises UserError if the isolation does not work here.
    """
    alone = kind in ("limits", "unsafe")
    nobody = os.getuid() == 0 and kind in ("namespaces", "limits")  # bubblewrap sees to it itself
    work = {
        "alone": alone,
        "namespaces": kind == "namespaces",
        "nobody": nobody,
        "program": program,
        "seconds": float(seconds),
        "size": WRITABLE_MB << 20,
        "readable": readable(),
        "hidden": _hidden(),
        "library": _library() if alone and nobody else [],
        "limits": {
            "CPU": int(seconds) + 1,
            "AS": memory_mb << 20,
            "FSIZE": 16 << 20,
            "NOFILE": OPEN_FILES,
            "NPROC": PROCESSES,
            "CORE": 0,
        },
    }
    command = [_interpreter(), "-I", "-S", "-c", BOOT]
    if kind == "bubblewrap":
        command = [*_bubblewrap(), *command]
    tried = {"setup": tests.setup, "names": list(tests.names), "text": tests.text}
    messages = (marshal.dumps((_modules(), work)), marshal.dumps(tried))
    data = b"".join(len(part).to_bytes(4, "big") + part for part in messages)
    with _own_folder(nobody) if alone else nullcontext("/") as folder, _closed_to_others() if alone else nullcontext():
        verdict, detail = _ask(command, data, folder, seconds)
    return _judge(verdict, detail)


@contextmanager
def _own_folder(nobody: bool) -> Iterator[str]:
    """A new folder for a program, nobody's or this user's. Whatever the program made of it is removed."""
    folder = tempfile.mkdtemp(prefix="specbench-")
    try:
        if nobody:
            _give_away(folder)
        yield folder
    finally:
        remove(folder)


def _give_away(folder: str) -> None:
    """Make a folder nobody's. Raises UserError where root may not."""
    try:
        os.chown(folder, jail.NOBODY, jail.NOBODY)
    except OSError as error:
        raise UserError(f"the sandbox for generated programs did not start: {error.strerror}") from None


@functools.cache
def _library() -> list[str]:
    """Where nobody can read the standard library: a copy, if its own folders are shut; else nothing to change.

    Root's Python may lie in root's home. Raises UserError if there is no room for a copy.
    """
    library = os.path.realpath(os.path.dirname(os.__file__))
    above = [library[:end] for end, letter in enumerate(library) if letter == "/" and end]
    if all(os.stat(folder).st_mode & 0o1 for folder in above) and os.stat(library).st_mode & 0o5 == 0o5:
        return []
    copy = tempfile.TemporaryDirectory(prefix="specbench-library-")
    COPIES.append(copy)
    os.chmod(copy.name, 0o755)
    there = os.path.join(copy.name, "lib")
    unneeded = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "ensurepip", "config-*", "tkinter")
    try:
        shutil.copytree(library, there, ignore=unneeded)
    except (OSError, shutil.Error) as error:
        raise UserError(
            f"the sandbox for generated programs did not start: other users cannot read {library}, and it could not be "
            f"copied ({error}); install bubblewrap, or Python where all users can read it"
        ) from None
    return [there, os.path.join(there, "lib-dynload")]


@contextmanager
def _closed_to_others() -> Iterator[None]:
    """Nobody may read this process's memory or write to its files through /proc, where the program sees /proc."""
    if jail.control(jail.PR_GET_DUMPABLE, 0) != 1:
        yield
        return
    jail.control(jail.PR_SET_DUMPABLE, 0)
    try:
        yield
    finally:
        jail.control(jail.PR_SET_DUMPABLE, 1)


def _ask(command: list[str], message: bytes, folder: str, seconds: float) -> tuple[str, str]:
    """Run `command` with `message` as its input; the watcher's one line and the last line of the program's stderr."""
    output, errors = b"", b""
    deadline = time.monotonic() + supervise.START_SECONDS + seconds + SPARE_SECONDS
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={},
        start_new_session=True,
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(message)
                process.stdin.flush()  # and left open: the watcher ends when this end is gone
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                selector.register(process.stderr, selectors.EVENT_READ)
                while process.stdout in selector.get_map() and (left := deadline - time.monotonic()) > 0:
                    for key, _ in selector.select(left):
                        data = os.read(key.fd, 1 << 16)
                        if not data:
                            selector.unregister(key.fileobj)
                        elif key.fileobj is process.stderr:
                            errors = (errors + data)[-STDERR_TAIL:]
                        else:
                            output += data
                    if output.endswith(b"\n"):
                        break
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()  # the watcher kills what it watches, and ends
            try:
                process.wait(SPARE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        errors += _read_now(process.stderr.fileno())
    lines = errors[-STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
    return output.decode("utf-8", "replace").strip(), lines[-1][:DETAIL_CHARS] if lines else ""


def _read_now(source: int) -> bytes:
    """Read what a pipe holds now, without waiting."""
    os.set_blocking(source, False)
    try:
        return os.read(source, 1 << 16)
    except BlockingIOError:
        return b""


def _judge(verdict: str, detail: str) -> Outcome:
    word, _, rest = verdict.partition(" ")
    if word == "passed":
        return Outcome(True, "passed", detail)
    if word == "failed":
        return Outcome(False, "failed", rest[:DETAIL_CHARS])
    if word == "garbled":
        return Outcome(False, "exited", "it answered a call with what is no value")
    if word == "timeout" or (word in ("status", "tests") and int(rest) == -signal.SIGXCPU):
        return Outcome(False, "timeout", detail)
    if word in ("status", "tests") and int(rest) < 0:
        return Outcome(False, "killed", detail or signal.Signals(-int(rest)).name)
    if word in ("status", "tests"):
        return Outcome(False, "failed" if rest == "1" and detail else "exited", detail)
    reasons = ": ".join(part for part in (rest, detail) if part) or "it ended without a word"
    raise UserError(f"the sandbox for generated programs did not start: {reasons}")


@functools.cache
def _modules() -> list[tuple[str, CodeType]]:
    """The code of the modules that run inside, each after those it needs."""
    modules = []
    for module in MODULES:
        text = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
        modules.append((module, compile(text, f"{module}.py", "exec", dont_inherit=True, optimize=2)))
    return modules


@functools.cache
def _interpreter() -> str:
    """The path of the interpreter itself, not of a virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def readable() -> list[str]:
    """The paths that the interpreter needs, folders before their contents."""
    prefixes = {sys.base_prefix, sys.base_exec_prefix, os.path.dirname(os.path.dirname(_interpreter()))}
    paths = {*SYSTEM, *SYSTEM_FILES, _interpreter()}
    paths |= {os.path.join(prefix, name) for prefix in prefixes for name in ("lib", "lib64")}
    paths.add(os.path.dirname(os.__file__))
    paths |= {os.path.realpath(path) for path in paths}
    return sorted(path for path in paths if os.path.exists(path))


@functools.cache
def _hidden() -> list[str]:
    """Folders of installed packages within the readable paths."""
    library = os.path.realpath(os.path.dirname(os.__file__))
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    paths = {sysconfig.get_path(name, vars=base) for name in ("purelib", "platlib")}
    paths |= {os.path.join(library, name) for name in ("site-packages", "dist-packages")}
    paths |= {"/usr/lib/python3/dist-packages", f"{os.path.dirname(library)}/python3/dist-packages"}
    above = tuple(f"{path}/" for path in readable())
    return sorted(path for path in paths if path.startswith(above) and os.path.isdir(path))


def _bubblewrap() -> list[str]:
    program = shutil.which("bwrap")
    if program is None:
        raise UserError("the sandbox for generated programs did not start: bubblewrap is not installed")
    kinds = ("user", "ipc", "pid", "net", "uts", "cgroup-try")
    command = [program, *(f"--unshare-{kind}" for kind in kinds), "--die-with-parent", "--new-session"]
    command += ["--uid", str(jail.NOBODY), "--gid", str(jail.NOBODY)]
    command += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]  # for the watcher's mounts; the program has none
    command += ["--dir", "/proc", "--dir", jail.WORK]
    for path in readable():
        command += ["--ro-bind", path, path]
    for path in _hidden():
        command += ["--tmpfs", path, "--remount-ro", path]
    for name in jail.DEVICES:
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return [*command, "--remount-ro", "/", "--chdir", "/", "--"]
