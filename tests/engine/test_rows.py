"""Texts that are decoded together are what each is alone, whoever joins and leaves next to it."""

import functools
import gc
import itertools
import random
from dataclasses import dataclass
from types import SimpleNamespace

import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from forms import FORMS, VOCABULARY, model
from gates import DEVICE, GREEDY, decode, labelled, lively, lively_prompt, methods, pair, tiny, with_settings
from gates import made as method_called
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.clock import BatchStopwatch, RowStopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.rows import Batch, Row, Seats, failing, smallest
from specbench.engine.runtimes.batched import Batched, texts_together
from specbench.engine.runtimes.eager_rows import groups
from specbench.engine.runtimes.slots import Feed
from specbench.engine.runtimes.types import Reads, Unsupported
from specbench.engine.session import Session
from specbench.engine.types import Round, Sampling

RUNTIMES = ("eager", "static")
SAMPLED = Sampling(1.0)


def row_of(method, prompt, count, sampling=GREEDY, seed=0, watch=None) -> Row:
    ending = Ending(Limits(count, frozenset()), lambda ids: "")
    rng = torch.Generator(DEVICE).manual_seed(seed)
    return Row(decode_text(method, prompt, sampling, rng, ending), ending, watch)


def together(methods, texts, sampling=GREEDY, joins=(), apart=True) -> list[tuple[list[int], list[Round]]]:
    """Tokens and rounds of texts (prompt, count); each method has one at a time.

    `joins`: steps to wait before each text.
    """
    seats = Seats(Batch(BatchStopwatch(torch.device(DEVICE)), apart), methods)
    todo, waits, rows = list(enumerate(texts)), [*joins, *[0] * len(texts)], {}

    def begin(method, text):
        index, (prompt, count) = text
        rows[index] = row_of(method, prompt, count, sampling, seed=index)
        return rows[index]

    while todo or seats.busy:
        while todo and seats.free and waits[0] <= 0:
            waits.pop(0)
            seats.seat(todo.pop(0), begin)
        waits[:1] = [wait - 1 for wait in waits[:1]]
        for row, _, _ in seats.step():
            if row.error:
                raise row.error
    return [(rows[i].ending.tokens, rows[i].finished) for i in range(len(texts))]


@functools.cache
def spoken(architecture):
    """Texts (prompt, count) of different lengths, the first of which say many different things."""
    rest = oracle.prompts(4, length=37, seed=6)
    lively_ones = [lively_prompt(architecture, length, 40)[0] for length in (12, 13)]
    prompts = [*lively_ones, rest[0], rest[1][:3], rest[2][:1], rest[3]]
    return list(zip(prompts, (26, 30, 9, 20, 13, 1), strict=True))


@functools.cache
def expected(architecture):
    return [oracle.greedy(oracle.tiny_pair(architecture)[0], prompt, count) for prompt, count in spoken(architecture)]


QUICK = (("gemma2", "static"),)
EVERY = [(architecture, runtime) for architecture in oracle.ARCHITECTURES for runtime in RUNTIMES]


@mostly_long("architecture, runtime", EVERY, QUICK)
def test_every_lossless_method_says_what_whole_forwards_say(architecture, runtime):
    """Chains, trees and blocks; three rows for six texts, so that rows are taken over."""
    shared = Batched(runtime)
    kinds = [methods(architecture, 4, shared) for _ in range(3)]
    for name in kinds[0]:
        texts = [tokens for tokens, _ in together([kind[name] for kind in kinds], spoken(architecture))]
        assert texts == expected(architecture), name
    assert max(len(set(text)) for text in expected(architecture)) >= 12


LOSSY = {
    "csd": lambda models: build(models, "csd", gamma=4, memory="none", count_threshold=1, gate_threshold=0.001),
    "lossy": lambda models: build(models, "lossy", gamma=4, gate_threshold=0.2),
    "lenience": lambda models: build(models, "lossy", gamma=4, form="lenience", lenience=0.3),
    "fly": lambda models: build(models, "fly", gamma=6, window_length=1, entropy_threshold=0.2, ngram=False),
    "cos": lambda models: build(models, "cos"),
    "aasd": lambda models: build(models, "aasd"),
    "reflective": lambda models: with_settings("reflective", models, 4, {"prompt": "7 70", "prefix_tokens": 4}),
}


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
@mostly_long("name", LOSSY, ("csd", "fly", "cos", "reflective"))
def test_lossy_methods_have_the_same_rounds(name, sampling):
    """The same draws, decisions and signals; each text begins with a method that has learned nothing."""
    texts = spoken("llama")
    shared = tiny("llama", Batched("static"))
    alone = [decode(LOSSY[name](tiny("llama")), *text, sampling, seed=i) for i, text in enumerate(texts)]
    batched = together([LOSSY[name](shared) for _ in texts], texts, sampling)
    assert [tokens for tokens, _ in batched] == [tokens for tokens, _ in alone]
    for (_, ours), (_, theirs) in zip(batched, alone, strict=True):
        assert [(r.tokens, r.truncated, r.accepted, r.rescued) for r in ours] == [
            (r.tokens, r.truncated, r.accepted, r.rescued) for r in theirs
        ]
        for mine, its in zip(ours, theirs, strict=True):
            if mine.verdict:
                torch.testing.assert_close(
                    mine.verdict.ratios, its.verdict.ratios, rtol=1e-4, atol=1e-6, equal_nan=True
                )


