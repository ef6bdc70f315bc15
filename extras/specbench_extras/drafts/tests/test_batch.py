"""Many sequences of one model at once: each is what a session of its own would be."""

import copy
import itertools
import random
import zlib

import oracle
import pytest
import torch
from cases import architectures
from forms import VOCABULARY, model
from gates import DEVICE
from watched import Told

from specbench.engine.session import Session
from specbench_extras.drafts.batch import Batch, until_all_end

CLOSE = {"rtol": 0, "atol": 1e-4}  # norms and softmax are float32 even in a float64 model
ALPHA = 1e-4  # of a right law being refused; wrong ones must fall below it


class Mirrored:
    """A batch, and for each of its rows a session that is told the same; every answer is compared."""

    def __init__(self, of, rows: int, **tolerance):
        self.batch, self.of = Batch(of, rows, "target"), of
        self.sessions = [Session(of, "target") for _ in range(rows)]
        self.tolerance = tolerance or CLOSE
        self.compared, self.said = 0, set()

    def feed(self, tokens, suffix=None, keep=1, together=0):
        sent = None if suffix is None else torch.tensor(suffix, device=DEVICE)
        output = self.batch.feed(tokens, sent, keep, together)
        assert output.shape == (len(tokens), keep, VOCABULARY)
        for row, (session, own) in enumerate(zip(self.sessions, tokens, strict=True)):
            ids = [*own, *(suffix[row] if suffix is not None else ())]
            if not ids:
                continue  # nothing was fed: its row of logits says nothing
            expected = session.forward(ids, together=together).logits[-keep:]
            torch.testing.assert_close(output[row, -len(expected) :], expected, **self.tolerance)
            self.compared += 1
            self.said.update(expected.argmax(-1).tolist())
        self.check()

    def truncate(self, lengths):
        self.batch.truncate(torch.tensor(lengths))
        for session, length in zip(self.sessions, lengths, strict=True):
            session.truncate(min(length, len(session)))
        self.check()

    def select(self, rows):
        self.batch.select(rows)
        self.sessions = [copy.deepcopy(self.sessions[row], {id(self.of): self.of}) for row in rows]
        self.check()

    def check(self):
        assert self.batch.lengths.tolist() == [len(session) for session in self.sessions]
        assert len(self.batch) == len(self.sessions)


