"""Lossy speculative decoding by a threshold: hand-worked rounds, its neutral settings, and the law of its samples."""

import math

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from gates import DEVICE, GREEDY, csd, decode, lively_prompt, pair, sps, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import assert_same_rounds, judged
from watched import reads_of_tensors

from specbench import config
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.lengths import Lengths
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.lossy.lossy import Lossy, Settings

SAMPLED = Sampling(1.0, top_p=0.9)
SHIPPED = config.load_method("lossy").values


def lossy(target, draft, gamma: int = 4, **changes) -> Lossy:
    chosen = config.validated(Settings, {**SHIPPED, "gamma": gamma, **changes}, "lossy")
    return Lossy(Session(target, "target"), ModelDrafter(Session(draft, "draft")), chosen)


# ln 0.6 = -0.511. Row 0: a match. Row 1: draft 0 lies 0.4 below token 1: kept. Row 2: draft 3 ties with token 2, the
# target's choice by its lower index: kept, 0 >= -0.511. Row 3: draft 1 lies 0.6 below token 0: stop. Row 4: the bonus.
ROWS = [[3.0, 2, 0, 0], [1.0, 1.4, 0, 0], [0, 0, 2.0, 2.0], [5.0, 4.4, 0, 0], [0, 0, 0, 9.0]]


@pytest.mark.parametrize(
    ("drafted", "accepted", "token", "rescued"),
    [
        ([0, 0, 3, 1], 3, 0, (1, 2)),
        ([0, 0, 3, 0], 4, 3, (1, 2)),  # row 3 is a match now: all stand, the bonus follows
        ([1, 0, 3, 0], 0, 0, ()),  # draft 1 lies 1.0 below in row 0: nothing stands
        ([0, 0], 2, 2, (1,)),  # the last of two is rescued: row 2 gives the bonus
        ([0, 2, 3, 0], 1, 1, ()),  # row 1: 1.4 below
        ([], 0, 0, ()),
    ],
)
@pytest.mark.parametrize("form", ("gate", "lenience"))
def test_hand_worked_greedy_rounds(form, drafted, accepted, token, rescued):
    """At temperature 0 both forms are the same gate."""
    other = {"gate": "lenience", "lenience": "gate_threshold"}[form]
    method = lossy(*pair("llama"), form=form, **{other: 1.0})
    verdict = judged(method, ROWS[: len(drafted) + 1], drafted)
    assert (verdict.accepted, verdict.token, verdict.rescued) == (accepted, token, rescued)
    assert verdict.drafted == drafted and verdict.targets == [0, 1, 2, 0][: len(drafted)]
    if drafted == [0, 0, 3, 1]:
        assert verdict.ratios == pytest.approx(np.exp([0.0, -0.4, 0.0, -0.6]))


@pytest.mark.parametrize(
    ("threshold", "gap", "kept"),
    [
        (0.5, math.log(0.5), True),  # at least, not more than
        (0.5, math.nextafter(math.log(0.5), -9), False),
        (1.0, 0.0, True),  # an exact tie
        (1.0, -1e-9, False),
        (0.0, -50.0, True),
    ],
)
@pytest.mark.parametrize("form", ("gate", "lenience"))
def test_the_threshold_at_its_edges(form, threshold, gap, kept):
    method = lossy(*pair("llama"), form=form, gate_threshold=threshold, lenience=threshold)
    verdict = judged(method, [[0.0, gap], [0.0, 1.0]], [1])
    assert (verdict.accepted, verdict.token) == ((1, 1) if kept else (0, 0))


def naive(rows, drafted, threshold):
    """The rule once more, in probabilities: keep d if it is at least `threshold` times as likely as the likeliest."""
    kept = []
    for row, d in zip(rows, drafted, strict=False):
        weights = [math.exp(z) for z in row]
        best = weights.index(max(weights))
        if d != best and weights[d] / weights[best] < threshold * (1 - 1e-12):
            return len(kept), best, tuple(i for i, match in enumerate(kept) if not match)
        kept.append(d == best)
    last = rows[len(drafted)]
    return len(kept), last.index(max(last)), tuple(i for i, match in enumerate(kept) if not match)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_greedy_rounds_equal_a_naive_scan(data):
    count, vocab = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 4))
    logit = st.integers(-4, 4).map(lambda n: n / 4)  # coarse, so that ties are common
    rows = data.draw(st.lists(st.lists(logit, min_size=vocab, max_size=vocab), min_size=count + 1, max_size=count + 1))
    drafted = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    threshold = data.draw(st.sampled_from((0.0, 0.1, 0.5, 0.6, 0.9, 1.0)))
    verdict = judged(lossy(*pair("llama"), gate_threshold=threshold), rows, drafted)
    assert (verdict.accepted, verdict.token, verdict.rescued) == naive(rows, drafted, threshold)


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED, Sampling(0.7, top_k=8)), ids=("greedy", "top-p", "top-k"))
@pytest.mark.parametrize("form", ("gate", "lenience"))
@mostly_long("architecture", ("qwen2", "gemma2"), ("gemma2",))
def test_a_threshold_of_one_is_speculative_sampling(architecture, form, sampling):
    """Token for token and round for round; the other form's threshold must not matter."""
    neutral = {"form": form, "gate_threshold": 0.0, "lenience": 0.0}
    neutral["gate_threshold" if form == "gate" else "lenience"] = 1.0
    method = lossy(*pair(architecture), **neutral)
    assert_same_rounds(method, sps(architecture, 4, Lengths()), architecture, sampling)


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_the_gate_is_csd_without_its_memory(sampling):
    target, draft = pair("llama")
    scg = csd(target, draft, 4, count_threshold=0, gate_threshold=0.3, online=False)
    rounds = assert_same_rounds(lossy(target, draft, gate_threshold=0.3), scg, "llama", sampling, 60, seed=3)
    assert sum(r.rescued for r in rounds) > 2


