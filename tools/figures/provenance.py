"""Where each file under results/ comes from: results/provenance.csv, and the table of it on results/README.md.

`python tools/figures/provenance.py` brings the index up to date: a file that is new or has changed gets the commit of
this checkout and today's date, or those that it names itself, with machine, load, pair and documents where it has
them. Its `command` is written by hand. A row may stand for several files, as `tables/*.md`. Figures of papers, in
published/, have their source in their YAML files.
"""

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
INDEX = RESULTS / "provenance.csv"
COLUMNS = ["file", "command", "commit", "date", "machine", "load", "pair", "documents", "sha256"]
REQUIRED = ["command", "commit", "date", "machine"]
CHANGED = "+changes"  # behind a commit: the files that ran were not all committed
Row = dict[str, str]


def stored() -> list[str]:
    """Every file under results/ that has a provenance, from there."""
    left_out = {"README.md", INDEX.name}
    found = (path.relative_to(RESULTS) for path in RESULTS.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in found if path.parts[0] != "published" and path.as_posix() not in left_out)


def read() -> list[Row]:
    return list(csv.DictReader(io.StringIO(INDEX.read_text(encoding="utf-8"))))


def files_of(row: Row) -> list[str]:
    """The files that a row stands for."""
    return sorted(path.relative_to(RESULTS).as_posix() for path in RESULTS.glob(row["file"]) if path.is_file())


def hash_of(row: Row) -> str:
    """The first digits of the SHA-256 of a row's files, one behind the other."""
    contents = b"".join((RESULTS / name).read_bytes() for name in files_of(row))
    return hashlib.sha256(contents).hexdigest()[:16]


def wrong() -> list[str]:
    """A line for each file without a row, row without a file, empty field, and file that has changed since."""
    rows = read()
    known = [name for row in rows for name in files_of(row)]
    lines = [f"{name} has no row in {INDEX.name}" for name in stored() if name not in known]
    lines += [f"{name} has {known.count(name)} rows" for name in sorted(set(known)) if known.count(name) > 1]
    for row in rows:
        lines += [f"{row['file']} has no {name}" for name in REQUIRED if not row[name]]
        if not files_of(row):
            lines.append(f"{row['file']} is not there")
        elif hash_of(row) != row["sha256"]:
            lines.append(f"{row['file']} is another file: python tools/figures/provenance.py")
        lines += unlike(row)
    return lines


def updated(rows: list[Row]) -> Iterator[Row]:
    """The rows, those of new and changed files with what is known of them now."""
    for row in rows:
        if not files_of(row):  # `wrong` says so
            yield row
            continue
        digest = hash_of(row)
        fresh = {} if digest == row["sha256"] else {"commit": head(), "date": date.today().isoformat(), **found_in(row)}
        fresh |= {name: value for name, value in found_in(row).items() if name == "commit"}
        yield row | fresh | {"sha256": digest}


def found_in(row: Row) -> Row:
    """What a row's first file says of itself."""
    (first, *_) = files_of(row)
    path = RESULTS / first
    if path.suffix == ".csv":
        frame = pd.read_csv(path)
        pair = ", ".join(dict.fromkeys(map(str, frame.pair.dropna()))) if "pair" in frame else ""
        documents = str(int(frame.documents.max())) if "documents" in frame else ""
        return {name: value for name, value in (("pair", pair), ("documents", documents)) if value}
    given = of_json(first)
    place = given.get("environment") or given.get("machine") or {}
    place = place if isinstance(place, dict) else {}
    found = {"documents": str(given.get("documents", "")), "pair": str(given.get("pair", ""))}
    if place.get("cpu"):
        device = str(place.get("device", "cpu")).replace("cuda", "NVIDIA GPU")
        found["machine"] = f"{place['cpu']}, {place['cores']} cores" + ("" if device == "cpu" else f", {device}")
        found["load"] = f"{place['load']:.1f}" if place.get("load") is not None else ""
    if (commit := named_commit(given)) and exists(commit):
        found["commit"] = f"{commit[:12]}{CHANGED if commit.endswith(CHANGED) else ''}"
    return {name: value for name, value in found.items() if value}


def named_commit(given: dict[str, Any]) -> str:
    """The commit that a file names itself; its own field before that of the machine."""
    place = given.get("environment") or given.get("machine") or {}
    return str(given.get("commit") or (place.get("git") if isinstance(place, dict) else "") or "")


def of_json(name: str) -> dict[str, Any]:
    """What a file says if it is an object of JSON; else nothing."""
    path = RESULTS / name
    data = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
    return data if isinstance(data, dict) else {}


def unlike(row: Row) -> Iterator[str]:
    """A line for each file of a row that names another commit, or an option that the row's command lacks."""
    for name in files_of(row):
        given = of_json(name)
        commit, known = named_commit(given).removesuffix(CHANGED), row["commit"].removesuffix(CHANGED)
        if commit and not exists(commit):
            yield f"{name} names the commit {commit}, which is not of this history: measure it again"
        elif commit and not (commit.startswith(known) or known.startswith(commit)):
            yield f"{name} names the commit {commit}, and the row {known}"
        place = given.get("environment") or given.get("machine") or {}
        _, *words = (place.get("command") if isinstance(place, dict) else None) or [""]
        if not words or f"specbench {words[0]}" not in row["command"]:  # a recipe or a target of make has the options
            continue
        told = set(re.split(r"[\s`,;:()]+", row["command"]))
        at_paths = [at for at, word in enumerate(words) if "/" in word or word.endswith(".json") or word == "--out"]
        lacking = [word for at, word in enumerate(words) if at not in at_paths and word not in told]
        if lacking:
            yield f"{name} was made with {' '.join(lacking)}, which its command does not say"


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def head() -> str:
    return git("rev-parse", "--short=12", "HEAD")


@cache
def exists(commit: str) -> bool:
    """True for a commit of this history, with or without changes on it."""
    commit = commit.removesuffix(CHANGED)
    if not re.fullmatch(r"[0-9a-f]{7,40}", commit):
        return False
    base = git("merge-base", commit, "HEAD")
    return bool(base) and base == git("rev-parse", "--verify", f"{commit}^{{commit}}")


def write(rows: list[Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    INDEX.write_text(text.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    write(list(updated(read())))
    print("\n".join(wrong()) or f"{INDEX.name} has every file")
    sys.exit(bool(wrong()))
