"""Imports adapters of Kangaroo that its authors released (github.com/Equationliu/Kangaroo), or others in their form.

A checkpoint is a folder with config.json and pytorch_model.bin or model.safetensors. Its tensors are `norm` and
`layers.0`, an attention with a norm before it and no MLP. No checkpoint says how many of the target's layers come
before the adapter; in the official code it is an argument.
"""

from pathlib import Path
from typing import Any

from pydantic import Field

from specbench.config import UserError
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair
from specbench.methods.layers.kangaroo import KIND, check_target, exit_adapter
from specbench_extras.importer import Fitted, LayerImporter, Shapes, Tensors
from specbench_extras.released import LayerConfig, attention_shapes, check_reads

# Layers before the adapter, by the target's: those of Vicuna 7B (official README) and 13B (our inference).
EXITS = {32: 2, 40: 3}


class Config(LayerConfig):
    """The fields of an adapter's config.json that are needed, and one that users may add."""

    exit_layer: int | None = Field(default=None, ge=1)

    def in_head_file(self) -> dict[str, Any]:
        """As `LayerConfig.in_head_file`; in the official code the positions are the same whatever config.json says."""
        if self.num_hidden_layers != 1:
            raise ValueError(f"it has {self.num_hidden_layers} layers, and Kangaroo's adapter has 1")
        return {**super().in_head_file(), "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

    def exit(self, layers: int) -> int:
        """The layers before the adapter, of a target of this many. Raises ValueError if they are not known."""
        chosen = self.exit_layer or EXITS.get(layers)
        if chosen is None:
            raise ValueError(f"it does not say how many of {layers} layers come before it; write exit_layer into it")
        if chosen >= layers:
            raise ValueError(f"exit_layer is {chosen}, but the target has {layers} layers; correct it")
        return chosen


class KangarooImporter(LayerImporter[Config]):
    kinds = (KIND,)
    what, config = "Kangaroo", Config
    # Old versions of the layer store the frequencies of its positions, which follow from its size.
    optional = ("layers.0.self_attn.rotary_emb.inv_freq",)

    def shapes(self, config: Config, stored: Tensors) -> Shapes:
        width = config.hidden_size
        return {
            **{f"layers.0.self_attn.{name}": shape for name, shape in attention_shapes(config, width).items()},
            "layers.0.input_layernorm.weight": (width,),
            "norm.weight": (width,),
        }

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        target = check_target(pair)
        check_reads(folder, form.hidden_size, None, pair)
        try:
            layers = form.exit(target.config.get_text_config().num_hidden_layers)
        except ValueError as error:
            raise UserError(f"{folder / 'config.json'}: {error}") from None
        tensors = {name.removeprefix("layers.0."): stored[name].float() for name in self.shapes(form, stored)}
        return tensors, {"exit": layers, "config": form.in_head_file()}

    def check(self, head: Head, pair: Pair) -> None:
        exit_adapter(head, pair.models["target"])


import_head = KangarooImporter.import_head
