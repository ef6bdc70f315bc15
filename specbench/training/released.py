"""What importers of released draft heads share: the fields of config.json that layers need, and checks of tensors."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field
from torch import Tensor

from specbench.config import Settings, UserError

ROPES = ("default", "linear", "llama3", "yarn")  # those that follow from their own parameters
STRETCHED = ("llama3", "yarn")  # these stretch a rotation that was made for fewer positions
AGAIN = "download the released head again"


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


def check_tensors(
    folder: Path,
    stored: Mapping[str, Tensor],
    wanted: Mapping[str, tuple[int, ...]],
    what: str,
    remedy: str,
    optional: Container[str] = (),
) -> None:
    """Raise UserError unless a checkpoint has finite tensors of these names and shapes, and none but `optional` others.

    `what` names the head in the message, and `remedy` says what to do.
    """
    if missing := [name for name in wanted if name not in stored]:
        raise UserError(f"{folder} holds no head of {what}: {missing[0]} is missing; {remedy}")
    if strange := [name for name in stored if name not in wanted and name not in optional]:
        raise UserError(f"{folder} holds no head of {what}: it has {strange[0]} too; {remedy}")
    for name, shape in wanted.items():
        if tuple(stored[name].shape) != shape:
            actual, expected = (" x ".join(map(str, sizes)) for sizes in (stored[name].shape, shape))
            raise UserError(f"{folder}: {name} is {actual}, and its config.json says {expected}; {AGAIN}")
    if not all(stored[name].isfinite().all() for name in wanted):
        raise UserError(f"{folder} holds values that are no numbers; {AGAIN}")
