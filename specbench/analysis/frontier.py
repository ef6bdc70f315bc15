"""Is one family of methods better than another at every verification rate? (SpecDec++, arXiv 2405.19715, §5.3, Fig. 3)

A family is one method under several values of one setting: a curve in the plane of verification rate ΣF / ΣC and
discard rate Σ(D − A) / ΣC. The family that discards less at the same verification rate is the better one there, because
it is faster whatever a forward costs.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.analysis.acceptance import POOLED
from specbench.analysis.reliability import interval, task_weights
from specbench.base.stats import Floats, Interval
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

ORACLE = "oracle"
LEAST = 0.95  # the share of resamples in which a point must be comparable for a verdict
RATES = {"verification": ("F", "C"), "discard": ("X", "C"), "time": ("decode", "decoded")}
COMPARED = ["task", "method", "verification", "discard", "other", "difference", "low", "high", "comparable", "verdict"]
VERDICTS = ("holds", "undecided", "fails", "not comparable")


@dataclass(frozen=True)
class Family:
    """Variants of one method that differ in one setting."""

    name: str  # the method's name, with the other settings if they make several families
    setting: str | None  # None: there is one variant
    values: dict[str, Any]  # of the setting, by variant label, sorted by value


@dataclass(frozen=True)
class Frontier:
    """Two families compared, and the share of the oracle's gain that the first one reaches."""

    method: Family
    against: Family
    documents: dict[str, int]  # number that all variants decoded, by task and pooled
    points: pd.DataFrame  # task, family, method, RATES (time: seconds per token), setting (value)
    compared: pd.DataFrame  # task, method, verification, discard, other, difference, low, high, comparable, verdict
    oracle: str | None  # the oracle's name; None if the run has none
    best: str  # the fixed length that gains are counted from
    best_given: bool  # True if the user named it; else it is the fastest on these documents
    gains: pd.DataFrame  # task, method, share of the oracle's gain over `best`, low, high; empty without an oracle


def frontier(run: StoredRun, method: str, against: str | None = None, best: str | None = None) -> Frontier:
    """Compare two families of a run on the documents that all their variants (and `best` and the oracle) decoded.

    Without `against`, `method` is compared with the family whose variants differ in the draft length γ.

    Raises UserError if one of them is not a family, or no document was decoded by all.
    """
    specs = {spec.name: spec for spec in run.plan.methods}
    lengths = [name.partition("[")[0] for name in specs if "[gamma=" in name]
    mine, other = (_family(run, specs, name) for name in (method, against or (lengths or ["sps"])[0]))
    oracle = next((name for name, spec in specs.items() if ORACLE in (spec.method, spec.values.get("length"))), None)
    if best is not None and best not in specs:
        raise UserError(f"{run.folder} has no method {best} (--best); it has {', '.join(specs)}")
    wanted = dict.fromkeys([*mine.values, *other.values, *([best] if best else []), *([oracle] if oracle else [])])
    counts = _counts(run, list(wanted))
    baseline = best or _fastest(counts, list(other.values))
    points, compared, gains, documents = [], [], [], {}
    values: list[Any] = []
    for task, part in metrics.by_task(counts, [line.task for line in run.plan.tasks], POOLED):
        documents[task] = part.groupby(["task", "doc_id"]).ngroups
        rates = _Rates(part)
        for family in (mine, other):
            for name, value in family.values.items():
                points.append((task, family.name, name, *(rates.rate(rate, name)[0] for rate in RATES)))
                values.append(value)
        compared += [(task, *row) for row in _compare(rates, mine, other)]
        if oracle:
            gains += [(task, *row) for row in _gains(rates, mine, oracle, baseline)]
    settings = pd.Series(values, dtype=object)  # whole numbers stay so
    return Frontier(
        method=mine,
        against=other,
        documents=documents,
        points=pd.DataFrame(points, columns=["task", "family", "method", *RATES]).assign(setting=settings),
        compared=pd.DataFrame(compared, columns=COMPARED),
        oracle=oracle,
        best=baseline,
        best_given=best is not None,
        gains=pd.DataFrame(gains, columns=["task", "method", "share", "low", "high"]),
    )


