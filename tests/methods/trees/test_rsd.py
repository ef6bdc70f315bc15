"""RSD: its trees are drawn as the paper says, and texts stay the target's own, greedy and sampled."""

import itertools

import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE, GREEDY, pair, without_looking
from tabled import Table, law, p_of_texts, warped
from watched import reads_of_tensors

from specbench import config
from specbench.engine.sampling import waits
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.trees import rsd
from specbench.methods.trees.rsd import Beam, Branching, TreeSpeculation, given_earlier, possible

SHIPPED = config.load_method("rsd").values
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def test_the_table_says_the_same_by_any_tree():
    session = Table(5, 0)
    session.restart([3, 1])
    output = session.forward([2, 4, 0], parents=[-1, -1, 0]).logits
    for row, (token, length) in zip(output, ((2, 3), (4, 3), (0, 4)), strict=True):
        assert row.tolist() == session.row(token, length).tolist()


def tree_method(drafter, target, gamma: int) -> TreeSpeculation:
    return TreeSpeculation(target, drafter, gamma, 99)


DRAFTERS = {
    "beam": lambda session: Beam(session, 3),
    "narrow beam": lambda session: Beam(session, 2),
    "constant": lambda session: Branching(session, (2, 2)),
    "more than there are": lambda session: Branching(session, (9, 1)),
}


@pytest.mark.long
def test_a_beam_that_is_not_drawn_is_found(monkeypatch):
    right = rsd.perturb

    def sorted_by_likelihood(scores, highest, rng):
        return scores + 0 * right(scores, highest, rng)

    monkeypatch.setattr(rsd, "perturb", sorted_by_likelihood)
    beam = lambda target, draft: tree_method(DRAFTERS["beam"](draft), target, 3)  # noqa: E731
    assert p_of_texts(beam, Sampling(0.7), 700) < ALPHA


# Greedy


