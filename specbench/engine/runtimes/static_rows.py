"""The static runtime for several sequences: products over the tokens of all, attention over each one's own cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import Cache, Step
from specbench.engine.runtimes.eager import additive
from specbench.engine.runtimes.parts import Attention
from specbench.engine.runtimes.slots import NARROW, Answer, Fed, Feed, Resident, Slots
from specbench.engine.runtimes.static import Lean


class StaticRows:
    """Forwards of a lean model over slots."""

    def __init__(self, lean: Lean) -> None:
        self.lean = lean
        self.slots = Slots()
        self.order = self.sequences = 0
        self.size = lean.size

    @torch.inference_mode()
    def forward(self, fed: Fed) -> list[Answer]:
        lean, slots = self.lean, self.slots
        for sequence, feed in fed:
            slots.place(sequence, sequence.length + len(feed.ids))
        like = torch.empty(0, dtype=lean.dtype, device=lean.device)
        for index, layer in enumerate(lean.parts.attentions):
            slots.layer(index, layer.groups, (layer.size, layer.size), like)
        # The narrow ones come first, in the order of their slots.
        order = sorted(range(len(fed)), key=lambda i: (len(fed[i][1].ids) > NARROW, fed[i][0].slot))
        ordered = [fed[i] for i in order]
        narrow = [(sequence, feed) for sequence, feed in ordered if len(feed.ids) <= NARROW]
        wide = ordered[len(narrow) :]
        block = RowsStep(
            _places(ordered, lean.device),
            _together(narrow, lean) if narrow else None,
            [(sequence.slot, len(feed.ids), _alone(sequence, feed, lean)) for sequence, feed in wide],
        )
        feeds = [feed for _, feed in ordered]
        hidden = feeds[0].hidden  # those of all feeds
        features = None if feeds[0].features is None else torch.cat([feed.features for feed in feeds])  # type: ignore[misc]
        ids = torch.cat([feed.ids for feed in feeds])
        reach = max(max(sequence.length + len(feed.ids), feed.reads.end if feed.reads else 0) for sequence, feed in fed)
        cache = Cache(slots.keys, slots.values)
        keep, counts = _kept(feeds, lean.device)
        logits, states = decoder.run(lean.parts, ids, block, cache, lean.angles(reach), keep, hidden, features)
        widths = [len(feed.ids) for feed in feeds]
        state_parts = [None] * len(feeds) if states is None else states.split(widths)
        answers = dict(zip(order, zip(logits.split(counts), state_parts, strict=True), strict=True))
        return [answers[i] for i in range(len(fed))]


def _places(ordered: Fed, device: torch.device) -> Tensor:
    """The positions [N] of all tokens."""
    parts = [
        torch.arange(sequence.length, sequence.length + len(feed.ids))
        if feed.reads is None
        else feed.reads.places[-len(feed.ids) :].cpu()
        for sequence, feed in ordered
    ]
    return torch.cat(parts).to(device)


def _kept(feeds: Sequence[Feed], device: torch.device) -> tuple[Tensor | None, list[int]]:
    """Which of all tokens have logits that are wanted (None: all), and how many of each sequence's."""
    counts = [feed.keep or len(feed.ids) for feed in feeds]
    if all(count == len(feed.ids) for feed, count in zip(feeds, counts, strict=True)):
        return None, counts
    ends = torch.tensor([len(feed.ids) for feed in feeds]).cumsum(0).tolist()
    kept = [i for end, count in zip(ends, counts, strict=True) for i in range(end - count, end)]
    return torch.tensor(kept, device=device), counts


def _alone(sequence: Resident, feed: Feed, lean: Lean) -> Step:
    """The block of a sequence that attends by itself."""
    width = len(feed.ids)
    rows = slice(sequence.length, sequence.length + width)
    if feed.reads:
        return Step(rows, feed.reads.places[-width:], rows.stop, {**lean.tree(feed.reads)})
    return Step(rows, rows, rows.stop, lean.chain(width, sequence.length))


