"""Plots of what happens in rounds: acceptance by depth, accepted lengths, where time goes, forward times."""

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specbench.analysis import compare, depth_intervals, metrics
from specbench.analysis.alike import pair_labels
from specbench.analysis.pooled import ROW
from specbench.base.console import plain
from specbench.base.parquet import RowGroups
from specbench.config import UserError
from specbench.report.drawing import OPACITY, score_range
from specbench.report.plots.data import PlotData, drafted, panels
from specbench.report.plots.style import BLACK, GREY, few_ticks, grid, head, label_axes, with_gaps

ROUNDING = 1e-9  # seconds
FEWEST = 4  # rounds in a group for it to have quartiles
CONTEXTS = 8  # about how many bins of the context's length
TIMED = "`specbench run --method csd --suite pocket` makes a run that has them"


def depth(data: PlotData) -> Figure:
    """How often a draft at each position was accepted, of those tested there, in percent, with 95 % intervals."""
    counts = drafted(data, "depth", data.measured.depths)
    table = compare.depth_table(dataclasses.replace(data.measured, depths=counts))
    table = table.merge(_depth_intervals(data), on=[*ROW, "depth"], how="left")
    all_panels = list(panels(data, table))
    columns = min(2, len(all_panels))
    fig, axes = grid([1.9 if columns == 1 else 1.55] * len(all_panels), columns, sharex=True, sharey=True)
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        for method, depths in rows.groupby("method", sort=False):
            style = data.styles[method].drawn()
            bars = [depths.cond_accept - depths.low, depths.high - depths.cond_accept]
            bars = [100 * bar.clip(lower=0).to_numpy() for bar in bars]
            ax.errorbar(depths.depth, 100 * depths.cond_accept, yerr=bars, label=data.named(method), **style)
        head(ax, title, columns)
        few_ticks(ax, x=6, whole=True)
    axes[0].set_ylim(score_range(*axes[0].get_ylim()))
    label_axes(axes, columns, "draft position", "accepted if tested (%)")
    return fig


def _depth_intervals(data: PlotData) -> pd.DataFrame:
    """The intervals by ROW and depth; runs of one row count together, document by document."""
    parts = []
    for run, labels, pair in zip(data.runs, data.labels, pair_labels(data.runs), strict=True):
        counts = metrics.depths(run.rounds(), by_document=True)
        parts.append(counts.assign(pair=pair, sampling=run.sampling, method=counts.method.map(labels)))
    tables = []
    for key, counts in pd.concat(parts, ignore_index=True).groupby(ROW, sort=False):
        table = depth_intervals.acceptance(counts)[["depth", "low", "high"]]
        tables.append(table.assign(**dict(zip(ROW, key, strict=True))))
    return pd.concat(tables, ignore_index=True)


def lengths(data: PlotData) -> Figure:
    """Shares of the rounds that drafted and did not end a text, in percent, by how many drafts they accepted."""
    depths = drafted(data, "lengths", data.measured.depths)
    all_panels = list(panels(data, depths[~depths["cut"].astype(bool)]))
    fig, axes = grid([1.25] * len(all_panels), 1, sharex=True, sharey=True)
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        methods = rows.method.unique()
        width = min(0.84 / len(methods), 0.4)
        accepted = np.arange(int(rows.A.max()) + 1)
        for i, method in enumerate(methods):
            rounds = rows[rows.method == method].groupby("A").R.sum().reindex(accepted, fill_value=0)
            ax.bar(
                accepted + (i - (len(methods) - 1) / 2) * width,
                100 * rounds / rounds.sum(),
                width,
                label=data.named(method),
                color=data.styles[method].color,
                hatch=data.styles[method].hatch,
                edgecolor="white",
            )
        head(ax, title, 1)
        ax.grid(axis="x", visible=False)
        few_ticks(ax, x=17, whole=True)
    label_axes(axes, 1, "drafts accepted in a round", "rounds (%)")
    return fig


def time(data: PlotData) -> Figure:
    """Milliseconds of decoding per token of each method: in forwards, in the masks of a constraint, and the rest.

    Methods are compared within a run only: another run had another moment of the machine, or another machine.
    """
    counts = data.measured.counts
    further = counts.models - counts.target - counts.draft
    counts = counts.assign(further=further.where(further.abs() > ROUNDING, 0.0))
    models = ["target", "draft", *(["further models"] if (further > ROUNDING).any() else [])]
    models += ["masks"] * bool((counts.masks > ROUNDING).any())
    counts = counts.rename(columns={"further": "further models"})
    total = counts.groupby([*ROW, "run"], sort=False)[[*models, "decode", "C"]].sum(min_count=1)
    per_token = (1000 * total[[*models, "decode"]]).div(total.C.where(total.C > 0), axis=0)
    outside = per_token.decode - per_token[models].sum(axis=1, skipna=False)
    per_token = per_token.assign(**{"outside forwards": outside}).dropna()
    if per_token.empty:
        raise UserError(f"time needs the seconds of forwards, which these runs do not have; {TIMED}")
    all_panels = [
        (", ".join(filter(None, (plain(data.runs[number].name) if len(data.runs) > 1 else "", title))), of_run)
        for title, rows in panels(data, per_token.reset_index())
        for number, of_run in rows.groupby("run", sort=True)
    ]
    names = {name: "\n".join(textwrap.wrap(data.named(name), 20)) for name in data.styles}
    lines = [sum(1 + names[name].count("\n") for name in rows.method) for _, rows in all_panels]
    fig, axes = grid([0.4 + 0.22 * count for count in lines], 1, sharex=True)
    for ax, (title, rows) in zip(axes, all_panels, strict=True):
        for y, row in enumerate(rows.to_dict("records")):
            left = 0.0
            for name, (face, hatch) in _parts(data.styles[row["method"]].color, models).items():
                ax.barh(y, row[name], 0.7, left, color=face, hatch=hatch, edgecolor=BLACK)
                left += row[name]
            if row["method"] in data.measured.baselines.values():
                ax.axvline(row["decode"], color=BLACK, ls=":")
        for name, (face, hatch) in _parts(GREY, models).items():  # only for the legend
            ax.barh(0, 0, color=face, hatch=hatch, edgecolor=BLACK, label=name)
        ax.set_yticks(range(len(rows)), [plain(names[name]) for name in rows.method])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        head(ax, title, 1)
    label_axes(axes, 1, "decode time (ms/token)", "")
    return fig


