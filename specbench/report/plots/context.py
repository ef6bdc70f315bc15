"""Plot of acceptance, τ and speed along the context."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specbench.analysis.alike import pair_labels
from specbench.analysis.context import context as by_context
from specbench.report.plots.data import PlotData, panels
from specbench.report.plots.style import GREY, grid, head, with_gaps

FIGURES = {"alpha": "accepted if tested (%)", "tau": "τ", "speedup": "decode speedup (×)"}
FIRST = 64  # where the span from 0 on stands on the axis
SCALES = {"alpha": 100}


def context(data: PlotData) -> Figure:
    """α, τ and speedup of the rounds that begin in each span of tokens, with 95 % intervals.

    A row of panels for each pair and sampling. Figures of methods that have none, such as α without drafts, are left
    out, and so is a speedup where the baseline has no rounds or no times.
    """
    parts = []
    for run, labels, pair in zip(data.runs, data.labels, pair_labels(data.runs), strict=True):
        places = by_context(run).places
        parts.append(places.assign(pair=pair, sampling=run.sampling, method=places.method.map(labels)))
    table = pd.concat(parts, ignore_index=True)
    shown = [name for name in FIGURES if table[name].notna().any()]
    all_panels = list(panels(data, table))
    fig, axes = grid([1.5] * (len(shown) * len(all_panels)), 1, sharex=True)
    edges = sorted(table["from"].unique())
    for at, ax in enumerate(axes):
        (title, rows), name = all_panels[at // len(shown)], shown[at % len(shown)]
        for method, spans in rows.groupby("method", sort=False):
            known = spans.dropna(subset=[name])
            if len(known):
                _line(ax, with_gaps(known.set_index("from"), edges).reset_index(), name, data, str(method))
        if name == "speedup":
            ax.axhline(1, color=GREY, ls=":", lw=0.8, zorder=1)
        ax.set_xscale("log", base=2)
        ax.set_xticks([max(FIRST, edge) for edge in edges], [_short(edge) for edge in edges])
        ax.minorticks_off()
        head(ax, title if at % len(shown) == 0 else "", 1)
        ax.set_ylabel(FIGURES[name])
    axes[-1].set_xlabel("tokens before the round, from")
    return fig


def _line(ax: Axes, spans: pd.DataFrame, name: str, data: PlotData, method: str) -> None:
    scale = SCALES.get(name, 1)
    values = scale * spans[name]
    errors = [values - scale * spans[f"{name}_low"], scale * spans[f"{name}_high"] - values]
    bars = np.nan_to_num(np.clip(np.array(errors, float), 0, None))
    ax.errorbar(
        spans["from"].clip(lower=FIRST), values, yerr=bars, label=data.named(method), **data.styles[method].drawn()
    )


def _short(edge: int) -> str:
    """A number of tokens as an axis has room for."""
    return f"{edge // 1024}k" if edge >= 1024 else str(edge)
