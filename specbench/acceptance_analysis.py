"""How well a length policy foretells which draft tokens the target accepts (SpecDec++, arXiv 2405.19715, §4.2, §4.4).

A prediction is the probability that a token is accepted: the head's for SpecDec++, q(d) where the draft's own
confidence decides. It is set against what became of the token. The lists of a round are taken apart by whole columns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from specbench.config import MethodSpec, UserError
from specbench.reliability import DOCUMENT, INTERVAL, brier, calibration, discrimination
from specbench.stored import StoredRun
from specbench.trace import REJECTED, RESCUED

POOLED = "pooled"  # the tokens of all tasks together
LISTS = ["decisions", "predictions", "confidences"]
ENTROPY = "entropy"  # the policy whose signal is no probability
FIGURES = ("ece", "brier", "auroc", "auroc_draft", "auroc_difference", "stop_ece")
NEEDED = "`specbench run --method specdecpp --suite pocket` makes a run that can be analysed"


@dataclass(frozen=True)
class Tested:
    """What was foretold and what came, DOCUMENT, `prediction` and `accepted` in each row."""

    tokens: pd.DataFrame  # draft tokens that the target tested; also `confidence`: q(d), NaN where it is not known
    drafts: pd.DataFrame  # drafts: the chance that all their scored tokens are accepted, and whether they were
    rescued: int  # tokens that count as accepted though the exact rule refuses them
    unscored: int  # tested tokens that have no prediction
    unseen: int  # drafts whose outcome the end of the text hides


@dataclass(frozen=True)
class Acceptance:
    """The predictions of one method, by task and (if there are several) pooled."""

    method: str
    shortest: int | None  # bounds of a draft; None where the run's settings do not tell
    longest: int | None
    rescued: int
    unscored: int
    unseen: int
    unsure: int  # tokens whose confidence is not known; if any, nothing is set against the draft's confidence
    tasks: pd.DataFrame  # task, documents, tokens, accepted (share), prediction (mean), drafts
    figures: pd.DataFrame  # task, figure (one of FIGURES), INTERVAL; the intervals are 95 % ones, over documents
    bins: pd.DataFrame  # task and the columns of Calibration.bins
    stops: pd.DataFrame  # the same, of whole drafts

    @property
    def selected(self) -> bool | None:
        """Whether the predictions decided which tokens were drafted; None where the settings do not tell."""
        return None if None in (self.shortest, self.longest) else self.shortest != self.longest


def acceptance(run: StoredRun, method: str | None) -> Acceptance:
    """How reliable the predictions of `method` are; by default of the first method that has any.

    Raises UserError if there are none, or they are no probabilities.
    """
    spec = chosen(run, method)
    found = tested(run, spec.name)
    unsure = int(found.tokens.confidence.isna().sum())
    facts, figures, bins, stops = [], [], [], []
    drafts = dict(places(found.drafts, [line.task for line in run.plan.tasks]))
    for name, tokens in places(found.tokens, [line.task for line in run.plan.tasks]):
        part = drafts.get(name, found.drafts.iloc[:0])
        of_tokens, of_drafts = calibration(tokens), calibration(part)
        facts.append((name, tokens.groupby(DOCUMENT, observed=True).ngroups, len(tokens), *_means(tokens), len(part)))
        told = {"ece": of_tokens.ece, "brier": brier(tokens), **discrimination(tokens), "stop_ece": of_drafts.ece}
        figures += [(name, figure, *(getattr(told[figure], key) for key in INTERVAL)) for figure in told]
        bins.append(of_tokens.bins.assign(task=name))
        stops.append(of_drafts.bins.assign(task=name))
    return Acceptance(
        method=spec.name,
        shortest=spec.values.get("shortest"),
        longest=spec.values.get("longest"),
        rescued=found.rescued,
        unscored=found.unscored,
        unseen=found.unseen,
        unsure=unsure,
        tasks=pd.DataFrame(facts, columns=["task", "documents", "tokens", "accepted", "prediction", "drafts"]),
        figures=pd.DataFrame(figures, columns=["task", "figure", *INTERVAL]),
        bins=_task_first(pd.concat(bins, ignore_index=True)),
        stops=_task_first(pd.concat(stops, ignore_index=True)),
    )


def _means(tokens: pd.DataFrame) -> tuple[float, float]:
    return float(tokens.accepted.mean()), float(tokens.prediction.mean())


def _task_first(table: pd.DataFrame) -> pd.DataFrame:
    return table[["task", *table.columns.drop("task")]]


def chosen(run: StoredRun, method: str | None) -> MethodSpec:
    """The method of that name, or the first that has any; raises UserError if its predictions are no probabilities."""
    known = predicting(run)
    if not known:
        raise UserError(f"no method of {run.folder} has predictions of its draft tokens on record; {NEEDED}")
    names = ", ".join(spec.name for spec in known)
    if method is None:
        known = [spec for spec in known if not by_entropy(run, spec)] or known
    else:
        known = [spec for spec in known if spec.name == method]
    if not known:
        raise UserError(f"{run.folder} has no predictions of a method {method}; it has those of {names}")
    if by_entropy(run, known[0]):
        raise UserError(f"{known[0].name} goes by entropy, which is not a probability of acceptance; {NEEDED}")
    return known[0]


def by_entropy(run: StoredRun, spec: MethodSpec) -> bool:
    """Whether a method's draft lengths, and so its predictions, go by entropy."""
    try:
        length = run.length_policy(spec)
    except UserError:  # its file has been changed since, or is gone: the values themselves must tell
        return False
    return length is not None and length.method == ENTROPY


