"""Lookahead decoding against its mask, rounds by hand and a decoder without cache; lossless at any temperature."""

import functools
import itertools
import random
from dataclasses import replace

import oracle
import pytest
import torch
from builders_engine import build, lonely
from cases import mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, without_looking
from law import fit
from official import lookahead as own
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from watched import reads_of_tensors

from specbench import config
from specbench.engine import trees
from specbench.engine.ngrams import Pool, trie
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Scored
from specbench.methods.lookup import lookahead
from specbench.methods.lookup.lookahead import JacobiWindow, Lookahead, Settings

SHIPPED = config.load_method("lookahead").values
SIZES = ((7, 5, 7), (3, 4, 2), (2, 3, 1), (1, 2, 1), (4, 2, 3), (1, 8, 1))  # W, N, G
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def sized(window: int, ngram: int, candidates: int, bonus: bool = True) -> Settings:
    return Settings(window=window, ngram=ngram, candidates=candidates, bonus=bonus)


class Spied(Session):
    """Remembers what each forward behind the prompt was fed."""

    def restart(self, prompt):
        self.fed = []
        return super().restart(prompt)

    def forward(self, tokens, keep=0, parents=None, hidden=()):
        if parents is not None:
            self.fed.append((list(tokens), list(parents)))
        return super().forward(tokens, keep, parents, hidden)


@functools.cache
def calm(seed: int, attention: float, vocab: int = 24):
    """A model whose next token hangs on the last one more than on those before, so that guesses often come true."""
    model = oracle.tiny("llama", seed=seed, vocab=vocab)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(attention)
    return model.to(DEVICE)


class Official:
    """A target that tells the scores of its program, and `first` after the prompt."""

    device = torch.device("cpu")

    def __init__(self, first: int) -> None:
        self.first = first

    def restart(self, prompt):
        self.text = list(prompt)
        return Scored(torch.eye(own.SIZE)[[self.first]])

    def forward(self, tokens, parents):
        self.fed = []
        for token, parent in zip(tokens, parents, strict=True):
            self.fed.append([*(self.fed[parent] if parent >= 0 else self.text), token])
        return Scored(torch.tensor([own.scores(text) for text in self.fed]))

    def keep(self, start, path):
        self.text = self.fed[path[-1] + 1 if path else 0]  # `path` counts from after the last committed token


def test_rounds_are_those_of_its_own_code(monkeypatch):
    """Of 24 greedy texts, with the same first tokens of the window, which it reads with the prompt."""
    whole = 0
    for case in official_cases("lookahead"):
        monkeypatch.setattr(random.Random, "choices", lambda *_, k, seeds=case["seeds"]: seeds[:k])
        settings = sized(case["window"], case["ngram"], case["candidates"], bonus=False)
        method = Lookahead(Official(case["prompt"][-1]), settings)
        rounds = method.rounds(case["prompt"][:-1], GREEDY, torch.Generator())
        made = [round_.tokens for round_ in itertools.islice(rounds, 1 + len(case["committed"]))][1:]
        assert list(map(len, made)) == case["committed"]
        assert [token for tokens in made for token in tokens][: len(case["text"])] == case["text"]
        whole += case["committed"].count(case["ngram"] - 1)
    assert whole > 24


# The tree of a round


def above(parents, node):
    """All that a token reads of its forward, itself among it."""
    result = set()
    while node >= 0:
        result.add(node)
        node = parents[node]
    return result


