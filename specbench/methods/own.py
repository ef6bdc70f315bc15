"""Import what specbench did not bring: own methods, and functions that a setting names. Never without permission."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

from specbench import permissions
from specbench.base.errors import UserError
from specbench.base.hashes import short_hash
from specbench.config.own_methods import entries
from specbench.config.specs import ENTRY


def module(method: str) -> ModuleType:
    """The module of an own method, by its `MethodSpec.method`.

    Raises:
        UserError: the command line does not name it, it cannot be imported, or it is not a method.
    """
    permissions.check_entry_point(method, f"the method {method}")
    return _imported(method, digest(method))


@cache
def _imported(method: str, content: str) -> ModuleType:
    """The same, once for each content of its file."""
    name = method.removeprefix(ENTRY)
    imported = loaded(name, entries()[name].load if method.startswith(ENTRY) else partial(import_file, Path(method)))
    for needed in ("Settings", "build"):
        if not hasattr(imported, needed):
            raise UserError(f"{name}: has no {needed}; `specbench new method NAME` writes a file that works")
    if not (isinstance(imported.Settings, type) and issubclass(imported.Settings, BaseModel)):
        raise UserError(f"{name}: Settings must be a class derived from specbench.config.Settings")
    if not callable(imported.build):
        raise UserError(f"{name}: build must be a function build(settings, pair, watch)")
    if content:
        permissions.tell(f"method: {name} from {getattr(imported, '__file__', None) or 'no file'}")
    return imported


def loaded(name: str, load: Callable[[], ModuleType]) -> ModuleType:
    """What `load` imports. Raises UserError, which begins with the name, where that fails."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # code of a user may fail in any way, or exit
        raise UserError(f"{name}: cannot be imported: {_where(error, name)}{_one_line(error)}") from None


def import_module(place: str) -> ModuleType:
    """Import an installed module by name, or a file by its path.

    A file of a module's name in the current folder is never taken for it.
    """
    if place.endswith(".py"):
        return import_file(Path(place).resolve())
    with _without_current_folder():
        return importlib.import_module(place)


def import_file(path: Path) -> ModuleType:
    """Import a file under a name that no other module has. Raises whatever it raises."""
    spec = importlib.util.spec_from_file_location(f"specbench_own_{path.stem}", path)
    assert spec and spec.loader
    imported = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = imported  # its own classes and functions look it up there
    spec.loader.exec_module(imported)
    return imported


@contextmanager
def _without_current_folder() -> Iterator[None]:
    """Remove the current folder from `sys.path`: `python -m` puts it first, and an empty entry means it too."""
    before, here = list(sys.path), Path.cwd()
    sys.path[:] = [entry for entry in before if entry and Path(entry).resolve() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def digest(method: str) -> str:
    """16 hexadecimal digits of the file of an own method; of an entry point those of its module's file."""
    if method.startswith(ENTRY):
        name = method.removeprefix(ENTRY)
        if name not in entries():
            raise UserError(f"no installed package brings a method {name!r}; install the one that did")
        entry = entries()[name]
        files = entry.dist.files or [] if entry.dist else []
        stems = tuple(entry.module.replace(".", "/") + end for end in (".py", "/__init__.py"))
        paths = [Path(str(file.locate())) for file in files if str(file).endswith(stems)]
        content = b"".join(path.read_bytes() for path in paths if path.is_file())
        content = content or f"{entry.value} {entry.dist.version if entry.dist else ''}".encode()
    else:
        try:
            content = Path(method).read_bytes()
        except OSError as error:
            raise UserError(f"{method}: cannot be read ({error.strerror}); put the file back") from None
    return short_hash(content)


def _where(error: BaseException, file: str) -> str:
    """The last line of a file in an exception's traceback, in words; a SyntaxError has it in its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"line {lines[-1]}: " if lines and not isinstance(error, SyntaxError) else ""


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
