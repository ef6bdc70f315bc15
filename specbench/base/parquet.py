"""Parquet files from anywhere: read only if they are whole, of the right form, and not far larger in memory.

This is the only module that opens one. A column of equal values takes a few bytes in a file, however many rows it has,
and so does a list of a billion equal numbers. So before a file is read, what its footer says is checked against its
pages, and its size in memory is computed, from its dictionaries if the footer does not tell how long its texts are.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from specbench.base import files
from specbench.base.errors import UserError
from specbench.base.folder import FolderFile
from specbench.base.parquet_footer import ColumnChunk, check_pages
from specbench.base.parquet_footer import columns as footer_columns
from specbench.base.untrusted import Source, brief, opened

LEAST = 2**27  # bytes that any file, or any row group that is read for itself, may take in memory
TIMES = 64  # bytes in memory granted for each byte of the file; real files need up to 26
LARGE = 2**31  # bytes that a file may take that is read a row group at a time
PART = 2**17  # rows that are in memory at once
ROW, MOST_ROWS = 2**10, 2**20  # bytes granted for a row that is accounted for, and such rows in one row group
# For example: a page of another size than the footer says, an index outside its dictionary, text that is not UTF-8.
ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError, NotImplementedError)
CODED = pa.dictionary(pa.int32(), pa.string())
Columns: TypeAlias = list[str] | Mapping[str, pc.Expression] | None  # names, or what is computed; None: all
_Identity = tuple[int, ...]  # of a file as it is now


class RowGroups:
    """The rows of Parquet files, of which one row group at a time is in memory; each reading opens the files again."""

    def __init__(
        self, sources: Sequence[Source], schema: pa.Schema, remedy: str = "", accounted: Callable[[], int] = int
    ) -> None:
        """Rows of files that may be damaged.

        Args:
            schema: the columns; those that a file lacks are null, and others are not read.
            remedy: what the user can do about a damaged file; it ends the error message.
            accounted: how many rows another table accounts for; it is asked if a file would be large in memory.
        """
        self.sources, self.schema, self.remedy, self.accounted = sources, schema, remedy, accounted
        self._checked: set[_Identity] = set()

    def check(self, needed: Sequence[str]) -> list[pa.Schema]:
        """The schemas of the files, which must have the columns `needed`. Raises UserError as `parquet.check` does."""
        schemas = []
        for source in self.sources:
            with _errors(source, self.remedy), opened(source, remedy=self.remedy) as file:
                schemas.append(_checked(file, source, self.schema, needed, self.remedy, LARGE, self.accounted))
                self._checked.add(_identity(file))
        return schemas

    def to_batches(
        self, columns: Columns = None, filter: pc.Expression | None = None, coded: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows for which `filter` is true. Raises UserError for a file that is damaged or too large in memory.

        Columns that a row group says to have no values in are not read, so what they hold in truth has no effect.
        Columns of texts that are `coded` come as dictionaries, which takes a fraction of the time where texts repeat.
        """
        wanted = _named(self.schema, columns, filter)
        decisive = [] if filter is None else _named(self.schema, [], filter)
        for source in self.sources:
            with _errors(source, self.remedy), opened(source, remedy=self.remedy) as file:
                if _identity(file) not in self._checked:
                    end = f"; {self.remedy}" * bool(self.remedy)
                    _check_sizes(file, source, footer_columns(file), LARGE, end, self.accounted)
                    self._checked.add(_identity(file))
                reader = pq.ParquetFile(file, page_checksum_verification=True, read_dictionary=list(coded))
                for group in range(reader.num_row_groups):
                    if decisive and not any(
                        ds.dataset(part).count_rows(filter=filter) for part in self._parts(reader, group, decisive)
                    ):
                        continue
                    for part in self._parts(reader, group, wanted):
                        yield from ds.dataset(part).to_batches(columns=columns, filter=filter)

    def to_table(self, columns: Columns = None, filter: pc.Expression | None = None) -> pa.Table:
        schema = ds.dataset(self.schema.empty_table()).to_table(columns=columns).schema
        return pa.Table.from_batches(self.to_batches(columns, filter), schema)

    def _parts(self, reader: pq.ParquetFile, group: int, wanted: Sequence[str]) -> Iterator[pa.Table]:
        """A row group in parts, as tables of the columns `wanted`; those that have no values in it are null."""
        stored, empty = reader.schema_arrow.names, _empty(reader.metadata.row_group(group))
        names = [name for name in wanted if name in stored and name not in empty]
        coded = [name for name in names if reader.schema_arrow.field(name).type == CODED]
        fields = (self.schema.field(name) for name in self.schema.names if name in wanted)
        schema = pa.schema([field.with_type(CODED) if field.name in coded else field for field in fields])
        rows = reader.metadata.row_group(group).num_rows
        if not names:
            yield pa.table([pa.nulls(rows, field.type) for field in schema], schema)
            return
        for batch in reader.iter_batches(PART, row_groups=[group], columns=names):
            rows -= batch.num_rows
            arrays = [
                batch[field.name].cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.table(arrays, schema)
        if rows:
            raise ValueError("a row group has another number of rows than the footer says")


def _identity(file: BinaryIO) -> _Identity:
    """What tells a file from another one, and from itself after a change."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _named(schema: pa.Schema, columns: Columns, filter: pc.Expression | None) -> list[str]:
    """The columns of a schema that are asked for or occur in expressions."""
    if columns is None:
        return list(schema.names)
    texts = [*columns, *map(str, columns.values() if isinstance(columns, Mapping) else ()), str(filter)]
    words = set(re.findall(r"\w+", " ".join(texts)))
    return [name for name in schema.names if name in words]


def _empty(group: Any) -> set[str]:
    """The columns that a row group says to have no values in; no lists, whose statistics count empty ones as null."""
    chunks = (group.column(i) for i in range(group.num_columns))
    return {
        chunk.path_in_schema
        for chunk in chunks
        if "." not in chunk.path_in_schema
        and chunk.statistics
        and chunk.statistics.has_null_count
        and chunk.statistics.null_count == chunk.num_values
    }


def check(
    source: Source,
    schema: pa.Schema | None = None,
    needed: Sequence[str] = (),
    remedy: str = "",
    least: int = LEAST,
    accounted: Callable[[], int] = int,
) -> pa.Schema:
    """The schema of a file, after checks.

    Args:
        schema: the types that columns must have, if they are there.
        needed: columns that must be there.
        remedy: what the user can do; it ends the error message.
        least: bytes in memory that are granted to any file.
        accounted: as of `Rows`.

    Raises:
        UserError: the file is damaged, of another form, or would be far larger in memory than on the disk.
    """
    with _errors(source, remedy), opened(source, remedy=remedy) as file:
        return _checked(file, source, schema, needed, remedy, least, accounted)


def read(
    source: Source,
    schema: pa.Schema | None = None,
    needed: Sequence[str] = (),
    columns: list[str] | None = None,
    remedy: str = "",
) -> pa.Table:
    """A file as a table, after `check`; pages are verified by their checksums if they have any."""
    with _errors(source, remedy), opened(source, remedy=remedy) as file:
        _checked(file, source, schema, needed, remedy, LEAST)
        table = pq.ParquetFile(file, page_checksum_verification=True).read(columns)
        table.validate(full=True)
    return table


def write(path: Path, table: pa.Table) -> None:
    """Write a table completely or not at all, and its folder if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, table, {"compression": "zstd"})