@pytest.mark.parametrize(("w", "n", "g"), SIZES)
def test_what_each_token_reads_is_lookaheads_mask(w, n, g):
    """By rows and columns: (j, c) reads row 0 up to column c, and rows 1 to j of its own column, nothing else.

    A candidate token reads the last committed one and what is before it in its own n-grams.
    """
    session = Spied(calm(1, 0.1), "target")
    decode(Lookahead(session, sized(w, n, g)), [3, 1, 4, 1, 5, 9, 2, 6], 60)
    tested = 0
    for number, (tokens, parents) in enumerate(session.fed, 1):
        rows = min(number, n - 1)
        width = w + n - 1 - rows
        cells = [(j, c) for j in range(rows) for c in range(width)]
        for node, (j, c) in enumerate(cells):
            read = {(i, k) for i, k in cells if (i == 0 and k <= c) or (1 <= i <= j and k == c)}
            assert {cells[i] for i in above(parents, node)} == read
            assert len(read) == j + c + 1  # and so it stands j + c places behind the last committed token
        for node in range(len(cells), len(tokens)):
            read = above(parents, node)
            assert read.isdisjoint(range(1, len(cells))) and 0 in read
            assert len(read) <= n
            tested += 1
        pairs = [(parents[i], tokens[i]) for i in range(len(cells), len(tokens))]
        assert len(set(pairs)) == len(pairs), "what follows the same token differs"
    assert tested


@mostly_long("w, n, g", SIZES, ((7, 5, 7), (1, 8, 1)))
def test_reach_is_the_most_that_a_round_feeds(w, n, g):
    most, method = 0, None
    for seed, attention in itertools.product(range(3), (0.0, 0.3)):
        session = Spied(calm(seed, attention, 6), "target")
        method = Lookahead(session, sized(w, n, g))
        decode(method, [0, 1, 2, 3, 4, 5], 60)
        most = max(most, *(len(tokens) for tokens, _ in session.fed))
        assert most <= method.reach
    if g == 1:  # more n-grams share their beginnings
        assert most == method.reach


def test_a_window_by_hand():
    """W = 3, N = 4: three rows, and at first one row of 4 seeds and the last token."""
    window = JacobiWindow([11, 12, 13, 14], 3)
    assert (window.tokens, window.width, window.parents) == ([11, 12, 13, 14], 5, [-1, 0, 1, 2, 3])
    # Guesses behind the last token and each seed. The text has gone on by one place: column 0 is dropped.
    assert window.step(10, [20, 21, 22, 23, 24]) == []
    assert window.rows == [[12, 13, 14], [21, 22, 23, 24]]
    assert window.parents == [-1, 0, 1, 2, 0, 1, 2, 3]
    assert window.step(11, [30, 31, 32, 33]) == []
    assert window.rows == [[13, 14], [22, 23, 24], [31, 32, 33]]
    assert window.parents == [-1, 0, 1, 0, 1, 2, 3, 4, 5]
    # Full: an n-gram for each column; row 0 falls out, and what stood in column 0 of row 1 is in the text's place now.
    assert window.step(12, [40, 41, 42]) == [(12, 22, 31, 40), (13, 23, 32, 41), (14, 24, 33, 42)]
    assert window.rows == [[23, 24], [31, 32, 33], [40, 41, 42]]
    assert window.step(15, [50, 51, 52]) == [(15, 31, 40, 50), (23, 32, 41, 51), (24, 33, 42, 52)]


def test_a_window_of_bigrams_is_a_plain_jacobi_iteration():
    window = JacobiWindow([11, 12], 1)
    assert window.step(10, [20, 21, 22]) == [(10, 20), (11, 21), (12, 22)]
    assert window.rows == [[21, 22]]


def test_a_pool_by_hand():
    pool = Pool(2)
    assert pool.after(1) == []
    for ngram in ((1, 2, 3), (1, 4, 5), (9, 2, 3)):
        pool.add(ngram)
    assert pool.after(1) == [(2, 3), (4, 5)]
    pool.add((1, 2, 3))  # known: now the most recent
    assert pool.after(1) == [(4, 5), (2, 3)]
    pool.after(1)  # looking changes nothing
    pool.add((1, 6, 7))  # so the other one makes room
    assert pool.after(1) == [(2, 3), (6, 7)]
    pool.add((1, 6, 7))
    pool.add((1, 2, 8))
    assert pool.after(1) == [(6, 7), (2, 8)]
    assert pool.after(9) == [(2, 3)] and pool.after(2) == []


def test_a_trie_by_hand():
    assert trie([]) == ([], ())
    result = trie([(1, 2, 3), (4, 2, 3), (1, 2, 5), (1, 3, 3), (1, 2, 3)])
    assert result == ([1, 2, 3, 4, 2, 3, 5, 3, 3], (-1, 0, 1, -1, 3, 4, 1, 0, 7))


