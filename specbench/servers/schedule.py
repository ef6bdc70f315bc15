"""When requests go to a server: so many at a time (closed loop), or at times of their own (open loop).

Only the turns of one conversation wait for each other, since each holds the answer to the one before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from specbench.base.stats import Floats
from specbench.servers.adapters import Counters, told
from specbench.servers.client import Client, Prompt, clock
from specbench.servers.reply import Reply

STILL = 5, 0.05  # times that counters are read, seconds apart, until the request is in them


@dataclass(frozen=True)
class Ask:
    """A request that is to be sent: the prompt, and OpenAI's fields next to it."""

    prompt: Prompt
    options: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A reply, with the server's counters around it where it was the only request of this client."""

    reply: Reply
    before: Counters | None = None
    after: Counters | None = None


T = TypeVar("T")
Send = Callable[[Ask], Awaitable[Answer]]
# A conversation: sends its requests one after another, and says what came of them.
Talk = Callable[[Send], Awaitable[T]]


def single(ask: Ask) -> Talk[Answer]:
    """A conversation of one request."""
    return lambda send: send(ask)


async def closed_loop(client: Client, talks: Sequence[Talk[T]], concurrency: int) -> list[T]:
    """Hold conversations so that `concurrency` are under way until few are left; what came of each, in their order.

    A request is due when it is sent.
    """
    if concurrency == 1:
        return [await talk(partial(_alone, client)) for talk in talks]
    results: dict[int, T] = {}
    todo = iter(enumerate(talks))

    async def send(ask: Ask) -> Answer:
        return Answer(await client.complete(ask.prompt, ask.options, clock()))

    async def work() -> None:
        for place, talk in todo:
            results[place] = await talk(send)

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(talks)))))
    return [results[place] for place in range(len(talks))]


async def open_loop(client: Client, talks: Sequence[Talk[T]], times: Floats) -> list[T]:
    """Begin each conversation at its time [n], in seconds from now, whether or not earlier ones are done.

    Its first request is due then, and each later one when the answer to the one before has ended.
    """
    start = clock()

    async def at(talk: Talk[T], due: float) -> T:
        async def send(ask: Ask) -> Answer:
            nonlocal due
            reply = await client.complete(ask.prompt, ask.options, due)
            due = reply.ended
            return Answer(reply)

        await asyncio.sleep(max(0.0, due - clock()))
        return await talk(send)

    return list(await asyncio.gather(*(at(talk, start + float(t)) for talk, t in zip(talks, times, strict=True))))


async def _alone(client: Client, ask: Ask) -> Answer:
    """One request, with the server's counters before and after it where it has some and its answer says nothing."""
    before = await client.counters() if client.model and not client.tells else None
    reply = await client.complete(ask.prompt, ask.options, clock())
    client.tells |= told(client.engine, reply) is not None
    if reply.error or before is None or client.tells:
        return Answer(reply)
    after = None
    for _ in range(STILL[0]):
        after = await client.counters()
        if after and after.get("requests", 0) > before.get("requests", 0):
            break
        await asyncio.sleep(STILL[1])
    return Answer(reply, before, after)
