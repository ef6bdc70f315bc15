"""Token ids between the host and the device: sent there, and read back after they were made on the device."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import overload

import numpy as np
import torch
from torch import Tensor


def sender(device: torch.device) -> Callable[[Sequence[int]], Tensor]:
    """What sends ids to a device, chosen once: asking a device for its type in every round would take time."""
    return to_processor if device.type == "cpu" else partial(to_device, device=device)


def to_device(tokens: Sequence[int], device: torch.device) -> Tensor:
    """Ids on the device [n]. The host does not wait, even if the device is busy."""
    if device.type == "cpu":
        return to_processor(tokens)
    return sent(torch.tensor(tokens, dtype=torch.long), device)


def sent(made: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device. The host does not wait, even if the device is busy."""
    return (made.pin_memory() if device.type == "cuda" else made).to(device, non_blocking=True)


def to_processor(tokens: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(tokens, np.int64))  # a third of the time of torch.tensor


class Fed:
    """Ids [n] that are on the device. A GPU copies them to the host in the background."""

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids
        self.count = ids.shape[0]  # the first `count` ids are still cached
        self.arrived: torch.cuda.Event | None = None
        if ids.is_cuda:
            self.ids = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
            self.ids.copy_(ids, non_blocking=True)
            self.arrived = torch.cuda.Event()
            self.arrived.record()

    def read(self) -> list[int]:
        """The ids that are still cached. Waits for their copy if need be."""
        if self.arrived and not self.arrived.query():
            self.arrived.synchronize()
        return self.ids[: self.count].tolist() if self.count < self.ids.shape[0] else self.ids.tolist()


class Later(Sequence[int]):
    """Numbers [n] that were made on the device; the host has them as soon as it has anything that came after them."""

    def __init__(self, made: Tensor) -> None:
        self.made = made
        self._copied = Fed(made)

    @cached_property
    def host(self) -> list[int]:
        """Waits for the copy if need be."""
        return self._copied.read()

    def __len__(self) -> int:
        return self.made.shape[0]

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self.host[at]


def later(made: Tensor) -> Sequence[int]:
    """Numbers [n] for the host, which does not wait for them."""
    return tuple(made.tolist()) if made.device.type == "cpu" else Later(made)
