"""One sequence of a model with a state that cannot be cut: recurrent layers and convolutions, alone or with attention.

Three ways lead back into a block:

- `recorded`: the cache of transformers keeps what its convolutions read, and cuts it. Nothing is read again.
- `read again`: the state before the block is kept. The next forward reads the accepted tokens once more, before the new
  ones: a wider block, no extra forward.
- `token by token`: modules with a state read one token at a time, and the state after each is kept. Nothing is read
  again. It is for modules that read a block after a state as if there were none.
"""

import copy
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.base.errors import UserError
from specbench.engine.runtimes.mixers import Counted, Mixers, State, cut, places, restore, state
from specbench.engine.runtimes.reference import off, tolerance
from specbench.engine.runtimes.types import Chaining, Lent, Reads

CUT, RECORDED, AGAIN, STEPS = "cut", "recorded", "read again", "token by token"
KEPT = 32  # states of a sequence at most; a rollback to before all of them reads the text again
CHUNK = 2048  # tokens of a prompt that are read at a time

_FOUND: weakref.WeakKeyDictionary[PreTrainedModel, Mixers] = weakref.WeakKeyDictionary()


def mixers(model: PreTrainedModel) -> Mixers:
    """What a model that caches more than keys and values (`caches.has_more_than_keys`) needs to roll back.

    The first call prepares the model, in place. Of Nemotron-H and Zamba2, it drops the floor of the time step, which
    blocks have in transformers and single tokens have not (engines have none). Raises UserError if no way is right.
    """
    if model not in _FOUND:
        _FOUND[model] = _tried(model, Mixers(model))
    return _FOUND[model]


def facts(model: PreTrainedModel) -> dict[str, str]:
    """How a model rolls back, for a manifest; nothing if nobody has asked."""
    found = _FOUND.get(model)
    return {"rollback": found.way} if found else {}


def counted(models: Iterable[PreTrainedModel]) -> dict[str, float]:
    """What rollbacks of these models have cost so far; nothing if none has a state."""
    costs = [found.counted for model in models if (found := _FOUND.get(model)) and found.modules]
    names = ("copies", "bytes", "seconds", "again")
    return {f"state {name}": float(sum(getattr(cost, name) for cost in costs)) for name in names if costs}


def _tried(model: PreTrainedModel, found: Mixers) -> Mixers:
    """Choose the first way whose logits after a rollback are those of a fresh sequence."""
    tokens = [token % model.config.get_text_config().vocab_size for token in (5, 7, 11, 13, 3, 2, 17, 19, 23)]
    ids, other = torch.tensor(tokens, device=model.device), torch.tensor(tokens[::-1], device=model.device)
    for way in (RECORDED, AGAIN, STEPS) if found.modules else (CUT,):
        runner = StateRunner(model, found, way)
        expected, _ = runner.forward(ids, 6, (), None, None)
        if way == RECORDED and not (runner.linear() and all(layer.is_croppable for layer in runner.linear())):
            continue
        runner.truncate(0)
        runner.forward(ids[:3], 1, (), None, None)
        runner.forward(torch.cat([ids[3:4], other[:3]]), 4, (), None, None)
        runner.truncate(4)
        middle, _ = runner.forward(torch.cat([ids[4:6], other[:2]]), 0, (), None, None)
        runner.truncate(6)
        last, _ = runner.forward(ids[6:8], 0, (), None, None)
        single, _ = runner.forward(ids[8:], 0, (), None, None)
        if off(torch.cat([middle[:2], last, single]), expected[1:]) <= tolerance(model):
            found.way, found.counted = way, Counted()
            return found
    raise UserError(f"{type(model).__name__} cannot be used: after a rollback of its cache it gives other logits")


class Saved(NamedTuple):
    """A copy of a whole sequence."""

    cache: Any
    inside: State
    ids: Tensor


