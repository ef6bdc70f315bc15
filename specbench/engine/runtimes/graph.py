"""The graph runtime: steps of fixed widths as CUDA graphs, so that a forward is one launch.

A step is prepared when its `Key` first occurs, and captured when nothing is timed. Until then it is computed launch by
launch, over the same buffers, with the same kernels.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.models.block_head import BlockHead
from specbench.engine.runtimes import decoder
from specbench.engine.runtimes.decoder import SequenceBlock
from specbench.engine.runtimes.eager import additive
from specbench.engine.runtimes.fixed import ROOM, Calls, Fixed, Steps
from specbench.engine.runtimes.graph_blocks import BlockRunner
from specbench.engine.runtimes.graph_trees import FixedTree, Grow, TreeKey
from specbench.engine.runtimes.lean import Lean, doubled
from specbench.engine.runtimes.static import STATIC, StaticRunner
from specbench.engine.runtimes.types import Chain, Reads, Runtime, Unsupported
from specbench.engine.sampling import earliest, probabilities, waits, wide
from specbench.engine.types import Passed, Sampling

WIDEST = 64  # tokens; wider blocks are computed as in `static`
NARROW = 16  # tokens; a wider block of which only the last logits are wanted is the end of a prompt


class Graph(Runtime):
    """Captures the steps of its runners. With `captures=False`, for tests, it never captures and runs on any device."""

    name = "graph"

    def __init__(self, device: torch.device, captures: bool = True) -> None:
        if captures and device.type != "cuda":
            raise Unsupported(
                "the graph runtime captures CUDA graphs and needs a GPU; use --runtime static or openvino"
            )
        self.seconds: dict[str, float] = {"capture": 0.0}
        self.captures = captures
        self.captured = 0
        self._wanted: list[tuple[weakref.ref[Steps], Any]] = []
        self._first: weakref.WeakKeyDictionary[Any, torch.cuda.CUDAGraph] = weakref.WeakKeyDictionary()

    def runner(self, model: PreTrainedModel) -> "GraphRunner | BlockRunner":
        return BlockRunner(model, self.want) if type(model) is BlockHead else GraphRunner(STATIC.lean(model), self)

    def fixed(self, work: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return Calls(work, self.want)

    def want(self, steps: Steps, key: Any) -> None:
        """Have a step captured when the runtime settles."""
        if self.captures:
            self._wanted.append((weakref.ref(steps), key))

    def settle(self) -> None:
        """Capture every step that was prepared since the last time."""
        if not self._wanted:
            return
        began = time.perf_counter()
        for reference, key in self._wanted:
            if (steps := reference()) is not None and key in steps.steps:
                # Graphs of one model never run at the same time, so they share memory; those of two models may.
                # The memory lasts as long as one of its graphs, so the first is kept until the model goes.
                first = self._first.get(steps.owner)
                steps.capture(key, first.pool() if first else None)
                graph = steps.steps[key].graph
                assert graph is not None
                self._first.setdefault(steps.owner, graph)
                self.captured += 1
        self._wanted.clear()
        torch.cuda.synchronize()
        self.seconds["capture"] += time.perf_counter() - began

    def facts(self) -> dict[str, Any]:
        return {"cuda": torch.version.cuda or "", "widest": WIDEST}


class Key(NamedTuple):
    """All that determines a step, except the values of its inputs."""

    width: int
    reach: int  # how many rows of the cache are read; rows after the sequence are masked
    hidden: tuple[int, ...]
    tree: bool
    featured: bool


class ChainKey(NamedTuple):
    """All that determines a chain in one call, except the values of its inputs and its draws."""

    first: Key  # of the tokens that come before the chain
    steps: int
    vocabulary: int
    sampling: Sampling

    @property
    def width(self) -> int:
        """The tokens that are fed."""
        return self.first.width + self.steps - 1


AnyKey = Key | ChainKey | TreeKey


class GraphRunner(StaticRunner):
    """One sequence whose steps have fixed shapes: lengths are on the device, and masks are computed there."""

    def __init__(self, lean: Lean, runtime: Graph) -> None:
        super().__init__(lean)
        self.runtime = runtime
        self.steps: dict[AnyKey, Fixed] = {}

    @property
    def owner(self) -> Lean:
        return self.lean

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        width, end = ids.shape[0], self.length + ids.shape[0]
        prompt = self.length == 0 or (keep and width > NARROW)  # prompts differ in width: each would need a graph
        if width > WIDEST or (prompt and not reads):
            return super().forward(ids, keep, hidden, features, reads)
        self.reserve(max(end, ROOM))
        key = Key(width, doubled(end), tuple(hidden), reads is not None, features is not None)
        step = self.steps.get(key) or self._prepared(key, FixedStep(self, key))
        assert isinstance(step, FixedStep)
        logits, states = step(ids, self.length, features, reads)
        self.length = end
        return logits[-keep:], states

    @torch.inference_mode()
    def chain(
        self,
        ids: Tensor,
        count: int,
        vocabulary: int,
        sampling: Sampling,
        rng: torch.Generator,
        passed: Passed = lambda: None,
    ) -> Chain:
        width, end = ids.shape[0], self.length + ids.shape[0] + count - 1
        if self.length == 0 or width > NARROW:  # the end of a prompt
            return super().chain(ids, count, vocabulary, sampling, rng, passed)
        self.reserve(max(end, ROOM))
        key = ChainKey(Key(width, doubled(end), (), False, False), count, vocabulary, sampling)
        step = self.steps.get(key) or self._prepared(key, FixedChain(self, key))
        assert isinstance(step, FixedChain)
        chain = step(ids, self.length, rng)
        self.length = end
        return chain

    @torch.inference_mode()
    def tree(
        self, grow: Grow, nodes: int, vocabulary: int, logits: Tensor, states: Tensor | None, ids: Tensor | None
    ) -> tuple[Tensor, ...]:
        """What `grow` makes after the cached tokens, from their last logits [V] and, of a head, states [1, D].

        It reads `nodes` nodes, which are not kept. `ids` [V] maps a head's tokens to the target's.
        """
        end = self.length + nodes
        self.reserve(max(end, ROOM))
        key = TreeKey(grow, nodes, doubled(end), vocabulary)
        step = self.steps.get(key) or self._prepared(key, FixedTree(self.lean, self.cache, key, logits, states, ids))
        assert isinstance(step, FixedTree)
        return step(logits, states, self.length)

    def _prepared(self, key: AnyKey, step: Fixed) -> Fixed:
        """Keep a new step, and have it captured."""
        self.steps[key] = step
        self.runtime.want(self, key)
        return step

    def reserve(self, length: int) -> None:
        if length > self.capacity:
            super().reserve(length)
            self.steps.clear()  # they write to the old cache

    @torch.inference_mode()
    def capture(self, key: AnyKey, pool: Any) -> None:
        """Capture a step, in place. Its runs overwrite the cache's first rows, which are restored afterwards."""
        step = self.steps[key]
        rows = [cached[:, : key.width] for cached in (*self.cache.keys, *self.cache.values)]
        saved = [row.clone() for row in rows]
        step.rewind()
        step.capture(pool)
        for row, values in zip(rows, saved, strict=True):
            row.copy_(values)


