"""The arbitrator's logits for many rounds of many texts in one forward, with gradients.

Each text is read once, causally, and the blocks of all its rounds stand behind it: a block sees the text up to where
its round began, and itself. That gives the logits which one forward a round would (methods/cospec.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.runtimes.eager import attention

MICRO_TOKENS = 6144  # of a forward, padding included


@dataclass(frozen=True)
class Asked:
    """What is asked of one round: the logits at some positions of its block."""

    context: int  # tokens of the text that the round is behind
    block: list[int]  # [2K]: d_1 … d_K t_1 … t_K
    positions: list[int]  # from 0


@dataclass(frozen=True)
class Reading:
    """A text and the rounds of it that are asked about."""

    tokens: list[int]
    rounds: list[Asked]

    @property
    def read(self) -> int:
        """Tokens of the text that some round sees."""
        return max((one.context for one in self.rounds), default=0)

    @property
    def width(self) -> int:
        return self.read + sum(len(one.block) for one in self.rounds)

    @property
    def asked(self) -> int:
        return sum(len(one.positions) for one in self.rounds)


def logits_of(arbitrator: PreTrainedModel, readings: Sequence[Reading], hybrid: bool) -> Tensor:
    """A logit for each position that is asked about, in order [n]. Padding lies behind the texts."""
    width, device = max(one.width for one in readings), arbitrator.device
    shape = (len(readings), width)
    ids, places, seen, group = (torch.zeros(shape, dtype=torch.long) for _ in range(4))
    rows, columns = [], []
    for row, one in enumerate(readings):
        end = one.read
        ids[row, :end] = torch.tensor(one.tokens[:end])
        places[row, :end] = torch.arange(end)
        seen[row, :end] = torch.arange(end) + 1  # tokens of the text that it sees
        for number, asked in enumerate(one.rounds, 1):
            here = slice(end, end + len(asked.block))
            ids[row, here] = torch.tensor(asked.block)
            places[row, here] = asked.context + torch.arange(len(asked.block))
            seen[row, here] = asked.context
            group[row, here] = number
            rows += [row] * len(asked.positions)
            columns += [end + i for i in asked.positions]
            end = here.stop
    ids, places, seen, group = (one.to(device) for one in (ids, places, seen, group))
    at = torch.arange(width, device=device)
    text = (group == 0)[:, None] & (at < seen[:, :, None])
    block = (group[:, :, None] == group[:, None]) & (group > 0)[:, :, None]
    if not hybrid:
        block &= at <= at[:, None]
    allowed = text | block | torch.eye(width, dtype=torch.bool, device=device)  # padding sees itself
    out = arbitrator(ids, use_cache=False, **attention(allowed, places, arbitrator))
    found: Tensor = out.logits[rows, columns, 0]
    return found


def parts(readings: Sequence[Reading]) -> Iterator[list[int]]:
    """Indices of readings that go through one forward together: of like width, at most MICRO_TOKENS (at least one)."""
    some: list[int] = []
    for i in sorted(range(len(readings)), key=lambda i: readings[i].width):
        if some and (len(some) + 1) * readings[i].width > MICRO_TOKENS:
            yield some
            some = []
        some.append(i)
    if some:
        yield some


@torch.no_grad()
def all_logits(arbitrator: PreTrainedModel, readings: Sequence[Reading], hybrid: bool) -> list[list[float]]:
    """The logits of each reading, without gradients."""
    found: list[list[float]] = [[] for _ in readings]
    for some in parts(readings):
        values = logits_of(arbitrator, [readings[i] for i in some], hybrid).tolist()
        for i in some:
            found[i], values = values[: readings[i].asked], values[readings[i].asked :]
    return found
