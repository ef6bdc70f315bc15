"""The recipe of a draft model's training (recipes/draft-*.yaml, one for each paper)."""

from typing import Any, Literal, Protocol

from pydantic import Field, field_validator

from specbench.config import UserError
from specbench.training.recipe import AdamWRecipe, Autocast

Data = Literal["ground_truth", "target", "draft", "mix_request", "mix_token", "served", "replay"]
Loss = Literal["ce", "fkl", "rkl", "jsd", "tvd", "tvd++", "split"]
Divergence = Literal["fkl", "rkl"]
ANSWERED = ("target", "mix_request")  # data that the target answers before the training begins
SPECULATED = ("served", "replay")  # data that speculative decoding with the current draft makes
MASKED = ("mix_token", *SPECULATED)  # data that is made in batches of texts of unequal lengths, by masks


class Sides(Protocol):
    """Which divergence is made small on accepted slots of a drafted block, and which on rejected ones (Draft-OPD)."""

    @property
    def accepted(self) -> Divergence: ...

    @property
    def rejected(self) -> Divergence: ...


class DraftRecipe(AdamWRecipe):
    """The recipe of a draft model (DistillSpec, arXiv 2310.08461; FastDraft, 2411.11055; TVD++, 2403.00858)."""

    data: Data = Field(description="whose texts the draft learns from")
    mix: float = Field(ge=0, le=1, description="mix_request, mix_token: share of the draft's own texts or tokens")
    temperatures: tuple[float, ...] = Field(
        min_length=1, description="of generated texts, one after the other by epoch; 0 is greedy"
    )
    gamma: int = Field(ge=1, description="served, replay: draft tokens a round")
    loss: Loss = Field(description="what is made small at every counted place")
    beta: float = Field(gt=0, lt=1, description="jsd: weight of the target in the mean distribution")
    accepted: Divergence = Field(description="split: the divergence on accepted slots")
    rejected: Divergence = Field(description="split: the divergence on rejected slots")
    reject_decay: float = Field(gt=0, le=1, description="split: weight of a rejected slot relative to the slot before")
    anchors: Literal["rounds", "random"] = Field(
        description="replay: blocks begin where rounds did, or as many at random places of the text"
    )
    exits: tuple[int, ...] = Field(
        description="after how many of its layers the draft learns to speak too; the losses of all exits add up"
    )
    length: int = Field(ge=2, description="tokens of a text with its prompt, at most; the rest is cut off")
    lora_rank: int = Field(ge=0, description="rank of adapters (LoRA) on all linear layers; 0: all weights learn")
    gradient_checkpointing: bool = Field(description="compute layers again in the backward pass, for less memory")
    autocast: Autocast = Field(description="matrix products in bfloat16; auto: on a GPU")

    @field_validator("temperatures", "exits", mode="before")
    @classmethod
    def several(cls, value: Any) -> Any:
        """One number, or several with commas between them, as --recipe gives them."""
        return str(value).split(",") if isinstance(value, str | int | float) else value

    def check(self) -> None:
        """Raise UserError for settings that do not go together."""
        if self.loss == "split" and self.data != "replay":
            raise UserError(f"loss=split tells accepted slots from rejected ones; take data=replay, not {self.data}")
        if any(not 0 <= temperature < float("inf") for temperature in self.temperatures):
            raise UserError("temperatures: give numbers from 0 on")
