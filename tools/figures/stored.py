"""Figures of the files under results/, by file, column and what names their row."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
TRAINED = [ROOT / "suites" / "trained" / "heads", *sorted((ROOT / "extras" / "specbench_extras").iterdir())]
BESIDES = {"baseline", "metric", "accuracy_test"}  # texts of a row that do not name it
NUMBER = r"[+−-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
# A data set's figure in a cell of checks.md.
RATIO = re.compile(r"(.+?) ([\d.]+) × \[([\d.]+), ([\d.]+)\]$")
POINTS = re.compile(r"(.+?) ([+-][\d.]+) points \(p (?:< )?([\d.]+)\)$")
OF_CELL = re.compile(r"(.+?): ([\d.]+) \[([\d.]+), ([\d.]+)\]")


class NoFigure(ValueError):
    """A mark names a file, a row or a column that is not there, or more than one."""


@dataclass(frozen=True)
class Figure:
    value: float
    low: float | None = None
    high: float | None = None


def figure(file: str, column: str, keys: tuple[str, ...]) -> Figure:
    """The figure of a file's column in the one row, or at the one place, that the keys name."""
    found = figures(file, column, keys)
    if len(found) != 1:
        raise NoFigure(f"{' / '.join(keys)}: {len(found)} rows of {file}, not one")
    return found[0]


@cache
def figures(file: str, column: str, keys: tuple[str, ...]) -> list[Figure]:
    """The figure of a file's column in the one row, or at the one place, that the keys name; with `*` in one, several.

    `file` is the name of a CSV without its ending, NAME.SHEET where an analysis wrote several tables (NAME alone has
    what is said of it as a whole, in one row), `checks` for tables/checks.md, NAME.json, NAME.txt, NAME.parquet,
    NAME.safetensors of a head that ships (the JSON of its training), or NAME.md of tables/.
    """
    path = path_of(file)
    if path.suffix in (".json", ".safetensors"):
        return _of_json(path, column, keys)
    if path.suffix == ".txt" or (path.suffix == ".md" and file != "checks"):
        return [_of_text(path, keys)]
    rows, columns = _rows(file, keys), set(table(file).columns)
    if (len(rows) < 2) if any("*" in key for key in keys) else (len(rows) != 1):
        raise NoFigure(f"{' / '.join(keys)}: {len(rows)} rows of {file}")
    if column not in columns:
        raise NoFigure(f"{file} has no column {column}")
    low, high = _bounds_of(column, columns)
    names = [name for name in (column, low, high) if name]
    return [Figure(*(_number(row[name]) for name in names)) for _, row in rows.iterrows()]


def path_of(file: str) -> Path:
    """The file that a mark names. Raises NoFigure if there is none."""
    if file == "checks":
        return RESULTS / "tables" / "checks.md"
    folders = (RESULTS / "reference", RESULTS / "published", RESULTS / "tables", RESULTS, *TRAINED)
    for name in (file, f"{file}.csv", f"{file.rpartition('.')[0]}.csv"):
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    raise NoFigure(f"results/ has no file {file}")


def _bounds_of(column: str, names: set[str]) -> tuple[str | None, str | None]:
    for low, high in ((f"{column}_low", f"{column}_high"), ("low", "high")):
        if low in names and high in names:
            return low, high
    return None, None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise NoFigure(f"{value!r} is no number") from error


@cache
def table(file: str) -> pd.DataFrame:
    """The rows of a file; of an analysis the rows of one of its tables. Spaces of column names become underscores."""
    path = path_of(file)
    if file == "checks":
        return _checks(path.read_text(encoding="utf-8"))
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    if {"analysis", "table", "row", "column", "value"} <= set(frame):
        sheet = file.removeprefix(path.stem).removeprefix(".")
        cells = frame[frame.table == sheet] if sheet else frame[frame.table.isna()]
        if cells.empty:
            raise NoFigure(f"{path.name} has these tables: {', '.join(sorted(set(frame.table.dropna())))}")
        if cells.duplicated(["row", "column"]).any():
            raise NoFigure(f"{path.name} has a cell twice in {sheet or 'what is said of it as a whole'}")
        frame = cells.pivot(index="row", columns="column", values="value").sort_index()
        frame = frame.apply(_numeric)
    return frame.rename(columns=lambda name: str(name).replace(" ", "_"))


def _numeric(column: "pd.Series[Any]") -> "pd.Series[Any]":
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if numbers.notna().equals(column.notna()) else column


def _rows(file: str, keys: tuple[str, ...]) -> pd.DataFrame:
    every, texts = table(file), _texts(file)
    there = pd.Series(True, every.index)
    for key in keys:
        name, _, value = key.partition("=")
        cells, value = (every[[name]].astype(str), value) if name in every and value else (texts, key)
        pattern = re.escape(value).replace(r"\*", ".*")
        for name in cells if "*" in value else ():
            cells = cells.assign(**{name: cells[name].str.fullmatch(pattern).map({True: value, False: ""})})
        there &= (cells == value).any(axis=1)
    return every[there]


