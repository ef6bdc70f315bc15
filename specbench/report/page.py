"""One HTML file that holds a whole comparison: table, plots, traces and settings. It needs no network."""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from plotly.offline import get_plotlyjs

from specbench.analysis import metrics
from specbench.analysis.alike import method_labels, pair_labels
from specbench.analysis.compare import AVERAGE, SETUP
from specbench.analysis.trace import last_line, load_decode, traces
from specbench.base import files
from specbench.base.console import plain
from specbench.config import UserError
from specbench.report import page_plots, tables
from specbench.report.page_traces import Encoder, milliseconds
from specbench.results.stored import StoredRun

HERE = Path(__file__).parent
DOCUMENTS = 200  # of each task in the drill-down
TRACES = 2_200_000  # bytes of compressed traces, so that a page stays below 5 MB
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
    "speedup_decode": "decode time per token of the baseline over the method's; = marks an interval that holds 1",
    "speedup_e2e": "the same with the prefill",
    "request_throughput": "requests that the server answered in a second, of all clients",
    "output_throughput": "tokens that the server gave in a second, of all requests",
    "ttft": "time to the first token, by the client: mean, median and 99th percentile",
    "tpot": "time for each token after the first one, a figure a request",
    "itl": "time between two answers of a stream, which may bring several tokens",
    "e2el": "time of a whole request",
    "peak_memory": "the most memory that a sample took, in MB",
    "documents": "documents that were timed",
    "cut": "answers that the limit of new tokens cut, in percent",
    "errors": "failed samples, which are left out",
}
FIRST = ("accuracy", "accuracy_delta", "accuracy_p", "speedup_decode", "tokens_per_s")  # columns before the others
RATES = ("acceptance_rate", "tau", "discard_rate", "verification_rate", "tokens_per_s")


@dataclass(frozen=True)
class Source:
    """A run and what the page takes from it; `labels` name its methods."""

    run: StoredRun
    labels: dict[str, str]
    samples: pd.DataFrame
    counts: pd.DataFrame  # of metrics.per_document


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
            {name: _label({"pair": pair, "sampling": run.sampling}, label, varying) for name, label in labels.items()},
        )
        for run, labels, pair in zip(runs, method_labels(runs), pair_labels(runs), strict=True)
    ]
    figures = _figures(summary, sources)
    plots = page_plots.plots(figures)
    documents, notes = _documents(sources, _metrics(summary))
    data = {
        "plotly": gzip.compress(get_plotlyjs().encode(), 9, mtime=0),
        "plots": gzip.compress(json.dumps(plots).encode(), 9, mtime=0),
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
        columns=[(tables.COLUMNS[name].heading, MEANINGS.get(name, "")) for name in columns],
        rows=[_row(row, columns, varying, figures.looks) for _, row in summary.iterrows()],
        tasks=list(summary.task.drop_duplicates()),
        average=AVERAGE,
        plots=plots,
        plot_tasks=list(dict.fromkeys(name for plot in plots for name in plot["views"])),
        notes=notes,
        runs=[_settings(source) for source in sources],
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


def _source(run: StoredRun, labels: dict[str, str]) -> Source:
    columns = [*metrics.SAMPLE, "warmup", "finish", "error", "prefill_seconds", "decode_seconds", "peak_memory"]
    samples = run.samples(columns)
    return Source(run, labels, samples[~samples.warmup], metrics.per_document(samples, run.rounds()))


def _figures(summary: pd.DataFrame, sources: Sequence[Source]) -> page_plots.Figures:
    depths = [metrics.depths(source.run.rounds()) for source in sources]
    depths = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(depths, sources, strict=True)]
    counts = [s.counts.reset_index() for s in sources]
    counts = [rows.assign(label=rows.method.map(s.labels)) for rows, s in zip(counts, sources, strict=True)]
    labels = list(dict.fromkeys([*summary.label, *(label for s in sources for label in s.labels.values())]))
    baselines = summary[summary.method == summary["baseline"]] if "baseline" in summary else summary.iloc[:0]
    return page_plots.Figures(
        summary=summary,
        depths=pd.concat(depths, ignore_index=True).dropna(subset=["D", "A", "cut"]),
        counts=pd.concat(counts, ignore_index=True),
        looks=page_plots.looks(labels, list(baselines.label)),
    )


def _columns(summary: pd.DataFrame) -> list[str]:
    """The columns of the table that hold more than missing or trivial values."""
    columns = []
    for name in dict.fromkeys([*FIRST, *tables.COLUMNS]):
        column = tables.COLUMNS[name]
        known = all(raw in summary for raw in column.raw)
        trivial = {"errors": 0, "repeats": 1, "cut": 0}
        if known and not summary[column.raw[0]].dropna().isin([trivial.get(name)]).all():
            columns.append(name)
    return columns


def _row(row: pd.Series, columns: list[str], varying: list[str], looks: dict[str, page_plots.Look]) -> dict[str, Any]:
    """A row of the table; `value` is what a column is sorted by."""
    cells = []
    for name in columns:
        value = row[tables.COLUMNS[name].raw[0]]
        known = isinstance(value, float | int) and math.isfinite(value)
        cells.append({"text": tables.COLUMNS[name].text(row), "value": repr(float(value)) if known else ""})
    names = [str(row[name]) for name in (*varying, "task")]
    metric = row.get("metric") or ""
    return {"task": row.task, "method": row.method, "names": names, "metric": metric, "cells": cells} | {
        "colour": looks[row.label].colour
    }


