"""Speculative cascades: the rules by hand, greedy texts by a decoder of both models, and the law of the mixture."""

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build, made
from cases import mostly_long
from enumerated import Laws, chance, finish, target_law
from enumerated import laws as random_laws
from gates import GREEDY, decode, pair
from law import Texts, texts
from refusals import one_line_error
from tabled import Table, V, warped

from specbench.engine import accept
from specbench.engine.accept import exact_test
from specbench.engine.sampling import pick, probabilities
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored
from specbench_extras.rapid import cascade
from specbench_extras.rapid.cascade import Cascade, Settings, trusted

EXACT = 1e-12
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
EVERY = (("chow", 0.4), ("diff", 0.1), ("opt", 0.1))
RULES = pytest.mark.parametrize(("defer", "alpha"), EVERY)
ONE_RULE = mostly_long("defer, alpha", EVERY, (("diff", 0.1),))


def test_the_rules_by_hand():
    """max q = 0.6, max p = 0.7, TV = 0.5: chow trusts from α = 0.4 on, diff from 0.1 on, opt from 0.2 on."""
    p, q = torch.tensor([[0.7, 0.2, 0.1]]).double(), torch.tensor([[0.4, 0.0, 0.6]]).double()
    for rule, edge in (("chow", 0.4), ("diff", 0.1), ("opt", 0.2)):
        assert not trusted(p, q, rule, edge - 1e-6).item() and trusted(p, q, rule, edge + 1e-6).item()


def mixture(p: np.ndarray, q: np.ndarray, defer: str, alpha: float) -> np.ndarray:
    margin = {"diff": alpha, "opt": alpha * np.maximum(p - q, 0).sum()}.get(defer)
    return q if (q.max() >= 1 - alpha if margin is None else q.max() >= p.max() - margin) else p


