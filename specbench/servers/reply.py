"""The answer of a server to one request, as it came: text, token ids, times, and what is said of rounds."""

from dataclasses import dataclass, field
from typing import Any


class Refusal(Exception):
    """Why a request has no answer, in one line; it becomes the sample's error."""


@dataclass(frozen=True)
class Chunk:
    """A part of the text, as one event of the stream brought it."""

    at: float  # seconds, on the client's clock
    text: str
    ids: tuple[int, ...] | None  # None: the engine does not tell them


@dataclass
class Reply:
    """One request and what came of it. Seconds are on the client's clock, whose zero is that of Unix time."""

    due: float  # when it should be sent
    sent: float = 0.0
    ended: float = 0.0  # when the last byte came, or the failure
    chunks: list[Chunk] = field(default_factory=list)  # those with text or tokens
    prompt_ids: list[int] | None = None  # as the engine read the prompt
    finish: str | None = None  # stop or length, as the engine says
    stop: int | str | None = None  # the stop string or the token that ended the text, if the engine names one
    usage: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)  # the events that brought more than text
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def ids(self) -> list[int] | None:
        """The tokens of the text; None if a part of it came without its own."""
        if not self.chunks or any(chunk.ids is None for chunk in self.chunks):
            return None
        return [token for chunk in self.chunks for token in chunk.ids or ()]

    @property
    def tokens(self) -> int | None:
        """The number of tokens, by their ids or the engine's count."""
        ids = self.ids
        return count(self.usage.get("completion_tokens")) if ids is None else len(ids)

    @property
    def first(self) -> float | None:
        """When the first token came."""
        return self.chunks[0].at if self.chunks else None


def count(value: object) -> int | None:
    """A count that a server told; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def counts(value: object) -> list[int] | None:
    """A list of counts that a server told; None for anything else."""
    if not isinstance(value, list) or len(value) > 10**6:
        return None
    numbers = [count(entry) for entry in value]
    return None if None in numbers else [number for number in numbers if number is not None]
