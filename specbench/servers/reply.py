"""The answer of a server to one request, as it came: text, token ids, times, and what is said of rounds."""

from dataclasses import dataclass, field
from typing import Any

TEXT, THOUGHT, OTHER = "text", "thought", "other"  # what a part of an answer is


class Refusal(Exception):
    """Why a request has no answer, in one line; it becomes the sample's error."""


@dataclass(frozen=True)
class Chunk:
    """A part of the answer, as one event of the stream brought it."""

    at: float  # seconds, on the client's clock
    text: str  # of the answer; empty for thoughts and tool calls
    ids: tuple[int, ...] | None  # None: the engine does not tell them
    kind: str = TEXT  # TEXT, THOUGHT, or OTHER: a tool call, a refusal, or several of these in one event


@dataclass
class Reply:
    """One request and what came of it. Seconds are on the client's clock, whose zero is that of Unix time."""

    due: float  # when it should be sent
    sent: float = 0.0
    ended: float = 0.0  # when the last byte came, or the failure
    chunks: list[Chunk] = field(default_factory=list)  # those that cost tokens
    prompt_ids: list[int] | None = None  # as the engine read the prompt
    finish: str | None = None  # stop or length; the engine's own word for any other end
    stop: int | str | None = None  # the stop string or the token that ended the text, if the engine names one
    usage: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)  # all else that its events held last, by dotted name
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def ids(self) -> list[int] | None:
        """The tokens of the answer, thoughts included; None if a part of it came without its own."""
        if not self.chunks or any(chunk.ids is None for chunk in self.chunks):
            return None
        return [token for chunk in self.chunks for token in chunk.ids or ()]

    @property
    def tokens(self) -> int | None:
        """The number of tokens, thoughts included, by their ids or the engine's count."""
        ids = self.ids
        return count(self.usage.get("completion_tokens")) if ids is None else len(ids)

    @property
    def thought_tokens(self) -> int | None:
        """How many of the tokens were thoughts: the engine's count, by ids, or by parts of one token each.

        None if the parts do not tell.
        """
        details = self.usage.get("completion_tokens_details")
        counted = count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        thoughts = [chunk for chunk in self.chunks if chunk.kind == THOUGHT]
        if counted or not any(chunk.kind != TEXT for chunk in self.chunks):
            return counted or 0
        if any(chunk.kind == OTHER for chunk in self.chunks):
            return None
        if all(chunk.ids is not None for chunk in thoughts):
            return sum(len(chunk.ids or ()) for chunk in thoughts)
        return len(thoughts) if self.tokens == len(self.chunks) else None

    @property
    def hidden(self) -> bool:
        """True if tokens were thought and none of them was sent: no part of the stream shows when they came."""
        return bool(self.thought_tokens) and all(chunk.kind == TEXT for chunk in self.chunks)

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
