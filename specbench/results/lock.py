"""A lock on a run folder, so that only one process writes it."""

import fcntl
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from specbench.base import files
from specbench.config import UserError

LOCK = ".lock"


def unused(folder: Path) -> bool:
    """True if the folder is missing or holds only leftovers of a killed run."""
    return not folder.exists() or (folder.is_dir() and all(_left(path) for path in folder.iterdir()))


def _left(path: Path) -> bool:
    return path.name == LOCK or files.is_left(path)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a folder, which is made if it is missing, for this process.

    The system removes the lock when the process ends, however that happens. Folders that were made here are removed if
    they are empty in the end.

    Raises:
        UserError: another process, which the message names, writes the folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new in made:
        files.sync(new.parent)  # the name, too, must survive a power cut
    lock_path = folder / LOCK
    with _locked(lock_path) as lock:
        for path in filter(files.is_left, folder.iterdir()):
            path.unlink()
        lock.truncate(0)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        json.dump(owner | {"command": shlex.join(sys.argv)}, lock)
        lock.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # the folder may be gone, or not empty
                lock_path.unlink()
                for new in made:
                    new.rmdir()


def _locked(path: Path) -> IO[str]:
    """The lock file, open and locked. If its last owner has just removed it, it is made again."""
    while True:
        # A link is not followed, as it may lead anywhere.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
        lock = open(descriptor, "a+", encoding="utf-8")  # noqa: SIM115 (the caller closes it)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                lock.seek(0)
                owner = _owner(lock.read())
            raise UserError(f"{path.parent} is being written by {owner}; wait for it, or stop it") from None
        except OSError:  # a file system without locks
            return lock
        with suppress(OSError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                return lock
        lock.close()


def _owner(text: str) -> str:
    try:
        owner = json.loads(text)
        return f"process {owner['pid']:d} on {owner['host']!r} since {owner['since']!r}"
    except (ValueError, KeyError, TypeError):
        return "another process"
