"""Gate: models that decode together give the text, or the distribution, of standard collaborative decoding."""

import functools
import itertools

import naive_cos as naive
import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from collaborations import COUNT, PAIRWISE, ROLES, THREE, WORDS, Group, made_pair, tables
from gates import GREEDY, decode
from law import texts

from specbench.engine.types import Method, Sampling
from specbench.methods.collaborative.cos.collaborate import Collaboration
from specbench.methods.collaborative.cos.combine import KeyedCombination

ARCHITECTURES = ("llama", "qwen3", "opt", "gemma2")
ALPHA = 1e-4  # of a right method being refused; wrong ones must fall below it

FOUR = ({}, naive.weighted(0.25, 0.25, 0.25, 0.25))


@functools.cache
def duo(architecture: str, combination: str, length: int = 6) -> Group:
    return Group(architecture, 2, PAIRWISE[combination][1], length)


def assert_same_text(group: Group, name: str, **settings) -> None:
    """A method says what the members say together."""
    assert decode(build(group.pair, name, **settings), group.prompt, COUNT)[0] == group.text, (name, settings)


@functools.cache
def trio(architecture: str, length: int = 6) -> Group:
    return Group(architecture, 3, THREE[1], length)


# Greedy ---------------------------------------------------------------------------------------------------------------


# Gemma 2's window is 16: one prompt is shorter, one longer.
CASES = [("llama", "weighted", 6), ("llama", "weights 0.3", 6), ("llama", "contrastive", 6), ("llama", "realigned", 6)]
CASES += [("qwen3", "contrastive", 6), ("opt", "weighted", 6), ("gemma2", "contrastive", 6), ("gemma2", "weighted", 20)]


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "combination", "length"), CASES)
def test_two_models_say_what_the_ensemble_says(architecture, combination, length):
    group, settings = duo(architecture, combination, length), PAIRWISE[combination][0]
    for name in ("ensemble", "ensemble-parallel"):
        assert_same_text(group, name, **settings)
    for gamma, proposer in itertools.product((1, 4), ("draft", "target")):
        for name in ("cos", "cos-naive", "cos-sd"):
            assert_same_text(group, name, gamma=gamma, proposer=proposer, **settings)


@mostly_long(
    "architecture, combination", [("llama", "weighted"), ("gemma2", "contrastive")], (("gemma2", "contrastive"),)
)
def test_all_pairs_of_proposal_lengths(architecture, combination):
    group, settings = duo(architecture, combination), PAIRWISE[combination][0]
    for gammas in itertools.product(range(1, 6), repeat=2):
        assert_same_text(group, "cos", gamma=list(gammas), proposer=ROLES[sum(gammas) % 2], **settings)


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_three_models_say_what_the_ensemble_says(architecture):
    group, settings = trio(architecture), THREE[0]
    for name in ("ensemble", "ensemble-parallel"):
        assert_same_text(group, name, **settings)
    for proposer in ROLES[:3]:
        for gammas in ([1, 1, 1], [3, 2, 1], [1, 4, 5]):
            assert_same_text(group, "cos", gamma=gammas, proposer=proposer, **settings)
        for name in ("cos-naive", "cos-sd"):
            assert_same_text(group, name, gamma=3, proposer=proposer, **settings)


def test_four_models_say_what_the_ensemble_says():
    group = Group("llama", 4, FOUR[1])
    assert_same_text(group, "ensemble")
    for gammas, proposer in (([1, 1, 1, 1], "draft"), ([2, 1, 3, 1], "math"), ([1, 5, 1, 2], "code")):
        assert_same_text(group, "cos", gamma=gammas, proposer=proposer)
    for name in ("cos-naive", "cos-sd"):
        assert_same_text(group, name, gamma=3, proposer="target")


def test_a_member_alone_says_its_own_text():
    group = trio("llama")
    for role, read in zip(ROLES[:3], group.readers, strict=True):
        alone = naive.ensemble_greedy([read], naive.weighted(1.0), group.prompt, COUNT)
        assert decode(build(group.pair, "member", model=role), group.prompt, COUNT)[0] == alone
        assert alone != group.text


