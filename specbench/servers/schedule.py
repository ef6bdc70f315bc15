"""When requests go to a server: so many at a time (closed loop), or at times of their own (open loop)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.base.stats import Floats
from specbench.servers.adapters import Counters
from specbench.servers.client import Client, clock
from specbench.servers.reply import Reply

STILL = 5, 0.05  # times that counters are read, seconds apart, until the request is in them


@dataclass(frozen=True)
class Ask:
    """A request that is to be sent: the prompt, and OpenAI's fields beside it."""

    prompt: list[int] | str
    options: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A reply, with the server's counters around it where it was the only request of this client."""

    reply: Reply
    before: Counters | None = None
    after: Counters | None = None


async def closed_loop(client: Client, asks: Sequence[Ask], concurrency: int) -> list[Answer]:
    """Send requests so that `concurrency` are under way until few are left; answers in the order of the requests."""
    if concurrency == 1:
        return [await _alone(client, ask) for ask in asks]
    answers: dict[int, Answer] = {}
    todo = iter(enumerate(asks))

    async def work() -> None:
        for place, ask in todo:
            answers[place] = Answer(await client.complete(ask.prompt, ask.options, clock()))

    await asyncio.gather(*(work() for _ in range(min(concurrency, len(asks)))))
    return [answers[place] for place in range(len(asks))]


async def open_loop(client: Client, asks: Sequence[Ask], times: Floats) -> list[Answer]:
    """Send each request at its time [n], in seconds from now, whether or not earlier ones are done."""
    start = clock()

    async def at(ask: Ask, seconds: float) -> Answer:
        due = start + seconds
        await asyncio.sleep(max(0.0, due - clock()))
        return Answer(await client.complete(ask.prompt, ask.options, due))

    return list(await asyncio.gather(*(at(ask, float(seconds)) for ask, seconds in zip(asks, times, strict=True))))


async def _alone(client: Client, ask: Ask) -> Answer:
    """One request, with the server's counters before and after it where it has some and its answer says nothing."""
    before = await client.counters() if client.model and not client.tells else None
    reply = await client.complete(ask.prompt, ask.options, clock())
    client.tells |= client.adapter.rounds(reply) is not None
    if reply.error or before is None or client.tells:
        return Answer(reply)
    after = None
    for _ in range(STILL[0]):
        after = await client.counters()
        if after and after.get("requests", 0) > before.get("requests", 0):
            break
        await asyncio.sleep(STILL[1])
    return Answer(reply, before, after)
