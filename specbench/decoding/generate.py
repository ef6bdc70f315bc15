"""Consume a method's rounds until a text ends: EOS, a stop string or the length limit, wherever in a round it falls."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from specbench.decoding.session import Session
from specbench.decoding.types import Round

Detokenize = Callable[[list[int]], str]


class Detokenizer:
    """Token ids to text. Remembers what each token is by itself."""

    def __init__(self, decode: Detokenize) -> None:
        self._decode = decode
        self._alone: dict[int, str] = {}

    def __call__(self, tokens: list[int]) -> str:
        return self._decode(tokens)

    def alone(self, token: int) -> str:
        known = self._alone.get(token)
        if known is None:
            known = self._alone[token] = self._decode([token])
        return known


@dataclass(frozen=True)
class Limits:
    max_new_tokens: int
    eos_ids: frozenset[int]
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stops", tuple(stop for stop in self.stops if stop))


class Ending:
    """Watches a growing text for its end.

    Several tokens are committed at once, so the whole of them is looked at, and with them as many earlier tokens as a
    stop string may span (every token is at least one byte).
    """

    def __init__(self, limits: Limits, detokenize: Detokenize) -> None:
        self.limits = limits
        self.detokenize = detokenize if isinstance(detokenize, Detokenizer) else Detokenizer(detokenize)
        self.reason = ""  # "eos", "stop" or "length" once ended
        self.tokens: list[int] = []
        self._span = max((len(stop.encode()) for stop in limits.stops), default=0) + 4
        # A stop string ends in a token that brings its last character. Of ASCII, which no token has a part of, that can
        # be seen in the token alone, but for blanks, which some tokenizers drop there.
        self._lasts = {stop[-1] for stop in limits.stops}
        self._telling = all(last.isascii() and not last.isspace() for last in self._lasts)

    def keep(self, tokens: Sequence[int]) -> int:
        """Append newly committed tokens; returns how many of them belong to the text. Sets `reason` at its end."""
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
        """The number of tokens with which the first stop string is complete, or None."""
        if self._telling and not any(
            last in self.detokenize.alone(token) for token in self.tokens[start:] for last in self._lasts
        ):
            return None
        window = max(0, start - self._span)
        if not self._stopped(self.detokenize(self.tokens[window:])):
            return None
        for end in range(start + 1, len(self.tokens) + 1):
            if self._stopped(self.detokenize(self.tokens[:end])):
                return end
        return None

    def _stopped(self, text: str) -> bool:
        return any(stop in text for stop in self.limits.stops)

    def text(self) -> str:
        """The text so far, without EOS and from the first stop string on cut off."""
        text = self.detokenize([token for token in self.tokens if token not in self.limits.eos_ids])
        for stop in self.limits.stops:
            text = text.split(stop)[0]
        return text


def until_end(rounds: Iterable[Round], ending: Ending) -> Iterator[Round]:
    """The rounds of one text; the last one is cut where the text ends."""
    for one in rounds:
        yield one.cut(ending.keep(one.tokens))
        if ending.reason:
            return


def finish(session: Session, logits: Tensor, ending: Ending) -> None:
    """Go on greedily until the text ends, in place; `logits` [V] predict the next token."""
    while not ending.reason:
        token = int(logits.argmax(-1))
        ending.keep([token])
        if not ending.reason:
            logits = session.forward([token]).logits[-1]
