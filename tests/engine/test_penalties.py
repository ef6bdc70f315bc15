"""Penalties and min-p: transformers' own texts, and the enumerated law of sampled ones, whatever the draft."""

from collections import Counter

import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE
from law import V, texts
from word_models import tokenizer

from specbench import config
from specbench.base.errors import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.penalties import Penalties
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session, Unwatched
from specbench.engine.speculate import read_in_chunks
from specbench.engine.types import Sampling
from specbench.measure.prepare import build

PROMPT = [1, 4, 2, 4]
ALL = Penalties(repetition=1.7, presence=0.4, frequency=-0.9)


def penalised(logits, prompt, answer, penalties):
    """The definition, a token at a time."""
    logits = [float(x) for x in logits]
    counts = Counter(answer)
    for token in {*prompt, *answer}:
        value = logits[token]
        logits[token] = value / penalties.repetition if value > 0 else value * penalties.repetition
    return torch.tensor(
        [x - penalties.presence * (counts[i] > 0) - penalties.frequency * counts[i] for i, x in enumerate(logits)],
        dtype=torch.float64,
    )


@pytest.fixture(scope="module")
def models():
    return {role: oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for role, seed in (("target", 1), ("draft", 2))}


def test_each_row_of_a_session_is_penalised_by_the_text_before_it(models):
    target, rest = models["target"], [3, 3, 1, 4]
    raw = {n: oracle.next_logits(target, [*PROMPT, *rest][:n]) for n in range(1, 9)}
    session = Session(target, "target", change=ALL)
    rows = [session.restart(PROMPT).logits, session.forward(rest).logits]
    for answered, row in enumerate(torch.cat(rows)):
        expected = penalised(raw[len(PROMPT) + answered], PROMPT, rest[:answered], ALL)
        torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)
    session.truncate(len(PROMPT) + 1)  # a rollback is forgotten
    row = session.forward([2]).logits[-1]
    expected = penalised(oracle.next_logits(target, [*PROMPT, 3, 2]), PROMPT, [3, 2], ALL)
    torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)


def test_each_node_of_a_tree_is_penalised_by_its_own_path(models):
    target = models["target"]
    session = Session(target, "target", change=ALL)
    session.restart(PROMPT)
    tokens, parents = [3, 1, 3, 3, 2], [-1, 0, 0, 2, -1]
    rows = torch.cat(
        [session.forward(tokens[:3], parents=parents[:3]).logits, session.forward([3, 2], parents=[2, -1]).logits]
    )
    for path, row in zip(([3], [3, 1], [3, 3], [3, 3, 3], [2]), rows, strict=True):
        expected = penalised(oracle.next_logits(target, [*PROMPT, *path]), PROMPT, path, ALL)
        torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)


def test_a_prompt_that_is_read_in_chunks_is_a_prompt_all_the_same(models):
    session = Session(models["target"], "target", change=ALL)
    *_, last = read_in_chunks(session, PROMPT, 3)
    expected = penalised(oracle.next_logits(models["target"], PROMPT), PROMPT, [], ALL)
    torch.testing.assert_close(last.logits[-1].cpu(), expected, rtol=0, atol=1e-5)


def of_name(name, models, **sampling):
    """A method of tiny models that samples so."""
    spec = config.load_method(name)
    changes = {key: 3 for key in ("gamma", "draft_length") if key in spec.settings}
    if name == "rsd":
        changes = {"branching": [2, 1]}
    spec = config.override(spec, {key: config.Setting(value=value) for key, value in changes.items()})
    pair = Pair("tiny", models, tokenizer(), penalties=Sampling(**sampling).penalties)
    return build(spec, pair, Unwatched())


EXACT = ["vanilla", "sps", "pearl", "rsd", "pld", "lookahead", "recycling", "suffix"]


@pytest.mark.parametrize(("name", "penalty"), [(name, 1.3) for name in EXACT] + [("sps", 0.7)])
def test_greedy_texts_are_those_of_transformers(name, penalty):
    target, draft = oracle.tiny_pair("llama")
    prompt = oracle.prompts(1, length=12)[0]
    ids = torch.tensor([prompt])
    with torch.no_grad():
        whole = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=40,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=None,
            pad_token_id=0,
        )
    expected = whole[0, len(prompt) :].tolist()
    assert expected != oracle.greedy(target, prompt, 40), "the penalty shows"
    method = of_name(name, {"target": target, "draft": draft}, repetition_penalty=penalty)
    tokens = []
    for step in method.rounds(prompt, Sampling(repetition_penalty=penalty), torch.Generator()):
        tokens += step.tokens
        if len(tokens) >= 40:
            break
    assert tokens[:40] == expected


def law(target, sampling, count, answer=()):
    """Exact probabilities [V, …, V] of every text of `count` tokens."""
    logits = penalised(
        oracle.next_logits(target, [*PROMPT, *answer]), PROMPT, answer, sampling.penalties or Penalties()
    )
    p = oracle.warp(logits, sampling.temperature, sampling.top_k, sampling.top_p).numpy()
    p = np.where(p < sampling.min_p * p.max(), 0, p)
    p /= p.sum()
    if count == 1:
        return p
    return np.stack([x * law(target, sampling, count - 1, [*answer, token]) for token, x in enumerate(p)])


SAMPLINGS = [
    Sampling(1.0, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=-0.9),
    Sampling(0.8, top_p=0.9, min_p=0.15, frequency_penalty=0.8),
]


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("sps", SAMPLINGS[0]),
        *(
            pytest.param(name, sampling, marks=pytest.mark.long)
            for name in ("sps", "rsd", "pld", "recycling")
            for sampling in SAMPLINGS[name == "sps" :]
        ),
    ],
)
def test_sampled_texts_follow_the_enumerated_law(models, name, sampling):
    method = of_name(name, models, **vars(sampling))
    drawn = texts(method, V, PROMPT, 2, sampling, 600)
    expected = law(models["target"], sampling, 2)
    assert oracle.chi_square(drawn.counts, expected) > 1e-4
    plain = Sampling(sampling.temperature, top_p=sampling.top_p)
    assert oracle.chi_square(drawn.counts, law(models["target"], plain, 2)) < 1e-4, "without penalties and min-p"


def test_min_p_keeps_what_is_near_the_likeliest():
    logits = torch.tensor([[0.5, 0.25, 0.2, 0.05]]).log()
    expected = torch.tensor([[0.5, 0.25, 0, 0]]) / 0.75
    torch.testing.assert_close(probabilities(logits, Sampling(1.0, min_p=0.45)), expected)
    torch.testing.assert_close(probabilities(logits, Sampling(1.0, min_p=0.5)), expected)


@pytest.mark.parametrize("name", ["reflective", "cos", "cascade"])
def test_methods_whose_forwards_read_other_texts_refuse_penalties(models, name):
    with pytest.raises(UserError, match="leave out the method or the penalties"):
        of_name(name, models, presence_penalty=0.5)


@pytest.mark.parametrize("wrong", [{"min_p": 1.0}, {"min_p": -0.1}, {"repetition_penalty": 0.0}])
def test_values_that_mean_nothing(wrong):
    with pytest.raises(ValueError, match="must be"):
        Sampling(1.0, **wrong)
