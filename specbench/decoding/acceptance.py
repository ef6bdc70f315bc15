"""The acceptance prediction head of SpecDec++ (arXiv 2405.19715, §4.4): will the target accept this draft token?"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import linear, silu


@dataclass(frozen=True)
class AcceptanceHead:
    """D residual blocks x + SiLU(Wx + b), then a linear layer to two classes, of which 1 is "accepted".

    It reads the draft's last hidden state after reading the token, [H]. The released heads go through one block D times
    (their blocks share their weights); such a head holds that one.
    """

    blocks_weight: Tensor  # [B, H, H]; B is D, or 1 if the blocks share their weights
    blocks_bias: Tensor  # [B, H]
    out_weight: Tensor  # [2, H]
    out_bias: Tensor  # [2]
    depth: int  # D

    def __post_init__(self) -> None:
        if self.blocks_weight.shape[0] not in (1, self.depth):
            raise ValueError(f"{self.blocks_weight.shape[0]} blocks cannot make a depth of {self.depth}")

    def log_odds(self, hidden: Tensor) -> Tensor:
        """log P(accepted) / P(rejected) of hidden states [..., H]: [...]."""
        for weight, bias in self._blocks():
            hidden = hidden + silu(linear(hidden, weight, bias))
        classes = linear(hidden, self.out_weight, self.out_bias)
        return classes[..., 1] - classes[..., 0]

    @torch.inference_mode()
    def probability(self, hidden: Tensor) -> float:
        """P(accepted) of one hidden state [H]; waits for the device. For frozen heads: it keeps what it works out."""
        blocks, weight, bias = self._layers
        hidden = hidden.to(weight.dtype)
        for w, b in blocks:
            hidden = hidden + silu(torch.addmv(b, w, hidden))
        return 1 / (1 + math.exp(-max(float(torch.dot(weight, hidden) + bias), -700.0)))

    def _blocks(self) -> list[tuple[Tensor, Tensor]]:
        """(W, b) of each block, D of them."""
        blocks = list(zip(self.blocks_weight, self.blocks_bias, strict=True))
        return blocks if len(blocks) == self.depth else blocks * self.depth

    @cached_property
    def _layers(self) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        """The blocks, and the one row [H] and number that the two classes differ by."""
        return self._blocks(), self.out_weight[1] - self.out_weight[0], self.out_bias[1] - self.out_bias[0]
