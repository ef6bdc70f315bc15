"""Plots of learning: points worked out by hand, files, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import one_line_error
from synthetic import SINGLE, Rows

from specbench.report.plots import training as plots
from specbench.report.plots.kinds import draw, plot
from specbench.results.stored import StoredRun


def log(path, held, losses):
    """A log with a look before the first step and after each further one."""
    rows = [{"step": 0, "loss": None, "held_out": held[0]}]
    for step, (loss, look) in enumerate(zip(losses, held[1:], strict=True)):
        rows += [{"step": step, "loss": loss, "held_out": None}, {"step": step + 1, "loss": None, "held_out": look}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def line_of(ax, label):
    (results,) = [line for line in ax.lines if line.get_label() == label]
    return results.get_xydata()


def test_the_lines_of_two_logs(tmp_path):
    one = log(tmp_path / "one.log.parquet", [0.5, 0.6, 0.7], [2.0, 1.0])
    other = log(tmp_path / "other.log.parquet", [0.5, 0.4], [3.0])
    loss, held = plots.training([one, other]).axes
    assert line_of(held, "one") == pytest.approx(np.array([[0, 0.5], [1, 0.6], [2, 0.7]]))
    assert line_of(held, "other") == pytest.approx(np.array([[0, 0.5], [1, 0.4]]))
    assert [line.get_xydata().tolist() for line in loss.lines[::2]] == [[[0, 2], [1, 1]], [[0, 3]]]


def test_the_file(tmp_path):
    path = plot("training", [log(tmp_path / "one.log.parquet", [0.5, 0.6], [2.0])], tmp_path / "a.svg")
    assert "held-out acceptance" in path.read_text() and "one" in path.read_text()


def test_what_is_no_log_is_refused(tmp_path):
    bad = tmp_path / "bad.parquet"
    pq.write_table(pa.table({"step": [1]}), bad)
    with one_line_error("bad.parquet", "train --method draft"):
        plots.training([bad])
    pq.write_table(pa.table({"step": [1], "loss": ["high"], "held_out": [0.5]}), bad)
    with one_line_error("bad.parquet"):
        plots.training([bad])
    bad.write_text("nothing")
    with one_line_error("bad.parquet"):
        plots.training([bad])
    (tmp_path / "x").mkdir()
    same = [log(folder / "one.log.parquet", [0.5, 0.6], [2.0]) for folder in (tmp_path, tmp_path / "x")]
    with one_line_error("two logs have one name"):
        plots.training(same)


def drifting(folder, first=((2, 2), (2, 0))):
    """Two tasks of two documents: sps accepts 2 of 3 tested tokens, then 1 of 2, 1 of 1 and 0 of 1."""
    rows = Rows()
    rounds = {("one", 0): list(first), ("one", 1): [(2, 1)], ("two", 0): [(1, 1)], ("two", 1): [(1, 0)]}
    for (task, doc), drafts in rounds.items():
        rows.add("plain", doc, 1.0, SINGLE, task=task, prompt_tokens=5)
        rows.add("sps", doc, 0.5, drafts, (0.1, 0.04), task=task, prompt_tokens=5)
    return rows.run(folder, settings={"sps": {"gamma": 2}}).folder


def test_acceptance_from_text_to_text(tmp_path, monkeypatch):
    folder = drifting(tmp_path / "run")
    for window, expected in ((1, [2 / 3, 1 / 2, 1, 0]), (2, [2 / 3, 3 / 5, 2 / 3, 1 / 2])):
        monkeypatch.setattr(plots, "WINDOW", window)
        (ax,) = draw("drift", [StoredRun(folder)]).axes
        assert line_of(ax, "sps") == pytest.approx(np.array(list(zip((1, 2, 3, 4), expected, strict=True))))
    (shift,) = [line for line in ax.lines if len(set(line.get_xdata())) == 1]
    assert shift.get_xdata()[0] == 2.5


def test_a_log_is_no_run_and_a_run_no_log(tmp_path):
    folder = drifting(tmp_path / "run")
    with one_line_error("`specbench plot training NAME.log.parquet`"):
        draw("training", [StoredRun(folder)])
    with one_line_error("run"):
        plots.training([folder])
