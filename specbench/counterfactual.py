"""`specbench analyze counterfactual`: was the arbiter right at the mismatches that it met? Both choices are played out.

CoSpec (arXiv 2605.24793, section 4.3 and its table of arbitration against counterfactual branches). A state is a
mismatch of draft and target that a recorded text reached. Its round is played again with both choices; behind it the
same method goes on under the same settings to the end of the text, which the task scores (`counterfactual_play`).
Greedy runs only: of sampled ones the target's candidate at a kept mismatch is not on record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.analysis import DOCUMENT, decided
from specbench.complementarity import as_cells, bounds, paper_label, pooled, quantiles
from specbench.config import MethodSpec, UserError
from specbench.seeds import stable_seed
from specbench.stats import Interval, resampled_rates
from specbench.stored import StoredRun
from specbench.trace import REJECTED, RESCUED

Floats = NDArray[np.float64]

EXAMPLE = "`specbench run --method cospec --suite pocket` makes one"
FIRST = 6  # the version of the records that tells what an arbiter decided
STATE = [*DOCUMENT, "round", "position"]
TABLE = 3
# As the paper's table calls the kinds of states, and its columns.
KINDS = ALL, DRAFT, TARGET, RIGHT, WRONG = (
    "All mismatches",
    "Draft better",
    "Target better",
    "Both correct",
    "Both wrong",
)
METRICS = {"share": "Share", "not_worse": "Draft not worse", "kept": "CoSpec draft", "agreement": "Agreement"}
EQUAL = 1e-9  # scores that are no farther apart are equal


@dataclass(frozen=True)
class State:
    """A mismatch that a recorded text reached, and the round that it was in."""

    repeat: int
    task: str
    doc_id: int
    round: int
    position: int  # in the draft, from 0
    kept: bool
    text: list[int]  # all tokens of the recorded text
    start: int  # how many of them stand in front of the round
    drafted: list[int]
    target: int  # the token that the target preferred
    earlier: int  # mismatches of the round in front of this one, all of them kept

    @property
    def document(self) -> tuple[str, int]:
        return self.task, self.doc_id

    @property
    def key(self) -> tuple[Any, ...]:
        """Its values of STATE."""
        return tuple(getattr(self, name) for name in STATE)


@dataclass(frozen=True)
class Played:
    """Branches of states, before any figure."""

    rows: list[dict[str, Any]]  # of counterfactual_play.BRANCHES
    reached: int  # states that the run's texts reached
    unchecked: list[str]  # tasks left out, since a judge scores them
    repeatable: bool  # the method gives the same text again


@dataclass(frozen=True)
class Counterfactual:
    """How an arbiter's choices compare with the branches that they led to, or would have."""

    method: str
    pair: str
    sampling: str
    seed: int
    reached: int
    states: int
    documents: int
    lost: int  # states drawn whose round came out otherwise this time (near-ties); they are in no figure
    unchecked: list[str]
    same: int  # states whose branch that the run took is the run's text again
    repeatable: bool
    graded: list[str]  # tasks whose scores are not right or wrong
    # kind, states, and of each of share (of all states), not_worse (the draft's branch), kept (the draft's token, by
    # the run), agreement (the run's choice is worth no less than the other): NAME, NAME_low, NAME_high
    kinds: pd.DataFrame
    tasks: pd.DataFrame  # the same by task
    asymmetry: Interval  # how much more often the draft's token is kept where it is better than where the target's is


def method_of(run: StoredRun, name: str | None) -> MethodSpec:
    """The method to ask about: without a name the first with a trained arbitrator, if there is one.

    Raises UserError for a run that cannot be asked, or that has no such method.
    """
    if not run.manifest.get("models") or "imported" in run.manifest:
        raise UserError(f"{run.folder} was imported, so its texts cannot be gone on with; {EXAMPLE}")
    found = [spec for spec in run.plan.methods if spec.method == "cospec"]
    names = ", ".join(spec.name for spec in run.plan.methods)
    if not found:
        raise UserError(f"{run.folder} has no cospec, which alone has an arbiter; it has {names}; {EXAMPLE}")
    if name is not None and name not in [spec.name for spec in found]:
        own = ", ".join(spec.name for spec in found)
        raise UserError(f"{run.folder} has no arbiter called {name}; it has {own}")
    if run.manifest["schema"] < FIRST:
        raise UserError(
            f"{run.folder} has records of version {run.manifest['schema']}, and an arbiter's decisions are told from "
            f"version {FIRST} on; run it anew"
        )
    if run.plan.temperature:
        raise UserError(
            f"{run.folder} is sampled, and the target's candidate at a kept mismatch is not on record; take a greedy "
            "run (--temperature 0)"
        )
    asked = [spec for spec in found if name in (None, spec.name)]
    return next((spec for spec in asked if spec.values.get("arbiter") == "trained"), asked[0])


def reached(run: StoredRun, method: str) -> pd.DataFrame:
    """All mismatches that the texts of a method reached: STATE, target_token, kept. Raises UserError without any."""
    parts = [decided(run, method, which).assign(kept=which == RESCUED) for which in (RESCUED, REJECTED)]
    found = pd.concat([part.astype({"task": str}) for part in parts], ignore_index=True)
    if found.empty:
        raise UserError(f"{method} met no mismatch of draft and target in {run.folder}; take a run with more documents")
    return found[[*STATE, "target_token", "kept"]]


