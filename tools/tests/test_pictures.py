"""The pictures of pages show what their files have."""

import re

import numpy as np
import pytest

from figures.pictures import IMAGES, PICTURES
from figures.stored import ROOT
from specbench.report.plots.style import look, save

NUMBER = re.compile(r"-?\d+\.\d+")


def numbers(svg: str) -> np.ndarray:
    """All places of what is drawn, without the ids of its parts."""
    return np.array([float(number) for number in NUMBER.findall(" ".join(re.findall(r' (?:d|x|y)="([^"]*)"', svg)))])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_that_of_its_file(name, tmp_path):
    with look():
        save(PICTURES[name](), tmp_path / "new.svg")
    stored, now = (IMAGES / f"{name}.svg").read_text(), (tmp_path / "new.svg").read_text()
    assert re.findall(r"<text[^>]*>([^<]*)", stored) == re.findall(r"<text[^>]*>([^<]*)", now)
    assert numbers(stored) == pytest.approx(numbers(now), abs=0.5)  # in points; python tools/figures/pictures.py


def test_every_picture_of_a_page_is_drawn_from_a_file():
    text = "".join(path.read_text() for path in (ROOT / "docs" / "pages").rglob("*.md"))
    named = re.findall(r"images/([\w-]+)\.svg", text)
    assert sorted(set(named)) == sorted(PICTURES) == sorted(path.stem for path in IMAGES.iterdir())
