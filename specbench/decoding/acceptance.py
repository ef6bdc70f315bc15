"""The acceptance prediction head of SpecDec++ (arXiv 2405.19715, §4.4): will the target accept this draft token?"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

LEAST = 1e-6  # chance that is told from none, and from certainty


@dataclass(frozen=True)
class AcceptanceHead:
    """D residual blocks x + SiLU(Wx + b), then a linear layer to two classes, of which 1 is "accepted".

    It reads the draft's last hidden state after reading the token, [H], as in the paper; or that and how sure the draft
    was of the token (`features`), which is our addition. The released heads go through one block D times (their blocks
    share their weights); such a head holds that one.
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
        """P(accepted) of one input [W]; waits for the device. For frozen heads: it keeps what it works out."""
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
        """The blocks, and the one row [W] and number that the two classes differ by."""
        return self._blocks(), self.out_weight[1] - self.out_weight[0], float(self.out_bias[1] - self.out_bias[0])


def features(hidden: Tensor, confidence: Tensor) -> Tensor:
    """Hidden states [..., H] and the log odds of q(d) [..., 1], the chance each token was drawn with: [..., H + 1].

    In float32, since in half precision 1 - LEAST is 1.
    """
    return torch.cat([hidden.float(), torch.logit(confidence.float(), eps=LEAST)], -1)
