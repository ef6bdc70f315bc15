"""A server that answers with events as a test writes them down."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from listening import listening

PAUSE = 0.005


@dataclass
class Scripted:
    """What a server says; tests change it while it runs."""

    script: Callable[[dict[str, Any]], Sequence[Any]]  # from a request's body: events
    owner: str = "somebody"
    usage: dict[str, Any] | None = None
    pages: dict[str, str] = field(default_factory=dict)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    pause: float = PAUSE  # seconds after each event

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "owned_by": self.owner}]})
        if request.method == "GET":
            page = self.pages.get(request.path)
            return web.Response(text=page) if page else web.Response(status=404)
        body = await request.json()
        self.bodies.append(body)
        script = self.script(body)
        if isinstance(script, dict):  # no stream
            return web.json_response(script)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in script:
            text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
            await response.write(text.encode())
            await asyncio.sleep(self.pause)
        await response.write(b"data: [DONE]\n\n")
        return response


def delta(values: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a chat's stream."""
    return {"model": "m", "choices": [{"index": 0, "delta": values, "finish_reason": finish, **more}]}


def part(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """An event of a completion's stream."""
    return {"model": "m", "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}


def usage(tokens: int, **more: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return {"model": "m", "choices": [], "usage": counts | more}


@contextmanager
def scripted(server: Scripted) -> Iterator[Scripted]:
    """The server while it listens."""
    with listening(server):
        yield server
