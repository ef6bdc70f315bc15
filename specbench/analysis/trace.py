"""Trace a sample: where each piece of its text came from, and which drafts were discarded."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from specbench.analysis.metrics import timed_samples
from specbench.analysis.texts import Decode, Texts, load_decode, shared_start
from specbench.config import UserError
from specbench.results import records
from specbench.results.stored import StoredRun

ORIGINS = ("prefill", "target", "accepted", "rescued", "correction", "bonus")
REJECTED, ACCEPTED, RESCUED, UNREAD, CUT = range(len(records.DECISIONS))
SAMPLE = ["repeat", "task", "doc_id", "method", "warmup", "tokens", "text", "finish", "error"]
TEXT = ("doc_id", "method")
LISTS = ("draft_tokens", "target_tokens", "decisions", "ratios")
ROUND = ("round", "drafted", "levels", "accepted", "committed", "seconds", *LISTS)
NAMES = {"task": "task", "doc_id": "document", "method": "method", "repeat": "repeat"}


class Piece(NamedTuple):
    """What one committed token adds to the text. A character that spans tokens belongs to the last of them."""

    text: str
    origin: str  # one of ORIGINS
    cut: str = ""  # its text after the end of the sample: EOS, or a stop string and what follows it
    instead: str = ""  # rescued: the token that the target preferred
    ratio: float = math.nan  # rescued: p(draft token) / p(target token)


class Rejected(NamedTuple):
    """A draft token that was refused."""

    text: str
    target: str  # the token that the target preferred
    ratio: float  # p(draft token) / p(target token); NaN where it was not recorded


class Step(NamedTuple):
    """One round: what it committed, and the drafts it discarded."""

    number: int  # 0 is the prefill
    seconds: float  # NaN where it was not recorded
    drafted: int
    pieces: tuple[Piece, ...]
    rejected: tuple[Rejected, ...] = ()
    unread: tuple[str, ...] = ()  # drafts after a rejection, or beside an accepted branch of a tree
    cut: tuple[str, ...] = ()  # drafts after the end of the text


@dataclass(frozen=True, slots=True)
class Trace:
    """A sample, round by round; the texts of its pieces add up to `text`."""

    task: str
    doc_id: int
    method: str
    repeat: int
    finish: str  # eos, stop or length
    text: str
    tokens: tuple[int, ...]  # one for each piece
    steps: tuple[Step, ...]


def find_sample(run: StoredRun, task: str, doc_id: int, method: str, repeat: int = 0) -> Any:
    """The row of one sample. Raises UserError for one that does not exist, or that failed."""
    samples = run.samples(SAMPLE)
    samples = samples[~samples.warmup]
    place = str(run.folder)
    for column, wanted in (("task", task), ("doc_id", doc_id), ("method", method), ("repeat", repeat)):
        known = samples[column].drop_duplicates().tolist()
        samples = samples[samples[column] == wanted]
        if samples.empty:
            raise UserError(f"{place} has no {NAMES[column]} {wanted}; it has {_listed(known) or 'none yet'}")
        place += f", {NAMES[column]} {wanted}," if column == "task" else ""
    sample = next(samples.itertuples())
    if sample.finish == "error":
        raise UserError(f"{task}, document {doc_id}, {method} failed, so it has no rounds: {last_line(sample.error)}")
    return sample


def trace(run: StoredRun, task: str, doc_id: int, method: str, repeat: int = 0, decode: Decode | None = None) -> Trace:
    """The trace of one sample. `decode` turns token ids into text; by default it is the run's own tokenizer.

    Raises UserError for a sample that does not exist, failed, or has no recorded tokens.
    """
    sample = find_sample(run, task, doc_id, method, repeat)
    chosen = (pc.field("doc_id") == doc_id) & (pc.field("method") == method)
    rounds = _rounds(run, task, repeat, chosen)
    return _trace(sample, _rows(rounds, doc_id, method), Texts(decode or load_decode(run)))


def traces(
    run: StoredRun,
    decode: Decode | None = None,
    repeat: int = 0,
    documents: Mapping[str, Collection[int]] | None = None,
    methods: Collection[str] | None = None,
) -> Iterator[Trace]:
    """Traces of many samples, task by task and document by document, without failed samples and those of servers.

    `documents` (by task) and `methods` select samples; by default all are traced. Of servers it is not known which
    tokens they drafted. Raises UserError as `trace` does.
    """
    texts = Texts(decode or load_decode(run))
    samples = timed_samples(run.samples(SAMPLE))
    samples = samples[(samples.repeat == repeat) & ~samples.method.isin([spec.name for spec in run.plan.servers])]
    if methods is not None:
        samples = samples[samples.method.isin(list(methods))]
    for task, of_task in samples.groupby("task", sort=False):
        chosen = pc.field("method").isin(of_task.method.unique().tolist())
        if documents is not None:
            wanted = list(documents.get(task, ()))
            of_task = of_task[of_task.doc_id.isin(wanted)]
            chosen &= pc.field("doc_id").isin(wanted)
        rounds = _rounds(run, task, repeat, chosen)
        for sample in of_task.sort_values("doc_id", kind="stable").itertuples():
            yield _trace(sample, _rows(rounds, sample.doc_id, sample.method), texts)


def first_divergence(first: Trace, second: Trace) -> int | None:
    """The index of the first token in which two traces differ, or None. If one begins the other, it is its length."""
    if first.tokens == second.tokens:
        return None
    return shared_start(first.tokens, second.tokens)


def document_scores(run: StoredRun, headline: Mapping[str, str]) -> dict[tuple[str, int, str], float]:
    """Each document's headline score in the first pass, by task, document and method; `headline` is by task.

    Empty for runs that are unfinished.
    """
    if not run.finished:
        return {}
    scores = run.scores()
    wanted = scores.task.map(headline) == scores.metric + "," + scores["filter"]
    scores = scores[wanted & (scores.repeat == 0) & scores.doc_id.notna()]
    return {
        (row.task, int(row.doc_id), row.method): round(float(row.value), 4)
        for row in scores.itertuples()
        if math.isfinite(row.value)
    }


def last_line(error: object) -> str:
    """The last line of a traceback that is not empty."""
    lines = error.split("\n") if isinstance(error, str) else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason recorded")


def ratio_text(ratio: float) -> str:
    """A ratio of probabilities in a few characters; empty if it is NaN."""
    if math.isnan(ratio):
        return ""
    return f"{ratio:.2f}" if ratio >= 0.095 else f"{ratio:.3f}" if ratio >= 0.0005 else "<.001"


class _Row(NamedTuple):
    """A row of `records.ROUNDS`."""

    number: int
    drafted: int
    levels: int
    accepted: int
    committed: int
    seconds: float  # NaN where it was not recorded
    draft_tokens: list[int] | None
    target_tokens: list[int] | None
    decisions: list[int] | None
    ratios: list[float] | None


def _rounds(run: StoredRun, task: str, repeat: int, chosen: pc.Expression) -> dict[tuple[int, str], pa.Table]:
    """The rounds of a task's chosen samples, in order, by document and method."""
    of_task = ~pc.field("warmup") & (pc.field("task") == task) & (pc.field("repeat") == repeat)
    names = {name: pc.field(name) for name in (*TEXT, *ROUND)}
    names["levels"] = pc.coalesce(pc.field("levels"), pc.field("drafted"))  # older records hold chains only
    table = run.rounds().to_table(columns=names, filter=of_task & chosen).combine_chunks()
    table = table.sort_by([(name, "ascending") for name in (*TEXT, "round")])
    starts = records.stretches(table, TEXT)
    keys = zip(*(table[name].take(pa.array(starts)).to_pylist() for name in TEXT), strict=True)
    lengths = np.diff(starts, append=table.num_rows)
    return {key: table.slice(start, count) for key, start, count in zip(keys, starts, lengths, strict=True)}


