"""`specbench analyze arbitrator`: what a trained arbitrator's decisions owe to the target's tokens. A diagnostic.

CoSpec (arXiv 2605.24793, section 3.3) has it read the draft's and the target's tokens of a round; its Table 8 loses
accuracy where the draft's cannot see the target's. `studies.arbitrator` has it read recorded rounds again, as they were
and with the target's tokens changed. A decision that stays the same whatever these are does not rest on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from specbench.analysis.metrics import by_task, interval_columns
from specbench.base.scores import wilson
from specbench.config import UserError
from specbench.results.stored import StoredRun

ASIS = "as recorded"
CHANGES = {  # what the arbitrator reads of a round with draft tokens d and target tokens t, in place of d then t
    "random": "other target tokens, drawn at random",
    "copied": "the draft's tokens in place of the target's, as if both agreed",
    "removed": "no target tokens",
    "swapped": "the target's tokens before the draft's",
}
TOGETHER = "together"


@dataclass(frozen=True)
class Dependence:
    """How many of an arbitrator's decisions change with the target's tokens."""

    method: str
    pair: str
    sampling: str
    seed: int
    documents: int
    decisions: int  # that were read again as recorded
    lost: int  # decisions left out, since reading them again gave another one (near-ties)
    kept: float  # the share of decisions that keep the draft's token
    # task, change, decisions, changed, share with share_low and share_high. The interval is Wilson's, with as many
    # draws as documents: decisions of one text may hang together.
    changes: pd.DataFrame


def dependence(run: StoredRun, method: str, seed: int, rows: Sequence[dict[str, Any]]) -> Dependence:
    """Figures of decisions: `rows` have task, doc_id, `recorded` and, for ASIS and each of CHANGES, the decision.

    Raises UserError if none was read as recorded.
    """
    every = pd.DataFrame(rows)
    met = every[every[ASIS] == every.recorded]
    if met.empty:
        raise UserError(
            f"{run.folder}: no decision came out as recorded; its models or this machine have changed since"
        )
    figures = []
    for task, mine in by_task(met, [line.task for line in run.plan.tasks], TOGETHER):
        documents = len(mine.drop_duplicates(["task", "doc_id"]))
        for change in CHANGES:
            changed = int((mine[change] != mine.recorded).sum())
            row = {"task": task, "change": change, "decisions": len(mine), "changed": changed}
            figures.append(row | interval_columns("share", wilson(changed / len(mine), documents)))
    return Dependence(
        method=method,
        pair=run.plan.pair.name,
        sampling=run.sampling,
        seed=seed,
        documents=len(met.drop_duplicates(["task", "doc_id"])),
        decisions=len(met),
        lost=len(every) - len(met),
        kept=float(met.recorded.mean()),
        changes=pd.DataFrame(figures),
    )
