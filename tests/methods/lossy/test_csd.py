"""CSD against hand-worked rounds, and the settings under which it must be speculative sampling."""

import json
import pickle
from collections import Counter

import numpy as np
import oracle
import pytest
import torch
from cases import mostly_long
from gates import DEVICE, GREEDY, csd, decode, lively_prompt, pair, sps
from judging import assert_same_rounds, judged

from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.lengths import Lengths
from specbench.engine.types import Sampling
from specbench.methods.lossy.csd_memory import Memory

SAMPLED = Sampling(1.0, top_p=0.9)


def test_hand_worked_rounds():
    """Gate failure, memory miss, rescue, and a count that reaches λ while decoding; worked out in oracle.py."""
    target, draft = pair("llama")
    thresholds = {"count_threshold": oracle.WORKED_LAMBDA, "gate_threshold": oracle.WORKED_TAU}
    method = csd(target, draft, 4, oracle.WORKED_START, **thresholds)
    for step in oracle.WORKED_ROUNDS:
        verdict = judged(method, step["logits"], step["drafted"])
        assert verdict.accepted == step["accepted"]
        assert verdict.token == step["token"]
        assert verdict.rescued == tuple(step["rescued"])
        assert together(method) == {k: n for k, n in step["memory"].items() if n}
    learned = method.state()
    method.reset()
    assert together(method) == oracle.WORKED_START, "calibrated counts survive; learned ones do not"
    method.restore(json.loads(json.dumps(learned)))
    assert together(method) == oracle.WORKED_ROUNDS[-1]["memory"]


def together(method):
    """Every count that the method goes by."""
    return {pair: method.count(*pair) for pair in {*method.calibrated, *method.learned} if method.count(*pair)}


# Columns: logits of tokens 0, 1, 2. The target prefers 0; the draft says 1, whose p/p(0) is exp(-1) = 0.37.
ONE = {"logits": [[2.0, 1.0, -9.0], [0.0, 0.0, 5.0]], "drafted": [1]}


@pytest.mark.parametrize(
    ("changes", "rescued"),
    [
        ({"count_threshold": 1, "gate_threshold": 0.36}, True),
        ({"count_threshold": 1, "gate_threshold": 0.37}, False),
        ({"count_threshold": 1, "gate_threshold": 0.0}, True),
        ({"count_threshold": 2, "gate_threshold": 0.0}, False),
        ({"count_threshold": 1, "gate_threshold": 0.0, "exclude_eos": True}, False),
        ({"count_threshold": 1, "gate_threshold": 0.0, "count_test": "more_than"}, False),
        ({"count_threshold": 0, "gate_threshold": 0.0, "count_test": "more_than"}, True),
        ({"count_threshold": 1, "gate_threshold": 0.0, "count_rescued": False}, True),
        ({"count_threshold": 1, "gate_threshold": 0.9, "count_rescued": False}, False),
    ],
)
def test_memory_and_gate_at_their_edges(changes, rescued):
    method = csd(*pair("llama"), 1, {(1, 0): 1}, **changes)
    if method.settings.exclude_eos:
        method.protected = frozenset({1})
    verdict = judged(method, **ONE)
    assert (verdict.accepted, verdict.token) == ((1, 2) if rescued else (0, 0))
    assert verdict.ratios == pytest.approx([np.exp(-1.0)])
    assert method.count(1, 0) == (1 if rescued and not method.settings.count_rescued else 2), (
        "counted after the look-up"
    )


def test_a_ratio_of_exactly_the_gate_is_enough():
    """p(d) / p(t) = 0.5, and the gate lets pass what is at least as much (Eq. 3)."""
    half = {"logits": [[0.0, float(np.log(0.5)), -9.0], [0.0, 0.0, 5.0]], "drafted": [1]}
    method = csd(*pair("llama"), 1, {(1, 0): 1}, count_threshold=1, gate_threshold=0.5)
    assert judged(method, **half).rescued == (0,)


@pytest.mark.parametrize("end", [0, 1])
def test_neither_half_of_a_rescued_pair_is_an_end_token(end):
    method = csd(*pair("llama"), 1, {(1, 0): 1}, count_threshold=1, gate_threshold=0.0)
    method.protected = frozenset({end})
    verdict = judged(method, **ONE)
    assert (verdict.accepted, verdict.token, verdict.rescued) == (0, 0, ())


