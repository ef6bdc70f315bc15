"""`specbench load`: requests that come while others are decoded (CoSpec, arXiv 2605.24793, Table 10).

Open loop: a request comes at its time whether or not earlier ones are done. Up to `rows` texts are decoded together,
the others wait in the order in which they came; a text joins between rounds. Every method gets the same requests at the
same times. While nothing is decoded, the time until the next request is skipped instead of waited for.
"""

import gc
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis.load import is_stable
from specbench.base.arrivals import Arrivals
from specbench.base.stats import Floats
from specbench.config import MethodSpec, UserError
from specbench.engine.clock import BatchStopwatch, RowStopwatch, now
from specbench.engine.generate import decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.rows import Batch, Row, Seats, failing
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.batched import Batched
from specbench.engine.types import Method, Sampling
from specbench.measure import prepare
from specbench.measure.manifest import manifest
from specbench.measure.prompts import check_lengths, encode_all, load_tasks
from specbench.measure.room import check_room, demand
from specbench.measure.sample import WARMUP_TOKENS, ending_of, traceback_text
from specbench.plan import Plan
from specbench.results.load_folder import Unit
from specbench.tasks.harness import Request

BISECTIONS = 5  # rates that are tried between a quarter of what a full batch gives and somewhat more than all of it


@dataclass
class Served:
    """A request: when it came, when a row was free for it, and when each of its rounds ended; in seconds."""

    number: int
    request: Request
    came: float
    began: float = math.nan
    rounds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: str = ""  # as in records: eos, stop, length or error
    error: str = ""  # the traceback of what ended it early


