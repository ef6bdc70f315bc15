"""A datastore of token ids: texts in which decoding looks up how its own text may continue (REST, arXiv 2311.08252).

A datastore is a folder with `datastore.json` and three memory-mapped arrays. `tokens.bin` holds the documents, with END
after each; ids are big-endian, so that bytes compare as ids do. `suffixes.bin` holds, shard by shard, the places of all
tokens, sorted by the first DEPTH tokens of the text that begins there. `buckets.bin` holds, for each shard and token,
where the suffixes that begin with the token start. All are unsigned 32-bit integers (16 bits would not hold the ids of
vocabularies over 65,535), so a datastore has at most 2³² - 1 tokens, including END marks.
"""

import hashlib
import json
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from specbench.base import files
from specbench.base.untrusted import brief, is_file, read_object
from specbench.config import DATA, UserError

Tokens = NDArray[np.uint32]
VERSION = 1
DEPTH = 16  # tokens by which suffixes are sorted, so the longest query
END = 2**32 - 1  # follows each document; sorts after every token
METADATA, TOKENS, SUFFIXES, BUCKETS = "datastore.json", "tokens.bin", "suffixes.bin", "buckets.bin"
ARRAYS = (TOKENS, SUFFIXES, BUCKETS)
SHIPPED = DATA / "trained" / "datastores"
CHECKED = 2**26  # bytes up to which a datastore's contents are checked against their hash when it is opened
BUILD = "specbench build-datastore --corpus FILE --pair PAIR --out FOLDER"


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class About:
    """The contents of `datastore.json`."""

    version: int
    tokenizer: str  # specbench.engine.models.pair.vocabulary_hash
    tokens: int  # END marks not counted
    documents: int
    shards: int
    vocabulary: int  # ids in the bucket table
    largest: int  # the largest id that occurs
    contents: str  # first 16 hexadecimal digits of SHA-256 of the three arrays
    source: dict[str, Any]  # what it was built from

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each array."""
        integers = (self.tokens + self.documents, self.tokens, self.shards * (self.vocabulary + 1))
        return {name: 4 * count for name, count in zip(ARRAYS, integers, strict=True)}


class Datastore:
    """A datastore that is open for reading. Raises UserError if it is missing, damaged, or of a later version.

    Of a large datastore only the sizes are checked: reading it whole would take seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.about = folder, read_about(folder)
        damaged = f"the datastore {folder} is damaged"
        for name, size in self.about.sizes.items():
            actual = (folder / name).stat().st_size if is_file(folder / name) else 0
            if actual != size:
                raise UserError(f"{damaged} ({name} has {actual} bytes, not {size}); build it again: {BUILD}")
        if sum(self.about.sizes.values()) <= CHECKED and digest(folder) != self.about.contents:
            raise UserError(f"{damaged} (its contents are not what was written); build it again: {BUILD}")
        self._bytes = _mapped(folder / TOKENS)
        self._tokens = np.frombuffer(self._bytes, ">u4")
        self._suffixes = memoryview(_mapped(folder / SUFFIXES)).cast("I")
        self._places = np.frombuffer(self._suffixes, np.uint32)
        self._buckets = memoryview(_mapped(folder / BUCKETS)).cast("I")
        if int(np.frombuffer(self._buckets, np.uint32).max()) > len(self._places):
            raise UserError(f"{damaged} ({BUCKETS} names suffixes that are not there); build it again: {BUILD}")

    def __len__(self) -> int:
        return self.about.tokens

    def longest(self, context: Sequence[int], longest: int, shortest: int) -> int:
        """The length of the longest end of a context that occurs, from `shortest` to `longest` (at most DEPTH) tokens.

        0: not even the shortest end occurs.
        """
        query, best = _query(context, longest), 0
        for shard in range(self.about.shards):
            low, high = max(best + 1, shortest), len(query) // 4
            if low > high or not self._first(shard, query[-4 * low :])[1]:
                continue
            while low < high:  # where an end occurs, so do shorter ones: `low` tokens occur, more than `high` do not
                middle = (low + high + 1) // 2
                if self._first(shard, query[-4 * middle :])[1]:
                    low = middle
                else:
                    high = middle - 1
            best = low
        return best

    def continuations(self, context: Sequence[int], length: int, hits: int, count: int) -> Tokens:
        """The tokens [n, count] that follow the last `length` tokens of a context (1 to DEPTH); END after a document.

        At most `hits` places of each shard are read, spread evenly over all places in the order of what follows.
        """
        query = _query(context, length)
        places = [self._hits(shard, query, hits) for shard in range(self.about.shards)]
        following = np.concatenate(places).astype(np.int64)[:, None] + np.arange(length, length + count)
        rows = self._tokens[np.minimum(following, len(self._tokens) - 1)].astype(np.uint32)
        # END is beyond the largest token, as is any other id that no model could read.
        rows[np.logical_or.accumulate(rows > self.about.largest, axis=1)] = END
        return rows

    def _hits(self, shard: int, query: bytes, most: int) -> Tokens:
        """At most `most` places in a shard where a text occurs."""
        first, occurs = self._first(shard, query)
        if not occurs:
            return np.empty(0, np.uint32)
        end = bisect_right(self._suffixes, query, first, self._bucket(shard, query)[1], key=self._text(len(query)))
        if end - first <= most:
            return self._places[first:end]
        return self._places[first + np.arange(most) * (end - first) // most]

    def _first(self, shard: int, query: bytes) -> tuple[int, bool]:
        """The rank of a text among the suffixes of a shard, and True if a suffix begins with it."""
        low, high = self._bucket(shard, query)
        text = self._text(len(query))
        at = bisect_left(self._suffixes, query, low, high, key=text)
        return at, at < high and text(self._suffixes[at]) == query

    def _bucket(self, shard: int, query: bytes) -> tuple[int, int]:
        """The range of a shard's suffixes that begin with a text's first token."""
        token, width = int.from_bytes(query[:4], "big"), self.about.vocabulary + 1
        if token >= self.about.vocabulary:
            return 0, 0
        return self._buckets[shard * width + token], self._buckets[shard * width + token + 1]

    def _text(self, length: int) -> Callable[[int], bytes]:
        """A function from the place of a suffix to its first `length` bytes."""
        data = self._bytes
        return lambda place: data[4 * place : 4 * place + length]


def read_about(folder: Path) -> About:
    """The metadata of a datastore. Raises UserError if there is none, or it is damaged or of a later version."""
    path = folder / METADATA
    if not is_file(path):
        raise UserError(f"there is no datastore {folder}; build one: {BUILD}")
    raw = read_object(path, remedy=f"build it again: {BUILD}")
    if type(raw.get("version")) is int and raw["version"] > VERSION:
        raise UserError(f"the datastore {folder} was written by a later version of specbench; use that to read it")
    try:
        about = About(**raw)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); build it again: {BUILD}") from None
    if min(about.tokens, about.documents, about.shards, about.vocabulary) < 1:
        raise UserError(f"{path} is damaged (it has no tokens); build it again: {BUILD}")
    if not 0 <= about.largest < min(about.vocabulary, END):
        raise UserError(f"{path} is damaged (its largest token is not in its vocabulary); build it again: {BUILD}")
    return about


