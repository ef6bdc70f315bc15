"""A lock on a run folder, so that only one process writes it."""

import fcntl
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specbench.base import files
from specbench.base.errors import UserError
from specbench.base.folder import Folder, FolderFile, is_leftover
from specbench.base.untrusted import read_object

LOCK = ".lock"
LONGEST = 2**16  # bytes of what it says


def unused(path: Path) -> bool:
    """True if the folder is missing or holds only leftovers of a killed run."""
    try:
        with Folder.at(path) as folder:
            left = {name for name in folder.names() if name == LOCK or is_leftover(name)}
            return left == {*os.listdir(folder.fileno())}
    except FileNotFoundError:
        return not path.is_symlink()
    except NotADirectoryError:
        return False


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock a folder, which is made if it is missing, for this process.

    The system removes the lock when the process ends, however that happens. Folders that were made here are removed if
    they are empty in the end.

    Raises:
        UserError: another process, which the message names, writes the folder; or there is a link in it.
    """
    made = [new for new in (path, *path.parents) if not new.exists()]
    with _locked(path) as folder, _released(folder.fileno()), _owned(folder):
        for new in made:
            files.sync(new.parent)  # the name, too, must survive a power cut
        folder.remove_leftovers()
        try:
            yield
        finally:
            with suppress(OSError):  # the folder may be gone, or not empty
                folder.unlink(LOCK)
                for new in made:
                    new.rmdir()


def _locked(path: Path) -> Folder:
    """The folder, open and locked by its descriptor: no name in it that somebody removes is needed for that."""
    while True:
        with suppress(FileNotFoundError):  # its last owner has just removed it
            _make(path)
            folder = Folder.at(path)
            folder.refuse_links()
            _lock(folder.fileno(), folder)
            if os.path.samestat(os.fstat(folder.fileno()), os.stat(path)):
                return folder


def _make(path: Path) -> None:
    """Make the folder if it is missing.

    Raises:
        FileExistsError: something else is in its place.
        FileNotFoundError: it was there and is gone.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # also if it went between being found there and being looked at
        if not (path.is_dir() if path.is_symlink() else stat.S_ISDIR(path.lstat().st_mode)):
            raise


@contextmanager
def _owned(folder: Folder) -> Iterator[None]:
    """A file in the folder that says who writes it. It is locked too: some network file systems lock only files."""
    descriptor = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
    with open(descriptor, "r+", encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # another name of it may be anywhere
            raise UserError(f"{folder.path / LOCK} is not a file of specbench; remove it")
        _lock(descriptor, folder)
        if not folder.holds(LOCK, status):  # its last owner has just removed it
            raise UserError(f"{folder.path} was being written by another process just now; try again")
        file.truncate(0)
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        json.dump(owner | {"command": shlex.join(sys.argv)}, file)
        file.flush()
        with _released(descriptor):
            yield


@contextmanager
def _released(descriptor: int) -> Iterator[None]:
    """Unlock it in the end: closing it does not, while a process that was forked meanwhile has it open too."""
    try:
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int, folder: Folder) -> None:
    """Lock what is open. Raises UserError if another process has done so; a file system without locks is none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{folder.path} is being written by {_owner(folder)}; wait for it, or stop it") from None
    except OSError:
        pass


def _owner(folder: Folder) -> str:
    try:
        owner = read_object(FolderFile(folder, LOCK), most=LONGEST)
        return f"process {owner['pid']:d} on {owner['host']!r} since {owner['since']!r}"
    except (UserError, ValueError, KeyError, TypeError):
        return "another process"
