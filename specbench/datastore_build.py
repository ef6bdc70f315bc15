"""Build a datastore: token ids of documents in a stream, written and sorted shard by shard in bounded memory.

Suffixes are sorted by numpy, by prefix doubling: four rounds of sorting make the order by DEPTH tokens. That takes
about 0.3 s a million tokens, and 45 bytes for each token of one shard (0.4 GB for one of 8 Mi tokens); a suffix-array
library (pydivsufsort) took 0.6 of the time and of the memory, too little for one more dependency.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from specbench import files
from specbench.config import UserError
from specbench.datastore import (
    ARRAYS,
    BUCKETS,
    DEPTH,
    END,
    METADATA,
    SUFFIXES,
    TOKENS,
    VERSION,
    About,
    Tokens,
    digest,
    write_about,
)

SHARD = 2**23  # tokens that are sorted at a time


def build(
    documents: Iterable[list[int]],
    folder: Path,
    vocabulary: int,
    tokenizer: str,
    source: dict[str, Any],
    shard: int = SHARD,
) -> About:
    """Write the datastore of documents of token ids below `vocabulary`; empty ones are left out.

    `tokenizer` is the hash of its vocabulary; `source` (JSON-like, filled while the documents are read if need be) says
    what they are. A document is cut only where it alone is longer than a shard. Until all is written, the datastore
    lies in FOLDER.new without its metadata. Raises UserError if the folder exists or there is no token.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; choose another --out")
    new = folder.with_name(folder.name + ".new")
    new.mkdir(parents=True, exist_ok=True)
    try:
        writer = Writer(new, vocabulary, shard)
        for document in documents:
            writer.add(document)
        writer.close()
        if not writer.tokens:
            raise UserError("the corpus has no text; give one that has")
        about = About(
            version=VERSION,
            tokenizer=tokenizer,
            tokens=writer.tokens,
            documents=writer.documents,
            shards=writer.shards,
            vocabulary=vocabulary,
            largest=writer.largest,
            contents=digest(new),
            source=source,
        )
        write_about(new, about)
        new.replace(folder)
        files.sync(folder.parent)
    finally:
        if new.is_dir():  # it was stopped
            for name in (*ARRAYS, METADATA):
                (new / name).unlink(missing_ok=True)
            if not any(new.iterdir()):
                new.rmdir()
    return about


class Writer:
    """Appends documents to the three arrays of a datastore, whose suffixes it sorts whenever a shard is full."""

    def __init__(self, folder: Path, vocabulary: int, shard: int) -> None:
        self.vocabulary, self.shard = vocabulary, shard
        self.tokens = self.documents = self.shards = self.largest = 0
        self._files = {name: open(folder / name, "wb") for name in ARRAYS}  # noqa: SIM115 (closed by close)
        self._open = np.empty(shard + 1, np.uint32)
        self._filled = self._before = self._sorted = 0  # places of the open shard and before it; suffixes before it

    def add(self, document: list[int]) -> None:
        """Append a document in pieces of at most a shard. Raises ValueError for an id outside the vocabulary."""
        for start in range(0, len(document), self.shard):
            piece = np.array(document[start : start + self.shard], np.int64)
            if piece.min() < 0 or piece.max() >= self.vocabulary:
                raise ValueError(f"a document has an id outside of the vocabulary of {self.vocabulary}")
            if self._filled + len(piece) > self.shard:
                self._flush()
            self._open[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece) + 1
            self._open[self._filled - 1] = END
            self.documents += 1
            self.tokens += len(piece)
            self.largest = max(self.largest, int(piece.max()))

    def close(self) -> None:
        if self._filled:
            self._flush()
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def _flush(self) -> None:
        """Sort and write the open shard."""
        tokens = self._open[: self._filled]
        if self._before + len(tokens) > END:
            raise UserError(f"a datastore has at most {END} tokens; take a smaller corpus")
        starts = np.zeros(self.vocabulary + 1, np.int64)
        np.cumsum(np.bincount(tokens[tokens != END], minlength=self.vocabulary), out=starts[1:])
        self._files[TOKENS].write(tokens.astype(">u4").data)
        self._files[SUFFIXES].write((suffixes(tokens) + np.uint32(self._before)).data)
        self._files[BUCKETS].write((starts + self._sorted).astype(np.uint32).data)
        self._before += len(tokens)
        self._sorted += int(starts[-1])
        self._filled = 0
        self.shards += 1


def suffixes(tokens: Tokens) -> Tokens:
    """Places of all tokens [n] but END by the order of the texts that begin there, up to DEPTH tokens; then by place.

    What stands behind the last token counts as END. Prefix doubling (Manber and Myers, 1990), with as many rounds as
    DEPTH needs: the rank of a text of 2w tokens is that of the pair of ranks of its halves.
    """
    ranks, width = tokens, 1
    while width < DEPTH:
        pairs = ranks.astype(np.uint64) << np.uint64(32)
        pairs[:-width] |= ranks[width:]
        pairs[-width:] |= np.uint64(END)
        order = np.argsort(pairs)
        pairs = pairs[order]
        differs = np.empty(len(pairs), bool)
        differs[0] = False
        np.not_equal(pairs[1:], pairs[:-1], out=differs[1:])
        ranks = np.empty(len(pairs), np.uint32)
        ranks[order] = np.cumsum(differs, dtype=np.uint32)
        width *= 2
    placed = ranks.astype(np.uint64) << np.uint64(32) | np.arange(len(ranks), dtype=np.uint64)
    placed.sort()
    found: Tokens = placed.astype(np.uint32)  # the lower half
    return found[: np.count_nonzero(tokens != END)]
