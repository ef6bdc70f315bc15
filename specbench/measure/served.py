"""Documents answered by a server: prompts, stop strings and limits as for own methods, into the same records."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from specbench.base.arrivals import POISSON, Arrivals
from specbench.base.console import warn
from specbench.base.seeds import stable_seed
from specbench.config import UserError
from specbench.config.servers import server_settings
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.measure.sample import Rows, beginning
from specbench.measure.work import Work
from specbench.plan import Plan
from specbench.servers.adapters import evidence
from specbench.servers.client import Client
from specbench.servers.evidence import STEPS, Evidence, fits
from specbench.servers.reply import Refusal, Reply
from specbench.servers.schedule import Answer, Ask, closed_loop, open_loop
from specbench.tasks.harness import Request

EARLY = 0.1  # the share of parts that may come with the first: decode times are too short by no more
SAME = ("engine", "model", "version")  # of a server, when a run goes on


def connect(plan: Plan) -> dict[str, Client]:
    """The clients of a plan's servers, by name; a server that cannot be reached gets a warning.

    Raises UserError for settings that do not fit, and for an API key that the environment lacks.
    """
    clients = {spec.name: Client(spec.name, server_settings(spec)) for spec in plan.servers}

    async def meet(client: Client) -> None:
        async with client:
            await client.meet()

    for name, client in clients.items():
        try:
            asyncio.run(meet(client))
        except Refusal as refusal:
            warn(f"server {name}: {refusal}")
    return clients


def check_served(plan: Plan, requests: Sequence[Request]) -> None:
    """Raise UserError if a plan's servers cannot be measured on its documents."""
    if plan.servers and any(request.turn for request in requests):
        raise UserError("a later turn of a conversation waits for the answer to the earlier one; leave out --server")
    if plan.servers and plan.time_documents:
        raise UserError("--time-documents is for methods decoded here; leave it out with --server")


def check_same_servers(stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise UserError if a server is another one than when the run began, as far as both times tell."""
    for name, facts in now.items():
        before = stored.get(name, {})
        for key in SAME:
            if before.get(key) and facts.get(key) and before[key] != facts[key]:
                raise UserError(f"server {name} has another {key} than when the run began; start a new run")


def ask_of(client: Client, request: Request, prompt: list[int], sampling: Sampling, seed: int) -> Ask:
    """A request as the server gets it: the prompt's token ids where it takes them, else its text."""
    options: dict[str, Any] = {"max_tokens": request.max_new_tokens, "temperature": sampling.temperature}
    if request.until:
        options["stop"] = list(request.until)
    if not sampling.greedy:
        options |= {"seed": seed % 2**31, "top_p": sampling.top_p}
        options |= {"top_k": sampling.top_k} if sampling.top_k else {}
    chosen = client.settings.prompts
    as_ids = not client.chat and (chosen == "ids" or (chosen == "auto" and client.adapter.takes_ids))
    return Ask(prompt if as_ids else request.prompt, options)


class ServerCrew:
    """A server in the place of a method: it answers a chunk of documents, so many at a time or at their times."""

    def __init__(self, work: Work, client: Client) -> None:
        self.work, self.client, self.name = work, client, client.name
        self.state = None  # it learns nothing that this run could restore
        self._arrivals = Arrivals.of(work.plan.arrivals or POISSON) if work.plan.rate else None
        self._warned = False

    def begin(self, task: str, state: Any) -> None:
        """Nothing to forget."""

    def warm_up(self, places: range) -> None:
        """Let the server answer a few tokens of the first document before anything is timed."""
        place = places.start
        ask = self._ask(place, 0)
        asyncio.run(self._answers([Ask(ask.prompt, ask.options | {"max_tokens": 8})], None))

    def decode(self, chunk: range, repeat: int, order: int) -> Iterator[tuple[int, Rows]]:
        """The index and the records of each of a chunk's documents."""
        places = [index % len(self.work.requests) for index in chunk]
        times = None
        if self._arrivals and self.work.plan.rate:
            times = self._arrivals.times(self.work.plan.rate, len(chunk), self.work.plan.seed + chunk.start)
        answers = asyncio.run(self._answers([self._ask(place, repeat) for place in places], times))
        for index, place, answer in zip(chunk, places, answers, strict=True):
            yield index, self._records(place, repeat, order, answer)

    async def _answers(self, asks: Sequence[Ask], times: Any) -> list[Answer]:
        async with self.client as client:
            await client.touch()
            if times is not None:
                return await open_loop(client, asks, times)
            return await closed_loop(client, asks, self.work.plan.concurrency)

    def _ask(self, place: int, repeat: int) -> Ask:
        request = self.work.requests[place]
        seed = stable_seed(self.work.plan.seed, repeat, request.task, request.doc_id, self.name)
        ask = ask_of(self.client, request, self.work.prompts[place], self.work.sampling, seed)
        if isinstance(ask.prompt, str) and not self._warned and self.client.model:
            warn(
                f"server {self.name}: prompts go as text, which it may cut into other tokens than {self.work.pair.name}"
            )
            self._warned = True
        return ask

    def _records(self, place: int, repeat: int, order: int, answer: Answer) -> Rows:
        work, request, reply = self.work, self.work.requests[place], answer.reply
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id, "method": self.name, "warmup": False}
        sent = work.prompts[place]
        sample = beginning(key, work.plan.seed, order, request, sent)
        sample |= {"due": reply.due, "sent": reply.sent, "ended": reply.ended, "device": None}
        reply.error = reply.error or problem(reply, work.pair, request, sent, self.client.chat)
        if reply.error:
            return sample | {"finish": "error", "error": reply.error}, []
        found = evidence(self.client.adapter, reply, answer.before, answer.after)
        found = found if fits(found, reply.tokens) else Evidence()
        return sample | outcome(reply, found, work.pair, request), round_rows(key, found, reply.tokens)


