"""Valid files made hostile: by their bytes, and by their structure (JSON, YAML, Parquet, the header of safetensors)."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

HUGE = "@huge@"  # stands for a number that JSON can write, and no float can hold, until the text is made
HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 10**6, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.5, 1e308, HUGE),
    *(float("nan"), float("inf"), "", " ", "a\nb", "\x1b[31mred", "\x00", "\u202e", "é" * 50, "../../../etc/passwd"),
    *("/dev/zero", "x" * 5000, "{{7*7}}", "=1+1", "[bold]", "\ud800", [], {}, [[]], {"": None}, [1, "a", None]),
    *({"a": {"b": [1]}}, list(range(100)), "1e999", "nan", "true", "2024-01-01", "!!python/object/apply:os.system"),
]
YAML_LINES = [
    "x: !!python/object/apply:os.system ['true']",
    "!!python/name:os.system",
    "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))]),
    "x: &x [*x]",
    "<<: *x",
    "<<: {settings: 1}",
    "x: !!int zero",
    "x: 9999-99-99",
    "x: !!binary ///",
    "x: 1:1:1:1:1:1:1:1:1:1:1",
    "? [a]\n: b",
    "x: " + "[" * 300,
    "x: !!set {a, b}",
    "---\n---",
    "%TAG ! tag:x,2000:",
    "x: 0b_",
    "\tx: 1",
    "x: " + "9" * 5000,
]


def of_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flips, cuts, insertions, swaps, repetitions."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at, size = rng.randrange(len(result) + 1), rng.choice((1, 1, 4, 16, 100))
        kind = rng.randrange(7)
        if kind == 0 and result:
            result[at % len(result)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at : at + size]
        elif kind == 2:
            result[at:at] = rng.randbytes(size)
        elif kind == 3:
            result[at : at + size] = rng.choice((b"\x00", b"\xff", b"[", b"{", b'"', b"9", b"-", b"\n")) * size
        elif kind == 4:
            result[at:at] = bytes(result[at : at + size]) * rng.choice((1, 3, 50))
        elif kind == 5:
            other = rng.randrange(len(result) + 1)
            result[at : at + size], result[other : other + size] = result[other : other + size], result[at : at + size]
        elif rng.random() < 0.3:
            del result[at:]
    return bytes(result)


def of_footer(rng: random.Random, data: bytes) -> bytes:
    """A Parquet file with a damaged footer, whose length is still right."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = of_bytes(rng, data[-8 - length : -8])
    return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + data[-4:]


