"""Documents answered by a server: prompts, stop strings and limits as for own methods, into the same records."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from specbench.base.arrivals import POISSON, Arrivals
from specbench.base.console import warn
from specbench.base.hashes import stable_seed
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.measure.conversations import Conversations
from specbench.measure.sample import Rows, beginning
from specbench.measure.work import Work
from specbench.results.text_rounds import text_rounds
from specbench.servers.adapters import evidence
from specbench.servers.client import Client
from specbench.servers.evidence import STEPS, Evidence, fits
from specbench.servers.reply import TEXT, Reply
from specbench.servers.schedule import Answer, Ask, Send, Talk, closed_loop, open_loop, single
from specbench.tasks.harness import Request
from specbench.tasks.prompts import PromptFile

EARLY = 0.1  # the share of parts that may come with the first: decode times are too short by no more


def ask_of(
    client: Client, request: Request, prompt: list[int], sampling: Sampling, seed: int, ignore_eos: bool = False
) -> Ask:
    """A request as the server gets it: the prompt's token ids where it takes them, else its text.

    All of the sampling is named that the engine knows: what a request omits, a server takes from its own defaults.
    """
    options: dict[str, Any] = {"max_tokens": request.max_new_tokens, **client.engine.sampling(sampling)}
    options["seed"] = seed % 2**31
    if request.until:
        options["stop"] = list(request.until)
    if ignore_eos:
        options["ignore_eos"] = True
    if request.constraint:
        options |= client.engine.constraint(request.constraint)
    chosen = client.settings.prompts
    as_ids = not client.chat and (chosen == "ids" or (chosen == "auto" and client.engine.takes_ids))
    return Ask(prompt if as_ids else request.prompt, options)


T = TypeVar("T")


@dataclass(frozen=True)
class AskedDocument:
    """A document as a server was asked it."""

    request: Request  # with its own prompt
    prompt: list[int] | str  # token ids, or why there are none
    answer: Answer | None  # None: it was not asked


class ServerRows:
    """A server in the place of a method: it answers a chunk of documents, so many at a time or at their times.

    `conversations` keeps its answers, which later turns hold.
    """

    def __init__(self, work: Work, client: Client, conversations: Conversations) -> None:
        self.work, self.client, self.name = work, client, client.name
        self.state = None  # it learns nothing that this run could restore
        self._conversations = conversations
        self._arrivals = Arrivals.of(work.plan.arrivals or POISSON) if work.plan.rate else None
        self._warned = False

    def begin(self, task: str, state: Any) -> None:
        """Nothing to forget."""

    def warm_up(self, places: range) -> list[Rows]:
        """Let the server answer a few tokens of the first document before anything is timed."""
        ask = self._ask(self.work.requests[places.start], self.work.prompts[places.start], 0)
        asyncio.run(self._held([single(Ask(ask.prompt, ask.options | {"max_tokens": 8}))], None))
        return []

    def decode(self, chunk: Sequence[int], repeat: int, order: int) -> Iterator[tuple[int, Rows]]:
        """The index and the records of each of a chunk's documents, or of some of them."""
        talks: list[list[int]] = []
        for index in chunk:
            if not talks or not self._request(index).turn or index > talks[-1][-1] + 1:
                talks.append([])
            talks[-1].append(index)
        times = None
        if self._arrivals and self.work.plan.rate:
            times = self._arrivals.times(self.work.plan.rate, len(talks), self.work.plan.seed + chunk[0])
        held = asyncio.run(self._held([partial(self._talk, talk, repeat) for talk in talks], times))
        for index, turn in zip(chunk, chain.from_iterable(held), strict=True):
            yield index, self._records(repeat, order, turn)

    def _request(self, index: int) -> Request:
        return self.work.requests[index % len(self.work.requests)]

    async def _held(self, talks: Sequence[Talk[T]], times: Any) -> list[T]:
        """What came of conversations, begun at `times`, or as many at a time as the plan says."""
        async with self.client as client:
            await client.touch()
            if times is not None:
                return await open_loop(client, talks, times)
            return await closed_loop(client, talks, self.work.plan.concurrency)

    async def _talk(self, turns: Sequence[int], repeat: int, send: Send) -> list[AskedDocument]:
        """Ask one turn after another. Of an answer no more is read here than the next turn needs: others are timed."""
        asked: list[AskedDocument] = []
        for index in turns:
            if asked and (answer := asked[-1].answer):
                before = asked[-1].request
                failed = self._failed(asked[-1], answer.reply)
                said = {"finish": "error" if failed else None, "text": without_stops(answer.reply.text, before)}
                self._conversations.add([self._key(repeat, before) | said])
            prompt = self.work.prompts[index % len(self.work.requests)]
            request, own = self._conversations.prompt(self.name, self._request(index), prompt)
            answer = None if isinstance(own, str) else await send(self._ask(request, own, repeat))
            asked.append(AskedDocument(request, own, answer))
        return asked

    def _ask(self, request: Request, prompt: list[int], repeat: int) -> Ask:
        seed = stable_seed(self.work.plan.seed, repeat, request.task, request.doc_id, self.name)
        ask = ask_of(self.client, request, prompt, self.work.sampling, seed, self.work.plan.ignore_eos)
        if isinstance(ask.prompt, str) and not self._warned and self.client.model:
            warn(f"server {self.name}: prompts go as text, which it may not tokenize as {self.work.pair.name} does")
            self._warned = True
        tasks = self.work.tasks
        if self.client.chat and isinstance(tasks, PromptFile):
            tools = {"tools": shown} if (shown := tasks.tools(request)) else {}
            return Ask(tasks.messages(request, self._conversations.answers(self.name, request)), ask.options | tools)
        return ask

    def _failed(self, turn: AskedDocument, reply: Reply) -> str:
        """Why a turn has no answer that could be used, in one line; empty if it has one."""
        assert not isinstance(turn.prompt, str)
        return reply.error or problem(reply, self.work.pair, turn.request, turn.prompt, self.client.chat)

    def _key(self, repeat: int, request: Request) -> dict[str, Any]:
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id}
        return key | {"method": self.name, "warmup": False}

    def _records(self, repeat: int, order: int, turn: AskedDocument) -> Rows:
        work, request, answer = self.work, turn.request, turn.answer
        key = self._key(repeat, request)
        sample = beginning(key, work.plan.seed, order, request, turn.prompt) | {"device": None}
        if answer is None:
            return sample | {"finish": "error", "error": turn.prompt}, []
        reply = answer.reply
        sample |= {"due": reply.due, "sent": reply.sent, "ended": reply.ended}
        if error := self._failed(turn, reply):
            return sample | {"finish": "error", "error": error}, []
        known = evidence(self.client.engine, reply, answer.before, answer.after)
        known = known if fits(known, reply.tokens) else Evidence()
        return sample | outcome(reply, known, work.pair, request), round_rows(key, known, reply.tokens)


