"""Overlapped times are modelled as written down by hand, and stand next to the measured ones, never among them."""

import math

import pytest
from refusals import one_line_error
from screens import output
from synthetic import Rows

from specbench.analysis.drafts import drafting_method
from specbench.report.finding import as_json
from specbench_extras.overlap.analysis import overlap
from specbench_extras.overlap.view import view

# Ten rounds of γ = 3: verified, accepted, committed; seconds of the target, of the draft, of the round; modelled.
TRACE = [
    (1, 1, 1, 4.0, 1.0, 6.0, 5.0),  # the slower one and the host's 1
    (3, 3, 3, 2.0, 3.0, 5.0, 3.0),  # the draft is the slower one
    (3, 3, 3, 2.0, 2.0, 4.0, 2.0),
    (3, 1, 2, 4.0, 0.5, 5.0, 4.5),
    (1, 0, 1, 1.0, 3.0, 4.5, 3.5),
    (1, 0, 1, 2.0, 1.0, 3.0, 2.0),
    (1, 1, 1, 2.0, 6.0, 8.0, 6.0),
    (3, 0, 1, 3.0, 3.0, 7.0, 4.0),
    (1, 1, 1, 5.0, 1.0, 6.0, 5.0),
    (3, 3, 3, 1.0, 1.0, 3.0, 2.0),
]


# Four rounds of branches that begin after a quarter of the target's layers: draft forwards; seconds of target, draft,
# branches and round; modelled.
BRANCHED = [
    (3, 4.0, 2.0, 1.0, 8.0, 7.0),  # nobody waits for branches that are not used: 2 + 4 and the host's 1
    (3, 4.0, 2.0, 2.0, 9.0, 7.0),  # 2 + 4 + 1: these end after 1 + 2
    (0, 4.0, 0.0, 5.0, 10.0, 7.0),  # 1 + 5, and 1
    (0, 4.0, 0.0, 6.0, 10.0, 4.0),
]


def branched(sample):
    """The rounds of a text by BRANCHED, after a prefill of other seconds; each commits two tokens."""
    key = {name: sample[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
    names = ("draft_forwards", "target_seconds", "draft_seconds", "branch_seconds", "seconds")
    counts = {"drafted": 3, "accepted": 1, "committed": 2, "rescued": 0, "truncated": 0, "target_forwards": 1}
    rows = [counts | dict(zip(names, row[:-1], strict=True)) | {"branch_forwards": 3} for row in BRANCHED]
    first = counts | dict.fromkeys(names, 50) | {"drafted": 0, "accepted": 0, "committed": 1}
    return [key | row | {"round": number} for number, row in enumerate([first, *rows])]


def traced(sample):
    """The rounds of a text by TRACE, after a prefill of other seconds."""
    key = {name: sample[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
    rows = [(0, 0, 1, 50.0, 50.0, 100.0, None), *TRACE]
    names = ("drafted", "accepted", "committed", "target_seconds", "draft_seconds", "seconds")
    counts = {"rescued": 0, "truncated": 0, "target_forwards": 1, "draft_forwards": 3}
    return [
        key | counts | {"round": number} | dict(zip(names, row[:-1], strict=True)) for number, row in enumerate(rows)
    ]


def run(folder, documents=1, method="pearl"):
    rows = Rows()
    for doc in range(documents):
        rows.add("plain", doc, 34.0, ((0, 0),) * 17, task="one")
        rows.add(method, doc, 52.0, traced, task="one")  # half a second outside the rounds
    return rows.run(folder)


def test_ten_rounds_by_hand(tmp_path):
    """51.5 seconds were measured in the rounds and 37 are modelled; 17 tokens took the baseline 34 seconds."""
    (row,) = overlap(run(tmp_path / "run")).table.to_dict("records")
    assert sum(step[-2] for step in TRACE) == 51.5 and sum(step[-1] for step in TRACE) == 37
    assert (row["rounds"], row["tokens"], row["tau"]) == (10, 17, 1.7)
    assert row["alpha"] == 13 / 17  # of 20 verified tokens 13 passed, 4 were rejected, and 3 came after these
    assert row["speedup"] == pytest.approx(34 / 52) and row["baseline"] == "plain"
    assert row["modelled_speedup"] == pytest.approx(34 / 37.5)
    assert row["modelled_share"] == pytest.approx(37 / 51.5)
    assert row["hidden"] == pytest.approx(14.5 / 21.5) and math.isnan(row["ready"])


def test_branches_by_hand(tmp_path):
    """37 seconds were measured in the rounds and 25 are modelled; the baseline took 16 seconds for 8 tokens.

    Of 4 seconds of drafts and 7 of branches that were used, 2 and 3 were covered by the target's later layers.
    """
    rows = Rows()
    for doc in range(3):
        rows.add("plain", doc, 16.0, ((0, 0),) * 8, task="one")
        rows.add("mirror", doc, 37.0, branched, task="one")
    figures = overlap(rows.run(tmp_path / "run", settings={"mirror": {"exit": 0.25}}))
    (row,) = figures.table.to_dict("records")
    assert (sum(step[-2] for step in BRANCHED), sum(step[-1] for step in BRANCHED)) == (37, 25)
    assert (row["rounds"], row["tokens"], row["alpha"]) == (12, 24, 0.5)
    assert row["speedup"] == pytest.approx(16 / 37) and row["modelled_speedup"] == pytest.approx(16 / 25)
    assert row["modelled_share"] == pytest.approx(25 / 37) and row["hidden"] == pytest.approx(5 / 11)
    assert row["ready"] == pytest.approx(2 / 3)
    (sheet,) = view(figures).sheets
    assert sheet.headings[-1] == "ready" and sheet.rows[0][-1] == "67%"


def test_modelled_figures_are_named_so(tmp_path):
    figures = overlap(run(tmp_path / "run", 4))
    finding = view(figures)
    (sheet,) = finding.sheets
    assert list(sheet.headings[3:5]) == ["measured", "modelled"]
    assert sheet.rows[0][3].startswith("0.65") and sheet.rows[0][4].startswith("0.91")
    (row,) = as_json(finding)["table"]
    modelled = {name for name in row if "modelled" in name}
    assert modelled == {"modelled_speedup", "modelled_speedup_low", "modelled_speedup_high", "modelled_share"}
    assert "not measured" in " ".join(finding.notes)


def test_the_command(tmp_path):
    run(tmp_path / "run", 3)
    assert "modelled, not measured" in output("analyze", "overlap", tmp_path / "run")


def test_what_overlaps_is_not_replayed(tmp_path):
    """A round's draft forwards are not those of the tokens that it verifies."""
    made = run(tmp_path / "run")
    for name in ("pearl", None):
        with one_line_error("pearl drafts while the target verifies" if name else "no drafts of one chain to replay"):
            drafting_method(made, name)


def test_runs_without_overlap_or_times_are_refused(tmp_path):
    with one_line_error("has no method whose draft and target overlap"):
        overlap(run(tmp_path / "other", method="sps"))
    untimed = Rows()
    untimed.add("plain", 0, 34.0, ((0, 0),) * 17)
    for row in untimed.add("pearl", 0, 52.0, traced):
        row["seconds"] = None
    with one_line_error("has no seconds of its rounds"):
        overlap(untimed.run(tmp_path / "untimed"))
