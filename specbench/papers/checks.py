"""Which claims of the papers hold in our runs: the sign of each claim, and the order of methods by each metric."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd

from specbench.base import stats
from specbench.papers.ours import OnPair, Ours
from specbench.papers.published import Claim, Figure, Paper

LEVEL = 0.05
# Metric -> numerator and denominator of its rate, in columns of `Ours.documents`.
RATES = {
    "speedup_decode": ("decoded", "decode"),
    "tokens_per_s": ("decoded", "decode"),
    "speedup_e2e": ("whole_tokens", "whole"),
    "acceptance_rate": ("A", "D"),
    "tau": ("C", "R"),
    "accuracy": ("score", "one"),
}
SPEEDS = ("speedup_e2e", "speedup_decode", "tokens_per_s")
ORDERS = {"speed": SPEEDS, "accuracy": ("accuracy",), "acceptance": ("acceptance_rate",)}
FEWEST = 3  # methods; an order of fewer says no more than the claims do


@dataclass(frozen=True)
class Check:
    """A claim or an order, with our verdict and the figures that it rests on."""

    paper: str
    table: int
    claim: str
    verdict: str  # holds, fails, undecided, mixed or not measured
    detail: str


def checks(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """All claims of the papers in their order, then the orders of their tables."""
    claims = [_claim(paper, claim, ours) for paper in chosen for claim in paper.claims]
    return claims + [order for paper in chosen for table in paper.tables for order in _orders(paper, table, ours)]


def _claim(paper: Paper, claim: Claim, ours: Ours) -> Check:
    """A claim, on each of its tasks and pairs that we have."""
    results: list[tuple[str, str, str, str]] = []  # verdict, pair, sampling, text
    missing: list[str] = []
    for pair in ours.of_table(paper, claim.table):
        higher, lower = (pair.method(paper, claim.table, name) for name in (claim.higher, claim.lower))
        if higher is None or lower is None or claim.metric not in RATES:
            missing.append(claim.higher if higher is None else claim.lower if lower is None else claim.metric)
            continue
        figures = [f for f in pair.figures(paper, claim.table) if claim.tasks is None or f.task in claim.tasks]
        for sampling, name, tasks in dict.fromkeys(_places(paper, figures, pair)):
            both = [tuple(pair.documents(sampling, task, label) for label in (higher, lower)) for task in tasks]
            if _comparable(pair, (higher, lower), claim.metric) and (compared := _compare(both, claim.metric)):
                results.append((compared[0], pair.pair, sampling, f"{name} {compared[1]}"))
    if not results:
        why = f"no {missing[0]} in these runs" if missing else "none of its tasks in these runs"
        why = why if any(ours.of_table(paper, claim.table)) else "none of its pairs is met by one of these runs"
        return Check(paper.paper, claim.table, claim.text, "not measured", why)
    differing = [at for at in (1, 2) if len({result[at] for result in results}) > 1]  # of pair and sampling
    parts: dict[str, list[str]] = {"holds": [], "fails": [], "undecided": []}
    for result in results:
        parts[result[0]].append(" ".join([*(result[at] for at in differing), result[3]]))
    verdicts = [verdict for verdict, places in parts.items() if places]
    detail = "; ".join(f"{verdict}: {', '.join(places)}" for verdict, places in parts.items() if places)
    return Check(paper.paper, claim.table, claim.text, verdicts[0] if len(verdicts) == 1 else "mixed", detail)


def _comparable(pair: OnPair, labels: Sequence[str], metric: str) -> bool:
    """False for speeds with different baselines: times are in units of each method's baseline."""
    return metric not in SPEEDS or len({pair.measured.baselines.get(label) for label in labels}) == 1


