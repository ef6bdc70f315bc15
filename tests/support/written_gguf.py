"""Small GGUF files for tests: a random Qwen2 with byte tokens, its matrices in blocks of some type."""

from pathlib import Path

import gguf
import numpy as np
import torch
from oracle import tiny
from transformers import PreTrainedModel

END, TURN = 257, 258  # ids of the two end tokens
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "model.layers": "blk",
}


def characters() -> list[str]:
    """The 256 bytes as GPT-2 spells them: printable ones as they are, the others from U+0100 on."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


def unpacked(blocks: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of blocks [..., bytes] as the format defines them: 32 a block, a scale, for Q4_1 a minimum."""
    size = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]
    rows = blocks.reshape(-1, size)
    scale = rows[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        numbers = rows[:, 2:].copy().view(np.int8) * scale
    else:
        packed = rows[:, size - 16 :]
        halves = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
        least = rows[:, 2:4].copy().view(np.float16).astype(np.float32) if kind == "Q4_1" else -8 * scale
        numbers = halves * scale + least
    return numbers.reshape(*blocks.shape[:-1], -1).astype(np.float32)


def write(path: Path, kind: str = "Q8_0", left_out: str = "", architecture: str = "qwen2") -> PreTrainedModel:
    """Write a GGUF file; returns the model that it holds, in float32, computed here from the blocks."""
    model = tiny("qwen2", vocab=259, intermediate_size=64).float()
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*characters(), "th", "<|end|>", "<|turn|>"])
    writer.add_token_types([1] * 257 + [3, 3])
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(TURN)
    writer.add_chat_template(TEMPLATE)
    chosen = gguf.GGMLQuantizationType[kind]
    state = model.state_dict()
    for name, tensor in state.items():
        short = name
        for long, there in NAMES.items():
            short = short.replace(long, there)
        numbers = tensor.numpy()
        if numbers.ndim == 2 and kind != "F32":
            blocks = gguf.quantize(numbers, chosen)
            tensor.copy_(torch.from_numpy(unpacked(blocks, kind)))
            if short != left_out:
                writer.add_tensor(short, blocks, raw_dtype=chosen)
        elif short != left_out:
            writer.add_tensor(short, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
