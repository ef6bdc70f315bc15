"""Remove the folder of a program that has ended, whatever it made of it: no link is followed, no depth is too much."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove(path: str) -> None:
    """Remove a folder and all that is in it; what this user cannot remove stays.

    Folders are emptied one at a time: those within are moved to the top first, so that nothing here nests.
    """
    with suppress(OSError):
        top = _open(path, None)
        try:
            names = (f"{os.urandom(8).hex()}.new" for _ in count())
            while folders := _empty(top, top, names):
                for name in folders:
                    _remove_folder(name, top, names)
        finally:
            os.close(top)
        os.rmdir(path)


def _remove_folder(name: str, top: int, names: Iterator[str]) -> None:
    """Empty a folder within `top`, whose own folders are moved there, and remove it."""
    folder = _open(name, top)
    try:
        _empty(folder, top, names)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _empty(folder: int, top: int, names: Iterator[str]) -> list[str]:
    """Remove the files of a folder and move its folders to `top`; returns the names of those that are in `top` now."""
    folders = []
    for name in os.listdir(folder):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
        elif folder == top:
            folders.append(name)
        else:
            os.close(_open(name, folder))  # which makes it writable: else it could not be moved
            os.rename(name, next(names), src_dir_fd=folder, dst_dir_fd=top)
    return folders


def _open(name: str, within: int | None) -> int:
    """Open a folder that is no link, with all rights for its owner."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        with suppress(OSError):  # of somebody else
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(name, OPENED, dir_fd=within)
    finally:
        os.close(found)
