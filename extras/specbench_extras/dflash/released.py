"""Imports block drafters: DFlash (z-lab/dflash; SpecForge's and speculators' of its format), DFlare (AngelSlim).

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin, or a name on the hub. It has
layers as Qwen 3 has them, `norm`, `hidden_norm`, and `fc` (DFlash) or `layer_fusion_weights` (DFlare). Its slots read
the target's embedding of a token that stands for a mask; a head file holds that embedding. speculators stores copies of
the target's embedding and output layer next to them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.base import files
from specbench.base.untrusted import read_object
from specbench.config import UserError, load_pair, validated
from specbench.engine.models.block_head import spread
from specbench.engine.models.folders import head_folder
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.blocks.dflash import KIND, MIXED, block_head
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.released import LayerConfig, check_tensors, is_copy, read_tensors
from specbench_extras.released_forms import in_one_form

HUB = True  # a checkpoint may be a name on the hub

NAMES = {KIND: "DFlash", MIXED: "DFlare"}
COPIES = ("embed_tokens.weight", "lm_head.weight")  # of the target's layers, which speculators stores
LEFT_OUT = (*COPIES, "d2t", "t2d", "verifier_lm_head.weight", "verifier_norm.weight")
REMEDY = "name a head that the authors of {} released, or one of the same form"


class Config(LayerConfig):
    """The fields of a head's config.json that are needed. Some trainers write those of `dflash_config` next to it."""

    block_size: int | None = None
    draft_vocab_size: int | None = None
    num_target_layers: int | None = Field(default=None, ge=1)
    dflash_config: dict[str, Any] = Field(default={})
    mask_token_id: int | None = None
    target_layer_ids: list[int] | None = None
    layer_types: list[str] | None = None
    use_sliding_window: bool = False

    def own(self, name: str) -> Any:
        """What a head says of itself, in `dflash_config` or next to it; None if it says nothing."""
        return self.dflash_config.get(name, getattr(self, name))

    def layers_read(self) -> list[int]:
        """The target's layers that it reads. Raises ValueError if it does not say."""
        read = self.own("target_layer_ids")
        if read is None and self.num_target_layers:
            return spread(self.num_target_layers, self.num_hidden_layers)
        if not isinstance(read, list) or not read or any(type(layer) is not int or layer < 0 for layer in read):
            raise ValueError("it does not say which layers of the target it reads (target_layer_ids)")
        return read

    def block(self) -> int:
        """The tokens of a block. Raises ValueError if it does not say."""
        size = self.own("block_size")
        if type(size) is not int or size < 2:
            raise ValueError("it does not say how many tokens a block has (block_size, 2 or more)")
        return size

    def mask(self) -> int:
        """The token that stands for a mask. Raises ValueError if it does not say."""
        token = self.own("mask_token_id")
        if type(token) is not int or token < 0:
            raise ValueError("it does not say which token stands for a mask (mask_token_id)")
        return token

    def in_head_file(self) -> dict[str, Any]:
        """As `LayerConfig.in_head_file`; every layer must read the whole text."""
        if self.use_sliding_window or set(self.layer_types or ()) - {"full_attention"}:
            raise ValueError("some of its layers read a window of the text, which is not supported")
        if self.draft_vocab_size not in (None, self.vocab_size):
            raise ValueError(f"it drafts {self.draft_vocab_size} of {self.vocab_size} tokens, which is not supported")
        return super().in_head_file()