def test_greedy_trees_hold_the_likeliest():
    draft = pair("llama")[1]
    context = oracle.prompts(1, 10)[0]
    first = oracle.next_logits(draft.cpu(), context).log_softmax(-1)
    second = torch.stack([oracle.next_logits(draft, [*context, token]).log_softmax(-1) for token in range(96)])
    draft.to(DEVICE)
    drafted = Branching(Session(draft, "draft"), (3, 2)).propose(context, 2, GREEDY, torch.Generator())
    tops = first.topk(3).indices.tolist()
    assert drafted.tokens.tolist() == [
        *tops,
        *(token for top in tops for token in second[top].topk(2).indices.tolist()),
    ]
    assert drafted.parents == (-1, -1, -1, 0, 0, 1, 1, 2, 2) and drafted.probs is None
    drafted = Beam(Session(draft, "draft"), 3).propose(context, 2, GREEDY, torch.Generator())
    sums = (first[tops, None] + second[tops]).flatten().topk(3).indices.tolist()
    assert drafted.tokens.tolist() == [*tops, *(i % 96 for i in sums)]
    assert drafted.parents == (-1, -1, -1, *(i // 96 for i in sums))


# How trees are drawn


def test_rows_without_earlier_siblings_by_hand():
    q = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    result = given_earlier(q, torch.tensor([1, 2, 0, 2, 0]), torch.tensor([0, 1, 0, 0, 1]))
    expected = [[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [5 / 7, 0, 2 / 7], [0, 0, 1], [0.5, 0.5, 0]]
    torch.testing.assert_close(result, torch.tensor(expected))


def test_what_is_not_possible_is_left_out_with_what_follows_it():
    probs = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [0.3, 0.7], [float("nan")] * 2, [0.5, 0.5]])
    draft = possible(torch.tensor([0, 0, 0, 1, 1, 1]), probs, [-1, -1, 0, 1, 0, 2])
    assert draft.tokens.tolist() == [0, 0, 1] and draft.parents == (-1, 0, 1)
    assert draft.probs.tolist() == [[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("name", DRAFTERS)
def test_trees_hold_possible_tokens_once_in_a_place_and_their_own_rows(name):
    session, sampling = Table(6, 3), Sampling(1.0, top_k=3, top_p=0.95)
    drafter, rng = DRAFTERS[name](session), torch.Generator(DEVICE).manual_seed(1)
    shapes = set()
    for _ in range(40):
        draft = drafter.propose([5, 4], 3, sampling, rng)
        tokens, depths = draft.tokens.tolist(), []
        for i, parent in enumerate(draft.parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            q = warped(session.row(tokens[parent] if parent >= 0 else 4, 2 + depths[i]), sampling)
            for j in range(i):
                if draft.parents[j] == parent:
                    assert tokens[j] != tokens[i]
                    q[tokens[j]] = 0
            torch.testing.assert_close(draft.probs[i].cpu(), q / q.sum())
            assert q[tokens[i]] > 0
        shapes.add(draft.parents)
    assert all(shape.count(-1) <= 3 for shape in shapes)
    if "beam" in name:
        assert len(shapes) > 3


def pairs_of_sequences(draws: int, seed: int = 0) -> float:
    """p-value of the two sequences of the last level, in their order, as drawn one after the other from all."""
    session, v = Table(3, 5), 3
    q = law(session, [1, 2], 2, Sampling(1.0)).flatten()
    expected = np.array([[0 if a == b else q[a] * q[b] / (1 - q[a]) for b in range(v * v)] for a in range(v * v)])
    counts, rng = np.zeros_like(expected), torch.Generator(DEVICE).manual_seed(seed)
    drafter = Beam(session, 2)
    for _ in range(draws):
        draft = drafter.propose([1, 2], 2, Sampling(1.0), rng)
        tokens = draft.tokens.tolist()
        one, other = (tokens[draft.parents[i]] * v + tokens[i] for i in (2, 3))
        counts[one, other] += 1
    return oracle.chi_square(counts, expected)


def test_stochastic_beam_search_draws_sequences_without_replacement(monkeypatch):
    assert pairs_of_sequences(1800) > ALPHA

    def anew(scores, highest, rng):
        return scores - waits(scores, rng).log()

    monkeypatch.setattr(rsd, "perturb", anew)
    assert pairs_of_sequences(1800) < ALPHA, "perturbed again at each level"


def test_perturbed_values_by_the_formula():
    """Equation 23 as it is printed, in numpy; the largest of each row is what was asked for."""
    scores = torch.tensor([[-1.0, -2.0, -torch.inf, -0.5], [-3.0, -1.0, -2.5, -4.0]], dtype=torch.float64)
    highest = torch.tensor([0.7, -2.0], dtype=torch.float64)
    result = rsd.perturb(scores, highest, torch.Generator().manual_seed(3)).numpy()
    waits = torch.empty_like(scores).exponential_(generator=torch.Generator().manual_seed(3)).numpy()
    noisy = scores.numpy() - np.log(waits)
    largest = noisy.max(1, keepdims=True)
    expected = -np.log(np.exp(-highest.numpy()[:, None]) - np.exp(-largest) + np.exp(-noisy))
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    np.testing.assert_allclose(result.max(1), highest)


# The rest of a method


def test_the_draft_models_cache_keeps_the_text_alone():
    target, draft = pair("llama")
    drafter = Beam(Session(draft, "draft"), 3)
    method, context = tree_method(drafter, Session(target, "target"), 3), [3, 1, 4, 1]
    for step in itertools.islice(method.rounds(list(context), Sampling(1.0), torch.Generator(DEVICE)), 4):
        context += step.tokens
    drafter.session.catch_up(context)
    assert drafter.session.tokens == context


@pytest.mark.parametrize(("name", "looks"), [("beam", 3), ("constant", 1)])
def test_how_often_the_host_waits_for_a_draft(monkeypatch, name, looks):
    without_looking(monkeypatch)
    drafter = DRAFTERS[name](Session(pair("llama")[1], "draft"))
    drafter.begin([1, 2, 3])
    reads = reads_of_tensors(monkeypatch)
    drafter.propose([1, 2, 3, 4], 3, Sampling(1.0), torch.Generator(DEVICE))
    assert reads == ["tolist"] * looks


def test_the_variant_changes_the_search_alone():
    assert config.load_method("rsd-constant").values == {**SHIPPED, "search": "constant"}
