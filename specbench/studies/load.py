"""`specbench load`: requests that come while others are decoded (CoSpec, arXiv 2605.24793, Table 10).

Open loop: a request comes at its time whether or not earlier ones are done. Up to `rows` texts are decoded together,
the others wait in the order in which they came; a text joins between rounds. Every method gets the same requests at the
same times. While nothing is decoded, the time until the next request is skipped instead of waited for.
"""

import gc
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis.load import is_stable
from specbench.base.stats import Floats
from specbench.base.untrusted import read_text
from specbench.config import MethodSpec, UserError
from specbench.engine.clock import BatchStopwatch, RowStopwatch, now
from specbench.engine.generate import decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.rows import Batch, Row
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.batched import Batched
from specbench.engine.types import Sampling
from specbench.measure import prepare
from specbench.measure.room import check_room
from specbench.measure.sample import WARMUP_TOKENS, ending_of
from specbench.plan import Plan
from specbench.tasks.harness import Request

POISSON, CONSTANT = "poisson", "constant"
BISECTIONS = 5  # rates that are tried between a quarter of what a full batch gives and somewhat more than all of it
MOST_TRACE = 10_000_000  # bytes


def arrivals(kind: str, rate: float, count: int, seed: int) -> Floats:
    """The seconds [count] at which requests come, the first at 0: by a Poisson process, evenly, or as a trace tells.

    A trace is a file with a number of seconds on each line; it is stretched to the rate, and begins again at its end.
    """
    if kind == CONSTANT:
        return np.arange(count) / rate
    if kind == POISSON:
        gaps = np.random.default_rng(seed).exponential(1 / rate, count)
        return np.cumsum(gaps) - gaps[0]
    gaps = trace_gaps(Path(kind))
    chosen = np.resize(gaps, count)
    times = np.cumsum(chosen) - chosen[0]
    return times * (count - 1) / rate / times[-1] if count > 1 and times[-1] > 0 else times


def trace_gaps(path: Path) -> Floats:
    """The seconds between the requests of a trace. Raises UserError for a file that is none."""
    if not path.is_file():
        raise UserError(
            f"--arrivals {path}: choose {POISSON}, {CONSTANT} or a file with the seconds of a request a line"
        )
    try:
        times = np.array([float(line) for line in read_text(path, MOST_TRACE).split()])
    except ValueError:
        times = np.array([math.nan])
    if len(times) < 2 or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise UserError(f"{path} is no trace of arrivals: it needs two rising numbers of seconds or more, one a line")
    return np.diff(times, prepend=times[0] - np.diff(times).mean())


