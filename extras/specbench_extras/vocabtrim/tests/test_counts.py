"""Counts of tokens for VocabTrim: what they cover, and how they are collected and used."""

import json
import os
import time
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from specbench.cli import app
from specbench.engine.models import heads
from specbench_extras.vocabtrim import train as vocabtrim


def invoke(*arguments) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_what_is_covered_are_texts_that_were_not_counted(capsys):
    """Three tokens in twelve are common to all five texts; the others are each text's own."""
    texts = {f"t{i}": [1] * 3 + [10 + i] * 9 for i in range(5)}
    pair = SimpleNamespace(vocabulary=32, eos_ids=frozenset(), models={})
    vocabtrim.show(texts, SimpleNamespace(pair=pair, plan=SimpleNamespace(seed=0)))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert [(row[0], row[-1]) for row in rows[:4]] == [(kept, "25.0%") for kept in ("1", "2", "4", "8")]


@pytest.mark.long
def test_count_and_run(pocket, tmp_path):
    """A stopped count goes on; the file holds the tokens of the collected texts, which are vanilla's."""
    suite = tmp_path / "short.yaml"
    suite.write_text("description: One task\ntasks:\n  - {task: pocket_gsm8k, max_new_tokens: 12}\n")
    out = tmp_path / "counts.safetensors"
    train = ["train", "--method", "vocabtrim", "--suite", suite, "--out", out, "--device", "cpu"]
    outcome = invoke(*train, "--documents", 3)
    assert "3 texts, " in outcome and "vocabtrim.counts=" in outcome
    files = sorted((tmp_path / "counts.collected").iterdir())
    texts = [pq.read_table(file)["token"].to_pylist() for file in files]
    assert all(0 < len(text) <= 12 for text in texts), "not their prompts"
    counts = heads.read_head(out, "vocabtrim", pocket, {"counts": (2048,)}).tensors["counts"]
    assert counts.tolist() == [sum(text.count(i) for text in texts) for i in range(2048)]
    began = [os.stat(file).st_mtime_ns for file in files]
    out.unlink()
    time.sleep(0.01)
    outcome = invoke(*train, "--documents", 4)
    assert "continuing with" in outcome and "4 texts" in outcome
    assert [os.stat(file).st_mtime_ns for file in files] == began, "read again, not decoded again"
    place = tmp_path / "run"
    options = ["--suite", suite, "--limit", 1, "--device", "cpu", "--set", f"vocabtrim.counts={out}", "--out", place]
    invoke("run", "--method", "vocabtrim", "--method", "slimspec", *options)
    rows = pq.read_table(place / "samples.parquet").to_pandas()
    result = rows[~rows.warmup].groupby("method").tokens.first()
    assert list(result["vocabtrim"]) == list(result["slimspec"]) == list(result["vanilla"])
    inputs = json.loads((place / "manifest.json").read_text())["inputs"]
    assert list(inputs["vocabtrim"]) == ["counts"] and inputs["slimspec"] == {}
    sampled = [*options[:-1], tmp_path / "sampled", "--temperature", 1]
    invoke("run", "--method", "vocabtrim", "--method", "slimspec", *sampled)
