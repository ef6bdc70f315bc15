"""One model with one sequence and its key-value cache. Nothing else touches caches, masks or positions."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.decoding.types import Scored, Watch


class Unwatched:
    def forward(self, model: str, width: int, context: int) -> AbstractContextManager[None]:
        return nullcontext()


class Session:
    """Feed tokens, roll back, catch up. Invariant: the cache holds exactly `tokens`.

    Every layer caches the whole sequence, sliding-window layers too, so that any of them can roll back; the window is
    applied by the attention mask. `role` names the model in the watch's records; logits are cut to `vocabulary`.
    """

    def __init__(
        self, model: PreTrainedModel, role: str, watch: Watch | None = None, vocabulary: int | None = None
    ) -> None:
        self.model = model
        self.role = role
        self.device = model.device
        self.vocabulary = vocabulary or model.config.get_text_config().vocab_size
        self._watch: Watch = watch or Unwatched()
        self._cache = DynamicCache()
        self._tokens: list[int] = []
        self._fed: list[Tensor] = []  # fed from the device and not read back yet
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> list[int]:
        """The cached sequence. Reads ids back from the device where they were fed from there."""
        if self._fed:
            self._tokens += torch.cat(self._fed).tolist()
            self._fed.clear()
        return self._tokens

    def restart(self, prompt: Sequence[int]) -> Scored:
        """Forget everything and feed a prompt; logits of its last token only [1, V]."""
        self.truncate(0)
        return self.forward(prompt, keep=1)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int] | Tensor, keep: int = 0) -> Scored:
        """Feed a chain of n tokens and append them to the cache.

        `tokens` are host ids or a tensor [n] on the device. Returns logits [n, V], or the last `keep` rows of them.
        """
        ids = tokens if isinstance(tokens, Tensor) else torch.tensor(tokens, device=self.device)
        width = ids.shape[0]
        with self._watch.forward(self.role, width, self._length):
            logits = self.model(
                ids[None], past_key_values=self._cache, use_cache=True, logits_to_keep=keep, return_dict=True
            ).logits[0, :, : self.vocabulary]
        self._length += width
        if isinstance(tokens, Tensor):
            self._fed.append(tokens)
        else:
            self.tokens.extend(tokens)
        return Scored(logits)

    def catch_up(self, context: Sequence[int]) -> Scored:
        """Make the cache hold exactly `context`: roll back to what is common, feed the rest; logits [fed, V].

        The last token is fed anew if it is there already, since its logits are wanted.
        """
        shared = min(_common(self.tokens, context), len(context) - 1)
        self.truncate(shared)
        return self.forward(context[shared:])

    def truncate(self, length: int) -> None:
        """Roll the cache back to its first `length` tokens, in place, without reading anything from the device."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot truncate {self._length} cached tokens to {length}")
        if length == 0:
            self._cache = DynamicCache()
        elif length < self._length:
            self._cache.crop(length - self._length)
        known = len(self._tokens)
        self._fed = [torch.cat(self._fed)[: length - known]] if self._fed and length > known else []
        del self._tokens[length:]
        self._length = length


def _common(a: list[int], b: Sequence[int]) -> int:
    """The length of the common prefix, by bisection over slices (whose comparison is fast)."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
