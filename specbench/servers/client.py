"""A client for one server: it sends a request, times each part of the answer, and turns every failure into one line.

It contacts the server's own address and nothing else: redirects are refused, and proxies of the environment not used.
"""

import asyncio
import contextlib
import json
import os
import re
import time
from typing import Any, cast

import aiohttp

from specbench.base.console import warn
from specbench.base.errors import UserError
from specbench.base.untrusted import brief
from specbench.config.servers import ServerSettings
from specbench.engine.clock import now
from specbench.servers.adapters import Counters, parse_counters, unknown_fields
from specbench.servers.engines import ENGINES, Engine, detected
from specbench.servers.reply import Refusal, Reply, count
from specbench.servers.stream import Events, StreamReader
from specbench.servers.wire import CONNECT, Declined, Unanswered, Wire, drain

IDLE = 2.0  # seconds that an unused connection is kept: servers close theirs after five or more
SLACK = 0.5  # seconds more for bytes without tokens than for silence, which is then told as such
MASK = "(the API key)"
WHOLE = 30  # times the `timeout` that a whole answer may take, if `deadline` says nothing else
# Token ids, a text, or messages (`role`, `content`) for a chat endpoint.
Prompt = list[int] | str | list[dict[str, str]]
ZERO = time.time() - now()  # of the clock, in Unix time


def clock() -> float:
    """Seconds of Unix time that never jump."""
    return ZERO + now()