def put(target: Source, table: pa.Table, options: Mapping[str, Any]) -> None:
    """Write a table completely or not at all. `options` are those of pyarrow's `write_table`."""
    with target.folder.whole(target.name) if isinstance(target, FolderFile) else files.whole(target) as new:
        pq.write_table(table, new, **options)


@contextmanager
def whole(target: FolderFile, schema: pa.Schema, options: Mapping[str, Any]) -> Iterator[pq.ParquetWriter]:
    """A writer of a file that is there completely after the block, or not at all."""
    with target.folder.whole(target.name) as new, pq.ParquetWriter(new, schema, **options) as writer:
        yield writer


@contextmanager
def _errors(source: Source, remedy: str = "") -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise UserError(f"{source} is damaged ({brief(error)})" + f"; {remedy}" * bool(remedy)) from None


def _checked(
    file: BinaryIO,
    source: Source,
    schema: pa.Schema | None,
    needed: Sequence[str],
    remedy: str,
    least: int,
    accounted: Callable[[], int] = int,
) -> pa.Schema:
    end = f"; {remedy}" if remedy else ""
    _check_sizes(file, source, footer_columns(file), least, end, accounted)
    stored = pq.ParquetFile(file).schema_arrow
    names = stored.names
    for name in needed:
        if name not in names:
            raise UserError(f"{source} is another kind of file: it has no column {name!r}{end}")
    for name in names if schema is not None else ():
        assert schema is not None
        if names.count(name) > 1:
            raise UserError(f"{source} is damaged (two columns {name!r}){end}")
        if name in schema.names and not _fits(stored.field(name).type, schema.field(name).type):
            is_type, wanted = stored.field(name).type, schema.field(name).type
            raise UserError(f"{source} is another kind of file: its column {name!r} is {is_type}, not {wanted}{end}")
    return stored


