"""The columns of a Parquet file by its footer, which is in thrift's compact protocol.

pyarrow must not look at a damaged footer: an exception that its C++ throws there ends the whole process.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
DEEPEST = 16
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY = range(7)  # physical types; others have a length
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}  # bytes of a value


@dataclass(frozen=True)
class Column:
    """A column in one row group."""

    path: str
    width: int | None  # bytes of a value; None if values have different lengths
    values: int  # all values of lists, and missing ones
    stored: int  # bytes before compression


def columns(path: Path) -> list[list[Column]]:
    """The columns of each row group. Raises ValueError or OSError if the file is no Parquet file."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if size < 12 or end[4:] != MAGIC or length > size - 12:
            raise ValueError("it has no footer of Parquet")
        file.seek(size - 8 - length)
        footer = _Reader(file.read(length)).struct()
    try:
        return [[_column(group, chunk[3]) for chunk in group[1]] for group in footer.get(4, [])]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its footer does not tell its columns") from None


def _column(group: dict[int, Any], chunk: dict[int, Any]) -> Column:
    values, rows, stored = chunk[5], group[3], chunk[6]
    if min(values, rows, stored) < 0:
        raise ValueError("its footer tells of counts below 0")
    path = ".".join(part.decode(errors="replace") for part in chunk[3])
    return Column(path, WIDTHS.get(chunk[1]), max(values, rows), stored)


class _Reader:
    """Reads the compact protocol from the first byte on. Every value takes at least a byte, so memory is bounded."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The values by field number."""
        if depth > DEEPEST:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind in (7, 8, 13):
            return self._take(self._varint() if kind == 8 else 8 if kind == 7 else 16)
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            self._left(count)
            if depth > DEEPEST:
                raise ValueError("its footer is nested too deeply")
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError("its footer is damaged")  # a map: the format has none

    def _left(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise ValueError("its footer is cut off")

    def _take(self, count: int) -> bytes:
        self._left(count)
        self.at += count
        return self.data[self.at - count : self.at]

    def _byte(self) -> int:
        self._left(1)
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("its footer is damaged")

    def _signed(self) -> int:
        zigzag = self._varint()
        return (zigzag >> 1) ^ -(zigzag & 1)
