"""Which claims of the papers hold in our runs: the sign of each, and the order of methods by each metric."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specbench import stats
from specbench.published import Claim, Figure, Paper
from specbench.report.ours import OnPair, Ours

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
ORDERS = {"speed": SPEEDS, "accuracy": ("accuracy",)}
ORDERS |= {"acceptance": ("acceptance_rate",)}
FEWEST = 3  # an order of fewer methods says no more than the claims do


@dataclass(frozen=True)
class Check:
    """A claim or an order, what we found, and on what."""

    paper: str
    table: int
    claim: str
    verdict: str  # holds, fails, undecided, mixed or not measured
    detail: str


def checks(chosen: Sequence[Paper], ours: Ours) -> list[Check]:
    """All claims of the papers in their order, then the orders of their tables."""
    found = [_claim(paper, claim, ours) for paper in chosen for claim in paper.claims]
    for paper in chosen:
        for table in paper.tables:
            found += _orders(paper, table, ours)
    return found


def _claim(paper: Paper, claim: Claim, ours: Ours) -> Check:
    """One headline claim on each of its tasks and pairs that we have."""
    found: list[tuple[str, str, str, str]] = []  # verdict, pair, sampling, text
    missing: list[str] = []
    for own in ours.of_table(paper, claim.table):
        higher, lower = (own.method(paper, claim.table, name) for name in (claim.higher, claim.lower))
        if higher is None or lower is None or claim.metric not in RATES:
            missing.append(claim.higher if higher is None else claim.lower if lower is None else claim.metric)
            continue
        wanted = [f for f in own.figures(paper, claim.table) if claim.tasks is None or f.task in claim.tasks]
        for sampling, name, tasks in dict.fromkeys(_places(paper, wanted, own)):
            pairs = [tuple(own.documents(sampling, task, label) for label in (higher, lower)) for task in tasks]
            if _comparable(own, (higher, lower), claim.metric) and (compared := _compare(pairs, claim.metric)):
                found.append((compared[0], own.pair, sampling, f"{name} {compared[1]}"))
    if not found:
        why = f"no {missing[0]} in these runs" if missing else "none of its tasks in these runs"
        why = why if any(ours.of_table(paper, claim.table)) else "none of its pairs is met by one of these runs"
        return Check(paper.paper, claim.table, claim.text, "not measured", why)
    told = [at for at in (1, 2) if len({one[at] for one in found}) > 1]  # pair and sampling, where they differ
    parts: dict[str, list[str]] = {"holds": [], "fails": [], "undecided": []}
    for one in found:
        parts[one[0]].append(" ".join([*(one[at] for at in told), one[3]]))
    verdicts = [verdict for verdict, places in parts.items() if places]
    detail = "; ".join(f"{verdict}: {', '.join(places)}" for verdict, places in parts.items() if places)
    return Check(paper.paper, claim.table, claim.text, verdicts[0] if len(verdicts) == 1 else "mixed", detail)


def _comparable(own: OnPair, labels: Sequence[str], metric: str) -> bool:
    """Times are in units of each method's baseline: they compare where that is the same."""
    return metric not in SPEEDS or len({own.measured.baselines.get(label) for label in labels}) == 1


def _places(paper: Paper, figures: Sequence[Figure], ours: OnPair) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Our sampling of figures, a name, and our tasks; an average stands for all tasks of its table, each by itself."""
    for figure in figures:
        if figure.is_average:
            yield from _places(paper, [f for f in ours.figures(paper, figure.table) if not f.is_average], ours)
        elif tasks := ours.tasks(paper, figure.task):
            name = tasks[0] if len(tasks) == 1 else f"{figure.task} (the average of {len(tasks)} tasks)"
            yield paper.sampling_of(figure).name, name, tasks


def _compare(pairs: Sequence[tuple[pd.DataFrame, ...]], metric: str) -> tuple[str, str] | None:
    """Whether the first method's metric is the larger one, on the documents of both; None if it cannot be told.

    `pairs` are the documents of both methods, task by task; of several tasks the unweighted average is compared.
    """
    shared = [mine.index.intersection(other.index) for mine, other in pairs]
    if any(index.empty for index in shared):
        return None
    pairs = [tuple(one.loc[index] for one in pair) for pair, index in zip(pairs, shared, strict=True)]
    if metric == "accuracy":
        # weights of documents by which every task counts alike
        even = [sum(map(len, shared)) / (len(shared) * len(index)) for index in shared]
        scores = [
            np.concatenate([weight * pair[i].score.to_numpy(float) for weight, pair in zip(even, pairs, strict=True)])
            for i in (0, 1)
        ]
        found = stats.difference(*scores)
        verdict = "undecided" if found.p >= LEVEL else "holds" if found.value > 0 else "fails"
        return verdict, f"{100 * found.value:+.1f} points (p {found.p:.3f})"
    columns = RATES[metric]
    ratio = stats.average_speedup(
        [stats.Paired(*(one[name].to_numpy(float) for one in pair for name in columns)) for pair in pairs]
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
            own = ours.on(paper, column[0])
            if own and (found := _agreement(paper, column, own)):
                value, drawn, names = found
                values.append(value)
                draws.append(drawn)
                methods |= names
        if values:
            drawn = np.mean([one[: min(map(len, draws))] for one in draws], axis=0)
            low, high = np.nanquantile(drawn, [0.025, 0.975])
            text = f"Kendall's τ {np.mean(values):.2f} [{low:.2f}, {high:.2f}] over {len(values)} columns, "
            verdict = "holds" if low > 0 else "fails" if high < 0 else "undecided"
            yield Check(
                paper.paper, table, f"the order of methods by {kind}", verdict, text + ", ".join(sorted(methods))
            )


def _place(figure: Figure) -> tuple[str, ...]:
    return figure.pair, figure.task, figure.temperature, figure.metric


def _agreement(paper: Paper, column: list[Figure], ours: OnPair) -> tuple[float, stats.Floats, set[str]] | None:
    """τ of one column of a table, and of its bootstrap samples; rates are averaged where several tasks meet its own."""
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
        found = [ours.documents(paper.sampling_of(figure).name, task, label) for task in tasks]
        if all(one[under].sum() > 0 for one in found):  # what drafts nothing has no place in an order of acceptance
            published.append(float(figure.value))
            documents[label] = found
    if len(documents) < FEWEST or not _comparable(ours, list(documents), metric):
        return None
    points, draws = [], []
    for of_task in zip(*documents.values(), strict=True):
        shared = of_task[0].index
        for one in of_task[1:]:
            shared = shared.intersection(one.index)
        numerators, denominators = (
            np.array([one.loc[shared, c].to_numpy(float) for one in of_task]) for c in (over, under)
        )
        points.append((numerators.sum(1) / denominators.sum(1))[:, None])
        draws.append(stats.resampled_rates(numerators, denominators))
    shortest = min(one.shape[1] for one in draws)
    drawn = stats.kendall(np.array(published), np.mean([one[:, :shortest] for one in draws], axis=0))
    return float(stats.kendall(np.array(published), np.mean(points, axis=0))[0]), drawn, set(documents)
