"""Files that are on the disk whole or not at all, whatever happens while they are written."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LONGEST_NAME = 120  # characters of a name that was made of other names; file systems allow 255 bytes


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; behind the block its bytes are on the disk under the name `path`.

    If the block or the disk fails, `path` is as it was and nothing else is left. A link stays one: what it names is
    replaced; a device or a pipe, such as /dev/stdout, is written to as it is.
    """
    if path.is_relative_to("/dev") or (path.exists() and not (path.is_file() or path.is_dir())):
        yield path
        return
    path = path.resolve() if path.is_symlink() else path
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        sync(new)
        new.replace(path)
    except BaseException as error:
        with suppress(OSError):
            new.unlink()
        if isinstance(error, OSError) and error.filename == str(new):
            error.filename = str(path)  # the user never named the other
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with whole(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    with whole(path) as new, open(new, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)


def safe_name(text: str) -> str:
    """A text from a file (the name of a method, a task or a run) as one part of a path, which leads nowhere else.

    Letters, digits and `._-+=,[]():` stay. What had to be changed ends in digits of its own, so that two stay two.
    """
    name = re.sub(r"[^\w.+=,\[\]():-]", "_", text)[:LONGEST_NAME].lstrip(".-")
    changed = name != text or len(name.encode()) > 255
    name = name if len(name.encode()) <= 255 else ""
    return f"{name}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}".lstrip("-") if changed else name


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
