"""Speculative sampling's own rule on rows written down by hand, also where they are not the target's own."""

import functools
import math

import pytest
import torch
from gates import DEVICE, GREEDY
from official_cases import official_cases
from transformers.generation.utils import _speculative_sampling

from specbench.engine.accept import exact
from specbench.engine.sampling import likeliest
from specbench.engine.types import Draft, Sampling, Scored

# Three drafted tokens of a vocabulary of four. The fused rows prefer 2, 1, 0 and then 3; the target's own 2, 3, 0.
FUSED = [[0.0, 1.0, 3.0, 2.0], [0.0, 5.0, 1.0, 4.0], [2.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
OWN = [[0.0, 1.0, 3.0, 2.0], [0.0, 1.5, 1.0, 4.0], [2.0, 1.0, 0.0, 1.0]]


def verdict(drafted, sampling=GREEDY, own=OWN, fused=FUSED, probs=None):
    def rows(values):
        return torch.tensor(values, dtype=torch.float64, device=DEVICE)

    draft = Draft(torch.tensor(drafted, device=DEVICE), None if probs is None else rows(probs))
    rng = torch.Generator(DEVICE).manual_seed(0)
    return exact(draft, Scored(rows(fused), None if own is None else rows(own)), sampling, rng)


def test_what_the_targets_own_logits_would_have_rejected_is_recorded_as_rescued():
    outcome = verdict([2, 1, 0])
    assert (outcome.accepted, outcome.token, outcome.rescued) == (3, 3, (1,))
    assert outcome.targets == [2, 3, 0]
    assert outcome.ratios == pytest.approx([1, math.exp(1.5 - 4), 1])
    assert outcome.decisions() == ["accepted", "rescued", "accepted"]


def test_replaced_logits_decide_and_not_what_was_read_before():
    read = torch.tensor(FUSED, dtype=torch.float64)
    replaced = Scored(read, best=likeliest(read))._replace(logits=torch.tensor([*OWN, FUSED[3]], dtype=torch.float64))
    outcome = exact(Draft(torch.tensor([2, 3, 0]), None), replaced, GREEDY, torch.Generator())
    assert (outcome.accepted, outcome.token, outcome.targets) == (3, 3, [2, 3, 0])


def test_nothing_after_a_rejection_is_rescued():
    """The fused rows refuse 2 for 1 at the second place, where the target itself wants 3."""
    outcome = verdict([2, 2, 0])
    assert (outcome.accepted, outcome.token, outcome.rescued) == (1, 1, ())
    assert outcome.targets == [2, 3, 0]
    assert outcome.ratios == pytest.approx([1, math.exp(1 - 4), 1])
    assert outcome.decisions() == ["accepted", "rejected", "unread"]


def test_on_the_targets_own_logits_nothing_is_rescued():
    outcome = verdict([2, 1, 3], own=None)
    assert (outcome.accepted, outcome.token, outcome.rescued, outcome.targets) == (2, 0, (), [2, 1, 0])
    assert outcome.ratios == pytest.approx([1, 1, math.exp(-1)])


def test_drawn_tokens_are_never_called_rescued():
    """A draft that is drawn from what it is tested against always stands, whatever the target's own logits say."""
    sampling = Sampling(1.0)
    probs = torch.tensor(FUSED[:3], dtype=torch.float64).softmax(-1).tolist()
    outcome = verdict([1, 1, 1], sampling, probs=probs)
    assert (outcome.accepted, outcome.rescued, outcome.targets) == (3, (), [2, 3, 0])
    assert outcome.ratios == pytest.approx([math.exp(-2), math.exp(1.5 - 4), math.exp(-1)])
    assert outcome.confidences == pytest.approx([row[1] for row in probs])


def test_a_tree_is_not_judged_as_a_chain():
    tokens = torch.tensor([2, 1, 0], device=DEVICE)
    rows = torch.tensor(FUSED, dtype=torch.float64, device=DEVICE)
    for sampling in (GREEDY, Sampling(1.0)):
        with pytest.raises(ValueError, match="not judged as a chain"):
            exact(Draft(tokens, None, (-1, -1, 0)), Scored(rows), sampling, torch.Generator(DEVICE))


def test_half_precision_is_judged_alike():
    """Numbers that bfloat16 holds exactly; logits of it are not read on the host."""
    tokens = torch.tensor([2, 2, 0], device=DEVICE)
    rows = torch.tensor(FUSED, dtype=torch.bfloat16, device=DEVICE)
    outcome = exact(Draft(tokens, None), Scored(rows), GREEDY, torch.Generator(DEVICE))
    assert (outcome.accepted, outcome.token, outcome.targets) == (1, 1, [2, 1, 0])
    assert outcome.ratios == pytest.approx([1, math.exp(1 - 5), 1])


def given(monkeypatch, case: dict) -> None:
    """The random numbers of a case, of the tests and of the race for the next token, in place of drawn ones."""
    waits = torch.tensor(case["waits"], dtype=torch.float64, device=DEVICE)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(case["uniform"], device=DEVICE).double())
    monkeypatch.setattr("specbench.engine.sampling.waits", lambda like, rng: waits.expand_as(like))


def test_vllms_own_sampler_accepts_the_same(monkeypatch):
    """60 drafts, with the draft's distributions or as point masses: by the same numbers, the same tokens."""
    stood, drawn = 0, 0
    for case in official_cases("rejection"):
        given(monkeypatch, case)
        rows = torch.tensor([*case["target"], case["target"][0]], dtype=torch.float64, device=DEVICE)
        probs = None if case["draft"] is None else torch.tensor(case["draft"], device=DEVICE).double().softmax(-1)
        draft = Draft(torch.tensor(case["drafted"], device=DEVICE), None if case["greedy"] else probs)
        found = exact(draft, Scored(rows), GREEDY if case["greedy"] else Sampling(1.0), torch.Generator(DEVICE))
        assert found.accepted == case["accepted"]
        if case["accepted"] < len(case["drafted"]):
            assert found.token == case["next"]
            drawn += found.token != found.targets[found.accepted]
        stood += found.accepted
    assert (stood, drawn) == (44, 17)


def test_transformers_own_sampling_accepts_the_same(monkeypatch):
    """The drafts with distributions; of what it draws the next token from, the race by the same numbers is taken."""
    compared = 0
    for case in official_cases("rejection"):
        if case["greedy"] or case["draft"] is None:
            continue
        given(monkeypatch, case)
        drafted, target, logits = (torch.tensor(case[name], device=DEVICE) for name in ("drafted", "target", "draft"))
        rows = torch.cat([target, target[:1]]).double()
        uniform, waited = (torch.tensor([case[name]], device=DEVICE).double() for name in ("uniform", "waits"))
        monkeypatch.setattr(torch, "rand_like", lambda _, numbers=uniform: numbers)
        raced = functools.partial(lambda waits, p, num_samples: (p / waits).argmax(-1, keepdim=True), waited)
        monkeypatch.setattr(torch, "multinomial", raced)
        tokens, stood = _speculative_sampling(drafted[None], logits[None].double(), len(drafted), rows[None])
        found = exact(Draft(drafted, logits.double().softmax(-1)), Scored(rows), Sampling(1.0), torch.Generator(DEVICE))
        assert (found.accepted, found.token) == (stood, tokens[0, -1])
        compared += 1
    assert compared == 35
