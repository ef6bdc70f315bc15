"""DiffuSpec: its search by hand and by enumeration, its lengths by hand, its counts; lossless at any temperature."""

import itertools
import math

import oracle
import pytest
import torch
from builders_engine import build
from gates import GREEDY, decode, lively_prompt, pair
from law import V, fit, small_target
from recalled import recalled
from refusals import one_line_error
from tiny_blocks import head, in_file, recipe, trained

from specbench import config
from specbench.engine.models.heads import find_head
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Verdict
from specbench.methods.blocks.dflash import DFlash, block_head
from specbench.methods.lookup.rest_datastore import Datastore
from specbench_extras.datastore.build import build as build_store
from specbench_extras.dflash.fit import new_head
from specbench_extras.diffuspec import diffuspec
from specbench_extras.diffuspec.diffuspec import Adaptive, Ngrams, PathDrafter, Settings, consistent_path, lattice_of

SHIPPED = config.load_method("diffuspec").values


def even(context, token):
    return 1 / 96


def method(model, target, longest=4, ngrams=even, ends=(), vocabulary=96, **changes):
    settings = Settings(**{**SHIPPED, "shortest": 1, **changes})
    session = Session(model, "draft", vocabulary=vocabulary)
    return DFlash(target, PathDrafter(model, session, settings, longest, frozenset(ends), ngrams), {})


