"""Imports acceptance heads that the authors of SpecDec++ released (github.com/Kaffaljidhmah2/SpecDec_pp).

A checkpoint is a folder with config.json (hidden_size and num_layers) and model.safetensors or pytorch_model.bin. Its
tensors are those of a sequence: blocks i < num_layers with `model.{i}.linear`, then the linear layer
`model.{num_layers}`, whose class 1 is "accepted". In released heads all blocks are the same one, stored once or
num_layers times.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from specbench.base import files
from specbench.base.untrusted import read_object
from specbench.config import Settings, UserError, load_pair, validated
from specbench.engine.models.heads import hidden_size, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.lengths.specdecpp import KIND
from specbench_extras.released import read_tensors

MOST_BLOCKS = 1000
# The training settings of the released head, by the official code's README and defaults.
RELEASED = {"inputs": "state", "weight": 6.0, "temperature": 1.0, "top_k": 50, "warped": False, "mix": 0.15}


class Config(Settings):
    hidden_size: int = Field(ge=1)
    num_layers: int = Field(default=0, ge=0, le=MOST_BLOCKS)


def import_head(checkpoint: Path, pair: str, out: Path | None, kind: str = KIND) -> Path:
    """Write a released head as a head file for a pair, and return its path.

    Raises UserError for a folder that holds no such head, and for a pair whose draft has another hidden size.
    """
    depth, tensors = read_released(checkpoint)
    path = out or Path(f"{KIND}-{checkpoint.resolve().name}.safetensors")
    files.refuse_existing(path)
    loaded = load_models(load_pair(pair))
    check_width(checkpoint, tensors, loaded)
    trained = {
        **RELEASED,
        "depth": depth,
        "shared_blocks": len(tensors["blocks.weight"]) < depth,
        "released": checkpoint.resolve().name,
    }
    write_head(path, KIND, tensors, loaded, trained, "draft")
    return path


def check_width(checkpoint: Path, tensors: Mapping[str, Tensor], pair: Pair) -> None:
    """Raise UserError if a head does not read the hidden states of the pair's draft."""
    width, head_width = hidden_size(pair.session("draft").model), tensors["out.weight"].shape[1]
    if width != head_width:
        raise UserError(
            f"{checkpoint} reads {head_width} values, but the draft of {pair.name} has {width}; "
            "name the pair that it was trained for by --pair"
        )


def read_released(folder: Path) -> tuple[int, dict[str, Tensor]]:
    """The depth of a released head, and its tensors by their names in a head file. Raises UserError."""
    stored = read_tensors(folder)
    raw = read_object(folder / "config.json")
    fields = {key: value for key, value in raw.items() if key in Config.model_fields}
    config = validated(Config, fields, str(folder / "config.json"))
    depth, width = config.num_layers, config.hidden_size
    blocks = [i for i in range(depth) if f"model.{i}.linear.weight" in stored]
    wanted = {
        **{f"model.{i}.linear.{part}": shape for i in blocks for part, shape in _shapes(width, width)},
        **{f"model.{depth}.{part}": shape for part, shape in _shapes(2, width)},
    }
    if {name: tuple(tensor.shape) for name, tensor in stored.items()} != wanted or len(blocks) not in (
        depth,
        min(depth, 1),
    ):
        raise UserError(
            f"{folder} holds no acceptance head of {depth} blocks that read {width} values, as its "
            "config.json says; name the folder of a released head, or download it again"
        )
    layers = [[stored[f"model.{i}.linear.{part}"].float() for part in ("weight", "bias")] for i in blocks]
    if all(torch.equal(tensor, first) for layer in layers for tensor, first in zip(layer, layers[0], strict=True)):
        layers = layers[:1]  # one block, passed `depth` times
    return depth, {
        "blocks.weight": torch.stack([weight for weight, _ in layers]) if layers else torch.empty(0, width, width),
        "blocks.bias": torch.stack([bias for _, bias in layers]) if layers else torch.empty(0, width),
        "out.weight": stored[f"model.{depth}.weight"].float(),
        "out.bias": stored[f"model.{depth}.bias"].float(),
    }


def _shapes(rows: int, width: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ("weight", (rows, width)), ("bias", (rows,))
