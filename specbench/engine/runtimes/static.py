"""The static runtime: a preallocated cache and a lean forward, on CPU and GPU. A rollback only sets a length."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine.ids import to_device
from specbench.engine.models.identity import is_plain
from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import Cache
from specbench.engine.runtimes.equality import promised, remembered, unequal
from specbench.engine.runtimes.lean import Lean, doubled
from specbench.engine.runtimes.products import computed_in
from specbench.engine.runtimes.reference import check
from specbench.engine.runtimes.types import Chaining, Lent, Reads, Runtime, Unsupported

CHUNK = 512  # tokens that are fed at a time, since the size of a mask is the square of their number


class Static(Runtime):
    """Reads each model once, and checks that the lean forward gives the model's logits."""

    name = "static"

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._read: weakref.WeakKeyDictionary[PreTrainedModel, Lean] = weakref.WeakKeyDictionary()
        self._wide: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # layers of models that halved caches spoil
        self._unequal: weakref.WeakKeyDictionary[Lean, str] = weakref.WeakKeyDictionary()

    def runner(self, model: PreTrainedModel) -> "StaticRunner":
        return StaticRunner(self.lean(model))

    def lean(self, model: PreTrainedModel, checked: bool = True) -> "Lean":
        """The lean form of a model. Raises Unsupported if it has none or, if `checked`, gives other logits."""
        if model not in self._read:
            layers = {module for module in model.modules() if isinstance(module, nn.Linear)}
            lean = Lean(model, half=layers.isdisjoint(self._wide))
            if checked and lean.halved and not self._holds(model, lean):
                lean = Lean(model, half=False)
                self._wide.update(layers)
            if checked and not lean.halved:
                check(model, StaticRunner(lean), lean.parts.join is not None)
            self._read[model] = lean
        return self._read[model]

    def _holds(self, model: PreTrainedModel, lean: "Lean") -> bool:
        """True if a lean form whose caches are in half precision is the model, and has equal rows."""
        try:
            check(model, StaticRunner(lean), lean.parts.join is not None)
        except Unsupported:
            return False
        self._unequal[lean] = remembered(model, partial(unequal, lean), str(lean.cached))
        return not self._unequal[lean]

    def bytes_each(self, model: PreTrainedModel) -> int:
        """Bytes of a number in the caches of a model on this runtime."""
        if model in self._read:
            return self._read[model].cached.itemsize
        return max(model.dtype.itemsize, 4 if model.device.type == "cpu" else 0)

    def more(self, model: PreTrainedModel) -> int:
        """Bytes that laying out a model's weights takes next to its own: on a CPU they are copied, some wider."""
        if model in self._read or model.device.type != "cpu":
            return 0
        layers = {id(one): one for one in model.modules() if isinstance(one, nn.Linear) and is_plain(one.weight)}
        weights = [layer.weight for layer in layers.values()]
        return sum(one.numel() * (computed_in("cpu", one.dtype) or one.dtype).itemsize for one in weights)

    def equal(self, model: PreTrainedModel) -> bool:
        return promised(self.lean(model)) and not self.unequal(model)

    def unequal(self, model: PreTrainedModel) -> str:
        lean = self.lean(model)
        if lean not in self._unequal:
            self._unequal[lean] = remembered(model, partial(unequal, lean)) if promised(lean) else ""
        return self._unequal[lean]


STATIC = Static()


class StaticRunner(Chaining):
    """One sequence over a cache with spare room, which doubles when it is full."""

    def __init__(self, lean: Lean) -> None:
        self.lean = lean
        self.length = 0
        self.capacity = 0
        self.cache = Cache((), ())
        self._whole: list[Tensor] = []  # all that the cache consists of: one tensor if all layers have one form

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        width, end = ids.shape[0], self.length + ids.shape[0]
        if width > CHUNK and not reads:
            return in_chunks(partial(StaticRunner.forward, self), ids, keep, hidden, features, CHUNK)
        lean, positions = self.lean, max(end, reads.end) if reads else end
        self.reserve(end)
        step = lean.masks.block(width, self.length, reads)
        kept = slice(-keep, None) if 0 < keep < width else None
        scored = decoder.run(lean.parts, ids, step, self.cache, lean.angles(positions), kept, hidden, features)
        self.length = end
        return scored

    def save(self) -> Cache:
        return Cache(*([layer[:, : self.length].clone() for layer in part] for part in self.cache))

    @torch.inference_mode()
    def load(self, saved: Cache) -> None:
        length = saved.keys[0].shape[1]
        self.reserve(length)
        for part, saved_part in zip(self.cache, saved, strict=True):
            for cached, kept in zip(part, saved_part, strict=True):
                cached[:, :length] = kept
        self.length = length

    def lend(self, layers: Sequence[int]) -> Lent:
        parts = (self.cache.keys, self.cache.values)
        return [tuple(part[index][:, : self.length].clone() for part in parts) for index in layers]  # type: ignore[misc]

    def borrow(self, lent: Lent) -> None:
        self.load(Cache(*zip(*lent, strict=True)))

    def truncate(self, length: int) -> None:
        self.length = length

    @torch.inference_mode()
    def wipe(self) -> None:
        """Zero what is not finite, in place: rows after the sequence are read with a weight of zero."""
        for cached in (*self.cache.keys, *self.cache.values):
            cached.nan_to_num_(0.0, 0.0, 0.0)

    @torch.inference_mode()
    def move(self, start: int, path: Sequence[int]) -> None:
        at = to_device(path, self.lean.device) + start
        for cached in self._whole:
            cached[..., start : start + len(path), :] = cached[..., at, :]
        self.length = start + len(path)

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens, in place; cached tokens stay."""
        length = self.lean.masks.reach(length)
        if length <= self.capacity:
            return
        capacity = doubled(length)
        layers = self.lean.parts.attentions
        if len({(layer.groups, layer.size) for layer in layers}) == 1:
            self._whole = [self._empty(2, len(layers), layers[0].groups, capacity, layers[0].size)]
            larger = Cache(*(tuple(part) for part in self._whole[0]))
        else:
            larger = Cache(*([self._empty(layer.groups, capacity, layer.size) for layer in layers] for _ in "kv"))
            self._whole = [*larger.keys, *larger.values]
        for old, new in zip((*self.cache.keys, *self.cache.values), (*larger.keys, *larger.values), strict=False):
            new[:, : self.length] = old[:, : self.length]
        self.cache, self.capacity = larger, capacity

    def _empty(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.lean.cached, device=self.lean.device)


def in_chunks(
    forward: Callable[..., tuple[Tensor, Tensor | None]],
    ids: Tensor,
    keep: int,
    hidden: Sequence[int],
    features: Tensor | None,
    size: int,
) -> tuple[Tensor, Tensor | None]:
    """`Runner.forward` of a long chain, by a `forward` that is given `size` tokens at a time."""
    width = ids.shape[0]
    first = width - keep if keep else 0  # the first token whose logits are wanted
    logits, states = [], []
    for begin in range(0, width, size):
        end = min(begin + size, width)
        wanted = max(0, end - max(begin, first))
        chunk_features = None if features is None else features[begin:end]
        rows, state = forward(ids[begin:end], wanted or 1, hidden, chunk_features, None)
        if wanted:
            logits.append(rows)
        if state is not None:
            states.append(state)
    return torch.cat(logits), torch.cat(states) if states else None
