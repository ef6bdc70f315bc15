"""A session for a model with another tokenizer, which is fed the target's tokens."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import Session, common, positions
from specbench.engine.translate import Reading, Translation
from specbench.engine.types import Scored, Watch


class Translated(Session):
    """Target ids outside, the model's own ids inside, where an inner session holds the cache.

    `catch_up` reads the text as the model's tokenizer encodes it; `forward` translates token by token. The logits of a
    target token are those after the last of the model's tokens for it, over the target's vocabulary, -inf for tokens
    that the model lacks. Lengths count target tokens; the watch sees the model's. A text longer than the model's
    positions loses its beginning.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        role: str,
        watch: Watch | None,
        translation: Translation,
        runtime: Runtime = EAGER,
        home: torch.device | None = None,
    ) -> None:
        super().__init__(model, role, watch, translation.size, home=home)
        self.translation = translation
        self.inner = Session(model, role, watch, runtime=runtime, home=home)
        self.reading = Reading(translation)
        self._fed_ends: list[int] = []  # the inner length after each token that was fed after the last reading
        self._cut = 0  # how many of the model's tokens were lost at the beginning
        most = positions(model)
        self._most, self._step = most - most // 8, max(1, most // 4)

    def __len__(self) -> int:
        return len(self.reading.tokens) + len(self._fed_ends)

    @property
    def tokens(self) -> list[int]:
        raise ValueError("of a translated sequence only the model's own tokens are kept")

    def restart(self, prompt: Sequence[int], keep: int = 1, hidden: Sequence[int] = ()) -> Scored:
        """As in `Session`, but always of the last token alone."""
        self.truncate(0)
        self.reading.read(prompt, 0)
        return self._outside(self.inner.restart(self._shortened()), [0])

    def catch_up(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored:
        """As in `Session`; a row of logits for each target token that was not cached before."""
        text = self.reading.tokens
        shared = common(text, context)
        cached = min(len(self) if shared == len(text) else shared, len(context) - 1)
        scored = self.read(context, hidden)
        first = len(self.inner) - scored.logits.shape[0]
        return self._outside(scored, [max(end - self._cut - first, 1) - 1 for end in self.reading.ends[cached:]])

    def read(self, context: Sequence[int], hidden: Sequence[int] = ()) -> Scored:
        """As `catch_up`, but what the model says over its own vocabulary, after each of its own tokens that it read."""
        self.reading.read(context, common(self.reading.tokens, context))
        self._fed_ends.clear()
        return self.inner.catch_up(self._shortened(), hidden)

    def forward(
        self,
        tokens: Sequence[int] | Tensor,
        keep: int = 0,
        parents: Sequence[int] | Tensor | None = None,
        hidden: Sequence[int] = (),
        features: Tensor | None = None,
        together: int = 0,
    ) -> Scored:
        """As in `Session`. Tokens [n] on the device were proposed by the model, so each is one of its own tokens.

        Raises ValueError for `together`: an arbitrator has the target's tokenizer.
        """
        if together:
            raise ValueError("tokens of a translated sequence are read in order only")
        translation, length = self.translation, self._inner_length(len(self))
        if isinstance(tokens, Tensor):
            scored = self.inner.forward(translation.inside(tokens), keep, parents, hidden, features)
            self._fed_ends += range(length + 1, length + 1 + tokens.shape[0])
            return Scored(translation.outside(scored.logits), hidden=scored.hidden)
        keep = min(keep, len(tokens))
        # In a tree each token becomes one of the model's, so that the indices in `parents` stay right.
        spelled = [translation.spell(token) if parents is None else translation.spell(token)[-1:] for token in tokens]
        ends = list(accumulate(map(len, spelled)))
        first = ends[-keep] - len(spelled[-keep]) if keep else 0
        ids = [i for token_ids in spelled for i in token_ids]
        scored = self.inner.forward(ids, len(ids) - first if keep else 0, parents, hidden, features)
        self._fed_ends += [length + end for end in ends]
        logits = scored.logits[[end - 1 - first for end in ends[-keep:]]]
        states = None if scored.hidden is None else scored.hidden[[end - 1 for end in ends]]
        return Scored(translation.outside(logits), hidden=states)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self):
            raise ValueError(f"cannot truncate {len(self)} cached tokens to {length}")
        self.inner.truncate(self._inner_length(length) if length else 0)
        del self._fed_ends[max(0, length - len(self.reading.tokens)) :]
        if not length:
            self.reading = Reading(self.translation)
            self._cut = 0
        elif length < len(self.reading.tokens):
            self.reading.read(self.reading.tokens[:length], length)

    def keep(self, start: int, path: Sequence[int]) -> None:
        length = self._inner_length(start)
        self.inner.keep(length, path)
        read = len(self.reading.tokens)
        self._fed_ends[start - read :] = range(length + 1, length + 1 + len(path))

    def _inner_length(self, length: int) -> int:
        """How many of the model's tokens the first `length` target tokens take in the cache."""
        read = len(self.reading.tokens)
        if length > read:
            return self._fed_ends[length - read - 1]
        return max(0, self.reading.ends[length - 1] - self._cut) if length else 0

    def _shortened(self) -> list[int]:
        """The model's ids of the reading, without the beginning if they are too many; cut in steps, not every round."""
        ids = self.reading.ids
        excess = len(ids) - self._most
        self._cut = -(-excess // self._step) * self._step if excess > 0 else 0
        return ids[self._cut :]

    def _outside(self, scored: Scored, rows: list[int]) -> Scored:
        states = None if scored.hidden is None else scored.hidden[rows]
        return Scored(self.translation.outside(scored.logits[rows]), hidden=states)
