"""What an early layer of a model says, by plain forwards."""

import torch
from transformers import PreTrainedModel


@torch.no_grad()
def exit_logits(model: PreTrainedModel, tokens: list[int], layer: int) -> torch.Tensor:
    """Logits [n, V] after each of `tokens`, of a Llama whose layers after `layer` are left out."""
    ids = torch.tensor([tokens], device=model.device)
    states = model(ids, output_hidden_states=True, use_cache=False).hidden_states[layer]
    return model.lm_head(model.model.norm(states))[0].cpu()
