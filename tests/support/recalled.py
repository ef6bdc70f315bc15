"""A runtime that computes each context once: tests that draw thousands of short texts need no thousands of forwards.

It keeps no cache of keys and values: a row of logits is looked up by the tokens that its position reads, and computed
by a plain forward of the model when they are new. Chains and trees alike; models that read features are not served.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes.types import Lent, Reads
from specbench.engine.session import Session


class Recalled:
    name = "recalled"

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._known: dict[int, tuple[PreTrainedModel, dict[tuple[int, ...], tuple[Tensor, list[Tensor]]]]] = {}

    def runner(self, model: PreTrainedModel) -> "RecalledRunner":
        return RecalledRunner(model, self._known.setdefault(id(model), (model, {}))[1])

    def settle(self) -> None: ...

    def facts(self) -> dict[str, Any]:
        return {}


class RecalledRunner:
    def __init__(self, model: PreTrainedModel, known: dict[tuple[int, ...], tuple[Tensor, list[Tensor]]]) -> None:
        self.model, self.known = model, known
        self.tokens: list[int] = []

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        assert features is None, "a model that reads features is not served"
        first = len(self.tokens)
        self.tokens += ids.tolist()
        if reads is None:
            contexts = [tuple(self.tokens[: end + 1]) for end in range(first, len(self.tokens))]
        else:  # the places that a token reads are a chain, in the order in which they were fed
            contexts = [tuple(self.tokens[at] for at in row.nonzero()[:, 0].tolist()) for row in reads.allowed]
        rows = [self.row(context) for context in (contexts if hidden else contexts[-keep:])]
        logits = torch.stack([row[0] for row in rows[-keep:]])
        states = torch.stack([torch.cat([row[1][i] for i in hidden], -1) for row in rows]) if hidden else None
        return logits, states

    @torch.inference_mode()
    def row(self, context: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """Logits [V] after a context, and the hidden states [D] of its last token, one of each layer."""
        if context not in self.known:
            ids = torch.tensor([context], device=self.model.device)
            out = self.model(ids, use_cache=False, output_hidden_states=True, return_dict=True)
            self.known[context] = out.logits[0, -1], [states[0, -1] for states in out.hidden_states]
        return self.known[context]

    def save(self) -> list[int]:
        return self.tokens.copy()

    def load(self, saved: list[int]) -> None:
        self.tokens = saved.copy()

    def lend(self, layers: Sequence[int]) -> Lent:
        with torch.inference_mode():
            cache = self.model(torch.tensor([self.tokens], device=self.model.device), use_cache=True).past_key_values
        return [(cache.layers[index].keys[0], cache.layers[index].values[0]) for index in layers]

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def move(self, start: int, path: Sequence[int]) -> None:
        self.tokens[start:] = [self.tokens[start + at] for at in path]


RECALLED = Recalled()


def recalled(model: PreTrainedModel, role: str) -> Session:
    """A session of a model that computes each context once in the whole process."""
    return Session(model, role, runtime=RECALLED)
