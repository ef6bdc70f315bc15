"""The cache of several sequences of one model: each has a slot, and those that are decoding have the first slots."""

import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specbench.engine.runtimes.types import Reads

FIRST_ROOM = 256  # tokens that a new slot has room for; the room doubles as needed
FIRST_ROWS = 4  # slots of a new cache; their number doubles as needed
NARROW = 32  # tokens; sequences that are fed at most so many are padded to one width and computed together


class Feed(NamedTuple):
    """What one sequence is fed: the arguments of `Runner.forward`."""

    ids: Tensor
    keep: int
    hidden: Sequence[int]
    features: Tensor | None
    reads: Reads | None


Answer = tuple[Tensor, Tensor | None]  # logits and hidden states, as `Runner.forward` returns them


class Resident(Protocol):
    """A sequence in a slot."""

    slot: int  # -1: it has none yet
    length: int  # cached tokens


Fed = Sequence[tuple[Resident, Feed]]


class Slots:
    """Keys and values [slots, K, room, D] of every layer. Rows of a slot after its sequence's length are never read."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.rows, self.room = 0, 0
        self.active = 0  # so many slots, the first ones, are decoding
        self._residents: list[weakref.ref[Resident] | None] = []  # by slot

    def place(self, sequence: Resident, length: int) -> None:
        """Give a sequence one of the first slots, with room for `length` tokens, in place."""
        if sequence.slot < 0:
            sequence.slot = self._free_slot()
            self._residents[sequence.slot] = weakref.ref(sequence)
        if sequence.slot >= self.active:
            self._swap(sequence.slot, self.active)
            self.active += 1
        if length > self.room:
            room = max(FIRST_ROOM, self.room)
            while room < length:
                room *= 2
            self._resize(self.rows, room)

    def rest(self, sequence: Resident) -> None:
        """Move a sequence to a slot after those that are decoding, in place. It stays cached."""
        if 0 <= sequence.slot < self.active:
            self.active -= 1
            self._swap(sequence.slot, self.active)

    def layer(self, index: int, heads: int, sizes: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer, which are made if there are none yet, with `sizes` numbers a head."""
        if index == len(self.keys):
            for part, size in zip((self.keys, self.values), sizes, strict=True):
                part.append(like.new_zeros(self.rows, heads, self.room, size))
        return self.keys[index], self.values[index]

    def save(self, sequence: Resident) -> list[tuple[Tensor, Tensor]]:
        """Copies [K, length, D] of the keys and values of every layer."""
        where = sequence.slot, slice(None), slice(sequence.length)
        return [(k[where].clone(), v[where].clone()) for k, v in zip(self.keys, self.values, strict=True)]

    @torch.inference_mode()
    def load(self, sequence: Resident, saved: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill an empty sequence with what was saved, in place."""
        length = saved[0][0].shape[1]
        self.place(sequence, length)
        for index, (keys, values) in enumerate(saved):
            parts = self.layer(index, keys.shape[0], (keys.shape[2], values.shape[2]), keys)
            for cached, kept in zip(parts, (keys, values), strict=True):
                cached[sequence.slot, :, :length] = kept

    @torch.inference_mode()
    def move(self, sequence: Resident, start: int, path: Sequence[int]) -> None:
        """Keep, of the tokens after the first `start`, the ones at the rising offsets `path`, in place."""
        for cached in (*self.keys, *self.values):
            rows = cached[sequence.slot]
            rows[:, start : start + len(path)] = rows[:, torch.tensor(path, device=cached.device) + start]

    @torch.inference_mode()
    def wipe(self) -> None:
        """Zero what is not finite, in place: it would spoil products of later sequences even with a weight of zero."""
        for cached in (*self.keys, *self.values):
            cached.nan_to_num_(0.0, 0.0, 0.0)

    def _resident(self, slot: int) -> Resident | None:
        reference = self._residents[slot]
        return reference() if reference else None

    def _free_slot(self) -> int:
        """A slot without a sequence; sequences that were dropped leave theirs."""
        for slot in range(len(self._residents)):
            if not self._resident(slot):
                return slot
        self._residents.append(None)
        if len(self._residents) > self.rows:
            self._resize(max(FIRST_ROWS, 2 * self.rows), self.room)
        return len(self._residents) - 1

    @torch.inference_mode()
    def _resize(self, rows: int, room: int) -> None:
        """Make the cache larger, in place; a layer at a time, so that there are never two whole caches."""
        for part in (self.keys, self.values):
            for index, old in enumerate(part):
                part[index] = old.new_zeros(rows, old.shape[1], room, old.shape[3])
                part[index][: self.rows, :, : self.room] = old
        self.rows, self.room = rows, room

    @torch.inference_mode()
    def _swap(self, first: int, second: int) -> None:
        """Exchange two slots, in place."""
        if first == second:
            return
        sequences = [self._resident(first), self._resident(second)]
        longest = max(sequence.length if sequence else 0 for sequence in sequences)
        if longest:
            for cached in (*self.keys, *self.values):
                cached[[first, second], :, :longest] = cached[[second, first], :, :longest]
        self._residents[first], self._residents[second] = self._residents[second], self._residents[first]
        for sequence, slot in zip(sequences, (second, first), strict=True):
            if sequence:
                sequence.slot = slot