def drawn(run: StoredRun, method: str, found: pd.DataFrame, number: int, seed: int) -> list[State]:
    """So many of the `reached` states, drawn at random over all documents, document by document.

    A larger number has those of a smaller one among it.
    """
    keys = found[STATE].itertuples(index=False)
    order = np.argsort([stable_seed(seed, "states", *key) for key in keys], kind="stable")
    some = found.iloc[order[:number]].sort_values(STATE)
    chosen = ~pc.field("warmup") & (pc.field("method") == method)
    chosen &= pc.field("doc_id").isin(some.doc_id.unique().tolist())
    columns = [*DOCUMENT, "round", "committed", "draft_tokens", "decisions"]
    rounds = run.rounds().to_table(columns=columns, filter=chosen).to_pandas()
    of_text = {key: rows.sort_values("round").set_index("round") for key, rows in rounds.groupby(DOCUMENT)}
    samples = run.scan_samples().to_table(columns=[*DOCUMENT, "tokens"], filter=chosen).to_pandas()
    tokens = samples.set_index(DOCUMENT).tokens
    states = []
    for one in some.itertuples():
        document = one.repeat, one.task, one.doc_id
        rows = of_text[document]
        own = rows.loc[one.round]
        states.append(
            State(
                *document,
                int(one.round),
                int(one.position),
                bool(one.kept),
                tokens[document].tolist(),
                int(rows.committed[rows.index < one.round].sum()),
                own.draft_tokens.tolist(),
                int(one.target_token),
                int((own.decisions[: one.position] == RESCUED).sum()),
            )
        )
    return states


def foretold_seconds(run: StoredRun, method: str, states: Sequence[State]) -> float:
    """What both branches of states will take, by the run's own times: a prefill and the rest of the text each."""
    samples = run.samples([*DOCUMENT, "method", "warmup", "prefill_seconds", "decode_seconds"])
    samples = samples[~samples.warmup & (samples.method == method)].set_index(DOCUMENT)
    seconds = 0.0
    for state in states:
        own = samples.loc[(state.repeat, state.task, state.doc_id)]
        left = 1 - state.start / max(len(state.text), 1)
        seconds += 2 * float(own.prefill_seconds + left * own.decode_seconds)
    return seconds


def counterfactual(run: StoredRun, spec: MethodSpec, seed: int, found: Played) -> Counterfactual:
    """Figures of the branches that were played. Raises UserError if no state was met again."""
    rows = pd.DataFrame(found.rows)
    met = rows[rows.met]
    if met.empty:
        raise UserError(f"{run.folder}: no round came out as recorded; its models or this machine are others now")
    met = met.assign(kind=[kind_of(*pair) for pair in met[["draft_score", "target_score"]].itertuples(index=False)])
    met = met.assign(not_worse=met.draft_score >= met.target_score - EQUAL)
    met = met.assign(agrees=np.where(met.kept, met.not_worse, met.kind != DRAFT))
    tasks = [line.task for line in run.plan.tasks if (met.task == line.task).any()]
    apart = pooled_rates(met, [met.kind == DRAFT, met.kind == TARGET])
    return Counterfactual(
        method=spec.name,
        pair=run.plan.pair.name,
        sampling=run.sampling,
        seed=seed,
        reached=found.reached,
        states=len(met),
        documents=len(met.drop_duplicates(["task", "doc_id"])),
        lost=len(rows) - len(met),
        unchecked=found.unchecked,
        same=int(met.same.sum()),
        repeatable=found.repeatable,
        graded=[task for task in tasks if not right_or_wrong(met[met.task == task])],
        kinds=pd.DataFrame([{"kind": kind} | figures(met, met.kind.isin([kind]) | (kind == ALL)) for kind in KINDS]),
        tasks=pd.DataFrame([{"task": task} | figures(met[met.task == task]) for task in tasks]),
        asymmetry=apart,
    )


def kind_of(draft: float, target: float) -> str:
    """How two branches' scores compare; equal ones are correct if they are more than nothing."""
    if abs(draft - target) > EQUAL:
        return DRAFT if draft > target else TARGET
    return RIGHT if draft > EQUAL else WRONG


def right_or_wrong(rows: pd.DataFrame) -> bool:
    return bool(rows[["draft_score", "target_score", "recorded_score"]].isin([0, 1]).all(axis=None))


def figures(rows: pd.DataFrame, chosen: pd.Series | None = None) -> dict[str, Any]:
    """Of the chosen states: their share of `rows`, and shares of them, with intervals over documents."""
    mine = pd.Series(True, rows.index) if chosen is None else chosen
    found: dict[str, Any] = {"states": int(mine.sum())}
    for name, above, below in (
        ("share", mine, pd.Series(True, rows.index)),
        ("not_worse", mine & rows.not_worse, mine),
        ("kept", mine & rows.kept, mine),
        ("agreement", mine & rows.agrees, mine),
    ):
        one = pooled(by_document(rows, above), by_document(rows, below))
        found |= {name: one.value} | bounds(name, one)
    return found


def by_document(rows: pd.DataFrame, which: pd.Series) -> Floats:
    """How many states of each document [documents]."""
    return which.groupby([rows.task, rows.doc_id]).sum().to_numpy(float)


def pooled_rates(rows: pd.DataFrame, kinds: Sequence[pd.Series]) -> Interval:
    """How much more often the draft's token is kept in states of the first kind than in those of the second."""
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


def cells(run: StoredRun, spec: MethodSpec, found: Counterfactual) -> list[dict[str, Any]]:
    """The kinds in the form of the published table, which names no task; no cell where nothing is defined."""
    label, rows = paper_label(spec, found.pair), []
    for one in found.kinds.to_dict("records"):
        told = [(label, metric, 100 * one[name], "%") for name, metric in METRICS.items() if not math.isnan(one[name])]
        setting = f"category={one['kind']}"
        rows += as_cells(TABLE, found.pair, "", run.plan.temperature, told, setting)
    return rows
