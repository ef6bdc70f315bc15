"""Imports acceptance heads that the authors of SpecDec++ released (github.com/Kaffaljidhmah2/SpecDec_pp).

A checkpoint is a folder with config.json (hidden_size and num_layers) and model.safetensors or pytorch_model.bin. Its
tensors are those of a sequence: blocks i < num_layers with `model.{i}.linear`, then the linear layer
`model.{num_layers}`, whose class 1 is "accepted". In released heads all blocks are the same one, stored once or
num_layers times.
"""

from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from specbench.base.untrusted import read_object
from specbench.config import Settings, UserError, validated
from specbench.engine.models.heads import hidden_size
from specbench.engine.models.pair import Pair
from specbench.methods.lengths.specdecpp import KIND
from specbench_extras.importer import Fitted, Importer, Tensors
from specbench_extras.released import read_tensors

MOST_BLOCKS = 1000
# The training settings of the released head, by the official code's README and defaults.
RELEASED = {"inputs": "state", "weight": 6.0, "temperature": 1.0, "top_k": 50, "warped": False, "mix": 0.15}


class Config(Settings):
    hidden_size: int = Field(ge=1)
    num_layers: int = Field(default=0, ge=0, le=MOST_BLOCKS)


def check_width(checkpoint: Path, tensors: Tensors, pair: Pair) -> None:
    """Raise UserError if a head does not read the hidden states of the pair's draft."""
    width, head_width = hidden_size(pair.session("draft").model), tensors["out.weight"].shape[1]
    if width != head_width:
        raise UserError(
            f"{checkpoint} reads {head_width} values, but the draft of {pair.name} has {width}; "
            "name the pair that it was trained for by --pair"
        )


def _shapes(rows: int, width: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ("weight", (rows, width)), ("bias", (rows,))


class AcceptanceImporter(Importer[Config]):
    kinds = (KIND,)
    what = "SpecDec++"
    reads = "draft"

    def read(self, folder: Path) -> tuple[Config, dict[str, Tensor]]:
        """The tensors by their names in a head file."""
        stored, path = read_tensors(folder), folder / "config.json"
        fields = {key: value for key, value in read_object(path).items() if key in Config.model_fields}
        config = validated(Config, fields, str(path))
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
        return config, {
            "blocks.weight": torch.stack([weight for weight, _ in layers]) if layers else torch.empty(0, width, width),
            "blocks.bias": torch.stack([bias for _, bias in layers]) if layers else torch.empty(0, width),
            "out.weight": stored[f"model.{depth}.weight"].float(),
            "out.bias": stored[f"model.{depth}.bias"].float(),
        }

    def fitted(self, folder: Path, form: Config, stored: Tensors, pair: Pair) -> Fitted:
        check_width(folder, stored, pair)
        shared = len(stored["blocks.weight"]) < form.num_layers
        return dict(stored), {**RELEASED, "depth": form.num_layers, "shared_blocks": shared}


import_head = AcceptanceImporter.import_head