# Whole rounds


class Counting:
    """A target that says n + 1 behind n, modulo 10, whatever stands before."""

    device = torch.device(DEVICE)

    def restart(self, prompt):
        return Scored(self.forward(prompt).logits[-1:])

    def forward(self, tokens, parents=None):
        return Scored(torch.eye(10, device=DEVICE)[[(token + 1) % 10 for token in tokens]])

    def keep(self, start, path): ...


@pytest.mark.parametrize("sampling", (GREEDY, Sampling(1.0, top_k=1)), ids=("greedy", "sampled"))
def test_rounds_by_hand_and_the_free_token(sampling):
    """W = 2, N = 3, G = 1 behind the prompt 4, so that the window begins with 4 4.

    Round 1 (last token 5) fills: row 0 is 5 4 4, guessed 6 5 5. Round 2 (6): row 0 is 6 4, row 1 is 5 5, guessed 6 6:
    n-grams 6 5 6 and 4 5 6. Round 3 (7): row 0 is 7 5, row 1 is 6 6: 7 6 7 and 5 6 7. And so on to round 9 (3): of
    column 1 there are 4 5 6, 5 6 7, 6 7 8, 7 8 9, … 1 2 3. In round 10 the last token is 4: 5 6 stand, and 7 is free.
    Behind 7 was 6 7, until 8 9 took its place: 8 9 stand, and 0 is free; in the same way 1 2 and 3, then 4 is new.
    """
    rounds = decode(Lookahead(Counting(), sized(2, 3, 1)), [4], 25, sampling)[1]
    assert [round_.tokens for round_ in rounds[:10]] == [[5], [6], [7], [8], [9], [0], [1], [2], [3], [4]]
    assert [round_.drafted for round_ in rounds[:10]] == [0] * 10
    assert all(round_.verdict is None for round_ in rounds[:3])
    assert [round_.tokens for round_ in rounds[10:13]] == [[5, 6, 7], [8, 9, 0], [1, 2, 3]]
    assert [(round_.drafted, round_.accepted) for round_ in rounds[10:13]] == [(2, 2)] * 3
    assert [round_.verdict.drafted for round_ in rounds[10:13]] == [[5, 6], [8, 9], [1, 2]]


def slowly(model, prompt, seeds, count, w, n, g):
    """Lookahead decoding again: plain lists, a full forward for each token. Yields what each round saw and did."""

    @functools.cache
    def says(*text):
        return oracle.best(oracle.next_logits(model, list(text)))

    text = [*prompt, says(*prompt)]
    grid = {(0, c): token for c, token in enumerate(seeds, 1)}  # by row and column
    pool = []  # n-grams, the most recent last
    for _ in range(count):
        window, last = [grid[cell] for cell in sorted(grid)], text[-1]
        grid[0, 0] = last
        rows, columns = 1 + max(r for r, _ in grid), 1 + max(c for _, c in grid)
        columns_read = [
            [grid[0, i] for i in range(c + 1)] + [grid[r, c] for r in range(1, rows)] for c in range(columns)
        ]
        guesses = [says(*text[:-1], *read) for read in columns_read]
        candidates = [rest for key, *rest in pool if key == last]
        stands = []
        for rest in candidates:
            right = [says(*text, *rest[:i]) == rest[i] for i in range(len(rest))]
            stands = max(stands, rest[: [*right, False].index(False)], key=len)
        text += [*stands, says(*text, *stands)]
        if rows == n - 1:
            assert columns == w
            for c in range(w):
                new = [*(grid[r, c] for r in range(rows)), guesses[c]]
                pool = [old for old in pool if old != new] + [new]
                alike = [old for old in pool if old[0] == new[0]]
                pool = [old for old in pool if old not in alike[:-g]]
            grid = {(r - 1, c): token for (r, c), token in grid.items() if r} | {
                (rows - 1, c): token for c, token in enumerate(guesses)
            }
            grid.pop((0, 0), None)
        else:
            moved = {(r, c - 1): token for (r, c), token in grid.items()}
            moved |= {(rows, c - 1): token for c, token in enumerate(guesses)}
            grid = {(r, c): token for (r, c), token in moved.items() if c >= 0 and (r, c) != (0, 0)}
        known = {key: [tuple(rest) for first, *rest in pool if first == key] for key, *_ in pool}
        yield window, candidates, stands, text[-len(stands) - 1 :], known


