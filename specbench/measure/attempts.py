"""Attempts at a shard: where it was decoded so far, and a folder in which another worker continues it.

A worker that is cut off from the driver may still write. So where that can be, each attempt has a folder of its own,
which begins with what the attempt before had recorded.
"""

import shutil
from pathlib import Path

from specbench.base.errors import UserError
from specbench.base.folder import is_leftover
from specbench.results.lock import LOCK
from specbench.results.shard import attempt_folder, attempts
from specbench.results.stored import StoredRun

COPIES = 20  # times that a folder is copied again because files in it were replaced meanwhile


def begun(folder: Path, number: int) -> StoredRun | None:
    """The last attempt at a shard that is decoded, or else the last one that has begun; None if none has."""
    places = [attempt_folder(folder, number, attempt) for attempt in attempts(folder).get(number, [])]
    runs = [StoredRun(place) for place in places if (place / "manifest.json").exists()]
    best = [run for run in runs if run.decoded] or runs
    return best[-1] if best else None


def new_attempt(folder: Path, number: int) -> Path:
    """The folder of the next attempt at a shard, with what the last one recorded; nobody else writes there."""
    tries = attempts(folder).get(number)
    if not tries:
        return attempt_folder(folder, number, 1)
    place, before = attempt_folder(folder, number, tries[-1] + 1), begun(folder, number)
    copy = place.with_name(f"copy-of-{place.name}")
    for _ in range(COPIES):
        shutil.rmtree(copy, ignore_errors=True)
        try:
            if before:
                _copy(before.folder, copy)
            else:
                copy.mkdir()
            copy.rename(place)
            return place
        except FileNotFoundError:  # its worker still writes, and has just joined parts
            continue
    raise UserError(f"{before and before.folder} keeps changing: its worker still runs; stop it, then resume")


def _copy(source: Path, copy: Path) -> None:
    """Copy a shard's files and parts, which are all written whole. Raises FileNotFoundError if one goes meanwhile."""
    copy.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_dir() and path.name == "parts":
            _copy(path, copy / path.name)
        elif path.is_file() and path.name != LOCK and not is_leftover(path.name):
            shutil.copyfile(path, copy / path.name)
