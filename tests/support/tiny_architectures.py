"""Tiny random models of current transformers architectures, with every part that sets an architecture apart."""

import copy
import functools
from typing import Any

import oracle
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

WINDOW = 16  # shorter than the texts of the tests
COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
OLD = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256, "n_inner": 48}  # names of GPT-2 and its kin
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
LATENT |= {"num_key_value_heads": 4}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK |= {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 8, "chunk_size": 8}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}

IDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}  # where there must be some
ABSENT = object()  # a key of COMMON that a configuration does not have

# What differs from COMMON, by the `model_type` of config.json.
FIELDS: dict[str, dict[str, Any]] = {
    # Dense
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "ministral": SLIDING,
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3_text": SLIDING | {"query_pre_attn_scalar": 8},
    "gemma3n_text": SLIDING
    | {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 8}
    | {"activation_sparsity_pattern": [0.0] * 4, "altup_num_inputs": 2},
    "gemma4_text": SLIDING | {"vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 8},
    "vaultgemma": SLIDING | {"query_pre_attn_scalar": 8},
    "phi": {"num_key_value_heads": 4},
    "phi3": {"sliding_window": WINDOW},
    "olmo": {},
    "olmo2": {},
    "olmo3": SLIDING,
    "glm": {},
    "glm4": {},
    "granite": {"embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.3},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
    "starcoder2": {"sliding_window": WINDOW},
    "stablelm": {},
    "cohere": {"logit_scale": 1.0},
    "cohere2": SLIDING | {"logit_scale": 1.0},
    "nemotron": {},
    "exaone4": SLIDING,
    "ernie4_5": {},
    "seed_oss": {},
    "apertus": {},
    "arcee": {},
    "helium": {},
    "hunyuan_v1_dense": {},
    "persimmon": {"num_key_value_heads": 4},
    "nanochat": {},
    "diffllama": {},
    "modernbert-decoder": SLIDING | IDS | {"local_attention": WINDOW},
    "bitnet": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    "gpt2": OLD,
    "gpt_bigcode": OLD,
    "gptj": OLD | {"rotary_dim": 4},
    "gpt_neox": {},
    "falcon": {"head_dim": ABSENT, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 48},
    "bloom": {"n_layer": 4, "n_head": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4, "expansion_ratio": 2, "max_seq_len": 256},
    # Latent attention
    "minicpm3": LATENT | {"scale_emb": 1, "dim_model_base": 32},
    "youtu": LATENT,
    # Mixtures of experts
    "mixtral": LOCAL,
    "qwen2_moe": ROUTED | {"shared_expert_intermediate_size": 24},
    "qwen3_moe": ROUTED,
    "olmoe": ROUTED,
    "flex_olmo": ROUTED,
    "phimoe": LOCAL,
    "granitemoe": LOCAL,
    "granitemoeshared": LOCAL | {"shared_intermediate_size": 24},
    "gpt_oss": SLIDING | LOCAL,
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 1},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "minimax_m2": LOCAL | {"rotary_dim": 4},
    "dots1": DEEPSEEK | {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "glm4_moe": DEEPSEEK,
    "afmoe": ROUTED | SLIDING | {"num_shared_experts": 1},
    "mimo_v2_flash": DEEPSEEK | SLIDING | {"v_head_dim": 8},
    "llama4_text": LOCAL
    | {"intermediate_size_mlp": 48, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 0, 1, 0]}
    | {"layer_types": ["chunked_attention", "full_attention"] * 2},
    "jetmoe": {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 256}
    | {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_top_k": 2},
    },
    # Mixtures of experts with latent attention
    "deepseek_v2": DEEPSEEK | LATENT,
    "deepseek_v3": DEEPSEEK | LATENT,
    "glm4_moe_lite": DEEPSEEK | LATENT,
    "longcat_flash": LATENT
    | {"num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 24, "moe_topk": 2}
    | {"n_routed_experts": 4, "zero_expert_num": 2},
    # Text parts of multimodal models
    "gemma3": {"text_config": COMMON | SLIDING | {"query_pre_attn_scalar": 8}, "vision_config": VISION},
    # With a state, alone or next to attention
    "mamba": {"state_size": 8},
    "mamba2": MAMBA2,
    "falcon_mamba": {"state_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"], "attention_window_size": 8},
    "rwkv": {"attention_hidden_size": 32},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "attn_layer_indices": [1]},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_d_ssm": 64},
    "granitemoehybrid": LOCAL
    | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "shared_intermediate_size": 24}
    | {"layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {"hybrid_override_pattern": "M*M*", "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8}
    | {"n_groups": 1, "chunk_size": 8},
    "zamba2": {"n_mamba_heads": 8, "mamba_d_state": 8, "mamba_ngroups": 1, "chunk_size": 8}
    | {"layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "minimax": {"layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 2, "block_size": 4},
    "qwen3_next": LINEAR | ROUTED,
    "qwen3_5_text": LINEAR,
    "olmo_hybrid": LINEAR,
    "qwen3_5_moe_text": LINEAR | ROUTED | {"shared_expert_intermediate_size": 24},
    "lfm2_moe": ROUTED | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "lfm3": ROUTED | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "bailing_hybrid": DEEPSEEK | LATENT | LINEAR | ROUTED,
    "zamba": {"layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8, "n_mamba_heads": 2, "mamba_dt_rank": 8}
    | {"attention_hidden_size": 64, "attention_head_dim": 16},
    # With an index of what attention reads; of few heads, all scores of a token may be 0, and a tie is anyone's
    "deepseek_v32": DEEPSEEK | LATENT | {"index_topk": 8, "index_head_dim": 8, "index_n_heads": 32},
    "glm_moe_dsa": DEEPSEEK | LATENT | {"index_topk": 8, "index_head_dim": 8, "index_n_heads": 32},
    "axk2": DEEPSEEK | LATENT,
    # Without rollback
    "xlstm": {},
}


def model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A random model in float64; every weight matters, and its greedy texts are lively."""
    fields = FIELDS[kind]
    fields = {k: v for k, v in (fields if "text_config" in fields else COMMON | fields).items() if v is not ABSENT}
    config = AutoConfig.for_model(kind, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config, experts_implementation="eager")  # others know no float64
    made = made.to(torch.float64).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        tied = made.config.get_text_config().tie_word_embeddings
        for name, parameter in sorted(made.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim >= 2:  # a large embedding that is the output layer too would say its own token again
                parameter.copy_((0.03 if tied and "embed" in name else 0.5) * noise)
            else:  # biases and gains of norms keep their value, and matter
                parameter.add_(0.1 * noise)
    made.generation_config.eos_token_id = None
    return made.requires_grad_(False)


@functools.cache
def pair(kind: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A target, and a draft that agrees with it now and then: the target with noise in every weight."""
    target = model(kind)
    draft = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(draft.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.015 * parameter.std(correction=0) * noise)
    return target, draft


def prompt(length: int = 13, seed: int = 0) -> list[int]:
    return oracle.prompts(1, length=length, seed=seed)[0]
