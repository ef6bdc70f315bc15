"""The columns and pages of a Parquet file by what it says of itself, in thrift's compact protocol.

pyarrow must not look at a damaged footer: an exception that its C++ throws there ends the whole process. Nor at pages
that hold more than the footer says: a page of a few bytes may claim 2³¹ values. So both are read here first, and as
strictly as nowhere else: a field that is there twice, or of another type, could mean one thing here and another there.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

MAGIC = b"PAR1"
DEEPEST = 16  # folders of columns, and structures within structures
MOST_FOOTER = 2**26  # bytes; a run of 100,000 documents and 20 methods has 20 MB
HEADER = 2**16  # bytes that the header of a page takes at most
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED = range(8)  # physical types
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 12, FLOAT: 4, DOUBLE: 8}  # bytes of a value
DATA, _, DICTIONARY, DATA_2 = range(4)  # kinds of pages
REQUIRED, OPTIONAL, REPEATED = range(3)  # how often a value is there
ENCODINGS = {0, 2, 3, 4, 8}  # plain, dictionaries and run lengths; of others, the sizes are not known beforehand

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE_8, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)  # types of thrift
Fields = Mapping[int, tuple[int, Any]]  # by number: the type, and that of what is in it
_ELEMENT: Fields = {1: (I32, None), 2: (I32, None), 3: (I32, None), 4: (BINARY, None), 5: (I32, None)}
_SIZES: Fields = {1: (I64, None), 2: (LIST, (I64, None)), 3: (LIST, (I64, None))}  # of texts, and counts by level
_META: Fields = {
    **{5: (I64, None), 6: (I64, None), 7: (I64, None), 9: (I64, None), 11: (I64, None)},
    16: (STRUCT, _SIZES),
}
_CHUNK: Fields = {3: (STRUCT, _META)}
_GROUP: Fields = {1: (LIST, (STRUCT, _CHUNK)), 3: (I64, None)}
_FOOTER: Fields = {2: (LIST, (STRUCT, _ELEMENT)), 4: (LIST, (STRUCT, _GROUP))}
_COUNT: Fields = {1: (I32, None), 2: (I32, None)}
_COUNT_2: Fields = {1: (I32, None), 4: (I32, None)}
_PAGE: Fields = {
    **{1: (I32, None), 2: (I32, None), 3: (I32, None)},
    **{5: (STRUCT, _COUNT), 7: (STRUCT, _COUNT), 8: (STRUCT, _COUNT_2)},
}


class ColumnChunk(NamedTuple):
    """A column in one row group."""

    path: str
    width: int | None  # bytes of a value; None if values have different lengths
    values: int  # all values of lists, and missing ones
    stored: int  # bytes before compression
    start: int  # place of its first page
    size: int  # bytes of its pages
    longest: int = 0  # bytes of a value at most, of texts; afterwards, of `check_pages`


@dataclass(frozen=True)
class _Leaf:
    path: str
    width: int | None
    texts: bool
    levels: tuple[int, int]  # repetition, definition: lists around a value, and what may be missing on the way to it


def columns(file: BinaryIO) -> list[list[ColumnChunk]]:
    """The columns of each row group. Raises ValueError or OSError if the file is no Parquet file."""
    size = os.fstat(file.fileno()).st_size
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if size < 12 or end[4:] != MAGIC or length > min(size - 12, MOST_FOOTER):
        raise ValueError("it has no footer of Parquet")
    file.seek(size - 8 - length)
    footer = _Reader(file.read(length)).struct(_FOOTER)
    try:
        leaves = _leaves(footer[2])
        return [_group(group, leaves) for group in footer.get(4, [])]
    except LookupError:
        raise ValueError("its footer does not tell its columns") from None


def check_pages(file: BinaryIO, groups: Sequence[Sequence[ColumnChunk]]) -> list[list[ColumnChunk]]:
    """The columns with the length of their longest value.

    Raises ValueError if pages claim more values or bytes than the footer says, or are written in unknown ways.
    """
    size = os.fstat(file.fileno()).st_size
    return [[column._replace(longest=_check_pages(file, column, size)) for column in group] for group in groups]


def _check_pages(file: BinaryIO, column: ColumnChunk, size: int) -> int:
    """How long a value is at most: as the dictionary if all are in it, else as the column."""
    at, values, stored = column.start, 0, 0
    dictionary, plain = 0, False
    while values < column.values and at < size:  # the reader notes what is missing
        page, at = _page(file, at)
        kind, unpacked, packed = page.get(1), page.get(2, -1), page.get(3, -1)
        if unpacked < 0 or packed < 0 or kind not in (DATA, DICTIONARY, DATA_2):
            raise ValueError("a page is of no known kind")
        head = page.get({DATA: 5, DICTIONARY: 7, DATA_2: 8}[kind], {})
        count, encoding = head.get(1, -1), head.get(4 if kind == DATA_2 else 2, -1)
        if encoding not in ENCODINGS:
            raise ValueError("a page is in an encoding that specbench does not write")
        if kind == DICTIONARY and count * (column.width or 4) > unpacked * (8 if column.width == 1 else 1):
            raise ValueError("a dictionary claims more values than it has bytes")
        values += count if kind != DICTIONARY else 0
        stored += unpacked
        dictionary += unpacked if kind == DICTIONARY else 0
        plain |= kind != DICTIONARY and encoding not in (2, 8)
        if count < (kind != DICTIONARY) or values > column.values or stored > column.stored:
            raise ValueError("a page claims more than the footer says, or nothing")
        at += packed
    return column.stored if plain else dictionary


def _page(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header of the page at a place, and where it ends."""
    for length in (512, HEADER):  # it holds the smallest and the largest value of the page
        file.seek(at)
        reader = _Reader(file.read(length))
        try:
            return reader.struct(_PAGE), at + reader.at
        except ValueError:
            if length == HEADER or len(reader.data) < length:
                raise
    raise AssertionError


