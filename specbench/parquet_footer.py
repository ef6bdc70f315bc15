"""What the footer of a Parquet file tells of its columns, by the format's own description (thrift's compact protocol).

pyarrow's view of a damaged footer can end the whole process: what its C++ throws there is caught by nobody.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"PAR1"
DEEPEST = 16
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY = range(7)  # physical types; more have a length in the schema
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}  # bytes of a value


@dataclass(frozen=True)
class Column:
    """Of one row group. `width`: bytes of a value; None where each has its own length."""

    path: str
    width: int | None
    values: int  # of a list all in it; those that are missing too
    stored: int  # bytes before compression


def columns(path: Path) -> list[list[Column]]:
    """The columns of each row group. Raises ValueError or OSError for what is no Parquet file."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        size = file.tell()
        file.seek(max(0, size - 8))
        end = file.read(8)
        length = int.from_bytes(end[:4], "little")
        if size < 12 or end[4:] != MAGIC or length > size - 12:
            raise ValueError("it has no footer of Parquet")
        file.seek(size - 8 - length)
        told = _Reader(file.read(length)).struct()
    try:
        return [[_column(group, chunk[3]) for chunk in group[1]] for group in told.get(4, [])]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("its footer does not tell its columns") from None


def _column(group: dict[int, Any], told: dict[int, Any]) -> Column:
    values, rows, stored = told[5], group[3], told[6]
    if min(values, rows, stored) < 0:
        raise ValueError("its footer tells of counts below 0")
    path = ".".join(part.decode(errors="replace") for part in told[3])
    return Column(path, WIDTHS.get(told[1]), max(values, rows), stored)


class _Reader:
    """Bytes of the compact protocol, from the beginning on. Every value takes a byte at least, so all is bounded."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Values by the number of their field."""
        if depth > DEEPEST:
            raise ValueError("its footer is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

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
        raise ValueError("its footer is damaged")  # maps: the format has none

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
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
        raise ValueError("its footer is damaged")

    def _signed(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
