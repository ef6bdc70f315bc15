"""Many sequences of one model at once: each is what a session of its own would be; and many texts decoded together."""

import copy
import functools
import itertools
import random
import zlib

import naive_cospec as naive
import numpy as np
import oracle
import pytest
import torch
from batches import GAMMA, alone, made, several, text_of, unbatched
from cases import architectures, mostly_long
from cospec_models import arbitrator, merged, middling, slow, slow_target
from forms import VOCABULARY, model
from gates import DEVICE, GREEDY
from made_runs import TOKENIZER
from watched import Told

from specbench.engine.batch import Batch, until_all_end
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.collaborative import cospec_batch as rollouts
from specbench.methods.collaborative.cospec import Always, Learned

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


def together(architecture, decide, policy=None, hybrid=True, sampling=GREEDY, gamma=GAMMA):
    results = [text_of(*one) for one in several(architecture)]
    rng = torch.Generator(DEVICE).manual_seed(0)
    rollouts.decode(made(architecture), policy, results, gamma, sampling, rng, decide, hybrid)
    return results


@architectures
def test_never_is_greedy_vanilla(architecture):
    result = together(architecture, lambda number, block, logits: (False for _ in block.mismatches))
    assert [one.ending.tokens for one in result] == alone(architecture)
    assert len(set(result[0].ending.tokens)) > 11
    assert sum(turn.rejected for one in result for turn in one.turns) > 5
    assert sum(turn.emitted > 1 for one in result for turn in one.turns) > 5


def by_text(context: list[int], d: int, t: int) -> bool:
    """Keeps about half, by what was said so far."""
    return zlib.crc32(repr((context, d, t)).encode()) % 2 == 0


class ByText(Always):
    def begin(self, prompt):
        self.text = list(prompt)

    def read(self, tokens):
        self.text += tokens

    def keeps(self, block, rng):
        for i in block.mismatches:
            yield by_text([*self.text, *block.drafted[:i]], block.drafted[i], block.targets[i])


def assert_same(result, expected):
    """Texts, and round by round what was drafted, reached, kept and emitted."""
    for text, (tokens, rounds) in zip(result, expected, strict=True):
        assert text.ending.tokens == tokens and len(text.turns) == len(rounds) - 1
        context = len(text.prompt) + 1
        for turn, one in zip(text.turns, rounds[1:], strict=True):
            decisions = one.verdict.decisions(len(one.tokens) if one.truncated else None)
            reached = [i for i, decision in enumerate(decisions) if decision in ("rescued", "rejected")]
            assert (turn.context, turn.block.drafted, turn.emitted) == (context, one.verdict.drafted, len(one.tokens))
            assert turn.decided == reached
            assert turn.kept == [decisions[i] == "rescued" for i in reached]
            assert turn.rejected == ("rejected" in decisions)
            context += len(one.tokens)


@mostly_long("gamma", (1, 4, 25), (4,))
@architectures
def test_a_policy_by_text_is_the_method(architecture, gamma):
    results: list[rollouts.Text] = []

    def decide(number, block, logits):
        assert logits == []
        text = results[number].tokens
        for i in block.mismatches:
            yield by_text([*text, *block.drafted[:i]], block.drafted[i], block.targets[i])

    results += [text_of(*one) for one in several(architecture)]
    rng = torch.Generator(DEVICE).manual_seed(0)
    rollouts.decode(made(architecture), None, results, gamma, GREEDY, rng, decide)
    assert_same(results, unbatched(architecture, ByText(), gamma))
    kept = [keeps for result in results for turn in result.turns for keeps in turn.kept]
    assert kept.count(True) > 0 and kept.count(False) > 0


@pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
@architectures
def test_the_trained_policy_is_the_method(architecture, hybrid):
    """As decoded one by one; and its logits are those of the decoder without cache."""
    judge = functools.partial(naive.logits, merged(architecture), hybrid=hybrid)
    threshold = middling(architecture, judge)
    arbiter = Learned(Session(arbitrator(architecture), "arbitrator", vocabulary=1), threshold, hybrid)
    result = together(
        architecture,
        lambda number, block, logits: (logit > arbiter.least for logit in logits),
        arbitrator(architecture),
        hybrid,
    )
    assert_same(result, unbatched(architecture, arbiter))
    (prompt, count), text = several(architecture)[0], result[0]
    wanted = slow(architecture).rounds(prompt, count, GAMMA, naive.worked_out(judge, threshold))
    assert text.answer[1:] == [token for one in wanted for token in one.committed]
    for turn, one in zip(text.turns, wanted, strict=True):
        logits = judge(text.tokens[: turn.context], one.drafted, one.targets)
        assert turn.logits == pytest.approx([logits[i] for i in one.mismatches], abs=1e-4)
        rows = [
            oracle.next_logits(slow_target(architecture), [*text.tokens[: turn.context], *one.drafted[:i]])
            for i in one.mismatches
        ]
        losses = [float(-row.log_softmax(-1)[one.drafted[i]]) for row, i in zip(rows, one.mismatches, strict=True)]
        assert turn.surprisals == pytest.approx(losses, abs=1e-4)


