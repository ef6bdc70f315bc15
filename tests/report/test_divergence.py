"""Greedy texts of lossless methods that are not their baseline's: what run, show, compare and the page say of them."""

import pytest
from made_runs import add_sample, score, stored

from specbench.engine.types import Round
from specbench.report import comparison

METHODS = ["vanilla", "sps", "csd"]


def run_of(folder, marks, dtype="float32", **changes):
    """A run of three documents; `marks` are divergences by method: the kind and the gap of each document's."""
    tables = {"samples": [], "rounds": []}
    for doc in range(3):
        for method in METHODS:
            add_sample(tables, "sums", doc, method, [Round([token]) for token in (5, 6, 7)], "a text", "length")
            kind, gap = (marks.get(method) or [("", 0.0)] * 3)[doc]
            tables["samples"][-1] |= {"divergence": kind, "divergence_gap": gap, "diverged_at": 1} if kind else {}
    scores = [score("sums", method, doc, 1.0) for method in METHODS for doc in (None, 0, 1, 2)]
    models = {"target": {"model": "bundled:target", "dtype": dtype}}
    return stored(folder, tables, ["sums"], METHODS, scores, 3, models=models, **changes).folder


@pytest.fixture
def broken(tmp_path):
    return run_of(tmp_path / "broken", {"sps": [("bug", 4.25), ("", 0.0), ("bug", 9.0)], "csd": [("tie", 1e-5)] * 3})


def spoken(text: str) -> str:
    return " ".join(text.split())


def test_a_lossless_method_with_other_texts_fails_the_run_and_is_named_everywhere(broken, tmp_path, capsys):
    said = (
        "error: sps calls itself lossless, and 2 of 3 greedy texts are not vanilla's (the first: sums, document 0, "
        "token 1, logits 4.25 apart)"
    )
    assert comparison.finish(broken) == 3
    assert said in spoken(capsys.readouterr().out)
    comparison.show(broken, "table")
    assert said in spoken(capsys.readouterr().out)
    comparison.compare([broken], "csv")
    assert said in spoken(capsys.readouterr().err)
    comparison.report([broken], tmp_path / "page.html")
    assert "sps calls itself lossless, and 2 of 3 greedy texts" in (tmp_path / "page.html").read_text()


def test_near_ties_are_counted_and_no_fault(tmp_path, capsys):
    folder = run_of(tmp_path / "ties", {"csd": [("tie", 1e-5), ("", 0.0), ("tie", 1e-4)]})
    assert comparison.finish(folder) == 0
    out = spoken(capsys.readouterr().out)
    assert "csd: 2 of 3 greedy texts leave vanilla's at a near tie of two tokens" in out
    assert "error" not in out and "float32 tells" not in out


def test_half_precision_is_the_reason_that_is_given(tmp_path, capsys):
    comparison.show(run_of(tmp_path / "half", {"csd": [("tie", 0.2)] * 3}, "bfloat16"), "table")
    out = spoken(capsys.readouterr().out)
    assert "csd: 3 of 3 greedy texts leave vanilla's at a near tie" in out
    assert "the rounding of bfloat16, which would hide a small defect too; --dtype float32 tells" in out


def test_a_text_that_is_the_beginning_of_the_other_has_no_gap(tmp_path, capsys):
    comparison.show(run_of(tmp_path / "short", {"sps": [("bug", float("inf")), ("", 0.0), ("", 0.0)]}), "table")
    assert "(the first: sums, document 0, token 1);" in spoken(capsys.readouterr().out)