MODELS = {
    "llama": lambda: oracle.tiny("llama"),
    "gemma2": lambda: oracle.tiny("gemma2"),
    "opt": lambda: oracle.tiny("opt", vocab=16),
    "calm": lambda: calm(3, 0.25),
    "repetitive": lambda: calm(2, 0.05, 96),
}


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
@mostly_long("w, n, g", SIZES, ((7, 5, 7), (2, 3, 1)))
@mostly_long("name", MODELS, ("gemma2", "repetitive"))
def test_rounds_equal_a_decoder_without_cache(monkeypatch, name, w, n, g):
    """Window, candidates, what stands, what is committed and the pool behind it, round by round."""
    pools = []
    monkeypatch.setattr(lookahead, "Pool", lambda size: pools.append(Pool(size)) or pools[-1])
    model, (prompt,) = MODELS[name](), oracle.prompts(1, length=9, vocab=16, seed=3)
    session, count = Spied(model, "target"), 30
    rounds = Lookahead(session, sized(w, n, g)).rounds(prompt, GREEDY, torch.Generator())
    assert next(rounds).tokens == oracle.greedy(model, prompt, 1)
    one = next(rounds)
    seeds = session.fed[0][0][1:]
    assert len(seeds) == w + n - 3 and set(seeds) <= set(prompt)
    for number, (window, candidates, stands, committed, known) in enumerate(
        slowly(model, prompt, seeds, count, w, n, g), 1
    ):
        fed = session.fed[-1][0]
        assert fed[1 : 1 + len(window)] == window
        drafted = one.verdict.drafted if one.verdict else []
        assert fed[1 + len(window) :] == drafted
        prefixes = {tuple(rest[:i]) for rest in candidates for i in range(1, n)}
        assert len(drafted) == len(prefixes) and (one.verdict is None) == (not candidates)
        parents = one.verdict.parents if drafted else ()
        assert {tuple(drafted[i] for i in sorted(above(parents, node))) for node in range(len(drafted))} == prefixes
        assert one.tokens == committed and one.accepted == len(stands)
        assert {key: pools[0].after(key) for key in known} == known and set(pools[0]._continuations) == set(known)
        assert (one.verdict is None) or number > n - 1, "the window is filled first"
        one = next(rounds)


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
def test_the_reference_meets_every_case():
    """Rounds without candidates, and with two of which none, some and all tokens stand."""
    met = set()
    for name in MODELS:
        (prompt,) = oracle.prompts(1, length=9, vocab=16, seed=3)
        for _, candidates, stands, _, _ in slowly(MODELS[name](), prompt, prompt[:4], 30, 3, 4, 2):
            met.add((len(candidates), len(stands)))
    assert {length for count, length in met if count == 2} == {0, 1, 2, 3} and (0, 0) in met


def test_a_repetitive_text_takes_few_rounds():
    """Of which all tokens but one were candidates."""
    method = Lookahead(Session(calm(0, 0.0), "target"), sized(7, 5, 7))
    tokens, rounds = decode(method, [1, 2, 3], 120)
    assert len(tokens) / len(rounds) > 3
    assert max(len(round_.tokens) for round_ in rounds) == 5, "N - 1 candidate tokens and the free one"
    whole = [round_ for round_ in rounds if not round_.truncated]
    assert all(len(one.tokens) == one.accepted + 1 for one in whole)


