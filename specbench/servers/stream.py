"""A stream of server-sent events, from bytes to the parts of a reply. Nothing in it is trusted."""

import json
from collections.abc import Iterator
from typing import Any

from specbench.base.untrusted import brief
from specbench.servers.reply import Chunk, Refusal, Reply, counts

MOST_EVENT = 16 * 2**20  # bytes of an event
MOST_BYTES = 64 * 2**20  # of a stream
DONE = "[DONE]"
KEPT = ("metrics", "meta_info", "sglext", "timings")  # keys of events that say more than text


class Events:
    """Cuts bytes into the data of events, however they are cut on the way."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The data of the events that these bytes complete. Raises Refusal for what is too long or no text."""
        self._size += len(data)
        self._rest += data
        if self._size > MOST_BYTES or len(self._rest) > MOST_EVENT:
            raise Refusal(
                f"the answer, or a line of it, has more than {MOST_EVENT // 2**20} MiB; is it a stream of texts?"
            )
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                try:
                    yield line.removeprefix(b"data:").strip().decode()
                except UnicodeDecodeError:
                    raise Refusal("invalid answer: an event is no text in UTF-8") from None


class Reader:
    """Adds the events of one stream to a reply, in place."""

    def __init__(self, reply: Reply, model: str) -> None:
        self.reply, self.model = reply, model
        self.done = False  # the end was announced

    def add(self, data: str, at: float) -> None:
        """Take up the data of one event that came at a time. Raises Refusal for what no server may send."""
        if data == DONE:
            self.done = True
            return
        try:
            event = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"invalid answer: an event is not JSON ({brief(error)})") from None
        if not isinstance(event, dict):
            raise Refusal("invalid answer: an event is not a JSON object")
        if event.get("error"):
            raise Refusal(f"the server reports an error: {brief(_message(event['error']))}")
        if isinstance(event.get("model"), str) and event["model"].partition("@")[0] != self.model.partition("@")[0]:
            raise Refusal(f"the answer is of another model: {brief(event['model'])!r}, not {self.model!r}")
        if isinstance(event.get("usage"), dict):
            self.reply.usage = event["usage"]
        choices = event.get("choices") or []
        if not isinstance(choices, list) or len(choices) > 1 or not all(isinstance(c, dict) for c in choices):
            raise Refusal("invalid answer: an event has choices of another form")
        if any(isinstance(part.get(key), dict) for part in (event, *choices) for key in KEPT):
            self.reply.events.append(event)
        for choice in choices:
            self._choice(choice, at)

    def _choice(self, choice: dict[str, Any], at: float) -> None:
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        ids = counts(choice.get("token_ids")) if choice.get("token_ids") is not None else counts(choice.get("tokens"))
        if text is not None and not isinstance(text, str):
            raise Refusal("invalid answer: a part of the text is no text")
        if text or ids:
            self.reply.chunks.append(Chunk(at, text or "", None if ids is None else tuple(ids)))
        if choice.get("prompt_token_ids") is not None:
            self.reply.prompt_ids = counts(choice["prompt_token_ids"])
        if choice.get("finish_reason") is not None:
            self.reply.finish = str(choice["finish_reason"])
            self.reply.stop = choice.get("stop_reason")

    def end(self) -> None:
        """Check that the stream came to its end. Raises Refusal if it was cut."""
        if self.reply.finish is None:
            raise Refusal(f"the stream was cut after {len(self.reply.chunks)} parts: no reason for the end was given")


def _message(error: object) -> object:
    return error.get("message") or error if isinstance(error, dict) else error
