"""What importers of released heads are made of: the fields that layers need, the tensors of a folder, their checks."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from specbench.base.pickles import read_pickle
from specbench.base.untrusted import brief, is_file, listed
from specbench.config import Settings, UserError
from specbench.engine.models.heads import FLOATS
from specbench.engine.models.pair import Pair

STORED = (*FLOATS, torch.int64, torch.int32, torch.bool, torch.uint8)
ROPES = ("default", "linear", "llama3", "yarn")  # those that follow from their own parameters
STRETCHED = ("llama3", "yarn")  # these stretch a rotation that was made for fewer positions
AGAIN = "download the released head again"
OTHER_PAIR = "name the pair that it was trained for by --pair"


class LayerConfig(Settings):
    """The fields of a head's config.json that its layers need."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    num_hidden_layers: int = Field(default=1, ge=1)
    vocab_size: int = Field(ge=1)
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    max_position_embeddings: int | None = None
    attention_bias: bool = False

    def in_head_file(self) -> dict[str, Any]:
        """The configuration as a head file stores it. Raises ValueError for a head that cannot be used here."""
        scaling = dict(self.rope_parameters or self.rope_scaling or {})
        kind = scaling.pop("type", None)
        rope = {"rope_type": kind or "default", "rope_theta": self.rope_theta, **scaling}
        if self.attention_bias:
            raise ValueError("its attention has biases, and heads here have none")
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


class EagleLayer(LayerConfig):
    """Those of EAGLE's heads, whose official code leaves `rope_theta` out where positions are stretched linearly."""

    def in_head_file(self) -> dict[str, Any]:
        """As `LayerConfig.in_head_file` (LlamaAttention._init_rope in eagle/model/cnets.py and cnets1.py)."""
        stored = super().in_head_file()
        if (self.rope_scaling or {}).get("type") == "linear":
            stored["rope_parameters"]["rope_theta"] = 10000.0
        return stored


def read_tensors(
    folder: Path, names: tuple[str, str] = ("model.safetensors", "pytorch_model.bin")
) -> dict[str, Tensor]:
    """The tensors in a folder, from safetensors or from a pickle that may hold only tensors. Raises UserError.

    `names` are those of the two files.
    """
    safe, pickled = (folder / name for name in names)
    path = safe if is_file(safe) else pickled
    if not is_file(path):
        raise UserError(f"{folder} has neither {' nor '.join(names)}; name the folder of a released head")
    try:
        stored = load_file(path) if path == safe else read_pickle(path)
    except (SafetensorError, RuntimeError, AttributeError, ValueError, LookupError, OSError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); download the released head again") from None
    tensors = {name: tensor for name, tensor in stored.items() if isinstance(tensor, Tensor)}
    if any(tensor.dtype not in STORED for tensor in tensors.values()):
        raise UserError(f"{path} holds tensors of types that heads do not have; download the released head again")
    return tensors


def check_tensors(
    folder: Path,
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, tuple[int, ...]],
    what: str,
    remedy: str,
    optional: Container[str] = (),
    sizes_of: str = "its config.json",
) -> None:
    """Raise UserError unless a checkpoint has finite tensors of these names and shapes, and none but `optional` others.

    `what` names the head in the message, `remedy` says what to do, and `sizes_of` what the shapes follow from.
    """
    if missing := [name for name in wanted if name not in stored]:
        raise UserError(f"{folder} holds no head of {what}: it lacks {listed(missing)}; {remedy}")
    if strange := [name for name in stored if name not in wanted and name not in optional]:
        raise UserError(f"{folder} holds no head of {what}: it has {listed(strange)} too; {remedy}")
    for name, shape in wanted.items():
        if tuple(stored[name].shape) != shape:
            actual, expected = (" x ".join(map(str, sizes)) for sizes in (stored[name].shape, shape))
            raise UserError(f"{folder}: {name} is {actual}, and {sizes_of} says {expected}; {AGAIN}")
    if not all(stored[name].isfinite().all() for name in wanted):
        raise UserError(f"{folder} holds values that are no numbers; {AGAIN}")


def check_reads(folder: Path, width: int, embeddings: Tensor | None, pair: Pair) -> None:
    """Raise UserError if a head of this width D does not read the states of the pair's target.

    `embeddings` [V, D] are those that the head brings, which must be the target's.
    """
    target = pair.models["target"]
    known = target.config.get_text_config().hidden_size
    if width != known:
        raise UserError(f"{folder} reads {width} values, but the target of {pair.name} has {known}; {OTHER_PAIR}")
    if embeddings is not None and not is_copy(embeddings, target.get_input_embeddings()):
        raise UserError(f"{folder} has embeddings that are not those of the target of {pair.name}; {OTHER_PAIR}")


def is_copy(stored: Tensor, module: nn.Module) -> bool:
    """True if a tensor [n, D] is the first rows of a module's weight, either of them rounded to half precision."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    rows = weight.detach().cpu().float()[: len(stored)]
    return stored.shape == rows.shape and torch.allclose(stored.float(), rows, rtol=2**-7, atol=1e-6)


def attention_shapes(config: LayerConfig, reads: int) -> dict[str, tuple[int, ...]]:
    """The tensors of an attention without biases that reads `reads` values, by their names within it.

    Raises ValueError as of `LayerConfig.in_head_file`.
    """
    stored = config.in_head_file()
    queries, keys = (stored[name] * stored["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    rows = {"q": queries, "k": keys, "v": keys}
    return {
        **{f"{name}_proj.weight": (count, reads) for name, count in rows.items()},
        "o_proj.weight": (config.hidden_size, queries),
    }


def mlp_shapes(config: LayerConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of a gated MLP, by their names within it."""
    width, inner = config.hidden_size, config.intermediate_size
    return {
        **{f"{name}_proj.weight": (inner, width) for name in ("gate", "up")},
        "down_proj.weight": (width, inner),
    }
