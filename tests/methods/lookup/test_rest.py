"""Gate: REST drafts what a scan of its datastore says, and follows the target exactly, whatever it drafts."""

import copy
import functools
import math

import naive_datastore as naive
import numpy as np
import oracle
import pytest
import torch
from builders_engine import build, lonely
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from hypothesis import given, settings
from hypothesis import strategies as st
from law import fit
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch

from specbench import config
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored, Verdict
from specbench.methods.lookup import rest
from specbench.methods.lookup.rest import FirstPlace, Rest, Retrieval, Settings, affordable, frequent
from specbench.methods.lookup.rest_datastore import END, Datastore, find_datastore
from specbench_extras.datastore.build import build as build_store

SHIPPED = config.load_method("rest").values
ALPHA = 1e-3


def chosen(**changes) -> Settings:
    return config.validated(Settings, {**SHIPPED, **changes}, "rest")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A function from documents to their datastore."""

    def store(documents, vocabulary=96, shard=2**10) -> Datastore:
        folder = tmp_path_factory.mktemp("stores") / "store"
        build_store(documents, folder, vocabulary, "abc", {}, shard)
        return Datastore(folder)

    return store


def drafter(store, model=None, first=None, **changes) -> Retrieval:
    return rest._retrieval(chosen(**changes), store, torch.device(DEVICE), model, first)


def drafting(session, fusion="none", prune=0, **_):
    """The draft model and its policy, as `build` makes them."""
    first = FirstPlace(prune) if prune else None
    return (None, None) if fusion == "none" else (ModelDrafter(session, first), first)


def texts(draft: Draft) -> list[tuple[int, ...]]:
    """Each drafted token with those above it."""
    tokens, results = draft.tokens.tolist(), []
    for i, token in enumerate(tokens):
        parent = i - 1 if draft.parents is None else draft.parents[i]
        results.append((*(results[parent] if parent >= 0 else ()), token))
    return results


def proposed(one: Retrieval, context, gamma=10) -> list[tuple[int, ...]]:
    return texts(one.propose(context, gamma, GREEDY, torch.Generator(DEVICE)))


# What is drafted


def test_its_own_code_drafts_the_same_tree(stored):
    """Of 40 look-ups, 30 of which find more than they keep."""
    smaller = 0
    for case in official_cases("rest"):
        sizes = {"longest": len(case["query"]), "shortest": len(case["query"]), "nodes": case["nodes"]}
        store = stored([case["text"]])
        expected = {tuple(prefix) for prefix in case["prefixes"]}
        assert set(proposed(drafter(store, **sizes), case["query"])) == expected
        smaller += len(expected) < len(proposed(drafter(store, cut=False, **sizes), case["query"]))
    assert smaller == 30


def test_the_costliest_prefixes_leave():
    """1 1 2 costs two tokens, as 1 2 does; of equally costly ones the last leaves, and others bring their prefixes."""
    prefixes = [(1,), (1, 1), (1, 2), (1, 1, 2), (1, 2, 3)]
    for budget, kept in ((9, prefixes), (8, prefixes[:4]), (5, prefixes[:3]), (3, prefixes[:2]), (1, prefixes[:1])):
        assert affordable(prefixes, budget) == kept
    assert affordable([(1, 2), (1, 2, 1), (1,), (3,)], 3) == [(1,), (3,)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.lists(st.integers(0, 2), min_size=0, max_size=4), max_size=12),
    nodes=st.integers(1, 12),
    large=st.booleans(),
)
def test_the_most_frequent_prefixes(rows, nodes, large):
    """Ids of one byte and of several, whose order as bytes is that of the ids."""
    ids = [0, 255, 70_000] if large else [0, 1, 2]
    padded = [(*(ids[i] for i in row), *[END] * (4 - len(row))) for row in rows]
    result = frequent(np.array(padded, np.uint32).reshape(len(rows), 4), nodes)
    assert result == naive.frequent(padded, nodes, END)
    assert all(len(prefix) == 1 or prefix[:-1] in result[: result.index(prefix)] for prefix in result)


def test_a_draft_by_hand(stored):
    """Behind 1 2 came 3 4 twice, 3 5, 6 and, in a longer suffix of another text, 7."""
    store = stored([[1, 2, 3, 4, 9], [1, 2, 3, 4], [0, 1, 2, 3, 5], [1, 2, 6], [8, 8, 1, 2, 7]], shard=8)
    assert store.about.shards > 2
    one = drafter(store, gamma=2, nodes=64)
    draft = one.propose([5, 1, 2], 2, GREEDY, torch.Generator())
    assert draft.probs is None and texts(draft) == [(3,), (3, 4), (6,), (7,), (3, 5)]
    assert draft.parents == (-1, 0, -1, -1, 0)
    assert proposed(drafter(store, nodes=3, cut=False), [5, 1, 2]) == [(3,), (3, 4), (6,)]
    assert proposed(one, [5, 8, 1, 2]) == [(7,)], "the longest suffix"
    assert proposed(drafter(store, longest=2), [8, 1, 2], 1) == [(3,), (6,), (7,)]
    assert proposed(drafter(store, shortest=3), [5, 1, 2]) == []
    nothing = one.propose([4, 4, 4], 2, GREEDY, torch.Generator())
    assert nothing.parents is None and nothing.tokens.shape == (0,) and nothing.tokens.dtype == torch.long
    assert proposed(one, [3, 4, 9]) == [], "9 is the end of a document, and so is every shorter suffix"
    # 8 1 2 7 stands at an end only, and 2 7 too; with other texts behind a shorter suffix, that is taken.
    assert proposed(drafter(stored([[1, 2, 3], [2, 3, 4]])), [1, 2, 3]) == [(4,)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    documents=st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=8).filter(any),
    context=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    shard=st.sampled_from([6, 1000]),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 12)),
)
def test_drafts_equal_a_scan(stored, documents, context, shard, sizes):
    gamma, nodes = sizes
    store = stored(documents, 3, shard)
    pieces = [piece for part in naive.shards(documents, shard) for piece in part]
    result = proposed(drafter(store, longest=5, shortest=2, gamma=gamma, nodes=nodes, cut=False), context, gamma)
    assert len(set(result)) == len(result) <= nodes
    assert set(result) == naive.drafted(pieces, context, 5, 2, gamma, nodes)


def test_trigrams_fill_what_is_left(stored):
    """Behind 1 2: 3 (3 of 4) and 4 (1 of 4). Behind 2 3: 5 (2 of 4), 6 and 7. Behind 2 4: nothing but 9."""
    store = stored([[1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 3, 6], [8, 2, 3, 7], [1, 2, 4, 9]])
    one = drafter(store, ngram=3, nodes=64)
    assert one.trigrams.likeliest((1, 2), 2, set(), 5) == [(3,), (3, 5), (4,), (4, 9), (3, 6)]
    assert one.trigrams.likeliest((1, 2), 2, {(3,), (3, 5)}, 3) == [(4,), (4, 9), (3, 6)]
    assert one.trigrams.likeliest((1, 2), 1, set(), 9) == [(3,), (4,)]
    assert (
        one.trigrams.likeliest((2,), 2, set(), 9)
        == one.trigrams.likeliest((7, 7), 2, set(), 9)
        == one.trigrams.likeliest((1, 2), 2, set(), 0)
    )
    # The longest suffix knows 7 alone; the tri-grams of 2 3 know more.
    assert proposed(one, [8, 2, 3]) == [(7,), (5,), (6,)]
    assert proposed(drafter(store, nodes=2, ngram=3), [8, 2, 3]) == [(7,), (5,)]
    assert proposed(drafter(store, nodes=64), [8, 2, 3]) == [(7,)]
    # Where the shortest suffix is too long to be found, they are all there is.
    assert proposed(drafter(store, shortest=4, ngram=3), [8, 2, 3]) == [(5,), (6,), (7,)]


class Chain:
    """A drafter that says what it is told, and notes what it was asked."""

    def __init__(self, *chain: int) -> None:
        self.chain, self.asked, self.lengths = chain, [], Lengths()

    def begin(self, prompt):
        self.asked.append(prompt)

    def propose(self, context, gamma, sampling, rng):
        self.asked.append((list(context), gamma, sampling))
        return Draft(torch.tensor(self.chain[:gamma], dtype=torch.long), None)


def test_a_models_chain_is_merged_by_its_common_prefix(stored):
    store = stored([[1, 2, 3, 4], [1, 2, 3, 5]])
    chain = Chain(3, 5, 6, 7)
    one = drafter(store, chain, fusion="draft", fusion_gamma=3, longest=2)
    one.begin([0, 1])
    long = [*range(30), 1, 2]
    draft = one.propose(long, 10, Sampling(1.0), torch.Generator())
    assert texts(draft) == [(3,), (3, 4), (3, 5), (3, 5, 6)] and draft.probs is None
    assert chain.asked == [[0, 1], (long, 3, GREEDY)], "point masses: it drafts greedily at any temperature"
    assert proposed(one, [9, 9]) == [(3,), (3, 5), (3, 5, 6)], "nothing retrieved: the chain alone"
    assert proposed(one, [1, 2], 2)[-1] == (3, 5), "no more levels than asked for"
    assert proposed(drafter(store, Chain(8), fusion="draft"), [1, 2])[-1] == (8,)


def test_what_is_retrieved_is_pruned_by_the_draft(stored):
    """The draft model finds the tokens 5, 3 and 1 the likeliest; retrieved are 3, 3-4, 6 and 1."""

    class Told:
        device = torch.device(DEVICE)

        def catch_up(self, context, hidden=()):
            return Scored(torch.tensor([[0.0, 2, 0, 3, 0, 4, 1, 0]], device=DEVICE))

        def draft_chain(self, context, count, sampling, rng): ...

    store = stored([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 6], [1, 2, 1]])
    for count, expected in (
        (3, [(3,), (3, 4), (1,), (5,)]),
        (2, [(3,), (3, 4), (5,)]),
        (0, [(3,), (3, 4), (1,), (6,), (5,)]),
    ):
        changes = {"fusion": "draft", "fusion_gamma": 1, "prune": count}
        assert proposed(drafter(store, *drafting(Told(), **changes), **changes), [1, 2]) == expected


def test_trigrams_learn_by_hand(stored):
    """The datastore: after 1 2 comes 3. The text shows 4 twice after 1 2, so 3 has 1/3 and 4 has 2/3; 8 9 is new."""
    one = drafter(stored([[1, 2, 3], [1, 2, 3]]), ngram=3, prior=1)
    one.begin([])
    assert one.trigrams.followers((1, 2)) == [(3, 1.0)]
    text = [1, 2, 4, 1, 2, 4, 8, 9, 5]
    one.propose(text[:5], 2, GREEDY, torch.Generator())
    one.propose(text, 2, GREEDY, torch.Generator())
    assert one.trigrams.followers((1, 2)) == [(4, pytest.approx(2 / 3)), (3, pytest.approx(1 / 3))]
    assert one.trigrams.followers((8, 9)) == [(5, 1.0)] and one.trigrams.followers((9, 5)) == []
    # The target said, after … 9 5: 7 (.9) or 6 (.1); and after 5 7, which stood: 0.
    logits = torch.full((2, 96), -torch.inf)
    logits[0, 7], logits[0, 6], logits[1, 0] = math.log(0.9), math.log(0.1), 0.0
    one.observe(Scored(logits), Verdict((0,), 0, [7], [7], [1.0]))
    assert one.trigrams.followers((9, 5))[:2] == [(7, pytest.approx(0.9)), (6, pytest.approx(0.1))]
    assert one.trigrams.followers((5, 7))[0] == (0, 1.0)
    one.begin([])
    assert one.trigrams.followers((1, 2)) == [(3, 1.0)] and one.trigrams.followers((8, 9)) == []
    still = drafter(stored([[1, 2, 3], [1, 2, 3]]), ngram=3)
    still.begin([])
    still.propose(text, 2, GREEDY, torch.Generator())
    still.observe(Scored(logits), Verdict((0,), 0, [7], [7], [1.0]))
    assert still.trigrams.followers((1, 2)) == [(3, 1.0)] and still.trigrams.followers((9, 5)) == []


def test_a_search_by_hand(stored):
    """After 1 2: 3 (.75) and 4 (.25); after 2 3: 5; after 2 4: 9; nothing follows these.

    3 and 3-5 are met first. All texts of 3 have the value .75, so 4 is met as soon as its bonus, 1.25 * .25 * √N, is
    above .75 and 3's bonus, which falls as 3 is visited: in the twelfth iteration.
    """
    trigrams = drafter(stored([[1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 4, 9]]), ngram=3).trigrams
    result = trigrams.searched((1, 2), 4, set(), 9, 150)
    assert result == [(3,), (3, 5), (4,), (4, 9)]
    assert trigrams.searched((1, 2), 4, set(), 9, 2) == [(3,), (3, 5)] == trigrams.searched((1, 2), 4, set(), 2, 150)
    assert trigrams.searched((1, 2), 1, set(), 9, 150) == [(3,), (4,)]
    assert trigrams.searched((1, 2), 4, {(3,), (3, 5)}, 1, 150) == [(4,)]
    assert trigrams.searched((7, 7), 4, set(), 9, 150) == []
    met = [len(trigrams.searched((1, 2), 4, set(), 9, count)) for count in range(1, 30)]
    first = next(count for count in range(3, 30) if passed(count))
    assert met[:first] == [1, *[2] * (first - 2), 3] and first == 12


def passed(count: int) -> bool:
    """True if PUCT, after so many iterations of which all but the last went to 3, prefers 4."""
    n = count - 1
    bonus = 1.25 + math.log((n + 19653) / 19652)
    return 0.25 * math.sqrt(n) * bonus > 0.75 + 0.75 * math.sqrt(n) / (1 + n) * bonus


# The target is followed


def own_texts(architecture, prompt, count=60):
    """What the model says to this prompt and to others, in pieces: most that it says is there, and some that is not."""
    model = pair(architecture)[0]
    greedy = [oracle.greedy(copy.deepcopy(model).cpu(), other, 24) for other in oracle.prompts(3, length=8, seed=5)]
    text = [*prompt[-2:], *lively_prompt(architecture, len(prompt), count)[1]]
    wrong = [(token + 1) % 96 if i % 7 == 6 else token for i, token in enumerate(text)]
    return [text[:20], wrong, text[30:], *greedy]  # of some places the wrong one alone


VARIANTS = (
    {},
    {"ngram": 3, "nodes": 30},
    {"nodes": 3, "gamma": 4},
    {"fusion": "draft"},
    {"fusion": "draft", "prune": 9},
    {"ngram": 3, "nodes": 30, "prior": 1, "search": "puct"},
)


@architectures
def test_greedy_texts_equal_the_oracle(stored, architecture):
    """Behind the sliding window of 16 too; the datastore leads astray where a token of it is wrong."""
    target, draft = pair(architecture)
    prompt, _ = lively_prompt(architecture, 15, 40)
    expected = oracle.greedy(copy.deepcopy(target).cpu(), prompt, 40)
    assert len(set(expected)) >= 12
    store = stored(own_texts(architecture, prompt), shard=40)
    fell = 0
    for changes in VARIANTS:
        one = drafter(store, *drafting(Session(draft, "draft"), **changes), **changes)
        method = Rest(Session(target, "target"), one, chosen(**changes), "hash")
        tokens, rounds = decode(method, prompt, 40)
        assert tokens == expected, changes
        assert len(tokens) / (len(rounds) - 1) > 2, changes
        fell += sum(round_.verdict.accepted < round_.verdict.levels for round_ in rounds if round_.verdict)
    assert fell


class Spied(Session):
    """Notes how many tokens are fed at a time."""

    def forward(self, tokens, *arguments, **named):
        self.widths = [*getattr(self, "widths", []), len(tokens)]
        return super().forward(tokens, *arguments, **named)


def test_no_hit_is_a_plain_step_and_reach_is_the_most_a_round_feeds(stored):
    prompt, text = lively_prompt("llama", 15, 40)
    session = Spied(pair("llama")[0], "target")
    method = Rest(session, drafter(stored([[95, 95, 95]])), chosen(), "hash")
    tokens, rounds = decode(method, prompt, 40)
    assert tokens == text and len(rounds) == 40
    assert session.widths[1:] == [1] * 39 and all(round_.drafted == round_.accepted == 0 for round_ in rounds)
    changes = {"nodes": 5, "cut": False, "fusion": "draft", "fusion_gamma": 3}
    session = Spied(pair("llama")[0], "target")
    branches = stored([[a, b, c, d] for a in text[:40:3] for b in text[1:3] for c in (1, 2) for d in (3, 4)] + [text])
    method = Rest(
        session,
        drafter(branches, ModelDrafter(Session(pair("llama")[1], "draft")), **changes, shortest=1),
        chosen(**changes),
        "hash",
    )
    assert decode(method, prompt, 40)[0] == text
    assert max(session.widths[1:]) == method.reach == 1 + 5 + 3


# Sampling

VOCABULARY = 4
COUNT = 3
DRAWS = 600


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)


def drawn(store, sampling, draws, **changes):
    """How `draws` texts fit the target's law."""
    model = drafting(recalled(sampled_model(), "draft"), **changes)
    changes = {"gamma": 3, "nodes": 10, "shortest": 1, **changes}
    method = Rest(recalled(sampled_model(), "target"), drafter(store, *model, **changes), chosen(**changes), "hash")
    return fit(method, sampled_model(), [1, 3, 2], COUNT, sampling, draws)


