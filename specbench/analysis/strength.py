"""`specbench analyze strength`: what each method is worth as its draft gets stronger.

A run for each draft, all of one target. A draft's strength is how much of what the target solves it solves too, each
alone: Σ min(draft's score, target's score) / Σ target's score, over documents. What it solves beyond that is counted
apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import compare, metrics, pooled
from specbench.analysis.alike import check_alike
from specbench.analysis.compare import AVERAGE
from specbench.analysis.complementarity import draft_of, vanilla_of
from specbench.analysis.pooled import Measured
from specbench.base import stats
from specbench.base.scores import wilson
from specbench.base.stats import Interval
from specbench.config import UserError
from specbench.results.stored import StoredRun

# Our columns, and those of the summary.
COLUMNS = {
    "accuracy": "accuracy",
    "delta": "accuracy_delta",
    "delta_low": "accuracy_delta_low",
    "delta_high": "accuracy_delta_high",
    "delta_p": "accuracy_p",
    "alpha": "alpha",
    "tau": "tau",
    "speedup": "speedup_decode",
    "speedup_low": "speedup_decode_low",
    "speedup_high": "speedup_decode_high",
}
NEAR = 0.01  # accuracy is kept if it is not shown to be lower, and at most this much lower


@dataclass(frozen=True)
class Strength:
    """Figures of several drafts of one target, the weakest draft first. NAME_low and NAME_high: 95 % intervals."""

    target: str  # the method that decodes with the target alone
    # pair, run, task (or AVERAGE), documents, strength (_low, _high), cost (the draft's seconds a token over the
    # target's), alone (the share of the documents that the target misses which the draft solves; _low, _high), missed
    drafts: pd.DataFrame
    # pair, task, method, strength, accuracy, kept (accuracy over the target's; _low, _high), delta (less the target's;
    # _low, _high, _p), alpha, tau, speedup (_low, _high), rescued (documents that the target solves, with a rescue),
    # harmful (the share of those that the method does not solve; _low, _high)
    methods: pd.DataFrame
    mismatches: list[str]


def strength(runs: Sequence[StoredRun], allowed: Sequence[str] = ()) -> Strength:
    """Read runs with the target and the draft alone next to other methods.

    Raises UserError if they do not compare, have different targets or one that solves nothing, or lack a model alone.
    """
    mismatches = check_alike(runs, allowed)
    _one_target(runs)
    drafts, methods = [], []
    for run in runs:
        target, draft = vanilla_of(run), draft_of(run, None)[1]
        figures = pooled.measured([run]).against(target)
        rows = compare.summary(figures).set_index(["task", "method"])
        named = {"pair": run.plan.pair.name, "run": run.name}
        tasks = [line.task for line in run.plan.tasks]
        about = {task: _draft(figures, rows, task, target, draft) for task in tasks}
        if len(tasks) > 1:
            about[AVERAGE] = _average_draft(figures, list(about.values()), target, draft)
        drafts += [named | {"task": task} | facts for task, facts in about.items()]
        others = [spec.name for spec in run.plan.methods if spec.name not in (target, draft)]
        for method in others:
            for task in about:
                if (task, method) in rows.index:
                    own = [task] if task != AVERAGE else tasks
                    facts = {"task": task, "method": method, "strength": about[task]["strength"]}
                    methods.append(named | facts | _method(figures, rows, own, task, method, target))
    table = pd.DataFrame(drafts)
    order = table[table.task == table.task.iloc[-1]].sort_values("strength").run.tolist()
    if len(order) < 2:
        raise UserError("strength compares drafts; give several runs, one for each draft of one target")
    if (unsolved := table.groupby("run").strength.count() == 0).any():
        raise UserError(
            f"the target of {unsolved.idxmax()} solves nothing there; decode more documents, or longer texts"
        )
    return Strength(vanilla_of(runs[0]), _in_order(table, order), _in_order(pd.DataFrame(methods), order), mismatches)


def kept_from(figures: Strength, method: str) -> tuple[str | None, str]:
    """The weakest draft from which on a method keeps accuracy on every task, with the task that decided; else None.

    Kept: not significantly lower (p < 0.05, Holm's over the tasks of a run) on any task, and at most NEAR lower on
    their mean.
    """
    rows = figures.methods[figures.methods.method == method]
    first, reason = None, ""
    for pair in reversed(list(dict.fromkeys(rows.pair))):
        of_pair = rows[rows.pair == pair]
        tasks = of_pair[of_pair.task != AVERAGE] if len(of_pair) > 1 else of_pair
        worst = tasks.loc[tasks.delta.idxmin()]
        adjusted = np.array(stats.holm(tasks.delta_p.fillna(1).tolist()))
        lower = tasks.task[(adjusted < 0.05) & (tasks.delta < 0).to_numpy()].tolist()
        mean = of_pair.delta.iloc[-1]
        if lower or mean < -NEAR:
            reason = f"{pair}: {', '.join(lower) or 'the mean'} {100 * (worst.delta if lower else mean):+.1f} points"
            break
        first = pair
    return first, reason


def _one_target(runs: Sequence[StoredRun]) -> None:
    hashes = {((run.manifest.get("models") or {}).get("target") or {}).get("weights_hash") for run in runs}
    if len(hashes) > 1:
        raise UserError("these runs have different targets; strength compares drafts of one")


def _in_order(table: pd.DataFrame, runs: Sequence[str]) -> pd.DataFrame:
    return table.sort_values("run", key=lambda names: names.map(list(runs).index), kind="stable", ignore_index=True)


def _scores(figures: Measured, tasks: Sequence[str], *methods: str) -> pd.DataFrame:
    """Mean scores over repeats of the documents that all of the methods have; columns are the methods."""
    rows = figures.scores[figures.scores.doc_id.notna() & figures.scores.task.isin(tasks)]
    table = rows[rows.method.isin(methods)].pivot_table("value", ["task", "doc_id"], "method", "mean")
    return table.reindex(columns=list(methods)).dropna()


def _ratio(scores: pd.DataFrame, method: str, base: str) -> Interval:
    """The mean over tasks of a column's sum over the base's; no bounds if a column is 0 throughout a task."""
    sums = [(part[method].to_numpy(float), part[base].to_numpy(float)) for _, part in scores.groupby(level="task")]
    known = stats.average_rate(sums)
    if known is None and all(under.sum() > 0 for _, under in sums):
        return Interval(float(np.mean([over.sum() / under.sum() for over, under in sums])), np.nan, np.nan)
    return known or Interval(np.nan, np.nan, np.nan)


def _strength(figures: Measured, tasks: Sequence[str], target: str, draft: str) -> dict[str, float]:
    scores = _scores(figures, tasks, target, draft)
    return metrics.interval_columns("strength", _ratio(scores.assign(both=scores.min(axis=1)), "both", target))


def _draft(figures: Measured, rows: pd.DataFrame, task: str, target: str, draft: str) -> dict[str, Any]:
    """A draft on one task."""
    scores = _scores(figures, [task], target, draft)
    speedup = rows.speedup_decode.get((task, draft), np.nan)
    facts = {"documents": len(scores), "missed": 0, "solved": 0, "cost": 1 / speedup}
    facts |= _strength(figures, [task], target, draft)
    if stats.right_or_wrong(scores.to_numpy(float)):
        missed = scores[scores[target] == 0]
        facts |= {"missed": len(missed), "solved": int(missed[draft].sum())}
        facts |= metrics.interval_columns("alone", wilson(missed[draft].mean(), len(missed)))
    return facts


def _average_draft(figures: Measured, rows: list[dict[str, Any]], target: str, draft: str) -> dict[str, Any]:
    tasks = list(figures.metric)
    missed, solved = (sum(row[name] for row in rows) for name in ("missed", "solved"))
    return (
        {"documents": sum(row["documents"] for row in rows), "missed": missed, "solved": solved}
        | _strength(figures, tasks, target, draft)
        | {"cost": float(np.mean([row["cost"] for row in rows]))}
        | metrics.interval_columns("alone", wilson(solved / missed, missed) if missed else None)
    )


def _method(
    figures: Measured, rows: pd.DataFrame, tasks: Sequence[str], task: str, method: str, target: str
) -> dict[str, Any]:
    """A method on one task, or on several together."""
    row = rows.loc[task, method]
    scores = _scores(figures, tasks, method, target)
    facts = metrics.interval_columns("kept", _ratio(scores, method, target))
    facts |= {name: row[column] for name, column in COLUMNS.items()}
    both = scores[_right_or_wrong(scores)]
    rescues = figures.counts.xs(method, level="method").S.groupby(["task", "doc_id"]).sum()
    touched = both[(both[target] == 1) & (rescues.reindex(both.index) > 0)]
    harmful = wilson(1 - touched[method].mean(), len(touched)) if len(touched) else None
    return facts | {"rescued": len(touched)} | metrics.interval_columns("harmful", harmful)


def _right_or_wrong(scores: pd.DataFrame) -> "pd.Series[bool]":
    """The documents of tasks whose scores are right or wrong."""
    return scores.isin([0, 1]).all(axis=1).groupby(level="task").transform("all")
