"""Trace a sample: where each piece of its text came from, and which drafts were discarded."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from specbench.analysis.texts import Decode, DecodedTexts, load_decode, shared_start
from specbench.config import UserError
from specbench.results import records
from specbench.results.stored import StoredRun

ORIGINS = ("prefill", "target", "accepted", "rescued", "correction", "bonus")
REJECTED, ACCEPTED, RESCUED, UNREAD, CUT = range(len(records.DECISIONS))
SAMPLE = ["repeat", "task", "doc_id", "method", "warmup", "tokens", "text", "finish", "error"]
LISTS = ("draft_tokens", "target_tokens", "decisions", "ratios")
ROUND = {name: pc.field(name) for name in ("round", "drafted", "levels", "accepted", "committed", "seconds", *LISTS)}
ROUND["levels"] = pc.coalesce(pc.field("levels"), pc.field("drafted"))  # older records hold chains only
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
    unread: tuple[str, ...] = ()  # drafts after a rejection, or next to an accepted branch of a tree
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
    return _trace(sample, _rows(run, task, doc_id, method, repeat), DecodedTexts(decode or load_decode(run)))


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

    round: int
    drafted: int
    levels: int
    accepted: int
    committed: int
    seconds: float  # NaN where it was not recorded
    draft_tokens: list[int] | None
    target_tokens: list[int] | None
    decisions: list[int] | None
    ratios: list[float] | None


def _rows(run: StoredRun, task: str, doc_id: int, method: str, repeat: int) -> list[_Row]:
    """The rounds of one text, in order."""
    key = {"task": task, "doc_id": doc_id, "method": method, "repeat": repeat}
    own = reduce(and_, (pc.field(name) == value for name, value in key.items()), ~pc.field("warmup"))
    rows = [_Row(**row) for row in run.rounds().to_table(ROUND, own).sort_by("round").to_pylist()]
    return [row if row.seconds is not None else row._replace(seconds=math.nan) for row in rows]


def has_tokens(sample: Any) -> bool:
    """True if the tokens and the text of a sample were recorded."""
    return isinstance(sample.tokens, np.ndarray) and isinstance(sample.text, str)


def pieces_of(sample: Any, texts: DecodedTexts) -> list[str]:
    """What each token of a sample adds to the decoded text. Raises UserError if that does not begin with its own."""
    if (parts := texts.pieces(sample.tokens.tolist(), sample.text)) is None:
        raise UserError(
            f"{_name(sample)}: its tokens do not spell the text that was recorded; this is not their tokenizer"
        )
    return parts


def behind_the_end(sample: Any, parts: Sequence[str], texts: DecodedTexts) -> Iterator[tuple[int, str, str]]:
    """The pieces that go on behind the end of a sample's text: place, what is in the text, and what is behind it."""
    stop = sum(map(len, parts))
    for at in range(len(parts) - 1, -1, -1):
        start = stop - len(parts[at])
        if stop <= len(sample.text):
            break
        inside = max(0, len(sample.text) - start)
        yield at, parts[at][:inside], parts[at][inside:]
        stop = start
    if sample.finish == "eos" and not parts[-1]:
        yield len(parts) - 1, "", texts.draft(int(sample.tokens[-1]), int(sample.tokens[-1]))


def unrecorded(sample: Any) -> UserError:
    """The error of a sample that tells no tokens."""
    return UserError(f"{_name(sample)}: its tokens were not recorded, so there is nothing to trace")


def uneven(sample: Any) -> UserError:
    """The error of a sample whose rounds are not those of its tokens."""
    count = len(sample.tokens)
    return UserError(
        f"{_name(sample)}: its rounds do not add up to its {count} tokens: damaged; this run cannot be used"
    )


def _name(sample: Any) -> str:
    return f"{sample.task}, document {sample.doc_id}, {sample.method}"


def _trace(sample: Any, rows: list[_Row], texts: DecodedTexts) -> Trace:
    if not (has_tokens(sample) and all(map(_recorded, rows))):
        raise unrecorded(sample)
    tokens: list[int] = sample.tokens.tolist()
    if sum(row.committed for row in rows) != len(tokens) or any(map(_uneven, rows)):
        raise uneven(sample)
    parts = pieces_of(sample, texts)
    kept = [(part, "") for part in parts]
    for place, inside, behind in behind_the_end(sample, parts, texts):
        kept[place] = inside, behind
    eos = tokens[-1] if sample.finish == "eos" else None
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
    if any(values is not None and len(values) != row.drafted for values in lists):
        return True
    passed = sum(decision in (ACCEPTED, RESCUED) for decision in row.decisions or ())
    return bool(row.drafted) and passed < min(row.accepted, row.committed)


def _step(row: _Row, texts_of_pieces: Sequence[tuple[str, str]], texts: DecodedTexts, eos: int | None) -> Step:
    """One round. A correction follows a rejection, a bonus token a draft (of a tree: a path) accepted to its end."""
    if not row.drafted:
        origin = "target" if row.round else "prefill"
        return Step(row.round, row.seconds, 0, tuple(Piece(text, origin, cut) for text, cut in texts_of_pieces))
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
    return Step(row.round, row.seconds, row.drafted, tuple(pieces), tuple(rejected), tuple(unread), tuple(cut_drafts))


def _listed(values: list[Any], most: int = 12) -> str:
    text = ", ".join(map(str, values[:most]))
    return text if len(values) <= most else f"{text} and {len(values) - most} more"
