"""Gate: trees in one forward equal their paths one by one, and how they are verified follows the target exactly."""

import itertools

import numpy as np
import oracle
import pytest
import torch
from cases import mostly_long
from forms import model, path_to
from gates import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.session import Session
from specbench.engine.speculate import only_path
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Sampling, Scored, Verdict


@st.composite
def trees(draw):
    """Parents of up to 12 tokens, each before its child."""
    return tuple(draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(1, 12))))


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    context=st.lists(st.integers(0, 95), min_size=1, max_size=30),  # beyond Gemma 2's window of 16, and within it
    parents=trees(),
    tokens=st.lists(st.integers(0, 95), min_size=12, max_size=12),
    pick=st.integers(0, 11),
    parts=st.integers(1, 12),
    after=st.lists(st.integers(0, 95), min_size=1, max_size=5),
    as_tensor=st.booleans(),
)
def test_a_tree_equals_its_paths_and_keep_leaves_one(
    architecture, context, parents, tokens, pick, parts, after, as_tensor
):
    tokens = tokens[: len(parents)]
    session = Session(model(architecture), "target")
    session.forward(context)
    rows = []
    for start in range(0, len(tokens), parts):  # a tree may be fed in several forwards
        some = tokens[start : start + parts]
        fed = torch.tensor(some, device=DEVICE) if as_tensor else some
        rows.append(session.forward(fed, parents=parents[start : start + parts]).logits)
    joined = torch.cat(rows)
    for node in range(len(tokens)):
        text = context + [tokens[i] for i in path_to(parents, node)]
        expected = oracle.next_logits(model(architecture), text) if DEVICE == "cpu" else fresh(architecture, text)
        torch.testing.assert_close(joined[node], expected, rtol=0, atol=1e-4)
    path = path_to(parents, pick % len(tokens))
    session.keep(len(context), path)
    kept = context + [tokens[i] for i in path]
    assert session.tokens == kept and len(session) == len(kept)
    torch.testing.assert_close(session.forward(after).logits[-1], fresh(architecture, kept + after), rtol=0, atol=1e-4)


def fresh(architecture, tokens):
    return Session(model(architecture), "target").forward(tokens).logits[-1]


def test_an_open_tree_is_kept_or_cut_off_whole():
    session = Session(model("llama"), "target")
    session.forward([1, 2, 3])
    session.forward([4, 5, 6], parents=[-1, 0, 0])
    with pytest.raises(ValueError, match="tree is open"):
        session.forward([7])
    with pytest.raises(ValueError, match="a tree begins at 3"):
        session.truncate(5)
    with pytest.raises(ValueError, match="cannot follow token 3"):
        session.forward([7], parents=[3])
    session.truncate(3)
    assert session.tokens == [1, 2, 3]
    session.forward([4, 5], parents=[-1, -1])
    session.catch_up([1, 2, 9])
    assert session.tokens == [1, 2, 9]


def test_a_chain_is_kept_by_its_first_tokens():
    session = Session(model("opt"), "target")
    session.forward([1, 2, 3, 4, 5])
    session.keep(2, [0, 1])
    assert session.tokens == [1, 2, 3, 4]
    session.keep(4, [])
    assert session.tokens == [1, 2, 3, 4]


# A tree by hand: a and b follow the context, c and d follow a, e follows b. Token ids are their own names.
A, B, C, D, E, X = range(6)
HAND = Draft(torch.tensor([A, B, C, D, E], device=DEVICE), None, parents=(-1, -1, 0, 0, 1))


def judged(preferred: list[int]) -> Verdict:
    """The verdict where the target's choice behind the context and behind each drafted token is given."""
    logits = torch.nn.functional.one_hot(torch.tensor(preferred), 6).double().to(DEVICE) * 5
    return exact_tree(HAND, Scored(logits), Sampling(), torch.Generator(DEVICE))


