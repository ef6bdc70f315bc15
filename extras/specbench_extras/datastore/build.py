"""Builds REST's datastore from texts of files, and from tasks' documents with their reference answers.

Documents come as a stream of token ids and are written and sorted shard by shard, in bounded memory. Suffixes are
sorted by numpy with prefix doubling: four rounds of sorting give the order by DEPTH tokens. That takes about 0.3 s per
million tokens, and 45 bytes for each token of a shard (0.4 GB for one of 8 Mi tokens). A suffix-array library
(pydivsufsort) needed 60 % of the time and memory, too small a gain for one more dependency.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from specbench import config
from specbench.base import files
from specbench.base.console import note, progress, say
from specbench.base.untrusted import is_file, read_lines, regular, text_of
from specbench.config import ModelSpec, PairSpec, UserError
from specbench.engine.models.tokenizer import load_tokenizer, vocabulary_hash
from specbench.measure.prompts import load_tasks
from specbench.methods.lookup.rest_datastore import (
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
from specbench.plan import Plan
from specbench.training.documents import Source, named_sources

BATCH = 256  # texts that are tokenized at a time
SHARD = 2**23  # tokens that are sorted at a time


@dataclass(frozen=True)
class Reading:
    """How corpora are read: with which tokenizer, how many documents of each (None: all), and local data sets."""

    pair: PairSpec
    tokenizer: PreTrainedTokenizerBase
    documents: int | None
    data_dir: str | None


def build_datastore(
    corpora: Sequence[str],
    pair: str | None,
    tokenizer: str | None,
    out: Path,
    data_dir: str | None = None,
    documents: int | None = None,
) -> None:
    """Build a datastore of files and TASK:SPLIT in the tokens of a pair, or of a tokenizer alone.

    Every document ends with the tokenizer's end token, if it has one, so that a draft may end a text. Raises UserError.
    """
    if pair and tokenizer:
        raise UserError("build-datastore takes --pair or --tokenizer, not both")
    if not corpora:
        raise UserError("build-datastore needs a --corpus: FILE.jsonl, FILE.txt or TASK:SPLIT")
    files.refuse_existing(out)
    sources = {text: _source(text) for text in dict.fromkeys(corpora)}
    if tokenizer:
        spec = PairSpec(name="own", description="", target=ModelSpec(model=tokenizer))
    else:
        spec = config.load_pair(pair or "pocket")
    reading = Reading(spec, load_tokenizer(spec.target), documents, data_dir)
    counts: list[dict[str, Any]] = []
    about = build(
        (document for text, source in sources.items() for document in _documents(text, source, reading, counts)),
        out,
        max(reading.tokenizer.get_vocab().values()) + 1,
        vocabulary_hash(reading.tokenizer),
        {"tokens of": tokenizer or spec.name, "corpora": counts},
    )
    for count in counts:
        note(f"{count['corpus']}: {count['documents']} documents, {count['tokens']} tokens")
    megabytes = sum(about.sizes.values()) / 1e6
    say(
        f"{about.tokens} tokens, {about.shards} shard{'s' * (about.shards > 1)}, {megabytes:.1f} MB: {out}\n"
        f"next: specbench run --method rest --pair {'PAIR' if tokenizer else spec.name} --suite SUITE "
        f"--set rest.datastore={out}"
    )


def _source(text: str) -> Path | Source:
    """The file or the split of a task that a corpus is. Raises UserError."""
    if is_file(Path(text)):
        return Path(text)
    if ":" not in text:
        raise UserError(f"there is no file {text}; give --corpus FILE.jsonl, FILE.txt or TASK:SPLIT")
    try:
        return named_sources([text])[0]
    except UserError as error:
        raise UserError(str(error).replace("--data", "--corpus")) from None


def _documents(text: str, source: Path | Source, reading: Reading, counts: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Yield the token ids of a corpus's documents; appends their number to `counts`, in place."""
    name = text if isinstance(source, Source) else source.name
    count: dict[str, Any] = {"corpus": name, "documents": 0, "tokens": 0}
    counts.append(count)
    all_texts = _of_task(source, reading) if isinstance(source, Source) else _of_file(source)
    texts = islice((text for text in all_texts if text.strip()), reading.documents)
    end = reading.tokenizer.eos_token_id
    while batch := list(islice(texts, BATCH)):
        for ids in reading.tokenizer(batch, verbose=False)["input_ids"]:
            document = ids if end is None or ids[-1:] == [end] else [*ids, end]
            count["documents"] += 1
            count["tokens"] += len(document)
            yield document
    if not count["documents"]:
        raise UserError(f"{text} has no text; leave it out, or give another --corpus")


