"""The figures in another tool's file, and the run folder that is made of them."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pydantic import ConfigDict, Field

from specbench.base.console import warn
from specbench.base.environment import MUST_AGREE
from specbench.base.files import sync, write_json
from specbench.base.untrusted import decoded, parse_json, read_bytes
from specbench.config import MethodSpec, ModelSpec, PairSpec, Settings, TaskLine, UserError
from specbench.plan import Plan
from specbench.results import records
from specbench.results.importers.conditions import unlike

BASELINE = "vanilla"
MOST_BYTES, MOST_VALUES = 2**29, 20_000_000  # of a file
AT_ONCE = 200_000  # rounds that are written at once

LARGEST = 2**31 - 2  # a count which, with one more, fits into the records
Count: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Row: TypeAlias = dict[str, Any]


class Entry(Settings):
    """A part of a foreign file; keys that are not read may hold anything."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


@dataclass(frozen=True)
class Rounds:
    """The rounds of a sample after the prefill, by column: there may be millions of them in a file."""

    sample: int  # its place among the samples
    count: int
    columns: Mapping[str, Sequence[Any]]


@dataclass
class Figures:
    """The figures of one method in a file; samples and rounds lack only the method's name."""

    path: Path
    sha256: str
    name: str
    samples: list[Row] = field(default_factory=list)
    rounds: list[Rounds] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    totals: list[Row] = field(default_factory=list)
    origin: dict[str, str] = field(default_factory=dict)  # `host`, `began` and `ended`, as far as they are told
    ordered: bool = True  # the rounds stand in the order of their texts
    conditions: dict[str, Any] = field(default_factory=dict)  # what must agree in files that are compared

    def add(
        self, task: str, doc_id: int, repeat: int, sample: Row, rounds: Sequence[Row] | Mapping[str, Sequence[Any]]
    ) -> None:
        """Add a sample and its rounds after the prefill, as rows or by column.

        Without `rounds` the sample gets one row of nulls; a text of one token, which is the prefill's, gets none.
        """
        self.samples.append({"repeat": repeat, "task": task, "doc_id": doc_id, "warmup": False} | sample)
        if sample.get("finish") == "error":
            return
        if isinstance(rounds, Mapping):
            columns, count = rounds, len(next(iter(rounds.values()), ()))
        else:
            names, count = dict.fromkeys(chain.from_iterable(rounds)), len(rounds)
            columns = {name: [row.get(name) for row in rounds] for name in names}
        if not count and sample.get("new_tokens") != 1:
            columns, count = {}, 1
        if count:
            self.rounds.append(Rounds(len(self.samples) - 1, count, columns))

    def tables(self, name: str) -> Iterator[pa.Table]:
        """The rounds as parts of `records.ROUNDS`, of the method `name`."""
        some: list[Rounds] = []
        count = 0
        for rounds in self.rounds:
            some.append(rounds)
            count += rounds.count
            if count >= AT_ONCE:
                yield self._table(name, some)
                some, count = [], 0
        if some:
            yield self._table(name, some)

    def _table(self, name: str, some: Sequence[Rounds]) -> pa.Table:
        counts = np.array([each.count for each in some])
        total = int(counts.sum())
        of_sample = pa.array(np.repeat(np.arange(len(some)), counts))
        columns: dict[str, Any] = {"method": pa.repeat(name, total)}
        for key in ("repeat", "task", "doc_id", "warmup"):
            values = pa.array([self.samples[each.sample][key] for each in some], records.ROUNDS.field(key).type)
            columns[key] = values.take(of_sample)
        columns["round"] = np.arange(total) - np.repeat(counts.cumsum() - counts, counts) + 1
        for key in dict.fromkeys(chain.from_iterable(each.columns for each in some)):
            parts: list[Any] = [each.columns.get(key) for each in some]
            if all(isinstance(part, np.ndarray) for part in parts):
                columns[key] = np.concatenate(parts)
            else:
                lists = ([None] * each.count if part is None else part for part, each in zip(parts, some, strict=True))
                columns[key] = list(chain.from_iterable(lists))
        return records.filled(columns, total, records.ROUNDS)


def text_of(path: Path) -> tuple[str, str]:
    """The text of a file, and its SHA-256."""
    raw = read_bytes(path, MOST_BYTES)
    return decoded(raw, str(path)), hashlib.sha256(raw).hexdigest()


def entries(path: Path, text: str) -> list[tuple[str, Row]]:
    """The objects in the text of a JSON or JSON Lines file, each with its place for messages."""
    return list(each_entry(path, text))


def each_entry(path: Path, text: str) -> Iterator[tuple[str, Row]]:
    """The same, of which one after the other is in memory if the file is JSON Lines."""
    try:
        whole = parse_json(text, str(path), values=MOST_VALUES)
    except UserError:
        located = ((f"{path}, line {n}", _line(path, n, x)) for n, x in enumerate(_lines(text), 1) if x.strip())
    else:
        objects = whole if isinstance(whole, list) else [whole]
        located = ((f"{path}, entry {n}", entry) for n, entry in enumerate(objects, 1))
    empty = True
    for where, entry in located:
        if not isinstance(entry, dict):
            raise UserError(f"{where}: not an object with keys; is this another kind of file?")
        empty = False
        yield where, entry
    if empty:
        raise UserError(f"{path} holds no entries")