class Client:
    """Talks to one server, within a running event loop. Use it by `async with`.

    Raises UserError, when it is made, if the environment lacks the API key.
    """

    def __init__(self, name: str, settings: ServerSettings) -> None:
        self.name, self.settings = name, settings
        self.engine: Engine = ENGINES[settings.engine if settings.engine != "auto" else "generic"]
        self.model: str | None = None  # known once `meet` has succeeded
        self.facts: dict[str, Any] = {}  # what the server told of itself
        self.tells = False  # an answer of it has said something of its rounds
        self._named: set[str] = set()  # fields of answers that were named, since no table knows them
        self._key = _key(name, settings)
        escaped = (rf"(?:\\?{re.escape(letter)}|\\u00(?i:{ord(letter):02x}))" for letter in self._key)
        self._escaped = re.compile("".join(escaped))
        self._wire = Wire(name, settings.url, self._clean)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Client":
        self._session = self._opened()
        return self

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session
        return self._session

    def _opened(self) -> aiohttp.ClientSession:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE)
        return aiohttp.ClientSession(connector=connector, headers=headers, trust_env=False, auto_decompress=True)

    async def __aexit__(self, *exception: object) -> None:
        if self._session:
            await self._session.close()

    async def meet(self) -> None:
        """Learn the server's engine, model and settings, once. Raises Refusal if it cannot be used."""
        if self.model is None:
            try:
                await self._meet()
            except Refusal as refusal:
                raise type(refusal)(self._clean(str(refusal))) from None

    async def _meet(self) -> None:
        answer = None
        try:
            answer = await self._told("/v1/models")
        except Declined:  # not every server lists its models; one that is named need not be on a list
            if self.settings.model is None:
                raise
        entries = answer.get("data") if isinstance(answer, dict) else None
        listed = entries if isinstance(entries, list) else []
        models = [entry for entry in listed if isinstance(entry, dict) and _is_name(entry.get("id"))]
        if not models and self.settings.model:
            models = [{"id": self.settings.model}]
        names = [str(entry["id"]) for entry in models]
        if not names:
            raise Refusal(
                f"{self.settings.url}/v1/models names no model; if this is a server of OpenAI's protocol, name its "
                f"model: --set {self.name}.model=NAME"
            )
        wanted = self.settings.model or names[0]
        roots = {str(entry.get("root", entry["id"])) for entry in models}  # names of one model have one root
        if self.settings.model is None and len(roots) > 1:
            raise Refusal(f"it serves {brief(', '.join(names))}; choose one: --set {self.name}.model=NAME")
        if wanted not in names:
            raise Refusal(f"it does not serve {wanted!r}, only {brief(', '.join(names))}")
        entry = models[names.index(wanted)]
        if self.settings.engine == "auto":
            self.engine = detected(str(entry.get("owned_by", "")))
        facts = {"engine": self.engine.name, "model": wanted, "context": count(entry.get("max_model_len"))}
        for path, read in self.engine.facts.items():
            with contextlib.suppress(Refusal, ValueError, RecursionError):  # not every server tells it
                facts |= read(await self._wire.text(self._open, path))
        self.facts |= json.loads(self._clean(json.dumps(facts, ensure_ascii=False)))
        self.model = wanted

    async def touch(self) -> None:
        """Open a connection, so that no answer is timed with it."""
        with contextlib.suppress(Refusal):
            await self.meet()
            await self._wire.text(self._open, "/v1/models")

    async def complete(self, prompt: Prompt, options: dict[str, Any], due: float) -> Reply:
        """Send one request and read its answer. Whatever goes wrong is the reply's `error`."""
        reply = Reply(due, sent=clock())
        try:
            await self.meet()
            try:
                await self._stream(reply, prompt, options)
            except Unanswered:  # once more, on a new connection: others that are kept may be closed, too
                async with self._opened() as fresh:
                    await self._stream(reply, prompt, options, fresh)
            if self._key and (self._key in reply.text or self._key in repr(reply.told)):
                raise Refusal("the server's answer repeats the API key")
            self._name_unknown(reply)
        except Refusal as refusal:
            reply.error = self._clean(str(refusal))
        reply.ended = reply.ended or clock()
        return reply

    def _name_unknown(self, reply: Reply) -> None:
        """Say once in a run which fields of an answer may tell of rounds and are not read."""
        if new := unknown_fields(self.engine, reply) - self._named:
            self._named |= new
            hint = "; name its engine (engine: vllm, sglang, llamacpp or trtllm)" * (self.engine.name == "generic")
            warn(f"server {self.name} tells {brief(', '.join(sorted(new)))}, which specbench does not read{hint}")

    def body(self, prompt: Prompt, options: dict[str, Any]) -> dict[str, Any]:
        """The JSON of a request."""
        text = {"messages": self._messages(prompt)} if self.chat else {"prompt": prompt}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        whole = {"model": self.model, **text, **options, **stream, **self.engine.asks, **self.settings.body}
        return {name: value for name, value in whole.items() if name not in self.settings.leave_out}

    def _messages(self, prompt: Prompt) -> list[dict[str, str]]:
        """The messages of a chat request; the server's system prompt is before those that bring none of their own."""
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        spoken = cast(list[dict[str, str]], asked)
        own = self.settings.system is None or any(message["role"] == "system" for message in spoken)
        return spoken if own else [{"role": "system", "content": str(self.settings.system)}, *spoken]

    @property
    def chat(self) -> bool:
        return self.settings.api == "chat"

    async def counters(self) -> Counters | None:
        """The server's counters of rounds; None if it has none that can be read."""
        if not self.engine.counters:
            return None
        try:
            return parse_counters(self.engine, await self._wire.text(self._open, "/metrics")) or None
        except Refusal:
            return None

    async def _stream(
        self, reply: Reply, prompt: Prompt, options: dict[str, Any], session: aiohttp.ClientSession | None = None
    ) -> None:
        """Send a request and read its answer into `reply`, in place. Raises Refusal, whatever goes wrong."""
        assert self.model is not None
        reply.sent = clock()
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        wait, most = self.settings.timeout, self.settings.deadline or WHOLE * self.settings.timeout
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=wait)
        reader, events = StreamReader(reply, self.model, self._clean), Events()
        loop = asyncio.get_running_loop()

        async def read(response: aiohttp.ClientResponse) -> None:
            async for data in response.content.iter_any():
                at = clock()
                for event in events.feed(data):
                    if reader.add(event, at):
                        tokens.reschedule(loop.time() + wait + SLACK)
                if reader.done:
                    reply.ended = at
                    await drain(response)
                    return
            reply.ended = clock()

        try:
            # Silence is the socket's own; bytes that bring no tokens, and an answer without an end, are not.
            async with asyncio.timeout(most) as whole, asyncio.timeout(CONNECT + wait + SLACK) as tokens:
                await self._wire.ask(session or self._open, "POST", path, timeout, read, self.body(prompt, options))
        except TimeoutError:
            what = ("no end of the answer", most) if whole.expired() else ("no part of the answer", wait)
            raise Refusal(self._wire.hung(*what)) from None
        reader.end(events.end())

    async def _told(self, path: str) -> Any:
        text = await self._wire.text(self._open, path)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refusal(f"{path} is not JSON ({brief(error)})") from None

    def _clean(self, line: str) -> str:
        """A text without the API key, which a server may have repeated, in JSON by escapes of its characters too."""
        if not self._key:
            return line
        line = line.replace(self._key, MASK)
        return self._escaped.sub(MASK, line) if "\\" in line else line


def _key(name: str, settings: ServerSettings) -> str:
    """The API key, from the environment; empty if none is named. Raises UserError if it is not there."""
    if settings.key_variable is None:
        return ""
    key = os.environ.get(settings.key_variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UserError(f"server {name}: the environment variable {settings.key_variable} holds no API key; export it")
    return key


def _is_name(value: Any) -> bool:
    """True for a text that can be written down: JSON may name halves of characters."""
    return isinstance(value, str) and value == value.encode(errors="replace").decode()
