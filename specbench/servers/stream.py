"""A stream of server-sent events, from bytes to the parts of a reply. Nothing in it is trusted."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specbench.base.ends import end_of
from specbench.base.untrusted import brief
from specbench.servers.reply import OTHER, TEXT, THOUGHT, Chunk, Refusal, Reply, counts

MOST_EVENT = 16 * 2**20  # bytes of an event
MOST_BYTES = 64 * 2**20  # of a stream
MOST_TOLD = 1000  # names of what is sent next to the text
DEEPEST = 6  # levels of objects that are read there
ENDS = ("stop", "length")
HEAD = 4096  # bytes that are kept of an answer that is no stream
DONE = "[DONE]"
MARK = b"\xef\xbb\xbf"  # a byte order mark, which a stream may begin with
# Lines of an event that say nothing, before its first data and later: one may pass over fields that one does not know.
FIELD = re.compile(rb"(event|id|retry):"), re.compile(rb"[a-z_-]+:")
# What events of OpenAI's protocol hold; anything else is `told`.
USUAL = frozenset(("id", "object", "created", "model", "choices", "system_fingerprint", "service_tier", "error"))
USUAL_CHOICE = frozenset(("index", "text", "delta", "message", "logprobs", "finish_reason", "stop_reason"))
USUAL_CHOICE |= {"matched_stop", "token_ids", "tokens", "prompt_token_ids", "prompt_logprobs", "error"}
USUAL_CHOICE |= {"reasoning", "reasoning_content"}
# Keys of a delta that cost no tokens; any other that holds something does.
FREE = frozenset(("role", "name", "id", "token_ids", "tokens"))
THOUGHTS = frozenset(("reasoning_content", "reasoning", "thinking", "thought", "reasoning_text", "reasoning_details"))


class Events:
    """Cuts bytes into the data of events, however they are cut on the way."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0
        self._begun = False  # an event has come
        self.head = b""  # the beginning of what belongs to no event

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
            line = line if self._begun else line.removeprefix(MARK)
            if line.startswith(b"data:"):
                self._begun = True
                yield _decoded(line.removeprefix(b"data:"))
            elif line.startswith(b"error:"):  # as older servers of llama.cpp send it
                raise Refusal(f"the server reports an error: {words_of(_decoded(line.removeprefix(b'error:')))}")
            elif line.strip() and not line.startswith(b":") and not FIELD[self._begun].match(line):
                self._keep(line + b"\n")

    def end(self) -> str:
        """What came that was no event: an answer that is no stream, or lines that its events hide."""
        self._keep(self._rest)
        return self.head.decode(errors="replace").strip()

    def _keep(self, line: bytes) -> None:
        self.head += line[: HEAD - len(self.head)]