def import_head(checkpoint: str | Path, pair: str, out: Path | None, kind: str = KIND) -> Path:
    """Write a released head, in a folder or of the hub, as a head file for a pair, and return its path.

    `kind` is `dflash` or `dflare`. Raises UserError for what is no such head, and for a pair whose target it does not
    fit.
    """
    folder = head_folder(str(checkpoint))
    name = str(checkpoint) if folder != Path(checkpoint) else folder.resolve().name
    path = out or Path(f"{kind}-{name.rsplit('/', 1)[-1]}.safetensors")
    files.refuse_existing(path)
    config, tensors = read_released(folder, kind)
    loaded = load_models(load_pair(pair))
    target = check_target(loaded, kind)
    try:
        fits(config, target, f"{checkpoint}", pair)
        for copied, module in zip(COPIES, (target.get_input_embeddings(), target.get_output_embeddings()), strict=True):
            if copied in tensors and not is_copy(tensors[copied], module):
                raise ValueError(f"its {copied} is not the target's")
        with torch.no_grad():
            masked = target.get_input_embeddings()(torch.tensor([config.mask()], device=target.device))[0]
        tensors = {name: tensor.float() for name, tensor in tensors.items() if name not in LEFT_OUT}
        tensors["mask"] = masked.float().cpu()
        trained = {
            "released": name,
            "config": config.in_head_file(),
            "layers": config.layers_read(),
            "block": config.block(),
        }
        block_head(Head(kind, tensors, trained), target)  # raises if it cannot be read
    except ValueError as error:
        raise UserError(f"{checkpoint} cannot be used: {error}; {REMEDY.format(NAMES[kind])}") from None
    write_head(path, kind, tensors, loaded, trained)
    return path


def fits(config: Config, target: PreTrainedModel, checkpoint: str, pair: str) -> None:
    """Raise UserError unless a head is for a target of these sizes, and ValueError if it does not say so."""
    own, remedy = target.config.get_text_config(), "name the pair that it was trained for by --pair"
    layers = own.num_hidden_layers
    if config.hidden_size != own.hidden_size:
        wrong = f"reads {config.hidden_size} values, but the target of {pair} has {own.hidden_size}"
    elif config.num_target_layers not in (None, layers) or max(config.layers_read()) >= layers:
        wrong = f"reads layers {config.layers_read()}" + (
            f" of {config.num_target_layers}" if config.num_target_layers else ""
        )
        wrong += f", but the target of {pair} has {layers}"
    elif config.vocab_size != own.vocab_size:
        wrong = f"drafts {config.vocab_size} tokens, but the target of {pair} has {own.vocab_size}"
    elif config.mask() >= target.get_input_embeddings().weight.shape[0]:
        wrong = f"takes token {config.mask()} for a mask, but the target of {pair} has {own.vocab_size} tokens"
    else:
        return
    raise UserError(f"{checkpoint} {wrong}; {remedy}")


def read_released(folder: Path, kind: str) -> tuple[Config, Mapping[str, Tensor]]:
    """The configuration of a released head, and its tensors. Raises UserError."""
    stored = read_tensors(folder)
    path, remedy = folder / "config.json", REMEDY.format(NAMES[kind])
    config = validated(Config, in_one_form(read_object(path), str(path), kind), str(path))
    try:
        attention, read = config.in_head_file(), len(config.layers_read())
        config.mask(), config.block()
    except ValueError as error:
        raise UserError(f"{path}: {error}; {remedy}") from None
    width, inner, size = config.hidden_size, config.intermediate_size, attention["head_dim"]
    heads, groups = (attention[name] * size for name in ("num_attention_heads", "num_key_value_heads"))
    layer: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}.weight": (count, width) for name, count in rows_of(heads, groups, kind).items()},
        "self_attn.o_proj.weight": (width, heads),
        **{f"self_attn.{name}_norm.weight": (size,) for name in "qk"},
        **{f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")},
        "mlp.down_proj.weight": (width, inner),
        **{f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")},
    }
    count = config.num_hidden_layers
    wanted = {f"layers.{i}.{name}": shape for i in range(count) for name, shape in layer.items()}
    wanted |= {"norm.weight": (width,), "hidden_norm.weight": (width,)}
    wanted |= {"layer_fusion_weights": (count, read)} if kind == MIXED else {"fc.weight": (width, read * width)}
    check_tensors(folder, stored, wanted, NAMES[kind], remedy, LEFT_OUT)
    return config, stored


def rows_of(heads: int, groups: int, kind: str) -> dict[str, int]:
    """The outputs of the projections that make queries, and keys and values."""
    keyed = ("k_proj", "v_proj", *(("k_proj_target", "v_proj_target") if kind == MIXED else ()))
    return {"q_proj": heads, **dict.fromkeys(keyed, groups)}
