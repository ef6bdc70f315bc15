"""What a run would take if draft and target worked at the same time: a model, from the seconds of its rounds.

A round of PEARL needs the tokens of neither forward for the other. On a device for each model it takes as long as the
slower of both, max(draft, target), and what the host does between forwards. Here they ran in turn, so this is modelled:
it knows nothing of what two processes pay to exchange tokens and distributions, nor of memory that both would share.
"""

from dataclasses import dataclass

import pandas as pd
import pyarrow.compute as pc

from specbench.analysis import compare, metrics, pooled
from specbench.analysis.drafts import OVERLAPPING
from specbench.base import stats
from specbench.config import UserError
from specbench.results.stored import StoredRun

ALL = "all tasks"
SECONDS = ["target_seconds", "draft_seconds", "seconds"]


@dataclass(frozen=True)
class Overlap:
    """The table has a row for each task and overlapping method, and for all tasks together.

    Columns: task, method, baseline, documents, rounds, tokens, tau (tokens a round), alpha (accepted share of verified
    tokens); measured: speedup (over the baseline, both models in turn) with its interval; modelled, and so named:
    modelled_speedup with its interval, modelled_share (of the measured seconds of the rounds), and hidden (the share of
    the draft's seconds during which the target works too).
    """

    table: pd.DataFrame


def modelled_seconds(rounds: pd.DataFrame) -> "pd.Series[float]":
    """Seconds of each round if its draft and target forwards began together: max(draft, target) + the host's.

    The host's time is what the measured `seconds` have beside both models' forwards.
    """
    both = rounds.target_seconds + rounds.draft_seconds
    slower = rounds[["target_seconds", "draft_seconds"]].max(axis=1)
    return slower + (rounds.seconds - both).clip(lower=0)


def overlap(run: StoredRun) -> Overlap:
    """Model the overlapped seconds of a run's methods. Raises UserError if it has none that overlap, or no times."""
    names = [spec.name for spec in run.plan.methods if spec.method in OVERLAPPING]
    if not names:
        raise UserError(
            f"{run.folder} has no method whose draft and target overlap; `specbench run --method pearl` makes one"
        )
    measured = pooled.measured([run])
    wanted = ~pc.field("warmup") & pc.field("method").isin(names) & (pc.field("round") > 0)
    rounds = run.rounds().to_table([*metrics.SAMPLE, *SECONDS], filter=wanted).to_pandas()
    if rounds.empty or rounds[SECONDS].isna().any(axis=None):
        raise UserError(f"{run.folder} has no seconds of its rounds; run it one document at a time, without --untimed")
    rounds["modelled"] = modelled_seconds(rounds)
    rounds["hidden"] = rounds[["target_seconds", "draft_seconds"]].min(axis=1)
    sums = rounds.groupby(metrics.SAMPLE)[["seconds", "modelled", "draft_seconds", "hidden"]].sum()
    counts = measured.counts.reset_index().merge(sums.reset_index(), on=metrics.SAMPLE)
    rows = []
    for name in names:
        baseline = measured.baselines.get(name)
        mine = counts[counts.method == name]
        for task, part in metrics.by_task(mine, [line.task for line in run.plan.tasks], ALL):
            rows.append({"task": task, "method": name, "baseline": baseline} | _row(part, measured, baseline))
    return Overlap(pd.DataFrame(rows))


def _row(mine: pd.DataFrame, runs: pooled.Measured, baseline: str | None) -> dict[str, object]:
    """The figures of a method on some tasks."""
    base = runs.counts.reset_index()
    base = base[(base.method == baseline) & base.task.isin(mine.task)]
    measured = speedup(mine, base)
    # Rounds alone are modelled; what a text took beside them stays as it was measured.
    modelled = speedup(mine.assign(decode=mine.decode - mine.seconds + mine.modelled), base)
    tested = mine.A.sum() + mine.J.sum()
    return {
        "documents": len(mine[["task", "doc_id"]].drop_duplicates()),
        "rounds": int(mine.R.sum()),
        "tokens": int(mine.C.sum()),
        "tau": mine.C.sum() / mine.R.sum(),
        "alpha": mine.A.sum() / tested if tested else float("nan"),
        **metrics.interval_columns("speedup", measured),
        **metrics.interval_columns("modelled_speedup", modelled),
        "modelled_share": mine.modelled.sum() / mine.seconds.sum(),
        "hidden": mine.hidden.sum() / mine.draft_seconds.sum() if mine.draft_seconds.sum() else float("nan"),
    }


def speedup(mine: pd.DataFrame, base: pd.DataFrame) -> stats.Interval | None:
    """Over the baseline, the mean over tasks; None where a task has no times of both."""
    tasks = []
    for task in mine.task.unique():
        parts = (rows[rows.task == task].set_index([*pooled.ONCE, "doc_id"]) for rows in (mine, base))
        paired = compare.paired(*parts)
        if paired is None:
            return None
        tasks.append(paired)
    return stats.average_speedup(tasks)