@cache
def _texts(file: str) -> pd.DataFrame:
    """The columns whose texts name a row."""
    frame = table(file)
    return frame[[n for n in frame if frame[n].dtype.kind not in "fiub" and n not in BESIDES]].astype(str)


def _checks(text: str) -> pd.DataFrame:
    """The data sets of each claim of checks.md: `times` with bounds, or `points` and `p`, and the verdict on each."""
    lines = [line for line in text.splitlines() if line.startswith("| c") or line.startswith("| s")]
    rows = []
    for line in lines:
        paper, number, claim, *_, detail = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        for part in detail.removeprefix("ours (the paper's); ").split("; "):
            verdict, _, places = part.partition(": ")
            for place in _split(places):
                known = {"table": f"{paper} {number}", "claim": claim, "on": verdict}
                if match := RATIO.match(place.split(", alike")[0].split(", where")[0]):
                    low, high = float(match[3]), float(match[4])
                    rows.append({**known, "place": match[1], "times": float(match[2]), "low": low, "high": high})
                elif match := POINTS.match(place.split(", alike")[0].split(", where")[0]):
                    rows.append({**known, "place": match[1], "points": float(match[2]), "p": float(match[3])})
                elif match := OF_CELL.match(place):
                    low, high = float(match[3]), float(match[4])
                    rows.append({**known, "place": match[1], "ours": float(match[2]), "low": low, "high": high})
    return pd.DataFrame(rows)


def _split(places: str) -> Iterator[str]:
    """The places of a cell, which are separated by commas outside of brackets."""
    yield from re.split(r", (?![^\[(]*[\])])(?!alike|where)", places)


def _of_json(path: Path, column: str, keys: tuple[str, ...]) -> list[Figure]:
    """`column` where the keys lead: names, positions, texts that one of a list's objects has, `*` for each."""
    text = _header(path) if path.suffix == ".safetensors" else path.read_text(encoding="utf-8")
    return [_at(place, column, f"{' / '.join(keys)} of {path.name}") for place in _places(json.loads(text), keys, path)]


def _places(place: Any, keys: tuple[str, ...], path: Path) -> Iterator[Any]:
    if not keys:
        yield place
        return
    key, *rest = keys
    found = [place[key]] if isinstance(place, dict) and key in place else []
    if key == "*":
        found = list(place.values() if isinstance(place, dict) else place)
    elif isinstance(place, list) and key.isdigit():
        found = [place[int(key)]]
    elif isinstance(place, list):
        name, _, value = key.partition("=")
        same = [one for one in place if key in one.values() or (value and str(one.get(name)) == value)]
        found = same if len(same) == 1 else [same]
    if not found:
        raise NoFigure(f"{path.name} has no {key!r} there")
    for one in found:
        yield from _places(one, tuple(rest), path)


def _at(place: Any, column: str, name: str) -> Figure:
    if column == "value" and isinstance(place, int | float):
        return Figure(float(place))
    if isinstance(place, list):
        if not column.isdigit() and len(place) == 3 and column == "value":
            return Figure(*map(_number, place))
        if column.isdigit() and int(column) < len(place) and not isinstance(place[int(column)], dict):
            return Figure(_number(place[int(column)]))
        raise NoFigure(f"{name}: {len(place)}, not one")
    if column not in place:
        raise NoFigure(f"{name} has no {column!r}")
    if isinstance(place[column], list) and len(place[column]) == 3:
        return Figure(*map(_number, place[column]))
    low, high = _bounds_of(column, set(place))
    return Figure(_number(place[column]), *(None if end is None else _number(place[end]) for end in (low, high)))


def _header(path: Path) -> str:
    """What a trained head says of its training, in JSON."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return str(header["__metadata__"]["specbench"])


def _of_text(path: Path, keys: tuple[str, ...]) -> Figure:
    """The number of a line, its spaces single, counted from 1, with the two that follow as its bounds.

    The last key is its place if it is a number; the others are texts by which the line is found: each within the first
    line that has it, from where the one before was found.
    """
    *found, place = keys if keys[-1].isdigit() else (*keys, "1")
    lines = [" ".join(line.split()) for line in path.read_text(encoding="utf-8").splitlines()]
    if not found:
        raise NoFigure(f"{path.name}: no text says in which line the number is")
    at = -1
    for text in found:
        at = next((i for i in range(max(at, 0), len(lines)) if text in lines[i]), -2)
        if at == -2:
            raise NoFigure(f"no line of {path.name} has {text!r}")
    rest = lines[at][lines[at].index(found[-1]) + len(found[-1]) :]
    numbers = [_number(one.replace(",", "").replace("−", "-")) for one in re.findall(NUMBER, rest)]
    numbers = numbers[int(place) - 1 :]
    if not numbers:
        raise NoFigure(f"the line of {path.name} with {found[-1]!r} has no number {place} behind it")
    return Figure(*numbers[:3]) if len(numbers) >= 3 else Figure(numbers[0])
