"""Figures that results/README.md and the methods' pages quote, from the files that they cite."""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
WORDS, ALGEBRA, CODE, NEWS = (f"pocket_{name}" for name in ("gsm8k", "math500", "humaneval", "cnndm"))
FOUR = (WORDS, ALGEBRA, CODE, NEWS)
SIX = (*FOUR, "pocket_ifeval", "pocket_ruler")
LENGTHS = dict(zip(SIX, (10, 12, 14, 2, 2, 6), strict=True))
THRESHOLDS = dict(zip(SIX, (0.7, 0.3, 0.7, 0.3, 0.1, 0.5), strict=True))


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(REFERENCE / f"{name}.csv").set_index(["task", "method"])


def column(name: str, method: str, figure: str, tasks=FOUR, scale: float = 1.0, digits: int = 2) -> list[str]:
    """A figure of a method on each task, as it is printed."""
    rows = table(name)
    return [f"{scale * rows[figure][task, method]:.{digits}f}" for task in tasks]


def gains(name: str) -> list[str]:
    """Tokens per second of the tuned threshold over those of the tuned length, task by task."""
    speed = table(name).tokens_per_s
    return [
        f"{speed[t, f'specdecpp[threshold={THRESHOLDS[t]}]'] / speed[t, f'sps-eos[gamma={LENGTHS[t]}]']:.2f}"
        for t in SIX
    ]


def oracle_share() -> str:
    """The share of the oracle's gain in time per token over γ = 8, by the tasks' mean speeds."""
    seconds = 1 / table("specdecpp-oracle").tokens_per_s["average"]
    fixed, head = seconds["sps-eos[gamma=8]"], seconds["specdecpp[threshold=0.3]"]
    return f"{(fixed - head) / (fixed - seconds['oracle']):.2f}"


def listed(figures: list[str]) -> str:
    return f"{', '.join(figures[:-1])} and {figures[-1]}"


def average(name: str, method: str) -> str:
    row = table(name).loc["average", method]
    bounds = (row.speedup_decode, row.speedup_decode_low, row.speedup_decode_high)
    return "{:.2f} [{:.2f}, {:.2f}] of vanilla".format(*bounds)


def pairs(name: str) -> list[str]:
    """CoSpec's speedup and that of SpS on each task."""
    mine, other = (column(name, method, "speedup_decode") for method in ("cospec", "sps[gamma=25]"))
    return [f"{a} and {b}" for a, b in zip(mine, other, strict=True)]


def points_lost() -> list[str]:
    scores = table("cospec-rewards").accuracy
    return [f"{100 * (scores[t, 'vanilla'] - scores[t, 'cospec[arbitrator=sft-only]']):.1f}" for t in (ALGEBRA, CODE)]


SPECDECPP = {
    "sampled": lambda: "sampled {} on word problems, {} algebra, {} code, {} news, {} instructions, {} needles".format(
        *gains("specdecpp-frontier")
    ),
    "greedy": lambda: listed(gains("specdecpp-oracle")),
    "oracle": lambda: f"and {oracle_share()} over γ = 8",
}
COSPEC = {
    "τ": lambda: f"τ {listed(column('cospec-sampled', 'cospec', 'tau'))}",
    "τ of SpS": lambda: f"SpS has {listed(column('cospec-sampled', 'sps[gamma=25]', 'tau'))}",
    "τ of never": lambda: listed(column("cospec-sampled", "cospec[arbiter=never]", "tau")),
    "sampled": lambda: "({} times vanilla, {}, {}, {})".format(*pairs("cospec-sampled")),
    "average": lambda: average("cospec-sampled", "cospec"),
    "greedy": lambda: "{} times vanilla there, {} on algebra, {} on code, {} on news".format(*pairs("cospec-greedy")),
    "warm-up τ": lambda: "τ {} on algebra and code".format(
        " and ".join(column("cospec-rewards", "cospec[arbitrator=sft-only]", "tau", (ALGEBRA, CODE), digits=1))
    ),
    "warm-up score": lambda: f"loses {' and '.join(points_lost())} points there",
}


@pytest.mark.parametrize(
    ("page", "name"), [("specdecpp", name) for name in SPECDECPP] + [("cospec", name) for name in COSPEC]
)
def test_figures_are_those_of_the_files(page: str, name: str) -> None:
    expected = {"specdecpp": SPECDECPP, "cospec": COSPEC}[page][name]()
    for path in (ROOT / "results" / "README.md", ROOT / "docs" / "pages" / "methods" / f"{page}.md"):
        assert expected in re.sub(r"\s+", " ", path.read_text(encoding="utf-8")), path.name
