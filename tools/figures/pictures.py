"""The pictures on pages, drawn from the files under results/ that have their figures.

`python tools/figures/pictures.py` writes them again, after a file or the look of a plot has changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures.stored import ROOT, path_of, table
from specbench.analysis.strength import Strength
from specbench.report.plots import load, strength
from specbench.report.plots.listed import KINDS
from specbench.report.plots.style import legend, look, save
from specbench.studies.under_load import LoadFigures

IMAGES = ROOT / "docs" / "pages" / "images"


def strength_of_drafts() -> Figure:
    figures = Strength("vanilla", table("strength.drafts"), table("strength.methods"), [])
    caption = "float32, static runtime, 1 of 2 cores of AMD EPYC; 100 documents a task, of which 12 were timed alone"
    fig = strength.of(figures)
    legend(fig, [], caption, KINDS["strength"].title)
    return fig


def under_load() -> Figure:
    cells = pd.read_csv(path_of("load-methods"))
    facts = cells[cells.table.isna()].set_index("column").value
    given: dict[str, Any] = {name: facts[name] for name in ("pair", "suite", "sampling", "arrivals")}
    given |= {name: int(facts[name]) for name in ("rows", "requests", "repeats")}
    parsed = ("slo", "saturation", "leaks", "failures", "environment", "settings")
    given |= {name: json.loads(facts[name]) for name in parsed}
    given |= {name: table(f"load-methods.{name}") for name in ("table", "by_rows")}
    return load.load(LoadFigures(**given))


PICTURES = {"strength": strength_of_drafts, "load": under_load}

if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        with look():
            save(drawn(), IMAGES / f"{name}.svg")
        print(f"written: {IMAGES.relative_to(ROOT) / name}.svg")
