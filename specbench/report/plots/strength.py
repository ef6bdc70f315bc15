"""Plot of what methods keep and gain against the strength of the draft."""

import pandas as pd
from matplotlib.figure import Figure

from specbench.analysis.compare import AVERAGE
from specbench.analysis.strength import Strength
from specbench.analysis.strength import strength as measured_strength
from specbench.base.environment import MISMATCHES
from specbench.report.drawing import speed_range
from specbench.report.plots.data import PlotData
from specbench.report.plots.style import GREY, few_ticks, grid, head, styles


def strength(data: PlotData) -> Figure:
    """Accuracy kept and decode speedup, with their 95 % intervals, against the strength of the draft.

    The means over tasks; a run for each draft, all of one target.
    """
    return of(measured_strength(data.runs, MISMATCHES))  # `read` has checked them


def of(figures: Strength) -> Figure:
    """The same of figures that are there."""
    several = (figures.methods.task == AVERAGE).any()
    rows = figures.methods[figures.methods.task == AVERAGE] if several else figures.methods
    drawn = styles(list(rows.method), [])
    fig, (kept, fast) = grid([1.9, 1.9], 1, sharex=True)
    for ax, name, scale in ((kept, "kept", 100), (fast, "speedup", 1)):
        ax.axhline(scale, color=GREY, ls=":", lw=0.8, label=figures.target, zorder=1)
        for method, of_method in rows.groupby("method", sort=False):
            values = scale * of_method[name]
            errors = [values - scale * of_method[f"{name}_low"], scale * of_method[f"{name}_high"] - values]
            ax.errorbar(
                100 * of_method.strength,
                values,
                yerr=pd.DataFrame(errors).fillna(0).clip(lower=0).to_numpy(),
                label=str(method),
                **drawn[str(method)].drawn() | {"ls": ""},  # each point is another draft
            )
        few_ticks(ax)
    head(kept, "", 1)
    kept.set_ylabel("accuracy kept (%)")
    low, high = kept.get_ylim()
    kept.set_ylim(min(low, 90), max(high, 102))  # so wide that noise looks small; a method may surpass its target
    fast.set_ylabel("decode speedup (×)")
    fast.set_ylim(speed_range(*fast.get_ylim()))
    fast.set_xlabel("strength of the draft (%)")
    return fig
