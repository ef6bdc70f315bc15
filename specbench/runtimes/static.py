"""A preallocated cache and a lean forward: rollback is moving a length. CPU and GPU, chains and trees."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.runtimes import decoder
from specbench.runtimes.decoder import Cache, Step
from specbench.runtimes.eager import additive
from specbench.runtimes.parts import Parts, read
from specbench.runtimes.types import Reads, Unsupported

FIRST = 512  # tokens that a cache has room for at first; it doubles
CHECKED = 24  # tokens of the text by which a reading of a model is checked
TOLERANCE = {2: 0.2, 4: 0.01, 8: 0.01}  # of the spread of logits, by bytes of a number; norms of 8 compute in 4
CHUNK = 512  # tokens that are fed at a time; the masks of longer prompts would be as large as they are long, squared


class Static:
    """Reads each model once, and checks what it read."""

    name = "static"

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._read: weakref.WeakKeyDictionary[PreTrainedModel, Lean] = weakref.WeakKeyDictionary()

    def runner(self, model: PreTrainedModel) -> "StaticRunner":
        return StaticRunner(self.lean(model))

    def lean(self, model: PreTrainedModel, checked: bool = True) -> "Lean":
        """A model as it was read. Raises Unsupported, also where it is `checked` and computes something else."""
        if model not in self._read:
            lean = Lean(model)
            if checked:
                check(lean, model, StaticRunner(lean))
            self._read[model] = lean
        return self._read[model]

    def settle(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {}


STATIC = Static()


class Lean:
    """A model as it was read, with what all its sequences have in common: angles, and masks by width."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.parts: Parts = read(model)
        self.device, self.dtype = model.device, model.dtype
        self.windows = {attention.window for attention in self.parts.attentions}
        self._angles: tuple[Tensor, Tensor] | None = None
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def angles(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines [P, D] of at least the first `count` places."""
        if self.parts.rotary and (self._angles is None or len(self._angles[0]) < count):
            self._angles = decoder.signed(self.parts.rotary(doubled(count)))
        return self._angles

    def chain(self, width: int, cached: int) -> dict[int | None, Tensor | None]:
        """Masks [n, cached + n] by window, of a chain behind `cached` tokens: views of ones that are built once."""
        found: dict[int | None, Tensor | None] = {}
        for window in self.windows:
            if width == 1 and (window is None or cached < window):
                found[window] = None
                continue
            known = self._masks.get((width, window))
            if known is None or known.shape[1] < cached + width:
                # What a token reads goes by distance alone, so the masks of all lengths are parts of one.
                span = doubled(cached + width) if width <= decoder.FEW else cached + width
                known = self._mask(width, span, window)
                if width <= decoder.FEW:
                    self._masks[width, window] = known
            found[window] = known[:, known.shape[1] - cached - width :]
        return found

    def _mask(self, width: int, span: int, window: int | None) -> Tensor:
        places = torch.arange(span, device=self.device)
        away = places[-width:, None] - places
        return additive((away >= 0) & (away < (window or span)), self.dtype)

    def tree(self, reads: Reads) -> dict[int | None, Tensor]:
        """Masks [n, S] by window, of any block."""
        own = reads.places[-reads.allowed.shape[0] :]
        near = {
            window: reads.allowed if window is None else reads.allowed & (own[:, None] - reads.places < window)
            for window in self.windows
        }
        return {window: additive(allowed, self.dtype) for window, allowed in near.items()}


class StaticRunner:
    """One sequence over a cache with room to spare, which doubles when it is full."""

    def __init__(self, lean: Lean) -> None:
        self.lean = lean
        self.length = 0
        self.capacity = 0
        self.cache = Cache((), ())

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        width, end = ids.shape[0], self.length + ids.shape[0]
        if width > CHUNK and not reads:
            return self._in_parts(ids, keep, hidden, features)
        self.reserve(end)
        lean, rows = self.lean, slice(self.length, end)
        if reads:
            step = Step(rows, reads.places[-width:], end, {**lean.tree(reads)})
        else:
            step = Step(rows, rows, end, lean.chain(width, self.length))
        found = decoder.run(lean.parts, ids, step, self.cache, lean.angles(end), keep, hidden, features)
        self.length = end
        return found

    def _in_parts(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        width = ids.shape[0]
        first = width - keep if keep else 0  # the first token whose logits are wanted
        logits, states = [], []
        for begin in range(0, width, CHUNK):
            end = min(begin + CHUNK, width)
            wanted = max(0, end - max(begin, first))
            few = None if features is None else features[begin:end]
            found, state = StaticRunner.forward(self, ids[begin:end], wanted or 1, hidden, few, None)
            if wanted:
                logits.append(found)
            if state is not None:
                states.append(state)
        return torch.cat(logits), torch.cat(states) if states else None

    def save(self) -> Cache:
        return Cache(*([one[:, : self.length].clone() for one in part] for part in self.cache))

    @torch.inference_mode()
    def load(self, saved: Cache) -> None:
        length = saved.keys[0].shape[1]
        self.reserve(length)
        for own, part in zip(self.cache, saved, strict=True):
            for cached, kept in zip(own, part, strict=True):
                cached[:, :length] = kept
        self.length = length

    def truncate(self, length: int) -> None:
        self.length = length

    @torch.inference_mode()
    def move(self, start: int, path: Sequence[int]) -> None:
        at = torch.tensor(path, device=self.lean.device) + start
        for cached in (*self.cache.keys, *self.cache.values):
            cached[:, start : start + len(path)] = cached[:, at]
        self.length = start + len(path)

    def reserve(self, length: int) -> None:
        """Make room for so many tokens, in place; what is cached stays."""
        if length <= self.capacity:
            return
        capacity = doubled(length)
        lean = self.lean
        made = Cache(*([self._empty(own.groups, capacity, own.size) for own in lean.parts.attentions] for _ in "kv"))
        for old, new in zip((*self.cache.keys, *self.cache.values), (*made.keys, *made.values), strict=False):
            new[:, : self.length] = old[:, : self.length]
        self.cache, self.capacity = made, capacity

    def _empty(self, groups: int, capacity: int, size: int) -> Tensor:
        return torch.zeros(groups, capacity, size, dtype=self.lean.dtype, device=self.lean.device)


@torch.inference_mode()
def check(lean: Lean, model: PreTrainedModel, runner: StaticRunner) -> None:
    """Raise Unsupported if a reading of a model gives other logits than the model; a short text, read in two parts."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.arange(7, 7 + 11 * CHECKED, 11, device=model.device) % vocabulary
    features = None
    if lean.parts.beside:
        rng = torch.Generator().manual_seed(0)
        features = torch.randn(CHECKED, model.config.hidden_size, generator=rng).to(model.device, model.dtype)
    more = {} if features is None else {"features": features[None]}
    expected = model(ids[None], past_key_values=DynamicCache(), return_dict=True, **more).logits[0].float()
    first, last = (None, None) if features is None else (features[:-4], features[-4:])
    runner.forward(ids[:-4], 1, (), first, None)
    block, _ = runner.forward(ids[-4:], 0, (), last, None)
    runner.truncate(CHECKED - 1)  # one token is computed in another way than several
    one, _ = runner.forward(ids[-1:], 0, (), None if last is None else last[-1:], None)
    found, expected = torch.cat([block, one]), torch.cat([expected[-4:], expected[-1:]])
    there = expected.isfinite()
    spread = float(expected[there].std()) or 1.0
    most = float((found.float() - expected)[there].abs().max())
    if not most <= TOLERANCE[model.dtype.itemsize] * spread or not torch.equal(found.isfinite(), there):
        raise Unsupported(
            f"the static runtime computes other logits for {type(model).__name__} (off by {most / spread:.2g} of their "
            "spread); use --runtime eager"
        )


def doubled(length: int) -> int:
    room = FIRST
    while room < length:
        room *= 2
    return room
