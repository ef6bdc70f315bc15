"""Files that are written completely or not at all, whatever happens meanwhile."""

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError

_STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
LONGEST_NAME = 120  # characters of a name that is made of other names; file systems allow 255 bytes


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path next to `path` to write to; after the block its bytes are on the disk as `path`.

    If the block or the disk fails, `path` is as it was before and nothing else is left. A link is replaced, never
    followed: in somebody else's folder it may lead anywhere. A device or a pipe, such as /dev/stdout, is written to
    directly.
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
            error.filename = str(path)  # the user knows no other name
        raise
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    with whole(path) as new:
        new.write_text(text, encoding="utf-8")


def json_text(value: Any, **options: Any) -> str:
    """A value as JSON, in which there is no NaN or infinity: they become null. `options` are those of json.dumps."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any, indent: int | None = 1) -> None:
    write_text(path, json_text(value, indent=indent))


def safe_name(text: str) -> str:
    """A text from a file (the name of a method, a task or a run) as a single part of a path.

    Letters, digits and `._-+=,[]():` stay. A text that had to be changed ends in a hash of it, so that two different
    texts never get the same name.
    """
    name = re.sub(r"[^\w.+=,\[\]():-]", "_", text)[:LONGEST_NAME].lstrip(".-")
    changed = name != text or len(name.encode()) > 255
    name = name if len(name.encode()) <= 255 else ""
    return f"{name}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}".lstrip("-") if changed else name


def refuse_existing(path: Path) -> None:
    """Raise UserError if there is something at a path that is about to be written."""
    if path.exists():
        raise UserError(f"{path} exists; choose another --out")


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