def families(methods: Mapping[str, MethodSpec]) -> list[Family]:
    """Group methods (by label) into families, in order; a method without variants is a family of one.

    Variants share their name before the brackets. If they differ in several settings, the one with the most values
    makes the curves, and each combination of the others is a family.
    """
    named: dict[str, dict[str, MethodSpec]] = {}
    for label, spec in methods.items():
        named.setdefault(spec.name.partition("[")[0], {})[label] = spec
    return [family for name, members in named.items() for family in _split(name, members)]


def _split(name: str, members: Mapping[str, MethodSpec]) -> Iterator[Family]:
    texts = {label: {k: json.dumps(v, default=str) for k, v in spec.values.items()} for label, spec in members.items()}
    keys = dict.fromkeys(key for spec in texts.values() for key in spec)
    counts = {key: len({spec.get(key) for spec in texts.values()}) for key in keys}
    varying = sorted((key for key in keys if counts[key] > 1), key=lambda key: -counts[key])
    if not varying:  # one method, or several that differ in their input files
        yield from (Family(label, None, {label: None}) for label in members)
        return
    lines: dict[str, dict[str, Any]] = {}
    for label, spec in members.items():
        text = ", ".join([name, *(f"{key}={spec.values.get(key)}" for key in varying[1:])])
        lines.setdefault(text, {})[label] = spec.values.get(varying[0])
    for line, values in lines.items():
        if len(values) == 1:
            yield Family(next(iter(values)), None, values)
        else:
            yield Family(line, varying[0], dict(sorted(values.items(), key=_order)))


def _order(item: tuple[str, Any]) -> tuple[float, str]:
    value = item[1]
    return (float(value), "") if isinstance(value, int | float) else (math.inf, str(value))


def _family(run: StoredRun, specs: Mapping[str, MethodSpec], name: str) -> Family:
    """The family of that name in a run. Raises UserError unless there is exactly one."""
    members = {label: spec for label, spec in specs.items() if spec.name.partition("[")[0] == name}
    if not members:
        known = ", ".join(dict.fromkeys(label.partition("[")[0] for label in specs))
        raise UserError(f"{run.folder} has no method {name}; it has {known}")
    candidates = families(members)
    if len(candidates) > 1 or candidates[0].setting is None:
        reason = ("differ in several" if len(candidates) > 1 else "are one") + f" ({', '.join(members)})"
        raise UserError(
            f"a frontier needs variants of {name} that differ in one setting, and those of {run.folder} {reason}; "
            f"`specbench sweep --method {name} --param SETTING=V1,V2,…` makes some"
        )
    return candidates[0]


def _counts(run: StoredRun, methods: Sequence[str]) -> pd.DataFrame:
    """Counts of each method on the samples that all methods have, with X = D − A; columns task, doc_id and method."""
    counts = metrics.per_document(run.samples(metrics.TIMED), run.rounds()).reset_index()
    timed = counts.decode.notna()  # of a run in batches only some texts
    counts = counts.assign(X=counts.D - counts.A, decoded=counts.decoded.where(timed, 0))[counts.method.isin(methods)]
    shared = counts.groupby(["repeat", "task", "doc_id"]).method.transform("nunique") == len(methods)
    sums = list(dict.fromkeys(name for pair in RATES.values() for name in pair))
    counts = counts[shared].groupby(["task", "doc_id", "method"], sort=True)[sums].sum().reset_index()
    if counts.empty:
        raise UserError(f"no document of {run.folder} was decoded by all of {', '.join(methods)}; finish the run first")
    if counts.isna().any(axis=None):
        raise UserError(f"{run.folder} does not record how many tokens were drafted and accepted")
    return counts


def _fastest(counts: pd.DataFrame, methods: Sequence[str]) -> str:
    total = counts.groupby("method")[["decode", "decoded"]].sum().loc[list(methods)]
    return str((total.decode / total.decoded).idxmin())


class _Rates:
    """Rates of methods on some documents, and in resamples of the documents that are the same for all methods."""

    def __init__(self, counts: pd.DataFrame) -> None:
        self.tables = {name: table.set_index(["task", "doc_id"]) for name, table in counts.groupby("method")}
        documents = next(iter(self.tables.values())).groupby(level="task").size()
        self.weights = task_weights(documents.tolist())

    def rate(self, rate: str, method: str) -> tuple[float, Floats | None]:
        """One of RATES of a method, and its value in each resample; undefined values are NaN."""
        over, under = (self.tables[method][column].to_numpy(float) for column in RATES[rate])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = float(np.divide(over.sum(), under.sum()))
            return value, None if self.weights is None else (self.weights @ over) / (self.weights @ under)


