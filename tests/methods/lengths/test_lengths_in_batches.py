"""Draft lengths by how many texts are decoded together, or by what was accepted, against their rules by hand."""

import math
from dataclasses import replace

import oracle
import pytest
import torch
from builders_engine import build, made
from gates import DEVICE, GREEDY
from pydantic import ValidationError

from specbench.engine.clock import BatchStopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.rows import Batch, Row
from specbench.engine.runtimes.batched import Batched
from specbench.engine.types import Sampling, Verdict
from specbench.methods.lengths import goodput, k_by_batch, target_acceptance
from specbench.methods.lengths.goodput import Goodput
from specbench.methods.lengths.k_by_batch import ByBatch
from specbench.methods.lengths.target_acceptance import TargetAcceptance


def verdict(accepted: int, drafted: int) -> Verdict:
    return Verdict(tuple(range(accepted)), 0, [1] * drafted, [1] * drafted, [1.0] * drafted)


@pytest.mark.parametrize(
    ("texts", "k"), [(1, 9), (2, 3), (16, 3), (17, 3), (63, 3), (64, 2), (128, 2), (200, 2), (256, 0), (9999, 0)]
)
def test_the_schedule_is_inclusive_and_gaps_keep_the_k_before(monkeypatch, texts, k):
    """The example of vLLM's pull request 32374, from 2 texts on; below the first range the most that is allowed."""
    monkeypatch.setattr(k_by_batch, "texts_together", lambda: texts)
    lengths = ByBatch({"2-16": 3, "64-128": 2, "256-4096": 0})
    assert lengths.most(9, 100) == k
    assert lengths.most(2, 100) == min(2, k)


@pytest.mark.parametrize("schedule", [{}, {"4-2": 1}, {"1-4": 2, "4-9": 1}, {"many": 1}, {"1-4": -1}, {"0-3": 1}])
def test_schedules_that_make_no_sense(schedule):
    with pytest.raises(ValidationError):
        k_by_batch.Settings(longest=8, stop_at_eos=False, schedule=schedule)


def test_a_text_knows_how_many_are_decoded_with_it():
    """Five texts of other lengths; as they leave, the drafts of those that stay follow the schedule."""
    models = replace(made(), runtime=Batched("eager"))
    schedule = {"1": 6, "2": 5, "3": 4, "4": 2, "5": 1}
    counts = (40, 30, 20, 12, 6)
    batch = Batch(BatchStopwatch(torch.device(DEVICE)))
    for number, (prompt, count) in enumerate(zip(oracle.prompts(5, length=9), counts, strict=True)):
        method = build(models, "k-by-batch", schedule=schedule, longest=20)
        ending = Ending(Limits(count, frozenset()), lambda ids: "")
        rng = torch.Generator(DEVICE).manual_seed(number)
        batch.join(Row(decode_text(method, prompt, GREEDY, rng, ending), ending))
    seen = []
    while batch.rows:
        rows = list(batch.rows)
        batch.step()
        drafts = {len(row.finished[-1].verdict.drafted) for row in rows if row.finished[-1].verdict}
        if drafts:
            assert drafts == {schedule[str(len(rows))]}
            seen.append(len(rows))
    assert set(seen) >= {1, 2, 5} and sorted(seen, reverse=True) == seen


SAMPLED = Sampling(1.0)
COSTS = {"token": 0.2, "draft": 0.1, "draft_token": 0.02, "expected": 0.5, "memory": 4}


def policy(**changes) -> Goodput:
    return Goodput(goodput.Settings(longest=20, stop_at_eos=False, **{**COSTS, **changes}))


def best(alphas: list[float], longest: int = 20) -> int:
    """The argmax by enumeration: each outcome's tokens by its probability, over the parts of a step."""
    speeds, texts = [], len(alphas)
    for k in range(longest + 1):
        outcomes = [(i + 1, a**i * (1 - a)) for a in alphas for i in range(k)] + [(k + 1, a**k) for a in alphas]
        seconds = 1 + 0.2 * (texts * k + texts - 1) + sum(0.1 + 0.02 * (texts - 1) for _ in range(k))
        speeds.append(math.fsum(tokens * chance for tokens, chance in outcomes) / seconds)
    return speeds.index(max(speeds))


