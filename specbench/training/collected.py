"""What a training collects: a Parquet file for each document, so that a stopped collection goes on.

Files depend on nothing but their own documents, so that several workers can make them, each a share.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from specbench.base import parquet
from specbench.base.untrusted import brief, parse_json
from specbench.config import UserError
from specbench.training.documents import Document

Facts = Mapping[str, object]
Data = TypeVar("Data")
LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Share:
    """Which files of a collection one worker makes: every `of`-th from `number` on, counted from 0."""

    number: int
    of: int


class Collected(Exception):
    """A worker has collected its share, and is not to train."""


_share: ContextVar[Share | None] = ContextVar("share", default=None)


@contextmanager
def sharing(share: Share) -> Iterator[None]:
    """Make only a share of what is collected within the block, and read nothing; ends at `Collected`."""
    token = _share.set(share)
    try:
        yield
    except Collected:
        pass
    finally:
        _share.reset(token)


def shared() -> bool:
    """True within `sharing`."""
    return _share.get() is not None


def left_to_others(index: int) -> bool:
    """True if another worker makes a collection's file of this index."""
    share = _share.get()
    return share is not None and index % share.of != share.number


def collect_all(
    documents: Sequence[Document],
    folder: Path,
    facts: Callable[[Document], Facts],
    collect: Callable[[Document], pa.Table],
    read: Callable[[pa.Table], Data],
    advance: Callable[[int], None],
) -> dict[str, Data]:
    """Collect every document's table into a file in `folder`, or read it if it is there; returns the data by name.

    `facts` (JSON-like) are all that a document's table depends on, and `read` turns a table into the data; `advance` is
    called with 1 after each. Raises UserError if a file is damaged or was collected under other facts.
    """
    data = {}
    for index, document in enumerate(documents):
        if left_to_others(index):
            continue
        path, document_facts = folder / f"{document.name}.parquet", facts(document)
        if not path.exists():
            put_table(path, collect(document), {"facts": document_facts})
        data[document.name] = read_collected(path, document_facts, read)
        advance(1)
    return data


def read_collected(path: Path, facts: Facts, read: Callable[[pa.Table], Data]) -> Data:
    """The data in a file. Raises UserError if it is damaged or was collected under other facts."""
    remedy = "delete it to collect that document again"
    try:
        table = parquet.read(path, remedy=remedy)
        stored, data = parse_json((table.schema.metadata or {})[b"facts"].decode(), str(path), remedy), read(table)
    except (*parquet.ERRORS, AttributeError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); {remedy}") from None
    if not isinstance(stored, dict):
        raise UserError(f"{path} is damaged (it does not say how it was collected); {remedy}")
    if differing := [key for key, value in facts.items() if stored.get(key) != value]:
        names = ", ".join(differing)
        raise UserError(
            f"{path.parent} was collected with different {names}; delete that folder, or choose another --out"
        )
    return data


def put_table(path: Path, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Write a Parquet file at once or not at all; `metadata` (JSON-like) is added to the table's own."""
    added = {key: json.dumps(value) for key, value in metadata.items()}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **added})
    parquet.write(path, table)


def half(states: Tensor) -> NDArray[np.float16]:
    """Hidden states of any shape in the type they are stored in, without infinities."""
    return states.float().clamp(-LARGEST, LARGEST).cpu().numpy().astype(np.float16)


def state_column(states: NDArray[np.float16]) -> pa.Array:
    """Hidden states [n, D] as a column of lists."""
    n, width = states.shape
    return pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * width, pa.int32()), pa.array(states.ravel()))


def states_of(column: pa.ChunkedArray) -> NDArray[np.float16]:
    """The hidden states [n, D] in a column; [0, 0] if it is empty."""
    if not len(column):
        return np.empty((0, 0), np.float16)
    return column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
