"""What the target says of answers, kept in memory from the first pass over them on, where it computes on a CPU.

There a forward of the target takes as long as the draft steps of its head, or longer, and every pass over the answers
would repeat it. A GPU reads padded batches again, since its memory would not hold what they say.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specbench.engine.clock import free_memory
from specbench.training.answered import PaddedAnswers

SHARE = 4  # what is kept takes at most one in SHARE of the free bytes


class KeptLessons:
    """Tensors [1, n, …] of texts, each computed alone, so that what was in its batch changes nothing."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        self._left: int | None = None  # bytes

    def of(self, block: PaddedAnswers, compute: Callable[[PaddedAnswers], Sequence[Tensor]]) -> list[Tensor]:
        """What `compute` says of each text of a block, as tensors [B, n, …], with zeros behind the shorter ones."""
        each = [self._one(block, row, compute) for row in range(len(block.lengths))]
        return [torch.nn.utils.rnn.pad_sequence([own[0] for own in some], True) for some in zip(*each, strict=True)]

    def _one(
        self, block: PaddedAnswers, row: int, compute: Callable[[PaddedAnswers], Sequence[Tensor]]
    ) -> tuple[Tensor, ...]:
        rows, length = slice(row, row + 1), int(block.lengths[row])
        key = (int(block.prompts[row]), *block.tokens[row, :length].tolist())
        if key in self._of:
            return self._of[key]
        made = tuple(compute(PaddedAnswers(block.tokens[rows, :length], block.lengths[rows], block.prompts[rows])))
        if self._left is None:
            self._left = free_memory(torch.device("cpu")) // SHARE
        size = sum(tensor.nbytes for tensor in made)
        if size <= self._left:
            self._of[key], self._left = made, self._left - size
        return made
