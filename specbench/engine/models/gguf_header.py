"""What a GGUF file says of itself, checked before the package gguf reads it, which takes all counts at their word.

The form: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from pathlib import Path

VERSIONS = (2, 3)
MOST_ENTRIES = 2**16  # keys, and tensors
MOST_TEXT = 2**24  # bytes of a text; chat templates have some 10,000
MOST_ELEMENTS = 2**24  # of an array; the largest vocabularies have 300,000 tokens
MOST_DIMENSIONS = 4
MOST_WEIGHTS = 2**42  # of a tensor
MOST_KIND = 2**8  # numbers of types of blocks, of which some 40 are known
TEXT, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type


def check_header(path: Path) -> None:
    """Raise ValueError if the counts, lengths, types or offsets in a file's header cannot be true. Reads no weights."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            _Header(data).check()
        except struct.error:
            raise ValueError("its header is cut off") from None


class _Header:
    """Reads a header from its beginning to its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def check(self) -> None:
        version, tensors, keys = self._next("<I"), self._next("<Q"), self._next("<Q")
        if version not in VERSIONS:
            raise ValueError(f"it is of version {version}, and {VERSIONS[0]} and {VERSIONS[1]} are read")
        if max(tensors, keys) > MOST_ENTRIES:
            raise ValueError(f"it claims {tensors} tensors and {keys} keys")
        for _ in range(keys):
            self._text()
            self._value(self._next("<I"))
        for _ in range(tensors):
            self._tensor()

    def _next(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def _skip(self, count: int, what: str) -> None:
        self.at += count
        if self.at > len(self.data):
            raise ValueError(f"{what} of {count} bytes goes beyond its end")

    def _text(self) -> None:
        length = self._next("<Q")
        if length > MOST_TEXT:
            raise ValueError(f"it claims a text of {length} bytes")
        self._skip(length, "a text")

    def _value(self, kind: int) -> None:
        if kind == TEXT:
            self._text()
        elif kind == ARRAY:
            inner, count = self._next("<I"), self._next("<Q")
            if count > MOST_ELEMENTS:
                raise ValueError(f"it claims an array of {count} values")
            if inner == TEXT:
                for _ in range(count):
                    self._text()
            elif inner in SIZES:
                self._skip(count * SIZES[inner], "an array")
            else:
                raise ValueError(f"an array holds values of type {inner}")
        elif kind in SIZES:
            self._skip(SIZES[kind], "a value")
        else:
            raise ValueError(f"a value has the type {kind}")

    def _tensor(self) -> None:
        self._text()
        dimensions = self._next("<I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        weights = math.prod(self._next("<Q") for _ in range(dimensions))
        kind, offset = self._next("<I"), self._next("<Q")
        if kind >= MOST_KIND or weights > MOST_WEIGHTS or offset >= len(self.data):
            raise ValueError(f"a tensor of type {kind} claims {weights} weights at {offset}")
