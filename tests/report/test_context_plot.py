"""The plot of acceptance, τ and speed along the context, from written rounds."""

import math

import pytest
from refusals import one_line_error
from synthetic import Rows

from specbench.report.plots.kinds import draw


def run(folder, **others):
    """Four rounds a text. After 120 tokens they begin at 121, 123, 125 and 127, of vanilla at 121 to 124."""
    rows = Rows()
    for doc in range(6):
        about = {"prompt_tokens": 120 if doc < 3 else 1200} | others
        rows.add("plain", doc, 4.0, [(0, 0)] * 4, **about)
        rows.add("sps", doc, 2.0, [(2, 1)] * 4, **about)
    for row in rows.rounds:
        row["seconds"] = 0.5 if row["method"] == "plain" else 0.8
    return rows.run(folder)


def test_points_by_hand(tmp_path):
    """sps: of two tested tokens one passes; two tokens in 0.8 s next to one in 0.5 s."""
    fig = draw("context", [run(tmp_path / "run")])
    acceptance, tau, speedup = fig.axes
    assert [text.get_text() for text in speedup.get_xticklabels()] == ["0", "1k"]
    lines = {
        (name, bars.get_label()): bars[0].get_xydata().tolist()
        for name, ax in (("α", acceptance), ("τ", tau), ("speedup", speedup))
        for bars in ax.containers
    }
    assert {key[1] for key in lines if key[0] == "τ"} == {"plain (baseline)", "sps"}
    assert lines["τ", "plain (baseline)"] == [[64, 1], [1024, 1]]
    assert lines["τ", "sps"] == [[64, 2], [1024, 2]]
    assert lines["α", "sps"] == [[64, 50], [1024, 50]]
    assert ("α", "plain (baseline)") not in lines and ("speedup", "plain (baseline)") not in lines
    assert lines["speedup", "sps"] == [[64, pytest.approx(0.5 / 0.4)], [1024, pytest.approx(0.5 / 0.4)]]


def test_without_times_there_is_no_speedup(tmp_path):
    written = run(tmp_path / "run")
    rows = written.rounds().to_table().to_pandas().assign(seconds=math.nan)
    rows.to_parquet(written.folder / "rounds.parquet", index=False)
    assert [ax.get_ylabel() for ax in draw("context", [type(written)(written.folder)]).axes] == [
        "accepted if tested (%)",
        "τ",
    ]


def test_a_run_that_does_not_tell_its_prompts(tmp_path):
    with one_line_error("does not tell how many tokens its prompts have"):
        draw("context", [run(tmp_path / "run", prompt_tokens=None)])