def _compare(rates: _Rates, mine: Family, other: Family) -> Iterator[tuple[Any, ...]]:
    """Each variant's discard rate against the other family's at the same verification rate."""
    of_other = {rate: [rates.rate(rate, name) for name in other.values] for rate in ("verification", "discard")}
    curve, drawn = (
        [np.array([values[at] for values in of_other[rate]]) for rate in ("verification", "discard")] for at in (0, 1)
    )
    for name in mine.values:
        (v, v_drawn), (d, d_drawn) = (rates.rate(rate, name) for rate in ("verification", "discard"))
        there = float(interpolate(np.array([v]), curve[0][:, None], curve[1][:, None])[0])
        differences = None
        if v_drawn is not None and d_drawn is not None:
            differences = d_drawn - interpolate(v_drawn, drawn[0], drawn[1])
        difference = interval(d - there, differences)
        comparable = math.nan if differences is None else float(np.mean(~np.isnan(differences)))
        bounds = difference.value, difference.low, difference.high
        yield name, v, d, there, *bounds, comparable, _verdict(difference, comparable)


def _verdict(difference: Interval, comparable: float) -> str:
    if math.isnan(difference.value):
        return "not comparable"
    if math.isnan(difference.low) or comparable < LEAST:
        return "undecided"
    return "holds" if difference.high < 0 else "fails" if difference.low > 0 else "undecided"


def interpolate(at: Floats, x: Floats, y: Floats) -> Floats:
    """y at `at` [resamples] on the polygonal lines through (x, y) [points, resamples]; NaN outside of a line."""
    order = np.argsort(x, axis=0, kind="stable")
    x, y = np.take_along_axis(x, order, 0), np.take_along_axis(y, order, 0)
    right = np.clip((x < at).sum(0), 1, len(x) - 1)[None]
    (x0, x1), (y0, y1) = ([np.take_along_axis(array, i, 0)[0] for i in (right - 1, right)] for array in (x, y))
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.where(x1 > x0, y0 + (y1 - y0) * (at - x0) / (x1 - x0), y0)
    return np.where((at >= x[0]) & (at <= x[-1]), values, math.nan)


def _gains(rates: _Rates, mine: Family, oracle: str, best: str) -> Iterator[tuple[str, float, float, float]]:
    """(time of best − time of variant) / (time of best − time of oracle), times per token.

    NaN if the oracle is not faster than `best`; no interval unless it is faster in almost all resamples.
    """
    (slow, slow_drawn), (fast, fast_drawn) = (rates.rate("time", name) for name in (best, oracle))
    for name in mine.values:
        time, time_drawn = rates.rate("time", name)
        share = (slow - time) / (slow - fast) if slow > fast else math.nan
        drawn = None
        if slow_drawn is not None and fast_drawn is not None and time_drawn is not None:
            faster = slow_drawn > fast_drawn
            if faster.mean() >= LEAST:
                drawn = (slow_drawn - time_drawn)[faster] / (slow_drawn - fast_drawn)[faster]
        gain = interval(share, drawn)
        yield name, gain.value, gain.low, gain.high


def sentence(result: Frontier, task: str) -> str:
    """The result of the comparison on a task, in words."""
    rows = result.compared[result.compared.task == task]
    judged = rows[rows.verdict != "not comparable"]
    if judged.empty:
        return f"{task}: no verification rate of {result.method.name} lies within those of {result.against.name}"
    counts = judged.verdict.value_counts()
    parts = [f"{verdict} at {counts[verdict]}" for verdict in VERDICTS if verdict in counts]
    end = f"; {len(rows) - len(judged)} more not comparable" if len(judged) < len(rows) else ""
    worst = next(verdict for verdict in ("fails", "undecided", "holds") if verdict in counts)  # one point decides
    return (
        f"{task}: does {result.method.name} discard less than {result.against.name} at every verification rate? "
        f"{worst} ({', '.join(parts)} of {len(judged)}{end})"
    )
