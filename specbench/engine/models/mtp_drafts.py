"""The tokens that multi-token-prediction modules draft (DeepSeek-V3, arXiv 2412.19437, equations 21 to 23)."""

from typing import Any

import torch
from torch import Tensor

from specbench.engine.ids import to_device


class Modules:
    """The modules with the cache of one text. `unread` [m, D] are states of tokens after which nothing was drafted yet.

    With several modules, each drafts one token; a single one goes on from its own states (`steps`).
    """

    def __init__(self, model: Any, steps: int) -> None:
        self.model, self.steps, self.count = model, steps, model.num_mtp_layers

    def begin(self, states: Tensor) -> None:
        """Forget the last text. `states` [n, D] are the target's after a prompt's tokens."""
        from transformers.cache_utils import MtpCache

        self.cache = MtpCache(config=self.model.config)
        self.cache.activate_past_recording()
        self.states = self.unread = states
        self.stale = 0  # tokens that every module must read again

    def follow(self, states: Tensor) -> None:
        """Take the target's states [m, D] of the last committed token before its draft, and of the accepted ones."""
        self.unread = states
        if self.count > 1:  # a module has read drafts of the modules before it, of which some may be rejected
            self.stale = min(self.count, len(self.states)) if len(states) < self.count else 0
            self.states = torch.cat([self.states, states])

    def draft(self, context: list[int], vocabulary: int) -> Tensor:
        """The likeliest tokens [steps] after a text whose last token the target has not read."""
        model, cache, width = self.model, self.cache, len(self.unread) + self.stale
        if self.stale:
            cache.crop(-self.stale)
            self.unread = self.states[-width:]
        ids = to_device(context[-width:], self.unread.device)[None]
        places = torch.arange(len(context) - width, len(context), device=ids.device)[None]
        states, tokens = self.unread[None], []
        for step in range(self.steps):
            states = model.forward_layer(min(step, self.count - 1), states, places, cache, input_ids=ids)
            logits = model._project_to_logits(states[:, -1:])[0, :, :vocabulary]
            tokens.append(logits.argmax(-1))
            ids, places = torch.cat([ids[:, 1:], tokens[-1][None]], 1), places + 1
            if self.count == 1:
                ids, places, states = ids[:, -1:], places[:, -1:], states[:, -1:]
        if self.count == 1:
            cache.crop(1 - self.steps)
        self.stale = 0
        return torch.cat(tokens)