def _of_file(path: Path) -> Iterator[str]:
    """Yield the texts of JSON Lines with a field `text`, or the paragraphs of a .txt file, between empty lines."""
    paragraph: list[str] = []
    plain = path.suffix == ".txt"
    remedy = ("a .txt file is UTF-8" if plain else 'write a JSON object with a "text"') + ", or leave the line out"
    with progress(f"reading {path.name}", regular(path)) as advance:
        for number, line, size in read_lines(path, remedy=remedy):
            advance(size)
            if not plain and not line.strip():
                continue
            text = line if plain else text_of(line, f"{path}, line {number}", remedy)
            if not plain:
                yield text
            elif text.strip():
                paragraph.append(text)
            elif paragraph:
                yield "".join(paragraph)
                paragraph = []
        yield "".join(paragraph)


def _of_task(source: Source, reading: Reading) -> Iterator[str]:
    """Yield prompts without examples, each with its reference answer, as lm-eval joins them in few-shot examples."""
    line = source.line.model_copy(update={"fewshot": 0})
    plan = Plan(
        pair=reading.pair,
        methods=(),
        baseline=None,
        suite=f"{source.task}:{source.split}",
        tasks=(line,),
        limit=reading.documents,
        split=source.split,
        data_dir=reading.data_dir,
    )
    tasks = load_tasks(plan, None)
    with progress(f"reading {source.task}", tasks.document_count(source.task)) as advance:
        for text in tasks.references(source.task):
            if text is None:
                raise UserError(f"{source.task} has no reference answers in words; give another --corpus")
            advance(1)
            yield text


def build(
    documents: Iterable[list[int]],
    folder: Path,
    vocabulary: int,
    tokenizer: str,
    source: dict[str, Any],
    shard: int = SHARD,
) -> About:
    """Write the datastore of documents of token ids below `vocabulary`; empty documents are left out.

    `tokenizer` is the hash of its vocabulary. `source` (JSON-like) says what the documents are; it may be filled while
    they are read. A document is cut only if it alone is longer than a shard. Until everything is written, the datastore
    is in FOLDER.new, without its metadata. Raises UserError if the folder exists or there is no token.
    """
    files.refuse_existing(folder)
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
        if new.is_dir():  # the build failed or was stopped
            for name in (*ARRAYS, METADATA):
                (new / name).unlink(missing_ok=True)
            if not any(new.iterdir()):
                new.rmdir()
    return about


class Writer:
    """Appends documents to the three arrays of a datastore, and sorts their suffixes whenever a shard is full."""

    def __init__(self, folder: Path, vocabulary: int, shard: int) -> None:
        self.vocabulary, self.shard = vocabulary, shard
        self.tokens = self.documents = self.shards = self.largest = 0
        self._files = {name: open(folder / name, "wb") for name in ARRAYS}  # noqa: SIM115 (closed by close)
        self._open = np.empty(shard + 1, np.uint32)
        # Filled places of the open shard, places before it, and suffixes before it.
        self._filled = self._before = self._sorted = 0

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
        """Sort and write the open shard, and begin the next."""
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
    """The places of all tokens [n] but END, sorted by the DEPTH tokens that begin there, then by place.

    Everything after the last token counts as END. This is prefix doubling (Manber and Myers, 1990), with as many rounds
    as DEPTH needs: the rank of 2w tokens is the rank of the pair of ranks of their halves.
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
    places: Tokens = placed.astype(np.uint32)  # the lower half
    return places[: np.count_nonzero(tokens != END)]
