"""What a run would take if draft and target worked at the same time: a model, from the seconds of its rounds.

A round of PEARL needs the tokens of neither forward for the other. On a device for each model it takes as long as the
slower of both, max(draft, target), and what the host does between forwards. Mirror-SD's branches begin when the
target's first layers have read the draft, and only the round after one that has the next draft ready waits for them.
Here all ran in turn, so this is modelled: it knows nothing of what two processes pay to exchange tokens and
distributions, nor of memory that both would share.
"""

from dataclasses import dataclass

import pandas as pd
import pyarrow.compute as pc

from specbench.analysis import compare, metrics, pooled
from specbench.analysis.drafts import OVERLAPPING
from specbench.base import stats
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

ALL = "all tasks"
SECONDS = ["target_seconds", "draft_seconds", "seconds"]
COUNTS = ["drafted", "draft_forwards"]


@dataclass(frozen=True)
class Overlap:
    """The table has a row for each task and overlapping method, and for all tasks together.

    Columns: task, method, baseline, documents, rounds, tokens, tau (tokens a round), alpha (accepted share of verified
    tokens); measured: speedup (over the baseline, both models in turn) with its interval; modelled, and so named:
    modelled_speedup with its interval, modelled_share (of the measured seconds of the rounds), and hidden (the share of
    the draft's seconds during which the target works too; of branches only those that became drafts count). ready is
    measured, with its interval over documents: of the rounds after a text's first one the share whose draft was a
    branch; NaN for methods without branches.
    """

    table: pd.DataFrame


def model_together(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rounds with `modelled`, `hidden` and `needed` seconds, if both forwards began together.

    `needed` is what drafts took, `hidden` the part of it during which the target works too, and `modelled`
    max(draft, target) + the host's time, which is what `seconds` have outside forwards.
    """
    both = rounds[["target_seconds", "draft_seconds"]]
    host = (rounds.seconds - both.sum(axis=1)).clip(lower=0)
    return rounds.assign(modelled=both.max(axis=1) + host, hidden=both.min(axis=1), needed=rounds.draft_seconds)


def model_branches(rounds: pd.DataFrame, exit: float) -> pd.DataFrame:
    """As `model_together`, if the branches began when a share `exit` of the target's forward was done.

    `modelled` is draft + max(target, exit · target + branches) + the host's time. Branches count in a round before one
    whose draft was `ready` (boolean; null in a text's first round): others nobody waits for.
    """
    in_order = rounds.sort_values([*metrics.SAMPLE, "round"])
    ready = (in_order.drafted > 0) & (in_order.draft_forwards == 0)
    used = ready.groupby([in_order[name] for name in metrics.SAMPLE]).shift(-1, fill_value=False)
    target, branches = in_order.target_seconds, in_order.branch_seconds.where(used, 0.0)
    forwards = target + in_order.draft_seconds + in_order.branch_seconds
    host = (in_order.seconds - forwards).clip(lower=0)
    ends = (exit * target + branches).clip(lower=target)
    return in_order.assign(
        modelled=in_order.draft_seconds + ends + host,
        hidden=branches.clip(upper=(1 - exit) * target),
        needed=in_order.draft_seconds + branches,
        ready=ready.astype("boolean").where(in_order["round"] > 1),
    )


def overlap(run: StoredRun) -> Overlap:
    """Model the overlapped seconds of a run's methods. Raises UserError if it has none that overlap, or no times."""
    specs = {spec.name: spec for spec in run.plan.methods if spec.method in OVERLAPPING}
    names = list(specs)
    if not names:
        raise UserError(
            f"{run.folder} has no method whose draft and target overlap; `specbench run --method pearl` makes one"
        )
    measured = pooled.measured([run])
    wanted = ~pc.field("warmup") & pc.field("method").isin(names) & (pc.field("round") > 0)
    columns = [*metrics.SAMPLE, "round", *COUNTS, *SECONDS, "branch_seconds"]
    rounds = run.rounds().to_table(columns, filter=wanted).to_pandas()
    if rounds.empty or rounds[SECONDS].isna().any(axis=None):
        raise UserError(f"{run.folder} has no seconds of its rounds; run it one document at a time, without --untimed")
    rounds = pd.concat([_modelled(of_method, specs[str(name)]) for name, of_method in rounds.groupby("method")])
    by_text = rounds.groupby(metrics.SAMPLE)
    sums = by_text[["seconds", "modelled", "needed", "hidden"]].sum()
    sums = sums.assign(ready=by_text.ready.sum(), later=by_text.ready.count())
    counts = measured.counts.reset_index().merge(sums.reset_index(), on=metrics.SAMPLE)
    rows = []
    for name in names:
        baseline = measured.baselines.get(name)
        mine = counts[counts.method == name]
        for task, part in metrics.by_task(mine, [line.task for line in run.plan.tasks], ALL):
            rows.append({"task": task, "method": name, "baseline": baseline} | _row(part, measured, baseline))
    return Overlap(pd.DataFrame(rows))


def _modelled(rounds: pd.DataFrame, spec: MethodSpec) -> pd.DataFrame:
    """The rounds of a method as `model_branches` returns them."""
    if spec.method == "mirror":
        return model_branches(rounds, float(spec.values["exit"]))
    return model_together(rounds).assign(ready=pd.Series(pd.NA, rounds.index, dtype="boolean"))


def _row(mine: pd.DataFrame, runs: pooled.Measured, baseline: str | None) -> dict[str, object]:
    """The figures of a method on some tasks."""
    base = runs.counts.reset_index()
    base = base[(base.method == baseline) & base.task.isin(mine.task)]
    measured = speedup(mine, base)
    # Rounds alone are modelled; what a text took outside them stays as it was measured.
    modelled = speedup(mine.assign(decode=mine.decode - mine.seconds + mine.modelled), base)
    tested = mine.A.sum() + mine.J.sum()
    by_document = mine.groupby(["task", "doc_id"])
    return {
        "documents": len(mine[["task", "doc_id"]].drop_duplicates()),
        "rounds": int(mine.R.sum()),
        "tokens": int(mine.C.sum()),
        "tau": mine.C.sum() / mine.R.sum(),
        "alpha": mine.A.sum() / tested if tested else float("nan"),
        **metrics.interval_columns("speedup", measured),
        **metrics.interval_columns("modelled_speedup", modelled),
        "modelled_share": mine.modelled.sum() / mine.seconds.sum(),
        "hidden": mine.hidden.sum() / mine.needed.sum() if mine.needed.sum() else float("nan"),
        **metrics.share_columns("ready", by_document.ready.sum(), by_document.later.sum()),
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