class FixedStep(Fixed):
    """A forward. Its inputs are copied into buffers."""

    def __init__(self, runner: GraphRunner, key: Key) -> None:
        lean, device = runner.lean, runner.lean.device
        self.key, self.lean, self.cache = key, lean, runner.cache
        self.angles = lean.angles(key.reach)
        self.ids = torch.zeros(key.width, dtype=torch.long, device=device)
        self.start = torch.zeros((), dtype=torch.long, device=device)  # the row of the first token
        self.offsets = torch.arange(key.width, device=device)
        self.rows = torch.arange(key.reach, device=device)
        self.places = torch.zeros(key.width, dtype=torch.long, device=device)  # of a tree's tokens
        self.masks = {
            window: torch.zeros(key.width, key.reach, dtype=lean.cached, device=device)
            for window in (lean.masks.windows if key.tree else ())
        }
        self.features: Tensor | None = None

    def __call__(
        self, ids: Tensor, start: int, features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        self.ids.copy_(ids)
        self.start.fill_(start)
        if features is not None:
            if self.features is None:
                self.features = torch.empty_like(features)
            self.features.copy_(features)
        if reads:
            self.places.copy_(reads.places[-self.key.width :])
            for window, mask in self.lean.masks.whole(reads).items():
                assert mask is not None
                self.masks[window].fill_(-torch.inf)
                self.masks[window][:, : mask.shape[1]] = mask
        logits, states = self.results()
        assert logits is not None
        return logits, states

    def rewind(self) -> None:
        self.start.zero_()
        self.places.copy_(self.offsets)

    def compute(self) -> tuple[Tensor, Tensor | None]:
        rows = self.start + self.offsets
        masks: dict[int | None, Tensor | None] = dict(self.masks)
        if not self.key.tree:
            away = rows[:, None] - self.rows
            for window in self.lean.masks.windows:
                masks[window] = additive((away >= 0) & (away < (window or self.key.reach)), self.lean.cached)
        step = SequenceBlock(rows, self.places if self.key.tree else rows, self.key.reach, masks)
        return decoder.run(
            self.lean.parts, self.ids, step, self.cache, self.angles, None, self.key.hidden, self.features
        )


class FixedChain(Fixed):
    """A chain: a forward over the tokens before it, then one a token. What its tokens are drawn by is in a buffer."""

    def __init__(self, runner: GraphRunner, key: ChainKey) -> None:
        self.key = key
        self.first = FixedStep(runner, key.first)
        self.next = FixedStep(runner, key.first._replace(width=1))
        row = torch.empty(1, key.vocabulary, dtype=runner.lean.dtype, device=runner.lean.device)
        self.waits = torch.zeros_like(wide(row)).repeat(key.steps, 1)

    def __call__(self, ids: Tensor, start: int, rng: torch.Generator) -> Chain:
        self.first.ids.copy_(ids)
        self.first.start.fill_(start)
        if not self.key.sampling.greedy:
            for row in self.waits.split(1):  # one by one, as `sampling.draw` draws them
                row.copy_(waits(row, rng))
        tokens, logits, probs = self.results()
        assert tokens is not None and logits is not None
        return Chain(tokens, logits, probs)

    def rewind(self) -> None:
        self.first.rewind()

    def compute(self) -> tuple[Tensor, Tensor, Tensor | None]:
        self.next.start.copy_(self.first.start + (self.key.first.width - 1))
        step, sampling = self.first, self.key.sampling
        tokens, rows, probs = [], [], []
        for waited in self.waits.split(1):
            logits = step.compute()[0][-1:, : self.key.vocabulary]
            if sampling.greedy:
                token = logits.argmax(-1)
            else:
                probs.append(probabilities(logits, sampling))
                token = earliest(probs[-1], waited)
            tokens.append(token)
            rows.append(logits)
            step = self.next
            step.start.add_(1)
            step.ids.copy_(token)
        return torch.cat(tokens), torch.cat(rows), torch.cat(probs) if probs else None
