"""RAPID: what a draft reads by hand, greedy texts by a decoder of both prompts, and the enumerated law."""

import itertools
import math

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build, lonely, made
from gates import GREEDY, decode, lively, pair
from law import texts
from refusals import one_line_error
from tabled import Table, V, law, warped

from specbench.engine.types import Sampling
from specbench_extras.rapid import rapid
from specbench_extras.rapid.rapid import Rapid, RetrievalDrafter, Settings, Shortened, bm25

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
SHORT = {"chunk": 3, "kept": 3, "share": 0.0, "question": 2, "head": 1}


def settings(**changes) -> Settings:
    given = {"gamma": 2, "eta": 5.0, "tail": 0.1, "drafter": "target"} | SHORT
    return Settings(**(given | changes))


def test_parts_by_hand():
    """Two parts of three tokens; 7 is in one of them, 8 in none, 9 twice in one and once in the other."""
    scores = bm25([[7, 9, 1], [9, 9, 2]], {7, 8, 9})
    rare, common = math.log(1 + 1.5 / 1.5), math.log(1 + 0.5 / 2.5)
    once, twice = 2.2 / (1 + 1.2), 2 * 2.2 / (2 + 1.2)
    assert scores == pytest.approx([rare * once + common * once, common * twice])
    longer = bm25([[7], [7, 1, 1]], {7})  # of equal counts, the shorter part
    assert longer[0] > longer[1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [1, 30, 31, 32, 31, 99]),  # the beginning, the part with the question's 31, and the question
        ({"kept": 6}, [1, 20, 21, 22, 30, 31, 32, 31, 99]),  # in the text's order; ties go to the earlier part
        ({"kept": 5}, [1, 30, 31, 32, 31, 99]),  # no part is cut
        ({"kept": 0}, [1, 31, 99]),
        ({"kept": 0, "share": 0.5}, [1, 20, 21, 22, 30, 31, 32, 31, 99]),  # half of 12 tokens
        ({"kept": 99}, [1, 20, 21, 22, 30, 31, 32, 40, 41, 42, 31, 99]),
        ({"question": 50}, [1, 20, 21, 22, 30, 31, 32, 40, 41, 42, 31, 99]),
        ({"head": 50}, [1, 20, 21, 22, 30, 31, 32, 40, 41, 42, 31, 99]),
    ],
)
def test_shortened_prompts_by_hand(changes, expected):
    prompt = [1, 20, 21, 22, 30, 31, 32, 40, 41, 42, 31, 99]
    assert Shortened(settings(**changes))(prompt) == expected


def moved(z: np.ndarray, q: np.ndarray, p: np.ndarray, weight: float, tail: float) -> np.ndarray:
    """The target's logits after the draft's lesson, token by token."""
    return np.array([z[x] + (weight * (q[x] - p[x]) if q[x] >= tail * q.max() else 0.0) for x in range(len(z))])


PROMPT = [1, 0, 2, 3, 1, 2, 0, 3, 3, 1]
GAMMA, COUNT = 2, 4


def enumerated(target: Table, draft: Table, sampling: Sampling, eta: float, tail: float) -> np.ndarray:
    """Probabilities [V, V, V, V] of texts: what a round may do at each of its places, summed over all rounds."""
    short = len(Shortened(settings())(PROMPT))
    law = np.zeros((V,) * COUNT)
    for text in itertools.product(range(V), repeat=COUNT):
        weights = {0: float(warped(target.row(PROMPT[-1], len(PROMPT)), sampling)[text[0]])}  # by drafted tokens
        for i in range(1, COUNT):
            row = target.row(text[i - 1], len(PROMPT) + i)
            p = warped(row, sampling).numpy()
            q = warped(draft.row(text[i - 1], short + i), sampling).numpy()
            z = moved(row.cpu().numpy(), q, p, eta * sampling.temperature, tail)
            m = np.minimum(q, warped(torch.tensor(z), sampling).numpy())
            rest = np.maximum(p - m, 0)
            after, x = dict.fromkeys(range(GAMMA + 1), 0.0), text[i]
            for place, weight in weights.items():
                if place == GAMMA:
                    after[0] += weight * p[x]
                    continue
                after[place + 1] += weight * m[x]
                after[0] += weight * (1 - m.sum()) * rest[x] / rest.sum() if rest.sum() > 0 else 0.0
            weights = after
        law[text] = sum(weights.values())
    return law


def tables(**changes) -> tuple[Table, Table, Rapid]:
    target, draft = Table(V, 3), Table(V, 4)
    chosen = settings(gamma=GAMMA, **changes)
    return target, draft, Rapid(target, RetrievalDrafter(draft, Shortened(chosen)), chosen)


LONG = pytest.mark.long
CUT = pytest.param(Sampling(1.5, top_k=3, top_p=0.98), marks=LONG)
SAMPLINGS = pytest.mark.parametrize("sampling", (Sampling(2.0), CUT), ids=str)


