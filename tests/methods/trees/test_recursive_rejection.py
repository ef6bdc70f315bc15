"""Gate: recursive rejection leaves the target's distribution as it is: to 1e-12 by enumeration, and by trees drawn."""

import itertools

import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE

from specbench.engine import trees
from specbench.engine.types import Draft, Sampling, Scored

EXACT = 1e-12
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
KINDS = pytest.mark.parametrize("replacement", (True, False), ids=("with", "without"))


# One place: every draw and every outcome, no random number


def conditional(q: np.ndarray, earlier: tuple[int, ...], replacement: bool) -> np.ndarray:
    """What a draft is drawn from behind those drawn before it in its place."""
    row = q.copy()
    if not replacement:
        row[list(earlier)] = 0
    return row / row.sum() if row.sum() > 0 else row


def ordered_draws(q: np.ndarray, count: int, replacement: bool):
    """Every sequence of drafts and its chance."""
    for drawn in itertools.product(range(len(q)), repeat=count):
        chance = np.prod([conditional(q, drawn[:i], replacement)[token] for i, token in enumerate(drawn)])
        if chance > 0:
            yield drawn, float(chance)


def emitted(monkeypatch, p, q, count, replacement, change=lambda tokens, rows: (tokens, rows)) -> np.ndarray:
    """The law [V] of the token that `recursive_test` and the scan behind it give; `change` may spoil the draft."""
    law = np.zeros(len(p))
    left: list[np.ndarray] = []
    monkeypatch.setattr(trees, "pick", lambda probs, rng: left.append(probs.numpy()) or probs.argmax(-1))
    for drawn, chance in ordered_draws(q, count, replacement):
        rows = [conditional(q, drawn[:i], replacement) for i in range(count)]
        tokens, rows = change(list(drawn), rows)
        draft = Draft(torch.tensor(tokens), torch.tensor(np.stack(rows)), parents=(-1,) * len(tokens))
        others = [np.roll(p, i + 1) for i in range(len(tokens))]  # behind each draft: must not matter here
        table = torch.tensor(np.stack([p, *others]))
        tested = trees.recursive_test(draft, draft.probs, table, torch.Generator())
        for token, row, p_draft in zip(tokens, rows, tested.p.tolist(), strict=True):
            passes = min(1.0, p_draft / row[token])
            law[token] += chance * passes
            chance *= 1 - passes
        law += chance * left[-1][0]
    return law


def places(seed: int):
    """Distributions of every kind: alike, far apart, without a token, and the same."""
    rng = np.random.default_rng(seed)
    for concentration in (0.3, 1.0, 5.0):
        yield rng.dirichlet(np.full(4, concentration)), rng.dirichlet(np.full(4, concentration))
    p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
    q[1] = 0
    p[2] = 0
    yield p / p.sum(), q / q.sum()
    yield p / p.sum(), p / p.sum()


@KINDS
@pytest.mark.parametrize("count", (1, 2, 3))
def test_the_law_of_one_place_is_p(monkeypatch, count, replacement):
    for p, q in places(count):
        if replacement or np.count_nonzero(q) >= count:
            np.testing.assert_allclose(emitted(monkeypatch, p, q, count, replacement), p, rtol=0, atol=EXACT)


def test_a_worked_place():
    """p = 0.2 0.5 0.3, q = 0.5 0.3 0.2; drawn 0, then 2 from what is left of q: 0.6 0.4.

    0 passes with 0.2/0.5. If not, p becomes (0 0.2 0.1)/0.3 = 0 2/3 1/3, and 2 passes with (1/3)/0.4. If not that
    either, (p - q)₊ = 0 2/3-0.6 0: token 1 for certain.
    """
    p, q = torch.tensor([[0.2, 0.5, 0.3]] * 3).double(), torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.6, 0.4]]).double()
    draft = Draft(torch.tensor([0, 2]), q, parents=(-1, -1))
    tested = trees.recursive_test(draft, q, p, torch.Generator().manual_seed(0))
    assert tested.p.tolist() == pytest.approx([0.2, 1 / 3]) and int(tested.emit[0]) == 1


def unconditioned(q):
    """Wrong: every row is q, as if nothing had been drawn before."""
    return lambda tokens, rows: (tokens, [q] * len(rows))


def each_once(tokens, rows):
    """Wrong: a token that was drawn before is not tested again."""
    firsts = [i for i, token in enumerate(tokens) if token not in tokens[:i]]
    return [tokens[i] for i in firsts], [rows[i] for i in firsts]