def _check_sizes(
    file: BinaryIO,
    source: Source,
    groups: list[list[ColumnChunk]],
    least: int,
    end: str = "",
    accounted: Callable[[], int] = int,
) -> None:
    """Refuse a file that would take more memory than `least`, or more than LEAST in one row group, for its size.

    More is granted for rows that another table accounts for: equal values of many rows take a few bytes in a file.
    """
    size = os.fstat(file.fileno()).st_size
    groups = check_pages(file, groups)
    known: dict[int, int] = {}  # what groups take, once measured

    def measured(some: Sequence[int], most: int) -> int:
        total = 0
        for number in some:
            if number not in known:
                known[number] = _measured(file, number, groups[number], most - total)
            total += known[number]
            if total > most:
                del known[number]  # it was not measured to its end
                break
        return total

    numbers = range(len(groups))
    stretches = [(numbers, least + TIMES * size)]
    for number in numbers if least > LEAST else ():
        packed = sum(column.size for column in groups[number])
        stretches.append((range(number, number + 1), LEAST + TIMES * min(size, packed)))
    for some, most in stretches:
        bound = sum(_upper_bound(groups[number]) for number in some)
        if bound <= most:
            continue
        rows = sum(min((column.values for column in groups[number]), default=0) for number in some)
        most += ROW * min(rows, accounted(), MOST_ROWS * len(some))
        if bound > most and measured(some, most) > most:
            raise UserError(f"{source} would take more than {most // 2**20} MiB of memory, and has {size} bytes{end}")


def _fits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """True if the types are equal, apart from the names of list elements and the width of numbers; nulls fit any."""
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        return _fits(stored.value_type, wanted.value_type)
    if pa.types.is_large_string(stored):
        stored = pa.string()
    if (pa.types.is_integer(stored) or pa.types.is_floating(stored)) and not pa.types.is_boolean(wanted):
        return bool(pa.types.is_integer(wanted) or pa.types.is_floating(wanted))  # a cast that fits, or an error
    return bool(stored == wanted or pa.types.is_null(stored))


def _upper_bound(columns: Sequence[ColumnChunk]) -> int:
    """Bytes in memory at most, by the footer: every text may be as long as its whole column."""
    return sum(_size(column, column.longest if column.width is None else column.width) for column in columns)


def _size(column: ColumnChunk, width: int) -> int:
    return max(column.stored, column.values * width) + 4 * column.values


def _measured(file: BinaryIO, number: int, group: Sequence[ColumnChunk], most: int) -> int:
    """Bytes that a row group takes in memory, counted until they exceed `most`.

    Only texts are read, as dictionaries.
    """
    total = sum(_size(column, column.width or 0) for column in group)
    texts = [column.path for column in group if column.width is None]
    if total > most or not texts:
        return total
    reader = pq.ParquetFile(file, read_dictionary=texts)
    for name in texts:
        total += sum(map(_length, reader.read_row_group(number, columns=[name]).columns))
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
