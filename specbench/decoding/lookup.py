"""Prompt lookup: what followed the end of a text where it stood before. The host's work alone, without a model."""

from collections.abc import Callable, Iterable, Sequence

import torch

from specbench.decoding.lengths import Lengths
from specbench.decoding.ngrams import Ngram
from specbench.decoding.types import Draft, Sampling


class Index:
    """N-grams of a growing text, of `shortest` to `longest` tokens, and where what followed them begins.

    Only n-grams that `ahead` tokens follow are known, and so none that the text ends with. Of several places with the
    same one the first counts, or the `latest`. A token adds at most one entry of each length, and the text itself is
    never searched: both a token and a look-up cost the same however long it is.
    """

    def __init__(self, longest: int, shortest: int, ahead: int, latest: bool) -> None:
        self.longest, self.shortest, self.ahead, self.latest = longest, shortest, ahead, latest
        self.tokens: list[int] = []
        self._continued: dict[Ngram, int] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, in place."""
        text, known = self.tokens, self._continued
        for token in tokens:
            text.append(token)
            start = len(text) - self.ahead  # behind the n-grams that are followed by enough from now on
            for n in range(self.shortest, min(self.longest, start) + 1):
                ngram = tuple(text[start - n : start])
                if self.latest or ngram not in known:
                    known[ngram] = start

    def find(self, text: Sequence[int]) -> int | None:
        """Where in the indexed text the continuation begins of the longest n-gram that `text` ends with, if any."""
        for n in range(min(self.longest, len(text)), self.shortest - 1, -1):
            start = self._continued.get(tuple(text[len(text) - n :]))
            if start is not None:
                return start
        return None


class Lookup:
    """Drafts what followed the end of the text where it stood before; on a miss nothing, or the last draft again.

    `index` makes an empty index. Committed text only grows, so each token is indexed once.
    """

    def __init__(self, index: Callable[[], Index], reuse: bool, device: torch.device) -> None:
        self.new_index, self.reuse, self.device = index, reuse, device
        self.lengths = Lengths()

    def begin(self, prompt: list[int]) -> None:
        self.index = self.new_index()
        self.found: list[int] = []
        self.index.extend(prompt)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A chain of at most γ tokens, point masses at any temperature; maybe an empty one."""
        index = self.index
        index.extend(context[len(index.tokens) :])
        start = index.find(index.tokens[-index.longest :])
        if start is not None:
            self.found = index.tokens[start : start + gamma]
        elif not self.reuse:
            self.found = []
        return Draft(torch.tensor(self.found, dtype=torch.long, device=self.device), None)
