"""Consume a method's rounds until a text ends: at EOS, a stop string or the length limit, anywhere within a round."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.engine.session import Session
from specbench.engine.types import Learner, Method, Round, Sampling, Utility

Detokenize = Callable[[list[int]], str]


class Detokenizer:
    """Token ids to text, without special tokens or, as `whole`, with them; by default no token is special."""

    def __init__(self, decode: Detokenize, whole: Detokenize | None = None) -> None:
        self._decode = decode
        self.whole = whole or decode
        self._single: dict[int, str] = {}
        self._hidden: dict[int, bool] = {}

    def __call__(self, tokens: list[int]) -> str:
        return self._decode(tokens)

    def single(self, token: int) -> str:
        """The text of one token by itself, a special one too."""
        text = self._single.get(token)
        if text is None:
            text = self._single[token] = self.whole([token])
        return text

    def hides(self, token: int) -> bool:
        """True if a token is special: it has a text of its own that other texts do not show."""
        hidden = self._hidden.get(token)
        if hidden is None:
            hidden = self._hidden[token] = bool(self.single(token)) and not self._decode([token])
        return hidden


@dataclass(frozen=True)
class Limits:
    """What ends a text; empty stop strings are dropped."""

    max_new_tokens: int
    eos_ids: frozenset[int]
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stops", tuple(stop for stop in self.stops if stop))


class Ending:
    """Watches a growing text for its end.

    A round commits several tokens at once. The search for stop strings covers all of them, and as many earlier tokens
    as a stop string may span (every token is at least one byte). It reads the text with special tokens, as lm-eval
    does, and without them, as engines do: the first stop string in either ends the text.
    """

    def __init__(self, limits: Limits, detokenize: Detokenize) -> None:
        self.limits = limits
        self.detokenize = detokenize if isinstance(detokenize, Detokenizer) else Detokenizer(detokenize)
        self.reason = ""  # "eos", "stop" or "length" once the text has ended
        self.tokens: list[int] = []
        self._span = max((len(stop.encode()) for stop in limits.stops), default=0) + 4
        # The token that completes a stop string holds its last character. If that is ASCII, which no token splits, the
        # token's own text shows it; but not if it is a space, which some tokenizers drop from a single token's text.
        self._last_characters = {stop[-1] for stop in limits.stops}
        self._prefilter = all(last.isascii() and not last.isspace() for last in self._last_characters)

    def keep(self, tokens: Sequence[int]) -> int:
        """Append newly committed tokens, in place, up to the end of the text; returns how many belong to it.

        Sets `reason` if the text has ended.
        """
        start = len(self.tokens)
        room = self.limits.max_new_tokens - start
        keep = min(len(tokens), room)
        if len(tokens) >= room:
            self.reason = "length"
        for count, token in enumerate(tokens[:keep], 1):
            if token in self.limits.eos_ids:
                keep, self.reason = count, "eos"
                break
        self.tokens += tokens[:keep]
        if self.limits.stops and (end := self._stop_end(start)):
            self.reason = "stop"
            del self.tokens[end:]
            return end - start
        return keep

    def _stop_end(self, start: int) -> int | None:
        """The number of tokens up to the end of the first stop string; None if there is no stop string."""
        if self._prefilter and not any(
            last in self.detokenize.single(token) for token in self.tokens[start:] for last in self._last_characters
        ):
            return None
        before_eos = len(self.tokens) - (self.reason == "eos")
        if not self._stopped(self.tokens[self._window(start) : before_eos]):
            return None
        return next((end for end in range(start + 1, before_eos + 1) if self._stopped(self.tokens[:end])), None)

    def _window(self, start: int) -> int:
        """The first token of the last ones before `start` that a stop string may span; special ones do not count."""
        left = self._span
        while start and left:
            start -= 1
            left -= not self.detokenize.hides(self.tokens[start])
        return start

    def _stopped(self, tokens: list[int]) -> bool:
        texts = [self.detokenize.whole(tokens)]
        if any(map(self.detokenize.hides, tokens)):
            texts.append(self.detokenize(tokens))
        return any(stop in text for text in texts for stop in self.limits.stops)

    def text(self) -> str:
        """The text so far, without EOS and special tokens, and cut before the first stop string."""
        text = self.detokenize([token for token in self.tokens if token not in self.limits.eos_ids])
        for stop in self.limits.stops:
            text = text.split(stop)[0]
        return text


def until_end(rounds: Iterable[Round], ending: Ending) -> Iterator[Round]:
    """The rounds of one text; the last one is cut where the text ends."""
    for step in rounds:
        yield step.cut(ending.keep(step.tokens))
        if ending.reason:
            return


def decode_text(
    method: Method, prompt: list[int], sampling: Sampling, rng: torch.Generator, ending: Ending
) -> Iterator[Round]:
    """The rounds of one text by a method; the last one is cut where the text ends, and a learner is shown the cut."""
    for step in until_end(method.rounds(prompt, sampling, rng), ending):
        if ending.reason and isinstance(method, Learner):
            method.ended(step)
        yield step


def finish(session: Session, logits: Tensor, ending: Ending) -> None:
    """Decode greedily until the text ends, in place; `logits` [V] predict the next token."""
    while not ending.reason:
        token = int(logits.argmax(-1))
        ending.keep([token])
        if not ending.reason:
            logits = session.forward([token]).logits[-1]


def worth(target: Session, begin: Callable[[], Ending], score: Callable[[str], float]) -> Utility:
    """The worth of an unfinished answer to one document: the target finishes it greedily, and `score` scores the whole.

    `begin` makes the ending of an empty answer. Feeds `target`, in place.
    """

    def utility(prompt: Sequence[int], answer: Sequence[int]) -> float:
        ending = begin()
        ending.keep(answer)
        if not ending.reason:
            finish(target, target.catch_up([*prompt, *answer]).logits[-1], ending)
        return score(ending.text())

    return utility