# Laws at T > 0

SMALL = 6


@functools.cache
def small():
    return oracle.tiny("llama", vocab=SMALL), oracle.tiny("llama", seed=3, vocab=SMALL)


@functools.cache
def law(p_kept: float, temperature: float) -> np.ndarray:
    """Of three tokens [V, V, V]: the prefill's is the target's, the others the draft's with chance `p_kept`."""
    prompt, total = [1, 2, 3], np.zeros((SMALL, SMALL, SMALL))

    def says(context: list[int], share: float) -> np.ndarray:
        p, q = (oracle.warp(oracle.next_logits(one, context), temperature).numpy() for one in small())
        return share * q + (1 - share) * p

    for i, first in enumerate(says(prompt, 0)):
        for j, second in enumerate(says([*prompt, i], p_kept)):
            total[i, j] = first * second * says([*prompt, i, j], p_kept)
    return total


def copies(decide, texts=1200, temperature=1.5) -> list[rollouts.Text]:
    """Many copies of a text of three tokens that are decoded together; γ = 2: no bonus is among them."""
    target, draft = (one.to(DEVICE) for one in small())
    results = [text_of([1, 2, 3], 3) for _ in range(texts)]
    rng = torch.Generator(DEVICE).manual_seed(4)
    both = Pair("made", {"target": target, "draft": draft}, TOKENIZER)
    rollouts.decode(both, None, results, 2, Sampling(temperature), rng, decide)
    for one in small():
        one.cpu()
    return results


def sampled(decide) -> np.ndarray:
    """Counts of the three tokens."""
    counts = np.zeros((SMALL, SMALL, SMALL))
    for one in copies(decide):
        counts[tuple(one.ending.tokens)] += 1
    return counts


def test_draft_and_target_agree_as_often_as_can_be():
    """The first drafted token is the target's with chance Σ min(p, q), given the token before it."""
    result = copies(lambda *_: iter([False] * 2))
    expected, spread = 0.0, 0.0
    for one in result:
        chance = agreement(one.answer[0])
        expected, spread = expected + chance, spread + chance * (1 - chance)
        assert one.turns[0].surprisals == pytest.approx(
            [-np.log(_plain(one, i)[one.turns[0].block.drafted[i]]) for i in one.turns[0].block.mismatches], abs=1e-4
        )
    agreed = sum(0 not in one.turns[0].block.mismatches for one in result)
    assert abs(agreed - expected) < 4 * spread**0.5


@functools.cache
def agreement(first: int) -> float:
    p, q = (oracle.warp(oracle.next_logits(one, [1, 2, 3, first]), 1.5) for one in small())
    return float(torch.minimum(p, q).sum())


@functools.cache
def _says(context: tuple[int, ...]) -> np.ndarray:
    return oracle.warp(oracle.next_logits(small()[0], list(context)), 1.0).numpy()


def _plain(text: rollouts.Text, i: int) -> np.ndarray:
    """The target's probabilities at temperature 1 of the i-th drafted token of the first round."""
    return _says((1, 2, 3, text.answer[0], *text.turns[0].block.drafted[:i]))


@mostly_long("p_kept", (0.0, 0.4, 1.0), (0.4,))
def test_sampled_texts_follow_their_law(p_kept):
    rng = random.Random(1)
    decide = lambda number, block, logits: (rng.random() < p_kept for _ in block.mismatches)  # noqa: E731
    counts = sampled(decide)
    assert oracle.chi_square(counts, law(p_kept, 1.5)) > ALPHA
    assert oracle.chi_square(counts, law(1.0 if p_kept < 1 else 0.6, 1.5)) < ALPHA
    assert oracle.chi_square(counts, law(p_kept, 1.0)) < ALPHA


def test_a_wrong_draw_is_found(monkeypatch):
    """Drafts that are not drawn from the distributions they are tested by."""
    drawn = rollouts.draw

    def likeliest(logits, sampling, rng):
        token, q = drawn(logits, sampling, rng)
        return (logits.argmax(-1) if q is not None and len(logits) > 1 else token), q

    monkeypatch.setattr(rollouts, "draw", likeliest)
    assert oracle.chi_square(sampled(lambda *_: iter([False] * 2)), law(0.0, 1.5)) < ALPHA
