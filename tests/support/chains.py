"""Models whose every next token is known, pairs of tiny models, and a tokenizer whose words are the ids."""

from types import SimpleNamespace

import oracle
import torch
from gates import DEVICE

from specbench.engine.models.pair import Pair

SIZE = 40  # tokens of a chain
END = 0


class Words:
    """A tokenizer whose words are the ids."""

    chat_template = bos_token_id = None

    def __init__(self, end: int | None = None, size: int = SIZE) -> None:
        self.eos_token_id, self.size = end, size

    def decode(self, ids, **_):
        return " ".join(map(str, ids))

    def get_vocab(self):
        return {str(i): i for i in range(self.size)}

    def get_added_vocab(self):
        return {}


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


def pair_without_tokenizer() -> Pair:
    """Two tiny models, and a tokenizer that nothing asks."""
    target, draft = oracle.tiny_pair("llama")
    return Pair("tiny", {"target": target, "draft": draft}, SimpleNamespace())
