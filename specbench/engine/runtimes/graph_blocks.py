"""A block head on fixed shapes: its context's keys and values have rows of their own, and a block is one CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specbench.engine.models.block_head import BlockHead
from specbench.engine.runtimes.fixed import ROOM, Fixed
from specbench.engine.runtimes.lean import doubled
from specbench.engine.runtimes.types import Lent, Reads


class BlockKey(NamedTuple):
    """All that determines a block, except the values of its inputs."""

    context: int  # tokens that are read by features
    slots: int
    keep: int
    reach: int  # how many rows of the cache are read; rows after the sequence are masked


class BlockRunner:
    """One sequence of a `BlockHead`, which appends to a cache elsewhere; here rows are written where they belong.

    `want` has a step captured when the runtime settles.
    """

    def __init__(self, head: BlockHead, want: Callable[["BlockRunner", BlockKey], None]) -> None:
        self.head, self.want = head, want
        self.length = self.capacity = 0
        self.rows = torch.empty(0)
        self.steps: dict[Any, Fixed] = {}

    @property
    def owner(self) -> BlockHead:
        return self.head

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, None]:
        """As `BlockHead.forward`. A prompt, which has no block, is read as it is; blocks are captured."""
        assert features is not None and reads is None and not hidden
        read, end = features.shape[0], self.length + ids.shape[0]
        self.reserve(end)
        key = BlockKey(read, ids.shape[0] - read, keep, doubled(end))
        if not key.slots:
            logits = FixedBlock(self, key, features)(ids[:1], features, self.length)
        else:
            if key not in self.steps:
                self.steps[key] = FixedBlock(self, key, features)
                self.want(self, key)
            step = self.steps[key]
            assert isinstance(step, FixedBlock)
            logits = step(ids[read : read + 1], features, self.length)
        self.length = end
        return logits, None

    def truncate(self, length: int) -> None:
        self.length = length

    def wipe(self) -> None:
        """Zero what is not finite, in place."""
        self.rows.nan_to_num_(0.0, 0.0, 0.0)

    def save(self) -> Tensor:
        return self.rows[..., : self.length, :].clone()

    @torch.inference_mode()
    def load(self, saved: Tensor) -> None:
        self.reserve(saved.shape[-2])
        self.length = saved.shape[-2]
        self.rows[..., : self.length, :] = saved

    def lend(self, layers: Sequence[int]) -> Lent:
        raise NotImplementedError("a block head's cache is of the target's states")

    def borrow(self, lent: Lent) -> None:
        raise NotImplementedError("a block head's cache is of the target's states")

    def move(self, start: int, path: Sequence[int]) -> None:
        raise NotImplementedError("a block head reads no trees")

    @torch.inference_mode()
    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, in place; cached tokens stay."""
        if length <= self.capacity:
            return
        config, old = self.head.config, self.rows
        self.capacity = doubled(max(length, ROOM))
        shape = (2, config.num_hidden_layers, 1, config.num_key_value_heads, self.capacity, config.head_dim)
        self.rows = torch.zeros(shape, dtype=self.head.dtype, device=self.head.device)
        if self.length:
            self.rows[..., : self.length, :] = old[..., : self.length, :]
        self.steps.clear()  # they write to the old rows

    @torch.inference_mode()
    def capture(self, key: BlockKey, pool: Any) -> None:
        """Capture a block, in place. Its runs overwrite the cache's first rows, which are restored afterwards."""
        first = self.rows[..., : key.context + key.slots, :]
        saved = first.clone()
        self.steps[key].rewind()
        self.steps[key].capture(pool)
        first.copy_(saved)


class FixedBlock(Fixed):
    """A forward of a block head. Its inputs are copied into buffers."""

    def __init__(self, runner: BlockRunner, key: BlockKey, features: Tensor) -> None:
        device = runner.head.device
        self.key, self.head, self.cached = key, runner.head, runner.rows
        self.first = torch.zeros(1, dtype=torch.long, device=device)
        self.features = torch.empty_like(features)
        self.start = torch.zeros((), dtype=torch.long, device=device)
        self.offsets = torch.arange(key.context + key.slots, device=device)
        self.places = torch.arange(key.reach, device=device)

    def __call__(self, first: Tensor, features: Tensor, start: int) -> Tensor:
        self.first.copy_(first)
        self.features.copy_(features)
        self.start.fill_(start)
        (logits,) = self.results()
        assert logits is not None
        return logits

    def rewind(self) -> None:
        self.start.zero_()

    def compute(self) -> tuple[Tensor]:
        self.at = self.start + self.offsets
        width = self.head.config.hidden_size
        features = self.features[None]
        block = self.head.embed(self.first, self.key.slots) if self.key.slots else features[:, :0, :width]
        mask = (self.places < self.start + len(self.offsets)).expand(1, 1, block.shape[1], -1)
        states = self.head.fill(block, features, self.at[None], self, mask)  # type: ignore[arg-type]
        return (self.head.predict(states[:, -self.key.keep :])[0],)

    def update(self, keys: Tensor, values: Tensor, index: int) -> tuple[Tensor, Tensor]:
        """As of a transformers cache: write keys and values [1, K, n, D] of a layer; all rows that are read."""
        for part, new in zip(self.cached[:, index], (keys, values), strict=True):
            part[:, :, self.at] = new
        reach = self.cached[:, index, :, :, : self.key.reach]
        return reach[0], reach[1]
