"""Parquet files from anywhere: opened only where they are whole, of the right form, and of no more than they seem.

A column of equal values takes a few bytes in a file however many rows it has. So before a file is read, what it will
be in memory is worked out from its footer, and where that does not tell the length of texts, from its dictionaries.
"""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specbench.errors import UserError
from specbench.parquet_footer import Column
from specbench.parquet_footer import columns as told_columns
from specbench.untrusted import brief, regular

LEAST = 2**28  # bytes in memory that any file may have
TIMES = 64  # so many times the file's own bytes are granted beside; real ones have up to 26
# A page that tells other sizes than the footer, an index that is out of its dictionary, text that is not UTF-8.
ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)


def check(
    path: Path, schema: pa.Schema | None = None, needed: Sequence[str] = (), remedy: str = "", least: int = LEAST
) -> pa.Schema:
    """The schema of a file. Raises UserError where it is damaged, or would be far larger in memory than it is.

    Its columns that are in `schema` must have the types there, and those `needed` must be in it.
    """
    behind = f"; {remedy}" if remedy else ""
    size = regular(path, remedy=remedy)
    try:
        groups, most = told_columns(path), least + TIMES * size
        with pq.ParquetFile(path) as file:
            found = file.schema_arrow
            if sum(map(_told, groups)) > most and _measured(path, groups, most) > most:
                raise UserError(
                    f"{path} would take more than {most // 2**20} MiB of memory, and has {size} bytes{behind}"
                )
    except ERRORS as error:
        raise UserError(f"{path} is damaged ({brief(error)}){behind}") from None
    names = found.names
    for name in needed:
        if name not in names:
            raise UserError(f"{path} is another kind of file: it has no column {name!r}{behind}")
    for name in names if schema is not None else ():
        assert schema is not None
        if names.count(name) > 1:
            raise UserError(f"{path} is damaged (two columns {name!r}){behind}")
        if name in schema.names and not _alike(found.field(name).type, schema.field(name).type):
            other, own = found.field(name).type, schema.field(name).type
            raise UserError(f"{path} is another kind of file: its column {name!r} is {other}, not {own}{behind}")
    return found


def read(
    path: Path,
    schema: pa.Schema | None = None,
    needed: Sequence[str] = (),
    columns: list[str] | None = None,
    remedy: str = "",
) -> pa.Table:
    """A file as a table, after `check`; the pages are checked against their sums where they have any."""
    check(path, schema, needed, remedy)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns)
        table.validate(full=True)
    except ERRORS as error:
        raise UserError(f"{path} is damaged ({brief(error)})" + f"; {remedy}" * bool(remedy)) from None
    return table


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Equal, whatever the elements of lists are called and how wide numbers are; a column of nulls alone may be any."""
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return _alike(found.value_type, wanted.value_type)
    if pa.types.is_large_string(found):
        found = pa.string()
    if (pa.types.is_integer(found) or pa.types.is_floating(found)) and not pa.types.is_boolean(wanted):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))  # a cast that fits, or an error
    return bool(found == wanted or pa.types.is_null(found))


def _told(columns: Sequence[Column]) -> int:
    """Bytes in memory by the footer, at most: of texts the length of all that is stored for each of them."""
    each = (column.stored if column.width is None else column.width for column in columns)
    return sum(max(one.stored, one.values * width) + 4 * one.values for one, width in zip(columns, each, strict=True))


def _measured(path: Path, groups: Sequence[Sequence[Column]], most: int) -> int:
    """Bytes in memory as far as `most`: texts are read as dictionaries, and nothing else is."""
    total = sum(max(one.stored, one.values * (one.width or 0)) + 4 * one.values for group in groups for one in group)
    texts = [sorted({one.path for one in group if one.width is None}) for group in groups]
    if total > most or not any(texts):
        return total
    with pq.ParquetFile(path, read_dictionary=sorted({name for group in texts for name in group})) as coded:
        for number, names in enumerate(texts):
            for name in names:
                total += sum(map(_length, coded.read_row_group(number, columns=[name]).columns))
                if total > most:
                    return total
    return total


def _length(column: pa.ChunkedArray) -> int:
    """Bytes of the texts in a column that was read as a dictionary, each counted as often as it is there."""
    total = 0
    for values in column.chunks:
        while not pa.types.is_dictionary(values.type):
            if not hasattr(values, "flatten"):  # fixed lengths
                return total + int(values.nbytes)
            values = pa.concat_arrays(values.flatten()) if pa.types.is_struct(values.type) else values.flatten()
        lengths = pc.binary_length(values.dictionary.cast(pa.binary()))
        total += pc.sum(lengths.take(values.indices)).as_py() or 0
    return total