def test_methods_forget_the_last_prompt():
    group = trio("llama")
    other = oracle.prompts(1, length=17, seed=99)[0]
    for name in ("ensemble", "cos", "cos-naive", "cos-sd"):
        method = build(group.pair, name, weights=[0.5, 0.3, 0.2])
        decode(method, other, 33)
        assert decode(method, group.prompt, COUNT)[0] == group.text, name


# Sampled --------------------------------------------------------------------------------------------------------------

# Settings of a method, the same combination done slowly, how many models, sampling.
SAMPLED = [
    ("ensemble", {}, naive.weighted(0.5, 0.5), 2, Sampling(1.0)),
    ("ensemble", {"combine": "contrastive", "mu": 0.4}, naive.contrastive(0.4), 2, Sampling(0.7, top_p=0.8)),
    ("ensemble-parallel", THREE[0], THREE[1], 3, Sampling(0.7)),
    *(
        ("cos", {"gamma": gamma, "proposer": proposer, **settings}, combine, 2, sampling)
        for gamma, proposer, settings, combine, sampling in (
            ([1, 1], "draft", {}, naive.weighted(0.5, 0.5), Sampling(1.0)),
            ([3, 2], "target", {"weights": 0.3}, naive.weighted(0.3, 0.7), Sampling(0.7)),
            ([5, 1], "draft", {"weights": 0.8}, naive.weighted(0.8, 0.2), Sampling(1.0, top_p=0.8)),
            ([1, 1], "target", {"combine": "contrastive", "mu": 0.4}, naive.contrastive(0.4), Sampling(1.0)),
            ([3, 2], "draft", {"combine": "contrastive", "mu": 0.1}, naive.contrastive(0.1), Sampling(0.7, top_p=0.8)),
            ([5, 1], "draft", {"combine": "contrastive", "mu": 0.8}, naive.contrastive(0.8), Sampling(1.0, top_k=4)),
            ([2, 2], "draft", {"combine": "realigned", "realign": 0.3}, naive.realigned(0.3), Sampling(1.0)),
        )
    ),
    ("cos", {"gamma": [1, 1, 1], "proposer": "math", **THREE[0]}, THREE[1], 3, Sampling(1.0)),
    ("cos", {"gamma": [2, 1, 3], "proposer": "draft", **THREE[0]}, THREE[1], 3, Sampling(1.0)),
    ("cos", {"gamma": [2, 1, 3], "proposer": "target", **THREE[0]}, THREE[1], 3, Sampling(0.7, top_p=0.8)),
    ("cos-naive", {"gamma": 3, "proposer": "draft"}, naive.weighted(0.5, 0.5), 2, Sampling(1.0)),
    ("cos-naive", {"gamma": 2, "proposer": "math", **THREE[0]}, THREE[1], 3, Sampling(0.7, top_p=0.8)),
    ("cos-sd", {"gamma": 3, "proposer": "draft"}, naive.weighted(0.5, 0.5), 2, Sampling(1.0)),
    ("cos-sd", {"gamma": 1, "combine": "contrastive", "mu": 0.4}, naive.contrastive(0.4), 2, Sampling(0.7, top_p=0.8)),
]


def likelihood(method: Method, models, combine: naive.Combine, sampling: Sampling, tokens: int = 6000) -> float:
    """P-value of one long text of `tables`: what follows each token, two by two, against r.

    Such a text is a Markov chain, so the pairs behind each token are independent draws.
    """
    text, _ = decode(method, [0], tokens, sampling)
    counts = np.zeros((WORDS, WORDS, WORDS))
    np.add.at(counts, (text[0:-2:2], text[1:-1:2], text[2::2]), 1)
    readers = [naive.reader(model) for model in models]
    sampler = naive.Sampler(sampling.temperature, sampling.top_k, sampling.top_p)
    exact = [naive.joint(readers, combine, [token], sampler) for token in range(WORDS)]
    return WORDS * min(oracle.chi_square(*one) for one in zip(counts, exact, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "settings", "combine", "count", "sampling"),
    SAMPLED,
    ids=[f"{name} {settings}" for name, settings, *_ in SAMPLED],
)
def test_long_texts_follow_the_combined_distribution(name, settings, combine, count, sampling):
    method = build(made_pair(tables(count)), name, **settings)
    assert likelihood(method, tables(count), combine, sampling) > ALPHA


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "combine", "count"),
    [
        ({"gamma": [1, 1], "combine": "contrastive", "mu": 0.4}, naive.contrastive(0.4), 2),
        ({"gamma": [2, 1, 1]} | THREE[0], THREE[1], 3),
    ],
    ids=("contrastive", "three"),
)
def test_first_three_tokens_of_a_prompt(settings, combine, count):
    """Real models, whose cache matters: the token of the prefill and the two behind it, by enumeration."""
    models = [oracle.tiny("llama", seed=seed, vocab=WORDS) for seed in range(1, count + 1)]
    method, sampling = build(made_pair(models), "cos", **settings), Sampling(1.0, top_p=0.9)
    prompt = [1, 5, 2]
    counts = texts(method, WORDS, prompt, 3, sampling, 600).counts
    exact = naive.joint([naive.reader(model) for model in models], combine, prompt, naive.Sampler(1.0, 0, 0.9), 3)
    assert oracle.chi_square(counts, exact) > ALPHA