@SAMPLINGS
def test_texts_follow_the_enumerated_law(sampling):
    target, draft, method = tables(eta=6.0, tail=0.3)
    expected = enumerated(target, draft, sampling, 6.0, 0.3)
    assert expected.sum() == pytest.approx(1) and not method.lossless
    drawn = texts(method, V, PROMPT, COUNT, sampling, 1200)
    assert drawn.accepted > 200 and drawn.rejected > 200
    assert oracle.chi_square(drawn.counts, expected) > ALPHA
    own = law(target, PROMPT, COUNT, sampling)
    assert oracle.chi_square(drawn.counts * (own > 0), own) < ALPHA, "with a weight it is not the target's law"


@SAMPLINGS
def test_without_a_weight_it_is_lossless(sampling):
    target, draft, method = tables(eta=0.0)
    own = law(target, PROMPT, COUNT, sampling)
    assert method.lossless and enumerated(target, draft, sampling, 0.0, 0.1) == pytest.approx(own)
    drawn = texts(method, V, PROMPT, COUNT, sampling, 800)
    assert drawn.accepted > 100 and drawn.rejected > 100 and oracle.chi_square(drawn.counts, own) > ALPHA


WRONG = {
    "a correction from all of p": ("residual", lambda p, m: p),
    "a lesson turned round": ("taught", lambda z, q, p, weight, tail: z + weight * (p - q)),
    "no lesson": ("taught", lambda z, q, p, weight, tail: z),
    "no tail": ("taught", lambda z, q, p, weight, tail: z + weight * (q - p)),
}


@LONG
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_are_found(monkeypatch, wrong):
    monkeypatch.setattr(rapid, *WRONG[wrong])
    target, draft, method = tables(eta=6.0, tail=0.6)
    drawn = texts(method, V, PROMPT, COUNT, Sampling(2.0), 2000)
    assert oracle.chi_square(drawn.counts, enumerated(target, draft, Sampling(2.0), 6.0, 0.6)) < ALPHA


@pytest.mark.parametrize("drafter", ("target", pytest.param("draft", marks=LONG)))
def test_greedy_texts_by_a_decoder_of_both_prompts(drafter):
    """Each round by whole forwards: the draft's tokens, what stands, and the token that follows."""
    models, changes = pair("llama"), SHORT | {"gamma": 3, "eta": 4.0, "tail": 0.2, "drafter": drafter}
    target, draft = models[0], models[drafter == "draft"]
    prompt, _ = lively(target, 24, 16)
    short = Shortened(settings(**changes))(prompt)
    assert len(short) == 6
    tokens, rounds = decode(build(made(), "rapid", **changes), prompt, 16)
    answer = [oracle.best(oracle.next_logits(target, prompt))]
    rescued = 0
    for step in rounds[1:]:
        drafted = oracle.greedy(draft, [*short, *answer], 3)
        assert step.verdict.drafted == drafted
        for i in range(4):
            z = oracle.next_logits(target, [*prompt, *answer]).cpu().double()
            if i == 3:
                answer.append(oracle.best(z))
                break
            q = oracle.next_logits(draft, [*short, *answer]).cpu().double().softmax(-1).numpy()
            best = int(moved(z.numpy(), q, z.softmax(-1).numpy(), 4.0, 0.2).argmax())
            answer.append(best)
            if best != drafted[i]:
                break
            rescued += best != oracle.best(z)
    assert tokens == answer[: len(tokens)]
    assert sum(len(step.verdict.rescued) for step in rounds[1:]) == rescued > 0


def test_the_draft_reads_the_short_prompt_only():
    method = build(made(), "rapid", **SHORT, gamma=2, eta=0.0)
    prompt, text = lively(pair("llama")[0], 24, 12)
    assert decode(method, prompt, 12)[0] == text
    assert len(method.drafter.session) <= 6 + 12 + 2 < len(method.target)
    whole = build(made(), "rapid", **(SHORT | {"kept": 99}), gamma=2, eta=0.0)
    assert all(step.accepted == 2 for step in decode(whole, prompt, 12)[1][1:-1]), "with all of it, it is the target"


def test_a_weight_of_zero_is_speculative_sampling():
    models = made()
    plain = build(models, "sps", gamma=4)
    whole = build(models, "rapid", **(SHORT | {"kept": 99}), gamma=4, eta=0.0, drafter="draft")
    for sampling in (GREEDY, Sampling(1.0)):
        result, expected = (decode(method, [5, 6, 7, 8, 9, 10], 20, sampling)[0] for method in (whole, plain))
        assert result == expected


def test_what_ships_and_what_is_refused():
    method = build(made(), "rapid")
    assert not method.lossless and method.reach == 11
    assert build(lonely(), "rapid-pocket", eta=0.0).lossless  # the target is enough
    for name, value in {"eta": -1.0, "tail": 1.1, "chunk": 0, "question": 0, "drafter": "both"}.items():
        with one_line_error(f"rapid: {name}"):
            build(made(), "rapid", **{name: value})
