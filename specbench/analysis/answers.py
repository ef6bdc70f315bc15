"""Answers that say nothing of a method's speed: empty ones, and ones that repeat themselves up to the limit."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.analysis import metrics
from specbench.results.stored import StoredRun

TIMES = 4  # as often the end of a looping text repeats one string
SHORTEST = 20  # characters of such an end: of less, nothing is said
VISIBLE = r"[!-~\pL]"  # a text with such a character is not empty; one without may have another that is visible
READ = [*metrics.SAMPLE, "warmup", "finish", "text", "other_chunks"]
# Why a server's text has no time per token.
LATE, WHOLE, NOTHING, HIDDEN = "late", "whole", "nothing", "hidden"


def is_empty(text: str) -> bool:
    """True if a text has no visible character."""
    return not text.strip()


def loops(text: str) -> bool:
    """True if the last half of a text is one string, TIMES times or more, the last time perhaps cut.

    It means a loop of a text that the limit of new tokens ended; any other came out of it.
    """
    end = text[len(text) // 2 :]
    if len(end) < SHORTEST:
        return False
    # Most of the end comes again a period later. If the end has any period of a quarter or less, the first is one.
    period = end.find(end[: len(end) - len(end) // TIMES], 1)
    return 0 < period <= len(end) // TIMES and end[period:] == end[:-period]


def of_texts(run: StoredRun) -> pd.DataFrame:
    """Columns `empty`, `loops`, `no_text` and `untimed` of each timed text, indexed as `metrics.per_document`.

    `no_text` is an answer without a text because all of its tokens were thoughts or tool calls: it took its time, and
    is not `empty`. Texts that are not recorded are none of them. `untimed` is why a server's text has no time per token
    (LATE and so on), else empty.
    """
    timed = ~pc.field("warmup") & ((pc.field("finish") != "error") | pc.field("finish").is_null())
    parts = [_marks(batch) for batch in run.scan_samples().to_batches(READ, timed)]
    marks = pd.concat(parts) if parts else _marks(run.scan_samples().schema.empty_table().select(READ))
    return marks.set_index(metrics.SAMPLE).join(_untimed(run, timed)).fillna({"untimed": ""})


def _untimed(run: StoredRun, timed: pc.Expression) -> "pd.Series[str]":
    """Why texts of servers have no time per token, by text, of those that have none."""
    without = timed & pc.field("decode_seconds").is_null() & pc.field("chunks").is_valid()
    rows = run.scan_samples().to_table([*metrics.SAMPLE, "chunks", "thought_tokens", "other_chunks"], without)
    frame = rows.to_pandas().set_index(metrics.SAMPLE)
    thought = (frame.thought_tokens.fillna(0) > 0) & (frame.other_chunks == 0)
    parts = frame.chunks.map(len).astype(int)
    untimed = pd.Series(LATE, frame.index, name="untimed", dtype=object)
    return untimed.mask(thought, HIDDEN).mask(parts == 1, WHOLE).mask(parts == 0, NOTHING)


def _marks(rows: pa.RecordBatch | pa.Table) -> pd.DataFrame:
    text, cut = rows["text"], pc.equal(rows["finish"], "length")
    empty = _found(is_empty, text, pc.invert(pc.match_substring_regex(text, VISIBLE)))
    looping = _found(loops, text, pc.and_(cut, pc.is_valid(text)))
    frame = rows.select([*metrics.SAMPLE, "other_chunks"]).to_pandas()
    other = empty & (frame.pop("other_chunks").fillna(0) > 0)
    return frame.assign(empty=empty & ~other, loops=looping & ~empty, no_text=other)


def _found(is_so: Callable[[str], bool], texts: pa.Array, asked: pa.Array) -> NDArray[np.bool_]:
    """Which texts are so; only of those that are `asked`, as a look at each takes long."""
    asked = pc.fill_null(asked, False)
    found = np.zeros(len(texts), bool)
    found[np.flatnonzero(asked)] = [is_so(text) for text in texts.filter(asked).to_pylist()]
    return found


def fit(counts: pd.DataFrame) -> pd.DataFrame:
    """The texts that speeds are compared on, of those of `pooled.Measured`."""
    return counts[~(counts["empty"] | counts.loops)] if "loops" in counts else counts
