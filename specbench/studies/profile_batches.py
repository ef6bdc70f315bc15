"""What a forward takes that feeds several texts at once, by their number and the tokens of each."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from specbench.config import UserError
from specbench.engine.clock import BatchStopwatch, RowStopwatch
from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.engine.rows import Batch, Row
from specbench.engine.runtimes.batched import Batched
from specbench.engine.session import Session
from specbench.engine.types import Round

WIDTHS = (1, 3, 6)  # tokens of each text
CONTEXTS = (128, 512)
WARM = 2  # forwards of each kind that are not counted


class Feeding:
    """So many texts of one model, which are fed `width` tokens in each step and forget them again."""

    def __init__(self, pair: Pair, role: str, rows: int, context: int) -> None:
        self.context, self.width = context, 1
        self.rng = random.Random(0)
        self.vocabulary = pair.vocabulary
        self.watch = RowStopwatch()
        self.stopwatch = BatchStopwatch(pair.device)
        self.batch = Batch(self.stopwatch)
        for row in range(rows):
            watch = self.watch if row == 0 else RowStopwatch()
            session = pair.session(role, watch)
            self.batch.join(Row(self._rounds(session), Ending(Limits(1, frozenset()), str), watch))
        self.batch.step()  # reads the contexts

    def _rounds(self, session: Session) -> Iterator[Round]:
        session.restart(self._tokens(self.context))
        yield Round([])
        while True:
            session.forward(self._tokens(self.width))
            session.truncate(self.context)
            yield Round([])

    def _tokens(self, count: int) -> list[int]:
        return self.rng.choices(range(self.vocabulary), k=count)

    def seconds(self, width: int) -> float:
        """The time of a forward over `width` tokens of each text."""
        self.width = width
        self.batch.step()
        self.stopwatch.read()
        forward = self.watch.forwards[-1]
        assert forward.whole
        return forward.whole.seconds


def measure_batches(
    pair: Pair, sizes: Sequence[int], repeats: int, advance: Callable[[int], None] = lambda count: None
) -> pd.DataFrame:
    """Seconds of a warm forward by model, rows (texts), context and width (tokens of each text).

    Median and quartiles (low, high) of `repeats`, all kinds in a random order. `advance` is called after each repeat.
    Raises UserError for a runtime that computes no batches, and if no context fits the models.
    """
    batched = replace(pair, runtime=Batched(pair.runtime.name))
    contexts = [context for context in CONTEXTS if context + max(WIDTHS) <= pair.context]
    if not contexts:
        raise UserError(f"{pair.name} has only {pair.context} positions; forwards cannot be measured")
    fed = {
        (role, rows, context): Feeding(batched, role, rows, context)
        for role in pair.models
        for rows in sizes
        for context in contexts
    }
    cells = [(key, width) for key in fed for width in WIDTHS]
    seconds: dict[tuple[tuple[str, int, int], int], list[float]] = {cell: [] for cell in cells}
    rng = random.Random(0)
    for repeat in range(-WARM, repeats):
        for key, width in rng.sample(cells, len(cells)):
            took = fed[key].seconds(width)
            if repeat >= 0:
                seconds[key, width].append(took)
        advance(1)
    table = [(*key, width, *np.quantile(seconds[key, width], [0.5, 0.25, 0.75])) for key, width in cells]
    return pd.DataFrame(table, columns=["model", "rows", "context", "width", "median", "low", "high"])
