"""A session whose layers may run apart: the first ones read tokens ahead, and the others follow on the same states."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specbench.engine.ids import to_device
from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.runtimes.types import LayerRunner
from specbench.engine.session import Session
from specbench.engine.types import Scored


class LayerSession(Session):
    """One cache for the whole model. While a draft is made, its first layers hold more of the sequence than the others.

    `tokens` and the length of the session are those of layer 0. `truncate` and `keep` cut every layer. While the layers
    hold unequal numbers of tokens, only chains are read, by `read`, `run`, `through`, `say` and `finish`; all but the
    last are not timed: who drafts with them enters the watch. Layers count from 0.
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
        parents: Sequence[int] | Tensor | None = None,
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

    def through(self, given: Tensor, first: int, stops: Sequence[int]) -> list[Tensor]:
        """`run` from layer `first` on, up to each of the rising `stops` in turn: the states [n, D] that enter these."""
        entered = []
        for stop in stops:
            given = self.run(given, first, stop) if stop > first else given
            entered.append(given)
            first = stop
        return entered

    @torch.inference_mode()
    def say(self, states: Tensor) -> Tensor:
        """The logits [n, V] of the model's output layer on states [n, D] that left any of its layers."""
        return self._runner.output(states)[:, : self.vocabulary]

    def finish(
        self,
        ahead: Mapping[int, Tensor],
        rest: Sequence[int] | Tensor = (),
        keep: int = 0,
        hidden: Sequence[int] = (),
    ) -> Scored:
        """Let the last layers follow, on the states of all tokens that they have not read yet.

        `ahead` has states [n, D] of these tokens by the layer that they entered, in rising order; the layers from the
        last of these on follow. `rest` are m more tokens of the chain, which no layer has read. Returns the logits
        [n + m, V] after all these tokens, or the last `keep` rows of them, and as `hidden` the states [n + m, D] that
        entered the layers of `ahead` and, after these, the rising ones that `hidden` names, side by side. It is one
        forward of the model in the watch. Raises ValueError if layers are left behind.
        """
        stops = list(ahead)
        first, count = stops[-1], ahead[stops[-1]].shape[0]
        with self._watch.forward(self.role, count + len(rest), len(self) - count):
            entered = list(ahead.values())
            if len(rest):
                lowest = self.read(rest, stops[0])
                entered = [
                    torch.cat(parts) for parts in zip(entered, self.through(lowest, stops[0], stops), strict=True)
                ]
            *later, left = self.through(entered[-1], first, [*hidden, self.layers])
            logits = self.say(left[-keep:])
        if self.cached(self.layers - 1) != len(self):
            raise ValueError("the last layers must follow on the states of all tokens that the first ones have read")
        states = [*entered, *later]
        return self._scored(logits, torch.cat(states, -1) if len(states) > 1 else states[0])