def predicting(run: StoredRun) -> list[MethodSpec]:
    """The methods of a run that have predictions on record, in the run's order."""
    wanted = ~pc.field("warmup") & pc.field("predictions").is_valid()
    batches = run.rounds().to_batches(columns=["method"], filter=wanted)
    found = {name for batch in batches for name in pc.unique(batch.column("method")).to_pylist()}
    return [spec for spec in run.plan.methods if spec.name in found]


def places(rows: pd.DataFrame, tasks: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each task that has any, and behind several tasks all of them."""
    present = [task for task in tasks if (rows.task == task).any()]
    for task in present:
        yield task, rows[rows.task == task]
    if len(present) > 1:
        yield POOLED, rows


def tested(run: StoredRun, method: str) -> Tested:
    """The draft tokens and drafts of `method` of which is known both what was foretold and what came.

    Raises UserError if records are damaged, or the predictions are no probabilities.
    """
    wanted = ~pc.field("warmup") & (pc.field("method") == method) & pc.field("predictions").is_valid()
    batches = run.rounds().to_batches(columns=[*DOCUMENT, *LISTS], filter=wanted)
    parts = [_taken_apart(run, batch) for batch in batches if batch.num_rows]
    tokens, drafts = (pa.concat_tables([part[i] for part in parts]).to_pandas() for i in (0, 1))
    rescued, unscored, unseen = (sum(part[i] for part in parts) for i in (2, 3, 4))
    if not tokens.prediction.between(0, 1).all():
        raise UserError(f"the predictions of {method} in {run.folder} are not probabilities; {NEEDED}")
    if tokens.empty:
        raise UserError(f"{run.folder}: no draft token of {method} was both scored and tested; longer drafts have some")
    return Tested(tokens, drafts, rescued, unscored, unseen)


def _taken_apart(run: StoredRun, batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table, int, int, int]:
    """Tokens and drafts of some rounds, and how many tokens are rescued or unscored, and drafts unseen."""
    decisions, predictions, confidences = (batch.column(name) for name in LISTS)
    lengths = pc.list_value_length(decisions)
    known = confidences.is_valid().to_numpy(zero_copy_only=False)
    if lengths.null_count:
        raise UserError(f"{run.folder} does not tell what became of the drafted tokens")
    lengths = lengths.to_numpy()
    told = pc.list_value_length(confidences).fill_null(0).to_numpy()
    if not np.array_equal(pc.list_value_length(predictions).to_numpy(), lengths) or (told != lengths * known).any():
        raise UserError(f"a round of {run.folder} has lists of different lengths; the records are damaged")
    row = np.repeat(np.arange(len(lengths)), lengths)
    decision = decisions.flatten().to_numpy()
    prediction = predictions.flatten().to_numpy(zero_copy_only=False)
    confidence = np.full(len(row), math.nan, np.float32)
    confidence[known[row]] = confidences.flatten().to_numpy(zero_copy_only=False)
    scored, seen = ~np.isnan(prediction), decision <= RESCUED
    some, refused, hidden = (
        np.bincount(row[where], minlength=len(lengths)) > 0
        for where in (scored, scored & (decision == REJECTED), scored & ~seen)
    )
    chance = np.ones(len(lengths))
    np.multiply.at(chance, row[scored], prediction[scored].astype(float))
    at, rounds = np.flatnonzero(scored & seen), np.flatnonzero(some & (refused | ~hidden))
    tokens = {"prediction": prediction[at], "accepted": decision[at] != REJECTED, "confidence": confidence[at]}
    drafts = {"prediction": chance[rounds], "accepted": ~refused[rounds]}
    return (
        pa.table({**_documents(batch, row[at]), **tokens}),
        pa.table({**_documents(batch, rounds), **drafts}),
        int((decision[at] == RESCUED).sum()),
        int((seen & ~scored).sum()),
        int(some.sum()) - len(rounds),
    )


def _documents(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> dict[str, pa.Array]:
    taken = {name: batch.column(name).take(pa.array(rows)) for name in DOCUMENT}
    return taken | {"task": taken["task"].dictionary_encode()}
