"""The static runtime for several sequences: products over the tokens of all, attention over each one's own cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.blocks import EVERY, SPAN, in_halves, level_of, scored, summed
from specbench.engine.runtimes.decoder import Cache, ForwardBlock
from specbench.engine.runtimes.eager import additive
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.parts import Attention
from specbench.engine.runtimes.slots import NARROW, Answer, Fed, Feed, Slots


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
            slots.place(sequence, lean.masks.reach(sequence.length + len(feed.ids)))
        like = torch.empty(0, dtype=lean.cached, device=lean.device)
        for index, layer in enumerate(lean.parts.attentions):
            slots.layer(index, layer.groups, (layer.size, layer.size), like)
        # The narrow ones come first, in the order of their slots. On a CPU what is no chain attends by itself.
        apart = [len(feed.ids) > NARROW or (lean.masks.blocks and feed.reads is not None) for _, feed in fed]
        order = sorted(range(len(fed)), key=lambda i: (apart[i], fed[i][0].slot))
        ordered = [fed[i] for i in order]
        narrow = ordered[: apart.count(False)]
        wide = ordered[len(narrow) :]
        block = RowsStep(
            _places(ordered, lean.device),
            _together(narrow, lean) if narrow else None,
            [
                (sequence.slot, len(feed.ids), lean.masks.block(len(feed.ids), sequence.length, feed.reads))
                for sequence, feed in wide
            ],
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


@dataclass(frozen=True)
class Together:
    """Narrow blocks of n sequences or fewer whose slots lie within `slots`, padded to one width."""

    slots: slice
    width: int
    slot: Tensor  # [N]: of each token
    row: Tensor  # [N]: its row of the cache
    column: Tensor  # [N]: its place in the padded block
    reach: int
    span: int  # positions whose values are added up in one product
    masks: dict[int | None, Tensor]  # by window: [slots, 1, width, reach], added to scores
    full: bool  # every slot is fed `width` tokens

    def attend(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `ForwardBlock.attend`, for these sequences' tokens."""
        keys[self.slot, :, self.row] = k
        values[self.slot, :, self.row] = v
        count, groups, size = self.slots.stop - self.slots.start, layer.groups, layer.size
        if self.full:
            padded = q.reshape(count, self.width, groups, -1, size)
        else:
            padded = q.new_zeros(count, self.width, groups, layer.heads // groups, size)
            padded[self.slot - self.slots.start, self.column] = q.reshape(len(q), groups, -1, size)
        rows = padded.permute(0, 2, 3, 1, 4).reshape(count * groups, -1, size)
        cached_k, cached_v = (
            part[self.slots, :, : self.reach].reshape(count * groups, self.reach, size) for part in (keys, values)
        )
        mask, level, shape = self.masks[layer.window], None, (count, layer.heads, self.width, -1)
        if in_halves(cached_k) and not layer.softcap:
            some = scored(rows, cached_k[:, ::EVERY], layer.scale)
            some.view(shape).add_(mask[..., ::EVERY])
            level = level_of(some)
        scores = scored(rows, cached_k, layer.scale, level=level)
        if layer.softcap:
            scores = torch.tanh(scores / layer.softcap) * layer.softcap
        scores.view(shape).add_(mask)
        weights = scores.softmax(-1) if scores.element_size() > 2 else scores.softmax(-1, torch.float32).to(v.dtype)
        read = summed(weights, cached_v, self.reach, self.span)
        attended = read.view(count, layer.heads, self.width, size).transpose(1, 2)
        if self.full:
            return attended.reshape(len(q), -1)
        return attended[self.slot - self.slots.start, self.column].reshape(len(q), -1)


def _together(narrow: Fed, lean: Lean) -> Together:
    device = lean.device
    first, last = narrow[0][0].slot, narrow[-1][0].slot
    widths = [len(feed.ids) for _, feed in narrow]
    width, count = lean.masks.width(max(widths)), last + 1 - first
    reach = lean.masks.reach(max(sequence.length + n for (sequence, _), n in zip(narrow, widths, strict=True)))
    slot = torch.tensor([sequence.slot for (sequence, _), n in zip(narrow, widths, strict=True) for _ in range(n)])
    column = torch.tensor([i for n in widths for i in range(n)])
    starts = torch.tensor([sequence.length for (sequence, _), n in zip(narrow, widths, strict=True) for _ in range(n)])
    row = starts + column
    # Where nothing is fed, a query reads the first token alone: no row of a softmax may be empty.
    limit = torch.zeros(count, width, dtype=torch.long)
    limit[slot - first, column] = row
    limit = limit.to(device)
    away = limit[:, :, None] - torch.arange(reach, device=device)
    masks = {
        window: additive((away >= 0) & (away < (window or reach)), lean.cached)[:, None]
        for window in lean.masks.windows
    }
    for (sequence, feed), n in zip(narrow, widths, strict=True):
        if feed.reads:
            for window, mask in lean.masks.whole(feed.reads).items():
                assert mask is not None
                masks[window][sequence.slot - first, 0, :n] = -torch.inf
                masks[window][sequence.slot - first, 0, :n, : mask.shape[1]] = mask
    full = len(narrow) == count and min(widths) == width
    slot, row, column = slot.to(device), row.to(device), column.to(device)
    span = SPAN if lean.masks.blocks else reach
    return Together(slice(first, last + 1), width, slot, row, column, reach, span, masks, full)


@dataclass(frozen=True)
class RowsStep:
    """A block of several sequences: first the tokens of the narrow ones, then of those that attend by themselves."""

    places: Tensor
    together: Together | None
    alone: Sequence[tuple[int, int, ForwardBlock]]  # slot, width, block

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