@pytest.mark.parametrize(
    ("preferred", "path", "token", "levels", "decisions"),
    [
        # behind:  context, a, b, c, d, e
        ([A, D, X, X, E, X], (0, 3), E, 2, ["accepted", "unread", "rejected", "accepted", "unread"]),
        ([A, X, X, X, X, X], (0,), X, 2, ["accepted", "unread", "rejected", "rejected", "unread"]),
        ([B, X, E, X, X, C], (1, 4), C, 2, ["rejected", "accepted", "unread", "unread", "accepted"]),
        ([X, A, A, A, A, A], (), X, 1, ["rejected", "rejected", "unread", "unread", "unread"]),
    ],
)
def test_greedy_paths_by_hand(preferred, path, token, levels, decisions):
    verdict = judged(preferred)
    assert (verdict.path, verdict.token, verdict.levels) == (path, token, levels)
    assert verdict.decisions() == decisions
    assert verdict.committed == [*(HAND.tokens[i].item() for i in path), token]
    assert verdict.targets == [preferred[0], preferred[0], preferred[1], preferred[1], preferred[2]]


def test_what_lies_deeper_than_the_end_of_a_text_is_cut():
    verdict = judged([A, D, X, X, E, X])
    assert verdict.decisions(committed=1) == ["accepted", "unread", "cut", "cut", "cut"]
    chain = Verdict((0, 1), 9, [5, 6, 7, 8], [0] * 4, [0.5] * 4, rescued=(1,))
    assert chain.decisions() == ["accepted", "rescued", "rejected", "unread"]
    assert chain.decisions(committed=3) == ["accepted", "rescued", "rejected", "cut"]
    assert chain.decisions(committed=1) == ["accepted", "cut", "cut", "cut"]


def test_first_children_are_what_a_target_of_chains_is_asked():
    path = only_path(HAND)
    assert (path.tokens.tolist(), path.parents, path.probs) == ([A, C], (-1, 0), None)
    rows = torch.arange(25.0).reshape(5, 5)
    drawn = Draft(torch.tensor([A, B, C, D, E]), rows, (-1, -1, 1, 0, 2), (0.5, 0.4, 0.3, 0.2, 0.1))
    path = only_path(drawn)
    assert (path.tokens.tolist(), path.parents, path.predictions) == ([A, D], (-1, 0), (0.5, 0.2))
    assert path.probs.tolist() == rows[[0, 3]].tolist()
    chain = Draft(torch.tensor([A, B]), None)
    assert only_path(chain) is chain
    nothing = only_path(Draft(torch.tensor([], dtype=torch.long), None, ()))
    assert (len(nothing.tokens), nothing.parents) == (0, ())


def test_first_children_of_a_drawn_tree_follow_the_target():
    """Two siblings without replacement, of which the second one is not asked for."""
    p, q = (
        torch.tensor(row, dtype=torch.float64, device=DEVICE) for row in ([0.1, 0.5, 0.3, 0.1], [0.5, 0.2, 0.2, 0.1])
    )
    rng, counts = torch.Generator(DEVICE).manual_seed(0), np.zeros(4)
    for _ in range(4000):
        first, second = torch.multinomial(q, 2, generator=rng)
        rest = q.clone()
        rest[first] = 0
        draft = only_path(Draft(torch.stack([first, second]), torch.stack([q, rest / rest.sum()]), (-1, -1)))
        logits = p.log().expand(2, -1)
        counts[exact_tree(draft, Scored(logits), Sampling(1.0), rng).committed[0]] += 1
    assert oracle.chi_square(counts, p.cpu().numpy()) > 1e-3


def enumerated(p: np.ndarray, parents: tuple[int, ...], tokens: list[int]) -> dict[tuple[int, ...], float]:
    """Probabilities of what is committed, from the target's own distribution: a walk down the drafted tree."""
    result: dict[tuple[int, ...], float] = {}

    def walk(node: int, said: tuple[int, ...], mass: float) -> None:
        children = {tokens[i]: i for i, parent in enumerate(parents) if parent == node}
        for token, q in enumerate(p[node + 1]):
            if token in children:
                walk(children[token], (*said, token), mass * q)
            elif q:
                result[(*said, token)] = mass * q

    walk(-1, (), 1.0)
    return result