def test_a_rejected_argmax_stays_rejected_by_the_gate():
    """At T > 0 a draft of the target's own argmax may be rejected; its ratio of 1 must not save it."""
    method = lossy(*pair("llama"), gate_threshold=1.0)
    verdicts = [judged(method, [[1.0, 0.5], [0, 0]], [0], Sampling(1.0), [[1.0, 0.0]], seed) for seed in range(60)]
    # p(0) = 0.62 and q(0) = 1, so about 23 of 60 are rejected.
    assert 10 < sum(v.accepted == 0 for v in verdicts) < 40
    assert all(v.token == 1 for v in verdicts if v.accepted == 0)
    assert all(v.rescued == () for v in verdicts)


# Worked by hand for ε = 1/2, one draft token drawn from q. p/ε = (1, .6, .3, .1), so min(q, p/ε) = (.1, .2, .3, .1) is
# accepted, .7 in all, of which min(q, p) = (.1, .2, .15, .05) passes the exact test and the rest, .2, is rescued. The
# .3 that is rejected goes to (p - q)+ = (.4, .1, 0, 0), that is (.8, .2, 0, 0): .24 and .06.
P, Q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]
EMITTED, RESCUED = [0.34, 0.26, 0.30, 0.10], 0.20


def test_the_law_of_lenient_sampling():
    method, rng, draws = lossy(*pair("llama"), form="lenience", lenience=0.5), np.random.default_rng(0), 4000
    logits, q = [[math.log(x) for x in P], [0.0, 0, 0, 9]], [Q]
    counts, rescued = np.zeros(4), 0
    for seed, d in enumerate(rng.choice(4, draws, p=Q).tolist()):
        verdict = judged(method, logits, [d], Sampling(1.0), q, seed)
        counts[d if verdict.accepted else verdict.token] += 1
        rescued += len(verdict.rescued)
    assert oracle.chi_square(counts, np.array(EMITTED)) > 1e-4
    assert abs(rescued / draws - RESCUED) < 4 * math.sqrt(RESCUED * (1 - RESCUED) / draws)
    assert oracle.chi_square(counts, np.array(P)) < 1e-6, "lossy: not the target's distribution"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lenient_rounds_equal_a_naive_scan(data):
    """Decisions under the same u as the method draws; a correction must be a token with p > q."""
    count, vocab, seed = data.draw(st.integers(1, 4)), 4, data.draw(st.integers(0, 999))
    row = st.lists(st.integers(1, 9), min_size=vocab, max_size=vocab)
    ps = [[x / sum(r) for x in r] for r in data.draw(st.lists(row, min_size=count + 1, max_size=count + 1))]
    qs = [[x / sum(r) for x in r] for r in data.draw(st.lists(row, min_size=count, max_size=count))]
    drafted = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    lenience = data.draw(st.sampled_from((0.0, 0.2, 0.5, 1.0)))
    method = lossy(*pair("llama"), form="lenience", lenience=lenience)
    verdict = judged(method, [[math.log(x) for x in p] for p in ps], drafted, Sampling(1.0), qs, seed)
    draws = torch.rand(count, generator=torch.Generator(DEVICE).manual_seed(seed), device=DEVICE, dtype=torch.float64)
    accepted, rescued = 0, []
    for i, (d, u) in enumerate(zip(drafted, draws.tolist(), strict=True)):
        ratio = ps[i][d] / qs[i][d]
        chance = min(1.0, ratio / lenience) if lenience else 1.0
        if u >= chance:
            break
        accepted += 1
        if u >= min(1.0, ratio):
            rescued.append(i)
    assert (verdict.accepted, verdict.rescued) == (accepted, tuple(rescued))
    if accepted < count and not math.isclose(max(p - q for p, q in zip(ps[accepted], qs[accepted], strict=True)), 0):
        assert ps[accepted][verdict.token] > qs[accepted][verdict.token] - 1e-9
    assert verdict.targets == [p.index(max(p)) for p in ps[:count]]
    assert verdict.ratios == pytest.approx([p[d] / max(p) for p, d in zip(ps, drafted, strict=False)])


