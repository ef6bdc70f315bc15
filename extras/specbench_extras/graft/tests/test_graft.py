"""Graft: where a draft stops and what is retrieved, by hand and by a decoder without cache; the target's law."""

import copy

import oracle
import pytest
import torch
from builders_engine import build, made
from cases import architectures, mostly_long
from gates import DEVICE, decode, lively_prompt, pair
from law import Fit, fit
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch
from tiny_heads import head, trained

from specbench import config
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling
from specbench_extras.graft.graft import Graft, GraftedChain, GraftedHead, Grafting, Settings, deepest

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
SMALL = {
    "drafter": "draft",
    "variant": "graft",
    "nodes": 6,
    "checkpoints": (0, 1),
    "thresholds": (0.5, 0.2),
    "kept": (1, 3),
    "successors": 3,
    "levels": 3,
    "top_k": 2,
    "depth": 2,
    "head": "auto",
}
VARIANTS = pytest.mark.parametrize("variant", ("graft", "root", "tail"))


def grown(rows: dict[tuple[int, ...], list[float]], **changes) -> list[tuple[int, int]]:
    """The drafted tokens and their parents, by the probabilities of four tokens after each path."""
    logits = {path: torch.tensor(row, dtype=torch.float64).log() for path, row in rows.items()}
    asked: list[list[tuple[int, ...]]] = []

    def read(tokens, followed):
        before = [()] * len(tokens) if followed is None else [asked[-1][i] for i in followed.tolist()]
        asked.append([(*path, token) for path, token in zip(before, tokens.tolist(), strict=True)])
        return torch.stack([logits[path] for path in asked[-1]])

    tree = Grafting(Settings(**{**SMALL, **changes}), top_k=2).grow(logits[()], read)
    return list(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True))


def test_where_a_draft_stops_by_hand():
    """0 (.6) and 1 (.3); after 0: 2 (.3), 3 (.25), so .18 and .15; after 1: 3 (.9), so .27, and 0 (.03).

    The likeliest paths are .6 and .27. Kept of stage 1: 0 (.6), 1 (.3), 1-3 (.27).
    """
    rows = {(): [0.6, 0.3, 0.06, 0.04], (0,): [0.21, 0.24, 0.3, 0.25], (1,): [0.1, 0.0, 0.0, 0.9]}
    assert grown(rows, thresholds=(0.61, 0.2)) == [(0, -1)]
    assert grown(rows, thresholds=(0.59, 0.28)) == [(0, -1), (1, -1), (3, 1)]
    assert grown(rows, thresholds=(0.59, 0.26), depth=1) == [(0, -1), (1, -1), (2, 0), (3, 0), (3, 1), (0, 1)]
    assert grown(rows, thresholds=(0.59, 0.26), depth=1, nodes=2) == [(0, -1), (1, -1)]
    assert grown(rows, thresholds=(0.9, 0.9), depth=1, variant="root") == [(0, -1), (1, -1), (3, 1)], "as last kept"


def test_what_is_retrieved_by_hand():
    """M: 7 has 1, 2, 3; 2 has 4, 5, 6; 8 has 2, 3, 1. After 7 the tokens 1 and 8 are drafted, a chain.

    Four of six tokens are left, for the ranks 0, 1, 0-0, 2. After 7, where 1 is drafted: 2, 3, 2-4. After 8: all.
    """
    learned = {7: (1, 2, 3), 2: (4, 5, 6), 8: (2, 3, 1)}
    logits = torch.zeros(3, 9)
    for row, best in zip(logits, learned.values(), strict=True):
        row[list(best)] = torch.tensor([3.0, 2.0, 1.0])
    for variant, tokens, parents in (
        ("graft", [1, 8, 2, 3, 4], (-1, 0, -1, -1, 2)),
        ("tail", [1, 8, 2, 3, 4, 1], (-1, 0, 1, 1, 2, 1)),
    ):
        grafting = Grafting(Settings(**{**SMALL, "variant": variant}), top_k=1)
        grafting.successors.learn(torch.tensor(list(learned)), logits)
        draft = grafting.fill(Draft(torch.tensor([1, 8]), None, (-1, 0)), 7)
        assert (draft.tokens.tolist(), draft.parents) == (tokens, parents)
    assert [deepest(list(shape)) for shape in ((), (-1, -1), (-1, 0, -1), (-1, -1, 1, 0, 2))] == [-1, 0, 1, 4]


