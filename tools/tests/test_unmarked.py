"""Numbers of pages that look measured stand before a mark, or in a list that says what else they are."""

import re

import pytest

from figures import pages, unmarked
from figures.stored import ROOT

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages.pages()}
KNOWN = unmarked.listed()


def test_each_number_has_a_mark_or_is_in_the_list() -> None:
    assert [line for page, text in TEXTS.items() for line in unmarked.wrong(page, text, KNOWN)] == []
    assert {*KNOWN} <= {*TEXTS}


def test_a_kind_that_there_is_not_is_refused(tmp_path, monkeypatch) -> None:
    """As of numbers that were measured and have no mark: each needs one, or leaves its page."""
    listed = tmp_path / "unmarked.yaml"
    listed.write_text("a.md:\n  open: [3 %]\n", encoding="utf-8")
    monkeypatch.setattr(unmarked, "LIST", listed)
    with pytest.raises(ValueError, match="no kind 'open'"):
        unmarked.listed()


NEW = ["2.37 times", "41.5 %", "τ 3.25", "7.5 ms", "112 tokens/s", "1.9 [1.8, 2.1]", "4.25 points"]


def test_a_new_number_is_found_on_every_page() -> None:
    for at, (page, text) in enumerate(TEXTS.items()):
        number = NEW[at % len(NEW)]
        (line,) = unmarked.wrong(page, f"{text}\nHere it has {number} of it.\n", KNOWN)
        assert line.startswith(f"{page}: {number} looks measured")


def test_a_listed_number_that_is_made_wrong_is_found() -> None:
    for page, kinds in KNOWN.items():
        number = next(iter(kinds.values()))[0]
        worse = re.sub(r"\d(?!.*\d)", lambda digit: str((int(digit[0]) + 1) % 10), number)
        changed = {kind: [worse if one == number else one for one in numbers] for kind, numbers in kinds.items()}
        lines = unmarked.wrong(page, TEXTS[page], {page: changed})
        assert any(line.startswith(f"{page}: {number} looks measured") for line in lines)
        assert f"{page}: {worse} is not there: take it from {unmarked.LIST.name}" in lines


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It is 1.5 times as fast, by 20 %, τ is 3.", ["1.5 times", "20 %", "τ is 3"]),
        (
            "**1.31**<!--= run tau[a / x] .2f --> times, 1.2 [1.1,\n1.3]<!--= run tau[a / x] .1f± -->, then 7\nms",
            ["7 ms"],
        ),
        ("1.31 [1.2, 1.4] of 95 % intervals; score [95 %]", ["1.31 [1.2, 1.4]"]),
        ("2.2, 3.1 and 4.4 times at T = 0.7 and μ = 0.5, p < 0.05", ["2.2", "3.1", "4.4 times"]),
        ("arXiv 2402.14414, 2501.00001; §3.2; Theorem 3.1 and 3.6 (torch 2.13)", []),
        ("`--slo ttft=0.5` [a 3.5 link](x.md#1.25)\n```\n0.125\n```\n# A 4.5 head\n", ["3.5"]),
        ("95 %\nintervals; γ\n= 2, 3.5 at μ = 0.5; p <\n0.05", ["3.5"]),
        ("60 of 60 texts, 3 of the 20, 1,896 of 2,000.", ["60 of 60", "3 of the 20", "1,896 of 2,000"]),
        ("61<!--= run tau[a / x] .0f --> of 82, 74<!--= run tau[a / x] .0f --> %", []),
        ("10 tasks, 5 documents, version-2.5 and a1.5", []),
        ("<!-- table:begin -->\n| 1.5 |\n<!-- table:end -->", []),
        ("−0.5 points, +1.25, 1,458 µs, 64 MiB, 12 tok/s", ["−0.5 points", "+1.25", "1,458 µs", "64 MiB", "12 tok/s"]),
    ],
)
def test_what_looks_measured(text: str, numbers: list[str]) -> None:
    assert unmarked.found(text) == numbers


def test_what_is_gone_leaves_the_list() -> None:
    known = {"a.md": {"set": ["1 %", "2 %"], "others": ["2 %", "3 %"]}, "b.md": {"others": ["4 %"]}}
    assert unmarked.pruned(known, {"a.md": "2 % and 1 %"}) == {"a.md": {"set": ["1 %", "2 %"]}}
