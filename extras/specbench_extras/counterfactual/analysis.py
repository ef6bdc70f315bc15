"""`specbench analyze counterfactual`: was the arbiter right at the mismatches it met? Both choices are played out.

CoSpec (arXiv 2605.24793, section 4.3 and its table of arbitration against counterfactual branches). A state is a
mismatch of draft and target that a recorded text reached. `studies.counterfactual` plays its round again with both
choices, then continues with the same method and settings to the end of the text, which the task scores. This needs a
greedy run, since sampled runs do not record the target's candidate at a kept mismatch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from specbench.analysis.complementarity import pooled, quantiles
from specbench.analysis.metrics import interval_columns, of_method
from specbench.analysis.rejections import DOCUMENT, decided
from specbench.analysis.trace import REJECTED, RESCUED
from specbench.base.hashes import stable_seed
from specbench.base.stats import Floats, Interval, resampled_rates
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun

EXAMPLE = "`specbench run --method cospec --suite pocket` makes one"
FIRST = 6  # the first version of the records with the arbiter's decisions
STATE = [*DOCUMENT, "round", "position"]
# The names of the kinds of states and of the columns in the paper's table.
KINDS = ALL, DRAFT, TARGET, RIGHT, WRONG = (
    "All mismatches",
    "Draft better",
    "Target better",
    "Both correct",
    "Both wrong",
)
METRICS = {"share": "Share", "not_worse": "Draft not worse", "kept": "CoSpec draft", "agreement": "Agreement"}
EQUAL = 1e-9  # scores that differ by no more than this are equal


@dataclass(frozen=True)
class State:
    """A mismatch that a recorded text reached, and its round."""

    repeat: int
    task: str
    doc_id: int
    round: int
    position: int  # in the draft, from 0
    kept: bool
    text: list[int]  # all tokens of the recorded text
    start: int  # how many of them precede the round
    drafted: list[int]
    target: int  # the token that the target preferred
    earlier: int  # mismatches before this one in the round, all of them kept

    @property
    def document(self) -> tuple[str, int]:
        return self.task, self.doc_id

    @property
    def key(self) -> tuple[Any, ...]:
        """The state's values of STATE."""
        return tuple(getattr(self, name) for name in STATE)


@dataclass(frozen=True)
class Played:
    """The branches of states, as they were played."""

    rows: list[dict[str, Any]]  # of studies.branches.BRANCHES
    reached: int  # states that the run's texts reached
    unchecked: list[str]  # tasks left out because a judge scores them
    repeatable: bool  # True if the method gives the same text again


@dataclass(frozen=True)
class Counterfactual:
    """How an arbiter's choices compare with their branches and with the branches not taken."""

    method: str
    pair: str
    sampling: str
    seed: int
    reached: int
    states: int
    documents: int
    lost: int  # states left out because their round came out differently this time (near-ties)
    unchecked: list[str]
    same: int  # states whose branch with the run's choice is the run's text again
    repeatable: bool
    graded: list[str]  # tasks whose scores are not just 0 or 1
    # kind, states, and NAME, NAME_low, NAME_high for: share (of all states), not_worse (the draft's branch), kept (the
    # draft's token, by the run), agreement (the run's choice is worth no less than the other)
    kinds: pd.DataFrame
    tasks: pd.DataFrame  # the same by task
    asymmetry: Interval  # how much more often the draft's token is kept where it is better than where the target's is


def method_of(run: StoredRun, name: str | None) -> MethodSpec:
    """The method to study; without a name preferably one with a trained arbitrator.

    Raises UserError for a run that cannot be studied, or that has no such method.
    """
    if not run.manifest.get("models") or "imported" in run.manifest:
        raise UserError(f"{run.folder} was imported, so its texts cannot be continued; {EXAMPLE}")
    candidates = [spec for spec in run.plan.methods if spec.method == "cospec"]
    names = ", ".join(spec.name for spec in run.plan.methods)
    if not candidates:
        raise UserError(f"{run.folder} has no cospec method, and only these have an arbiter; it has {names}; {EXAMPLE}")
    if name is not None and name not in [spec.name for spec in candidates]:
        known = ", ".join(spec.name for spec in candidates)
        raise UserError(f"{run.folder} has no arbiter called {name}; it has {known}")
    if run.manifest["schema"] < FIRST:
        raise UserError(
            f"{run.folder} has records of version {run.manifest['schema']}, and arbiters' decisions are recorded from "
            f"version {FIRST} on; run it again"
        )
    if run.plan.temperature:
        raise UserError(
            f"{run.folder} is sampled, and the target's candidate at a kept mismatch is not on record; take a greedy "
            "run (--temperature 0)"
        )
    chosen = [spec for spec in candidates if name in (None, spec.name)]
    return next((spec for spec in chosen if spec.values.get("arbiter") == "trained"), chosen[0])


def reached_states(run: StoredRun, method: str) -> pd.DataFrame:
    """All mismatches that the texts of a method reached: STATE, target_token, kept. Raises UserError if none."""
    parts = [decided(run, method, which).assign(kept=which == RESCUED) for which in (RESCUED, REJECTED)]
    table = pd.concat([part.astype({"task": str}) for part in parts], ignore_index=True)
    if table.empty:
        raise UserError(f"{method} met no mismatch of draft and target in {run.folder}; take a run with more documents")
    return table[[*STATE, "target_token", "kept"]]