def slowly(target, draft, prompt, count, settings):
    """Graft to a chain again without a cache, paths as tuples: the tokens, and the chain and the tree of each round."""

    def best(model, text, k):
        return torch.topk(oracle.next_logits(model, list(text)).cpu(), k).indices.tolist()

    matrix = {token: best(target, prompt[: i + 1], settings.successors) for i, token in enumerate(prompt)}
    ranks: list[tuple[int, ...]] = [()]
    for _ in range(settings.levels):
        ranks += [(*p, r) for p in ranks if len(p) == max(map(len, ranks)) for r in range(settings.successors)]
    ranks = sorted(ranks[1:], key=lambda p: (sum(p) + len(p), len(p), p))
    text, chains, trees = [*prompt, best(target, prompt, 1)[0]], [], []
    while len(text) - len(prompt) < count:
        chain, chance = [], 1.0
        stages = dict(zip(settings.checkpoints, zip(settings.thresholds, settings.kept, strict=True), strict=True))
        most = settings.kept[-1] if settings.variant == "root" else settings.nodes
        for level in range(settings.depth + 1):
            p = oracle.next_logits(draft, [*text, *chain]).cpu().double().softmax(-1)
            chain.append(int(p.argmax()))
            chance *= float(p.max())
            if settings.variant != "root" and level in stages and chance < stages[level][0]:
                most = stages[level][1]
                break
        chain = chain[:most]
        tree = [tuple(chain[: i + 1]) for i in range(len(chain))]
        start = tuple(chain) if settings.variant == "tail" else ()
        result = {(): start}
        for path in ranks[: settings.nodes - len(chain)]:
            if path[:-1] not in result:
                continue
            above = result[path[:-1]]
            row = matrix.get([text[-1], *above][-1], [])
            if len(path) == 1:
                row = [token for token in row if (*start, token) not in tree[: len(chain)]]
            if path[-1] < len(row):
                result[path] = (*above, row[path[-1]])
                tree.append(result[path])
        chains.append(chain)
        trees.append([path[-1] for path in tree])
        said = {path: best(target, [*text, *path], settings.successors) for path in [(), *tree]}
        matrix.update({[text[-1], *path][-1]: row for path, row in said.items()})
        at: tuple[int, ...] = ()
        while (*at, said[at][0]) in said:
            at = (*at, said[at][0])
        text += [*at, said[at][0]]
    return text[len(prompt) :][:count], chains, trees


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
@VARIANTS
def test_texts_and_trees_equal_a_decoder_without_cache(variant):
    target = oracle.tiny("llama", seed=3, vocab=16)
    draft = copy.deepcopy(target)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in draft.parameters():  # nearly the target
            parameter.add_(0.15 * parameter.std() * torch.randn(parameter.shape, generator=rng))
    settings = Settings(**{**SMALL, "variant": variant, "nodes": 9, "depth": 3, "thresholds": (0.35, 0.15)})
    lengths, accepted = set(), 0
    for prompt in oracle.prompts(2, length=12, vocab=16, seed=5):
        expected, chains, trees = slowly(target, draft, prompt, 20, settings)
        method = Graft(Session(target, "target"), GraftedChain(Session(draft, "draft"), settings), settings, {})
        tokens, rounds = decode(method, prompt, 20)
        assert tokens == expected == oracle.greedy(target, prompt, 20)
        assert [round_.verdict.drafted for round_ in rounds[1:]] == trees[: len(rounds) - 1]
        accepted += sum(round_.accepted for round_ in rounds)
        lengths |= {len(chain) for chain in chains}
    assert accepted > 5 and len(lengths) == (1 if variant == "root" else 3), (accepted, lengths)


def with_head(architecture: str, model, variant: str) -> Graft:
    settings = Settings(**{**SMALL, "drafter": "eagle3", "variant": variant, "nodes": 12, "kept": (2, 6), "top_k": 3})
    target = pair(architecture)[0]
    session = Session(model, "draft", vocabulary=model.config.vocab_size)
    drafter = GraftedHead(model, session, layers_read(target), settings)
    return Graft(Session(target, "target"), drafter, settings, {})


@VARIANTS
@architectures
def test_greedy_texts_with_a_head_are_the_targets(architecture, variant):
    """A random head, and one that is often right; Gemma 2's window of 16 is crossed."""
    prompt, text = lively_prompt(architecture, 12, 30)
    assert decode(with_head(architecture, head(architecture), variant), prompt, 30)[0] == text
    tokens, rounds = decode(with_head(architecture, trained(architecture, 12), variant), prompt, 30)
    assert tokens == text and len(rounds) < 28 and max(len(round_.verdict.drafted) for round_ in rounds[1:]) <= 12


VOCABULARY = 4


def drawn(sampling: Sampling, draws: int = 500, variant: str = "graft") -> Fit:
    target, draft = (oracle.tiny("llama", seed=seed, vocab=VOCABULARY).to(DEVICE) for seed in (1, 2))
    settings = Settings(**{**SMALL, "variant": variant, "depth": 1})
    drafter = GraftedChain(recalled(draft, "draft"), settings)
    return fit(Graft(recalled(target, "target"), drafter, settings, {}), target, [1, 3, 2, 0], 4, sampling, draws)


@mostly_long("variant", ("graft", "root", "tail"), ("graft",))
def test_samples_from_the_target(variant):
    p, accepted, rejected = drawn(Sampling(0.9, top_k=3), variant=variant)
    assert p > ALPHA and accepted > 100 and rejected > 100


@pytest.mark.long
def test_a_draw_of_its_own_for_each_branch_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    shipped = config.load_method("graft").values
    assert (shipped["nodes"], shipped["kept"], shipped["successors"]) == (59, [8, 24, 40], 9)
    method = build(made(), "graft-sps")
    assert method.lossless and method.reach == 25 and method.inputs() == {} and method.state() is None
    with one_line_error("graft-sps: its rounds are of up to 257 tokens, but"):
        build(made(), "graft-sps", nodes=256)
    with one_line_error("graft: checkpoints, thresholds and kept"):
        build(made(), "graft-sps", kept=(8, 24))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variant": "stem"}, "graft: variant"),
        ({"thresholds": [0.35, 1.5, 0.1]}, "graft: thresholds"),
        ({"kept": [0, 8, 9]}, "graft: kept"),
        ({"kept": [8, 24]}, "graft: checkpoints, thresholds and kept have different lengths"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "graft", **changes)
