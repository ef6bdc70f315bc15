"""Traces of many samples by whole columns, for a page of thousands; of each they say what `trace` says of one."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.analysis import trace
from specbench.analysis.metrics import timed_samples
from specbench.analysis.texts import Decode, DecodedTexts
from specbench.analysis.trace import ACCEPTED, CUT, REJECTED, RESCUED, UNREAD
from specbench.results import records
from specbench.results.stored import StoredRun

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
ORIGIN = {name: np.int32(number) for number, name in enumerate(trace.ORIGINS)}
KEY = ("task", "doc_id", "method")
PART = -1  # instead of the number of a text: the token is only part of a character
MOST = 2**21  # tokens of the samples that are traced at once, which bounds the memory
NO_END = -2  # instead of an end token: no token that is recorded


class Words:
    """Texts and their numbers; 0 is the empty one."""

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """The number of a text, a new one if it is new."""
        if (number := self._numbers.setdefault(text, len(self.texts))) == len(self.texts):
            self.texts.append(text)
        return number


@dataclass(frozen=True)
class TraceColumns:
    """Traces one after the other. Texts are their numbers among `Words`; each array says what it has an entry for."""

    samples: list[tuple[str, int, str]]  # task, document, method
    rounds: Ints  # of a sample: how many
    drafted: Ints  # of a round
    seconds: Floats  # of a round; NaN where it was not recorded
    pieces: Ints  # of a round: how many
    text: Ints  # of a piece
    origin: Ints  # of a piece: an index of `trace.ORIGINS`
    more: NDArray[np.bool_]  # of a piece: is it rescued, or has it text after the end of the sample?
    cut: Ints  # of a piece with more: its text after the end
    instead: Ints  # of a piece with more: for a rescued one, the token that the target preferred
    ratio: Floats  # of a piece with more: for a rescued one, p(draft token) / p(target token)
    dropped: Ints  # of a round that drafted, three: drafts rejected, unread, and after the end
    rejected: Ints  # of a rejected draft
    own: Ints  # of a rejected draft: the token that the target preferred
    rejected_ratio: Floats  # of a rejected draft
    unread: Ints  # of a draft that was not read
    after: Ints  # of a draft after the end


class Tracer:
    """Traces the samples of one pass of a run, but for those that failed and those of servers."""

    def __init__(self, run: StoredRun, decode: Decode, words: Words, methods: Collection[str], repeat: int = 0) -> None:
        self._run, self._texts, self._words, self._repeat = run, DecodedTexts(decode), words, repeat
        asked = set(methods) - {spec.name for spec in run.plan.servers}
        samples = timed_samples(run.samples(trace.SAMPLE))
        samples = samples[(samples.repeat == repeat) & samples.method.isin(list(asked))]
        order = {task: place for place, task in enumerate(samples.task.unique())}
        self._samples = samples.assign(place=samples.task.map(order)).sort_values(["place", "doc_id"])
        texts, number = self._texts, words.number
        self._first = cache(lambda token: PART if "\ufffd" in texts.first(token) else number(texts.first(token)))
        self._inner = cache(lambda token: PART if "\ufffd" in texts.first(token) else number(texts.inner(token)))
        self._draft = cache(lambda token: number(texts.draft(token, None)))
        self._end = cache(lambda token: number(texts.draft(token, token)))

    def of(self, documents: Mapping[str, Collection[int]]) -> Iterator[TraceColumns]:
        """The traces of documents, which are named by task: task by task, document by document, in parts that fit.

        Raises UserError for a sample that cannot be traced, as `trace.trace` does.
        """
        asked = {(task, doc_id) for task, ids in documents.items() for doc_id in ids}
        chosen = [key in asked for key in zip(self._samples.task, self._samples.doc_id, strict=True)]
        part, tokens = list[Any](), 0
        for one in self._samples[chosen].itertuples():
            more = len(one.tokens) if trace.has_tokens(one) else 0
            if part and tokens + more > MOST:
                yield self._columns(part)
                part, tokens = [], 0
            part.append(one)
            tokens += more
        if part:
            yield self._columns(part)

    def _columns(self, samples: Sequence[Any]) -> TraceColumns:
        """The traces of samples."""
        batch, sample = self._rounds(samples)
        _check(samples, batch, sample)
        drafts = records.flatten(self._run.folder, batch, trace.LISTS[:-1], trace.LISTS[-1])
        draft, target, decision, ratio = (drafts.values[name] for name in trace.LISTS)
        ends = np.array([one.tokens[-1] if one.finish == "eos" else NO_END for one in samples], np.int32)
        end = ends[sample][drafts.row]  # of a draft: the token that ended its sample
        text, cut = self._pieces(samples)
        origin, rescued, of_rescued = _origins(batch, drafts.row, decision)
        instead, rescue_ratio = np.zeros(len(text), np.int32), np.full(len(text), np.nan)
        instead[rescued], rescue_ratio[rescued] = self._drafts(target[of_rescued], end[of_rescued]), ratio[of_rescued]
        more = (cut > 0) | (origin == ORIGIN["rescued"])
        rejected, unread, after = (decision == kind for kind in (REJECTED, UNREAD, CUT))
        drafted = _numbers(batch, "drafted")
        dropped = [np.bincount(drafts.row[kind], minlength=len(sample)) for kind in (rejected, unread, after)]
        return TraceColumns(
            samples=[(one.task, int(one.doc_id), one.method) for one in samples],
            rounds=np.bincount(sample, minlength=len(samples)).astype(np.int32),
            drafted=drafted,
            seconds=batch["seconds"].to_numpy(zero_copy_only=False),
            pieces=_numbers(batch, "committed"),
            text=text,
            origin=origin,
            more=more,
            cut=cut[more],
            instead=instead[more],
            ratio=rescue_ratio[more],
            dropped=np.stack(dropped, axis=1)[drafted > 0].ravel().astype(np.int32),
            rejected=self._drafts(draft[rejected], end[rejected]),
            own=self._drafts(target[rejected], end[rejected]),
            rejected_ratio=ratio[rejected],
            unread=self._drafts(draft[unread], end[unread]),
            after=self._drafts(draft[after], end[after]),
        )

    def _rounds(self, samples: Sequence[Any]) -> tuple[pa.RecordBatch, Ints]:
        """The rounds of samples, in their order, and the place of each one's sample."""
        places = {(one.task, one.doc_id, one.method): place for place, one in enumerate(samples)}
        ids = sorted({one.doc_id for one in samples})
        wanted = ~pc.field("warmup") & (pc.field("repeat") == self._repeat) & pc.field("doc_id").isin(ids)
        table = self._run.rounds().to_table({name: pc.field(name) for name in KEY} | trace.ROUND, wanted)
        starts = records.stretches(table, KEY)
        keys = zip(*(table[name].take(pa.array(starts)).to_pylist() for name in KEY), strict=True)
        of_stretch = np.array([places.get(key, -1) for key in keys], np.int32)
        sample = np.repeat(of_stretch, np.diff(starts, append=table.num_rows))
        order = np.lexsort((table["round"].to_numpy(), sample))
        order = order[sample[order] >= 0]
        table = table.select(list(trace.ROUND))
        if not np.array_equal(order, np.arange(table.num_rows)):  # writers put them so
            table, sample = table.take(pa.array(order)), sample[order]
        return pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in table.columns], list(trace.ROUND)
        ), sample

    def _pieces(self, samples: Sequence[Any]) -> tuple[Ints, Ints]:
        """What each token adds to the text of its sample, and what it adds behind the end of that text."""
        tokens = np.concatenate([np.zeros(0, np.int32), *(one.tokens for one in samples)])
        lengths = np.array([len(one.tokens) for one in samples], np.int64)
        stops = np.cumsum(lengths)
        starts = stops - lengths
        text, cut = _of_each(self._inner, tokens), np.zeros(len(tokens), np.int32)
        begins = starts[lengths > 0]
        text[begins] = _of_each(self._first, tokens[begins])
        for one, start, stop in zip(samples, starts.tolist(), stops.tolist(), strict=True):
            numbers = text[start:stop].tolist()
            parts = [self._words.texts[number] for number in numbers]
            if PART in numbers or not "".join(parts).startswith(one.text):
                parts = trace.pieces_of(one, self._texts)
                text[start:stop] = [self._words.number(part) for part in parts]
            for at, inside, behind in trace.behind_the_end(one, parts, self._texts):
                text[start + at], cut[start + at] = self._words.number(inside), self._words.number(behind)
        return text, cut

    def _drafts(self, tokens: Ints, ends: Ints) -> Ints:
        """Names of tokens that are not in the text; `ends` has the token that ended the sample of each."""
        names = _of_each(self._draft, tokens)
        names[tokens == ends] = _of_each(self._end, tokens[tokens == ends])
        return names


