"""Fused drafts: the surest model by hand, drafts against whole forwards of every model, exact texts and laws."""

import oracle
import pytest
import torch
from builders_engine import build, made
from collaborations import made_pair
from gates import DEVICE, decode, lively, pair
from law import fit
from recalled import recalled
from refusals import one_line_error
from relatives import relatives
from tabled import V
from watched import Told

from specbench.engine.drafters import ModelDrafter
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench_extras.several_drafts.fused import Panel, surest

ALPHA = 1e-4  # of a right rule being refused


def test_the_surest_by_hand():
    """Probabilities 0.6, 0.5 and 0.7 of the likeliest tokens after one text; equal ones after another."""
    first = torch.tensor([[0.6, 0.2, 0.2], [0.25, 0.5, 0.25]]).log()
    second = torch.tensor([[0.4, 0.5, 0.1], [0.5, 0.25, 0.25]]).log() + 7  # no matter how high logits are
    third = torch.tensor([[0.1, 0.2, 0.7], [0.3, 0.4, 0.3]]).log() - 3
    result = surest(torch.stack([first, second, third]))
    assert torch.equal(result, torch.stack([third[0], first[1]]))


def test_drafts_are_those_of_the_surest_model_at_each_token():
    target, drafts = relatives(2)
    models = made_pair([drafts[0], target, drafts[1]])
    prompt, text = lively(pair("llama")[0], 12, 20)
    tokens, rounds = decode(build(models, "fused", gamma=3), prompt, 20)
    assert tokens == text
    context, leaders = [*prompt, text[0]], set()
    for step in rounds[1:]:
        drafted = list(context)
        for _ in range(3):
            chances = [oracle.warp(oracle.next_logits(model, drafted), 1.0) for model in drafts]
            leader = 0 if chances[0].max() >= chances[1].max() else 1
            leaders.add(leader)
            drafted.append(int(chances[leader].argmax()))
        assert step.verdict.drafted == drafted[len(context) :]
        context += step.tokens
    assert leaders == {0, 1}


def test_every_model_reads_every_token_once():
    target, drafts = relatives(2)
    watch = Told()
    method = build(made_pair([drafts[0], target, drafts[1]]), "fused", watch, gamma=3)
    rounds = method.rounds([1, 2, 3], Sampling(), torch.Generator(DEVICE))
    for _ in range(6):
        next(rounds)
    by_role = {role: [forward[1:] for forward in watch.forwards if forward[0] == role] for role in ("draft", "math")}
    assert by_role["draft"] == by_role["math"] and len(by_role["draft"]) == 1 + 5 * 3


def test_with_one_draft_it_is_sps():
    prompt, text = lively(pair("llama")[0], 12, 20)
    fused, plain = (decode(build(made(), name, gamma=4), prompt, 20) for name in ("fused", "sps"))
    assert fused[0] == text and [step.verdict for step in fused[1]] == [step.verdict for step in plain[1]]


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_k=3)), ids=str)
def test_samples_from_the_target(sampling):
    target, one, other = (oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for seed in (1, 2, 3))
    readers = Panel([recalled(one, "draft"), recalled(other, "math")])
    fitted = fit(SpS(recalled(target, "target"), ModelDrafter(readers), 3), target, [1, 3, 2], 4, sampling, 300)
    assert fitted.p > ALPHA and fitted.accepted > 80 and fitted.rejected > 80


def test_what_ships_and_what_is_refused():
    method = build(made(), "fused")
    assert method.lossless and method.reach == 7
    with one_line_error("fused: gamma"):
        build(made(), "fused", gamma=0)
