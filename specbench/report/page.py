"""One HTML file that holds a whole comparison: table, plots, traces and settings. It needs no network."""

import base64
import gzip
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from specbench.analysis import metrics
from specbench.analysis.alike import method_labels, pair_labels
from specbench.analysis.compare import AVERAGE
from specbench.analysis.oracles import is_bound
from specbench.analysis.pooled import SETUP
from specbench.base import files
from specbench.config import UserError
from specbench.report import page_documents, page_latency, page_parts, page_plots, page_settings
from specbench.report.columns import COLUMNS, MEANINGS, Column
from specbench.report.drawing import mixed_models
from specbench.report.page_documents import PageRun
from specbench.report.page_style import Look, looks
from specbench.results.stored import StoredRun

FIRST = ("accuracy", "accuracy_delta", "accuracy_p", "speedup_decode", "tokens_per_s")  # columns before the others


def write_page(
    path: Path,
    runs: list[StoredRun],
    summary: pd.DataFrame,
    warnings: list[str],
    sentences: list[str],
    caption: list[str],
) -> None:
    """Write the report of `runs` to `path`; the other arguments are the results of their comparison.

    Raises UserError if no sample was timed, or if the file cannot be written.
    """
    if summary.empty:
        raise UserError(f"{', '.join(run.name for run in runs)}: no sample was timed, so there is nothing to report")
    varying = [name for name in SETUP if name in summary and summary[name].nunique() > 1]
    summary = summary.assign(label=[_label(row, row["method"], varying) for row in summary.to_dict("records")])
    sources = [
        _source(
            run,
            labels,
            {name: _label({"pair": pair, "sampling": run.sampling}, label, varying) for name, label in labels.items()},
        )
        for run, labels, pair in zip(runs, method_labels(runs), pair_labels(runs), strict=True)
    ]
    figures = _figures(summary, sources, warnings)
    plots = page_plots.plots(figures)
    documents, notes = page_documents.packed(sources, _metrics(summary))
    data = {
        "plotly": gzip.compress(get_plotlyjs().encode(), 9, mtime=0),
        "plots": gzip.compress(files.json_text(plots).encode(), 9, mtime=0),
        "traces": documents,
    }
    columns = _columns(summary)
    page_parts.write(
        path,
        page_parts.HERE / "page.html.j2",
        title=f"specbench: {', '.join(figures.looks)}",
        nonce=hashlib.sha256(b"".join(data.values())).hexdigest()[:24],
        css=page_parts.source("page.css"),
        js=page_parts.source("table.js") + page_parts.source("page.js"),
        data={name: base64.b64encode(packed).decode() for name, packed in data.items()},
        warnings=warnings,
        sentences=sentences,
        caption=caption,
        identity=[*varying, "task"],
        columns=page_parts.heads(columns, MEANINGS, summary),
        rows=[_row(row, columns, varying, figures.looks, summary) for _, row in summary.iterrows()],
        tasks=list(summary.task.drop_duplicates()),
        average=AVERAGE,
        latency=page_latency.shown(sources),
        plots=plots,
        plot_tasks=list(dict.fromkeys(name for plot in plots for name in plot["views"])),
        notes=notes,
        runs=[page_settings.of_run(source) for source in sources],
    )


def _label(row: dict[str, Any], method: str, varying: list[str]) -> str:
    """A method's name on the page, with pair and sampling where there are several."""
    return " · ".join([method, *(str(row[name]) for name in varying)])


def _source(run: StoredRun, methods: dict[str, str], labels: dict[str, str]) -> PageRun:
    columns = [*metrics.SAMPLE, "warmup", "finish", "error", "prefill_seconds", "decode_seconds", "peak_memory"]
    samples = run.samples(columns)
    return PageRun(run, methods, labels, samples[~samples.warmup], metrics.per_document(samples, run.rounds()))


def _figures(
    summary: pd.DataFrame, sources: Sequence[PageRun], warnings: Sequence[str] = ()
) -> page_plots.PlottedTables:
    depths = [metrics.depths(source.run.rounds(), by_document=True) for source in sources]
    depths = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(depths, sources, strict=True)]
    counts = [s.counts.reset_index().assign(run=s.run.name) for s in sources]
    counts = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(counts, sources, strict=True)]
    methods = dict(zip(summary.label, summary.method, strict=True))
    methods |= {s.labels[name]: label for s in sources for name, label in s.methods.items()}
    baselines = summary[summary.method == summary["baseline"]] if "baseline" in summary else summary.iloc[:0]
    bounds = {s.labels[spec.name] for s in sources for spec in s.run.plan.methods if is_bound(spec)}
    return page_plots.PlottedTables(
        summary=summary,
        depths=pd.concat(depths, ignore_index=True),
        counts=pd.concat(counts, ignore_index=True),
        looks=looks(methods, list(baselines.label)),
        bounds=frozenset(bounds),
        mixed=mixed_models(warnings),
    )


def _columns(summary: pd.DataFrame) -> dict[str, Column]:
    """The columns of the table that hold more than missing or trivial values."""
    columns = {}
    for name in dict.fromkeys([*FIRST, *COLUMNS]):
        column = COLUMNS[name]
        known = all(raw in summary for raw in column.raw)
        trivial = {"errors": 0, "repeats": 1, "cut": 0, "empty": 0, "loops": 0}
        if known and not summary[column.raw[0]].dropna().isin([trivial.get(name)]).all():
            columns[name] = column
    return columns


def _row(
    row: pd.Series, columns: dict[str, Column], varying: list[str], looks: dict[str, Look], summary: pd.DataFrame
) -> dict[str, Any]:
    """A row of the table."""
    return {
        "task": row.task,
        "method": row.method,
        "names": [str(row[name]) for name in (*varying, "task")],
        "metric": row.get("metric") or "",
        "cells": page_parts.cells([*columns.values()], row, summary),
        "colour": looks[row.label].colour,
    }


def _metrics(summary: pd.DataFrame) -> dict[str, str]:
    """The headline metric by task."""
    rows = summary[summary.task != AVERAGE]
    return dict(zip(rows.task, rows.metric, strict=True)) if "metric" in rows else dict.fromkeys(rows.task, "")
