"""Files and texts from anywhere, read within bounds: the result is a value or a `UserError` of one line.

A file may be a folder, a pipe that never ends, larger than memory, nested without end, or written so that a few bytes
become gigabytes. So every reader of the package begins here.
"""

import json
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import yaml

from specbench.base.errors import UserError
from specbench.base.folder import READ, FolderFile

MIB = 2**20
MOST_JSON = 64 * MIB  # bytes; a manifest of 100,000 documents has 10 MiB
MOST_YAML = MIB // 8  # the parser reads some 100 kB a second; the largest file in suites/ has 10 kB
MOST_LINE = 64 * MIB
MOST_VALUES = 8_000_000  # of a JSON text: an empty list takes 2 bytes in it and 60 in memory
MOST_NODES = 50_000  # values of YAML, aliases counted as often as they are written
LONG_TEXT = 20  # characters of YAML that count as one more value: aliases repeat a long text, too
DEEPEST = 40
BRIEF = 80  # characters of an error of another library
LISTED = 4  # names that a message has at most
Source: TypeAlias = Path | FolderFile
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def brief(error: object) -> str:
    """The beginning of another library's error message, on one line."""
    line = " ".join(str(error).split())[:BRIEF] or type(error).__name__
    return line if line.isascii() else line.encode(errors="replace").decode()  # halves of characters, as JSON may name


def listed(names: Collection[str]) -> str:
    """The first names in order, and how many more there are."""
    first = ", ".join(brief(name) for name in sorted(names, key=_numbered)[:LISTED])
    return first + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def _numbered(name: str) -> list[tuple[int, str]]:
    """A key by which layer 2 comes before layer 10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in name.split(".")]


def is_file(path: Path) -> bool:
    """True if `path` is a regular file; `Path.is_file` raises for names that are too long."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def opened(source: Source, most: int | None = None, remedy: str = "") -> BinaryIO:
    """A regular file, open for reading. `remedy`, which says what to do, ends the error messages.

    Raises:
        UserError: there is no file, or it is a pipe or a device (reading it might never end), or it has more than
            `most` bytes.
    """
    end = f"; {remedy}" if remedy else ""
    try:
        descriptor = source.folder.open(source.name) if isinstance(source, FolderFile) else os.open(source, READ)
    except PermissionError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}){end}") from None
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError | NotADirectoryError) else f" that can be read ({brief(error)})"
        raise UserError(f"there is no file {source}{why}{end or '; check its path'}") from None
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        wrong = "is a folder, not a file"
    elif not stat.S_ISREG(status.st_mode):
        wrong = "is not a regular file (a pipe or a device)"
    elif most is not None and status.st_size > most:
        wrong = f"has {status.st_size} bytes, and such a file at most {most}; is it another one?"
    else:
        return open(descriptor, "rb")
    os.close(descriptor)
    raise UserError(f"{source} {wrong}{end}")


def regular(path: Path, most: int | None = None, remedy: str = "") -> int:
    """The size of a regular file. Raises UserError as `opened`."""
    with opened(path, most, remedy) as file:
        return os.fstat(file.fileno()).st_size


def read_bytes(path: Source, most: int, remedy: str = "") -> bytes:
    """A file of at most `most` bytes. Raises UserError as `opened`."""
    try:
        with opened(path, most, remedy) as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({brief(error.strerror)})" + f"; {remedy}" * bool(remedy)) from None
    if len(content) > most:  # it grows, or does not tell its size
        raise UserError(f"{path} has more than {most} bytes; is it another file?")
    return content


def read_text(path: Source, most: int, remedy: str = "") -> str:
    """A text file in UTF-8, with or without a byte order mark."""
    return decoded(read_bytes(path, most, remedy), str(path), remedy)


