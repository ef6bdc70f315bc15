"""A draft in one call: a model goes on from some tokens by a chain of its own, and no session is asked in between."""

from typing import NamedTuple

import torch
from torch import Tensor

from specbench.engine.runtimes.types import Runner
from specbench.engine.sampling import draw
from specbench.engine.types import Passed, Sampling


class Chain(NamedTuple):
    """K tokens that a model chose one after another."""

    tokens: Tensor  # [K]
    logits: Tensor  # [K, V] that each was chosen by
    probs: Tensor | None  # [K, V] that each was drawn from; None: greedy
    ids: list[int] | None = None  # the tokens on the host, if they are there already


class Chaining:
    """Base of runners that have chains: a forward a token, with nothing in between but the draw."""

    def wipe(self) -> None:
        """As of any runner; nothing to do where no row of the cache after the sequence is read."""

    @torch.inference_mode()
    def chain(
        self: Runner,
        ids: Tensor,
        count: int,
        vocabulary: int,
        sampling: Sampling,
        rng: torch.Generator,
        passed: Passed = lambda: None,
    ) -> Chain:
        """Append tokens `ids` [n] to the cache, then the first K - 1 of K = `count` tokens that are drawn one by one.

        Of the logits only the first `vocabulary` count. The draws are those of as many calls of `sampling.draw`, and
        `passed` is called after each.
        """
        tokens, rows, probs = [], [], []
        for _ in range(count):
            logits, _ = self.forward(ids, 1, (), None, None)
            row = logits[:, :vocabulary]
            ids, q = draw(row, sampling, rng)
            tokens.append(ids)
            rows.append(row)
            probs.append(q)
            passed()
        chosen = torch.cat(tokens)
        on_host = chosen.tolist() if chosen.device.type == "cpu" else None
        return Chain(chosen, torch.cat(rows), None if sampling.greedy else torch.cat(probs), on_host)  # type: ignore[arg-type]
