"""Whether methods stand in the order of a paper's table: Kendall's τ, averaged over our data sets.

Every two methods of a data set are compared as a claim compares them, with Holm's correction over all comparisons of
an order. The lower bound of τ counts all pairs that are not significantly different as standing the other way round,
the upper bound as standing as in the paper. These bounds hold for few documents too, as the comparisons do.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specbench.base import stats
from specbench.papers import checks
from specbench.papers.checks import (
    LEVEL,
    PACE_APART,
    RATES,
    Check,
    collapsed,
    comparable,
    decode_alike,
    pace_apart,
    shared_documents,
)
from specbench.papers.on_pair import SPEEDS, OnPair
from specbench.papers.ours import Ours
from specbench.papers.published import Figure, Paper

ORDERS = {"speed": SPEEDS, "accuracy": ("accuracy",), "acceptance": ("acceptance_rate",)}
ORDER_NAMES = {kind: f"the order of methods by {kind}" for kind in ORDERS}
FEWEST = 3  # methods; an order of fewer says no more than the claims do
LEAST = 0.8  # τ of an order that holds: of four methods, no pair is turned round

Place = tuple[str, str, tuple[str, ...], str]  # our pair, sampling, tasks and metric


@dataclass(frozen=True)
class Two:
    """Two methods of a column: how they stand in the paper, and in our data."""

    methods: tuple[str, str]
    published: int  # the sign of the first's figure less the second's
    ours: int
    p: float  # of our figures' being equal; 1 where this is the same policy under two names
    documents: int


def orders(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """The orders of methods of all tables, by each metric."""
    return [order for paper in chosen for table in paper.tables for order in _orders(paper, table, ours)]


def _orders(paper: Paper, table: int, ours: Ours) -> Iterator[Check]:
    """τ between the table's columns and ours. Columns that the same data of ours stand for count as one."""
    unranked = paper.tables[table].unranked
    for kind, metrics in ORDERS.items():
        figures = [f for f in paper.figures(table) if paper.metrics.get(f.metric) in metrics and not f.is_average]
        columns: dict[tuple[str, ...], list[Figure]] = defaultdict(list)
        for figure in figures:
            if figure.method not in unranked:
                columns[figure.pair, figure.task, figure.temperature, figure.metric].append(figure)
        places: dict[Place, list[list[Two]]] = defaultdict(list)
        for column in columns.values():
            pair = ours.on(paper, column[0])
            if pair and (pairs := _pairs(paper, column, pair)):
                tasks = pair.tasks(paper, column[0].task)
                place = pair.pair, paper.sampling_of(column[0]).name, tasks, paper.metrics[column[0].metric] or ""
                places[place].append(pairs)
        if places:
            why = "".join(f"; without {name}: {reason}" for name, reason in unranked.items())
            yield _order(paper, table, kind, places, why)


def _order(paper: Paper, table: int, kind: str, places: dict[Place, list[list[Two]]], why: str) -> Check:
    """The verdict on an order from the pairs of methods of every column, by place; `why` some are left out."""
    known = {(place, two.methods): two.p for place, columns in places.items() for pairs in columns for two in pairs}
    adjusted = dict(zip(known, stats.holm(list(known.values())), strict=True))
    differ = {key: p < LEVEL for key, p in adjusted.items()}
    low, value, high = np.mean(
        [
            np.mean([_bounds(pairs, [differ[place, two.methods] for two in pairs]) for pairs in columns], axis=0)
            for place, columns in places.items()
        ],
        axis=0,
    )
    every = [two for columns in places.values() for pairs in columns for two in pairs]
    documents = min(two.documents for two in every)
    verdict = "holds" if low >= LEAST else "fails" if high < LEAST else "undecided"
    verdict = verdict if any(differ.values()) else "void"
    methods = sorted({method for two in every for method in two.methods})
    return Check(
        paper.paper,
        table,
        ORDER_NAMES[kind],
        "too few documents" if documents < checks.FEWEST_DOCUMENTS else verdict,
        data_sets=len(places),
        documents=documents,
        tests=len(differ),
        bound=f"τ ≥ {LEAST}",
        detail=f"Kendall's τ {value:.2f} [{low:.2f}, {high:.2f}], {sum(differ.values())} of {len(differ)} pairs of "
        f"methods significantly different; {', '.join(methods)}{why}",
    )


def _bounds(pairs: list[Two], differ: list[bool]) -> tuple[float, float, float]:
    """τ of a column at least, as it is, and at most; a tie in our data counts for neither side."""
    agree = [two.published * two.ours for two in pairs]
    lowest, highest = (
        [sign if known else bound for sign, known in zip(agree, differ, strict=True)] for bound in (-1, 1)
    )
    return float(np.mean(lowest)), float(np.mean(agree)), float(np.mean(highest))


def _pairs(paper: Paper, column: list[Figure], ours: OnPair) -> list[Two]:
    """Every two methods of a column that differ in the paper; none for fewer than FEWEST methods.

    Rates are averaged where several tasks of ours stand for the column's. A method that collapsed has no place in an
    order of speeds, nor one that drafts nothing in an order of acceptance. Speeds of two runs are compared as a claim
    compares them: where their baselines decode at one pace.
    """
    tasks, metric = ours.tasks(paper, column[0].task), paper.metrics[column[0].metric]
    if not tasks or metric not in RATES:
        return []
    sampling, under = paper.sampling_of(column[0]).name, RATES[metric][1]
    published: dict[str, float] = {}
    kinds: dict[str, str] = {}  # implementations
    for figure in column:
        label, spec = ours.label_of(paper, figure), paper.choice(figure.method, ours.pair)
        if label is None or spec is None or label in published:
            continue
        if any(ours.documents(sampling, task, label, metric)[under].sum() <= 0 for task in tasks):
            continue
        if metric in SPEEDS and collapsed(ours, sampling, tasks, label):
            continue
        published[label], kinds[label] = float(figure.value), spec.method
    if len(published) < FEWEST or not comparable(ours, list(published), metric):
        return []
    return [
        _two(ours, two, sign, sampling, tasks, metric, metric not in SPEEDS or kinds[two[0]] == kinds[two[1]])
        for two in itertools.combinations(published, 2)
        if (sign := int(np.sign(published[two[0]] - published[two[1]])))
        and not (metric in SPEEDS and pace_apart(ours, two, sampling, tasks) > PACE_APART)
    ]


def _two(
    ours: OnPair,
    methods: tuple[str, str],
    published: int,
    sampling: str,
    tasks: tuple[str, ...],
    metric: str,
    one_policy: bool,
) -> Two:
    """Two methods on our tasks; with `one_policy` they are one where they decode alike."""
    pairs = shared_documents(ours, methods, sampling, tasks, metric)
    documents = min((len(mine) for mine, _ in pairs), default=0)
    figure = (checks.difference(pairs) if metric == "accuracy" else checks.ratio(pairs, metric)) if pairs else None
    if figure is None:
        return Two(methods, published, 0, 1.0, documents)
    side = int(np.sign(figure.value if isinstance(figure, stats.Difference) else np.log(figure.value)))
    same = one_policy and decode_alike(ours, methods, sampling, tasks, metric)
    return Two(methods, published, side, 1.0 if same or np.isnan(figure.p) else figure.p, documents)