def test_lenience_takes_drafts_without_distributions():
    """A point mass: q(d) = 1, so d = 1 is accepted with min(1, .27/.5) = .54, and never follows its own rejection."""
    method = lossy(*pair("llama"), form="lenience", lenience=0.5)
    verdicts = [judged(method, [[1.0, 0.0], [0, 9.0]], [1], Sampling(1.0), None, seed) for seed in range(400)]
    share = sum(v.accepted for v in verdicts) / 400
    assert abs(share - 2 / (1 + math.e)) < 0.1
    assert all(v.token == 0 for v in verdicts if v.accepted == 0)


def test_a_rescued_end_token_ends_the_text():
    target, draft = pair("llama")
    prompt, _ = lively_prompt("llama", 12, 30)
    text, rounds = decode(lossy(target, draft, gate_threshold=0.3), prompt, 60)
    start, eos = 0, None
    for round_ in rounds:
        if round_.verdict and round_.verdict.rescued and eos is None:
            eos, end = round_.tokens[round_.verdict.rescued[0]], start + round_.verdict.rescued[0]
        start += len(round_.tokens)
    first = text.index(eos)
    ending = Ending(Limits(60, frozenset({eos})), lambda ids: "")
    method = lossy(target, draft, gate_threshold=0.3)
    list(until_end(method.rounds(prompt, GREEDY, torch.Generator(DEVICE)), ending))
    assert ending.tokens == text[: first + 1] and ending.reason == "eos" and first <= end


@pytest.mark.parametrize("form", ("gate", "lenience"))
@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_one_copy_to_the_host_a_round(monkeypatch, form, sampling):
    monkeypatch.setattr("specbench.engine.accept.on_host", lambda values: False)  # as on a GPU
    copies = reads_of_tensors(monkeypatch)
    judged(lossy(*pair("llama"), form=form), ROWS, [0, 0, 3, 1], sampling, [[0.25] * 4] * 4)
    assert copies == ["tolist"]


def test_build_and_the_shipped_settings():
    method = build(tiny("llama"), "lossy")
    prompt, _ = lively_prompt("llama", 12, 30)
    _, rounds = decode(method, prompt, 30)
    assert not method.lossless and method.reach == SHIPPED["gamma"] + 1
    assert {r.drafted for r in rounds[1:]} == {6}
    assert (SHIPPED["form"], SHIPPED["gate_threshold"]) == ("gate", 0.6)


# Typical acceptance


def test_typical_tokens_by_hand():
    """p = 1/2 1/4 1/8 1/8, H = 7/4 ln 2, exp(-H) = 0.297: at δ = 0.5 the bound is 0.149; at δ = 0.9 ε, 0.25, bounds it.

    A token must exceed the bound.
    """
    rows = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 3).double().log()
    draft = Draft(torch.tensor([1, 2]), None)
    one = lossy(*pair("llama"), form="typical", epsilon=0.25, delta=0.5)
    verdict = one.accept(draft, Scored(rows), Sampling(1.0), torch.Generator())
    assert (verdict.accepted, verdict.token) == (1, 0)
    other = lossy(*pair("llama"), form="typical", epsilon=0.25, delta=0.9)
    assert other.accept(draft, Scored(rows), Sampling(1.0), torch.Generator()).accepted == 0
    low = lossy(*pair("llama"), form="typical", epsilon=0.3, delta=0.4)
    assert low.accept(draft, Scored(rows), Sampling(1.0), torch.Generator()).accepted == 2
    assert low.accept(draft, Scored(rows), GREEDY, torch.Generator()).accepted == 0, "at temperature 0 it is exact"


def test_a_drawn_bonus_after_typical_tokens_comes_from_all_of_p():
    """A rejected token may be drawn again: nothing was rejected at random. At T = 1, with the same bound."""
    rows = torch.tensor([[0.5, 0.25, 0.125, 0.125]] * 2).double().log()
    q = torch.tensor([[0.1, 0.1, 0.1, 0.7]]).double()
    one, rng, counts = (
        lossy(*pair("llama"), form="typical", epsilon=0.25, delta=0.5, bonus="drawn"),
        torch.Generator(),
        [0] * 4,
    )
    for seed in range(2000):
        verdict = one.accept(Draft(torch.tensor([3]), q), Scored(rows), Sampling(1.0), rng.manual_seed(seed))
        assert verdict.accepted == 0
        counts[verdict.token] += 1
    assert oracle.chi_square(np.array(counts), np.array([0.5, 0.25, 0.125, 0.125])) > 1e-4
