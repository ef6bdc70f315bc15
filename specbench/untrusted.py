"""Files and texts from anywhere, read within bounds: a value, or a `UserError` of one line.

A file may be anything: a folder, a pipe that never ends, larger than memory, nested without end, or written so that a
few bytes become gigabytes. So every reader of the package begins here.
"""

import json
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from specbench.errors import UserError

MIB = 2**20
MOST_JSON = 64 * MIB  # bytes; a manifest of 100,000 documents has 10 MiB
MOST_YAML = MIB // 8  # its parser reads some 100 kB a second; the largest of suites/ has 10 kB
MOST_LINE = 64 * MIB
MOST_VALUES = 8_000_000  # of a JSON text: an empty list is 2 bytes there and 60 in memory
MOST_NODES = 50_000  # of YAML, aliases counted as often as they are written
DEEPEST = 40
BRIEF = 80  # characters of an error of another library
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def brief(error: object) -> str:
    """What another library complains of, in a few words."""
    return " ".join(str(error).split())[:BRIEF] or type(error).__name__


def is_file(path: Path) -> bool:
    """Whether a regular file can be looked at there; `Path.is_file` raises for names that are too long."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def regular(path: Path, most: int | None = None, remedy: str = "") -> int:
    """The size of a file. Raises UserError where there is none, or what is no file, or more than `most` bytes.

    Pipes and devices count as none: reading them might never end. `remedy` says what to do.
    """
    behind = f"; {remedy}" if remedy else ""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError | NotADirectoryError) else f" that can be read ({brief(error)})"
        raise UserError(f"there is no file {path}{why}{behind}") from None
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path} is a folder, not a file{behind}")
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file (a pipe or a device){behind}")
    if most is not None and found.st_size > most:
        raise UserError(f"{path} has {found.st_size} bytes, and such a file at most {most}; is it another one?{behind}")
    return found.st_size


def read_bytes(path: Path, most: int, remedy: str = "") -> bytes:
    regular(path, most, remedy)
    try:
        with open(path, "rb") as file:
            found = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({brief(error.strerror)})" + f"; {remedy}" * bool(remedy)) from None
    if len(found) > most:  # it grows, or does not tell its size
        raise UserError(f"{path} has more than {most} bytes; is it another file?")
    return found


def read_text(path: Path, most: int, remedy: str = "") -> str:
    """A text file in UTF-8, with or without a mark at its beginning."""
    return decoded(read_bytes(path, most, remedy), str(path), remedy)


def decoded(raw: bytes, where: str, remedy: str = "") -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        behind = f"; {remedy}" if remedy else ""
        raise UserError(f"{where} is damaged (no text in UTF-8: byte {error.start}){behind}") from None


def read_lines(path: Path, most: int = MOST_LINE, remedy: str = "") -> Iterator[tuple[int, str, int]]:
    """The lines of a text file: number from 1, text, bytes. Raises UserError for a line of more than `most` bytes."""
    regular(path, remedy=remedy)
    try:
        with open(path, "rb") as file:
            number = 0
            while raw := file.readline(most + 1):
                number += 1
                if len(raw) > most:
                    raise UserError(f"{path}, line {number}: more than {most} bytes; is this another kind of file?")
                yield number, decoded(raw, f"{path}, line {number}", remedy), len(raw)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({brief(error.strerror)})") from None


def read_json(path: Path, most: int = MOST_JSON, remedy: str = "", values: int = MOST_VALUES) -> Any:
    return parse_json(read_text(path, most, remedy), str(path), remedy, values)


def read_object(path: Path, most: int = MOST_JSON, remedy: str = "") -> dict[str, Any]:
    """A JSON file that is an object, with keys."""
    found = read_json(path, most, remedy)
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged (no JSON object)" + f"; {remedy}" * bool(remedy))
    return found


def parse_json(text: str, where: str, remedy: str = "", values: int = MOST_VALUES) -> Any:
    """A JSON text as a value; NaN and infinite numbers may be in it. Raises UserError."""
    behind = f"; {remedy}" if remedy else ""
    if text.count(",") + text.count("[") + text.count("{") > values:
        raise UserError(f"{where} holds more than {values} values; is it another file?{behind}")
    try:
        found = json.loads(text)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply{behind}") from None
    except ValueError as error:
        raise UserError(f"{where} is damaged (not JSON: {brief(error)}){behind}") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise UserError(f"{where} is damaged (it holds halves of characters){behind}") from None
    return found


def text_of(line: str, where: str, remedy: str) -> str:
    """The field `text` of a line of JSON Lines. Raises UserError."""
    found = parse_json(line, where, remedy)
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise UserError(f'{where} has no "text"; {remedy}')
    text: str = found["text"]
    return text


def read_yaml(path: Path, where: str = "") -> Any:
    where = where or str(path)
    return parse_yaml(read_text(path, MOST_YAML), where)


def read_mapping(path: Path, where: str = "") -> dict[str, Any]:
    """A YAML file of keys and values."""
    found = read_yaml(path, where)
    if not isinstance(found, dict):
        raise UserError(f"{where or path} must be a mapping of keys to values")
    return found


def parse_yaml(text: str, where: str) -> Any:
    """A YAML text as values that JSON has too; tags make nothing else. Raises UserError.

    Aliases are bounded: a few lines of them can name more values than memory holds, or each other for ever. A key that
    is written twice is an error.
    """
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _nodes(node, 0, {})
            found = loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise UserError(f"{where} is nested too deeply") from None
    # Constructors of the parser raise what Python does for numbers, dates and tags that are none.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, TypeError):
        raise UserError(
            f"{where} holds a date, bytes, a set, halves of characters or a number beyond all bounds; write texts in "
            "quotes, and plain numbers"
        ) from None
    return found


def parse_value(text: str, option: str, what: str = "the value") -> Any:
    """A value on the command line, which is YAML too; the error names the option as it was typed."""
    try:
        return parse_yaml(text, option)
    except UserError as error:
        raise UserError(f"{option}: cannot read {what} ({str(error).removeprefix(option).strip()})") from None


def _nodes(node: yaml.Node, depth: int, known: dict[int, int | None]) -> int:
    """How many values a node makes, aliases counted each time. Raises ValueError for too many, or too deep ones."""
    if id(node) in known:
        count = known[id(node)]
        if count is None:
            raise ValueError("a value holds itself")
        return count
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    known[id(node)] = None
    held: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key in (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key in seen:
                raise ValueError(f"the key {key[:BRIEF]!r} is there twice")
            seen.add(key)
        held = [one for pair in node.value for one in pair]
    elif isinstance(node, yaml.SequenceNode):
        held = node.value
    count = 1 + sum(_nodes(one, depth + 1, known) for one in held)
    if count > MOST_NODES:
        raise ValueError(f"it holds more than {MOST_NODES} values")
    known[id(node)] = count
    return count