class StateRunner:
    """One sequence. Its states may lag: `behind` counts the last tokens, which the next forward reads again."""

    def __init__(self, model: PreTrainedModel, mixers: Mixers, way: str) -> None:
        self.model, self.mixers, self.way = model, mixers, way
        self._far = False  # a rollback has gone back over several forwards
        self._ids = torch.empty(0, dtype=torch.long, device=model.device)
        self._reset()

    def _reset(self) -> None:
        self.cache = self.mixers.new_cache(self.model)
        self._kept: dict[int, State] = {}  # by the number of tokens that the modules had read
        self._inside: State = []  # what modules hold that keep their state themselves
        self._recorded: int | None = None  # the tokens before the block that the cache recorded
        self._read = 0  # tokens that the states have read
        self._last = 0  # the tokens before the last forward's new ones

    @property
    def behind(self) -> int:
        return len(self._ids) - self._read

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        """As of any runner. Raises UserError for what is no chain."""
        if reads is not None or features is not None:
            raise UserError(f"{type(self.model).__name__} has a state and reads chains only; choose sps, pld or suffix")
        if keep == 1 and ids.shape[0] > CHUNK and self.way != STEPS:
            *_, (logits, _) = parts = [self.forward(part, 1, hidden, None, None) for part in ids.split(CHUNK)]
            return logits, torch.cat([states for _, states in parts if states is not None]) if hidden else None
        block, begin, width = torch.cat([self._ids[self._read :], ids]), self._read, ids.shape[0]
        self.mixers.counted.again += self.behind
        self._begin(begin, self.behind, width)
        try:
            out = self._call(block, begin, keep or width, bool(hidden))
        finally:
            self.mixers.pieces = ()
        self._ids = torch.cat([self._ids, ids])
        self._read = len(self._ids)
        oldest = sorted(self._kept)[-KEPT:][0] if self._far and self._kept else begin
        self._kept = {at: states for at, states in self._kept.items() if at >= oldest}
        self._inside = [(place, place[0][place[1]]) for one in self.mixers.inside for place in places(one, None)]
        states = [out.hidden_states[i][0, -width:] for i in hidden]
        return out.logits[0, -(keep or width) :], torch.cat(states, -1) if states else None

    def _begin(self, begin: int, again: int, width: int) -> None:
        """Make the states ready for a block of `again` tokens that are read again and `width` new ones, in place."""
        for module in self.mixers.inside if begin == 0 else ():
            for container, key in places(module, None):
                container[key] = None
        restore(self._inside)
        if self._recorded is not None:
            self._crop(0)
        self._last = begin + again
        noted = bool(self.mixers.modules) and (width > 1 or self._far)  # nothing goes back to before a single token
        if noted and begin and not again:
            if self.way == RECORDED and width > 1:
                self.cache.activate_past_recording()
                self._recorded = begin
                return
            for module in self.mixers.modules:
                self._note(begin, module)
        if self.way == STEPS:
            old, new = [again] if begin == 0 else [1] * again, [width] if begin + again == 0 else [1] * width
            self.mixers.pieces = [size for size in (*old, *new) if size]
        elif noted and again:
            self.mixers.pieces = [again, width]

        def after(module: nn.Module, count: int) -> None:
            if noted and max(again, again + width - KEPT) <= count < again + width:
                self._note(begin + count, module)

        self.mixers.after = after

    def _note(self, at: int, module: nn.Module) -> None:
        """Keep a copy of the state that a module has after `at` tokens."""
        self.mixers.counted.copies += at not in self._kept
        self._kept.setdefault(at, []).extend(state(module, self.cache, self.mixers.counted))

    def linear(self) -> list[Any]:
        """The layers of the cache that hold states."""
        return [layer for layer in getattr(self.cache, "layers", ()) if hasattr(layer, "conv_states")]

    def _call(self, block: Tensor, begin: int, rows: int, hidden: bool) -> Any:
        arguments: dict[str, Any] = {self.mixers.argument: self.cache, "use_cache": True, "return_dict": True}
        if "logits_to_keep" in self.mixers.accepted:
            arguments["logits_to_keep"] = rows
        if "position_ids" in self.mixers.accepted:
            arguments["position_ids"] = torch.arange(begin, begin + len(block), device=block.device)[None]
        return self.model(block[None], output_hidden_states=hidden, **arguments)

    @torch.inference_mode()
    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens, in place."""
        if length == 0:
            self._reset()
        elif length < self._read:
            self._far = self._far or length < self._last
            if not self.mixers.modules or (self._recorded is not None and length >= self._recorded):
                self._crop(self._read - length)
            else:
                self._return_to(max((at for at in self._kept if at <= length), default=0))
        self._ids = self._ids[:length]

    def _crop(self, count: int) -> None:
        """Drop the last `count` tokens of a cache that can, in place; it records no more."""
        for layer in self.cache.layers:
            layer.crop(-count)
        for layer in self.linear():
            layer.record_past = False
        self._recorded = None
        self._read -= count

    def _return_to(self, at: int) -> None:
        """Go back to the state that was kept after `at` tokens, in place."""
        if at == 0:
            self._reset()
            return
        cut(self.cache, self._read - at)
        restore(self._kept[at])
        self._inside = [(place, place[0][place[1]]) for one in self.mixers.inside for place in places(one, None)]
        self._kept = {earlier: states for earlier, states in self._kept.items() if earlier < at}
        self._read = at

    def wipe(self) -> None:
        """Nothing to do: what is not finite leaves with the cache."""

    def save(self) -> Saved:
        assert not self.behind
        return Saved(copy.deepcopy(self.cache), self._inside, self._ids)

    def load(self, saved: Saved) -> None:
        self.cache, self._inside, self._ids = copy.deepcopy(saved.cache), saved.inside, saved.ids
        self._read = len(self._ids)

    def lend(self, layers: Sequence[int]) -> Lent:
        raise UserError(f"{type(self.model).__name__} has a state, which cannot be lent; choose another method")

    def borrow(self, lent: Lent) -> None:
        self.lend(())

    def move(self, start: int, path: Sequence[int]) -> None:
        self.lend(())


class StateChains(StateRunner, Chaining):
    """The same sequence alone, with chains."""
