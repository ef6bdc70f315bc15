"""Imports adapters of Kangaroo that its authors released (github.com/Equationliu/Kangaroo), or others in their form.

A checkpoint is a folder with config.json and pytorch_model.bin or model.safetensors. Its tensors are `norm` and
`layers.0`, an attention with a norm before it and no MLP. No checkpoint says how many of the target's layers come
before the adapter; in the official code it is an argument.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from specbench.base import files
from specbench.config import UserError, load_pair
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.layers.kangaroo import KIND, check_target, exit_adapter
from specbench_extras.released import LayerConfig, attention_shapes, check_reads, check_tensors, read_head

REMEDY = "name the folder of an adapter that Kangaroo's authors released, or one of the same form"
# Layers before the adapter, by the target's: those of Vicuna 7B (official README) and 13B (our inference).
EXITS = {32: 2, 40: 3}
# Old versions of the layer store the frequencies of its positions, which follow from its size.
DERIVED = ("layers.0.self_attn.rotary_emb.inv_freq",)


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


def import_head(checkpoint: Path, pair: str, out: Path | None, kind: str = KIND) -> Path:
    """Write a released adapter as a head file for a pair, and return its path.

    Raises UserError for a folder that holds no such adapter, and for a pair whose target it does not fit.
    """
    config, stored = read_released(checkpoint)
    path = out or Path(f"{KIND}-{checkpoint.resolve().name}.safetensors")
    files.refuse_existing(path)
    loaded = load_models(load_pair(pair))
    target = check_target(loaded)
    check_reads(checkpoint, config.hidden_size, None, loaded)
    try:
        layers = config.exit(target.config.get_text_config().num_hidden_layers)
    except ValueError as error:
        raise UserError(f"{checkpoint / 'config.json'}: {error}") from None
    tensors = {name.removeprefix("layers.0."): stored[name].float() for name in shapes(config)}
    trained = {"released": checkpoint.resolve().name, "exit": layers, "config": config.in_head_file()}
    exit_adapter(Head(KIND, tensors, trained), target)  # raises if it cannot be read
    write_head(path, KIND, tensors, loaded, trained)
    return path


def read_released(folder: Path) -> tuple[Config, Mapping[str, Tensor]]:
    """The configuration of a released adapter, and its tensors by their names there. Raises UserError."""
    config, stored, wanted = read_head(folder, Config, shapes, REMEDY, KIND)
    check_tensors(folder, stored, wanted, "Kangaroo", REMEDY, DERIVED)
    return config, stored


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of a released adapter. Raises ValueError as of `Config.in_head_file`."""
    width = config.hidden_size
    return {
        **{f"layers.0.self_attn.{name}": shape for name, shape in attention_shapes(config, width).items()},
        "layers.0.input_layernorm.weight": (width,),
        "norm.weight": (width,),
    }
