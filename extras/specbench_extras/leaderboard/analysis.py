"""A leaderboard over many runs: a row for each pair, task and method, in groups of runs that were measured alike.

Runs of one group agree in machine, versions, dtype, runtime, models, documents and prompts, as `compare` asks for.
Speeds are compared within a group only: with the baseline's, and with the fastest.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from specbench.analysis import alike, compare, pooled
from specbench.analysis.oracles import is_bound
from specbench.analysis.pooled import ROW, SETUP, Measured
from specbench.base.scores import Z
from specbench.base.stats import holm, speedup
from specbench.report.notes import warnings, withheld
from specbench.report.words import FASTER, FEWEST, LEVEL, LOWER, SLOWER, UNCLEAR, judged
from specbench.results.stored import StoredRun, machine_text, runtime_text

ACCURACY = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_stderr")
TAKEN = ["baseline", "documents", "errors", "cut", *ACCURACY, "acceptance_rate", "tau"]
ENDS = ("", "_low", "_high")
UNKNOWN = "not known"


@dataclass(frozen=True)
class Group:
    """Runs that were measured alike, and what they are together."""

    name: str  # A, B, …
    runs: Sequence[StoredRun]
    differs: str  # in what from group A, in words
    rows: pd.DataFrame
    warnings: Sequence[str]


def groups(folders: Sequence[Path]) -> list[Group]:
    """The runs in groups that compare, in the order of their first runs.

    A run that does not record all of its conditions, as one of another tool, is a group of its own. Raises UserError if
    a folder holds no finished run, or a copy of another one's.
    """
    runs = [StoredRun(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    alike.refuse_copies(runs)
    together: list[list[StoredRun]] = []
    for run in runs:
        fitting = [group for group in together if all(_comparable(other, run) for other in group)]
        if fitting:
            fitting[0].append(run)
        else:
            together.append([run])
    return [
        _group(_letters(number), of_group, _differs(together[0], of_group[0]) if number else "")
        for number, of_group in enumerate(together)
    ]


def _comparable(run: StoredRun, other: StoredRun) -> bool:
    known = None not in (*run.conditions().values(), *other.conditions().values())
    return known and not alike.differences([run, other])[0]


def _differs(first: Sequence[StoredRun], run: StoredRun) -> str:
    """Why a run is not in the first group, in words."""
    differing = next(filter(None, (alike.differences([other, run])[0] for other in first)), {})
    silent = dict.fromkeys(field for one in (*first, run) for field, value in one.conditions().items() if value is None)
    texts = [f"{field} ({text})" for field, text in differing.items()] or [f"{', '.join(silent)} (not recorded)"]
    return "; ".join(texts)


def _letters(number: int) -> str:
    """A, …, Z, AA, AB, …"""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def history(found: Sequence[Group]) -> pd.DataFrame:
    """The rows of each run by itself, in the order in which the runs began: what changed from run to run."""
    runs = sorted(
        ((run.manifest.get("started") or "", group.name, run) for group in found for run in group.runs),
        key=lambda one: one[:2],
    )
    return pd.concat([_group(name, [run], "").rows for _, name, run in runs], ignore_index=True)


def _group(name: str, runs: Sequence[StoredRun], differs: str) -> Group:
    measured = pooled.measured(runs)
    summary = compare.summary(measured)
    rows = _rows(summary, runs, measured)
    labels = zip(runs, alike.method_labels(runs), strict=True)
    bounds = {named[spec.name] for run, named in labels for spec in run.plan.methods if is_bound(spec)}
    rows.insert(0, "group", name)
    rows["leads"] = _leading(rows, measured, bounds)
    rows["order"] = rows.groupby([*SETUP, "task"], sort=False).ngroup()
    rows = rows.sort_values(["order", "speedup"], ascending=[True, False], kind="stable").drop(columns="order")
    return Group(name, runs, differs, rows, [*warnings(runs, summary, measured)])


def _rows(summary: pd.DataFrame, runs: Sequence[StoredRun], measured: Measured) -> pd.DataFrame:
    """The summary's rows without averages; a speedup that cannot be is left out, and `withheld` says why."""
    why = withheld(summary, runs)
    verdicts = judged(summary, why)
    rows = []
    for label, row in summary[summary.task != compare.AVERAGE].iterrows():
        of_row = measured.by_row.get(tuple(row[ROW]))
        numbers = range(len(runs)) if of_row is None else sorted(set(of_row.index.get_level_values("run")))
        end_to_end = bool(pd.isna(row.speedup_decode) and pd.notna(row.speedup_e2e))
        column, speed = ("speedup_e2e", "tokens_per_s_e2e") if end_to_end else ("speedup_decode", "tokens_per_s")
        speeds = {f"speedup{end}": float("nan") if label in why else row[f"{column}{end}"] for end in ENDS}
        judgement = {name: verdicts[name].get(label, "") for name in ("speed_verdict", "score_verdict")}
        judgement["withheld"] = why.get(label, "another tool measured it" if row.imported else "")
        speeds |= {"tokens_per_s": row[speed], "compared": row.compared, "end_to_end": end_to_end}
        facts = {name: ", ".join(dict.fromkeys(fact(runs[n]) for n in numbers)) for name, fact in FACTS.items()}
        rows.append(dict(row[[*ROW, *TAKEN]]) | speeds | judgement | facts)
    return pd.DataFrame(rows)