def _check(samples: Sequence[Any], batch: pa.RecordBatch, sample: Ints) -> None:
    """Raise UserError for the first sample whose tokens were not recorded or do not fit its rounds."""
    drafted, committed, accepted = (_numbers(batch, name) for name in ("drafted", "committed", "accepted"))
    valid = {name: batch[name].is_valid().to_numpy(zero_copy_only=False) for name in batch.schema.names}
    lengths = {name: pc.list_value_length(batch[name]).fill_null(0).to_numpy() for name in trace.LISTS}
    listed = np.logical_and.reduce([valid[name] for name in trace.LISTS[:-1]])
    unknown = ~(valid["drafted"] & valid["committed"] & (listed | (drafted == 0)))
    uneven = np.logical_or.reduce([valid[name] & (lengths[name] != drafted) for name in trace.LISTS])
    row = np.repeat(np.arange(len(sample)), lengths["decisions"])
    passed = np.isin(batch["decisions"].flatten().to_numpy(), (ACCEPTED, RESCUED))
    uneven |= (drafted > 0) & (np.bincount(row[passed], minlength=len(sample)) < np.minimum(accepted, committed))
    without, damaged = set(sample[unknown].tolist()), set(sample[uneven].tolist())
    told = np.bincount(sample, committed, len(samples))
    for place, one in enumerate(samples):
        if place in without or not trace.has_tokens(one):
            raise trace.unrecorded(one)
        if place in damaged or told[place] != len(one.tokens):
            raise trace.uneven(one)


