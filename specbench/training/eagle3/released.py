"""Imports draft heads of EAGLE-3 that others trained (github.com/SafeAILab/EAGLE, and trainers of its format).

A checkpoint is a folder with config.json and model.safetensors or pytorch_model.bin. Its tensors are `fc`, `midlayer`,
`norm`, `lm_head`, and the draft vocabulary: `d2t` (the target's id of each draft token minus its draft id) and `t2d`
(for each of the target's tokens, True if the head can draft it). Some bring `embed_tokens`, a copy of the target's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from specbench.base import files
from specbench.base.untrusted import read_object
from specbench.config import Settings, UserError, load_pair, validated
from specbench.engine.models.eagle_head import config_of, layers_read, stored_settings
from specbench.engine.models.heads import Head, write_head
from specbench.engine.models.pair import Pair
from specbench.engine.models.pair import load_pair as load_models
from specbench.methods.eagle3 import KIND, SHAPES, check_target, eagle_head, rising
from specbench.training.specdecpp.released import read_tensors

ROPES = ("default", "linear", "llama3", "yarn")  # those that follow from their own parameters
STRETCHED = ("llama3", "yarn")  # these stretch a rotation that was made for fewer positions
LAYERS = "eagle_aux_hidden_state_layer_ids"  # in `eagle_config`: other trainers name the layers there
REMEDY = "name the folder of a head that EAGLE-3's authors released, or one of the same form"
AGAIN = "download the released head again"


class Config(Settings):
    """The fields of a head's config.json that are needed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    num_hidden_layers: int = 1
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    eagle_config: dict[str, Any] = Field(default={})
    norm_before_residual: bool = False
    attention_bias: bool = False

    def in_head_file(self) -> dict[str, Any]:
        """The configuration as a head file stores it. Raises ValueError for a head that cannot be used here."""
        scaling = dict(self.rope_parameters or self.rope_scaling or {})
        kind = scaling.pop("type", None)
        rope = {"rope_type": kind or "default", "rope_theta": self.rope_theta, **scaling}
        if self.num_hidden_layers != 1 or self.norm_before_residual or self.attention_bias:
            raise ValueError("it is not of one layer without biases, as EAGLE-3's own heads are")
        if rope["rope_type"] not in ROPES:
            raise ValueError(f"its positions are {rope['rope_type']}; only these can be read: {', '.join(ROPES)}")
        if rope["rope_type"] in STRETCHED and "original_max_position_embeddings" not in rope:
            if self.max_position_embeddings is None:
                raise ValueError("it does not say for how many positions its rotation was made")
            rope["original_max_position_embeddings"] = self.max_position_embeddings
        return {
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.head_dim or self.hidden_size // self.num_attention_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": self.hidden_act,
            "rope_parameters": rope,
        }


def import_head(checkpoint: Path, pair: str, out: Path | None) -> Path:
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
    stored = read_tensors(folder)
    path = folder / "config.json"
    config = validated(Config, read_object(path), str(path))
    try:
        stored_config = config.in_head_file()
    except ValueError as error:
        raise UserError(f"{path}: {error}; {REMEDY}") from None
    width, inner, drafted = config.hidden_size, config.intermediate_size, config.draft_vocab_size
    heads = stored_config["num_attention_heads"], stored_config["num_key_value_heads"]
    queries, keys = (count * stored_config["head_dim"] for count in heads)
    rows = {"q": queries, "k": keys, "v": keys}
    wanted = {
        **{f"midlayer.self_attn.{name}_proj.weight": (count, 2 * width) for name, count in rows.items()},
        "midlayer.self_attn.o_proj.weight": (width, queries),
        **{f"midlayer.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")},
        "midlayer.mlp.down_proj.weight": (width, inner),
        **{name: (width,) for name, shape in SHAPES.items() if len(shape) == 1 and name != "d2t"},
        "fc.weight": (width, 3 * width),
        "lm_head.weight": (drafted, width),
        "d2t": (drafted,),
        "t2d": (config.vocab_size,),
    }
    if missing := [name for name in wanted if name not in stored]:
        raise UserError(f"{folder} holds no head of EAGLE-3: {missing[0]} is missing; {REMEDY}")
    if strange := [name for name in stored if name not in {*wanted, "embed_tokens.weight"}]:
        raise UserError(f"{folder} holds no head of EAGLE-3: it has {strange[0]} too; {REMEDY}")
    for name, shape in wanted.items():
        if tuple(stored[name].shape) != shape:
            actual, expected = (" x ".join(map(str, sizes)) for sizes in (stored[name].shape, shape))
            raise UserError(f"{folder}: {name} is {actual}, and its config.json says {expected}; {AGAIN}")
    if not all(stored[name].isfinite().all() for name in wanted):
        raise UserError(f"{folder} holds values that are no numbers; {AGAIN}")
    ids = torch.arange(drafted) + stored["d2t"].long()
    if not rising(ids, config.vocab_size) or not torch.equal(stored["t2d"].nonzero()[:, 0], ids):
        raise UserError(f"{folder}: d2t and t2d do not name the same {drafted} of {config.vocab_size} tokens; {AGAIN}")
    return config, stored


def checked(folder: Path, config: Config, stored: Mapping[str, Tensor], pair: Pair) -> dict[str, Tensor]:
    """The tensors of a head file, if they fit the pair's target. Raises UserError."""
    target = check_target(pair)
    remedy = "name the pair that it was trained for by --pair"
    width = target.config.get_text_config().hidden_size
    if (reads := config.hidden_size) != width:
        raise UserError(f"{folder} reads {reads} values, but the target of {pair.name} has {width}; {remedy}")
    layers = list(layers_read(target))
    if config.eagle_config.get(LAYERS, layers) != layers:
        raise UserError(
            f"{folder} reads the states of layers {config.eagle_config[LAYERS]}, and here heads read those that enter "
            f"{layers}, as EAGLE-3's own do; it cannot be used"
        )
    ids = torch.arange(config.draft_vocab_size) + stored["d2t"].long()
    if int(ids[-1]) >= pair.vocabulary:
        raise UserError(f"{folder} drafts token {int(ids[-1])}, but {pair.name} has {pair.vocabulary} tokens; {remedy}")
    if (embeddings := stored.get("embed_tokens.weight")) is not None:
        of_target = target.get_input_embeddings().weight.detach().cpu().float()[: len(embeddings)]
        # Either of the two may have been rounded to half precision.
        same_shape = embeddings.shape == of_target.shape
        if not same_shape or not torch.allclose(embeddings.float(), of_target, rtol=2**-7, atol=1e-6):
            raise UserError(f"{folder} has embeddings that are not those of the target of {pair.name}; {remedy}")
    return {name: stored[name].float() for name in SHAPES}
