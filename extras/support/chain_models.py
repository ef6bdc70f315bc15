"""Models whose every next token is known."""

import oracle
import torch
from chains import SIZE
from gates import DEVICE

END = 0


def chain(following: dict[int, int]):
    """A model without attention or MLP: the state behind token s is √SIZE in place s, the logits name what follows."""
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 1, "num_key_value_heads": 4, "head_dim": 10}
    model = oracle.tiny("llama", vocab=SIZE, **sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.zero_() if parameter.ndim > 1 else parameter.fill_(1.0)
            if name == "model.embed_tokens.weight":
                parameter.copy_(torch.eye(SIZE))
        for token in range(SIZE):
            model.lm_head.weight[following.get(token, 0), token] = 1.0
    return model.to(DEVICE)
