"""A released head of EAGLE-3 for the bundled target, written in its authors' layout."""

import json

import torch
from safetensors.torch import save_file

DRAFTED = [3, 4, 7, 300, 301, 1999]
SIZES = {"hidden_size": 192, "intermediate_size": 64, "num_attention_heads": 6, "num_key_value_heads": 3}


def checkpoint(folder, kind="pickled", change=None, **changes):
    """A checkpoint for the bundled target, as the authors' trainer writes it, in half precision."""
    rng = torch.Generator().manual_seed(5)

    def noise(*shape):
        return (torch.randn(*shape, generator=rng) * 0.05).half()

    tensors = {
        "fc.weight": noise(192, 576),
        "norm.weight": 1 + noise(192),
        "lm_head.weight": noise(6, 192),
        "d2t": torch.tensor(DRAFTED) - torch.arange(6),
        "t2d": torch.isin(torch.arange(2048), torch.tensor(DRAFTED)),
        "midlayer.self_attn.q_proj.weight": noise(192, 384),
        "midlayer.self_attn.k_proj.weight": noise(96, 384),
        "midlayer.self_attn.v_proj.weight": noise(96, 384),
        "midlayer.self_attn.o_proj.weight": noise(192, 192),
        "midlayer.mlp.gate_proj.weight": noise(64, 192),
        "midlayer.mlp.up_proj.weight": noise(64, 192),
        "midlayer.mlp.down_proj.weight": noise(192, 64),
        "midlayer.hidden_norm.weight": 1 + noise(192),
        "midlayer.input_layernorm.weight": 1 + noise(192),
        "midlayer.post_attention_layernorm.weight": 1 + noise(192),
    }
    facts = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    facts |= {"vocab_size": 2048, "draft_vocab_size": 6, "rms_norm_eps": 1e-05, "torch_dtype": "float16", **changes}
    if change:
        change(tensors)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(facts))
    if kind == "pickled":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder, tensors