def _lines(text: str) -> Iterator[str]:
    """The lines of a text, without a list of them all."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _line(path: Path, number: int, text: str) -> Any:
    return parse_json(text, f"{path}, line {number}", "it should be an object: export the file again")


def write(
    kind: str,
    read: Callable[[Path], Sequence[Figures]],
    files: Sequence[Path],
    baseline: Path | None,
    method: str | None,
    pair: str,
    out: Path | None,
    allowed: Sequence[str] = (),
) -> Path:
    """Read files, make a run folder of them, and print warnings. If it raises UserError, nothing is written.

    `allowed` are conditions in which the files may differ.
    """
    if not files:
        raise UserError("no file to import")
    if method and len(files) > 1:
        raise UserError("--method names the method of one file; import several without it, or one by one")
    of_files = list(chain.from_iterable(map(read, files)))
    if method and len(of_files) > 1:
        raise UserError(f"{files[0]} holds {', '.join(figures.name for figures in of_files)}; leave out --method")
    parts = {BASELINE: _single(baseline, read(baseline))} if baseline else {}
    for figures in of_files:
        name = method or figures.name
        if name in parts:
            raise UserError(
                f"{figures.path}: there is a method {name!r} already; name it by --method, and import each repetition "
                "into a run of its own (compare pools them)"
            )
        parts[name] = figures
    warnings = [line for figures in parts.values() for line in figures.warnings]
    warnings += unlike(list(parts.values()), baseline is not None, allowed)
    if baseline:
        warnings += [line for name in list(parts)[1:] if (line := _unpaired(name, parts[name], parts[BASELINE]))]
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}-{'-'.join(parts).replace('/', '_')}"
    if folder.exists():
        raise UserError(f"{folder} exists; choose another --out")
    samples = [row | {"method": name} for name, figures in parts.items() for row in figures.samples]
    rounds = chain.from_iterable(figures.tables(name) for name, figures in parts.items())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        made.mkdir()
        write_json(made / "manifest.json", _manifest(kind, pair, parts, warnings))
        records.write_tables(made / "rounds.parquet", rounds, records.ROUNDS)
        records.write_table(made / "samples.parquet", samples, records.SAMPLES)
        records.write_table(made / "scores.parquet", [], records.SCORES)
        made.replace(folder)  # whole or not at all
    sync(folder.parent)
    for line in warnings:
        warn(line)
    return folder


def _single(path: Path, of_file: Sequence[Figures]) -> Figures:
    """The figures of a baseline's file. Raises UserError if it holds several methods."""
    if len(of_file) > 1:
        raise UserError(f"{path} holds {', '.join(figures.name for figures in of_file)}; a baseline is one method")
    return of_file[0]


def _unpaired(name: str, figures: Figures, base: Figures) -> str | None:
    """A warning if the baseline lacks samples of a method. Raises UserError if the prompts are not the same."""
    lengths = {(s["task"], s["doc_id"], s["repeat"]): s for s in base.samples}
    alone = 0
    for sample in figures.samples:
        other = lengths.get((sample["task"], sample["doc_id"], sample["repeat"]))
        alone += other is None
        if other is None or "error" in (sample.get("finish"), other.get("finish")):
            continue
        mine, theirs = sample.get("prompt_tokens"), other.get("prompt_tokens")
        if None not in (mine, theirs) and mine != theirs:
            raise UserError(
                f"request {sample['doc_id'] + 1} has {mine} prompt tokens in {figures.path} and {theirs} in "
                f"{base.path}: these are not the same prompts in the same order"
            )
    return f"{name}: {alone} samples have no counterpart in the baseline, and no speedup" if alone else None


def _manifest(kind: str, pair: str, parts: dict[str, Figures], warnings: list[str]) -> dict[str, Any]:
    requests = dict.fromkeys((s["task"], s["doc_id"]) for figures in parts.values() for s in figures.samples)
    tasks = list(dict.fromkeys(task for task, _ in requests)) or [kind]  # a server's totals are of no requests
    unknown = ModelSpec(model="not told", revision="", dtype="")
    plan = Plan(
        pair=PairSpec(name=pair, description=f"imported from {kind}", target=unknown),
        methods=tuple(
            MethodSpec(name=name, method=BASELINE if name == BASELINE else "imported", description=figures.name)
            for name, figures in parts.items()
        ),
        baseline=BASELINE if BASELINE in parts else None,
        suite=kind,
        tasks=tuple(TaskLine(task=task) for task in tasks),
    )
    files = [
        {"method": name, "file": figures.path.name, "sha256": figures.sha256}
        | {"totals": figures.totals, "ordered": figures.ordered, "conditions": figures.conditions, **figures.origin}
        for name, figures in parts.items()
    ]
    return {
        "schema": records.VERSION,
        "started": "",
        "plan": plan.model_dump(mode="json"),
        "imported": {"from": kind, "files": files, "warnings": warnings},
        "models": None,
        "tokenizer_hash": None,
        "inputs": {},
        "prompts_hash": "",
        "requests": [[task, doc_id, "", ""] for task, doc_id in requests],
        "generation": {},
        "headline": dict.fromkeys(tasks, ""),
        "environment": dict.fromkeys(MUST_AGREE),
    }
