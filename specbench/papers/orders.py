"""Whether methods stand in the order of a paper's table: Kendall's τ, averaged over our data sets."""

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import pandas as pd

from specbench.base import stats
from specbench.papers import checks
from specbench.papers.checks import RATES, Check, collapsed, comparable
from specbench.papers.ours import SPEEDS, OnPair, Ours
from specbench.papers.published import Figure, Paper

ORDERS = {"speed": SPEEDS, "accuracy": ("accuracy",), "acceptance": ("acceptance_rate",)}
FEWEST = 3  # methods; an order of fewer says no more than the claims do
LEAST = 0.8  # τ of an order that holds: of four methods, no pair is turned round
COUNTS = ["R", "D", "A", "C"]  # by which two variants of a method decode alike


def orders(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """The orders of methods of all tables, by each metric."""
    return [order for paper in chosen for table in paper.tables for order in _orders(paper, table, ours)]


def _orders(paper: Paper, table: int, ours: Ours) -> Iterator[Check]:
    """τ between the table's columns and ours. Columns that the same data of ours stand for count as one."""
    unranked = paper.tables[table].unranked
    for kind, metrics in ORDERS.items():
        figures = [f for f in paper.figures(table) if paper.metrics.get(f.metric) in metrics and not f.is_average]
        columns: dict[tuple[str, ...], list[Figure]] = {}
        for figure in figures:
            if figure.method not in unranked:
                columns.setdefault((figure.pair, figure.task, figure.temperature, figure.metric), []).append(figure)
        of_ours: dict[tuple[object, ...], list[tuple[float, stats.Floats, set[str], int]]] = {}
        for column in columns.values():
            pair = ours.on(paper, column[0])
            if pair and (agreement := _agreement(paper, column, pair)):
                tasks = pair.tasks(paper, column[0].task)
                place = pair.pair, paper.sampling_of(column[0]).name, tasks, paper.metrics[column[0].metric]
                of_ours.setdefault(place, []).append(agreement)
        if not of_ours:
            continue
        value = float(np.mean([np.mean([one[0] for one in same]) for same in of_ours.values()]))
        shortest = min(len(one[1]) for same in of_ours.values() for one in same)
        draws = np.mean([np.mean([one[1][:shortest] for one in same], axis=0) for same in of_ours.values()], axis=0)
        low, high = np.nanquantile(draws, [0.025, 0.975])
        documents = min(one[3] for same in of_ours.values() for one in same)
        verdict = "holds" if low >= LEAST else "fails" if high < LEAST else "undecided"
        methods = set().union(*(one[2] for same in of_ours.values() for one in same))
        detail = f"Kendall's τ {value:.2f} [{low:.2f}, {high:.2f}], {', '.join(sorted(methods))}"
        detail += "".join(f"; without {name}: {why}" for name, why in unranked.items())
        yield Check(
            paper.paper,
            table,
            f"the order of methods by {kind}",
            "too few documents" if documents < checks.FEWEST_DOCUMENTS else verdict,
            data_sets=len(of_ours),
            documents=documents,
            bound=f"τ ≥ {LEAST}",
            detail=detail,
        )


def _agreement(paper: Paper, column: list[Figure], ours: OnPair) -> tuple[float, stats.Floats, set[str], int] | None:
    """τ of a column, τ of its bootstrap samples, the methods, and the documents; None for fewer than FEWEST methods.

    Rates are averaged where several tasks of ours stand for the column's. A method that collapsed has no place in an
    order of speeds, and of variants that decode every document alike only the first has one.
    """
    tasks, metric = ours.tasks(paper, column[0].task), paper.metrics[column[0].metric]
    if not tasks or metric not in RATES:
        return None
    sampling = paper.sampling_of(column[0]).name
    over, under = RATES[metric]
    published: list[float] = []
    documents: dict[str, list[pd.DataFrame]] = {}  # of each method, task by task
    variants: list[tuple[str, list[pd.DataFrame]]] = []  # each with its implementation
    for figure in column:
        spec = paper.method_spec(figure, ours.pair)
        label = ours.label_of(paper, figure)
        if spec is None or label is None or label in documents:
            continue
        counts = [ours.documents(sampling, task, label, metric) for task in tasks]
        if any(rows[under].sum() <= 0 for rows in counts):  # what drafts nothing has no place in an order of acceptance
            continue
        if metric in SPEEDS and collapsed(ours, sampling, tasks, label):
            continue
        whole = [ours.documents(sampling, task, label, "accuracy") for task in tasks]  # with those that were not timed
        if any(_alike(whole, known) for method, known in variants if method == spec.method):
            continue
        variants.append((spec.method, whole))
        published.append(float(figure.value))
        documents[label] = counts
    if len(documents) < FEWEST or not comparable(ours, list(documents), metric):
        return None
    points, draws, sizes = [], [], []
    for of_task in zip(*documents.values(), strict=True):
        shared = reduce(pd.Index.intersection, [rows.index for rows in of_task])
        numerators, denominators = (
            np.array([rows.loc[shared, c].to_numpy(float) for rows in of_task]) for c in (over, under)
        )
        points.append((numerators.sum(1) / denominators.sum(1))[:, None])
        draws.append(stats.resampled_rates(numerators, denominators))
        sizes.append(len(shared))
    shortest = min(samples.shape[1] for samples in draws)
    resampled = stats.kendall(np.array(published), np.mean([samples[:, :shortest] for samples in draws], axis=0))
    value = float(stats.kendall(np.array(published), np.mean(points, axis=0))[0])
    return value, resampled, set(documents), min(sizes)


def _alike(mine: Sequence[pd.DataFrame], other: Sequence[pd.DataFrame]) -> bool:
    """True if two variants took the same rounds on every document: one policy under two names."""
    return all(a[COUNTS].equals(b[COUNTS]) for a, b in zip(mine, other, strict=True))
