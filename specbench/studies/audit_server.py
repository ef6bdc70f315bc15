"""`specbench audit --server`: does an engine decode what the same models decode here, and count what it accepts right?

Greedy texts are held against vanilla decoding: where one leaves it, the target's own logits tell a numeric tie from
another model or a defect. Accepted tokens of each round are held against a method of the same settings; the last round
of a text is left aside, since engines differ in what they count after its end. A probe tells whether the server keeps
prompts: the second sending of one is then answered sooner.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon

from specbench.base import environment, files
from specbench.base.console import progress
from specbench.config import UserError
from specbench.config.servers import server_settings
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Method, Round, Sampling
from specbench.measure import prepare
from specbench.measure.divergence import Reference, diverged
from specbench.measure.prompts import check_lengths, encode_all, load_tasks
from specbench.measure.served import ask_of, problem
from specbench.methods.chains.vanilla import Vanilla
from specbench.plan import Plan
from specbench.servers.adapters import evidence
from specbench.servers.client import Client
from specbench.servers.evidence import CHUNKS, NONE, Evidence, fits
from specbench.servers.reply import Refusal, Reply
from specbench.servers.schedule import Answer, Ask, closed_loop, single
from specbench.studies.audit import Leaving
from specbench.tasks.harness import Request

PROBES = 12  # prompts that are sent twice
PROBE_TOKENS = 384  # of each, at most
SOONER = 1.1  # times that a kept prompt must be answered sooner; our estimate of what is worth a warning
LEVEL = 0.01  # of a false alarm of the probe


@dataclass(frozen=True)
class AuditedText:
    """What became of one document."""

    task: str
    doc_id: int
    error: str = ""  # why there is no answer that could be compared
    leaving: Leaving | None = None  # the first token that is not vanilla's
    evidence: str = NONE  # how the server's rounds are known
    rounds: int = 0  # that were compared
    other: str = ""  # the first count that is not that of the method here


@dataclass(frozen=True)
class PrefixReuse:
    """Whether a prompt is answered sooner when it comes again: medians in seconds to the first token."""

    pairs: int
    first: float
    second: float
    p: float  # of Wilcoxon's signed-rank test, one-sided; NaN for fewer than 7 pairs, which could not reach LEVEL

    @property
    def seen(self) -> bool:
        return bool(self.p < LEVEL and self.first > SOONER * self.second)


@dataclass(frozen=True)
class ServerAudit:
    """The result of auditing one server."""

    url: str
    facts: dict[str, Any]  # what it tells of itself
    method: str | None  # whose rounds its own are compared with
    lengths: tuple[int, int] | None  # the longest drafts: the server's and the method's; None if either is not known
    texts: Sequence[AuditedText]
    kept: PrefixReuse

    @property
    def verdict(self) -> str:
        if any(text.error for text in self.texts):
            return "failed"
        leavings = [text.leaving for text in self.texts if text.leaving]
        if any(leaving.kind == "bug" for leaving in leavings):
            return "other texts"
        if any(text.other for text in self.texts):
            return "other rounds"
        return "as here, numeric ties" if leavings else "as here"


def carry_out(plan: Plan, length: int) -> tuple[ServerAudit, Pair]:
    """Audit the server of a plan on its documents, each a greedy text of at most `length` tokens.

    The plan's own method, if it is not vanilla, is the one that rounds are compared with.

    Raises:
        UserError: the server cannot be reached, or prompts and answers do not fit into the pair's context.
    """
    (spec,) = plan.own
    client = Client(plan.servers[0].name, server_settings(plan.servers[0]))
    try:
        asyncio.run(_meet(client))
    except Refusal as refusal:
        raise UserError(f"--server {client.settings.url}: {refusal}") from None
    eager = prepare.load_models(plan, "eager")
    every = load_tasks(plan, eager).requests()
    requests = [replace(request, until=(), max_new_tokens=length) for request in every if request.turn == 0]
    prompts = encode_all(eager, [request.prompt for request in requests])
    longest = max(map(len, prompts))
    pair, _ = prepare.at_runtime(plan, eager, prompts[0], longest + length, plan.runtime)
    method = prepare.build(spec, pair, Unwatched()) if spec.method != "vanilla" else None
    check_lengths(requests, prompts, eager, method.reach if method else 0)
    room = min(eager.context, client.facts.get("context") or eager.context, PROBE_TOKENS + 8)
    probes = unseen(max(prompts, key=len), room * 3 // 4)
    asks = [ask_of(client, request, ids, Sampling(), 0) for request, ids in zip(requests, prompts, strict=True)]
    twice = [_probe(client, pair, ids) for ids in probes]
    texts: list[AuditedText] = []
    seen: list[tuple[int, int]] = []
    with progress("auditing", 2 * len(requests) + len(probes)) as advance:
        answers, times = asyncio.run(_answers(client, asks, twice, advance))
        reference = Reference(eager, None)
        for request, ids, answer in zip(requests, prompts, answers, strict=True):
            vanilla, _ = _decoded(Vanilla(eager.session("target")), eager, ids, length)
            rounds = _decoded(method, pair, ids, length)[1] if method else []
            served = evidence(client.engine, answer.reply, answer.before, answer.after)
            texts.append(compared(reference, request, ids, answer.reply, vanilla, rounds, served, client.chat))
            if served.drafted and rounds:
                seen.append((max(served.drafted), max(each.drafted for each in rounds)))
            advance(1)
            pair.runtime.settle()
    lengths = (max(theirs for theirs, _ in seen), max(mine for _, mine in seen)) if seen else None
    name = spec.name if method else None
    return ServerAudit(client.settings.url, client.facts, name, lengths, texts, kept(times)), eager


def compared(
    reference: Reference,
    request: Request,
    prompt: list[int],
    reply: Reply,
    vanilla: list[int],
    rounds: Sequence[Round],
    served: Evidence,
    chat: bool = False,
) -> AuditedText:
    """Hold one answer against vanilla's tokens and a method's rounds here (none: rounds are not compared)."""
    text = AuditedText(request.task, request.doc_id, evidence=served.kind)
    if error := reply.error or problem(reply, reference.pair, request, prompt, chat):
        return replace(text, error=error)
    divergence = diverged(reference, prompt, vanilla, answered(reply, vanilla, reference.pair))
    if divergence:
        return replace(text, leaving=Leaving(**vars(divergence), task=request.task, doc_id=request.doc_id))
    if not rounds:
        return text
    if not fits(served, reply.tokens):
        return replace(
            text, other=f"{served.accepted_tokens} accepted tokens do not add up to a text of {reply.tokens}"
        )
    number, other = same_rounds(rounds, served)
    return replace(text, rounds=number, other=other)


def answered(reply: Reply, vanilla: list[int], pair: Pair) -> list[int]:
    """The tokens of an answer, with an end token if it ended by one.

    Where the server does not tell them, they are vanilla's if the text is, else those that the tokenizer cuts it into.
    """
    ids, ended = reply.ids, vanilla[-1:] if vanilla[-1] in pair.eos_ids else sorted(pair.eos_ids)[:1]
    if ids is None:
        plain = [token for token in vanilla if token not in pair.eos_ids]
        same = reply.text == pair.detokenizer(plain)
        ids = plain if same else pair.tokenizer(reply.text, add_special_tokens=False)["input_ids"]
    return [*ids, *ended] if reply.finish == "stop" and not pair.eos_ids.intersection(ids[-1:]) else ids


def same_rounds(rounds: Sequence[Round], served: Evidence) -> tuple[int, str]:
    """How many rounds of a method are the server's, and the first that is not; empty if all are that can be compared.

    Compared are the rounds with a draft, without the prefill and the last of the text. Of an engine that does not list
    its rounds only the sums are held against each other, which the last round may change by as much as it drafts.
    """
    mine = [each for each in rounds[1:-1] if each.drafted]
    if served.kind in (CHUNKS, NONE):
        return 0, ""
    count = served.rounds
    many = f"{count} rounds with a draft, and {len(mine)} or {len(mine) + 1} here"
    if served.accepted is None:
        least = sum(each.accepted for each in mine)
        most = least + max(each.drafted for each in rounds)
        accepted = least if served.accepted_tokens is None else served.accepted_tokens
        if not least <= accepted <= most:
            return 0, f"{accepted} tokens accepted in all, and {least} to {most} here"
    for number, (each, accepted) in enumerate(zip(mine, served.accepted or (), strict=False), 1):
        if accepted != each.accepted:
            return number - 1, f"round {number}: {accepted} tokens accepted, and {each.accepted} of {each.drafted} here"
    return len(mine), many if count is not None and count not in (len(mine), len(mine) + 1) else ""


def unseen(prompt: Sequence[int], length: int) -> list[list[int]]:
    """PROBES prompts of a prompt's tokens in random order, which no server has seen, not even in an earlier audit."""
    order = random.Random()
    ids = list(itertools.islice(itertools.cycle(prompt[1:] or prompt), max(length - 1, 1)))
    return [[prompt[0], *order.sample(ids, len(ids))] for _ in range(PROBES)]