def decoded(raw: bytes, where: str, remedy: str = "") -> str:
    """Bytes as UTF-8. Raises UserError, which begins with `where`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        end = f"; {remedy}" if remedy else ""
        raise UserError(f"{where} is damaged (no text in UTF-8: byte {error.start}){end}") from None


def read_lines(path: Path, most: int = MOST_LINE, remedy: str = "") -> Iterator[tuple[int, str, int]]:
    """The lines of a text file, as (number from 1, text, bytes). Raises UserError for one of over `most` bytes."""
    try:
        with opened(path, remedy=remedy) as file:
            number = 0
            while raw := file.readline(most + 1):
                number += 1
                if len(raw) > most:
                    raise UserError(f"{path}, line {number}: more than {most} bytes; is this another kind of file?")
                yield number, decoded(raw, f"{path}, line {number}", remedy), len(raw)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({brief(error.strerror)})") from None


def read_json(path: Source, most: int = MOST_JSON, remedy: str = "", values: int = MOST_VALUES) -> Any:
    """A JSON file of at most `most` bytes and `values` values. Raises UserError."""
    return parse_json(read_text(path, most, remedy), str(path), remedy, values)


def read_object(path: Source, most: int = MOST_JSON, remedy: str = "") -> dict[str, Any]:
    """A JSON file that holds an object. Raises UserError."""
    value = read_json(path, most, remedy)
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged (no JSON object)" + f"; {remedy}" * bool(remedy))
    return value


def parse_json(text: str, where: str, remedy: str = "", values: int = MOST_VALUES) -> Any:
    """The value of a JSON text, which may hold NaN and infinite numbers. Raises UserError, for a key twice as well."""
    end = f"; {remedy}" if remedy else ""
    if text.count(",") + text.count("[") + text.count("{") > values:
        raise UserError(f"{where} holds more than {values} values; is it another file?{end}")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply{end}") from None
    except KeyError as error:
        raise UserError(f"{where} is damaged (the key {brief(error)} is there twice){end}") from None
    except ValueError as error:
        raise UserError(f"{where} is damaged (not JSON: {brief(error)}){end}") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise UserError(f"{where} is damaged (it holds unpaired surrogates){end}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of whose keys none may be dropped. Raises KeyError for one that is there twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise KeyError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return made


def text_of(line: str, where: str, remedy: str) -> str:
    """The field `text` of a line of JSON Lines. Raises UserError."""
    value = parse_json(line, where, remedy)
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise UserError(f'{where} has no "text"; {remedy}')
    text: str = value["text"]
    return text


class _Plain(yaml.SafeLoader):
    """Reads numbers as they look: YAML 1.1 has 1:30 as 90 and 010 as 8, which is refused."""

    def number(self, node: yaml.ScalarNode) -> Any:
        if ":" in node.value or re.fullmatch(r"[-+]?0\d+", node.value):
            raise ValueError(
                f"YAML reads {node.value} as a number of base {60 if ':' in node.value else 8}; write it plainly"
            )
        whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if whole else self.construct_yaml_float(node)  # type: ignore[no-untyped-call]


for _kind in ("int", "float"):
    _Plain.add_constructor(f"tag:yaml.org,2002:{_kind}", _Plain.number)


class _Tagged(_Plain):
    """Reads a value with a tag of its own, such as lm-eval's `!function`, as its text. Nothing is imported."""


_Tagged.add_multi_constructor("!", lambda loader, suffix, node: f"!{suffix} {node.value}")  # type: ignore[no-untyped-call]


def read_yaml(path: Path, where: str = "", tags: bool = False) -> Any:
    """A YAML file, as `parse_yaml` reads it; messages call it `where`, by default its path."""
    return parse_yaml(read_text(path, MOST_YAML), where or str(path), tags)


def read_mapping(path: Path, where: str = "", tags: bool = False) -> dict[str, Any]:
    """The same for a YAML file of keys and values."""
    value = read_yaml(path, where, tags)
    if not isinstance(value, dict):
        raise UserError(f"{where or path} must be a mapping of keys to values")
    return value


def parse_yaml(text: str, where: str, tags: bool = False) -> Any:
    """The value of a YAML text, as JSON could hold it; with `tags`, values with tags of their own are texts.

    Raises:
        UserError: the text is no YAML, a key occurs twice, a value has no counterpart in JSON (dates, objects), or
            aliases, which can repeat a value without bound, make too many values.
    """
    try:
        loader = (_Tagged if tags else _Plain)(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _size(node, 0, {})
            value = loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise UserError(f"{where} is nested too deeply") from None
    # The parser raises Python's own errors for numbers, dates and tags that are none.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, TypeError):
        raise UserError(
            f"{where} holds a date, bytes, a set, unpaired surrogates or a number out of range; write texts in "
            "quotes, and plain numbers"
        ) from None
    return value


def parse_value(text: str, option: str, what: str = "the value") -> Any:
    """A value on the command line, which is YAML. Raises UserError, which names the option as it was typed."""
    try:
        return parse_yaml(text, option)
    except UserError as error:
        raise UserError(f"{option}: cannot read {what} ({str(error).removeprefix(option).strip()})") from None


def _size(node: yaml.Node, depth: int, sizes: dict[int, int | None]) -> int:
    """The number of values that a node makes, with aliases counted as often as they are written.

    A long text counts as several values. `sizes` are those of nodes by id: None while a node is being counted.

    Raises:
        ValueError: there are too many values, they are nested too deeply, or a mapping has a key twice.
    """
    if id(node) in sizes:
        counted = sizes[id(node)]
        if counted is None:
            raise ValueError("a value holds itself")
        return counted
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    sizes[id(node)] = None
    size = 1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.ScalarNode):
        size += len(node.value) // LONG_TEXT
    elif isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, count in keys.items() if count > 1]:
            raise ValueError(f"the key {twice[0][:BRIEF]!r} is there twice")
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size += sum(_size(child, depth + 1, sizes) for child in children)
    if size > MOST_NODES:
        raise ValueError(f"it holds more than {MOST_NODES} values")
    sizes[id(node)] = size
    return size