def _places(paper: Paper, figures: Sequence[Figure], ours: OnPair) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Our sampling, a name and our tasks for each figure; an average stands for all tasks of its table, one by one."""
    for figure in figures:
        if figure.is_average:
            yield from _places(paper, [f for f in ours.figures(paper, figure.table) if not f.is_average], ours)
        elif tasks := ours.tasks(paper, figure.task):
            name = tasks[0] if len(tasks) == 1 else f"{figure.task} (the average of {len(tasks)} tasks)"
            yield paper.sampling_of(figure).name, name, tasks


def _compare(pairs: Sequence[tuple[pd.DataFrame, ...]], metric: str) -> tuple[str, str] | None:
    """The verdict on whether the first method's metric is larger, and the figure; None if nothing compares.

    `pairs` are the documents of both methods, task by task; only those of both count. Of several tasks the unweighted
    average is compared.
    """
    shared = [mine.index.intersection(other.index) for mine, other in pairs]
    if any(index.empty for index in shared):
        return None
    pairs = [tuple(rows.loc[index] for rows in pair) for pair, index in zip(pairs, shared, strict=True)]
    if metric == "accuracy":
        # The weight of a document, by which every task counts alike.
        weights = [sum(map(len, shared)) / (len(shared) * len(index)) for index in shared]
        scores = [
            np.concatenate(
                [weight * pair[i].score.to_numpy(float) for weight, pair in zip(weights, pairs, strict=True)]
            )
            for i in (0, 1)
        ]
        change = stats.difference(*scores)
        verdict = "undecided" if change.p >= LEVEL else "holds" if change.value > 0 else "fails"
        return verdict, f"{100 * change.value:+.1f} points (p {change.p:.3f})"
    columns = RATES[metric]
    ratio = stats.average_speedup(
        [stats.Paired(*(rows[name].to_numpy(float) for rows in pair for name in columns)) for pair in pairs]
    )
    if ratio is None:
        return None
    verdict = "holds" if ratio.low > 1 else "fails" if ratio.high < 1 else "undecided"
    return verdict, f"{ratio.value:.2f} × [{ratio.low:.2f}, {ratio.high:.2f}]"


def _orders(paper: Paper, table: int, ours: Ours) -> Iterator[Check]:
    """Kendall's τ between the table's order of methods and ours, averaged over its pairs and tasks."""
    figures = paper.figures(table)
    for kind, metrics in ORDERS.items():
        cells = [f for f in figures if paper.metrics.get(f.metric) in metrics and not f.is_average]
        draws, values, methods = [], [], set()
        for _, group in itertools.groupby(sorted(cells, key=_place), key=_place):
            column = list(group)
            pair = ours.on(paper, column[0])
            if pair and (agreement := _agreement(paper, column, pair)):
                value, samples, names = agreement
                values.append(value)
                draws.append(samples)
                methods |= names
        if values:
            averages = np.mean([samples[: min(map(len, draws))] for samples in draws], axis=0)
            low, high = np.nanquantile(averages, [0.025, 0.975])
            text = f"Kendall's τ {np.mean(values):.2f} [{low:.2f}, {high:.2f}] over {len(values)} columns, "
            verdict = "holds" if low > 0 else "fails" if high < 0 else "undecided"
            yield Check(
                paper.paper, table, f"the order of methods by {kind}", verdict, text + ", ".join(sorted(methods))
            )


def _place(figure: Figure) -> tuple[str, ...]:
    return figure.pair, figure.task, figure.temperature, figure.metric


def _agreement(paper: Paper, column: list[Figure], ours: OnPair) -> tuple[float, stats.Floats, set[str]] | None:
    """τ of one column of a table, τ of its bootstrap samples, and the methods; None for fewer than FEWEST.

    Rates are averaged where several tasks of ours stand for the column's.
    """
    tasks, metric = ours.tasks(paper, column[0].task), paper.metrics[column[0].metric]
    if not tasks or metric not in RATES:
        return None
    over, under = RATES[metric]
    published: list[float] = []
    documents: dict[str, list[pd.DataFrame]] = {}  # of each method, task by task
    for figure in column:
        spec = paper.method_spec(figure, ours.pair)
        label = ours.label(spec) if spec else None
        if label is None or label in documents:
            continue
        counts = [ours.documents(paper.sampling_of(figure).name, task, label) for task in tasks]
        if all(rows[under].sum() > 0 for rows in counts):  # what drafts nothing has no place in an order of acceptance
            published.append(float(figure.value))
            documents[label] = counts
    if len(documents) < FEWEST or not _comparable(ours, list(documents), metric):
        return None
    points, draws = [], []
    for of_task in zip(*documents.values(), strict=True):
        shared = reduce(pd.Index.intersection, [rows.index for rows in of_task])
        numerators, denominators = (
            np.array([rows.loc[shared, c].to_numpy(float) for rows in of_task]) for c in (over, under)
        )
        points.append((numerators.sum(1) / denominators.sum(1))[:, None])
        draws.append(stats.resampled_rates(numerators, denominators))
    shortest = min(samples.shape[1] for samples in draws)
    resampled = stats.kendall(np.array(published), np.mean([samples[:, :shortest] for samples in draws], axis=0))
    return float(stats.kendall(np.array(published), np.mean(points, axis=0))[0]), resampled, set(documents)
