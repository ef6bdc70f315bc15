"""Every file that lasts is whole or not there: nothing in the package writes past `files.whole`."""

import ast
import errno
import os
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import torch
from gates import pair as tiny_models
from matplotlib.figure import Figure

from specbench.base import files
from specbench.engine.models import heads
from specbench.methods.lookup import rest_datastore
from specbench.methods.lossy import csd_memory
from specbench.papers import cells
from specbench.report.plots import style
from specbench.results import records
from specbench.training import checkpoint, collected
from specbench_extras.datastore import build as datastore

PACKAGE = Path(files.__file__).parents[1]
EXTRAS = PACKAGE.parent / "extras" / "specbench_extras"
WRITE = {"write_text", "write_bytes", "savefig", "save_pretrained", "to_parquet", "save_model", "write_table", "tofile"}
SAVE = {"save", "save_file"}  # of torch, numpy, safetensors
# What writes otherwise, and why it may. A writer that is added here needs a reason as good.
APART = {
    ("base/files.py", "write_text"): "it is `whole` itself",
    ("base/files.py", "write_json"): "by `write_text`",
    ("base/folder.py", "whole"): "it is `whole` itself, in an open folder",
    ("results/lock.py", "_owned"): "a lock is made in place",
    ("datastore/build.py", "__init__"): "into a folder next to it, which is renamed",
    ("drafts/train.py", "write_model"): "into a folder next to it, which is renamed",
    ("cli/__init__.py", "main"): "in the place of outputs that were closed, to nowhere",
    ("training/checkpoint.py", "save_checkpoint"): "into memory; the file is whole",
    ("engine/models/heads.py", "write_head"): "into memory; the file is whole",
    ("measure/worker.py", "serve"): "in the place of outputs, to the worker's log, which is appended to",
    ("tasks/sandbox/jail.py", "unshare"): "into /proc",
    ("bench/genai.py", "write"): "into a folder next to it, which is renamed",
    ("engine/models/tokenizer.py", "tokenizer_hash"): "into a folder that is gone after it was hashed",
    ("engine/models/gguf_files.py", None): "into a folder next to it, which is renamed; its lock is made in place",
    ("openvino/export.py", None): "into a folder next to it, which is renamed",
}
OLD = b"what was there before"


def writes() -> list[tuple[str, str | None, int]]:
    """Where the packages write to a path outside of a `with … whole(…)`: file, function, line."""
    results = []
    files = [(path, package) for package in (PACKAGE, EXTRAS) for path in sorted(package.rglob("*.py"))]
    for path, package in (one for one in files if "tests" not in one[0].relative_to(one[1]).parts):
        name = path.relative_to(package).as_posix()
        results += [(name, function, line) for function, line in _writes(ast.parse(path.read_text()), None, False)]
    return results


def _writes(node: ast.AST, function: str | None, within: bool):
    if isinstance(node, ast.FunctionDef):
        function = node.name
    if isinstance(node, ast.With):
        within = within or any("whole" in ast.unparse(item.context_expr) for item in node.items)
    if isinstance(node, ast.Call) and not within and _is_write(node):
        yield function, node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _writes(child, function, within)


def _is_write(call: ast.Call) -> bool:
    said = ast.unparse(call.func)
    last = said.rsplit(".", 1)[-1]
    if last == "open":
        modes = [one.value for one in [*call.args, *(k.value for k in call.keywords)] if isinstance(one, ast.Constant)]
        return any(isinstance(mode, str) and mode[:1] in "wax" and len(mode) < 4 for mode in modes)
    if last in ("write_text", "write_table") and said.split(".")[0] in ("files", "records", "write_table"):
        return False  # those are whole
    return last in WRITE or said in {f"{place}.{one}" for place in ("torch", "np", "numpy", "ov") for one in SAVE}


def allowed(name: str, function: str | None) -> bool:
    return (name, function) in APART or (name, None) in APART


def test_nothing_writes_past_whole():
    assert [one for one in writes() if not allowed(*one[:2])] == []


def test_this_looks_at_what_writes():
    """Seen: plain writes, and none of those that are whole."""
    text = """
def a(p): p.write_text("x")
def b(p):
    with open(p, "w", newline="") as f: f.write("x")
def c(p): torch.save({}, p)
def d(p):
    with files.whole(p) as new, open(new, "w") as f: f.write("x")
def e(p): open(p)
def f(p): fig.savefig(p)
def g(p): files.write_text(p, "x")
"""
    assert [name for name, _ in _writes(ast.parse(text), None, False)] == ["a", "b", "c", "f"]


@pytest.fixture
def pair():
    """What writers ask of a pair."""
    target, _ = tiny_models("llama")

    class Session:
        model = target

    class Pair:
        name, tokenizer_hash = "tiny", "0" * 16

        def session(self, role):
            return Session

        def describe(self):
            return {"target": {"weights_hash": "0" * 16}, "draft": {"weights_hash": "0" * 16}}

    return Pair()


WRITERS = {
    "text": lambda path, pair: files.write_text(path, "new"),
    "json": lambda path, pair: files.write_json(path, {"new": 1}),
    "table": lambda path, pair: records.write_table(path, [{"task": "t"}], records.SCORES),
    "frame": lambda path, pair: records.write_frame(path, pd.DataFrame({"a": [1]})),
    "memory": lambda path, pair: csd_memory.write_memory(path, {(0, 1, 2): 3}, pair, {}),
    "head": lambda path, pair: heads.write_head(path, "judge", {"w": torch.ones(2)}, pair, {}),
    "checkpoint": lambda path, pair: checkpoint.save_checkpoint(path, {"a": 1}, {"w": torch.ones(2)}),
    "collected": lambda path, pair: collected.put_table(path, pa.table({"a": [1]}), {"facts": {}}),
    "cells": lambda path, pair: cells.write_cells(path, []),
    "svg": lambda path, pair: style.save(Figure(), path.with_suffix(".svg")),
}


def full(opened: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def stop(*_) -> None:
    raise KeyboardInterrupt


FAULTS = {os: ("fsync", full, OSError), Path: ("replace", stop, KeyboardInterrupt)}


@pytest.mark.parametrize("place", (os, Path), ids=("a full disk", "an interrupt"))
@pytest.mark.parametrize("name", WRITERS)
def test_what_fails_leaves_the_old_file(name, place, pair, tmp_path, monkeypatch):
    path = tmp_path / "file.svg"
    path.write_bytes(OLD)
    step, fault, error = FAULTS[place]
    monkeypatch.setattr(place, step, fault)
    with pytest.raises(error, match="No space left" if place is os else None):
        WRITERS[name](path, pair)
    assert path.read_bytes() == OLD and [path.name for path in tmp_path.iterdir()] == ["file.svg"]
    monkeypatch.undo()
    WRITERS[name](path, pair)
    assert path.read_bytes() != OLD and [path.name for path in tmp_path.iterdir()] == ["file.svg"]


@pytest.mark.parametrize("at", range(4))
def test_a_datastore_is_whole_or_not_there(at, tmp_path, monkeypatch):
    calls = iter(range(99))
    sync = os.fsync

    def sometimes(opened: int) -> None:
        if next(calls) == at:
            full(opened)
        sync(opened)

    monkeypatch.setattr(os, "fsync", sometimes)
    with pytest.raises(OSError, match="No space left"):
        datastore.build([[1, 2, 3]] * 4, tmp_path / "store", 8, "0" * 16, {})
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    datastore.build([[1, 2, 3]] * 4, tmp_path / "store", 8, "0" * 16, {})
    assert rest_datastore.read_about(tmp_path / "store").tokens == 12
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
