"""The protocols between a session and a runtime."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import BATCHED, UserError, plugins
from specbench.engine.sampling import draw
from specbench.engine.types import Passed, Sampling

Made = TypeVar("Made")
Lent = Sequence[tuple[Tensor, Tensor]]  # keys and values [K, n, D] of layers
LAST = (-1,)  # the last hidden state, after the final norm


class Unsupported(UserError):
    """A runtime cannot run a model, or not on this machine. The message, one line, says why and what can."""


def brought(name: str) -> Any:
    """The class of a runtime that a package brings: it is made of a device, and is a `Runtime`.

    That of `llamacpp` also has `load(spec, device, dtype)`, the model of a file and its facts, and that of `openvino`
    has `compressed(model, spec)`, which puts weights into fewer bits and says how. Raises Unsupported if there is none.
    """
    entry = plugins.entries("runtimes").get(name)
    if entry is None:
        raise Unsupported(f"the {name} runtime is in the package {plugins.EXTRAS}: install it; or use --runtime static")
    return entry.load()


def check_batches(name: str) -> None:
    """Raise Unsupported if the runtime of a name computes no batches."""
    if name not in BATCHED:
        raise Unsupported(f"--runtime {name} computes no batches; use {' or '.join(BATCHED)}")


class Reads(NamedTuple):
    """What a block of n tokens reads if it is not a causal chain after the cache of S - n tokens."""

    allowed: Tensor  # [n, S] bool: which of the S cached or fed tokens each one reads; it reads itself
    places: Tensor  # [S]: the positions of all S tokens
    root: int  # the first `root` tokens are a chain that all n read; then comes the open tree, or the block
    end: int = 0  # all positions are below it; 0: below S


class Borrowed(NamedTuple):
    """What a session lent: its tokens, and what some layers cached of them."""

    tokens: list[int]
    cache: Lent

    def of(self, layers: Sequence[int]) -> "Borrowed":
        """Some of the layers that were lent."""
        return Borrowed(self.tokens, [self.cache[layer] for layer in layers])


class Runner(Protocol):
    """One sequence of one model: its cache, and how its forward is computed."""

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        """Append tokens `ids` [n] (int64, on the device) to the cache; a causal chain unless `reads` says otherwise.

        Returns logits [n, V], or those of the last `keep` tokens if `keep` is not 0, and the hidden states [n, D] that
        `hidden` names, side by side (None if it names none): 0 enters the first layer, i leaves layer i, LAST comes
        after the final norm. `features` [n, F] are what some models read next to tokens. Later calls do not change the
        returned tensors.
        """

    def save(self) -> Any:
        """A copy of the whole cache."""

    def load(self, saved: Any) -> None:
        """Fill the empty cache, in place, with what another runner of the same model and runtime saved."""

    def lend(self, layers: Sequence[int]) -> Lent:
        """Copies of what some layers have cached, by their number among those with attention."""

    def borrow(self, lent: Lent) -> None:
        """Fill the empty cache, in place, with what a runner of any runtime lent; its layers are this one's in turn."""

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens, in place."""

    def wipe(self) -> None:
        """Make the cache fit for new tokens after some that were not finite, in place."""

    def move(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those after them, the ones at the rising offsets `path`, in place."""


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


class LayerRunner(Runner, Protocol):
    """A runner whose layers can also run apart. Each layer has its own length: how many tokens it has cached.

    `truncate` cuts every layer to at most the new length. `forward`, `save`, `load` and `move` need equal lengths.
    """

    layers: int  # L, how many there are

    def cached(self, layer: int) -> int:
        """How many tokens a layer has cached; layers count from 0."""

    def run(self, given: Tensor, first: int, last: int) -> Tensor:
        """Feed a chain of n tokens to the layers `first` … `last` - 1, whose lengths are equal, after what they cached.

        `given` is what enters layer `first`: ids [n] for layer 0, else the states [n, D] that left the layer before it.
        Returns the states [n, D] that leave the last of them, before the final norm.
        """

    def output(self, states: Tensor) -> Tensor:
        """The logits [n, V] of states [n, D] that left the last layer."""


class Runtime(Protocol):
    """Makes runners for the models of a pair."""

    name: str
    seconds: dict[str, float]  # time spent outside of decoding, by kind: export, compile, capture

    def runner(self, model: PreTrainedModel) -> Runner:
        """A new, empty sequence. Raises Unsupported if this runtime cannot run the model."""

    def settle(self) -> None:
        """Do the work that was postponed until nothing is timed; by default nothing."""
        return

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` returns; rows of a batch share what was made first under a key: models that methods derive."""
        return make()

    def fixed(self, work: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """`work`, which is called with tensors of the same few shapes again and again, as this runtime does it best.

        It may wait for nothing, and what it does may depend on shapes alone. By default it is called as it is.
        """
        return work

    def equal(self, model: PreTrainedModel) -> bool:
        """True if the logits of a token, given those before it, have the same bits in every block that it is fed in.

        By default False: forwards of different widths round differently.
        """
        return False

    def unequal(self, model: PreTrainedModel) -> str:
        """What was found to depend on the block, although the runtime promises otherwise; by default nothing, ""."""
        return ""

    def tie(self, model: PreTrainedModel) -> float:
        """The largest gap of two logits that rounding can overturn, if the model's type does not tell; by default 0."""
        return 0.0

    def facts(self) -> dict[str, Any]:
        """The versions and settings that affect the numbers; for the manifest."""
        return {}