def write_about(folder: Path, about: About) -> None:
    files.write_text(folder / METADATA, json.dumps(asdict(about), indent=2, ensure_ascii=False) + "\n")


def digest(folder: Path) -> str:
    """The first 16 hexadecimal digits of SHA-256 of a datastore's arrays."""
    contents = hashlib.sha256()
    for name in ARRAYS:
        with open(folder / name, "rb") as file:
            while block := file.read(2**24):
                contents.update(block)
    return contents.hexdigest()[:16]


def find_datastore(setting: str, tokenizer: str | None) -> Datastore:
    """The datastore that a setting names: a folder, or `auto` for the one that ships for this tokenizer.

    `tokenizer` is a hash; None: not checked. Raises UserError as `Datastore` does, and for another tokenizer.
    """
    if setting == "auto":
        shipped = sorted(path.parent for path in SHIPPED.glob(f"*/{METADATA}"))
        fitting = [folder for folder in shipped if read_about(folder).tokenizer == tokenizer]
        if tokenizer is None:
            raise UserError("the tokenizer is unknown here; name a pair by --pair, or a datastore's folder")
        if not fitting:
            raise UserError(
                f"no datastore ships for this tokenizer; build one ({BUILD}) and name it by --set rest.datastore=FOLDER"
            )
        return Datastore(fitting[0])
    store = Datastore(Path(setting))
    if tokenizer is not None and store.about.tokenizer != tokenizer:
        raise UserError(
            f"the datastore {setting} belongs to another tokenizer ({store.about.tokenizer}, not {tokenizer}); "
            f"build one for this: {BUILD}"
        )
    return store


def _query(context: Sequence[int], length: int) -> bytes:
    """The last `length` tokens of a context, as the bytes that a datastore holds."""
    return np.array(context[-length:], ">u4").tobytes()


def _mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
