"""What a training collects of each document: a Parquet file of its own, so that a stopped collection goes on."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from specbench import files, parquet
from specbench.config import UserError
from specbench.train.documents import Document
from specbench.untrusted import brief, parse_json

Facts = Mapping[str, object]
Told = TypeVar("Told")
LARGEST = float(np.finfo(np.float16).max)


def collect_all(
    documents: Sequence[Document],
    folder: Path,
    facts: Callable[[Document], Facts],
    collect: Callable[[Document], pa.Table],
    read: Callable[[pa.Table], Told],
    advance: Callable[[int], None],
) -> dict[str, Told]:
    """What every document tells, by its name, in a file each in `folder`; those of an earlier call are read instead.

    `facts` (JSON-like) are all that a document's table depends on, and `read` makes of the table what is returned;
    `advance` is called with 1 after each. Raises UserError if a file is damaged or was collected under other facts.
    """
    found = {}
    for document in documents:
        path, known = folder / f"{document.name}.parquet", facts(document)
        if not path.exists():
            put_table(path, collect(document), {"facts": known})
        found[document.name] = read_collected(path, known, read)
        advance(1)
    return found


def read_collected(path: Path, facts: Facts, read: Callable[[pa.Table], Told]) -> Told:
    remedy = "delete it to collect that document again"
    try:
        table = parquet.read(path, remedy=remedy)
        stored, told = parse_json((table.schema.metadata or {})[b"facts"].decode(), str(path), remedy), read(table)
    except (*parquet.ERRORS, AttributeError) as error:
        raise UserError(f"{path} is damaged ({brief(error)}); {remedy}") from None
    if not isinstance(stored, dict):
        raise UserError(f"{path} is damaged (it does not tell how it was collected); {remedy}")
    if differing := [key for key, value in facts.items() if stored.get(key) != value]:
        what = ", ".join(differing)
        raise UserError(f"{path.parent} was collected with other {what}; delete that folder, or choose another --out")
    return told


def put_table(path: Path, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Write a Parquet file at once or not at all; `metadata` (JSON-like) is added to the table's own."""
    added = {key: json.dumps(value) for key, value in metadata.items()}
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **added})
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as new:
        pq.write_table(table, new, compression="zstd")


def half(states: Tensor) -> NDArray[np.float16]:
    """Hidden states as they are kept, of any shape."""
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