def texts(rng, *lengths):
    return [[rng.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


@architectures
def test_any_history_equals_sessions(architecture):
    """Ragged feeds, blocks that read one another, roll-backs and selections, also of a row twice."""
    rng = random.Random(zlib.crc32(architecture.encode()))
    compared, said = 0, set()
    for _ in range(3):
        mirrored = Mirrored(model(architecture), 3)
        rows = 3
        mirrored.feed(texts(rng, *(rng.randrange(1, 24) for _ in range(rows))))
        for _ in range(14):
            step = rng.choice(("feed", "block", "block", "truncate", "select"))
            if step == "feed":
                lengths = [rng.choice((0, 0, 1, 2, 5, 9)) for _ in range(rows)]
                if any(lengths):
                    mirrored.feed(texts(rng, *lengths), keep=min(max(lengths), rng.randrange(1, 4)))
            elif step == "block":
                width = rng.randrange(1, 26)
                lengths = [rng.randrange(4) for _ in range(rows)]
                together = rng.choice((0, width, max(1, width - 2)))
                mirrored.feed(texts(rng, *lengths), texts(rng, *[width] * rows), width, together)
                kept = [length - rng.randrange(width + 1) for length in mirrored.batch.lengths.tolist()]
                mirrored.truncate([max(1, one) for one in kept])
            elif step == "truncate":
                mirrored.truncate([rng.randrange(1, length + 4) for length in mirrored.batch.lengths.tolist()])
            else:
                chosen = [rng.randrange(rows) for _ in range(rng.randrange(2, 5))]
                mirrored.select(chosen)
                rows = len(chosen)
        last = texts(rng, *[5] * rows)
        mirrored.feed(last, keep=5)
        assert max(map(len, mirrored.sessions)) > 16  # of Gemma 2 the window
        compared, said = compared + mirrored.compared, said | mirrored.said
    assert compared > 70 and len(said) > 40


def test_a_batch_may_keep_no_row():
    batch = Batch(model("llama"), 2)
    batch.feed([[1, 2], [3]])
    batch.select([])
    assert len(batch) == 0
    batch.truncate(torch.tensor([], dtype=torch.long))


@architectures
def test_what_was_rolled_back_is_dropped(architecture):
    """Blocks that are always rolled back leave gaps of different sizes; the cache stays short, and says the same."""
    rng = random.Random(3)
    mirrored = Mirrored(model(architecture), 3)
    mirrored.feed(texts(rng, 20, 3, 11))
    widths = []
    for turn in range(12):
        before = mirrored.batch.lengths.tolist()
        mirrored.feed(texts(rng, 1, 2, 0), texts(rng, 30, 30, 30), 30, 30 if turn % 2 else 0)
        more = (1, 2, 0) if turn % 2 else [rng.randrange(1, 4) for _ in before]  # what read ahead must not stay
        stay = [length + count for length, count in zip(before, more, strict=True)]
        mirrored.truncate(stay)
        widths.append(mirrored.batch._places.shape[1])
        cached = mirrored.batch._cache.layers[0].keys.shape[2]
        assert cached == widths[-1] <= 2 * max(stay) + 64
    assert sum(b < a for a, b in itertools.pairwise(widths)) >= 2  # it was compacted
    for row, session in enumerate(mirrored.sessions):
        output = mirrored.batch.feed([[7] if i == row else [] for i in range(3)])[row, -1]
        expected = oracle.next_logits(oracle.tiny(architecture), [*session.tokens, 7])  # without any cache
        torch.testing.assert_close(output.cpu(), expected, **CLOSE)


def test_rows_do_not_read_one_another():
    batch = Batch(model("llama"), 2)
    batch.feed([[1, 2, 3], [9] * 30])
    one = batch.feed([[4], [5]])[0]
    other = Batch(model("llama"), 2)
    other.feed([[1, 2, 3], [8] * 3])
    torch.testing.assert_close(one, other.feed([[4], [6]])[0], **CLOSE)


def test_the_watch_and_the_vocabulary():
    watch = Told()
    batch = Batch(model("opt"), 2, "draft", watch, vocabulary=90)
    assert batch.feed([[1, 2, 3], [4]]).shape == (2, 1, 90)
    batch.feed([[1], []])
    assert watch.forwards == [("draft", 3, 0), ("draft", 1, 3)]


@pytest.mark.parametrize("architecture", ("qwen3", "gemma2"))
def test_bfloat16_runs(architecture):
    half = copy.deepcopy(oracle.tiny(architecture)).to(torch.bfloat16).to(DEVICE)
    batch, rng = Batch(half, 2), random.Random(0)
    given = texts(rng, 3, 20)
    batch.feed(given)
    block = texts(rng, 40, 40)
    output = batch.feed([[1, 2], []], torch.tensor(block, device=DEVICE), keep=40, together=40)
    assert output.dtype == torch.bfloat16 and output.isfinite().all()
    batch.truncate(torch.tensor([4, 20]))
    output = batch.feed([[5], [6]])
    assert output.isfinite().all()
    for row, text in enumerate(([*given[0], 1, 5], [*given[1], 6])):
        expected = Session(half, "target").forward(text).logits[-1].float()
        assert torch.corrcoef(torch.stack([output[row, -1].float(), expected]))[0, 1] > 0.95


# All texts to their ends


def test_until_all_end_drops_rows_now_and_then():
    class Counting:
        def __init__(self, rows):
            self.rows = list(range(rows))

        def __len__(self):
            return len(self.rows)

        def select(self, at):
            self.rows = [self.rows[i] for i in at]

    lasting = [1, 9, 2, 9, 4, 3, 9, 5]
    model_, steps = Counting(8), []

    def step(rows):
        assert rows == model_.rows
        steps.append(list(rows))

    until_all_end([model_], lambda row: sum(row in rows for rows in steps) >= lasting[row], step)
    assert len(steps) == 9
    for row, length in enumerate(lasting):
        assert sum(row in rows for rows in steps) >= length
    sizes = [len(rows) for rows in steps]
    assert sizes[0] == 8 and sizes[-1] == 3 and sizes == sorted(sizes, reverse=True)
    assert 3 <= len(set(sizes)) < 8  # each time is a copy of the caches
    until_all_end([Counting(2)], lambda row: True, pytest.fail)
