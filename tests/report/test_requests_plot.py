"""The plot of requests: points worked out by hand, and a file from real runs over a server."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fake import Fake, serving
from screens import output
from test_client import TOKENIZER

from specbench.report.plots.requests import requests
from specbench.report.plots.style import styles


def run(rate, concurrency, *rows):
    """A run of one server; a row is (task, due, first token, end, tokens), and chunks came at both times."""
    servers = [SimpleNamespace(name="vllm")]
    table = pd.DataFrame(rows, columns=["task", "due", "first_token", "ended", "new_tokens"])
    chunks = list(zip(table.first_token, table.ended, strict=True))
    table = table.assign(repeat=0, doc_id=range(len(rows)), method="vllm", warmup=False, finish="eos", sent=table.due)
    table = table.assign(chunks=chunks, decode_seconds=table.ended - table.first_token)
    table = table.assign(evidence="chunks", verify_rounds=1, accepted_tokens=None)
    plan = SimpleNamespace(servers=servers, rate=rate, concurrency=concurrency)
    return SimpleNamespace(plan=plan, folder="run", samples=lambda columns: table[columns])


def test_points_by_hand():
    """Alone: 11 tokens in 2 s, ten of them in 1 s. Two at a time: 22 tokens in 2.5 s, ten of each in 1.25 s."""
    alone = run(None, 1, ("a", 0.0, 1.0, 2.0, 11), ("b", 5.0, 5.5, 7.5, 5))
    both = run(None, 2, ("a", 0.0, 1.25, 2.5, 11), ("a", 0.0, 1.25, 2.5, 11), ("b", 5.0, 6.0, 7.0, 5))
    fast = run(4.0, 1, ("a", 0.0, 1.0, 3.0, 11))
    data = SimpleNamespace(
        runs=[alone, both, fast], labels=[{"vllm": "vllm"}] * 3, styles=styles(["vllm"], []), named=lambda name: name
    )
    one, other = requests(data).axes
    (line,) = [line for line in one.lines if line.get_label() == "vllm"]
    expected = [[11 / 2, 10], [22 / 2.5, 8], [11 / 3, 5]]
    assert line.get_xydata() == pytest.approx(np.array(expected[:2]))
    (paced,) = [line for line in one.lines if line.get_label() == "_"]
    assert paced.get_xydata() == pytest.approx(np.array(expected[2:])), "runs by rate are a line of their own"
    assert [text.get_text() for text in one.texts] == ["1", "2", "4/s"]
    (pareto,) = [line for line in one.lines if line.get_label() == "Pareto front"]
    assert pareto.get_xydata()[1:-1] == pytest.approx(np.array(expected[:2]))
    (line,) = [line for line in other.lines if line.get_label() == "vllm"]
    assert line.get_xydata() == pytest.approx(np.array([[5 / 2.5, 2], [5 / 2, 4]]))
    assert (one.get_title(), other.get_title(), one.get_ylabel()) == ("a", "b", "tokens/s of a user, median")


def test_runs_over_a_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with serving(Fake(TOKENIZER, delay=0.002)) as fake:
        for number in (1, 2):
            words = ("--task", "pocket_gsm8k", "--limit", 3, "--concurrency", number, "--out", f"run{number}")
            output("run", "--server", f"vllm={fake.url}", *words)
    output("plot", "requests", "run1", "run2", "--out", "requests.svg")
    text = (tmp_path / "requests.svg").read_text()
    assert "tokens/s of all" in text and "requests at a time" in text