def test_a_path_by_hand():
    """Alone, each slot prefers 1 and 3. After 1, the text has 4; after 2 it has 3, and so well that 2 3 is the best."""
    slots = [{1: math.log(0.6), 2: math.log(0.4)}, {3: math.log(0.7), 4: math.log(0.3)}]
    chances = {(0, 1): 0.5, (0, 2): 0.4, (1, 3): 0.01, (1, 4): 0.2, (2, 3): 0.9, (2, 4): 0.05}

    def chance(context, token):
        return chances[context[-1], token]

    def best(beam, weight):
        return consistent_path(slots, [9, 0], chance, beam, weight)

    assert best(3, 1.0) == [1, 3]
    assert best(3, 0.5) == [2, 3]  # 0.4 0.4 0.7 0.9 = 0.1008, of 1 4: 0.6 0.5 0.3 0.2 = 0.018
    assert best(3, 0.95) == [1, 3]  # .95 log 0.42 + .05 log 0.005 = -1.09, of 2 3: .95 log 0.28 + .05 log 0.36 = -1.26
    assert best(1, 0.5) == [1, 4]  # it has forgotten 2
    assert best(1, 0.0) == [1, 4] and best(2, 0.0) == [2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_keeps_every_path_finds_the_best_of_all(seed):
    rng = torch.Generator().manual_seed(seed)
    rows = torch.rand(3, 3, generator=rng).log().tolist()
    slots = [{4 * place + i: value for i, value in enumerate(row)} for place, row in enumerate(rows)]
    table = torch.rand(40, 40, generator=rng).tolist()

    def chance(context, token):
        return table[context[-1]][token] * 0.5 + table[context[-2]][token] * 0.5

    def score(path):
        text = [30, 31, *path]
        slot_part = sum(slots[place][token] for place, token in enumerate(path))
        text_part = sum(math.log(chance(text[: 2 + place], token)) for place, token in enumerate(path))
        return 0.3 * slot_part + 0.7 * text_part

    best = max(itertools.product(*slots), key=score)
    assert consistent_path(slots, [30, 31], chance, 27, 0.3) == list(best)


def test_candidates_by_hand():
    """The fewest tokens with the mass; 5, an end, is always one; nothing follows a slot whose likeliest it is."""
    chances = torch.tensor([[0.5, 0.3, 0.1, 0.06, 0.03, 0.01], [0.1, 0.1, 0.1, 0.1, 0.1, 0.5], [0.5, 0.1] + [0.1] * 4])
    slots, before = lattice_of(chances.log(), 0.79, 15, frozenset({5}))
    assert sorted(slots[0]) == [0, 1, 5] and len(slots) == 2 and before == 1
    assert [math.exp(slots[0][token]) for token in (0, 1, 5)] == pytest.approx([0.5, 0.3, 0.01], abs=1e-5)
    slots, before = lattice_of(chances.log(), 0.81, 2, frozenset())
    assert [len(slot) for slot in slots] == [2, 2, 2] and before == 3
    assert len(lattice_of(chances.log(), 0.81, 15, frozenset())[0][0]) == 3


def test_lengths_by_hand():
    """ρ = 1/2, from 2 to 9 tokens: 9 drafted and 3 accepted; then 5 of 6; then all 5, and 3 more."""
    lengths = Adaptive(2, 9, 3, 0.5)

    def after(drafted, accepted):
        lengths.drafted = drafted
        lengths.observe(Verdict(tuple(range(accepted)), 1, [0] * drafted, [], []))
        return lengths.most(0, 0)

    assert lengths.most(0, 0) == 9
    assert after(9, 3) == 9  # means 9 and 3
    assert after(6, 5) == 7  # 7.5 and 4
    assert after(2, 2) == 4  # 4.75 and 3
    assert after(1, 9) == 5  # 2.875 and 6: 2 and 3 more
    assert after(0, 0) == 4  # 1.4 and 3: 1 and 3 more
    assert after(0, 0) == 3 and after(0, 0) == 3 and after(9, 0) == 4
    lengths.begin([])
    assert lengths.most(0, 0) == 9


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngrams") / "store"
    build_store([[1, 2, 3], [1, 2, 3], [1, 2, 4], [5, 2, 4]], folder, 10, "hash", {})
    return Datastore(folder)


def test_ngrams_by_hand(store):
    """After 2: 3 twice and 4 twice; after 1 2: 3 twice and 4 once. Each context counts with 2 of shorter ones."""
    chance = Ngrams(store, 100, 10)
    one = (2 + 2 * 0.1) / (4 + 2)
    assert chance([2], 3) == pytest.approx(one)
    assert chance([7, 1, 2], 3) == pytest.approx((2 + 2 * one) / (3 + 2))
    assert chance([1, 2], 9) == pytest.approx((2 * (2 * 0.1) / (4 + 2)) / (3 + 2))
    assert chance([], 3) == pytest.approx(0.1) and chance([8, 8], 3) == pytest.approx(0.1)
    for context in ([1, 2], [2], [8], [3, 1, 2]):
        assert sum(chance(context, token) for token in range(10)) == pytest.approx(1)


def test_greedy_texts_are_the_targets_whatever_the_ngrams_say():
    prompt, text = lively_prompt("llama", 12, 30)
    target = Session(pair("llama")[0], "target")

    def odd(context, token):
        return (1 + (context[-1] * 7 + token) % 5) / 300

    lengths = set()
    for model, ngrams in ((trained("llama", 12), even), (trained("llama", 12), odd), (head("llama"), odd)):
        used = method(model, target, ngrams=ngrams, ends={text[20]})
        tokens, rounds = decode(used, prompt, 30)
        assert tokens == text
        lengths |= {len(round_.verdict.drafted) for round_ in rounds if round_.verdict}
    assert len(lengths) > 2 and max(lengths) <= 4
    again = method(trained("llama", 12), target, ngrams=even)
    assert decode(again, prompt, 30) == decode(again, prompt, 30)


@pytest.mark.long
def test_samples_from_the_target():
    """The path is a point mass: the target accepts it with its own probability."""
    target = small_target()
    model = block_head(in_file(new_head(target, recipe(block=4), 2)), target)
    used = method(model, recalled(target, "target"), 3, lambda context, token: 0.1 + 0.05 * token, vocabulary=V)
    p, stood, fell = fit(used, target, [1, 3, 2], 3, Sampling(1.0), 450)
    assert p > 1e-4 and stood > 20 and fell > 100


def test_it_runs_on_the_bundled_pair(pocket):
    built = diffuspec.build(Settings(**SHIPPED), pocket, None)
    block = find_head("auto", "dflash", pocket, None).trained["block"]
    assert built.lossless and built.reach == block and set(built.inputs()) == {"head", "datastore"}
    prompt = pocket.tokenizer("Anna has 12 apples and buys 5 more.")["input_ids"]
    assert decode(built, prompt, 12, GREEDY)[0] == oracle.greedy(pocket.models["target"], prompt, 12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shortest": 0}, "diffuspec: shortest"),
        ({"shortest": 99}, "diffuspec: lengths from 99 to"),
        ({"longest": 99}, "lengths from 2 to 99 do not fit the head, which drafts"),
        ({"mass": 1.5}, "diffuspec: mass"),
        ({"smoothing": 0}, "diffuspec: smoothing"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "diffuspec", **changes)
