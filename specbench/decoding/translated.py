"""A model of another tokenizer, as a sequence in the target's tokens."""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor
from transformers import PreTrainedModel

from specbench.decoding.session import Session, common
from specbench.decoding.translate import Reading, Translation
from specbench.decoding.types import Scored, Watch
from specbench.runtimes.eager import EAGER
from specbench.runtimes.types import Runtime

UNBOUNDED = 2**31


class Translated(Session):
    """Target ids outside, the model's own inside, where a session of its own holds the cache.

    What is caught up with is read as the model's tokenizer writes it; what is fed goes token by token. Of each target
    token the logits are those behind the last of its tokens, over the target's vocabulary, -inf for what the model
    lacks. Lengths count target tokens; the watch is told of the model's. A text longer than the model's positions loses
    its beginning.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        role: str,
        watch: Watch | None,
        translation: Translation,
        runtime: Runtime = EAGER,
    ) -> None:
        super().__init__(model, role, watch, translation.size)
        self.translation = translation
        self.inner = Session(model, role, watch, runtime=runtime)
        self.reading = Reading(translation)
        self._later: list[int] = []  # of each token fed behind what was read: the length then, of the model's tokens
        self._cut = 0  # tokens of the model that were lost at the beginning
        positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or UNBOUNDED
        self._most, self._step = positions - positions // 8, max(1, positions // 4)

    def __len__(self) -> int:
        return len(self.reading.tokens) + len(self._later)

    @property
    def tokens(self) -> list[int]:
        raise ValueError("of a translated sequence only the model's own tokens are kept")

    def restart(self, prompt: Sequence[int]) -> Scored:
        self.truncate(0)
        self.reading.read(prompt, 0)
        return self._outside(self.inner.restart(self._shortened()), [0])

    def catch_up(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored:
        """As of any session; the rows are those of the target tokens behind what was cached before."""
        known = self.reading.tokens
        shared = common(known, context)
        cached = min(len(self) if shared == len(known) else shared, len(context) - 1)
        self.reading.read(context, shared)
        self._later.clear()
        ids = self._shortened()
        scored = self.inner.catch_up(ids, hidden)
        first = self._cut + len(ids) - scored.logits.shape[0]
        return self._outside(scored, [max(end - first, 1) - 1 for end in self.reading.ends[cached:]])

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        keep: int = 0,
        parents: Sequence[int] | None = None,
        hidden: Sequence[int] = (),
        features: Tensor | None = None,
        together: int = 0,
    ) -> Scored:
        """As of any session. Tokens [n] on the device have one of the model's each: those that it can propose.

        Raises ValueError for tokens that read one another: what an arbitrator reads has the target's tokenizer.
        """
        if together:
            raise ValueError("tokens of a translated sequence are read in order only")
        told, at = self.translation, self._inner_length(len(self))
        if isinstance(tokens, Tensor):
            scored = self.inner.forward(told.inside(tokens), keep, parents, hidden, features)
            self._later += range(at + 1, at + 1 + tokens.shape[0])
            return Scored(told.outside(scored.logits), hidden=scored.hidden)
        keep = min(keep, len(tokens))
        # One each in a tree, whose parents are told by number.
        spelled = [told.spell(token) if parents is None else told.spell(token)[-1:] for token in tokens]
        ends = list(accumulate(map(len, spelled)))
        first = ends[-keep] - len(spelled[-keep]) if keep else 0
        ids = [i for one in spelled for i in one]
        scored = self.inner.forward(ids, len(ids) - first if keep else 0, parents, hidden, features)
        self._later += [at + end for end in ends]
        logits = scored.logits[[end - 1 - first for end in ends[-keep:]]]
        states = None if scored.hidden is None else scored.hidden[[end - 1 for end in ends]]
        return Scored(told.outside(logits), hidden=states)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} cached tokens to {length}")
        self.inner.truncate(self._inner_length(length) if length else 0)
        del self._later[max(0, length - len(self.reading.tokens)) :]
        if not length:
            self.reading = Reading(self.translation)
            self._cut = 0
        elif length < len(self.reading.tokens):
            self.reading.read(self.reading.tokens[:length], length)

    def keep(self, start: int, path: Sequence[int]) -> None:
        at = self._inner_length(start)
        self.inner.keep(at, path)
        read = len(self.reading.tokens)
        self._later[start - read :] = range(at + 1, at + 1 + len(path))

    def _inner_length(self, length: int) -> int:
        """The model's tokens that the first `length` target tokens take in the cache."""
        read = len(self.reading.tokens)
        if length > read:
            return self._later[length - read - 1]
        return max(0, self.reading.ends[length - 1] - self._cut) if length else 0

    def _shortened(self) -> list[int]:
        """What was read, without its beginning where that is too much for the model; cut in steps, not every round."""
        ids = self.reading.ids
        excess = len(ids) - self._most
        self._cut = -(-excess // self._step) * self._step if excess > 0 else 0
        return ids[self._cut :]

    def _outside(self, scored: Scored, rows: list[int]) -> Scored:
        states = None if scored.hidden is None else scored.hidden[rows]
        return Scored(self.translation.outside(scored.logits[rows]), hidden=states)
