"""Imports block drafters: DFlash (z-lab/dflash; SpecForge's and speculators' of its format), DFlare (AngelSlim).

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin, or a name on the hub. It has
layers as Qwen 3 has them, `norm`, `hidden_norm`, and `fc` (DFlash) or `layer_fusion_weights` (DFlare). Its slots read
the target's embedding of a token that stands for a mask; a head file holds that embedding. speculators stores copies of
the target's embedding and output layer next to them.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.models.block_head import spread
from specbench.engine.models.folders import head_folder
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair
from specbench.methods.blocks.dflash import KIND, MIXED, block_head
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.importer import Fitted, LayerImporter, Shapes, Tensors
from specbench_extras.released import OTHER_PAIR, LayerConfig, attention_shapes, is_copy, mlp_shapes

HUB = True  # a checkpoint may be a name on the hub

COPIES = ("embed_tokens.weight", "lm_head.weight")  # of the target's layers, which speculators stores


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


def fits(config: Config, target: PreTrainedModel, checkpoint: str, pair: str) -> None:
    """Raise UserError unless a head is for a target of these sizes, and ValueError if it does not say so."""
    own = target.config.get_text_config()
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
    raise UserError(f"{checkpoint} {wrong}; {OTHER_PAIR}")


class BlockImporter(LayerImporter[Config]):
    kinds = (KIND, MIXED)
    config = Config
    optional = (*COPIES, "d2t", "t2d", "verifier_lm_head.weight", "verifier_norm.weight")

    @property
    def what(self) -> str:
        return {KIND: "DFlash", MIXED: "DFlare"}[self.kind]

    def place(self, checkpoint: str | Path) -> tuple[Path, str]:
        folder = head_folder(str(checkpoint))
        return folder, str(checkpoint) if folder != Path(checkpoint) else folder.resolve().name

    def shapes(self, config: Config, stored: Tensors) -> Shapes:
        config.mask(), config.block()
        width, count, read = config.hidden_size, config.num_hidden_layers, len(config.layers_read())
        attention, size = attention_shapes(config, width), config.in_head_file()["head_dim"]
        if self.kind == MIXED:
            attention |= {f"{name}_proj_target.weight": attention[f"{name}_proj.weight"] for name in "kv"}
        layer = {
            **{f"self_attn.{name}": shape for name, shape in attention.items()},
            **{f"self_attn.{name}_norm.weight": (size,) for name in "qk"},
            **{f"mlp.{name}": shape for name, shape in mlp_shapes(config).items()},
            **{f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")},
        }
        return {
            **{f"layers.{i}.{name}": shape for i in range(count) for name, shape in layer.items()},
            "norm.weight": (width,),
            "hidden_norm.weight": (width,),
            **({"layer_fusion_weights": (count, read)} if self.kind == MIXED else {"fc.weight": (width, read * width)}),
        }

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        target = check_target(pair, self.kind)
        fits(form, target, str(folder), pair.name)
        for copied, module in zip(COPIES, (target.get_input_embeddings(), target.get_output_embeddings()), strict=True):
            if copied in stored and not is_copy(stored[copied], module):
                raise ValueError(f"its {copied} is not the target's")
        with torch.no_grad():
            masked = target.get_input_embeddings()(torch.tensor([form.mask()], device=target.device))[0]
        tensors = {name: tensor.float() for name, tensor in stored.items() if name not in self.optional}
        tensors["mask"] = masked.float().cpu()
        return tensors, {"config": form.in_head_file(), "layers": form.layers_read(), "block": form.block()}

    def check(self, head: Head, pair: Pair) -> None:
        block_head(head, pair.models["target"])


import_head = BlockImporter.import_head