def kept(times: Sequence[tuple[float, float]]) -> PrefixReuse:
    """What the seconds to the first token say of prompts that are sent twice; the pairs are (first, second)."""
    if not times:
        return PrefixReuse(0, np.nan, np.nan, np.nan)
    first, second = np.array(times).T
    p = float(wilcoxon(first, second, alternative="greater").pvalue) if len(times) >= 7 else np.nan
    return PrefixReuse(len(times), float(np.median(first)), float(np.median(second)), p)


def write(path: Path, audited: ServerAudit, pair: Pair) -> None:
    """Write an audit as JSON, with the machine and the models it applies to."""
    machine = environment.describe(pair.device, pair.draft_device)
    facts = {"environment": machine, "models": pair.describe(), "verdict": audited.verdict}
    files.write_json(path, json.loads(json.dumps({**facts, **asdict(audited)}, default=str)))


async def _meet(client: Client) -> None:
    async with client:
        await client.meet()


async def _answers(
    client: Client, asks: Sequence[Ask], probes: Sequence[Ask], advance: Callable[[int], None]
) -> tuple[list[Answer], list[tuple[float, float]]]:
    """The answers to requests, one at a time, and how long the first token of each probe took when it came twice."""
    answers, times = [], []
    async with client:
        await client.touch()
        for ask in asks:
            answers += await closed_loop(client, [single(ask)], 1)
            advance(1)
        for ask in probes:
            first, second = [(await client.complete(ask.prompt, ask.options, 0.0)) for _ in range(2)]
            if not (first.error or second.error):
                times.append((_waited(first), _waited(second)))
            advance(1)
    return answers, times


def _probe(client: Client, pair: Pair, ids: list[int]) -> Ask:
    """A request for one token after a prompt, as token ids where the server takes them."""
    text = pair.tokenizer.decode(ids, skip_special_tokens=True)
    request = Request("probe", 0, text, (), 1, "", "")
    return ask_of(client, request, ids, Sampling(), 0)


def _waited(reply: Reply) -> float:
    return (reply.ended if reply.first is None else reply.first) - reply.sent


def _decoded(method: Method, pair: Pair, prompt: list[int], length: int) -> tuple[list[int], list[Round]]:
    method.reset()
    ending = Ending(Limits(length, pair.eos_ids), pair.detokenizer)
    rounds = list(decode_text(method, prompt, Sampling(), torch.Generator(pair.device), ending))
    return ending.tokens, rounds
