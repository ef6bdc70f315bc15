"""What `specbench load` keeps, in a folder that may come from anywhere.

`load.json` is a manifest as a run has it, with what was asked of the server. `parts/` holds requests and steps of each
method at each rate as soon as they are measured, `saturation.json` the rates at which queues begin to grow;
`requests.parquet` and `steps.parquet` hold all of the last command.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from specbench.base import files, parquet
from specbench.base.folder import Folder, FolderFile
from specbench.base.untrusted import read_object
from specbench.config import UserError, validated
from specbench.plan import Plan
from specbench.results.check_manifest import Manifest, Section, Speed
from specbench.results.check_tables import FINISHES
from specbench.results.lock import claimed, unused
from specbench.results.stored import LOAD

MANIFEST, RATES, REQUESTS, STEPS, PARTS = LOAD, "saturation.json", "requests", "steps", "parts"
ANEW = "remove it, and it is measured again"
LONGEST = 1e12  # seconds
_KEY = [
    pa.field("method", pa.string()),
    pa.field("rate", pa.float64()),  # requests a second; inf: all came at once
    pa.field("repeat", pa.int32()),
]
SCHEMAS = {
    REQUESTS: pa.schema(
        [
            *_KEY,
            pa.field("request", pa.int32()),
            pa.field("task", pa.string()),
            pa.field("doc_id", pa.int32()),
            pa.field("came", pa.float64()),  # seconds; this and the next two count from the first request
            pa.field("began", pa.float64()),  # a row was free
            pa.field("prompt_tokens", pa.int32()),
            pa.field("tokens", pa.list_(pa.int32())),
            pa.field("finish", pa.string()),
            pa.field("error", pa.string()),  # a traceback; empty if there was none
            pa.field("rounds", pa.list_(pa.float64())),  # when each ended
        ]
    ),
    STEPS: pa.schema(
        [
            *_KEY,
            pa.field("step", pa.int32()),
            pa.field("began", pa.float64()),
            pa.field("seconds", pa.float64()),
            pa.field("rows", pa.int32()),
            pa.field("joined", pa.int32()),  # of the rows, those that read their prompts in this step
            pa.field("queue", pa.int32()),
            pa.field("fed", pa.int32()),  # tokens of the target's forwards
            pa.field("committed", pa.int32()),
        ]
    ),
}


class Unit(NamedTuple):
    """What is measured, and kept, at once: a method at a rate."""

    method: str
    rate: float
    repeat: int = 0

    @property
    def name(self) -> str:
        return f"{files.safe_name(self.method)}-{self.rate!r}-{self.repeat}"


class StoredAsked(Section):
    """What was asked of the server."""

    rows: Annotated[int, Field(ge=1, lt=2**31)]
    requests: Annotated[int, Field(ge=1, lt=2**31)]
    arrivals: str
    trace: str = ""  # a hash of what a file of arrivals tells


class LoadManifest(Manifest):
    load: StoredAsked


class Rates(BaseModel):
    model_config = ConfigDict(strict=True)
    rates: dict[str, Speed]


class LoadFolder:
    """An open folder. Raises UserError, also from every method, for what is damaged, and for links."""

    def __init__(self, place: Folder) -> None:
        self._place = place
        self.manifest: dict[str, Any] | None = None
        if place.has(MANIFEST):
            self.manifest = _manifest(FolderFile(place, MANIFEST))

    @property
    def path(self) -> Path:
        return self._place.path

    def check_asked(self, plan: Plan, asked: Mapping[str, Any]) -> None:
        """Raise UserError if the folder was measured under another plan, or something else was asked of the server."""
        if self.manifest is None:
            return
        now = json.loads(json.dumps({"plan": plan.model_dump(mode="json"), "load": dict(asked)}))
        stored = {"plan": plan_of(self.manifest, self.path).model_dump(mode="json"), "load": self.manifest["load"]}
        differing = [key for part in now for key in now[part] if stored[part].get(key) != now[part][key]]
        if differing:
            raise UserError(
                f"{self.path} was measured under other settings ({', '.join(differing)}); choose another --out"
            )

    def begin(self, manifest: Mapping[str, Any]) -> None:
        """Write what is measured from now on."""
        self._place.write_json(MANIFEST, manifest)
        self.manifest = dict(manifest)

    def kept(self, unit: Unit, count: int) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        """The requests, of which there are `count`, and the steps of a unit; None if they are not there."""
        if not self._place.has(PARTS):
            return None
        parts = self._parts()
        both = {kind: FolderFile(parts, f"{unit.name}.{kind}.parquet") for kind in (STEPS, REQUESTS)}
        if not all(parts.has(file.name) for file in both.values()):
            return None
        frames = {kind: _read(file, kind, ANEW) for kind, file in both.items()}
        for kind, file in both.items():
            if wrong := _of_another(frames[kind], unit, count if kind == REQUESTS else None):
                raise UserError(f"{file} is damaged ({wrong}); {ANEW}")
        return frames[REQUESTS], frames[STEPS]

    def keep(self, unit: Unit, requests: pd.DataFrame, steps: pd.DataFrame) -> None:
        """Keep a unit; its requests are written last."""
        parts = self._parts(make=True)
        for kind, frame in ((STEPS, steps), (REQUESTS, requests)):
            parquet.put(
                FolderFile(parts, f"{unit.name}.{kind}.parquet"), as_table(frame, kind), {"compression": "zstd"}
            )

    def rates(self, methods: Sequence[str]) -> dict[str, float]:
        """The rates at which queues begin to grow, by method, as far as they are known."""
        if not self._place.has(RATES):
            return {}
        file = FolderFile(self._place, RATES)
        rates = validated(Rates, {"rates": read_object(file, remedy=ANEW)}, str(file), ANEW).rates
        if unknown := [name for name in rates if name not in methods]:
            raise UserError(f"{file} is damaged (it has a rate of {unknown[0]!r}, which was not measured); {ANEW}")
        return rates

    def keep_rates(self, rates: Mapping[str, float]) -> None:
        self._place.write_json(RATES, dict(rates))

    def finish(self, requests: pd.DataFrame, steps: pd.DataFrame) -> None:
        """Write the tables of all that a command measured."""
        for kind, frame in ((REQUESTS, requests), (STEPS, steps)):
            parquet.put(FolderFile(self._place, f"{kind}.parquet"), as_table(frame, kind), {"compression": "zstd"})

    def _parts(self, make: bool = False) -> Folder:
        parts = self._place.folder(PARTS, make)
        parts.refuse_links()
        return parts


@contextmanager
def opened(path: Path) -> Iterator[LoadFolder]:
    """A folder to measure into, locked; it is made if it is missing.

    Raises:
        UserError: it is a file, holds something else, or another process writes it.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path} is a file; choose a folder")
    if not unused(path) and not (path / MANIFEST).exists():
        raise UserError(f"{path} holds other files; choose another --out")
    with claimed(path), Folder.at(path) as place:
        if place.has(PARTS):
            with place.folder(PARTS) as parts:
                parts.remove_leftovers()
        yield LoadFolder(place)


