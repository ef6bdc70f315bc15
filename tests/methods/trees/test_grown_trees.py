"""Trees that grow where the draft model is sure: against trees without cache, by enumeration, and the target's law."""

import itertools
import math
from functools import partial

import naive_eagle as naive
import oracle
import pytest
import torch
from builders_engine import build
from cases import architectures
from drafted_trees import paths
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, tiny
from official import opt_tree as own
from official_cases import official_cases
from refusals import one_line_error
from tabled import draw_for_each_branch, p_of_texts, p_with_caches

from specbench import config
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import Grown
from specbench.methods.trees import opt_tree
from specbench.methods.trees.eagle2 import Growing
from specbench.methods.trees.rsd import TreeSpeculation

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
EAGLE2 = partial(eagle3.grow, top_k=3, depth=2, most=7)
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


# Both


@architectures
@pytest.mark.parametrize("grow", (EAGLE2, OPT), ids=("eagle2", "opt-tree"))
def test_greedy_texts_are_the_targets_and_later_siblings_stand(architecture, grow):
    prompt, text = lively_prompt(architecture, 12, 40)
    target, draft = pair(architecture)
    method = TreeSpeculation(Session(target, "target"), Growing(Session(draft, "draft"), grow), 3, 99)
    tokens, rounds = decode(method, prompt, 40)
    assert tokens == text
    verdicts = [round_.verdict for round_ in rounds if round_.verdict]
    assert any(v.parents[i] in v.parents[:i] for v in verdicts for i in v.path), "no later sibling was accepted"
    assert any(len(v.path) >= 2 for v in verdicts), "nothing was accepted in depth"


def made(grow, target, draft) -> TreeSpeculation:
    return TreeSpeculation(target, Growing(draft, grow), 3, 99)


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(0.7), Sampling(0.9, top_k=3, top_p=0.9)), ids=str)
@pytest.mark.parametrize("grow", (EAGLE2, OPT), ids=("eagle2", "opt-tree"))
def test_samples_from_the_target(grow, sampling):
    assert p_of_texts(partial(made, grow), sampling, 700) > ALPHA


@pytest.mark.long
def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch):
    assert p_with_caches(partial(made, OPT)) > ALPHA
    draw_for_each_branch(monkeypatch)
    assert p_of_texts(partial(made, OPT), Sampling(0.7), 700) < ALPHA


@pytest.mark.parametrize("name", ("eagle2", "opt-tree"))
def test_trees_that_do_not_fit_are_refused(name):
    with one_line_error(f"{name}: its rounds are of up to 4097 tokens, but tiny reads 256", "choose smaller settings"):
        build(tiny("llama"), name, nodes=4096)
