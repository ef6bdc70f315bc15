"""A server that streams what a real vLLM answered (recorded.jsonl), and breaks in the ways that servers break."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from aiohttp import web
from listening import listening

RECORDED = Path(__file__).with_name("recorded.jsonl")


@cache
def recorded() -> tuple[dict[str, Any], ...]:
    """12 documents of the bundled tasks: prompt, text, token ids with the end token, and each step's counts."""
    return tuple(json.loads(line) for line in RECORDED.read_text().splitlines())


def accepted_in_text(record: dict[str, Any]) -> list[int]:
    """What the rounds of a recorded answer accepted of its text; vLLM counts on after the end of it."""
    *before, last = record["accepted"]
    kept = len(record["ids"]) - 1 - sum(count + 1 for count in before)  # the prefill gave the first token
    return [*before, min(last, kept)]


@dataclass
class Fake:
    """The behaviour of a server; tests change it while it runs."""

    tokenizer: Any = None  # from ids to the prompt's text, and each token's text
    engine: str = "vllm"
    models: tuple[str, ...] = ("pocket",)
    tells: str = "steps"  # steps, histogram, counters or nothing
    coalesce: int = 1  # steps that a chunk holds
    ids: bool = True  # token ids come with the text
    fault: str = ""  # see `_faulty`
    only: str = ""  # the fault is of prompts with this text alone
    delay: float = 0.0  # seconds before each chunk
    others: int = 0  # requests of somebody else meanwhile, as the counters see it
    behind: int = 0  # times that the counters are asked after a text before it is in them
    key: str = ""  # that requests must bring
    closes: bool = False  # a connection is good for one text; who uses it again is cut off
    salt: int = 0  # changes the answers to prompts that are not recorded
    lingers: float = 0.0  # seconds from the last event to the end of the answer
    held: bool = False  # the text's parts go out together
    cached: float | None = None  # seconds before the first chunk of a prompt that was not seen before
    accepted: dict[str, list[int]] = field(default_factory=dict)  # by prompt, by round; instead of those recorded
    plain: int = 0  # rounds after those, without a draft, of which nothing is told
    pages: dict[str, str] = field(default_factory=dict)  # what is at a path, in place of the server's own
    requests: list[dict[str, Any]] = field(default_factory=list)  # bodies that came
    paths: list[str] = field(default_factory=list)
    under_way: int = 0
    most: int = 0  # requests at one time
    url: str = ""
    certificate: Path | None = None  # with its key, in one file; then over TLS

    def __post_init__(self) -> None:
        self.counts: dict[Any, int] = {
            "requests": 0,
            "drafts": 0,
            "draft_tokens": 0,
            "accepted_tokens": 0,
            **dict.fromkeys(range(5), 0),
        }
        self.before, self.late = (
            dict(self.counts),
            0,
        )  # the counts before the last text, and how often they are told yet
        self.seen: set[str] = set()
        self.used: set[Any] = set()  # connections that had their text

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response(
                {"error": {"message": f"wrong key {request.headers.get('Authorization')}"}}, status=401
            )
        if request.path in self.pages:
            return web.Response(text=self.pages[request.path])
        if request.path == "/v1/models":
            owner = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}.get(self.engine, "somebody")
            return web.json_response(
                {"data": [{"id": name, "owned_by": owner, "max_model_len": 512} for name in self.models]}
            )
        if request.path == "/version":
            return web.json_response({"version": "0.32.0"})
        if request.path == "/metrics":
            late, self.late = self.late > 0, max(0, self.late - 1)
            return web.Response(text=self._metrics(self.before if late else self.counts))
        if request.path in ("/v1/completions", "/v1/chat/completions"):
            if self.closes and request.transport in self.used and request.transport:
                request.transport.abort()
                return web.Response()
            self.used.add(request.transport)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                return await self._stream(request)
            finally:
                self.under_way -= 1
        return web.Response(status=404, text="no such page")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        given = body.get("prompt")
        prompt = (
            "\n".join(message["content"] for message in body["messages"])
            if given is None
            else given
            if isinstance(given, str)
            else self.tokenizer.decode(given, skip_special_tokens=True)
        )
        other = recorded()[(crc32(prompt.encode()) + self.salt) % len(recorded())]
        record = next((one for one in recorded() if one["prompt"] == prompt), other)
        if counts := self.accepted.get(prompt):
            histogram = [counts.count(number) for number in range(6)]
            record = record | {"accepted": counts, "drafted": [5] * len(counts), "histogram": histogram}
        fault = self.fault if self.only in prompt else ""
        if fault == "another token":  # the sixth one, and the text with it
            ids = record["ids"]
            record = record | {"ids": [*ids[:5], ids[5] + 1, *ids[6:]]}
        if fault == "one count":  # of the third round, one less than there were
            counts = record["accepted"]
            record = record | {"told": [*counts[:2], counts[2] - 1, *counts[3:]]}
        if fault == "refused":
            return web.json_response({"error": {"message": "the engine is\nbusy"}}, status=503)
        if fault == "redirect":
            raise web.HTTPTemporaryRedirect("http://127.0.0.1:9/v1/completions")
        if self.cached is not None and prompt not in self.seen:
            await asyncio.sleep(self.cached)
        self.seen.add(prompt)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        parts, kept = self._parts(record, body["max_tokens"]), b""
        for number, ids in enumerate(parts):
            await asyncio.sleep(self.delay)
            if number == 1 and await self._faulty(fault, response):
                return response
            event = self._event(record, ids, parts, number, fault)
            if self.ids and number == 0 and isinstance(given, list):
                event["choices"][0]["prompt_token_ids"] = given[:-1] if fault == "other prompt" else given
            kept += f"data: {json.dumps(event)}\n\n".encode()
            if not self.held or number == len(parts) - 1:
                await response.write(kept)
                kept = b""
        self._count(record)
        usage = {"prompt_tokens": 9, "completion_tokens": sum(map(len, parts)) + (2 if fault == "lies" else 0)}
        last = {"model": self.models[0], "choices": [], "usage": usage}
        await self._send(response, last | self._told(record, fault))
        await response.write(b"data: [DONE]\n\n")
        await asyncio.sleep(self.lingers)
        return response

    async def _faulty(self, fault: str, response: web.StreamResponse) -> bool:
        """Break; True if the stream is at its end."""
        if fault == "cut":
            assert response._req is not None and response._req.transport is not None
            response._req.transport.abort()
            return True
        if fault == "end":  # politely, but before the text's end
            return True
        if fault == "hang":
            await asyncio.sleep(30)
        elif fault == "pings":  # comments, which say only that the server is there
            for _ in range(60):
                await response.write(b": ping\n\n")
                await asyncio.sleep(0.1)
        elif fault == "json":
            await response.write(b'data: {"choices": [{"text"\n\n')
        elif fault == "error":
            await self._send(response, {"error": {"message": "out of memory"}})
        elif fault == "model":
            await self._send(response, {"model": "another", "choices": []})
        return False

    def _parts(self, record: dict[str, Any], most: int) -> list[list[int]]:
        """The text's tokens as chunks: the prefill's, then those of as many steps as are coalesced."""
        ids, sizes = record["ids"][:most], [1, *(n + 1 for n in record["accepted"]), *[1] * self.plain]
        places = [0]
        for size in sizes:
            places.append(min(places[-1] + size, len(ids)))
        steps = [ids[a:b] for a, b in pairwise(places) if b > a]
        first, rest = steps[:1], steps[1:]
        return first + [[*chain(*rest[i : i + self.coalesce])] for i in range(0, len(rest), self.coalesce)]

    def _event(
        self, record: dict[str, Any], ids: list[int], parts: list[list[int]], number: int, fault: str
    ) -> dict[str, Any]:
        before = [*chain(*parts[:number])]
        whole, old = (self.tokenizer.decode(part, skip_special_tokens=True) for part in (before + ids, before))
        text = whole[len(old) :] if fault != "other text" else "x"
        choice: dict[str, Any] = {"index": 0, "text": text, "finish_reason": None}
        if self.ids:
            choice["token_ids"] = ids
        if number == len(parts) - 1:
            ended = sum(map(len, parts)) == len(record["ids"])
            choice |= {"finish_reason": "stop" if ended else "length", "stop_reason": None}
        return {"model": self.models[0], "choices": [choice]}

    def _told(self, record: dict[str, Any], fault: str) -> dict[str, Any]:
        drafted, accepted = record["drafted"], record["accepted"]
        if self.engine == "sglang" and self.tells != "nothing":
            return {"meta_info": {"spec_verify_ct": len(drafted), "spec_accept_token_num": sum(accepted)}}
        if self.engine == "llamacpp" and self.tells != "nothing":
            return {"timings": {"draft_n": sum(drafted), "draft_n_accepted": sum(accepted)}}
        facts: dict[str, Any] = {"acceptance_histogram": record["histogram"], "num_draft_tokens": sum(drafted)}
        facts |= {"num_spec_tokens": 5}
        if self.tells == "steps":
            facts |= {
                "per_step_drafted": drafted,
                "per_step_accepted": [9] * len(drafted) if fault == "lies" else record.get("told", accepted),
            }
        return {"metrics": {"speculative_decoding": facts}} if self.tells in ("steps", "histogram") else {}

    def _count(self, record: dict[str, Any]) -> None:
        self.before, self.late = dict(self.counts), self.behind
        self.counts["requests"] += 1 + self.others
        self.counts["drafts"] += len(record["drafted"])
        self.counts["draft_tokens"] += sum(record["drafted"])
        self.counts["accepted_tokens"] += sum(record["accepted"])
        for position in range(5):
            self.counts[position] += sum(accepted > position for accepted in record["accepted"])

    def _metrics(self, counts: dict[Any, int]) -> str:
        if self.tells == "nothing":
            return "# nothing\n"
        rows = [f'vllm:request_success_total{{finished_reason="stop"}} {counts["requests"]}.0']
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            rows.append(f'vllm:spec_decode_num_{name}_total{{model_name="pocket"}} {counts[name]}.0')
        for position in range(5):
            label = f'{{model_name="pocket",position="{position}"}}'
            rows.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{label} {counts[position]}.0")
            rows.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_created{label} 1.79e+09")
        rows.append('vllm:cache_config_info{block_size="16",enable_prefix_caching="False"} 1.0')
        return "\n".join(rows) + "\n"

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The server while it listens."""
    with listening(fake, fake.certificate):
        yield fake
