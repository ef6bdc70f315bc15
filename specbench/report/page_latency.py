"""The HTML page's table of latencies: percentiles over texts of the time to the first token, and of time a token."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from specbench.analysis.metrics import timed_alone
from specbench.report import page_parts
from specbench.report.columns import Column, number
from specbench.report.page_documents import PageRun

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
TIMES = {"ttft": "TTFT", "tpot": "TPOT"}


def _column(name: str, heading: str) -> Column:
    raw = tuple(f"{name}_{quantile}" for quantile in QUANTILES)
    heading = f"{heading} ms, {' / '.join(QUANTILES)}"
    return Column(heading, lambda row: " / ".join(f"{row[one]:.3g}" for one in raw), raw)


COLUMNS = {
    "texts": Column("texts", lambda row: number(0)(row["texts"]), ("texts",)),
    **{name: _column(name, heading) for name, heading in TIMES.items()},
}
MEANINGS = {
    "texts": "texts that were timed alone",
    "ttft": "time to the first token: the prefill, which gives it; of a server the client's",
    "tpot": "decode time of a text over its tokens after the first one",
}


def table(sources: Sequence[PageRun]) -> pd.DataFrame:
    """Percentiles in ms by label and task; texts that were decoded together have no latency of their own."""
    parts = []
    for source in sources:
        plan = source.run.plan
        if plan.batch > 1 and not plan.time_documents:
            continue
        counts = timed_alone(source.counts).reset_index()
        times = {"ttft": 1000 * counts.prefill, "tpot": 1000 * counts.decode / counts.decoded.where(counts.decoded > 0)}
        parts.append(counts.assign(label=counts.method.map(source.labels), **times)[["label", "task", *times]])
    texts = pd.concat(parts).dropna() if parts else pd.DataFrame()
    if texts.empty:
        return pd.DataFrame()
    by_row = texts.groupby(["label", "task"], sort=False)
    figures = {
        f"{name}_{q}": by_row[name].quantile(share, interpolation="higher")
        for name in TIMES
        for q, share in QUANTILES.items()
    }
    rows = pd.DataFrame({"texts": by_row.size()} | figures).reset_index()
    labels = [label for source in sources for label in source.labels.values()]
    tasks = [line.task for source in sources for line in source.run.plan.tasks]
    return rows.sort_values(["task", "label"], key=lambda names: names.map((tasks + labels).index), ignore_index=True)


def shown(sources: Sequence[PageRun]) -> dict[str, Any]:
    """Headings and rows for the template; no rows where nothing was timed alone."""
    found = table(sources)
    if found.empty:
        return {"columns": [], "rows": []}
    columns = [*COLUMNS.values()]
    rows = [
        {"label": row.label, "task": row.task, "cells": page_parts.cells(columns, row, found)}
        for _, row in found.iterrows()
    ]
    return {"columns": page_parts.heads(COLUMNS, MEANINGS, found), "rows": rows}
