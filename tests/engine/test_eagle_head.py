"""The sizes of a new EAGLE head, for targets whose configurations have other names for them."""

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from specbench.engine.models.eagle_head import head_config


@pytest.mark.parametrize(
    ("kind", "sizes", "inner"),
    [
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}, 128),  # four times its width, by default
        ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48}, 48),
        ("opt", {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 40, "num_attention_heads": 4}, 40),
        ("llama", {"hidden_size": 32, "intermediate_size": 56, "num_attention_heads": 4}, 56),
    ],
)
def test_a_head_is_as_wide_as_its_target(kind, sizes, inner):
    config = AutoConfig.for_model(kind, vocab_size=64, **sizes)
    config.num_hidden_layers = 2
    head = head_config(AutoModelForCausalLM.from_config(config), 20)
    assert (head.hidden_size, head.intermediate_size, head.vocab_size, head.head_dim) == (32, inner, 20, 8)
