"""One HTML file that holds a whole comparison: table, plots, traces and settings. It needs no network."""

import base64
import gzip
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from plotly.offline import get_plotlyjs

from specbench.analysis import metrics
from specbench.analysis.alike import method_labels, pair_labels
from specbench.analysis.compare import AVERAGE
from specbench.analysis.oracles import is_bound
from specbench.analysis.pooled import SETUP
from specbench.base import files
from specbench.base.console import plain
from specbench.config import UserError
from specbench.report import page_documents, page_plots, page_settings
from specbench.report.columns import COLUMNS
from specbench.report.drawing import mixed_models
from specbench.report.page_documents import Source
from specbench.report.page_style import Look, looks
from specbench.results.stored import StoredRun

HERE = Path(__file__).parent
MEANINGS = {
    "accuracy": "the task's own metric in percent, with its 95 % interval",
    "accuracy_delta": "score less the baseline's, in points",
    "accuracy_p": "probability of such a difference from the baseline if there were none",
    "acceptance_rate": "accepted drafts / drafts, in percent",
    "acceptance_rate_in_text": "the same without drafts after the end of the text, in percent",
    "alpha": "of the drafts that were tested, the percentage that passed",
    "limit_share": "least time that memory allows the forwards / measured decode time, in percent",
    "tau": "committed tokens per target round",
    "discard_rate": "discarded drafts / committed tokens",
    "verification_rate": "target forwards / committed tokens",
    "rescue_rate": "drafts accepted against the exact rule / drafts, in percent",
    "arbitrator_share": "share of decode time in forwards of an arbitrator, in percent",
    "overhead": "share of decode time outside of the models, in percent",
    "tokens_per_s": "committed tokens / decode seconds, of all documents together",
    "tokens_per_s_e2e": "the same with the prefill and its token",
    "tokens_per_s_mean": "the mean of the documents' own rates",
    "speedup_decode": "decode time per token of the baseline over the method's; = marks an interval that contains 1",
    "speedup_e2e": "the same with the prefill",
    "request_throughput": "requests that the server answered in a second, of all clients",
    "output_throughput": "tokens that the server gave in a second, of all requests",
    "ttft": "time to the first token, by the client: mean, median and 99th percentile",
    "tpot": "time for each token after the first one, one figure per request",
    "itl": "time between two answers of a stream, which may bring several tokens",
    "e2el": "time of a whole request",
    "peak_memory": "the most memory that a sample took, in MB",
    "documents": "documents that were timed",
    "cut": "answers that the limit of new tokens cut, in percent",
    "empty": "empty answers, which no speed is compared on",
    "loops": "answers that repeat one string up to the limit of new tokens; no speed is compared on them",
    "errors": "failed samples, which are left out",
}
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
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        finalize=_visible,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html.j2").render(
        title=f"specbench: {', '.join(figures.looks)}",
        nonce=hashlib.sha256(b"".join(data.values())).hexdigest()[:24],
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        js=(HERE / "page.js").read_text(encoding="utf-8"),
        data={name: base64.b64encode(packed).decode() for name, packed in data.items()},
        warnings=warnings,
        sentences=sentences,
        caption=caption,
        identity=[*varying, "task"],
        columns=[(COLUMNS[name].heading, MEANINGS.get(name, "")) for name in columns],
        rows=[_row(row, columns, varying, figures.looks) for _, row in summary.iterrows()],
        tasks=list(summary.task.drop_duplicates()),
        average=AVERAGE,
        plots=plots,
        plot_tasks=list(dict.fromkeys(name for plot in plots for name in plot["views"])),
        notes=notes,
        runs=[page_settings.of_run(source) for source in sources],
    )
    try:
        files.write_text(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another file") from None


def _visible(value: Any) -> Any:
    """What the template prints: texts with control characters made visible; the page's own parts are not `str`."""
    return plain(value, "\n") if type(value) is str else value


def _label(row: dict[str, Any], method: str, varying: list[str]) -> str:
    """A method's name on the page, with pair and sampling where there are several."""
    return " · ".join([method, *(str(row[name]) for name in varying)])


def _source(run: StoredRun, methods: dict[str, str], labels: dict[str, str]) -> Source:
    columns = [*metrics.SAMPLE, "warmup", "finish", "error", "prefill_seconds", "decode_seconds", "peak_memory"]
    samples = run.samples(columns)
    return Source(run, methods, labels, samples[~samples.warmup], metrics.per_document(samples, run.rounds()))


def _figures(summary: pd.DataFrame, sources: Sequence[Source], warnings: Sequence[str] = ()) -> page_plots.Figures:
    depths = [metrics.depths(source.run.rounds(), by_document=True) for source in sources]
    depths = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(depths, sources, strict=True)]
    counts = [s.counts.reset_index().assign(run=s.run.name) for s in sources]
    counts = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(counts, sources, strict=True)]
    methods = dict(zip(summary.label, summary.method, strict=True))
    methods |= {s.labels[name]: label for s in sources for name, label in s.methods.items()}
    baselines = summary[summary.method == summary["baseline"]] if "baseline" in summary else summary.iloc[:0]
    bounds = {s.labels[spec.name] for s in sources for spec in s.run.plan.methods if is_bound(spec)}
    return page_plots.Figures(
        summary=summary,
        depths=pd.concat(depths, ignore_index=True),
        counts=pd.concat(counts, ignore_index=True),
        looks=looks(methods, list(baselines.label)),
        bounds=frozenset(bounds),
        mixed=mixed_models(warnings),
    )


def _columns(summary: pd.DataFrame) -> list[str]:
    """The columns of the table that hold more than missing or trivial values."""
    columns = []
    for name in dict.fromkeys([*FIRST, *COLUMNS]):
        column = COLUMNS[name]
        known = all(raw in summary for raw in column.raw)
        trivial = {"errors": 0, "repeats": 1, "cut": 0, "empty": 0, "loops": 0}
        if known and not summary[column.raw[0]].dropna().isin([trivial.get(name)]).all():
            columns.append(name)
    return columns


def _row(row: pd.Series, columns: list[str], varying: list[str], looks: dict[str, Look]) -> dict[str, Any]:
    """A row of the table; `value` is what a column is sorted by."""
    cells = []
    for name in columns:
        value = row[COLUMNS[name].raw[0]]
        known = isinstance(value, float | int) and math.isfinite(value)
        cells.append({"text": COLUMNS[name].text(row), "value": repr(float(value)) if known else ""})
    names = [str(row[name]) for name in (*varying, "task")]
    metric = row.get("metric") or ""
    return {"task": row.task, "method": row.method, "names": names, "metric": metric, "cells": cells} | {
        "colour": looks[row.label].colour
    }


def _metrics(summary: pd.DataFrame) -> dict[str, str]:
    """The headline metric by task."""
    rows = summary[summary.task != AVERAGE]
    return dict(zip(rows.task, rows.metric, strict=True)) if "metric" in rows else dict.fromkeys(rows.task, "")
