"""Files that are on the disk whole or not at all, whatever happens while they are written."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; behind the block its bytes are on the disk under the name `path`.

    If the block or the disk fails, `path` is as it was and nothing else is left.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        sync(new)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with whole(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    with whole(path) as new, open(new, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
