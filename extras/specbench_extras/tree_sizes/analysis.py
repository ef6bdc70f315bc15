"""How often each rank of a tree's tokens is accepted, and the fastest tree for that (Sequoia, arXiv 2402.12374).

The children of an accepted token, and of the context, are a place. The rate of rank i is the share of places with at
least i children whose i-th one was accepted. Only trees count whose shape does not depend on what the draft says:
elsewhere, places with many children are those where the draft is unsure.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import pyarrow.compute as pc

from specbench.analysis.complementarity import pooled
from specbench.analysis.drafts import recorded_times
from specbench.analysis.forward_times import Times, from_option
from specbench.analysis.metrics import of_method
from specbench.config import MethodSpec, UserError
from specbench.methods.trees.sequoia import TreePlan
from specbench.results.records import DECISIONS
from specbench.results.stored import StoredRun

LEVELS = 16  # the most levels of a tree
SMALLEST = 2  # nodes of the smallest tree that is listed; the others double it
KINDS = ("rsd", "mdsd", "sequoia")
EXAMPLE = "`specbench run --method rsd-constant --split validation` makes one"
ACCEPTED, CUT = DECISIONS.index("accepted"), DECISIONS.index("cut")
DOCUMENT = ["task", "doc_id"]


@dataclass(frozen=True)
class TreeSizes:
    """Acceptance by rank, and the best trees for it."""

    method: str
    sampling: str
    documents: int
    ranks: pd.DataFrame  # rank, places, value, low, high (95 %, bootstrap over documents)
    # nodes, levels, tokens (expected of a round), seconds, speedup (over vanilla): for each number of nodes the levels
    # with the most tokens per second
    trees: pd.DataFrame
    rates: list[float]  # the rates of `ranks`, as the method `sequoia` takes them

    @property
    def best(self) -> "pd.Series[float]":
        """The fastest tree of `trees`."""
        return self.trees.loc[self.trees.speedup.idxmax()]


def tree_sizes(run: StoredRun, method: str | None, nodes: int, forward_times: str | None) -> TreeSizes:
    """Acceptance by rank of a method's trees, and the best trees of up to `nodes` tokens.

    `forward_times` are as in `--forward-times`; without them, they are taken from the method's rounds.

    Raises UserError if the run has no trees of a fixed shape, or no times.
    """
    spec = chosen(run, method)
    columns = [*DOCUMENT, "parents", "decisions"]
    rounds = run.rounds().to_table(columns=columns, filter=of_method(spec.name) & (pc.field("drafted") > 0))
    counts = rank_counts(rounds.to_pandas())
    if counts.empty:
        raise UserError(f"{spec.name} drafted no tree in {run.folder} that was verified; {EXAMPLE}")
    ranks = pd.DataFrame(
        [
            {"rank": rank, "places": int(part.places.sum())}
            | vars(pooled(part.accepted.to_numpy(float), part.places.to_numpy(float)))
            for rank, part in counts.groupby("rank")
        ]
    )
    times = from_option(forward_times, run.manifest.get("models")) if forward_times else None
    rates = [round(value, 4) for value in ranks["value"]]
    trees = best_trees(TreePlan(rates, nodes, LEVELS), times or recorded_times(run, [spec.name]))
    documents = len(counts[DOCUMENT].drop_duplicates())
    return TreeSizes(spec.name, run.sampling, documents, ranks, trees, rates)


def chosen(run: StoredRun, method: str | None) -> MethodSpec:
    """The method of that name, or the first whose trees have a fixed shape. Raises UserError if there is none."""
    specs = [spec for spec in run.plan.methods if method in (None, spec.name)]
    if not specs:
        raise UserError(f"{run.folder} has no method {method}; it has {', '.join(s.name for s in run.plan.methods)}")
    fixed = [spec for spec in specs if spec.method in KINDS and spec.values.get("search") != "beam"]
    if not fixed:
        what = f"{method} of {run.folder} has no trees" if method else f"no method of {run.folder} has trees"
        raise UserError(f"{what} of a fixed shape; {EXAMPLE}")
    return fixed[0]


def rank_counts(rounds: pd.DataFrame) -> pd.DataFrame:
    """By document and rank (from 1): places that were verified, and those whose token of this rank was accepted.

    `rounds` has DOCUMENT, and of each tree its `parents` and `decisions`; None: a chain, or not recorded.
    """
    counts: dict[tuple[str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for task, document, parents, decisions in rounds[[*DOCUMENT, "parents", "decisions"]].itertuples(index=False):
        for place in places([] if parents is None else parents, [] if decisions is None else decisions):
            for rank, decision in enumerate(place, 1):
                count = counts[task, document, rank]
                count[0] += 1
                count[1] += decision == ACCEPTED
    rows = [(*key, *count) for key, count in counts.items()]
    return pd.DataFrame(rows, columns=[*DOCUMENT, "rank", "places", "accepted"]).sort_values("rank", kind="stable")


def places(parents: Sequence[int], decisions: Sequence[int]) -> Iterator[list[int]]:
    """The decisions on the children of the context and of each accepted token, unless the end of the text cut them."""
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        if parent < 0 or decisions[parent] == ACCEPTED:
            children[parent].append(decisions[node])
    yield from (siblings for siblings in children.values() if CUT not in siblings)


def best_trees(plan: TreePlan, times: Times) -> pd.DataFrame:
    """The table `TreeSizes.trees`."""
    rows, nodes = [], SMALLEST
    most = plan.expected.shape[1] - 2
    while nodes <= most:
        candidates = []
        for levels in range(1, len(plan.expected)):
            tokens = float(plan.expected[levels, nodes + 1])
            if tokens > 0:
                seconds = tree_seconds(times, plan.shape_of(levels, nodes + 1))
                candidates.append((nodes, levels, tokens, seconds, tokens * times.token / seconds))
        rows += [max(candidates, key=lambda row: row[-1])] if candidates else []
        nodes *= 2
    return pd.DataFrame(rows, columns=["nodes", "levels", "tokens", "seconds", "speedup"])


def tree_seconds(times: Times, shape: Sequence[Sequence[int]]) -> float:
    """Seconds of a round with a tree of a shape (`TreePlan.shape_of`): a draft forward a level, one of the target."""
    drafted, levels = sum(map(sum, shape)), len(shape) - 1
    wider = sum(sum(count > 0 for count in level) - 1 for level in shape[:-1])  # further tokens of the draft forwards
    draft = levels * (times.t_draft + times.draft_overhead) + times.draft_start
    return times.verified(drafted) + draft + (times.draft_width_slope or 0.0) * wider
