"""`specbench throughput`: the target alone and speculative methods, in fixed batches of texts (CoSpec, Table 9).

Every method decodes each batch, in one process and in a random order.
"""

import gc
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from specbench.analysis.metrics import interval_columns
from specbench.base import environment
from specbench.base.stats import Paired, speedup
from specbench.config import UserError
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Method, Sampling
from specbench.measure import prepare
from specbench.measure.divergence import Divergence, Reference, diverged
from specbench.methods.cospec import Never
from specbench.methods.cospec_batch import Text
from specbench.plan import Plan
from specbench.studies.fixed_batch import Speculation, decode, speculation
from specbench.tasks.harness import Request

BASE = "vanilla"
WARMUP_TOKENS = 8


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
        self.plan, self.pair = plan, pair
        self.sampling = Sampling(plan.temperature, plan.top_k, plan.top_p)
        self.how = {spec.name: speculation(spec, pair) for spec in plan.methods if spec.method != BASE}
        self.methods: dict[str, Speculation | None] = {BASE: None, **self.how}
        self.requests = prepare.load_tasks(plan, pair).requests()
        random.Random(plan.seed).shuffle(self.requests)  # otherwise a batch would hold one task
        self.prompts = [prepare.encode(pair, request.prompt) for request in self.requests]
        # A text is padded for as long as others of its batch go on.
        longest = max(request.max_new_tokens for request in self.requests)
        reach = max((2 * how.gamma + 1 for how in self.how.values()), default=1)
        padded = [replace(request, max_new_tokens=longest) for request in self.requests]
        prepare.check_lengths(padded, self.prompts, pair, reach)
        counts = {size: max(batches, math.ceil(len(self.requests) / size)) for size in sizes}
        self.jobs = [(size, number) for size, count in counts.items() for number in range(count)]
        random.Random(plan.seed).shuffle(self.jobs)  # a drifting machine favours no size
        self.alone: dict[str, list[list[int]]] = {}  # greedy texts of each method, one by one
        self.tallies = {(size, name): Tally() for size in sizes for name in self.methods}
        self.divergences: list[Divergence] = []

    @property
    def total(self) -> int:
        """The steps of `carry_out`; a text decoded alone counts as much as a batch."""
        alone = len(self.requests) * sum(self._repeatable(name) for name in self.methods)
        return alone + len(self.methods) * (len(self.jobs) + len({size for size, _ in self.jobs}))

    def carry_out(self, advance: Callable[[int], None]) -> None:
        """Decode everything and fill the tallies. Raises UserError for a batch that does not fit into memory."""
        for spec in self.plan.methods:
            if self._repeatable(spec.name):
                method = prepare.build(spec, self.pair, Unwatched())
                self.alone[spec.name] = [self._alone(method, at, advance) for at in range(len(self.requests))]
        gc.collect()
        gc.freeze()
        for size in sorted({size for size, _ in self.jobs}, reverse=True):
            for how in self.methods.values():
                self._decode(how, self._texts(range(size), WARMUP_TOKENS))
                advance(1)
        order = random.Random(self.plan.seed)
        for size, number in self.jobs:
            chosen = [(number * size + i) % len(self.requests) for i in range(size)]
            for name in order.sample(list(self.methods), len(self.methods)):
                texts = self._texts(chosen)
                self._note(name, chosen, texts, self._decode(self.methods[name], texts, number))
                advance(1)

    def _repeatable(self, name: str) -> bool:
        """True if the method gives the same text each time, so that batches can be compared with single texts."""
        how = self.methods[name]
        return self.sampling.greedy and (how is None or how.repeatable)

    def _alone(self, method: Method, at: int, advance: Callable[[int], None]) -> list[int]:
        ending = self._ending(self.requests[at])
        rng = torch.Generator(self.pair.device)
        for _ in decode_text(method, self.prompts[at], self.sampling, rng, ending):
            pass
        advance(1)
        return ending.tokens

    def _ending(self, request: Request, most: int | None = None) -> Ending:
        length = min(most or request.max_new_tokens, request.max_new_tokens)
        return Ending(Limits(length, self.pair.eos_ids, request.until), self.pair.detokenizer)

    def _texts(self, chosen: Sequence[int], most: int | None = None) -> list[Text]:
        places = [at % len(self.requests) for at in chosen]
        return [Text(self.prompts[at], self._ending(self.requests[at], most)) for at in places]

    def _decode(self, how: Speculation | None, texts: list[Text], number: int = 0) -> float:
        try:
            return decode(self.pair, how, texts, self.sampling, self.plan.seed + number)
        except torch.OutOfMemoryError:
            raise UserError(f"a batch of {len(texts)} does not fit into the memory; leave it out of --batch") from None

    def _note(self, name: str, chosen: Sequence[int], texts: Sequence[Text], seconds: float) -> None:
        how, tally = self.methods[name], self.tallies[len(texts), name]
        tally.seconds.append(seconds)
        tally.tokens.append(sum(len(text.ending.tokens) - 1 for text in texts))
        tally.rounds += sum(len(text.turns) for text in texts) if how else tally.tokens[-1]
        if name not in self.alone:
            return
        tally.compared += len(texts)
        tally.equal += sum(text.ending.tokens == self.alone[name][at] for text, at in zip(texts, chosen, strict=True))
        if how is None or isinstance(how.arbiter, Never):
            for text in texts:
                if divergence := diverged(
                    Reference(self.pair, None), text.prompt, self._vanilla(text), text.ending.tokens
                ):
                    self.divergences.append(divergence)

    def _vanilla(self, text: Text) -> list[int]:
        return self.alone[BASE][next(at for at, prompt in enumerate(self.prompts) if prompt is text.prompt)]

    def result(self) -> Throughput:
        rows = [self._row(size, name) for size, name in self.tallies]
        return Throughput(
            self.pair.name,
            self.plan.suite,
            self.plan.sampling.name,
            self.plan.temperature,
            len(self.requests),
            environment.describe(self.pair.device),
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
