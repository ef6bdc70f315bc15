"""Token Recycling: its trees by hand and as of its own code, a decoder without cache, and the target's law."""

import json
import math

import oracle
import pytest
import torch
from builders_engine import build, lonely
from cases import mostly_long
from drafted_trees import paths
from gates import DEVICE, GREEDY, decode
from law import Fit, fit
from official import recycling as own
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error

from specbench import config
from specbench.engine import speculate
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Scored
from specbench.methods.lookup import recycling
from specbench.methods.lookup.recycling import Recycler, Recycling, Settings, Successors, grow, template

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
PLAIN = {"template": {}, "unknown": "none", "prompt": True, "memory": "text"}


def sized(**changes) -> Settings:
    return Settings(**{**PLAIN, **changes})


def test_trees_are_those_of_its_own_code():
    """Of three texts one after the other. Siblings that are all token 0, since nothing is known, are one here."""
    stored = official_cases("recycling")
    drafter = Recycler(Settings(**config.load_method("recycling").values), torch.device("cpu"))
    parents, trees = stored["parents"], 0
    for text in stored["texts"]:
        drafter.begin(text["prompt"])
        done = len(text["prompt"]) - 1
        for tree in text["trees"]:
            draft = drafter.propose([tree[0]], 6, GREEDY, torch.Generator())
            assert set(paths(draft.tokens.tolist(), draft.parents)) == set(paths(tree[1:], parents))
            levels = [len(path) for path in paths(draft.tokens.tolist(), draft.parents)]
            places = [done, *(done + level for level in levels)]
            tokens = [tree[0], *draft.tokens.tolist()]
            rows = [own.scores(token, place) for token, place in zip(tokens, places, strict=True)]
            if tree is not text["trees"][-1]:  # the text ended within its draft
                drafter.successors.learn(torch.tensor(tokens), torch.tensor(rows))
            at, known = (), dict(zip(paths(draft.tokens.tolist(), draft.parents), range(1, len(rows)), strict=True))
            while True:
                row = rows[known[at] if at else 0]
                done, at = done + 1, (*at, row.index(max(row)))
                if at not in known:
                    break
            trees += 1
    assert trees == 49


def test_a_smaller_template_has_its_likeliest_nodes():
    """By sums of ranks counted from 1: 0; 1 and 0-0; 0-1, whose sum is 3. Level by level."""
    counts = {"": 2, "0": 2, "0,0": 1}
    assert Recycler(sized(successors=8, nodes=4, gamma=6, template=counts), torch.device("cpu")).template == [
        *((-1, 0), (-1, 1)),
        *((0, 0), (0, 1)),
    ]
    assert len(Recycler(sized(successors=1, nodes=9, gamma=2, template=counts), torch.device("cpu")).template) == 2


def test_a_template_by_hand():
    """Sums of ranks counted from 1: 0 has 1; 1 and 0-0 have 2; then with 3: 2, 0-1, 1-0 and 0-0-0."""
    expected = [(-1, 0), (-1, 1), (0, 0), (-1, 2), (0, 1), (1, 0), (2, 0)]
    assert template(7, 3, 8) == expected
    assert template(100, 2, 2) == [(-1, 0), (-1, 1), (0, 0), (0, 1), (1, 0), (1, 1)], "all of a small tree"


def test_the_shipped_template_has_the_levels_of_compositions():
    """n has C(n - 1, d - 1) compositions into d parts: all 63 of 1 to 6, and the 17 shortest of 7."""
    depths = []
    for parent, _ in template(80, 6, 8):
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    expected = [math.comb(6, d) for d in range(1, 7)]
    expected[0], expected[1], expected[2] = expected[0] + 1, expected[1] + 6, expected[2] + 10
    assert [depths.count(d) for d in range(1, 7)] == expected == [7, 21, 30, 15, 6, 1]


def logits(*rows: tuple[int, int]) -> torch.Tensor:
    """Logits over 6 tokens, whose likeliest two are given."""
    law = torch.zeros(len(rows), 6)
    for row, (first, second) in zip(law, rows, strict=True):
        row[first], row[second] = 2, 1
    return law


