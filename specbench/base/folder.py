"""Run folders, which may come from anywhere: opened once by descriptor, so that no link in one leads out of it.

Every name is looked up in the open folder (openat and its kin), and a link is refused where it is met. It makes no
difference when the link was put there: nothing is looked at first and used later. The path of the folder itself, which
the user typed, may lead through links. Linux and macOS have these calls; specbench runs nowhere else.
"""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

from specbench.base.errors import UserError
from specbench.base.files import json_text

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that nobody writes to is opened at once
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class LinkRefused(UserError):
    """There is a link in a run folder."""


class Folder:
    """An open folder; `path` is for messages. It is closed with its last reference, or by `with`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """Open the folder at a path. Raises OSError."""
        return cls(path, os.open(path, _FOLDER))

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def fileno(self) -> int:
        return self._descriptor

    def folder(self, name: str, make: bool = False) -> "Folder":
        """The folder of this name, which `make` makes if it is missing. Raises OSError, LinkRefused."""
        with self._errors(name):
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._descriptor)
            return Folder(self.path / name, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor))

    def names(self) -> list[str]:
        """The names in the folder, without those of folders and links."""
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def odd_names(self) -> list[str]:
        """The names of what is neither a file nor a link: folders, pipes and the like."""
        with os.scandir(self._descriptor) as entries:
            odd = [entry for entry in entries if not (entry.is_file(follow_symlinks=False) or entry.is_symlink())]
            return sorted(entry.name for entry in odd)

    def refuse_links(self) -> None:
        """Raise LinkRefused if the folder holds a link."""
        with os.scandir(self._descriptor) as entries:
            links = sorted(entry.name for entry in entries if entry.is_symlink())
        if links:
            raise self._refusal(links[0])

    def has(self, name: str) -> bool:
        """True if there is something of this name, which may be a link."""
        try:
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def holds(self, name: str, file: os.stat_result) -> bool:
        """True if the name is that of a file with this status."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False), file)
        except FileNotFoundError:
            return False

    def open(self, name: str, flags: int = READ) -> int:
        """A descriptor of a file, which may be of any kind, by default for reading. Raises OSError, LinkRefused."""
        with self._errors(name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=self._descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        with self._errors(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def move(self, name: str, to: "Folder", new: str) -> None:
        with self._errors(name):
            os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def remove_folder(self, name: str) -> None:
        """Remove a folder with the files in it; one that holds folders, or is a link, stays."""
        with suppress(OSError, LinkRefused):
            with self.folder(name) as inner:
                for file in inner.names():
                    inner.unlink(file)
            os.rmdir(name, dir_fd=self._descriptor)

    def remove_leftovers(self) -> None:
        """Remove what a killed process left of the files that it was writing."""
        for name in filter(is_leftover, self.names()):
            self.unlink(name)

    def sync(self) -> None:
        """Wait until the names in the folder are on the disk."""
        os.fsync(self._descriptor)

    @contextmanager
    def whole(self, name: str) -> Iterator[BinaryIO]:
        """A file to write to; after the block its bytes are on the disk under `name`.

        If the block or the disk fails, the folder is as it was before. What was there under the name, a link too, is
        replaced and never written to.
        """
        new = f"{name}.{secrets.token_hex(4)}.new"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with self._errors(name, new), open(os.open(new, flags, 0o666, dir_fd=self._descriptor), "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            self.move(new, self, name)
        except BaseException as error:
            with suppress(OSError):
                self.unlink(new)
            if isinstance(error, OSError) and error.filename in (None, new, str(self.path / new)):
                error.filename = str(self.path / name)  # the user knows no other name
            raise
        self.sync()

    def write_json(self, name: str, value: Any, indent: int | None = 1) -> None:
        with self.whole(name) as file:
            file.write(json_text(value, indent=indent).encode())

    @contextmanager
    def _errors(self, *names: str) -> Iterator[None]:
        """Errors name the whole path, the first of `names` in place of the others; links are refused in words."""
        try:
            yield
        except OSError as error:
            if error.filename in names:
                if self._is_link(names[0]):
                    raise self._refusal(names[0]) from None
                error.filename, error.filename2 = str(self.path / names[0]), None
            raise

    def _is_link(self, name: str) -> bool:
        try:
            return stat.S_ISLNK(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def _refusal(self, name: str) -> LinkRefused:
        return LinkRefused(
            f"{self.path / name} is a link, which a run folder must not hold: it may lead anywhere; put what it leads "
            "to in its place, or remove it"
        )


class FolderFile(NamedTuple):
    """A file in an open folder, which need not exist yet."""

    folder: Folder
    name: str

    def __str__(self) -> str:
        return str(self.folder.path / self.name)


def member(folder: Path, name: str) -> FolderFile:
    """A file in the folder at a path. Raises OSError if there is no such folder."""
    return FolderFile(Folder.at(folder), name)


def is_leftover(name: str) -> bool:
    """True for the names of files that a killed process was writing."""
    return bool(re.fullmatch(r".+\.[0-9a-f]{8}\.new", name))