@dataclass
class Served:
    """A request: when it came, when a row was free for it, and when each of its rounds ended; in seconds."""

    number: int
    request: Request
    came: float
    began: float = math.nan
    rounds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish: str = ""


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
        self.watches = [RowStopwatch() for _ in range(rows)]
        self.methods = [prepare.build(spec, batched, watch) for watch in self.watches]
        if why := prepare.why_alone(spec.name, self.methods[0]):
            raise UserError(f"{why}, so it serves no requests that come at the same time; leave it out")
        self.sampling = Sampling(plan.temperature, plan.top_k, plan.top_p)

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

        `length`: a bound on the tokens of each text. `seeds` [n]: of each text; default: the plan's and its number.

        A step: when it `began`, its `seconds`, its `rows`, `joined` ones among them, which read their prompts, the
        requests in the `queue`, `fed` tokens of the target's forwards, and `committed` tokens.
        """
        stopwatch = BatchStopwatch(self.pair.device)
        batch, free, queue = Batch(stopwatch), deque(range(len(self.methods))), deque[Served]()
        served = [Served(i, request, float(times[i])) for i, request in enumerate(requests)]
        coming, active = deque(served), dict[Row, tuple[Served, int]]()
        steps: list[dict[str, Any]] = []
        gc.collect()
        gc.disable()
        try:
            timeline = Timeline(clock)
            while coming or queue or batch.rows:
                while coming and coming[0].came <= timeline():
                    queue.append(coming.popleft())
                if not queue and not batch.rows:
                    timeline.skip_to(coming[0].came)
                    queue.append(coming.popleft())
                    continue
                joined = 0
                while queue and free:
                    one, index = queue.popleft(), free.popleft()
                    seed = seeds[one.number] if seeds else self.plan.seed + one.number
                    row = self._row(one, prompts[one.number], index, length, seed)
                    one.began = timeline()
                    active[row] = one, index
                    batch.join(row)
                    joined += 1
                rows, began = list(batch.rows), timeline()
                before = {row: len(row.watch.forwards) for row in rows if row.watch}
                batch.step()
                ended = timeline()
                for row in rows:
                    one, index = active[row]
                    if row.error:
                        raise row.error
                    one.rounds.append(ended)
                    if row.ended:
                        one.tokens, one.finish = row.ending.tokens, row.ending.reason
                        free.append(index)
                        del active[row]
                fed = sum(
                    forward.width
                    for row in rows
                    if row.watch
                    for forward in row.watch.forwards[before[row] :]
                    if forward.model == "target"
                )
                committed = sum(len(row.finished[-1].tokens) for row in rows)
                steps.append(
                    {"began": began, "seconds": ended - began, "rows": len(rows), "joined": joined}
                    | {"queue": len(queue), "fed": fed, "committed": committed}
                )
        finally:
            gc.enable()
        return served, steps

    def _row(self, one: Served, prompt: Sequence[int], index: int, length: int | None, seed: int) -> Row:
        method, watch = self.methods[index], self.watches[index]
        method.reset(one.request.task)
        ending = ending_of(self.pair, one.request, length)
        rng = torch.Generator(self.pair.device).manual_seed(seed)
        return Row(decode_text(method, list(prompt), self.sampling, rng, ending), ending, watch)


def at_batch_runtime(
    plan: Plan, pair: Pair, rows: int, requests: Sequence[Request], prompts: Sequence[Sequence[int]]
) -> Pair:
    """The pair at a runtime that computes batches. Raises UserError if there is none, or no room for so many rows."""
    runtime, _ = choose.for_batches(plan.runtime, pair)
    longest = max(request.positions(prompt) for request, prompt in zip(requests, prompts, strict=True))
    check_room(pair, len(plan.methods), rows, longest)
    return replace(pair, runtime=runtime)


class Load:
    """Serves a plan's documents by every method at every rate; each result is reported as soon as it is there."""

    def __init__(self, plan: Plan, pair: Pair, rows: int, count: int, kind: str) -> None:
        self.plan, self.rows, self.count, self.kind = plan, rows, count, kind
        requests = prepare.load_tasks(plan, pair).requests()
        prompts = prepare.encode_all(pair, [request.prompt for request in requests])
        self.pair = at_batch_runtime(plan, pair, rows, requests, prompts)
        if any(request.turn for request in requests):
            raise UserError(
                "a later turn of a conversation waits for the answer to the earlier one; take single prompts"
            )
        self.servers = {spec.name: Server(plan, self.pair, spec, rows) for spec in plan.methods}
        reach = max(method.reach for server in self.servers.values() for method in server.methods[:1])
        prepare.check_lengths(requests, prompts, self.pair, reach)
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

    def at(self, name: str, rate: float) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Requests and steps of a method at a rate, in requests a second; infinite: all come at once."""
        if not self._warm:
            self.warm_up()
        times = np.zeros(self.count) if math.isinf(rate) else arrivals(self.kind, rate, self.count, self.plan.seed)
        served, steps = self.servers[name].serve(self.requests, self.prompts, times)
        key = {"method": name, "rate": rate}
        rows = [
            key
            | {"request": one.number, "task": one.request.task, "doc_id": one.request.doc_id, "came": one.came}
            | {"began": one.began, "prompt_tokens": len(self.prompts[one.number]), "tokens": one.tokens}
            | {"finish": one.finish, "rounds": one.rounds}
            for one in served
        ]
        return pd.DataFrame(rows), pd.DataFrame([key | {"step": n} | step for n, step in enumerate(steps)])

    def saturation(self, name: str, advance: Callable[[int], None]) -> float:
        """The highest rate, in requests a second, at which the queue does not grow; found by bisection."""
        burst, _ = self.at(name, math.inf)
        advance(1)
        most = self.count / max(rounds[-1] for rounds in burst.rounds)
        low, high = most / 4, most * 1.1
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if is_stable(self.at(name, middle)[0]) else (low, middle)
            advance(1)
        return low
