"""A session whose layers may run apart: the first ones read tokens ahead, and the others follow on the same states."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.runtimes.types import LayerRunner
from specbench.engine.session import Session, to_device
from specbench.engine.types import Scored


class LayerSession(Session):
    """One cache for the whole model. While a draft is made, its first layers hold more of the sequence than the others.

    `tokens` and the length of the session are those of layer 0. `truncate` and `keep` cut every layer. While the layers
    hold unequal numbers of tokens, only chains are read, by `read`, `run` and `finish`; the first two are not timed:
    who drafts with them enters the watch. Layers count from 0.
    """

    _runner: LayerRunner

    def new_runner(self) -> LayerRunner:
        return layer_runner(self.runtime, self.model)

    @property
    def layers(self) -> int:
        return self._runner.layers

    def cached(self, layer: int) -> int:
        """How many tokens a layer holds."""
        return self._runner.cached(layer)

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        keep: int = 0,
        parents: Sequence[int] | None = None,
        hidden: Sequence[int] = (),
        features: Tensor | None = None,
        together: int = 0,
    ) -> Scored:
        """As in `Session`, by all layers. Raises ValueError if some hold more tokens than others."""
        if self.cached(self.layers - 1) != len(self):
            raise ValueError("some layers have read ahead: let the others follow, or truncate them, before a forward")
        return super().forward(tokens, keep, parents, hidden, features, together)

    def read(self, tokens: Sequence[int] | Tensor, last: int) -> Tensor:
        """Feed n tokens of a chain to the layers before `last`: the states [n, D] that leave the last of them."""
        if self._tree:
            raise ValueError("a tree is open: keep a path of it, or truncate it, before layers run apart")
        ids = tokens if isinstance(tokens, Tensor) else to_device(tokens, self.device)
        states = self.run(ids, 0, last)
        self._fed_too(tokens)
        return states

    def run(self, given: Tensor, first: int, last: int) -> Tensor:
        """Feed states [n, D] that left layer `first` - 1 to the layers `first` … `last` - 1, after what these hold.

        Returns the states [n, D] that leave the last of them. Raises ValueError if these layers hold unequal numbers of
        tokens, or would hold more than the layer before them.
        """
        lengths = {self.cached(layer) for layer in range(first, last)}
        if len(lengths) != 1:
            raise ValueError(f"the layers {first} to {last - 1} do not hold the same number of tokens")
        if first and lengths.pop() + given.shape[0] > self.cached(first - 1):
            raise ValueError(f"layer {first} cannot read more tokens than layer {first - 1} has")
        return self._runner.run(given, first, last)

    def finish(self, states: Tensor, first: int, rest: Sequence[int] | Tensor = (), keep: int = 0) -> Scored:
        """Let the layers from `first` on follow, on the states [n, D] of all tokens that they have not read yet.

        `rest` are m more tokens of the chain, which no layer has read. Returns the logits [n + m, V] after all these
        tokens, or the last `keep` rows of them, and as `hidden` the states [n + m, D] that entered layer `first`. It is
        one forward of the model in the watch. Raises ValueError if layers are left behind.
        """
        with self._watch.forward(self.role, states.shape[0] + len(rest), len(self) - states.shape[0]):
            if len(rest):
                states = torch.cat([states, self.read(rest, first)])
            left = self.run(states, first, self.layers) if first < self.layers else states
            logits = self._runner.output(left[-keep:])
        if self.cached(self.layers - 1) != len(self):
            raise ValueError("the last layers must follow on the states of all tokens that the first ones have read")
        logits = logits[:, : self.vocabulary]
        self._check(logits)
        return Scored(logits, hidden=states)
