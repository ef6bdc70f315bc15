"""SpecKV's network: records by hand, a fit whose answer is known, choices by hand, and what a training leaves."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from builders_engine import build
from chain_models import END, chain
from chains import Words
from jobs import job_of, stopping
from made_documents import document
from refusals import one_line_error
from torch import tensor

from specbench.engine.lengths import DraftToken
from specbench.engine.models.heads import Head, read_head
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench_extras.speckv import train as speckv
from specbench_extras.speckv.speckv import KIND, SHAPES, Learned, Settings, check, expected_tokens, round_times

# The draft errs after 3 and after 6, where the text ends.
TARGET = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: END}
DRAFT = {**TARGET, 3: 13, 7: 17}
SETTINGS = Settings(choices=(1, 2, 4), objective="tokens", draft_cost=0.5, head="auto", longest=4, stop_at_eos=True)
# Two signals pass through; the second length is expected to give ten times q(d), the first always 3.
BY_HAND = {
    **{f"{layer}.weight": torch.eye(2) for layer in ("first", "second")},
    **{f"{layer}.bias": torch.zeros(2) for layer in ("first", "second")},
    "out.weight": tensor([[0.0, 0.0], [10.0, 0.0]]),
    "out.bias": tensor([3.0, 0.0]),
}


@pytest.fixture
def chains() -> Pair:
    return Pair("made", {"target": chain(TARGET), "draft": chain(DRAFT)}, Words(END))


def test_records_by_hand(chains):
    """The prefill says 2. The draft says 3 13 …: one is accepted, 4 follows. Then 5 6 7 17: three, and the end."""
    table = speckv.record(document(0, [20, 1]), chains, SETTINGS, Sampling(), seed=0)
    rounds = speckv.rounds_of(table)
    assert rounds.accepted.tolist() == [1, 3]
    likely = math.sqrt(40)
    q = 1 / (1 + 39 * math.exp(-likely))
    other = (1 - q) / 39
    entropy = -q * math.log(q) - 39 * other * math.log(other)
    assert torch.allclose(rounds.signals, tensor([[q, entropy]]).expand(2, 2), rtol=1e-3)
    assert rounds.tokens((1, 2, 4)).tolist() == [[2, 2, 2], [2, 3, 4]]


def test_a_text_of_one_token_has_no_rounds(chains):
    table = speckv.record(document(0, [20, 7]), chains, SETTINGS, Sampling(), seed=0)
    assert len(speckv.rounds_of(table).accepted) == 0


@pytest.mark.parametrize(
    ("objective", "q", "length"),
    [("tokens", 0.29, 2), ("tokens", 0.31, 4), ("time", 0.44, 2), ("time", 0.46, 4)],
)
def test_choices_by_hand(objective, q, length):
    """By time, lengths 2 and 4 at c = 0.5 take 2 and 3 target forwards: 3 / 2 = 10 q / 3 at q = 0.45."""
    policy = Learned(BY_HAND, (2, 4), round_times((2, 4), objective, 0.5), {})
    probs = tensor([[q, 1 - q]])
    tokens = [DraftToken(tensor([0]), probs.log(), probs, None)] * 4
    policy.most(4, 9)
    assert [policy.enough(step, token) for step, token in enumerate(tokens, 1)] == [
        step >= length for step in range(1, 5)
    ]


def made(count: int, seed: int) -> speckv.Rounds:
    """Rounds whose acceptance follows from q(d): 0, 2 or 4 tokens; the entropy says nothing."""
    rng = torch.Generator().manual_seed(seed)
    signals = torch.rand(count, 2, generator=rng)
    return speckv.Rounds(signals, 2 * (3 * signals[:, 0]).floor().clamp(max=2).int())


def test_a_fit_finds_what_acceptance_follows_from():
    recipe = speckv.Recipe(width=16, temperature=0, steps=200, learning_rate=0.01, weight_decay=0)
    learned, held = made(300, 0), made(100, 1)
    tensors = speckv.fit(learned, held, (1, 2, 4), recipe, seed=0)
    result = expected_tokens(tensors, tensor([[0.15, 0.5], [0.5, 0.5], [0.85, 0.5]]))
    assert torch.allclose(result, tensor([[1.0, 1, 1], [2, 3, 3], [2, 3, 5]]), atol=0.4)
    assert float(speckv.error(tensors, held, (1, 2, 4))) < 0.1 * float(held.tokens((1, 2, 4)).var())
    again = speckv.fit(learned, held, (1, 2, 4), recipe, seed=0)
    assert all(torch.equal(tensors[name], again[name]) for name in tensors)


def test_signals_are_scaled_within_the_network():
    tensors, mean, deviation = speckv.start(8, 3, seed=1), tensor([0.5, 2.0]), tensor([0.1, 3.0])
    raw = torch.rand(5, 2)
    expected = expected_tokens(tensors, (raw - mean) / deviation)
    assert torch.allclose(expected_tokens(speckv.unscaled(tensors, mean, deviation), raw), expected, atol=1e-5)


def test_a_training_that_is_stopped_goes_on_and_its_head_is_read_back(chains, tmp_path, monkeypatch):
    documents = [document(number) for number in range(6)]
    monkeypatch.setattr(speckv, "training_documents", lambda *_, **__: documents)
    job = replace(job_of(KIND, chains, tmp_path / "head.safetensors", recipe={"steps": 40}), settings=SETTINGS)
    calls, record = [], speckv.record
    for stop in (4, 0):  # at the fourth document; never
        monkeypatch.setattr(speckv, "record", stopping(stop, record, calls))
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            speckv.train(job)
    assert len(calls) == 4 + 3, "three documents were recorded before the stop"
    head = read_head(job.out, KIND, chains, SHAPES, "draft")
    check(head, (1, 2, 4))
    assert head.trained["choices"] == [1, 2, 4] and head.trained["held_out_rounds"] >= 1


def test_a_head_of_other_lengths_or_with_other_layers_is_refused():
    head = Head(KIND, BY_HAND, {"choices": [2, 4]})
    check(head, (2, 4))
    with one_line_error("trained for the lengths [2, 4]", "not [2, 6]"):
        check(head, (2, 6))
    with one_line_error("damaged"):
        check(replace(head, tensors=BY_HAND | {"out.bias": torch.zeros(3)}), (2, 4))
    with one_line_error("damaged"):
        check(replace(head, tensors=BY_HAND | {"second.weight": torch.zeros(2, 3)}), (2, 4))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choices": [2, 9]}, "choices: must be different lengths from 1 to longest (8)"),
        ({"choices": [2, 4]}, "the head for speckv was trained for the lengths [2, 4, 6, 8], not [2, 4]"),
        ({"objective": "speed"}, "speckv: objective"),
        ({"head": "gone"}, "there is no head gone; train one: specbench train --method speckv"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "speckv", **changes)