@pytest.fixture(scope="module")
def small_store(stored):
    """Wide trees with common beginnings; no text has 3 behind another 3."""
    rng = np.random.default_rng(3)
    return stored([[*rng.choice([0, 1, 2, 2, 1], 6).tolist(), 3] for _ in range(30)], VOCABULARY, shard=64)


@mostly_long(
    "sampling, changes",
    [
        (Sampling(1.0), {}),
        (Sampling(0.7, top_p=0.9), {}),
        (Sampling(1.3, top_k=3), {"nodes": 3, "ngram": 3}),
        (Sampling(0.8), {"nodes": 3, "fusion": "draft", "fusion_gamma": 2}),
        (Sampling(0.9), {"nodes": 5, "fusion": "draft", "fusion_gamma": 2, "prune": 2}),
        (Sampling(1.1), {"nodes": 6, "ngram": 3, "prior": 1, "search": "puct"}),
    ],
    lambda sampling, changes: not changes or changes.get("prune") or changes.get("search"),
    ids=str,
)
def test_samples_from_the_target(small_store, sampling, changes):
    p, stood, fell = drawn(small_store, sampling, DRAWS, **changes)
    assert p > ALPHA
    assert stood > 100 and fell > 100


def test_a_draw_for_each_branch_instead_of_each_node_is_found(small_store, monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert drawn(small_store, Sampling(1.0), DRAWS)[0] < ALPHA


# As a method


def test_settings_as_shipped():
    one = chosen()
    assert (one.longest, one.shortest, one.hits, one.gamma, one.nodes, one.cut) == (16, 2, 5000, 10, 64, True)
    assert one.reach() == 65 and chosen(fusion="draft", fusion_gamma=20).reach() == 75
    for name, changed in (
        ("rest-rasd", {"fusion": "draft", "prune": 10, "cut": False}),
        ("rest-aded", {"cut": False, "ngram": 3, "prior": 1, "search": "puct"}),
        ("rest-pocket", {"nodes": 8, "cut": False}),
    ):
        assert config.load_method(name).values == {**SHIPPED, **changed}
    assert all(setting.source != "user" for setting in config.load_method("rest").settings.values())


def test_build_needs_a_target_only_and_a_datastore_that_fits(stored):
    prompt, text = lively_prompt("llama", 15, 40)
    store = stored([text])
    fits = {"datastore": str(store.folder)}
    method = build(lonely(), "rest", **fits)
    assert method.lossless and method.reach == 65 and method.inputs() == {"datastore": store.about.contents}
    assert decode(method, prompt, 40)[0] == text
    for changes, facts, words in (
        (fits, {"vocabulary": max(text)}, f"holds the token {max(text)}, which lonely has no logits for"),
        (fits, {"context": 65}, "rounds are of up to 65 tokens, but lonely reads 65"),
        (fits | {"fusion": "draft"}, {}, "lonely has no draft model"),
        ({}, {}, "no datastore ships for this tokenizer"),
        ({"datastore": "nowhere"}, {}, "there is no datastore nowhere; build one"),
    ):
        with one_line_error(words):
            build(lonely(**facts), "rest", **changes)


def test_a_drafter_without_models(stored):
    store = stored([[1, 2, 3]])
    one = rest.drafter(chosen(datastore=str(store.folder)), "abc", torch.device(DEVICE))
    one.begin([0])
    assert proposed(one, [0, 1, 2]) == [(3,)]
    assert proposed(rest.drafter(chosen(datastore=str(store.folder)), None, torch.device(DEVICE)), [1, 2]) == [(3,)]
    with pytest.raises(config.UserError, match="belongs to another tokenizer"):
        rest.drafter(chosen(datastore=str(store.folder)), "xyz", torch.device(DEVICE))
    with pytest.raises(config.UserError, match="fusion=none"):
        rest.drafter(chosen(fusion="draft"), None, torch.device(DEVICE))


def test_the_bundled_pair_says_the_same_in_fewer_rounds(pocket):
    """With the datastore that ships."""
    method = build(pocket, "rest")
    assert method.inputs() == {"datastore": find_datastore("auto", pocket.tokenizer_hash).about.contents}
    prompt = pocket.tokenizer("Question: Nia has 12 apples and buys 5 more. How many apples has Nia now?\nAnswer:")
    ids = prompt["input_ids"]
    tokens, rounds = decode(method, ids, 30)
    session = pocket.session("target")
    expected = [int(session.restart(ids).logits.argmax(-1))]
    while len(expected) < 30:
        expected.append(int(session.forward(expected[-1:]).logits.argmax(-1)))
    assert tokens == expected and len(tokens) / (len(rounds) - 1) > 1.3