def draw_states(run: StoredRun, method: str, table: pd.DataFrame, number: int, seed: int) -> list[State]:
    """A random sample of `number` states from `table` (that of `reached_states`), in the order of documents.

    A larger sample includes the smaller ones.
    """
    keys = table[STATE].itertuples(index=False)
    order = np.argsort([stable_seed(seed, "states", *key) for key in keys], kind="stable")
    sample = table.iloc[order[:number]].sort_values(STATE)
    chosen = of_method(method) & pc.field("doc_id").isin(sample.doc_id.unique().tolist())
    columns = [*DOCUMENT, "round", "committed", "draft_tokens", "decisions"]
    rounds = run.rounds().to_table(columns=columns, filter=chosen).to_pandas()
    rounds_by_text = {key: rows.sort_values("round").set_index("round") for key, rows in rounds.groupby(DOCUMENT)}
    samples = run.scan_samples().to_table(columns=[*DOCUMENT, "tokens"], filter=chosen).to_pandas()
    tokens = samples.set_index(DOCUMENT).tokens
    states = []
    for state in sample.itertuples():
        document = state.repeat, state.task, state.doc_id
        rows = rounds_by_text[document]
        round_ = rows.loc[state.round]
        states.append(
            State(
                *document,
                int(state.round),
                int(state.position),
                bool(state.kept),
                tokens[document].tolist(),
                int(rows.committed[rows.index < state.round].sum()),
                round_.draft_tokens.tolist(),
                int(state.target_token),
                int((round_.decisions[: state.position] == RESCUED).sum()),
            )
        )
    return states


def estimated_seconds(run: StoredRun, method: str, states: Sequence[State]) -> float:
    """Estimated seconds for both branches of states: a prefill and the rest of the text each, by the run's times.

    Texts that were decoded in a batch take the mean of those that were timed alone; NaN if none was.
    """
    samples = run.samples([*DOCUMENT, "method", "warmup", "prefill_seconds", "decode_seconds"])
    samples = samples[~samples.warmup & (samples.method == method)].set_index(DOCUMENT)
    samples = samples.fillna(samples[["prefill_seconds", "decode_seconds"]].mean())
    seconds = 0.0
    for state in states:
        times = samples.loc[(state.repeat, state.task, state.doc_id)]
        left = 1 - state.start / max(len(state.text), 1)
        seconds += 2 * float(times.prefill_seconds + left * times.decode_seconds)
    return seconds


def counterfactual(run: StoredRun, spec: MethodSpec, seed: int, played: Played) -> Counterfactual:
    """Figures of the branches that were played. Raises UserError if no round came out as recorded."""
    rows = pd.DataFrame(played.rows)
    met = rows[rows.met]
    if met.empty:
        raise UserError(f"{run.folder}: no round came out as recorded; its models or this machine have changed since")
    met = met.assign(kind=[kind_of(*pair) for pair in met[["draft_score", "target_score"]].itertuples(index=False)])
    met = met.assign(not_worse=met.draft_score >= met.target_score - EQUAL)
    met = met.assign(agrees=np.where(met.kept, met.not_worse, met.kind != DRAFT))
    tasks = [line.task for line in run.plan.tasks if (met.task == line.task).any()]
    asymmetry = pooled_rates(met, [met.kind == DRAFT, met.kind == TARGET])
    return Counterfactual(
        method=spec.name,
        pair=run.plan.pair.name,
        sampling=run.sampling,
        seed=seed,
        reached=played.reached,
        states=len(met),
        documents=len(met.drop_duplicates(["task", "doc_id"])),
        lost=len(rows) - len(met),
        unchecked=played.unchecked,
        same=int(met.same.sum()),
        repeatable=played.repeatable,
        graded=[task for task in tasks if not right_or_wrong(met[met.task == task])],
        kinds=pd.DataFrame([{"kind": kind} | figures(met, met.kind.isin([kind]) | (kind == ALL)) for kind in KINDS]),
        tasks=pd.DataFrame([{"task": task} | figures(met[met.task == task]) for task in tasks]),
        asymmetry=asymmetry,
    )


def kind_of(draft: float, target: float) -> str:
    """How the scores of two branches compare; equal scores are correct if above 0."""
    if abs(draft - target) > EQUAL:
        return DRAFT if draft > target else TARGET
    return RIGHT if draft > EQUAL else WRONG


def right_or_wrong(rows: pd.DataFrame) -> bool:
    return bool(rows[["draft_score", "target_score", "recorded_score"]].isin([0, 1]).all(axis=None))


def figures(rows: pd.DataFrame, chosen: pd.Series | None = None) -> dict[str, Any]:
    """The chosen states' share of `rows`, and shares among them, with intervals over documents."""
    mine = pd.Series(True, rows.index) if chosen is None else chosen
    values: dict[str, Any] = {"states": int(mine.sum())}
    for name, above, below in (
        ("share", mine, pd.Series(True, rows.index)),
        ("not_worse", mine & rows.not_worse, mine),
        ("kept", mine & rows.kept, mine),
        ("agreement", mine & rows.agrees, mine),
    ):
        values |= interval_columns(name, pooled(by_document(rows, above), by_document(rows, below)))
    return values


def by_document(rows: pd.DataFrame, which: pd.Series) -> Floats:
    """The number of such states in each document [documents]."""
    return which.groupby([rows.task, rows.doc_id]).sum().to_numpy(float)


def pooled_rates(rows: pd.DataFrame, kinds: Sequence[pd.Series]) -> Interval:
    """The share of states with the draft's token kept: of the first of two kinds, less that of the second."""
    above = np.stack([by_document(rows, mine & rows.kept) for mine in kinds])
    below = np.stack([by_document(rows, mine) for mine in kinds])
    if not below.sum(1).all():
        return Interval(math.nan, math.nan, math.nan)
    first, second = above.sum(1) / below.sum(1)
    value = float(first - second)
    if below.shape[1] < 2:
        return Interval(value, math.nan, math.nan)
    drawn = resampled_rates(above, below)
    return Interval(value, *quantiles(drawn[0] - drawn[1]))
