"""Figures of pages are those of the files under results/: all of them, and each that is made wrong on purpose."""

import json
import re

import pandas as pd
import pytest

from figures import blocks, marks, pages, stored
from figures.stored import ROOT, NoFigure

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages.pages()}
MARKED = [page for page, text in TEXTS.items() if "<!--=" in text]


def test_every_figure_is_that_of_its_file() -> None:
    assert pages.check() == []


def rotten(text: str) -> str:
    """The page with each marked figure, and each of its bounds, one higher in its last digit."""
    parts = []
    for part in re.split(r"(?=<!--=)", text):
        if shown := marks.SHOWN.search(part):
            worse = re.sub(r"\d(?!\d*[,.]?\d)", lambda digit: str((int(digit[0]) + 1) % 10), shown.group())
            part = part[: shown.start()] + worse
        parts.append(part)
    return "".join(parts)


@pytest.mark.parametrize("page", MARKED)
def test_a_rotten_figure_is_found_and_mended(page: str) -> None:
    text = TEXTS[page]
    worse = rotten(text)
    assert len(marks.wrong(page, worse)) == len(re.findall("<!--=", text)) > 0
    assert marks.rewritten(worse) == text


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if "<!--!" in text])
def test_words_that_are_true_no_more_are_found(page: str) -> None:
    statements = [one for mark in marks.MARK.finditer(TEXTS[page]) if mark[1] == "!" for one in mark[3].split(";")]
    worse = marks.MARK.sub(
        lambda mark: mark[0] if mark[1] == "=" else mark[0].replace(mark[3], _denied(mark[3])), TEXTS[page]
    )
    assert len(marks.wrong(page, worse)) == len(statements) > 0


def _denied(statements: str) -> str:
    return "; ".join(f"not ({one.strip()})" for one in statements.split(";"))


