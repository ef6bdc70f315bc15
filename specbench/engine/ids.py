"""Token ids between the host and the device: sent there, and read back after they were fed from the device."""

from collections.abc import Callable, Sequence
from functools import partial

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
    if device.type != "cuda":
        return torch.tensor(tokens, device=device)
    return torch.tensor(tokens, pin_memory=True).to(device, non_blocking=True)


def to_processor(tokens: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.array(tokens, np.int64))  # a third of the time of torch.tensor


class Fed:
    """Ids [n] that were fed from the device. A GPU copies them to the host in the background."""

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
