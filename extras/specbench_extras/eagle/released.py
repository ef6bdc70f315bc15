"""Imports heads of EAGLE and EAGLE-2 that others trained (github.com/SafeAILab/EAGLE), and those of HASS.

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin. Its tensors are `fc`, which some
heads give a bias (`bias` of config.json, true unless it says otherwise), and `layers.0`, a Llama layer without a norm
before its attention. Most bring `embed_tokens`, a copy of the target's. EAGLE and EAGLE-2 share heads, and HASS trains
the same ones otherwise.
"""

from pathlib import Path
from typing import Any

import torch

from specbench.engine.models.eagle_head import config_of, stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair
from specbench.methods.heads.eagle import feature_head
from specbench.methods.heads.eagle3 import check_target
from specbench_extras.importer import Fitted, LayerImporter, Shapes, Tensors
from specbench_extras.released import EagleLayer, attention_shapes, check_reads, mlp_shapes


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


class EagleImporter(LayerImporter[Config]):
    kinds = ("eagle", "hass")
    what, told_as, config = "EAGLE", "eagle", Config
    optional = ("embed_tokens.weight",)

    def shapes(self, config: Config, stored: Tensors) -> Shapes:
        width, biased = config.hidden_size, "fc.bias" in stored if config.bias is None else config.bias
        return {
            "fc.weight": (width, 2 * width),
            **({"fc.bias": (width,)} if biased else {}),
            **{f"layers.0.self_attn.{name}": shape for name, shape in attention_shapes(config, width).items()},
            **{f"layers.0.mlp.{name}": shape for name, shape in mlp_shapes(config).items()},
            "layers.0.post_attention_layernorm.weight": (width,),
        }

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        check_target(pair, self.kind)
        check_reads(folder, form.hidden_size, stored.get("embed_tokens.weight"), pair)
        tensors = {name: stored[name].float() for name in self.shapes(form, stored)}
        tensors.setdefault("fc.bias", torch.zeros(form.hidden_size))
        sizes = form.hidden_size, form.intermediate_size, pair.vocabulary
        return tensors, {"fuse": "fc", "config": stored_settings(config_of(*sizes, form.in_head_file()))}

    def check(self, head: Head, pair: Pair) -> None:
        feature_head(head, pair.models["target"], pair.vocabulary)


import_head = EagleImporter.import_head