@dataclass(frozen=True)
class Together:
    """Narrow blocks of n sequences or fewer whose slots lie within `slots`, padded to one width."""

    slots: slice
    width: int
    slot: Tensor  # [N]: of each token
    row: Tensor  # [N]: its row of the cache
    column: Tensor  # [N]: its place in the padded block
    reach: int
    masks: dict[int | None, Tensor]  # by window: [slots, 1, width, reach], added to scores
    full: bool  # every slot is fed `width` tokens

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `Block.attend`, for these sequences' tokens."""
        keys[self.slot, :, self.row] = k
        values[self.slot, :, self.row] = v
        count, groups, size = self.slots.stop - self.slots.start, layer.groups, layer.size
        if self.full:
            padded = q.reshape(count, self.width, groups, -1, size)
        else:
            padded = q.new_zeros(count, self.width, groups, layer.heads // groups, size)
            padded[self.slot - self.slots.start, self.column] = q.reshape(len(q), groups, -1, size)
        rows = padded.permute(0, 2, 3, 1, 4).reshape(count * groups, -1, size) * layer.scale
        cached_k, cached_v = (
            part[self.slots, :, : self.reach].reshape(count * groups, self.reach, size) for part in (keys, values)
        )
        scores = torch.bmm(rows, cached_k.transpose(1, 2))
        if layer.softcap:
            scores = torch.tanh(scores / layer.softcap) * layer.softcap
        scores.view(count, layer.heads, self.width, self.reach).add_(self.masks[layer.window])
        weights = scores.softmax(-1) if scores.element_size() > 2 else scores.softmax(-1, torch.float32).to(v.dtype)
        attended = torch.bmm(weights, cached_v).view(count, layer.heads, self.width, size).transpose(1, 2)
        if self.full:
            return attended.reshape(len(q), -1)
        return attended[self.slot - self.slots.start, self.column].reshape(len(q), -1)


def _together(narrow: Fed, lean: Lean) -> Together:
    device = lean.device
    first, last = narrow[0][0].slot, narrow[-1][0].slot
    widths = [len(feed.ids) for _, feed in narrow]
    width, count = max(widths), last + 1 - first
    reach = max(sequence.length + n for (sequence, _), n in zip(narrow, widths, strict=True))
    slot = torch.tensor([sequence.slot for (sequence, _), n in zip(narrow, widths, strict=True) for _ in range(n)])
    column = torch.tensor([i for n in widths for i in range(n)])
    starts = torch.tensor([sequence.length for (sequence, _), n in zip(narrow, widths, strict=True) for _ in range(n)])
    row = starts + column
    # Where nothing is fed, a query reads the first token alone: no row of a softmax may be empty.
    limit = torch.zeros(count, width, dtype=torch.long)
    limit[slot - first, column] = row
    limit = limit.to(device)
    away = limit[:, :, None] - torch.arange(reach, device=device)
    masks = {window: additive((away >= 0) & (away < (window or reach)), lean.dtype)[:, None] for window in lean.windows}
    for (sequence, feed), n in zip(narrow, widths, strict=True):
        if feed.reads:
            for window, mask in lean.tree(feed.reads).items():
                masks[window][sequence.slot - first, 0, :n] = -torch.inf
                masks[window][sequence.slot - first, 0, :n, : mask.shape[1]] = mask
    full = len(narrow) == count and min(widths) == width
    slot, row, column = slot.to(device), row.to(device), column.to(device)
    return Together(slice(first, last + 1), width, slot, row, column, reach, masks, full)


@dataclass(frozen=True)
class RowsStep:
    """A block of several sequences: first the tokens of the narrow ones, then of those that attend by themselves."""

    places: Tensor
    together: Together | None
    alone: Sequence[tuple[int, int, Step]]  # slot, width, block

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        begin, parts = 0, []
        if self.together:
            begin = len(self.together.slot)
            part = slice(begin)
            parts.append(self.together.attend(layer, q[part], k[part], v[part], keys, values))
        for slot, width, step in self.alone:
            part = slice(begin, begin + width)
            parts.append(step.attend(layer, q[part], k[part], v[part], keys[slot], values[slot]))
            begin += width
        return parts[0] if len(parts) == 1 else torch.cat(parts)
