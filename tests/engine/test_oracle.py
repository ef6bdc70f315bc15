"""Checks of the oracle itself, by hand values, by transformers and by properties that follow from the rules."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from cases import architectures
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

COUNT = 60


@architectures
def test_greedy_equals_transformers_generate(architecture: str) -> None:
    model = oracle.tiny(architecture)
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    for prompt in oracle.prompts(3):
        expected = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=COUNT,
            do_sample=False,
        )
        continuation = oracle.greedy(model, prompt, COUNT)
        assert continuation == expected[0, len(prompt) :].tolist()
        assert len(set(continuation)) >= 15


@architectures
def test_pair_acceptance_is_in_band_and_rounds_spell_greedy_output(architecture: str) -> None:
    target, draft = oracle.tiny_pair(architecture)
    accepted = proposed = 0
    for prompt in oracle.prompts(2):
        rounds = oracle.sps_greedy(target, draft, prompt, 40, gamma=4)
        assert oracle.committed(rounds)[:40] == oracle.greedy(target, prompt, 40)
        accepted += sum(item.accepted for item in rounds)
        proposed += sum(len(item.drafted) for item in rounds)
    assert 0.3 <= accepted / proposed <= 0.8


def test_tiny_is_reproducible_and_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = oracle.tiny("llama", 3), oracle.tiny("llama", 3), oracle.tiny("llama", 4)
    assert torch.equal(torch.get_rng_state(), before)
    logits = [oracle.next_logits(model, [1, 2, 3]) for model in (first, second, other)]
    assert torch.equal(logits[0], logits[1]) and not torch.allclose(logits[0], logits[2])
    with pytest.raises(ValueError, match="unknown architecture"):
        oracle.tiny("gpt0")


def test_sliding_window_limits_what_gemma2_sees() -> None:
    # One layer with a window of 4: the last position sees the last 4 tokens only.
    model = oracle.tiny("gemma2", num_hidden_layers=1, sliding_window=4)
    far, near = [9, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 9, 6, 7, 8]
    base = oracle.next_logits(model, [1, 2, 3, 4, 5, 6, 7, 8])
    assert torch.allclose(oracle.next_logits(model, far), base, atol=1e-4)
    assert not torch.allclose(oracle.next_logits(model, near), base, atol=1e-2)


# Logits whose probabilities at temperature 1 are 0.4, 0.3, 0.2, 0.1.
LOGITS = torch.log(torch.tensor([0.3, 0.4, 0.1, 0.2], dtype=torch.float64))


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (1.0, 0, 1.0, [0.3, 0.4, 0.1, 0.2]),
        (0.0, 0, 1.0, [0, 1, 0, 0]),
        (0.5, 0, 1.0, [9 / 30, 16 / 30, 1 / 30, 4 / 30]),
        (1.0, 2, 1.0, [3 / 7, 4 / 7, 0, 0]),
        (1.0, 9, 1.0, [0.3, 0.4, 0.1, 0.2]),
        (1.0, 0, 0.6, [3 / 7, 4 / 7, 0, 0]),  # 0.4 < 0.6 <= 0.7
        (1.0, 0, 0.75, [3 / 9, 4 / 9, 0, 2 / 9]),
        (1.0, 0, 0.01, [0, 1, 0, 0]),
        (1.0, 2, 0.5, [0, 1, 0, 0]),  # after top-k the leader has 4/7 >= 0.5; before it only 0.4
        (0.5, 0, 0.5, [0, 1, 0, 0]),  # after temperature the leader has 16/30 >= 0.5
    ],
)
def test_warp_by_hand(temperature: float, top_k: int, top_p: float, expected: list[float]) -> None:
    result = oracle.warp(LOGITS, temperature, top_k, top_p)
    assert torch.allclose(result, torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_warp_equals_transformers() -> None:
    generator = torch.Generator().manual_seed(5)
    for temperature, top_k, top_p in [(0.7, 20, 0.9), (1.3, 50, 0.5), (1.0, 5, 0.99), (2.0, 3, 0.3)]:
        logits = 3 * torch.randn(96, generator=generator, dtype=torch.float64)
        logits[7] = logits[8]
        chain = [TemperatureLogitsWarper(temperature), TopKLogitsWarper(top_k), TopPLogitsWarper(top_p)]
        expected = LogitsProcessorList(chain)(torch.zeros(1, 1, dtype=torch.long), logits[None])[0].softmax(-1)
        assert torch.allclose(oracle.warp(logits, temperature, top_k, top_p), expected, atol=1e-12)


def test_temperature_zero_takes_the_lowest_index_of_a_tie() -> None:
    assert oracle.warp(torch.tensor([1.0, 2.0, 2.0]), 0.0).tolist() == [0.0, 1.0, 0.0]


def test_worked_memory_rounds() -> None:
    counts = dict(oracle.WORKED_START)
    for item in oracle.WORKED_ROUNDS:
        result = oracle.csd_scan(item["logits"], item["drafted"], counts, oracle.WORKED_LAMBDA, oracle.WORKED_TAU)
        assert result == oracle.Round(item["drafted"], item["accepted"], item["token"], item["rescued"])
        assert counts == item["memory"]


@pytest.mark.parametrize(("tau", "accepted"), [(1.0, 1), (1.01, 0), (0.0, 1)])
def test_gate_accepts_equality(tau: float, accepted: int) -> None:
    # A tie has a gap of 0 = ln 1: rescued at tau 1, not just above it.
    assert oracle.csd_scan([[1.0, 1.0], [1.0, 0.0]], [1], {(1, 0): 1}, 1, tau).accepted == accepted


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_csd_extremes(architecture: str) -> None:
    target, draft = oracle.tiny_pair(architecture)
    prompt = oracle.prompts(1)[0]
    plain = oracle.sps_greedy(target, draft, prompt, 20, gamma=4)
    counts: oracle.Counts = {}
    assert oracle.csd_greedy(target, draft, prompt, len(plain), 4, counts, 10**9, 0.01) == plain
    assert sum(counts.values()) == sum(item.accepted < 4 for item in plain)  # one mismatch ends each such round
    everything = oracle.csd_greedy(target, draft, prompt, 4, 4, {}, 0, 0.0)  # no memory or gate asked for
    assert [item.accepted for item in everything] == [4] * 4
    assert any(item.rescued for item in everything)


@architectures
def test_csd_from_a_patterned_memory_mixes_outcomes(architecture: str) -> None:
    target, draft = oracle.tiny_pair(architecture)
    counts = oracle.patterned_counts()
    before = sum(counts.values())
    rounds = [r for p in oracle.prompts(2) for r in oracle.csd_greedy(target, draft, p, 12, 4, counts, 2, 0.2)]
    rescues, rejections = sum(len(r.rescued) for r in rounds), sum(r.accepted < 4 for r in rounds)
    assert rescues >= 2 and rejections >= 2
    assert sum(counts.values()) - before == rescues + rejections


def test_two_token_distribution() -> None:
    model, prompt = oracle.tiny("qwen2", vocab=12), [3, 1, 4, 1, 5]
    joint = oracle.two_token_distribution(model, prompt, 1.0)
    assert joint.shape == (12, 12) and math.isclose(joint.sum(), 1.0, abs_tol=1e-12)
    first = oracle.next_logits(model, prompt).softmax(-1)
    second = oracle.next_logits(model, [*prompt, 7]).softmax(-1)
    assert np.allclose(joint[7], first[7].item() * second.numpy(), atol=1e-12)
    assert (oracle.two_token_distribution(model, prompt, 1.0, top_k=2) > 0).sum() == 4
    peak = oracle.two_token_distribution(model, prompt, 0.0)
    assert np.argwhere(peak == 1.0).tolist() == [oracle.greedy(model, prompt, 2)]


def test_chi_square() -> None:
    # By hand: (60-50)^2/50 + (40-50)^2/50 = 4 with one degree of freedom: p = erfc(sqrt(4/2)).
    assert math.isclose(oracle.chi_square(np.array([60, 40]), np.array([0.5, 0.5])), math.erfc(math.sqrt(2)))
    # Expected 46, 46 and two cells of 4, pooled to 8: 0 + 0 + (16-8)^2/8 = 8 + gaps of 4: 2 * 16/46; two degrees.
    value = oracle.chi_square(np.array([42, 42, 12, 4]), np.array([0.46, 0.46, 0.04, 0.04]))
    assert math.isclose(value, math.exp(-(8 + 32 / 46) / 2))
    # A pool of 2 joins the cell of 8: expected 90 and 10, observed 87 and 13: 9/90 + 9/10 = 1; one degree.
    value = oracle.chi_square(np.array([87, 9, 4]), np.array([0.9, 0.08, 0.02]))
    assert math.isclose(value, math.erfc(math.sqrt(0.5)))
    assert oracle.chi_square(np.array([9, 1]), np.array([1.0, 0.0])) == 0.0
    with pytest.raises(ValueError, match="same shape"):
        oracle.chi_square(np.array([1, 2]), np.array([0.5, 0.6]))


def test_chi_square_tells_distributions_apart() -> None:
    random = np.random.default_rng(0)
    joint = oracle.two_token_distribution(oracle.tiny("llama", vocab=8), [1, 2, 3], 1.0)
    drawn = random.multinomial(4000, joint.ravel()).reshape(joint.shape)
    assert oracle.chi_square(drawn, joint) > 0.001
    assert oracle.chi_square(drawn, 0.9 * joint + 0.1 / joint.size) < 1e-6
