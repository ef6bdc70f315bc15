"""Figures of the page on training, from the file that it cites."""

import re
from functools import cache
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]


@cache
def losses() -> pd.DataFrame:
    return pd.read_csv(ROOT / "results" / "reference" / "draft-losses.csv").fillna({"loss": ""})


def section() -> str:
    page = (ROOT / "docs" / "pages" / "training.md").read_text(encoding="utf-8")
    return page.split("Of the weak draft of the bundled pair")[1].split("\nWith `exits`")[0]


def test_the_table_of_losses_is_that_of_its_file():
    lines = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in section().splitlines() if "|" in line
    ]
    (_, *names), _, *rows = lines
    printed = {(data, loss): cell for data, *cells in rows for loss, cell in zip(names, cells, strict=True)}
    of_all = losses()[(losses().temperature == 1) & (losses().task == "all")]
    file = {(row.data, row.loss): f"{row.alpha:.3f}" for row in of_all.itertuples()}
    for (data, loss), cell in printed.items():
        key = (data.replace("mean", "all"), loss.replace("mean", "all"))
        assert cell == file.get(key, ""), key
    assert f"the draft as it was has {file['as it was', '']}" in re.sub(r"\s+", " ", section())
    known = {key for key in file if key[0] not in ("as it was", "replay")}
    assert known == {(d.replace("mean", "all"), x.replace("mean", "all")) for d, x in printed} - {("all", "all")}
    assert len(known) == 6 * 6 + 6 + 6


def test_bounded_figures_of_the_losses_are_those_of_their_file():
    known = {
        tuple(f"{row[name + end]:.3f}" for end in ("", "_low", "_high"))
        for name in ("alpha", "gain", "short")
        for _, row in losses().iterrows()
    }
    quoted = re.findall(r"(-?\d\.\d{3}) \[(-?\d\.\d{3}),\s+(-?\d\.\d{3})\]", section())
    assert len(quoted) > 3 and [figure for figure in quoted if figure not in known] == []
