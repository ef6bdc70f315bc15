"""Speculative sampling next to transformers' own assisted generation, run here, with drafts of a constant length."""

import pytest
import torch
from gates import DEVICE, decode, lively_prompt, pair
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from specbench.engine.drafters import ModelDrafter
from specbench.engine.session import Session
from specbench.methods.chains.sps import SpS


@pytest.mark.parametrize("gamma", [1, 4, 7])
def test_transformers_accepts_the_same_in_every_round(gamma, monkeypatch):
    """Greedy: the same tokens, and drafts of which as many stand, in every round but the last, which it shortens.

    Transformers drafts from the prompt on; so it is given the token that the prompt's forward gives here.
    """
    rounds = []
    own = AssistedCandidateGenerator.update_candidate_strategy

    def seen(self, ids, scores, stood):
        rounds.append((scores.shape[1] - 1, int(stood)))
        return own(self, ids, scores, stood)

    monkeypatch.setattr(AssistedCandidateGenerator, "update_candidate_strategy", seen)
    target, draft = pair("llama")
    prompt, expected = lively_prompt("llama", 15, 60)
    draft.generation_config.num_assistant_tokens = gamma
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    ids = torch.tensor([[*prompt, expected[0]]], device=DEVICE)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 59, "eos_token_id": None}
    text = target.generate(ids, assistant_model=draft, **options)[0, len(prompt) :].tolist()
    assert text == expected

    method = SpS(Session(target, "target"), ModelDrafter(Session(draft, "draft")), gamma)
    tokens, ours = decode(method, prompt, 60)
    assert tokens == text
    assert len(rounds) > 6 and [(each.drafted, each.accepted) for each in ours[1 : len(rounds)]] == rounds[:-1]
