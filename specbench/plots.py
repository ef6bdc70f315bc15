"""Plots of runs, as matplotlib figures.

import specbench

specbench.plots.KINDS
specbench.plots.draw("speed-accuracy", ["runs/first", "runs/second"], out="plot.svg")
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from specbench.api import AnyRun, Run
from specbench.report.plots import kinds, listed
from specbench.report.plots.style import save

KINDS = tuple(listed.KINDS)
"""The names of the plots; `specbench plot --help` says what each shows."""


def draw(
    kind: str, runs: AnyRun | Iterable[AnyRun], out: str | Path | None = None, allow_mismatch: Sequence[str] = ()
) -> Figure:
    """Draw one or more runs, and write the plot to `out` (.svg, .png or .pdf) if it is given.

    Raises:
        UserError: there is no such kind, the runs do not compare, or they lack what the plot shows.
    """
    path = None if out is None else kinds.writable(Path(out))
    listed = [runs] if isinstance(runs, (str, Path, Run)) else runs
    stored = [run.stored if isinstance(run, Run) else Run(run).stored for run in listed]
    figure = kinds.draw(kind, stored, allow_mismatch)
    if path:
        save(figure, path)
    return figure
