"""The kinds of plots, and how run folders become a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from specbench.base.errors import did_you_mean
from specbench.config import UserError
from specbench.report.plots import calibration, rounds, summary
from specbench.report.plots.data import PlotData, read
from specbench.report.plots.style import DATES, legend, look, save
from specbench.results.stored import StoredRun


@dataclass(frozen=True)
class Kind:
    help: str
    draw: Callable[[PlotData], Figure]
    with_depths: bool = False


KINDS = {
    "speed-accuracy": Kind("decode speedup against accuracy, with the Pareto front", summary.speed_accuracy),
    "discard-verification": Kind(
        "discard rate against verification rate, with lines of equal speed", rounds.discard_verification
    ),
    "depth": Kind("acceptance by draft position", rounds.depth, with_depths=True),
    "lengths": Kind("histogram of accepted lengths", rounds.lengths, with_depths=True),
    "sweep": Kind("speedup and accuracy against the setting by which methods differ", summary.sweep),
    "time": Kind("where decode time goes: target, draft, rest", rounds.time),
    "forwards": Kind("time of a target forward against block width and context", rounds.forwards),
    "reliability": Kind("predicted against actual acceptance of draft tokens", calibration.reliability),
}


def draw(kind: str, runs: Sequence[StoredRun], allowed: Sequence[str] = ()) -> Figure:
    """A plot of one of KINDS. Raises UserError for an unknown kind, and for runs that lack what it shows."""
    chosen = _kind(kind)
    data = read(runs, allowed, chosen.with_depths)
    with look():
        fig = chosen.draw(data)
        legend(fig, data.notes)
    return fig


def plot(kind: str, folders: Sequence[Path], out: Path | None = None, allowed: Sequence[str] = ()) -> Path:
    """Draw runs and write the plot to `out`, whose suffix is svg, png or pdf; returns the file.

    Without `out` it is `KIND.svg` in the current folder. Raises UserError as `draw`, and for a wrong `out`.
    """
    _kind(kind)
    path = out or Path(f"{kind}.svg")
    if path.suffix[1:].lower() not in DATES:
        raise UserError(f"{path} has no suffix that a plot can be written to; use .svg, .png or .pdf")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it, or choose another --out")
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    save(draw(kind, runs, allowed), path)
    return path


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise UserError(f"no plot {name!r}{did_you_mean(name, KINDS)}; there are {', '.join(KINDS)}")
    return KINDS[name]
