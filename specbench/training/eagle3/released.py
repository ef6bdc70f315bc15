"""Imports draft heads of EAGLE-3 that others trained (github.com/SafeAILab/EAGLE, and trainers of its format).

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin. Its tensors are `fc`, `midlayer`,
`norm`, `lm_head`, and the draft vocabulary: `d2t` (the target's id of each draft token minus its draft id) and `t2d`
(for each of the target's tokens, True if the head can draft it). Some bring `embed_tokens`, a copy of the target's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from specbench.base import files
from specbench.config import UserError, load_pair
from specbench.engine.models.eagle_head import config_of, layers_read, stored_settings
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.heads.eagle3 import KIND, SHAPES, check_target, eagle_head, rising
from specbench.training.released import (
    AGAIN,
    OTHER_PAIR,
    LayerConfig,
    attention_shapes,
    check_reads,
    check_tensors,
    mlp_shapes,
    read_head,
)

LAYERS = "eagle_aux_hidden_state_layer_ids"  # in `eagle_config`: other trainers name the layers there
REMEDY = "name the folder of a head that EAGLE-3's authors released, or one of the same form"


class Config(LayerConfig):
    """The fields of a head's config.json that are needed."""

    draft_vocab_size: int = Field(ge=1)
    eagle_config: dict[str, Any] = Field(default={})
    norm_before_residual: bool = False

    def in_head_file(self) -> dict[str, Any]:
        """As `LayerConfig.in_head_file`; a head of EAGLE-3 has one layer."""
        if self.num_hidden_layers != 1 or self.norm_before_residual or self.attention_bias:
            raise ValueError("it is not of one layer without biases, as EAGLE-3's own heads are")
        return super().in_head_file()


def import_head(checkpoint: Path, pair: str, out: Path | None, kind: str = KIND) -> Path:
    """Write a released head as a head file for a pair, and return its path.

    Raises UserError for a folder that holds no such head, and for a pair whose target it does not fit.
    """
    config, tensors = read_released(checkpoint)
    path = out or Path(f"{KIND}-{checkpoint.resolve().name}.safetensors")
    files.refuse_existing(path)
    loaded = load_models(load_pair(pair))
    tensors = checked(checkpoint, config, tensors, loaded)
    try:
        sizes = config.hidden_size, config.intermediate_size, config.draft_vocab_size
        stored = stored_settings(config_of(*sizes, config.in_head_file()))
        trained = {
            "released": checkpoint.resolve().name,
            "config": stored,
            "layers": list(layers_read(loaded.models["target"])),
            "draft_vocabulary": config.draft_vocab_size,
        }
        # Raises if it cannot be read.
        eagle_head(Head(KIND, tensors, trained), loaded.models["target"], loaded.vocabulary)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{checkpoint} cannot be used: {' '.join(str(error).split())[:120]}; {REMEDY}") from None
    write_head(path, KIND, tensors, loaded, trained)
    return path


def read_released(folder: Path) -> tuple[Config, dict[str, Tensor]]:
    """The configuration of a released head, and its tensors by their names there. Raises UserError."""
    config, stored, wanted = read_head(folder, Config, shapes, REMEDY)
    drafted = config.draft_vocab_size
    check_tensors(folder, stored, wanted, "EAGLE-3", REMEDY, ("embed_tokens.weight",))
    ids = torch.arange(drafted) + stored["d2t"].long()
    if not rising(ids, config.vocab_size) or not torch.equal(stored["t2d"].nonzero()[:, 0], ids):
        raise UserError(f"{folder}: d2t and t2d do not name the same {drafted} of {config.vocab_size} tokens; {AGAIN}")
    return config, stored


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """The tensors of a released head, without those of the target. Raises ValueError as of `Config.in_head_file`."""
    width, drafted = config.hidden_size, config.draft_vocab_size
    attention = attention_shapes(config, 2 * width)
    return {
        **{f"midlayer.self_attn.{name}": shape for name, shape in attention.items()},
        **{f"midlayer.mlp.{name}": shape for name, shape in mlp_shapes(config).items()},
        **{name: (width,) for name, shape in SHAPES.items() if len(shape) == 1 and name != "d2t"},
        "fc.weight": (width, 3 * width),
        "lm_head.weight": (drafted, width),
        "d2t": (drafted,),
        "t2d": (config.vocab_size,),
    }


def checked(folder: Path, config: Config, stored: Mapping[str, Tensor], pair: Pair) -> dict[str, Tensor]:
    """The tensors of a head file, if they fit the pair's target. Raises UserError."""
    target = check_target(pair)
    check_reads(folder, config.hidden_size, stored.get("embed_tokens.weight"), pair)
    layers = list(layers_read(target))
    if config.eagle_config.get(LAYERS, layers) != layers:
        raise UserError(
            f"{folder} reads the states of layers {config.eagle_config[LAYERS]}, and here heads read those that enter "
            f"{layers}, as EAGLE-3's own do; it cannot be used"
        )
    last = config.draft_vocab_size - 1 + int(stored["d2t"][-1])
    if last >= pair.vocabulary:
        raise UserError(f"{folder} drafts token {last}, but {pair.name} has {pair.vocabulary} tokens; {OTHER_PAIR}")
    return {name: stored[name].float() for name in SHAPES}