@pytest.mark.long
def test_order_and_proposer_change_the_cost_and_not_the_distribution():
    models = tables(3)
    result = {}
    for order in ((0, 1, 2), (2, 0, 1)):
        weights = [(0.5, 0.3, 0.2)[i] for i in order]
        pair = made_pair([models[i] for i in order])
        for proposer in ROLES[:3]:
            method = build(pair, "cos", weights=weights, proposer=proposer, gamma=[3, 1, 1])
            # The combination named in the first order is the same function of the models.
            assert likelihood(method, models, THREE[1], Sampling(1.0), 2500) > ALPHA
            result[order, proposer] = decode(method, [0], 60, Sampling(1.0))[0]
    assert len({tuple(text) for text in result.values()}) == 6


def test_sampling_is_reproducible_and_seeded():
    method = build(made_pair(tables(2)), "cos", gamma=[3, 2])
    texts = [decode(method, [1], 60, Sampling(1.0), seed)[0] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


# Seeded defects -------------------------------------------------------------------------------------------------------


def cos_likelihood(exact: naive.Combine = PAIRWISE["weighted"][1], **settings) -> float:
    return likelihood(build(made_pair(tables(2)), "cos", gamma=[2, 1], **settings), tables(2), exact, Sampling(1.0))


@pytest.mark.long
def test_a_correction_drawn_from_r_is_found(monkeypatch):
    assert cos_likelihood() > ALPHA
    monkeypatch.setattr(torch, "minimum", lambda q, r: torch.zeros_like(r))  # so that nothing is taken off r
    assert cos_likelihood() < ALPHA


def test_the_distribution_of_another_model_is_found(monkeypatch):
    propose = Collaboration.propose

    def wrong(self, model):
        propose(self, model)
        self._q[-1] = self.sessions[1 - model].model.table[self._stream[-2]].softmax(-1)[None]

    monkeypatch.setattr(Collaboration, "propose", wrong)
    assert cos_likelihood() < ALPHA


def test_a_bonus_that_nobody_judged_is_found(monkeypatch):
    judge = Collaboration.judge

    def wrong(self):
        verdict = judge(self)
        if verdict is None or verdict.token is not None or self.pending != 1:
            return verdict
        bonus = self._stream[1:]
        self._clear(self._length + 1, bonus)
        return verdict._replace(token=int(bonus))

    monkeypatch.setattr(Collaboration, "judge", wrong)
    assert cos_likelihood() < ALPHA


@pytest.mark.long
def test_exchanged_members_are_found(monkeypatch):
    settings, combine = {"combine": "contrastive", "mu": 0.4}, naive.contrastive(0.4)
    assert cos_likelihood(combine, **settings) > ALPHA
    combined = KeyedCombination.combined
    monkeypatch.setattr(KeyedCombination, "combined", lambda self, rows, sampling: combined(self, rows[::-1], sampling))
    assert cos_likelihood(combine, **settings) < ALPHA
    group = duo("llama", "contrastive")
    wrong = decode(build(group.pair, "cos", combine="contrastive", mu=0.3), group.prompt, COUNT, GREEDY)[0]
    assert wrong != group.text