def test_goodput_is_the_argmax_of_expected_tokens_over_seconds(monkeypatch):
    lengths, chosen = policy(), {}
    for texts in (1, 2, 4, 8, 16, 64):
        for alpha in (0.1, 0.5, 0.8, 0.95):
            monkeypatch.setattr(goodput, "shared", lambda rates=[alpha] * texts: rates)
            chosen[alpha, texts] = lengths.most(20, 100)
            assert chosen[alpha, texts] == best([alpha] * texts)
    assert len(set(chosen.values())) >= 5
    assert all(chosen[alpha, 64] <= chosen[alpha, 1] for alpha in (0.1, 0.5, 0.8, 0.95))
    for rates in ([0.1, 0.95], [0.5, 0.99, 0.99], [0.0, 1.0, 0.9]):
        monkeypatch.setattr(goodput, "shared", lambda rates=rates: rates)
        assert lengths.most(20, 100) == best(rates) != best(rates[:1])
    monkeypatch.setattr(goodput, "shared", list)
    lengths.alpha = 0.8
    assert lengths.most(20, 100) == best([0.8])


def test_texts_of_a_batch_draft_equally_long_by_what_all_of_them_had_accepted():
    """Four texts, of which two join later; the rates of those that ended count no longer."""
    models = replace(made(), runtime=Batched("eager"))
    counts, waits = (60, 12, 40, 30), (0, 0, 3, 5)
    batch, chosen = Batch(BatchStopwatch(torch.device(DEVICE))), set()
    texts = list(zip(oracle.prompts(4, length=9), counts, waits, strict=True))
    policies = {}
    for number in range(100):
        for prompt, count, _ in [text for text in texts if text[2] == number]:
            method = build(models, "goodput", **COSTS, longest=8)
            ending = Ending(Limits(count, frozenset()), lambda ids: "")
            row = Row(decode_text(method, prompt, SAMPLED, torch.Generator(DEVICE).manual_seed(count), ending), ending)
            policies[row] = method.drafter.lengths
            batch.join(row)
        rows = [row for row in batch.rows if row.finished]
        k = best([policies[row].alpha if row.finished else 0.5 for row in batch.rows], 8)
        batch.step()
        if rows:
            assert {len(row.finished[-1].verdict.drafted) for row in rows} == {k}
            chosen.add(k)
        if not batch.rows:
            break
    assert not batch.rows and len(policies) == 4 and len(chosen) >= 3


def test_acceptance_is_a_moving_average_of_verified_tokens_that_fades_without_drafts():
    lengths = policy()
    lengths.begin([1])
    lengths.observe(verdict(2, 5))  # accepted, accepted, rejected; two were not looked at
    alpha = 0.5
    for outcome in (1, 1, 0):
        alpha = 0.75 * alpha + 0.25 * outcome
    assert lengths.alpha == pytest.approx(alpha)
    lengths.observe(verdict(3, 3))  # none was rejected
    for _ in range(3):
        alpha = 0.75 * alpha + 0.25
    assert lengths.alpha == pytest.approx(alpha)
    lengths.observe(verdict(0, 0))
    assert lengths.alpha == pytest.approx(0.75 * alpha + 0.25 * 0.5)
    lengths.begin([1])
    assert lengths.alpha == 0.5


def test_target_acceptance_by_hand():
    """From the third round on, the mean of the last three shares: at least 0.8 adds a token, at most 0.6 takes one."""
    settings = target_acceptance.Settings(target=0.7, slack=0.1, window=3, fewest=3, longest=6, stop_at_eos=False)
    lengths = TargetAcceptance(settings)
    for _ in range(2):
        lengths.begin([1])
        lengths_seen = []
        for accepted in (0, 0, 3, 0, 4, 3, 2, 3, 4):
            lengths_seen.append(lengths.most(20, 10))
            lengths.observe(verdict(min(accepted, lengths_seen[-1]), lengths_seen[-1]))
        # Shares: 0 0 .5 | mean .17, 5: 0 | .17, 4: 1 | .5, 3: 1 | .67, 3: .67 | .89, 4: .75 | .81, 5: .8 | .74
        assert [*lengths_seen, lengths.most(20, 10)] == [6, 6, 6, 5, 4, 3, 3, 4, 5, 5]
    assert lengths.most(2, 10) == 2
    lengths.begin([1])
    for _ in range(9):
        lengths.observe(verdict(0, lengths.most(20, 10)))
    assert lengths.most(20, 10) == 1