def _origins(batch: pa.RecordBatch, row: NDArray[np.int64], decision: Ints) -> tuple[Ints, Ints, Ints]:
    """The origin of each piece, the places of rescued ones, and those of their drafts, whose round is `row`."""
    drafted, pieces, accepted, number = (_numbers(batch, n) for n in ("drafted", "committed", "accepted", "round"))
    complete = accepted >= _numbers(batch, "levels")
    of_piece = np.repeat(np.arange(len(pieces)), pieces)
    at = np.arange(len(of_piece)) - (np.cumsum(pieces, dtype=np.int64) - pieces)[of_piece]
    without_draft = np.where(number > 0, ORIGIN["target"], ORIGIN["prefill"])
    after_draft = np.where(complete, ORIGIN["bonus"], ORIGIN["correction"])
    origin = np.where(drafted > 0, after_draft, without_draft)[of_piece]
    path = np.flatnonzero(np.isin(decision, (ACCEPTED, RESCUED)))
    in_path = np.bincount(row[path], minlength=len(pieces))
    passed = np.flatnonzero((drafted[of_piece] > 0) & (at < accepted[of_piece]))
    of_passed = path[(np.cumsum(in_path) - in_path)[of_piece[passed]] + at[passed]]
    is_rescued = decision[of_passed] == RESCUED
    origin[passed] = np.where(is_rescued, ORIGIN["rescued"], ORIGIN["accepted"])
    return origin, passed[is_rescued], of_passed[is_rescued]


def _numbers(batch: pa.RecordBatch, name: str) -> Ints:
    """A column of counts; 0 where one is not known."""
    return batch[name].fill_null(0).to_numpy()  # type: ignore[no-any-return]


def _of_each(number: Callable[[int], int], tokens: Ints) -> Ints:
    """The number of each token, which is asked for once."""
    coded = pa.array(tokens).dictionary_encode()
    known = np.fromiter(map(number, coded.dictionary.to_pylist()), np.int32, len(coded.dictionary))
    return known[coded.indices.to_numpy()]