@pytest.mark.parametrize("count", (2, 3))
def test_wrong_rules_are_found_in_one_place(monkeypatch, count):
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.4, 0.35, 0.15, 0.1])

    def error(*arguments):
        return np.abs(emitted(monkeypatch, p, q, count, *arguments) - p).max()

    assert error(False) < EXACT and error(True) < EXACT
    assert error(False, unconditioned(q)) > 1e-3, "q is not renormalised behind a draw"
    assert error(True, each_once) > 1e-3, "duplicates are skipped"
    residual = trees.residual
    for wrong in (lambda p, q: p, lambda p, q: residual(q, p), lambda p, q: (p - q).abs()):
        monkeypatch.setattr(trees, "residual", wrong)
        assert error(False) > 1e-3 and error(True) > 1e-3


# Trees of width and depth 3, drawn

V, DEPTH, DRAWS = 4, 3, 1500


def table(seed: int) -> np.ndarray:
    """Logits [V + 1, V] by the token before; the last row is behind the context."""
    return 1.5 * np.random.default_rng(seed).normal(size=(V + 1, V))


def behind(logits: np.ndarray, depth: int, before: int) -> np.ndarray:
    """Logits that differ from place to place: by depth too."""
    return np.roll(logits[before], depth)


def distribution(logits, depth, before, sampling) -> np.ndarray:
    row = torch.tensor(behind(logits, depth, before))
    return oracle.warp(row, sampling.temperature, sampling.top_k, sampling.top_p).numpy()


def drawn_tree(logits, sampling, replacement, random, widths):
    """Tokens, rows and parents, level by level, by numpy's generator."""
    tokens, rows, parents, level = [], [], [], [(-1, V)]
    for depth in range(DEPTH):
        results = []
        for parent, before in level:
            q = distribution(logits, depth, before, sampling)
            earlier: tuple[int, ...] = ()
            for _ in range(widths[depth]):
                row = conditional(q, earlier, replacement)
                if row.sum() == 0:
                    break
                token = int(random.choice(V, p=row))
                # Of a token that was drawn twice, what follows does so under the first.
                if token not in earlier:
                    results.append((len(tokens), token))
                tokens.append(token)
                rows.append(row)
                parents.append(parent)
                earlier += (token,)
        level = results
    return tokens, rows, parents


def p_value(sampling, replacement, change=None, widths=(3, 3, 3)) -> float:
    """Of the first three tokens that a round and the target behind it give, against the target's law of them."""
    random, rng = np.random.default_rng(7), torch.Generator(DEVICE).manual_seed(7)
    target, draft_logits = table(1), table(2)
    counts, expected = np.zeros((V,) * 3), np.zeros((V,) * 3)
    law = {
        (depth, before): distribution(target, depth, before, sampling) for depth in range(4) for before in range(V + 1)
    }
    for text in itertools.product(range(V), repeat=3):
        expected[text] = np.prod([law[i, (V, *text)[i]][token] for i, token in enumerate(text)])
    for _ in range(DRAWS):
        tokens, rows, parents = drawn_tree(draft_logits, sampling, replacement, random, widths)
        if change:
            rows = change(rows, tokens, parents)
        depths: list[int] = []
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        scored = [behind(target, 0, V), *(behind(target, d, t) for d, t in zip(depths, tokens, strict=True))]
        draft = Draft(torch.tensor(tokens, device=DEVICE), torch.tensor(np.stack(rows), device=DEVICE), tuple(parents))
        logits = torch.tensor(np.stack(scored), device=DEVICE)
        text = trees.exact_tree(draft, Scored(logits), sampling, rng).committed
        while len(text) < 3:
            text.append(int(random.choice(V, p=law[len(text), text[-1]])))
        counts[tuple(text[:3])] += 1
    return oracle.chi_square(counts, expected)


@pytest.mark.long
@KINDS
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_k=3, top_p=0.9)), ids=str)
def test_trees_follow_the_target(sampling, replacement):
    assert p_value(sampling, replacement) > ALPHA


def raw_rows(rows, tokens, parents):
    """Wrong: rows as of the first of each place."""
    first: dict[int, np.ndarray] = {}
    return [first.setdefault(parent, row) for row, parent in zip(rows, parents, strict=True)]


@pytest.mark.long
def test_wrong_rules_are_found_in_trees(monkeypatch):
    shape = (Sampling(0.6), False)
    widths = (3, 1, 1)
    assert p_value(*shape, widths=widths) > ALPHA
    assert p_value(*shape, raw_rows, widths) < ALPHA
    pick, residual = trees.pick, trees.residual
    monkeypatch.setattr(trees, "pick", lambda left, rng: pick(left.roll(1, 0), rng))
    assert p_value(*shape, widths=widths) < ALPHA, "the residual of another row"
    monkeypatch.setattr(trees, "pick", pick)
    monkeypatch.setattr(trees, "residual", lambda p, q: residual(p, q.roll(1, 0)) if len(q) > 1 else p)
    assert p_value(*shape, widths=widths) < ALPHA, "the residual of another place"