def _parts(color: str, models: Sequence[str]) -> dict[str, tuple[object, str]]:
    """Face colour and hatch of each part of a bar: a method's colour, lighter from part to part, then none."""
    hatches = dict(zip(("target", "draft", "further models", "masks"), ("", "////", "....", "xxxx"), strict=True))
    return {name: ((color, OPACITY[name]), hatches.get(name, "")) for name in [*models, "outside forwards"]}


def forwards(data: PlotData) -> Figure:
    """Milliseconds of a target forward against its block's width and against its context: medians and quartiles.

    Only rounds with exactly one target forward count. Groups of fewer than FEWEST rounds are left out.
    """
    all_panels = list(panels(data, _target_forwards(data)))
    fig, axes = grid([1.8] * (2 * len(all_panels)), 2, sharey="row")
    for i, (title, rows) in enumerate(all_panels):
        by_width, by_context = axes[2 * i : 2 * i + 2]
        by_width.set_title(title, loc="left")
        edges = MaxNLocator(CONTEXTS).tick_values(rows.context.min(), rows.context.max())
        bins = np.clip(np.digitize(rows.context, edges) - 1, 0, len(edges) - 2)
        rows = rows.assign(middle=(edges[bins] + edges[bins + 1]) / 2)
        for method, of_method in rows.groupby("method", sort=False):
            widths = range(int(rows.width.min()), int(rows.width.max()) + 1)
            for ax, x, every in ((by_width, "width", widths), (by_context, "middle", sorted(rows.middle.unique()))):
                _quartiles(ax, of_method, x, every, data, str(method))
        by_width.set_ylabel("target forward (ms)")
        few_ticks(by_width, x=5, whole=True)
        few_ticks(by_context, x=3)
        if i == len(all_panels) - 1:
            by_width.set_xlabel("block width (tokens)")
            by_context.set_xlabel("context (tokens)")
    return fig


def _quartiles(ax: Axes, rows: pd.DataFrame, x: str, every: Iterable[float], data: PlotData, method: str) -> None:
    """Medians of `ms` by x with their quartiles, as a band along the context or as bars at the few widths.

    Lines break where one of `every` x was not measured.
    """
    grouped = rows.groupby(x).ms
    quartiles = grouped.quantile([0.25, 0.5, 0.75]).unstack()[grouped.size() >= FEWEST]
    if quartiles.empty:
        return
    quartiles = with_gaps(quartiles, every)
    style, label = data.styles[method], data.named(method)
    if x == "width":
        bars = [quartiles[0.5] - quartiles[0.25], quartiles[0.75] - quartiles[0.5]]
        ax.errorbar(quartiles.index, quartiles[0.5], yerr=bars, label=label, **style.drawn())
    else:
        ax.fill_between(quartiles.index, quartiles[0.25], quartiles[0.75], color=style.color, alpha=0.2, lw=0)
        ax.plot(quartiles.index, quartiles[0.5], label=label, **style.drawn())


def _target_forwards(data: PlotData) -> pd.DataFrame:
    """Width, context (tokens before the block) and `ms` of every target forward, with pair, sampling and method."""
    parts = []
    for run, labels, pair in zip(data.runs, data.labels, pair_labels(data.runs), strict=True):
        samples = run.samples([*metrics.SAMPLE, "warmup", "finish", "prompt_tokens"])
        samples = samples[~samples.warmup & (samples.finish != "error") & samples.prompt_tokens.notna()]
        for method, label in labels.items():
            of_method = samples[samples.method == method]
            if len(of_method):
                forwards = _forwards_of(run.rounds(), method, of_method)
                parts.append(forwards.assign(pair=pair, sampling=run.sampling, method=label))
    if not any(map(len, parts)):
        raise UserError(f"forwards needs prompt lengths and seconds of forwards, which these runs do not have; {TIMED}")
    return pd.concat(parts, ignore_index=True)


def _forwards_of(rounds: RowGroups, method: str, samples: pd.DataFrame) -> pd.DataFrame:
    """Width, context and `ms` of one method's rounds with one target forward; tasks are read as numbers."""
    key = ["repeat", "task", "doc_id"]
    tasks = pa.array(samples.task.unique(), pa.string())
    columns = {name: pc.field(name) for name in (*key, "round", "committed", "drafted", "target_forwards")}
    columns |= {"task": pc.index_in(pc.field("task"), tasks), "s": pc.field("target_seconds")}
    chosen = ~pc.field("warmup") & (pc.field("method") == method) & pc.field("task").isin(tasks)
    frame = rounds.to_table(columns=columns, filter=chosen).to_pandas()
    samples = samples[[*key, "prompt_tokens"]].assign(task=samples.task.map(tasks.to_pylist().index))
    frame = frame.merge(samples, on=key).sort_values([*key, "round"])
    before = frame.groupby(key).committed.cumsum() - frame.committed
    context = frame.prompt_tokens + before
    forwards = pd.DataFrame({"width": frame.drafted + 1, "context": context, "ms": 1000 * frame.s})
    return forwards[(frame["round"] > 0) & (frame.target_forwards == 1)].dropna()