def _group(group: dict[int, Any], leaves: Sequence[_Leaf]) -> list[ColumnChunk]:
    chunks, rows = group[1], group[3]
    if len(chunks) != len(leaves):
        raise ValueError("its footer has other columns than its schema")
    return [_column(chunk[3], rows, leaf) for chunk, leaf in zip(chunks, leaves, strict=True)]


def _column(meta: dict[int, Any], rows: int, leaf: _Leaf) -> ColumnChunk:
    values, stored, size, start = meta[5], meta[6], meta[7], meta[9]
    if 0 < meta.get(11, 0) < start:  # its dictionary comes first
        start = meta[11]
    if min(values, rows, stored, size, start) < 0:
        raise ValueError("its footer tells of counts below 0")
    sizes = meta.get(16, {})
    counts = zip((sizes.get(2), sizes.get(3)), leaf.levels, strict=True)
    if any(each and len(each) != level + 1 for each, level in counts) or (1 in sizes and not leaf.texts):
        raise ValueError("its footer has sizes of another kind of column")
    return ColumnChunk(leaf.path, leaf.width, max(values, rows), stored, start, size)


def _leaves(elements: list[dict[int, Any]]) -> list[_Leaf]:
    """The columns of a schema, which is a tree written from its root on."""
    leaves: list[_Leaf] = []
    open_groups: list[tuple[str, int, int, int]] = []  # name, children that are still to come, levels
    for number, element in enumerate(elements):
        name, children = element[4].decode(), element.get(5, 0)
        if number and not open_groups:
            raise ValueError("its schema has more columns than it says")
        repeated = defined = 0
        if open_groups:
            parent, left, repeated, defined = open_groups.pop()
            open_groups.append((parent, left - 1, repeated, defined))
            if (kind := element.get(3, REQUIRED)) not in (REQUIRED, OPTIONAL, REPEATED):
                raise ValueError("its schema has a column of no known kind")
            repeated, defined = repeated + (kind == REPEATED), defined + (kind != REQUIRED)
        path = ".".join([group for group, *_ in open_groups[1:]] + [name])
        if not 0 <= children <= len(elements) or len(open_groups) > DEEPEST:
            raise ValueError("its schema is nested too deeply")
        if children or not number:
            open_groups.append((name, children, repeated, defined))
        else:
            width = element.get(2, -1) if element[1] == FIXED else WIDTHS.get(element[1])
            if width is not None and width < 0:
                raise ValueError("its schema has a column of negative width")
            leaves.append(_Leaf(path, width, element[1] == BYTE_ARRAY, (repeated, defined)))
        while open_groups and not open_groups[-1][1]:
            open_groups.pop()
    if open_groups:
        raise ValueError("its schema has fewer columns than it says")
    return leaves


class _Reader:
    """Reads the compact protocol. Only the fields that are asked for are kept, so memory is bounded."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def struct(self, wanted: Fields, depth: int = 0) -> dict[int, Any]:
        """The values of the wanted fields, by number."""
        if depth > DEEPEST:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number, seen = 0, set()
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed(16)
            kind = head & 15
            if number in seen or not 0 <= number < 2**15:
                raise ValueError("its footer has a field twice")
            seen.add(number)
            if number not in wanted:
                self._skip(kind, depth)
                continue
            expected, inner = wanted[number]
            if kind != expected:
                raise ValueError("its footer has a field of another type")
            fields[number] = self._value(kind, inner, depth)
        return fields

    def _value(self, kind: int, inner: Any, depth: int) -> Any:
        if kind in (I32, I64):
            return self._signed(32 if kind == I32 else 64)
        if kind == BINARY:
            return self._take(self._varint())
        if kind == STRUCT:
            return self.struct(inner, depth + 1)
        item, fields = inner
        count, actual = self._list()
        if count and actual != item:
            raise ValueError("its footer has a list of another type")
        return [self._value(item, fields, depth + 1) for _ in range(count)]

    def _skip(self, kind: int, depth: int) -> None:
        if kind in (TRUE, FALSE):
            return
        if kind in (I16, I32, I64):
            self._varint()
        elif kind in (BYTE, DOUBLE_8, BINARY):
            self._take(self._varint() if kind == BINARY else 8 if kind == DOUBLE_8 else 1)
        elif kind in (LIST, SET):
            if depth > DEEPEST:
                raise ValueError("its footer is nested too deeply")
            count, item = self._list()
            for _ in range(count):
                self._skip(BYTE if item in (TRUE, FALSE) else item, depth + 1)
        elif kind == STRUCT:
            self.struct({}, depth + 1)
        else:
            raise ValueError("its footer is damaged")  # a map: the format has none

    def _list(self) -> tuple[int, int]:
        """The number of items and their type; every item takes at least a byte."""
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        self._left(count)
        return count, head & 15

    def _left(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise ValueError("its footer is cut off")

    def _take(self, count: int) -> bytes:
        self._left(count)
        self.at += count
        return self.data[self.at - count : self.at]

    def _byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("its footer is cut off")
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

    def _signed(self, bits: int) -> int:
        zigzag = self._varint()
        if zigzag >> bits:  # pyarrow would cut it off
            raise ValueError("its footer has a number that is too large")
        return (zigzag >> 1) ^ -(zigzag & 1)
