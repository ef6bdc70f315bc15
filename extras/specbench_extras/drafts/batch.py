"""Several sequences of one model at once, each with its own length: for rollouts and fixed batches."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.base.errors import UserError
from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.runtimes.eager import attention
from specbench.engine.session import Unwatched
from specbench.engine.types import Watch


class Batch:
    """A model with B sequences and their cache. `lengths` [B] count the tokens that each sequence has read.

    Tokens that were rolled back stay in the cache, where no token reads them, until they are more than half of it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: int,
        role: str = "",
        watch: Watch | None = None,
        vocabulary: int | None = None,
    ) -> None:
        if has_more_than_keys(model):
            kind = type(model).__name__
            raise UserError(f"{kind} has a state, which fixed batches cannot roll back; choose another model or method")
        self.model, self.role, self._watch = model, role, watch or Unwatched()
        self.device = model.device
        self.vocabulary = vocabulary or model.config.get_text_config().vocab_size
        self._cache = DynamicCache()
        self._places = torch.empty(rows, 0, dtype=torch.long, device=self.device)  # [B, S]: positions of cached tokens
        self._valid = torch.empty(rows, 0, dtype=torch.bool, device=self.device)  # [B, S]
        self.lengths = torch.zeros(rows, dtype=torch.long, device=self.device)

    def __len__(self) -> int:
        return len(self.lengths)

    def feed(
        self, tokens: Sequence[Sequence[int]], suffix: Tensor | None = None, keep: int = 1, together: int = 0
    ) -> Tensor:
        """Feed each sequence its own tokens (of any number, perhaps none), then `suffix` [B, n] if given.

        Returns the logits [B, keep, V] of the last tokens. The last `together` tokens read one another both ways.
        """
        longest = max(map(len, tokens))
        ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in tokens], dtype=torch.long)
        real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in tokens], dtype=torch.bool)
        ids, real = ids.reshape(len(self), longest).to(self.device), real.reshape(len(self), longest).to(self.device)
        if suffix is not None:
            ids, real = torch.cat([ids, suffix], 1), torch.cat([real, torch.ones_like(suffix, dtype=torch.bool)], 1)
        return self.forward(ids, real, keep, together)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, real: Tensor | None = None, keep: int = 1, together: int = 0) -> Tensor:
        """Feed the tokens [B, n] that are `real` [B, n] (default: all) and not padding; returns logits [B, keep, V]."""
        width = tokens.shape[1]
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        places = (self.lengths[:, None] + real.cumsum(1) - 1).clamp_(min=0)
        reads = torch.ones(width, width, dtype=torch.bool, device=self.device).tril_()
        reads[width - together :] = True
        among = reads & real[:, None]
        among |= torch.eye(width, dtype=torch.bool, device=self.device)  # padding reads itself: no row may be empty
        allowed = torch.cat([self._valid[:, None].expand(-1, width, -1), among], -1)
        self._places = torch.cat([self._places, places], 1)
        self._valid = torch.cat([self._valid, real], 1)
        with self._watch.forward(self.role, width, self._valid.shape[1] - width):
            out = self.model(
                tokens,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=keep,
                **attention(allowed, self._places, self.model),
            )
        self.lengths = self.lengths + real.sum(1)
        logits: Tensor = out.logits[:, :, : self.vocabulary]
        return logits

    def truncate(self, lengths: Tensor) -> None:
        """Roll every sequence back to its first `lengths` [B] tokens, in place."""
        self.lengths = torch.minimum(self.lengths, lengths.to(self.device))
        self._valid = self._valid & (self._places < self.lengths[:, None])
        longest = int(self.lengths.max()) if len(self) else 0
        if self._valid.shape[1] > 2 * longest + 64:
            self._gather(torch.argsort(self._valid.int(), dim=1, descending=True, stable=True)[:, :longest])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these sequences, in place."""
        index = torch.tensor(rows, dtype=torch.long, device=self.device)  # perhaps none
        self._cache.batch_select_indices(index)
        self._places, self._valid, self.lengths = self._places[index], self._valid[index], self.lengths[index]

    def _gather(self, index: Tensor) -> None:
        """Keep the cached tokens at `index` [B, n], which differs between sequences, in place."""
        self._places, self._valid = self._places.gather(1, index), self._valid.gather(1, index)
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                cached = getattr(layer, name)
                shape = (-1, cached.shape[1], -1, cached.shape[3])
                setattr(layer, name, cached.gather(2, index[:, None, :, None].expand(shape)))


def until_all_end(models: Sequence[Batch], ended: Callable[[int], bool], step: Callable[[list[int]], None]) -> None:
    """Call `step` until `ended` is true of every text, given by its number. At first `models` have a row for each text.

    `step` gets the texts of the rows that are left. Rows of ended texts are dropped only when there are many, since
    each drop copies the caches.
    """
    rows = list(range(len(models[0])))
    while alive := [i for i, text in enumerate(rows) if not ended(text)]:
        if len(alive) <= len(rows) * 3 // 4 or len(alive) < 4 < len(rows):
            rows = [rows[i] for i in alive]
            for model in models:
                model.select(alive)
        step(rows)