class Timeline:
    """The seconds since the first request; idle ones are skipped."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self.clock = clock
        self.start = clock()

    def __call__(self) -> float:
        return self.clock() - self.start

    def skip_to(self, seconds: float) -> None:
        self.start -= seconds - self()


class Server:
    """A method with so many rows. What it would learn from text to text is forgotten after each text."""

    def __init__(self, plan: Plan, pair: Pair, spec: MethodSpec, rows: int) -> None:
        self.plan, self.pair, self.name = plan, pair, spec.name
        batched = replace(pair, runtime=Batched(pair.runtime.name))
        watches = [RowStopwatch() for _ in range(rows)]
        self.members = [(prepare.build(spec, batched, watch), watch) for watch in watches]
        self.method = self.members[0][0]
        if why := prepare.why_alone(spec.name, self.method):
            raise UserError(f"{why}, so it serves no requests that come at the same time; leave it out")
        self.sampling = Sampling(**plan.sampling.model_dump())
        try:
            self.method.check(self.sampling)
        except ValueError as error:
            raise UserError(f"{spec.name}: {error}") from None

    def serve(
        self,
        requests: Sequence[Request],
        prompts: Sequence[Sequence[int]],
        times: Floats,
        clock: Callable[[], float] = now,
        length: int | None = None,
        seeds: Sequence[int] = (),
    ) -> tuple[list[Served], list[dict[str, Any]]]:
        """Decode requests that come at `times` [n]; what became of each, and the steps.

        `length`: a bound on the tokens of each text. `seeds` [n]: of each text; default: the plan's and its number. An
        exception of the method ends its request, whose `finish` is then `error`; the others go on.

        A step: when it `began`, its `seconds`, its `rows`, `joined` ones among them, which read their prompts, the
        requests in the `queue`, `fed` tokens of the target's forwards, and `committed` tokens.
        """
        stopwatch = BatchStopwatch(self.pair.device)
        seats: Seats[tuple[Method, RowStopwatch], Served] = Seats(Batch(stopwatch), self.members)
        served = [Served(i, request, float(times[i])) for i, request in enumerate(requests)]
        coming, queue = deque(served), deque[Served]()
        steps: list[dict[str, Any]] = []

        def begin(member: tuple[Method, RowStopwatch], text: Served) -> Row:
            seed = seeds[text.number] if seeds else self.plan.seed + text.number
            row = self._row(member, text, prompts[text.number], length, seed)
            text.began = timeline()
            return row

        with _no_garbage():
            timeline = Timeline(clock)
            while coming or queue or seats.busy:
                while coming and coming[0].came <= timeline():
                    queue.append(coming.popleft())
                if not queue and not seats.busy:
                    timeline.skip_to(coming[0].came)
                    queue.append(coming.popleft())
                joined = min(len(queue), len(seats.free))
                for _ in range(joined):
                    seats.seat(queue.popleft(), begin)
                step, ended = _step(seats, timeline)
                steps.append(step | {"joined": joined, "queue": len(queue)})
                stopwatch.read()
                for row, (_, watch), text in ended:
                    _end(text, row, watch)
        return served, steps

    def _row(
        self, member: tuple[Method, RowStopwatch], text: Served, prompt: Sequence[int], length: int | None, seed: int
    ) -> Row:
        method, watch = member
        ending = ending_of(self.pair, text.request, length)
        rng = torch.Generator(self.pair.device).manual_seed(seed)
        try:
            method.reset(text.request.task)
            rounds = decode_text(method, list(prompt), self.sampling, rng, ending)
        except Exception as error:
            rounds = failing(error)
        return Row(rounds, ending, watch)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Garbage is collected before, and not within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _step(
    seats: Seats[tuple[Method, RowStopwatch], Served], timeline: Timeline
) -> tuple[dict[str, Any], list[tuple[Row, tuple[Method, RowStopwatch], Served]]]:
    """Give all rows their next round, and note when it ended; what the step was, and the rows that ended."""
    rows = [(row, watch, text) for row, ((_, watch), text) in seats.busy.items()]
    before = [len(watch.forwards) for _, watch, _ in rows]
    began = timeline()
    left = seats.step()
    ended = timeline()
    fed = committed = 0
    for (row, watch, text), first in zip(rows, before, strict=True):
        fed += sum(forward.width for forward in watch.forwards[first:] if forward.model == "target")
        if not row.error:
            text.rounds.append(ended)
            committed += len(row.finished[-1].tokens)
    return {"began": began, "seconds": ended - began, "rows": len(rows), "fed": fed, "committed": committed}, left


def _end(text: Served, row: Row, watch: RowStopwatch) -> None:
    """Note what became of a request whose text has ended."""
    not_finite = watch.highest.not_finite()
    if error := row.error or not_finite:
        text.finish, text.error = "error", traceback_text(error, not_finite if row.error else None)
    else:
        text.tokens, text.finish = row.ending.tokens, row.ending.reason


def at_batch_runtime(
    plan: Plan, pair: Pair, rows: int, requests: Sequence[Request], prompts: Sequence[Sequence[int]]
) -> tuple[Pair, str]:
    """The pair at a runtime that computes batches, and why at that.

    Raises UserError if there is none, or no room for so many rows.
    """
    runtime, why = choose.for_batches(plan.runtime, pair)
    pair = replace(pair, runtime=runtime)
    longest = max(request.positions(prompt) for request, prompt in zip(requests, prompts, strict=True))
    needed = {spec.name: demand(pair, partial(prepare.build_alone, spec)) for spec in plan.methods}
    check_room(pair, needed, rows, longest)
    return pair, why


class Load:
    """Serves a plan's documents by every method at every rate; each result is reported as soon as it is there."""

    def __init__(self, plan: Plan, pair: Pair, rows: int, count: int, arrivals: Arrivals) -> None:
        self.plan, self.rows, self.count, self.arrivals = plan, rows, count, arrivals
        requests = load_tasks(plan, pair).requests()
        prompts = encode_all(pair, [request.prompt for request in requests])
        if any(request.turn for request in requests):
            raise UserError(
                "a later turn of a conversation waits for the answer to the earlier one; take single prompts"
            )
        self.pair, why = at_batch_runtime(plan, pair, rows, requests, prompts)
        self.servers = {spec.name: Server(plan, self.pair, spec, rows) for spec in plan.methods}
        methods = {name: server.method for name, server in self.servers.items()}
        check_lengths(requests, prompts, self.pair, max(method.reach for method in methods.values()))
        self.leaks = prepare.leaked(methods, requests)
        self.manifest = manifest(plan, self.pair, requests, prompts, methods, {}, why)
        self.manifest |= {"leaks": self.leaks} if self.leaks else {}
        drawn = random.Random(plan.seed).sample(range(len(requests)), len(requests))
        chosen = [drawn[i % len(drawn)] for i in range(count)]
        self.requests, self.prompts = [requests[i] for i in chosen], [prompts[i] for i in chosen]
        self._warm = False

    def warm_up(self) -> None:
        """Let every method fill its rows once, before anything is timed."""
        few = min(self.rows, self.count)
        for server in self.servers.values():
            server.serve(self.requests[:few], self.prompts, np.zeros(few), length=WARMUP_TOKENS)
        self._warm = True

    def at(self, unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Requests and steps of a method at a rate. Each repeat has arrivals, and seeds of texts, of its own."""
        if not self._warm:
            self.warm_up()
        seed = self.plan.seed + unit.repeat
        times = self.arrivals.times(unit.rate, self.count, seed)
        seeds = [seed + i for i in range(self.count)]
        served, steps = self.servers[unit.method].serve(self.requests, self.prompts, times, seeds=seeds)
        key = unit._asdict()
        rows = [
            key
            | {"request": text.number, "task": text.request.task, "doc_id": text.request.doc_id, "came": text.came}
            | {"began": text.began, "prompt_tokens": len(self.prompts[text.number]), "tokens": text.tokens}
            | {"finish": text.finish, "error": text.error, "rounds": text.rounds}
            for text in served
        ]
        return pd.DataFrame(rows), pd.DataFrame([key | {"step": n} | step for n, step in enumerate(steps)])

    def saturation(self, name: str, advance: Callable[[int], None]) -> float:
        """The highest rate, in requests a second, at which the queue does not grow; found by bisection.

        Raises UserError if the method decodes no text.
        """
        burst, _ = self.at(Unit(name, math.inf))
        advance(1)
        ends = [rounds[-1] for rounds, finish in zip(burst.rounds, burst.finish, strict=True) if finish != "error"]
        if not ends:
            raise UserError(f"{name} decodes no text ({last_line(burst.error.iloc[0])}); leave it out")
        most = self.count / max(ends)
        low, high = most / 4, most * 1.1
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if is_stable(self.at(Unit(name, middle))[0]) else (low, middle)
            advance(1)
        return low


def last_line(traceback: str) -> str:
    """What a traceback ends with: the exception."""
    return (traceback.strip().splitlines() or [""])[-1]
