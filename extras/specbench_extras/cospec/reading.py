"""The arbitrator's logits for many rounds of many texts in one forward, with gradients.

Each text is read once, causally, and the blocks of all its rounds follow it: a block sees the text up to where its
round began, and itself. That gives the same logits as one forward for each round (methods/collaborative/cospec.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes.eager import attention

MICRO_TOKENS = 6144  # of a forward, padding included


@dataclass(frozen=True)
class Query:
    """The logits that are wanted of one round: those at some positions of its block."""

    context: int  # tokens of the text before the round
    block: list[int]  # [2K]: d_1 … d_K t_1 … t_K
    positions: list[int]  # from 0


@dataclass(frozen=True)
class Reading:
    """A text and the queries of its rounds."""

    tokens: list[int]
    rounds: list[Query]

    @property
    def read(self) -> int:
        """The number of the text's tokens that some round sees."""
        return max((query.context for query in self.rounds), default=0)

    @property
    def width(self) -> int:
        """The number of tokens in a forward, those of the blocks included."""
        return self.read + sum(len(query.block) for query in self.rounds)

    @property
    def logit_count(self) -> int:
        return sum(len(query.positions) for query in self.rounds)


def logits_of(arbitrator: PreTrainedModel, readings: Sequence[Reading], hybrid: bool) -> Tensor:
    """The logits [n] at the positions of all queries, in order. Padding follows the texts."""
    width, device = max(reading.width for reading in readings), arbitrator.device
    shape = (len(readings), width)
    ids, places, seen, group = (torch.zeros(shape, dtype=torch.long) for _ in range(4))
    rows, columns = [], []
    for row, reading in enumerate(readings):
        end = reading.read
        ids[row, :end] = torch.tensor(reading.tokens[:end])
        places[row, :end] = torch.arange(end)
        seen[row, :end] = torch.arange(end) + 1  # tokens of the text that it sees
        for number, query in enumerate(reading.rounds, 1):
            block = slice(end, end + len(query.block))
            ids[row, block] = torch.tensor(query.block)
            places[row, block] = query.context + torch.arange(len(query.block))
            seen[row, block] = query.context
            group[row, block] = number
            rows += [row] * len(query.positions)
            columns += [end + i for i in query.positions]
            end = block.stop
    ids, places, seen, group = (tensor.to(device) for tensor in (ids, places, seen, group))
    column = torch.arange(width, device=device)
    sees_text = (group == 0)[:, None] & (column < seen[:, :, None])
    sees_block = (group[:, :, None] == group[:, None]) & (group > 0)[:, :, None]
    if not hybrid:
        sees_block &= column <= column[:, None]
    allowed = sees_text | sees_block | torch.eye(width, dtype=torch.bool, device=device)  # padding sees itself
    out = arbitrator(ids, use_cache=False, **attention(allowed, places, arbitrator))
    logits: Tensor = out.logits[rows, columns, 0]
    return logits


def parts(readings: Sequence[Reading]) -> Iterator[list[int]]:
    """Indices of readings for each forward: of similar width, at most MICRO_TOKENS together (at least one reading)."""
    part: list[int] = []
    for i in sorted(range(len(readings)), key=lambda i: readings[i].width):
        if part and (len(part) + 1) * readings[i].width > MICRO_TOKENS:
            yield part
            part = []
        part.append(i)
    if part:
        yield part


@torch.no_grad()
def all_logits(arbitrator: PreTrainedModel, readings: Sequence[Reading], hybrid: bool) -> list[list[float]]:
    """The logits of each reading, without gradients."""
    logits: list[list[float]] = [[] for _ in readings]
    for part in parts(readings):
        values = logits_of(arbitrator, [readings[i] for i in part], hybrid).tolist()
        for i in part:
            count = readings[i].logit_count
            logits[i], values = values[:count], values[count:]
    return logits
