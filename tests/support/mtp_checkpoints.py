"""Tiny random checkpoints with multi-token-prediction modules, under the names that published ones have."""

import copy
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
EXAONE = tiny.DEEPSEEK | tiny.ROUTED | {"num_shared_experts": 1, "sliding_window": tiny.WINDOW}
EXAONE |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
FIELDS = tiny.FIELDS | {"exaone_moe": EXAONE}

# What a module's parts are called in checkpoints, by the target's kind, if not as in DeepSeek V3's; {0} is the number
# of a module, and `block` what the names of its layer begin with.
QWEN = {"eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden"}
QWEN |= {"post_norm": "mtp.norm", "block": "mtp.layers.0."}
MIMO = {part: f"model.mtp.layers.{{0}}.{part}" for part in ("enorm", "hnorm", "eh_proj")}
MIMO |= {"post_norm": "model.mtp.layers.{0}.final_layernorm", "block": "model.mtp.layers.{0}."}
ERNIE = {
    "enorm": "model.mtp_emb_norm.{0}",
    "hnorm": "model.mtp_hidden_norm.{0}",
    "eh_proj": "model.mtp_linear_proj.{0}",
}
ERNIE |= {"block": "model.mtp_block.{0}."}
NAMES = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "exaone_moe", "olmo_hybrid"), QWEN),
    "mimo_v2_flash": MIMO,
    "ernie4_5_moe": ERNIE,
}
# The type of a module's layers, and whether it has experts, where they differ.
LAYERS = {"deepseek_v32": "indexed_attention", "glm_moe_dsa": "indexed_attention", "mimo_v2_flash": "sliding_attention"}
DENSE = ("exaone_moe", "mimo_v2_flash")
ANNOUNCED = {
    **dict.fromkeys(("deepseek_v3", "glm4_moe", "bailing_hybrid"), "num_mtp_layers"),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "ernie4_5_moe"), "num_nextn_predict_layers"),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text"), "mtp_num_hidden_layers"),
}


def save(kind: str, count: int, folder: Path, **fields: Any) -> MtpModel:
    """Write a target of an architecture with `count` modules, and return these."""
    announced = {ANNOUNCED[kind]: count} if kind in ANNOUNCED else {}
    config = AutoConfig.for_model(kind, **tiny.COMMON | FIELDS[kind] | announced | fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target = AutoModelForCausalLM.from_config(config, experts_implementation="eager").to(torch.float64)
        theirs = with_modules(target, kind, count)
        modules = MtpModel(theirs, count).to(torch.float64)
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
            own |= published(kind, config.num_hidden_layers, int(found[1]), found[2], found[3], tensor.detach())
    file = folder / "model.safetensors"
    save_file(load_file(file) | own, file, {"format": "pt"})
    return modules


def with_modules(target: PreTrainedModel, kind: str, count: int) -> PreTrainedModel:
    """A copy of a target (weights are shared) whose configuration has what MtpModel asks for."""
    theirs = copy.copy(target)
    theirs.config = config = copy.deepcopy(target.config)
    config.num_mtp_layers = count
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = [LAYERS.get(kind, "full_attention")] * count
    if getattr(config, "mlp_layer_types", None):
        config.mtp_mlp_layer_types = ["dense" if kind in DENSE else "sparse"] * count
    if kind == "ernie4_5_moe":
        config.chain_hidden_post_norm = False
    return theirs


def published(kind: str, layers: int, number: int, part: str, rest: str, tensor: Tensor) -> dict[str, Tensor]:
    """The tensors of a checkpoint that one of a module is made of: experts are apart there."""
    names = NAMES.get(kind) or {
        part: f"model.layers.{layers + number}.{part}." for part in ("enorm", "hnorm", "eh_proj")
    } | {"post_norm": f"model.layers.{layers + number}.shared_head.norm.", "block": f"model.layers.{layers + number}."}
    prefix = names["block"] if part == "mtp_block" else f"{names[part].rstrip('.')}."
    prefix = prefix.format(number)
    if kind == "mimo_v2_flash":
        rest = rest.replace("post_attention_layernorm", "pre_mlp_layernorm").replace("sinks", "attention_sink_bias")
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
