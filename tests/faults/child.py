"""The command in a process of its own, with a fault in it.

A fresh process begins as a user's does. A forked one has imported everything already, which saves five seconds of each.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Faults = Mapping[str, Any]  # by the names of functions in injected.py, with what they are called with
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["faults.ready"])
PATIENCE = float(os.environ.get("SPECBENCH_FAULTS_PATIENCE", "1"))  # for a machine that is busy with other work
LONGEST = 240 * PATIENCE  # seconds after which a command counts as hung


class Command:
    """A specbench command under way; what it says goes into the file `output`."""

    def __init__(self, words: Sequence[str], output: Path, faults: Faults | None = None, fresh: bool = False) -> None:
        self.output = output
        self._process: Any
        if fresh:
            given = [sys.executable, str(Path(__file__)), json.dumps(dict(faults or {})), str(output), *words]
            self._process = subprocess.Popen(given, stdin=subprocess.DEVNULL)
        else:
            self._process = CONTEXT.Process(target=call, args=(list(words), str(output), dict(faults or {})))
            self._process.start()
        self.pid: int = self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None if isinstance(self._process, subprocess.Popen) else self._process.is_alive()

    def send(self, number: int) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def until(self, condition: Callable[[], bool], seconds: float = LONGEST) -> bool:
        """Wait for a condition; False if the command ended, or the time was over, before."""
        end = time.monotonic() + seconds
        while self.alive() and time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.003)
        return condition()

    def end(self, seconds: float = LONGEST) -> int:
        """Wait for the end; returns the exit code, -N after signal N, and kills what hangs."""
        began = time.monotonic()
        while self.alive() and time.monotonic() - began < seconds:
            time.sleep(0.003)
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
            return -1000
        return self._wait()

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def _wait(self) -> int:
        if isinstance(self._process, subprocess.Popen):
            return self._process.wait()
        self._process.join()
        code: int = self._process.exitcode
        return code


def call(words: Sequence[str], output: str, faults: Faults) -> None:
    """Be the command: its words into `output`, then the faults, then what `specbench` does."""
    opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(opened, number)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 (open to the end)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 (open to the end)
    from faults import injected

    for name, given in faults.items():
        getattr(injected, name)(given)
    sys.argv = ["specbench", *words]
    from specbench import cli

    code: Any = 1
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except KeyboardInterrupt:
        code = 130
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if multiprocessing.parent_process() is not None:  # a forked one skips what the fork server has to clean up
            os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)
    call(sys.argv[3:], sys.argv[2], json.loads(sys.argv[1]))