def test_offline_memory_does_not_grow():
    method = csd(*pair("llama"), 1, online=False)
    judged(method, **ONE)
    assert not method.learned


@mostly_long("count_threshold", (0, float("inf")), (0,), ids=("all rescued", "none rescued"))
def test_only_what_stays_in_the_text_is_counted(count_threshold):
    """The memory after texts that a limit or an end token cuts, against the mismatches at positions of the text."""
    target, draft = pair("llama")
    prompt, tokens = lively_prompt("llama", 12, 40)
    taken_back = 0
    for limits in [*(Limits(n, frozenset()) for n in range(1, 30)), *(Limits(40, frozenset({t})) for t in set(tokens))]:
        method = csd(target, draft, 6, count_threshold=count_threshold, gate_threshold=0.0)
        drawn = decode_text(method, prompt, GREEDY, torch.Generator(DEVICE), Ending(limits, str))
        expected: Counter[tuple[int, int]] = Counter()
        for step in drawn:
            if step.verdict is None:
                continue
            read = len(step.verdict.drafted) if count_threshold == 0 else step.verdict.accepted + 1
            pairs = list(zip(step.verdict.drafted, step.verdict.targets, strict=True))[:read]
            expected.update(pair for pair in pairs[: len(step.tokens)] if pair[0] != pair[1])
            taken_back += any(d != t for d, t in pairs[len(step.tokens) :])
        assert method.learned == expected
    assert taken_back > 5


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
@pytest.mark.parametrize(
    "changes",
    ({"count_threshold": float("inf"), "gate_threshold": 0.0}, {"online": False}, {"gate_threshold": 1.0}),
    ids=("infinite threshold", "empty memory", "gate that nothing passes"),
)
def test_without_rescues_it_is_speculative_sampling(changes, sampling):
    """Token for token and round for round, sampled ones too: no draw of the generator may be lost or added."""
    assert_same_rounds(csd(*pair("qwen2"), 4, **changes), sps("qwen2", 4, Lengths()), "qwen2", sampling, 60)


def test_sampled_rescues_take_the_draft_token():
    """At T > 0 a rejected token is rescued by memory and gate as at T = 0; a rejected argmax is no pair."""
    method = csd(*pair("llama"), 1, {(1, 0): 5}, count_threshold=1, gate_threshold=0.3)

    def outcomes_of(one, drafted, q):
        return [judged(one, ONE["logits"], [drafted], Sampling(1.0), [q], seed) for seed in range(40)]

    outcomes = outcomes_of(method, 1, [0.0, 1.0, 0.0])
    assert all(o.accepted == 1 for o in outcomes)
    assert {o.rescued for o in outcomes} == {(), (0,)}
    before = pickle.dumps(method.learned)
    outcomes = outcomes_of(method, 0, [1.0, 0.0, 0.0])
    assert {o.accepted for o in outcomes} == {0, 1}
    assert pickle.dumps(method.learned) == before
    open_wide = csd(*pair("llama"), 1, count_threshold=0, gate_threshold=0.0)  # any pair is rescued
    outcomes = outcomes_of(open_wide, 0, [1.0, 0.0, 0.0])
    assert {(o.accepted, o.rescued) for o in outcomes} == {(0, ()), (1, ())}


def test_rescues_change_the_text_and_reset_restores_it():
    """Memory lives across prompts: the same prompt twice differs from itself until reset."""
    target, draft = pair("llama")
    prompt, _ = lively_prompt("llama", 12, 40)
    method = csd(target, draft, 4, count_threshold=1, gate_threshold=0.0)
    first, _ = decode(method, prompt, 60)
    _, again = decode(method, prompt, 60)
    assert sum(r.rescued for r in again) > 0
    method.reset()
    assert decode(method, prompt, 60)[0] == first


def test_each_task_begins_with_its_own_memory_and_without_what_the_last_one_learned():
    target, draft = pair("llama")
    method = csd(target, draft, 1, count_threshold=3)
    method.memory = Memory({"one": {(1, 0): 2}, "": {(1, 0): 7}})
    method.reset("one")
    judged(method, **ONE)
    assert method.count(1, 0) == 3 and method.state() == [[[1, 0, 1]], None]
    method.reset("two")
    assert method.count(1, 0) == 7 and method.state() == [[], None]
    method.reset("one")
    assert method.count(1, 0) == 2
    assert set(method.inputs()) == {"memory", "memory one"}
