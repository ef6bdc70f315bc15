"""Runs one generated Python program with its unit tests in a fresh, limited process, and says whether it passed.

What it stops: endless loops, memory and output floods, files left in the working folder, a leak of the environment,
child processes left behind in the same session, and success claimed by printing or by leaving before the last assert.
A pass is a random nonce that comes back on a private pipe only after the whole program has run.

What it does not stop: a program that sets out to cheat. It shares an interpreter with the code that reports, so it can
find the nonce by walking stack frames, or answer the asserts with objects equal to anything. It can also read, and
where the user may, write files outside its folder; a child that starts its own session outlives it; and the network
and process limits hold only where the system grants them (as root the process limit is void). Run untrusted models
inside a container.
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass

STDERR_TAIL = 4096  # bytes of stderr kept
DETAIL_CHARS = 300
POLL_SECONDS = 0.02

# Runs in the child. The report pipe arrives as stdout, `nonce`, newline, program as stdin.
_DRIVER = r"""
def main():
    import ctypes, os, resource, sys, types
    limits = sys.argv[1:]
    del sys.argv[1:]
    nonce, _, source = sys.stdin.buffer.read().partition(b"\n")
    report = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    for limit in limits:
        name, _, value = limit.partition("=")
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (int(value), int(value)))
    user, network = 0x10000000, 0x40000000
    unshare = ctypes.CDLL(None).unshare
    unshare(user | network) == 0 or unshare(network)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    write, leave, text, own_id, first = os.write, os._exit, str, os.getpid, os.getpid()
    try:
        exec(compile(source, "program.py", "exec"), module.__dict__)
    except BaseException as error:
        try:
            message = text(error)
        except BaseException:
            message = ""
        line = type(error).__name__ + (": " + message if message else "")
        write(2, ("\n" + line[:1000].replace("\n", " ") + "\n").encode("utf-8", "replace"))
        leave(1)
    if own_id() == first:  # not a fork of it
        write(report, nonce)
    leave(0)
main()
"""


@dataclass(frozen=True)
class Outcome:
    """`reason`: passed, failed (an exception), exited (early), timeout or killed; `detail`: stderr's last line."""

    passed: bool
    reason: str
    detail: str


def passes(program: str, *, seconds: float = 3.0, memory_mb: int = 512) -> Outcome:
    """Run `program` (a solution, its tests and the call of them) to its end in a process of its own.

    `seconds` limits wall time, start of the interpreter included; `memory_mb` limits address space, in MiB. The program
    sees the standard library only, an empty environment, a temporary working folder, and no input. Its output is
    dropped. A program that cannot run for any reason is an Outcome, never an exception.
    """
    nonce = os.urandom(16).hex().encode()
    limits = {
        "CPU": int(seconds) + 1,
        "AS": memory_mb << 20,
        "FSIZE": 16 << 20,
        "NOFILE": 64,
        "NPROC": 0,
        "CORE": 0,
    }
    command = [sys.executable, "-I", "-S", "-E", "-c", _DRIVER, *(f"{name}={value}" for name, value in limits.items())]
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="specbench-", ignore_cleanup_errors=True) as folder:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={},
            close_fds=True,
            start_new_session=True,
        ) as process:
            assert process.stdin and process.stdout and process.stderr
            try:
                with suppress(BrokenPipeError):
                    process.stdin.write(nonce + b"\n" + program.encode("utf-8", "surrogatepass"))
                    process.stdin.flush()
                with suppress(BrokenPipeError):
                    process.stdin.close()
                errors = _watch(process, deadline)
                late = process.poll() is None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reported = _read_now(process.stdout.fileno(), 64)
            if not late:
                errors += _read_now(process.stderr.fileno(), 1 << 16)
        lines = errors[-STDERR_TAIL:].decode("utf-8", "replace").strip().splitlines()
        detail = lines[-1][:DETAIL_CHARS] if lines else ""
        return _judge(late, process.returncode, reported == nonce, detail)


def _watch(process: subprocess.Popen, deadline: float) -> bytes:
    """Drain stderr until the process ends or the deadline passes; returns its tail."""
    tail = b""
    assert process.stderr
    source = process.stderr.fileno()
    os.set_blocking(source, False)
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and process.poll() is None:
            if not selector.get_map():  # stderr is closed: the end is near, or else an idle wait
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(left, POLL_SECONDS))
            elif selector.select(min(left, POLL_SECONDS)):
                data = os.read(source, 1 << 16)
                tail = (tail + data)[-STDERR_TAIL:]
                if not data:
                    selector.unregister(source)
    return tail


def _read_now(source: int, size: int) -> bytes:
    """What a pipe holds now, without waiting."""
    os.set_blocking(source, False)
    try:
        return os.read(source, size)
    except BlockingIOError:
        return b""


def _judge(late: bool, returncode: int, finished: bool, detail: str) -> Outcome:
    if late or returncode == -signal.SIGXCPU:
        return Outcome(False, "timeout", detail)
    if returncode < 0:
        return Outcome(False, "killed", detail or signal.Signals(-returncode).name)
    if finished and returncode == 0:
        return Outcome(True, "passed", detail)
    return Outcome(False, "failed" if returncode == 1 and detail else "exited", detail)
