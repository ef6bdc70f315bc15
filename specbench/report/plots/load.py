"""Plot of a server's methods under load: latency against throughput, and what each gains by rate and by company."""

import numpy as np
from matplotlib.figure import Figure

from specbench.report.plots.style import GREY, few_ticks, grid, legend, look, styles, with_gaps
from specbench.report.views.load import FEWEST
from specbench.studies.under_load import BASE, LoadFigures


def load(figures: LoadFigures) -> Figure:
    """Three panels, a line for each method.

    Seconds from a request's arrival to its end against tokens a second, a point for each rate; how much sooner requests
    end than the target's alone, by rate; and tokens a second over the target's by texts that are decoded together.
    """
    drawn = styles([name for name in figures.settings if name != BASE], [BASE])
    with look():
        fig, (latency, faster, company) = grid([1.9, 1.7, 1.7], 1)
        for name, rows in figures.table.groupby("method", sort=False):
            ordered, style = rows.sort_values("rate"), drawn[str(name)].drawn()
            latency.plot(ordered.tokens_per_s, ordered.e2e_p50, label=str(name), **style)
            finite = ordered[np.isfinite(ordered.rate)]
            faster.plot(finite.rate, finite.sooner, label=str(name), **style)
            faster.vlines(finite.rate, finite.sooner_low, finite.sooner_high, color=style["color"], lw=0.8)
            steps = figures.by_rows[(figures.by_rows.method == name) & (figures.by_rows.steps >= FEWEST)]
            if len(steps):
                together = with_gaps(steps.set_index("rows"), range(int(steps["rows"].max()) + 1))
                company.plot(together.index, together.speedup, label=str(name), **style)
        latency.set_xlabel("tokens a second")
        latency.set_ylabel("arrival to end (s), median")
        latency.set_ylim(bottom=0)
        few_ticks(latency)
        faster.set_xlabel("requests a second")
        faster.set_ylabel("sooner (×)")
        company.set_xlabel("texts decoded together")
        company.set_ylabel("tokens/s (×)")
        for ax in (faster, company):
            ax.axhline(1, color=GREY, ls=":", lw=0.8, zorder=1)
            few_ticks(ax, whole=ax is company)
        hardware = figures.environment.get("gpu") or figures.environment.get("cpu") or ""
        caption = f"{figures.pair}, {figures.suite}, {figures.sampling}; {hardware}"
        times = "once" if figures.repeats == 1 else f"{figures.repeats} times"
        note = (
            f"{figures.requests} requests a rate, {times}, {figures.arrivals}, up to {figures.rows} texts together; "
            "bars: 95 % intervals"
        )
        legend(fig, [note], caption, "Latency under load, and what each method gains")
    return fig
