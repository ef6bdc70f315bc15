"""What the target says of documents that a block drafter learns from, kept from its first reading of them.

A CPU spends as long on the target's forward as on the head's step, and a training reads each document many times. On a
GPU the forward costs less than to move what was kept.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from specbench.engine.sampling import wide
from specbench.training.answered import Answered

MOST_BYTES = 4 * 2**30  # of what is kept; documents beyond that are read again each time


def side_by_side(states: Sequence[Tensor], which: Sequence[int]) -> Tensor:
    """Of states [B, L, D] of a target those that are read, [B, L, T D], T of them."""
    return torch.cat([states[i] for i in which], -1) if which else states[0][..., :0]


@torch.no_grad()
def read_again(
    target: PreTrainedModel, hidden: Sequence[int], tokens: Tensor, places: Tensor, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """The states [B, L, T D] after documents [B, L] that `hidden` names, and the logits [B, A, S, V] at [B, A, S]."""
    out = target(tokens, use_cache=False, output_hidden_states=True)
    rows = torch.arange(len(tokens), device=tokens.device)[:, None, None]
    return side_by_side(out.hidden_states, hidden), wide(out.logits[rows, places][..., :vocabulary])


class Reading(Protocol):
    """A head that reads the target's states."""

    @property
    def hidden(self) -> Sequence[int]:
        """Which ones, as the target counts them."""


class Outputs:
    """The target's states that a head reads, and its logits, for documents; in the target's own precision.

    Each document is read alone, so that what is kept does not depend on the others of its batch: a training that was
    stopped goes on with the same values.
    """

    def __init__(self, target: PreTrainedModel, head: Reading) -> None:
        self.target, self.head = target, head
        self.kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self.bytes = 0

    def of(self, documents: Sequence[Answered], places: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        """States [B, L, T D] of B documents, zero where they are padded, and logits [B, A, S, V] at places [B, A, S].

        Only the logits of an answer's tokens are kept: places outside an answer get those of its nearest token.
        """
        read = [self.read(document) for document in documents]
        logits = [
            rows[(row - document.prompt).clamp(0, len(rows) - 1)]
            for document, row, (_, rows) in zip(documents, places, read, strict=True)
        ]
        states = pad_sequence([states for states, _ in read], batch_first=True)
        return states, wide(torch.stack(logits)[..., :vocabulary])

    @torch.no_grad()
    def read(self, document: Answered) -> tuple[Tensor, Tensor]:
        """The states [L, T D] after a document's tokens, and the logits [rows, V] after its answer's but the last."""
        key = (document.prompt, *document.tokens)
        if key in self.kept:
            return self.kept[key]
        tokens = torch.tensor([document.tokens], device=self.target.device)
        out = self.target(tokens, use_cache=False, output_hidden_states=True)
        logits = out.logits[0, document.prompt : len(document) - 1].clone()
        made = side_by_side(out.hidden_states, self.head.hidden)[0], logits
        size = sum(part.nbytes for part in made)
        if self.bytes + size <= MOST_BYTES:
            self.kept[key] = made
            self.bytes += size
        return made