def round_law(monkeypatch, p: Laws, q: Laws, settings: Settings, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The law of the K + 1 tokens of a round and the mixture after it, by enumeration; and the mixture's own."""
    method = Cascade(Table(V, 3), Table(V, 4), settings)
    count = settings.gamma
    mixed = {text: mixture(p[text], q[text], settings.defer, settings.alpha) for text in p}
    law, tests, left = np.zeros((vocabulary,) * (count + 1)), [], []
    with monkeypatch.context() as patch:
        patch.setattr(cascade, "exact_test", lambda *asked: tests.append(exact_test(*asked)) or tests[-1])
        patch.setattr(accept, "pick", lambda probs, rng: left.append(probs.numpy()) or probs.argmax(-1))
        for drafted in itertools.product(range(vocabulary), repeat=count):
            weight = chance(q, drafted)
            if not weight:
                continue
            of_target, of_draft = (
                torch.tensor(np.stack([model[drafted[:i]] for i in range(count + 1)])) for model in (p, q)
            )
            method.drafter.logits = of_draft.log()
            draft = Draft(torch.tensor(drafted), of_draft[:count])
            method.accept(draft, Scored(of_target.log()), Sampling(1.0), torch.Generator())
            for place in range(count + 1):
                own = q[drafted[:place]][drafted[place]] if place < count else 1.0
                passes = min(1.0, float(tests[-1].p[place]) / own) if place < count else 0.0
                rejected, weight = weight * (1 - passes), weight * passes
                if rejected:
                    emitted = left[-1][place] / left[-1][place].sum()
                    for token in np.flatnonzero(emitted):
                        finish(mixed, law, (*drafted[:place], int(token)), rejected * emitted[token], count + 1)
    return law, target_law(mixed, vocabulary, count + 1)


@RULES
@pytest.mark.parametrize("vocabulary", (3, 4))
@pytest.mark.parametrize("k", (1, 2, 3))
def test_the_law_of_a_round_is_that_of_the_mixture(monkeypatch, k, vocabulary, defer, alpha):
    p, q = (random_laws(vocabulary, k, seed) for seed in (0, 100))
    law, mixed = round_law(monkeypatch, p, q, Settings(gamma=k, defer=defer, alpha=alpha), vocabulary)
    assert np.abs(law - mixed).sum() / 2 < EXACT
    assert np.abs(mixed - target_law(p, vocabulary, k + 1)).sum() / 2 > 1e-3, "the draft speaks somewhere"
    assert np.abs(mixed - target_law(q, vocabulary, k + 1)).sum() / 2 > 1e-3, "and not everywhere"


def test_a_wrong_residual_is_found_by_enumeration(monkeypatch):
    p, q = (random_laws(3, 2, seed) for seed in (2, 102))
    monkeypatch.setattr(accept, "residual", lambda p, q: p)
    law, mixed = round_law(monkeypatch, p, q, Settings(gamma=2, defer="opt", alpha=0.1), 3)
    assert np.abs(law - mixed).sum() / 2 > 1e-3


class Drawn(NamedTuple):
    drawn: Texts
    mixed: np.ndarray  # [V, V, V, V]: probabilities of texts by the mixture
    target: np.ndarray  # and by the target
    share: float  # of the places where the draft speaks


def laws(sampling: Sampling, defer: str, alpha: float, draws: int = 800) -> Drawn:
    """Texts of four tokens, and what they may follow. The first token is the target's own."""
    target, draft, prompt, count = Table(V, 3), Table(V, 4), [1, 2], 4
    method = Cascade(target, draft, Settings(gamma=2, defer=defer, alpha=alpha))
    drawn = texts(method, V, prompt, count, sampling, draws)
    mixed, of_target = np.ones((V,) * count), np.ones((V,) * count)
    trusts = []
    for text in itertools.product(range(V), repeat=count):
        for i, token in enumerate(text):
            last, length = text[i - 1] if i else prompt[-1], len(prompt) + i
            p, q = (warped(model.row(last, length), sampling).numpy() for model in (target, draft))
            row = mixture(p, q, defer, alpha) if i else p
            trusts += [row is q] if i else []
            mixed[text] *= row[token]
            of_target[text] *= p[token]
    return Drawn(drawn, mixed, of_target, float(np.mean(trusts)))


SAMPLINGS = mostly_long(
    "sampling", (Sampling(2.0), Sampling(2.0, top_k=3, top_p=0.98)), lambda sampling: sampling.top_k, ids=str
)


@RULES
@SAMPLINGS
def test_texts_follow_the_mixture(sampling, defer, alpha):
    """Tokens are kept and rejected in numbers: neither speaks alone."""
    shares = laws(sampling, defer, alpha)
    assert 0 < shares.share < 0.9 and shares.drawn.accepted > 100 and shares.drawn.rejected > 100
    assert oracle.chi_square(shares.drawn.counts, shares.mixed) > ALPHA
    reachable = shares.target > 0
    assert oracle.chi_square(shares.drawn.counts * reachable, shares.target) < ALPHA, "it is not the target's law"


@pytest.mark.long
@ONE_RULE
def test_a_correction_that_forgets_the_draft_is_found(monkeypatch, defer, alpha):
    """Wrong: after a rejection a token is drawn from all of the mixture, not from what the draft left of it."""

    def wrong(draft, logits, sampling, rng):
        return replace(exact_test(draft, logits, sampling, rng), emit=pick(probabilities(logits, sampling), rng))

    monkeypatch.setattr(cascade, "exact_test", wrong)
    shares = laws(Sampling(2.0), defer, alpha, 1600)
    assert oracle.chi_square(shares.drawn.counts, shares.mixed) < ALPHA


@ONE_RULE
def test_a_draft_that_speaks_where_it_is_not_trusted_is_found(monkeypatch, defer, alpha):
    """Wrong: the rule is turned round."""
    monkeypatch.setattr(cascade, "trusted", lambda *asked: ~trusted(*asked))
    shares = laws(Sampling(2.0), defer, alpha)
    assert oracle.chi_square(shares.drawn.counts, shares.mixed) < ALPHA


@RULES
def test_greedy_texts_are_those_of_the_mixture(defer, alpha):
    target, draft = pair("llama")
    for prompt in oracle.prompts(2, length=8, seed=3):
        method = Cascade(
            Session(target, "target"), Session(draft, "draft"), Settings(gamma=3, defer=defer, alpha=alpha)
        )
        tokens, _ = decode(method, prompt, 16)
        text = [*prompt, oracle.best(oracle.next_logits(target, prompt))]
        while len(text) < len(prompt) + 16:
            logits = [oracle.next_logits(model, text).cpu() for model in (target, draft)]
            p, q = (row.double().softmax(-1).numpy() for row in logits)
            text.append(int(mixture(p, q, defer, alpha).argmax()))
        assert tokens == text[len(prompt) :]


def test_a_draft_that_is_never_trusted_is_speculative_sampling():
    sps, never = build(made(), "sps", gamma=3), build(made(), "cascade", gamma=3, defer="chow", alpha=-1)
    for sampling in (GREEDY, Sampling(1.0)):
        assert decode(never, [5, 6, 7], 20, sampling)[0] == decode(sps, [5, 6, 7], 20, sampling)[0]
    assert not never.lossless and never.reach == 4


def test_what_is_refused():
    with one_line_error("cascade: defer"):
        build(made(), "cascade", defer="always")