def test_a_matrix_and_its_tree_by_hand():
    matrix = Successors(2)
    assert grow(matrix, 3, template(7, 3, 2)) == ([], ())
    matrix.learn(torch.tensor([3, 1, 3]), logits((0, 1), (4, 3), (1, 2)))
    assert (matrix.of(3), matrix.of(1), matrix.of(2)) == ([1, 2], [4, 3], []), "the later place of 3 counts"
    # 3 has the successors 1 and 2; 1 has 4 and 3; 2 and 4 were never read; so paths end there.
    assert grow(matrix, 3, template(7, 3, 2)) == ([1, 2, 4, 3], (-1, -1, 0, 0))
    deep = [(-1, 0), (0, 1), (1, 0), (2, 0), (1, 1)]
    assert grow(matrix, 3, deep) == ([1, 3, 1, 4, 2], (-1, 0, 1, 2, 1))
    matrix.learn(torch.tensor([3]), logits((5, 0)))
    assert matrix.of(3) == [5, 0]


class Counting:
    """A target that says n + 1 after n, modulo 10, whatever stands before, and finds n + 2 the next likely."""

    trees = True
    device = torch.device("cpu")

    def truncate(self, length): ...

    def forward(self, tokens, parents=None, hidden=()):
        eye = torch.eye(10)
        return Scored(torch.stack([2 * eye[(int(t) + 1) % 10] + eye[(int(t) + 2) % 10] for t in tokens]))

    def keep(self, start, path): ...


def test_rounds_by_hand():
    """After 4: the prompt taught 4 → 5 6, and 5 is free. Nothing is known of 5, so round 1 commits 6 alone.

    Then 5 → 6 7 is known, but not 6, and so on, until the numbers come again: after 5, all of 6 to 1 are known.
    """
    method = Recycling(Counting(), sized(successors=2, nodes=6, gamma=3))
    _, rounds = decode(method, [4], 20)
    assert [round_.tokens for round_ in rounds[:11]] == [[5], [6], [7], [8], [9], [0], [1], [2], [3], [4], [5, 6, 7, 8]]
    assert [round_.drafted for round_ in rounds[:11]] == [0] * 10 + [6]
    assert rounds[10].verdict.drafted == [5, 6, 6, 7, 7, 7]
    # in the order of the template: 5, 6, 5-6, 5-7, 6-7, 5-6-7


def slowly(model, prompt, count, settings):
    """Token Recycling again without a cache, paths as tuples: the tokens and what each round drafted."""

    def after(text):
        scores = oracle.next_logits(model, list(text))
        best = sorted(range(len(scores)), key=lambda i: -float(scores[i]))
        return best[: settings.successors]

    paths = [()]
    for _ in range(settings.gamma):
        paths += [(*p, r) for p in paths if len(p) == max(map(len, paths)) for r in range(settings.successors)]
    paths = sorted(paths[1:], key=lambda p: (sum(p) + len(p), len(p), p))[: settings.nodes]
    matrix = {token: after(prompt[: i + 1]) for i, token in enumerate(prompt)}
    text = [*prompt, after(prompt)[0]]
    trees = []
    while len(text) - len(prompt) < count:
        tree = {(): text[-1]}
        for path in paths:
            row = matrix.get(tree.get(path[:-1]), [])
            if path[:-1] in tree and path[-1] < len(row):
                tree[path] = row[path[-1]]
        trees.append([token for path, token in tree.items() if path])
        said = {p: after([*text, *(tree[p[: i + 1]] for i in range(len(p)))]) for p in tree}
        matrix.update({tree[p]: said[p] for p in tree})
        at = ()
        while True:
            text.append(said[at][0])
            at = next((p for p in tree if len(p) == len(at) + 1 and p[:-1] == at and tree[p] == said[at][0]), None)
            if at is None:
                break
    return text[len(prompt) :][:count], trees


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
def test_texts_and_trees_equal_a_decoder_without_cache():
    model, settings = oracle.tiny("llama", seed=3, vocab=16), sized(successors=3, nodes=10, gamma=3)
    for prompt in oracle.prompts(2, length=12, vocab=16, seed=5):
        expected, trees = slowly(model, prompt, 24, settings)
        tokens, rounds = decode(Recycling(Session(model, "target"), settings), prompt, 24)
        assert tokens == expected == oracle.greedy(model, prompt, 24)
        assert [round_.verdict.drafted for round_ in rounds[1:]] == trees[: len(rounds) - 1]
        assert sum(round_.accepted for round_ in rounds) > 2


