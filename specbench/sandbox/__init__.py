"""Runs one generated Python program with its unit tests shut in, and says whether it passed.

How it is shut in is the best of three that works here, which is tried once and not guessed (`isolation`):

- bubblewrap: the `bwrap` program makes namespaces and a root of their own;
- namespaces: the same by our own system calls, as root (the program is nobody) or in a user namespace;
- limits: neither is to be had. What is then not shut off is said in `Isolation.missing`.

In the first two the program sees a file system of the interpreter's own files, read-only and without installed
packages, and one empty folder of 64 MiB to write to; no other process, no network, no device but null, zero and
urandom, nobody's rights and none to gain. In all three it has an empty environment, no open file but its standard error
(of which the last 4 KiB are kept), limits on wall and CPU time, memory, the size of a file and the number of open ones,
and a list of system calls that it is refused (`syscalls`): it can start no process and no thread, open no socket, and
signal nobody. When it is over, all that it left behind is killed.

Whether it passed is not for it to say: a second process watches it, and takes only a claim that comes from below the
program on the stack of calls, where it returns when it has run to its end (`supervise`). So neither leaving early, nor
changing what the checker uses, nor writing to open files, nor walking frames and objects, nor a trace function gets a
pass. Where the kernel does not show stack pointers (/proc/PID/syscall), the claim is taken on trust.

What it does not stop, because tests and solution share an interpreter, as in lm-eval and the papers: a solution whose
answers are equal to everything (`__eq__`), that changes the library that the tests use or the tests themselves while
they run (from a timer's signal, say), or that rewrites the interpreter's memory by ctypes. Nor does it stop a fault of
the kernel or of the processor. Under `limits` a program can read and write what the user can.
"""

import functools
import json
import os
from dataclasses import dataclass

from specbench.errors import UserError
from specbench.sandbox import jail
from specbench.sandbox.launch import STDERR_TAIL as STDERR_TAIL
from specbench.sandbox.launch import Outcome as Outcome
from specbench.sandbox.launch import readable, run_in

COMPLETE = ("bubblewrap", "namespaces")
PROBE_SECONDS = 20.0
PROBE_MB = 512
# Passes where modules load and everything else is shut.
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
    """How programs are shut in here. `missing`: a line that says what is not shut off and why; empty if `complete`."""

    name: str
    complete: bool
    missing: str


@functools.cache
def isolation() -> Isolation:
    """The best isolation that works on this machine, tried once per process. Errors: UserError if none does."""
    reasons = []
    for kind in COMPLETE:
        problem = problem_of(kind)
        if problem is None:
            return Isolation(kind, True, "")
        reasons.append(f"{kind}: {problem}")
    missing = ["read and write every file that you can"]
    if not run_in("limits", _NO_NETWORK, seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:
        missing.append("reach the network")
    if not run_in("limits", _NO_PROCESS, seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:
        missing.append("start processes")
    return Isolation(
        "limits",
        False,
        f"generated programs run with resource limits alone and can {' and '.join(missing)} ({'; '.join(reasons)})",
    )


def problem_of(kind: str) -> str | None:
    """Why `kind`, one of COMPLETE, does not work here; None if it does."""
    program = _PROBE.format(
        nobody=jail.NOBODY,
        top=json.dumps(["dev", "proc", jail.WORK.strip("/"), *{path.split("/")[1] for path in readable()}]),
        library=json.dumps(os.path.dirname(os.__file__)),
    )
    try:
        outcome = run_in(kind, program, seconds=PROBE_SECONDS, memory_mb=PROBE_MB)
    except UserError as error:
        return str(error).partition(": ")[2]
    return None if outcome.passed else outcome.detail or outcome.reason


def passes(program: str, *, seconds: float = 3.0, memory_mb: int = 512) -> Outcome:
    """Run `program` (a solution, its tests and the call of them) to its end, shut in as well as this machine can.

    `seconds` limits the wall time of the program itself, `memory_mb` its address space, in MiB. It sees the standard
    library only, an empty environment, a temporary working folder, and no input. A program that cannot run for any
    reason is an Outcome, never an exception. Errors: UserError if the isolation that worked before fails now.
    """
    kind = isolation().name
    try:
        return run_in(kind, program, seconds=seconds, memory_mb=memory_mb)
    except UserError:
        if run_in(kind, "", seconds=PROBE_SECONDS, memory_mb=PROBE_MB).passed:  # it works: it was this program
            return Outcome(False, "killed", "it ended the process that watches it")
        raise
