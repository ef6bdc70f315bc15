"""Imports heads of EAGLE and EAGLE-2 that others trained (github.com/SafeAILab/EAGLE), and those of HASS.

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin. Its tensors are `fc`, which some
heads give a bias (`bias` of config.json, true unless it says otherwise), and `layers.0`, a Llama layer without a norm
before its attention. Most bring `embed_tokens`, a copy of the target's. EAGLE and EAGLE-2 share heads, and HASS trains
the same ones otherwise.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.base import files
from specbench.config import UserError, load_pair
from specbench.engine.models.eagle_head import config_of, stored_settings
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.heads.eagle import feature_head
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.released import (
    EagleLayer,
    attention_shapes,
    check_reads,
    check_tensors,
    mlp_shapes,
    read_head,
)

KINDS = ("eagle", "hass")
REMEDY = "name the folder of a head that the authors of EAGLE released, or one of the same form"


class Config(EagleLayer):
    """The fields of a head's config.json that are needed."""

    bias: bool | None = None  # of `fc`; None: true in the official code, and here what the checkpoint has
    qkv_bias: bool = False  # of heads for Qwen 2

    def in_head_file(self) -> dict[str, Any]:
        """As `LayerConfig.in_head_file`; a head has one layer."""
        if self.num_hidden_layers != 1:
            raise ValueError(f"it has {self.num_hidden_layers} layers, and EAGLE's heads have 1")
        if self.qkv_bias:
            raise ValueError("its attention has biases, and heads here have none")
        return super().in_head_file()


def import_head(checkpoint: Path, pair: str, out: Path | None, kind: str = KINDS[0]) -> Path:
    """Write a released head as a head file for a pair, and return its path; `kind` is `eagle` or `hass`.

    Raises UserError for a folder that holds no such head, and for a pair whose target it does not fit.
    """
    config, stored = read_released(checkpoint)
    path = out or Path(f"{kind}-{checkpoint.resolve().name}.safetensors")
    files.refuse_existing(path)
    loaded = load_models(load_pair(pair))
    target = check_target(loaded, kind)
    check_reads(checkpoint, config.hidden_size, stored.get("embed_tokens.weight"), loaded)
    tensors = {name: stored[name].float() for name in shapes(config) if name in stored}
    tensors.setdefault("fc.bias", torch.zeros(config.hidden_size))
    try:
        sizes = config.hidden_size, config.intermediate_size, loaded.vocabulary
        trained = {
            "released": checkpoint.resolve().name,
            "fuse": "fc",
            "config": stored_settings(config_of(*sizes, config.in_head_file())),
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{checkpoint} cannot be used: {' '.join(str(error).split())[:120]}; {REMEDY}") from None
    feature_head(Head(kind, tensors, trained), target, loaded.vocabulary)  # raises if it cannot be read
    write_head(path, kind, tensors, loaded, trained)
    return path


def read_released(folder: Path) -> tuple[Config, Mapping[str, Tensor]]:
    """The configuration of a released head, and its tensors by their names there. Raises UserError."""
    config, stored, wanted = read_head(folder, Config, shapes, REMEDY, KINDS[0])
    if (config.bias is None and "fc.bias" not in stored) or config.bias is False:
        del wanted["fc.bias"]
    check_tensors(folder, stored, wanted, "EAGLE", REMEDY, ("embed_tokens.weight",))
    return config, stored


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of a released head, without those of the target. Raises ValueError as of `Config.in_head_file`."""
    width = config.hidden_size
    return {
        "fc.weight": (width, 2 * width),
        "fc.bias": (width,),
        **{f"layers.0.self_attn.{name}": shape for name, shape in attention_shapes(config, width).items()},
        **{f"layers.0.mlp.{name}": shape for name, shape in mlp_shapes(config).items()},
        "layers.0.post_attention_layernorm.weight": (width,),
    }
