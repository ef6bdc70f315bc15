"""Figures of ours that come from no table of runs, as cells of the papers' tables, in files that `tables` reads.

They have the form of results/published, with our names of pairs and tasks. All are of CoSpec's tables.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from specbench.analysis.complementarity import Complementarity
from specbench.base import files
from specbench.base.escape import csv_text
from specbench.base.stats import Interval
from specbench.config import MethodSpec
from specbench.papers.published import Figure, papers
from specbench.results.stored import StoredRun

if TYPE_CHECKING:  # its studies run models
    from specbench.studies.throughput import Throughput

PAPER = "cospec"
COMPLEMENTARITY, THROUGHPUT, LOAD = 2, 9, 10  # its tables
FIELDS = list(Figure.model_fields)

Cells = Sequence[tuple[str, str, float | Interval, str]]  # method, metric, value and unit, as the paper calls them


def complementarity(run: StoredRun, figures: Complementarity) -> list[dict[str, Any]]:
    """The tasks that are right or wrong; no cell where nothing is defined."""
    specs = {spec.name: spec for spec in run.plan.methods}
    rows = []
    for task in figures.tasks[~figures.tasks.graded].itertuples():
        cells: list[tuple[str, str, float | Interval, str]] = [
            ("", "Total", task.total, "count"),
            ("Target only", "Target correct", task.target, "count"),
            ("Draft", "Draft correct", task.draft, "count"),
            ("Oracle union", "Oracle union", task.union, "count"),
        ]
        methods = figures.methods[figures.methods.task == task.task] if len(figures.methods) else figures.methods
        for method in methods.itertuples():
            if not math.isnan(method.recovery):
                label = paper_label(specs[method.method], figures.pair)
                cells.append((label, "CoSpec recovery", interval(method._asdict(), "recovery", 100), "%"))
        rows += as_cells(COMPLEMENTARITY, figures.pair, task.task, figures.temperature, cells)
    return rows


def throughput(figures: "Throughput", methods: Sequence[MethodSpec]) -> list[dict[str, Any]]:
    """The methods that the paper's table has."""
    labels = labels_of(methods, figures.pair, THROUGHPUT)
    rows = []
    for row in figures.table.to_dict("records"):
        if (label := labels.get(row["method"])) is None:
            continue
        cells: list[tuple[str, str, float | Interval, str]] = [(label, "Throughput", row["tokens_per_s"], "tokens/s")]
        if row["speedup"] == row["speedup"]:
            cells.append((label, "Speedup", interval(row, "speedup"), "x"))
        setting = f"batch_size={row['batch']}"
        rows += as_cells(THROUGHPUT, figures.pair, "", figures.temperature, cells, setting)
    return rows


def load(
    table: pd.DataFrame, methods: Sequence[MethodSpec], pair: str, temperature: float, nominal: Sequence[float]
) -> list[dict[str, Any]]:
    """Table 10: tokens a second at each rate; `nominal` are the paper's rates that the measured ones stand for."""
    labels = labels_of(methods, pair, LOAD)
    names = dict(zip(sorted(table.rate.unique()), sorted(nominal), strict=True))
    rows: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        if (label := labels.get(row["method"])) is None:
            continue
        cells: list[tuple[str, str, float | Interval, str]] = [(label, "Throughput", row["tokens_per_s"], "tokens/s")]
        if row["method"] != "vanilla":
            cells.append((label, "Speedup", interval(row, "throughput_ratio"), "x"))
        rows += as_cells(LOAD, pair, "", temperature, cells, f"request_rate={names[row['rate']]:g}")
    return rows


def paper_label(spec: MethodSpec, pair: str) -> str:
    """What the paper's tables call a method: CoSpec where it has the settings that stand for it, else our name."""
    (paper,) = papers([PAPER])
    figures = [figure for figure in paper.figures(COMPLEMENTARITY) if figure.method == "CoSpec"]
    identities = {method.identity for figure in figures if (method := paper.method_spec(figure, pair))}
    return "CoSpec" if spec.identity in identities else spec.name


def labels_of(methods: Sequence[MethodSpec], pair: str, table: int) -> dict[str, str]:
    """What a table of the paper calls our methods, by our names; those with other settings are left out.

    A trained arbitrator counts from whatever file it is; another arbiter does not.
    """
    (paper,) = papers([PAPER])
    labels: dict[str, str] = {}
    for label in dict.fromkeys(figure.method for figure in paper.figures(table)):
        choice = paper.choice(label, pair)
        for spec in methods:
            wanted = {"arbiter": spec.values.get("arbiter") and "trained", **(choice.settings if choice else {})}
            if choice and choice.method == spec.method and all(spec.values.get(k) == v for k, v in wanted.items()):
                labels.setdefault(spec.name, label)
    return labels


def as_cells(
    table: int, pair: str, task: str, temperature: float, cells: Cells, setting: str = ""
) -> list[dict[str, Any]]:
    """Rows of a file of figures, by the names of its columns."""
    facts = {"paper": PAPER, "table": table, "pair": pair, "task": task, "temperature": f"{temperature:g}"}
    rows = []
    for method, metric, figure, unit in cells:
        known = figure if isinstance(figure, Interval) else Interval(figure, math.nan, math.nan)
        numbers = {"value": known.value, "low": known.low, "high": known.high}
        texts = {name: "" if math.isnan(number) else f"{number:.6g}" for name, number in numbers.items()}
        rows.append(facts | {"method": method, "setting": setting, "metric": metric, "unit": unit} | texts)
    return rows


def interval(row: dict[Any, Any], name: str, scale: float = 1.0) -> Interval:
    """A figure of a row with its bounds."""
    return Interval(*(scale * float(row.get(column, math.nan)) for column in (name, f"{name}_low", f"{name}_high")))


def write_cells(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file of figures for `specbench tables`."""
    files.write_text(path, csv_text(pd.DataFrame(rows, columns=FIELDS)))