def _metrics(summary: pd.DataFrame) -> dict[str, str]:
    """The headline metric by task."""
    rows = summary[summary.task != AVERAGE]
    return dict(zip(rows.task, rows.metric, strict=True)) if "metric" in rows else dict.fromkeys(rows.task, "")


def _documents(sources: Sequence[Source], metric: dict[str, str]) -> tuple[bytes, list[str]]:
    """The drill-down's data, of as many documents as the page has room for, and notes about it."""
    most = DOCUMENTS
    while True:
        packed, notes = _drill_down(sources, metric, most)
        if len(packed) <= TRACES or most == 1:
            return packed, notes
        most = max(1, int(0.95 * most * TRACES / len(packed)))


def _drill_down(sources: Sequence[Source], metric: dict[str, str], most: int) -> tuple[bytes, list[str]]:
    encoder = Encoder()
    tasks, labels, notes = list(metric), list[str](), list[str]()
    samples: list[list[Any]] = []
    for source in sources:
        new = {name: label for name, label in source.labels.items() if label not in labels}
        labels += new.values()
        first = source.samples[(source.samples.repeat == 0) & source.samples.method.isin(list(new))]
        first = first[first.task.isin(tasks)]
        documents = {task: sorted(ids.unique().tolist()) for task, ids in first.groupby("task", sort=False).doc_id}
        chosen = {task: ids[:most] for task, ids in documents.items()}
        for task, ids in documents.items():
            if len(ids) > most:
                notes.append(f"{task}: the first {most} of {len(ids)} documents are here.")
        places = {}
        try:
            for trace in traces(source.run, load_decode(source.run), 0, chosen, list(new)):
                places[trace.task, trace.doc_id, trace.method] = encoder.add(trace)
        except UserError as error:
            notes.append(f"{source.run.name} has no traces here: {error}.")
        scores, table = _scores(source, metric), metrics.rates(source.counts, metrics.SAMPLE)[list(RATES)]
        rates = dict(zip(table.index, table.to_numpy().tolist(), strict=True))
        for row in first.sort_values("doc_id", kind="stable").itertuples():
            if row.doc_id not in chosen[row.task]:
                continue
            key = row.task, row.doc_id, row.method
            known = row.finish != "error"
            of_sample = rates[(0, *key)] if known else []
            samples.append(
                [tasks.index(row.task), row.doc_id, labels.index(new[row.method]), places.get(key, -1), scores.get(key)]
                + [page_plots.clean(of_sample), milliseconds(row.decode_seconds) if known else "", row.finish]
                + [plain(last_line(row.error))] * (not known)
            )
    repeats = max((int(source.samples.repeat.max()) + 1 for source in sources if len(source.samples)), default=1)
    if repeats > 1 or len(labels) < sum(len(source.labels) for source in sources):
        notes.append("Of several passes over the documents the first one is shown.")
    names = {"tasks": [[plain(task), plain(metric[task])] for task in tasks], "labels": list(map(plain, labels))}
    return encoder.packed(names | {"samples": samples, "rates": RATES}), list(dict.fromkeys(notes))


def _scores(source: Source, metric: dict[str, str]) -> dict[tuple[str, int, str], float]:
    """Each document's headline score in the first pass, by task, document and method."""
    if not source.run.finished:
        return {}
    scores = source.run.scores()
    wanted = scores.task.map(metric) == scores.metric + "," + scores["filter"]
    scores = scores[wanted & (scores.repeat == 0) & scores.doc_id.notna()]
    return {
        (row.task, int(row.doc_id), row.method): round(float(row.value), 4)
        for row in scores.itertuples()
        if math.isfinite(row.value)
    }


def _settings(source: Source) -> dict[str, Any]:
    """The settings and the environment of a run, as lists of names and values."""
    run, plan, manifest = source.run, source.run.plan, source.run.manifest
    skip = {"pair", "methods", "tasks", "baseline", "baselines"}
    baselines = [f"{base} of {name}" for name, base in plan.baselines.items() if name != base]
    facts = {"pair": f"{plan.pair.name}: {plan.pair.description}"}
    facts |= {"baseline": ", ".join([plan.baseline or "none", *baselines])}
    facts |= {
        key: value for key, value in plan.model_dump(mode="json").items() if key not in skip and value is not None
    }
    for line in plan.tasks:
        fewshot = {} if line.fewshot is None else {"fewshot": line.fewshot}
        facts[f"task {line.task}"] = _flat(manifest["generation"].get(line.task, {}) | fewshot)
    environment = dict(manifest["environment"])
    environment |= environment.pop("versions", None) or {}
    return {
        "name": run.name,
        "started": manifest.get("started") or "",
        "command": " ".join(environment.pop("command", None) or []),
        "facts": [(key, _flat(value)) for key, value in facts.items()],
        "environment": [
            (key.replace("_", " "), _flat(value)) for key, value in environment.items() if value not in (None, "")
        ],
        "models": [(role, _flat(model)) for role, model in (manifest["models"] or {}).items()],
        "methods": [
            {
                "name": source.labels[spec.name],
                "description": spec.description,
                "paper": spec.paper,
                "settings": [(key, _flat(s.value), s.source) for key, s in spec.settings.items()],
                "inputs": [(f"{key} (hash)", value) for key, value in manifest["inputs"].get(spec.name, {}).items()],
            }
            for spec in plan.methods
        ],
    }


def _flat(value: Any) -> str:
    """A setting in a line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(part)}" for key, part in value.items())
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | bool) else str(value)