def of_value(rng: random.Random, value: Any) -> Any:
    """A JSON-like value with some of its parts replaced, deleted, doubled, renamed, nested or swapped."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _once(rng, value)
    return value


def _once(rng: random.Random, value: Any) -> Any:
    inside = value and isinstance(value, dict | list) and rng.random() < 0.85
    if not inside:
        kind = rng.randrange(6)
        if kind == 0:
            return [value]
        if kind == 1:
            return {"x": value}
        if kind == 2 and isinstance(value, int | float) and not isinstance(value, bool):
            as_float = float(value) if abs(value) < 2**60 else 1.0
            return rng.choice((-value, value * 10**9, 2**31 - 1, str(value), as_float, value + 1))
        return rng.choice(HOSTILE)
    if isinstance(value, list):
        changed = list(value)
        at = rng.randrange(len(changed))
        kind = rng.randrange(6)
        if kind == 0:
            del changed[at]
        elif kind == 1:
            changed.insert(at, changed[at])
        elif kind == 2:
            rng.shuffle(changed)
        else:
            changed[at] = _once(rng, changed[at])
        return changed
    key, kind = rng.choice(list(value)), rng.randrange(7)
    rest = {name: one for name, one in value.items() if name != key}
    if kind == 0:
        return rest
    if kind == 1:
        return rest | {rng.choice(("", "x", "a\nb", f"{key} ", f"../{key}", str(key).upper(), "\x1b[2J")): value[key]}
    if kind == 2:
        return {**value, rng.choice(list(value)): value[key]}
    return {**value, key: _once(rng, value[key])}


def as_json(value: Any) -> bytes:
    return json.dumps(value).replace(json.dumps(HUGE), "1e999").encode()


def of_json(rng: random.Random, data: bytes) -> bytes:
    text = as_json(of_value(rng, json.loads(data)))
    if rng.random() < 0.1:  # a key twice, or nested deeper than a parser goes
        return rng.choice(
            (text.replace(b"{", b'{"schema": 1, "schema": [], ', 1), b"[" * 30000, b'{"a":' * 30000 + text)
        )
    return text


def of_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = of_json(rng, lines[at])
    except ValueError:
        lines[at] = of_bytes(rng, lines[at])
    return b"\n".join(lines)


def of_yaml(rng: random.Random, data: bytes) -> bytes:
    if rng.random() < 0.35:
        lines = data.decode(errors="replace").split("\n")
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(YAML_LINES))
        return "\n".join(lines).encode(errors="replace")
    value = of_value(rng, yaml.safe_load(data))
    text = yaml.safe_dump(value, allow_unicode=True) if rng.random() < 0.5 else as_json(value).decode()
    return text.replace(HUGE, "1e999").encode(errors="surrogatepass")


def of_parquet(rng: random.Random, data: bytes) -> bytes:
    """Other columns, types, nulls, values, rows and metadata, or another footer."""
    if rng.random() < 0.3:
        return of_footer(rng, data)
    table = pq.read_table(pa.BufferReader(data))
    for _ in range(rng.choice((1, 1, 2))):
        table = _table(rng, table)
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression=rng.choice(("zstd", "none", "snappy")), use_dictionary=rng.random() < 0.7)
    return out.getvalue().to_pybytes()


def _table(rng: random.Random, table: pa.Table) -> pa.Table:
    if not table.num_columns:
        return pa.table({"x": [1]})
    at, kind = rng.randrange(table.num_columns), rng.randrange(11)
    name, column = table.column_names[at], table.column(at)
    if kind == 0:
        return table.remove_column(at)
    if kind == 1:
        names = [*table.column_names[:at], rng.choice(("x", "", "task", "method")), *table.column_names[at + 1 :]]
        return table.rename_columns(names)
    if kind == 2:
        return table.append_column(rng.choice((name, "more")), column)
    if kind == 3:
        return table.slice(0, rng.randrange(len(table) + 1))
    if kind == 4 and len(table):
        return table.take([rng.randrange(len(table)) for _ in range(len(table))])
    if kind == 5:
        return pa.concat_tables([table, table])
    if kind == 6:
        extra = rng.choice(({"specbench_schema": "99"}, {"specbench_schema": "x"}, {"schema": "-1"}, {"schema": "1e9"}))
        return table.replace_schema_metadata(extra)
    values = column.to_pylist()
    return table.set_column(at, name, _column(rng, values, column.type))


def _column(rng: random.Random, values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values of a column with some of them changed, or all of another type."""
    if rng.random() < 0.3:
        other: list[Callable[[], pa.Array]] = [
            lambda: pa.array([str(value) for value in values]),
            lambda: pa.array([[value] for value in values]),
            lambda: pa.array([{"a": value} for value in values]),
            lambda: pa.nulls(len(values), kind),
            lambda: pa.nulls(len(values)),
            lambda: pa.array([float("nan")] * len(values)),
            lambda: pa.array([b"\xff\xfe"] * len(values)),
            lambda: pa.array([True] * len(values)),
            lambda: pa.array([10**12] * len(values)),
        ]
        return rng.choice(other)()
    for _ in range(rng.choice((1, 1, 3))):
        if values:
            values[rng.randrange(len(values))] = _cell(rng, rng.choice(values))
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return pa.nulls(len(values), kind)


def _cell(rng: random.Random, value: Any) -> Any:
    if isinstance(value, list):
        changed = [*value, *value][: rng.randrange(2 * len(value) + 2)]
        if changed and rng.random() < 0.5:
            changed[rng.randrange(len(changed))] = _cell(rng, changed[0])
        return changed
    if isinstance(value, str):
        return rng.choice(
            ("", "error", "\x1b[2J\x07", "../../x", "=cmd()", "é\u202e", "x" * 3000, value * 2, "vanilla")
        )
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e300, float("nan"), float("inf"), -value))
    return rng.choice((None, 0, 1, -1, 2, 5, 127, 2**15 - 1, 2**31 - 1, 2**62))


def of_tensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file with another header: shapes, types, offsets, sizes or metadata."""
    (size,) = struct.unpack("<Q", data[:8])
    header, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    facts = header.get("__metadata__", {})
    if rng.random() < 0.5 and facts:  # a JSON text within the JSON
        key = rng.choice(list(facts))
        facts[key] = of_json(rng, facts[key].encode()).decode(errors="replace")
        text = json.dumps(header).encode()
    else:
        text = of_json(rng, json.dumps(header).encode())
    length = rng.choice((len(text),) * 8 + (0, 2**63, 2**32, len(text) - 1, len(text) + 1))
    return struct.pack("<Q", length) + text + rest[: rng.choice((len(rest),) * 8 + (0, len(rest) // 2))]


OF_KIND: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "json": of_json,
    "jsonl": of_lines,
    "yaml": of_yaml,
    "parquet": of_parquet,
    "safetensors": of_tensors,
    "bytes": of_bytes,
}


def mutated(rng: random.Random, kind: str, data: bytes) -> bytes:
    """One hostile version of a valid file."""
    if rng.random() < 0.4:
        return of_bytes(rng, data)
    return OF_KIND[kind](rng, data)