@pytest.mark.parametrize("name", sorted(blocks.TABLES))
def test_a_rotten_table_is_found_and_mended(name: str) -> None:
    (text,) = (text for text in TEXTS.values() if f"<!-- {name}:begin -->" in text)
    match = next(match for match in blocks.BLOCK.finditer(text) if match[2] == name)
    at = [digit.start() for digit in re.finditer(r"\d", match[3])][-1] + match.start(3)
    worse = text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :]
    ((line, shown, right),) = blocks.wrong(worse)
    assert worse.splitlines()[line - 1] == shown and text.splitlines()[line - 1] == right
    assert blocks.rewritten(worse) == text


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder of results with one small file of each kind."""
    reference = tmp_path / "reference"
    reference.mkdir()
    rows = {"task": ["a", "b", "b"], "method": ["x", "x", "y[k=1]"], "baseline": ["x"] * 3, "tau": [2.0, 3.5, 0.125]}
    rows |= {"share": [0.5, -0.0004, 0.999], "share_low": [0.25, -0.1, 0.9], "share_high": [0.75, 0.1, 1.0]}
    pd.DataFrame(rows).to_csv(reference / "run.csv", index=False)
    pd.DataFrame(rows).to_parquet(reference / "run.parquet")
    cells = [("t", 0, "kind", "k"), ("t", 0, "value", "1.5"), ("t", 0, "low", "1"), ("t", 0, "high", "2")]
    cells += [(None, 0, "name", "whole"), (None, 0, "states", "12")]
    finding = pd.DataFrame(cells, columns=["table", "row", "column", "value"]).assign(analysis="x")
    finding.to_csv(reference / "finding.csv", index=False)
    (reference / "some.json").write_text(
        '{"of": [{"name": "p", "value": 1234.5, "low": 1, "high": 2}, {"name": "q"}], "by": [1, 2.25], '
        '"each": [{"of::x": 3}, {"of::x": 5}]}'
    )
    header = json.dumps({"__metadata__": {"specbench": '{"trained": {"right": [0.25, 0.5]}}'}}).encode()
    (reference / "head.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"numbers")
    (reference / "some.txt").write_text("first 1\nAUROC  0.823 [0.753, 0.884]\ntime of cos 7 9.5 2,000\n")
    (tmp_path / "tables").mkdir()
    details = "holds: a +16.0 points (p < 0.001), where x collapsed; undecided: b -0.5 points (p 0.078)"
    (tmp_path / "tables" / "checks.md").write_text(f"| csd | 1 | it scores more | holds | {details} |\n")
    monkeypatch.setattr(stored, "RESULTS", tmp_path)
    forget()
    yield
    forget()


def forget() -> None:
    stored.table.cache_clear()
    stored.figures.cache_clear()
    stored._texts.cache_clear()


@pytest.mark.parametrize(
    ("shown", "mark", "right"),
    [
        ("0", "run tau[b / x] .2f", "3.50"),
        ("0", "run 100 * (tau[a / x] - tau[b / x]) .0f", "−150"),
        ("1 [0, 0]", "run share[a / x] .1p±", "50.0 [25.0, 75.0]"),
        ("1 % [0, 0]", "run share[a\n / x] .1p±.0", "50.0 % [25, 75]"),
        ("9 [0, 0]", "run share[b / y[k=1]] .1s±", "99.9 [90, 100]"),
        ("1.00\n  [0.00,\n0.0]", "run share[b / y[k=1]] .2f±", "1.00\n  [0.90,\n1.00]"),
        ("−1 [0, 0]", "run -1 * share[a / x] .1f±", "−0.5 [−0.8, −0.2]"),
        ("+1", "run tau[a / x] +.1f", "+2.0"),
        ("+1", "run share[b / x] +.1p", "0.0"),
        ("7", "some.json value[of / p] ,.1f", "1,234.5"),
        ("7", "some.json 1[by] .2f", "2.25"),
        ("7", "some.txt number[cos / 3] .0f", "2000"),
        ("0.1 [0, 0]", "some.txt number[AUROC] .2f±", "0.82 [0.75, 0.88]"),
        ("0.1 [0, 0]", "finding.t value[k] .1f±", "1.5 [1.0, 2.0]"),
        ("7", "finding states[whole] .0f", "12"),
        ("7", "run max(tau[b / *]) .2f", "3.50"),
        ("7", "run mean(tau[* / x]) .2f", "2.75"),
        ("7", "run count(tau[task=*]) .0f", "3"),
        ("7", "run.parquet sum(tau[b / *]) .3f", "3.625"),
        ("7", "some.json of::x[each / 1] - min(of::x[each / *]) .0f", "2"),
        ("7", "head.safetensors 1[trained / right] .0p", "50"),
        ("7", "checks points[csd 1 / a] .1f", "16.0"),
        ("7", "checks max(p[csd 1 / it scores more / *]) .3f", "0.078"),
        ("**0.1**", "run tau[a / x] + value[k]@finding.t .1f", "**3.5**"),
    ],
)
def test_a_mark_by_hand(files, shown: str, mark: str, right: str) -> None:
    text, expected = (f"It is {number}<!--= {mark} --> times" for number in (shown, right))
    assert marks.rewritten(text) == expected
    assert len(marks.wrong("page", text)) == 1 and marks.wrong("page", expected) == []


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        ("none tau[b / x] .2f", "no file none"),
        ("run tau[x] .2f", "2 rows of run"),
        ("run tau[c / x] .2f", "0 rows of run"),
        ("run max(tau[b / y*]) .2f", "1 rows of run"),
        ("run tau[b / *] .2f", "'tau[b / *]'"),
        ("run speed[a / x] .2f", "no column speed"),
        ("run tau[a / x]", "no format"),
        ("run tau[a / x] .2f±", "bounds in one"),
        ("run __import__(tau[a / x]) .2f", "no sum of figures"),
        ("run 3 .2f", "names no figure"),
        ("some.json value[of / q] .2f", "no 'value'"),
        ("some.txt number[nothing] .2f", "no line"),
        ("some.txt number[time of] .2f±", "no bounds of 7"),
    ],
)
def test_a_mark_that_leads_nowhere_is_found(files, mark: str, why: str) -> None:
    shown = "1.0 [0.9, 1.1]" if "number[time" in mark else "1.0"
    (found,) = marks.wrong("page.md", f"one\n{shown}<!--= {mark} -->")
    assert why in str(found) and str(found).startswith("page.md:2: ")


def test_words_are_held_by_what_stands_next_to_them(files) -> None:
    text = "faster<!--! run tau[b / x] > tau[a / x]; {} -->"
    assert marks.wrong("page", text.format("share[b / x] < 0")) == []
    (found,) = marks.wrong("page", text.format("tau[a / x] > 3"))
    assert "'tau[a / x] > 3' should be true" in str(found)
    with pytest.raises(NoFigure):
        marks.evaluated("tau[a / x] > 3", "gone")