@settings(max_examples=20, deadline=None)
@given(
    runtime=st.sampled_from(RUNTIMES),
    architecture=st.sampled_from(oracle.ARCHITECTURES),
    label=st.sampled_from(list(labelled())),
    greedy=st.booleans(),
    apart=st.booleans(),
    shapes=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 25), st.integers(2, 7), st.integers(0, 3)), min_size=1, max_size=5
    ),
)
def test_any_company(runtime, architecture, label, greedy, apart, shapes):
    """Any method, prompts and texts of any length, γ of its own for every row, joining at any time: the same rounds."""
    source = itertools.cycle(oracle.prompts(1, length=173, seed=len(shapes))[0])
    texts = [(list(itertools.islice(source, length)), count) for length, count, _, _ in shapes]
    gammas = [gamma for _, _, gamma, _ in shapes]
    shared = tiny(architecture, Batched(runtime))
    rows = [method_called(label, shared, gamma) for gamma in gammas]  # as many as texts: each gets the one in its place
    sampling = GREEDY if greedy else SAMPLED
    try:
        rows[0].check(sampling)
    except ValueError:  # it decodes only greedily
        sampling = GREEDY
    batched = together(rows, texts, sampling, [wait for *_, wait in shapes], apart)
    single = tiny(architecture)
    alone = [
        decode(method_called(label, single, gamma), *text, sampling, seed=i)
        for i, (gamma, text) in enumerate(zip(gammas, texts, strict=True))
    ]
    if label not in BY_BATCH:
        assert [facts_of(rounds) for _, rounds in batched] == [facts_of(rounds) for _, rounds in alone]
    if label not in BY_BATCH or sampling is GREEDY:
        assert [tokens for tokens, _ in batched] == [tokens for tokens, _ in alone]


BY_BATCH = ("k-by-batch", "goodput")  # their drafts are longer or shorter next to others


def facts_of(rounds):
    return [(r.tokens, r.truncated, r.drafted, r.accepted, r.rescued) for r in rounds]


@pytest.mark.parametrize("form", FORMS)
def test_static_rows_are_forwards_without_a_cache(form):
    """Sessions in one batch, fed blocks of any width in turn, each after rollbacks of its own."""
    one, rng = model(form), random.Random(form)
    shared = Batched("static")
    sessions = [Session(one, "target", runtime=shared) for _ in range(4)]
    texts = [[] for _ in sessions]
    for _ in range(12):
        for text, session in zip(texts, sessions, strict=True):
            back = rng.randrange(len(text) // 3 + 1)
            session.truncate(len(text) - back)
            del text[len(text) - back :]
            text += (new := [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 1, 2, 5, 40)))])
            logits = session.forward(new).logits
            whole = one(torch.tensor([text], device=DEVICE)).logits[0, -len(new) :]
            torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4 * max(1.0, float(whole.std())))


