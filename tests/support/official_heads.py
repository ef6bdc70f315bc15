"""The heads of tests/official/eagle.py, built here."""

import torch
from official import eagle as own
from torch import nn

from specbench.engine.models.eagle_head import EagleHead, config_of
from specbench.engine.models.feature_head import FeatureHead


def official_head(kind: str, seed: int) -> EagleHead | FeatureHead:
    """A head of tests/official/eagle.py."""
    facts = {"num_attention_heads": own.HEADS, "num_key_value_heads": own.GROUPS, "head_dim": own.WIDTH // own.HEADS}
    facts |= {"rms_norm_eps": 1e-6, "hidden_act": "silu"}
    facts |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    embedding, output = (
        nn.Embedding.from_pretrained(own.numbers(7, own.WORDS, own.WIDTH)),
        nn.Linear(own.WIDTH, own.WORDS, bias=False),
    )
    output.weight = nn.Parameter(own.numbers(8, own.WORDS, own.WIDTH))
    if kind == "eagle3":
        head = EagleHead(config_of(own.WIDTH, own.INNER, own.DRAFTED, facts), 3 * torch.arange(own.DRAFTED), embedding)
    else:
        head = FeatureHead(config_of(own.WIDTH, own.INNER, own.WORDS, facts), "fc", embedding, output)
    head.load_state_dict(own.weights(kind, seed))
    return head.double().eval().requires_grad_(False)