def _rows(rounds: Mapping[tuple[int, str], pa.Table], doc_id: int, method: str) -> list[_Row]:
    """The rounds of one text; as Python's objects, they take many times the memory."""
    if (table := rounds.get((doc_id, method))) is None:
        return []
    columns = [_lists(table[name]) if name in LISTS else _numbers(table[name]) for name in ROUND]
    return [_Row(*values) for values in zip(*columns, strict=True)]


def _lists(column: pa.ChunkedArray) -> list[list[Any] | None]:
    """The lists of a column; many times faster than `to_pylist`."""
    lists: list[list[Any] | None] = []
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False).tolist()
        ends = np.cumsum(chunk.value_lengths().fill_null(0).to_numpy()).tolist()
        known = chunk.is_valid().to_numpy(zero_copy_only=False).tolist()
        starts = [0, *ends[:-1]]
        lists += [values[a:b] if valid else None for a, b, valid in zip(starts, ends, known, strict=True)]
    return lists


def _numbers(column: pa.ChunkedArray) -> list[Any]:
    """The numbers of a column; None for counts that are not known, NaN for such seconds."""
    counts = column.null_count and not pa.types.is_floating(column.type)
    return column.to_pylist() if counts else column.to_numpy().tolist()  # type: ignore[no-any-return]


