"""Files that are on the disk whole or not at all, whatever happens while they are written."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
LONGEST_NAME = 120  # characters of a name that was made of other names; file systems allow 255 bytes


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; behind the block its bytes are on the disk under the name `path`.

    If the block or the disk fails, `path` is as it was and nothing else is left. A link is replaced, never followed: in
    a folder of somebody else it may lead anywhere. A device or a pipe, such as /dev/stdout, is written to as it is.
    """
    if path.parent in _STREAMS or (path.exists() and not (path.is_file() or path.is_dir())):
        yield path
        return
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield new
        sync(new)
        new.replace(path)
    except BaseException as error:
        with suppress(OSError):
            new.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(new)):
            error.filename = str(path)  # the user never named the other
        raise
    sync(path.parent)


def is_left(path: Path) -> bool:
    """Whether a path is a file that `whole` was at when its process was killed."""
    return bool(re.fullmatch(r".+\.[0-9a-f]{8}\.new", path.name)) and path.is_file() and not path.is_symlink()


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