def test_nothing_is_left_of_the_last_prompt_and_a_seed_gives_the_same_rounds():
    first, second = oracle.prompts(2, length=20)
    model = pair("qwen3")[0]
    for sampling in (GREEDY, Sampling(0.5)):
        used, fresh = (Spied(model, "target") for _ in range(2))
        method = Lookahead(used, sized(7, 5, 7))
        decode(method, first, 33, sampling, seed=4)
        again = decode(method, second, 40, sampling, seed=5)
        assert again == decode(Lookahead(fresh, sized(7, 5, 7)), second, 40, sampling, seed=5)
        assert used.fed == fresh.fed
        decode(method, second, 2, sampling, seed=6)
        assert used.fed[0][0][1:] != fresh.fed[0][0][1:], "another seed, another window"


# Sampling

VOCABULARY = 4


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)


def drawn(size, count, sampling, draws):
    """How `draws` texts of `count` tokens fit the target's law."""
    method = Lookahead(recalled(sampled_model(), "target"), sized(*size))
    return fit(method, sampled_model(), [1, 3, 2], count, sampling, draws)


BIGRAMS, TRIGRAMS = ((4, 2, 3), 4), ((3, 3, 3), 5)  # W, N, G, and the tokens of a text
DRAWS = 1000


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "count", "sampling"),
    [
        (*BIGRAMS, Sampling(1.0)),
        (*BIGRAMS, Sampling(0.7, top_p=0.9)),
        (*BIGRAMS, Sampling(1.3, top_k=3)),
        (*TRIGRAMS, Sampling(0.8)),
    ],
    ids=str,
)
def test_samples_from_the_target(size, count, sampling):
    """The window of bigrams is full at once, so that the third token is the first with candidates."""
    p, stood, fell = drawn(size, count, sampling, DRAWS)
    assert p > ALPHA
    assert stood > 100 and fell > 100


def test_a_token_emitted_by_another_draw_than_the_tested_one_is_found(monkeypatch):
    def twice(draft, logits, sampling, rng):
        tested = test(draft, logits, sampling, rng)
        return replace(tested, emit=trees.draw(logits, sampling, rng)[0])

    test = trees.tree_test
    monkeypatch.setattr(trees, "tree_test", twice)
    assert drawn(*BIGRAMS, Sampling(1.0), DRAWS)[0] < ALPHA


@pytest.mark.parametrize("sampling", (GREEDY, Sampling(1.0)), ids=("greedy", "sampled"))
def test_the_host_waits_once_a_round(monkeypatch, sampling):
    """The window's guesses set out before the verdict is waited for, and are not read until it is there."""
    without_looking(monkeypatch)
    sent = []
    to, tolist = torch.Tensor.to, torch.Tensor.tolist

    def sending(self, *arguments, **named):
        result = to(self, *arguments, **named)
        if arguments == ("cpu",):
            assert named == {"non_blocking": True}
            sent.append(result)
            events.append("sent")
        return result

    def reading(self):
        events.append("read" if any(self is one for one in sent) else "wait")
        return tolist(self)

    rounds = Lookahead(Session(calm(0, 0.0), "target"), sized(3, 3, 2)).rounds(
        [1, 2, 3], sampling, torch.Generator(DEVICE)
    )
    for _ in range(20):
        next(rounds)
    events = reads_of_tensors(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "to", sending)
    monkeypatch.setattr(torch.Tensor, "tolist", reading)
    next(rounds)
    assert events == ["sent", "wait", "read"]


# Settings


def test_build_needs_a_target_only_and_room_for_a_round():
    method = build(lonely(), "lookahead")
    assert method.lossless and method.reach == 4 * (7 + 7)
    prompt, text = lively_prompt("llama", 15, 40)
    assert decode(method, prompt, 40)[0] == text
    assert build(lonely(57), "lookahead").reach == 56
    with one_line_error("rounds are of up to 56 tokens, but lonely reads 56"):
        build(lonely(56), "lookahead")
    with one_line_error("rounds are of up to 250000000000000000 tokens"):
        build(lonely(), "lookahead", window=1, ngram=10**9, candidates=1)


def test_the_shipped_settings_are_the_official_codes():
    spec = config.load_method("lookahead")
    assert SHIPPED == {"window": 7, "ngram": 5, "candidates": 7, "bonus": False}
    assert all(setting.source.startswith("official code") for setting in spec.settings.values())
