"""One writer for a run folder at a time."""

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

from specbench import files
from specbench.config import UserError

LOCK = ".lock"


def unused(folder: Path) -> bool:
    """Whether nothing but what a killed process left on its way is in a folder, or there is none."""
    return not folder.exists() or (folder.is_dir() and all(_left(path) for path in folder.iterdir()))


def _left(path: Path) -> bool:
    return path.name == LOCK or files.is_left(path)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make a folder this process' own to write. Raises UserError, with the other process named, if it is another's.

    The system lets go of the lock with the process, however that ends. Folders that were made here and are empty in the
    end are removed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for new in made:
        files.sync(new.parent)  # its name too outlives a power cut
    lock_path = folder / LOCK
    with _locked(lock_path) as lock:
        for path in filter(files.is_left, folder.iterdir()):
            path.unlink()
        lock.truncate(0)
        told = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        json.dump(told | {"command": shlex.join(sys.argv)}, lock)
        lock.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # the folder may be gone, or not empty
                lock_path.unlink()
                for new in made:
                    new.rmdir()


def _locked(path: Path) -> IO[str]:
    """The lock file, open and locked, and still the one of this name: its last owner may just have removed it."""
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)  # a link may lead anywhere
        lock = open(opened, "a+", encoding="utf-8")  # noqa: SIM115 (the caller closes it)
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
        told = json.loads(text)
        return f"process {told['pid']:d} on {told['host']!r} since {told['since']!r}"
    except (ValueError, KeyError, TypeError):
        return "another process"
