"""Parquet files from anywhere: read only if they are whole, of the right form, and not far larger in memory.

A column of equal values takes a few bytes in a file, however many rows it has. So before a file is read, its size in
memory is computed from its footer, or from its dictionaries if the footer does not tell how long its texts are.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbench.base import files
from specbench.base.errors import UserError
from specbench.base.parquet_footer import Column
from specbench.base.parquet_footer import columns as footer_columns
from specbench.base.untrusted import brief, regular

LEAST = 2**28  # bytes that any file may take in memory
TIMES = 64  # bytes in memory granted for each byte of the file; real files need up to 26
# For example: a page of another size than the footer says, an index outside its dictionary, text that is not UTF-8.
ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)


def check(
    path: Path, schema: pa.Schema | None = None, needed: Sequence[str] = (), remedy: str = "", least: int = LEAST
) -> pa.Schema:
    """The schema of a file, after checks.

    Args:
        schema: the types that columns must have, if they are there.
        needed: columns that must be there.
        remedy: what the user can do; it ends the error message.
        least: bytes in memory that are granted to any file.

    Raises:
        UserError: the file is damaged, of another form, or would be far larger in memory than on the disk.
    """
    end = f"; {remedy}" if remedy else ""
    size = regular(path, remedy=remedy)
    try:
        groups, most = footer_columns(path), least + TIMES * size
        with pq.ParquetFile(path) as file:
            stored = file.schema_arrow
            if sum(map(_upper_bound, groups)) > most and _measured(path, groups, most) > most:
                raise UserError(f"{path} would take more than {most // 2**20} MiB of memory, and has {size} bytes{end}")
    except ERRORS as error:
        raise UserError(f"{path} is damaged ({brief(error)}){end}") from None
    names = stored.names
    for name in needed:
        if name not in names:
            raise UserError(f"{path} is another kind of file: it has no column {name!r}{end}")
    for name in names if schema is not None else ():
        assert schema is not None
        if names.count(name) > 1:
            raise UserError(f"{path} is damaged (two columns {name!r}){end}")
        if name in schema.names and not _fits(stored.field(name).type, schema.field(name).type):
            is_type, wanted = stored.field(name).type, schema.field(name).type
            raise UserError(f"{path} is another kind of file: its column {name!r} is {is_type}, not {wanted}{end}")
    return stored


def read(
    path: Path,
    schema: pa.Schema | None = None,
    needed: Sequence[str] = (),
    columns: list[str] | None = None,
    remedy: str = "",
) -> pa.Table:
    """A file as a table, after `check`; pages are verified by their checksums if they have any."""
    check(path, schema, needed, remedy)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns)
        table.validate(full=True)
    except ERRORS as error:
        raise UserError(f"{path} is damaged ({brief(error)})" + f"; {remedy}" * bool(remedy)) from None
    return table


def write(path: Path, table: pa.Table) -> None:
    """Write a table completely or not at all, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.whole(path) as new:
        pq.write_table(table, new, compression="zstd")


def _fits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """True if the types are equal, apart from the names of list elements and the width of numbers; nulls fit any."""
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        return _fits(stored.value_type, wanted.value_type)
    if pa.types.is_large_string(stored):
        stored = pa.string()
    if (pa.types.is_integer(stored) or pa.types.is_floating(stored)) and not pa.types.is_boolean(wanted):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))  # a cast that fits, or an error
    return bool(stored == wanted or pa.types.is_null(stored))


def _upper_bound(columns: Sequence[Column]) -> int:
    """Bytes in memory at most, by the footer: every text may be as long as its whole column."""
    return sum(_size(column, column.stored if column.width is None else column.width) for column in columns)


def _size(column: Column, width: int) -> int:
    return max(column.stored, column.values * width) + 4 * column.values


def _measured(path: Path, groups: Sequence[Sequence[Column]], most: int) -> int:
    """Bytes in memory, counted until they exceed `most`; only texts are read, as dictionaries."""
    total = sum(_size(column, column.width or 0) for group in groups for column in group)
    texts = [sorted({column.path for column in group if column.width is None}) for group in groups]
    if total > most or not any(texts):
        return total
    with pq.ParquetFile(path, read_dictionary=sorted({name for group in texts for name in group})) as file:
        for number, names in enumerate(texts):
            for name in names:
                total += sum(map(_length, file.read_row_group(number, columns=[name]).columns))
                if total > most:
                    return total
    return total


def _length(column: pa.ChunkedArray) -> int:
    """Bytes of the texts in a column that was read as a dictionary, each counted as often as it occurs."""
    total = 0
    for values in column.chunks:
        while not pa.types.is_dictionary(values.type):
            if not hasattr(values, "flatten"):  # fixed lengths
                return total + int(values.nbytes)
            values = pa.concat_arrays(values.flatten()) if pa.types.is_struct(values.type) else values.flatten()
        lengths = pc.binary_length(values.dictionary.cast(pa.binary()))
        total += pc.sum(lengths.take(values.indices)).as_py() or 0
    return total
