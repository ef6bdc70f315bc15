"""The eager runtime for several sequences: transformers' own forward over slots, for every model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.engine.runtimes.eager import attention
from specbench.engine.runtimes.slots import NARROW, Answer, Fed, Feed, Slots

PADDED = 1.25  # of their tokens; prompts that are computed together are padded to at most so many


class SlotCache(DynamicCache):
    """What a model of transformers takes for its cache: it writes into slots, and returns what they hold."""

    def __init__(self, slots: Slots, fed: Fed, width: int) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        chosen = [sequence.slot for sequence, _ in fed]
        self.chosen: Any = slice(chosen[0], chosen[-1] + 1)
        if chosen != list(range(chosen[0], chosen[-1] + 1)):
            self.chosen = torch.tensor(chosen)  # the cache of those slots is copied
        widths = [len(feed.ids) for _, feed in fed]
        self.which = torch.tensor([i for i, n in enumerate(widths) for _ in range(n)])
        self.column = torch.tensor([i for n in widths for i in range(n)])
        self.slot = torch.tensor(chosen)[self.which]
        self.row = torch.tensor([sequence.length for sequence, _ in fed])[self.which] + self.column
        self.reach = max(sequence.length + n for (sequence, _), n in zip(fed, widths, strict=True))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Write keys and values [B, K, n, D] of a layer into the slots; those [B, K, S, D] that can be read."""
        sizes = key_states.shape[3], value_states.shape[3]
        cached = self.slots.layer(layer_idx, key_states.shape[1], sizes, key_states)
        for part, new in zip(cached, (key_states, value_states), strict=True):
            part[self.slot, :, self.row] = new[self.which, :, self.column]
        return tuple(part[self.chosen, :, : self.reach] for part in cached)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.reach - self.width


class EagerRows:
    """Forwards of a model of transformers over slots."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.slots = Slots()
        self.order = self.sequences = 0
        self.size = model.num_parameters()

    def forward(self, fed: Fed) -> list[Answer]:
        for sequence, feed in fed:
            self.slots.place(sequence, sequence.length + len(feed.ids))
        answers: dict[int, Answer] = {}
        for group in groups([feed for _, feed in fed]):
            group.sort(key=lambda i: fed[i][0].slot)
            answers |= zip(group, self._padded([fed[i] for i in group]), strict=True)
        return [answers[i] for i in range(len(fed))]

    @torch.inference_mode()
    def _padded(self, fed: Fed) -> list[Answer]:
        """The answers of sequences that are fed together, padded to one width at the end."""
        feeds = [feed for _, feed in fed]
        width, device = max(len(feed.ids) for feed in feeds), self.model.device
        cache = SlotCache(self.slots, fed, width)
        ids = torch.zeros(len(fed), width, dtype=torch.long, device=device)
        # Padding reads the first token alone: no row of a softmax may be empty.
        allowed = torch.zeros(len(fed), width, cache.reach, dtype=torch.bool, device=device)
        allowed[:, :, 0] = True
        places = torch.arange(cache.reach, device=device).repeat(len(fed), 1)
        fed_places = torch.zeros(len(fed), width, dtype=torch.long, device=device)
        features = None
        if feeds[0].features is not None:
            features = feeds[0].features.new_zeros(len(fed), width, feeds[0].features.shape[1])
        for i, (sequence, feed) in enumerate(fed):
            n, end = len(feed.ids), sequence.length + len(feed.ids)
            ids[i, :n] = feed.ids
            if feed.reads:
                places[i, :end] = feed.reads.places
                allowed[i, :n, :end] = feed.reads.allowed
            else:
                allowed[i, :n] = places[i] <= places[i, sequence.length : end, None]
            fed_places[i, :n] = places[i, sequence.length : end]
            if features is not None and feed.features is not None:
                features[i, :n] = feed.features
        hidden = feeds[0].hidden  # those of all feeds
        kept = kept_columns(feeds, device)
        out = self.model(
            ids,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            output_hidden_states=bool(hidden),
            logits_to_keep=kept,
            **attention(allowed, places, self.model, fed_places),
            **({} if features is None else {"features": features}),
        )
        states = torch.cat([out.hidden_states[i] for i in hidden], -1) if hidden else None
        answers: list[Answer] = []
        for i, feed in enumerate(feeds):
            n = len(feed.ids)
            if isinstance(kept, Tensor):
                logits = out.logits[i, (kept == n - 1).nonzero()[0]]
            else:
                logits = out.logits[i, : kept or n][-feed.keep :]
            answers.append((logits, None if states is None else states[i, :n]))
        return answers


def groups(feeds: Sequence[Feed]) -> list[list[int]]:
    """Which feeds are computed together: all narrow ones, and prompts of about one length, of which one row is kept."""
    every = range(len(feeds))
    narrow = [i for i in every if len(feeds[i].ids) <= NARROW]
    prompts = [i for i in every if i not in narrow and feeds[i].keep == 1 and not feeds[i].reads]
    alone = [[i] for i in every if i not in narrow and i not in prompts]
    alike: list[list[int]] = []
    total = 0  # tokens of the last group
    for i in sorted(prompts, key=lambda i: len(feeds[i].ids)):
        width = len(feeds[i].ids)
        if not alike or (len(alike[-1]) + 1) * width > PADDED * (total + width):
            alike.append([])
            total = 0
        alike[-1].append(i)
        total += width
    return [group for group in (narrow, *alike, *alone) if group]


def kept_columns(feeds: Sequence[Feed], device: torch.device) -> Tensor | int:
    """Which columns of a padded block have logits, as models of transformers take it: so many last ones, or these.

    0: all. Models that read features are our own, and take numbers only.
    """
    lasts = sorted({len(feed.ids) - 1 for feed in feeds})
    if any(feed.keep != 1 for feed in feeds) or (lasts[1:] and feeds[0].features is not None):
        return 0
    return torch.tensor(lasts, device=device) if lasts[1:] else 1
