"""Flatten the list columns of rounds: an element for each drafted token, by whole columns instead of round by round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.config import UserError
from specbench.results.stored import StoredRun


@dataclass(frozen=True)
class Elements:
    """The elements of a batch's lists, arrays [elements]."""

    row: NDArray[np.int64]  # the round in the batch
    position: NDArray[np.int64]  # in the round's list
    values: dict[str, NDArray[Any]]  # by column


def flatten(run: StoredRun, batch: pa.RecordBatch, columns: Sequence[str], optional: str) -> Elements:
    """Flatten `columns` and `optional`, a column of numbers that are NaN for rounds without a list there.

    Raises UserError if the lists of a round differ in length.
    """
    counts = {name: pc.list_value_length(batch.column(name)).fill_null(0).to_numpy() for name in (*columns, optional)}
    lengths = counts[columns[0]]
    present = batch.column(optional).is_valid().to_numpy(zero_copy_only=False)
    same = all(np.array_equal(counts[name], lengths) for name in columns)
    if not same or not np.array_equal(counts[optional], lengths * present):
        raise UserError(f"a round of {run.folder} has lists of different lengths; the records are damaged")
    row = np.repeat(np.arange(len(lengths)), lengths)
    values = {name: batch.column(name).flatten().to_numpy(zero_copy_only=False) for name in columns}
    values[optional] = np.full(len(row), math.nan)
    values[optional][present[row]] = batch.column(optional).flatten().to_numpy(zero_copy_only=False)
    return Elements(row, np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row], values)
