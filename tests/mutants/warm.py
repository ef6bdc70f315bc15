"""Runs pytest in forks of one process that has the large libraries loaded: imports take longer than most tests.

Reads a line of JSON for each call (`tree`, `arguments`, `limit`), and writes one: exit code (null: out of time) and
what was said. Nothing of the package or its tests is imported here.
"""

import atexit
import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time

LIBRARIES = (
    *("torch", "transformers.models.llama.modeling_llama", "pandas", "pyarrow.dataset", "pyarrow.parquet"),
    *("scipy.stats", "pydantic", "yaml", "typer.testing", "rich.console", "huggingface_hub"),
    *("hypothesis.strategies", "pytest"),
)
MEMORY = 16 * 2**30  # bytes of address space: a mutation may build a list without end


def run(tree: str, arguments: list[str], limit: float) -> tuple[int | None, str]:
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        child = os.fork()
        if not child:
            work(tree, arguments, said.fileno())
        until = time.monotonic() + limit
        code = None
        while code is None and time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it started too
        if code is None:
            os.waitpid(child, 0)
        said.seek(0)
        return code, said.read()


def work(tree: str, arguments: list[str], said: int) -> None:
    """The child, which does not come back."""
    code = 3
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.chdir(tree)
        os.environ["PYTHONPATH"] = tree
        sys.path.insert(0, tree)
        importlib.invalidate_caches()
        code = int(importlib.import_module("pytest").main(["-x", "-q", "-p", "no:cacheprovider", *arguments]))
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        code, said = run(**json.loads(line))
        print(json.dumps([code, said]), file=answers, flush=True)


if __name__ == "__main__":
    main()