def test_long_prompts_are_read_in_parts():
    """Beyond a chunk, next to short ones, with a keep of one row and of all."""
    target = pair("llama")[0]
    long = list(itertools.islice(itertools.cycle(oracle.prompts(1, length=97)[0]), 700))
    shared = Batched("static")
    session, other = Session(target, "target", runtime=shared), Session(target, "target", runtime=shared)
    other.forward([1, 2, 3])
    expected_rows = Session(target, "target").forward(long).logits
    torch.testing.assert_close(session.forward(long).logits, expected_rows, rtol=0, atol=1e-4)
    torch.testing.assert_close(session.restart(long).logits, expected_rows[-1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_prompts_are_read_together(runtime, architecture):
    """Prompts of many lengths in one call, next to a text that goes on: each has the logits of whole forwards."""
    target, shared = pair(architecture)[0], Batched(runtime)
    prompts = oracle.prompts(5, length=60, seed=3)
    fed = [prompt[:n] for prompt, n in zip(prompts, (60, 41, 48, 9, 50), strict=True)]
    runners = [shared.runner(target) for _ in fed]
    runners[0].forward(torch.tensor(fed[0][:55], device=DEVICE), 1, (), None, None)
    unread = [fed[0][55:], *fed[1:]]
    feeds = [Feed(torch.tensor(ids, device=DEVICE), 1, (), None, None) for ids in unread]
    answers = runners[0].rows.forward(list(zip(runners, feeds, strict=True)))
    for ids, (logits, _) in zip(fed, answers, strict=True):
        whole = target(torch.tensor([ids], device=DEVICE)).logits[0, -1:]
        torch.testing.assert_close(logits, whole, rtol=0, atol=1e-4 * max(1.0, float(whole.std())))


def test_which_prompts_are_read_together_where_forwards_are_padded():
    """50 + 45 + 40 tokens are padded to 3 · 50 ≤ 1.25 · 135; 200 would need 4 · 200. Trees and whole prompts: alone."""

    def feed(width, keep=1, reads=None):
        return Feed(torch.zeros(width), keep, (), None, reads)

    tree = Reads(torch.ones(1, 1), torch.zeros(1), 0)
    widths = [feed(45), feed(200), feed(5), feed(50), feed(40), feed(6, 0), feed(48, 0), feed(47, 1, tree)]
    assert sorted(map(sorted, groups(widths))) == [[0, 3, 4], [1], [2, 5], [6], [7]]


@pytest.mark.parametrize(("apart", "expected"), ((True, [1, 1, 1, 1]), (False, [2, 2])))
def test_prompts_are_read_in_the_forwards_of_other_rounds(apart, expected):
    """A text joins when another has begun, both by sps with γ = 1: a forward of each model for both, or for each."""
    shared, calls = tiny("llama", Batched("static")), []
    batch = Batch(BatchStopwatch(torch.device(DEVICE)), apart)
    first, second = with_settings("sps", shared, 1, {}), with_settings("sps", shared, 1, {})
    batch.join(row_of(first, [5, 6, 7], 9))
    batch.step()
    for session in (first.target, first.drafter.session):
        rows = session._runner.rows
        rows.forward = functools.partial(lambda forward, fed: (calls.append(len(fed)), forward(fed))[1], rows.forward)
    batch.join(row_of(second, [8, 9, 3, 4], 9))
    batch.step()
    assert calls == expected


def test_a_text_that_joins_counts_all_that_decode_with_it():
    """Also while its prompt is read, in forwards apart from theirs."""

    def counting(seen):
        while True:
            seen.append(texts_together())
            yield "a round"

    batch, first, second = Batch(BatchStopwatch(torch.device(DEVICE))), [], []
    batch.join(Row(counting(first), SimpleNamespace(reason="")))
    batch.step()
    batch.join(Row(counting(second), SimpleNamespace(reason="")))
    batch.step()
    assert (first, second) == ([1, 2], [2])


def test_forwards_of_different_lengths_wait_for_one_another():
    """γ of 1 and 6: the long draft ends before either is verified, so there is one forward of the target a round."""
    shared = tiny("llama", Batched("static"))
    watches = [RowStopwatch() for _ in range(2)]
    stopwatch = BatchStopwatch(torch.device(DEVICE))
    batch = Batch(stopwatch)
    for gamma, watch in zip((1, 6), watches, strict=True):
        method = with_settings("sps", shared, gamma, {})
        method.target._watch = method.drafter.session._watch = watch
        batch.join(row_of(method, [5, 6, 7], 30, watch=watch))
    batch.step()
    batch.step()
    stopwatch.read()
    shares = [[(f.model, f.rows) for f in watch.forwards] for watch in watches]
    assert shares[0] == [("draft", 2), ("target", 2), ("draft", 2), ("target", 2)]
    assert shares[1] == [("draft", 2), ("target", 2), ("draft", 2), *[("draft", 1)] * 5, ("target", 2)]
    rounds = [watch.laps()[1] for watch in watches]
    shared_forwards = {id(f.whole): f.whole for watch in watches for f in watch.forwards[2:]}.values()
    step = watches[0].ends[1][0]
    assert sum(lap.seconds for lap in rounds) == pytest.approx(step.seconds)  # nothing is lost, nothing counted twice
    assert sum(lap.time("draft") + lap.time("target") for lap in rounds) == pytest.approx(
        sum(whole.seconds for whole in shared_forwards)
    )
    assert rounds[1].seconds - rounds[0].seconds == pytest.approx(rounds[1].time("draft") - rounds[0].time("draft"))
    assert rounds[0].busy <= rounds[0].seconds


@dataclass(eq=False)
class Model:
    """What a batch knows of a model."""

    size: int
    order: int


def test_the_smallest_model_goes_first():
    """And of equally large ones the last; forwards that read other hidden states are not computed with the rest."""
    target, draft, twin = Model(9, 0), Model(4, 1), Model(4, 2)
    plain, deep = Feed(torch.zeros(1), 0, (), None, None), Feed(torch.zeros(1), 0, (2,), None, None)
    waiting = {"a": (target, plain), "b": (draft, plain), "c": (twin, plain), "d": (draft, deep), "e": (twin, plain)}
    waiting = {job: (SimpleNamespace(rows=model), feed) for job, (model, feed) in waiting.items()}
    took = []
    while waiting:
        took.append(smallest(waiting))
        for job in took[-1]:
            del waiting[job]
    assert took[0] == ["c", "e"] and sorted(took[1:3]) == [["b"], ["d"]] and took[3] == ["a"]


class Broken:
    """A method whose second round raises, or whose model does."""

    def __init__(self, inner, spoil):
        self.inner, self.spoil = inner, spoil

    def rounds(self, prompt, sampling, rng):
        for number, step in enumerate(self.inner.rounds(prompt, sampling, rng)):
            yield step
            if number == 1:
                self.spoil(self.inner)


@pytest.mark.parametrize("waits", (True, False), ids=("cpu", "gpu"))
def test_an_error_ends_its_own_row_alone(monkeypatch, waits):
    """As on a GPU too, where nobody waits within a text to see whether logits are finite."""
    shared = tiny("llama", Batched("static"))
    prompt, text = lively(pair("llama")[0], 12, 40)

    def raises(method):
        raise ZeroDivisionError("of a method")

    def poisons(method):
        runner = method.target._runner
        for part in runner.rows.slots.values:
            part[runner.slot] = torch.nan

    def notes(session, logits):
        session._watch.saw(session.role, 0, logits.amax(-1))

    if not waits:
        monkeypatch.setattr(Session, "_check", notes)
    batch = Batch(BatchStopwatch(torch.device(DEVICE)))
    sound = row_of(with_settings("sps", shared, 4, {}), prompt, 40)
    broken = []
    for spoil in (raises if waits else poisons, poisons):
        method, watch = with_settings("sps", shared, 4, {}), RowStopwatch()
        method.target._watch = method.drafter.session._watch = watch
        broken.append(row_of(Broken(method, spoil), prompt, 40, watch=watch))
    for row in (broken[0], sound, broken[1]):
        batch.join(row)
    left = []
    while batch.rows:
        left += batch.step()
    assert sound in left and sound.ending.tokens == text
    assert isinstance(broken[0].error, ZeroDivisionError) == waits
    assert "not finite" in str(broken[1].error or broken[1].watch.highest.not_finite())
    assert bool(broken[1].error) == waits
    # Other texts take over the three slots, next to a longer one, whose length all are read to.
    monkeypatch.undo()
    del batch, sound, broken, row, left, method
    gc.collect()
    texts = [(prompt, 40)] * 3 + [(prompt + text[:30], 10)]
    again = together([with_settings("sps", shared, 4, {}) for _ in texts], texts)
    assert [tokens for tokens, _ in again] == [text] * 3 + [text[30:]]


def test_a_text_that_cannot_begin_fails_alone():
    shared = tiny("llama", Batched("static"))
    prompt, text = lively(pair("llama")[0], 12, 40)
    seats = Seats(Batch(BatchStopwatch(torch.device(DEVICE))), [with_settings("sps", shared, 4, {}) for _ in range(2)])

    def begin(method, number):
        row = row_of(method, prompt, 40)
        if number in (0, 2):
            row.rounds = failing(ZeroDivisionError(number))
        return row

    ended = {number: row for row, _, number in seats.decode(range(5), begin)}
    assert [bool(ended[number].error) for number in range(5)] == [True, False, True, False, False]
    assert [ended[number].ending.tokens for number in (1, 3, 4)] == [text] * 3
    assert len(seats.free) == 2 and not seats.busy


def test_dropped_sequences_leave_their_slots():
    target = pair("llama")[0]
    shared = Batched("static")
    sessions = [Session(target, "target", runtime=shared) for _ in range(5)]
    for session in sessions:
        session.forward([1, 2, 3])
    slots = sessions[0]._runner.rows.slots
    assert slots.rows == 8
    del sessions[1:], session
    gc.collect()
    for _ in range(20):
        Session(target, "target", runtime=shared).forward([4, 5])
    assert slots.rows == 8


def test_only_eager_and_static():
    with pytest.raises(Unsupported, match="--runtime openvino computes no batches; use eager or static"):
        Batched("openvino")
