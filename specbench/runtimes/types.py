"""What a session asks of a runtime."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import UserError

LAST = (-1,)  # of the hidden states the last, behind the final norm


class Unsupported(UserError):
    """A runtime that cannot run a model, or on this machine: one line that says why, and what can."""


class Reads(NamedTuple):
    """What a block of n tokens reads where it is no causal chain behind the cache."""

    allowed: Tensor  # [n, S] bool: which of the S cached or fed tokens each one reads; it reads itself
    places: Tensor  # [S]: the positions of all of them
    root: int  # the first so many are a chain that all n read; behind it lies the open tree, or the block


class Runner(Protocol):
    """One sequence of one model: its cache, and how its forward is computed."""

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> tuple[Tensor, Tensor | None]:
        """Append tokens `ids` [n] (int64, on the device) to the cache; a causal chain unless `reads` says otherwise.

        Returns logits [n, V], or of the last `keep` tokens if that is not 0, and of all n the hidden states [n, D] that
        `hidden` names, side by side (None if it names none): 0 enters the first layer, i is the one behind the i-th,
        LAST is behind the final norm. `features` [n, F] are what a model reads beside its tokens, if it does. What is
        returned stays as it is.
        """

    def save(self) -> Any:
        """A copy of all that is cached."""

    def load(self, saved: Any) -> None:
        """Copy into the empty cache what another runner of the same model and runtime saved."""

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens, in place."""

    def move(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those behind, the ones at the rising offsets `path`, in place."""


class Runtime(Protocol):
    """Makes runners for the models of a pair."""

    name: str
    seconds: dict[str, float]  # spent apart from decoding, by what: export, compile, capture

    def runner(self, model: PreTrainedModel) -> Runner:
        """A new, empty sequence. Raises Unsupported if the model cannot be run so."""

    def settle(self) -> None:
        """Do what was put off until nothing is timed."""

    def facts(self) -> dict[str, Any]:
        """What the manifest keeps: versions and settings that decide the numbers."""
