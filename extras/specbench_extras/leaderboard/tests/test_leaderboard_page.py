"""The leaderboard as CSV, as Markdown, and as a page in a real browser."""

import csv
import io

import browsing
import pandas as pd
import pytest
from synthetic import CHAIN, SINGLE, Timed
from test_leaderboard import METHODS, about, made

from specbench.config import UserError
from specbench_extras.leaderboard.page import leaderboard

browser, open_page = browsing.browser, browsing.open_page

HOSTILE = "=<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs on one machine, of which one has a method with a hostile name, and one on another machine."""
    root = tmp_path_factory.mktemp("runs")
    more = {"vanilla": Timed(1.0, SINGLE), HOSTILE: Timed(about(0.8), CHAIN), "fast": Timed(about(0.4), CHAIN)}
    return [
        made(root / "one"),
        made(root / "two", more, started="2026-01-02T12:00:00+0000"),
        made(root / "three", METHODS | {"sps": Timed(about(0.55), CHAIN)}, environment={"cpu": "sand glass"}),
    ]


def test_csv_has_figures_verdicts_and_conditions(folders, tmp_path, capsys):
    leaderboard(folders, tmp_path / "board.csv")
    rows = pd.read_csv(tmp_path / "board.csv").set_index(["group", "method"])
    assert rows.index.tolist() == [("A", n) for n in ("sps", f"'{HOSTILE}", "vanilla", "fast")] + [
        ("B", "sps"),
        ("B", "vanilla"),
    ]
    sps = rows.loc[("A", "sps")]
    assert sps.speedup == pytest.approx(1 / 0.625) and sps.leads and sps.run == "one"
    assert (sps.machine, sps.commit, sps["load"]) == ("2 cores of abacus", "abc", 0.1)
    fast = rows.loc[("A", "fast")]
    assert pd.isna(fast.speedup) and "more than its τ" in fast.withheld
    said = capsys.readouterr().out.replace("\n", " ")
    assert "Group B does not compare with A: cpu (abacus / sand glass)." in said
    assert "6 rows of 3 runs; groups that compare: 2" in said


def test_csv_by_run_keeps_runs_apart(folders, tmp_path):
    leaderboard(folders, tmp_path / "board.csv", by="run")
    rows = pd.read_csv(tmp_path / "board.csv")
    assert rows.run.drop_duplicates().tolist() == ["one", "three", "two"]  # by start, then by group
    assert len(rows) == 7


def test_sort_is_within_groups(folders, tmp_path):
    leaderboard(folders, tmp_path / "board.csv", sort="speedup:asc")
    assert pd.read_csv(tmp_path / "board.csv").group.tolist() == ["A"] * 4 + ["B"] * 2
    with pytest.raises(UserError, match="cannot sort by 'sped'"):
        leaderboard(folders, tmp_path / "board.csv", sort="sped")


def test_markdown_has_a_table_for_each_group_and_one_of_the_runs(folders, tmp_path):
    leaderboard(folders, tmp_path / "board.md")
    text = (tmp_path / "board.md").read_text()
    assert text.count("\n## ") == 3 and "## B: 2 cores of sand glass, float32, eager runtime" in text
    assert "| tiny | one | sps | ● | faster | too few documents | 1.60 [1.57, 1.63] | 9 |" in text
    assert "<img" not in text


@pytest.mark.parametrize(
    ("name", "by", "said"), [("a.txt", "method", "use .html"), ("a.html", "run", "has both tables")]
)
def test_what_cannot_be_written_is_refused(folders, tmp_path, name, by, said):
    with pytest.raises(UserError, match=said):
        leaderboard(folders, tmp_path / name, by)
    assert not (tmp_path / name).exists()


@pytest.fixture(scope="module")
def view(open_page, folders, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "board.html"
    leaderboard(folders, path)
    return open_page(path)


def methods(view, table="leaderboard"):
    script = "rows => rows.map(row => row.cells[0].textContent)"
    return view.eval_on_selector_all(f"#{table} tbody tr:not([data-heads]):not([hidden])", script)


def place(view, heading):
    return [text.strip() for text in view.locator("#leaderboard thead th").all_text_contents()].index(heading) + 1


def test_the_page_sorts_within_its_groups(view):
    assert methods(view) == ["sps", HOSTILE, "vanilla", "fast", "sps", "vanilla"]
    view.click(f"#leaderboard th:nth-child({place(view, 'speedup [95 %]')}) button")
    view.click(f"#leaderboard th:nth-child({place(view, 'speedup [95 %]')}) button")
    assert methods(view) == ["vanilla", HOSTILE, "sps", "fast", "vanilla", "sps"]  # smallest first, unknown last
    assert view.locator("#leaderboard tbody").count() == 2
    assert (
        view.locator("#leaderboard tbody tr:first-child")
        .all_text_contents()[1]
        .strip()
        .startswith("B: 2 cores of sand")
    )
    view.click(f"#leaderboard th:nth-child({place(view, 'speedup [95 %]')}) button")


def test_the_page_shows_the_rows_that_are_chosen(view):
    view.select_option("#leaderboard-method", label="sps")
    assert methods(view) == ["sps", "sps"]
    assert view.locator("#leaderboard tr.group:visible").count() == 2
    view.select_option("#leaderboard-method", value="")
    assert len(methods(view)) == 6 and len(methods(view, "history")) == 7


def test_an_impossible_speedup_is_not_on_the_page(view):
    row = view.locator("#leaderboard tbody tr", has_text="no verdict")
    assert row.text_content().split()[0] == "fast" and "2.50" not in row.text_content()
    assert "2.50" in view.locator(".warnings").text_content()


def test_a_table_is_saved_as_csv(view):
    with view.expect_download() as download:
        view.click("button[data-csv=leaderboard]")
    assert download.value.suggested_filename == "leaderboard.csv"
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    sps = next(row for row in rows if row["method"] == "sps")
    assert float(sps["speedup"]) == pytest.approx(1 / 0.625)
    assert float(sps["speedup_low"]) < 1 / 0.625 < float(sps["speedup_high"])
    assert next(row for row in rows if row["method"] == "fast")["speedup"] == ""
    assert [row["method"] for row in rows if "img" in row["method"]] == [f"'{HOSTILE}"]


def test_nothing_acts_and_nothing_is_fetched(view):
    assert view.title() == "specbench leaderboard" and view.locator("img").count() == 0
    assert view.said == [] and [url for url in view.asked if not url.startswith(("file:", "blob:"))] == []


def test_conditions_of_each_run_are_there(view):
    texts = view.locator("#runs tbody tr").all_text_contents()
    assert len(texts) == 3
    for fact in ("2026-01-02T12:00:00+0000", "one: 9", "2 cores of abacus", "float32", "eager", "0.1", "abc"):
        assert fact in texts[1]
