"""Trees that grow where the draft model is sure: against trees without cache, by enumeration, and the target's law."""

import itertools
import math
from functools import partial

import naive_eagle as naive
import oracle
import pytest
import torch
from builders_engine import build
from drafted_trees import paths
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, tiny
from official import opt_tree as own
from official_cases import official_cases

from specbench import config
from specbench.engine.session import Session
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import Grown
from specbench.methods.trees import opt_tree
from specbench.methods.trees.eagle2 import Growing

OPT = partial(opt_tree.grow, nodes=6, threshold=0.05, levels=3)


@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
@pytest.mark.parametrize("size", ((23, 3, 3), (7, 1, 5), (2, 4, 0)), ids=str)
def test_eagle2_drafts_equal_those_without_cache(architecture, size):
    draft, context = pair(architecture)[1], oracle.prompts(1, 20)[0]
    most, top_k, depth = size

    def after(path):
        return oracle.next_logits(draft.cpu(), [*context, *path]).tolist()

    expected = naive.tree(after, top_k, depth, most)
    drafter = Growing(Session(draft.to(DEVICE), "draft"), partial(eagle3.grow, top_k=top_k, depth=depth, most=most))
    for _ in range(2):  # the second time, the context is cached
        proposal = drafter.propose(context, depth + 1, GREEDY, torch.Generator())
        assert paths(proposal.tokens.tolist(), proposal.parents) == expected and proposal.probs is None


# OPT-Tree


def chances(path: tuple[int, ...], seed: int) -> torch.Tensor:
    """Logits over 4 tokens that hang on the whole path."""
    rng = torch.Generator().manual_seed(hash((path, seed)) % 2**31)
    return 2 * torch.randn(4, generator=rng).double()


def enumerated(seed: int, nodes: int, threshold: float, levels: int) -> set[tuple[int, ...]]:
    """The rule of the paper by all paths: the `nodes` likeliest of at most n tokens, for n = 1, 2, … while it pays."""
    worth: dict[tuple[int, ...], float] = {}
    expected = 0.0
    for level in range(1, levels + 1):
        for path in itertools.product(range(4), repeat=level):
            steps = (chances(path[:i], seed).softmax(-1)[path[i]] for i in range(level))
            worth[path] = math.prod(map(float, steps))
        best = sorted(worth, key=worth.__getitem__, reverse=True)[:nodes]
        gain, expected = sum(worth[path] for path in best) - expected, sum(worth[path] for path in best)
        if gain <= threshold:
            break
    return set(best)


def grown(seed: int, **size) -> tuple[Grown, list[list[tuple[int, ...]]]]:
    """OPT-Tree over `chances`, and the paths that it read, level by level."""
    asked: list[list[tuple[int, ...]]] = []

    def read(tokens, followed):
        above = [()] * len(tokens) if followed is None else [asked[-1][place] for place in followed.tolist()]
        asked.append([(*path, token) for path, token in zip(above, tokens.tolist(), strict=True)])
        return torch.stack([chances(path, seed) for path in asked[-1]])

    return opt_tree.grow(chances((), seed), read, **size), asked


@pytest.mark.parametrize("nodes", (1, 2, 5, 12))
@pytest.mark.parametrize("threshold", (0.0, 0.1, 0.4, 3.0))
def test_opt_tree_has_the_likeliest_of_all_paths(nodes, threshold):
    depths = set()
    for seed in range(12):
        result, asked = grown(seed, nodes=nodes, threshold=threshold, levels=4)
        drafted = paths(result.tokens.tolist(), result.parents.tolist())
        assert set(drafted) == enumerated(seed, nodes, threshold, 4)
        assert len(drafted) == len(set(drafted)) and sorted(map(len, drafted)) == list(map(len, drafted))
        assert all(len(level) <= nodes for level in asked)
        depths.add(len(drafted[-1]))
    assert len(depths) > 1 if nodes == 5 and threshold == 0.4 else depths == {1} if threshold == 3 else depths


def test_opt_tree_by_hand():
    """Level 1: .6 and .3 of two nodes promise .9 tokens. After token 0: .5 -> .30, which is no more than .3 before it;
    after token 1: .9 -> .27. So level 2 adds nothing to two nodes, and .57 to four.
    """
    rows = {(): [0.6, 0.3, 0.1], (0,): [0.25, 0.5, 0.25], (1,): [0.9, 0.05, 0.05]}
    asked = []

    def read(tokens, followed):
        asked.append(tokens.tolist())
        return torch.tensor([rows[token,] for token in tokens.tolist()]).log()

    def tree(**size):
        asked.clear()
        result = opt_tree.grow(torch.tensor(rows[()]).log(), read, **size)
        return result.tokens.tolist(), result.parents.tolist(), list(asked)

    assert tree(nodes=2, threshold=0.8, levels=2) == ([0, 1], [-1, -1], [[0, 1]])
    assert tree(nodes=2, threshold=0.95, levels=2) == ([0, 1], [-1, -1], []), "level 1 adds .9"
    assert tree(nodes=2, threshold=0.0, levels=1) == ([0, 1], [-1, -1], [])
    rows[0,] = [0.25, 0.55, 0.2]  # now .33 is more than .3
    assert tree(nodes=2, threshold=0.8, levels=2) == ([0, 1], [-1, 0], [[0, 1]])
    assert tree(nodes=2, threshold=0.8, levels=3) == ([0, 1], [-1, 0], [[0, 1]]), "level 2 adds .03"
    rows[1,], rows[2,] = [0.04, 0.06, 0.9], [0.4, 0.3, 0.3]
    assert tree(nodes=4, threshold=0.5, levels=2) == ([0, 1, 1, 2], [-1, -1, 0, 1], [[0, 1, 2]])


def test_opt_trees_are_those_of_its_own_code():
    """40 trees, of up to 11 nodes and nine levels; the official depth counts one level that is never drafted."""
    cases = official_cases("opt_tree")
    assert len(cases) == 40 and {max(map(len, case["paths"])) for case in cases} >= {1, 2, 3, 4}
    for case in cases:
        asked: list[list[tuple[int, ...]]] = []

        def rows(every, seed=case["seed"]):
            return torch.tensor([own.chances(path, seed) for path in every])

        def read(tokens, followed, asked=asked, rows=rows):
            above = [()] * len(tokens) if followed is None else [asked[-1][place] for place in followed.tolist()]
            asked.append([(*path, token) for path, token in zip(above, tokens.tolist(), strict=True)])
            return rows(asked[-1])

        size = {"nodes": case["nodes"], "threshold": case["threshold"], "levels": case["max_depth"] - 1}
        result = opt_tree.grow(rows([()])[0], read, **size)
        assert sorted(map(list, paths(result.tokens.tolist(), result.parents.tolist()))) == case["paths"]
    assert config.load_method("opt-tree").values["gamma"] == 10 - 1


def test_opt_tree_sizes_differ_from_round_to_round():
    prompt, text = lively_prompt("llama", 13, 40)
    tokens, rounds = decode(build(tiny("llama"), "opt-tree", nodes=9, threshold=0.25, gamma=6), prompt, 40)
    assert tokens == text
    depths = {len(paths(round_.verdict.drafted, round_.verdict.parents)[-1]) for round_ in rounds if round_.verdict}
    assert len(depths) > 1
