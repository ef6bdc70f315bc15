"""`specbench throughput`: the target alone and speculative methods, in fixed batches of texts (CoSpec, Table 9).

Every method decodes each batch, in one process and in a random order.
"""

import gc
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis.metrics import interval_columns
from specbench.base import environment
from specbench.base.stats import Paired, speedup
from specbench.config import MethodSpec, UserError
from specbench.engine.generate import decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Sampling
from specbench.measure import prepare
from specbench.measure.divergence import Divergence, Reference, diverged
from specbench.measure.prompts import check_lengths, encode_all, load_tasks
from specbench.measure.sample import WARMUP_TOKENS, ending_of
from specbench.plan import Plan
from specbench.studies.load import Served, Server, at_batch_runtime, last_line

BASE = "vanilla"


@dataclass
class Tally:
    """What one method did in the batches of one size, batch by batch."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # after the first of each text
    rounds: int = 0  # of all texts
    compared: int = 0  # texts compared with those that the method decodes one by one
    equal: int = 0

    @property
    def per_second(self) -> float:
        return sum(self.tokens) / sum(self.seconds) if sum(self.seconds) else math.nan


@dataclass(frozen=True)
class Throughput:
    """Figures of one pair; the table has a row for each batch size and method, with the columns of `Bench._row`."""

    pair: str
    suite: str
    sampling: str
    temperature: float
    documents: int
    environment: dict[str, Any]
    models: dict[str, dict[str, object]]
    settings: dict[str, dict[str, Any]]  # of each method
    table: pd.DataFrame
    divergences: list[dict[str, Any]]  # where greedy lossless texts differ from vanilla's

    @property
    def bugs(self) -> int:
        return sum(divergence["kind"] == "bug" for divergence in self.divergences)


class Bench:
    """Decodes batches of a plan's documents and keeps tallies by batch size and method."""

    def __init__(self, plan: Plan, pair: Pair, sizes: Sequence[int], batches: int) -> None:
        self.plan = plan
        self.sampling = Sampling(**plan.sampling.model_dump())
        # A later turn of a conversation waits for the answer to an earlier one: only first turns are decoded.
        self.requests = [r for r in load_tasks(plan, pair).requests() if r.turn == 0]
        random.Random(plan.seed).shuffle(self.requests)  # otherwise a batch would hold one task
        self.prompts = encode_all(pair, [request.prompt for request in self.requests])
        most = max(sizes)
        self.pair, _ = at_batch_runtime(plan, pair, most, self.requests, self.prompts)
        self.servers = {spec.name: Server(plan, self.pair, spec, most) for spec in plan.methods}
        self.lossless = {name: server.method.lossless for name, server in self.servers.items()}
        reach = max(server.method.reach for server in self.servers.values())
        check_lengths(self.requests, self.prompts, self.pair, reach)
        counts = {size: max(batches, math.ceil(len(self.requests) / size)) for size in sizes}
        self.jobs = [(size, number) for size, count in counts.items() for number in range(count)]
        random.Random(plan.seed).shuffle(self.jobs)  # a drifting machine favours no size
        self.alone: dict[str, list[list[int]]] = {}  # greedy texts of each method, one by one
        self.tallies = {(size, name): Tally() for size in sizes for name in self.servers}
        self.divergences: list[Divergence] = []

    @property
    def total(self) -> int:
        """The steps of `carry_out`; a text decoded alone counts as much as a batch."""
        alone = len(self.requests) * len(self.servers) * self.sampling.greedy
        return alone + len(self.servers) * (len(self.jobs) + len({size for size, _ in self.jobs}))

    def carry_out(self, advance: Callable[[int], None]) -> None:
        """Decode everything and fill the tallies. Raises UserError for a batch that does not fit into memory."""
        if self.sampling.greedy:
            for spec in self.plan.methods:
                self.alone[spec.name] = [self._alone(spec, at, advance) for at in range(len(self.requests))]
        gc.collect()
        gc.freeze()
        for size in sorted({size for size, _ in self.jobs}, reverse=True):
            for name in self.servers:
                self._decode(name, [at % len(self.requests) for at in range(size)], WARMUP_TOKENS)
                advance(1)
        order = random.Random(self.plan.seed)
        for size, number in self.jobs:
            chosen = [(number * size + i) % len(self.requests) for i in range(size)]
            for name in order.sample(list(self.servers), len(self.servers)):
                self._note(name, chosen, *self._decode(name, chosen))
                advance(1)

    def _alone(self, spec: MethodSpec, at: int, advance: Callable[[int], None]) -> list[int]:
        """A text as the method decodes it one by one, having learned nothing from others."""
        method = prepare.build(spec, self.pair, Unwatched())
        method.reset(self.requests[at].task)
        ending = ending_of(self.pair, self.requests[at], None)
        rng = torch.Generator(self.pair.device).manual_seed(self.plan.seed + at)
        for _ in decode_text(method, self.prompts[at], self.sampling, rng, ending):
            pass
        advance(1)
        return ending.tokens

    def _decode(self, name: str, chosen: Sequence[int], length: int | None = None) -> tuple[list[Served], float]:
        """Decode the texts of these documents together.

        Also the seconds until the last text ends, counted from when all models have read the prompts and each text has
        its first token.
        """
        requests, prompts = [self.requests[at] for at in chosen], [self.prompts[at] for at in chosen]
        seeds = [self.plan.seed + at for at in chosen]
        served, _ = self.servers[name].serve(requests, prompts, np.zeros(len(chosen)), length=length, seeds=seeds)
        if failed := next((text for text in served if text.error), None):
            why = last_line(failed.error)
            if "OutOfMemoryError" in why:
                raise UserError(f"a batch of {len(chosen)} does not fit into the memory; leave it out of --batch")
            raise UserError(f"{name} fails on {failed.request.task}, document {failed.request.doc_id}: {why}")
        return served, max(text.rounds[-1] for text in served) - served[0].rounds[0]

    def _note(self, name: str, chosen: Sequence[int], served: Sequence[Served], seconds: float) -> None:
        tally = self.tallies[len(served), name]
        tally.seconds.append(seconds)
        tally.tokens.append(sum(len(text.tokens) - 1 for text in served))
        tally.rounds += sum(len(text.rounds) - 1 for text in served)
        if name not in self.alone:
            return
        tally.compared += len(served)
        tally.equal += sum(text.tokens == self.alone[name][at] for text, at in zip(served, chosen, strict=True))
        for text, at in zip(served, chosen, strict=True) if self.lossless[name] else ():
            reference = Reference(self.pair, None)
            if divergence := diverged(reference, self.prompts[at], self.alone[BASE][at], text.tokens):
                self.divergences.append(divergence)

    def result(self) -> Throughput:
        rows = [self._row(size, name) for size, name in self.tallies]
        return Throughput(
            self.pair.name,
            self.plan.suite,
            self.plan.sampling.name,
            self.plan.temperature,
            len(self.requests),
            environment.describe(self.pair.device, self.pair.draft_device),
            self.pair.describe(),
            {spec.name: spec.values for spec in self.plan.methods},
            pd.DataFrame(rows),
            [vars(divergence) for divergence in self.divergences],
        )

    def _row(self, size: int, name: str) -> dict[str, Any]:
        """The figures of one size and method: tokens/s over all batches, and the speedup, paired batch by batch."""
        mine, base = self.tallies[size, name], self.tallies[size, BASE]
        row = {"batch": size, "method": name, "batches": len(mine.seconds), "texts": size * len(mine.seconds)}
        row |= {"tokens": sum(mine.tokens), "seconds": sum(mine.seconds), "tokens_per_s": mine.per_second}
        row |= {"tau": sum(mine.tokens) / mine.rounds if mine.rounds else math.nan}
        columns = [np.array(values, float) for values in (base.seconds, base.tokens, mine.seconds, mine.tokens)]
        row |= interval_columns("speedup", speedup(Paired(*columns)) if name != BASE else None)
        return row | {"compared": mine.compared, "equal": mine.equal}
