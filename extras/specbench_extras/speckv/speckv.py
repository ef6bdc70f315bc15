"""SpecKV: a small network chooses the draft length of each round (arXiv 2605.02888). Lossless.

It reads how sure the draft is of its first token, and was trained beforehand on records of rounds
(`specbench train --method speckv`). `bandit` decides from the same signals, and learns while it decodes.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear, relu

from specbench.config import UserError
from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.models.heads import Head, find_head
from specbench.engine.models.pair import Pair
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import ChoiceSettings

KIND = "speckv"
SIGNALS = 2  # q(d) and H(q) of a round's first draft token
LAYERS = ("first", "second", "out")
SHAPES = {
    **{f"{layer}.weight": (-1, -1) for layer in LAYERS},
    **{f"{layer}.bias": (-1,) for layer in LAYERS},
}


class Settings(ChoiceSettings):
    objective: Literal["tokens", "time"] = Field(
        description="a length is chosen by its expected tokens, or by these over the time of a round"
    )
    draft_cost: float = Field(gt=0, description="time: a draft forward over a target forward (c)")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


def expected_tokens(tensors: Mapping[str, Tensor], signals: Tensor) -> Tensor:
    """The tokens that a round is expected to commit with each of K lengths [n, K], by the draft's signals [n, 2]."""
    hidden = signals
    for layer in LAYERS[:-1]:
        hidden = relu(linear(hidden, tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]))
    return linear(hidden, tensors["out.weight"], tensors["out.bias"])


def round_times(choices: Sequence[int], objective: str, draft_cost: float) -> Tensor:
    """What the expected tokens of each length are divided by [K]: 1 + c γ target forwards, or 1."""
    return torch.tensor([1 + draft_cost * gamma if objective == "time" else 1.0 for gamma in choices])


class Learned(Lengths):
    """The length with the most expected tokens, or with the most per time; of equal ones the first of `choices`.

    The network computes on the CPU; the host waits for the two signals once a round.
    """

    looks = True

    def __init__(
        self, tensors: Mapping[str, Tensor], choices: Sequence[int], times: Tensor, hashes: Mapping[str, str]
    ) -> None:
        self.tensors, self.choices, self.times, self.hashes = tensors, choices, times, hashes

    @torch.inference_mode()
    def enough(self, step: int, token: DraftToken) -> bool:
        if step == 1:
            signals = torch.tensor([[float(token.chance()), token.entropy()]])
            self.length = self.choices[int((expected_tokens(self.tensors, signals)[0] / self.times).argmax())]
        return step >= self.length

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)


def check(head: Head, choices: Sequence[int]) -> None:
    """Raise UserError for a head that was trained for other lengths, or whose layers do not fit together."""
    trained = head.trained.get("choices")
    if trained != list(choices):
        raise UserError(
            f"the head for {KIND} was trained for the lengths {trained}, not {list(choices)}; "
            f"set {KIND}.choices, or train it again"
        )
    width, sizes = SIGNALS, []
    for layer in LAYERS:
        weight, bias = head.tensors[f"{layer}.weight"], head.tensors[f"{layer}.bias"]
        sizes.append(weight.shape[1] == width and len(bias) == len(weight))
        width = len(weight)
    if not all(sizes) or width != len(choices):
        raise UserError(f"the head for {KIND} is damaged (its layers do not fit together); train it again")


def lengths(settings: Settings, pair: Pair) -> Lengths:
    head = find_head(settings.head, KIND, pair, SHAPES, "draft")
    check(head, settings.choices)
    times = round_times(settings.choices, settings.objective, settings.draft_cost)
    return Learned(head.tensors, settings.choices, times, head.hashes())


build = adaptive(lengths)
