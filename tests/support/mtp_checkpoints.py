"""Tiny random checkpoints with multi-token-prediction modules, under the names that published ones have."""

import re
from pathlib import Path
from typing import Any

import tiny_architectures as tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import MtpModel

LIKELY = 4  # tokens that are ever said: drafts of random modules are right now and then
QWEN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm",
    "mtp_block": "mtp.layers.0",
}


def save(kind: str, count: int, folder: Path, **fields: Any) -> None:
    """Write a target of an architecture with `count` modules."""
    announced = {} if kind.startswith("qwen") else {"num_mtp_layers": count}
    config = AutoConfig.for_model(kind, **tiny.COMMON | tiny.FIELDS[kind] | announced | fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target = AutoModelForCausalLM.from_config(config, experts_implementation="eager").to(torch.float64)
        config.num_mtp_layers, config.mtp_layer_types = count, ["full_attention"] * count
        modules = MtpModel(target, count).to(torch.float64)
    if kind.startswith("qwen"):
        del config.num_mtp_layers, config.mtp_layer_types
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for model in (target, modules):
            for _, parameter in sorted(model.named_parameters()):
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(0.5 * noise if parameter.ndim >= 2 else parameter + 0.1 * noise)
        target.lm_head.weight[LIKELY:] = 0
    target.config.dtype = torch.float64
    target.save_pretrained(folder)
    own = {}
    for name, tensor in modules.state_dict().items():
        if found := re.match(r"layers\.(\d+)\.(\w+)\.?(.*)", name):
            own |= published(kind, config.num_hidden_layers + int(found[1]), found[2], found[3], tensor.detach())
    file = folder / "model.safetensors"
    save_file(load_file(file) | own, file, {"format": "pt"})


def published(kind: str, layer: int, part: str, rest: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors of a checkpoint that one of a module is made of: experts are apart there."""
    if kind.startswith("qwen"):
        prefix = f"{QWEN[part]}."
    else:
        part = "shared_head.norm" if part == "post_norm" else part
        prefix = f"model.layers.{layer}." + ("" if part == "mtp_block" else f"{part}.")
    if ".experts." not in f".{rest}" or "shared" in rest:
        return {prefix + rest: tensor.contiguous().clone()}
    home, _, name = rest.rpartition(".")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[name]
    return {
        f"{prefix}{home}.{expert}.{each}.weight": value.contiguous()
        for expert, whole in enumerate(tensor)
        for each, value in zip(parts, whole.chunk(len(parts)), strict=True)
    }


def load(folder: Path) -> PreTrainedModel:
    """The target; transformers drops the modules."""
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, experts_implementation="eager").eval()
    target.generation_config.eos_token_id = None
    return target
