"""How run folders become a plot of one of KINDS, and a file."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from matplotlib.figure import Figure

from specbench.base.errors import did_you_mean
from specbench.config import UserError
from specbench.report.plots.data import read
from specbench.report.plots.listed import KINDS, Kind
from specbench.report.plots.style import DATES, legend, look, save
from specbench.results.stored import StoredRun


def draw(kind: str, runs: Sequence[StoredRun], allowed: Sequence[str] = ()) -> Figure:
    """A plot of one of KINDS. Raises UserError for an unknown kind, and for runs that lack what it shows."""
    chosen = _kind(kind)
    if chosen.reads_logs:
        raise UserError(f"{kind} draws logs of trainings, and these are runs; `specbench plot {kind} NAME.log.parquet`")
    data = read(runs, [*allowed, *chosen.over], chosen.reads_depths)
    with look():
        fig: Figure = _function(chosen)(data)
        legend(fig, data.notes, data.caption, chosen.title)
    return fig


def _function(kind: Kind) -> Callable[..., Figure]:
    module, _, function = kind.draws.partition(".")
    return getattr(import_module(f"specbench.report.plots.{module}"), function)  # type: ignore[no-any-return]


def plot(kind: str, folders: Sequence[Path], out: Path | None = None, allowed: Sequence[str] = ()) -> Path:
    """Draw runs (or logs) and write the plot to `out`, whose suffix is svg, png or pdf; returns the file.

    Without `out` it is `KIND.svg` in the current folder. Raises UserError as `draw`, and for a wrong `out`.
    """
    chosen = _kind(kind)
    path = writable(out or Path(f"{kind}.svg"))
    if chosen.reads_logs:
        with look():
            save(_function(chosen)(list(dict.fromkeys(folders))), path)
        return path
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    save(draw(kind, runs, allowed), path)
    return path


def writable(path: Path) -> Path:
    """The same path. Raises UserError if no plot can be written to it, by its suffix or its folder."""
    if path.suffix[1:].lower() not in DATES:
        raise UserError(f"{path} has no suffix that a plot can be written to; use .svg, .png or .pdf")
    if not path.absolute().parent.is_dir():
        raise UserError(f"there is no folder {path.parent}; make it, or choose another file")
    return path


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise UserError(f"no plot {name!r}{did_you_mean(name, KINDS)}; there are {', '.join(KINDS)}")
    return KINDS[name]