def served_steps(path: Path) -> tuple[Plan, pd.DataFrame]:
    """The plan and the steps of a server that was measured. Raises UserError if the folder holds none."""
    missing = UserError(f"{path} holds no server's steps; `specbench load --out {path}` makes them")
    try:
        place = Folder.at(path)
    except OSError:
        raise missing from None
    with place:
        if not place.has(MANIFEST) or not place.has(f"{STEPS}.parquet"):
            raise missing
        plan = plan_of(_manifest(FolderFile(place, MANIFEST)), path)
        file = FolderFile(place, f"{STEPS}.parquet")
        steps = _read(file, STEPS, "measure it again")
    if unknown := set(steps.method) - {spec.name for spec in plan.methods}:
        raise UserError(f"{file} is damaged (it has steps of {min(unknown)!r}); measure it again")
    return plan, steps


def plan_of(manifest: Mapping[str, Any], path: Path) -> Plan:
    return validated(Plan, manifest["plan"], f"{path / MANIFEST}: plan", "measure it again")


def as_table(frame: pd.DataFrame, kind: str) -> pa.Table:
    return pa.Table.from_pandas(frame, schema=SCHEMAS[kind], preserve_index=False)


def _manifest(file: FolderFile) -> dict[str, Any]:
    manifest = read_object(file, remedy="measure it again")
    if "load" not in manifest:
        raise UserError(f"{file} was written by an earlier version; measure it again")
    validated(LoadManifest, manifest, str(file), "measure it again")
    return manifest