def problem(reply: Reply, pair: Pair, request: Request, prompt: list[int], chat: bool) -> str:
    """Why an answer cannot be what it claims, in one line; empty if nothing is wrong with it."""
    ids, told = reply.ids, reply.usage.get("completion_tokens")
    if reply.prompt_ids is not None and not chat and reply.prompt_ids != prompt:
        return "the server read the prompt as other tokens: it has another tokenizer, or adds some of its own"
    if ids is None:
        return ""
    if isinstance(told, int) and told != len(ids):
        return f"the server counts {told} tokens and sent {len(ids)}"
    text = pair.detokenizer([token for token in ids if token not in pair.eos_ids])
    for stop in filter(None, request.until):
        text = text.split(stop)[0]
    if text.rstrip("\ufffd") != reply.text.rstrip("\ufffd"):
        return f"the server's tokens are not those of its text under the tokenizer of {pair.name}"
    return ""


def outcome(reply: Reply, found: Evidence, pair: Pair, request: Request) -> dict[str, Any]:
    """The columns of an answered sample."""
    ids, chunks = reply.ids, reply.chunks
    first, last = (chunks[0].at, chunks[-1].at) if chunks else (reply.ended, reply.ended)
    text = reply.text
    for stop in filter(None, request.until):  # some engines leave it in
        text = text.split(stop)[0]
    sizes = [None if chunk.ids is None else len(chunk.ids) for chunk in chunks]
    late = came_late([chunk.at for chunk in chunks], reply.tokens)
    return {
        "tokens": ids,
        "text": text,
        "finish": _finish(reply, pair, request),
        "new_tokens": reply.tokens,
        "prefill_seconds": first - reply.sent,
        "decode_seconds": None if late else last - first,
        "wall_seconds": last - reply.sent if late else None,
        "first_token": first,
        "chunks": [chunk.at for chunk in chunks],
        "chunk_tokens": None if None in sizes else sizes,
        "evidence": found.kind,
        "verify_rounds": found.rounds,
        "draft_tokens": found.draft_tokens,
        "accepted_tokens": found.accepted_tokens,
    }


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
    if (ids and ids[-1] in pair.eos_ids) or not any(request.until):
        return "eos"
    return "stop" if isinstance(reply.stop, str) or ids else None


def round_rows(key: dict[str, Any], found: Evidence, tokens: int | None) -> list[dict[str, Any]]:
    """The rows of a text's rounds after the prefill; one of nulls if the server does not list them.

    `committed` is null unless the rounds add up to the text: rounds without a draft are not listed.
    """
    if tokens == 1:
        return []
    if found.kind != STEPS or not found.accepted or found.drafted is None:
        return [key | {"round": 1, "drafted": None, "accepted": None, "committed": None}]
    over = None if tokens is None else sum(n + 1 for n in found.accepted) - (tokens - 1)
    known = over is not None and 0 <= over <= found.accepted[-1]
    rows: list[dict[str, Any]] = []
    for number, (drafted, accepted) in enumerate(zip(found.drafted, found.accepted, strict=True), 1):
        row = {"round": number, "drafted": drafted, "accepted": accepted, "rescued": 0, "target_forwards": 1}
        rows.append(key | row | {"committed": accepted + 1 if known else None, "truncated": 0 if known else None})
    if known and over:
        rows[-1] |= {"committed": found.accepted[-1] + 1 - over, "truncated": over}
    return rows