# Width and depth 3, a branch that takes all of its distribution, and a single chain.
SHAPES = {
    "bushy": ((-1, -1, -1, 0, 0, 0, 1, 3, 3, 3, 6), [0, 1, 2, 0, 2, 3, 1, 3, 1, 0, 2]),
    "everything drafted": ((-1, -1, -1, -1), [3, 1, 0, 2]),
    "chain": ((-1, 0, 1), [1, 2, 0]),
}


@mostly_long("sampling", [Sampling(1.0), Sampling(0.7, top_p=0.9)], lambda sampling: sampling.top_p < 1)
@pytest.mark.parametrize("shape", SHAPES)
def test_sampled_paths_follow_the_target(shape, sampling):
    parents, tokens = SHAPES[shape]
    raw = torch.randn(len(tokens) + 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    p = np.stack([oracle.warp(row, sampling.temperature, sampling.top_k, sampling.top_p).numpy() for row in raw])
    expected = enumerated(p, parents, tokens)
    draft = Draft(torch.tensor(tokens, device=DEVICE), None, parents=parents)
    rng = torch.Generator(DEVICE).manual_seed(0)
    counts = dict.fromkeys(expected, 0)
    for _ in range(4000):
        counts[tuple(exact_tree(draft, Scored(raw.to(DEVICE)), sampling, rng).committed)] += 1
    keys = list(expected)
    assert oracle.chi_square(np.array([counts[k] for k in keys]), np.array([expected[k] for k in keys])) > 1e-3
    assert abs(sum(expected.values()) - 1) < 1e-9 and len(keys) >= 4


def test_the_enumeration_finds_a_walk_that_reuses_the_full_mass():
    """The check has power: dividing by nothing after a refusal, as if each sibling were the first, is found."""
    parents, tokens = SHAPES["bushy"]
    raw = torch.randn(len(tokens) + 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    p = raw.softmax(-1).numpy()
    expected = enumerated(p, parents, tokens)
    random = np.random.default_rng(0)
    counts = dict.fromkeys(expected, 0)
    for _ in range(4000):
        said, node = [], -1
        while True:
            children = [i for i, parent in enumerate(parents) if parent == node]
            passed = next((i for i in children if random.random() < p[node + 1][tokens[i]]), None)
            if passed is None:
                break
            said.append(tokens[passed])
            node = passed
        rest = p[node + 1].copy()
        rest[[tokens[i] for i in children]] = 0
        counts[(*said, int(random.choice(4, p=rest / rest.sum())))] += 1
    keys = list(expected)
    assert oracle.chi_square(np.array([counts[k] for k in keys]), np.array([expected[k] for k in keys])) < 1e-6


def test_of_two_that_would_pass_the_first_is_taken():
    """Both were drawn from less than the target has left for them, before and behind the refusal of the other."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64, device=DEVICE)
    q = torch.tensor([[0.2, 0.2, 0.6], [0.2, 0.2, 0.6]], dtype=torch.float64, device=DEVICE)
    draft = Draft(torch.tensor([0, 1], device=DEVICE), q, parents=(-1, -1))
    for seed in range(5):
        verdict = exact_tree(draft, Scored(p.log()), Sampling(1.0), torch.Generator(DEVICE).manual_seed(seed))
        assert (verdict.path, verdict.committed) == ((0,), [0, 2])
        assert verdict.decisions() == ["accepted", "unread"]


def test_a_token_drafted_twice_in_one_place_is_refused():
    draft = Draft(torch.tensor([1, 1], device=DEVICE), None, parents=(-1, -1))
    with pytest.raises(AssertionError, match="twice"):
        exact_tree(draft, Scored(torch.zeros(3, 4, device=DEVICE)), Sampling(), torch.Generator(DEVICE))


def test_shapes_hold_no_token_twice_in_one_place():
    for parents, tokens in SHAPES.values():
        for (i, one), (j, other) in itertools.combinations(enumerate(parents), 2):
            assert one != other or tokens[i] != tokens[j]