def _read(file: FolderFile, kind: str, remedy: str) -> pd.DataFrame:
    """A table of requests or steps. Raises UserError for what no server can have written."""
    schema = SCHEMAS[kind]
    parquet.check(file, schema, schema.names, remedy)
    table = parquet.RowGroups([file], schema, remedy).to_table()
    wrong = next((f"{name} lacks values" for name in schema.names if _nulls(table[name])), "")
    frame = table.to_pandas()
    if wrong := wrong or (_wrong_requests if kind == REQUESTS else _wrong_steps)(frame):
        raise UserError(f"{file} is damaged ({wrong}); {remedy}")
    return frame


def _nulls(column: pa.ChunkedArray) -> bool:
    inner = column.combine_chunks().flatten() if pa.types.is_list(column.type) else column
    return bool(column.null_count or inner.null_count)


def _wrong_requests(requests: pd.DataFrame) -> str:
    """What in requests no server can have written, in words; empty if there is nothing."""
    if not len(requests):
        return "it has no requests"
    if wrong := _outside(requests, ("came", "began"), ("request", "doc_id", "prompt_tokens", "repeat")):
        return wrong
    if odd := set(requests.finish) - {*FINISHES}:
        return f"finish is {min(odd)!r}"
    whole = requests.finish != "error"
    if (whole & (requests.rounds.map(len).eq(0) | requests.tokens.map(len).eq(0))).any():
        return "a text that ended has no round or no token"
    ends = [np.concatenate([[came, began], rounds]) for came, began, rounds in _times(requests)]
    if not all(np.isfinite(times).all() and times[-1] <= LONGEST and (np.diff(times) >= 0).all() for times in ends):
        return "times do not rise"
    return ""


def _times(requests: pd.DataFrame) -> Iterator[tuple[float, float, Any]]:
    return zip(requests.came, requests.began, requests.rounds, strict=True)


def _wrong_steps(steps: pd.DataFrame) -> str:
    """The same of steps."""
    if not len(steps):
        return "it has no steps"
    if wrong := _outside(steps, ("began", "seconds"), ("repeat", "step", "joined", "queue", "fed", "committed")):
        return wrong
    if (steps["rows"] < 1).any() or (steps.joined > steps["rows"]).any():
        return "more rows joined than were there"
    return ""


def _outside(frame: pd.DataFrame, seconds: Sequence[str], counts: Sequence[str]) -> str:
    """A column with a value that is out of its bounds, in words."""
    for name in (*seconds, *counts):
        if not ((frame[name] >= 0) & (frame[name] <= LONGEST)).all():
            return f"{name} is {frame[name].min()}"
    return "" if (frame.rate > 0).all() else "a rate is not above 0"


def _of_another(frame: pd.DataFrame, unit: Unit, count: int | None) -> str:
    """Why a table is not that of a unit, in words; `count`: the number of its requests."""
    for name, value in unit._asdict().items():
        if not (frame[name] == value).all():
            return f"its {name} is another"
    number = "step" if count is None else "request"
    whole = frame[number].tolist() == list(range(len(frame) if count is None else count))
    return "" if whole else f"its {number}s are not all there, each once and in order"