def _trace(sample: Any, rows: list[_Row], texts: Texts) -> Trace:
    name = f"{sample.task}, document {sample.doc_id}, {sample.method}"
    if not (isinstance(sample.tokens, np.ndarray) and isinstance(sample.text, str) and all(map(_recorded, rows))):
        raise UserError(f"{name}: its tokens were not recorded, so there is nothing to trace")
    tokens: list[int] = sample.tokens.tolist()
    if sum(row.committed for row in rows) != len(tokens) or any(map(_uneven, rows)):
        raise UserError(
            f"{name}: its rounds do not add up to its {len(tokens)} tokens: damaged; this run cannot be used"
        )
    parts = texts.pieces(tokens, sample.text)
    if parts is None:
        raise UserError(f"{name}: its tokens do not spell the text that was recorded; this is not their tokenizer")
    eos = tokens[-1] if sample.finish == "eos" else None
    left = len(sample.text)
    kept = []
    for part in parts:
        kept.append((part[:left], part[left:]))
        left -= len(kept[-1][0])
    if eos is not None and not parts[-1]:
        kept[-1] = "", texts.draft(eos, eos)
    steps = []
    at = 0
    for row in rows:
        steps.append(_step(row, kept[at : at + row.committed], texts, eos))
        at += row.committed
    return Trace(
        sample.task,
        int(sample.doc_id),
        sample.method,
        int(sample.repeat),
        sample.finish,
        sample.text,
        tuple(tokens),
        tuple(steps),
    )


def _recorded(row: _Row) -> bool:
    if row.drafted is None or row.committed is None:  # of a server that does not list its rounds
        return False
    return not row.drafted or None not in (row.draft_tokens, row.target_tokens, row.decisions)


def _uneven(row: _Row) -> bool:
    lists = (row.draft_tokens, row.target_tokens, row.decisions, row.ratios)
    return any(values is not None and len(values) != row.drafted for values in lists)


def _step(row: _Row, texts_of_pieces: Sequence[tuple[str, str]], texts: Texts, eos: int | None) -> Step:
    """One round. A correction follows a rejection, a bonus token a draft (of a tree: a path) accepted to its end."""
    if not row.drafted:
        origin = "target" if row.number else "prefill"
        return Step(row.number, row.seconds, 0, tuple(Piece(text, origin, cut) for text, cut in texts_of_pieces))
    drafts, targets, decisions = row.draft_tokens or [], row.target_tokens or [], row.decisions or []
    ratios = row.ratios or [math.nan] * len(drafts)
    pieces = []
    path = [i for i, decision in enumerate(decisions) if decision in (ACCEPTED, RESCUED)]
    for at, (text, cut) in enumerate(texts_of_pieces):
        if at >= row.accepted:
            pieces.append(Piece(text, "correction" if row.accepted < row.levels else "bonus", cut))
        elif decisions[path[at]] == RESCUED:
            pieces.append(Piece(text, "rescued", cut, texts.draft(targets[path[at]], eos), ratios[path[at]]))
        else:
            pieces.append(Piece(text, "accepted", cut))
    rejected, unread, cut_drafts = [], [], []
    for draft, target, decision, ratio in zip(drafts, targets, decisions, ratios, strict=True):
        if decision == REJECTED:
            rejected.append(Rejected(texts.draft(draft, eos), texts.draft(target, eos), ratio))
        elif decision == UNREAD:
            unread.append(texts.draft(draft, eos))
        elif decision == CUT:
            cut_drafts.append(texts.draft(draft, eos))
    return Step(row.number, row.seconds, row.drafted, tuple(pieces), tuple(rejected), tuple(unread), tuple(cut_drafts))


def _listed(values: list[Any], most: int = 12) -> str:
    text = ", ".join(map(str, values[:most]))
    return text if len(values) <= most else f"{text} and {len(values) - most} more"