def problem(reply: Reply, pair: Pair, request: Request, prompt: list[int], chat: bool) -> str:
    """Why an answer cannot be what it claims, in one line; empty if nothing is wrong with it."""
    ids, counted = reply.ids, reply.usage.get("completion_tokens")
    if reply.prompt_ids is not None and not chat and reply.prompt_ids != prompt:
        return "the server read the prompt as other tokens: it has another tokenizer, or adds some of its own"
    thoughts = reply.thought_tokens  # some servers do not count them to the limit
    if reply.tokens is not None and thoughts is not None and reply.tokens - thoughts > request.max_new_tokens:
        return f"the server counts {reply.tokens} tokens, and at most {request.max_new_tokens} were asked for"
    if reply.tokens == 0 and reply.text:
        return "the server counts 0 tokens and sent a text"
    if ids is None:
        return ""
    if isinstance(counted, int) and counted != len(ids):
        return f"the server counts {counted} tokens and sent {len(ids)}"
    if any(chunk.kind != TEXT for chunk in reply.chunks):  # what stands between thoughts and answer is in no text
        return ""
    text = without_stops(pair.detokenizer([token for token in ids if token not in pair.eos_ids]), request)
    if text.rstrip("\ufffd") != reply.text.rstrip("\ufffd"):
        return f"the server's tokens are not those of its text under the tokenizer of {pair.name}"
    return ""


def outcome(reply: Reply, evidence: Evidence, pair: Pair, request: Request) -> dict[str, Any]:
    """The columns of an answered sample."""
    ids, chunks = reply.ids, reply.chunks
    first, last = (chunks[0].at, chunks[-1].at) if chunks else (None, reply.ended)
    sizes = [None if chunk.ids is None else len(chunk.ids) for chunk in chunks]
    untimed = first is None or reply.hidden or came_late([chunk.at for chunk in chunks], reply.tokens)
    return {
        "tokens": ids,
        "text": without_stops(reply.text, request),
        "finish": _finish(reply, pair, request),
        "new_tokens": reply.tokens,
        "prefill_seconds": None if first is None else first - reply.sent,
        "decode_seconds": None if untimed or first is None else last - first,
        "wall_seconds": last - reply.sent if untimed else None,
        "first_token": first,
        "chunks": [chunk.at for chunk in chunks],
        "chunk_tokens": None if None in sizes else sizes,
        "other_chunks": sum(chunk.kind != TEXT for chunk in chunks),
        "thought_tokens": reply.thought_tokens,
        "evidence": evidence.kind,
        "verify_rounds": evidence.rounds,
        "draft_tokens": evidence.draft_tokens,
        "accepted_tokens": evidence.accepted_tokens,
        "whole_rounds": evidence.whole,
    }


def without_stops(text: str, request: Request) -> str:
    """A text up to the first of the task's stop strings, which some engines leave in."""
    for stop in filter(None, request.until):
        text = text.split(stop)[0]
    return text


def came_late(times: Sequence[float], tokens: int | None) -> bool:
    """True if the first part came with so many of the later ones that no time per token is known from it.

    These are more than a tenth of them: the client read them late, or the server held them back. A text of one part has
    no time per token either, unless it is of one token.
    """
    if len(times) < 2:
        return tokens != 1
    return sum(at == times[0] for at in times[1:]) > EARLY * (len(times) - 1)


def _finish(reply: Reply, pair: Pair, request: Request) -> str | None:
    """eos, stop or length; None if the server does not tell an end token from a stop string."""
    if reply.finish == "length":
        return "length"
    ids = reply.ids
    if (ids and ids[-1] in pair.eos_ids) or reply.stop in pair.eos_ids or not any(request.until):
        return "eos"
    return "stop" if isinstance(reply.stop, str) or ids else None


def round_rows(key: dict[str, Any], evidence: Evidence, tokens: int | None) -> list[dict[str, Any]]:
    """The rows of a text's rounds after the prefill; one of nulls if the server does not list them.

    `committed` is null unless the rounds add up to the text: rounds without a draft are not listed.
    """
    if tokens == 1:
        return []
    if evidence.kind != STEPS or not evidence.accepted or evidence.drafted is None:
        return [key | {"round": 1, "drafted": None, "accepted": None, "committed": None}]
    told = text_rounds(evidence.drafted, evidence.accepted, tokens)
    return [key | {"round": number, "rescued": 0} | row for number, row in enumerate(told, 1)]
