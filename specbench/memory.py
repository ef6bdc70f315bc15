"""CSD's correction memory as a file: rows (draft token, target token, count) and the tokenizer they speak of."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.config import SUITES, UserError
from specbench.models import Pair

SCHEMA = pa.schema([("draft_token", pa.int32()), ("target_token", pa.int32()), ("count", pa.int64())])
SHIPPED = SUITES / "methods" / "memory"


def write_memory(path: Path, counts: Counter[tuple[int, int]], pair: Pair, source: dict[str, str]) -> None:
    """Save counts, most frequent first; `source` says how they came about."""
    rows = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    metadata = {"tokenizer": pair.tokenizer_hash, "pair": pair.name, **source}
    table = pa.table(
        {
            "draft_token": [d for (d, _), _ in rows],
            "target_token": [t for (_, t), _ in rows],
            "count": [n for _, n in rows],
        },
        schema=SCHEMA.with_metadata(metadata),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    pq.write_table(table, new, compression="zstd")
    new.replace(path)


def read_memory(path: Path, pair: Pair) -> Counter[tuple[int, int]]:
    """Counts by (draft token, target token). Raises UserError for a file of another tokenizer."""
    if not path.is_file():
        raise UserError(f"there is no memory file {path}; `specbench calibrate --method csd` writes one")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid:
        raise UserError(f"{path} is not a memory file (Parquet)") from None
    speaks_of = (table.schema.metadata or {}).get(b"tokenizer", b"").decode()
    if speaks_of != pair.tokenizer_hash:
        raise UserError(
            f"the memory {path} belongs to another tokenizer ({speaks_of or 'unknown'}; the pair {pair.name} has "
            f"{pair.tokenizer_hash}); calibrate for this pair: specbench calibrate --method csd --pair {pair.name}"
        )
    columns = [table.column(name).to_pylist() for name in SCHEMA.names]
    return Counter({(d, t): n for d, t, n in zip(*columns, strict=True)})


def find_memory(setting: str, pair: Pair) -> Counter[tuple[int, int]] | None:
    """The memory that a setting names: a file, `auto` for the one that comes with the pair (if any), or `none`."""
    if setting == "none":
        return None
    if setting != "auto":
        return read_memory(Path(setting), pair)
    shipped = SHIPPED / f"{pair.name}.parquet"
    return read_memory(shipped, pair) if shipped.exists() else None
