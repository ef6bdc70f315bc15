"""Batches at the eager or the static runtime: runners whose forwards are computed together with those of others.

A runner serves one sequence, as ever, so sessions and methods know nothing of batches. In a batch each text is decoded
in a greenlet of its own: where it needs a forward, the greenlet waits, and `Batch` (engine/rows.py) computes the
forwards of all that wait for one model.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from greenlet import getcurrent, greenlet
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.eager_rows import EagerRows
from specbench.engine.runtimes.mixers import Mixers
from specbench.engine.runtimes.slots import Answer, Feed
from specbench.engine.runtimes.states import StateRunner, mixers
from specbench.engine.runtimes.static import STATIC, in_chunks
from specbench.engine.runtimes.static_rows import StaticRows
from specbench.engine.runtimes.types import Lent, Made, Reads, Runtime, check_batches

CHUNK = 512  # tokens of a chain that are fed at a time


class Rows(Protocol):
    """Forwards of one model that feed several of its sequences."""

    size: int  # the parameters of the model
    order: int  # how many models of the runtime came before
    sequences: int  # that were made

    def forward(self, fed: Sequence[tuple[Any, Feed]]) -> list[Answer]:
        """What each sequence's own `Runner.forward` would return. Fills their caches, in place."""


class Batched(Runtime):
    """The runtime of a batch: like `name`, eager or static, but for many sequences."""

    def __init__(self, name: str) -> None:
        check_batches(name)
        self.name, self.base = f"{name}, in batches", name
        self.seconds: dict[str, float] = {}
        self._rows: weakref.WeakKeyDictionary[PreTrainedModel, Rows] = weakref.WeakKeyDictionary()
        self._made: dict[Hashable, Any] = {}

    def runner(self, model: PreTrainedModel) -> "RowRunner | StateRow":
        rows: Any = self._rows.get(model)
        found = mixers(model) if self.base == EAGER.name and has_more_than_keys(model) else None
        if rows is None:
            if found:
                rows = StateRows(model)
            else:
                rows = StaticRows(STATIC.lean(model)) if self.base == "static" else EagerRows(model)
            rows.order = len(self._rows)
            self._rows[model] = rows
        rows.sequences += 1
        return StateRow(model, found, found.way, rows) if found else RowRunner(rows)

    def equal(self, model: PreTrainedModel) -> bool:
        return self.base == STATIC.name and STATIC.equal(model)

    def unequal(self, model: PreTrainedModel) -> str:
        return STATIC.unequal(model) if self.base == STATIC.name else ""

    def sequences(self) -> dict[PreTrainedModel, int]:
        """How many sequences of each model were made, dropped ones too."""
        return {model: rows.sequences for model, rows in self._rows.items()}

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


class BatchedText(Protocol):
    """A text of a batch."""

    shared: Any  # the value that it last shared with the others; None: nothing


class TextGreenlet(greenlet):
    """A greenlet in which a text is decoded. It switches to its parent with what one of its runners must be fed."""

    text: BatchedText
    texts: Sequence[BatchedText]  # of the batch


def texts_together() -> int:
    """How many texts are decoded together with the one that asks, itself included."""
    job = getcurrent()
    return len(job.texts) if isinstance(job, TextGreenlet) else 1


def share(value: Any) -> None:
    """Share a value with the texts that are decoded together; alone, nobody hears of it."""
    job = getcurrent()
    if isinstance(job, TextGreenlet):
        job.text.shared = value


def shared() -> list[Any]:
    """What each of the texts that are decoded together shared last, the one that asks included; alone, nothing."""
    job = getcurrent()
    return [text.shared for text in job.texts if text.shared is not None] if isinstance(job, TextGreenlet) else []


def fed(runner: Any, feed: Feed) -> Answer:
    """What a sequence is answered: in a `TextGreenlet` when the forwards of all are computed, else at once, alone."""
    job = getcurrent()
    answer: Answer = (
        job.parent.switch(runner, feed) if isinstance(job, TextGreenlet) else runner.rows.forward([(runner, feed)])[0]
    )
    return answer


class RowRunner:
    """One sequence of a batch."""

    def __init__(self, rows: EagerRows | StaticRows) -> None:
        self.rows: Any = rows
        self.slot = -1
        self.length = 0

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> Answer:
        if ids.shape[0] > CHUNK and not reads:
            return in_chunks(self.forward, ids, keep, hidden, features, CHUNK)
        answer = fed(self, Feed(ids, keep, hidden, features, reads))
        self.length += ids.shape[0]
        return answer

    def leave(self, damaged: bool = False) -> None:
        """Let sequences that are decoding have the first slots. After an error nothing may be left that spoils them."""
        if damaged:
            self.rows.slots.wipe()
        self.rows.slots.rest(self)

    def wipe(self) -> None:
        self.rows.slots.wipe()

    def save(self) -> Any:
        return self.rows.slots.save(self)

    def load(self, saved: Any) -> None:
        self.rows.slots.load(self, saved)
        self.length = saved[0][0].shape[1]

    def lend(self, layers: Sequence[int]) -> Lent:
        saved = self.rows.slots.save(self)
        return [saved[index] for index in layers]

    def borrow(self, lent: Lent) -> None:
        self.load(lent)

    def truncate(self, length: int) -> None:
        self.length = length

    def move(self, start: int, path: Sequence[int]) -> None:
        self.rows.slots.move(self, start, path)
        self.length = start + len(path)


class StateRows:
    """Sequences of a model with a state: each has a forward of its own, as their states cannot be padded."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.order = self.sequences = 0
        self.size = model.num_parameters()

    def forward(self, fed: Sequence[tuple["StateRow", Feed]]) -> list[Answer]:
        return [StateRunner.forward(sequence, *feed) for sequence, feed in fed]


class StateRow(StateRunner):
    """One sequence of a batch, of a model with a state."""

    def __init__(self, model: PreTrainedModel, mixers: Mixers, way: str, rows: Rows) -> None:
        super().__init__(model, mixers, way)
        self.rows: Any = rows

    def forward(
        self, ids: Tensor, keep: int, hidden: Sequence[int], features: Tensor | None, reads: Reads | None
    ) -> Answer:
        return fed(self, Feed(ids, keep, hidden, features, reads))

    def leave(self, damaged: bool = False) -> None:
        """Nothing to do: it shares no cache with other sequences."""
