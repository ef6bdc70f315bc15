"""The sandbox: runs one generated Python program and its unit tests in isolation, and reports whether it passed.

There are four kinds of isolation; the best one that works on this machine is found by trying, once (`isolation`):

- bubblewrap: the `bwrap` program makes namespaces and a file system root for the program;
- namespaces: our own system calls do the same, as root (the program is nobody) or in a user namespace;
- limits: neither is available. `Isolation.missing` names what is then not isolated.
- unsafe: the same where root may not become another user, as in a container without rights: the program is root.

In the first two the program sees a file system of the interpreter's own files, read-only and without installed
packages, and one empty folder of 64 MiB that it may write to. It sees no other process, no network and no device but
null, zero and urandom; it has the rights of nobody and cannot gain any. In all three it has an empty environment, no
open file but two pipes to its tests and its standard error (of which the last 4 KiB are kept), limits on wall and CPU
time, memory, the size of a file and the number of open ones, and a list of system calls that it is refused
(`syscalls`): it can start no process and no thread, open no socket, and signal nobody. When it ends, everything it left
running is killed.

The program does not decide whether it passed. The tests run in a process of their own, confined alike, which never
executes program code: they call the solution through a pipe, and what comes back are bytes that become new objects of
built-in types (`values`, `examine`). The program's process never holds the tests, what they expect, or a way to the
verdict. So whatever a program does to its own interpreter, it is judged by the values that it answers with.

Tests and solution do not share objects. So tests see other things than in one interpreter where a solution changes its
arguments in place, returns an argument itself, or answers with objects of classes of its own, which equal nothing but
themselves. Nor does the sandbox protect from a fault of the kernel or of the processor. Under `limits` a program can
read and write whatever the user can, the tests' source among them; that of root runs as nobody. Under `unsafe` it can
write root's files, so that it may change what the next program is judged by.
"""

import functools
import json
import os
from dataclasses import dataclass

from specbench.base.errors import UserError
from specbench.tasks.sandbox import jail
from specbench.tasks.sandbox.launch import STDERR_TAIL as STDERR_TAIL
from specbench.tasks.sandbox.launch import Outcome as Outcome
from specbench.tasks.sandbox.launch import readable, run_in
from specbench.tasks.sandbox.unit_tests import UnitTests

COMPLETE = ("bubblewrap", "namespaces")
LIMITS, UNSAFE = "limits", "unsafe"
PROBE_SECONDS = 20.0
PROBE_MB = 512
# Passes if modules load and everything else is refused.
_PROBE = """
import ctypes, decimal, hashlib, json, math, os, random, re, socket
assert os.getuid() == os.getgid() == {nobody}, "it has a user's rights"
assert set(os.listdir("/")) <= set({top}), "other folders are there"
assert not os.listdir("/proc"), "processes can be seen"
open("file", "w").close()
for name, reach in [
    ("the root folder can be written to", lambda: open("/file", "w")),
    ("the library can be written to", lambda: open({library} + "/file", "w")),
    ("there is a network", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("192.0.2.1", 9))),
    ("it can start processes", os.fork),
]:
    try:
        reach()
    except OSError:
        continue
    raise AssertionError(name)
"""
_NO_NETWORK = 'import socket\ntry: socket.socket().bind(("127.0.0.1", 0))\nexcept OSError: pass\nelse: raise ValueError'
_NO_PROCESS = "import os\ntry: os.fork()\nexcept OSError: pass\nelse: raise ValueError"


@dataclass(frozen=True)
class Isolation:
    """How programs are isolated here. `missing`: one line on what is not isolated and why; empty if `complete`."""

    name: str
    complete: bool
    missing: str


@functools.cache
def isolation() -> Isolation:
    """The best isolation that works on this machine, tried once per process. Raises UserError if none does."""
    reasons = []
    for kind in COMPLETE:
        problem = problem_of(kind)
        if problem is None:
            return Isolation(kind, True, "")
        reasons.append(f"{kind}: {problem}")
    kind, user = LIMITS, ""
    missing = ["read and write every file that you can"]
    if os.getuid() == 0:
        missing = ["read every file that all users can"]
        if problem := _start_problem(LIMITS):
            kind, user, missing = UNSAFE, " as root", ["read and write every file of root's"]
            reasons.append(f"limits: {problem}")
    if not run_in(kind, _NO_NETWORK, seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:
        missing.append("reach the network")
    if not run_in(kind, _NO_PROCESS, seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:
        missing.append("start processes")
    what = f"generated programs run{user} with resource limits alone and can {' and '.join(missing)}"
    return Isolation(kind, False, f"{what} ({'; '.join(reasons)})")


def problem_of(kind: str) -> str | None:
    """The reason why `kind`, one of COMPLETE, does not work here; None if it does."""
    program = _PROBE.format(
        nobody=jail.NOBODY,
        top=json.dumps(["dev", "proc", jail.WORK.strip("/"), *{path.split("/")[1] for path in readable()}]),
        library=json.dumps(os.path.dirname(os.__file__)),
    )
    return _start_problem(kind, program)


def _start_problem(kind: str, program: str = "") -> str | None:
    """The reason why a program does not pass under a kind of isolation; None if it does."""
    try:
        outcome = run_in(kind, program, seconds=PROBE_SECONDS, memory_mb=PROBE_MB)
    except UserError as error:
        return str(error).partition(": ")[2]
    return None if outcome.passed else outcome.detail or outcome.reason


def passes(program: str, tests: UnitTests, *, seconds: float = 3.0, memory_mb: int = 512) -> Outcome:
    """Run `program` to its end and `tests` on what it defines, isolated as well as this machine can.

    `seconds` limits the wall time of both together, `memory_mb` the address space of each, in MiB. Both see the
    standard library only, an empty environment, a temporary working folder, and no input. A program that cannot run
    for any reason gives an Outcome, never an exception. Raises UserError if the isolation that worked before fails now.
    """
    kind = isolation().name
    try:
        return run_in(kind, program, tests, seconds=seconds, memory_mb=memory_mb)
    except UserError:
        if run_in(kind, "", seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:  # the isolation works: blame the program
            return Outcome(False, "killed", "it ended the process that watches it")
        raise