def test_a_long_prompt_is_read_in_chunks(monkeypatch):
    model, prompt = oracle.tiny("llama", seed=3, vocab=16).to(DEVICE), [1, 5, 2, 9, 3, 3, 8]
    settings = sized(successors=3, nodes=10, gamma=3)
    one = [decode(Recycling(Session(model, "target"), settings), prompt, 12)]
    monkeypatch.setattr(speculate, "CHUNK", 3)
    one.append(decode(Recycling(Session(model, "target"), settings), prompt, 12))
    drafted = [[r.verdict.drafted for r in rounds[1:]] for _, rounds in one]
    assert one[0][0] == one[1][0] and drafted[0] == drafted[1]


VOCABULARY, PROMPT = 4, [1, 3, 2, 0]


def drawn(sampling: Sampling, draws: int = 500) -> Fit:
    model = oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)
    method = Recycling(recalled(model, "target"), sized(successors=2, nodes=5, gamma=2))
    return fit(method, model, PROMPT, 4, sampling, draws)


@mostly_long("sampling", (Sampling(1.0), Sampling(0.8, top_k=3)), lambda sampling: sampling.top_k, ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling)
    assert p > ALPHA and accepted > 100 and rejected > 100


def test_a_tree_that_keeps_likely_tokens_is_found(monkeypatch):
    """Wrong: emits the likeliest token instead of one that is drawn."""
    original = recycling.exact_tree
    wrong = lambda draft, scored, sampling, rng: original(draft, scored, GREEDY, rng)  # noqa: E731
    monkeypatch.setattr(recycling, "exact_tree", wrong)
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    values = config.load_method("recycling").values
    assert (values["successors"], values["nodes"], values["gamma"], sum(values["template"].values())) == (8, 80, 6, 80)
    assert (values["unknown"], values["prompt"], values["memory"]) == ("zero", False, "task")
    method = build(lonely(), "recycling")
    assert method.lossless and method.reach == 81 and method.inputs() == {} and method.state() == []
    assert build(lonely(), "recycling", memory="text").state() is None
    with one_line_error("recycling: its rounds are of up to 81 tokens, but lonely reads 80"):
        build(lonely(80), "recycling")
    with one_line_error("recycling: successors"):
        build(lonely(), "recycling", successors=0)
    for counts, path in (({"": 2, "2": 1}, "2"), ({"": 2, "0,0": 1}, "0,0"), ({"": 2, "x": 1}, "x")):
        with one_line_error(f"recycling: template: {path} is no node"):
            build(lonely(), "recycling", template=counts)


def test_what_a_text_taught_is_known_in_the_next_one_of_its_task():
    """A method that goes on from a state is one that decoded the texts itself; `added` is both texts' in a row."""
    model, settings = oracle.tiny("llama", seed=3, vocab=16).to(DEVICE), {"successors": 3, "nodes": 10, "gamma": 3}
    shipped = {**settings, "prompt": False, "unknown": "zero", "memory": "task"}
    prompts = oracle.prompts(3, length=6, vocab=16, seed=5)

    def new(**changes):
        return Recycling(Session(model, "target"), sized(**{**shipped, **changes}))

    def drafted(method, prompt):
        tokens, rounds = decode(method, prompt, 12)
        method.ended(rounds[-1])
        assert tokens == oracle.greedy(model, prompt, 12)
        return [round_.verdict.drafted for round_ in rounds[1:]]

    first, second, third = new(), new(), new()
    drafted(first, prompts[0])
    between = first.state()
    second.restore(json.loads(json.dumps(between)))
    assert drafted(first, prompts[1]) == drafted(second, prompts[1]) != drafted(third, prompts[1])
    assert first.state() == second.state() != between
    assert first.added(between, [], third.state()) != between
    assert first.added(between, between, first.state()) == first.state()
    first.reset("other")
    assert first.state() == []
    alone = new(memory="text")
    assert drafted(alone, prompts[0]) != drafted(alone, prompts[1]) and alone.state() is None


def test_a_draft_that_the_end_of_the_text_cut_teaches_nothing():
    successors = Successors(2)
    successors.learn(torch.tensor([3]), logits((0, 1)))
    assert successors.of(3) == [0, 1]
    successors.learn(torch.tensor([3]), logits((2, 4)))
    successors.forget_last()
    assert successors.of(3) == [0, 1]