class StreamReader:
    """Adds the events of one stream to a reply, in place."""

    def __init__(self, reply: Reply, model: str, clean: Callable[[str], str] = str) -> None:
        self.reply, self.model = reply, model
        self.done = False  # the end was announced
        self._clean = clean  # takes out what must not be stored
        self._words = ""  # on a failed end

    def add(self, data: str, at: float) -> bool:
        """Take up the data of one event that came at a time; true if it brought tokens or the end of the text.

        Raises Refusal for what no server may send.
        """
        if data == DONE:
            self.done = True
            return True
        if self.done:
            raise Refusal("invalid answer: an event after the end of the stream")
        try:
            event = json.loads(self._clean(data))
        except (ValueError, RecursionError) as error:
            raise Refusal(f"invalid answer: an event is not JSON ({brief(error)})") from None
        if not isinstance(event, dict):
            raise Refusal("invalid answer: an event is not a JSON object")
        if is_error(event):
            raise Refusal(f"the server reports an error: {message_of(event)}")
        if isinstance(event.get("model"), str) and event["model"].partition("@")[0] != self.model.partition("@")[0]:
            raise Refusal(f"the answer is of another model: {brief(event['model'])!r}, not {self.model!r}")
        if isinstance(event.get("usage"), dict):
            self.reply.usage = event["usage"]
        choices = event.get("choices") or []
        if not isinstance(choices, list) or len(choices) > 1 or not all(isinstance(c, dict) for c in choices):
            raise Refusal("invalid answer: an event has choices of another form")
        if more := event.keys() - USUAL:
            self._tell({key: event[key] for key in more})
        before = len(self.reply.chunks), self.reply.finish
        for choice in choices:
            if more := choice.keys() - USUAL_CHOICE:
                self._tell({key: choice[key] for key in more})
            self._choice(choice, at)
        return before != (len(self.reply.chunks), self.reply.finish)

    def _choice(self, choice: dict[str, Any], at: float) -> None:
        if choice.get("index") not in (None, 0):
            raise Refusal(
                f"invalid answer: one text was asked for, and a part is of another (index {brief(choice['index'])})"
            )
        delta = choice.get("delta")
        parts = delta if isinstance(delta, dict) else {"content": choice.get("text")} | _thoughts(choice)
        ids = counts(choice.get("token_ids")) if choice.get("token_ids") is not None else counts(choice.get("tokens"))
        kinds, text = self._kinds(parts)
        if kinds or ids:
            if self.reply.finish in ENDS:
                raise Refusal("invalid answer: a part of the text comes after its end")
            kind = next(iter(kinds)) if len(kinds) == 1 else OTHER if kinds else TEXT
            self.reply.chunks.append(Chunk(at, text, None if ids is None else tuple(ids), kind))
        if choice.get("prompt_token_ids") is not None:
            self.reply.prompt_ids = counts(choice["prompt_token_ids"])
        if choice.get("error"):
            self._words = message_of(choice)
        if (reason := choice.get("finish_reason")) is not None:
            reason = reason.get("type") if isinstance(reason, dict) else reason
            self.reply.finish = end_of(str(reason)) or brief(reason)
            stop = choice.get("stop_reason") if choice.get("stop_reason") is not None else choice.get("matched_stop")
            self.reply.stop = stop if isinstance(stop, int | str) else None

    def _kinds(self, parts: Mapping[str, Any]) -> tuple[set[str], str]:
        """What the parts of one delta are, and the text of the answer in it. Raises Refusal for a text that is none."""
        kinds, text = set(), ""
        for key, value in parts.items():
            if key == "content" and not isinstance(value, list):
                if not isinstance(value, str | None):
                    raise Refusal("invalid answer: a part of the text is no text")
                kinds |= {TEXT} if value else set()
                text += _unicode(value or "")
            elif key == "content":  # Mistral's: thoughts and texts in a list
                for entry in filter(_holds, value):
                    said = entry.get("text") if isinstance(entry, dict) and entry.get("type") == "text" else None
                    kinds.add(TEXT if isinstance(said, str) else THOUGHT)
                    text += _unicode(said) if isinstance(said, str) else ""
            elif key not in FREE and _holds(value):
                kinds.add(THOUGHT if key in THOUGHTS else OTHER)
        return kinds, text

    def _tell(self, values: Mapping[str, Any], before: str = "", depth: int = 0) -> None:
        """Keep what an event holds next to the text, by dotted name."""
        for key, value in values.items():
            name = f"{before}{key}"
            if isinstance(value, dict) and depth < DEEPEST:
                self._tell(value, f"{name}.", depth + 1)
            elif value is not None and (name in self.reply.told or len(self.reply.told) < MOST_TOLD):
                self.reply.told[name] = value

    def end(self, rest: str = "") -> None:
        """Check that the stream came to its end; `rest` is what came that was no event. Raises Refusal if it did not.

        Any end but those that are known is a failure of the server, in its own word.
        """
        if self.reply.finish in ENDS and not rest:
            return
        if rest and self.reply.chunks:
            raise Refusal(f"invalid answer: a line of the stream is no event: {words_of(self._clean(rest))}")
        if self.reply.finish is not None:
            words = f": {self._words}" if self._words else ""
            more = f" ({brief(self.reply.stop)})" if isinstance(self.reply.stop, str) else ""
            raise Refusal(f"the server ended the text by {self.reply.finish!r}{more}{words}")
        if rest and not self.reply.chunks:
            raise Refusal(f"the server answered without a stream: {words_of(self._clean(rest))}")
        raise Refusal(f"the stream was cut after {len(self.reply.chunks)} parts: no reason for the end was given")


def is_error(event: Mapping[str, Any]) -> bool:
    """True if an object reports an error, in the form of OpenAI or of FastAPI."""
    error = event.get("error")
    if error is not None and error is not False and error != "":
        return True
    return "choices" not in event and (event.get("object") == "error" or bool(event.keys() & {"detail", "message"}))


def message_of(values: Any) -> str:
    """What an error says, in one line: its message, whatever holds it."""
    for _ in range(DEEPEST):
        if not isinstance(values, dict):
            break
        inner = next((values[key] for key in ("error", "message", "detail", "msg") if values.get(key)), None)
        if inner is None:
            break
        values = inner
    try:
        return _unicode(brief(values), "?")
    except RecursionError:
        return "an error that is nested too deeply to print"


def words_of(text: str) -> str:
    """What an answer that is an error says: the message of its JSON, or its beginning."""
    try:
        return message_of(json.loads(text))
    except (ValueError, RecursionError):
        return brief(text) if text.strip() else "no message"


def _thoughts(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {key: choice[key] for key in ("reasoning", "reasoning_content") if key in choice}


def _holds(value: Any, depth: int = 0) -> bool:
    """True if a value of a delta holds any text, within objects and lists too; what is nested deeper counts as one."""
    if isinstance(value, dict | list) and depth > DEEPEST:
        return bool(value)
    if isinstance(value, dict):
        return any(_holds(inner, depth + 1) for key, inner in value.items() if key not in ("type", "index"))
    if isinstance(value, list):
        return any(_holds(inner, depth + 1) for inner in value)
    return isinstance(value, str) and value != ""


def _decoded(data: bytes) -> str:
    try:
        return data.strip().decode()
    except UnicodeDecodeError:
        raise Refusal("invalid answer: an event is no text in UTF-8") from None


def _unicode(text: str, instead: str = "") -> str:
    """A text that UTF-8 can hold: JSON may name halves of characters. Raises Refusal unless `instead` replaces them."""
    if text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    if not instead:
        raise Refusal("invalid answer: a part of the text has half a character (an unpaired surrogate)")
    return "".join(instead if "\ud800" <= character <= "\udfff" else character for character in text)