def _leading(rows: pd.DataFrame, measured: Measured, bounds: set[str]) -> list[bool]:
    """True for the fastest method of each pair and task, and for those that are not significantly slower than it.

    Methods with a significantly lower score, without a verdict of their speed, or that an oracle helps, do not lead.
    """
    leads = pd.Series(False, index=rows.index)
    for _, group in rows.groupby([*SETUP, "task", "baseline"], sort=False):
        judged_ones = group.speed_verdict.isin([FASTER, SLOWER, UNCLEAR])
        fit = group[(judged_ones & (group.score_verdict != LOWER)) | (group.method == group.baseline)]
        fit = fit[~fit.method.isin(bounds) & fit.speedup.notna()]
        if judged_ones.any() and len(fit):
            best = fit.loc[fit.speedup.idxmax()]
            ps = holm([_slower(measured, best, row) for _, row in fit.iterrows()])
            leads[[label for label, p in zip(fit.index, ps, strict=True) if not p < LEVEL]] = True
    return leads.tolist()


def _slower(measured: Measured, best: "pd.Series[Any]", other: "pd.Series[Any]") -> float:
    """The p value that a method is as fast as the fastest; NaN where that cannot be told, and of the fastest itself.

    In pairs of the documents that both decoded in one run; of methods that no run has both of, by their intervals.
    """
    if best.method == other.method:
        return math.nan
    mine, base = (measured.by_row[tuple(row[ROW])] for row in (best, other))
    times = compare.paired(mine, base, whole=bool(best.end_to_end))
    if times is None:
        errors = [math.log(row.speedup_high / row.speedup_low) / (2 * Z) for row in (best, other)]
        spread = math.sqrt(2) * math.hypot(*errors)
        return math.erfc(math.log(best.speedup / other.speedup) / spread) if spread > 0 else math.nan
    ratio = speedup(times) if len(times.seconds) >= FEWEST else None
    return ratio.p if ratio else math.nan


def _dtype(run: StoredRun) -> str:
    dtype, weights = (run.conditions()[name] for name in ("dtype", "weights"))
    return UNKNOWN if dtype is None else dtype + f", {weights} weights" * (weights not in (None, "float"))


def _load(run: StoredRun) -> str:
    load = run.manifest["environment"].get("load")
    return UNKNOWN if load is None else f"{load:.1f}"


# What a row says of the runs that it comes from.
FACTS: dict[str, Callable[[StoredRun], str]] = {
    "machine": lambda run: machine_text(run.manifest),
    "dtype": _dtype,
    "runtime": lambda run: runtime_text(run.manifest) if run.manifest["models"] else UNKNOWN,
    "batch": lambda run: str(run.plan.batch),
    "load": _load,
    "started": lambda run: str(run.manifest.get("started") or UNKNOWN),
    "commit": lambda run: str(run.manifest["environment"].get("git") or UNKNOWN),
    "run": lambda run: run.name,
}
