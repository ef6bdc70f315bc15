"""SpecDec++: a trained head predicts whether the target will accept the draft's tokens (arXiv 2405.19715). Lossless.

The draft goes on until the probability that some token is rejected exceeds a threshold. The best policy has this form
(Theorem 4.3).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear, silu

from specbench.config import UserError
from specbench.engine.lengths import DraftToken, Lengths, SignalLengths
from specbench.engine.models.heads import Head, find_head, hidden_size
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST
from specbench.methods.chains.sps import adaptive
from specbench.methods.drafting import StopSettings

KIND = "specdecpp"
LEAST = 1e-6  # probabilities are kept this far from 0 and from 1


class Settings(StopSettings):
    threshold: float = Field(gt=0, lt=1, description="a draft ends where P(some token is rejected) is higher (h)")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


# The tensors of a head file; -1: any number of blocks, and of inputs, which `lengths` checks against the draft model.
SHAPES = {"blocks.weight": (-1, -1, -1), "blocks.bias": (-1, -1), "out.weight": (2, -1), "out.bias": (2,)}


@dataclass(frozen=True)
class AcceptanceHead:
    """D residual blocks x + SiLU(Wx + b), then a linear layer to two classes; class 1 is "accepted" (section 4.4).

    It reads the draft's last hidden state after the token, [H], as in the paper; or that state and how sure the draft
    was of the token (`features`), which is our addition. The released heads apply one block D times (their blocks share
    weights); such a head holds one block.
    """

    blocks_weight: Tensor  # [B, W, W]; B is D, or 1 if the blocks share their weights; W is H, or H + 1
    blocks_bias: Tensor  # [B, W]
    out_weight: Tensor  # [2, W]
    out_bias: Tensor  # [2]
    depth: int  # D

    def __post_init__(self) -> None:
        if self.blocks_weight.shape[0] not in (1, self.depth):
            raise ValueError(f"{self.blocks_weight.shape[0]} blocks cannot make a depth of {self.depth}")

    def log_odds(self, inputs: Tensor) -> Tensor:
        """log P(accepted) / P(rejected) of inputs [..., W]: [...]."""
        for weight, bias in self._blocks():
            inputs = inputs + silu(linear(inputs, weight, bias))
        classes = linear(inputs, self.out_weight, self.out_bias)
        return classes[..., 1] - classes[..., 0]

    def probability(self, inputs: Tensor) -> float:
        """P(accepted) of one input [W]. Waits for the device. For frozen heads only, since it caches values."""
        blocks, weight, bias = self._layers
        inputs = inputs.to(weight.dtype)
        for w, b in blocks:
            inputs = inputs + silu(torch.addmv(b, w, inputs))
        return 1 / (1 + math.exp(-max(float(torch.dot(weight, inputs)) + bias, -700.0)))

    def _blocks(self) -> list[tuple[Tensor, Tensor]]:
        """(W, b) of each block, D of them."""
        blocks = list(zip(self.blocks_weight, self.blocks_bias, strict=True))
        return blocks if len(blocks) == self.depth else blocks * self.depth

    @cached_property
    def _layers(self) -> tuple[list[tuple[Tensor, Tensor]], Tensor, float]:
        """The blocks, and the difference of the two classes' rows [W] and biases."""
        return self._blocks(), self.out_weight[1] - self.out_weight[0], float(self.out_bias[1] - self.out_bias[0])


def features(hidden: Tensor, confidence: Tensor) -> Tensor:
    """Hidden states [..., H] and the log odds of q(d) [..., 1], the probability of each draw: [..., H + 1].

    In float32, since in half precision 1 - LEAST is 1.
    """
    return torch.cat([hidden.float(), torch.logit(confidence.float(), eps=LEAST)], -1)


class Predicted(SignalLengths):
    """Stop if P(some token is rejected) exceeds the threshold.

    The head scores d_{s-1} from the state after it, which the forward that produced d_s has computed anyway. So the
    probability that all tokens stand is the product over those before d_s; d_s itself is never scored (official code).

    `confident` is true of a head that reads q(d) too.
    """

    hidden = LAST

    def __init__(
        self, head: AcceptanceHead, threshold: float, shortest: int, hashes: Mapping[str, str], confident: bool = False
    ) -> None:
        super().__init__(threshold, shortest)
        self.head, self.hashes, self.confident = head, hashes, confident
        self.chance = torch.empty(0)  # q(d) of the last token [1]

    def enough(self, step: int, token: DraftToken) -> bool:
        if step > 1:
            assert token.hidden is not None
            inputs = features(token.hidden, self.chance) if self.confident else token.hidden
            self.signals.append(self.head.probability(inputs))
        if self.confident:
            self.chance = token.chance()
        return step >= self.shortest and 1 - math.prod(self.signals) > self.threshold

    def inputs(self) -> dict[str, str]:
        return dict(self.hashes)


def acceptance_head(head: Head, device: torch.device) -> AcceptanceHead:
    """The head in a file, float32 as in the official code. Raises UserError where its tensors and depth disagree."""
    blocks, out = (
        [head.tensors[f"{layer}.{kind}"].to(device) for kind in ("weight", "bias")] for layer in ("blocks", "out")
    )
    count, inputs = blocks[1].shape
    try:
        if blocks[0].shape != (count, inputs, inputs) or out[0].shape[1] != inputs:
            raise ValueError("its layers do not fit together")
        return AcceptanceHead(blocks[0], blocks[1], out[0], out[1], int(head.trained["depth"]))
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"the head for {KIND} is damaged ({error}); train it again") from None


def lengths(settings: Settings, pair: Pair) -> Lengths:
    draft = pair.session("draft").model  # raises UserError for a pair without a draft model
    head = find_head(settings.head, KIND, pair, SHAPES, "draft")
    loaded = acceptance_head(head, draft.device)
    more = loaded.out_weight.shape[1] - hidden_size(draft)
    if more not in (0, 1):
        raise UserError(f"the head for {KIND} reads {more:+d} values next to the draft model's state; train it again")
    return Predicted(loaded, settings.threshold, settings.shortest, head.hashes(), confident=more == 1)


build = adaptive(lengths)
