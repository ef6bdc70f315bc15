"""What a GGUF file says of itself, checked before the package gguf reads it, which takes all counts at their word.

The form: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import math
import mmap
import re
import struct
from pathlib import Path

VERSIONS = (2, 3)
MOST_ENTRIES = 2**16  # keys, and tensors
MOST_TEXT = 2**24  # bytes of a text; chat templates have some 10,000
MOST_ELEMENTS = 2**24  # of an array; the largest vocabularies have 300,000 tokens
MOST_TEXTS = 2**22  # of all arrays together: they are passed over one by one
MOST_DIMENSIONS = 4
MOST_WEIGHTS = 2**42  # of a tensor
MOST_KIND = 2**8  # numbers of types of blocks, of which some 40 are known
MOST_BLOCKS = 2000  # layers, which are built one by one
OF_BLOCKS, BLOCK = re.compile(rb"\w+\.block_count"), re.compile(rb"blk\.(\d+)\.")
TEXT, ARRAY = 8, 9
WHOLE = (4, 5, 10, 11)  # types of whole numbers of four and eight bytes
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
        self.data, self.at, self.texts = data, 4, 0

    def check(self) -> None:
        version, tensors, keys = self._next("<I"), self._next("<Q"), self._next("<Q")
        if version not in VERSIONS:
            raise ValueError(f"it is of version {version}, and {VERSIONS[0]} and {VERSIONS[1]} are read")
        if max(tensors, keys) > MOST_ENTRIES:
            raise ValueError(f"it claims {tensors} tensors and {keys} keys")
        blocks = MOST_BLOCKS
        for _ in range(keys):
            name, kind, start = self._name(), self._next("<I"), self.at
            self._value(kind)
            if OF_BLOCKS.fullmatch(name) and kind in WHOLE:
                blocks = int.from_bytes(self.data[start : self.at], "little")
        if blocks > MOST_BLOCKS:
            raise ValueError(f"it claims {blocks} blocks")
        for _ in range(tensors):
            if (found := BLOCK.match(self._tensor())) and int(found[1]) >= blocks:  # transformers would leave it out
                raise ValueError(f"it claims {blocks} blocks and has weights of block {int(found[1])}")

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

    def _name(self) -> bytes:
        start = self.at + 8  # after its length
        self._text()
        return self.data[start : self.at]

    def _value(self, kind: int) -> None:
        if kind == TEXT:
            self._text()
        elif kind == ARRAY:
            inner, count = self._next("<I"), self._next("<Q")
            if count > MOST_ELEMENTS:
                raise ValueError(f"it claims an array of {count} values")
            if inner == TEXT:
                self.texts += count
                if self.texts > MOST_TEXTS:
                    raise ValueError(f"its arrays claim {self.texts} texts")
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

    def _tensor(self) -> bytes:
        """Check one tensor; returns its name."""
        name = self._name()
        dimensions = self._next("<I")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"a tensor has {dimensions} dimensions")
        weights = math.prod(self._next("<Q") for _ in range(dimensions))
        kind, offset = self._next("<I"), self._next("<Q")
        if kind >= MOST_KIND or weights > MOST_WEIGHTS or offset >= len(self.data):
            raise ValueError(f"a tensor of type {kind} claims {weights} weights at {offset}")
        return name
