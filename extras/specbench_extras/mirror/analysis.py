"""How often Mirror-SD would have had the next draft ready, and what that would save: from hits of each round.

Mirror-SD (arXiv 2510.13161) has the draft model go on while the target's later layers still verify: from each of the κ
likeliest tokens by the states of an early layer. If the token that the target then adds is among them, the next draft
exists already. Its text, its rounds and its accepted tokens are those of speculative sampling; only times differ. So
they are modelled: a draft that exists takes no longer than what the target's later layers do not cover. Speculative
streaming, by which its draft emits several tokens a step, is not in it.
"""

from dataclasses import dataclass

import pandas as pd

from specbench.analysis import metrics, pooled
from specbench.results.stored import StoredRun
from specbench_extras.overlap.analysis import speedup

ROUND = [*metrics.SAMPLE, "round"]
BRANCHES = (1, 2, 4, 8)
SECONDS = ["target_seconds", "draft_seconds", "seconds"]


@dataclass(frozen=True)
class Mirror:
    """The table has a row for each exit layer and number of branches.

    Columns: layer, branches (κ), documents, rounds; hit (share of rounds whose added token is among the κ likeliest of
    the exit layer at its place), and hit_end (and whose draft was accepted whole: one place is enough then), both with
    intervals over documents; speedup over the baseline (measured, without hits), and modelled_speedup,
    modelled_speedup_end with their intervals.
    """

    method: str
    baseline: str | None
    layers: int  # of the target
    table: pd.DataFrame


def mirror(run: StoredRun, method: str, hits: pd.DataFrame, layers: int) -> Mirror:
    """`hits` has ROUND, `layer`, `rank` (of the added token by the exit layer, from 0) and `whole`, by round."""
    measured = pooled.measured([run])
    baseline = measured.baselines.get(method)
    base = measured.counts.reset_index()
    mine, base = base[base.method == method], base[base.method == baseline]
    rounds = run.rounds().to_table([*ROUND, *SECONDS], filter=metrics.of_method(method)).to_pandas()
    without = metrics.interval_columns("speedup", speedup(mine, base))
    rows = []
    for layer, of_layer in hits.groupby("layer"):
        for branches in BRANCHES:
            ready = of_layer.assign(hit=of_layer["rank"] < branches)
            ready["hit_end"] = ready.hit & ready.whole
            by_document = ready.groupby(["task", "doc_id"])
            row: dict[str, object] = {"layer": layer, "branches": branches}
            row |= {"documents": by_document.ngroups, "rounds": len(ready)} | without
            for name, ending in (("hit", ""), ("hit_end", "_end")):
                row |= metrics.share_columns(name, by_document[name].sum(), by_document.size())
                saved = mine.join(saved_seconds(rounds, ready, name, 1 - layer / layers), on=metrics.SAMPLE)
                faster = speedup(saved.assign(decode=saved.decode - saved.saved.fillna(0.0)), base)
                row |= metrics.interval_columns(f"modelled_speedup{ending}", faster)
            rows.append(row)
    return Mirror(method, baseline, layers, pd.DataFrame(rows))


def saved_seconds(rounds: pd.DataFrame, ready: pd.DataFrame, name: str, later: float) -> pd.DataFrame:
    """Seconds of each text that ready drafts would have saved, in the column `saved`.

    After a round that `ready` has a hit for, in its column `name`, the next one's draft began with the target's later
    layers, a share `later` of its forward.
    """
    joined = rounds.merge(ready[[*ROUND, name]], on=ROUND, how="left").sort_values(ROUND)
    before = joined.groupby(metrics.SAMPLE)[[name, "target_seconds"]].shift()
    covered = (later * before.target_seconds).clip(upper=joined.draft_seconds)
    saved = covered.where(before[name].astype("boolean").fillna(False).astype(bool), 0.0)
    return joined.assign(saved=saved).groupby(metrics.SAMPLE)[["saved"]].sum()
