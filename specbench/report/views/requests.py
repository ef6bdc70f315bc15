"""What requests to servers took, in a table of 80 columns, and what its figures mean."""

import math

import pandas as pd

from specbench.analysis.load import PERCENTILES, Slo
from specbench.analysis.requests import TIMES, least
from specbench.report.finding import Finding, Sheet, number

FEW = "too few"
HEADS = ["TTFT", "TPOT", "chunks", "E2E"]
SPEEDS = ["server", "n", "failed", "req/s", "goodput", "tok/s user", "all", "accepted", "by"]


def view(figures: pd.DataFrame, slo: Slo) -> Finding:
    sheets = []
    for task, rows in figures.groupby("task", sort=False):
        times, speeds = [], []
        for row in rows.to_dict("records"):
            for percent in PERCENTILES:
                cells = [row[f"{name}_p{percent}"] for name in TIMES]
                shown = [FEW if math.isnan(value) else f"{1000 * value:.1f}" for value in cells]
                times.append([str(row["method"]) if percent == PERCENTILES[0] else "", f"p{percent}", *shown])
            counts = [str(row["requests"]), str(row["failed"]), number(row["served"]), number(row["goodput"])]
            per_s = [number(row["user_tokens_per_s"], ".0f"), number(row["tokens_per_s"], ".0f")]
            speeds.append([str(row["method"]), *counts, *per_s, number(row["per_round"]), row["evidence"] or "-"])
        sheets.append(Sheet(["server", "", *HEADS], times, f"{task}, milliseconds", "ll" + "r" * len(HEADS)))
        sheets.append(Sheet(SPEEDS, speeds, f"{task}, speed", "lrrrrrrrl"))
    kept = [f"{name} of at most {value:g} s" for name, value in vars(slo).items() if math.isfinite(value)]
    enough = ", ".join(f"p{percent} {least(percent)}" for percent in PERCENTILES[1:])
    notes = [
        "TTFT and E2E from when a request was due; TPOT by the number of tokens; chunks: between parts of the stream",
        f"{FEW}: {enough} requests or more are needed (of chunks, parts)",
        "goodput: requests a second " + (f"with {' and '.join(kept)}" if kept else "without a bound (--slo)"),
        "accepted: draft tokens accepted in a round, known by what the last column names; from chunks it is not known",
    ]
    return Finding("requests", "REQUESTS", sheets, [], notes, {"figures": figures})
