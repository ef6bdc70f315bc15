"""τ of `mtp` by drafted tokens next to a head of EAGLE-3: which lengths stand side by side, and figures by hand."""

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools" / "recipes"))
import mtp_depth


def counts(setting: str, *lengths: int, rounds: int) -> pd.DataFrame:
    """Two documents of 12 and 24 tokens in `rounds` rounds each, at each draft length, and a baseline."""
    names = ["vanilla", *(f"x[{setting}={length}]" for length in lengths)]
    rows = [
        {"task": "a", "doc_id": document, "method": name, "A": 1, "J": 1, "C": tokens, "R": rounds}
        for name in names
        for document, tokens in enumerate((12, 24))
    ]
    return pd.DataFrame(rows).set_index(["task", "doc_id", "method"])


def test_equal_draft_lengths_stand_side_by_side(monkeypatch, capsys):
    """`total_tokens` counts the last committed token, and what only one run has is left out."""
    runs = {"mtp": counts("steps", 1, 3, 5, rounds=6), "eagle3": counts("total_tokens", 2, 4, rounds=9)}
    monkeypatch.setattr(mtp_depth, "StoredRun", lambda folder: folder)
    monkeypatch.setattr(
        mtp_depth.pooled, "measured", lambda folders, unfinished: SimpleNamespace(counts=runs[folders[0].name])
    )
    mtp_depth.main(Path("mtp"), Path("eagle3"))
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["drafted"], row["documents"]) for row in rows] == [("1", "2"), ("3", "2")]
    for row in rows:
        found = [float(row[name]) for name in ("tau_mtp", "tau_eagle3", "ratio")]
        assert found == pytest.approx([36 / 12, 36 / 18, 1.5])
