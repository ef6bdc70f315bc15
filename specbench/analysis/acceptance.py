"""How well a length policy predicts which draft tokens the target accepts (SpecDec++, arXiv 2405.19715, §4.2, §4.4).

A prediction is the probability that a token is accepted: the head's for SpecDec++, q(d) if the draft's own confidence
decides. It is compared with the outcome. The lists of rounds are flattened column by column.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specbench.analysis.metrics import by_task, of_method
from specbench.analysis.reliability import DOCUMENT, INTERVAL, brier, calibration, discrimination
from specbench.analysis.trace import REJECTED, RESCUED
from specbench.config import MethodSpec, UserError
from specbench.results.records import flatten, keys_of
from specbench.results.stored import StoredRun

POOLED = "pooled"  # the tokens of all tasks together
LISTS = ["decisions", "predictions", "confidences"]
ENTROPY = "entropy"  # the policy whose signal is not a probability
FIGURES = ("ece", "brier", "auroc", "auroc_draft", "auroc_difference", "stop_ece")
NEEDED = "`specbench run --method specdecpp --suite pocket` makes a run that can be analysed"


@dataclass(frozen=True)
class TestedTokens:
    """Predictions and outcomes; each row has DOCUMENT, `prediction` and `accepted`."""

    tokens: pd.DataFrame  # draft tokens that the target tested, with `confidence`: q(d), NaN if not recorded
    drafts: pd.DataFrame  # drafts: the predicted probability that all scored tokens are accepted, and the outcome
    rescued: int  # tokens that count as accepted although the exact rule rejects them
    unscored: int  # tested tokens that have no prediction
    unseen: int  # drafts whose outcome is hidden by the end of the text


@dataclass(frozen=True)
class Acceptance:
    """The predictions of one method, by task and (if there are several) pooled."""

    method: str
    shortest: int | None  # bounds of a draft; None if the run's settings do not have them
    longest: int | None
    rescued: int
    unscored: int
    unseen: int
    unsure: int  # tokens without recorded confidence; if any, there is no comparison with the draft's confidence
    tasks: pd.DataFrame  # task, documents, tokens, accepted (share), prediction (mean), drafts
    figures: pd.DataFrame  # task, figure (one of FIGURES), INTERVAL (95 %, over documents)
    bins: pd.DataFrame  # task and the columns of Calibration.bins
    stops: pd.DataFrame  # the same, of whole drafts

    @property
    def selected(self) -> bool | None:
        """True if the predictions decided which tokens were drafted; None if the settings do not show it."""
        return None if None in (self.shortest, self.longest) else self.shortest != self.longest


def acceptance(run: StoredRun, method: str | None) -> Acceptance:
    """How reliable the predictions of `method` are; by default those of the first method that has any.

    Raises UserError if there are none, or they are not probabilities.
    """
    spec = chosen_method(run, method)
    tested_rounds = tested_tokens(run, spec.name)
    unsure = int(tested_rounds.tokens.confidence.isna().sum())
    facts, figures, bins, stops = [], [], [], []
    in_order = [line.task for line in run.plan.tasks]
    drafts = dict(by_task(tested_rounds.drafts, in_order, POOLED))
    for name, tokens in by_task(tested_rounds.tokens, in_order, POOLED):
        part = drafts.get(name, tested_rounds.drafts.iloc[:0])
        of_tokens, of_drafts = calibration(tokens), calibration(part)
        means = float(tokens.accepted.mean()), float(tokens.prediction.mean())
        facts.append((name, tokens.groupby(DOCUMENT, observed=True).ngroups, len(tokens), *means, len(part)))
        intervals = {"ece": of_tokens.ece, "brier": brier(tokens), **discrimination(tokens), "stop_ece": of_drafts.ece}
        figures += [(name, figure, *(getattr(intervals[figure], key) for key in INTERVAL)) for figure in intervals]
        bins.append(of_tokens.bins.assign(task=name))
        stops.append(of_drafts.bins.assign(task=name))
    return Acceptance(
        method=spec.name,
        shortest=spec.values.get("shortest"),
        longest=spec.values.get("longest"),
        rescued=tested_rounds.rescued,
        unscored=tested_rounds.unscored,
        unseen=tested_rounds.unseen,
        unsure=unsure,
        tasks=pd.DataFrame(facts, columns=["task", "documents", "tokens", "accepted", "prediction", "drafts"]),
        figures=pd.DataFrame(figures, columns=["task", "figure", *INTERVAL]),
        bins=_task_first(pd.concat(bins, ignore_index=True)),
        stops=_task_first(pd.concat(stops, ignore_index=True)),
    )


def _task_first(table: pd.DataFrame) -> pd.DataFrame:
    return table[["task", *table.columns.drop("task")]]


def chosen_method(run: StoredRun, method: str | None) -> MethodSpec:
    """The method of that name, or the first with predictions. Raises UserError if they are not probabilities."""
    candidates = predicting(run)
    if not candidates:
        raise UserError(f"no method of {run.folder} has predictions of its draft tokens on record; {NEEDED}")
    names = ", ".join(spec.name for spec in candidates)
    if method is None:
        candidates = [spec for spec in candidates if not by_entropy(run, spec)] or candidates
    else:
        candidates = [spec for spec in candidates if spec.name == method]
    if not candidates:
        raise UserError(f"{run.folder} has no predictions of a method {method}; it has those of {names}")
    if by_entropy(run, candidates[0]):
        raise UserError(f"{candidates[0].name} goes by entropy, which is not a probability of acceptance; {NEEDED}")
    return candidates[0]


def by_entropy(run: StoredRun, spec: MethodSpec) -> bool:
    """True if a method's draft lengths, and so its predictions, are based on entropy."""
    try:
        length = run.length_policy(spec)
    except UserError:  # its file has changed or is gone, so only the values themselves can show it
        return False
    return length is not None and length.method == ENTROPY


def predicting(run: StoredRun) -> list[MethodSpec]:
    """The methods of a run with recorded predictions, in the run's order."""
    wanted = ~pc.field("warmup") & pc.field("predictions").is_valid()
    batches = run.rounds().to_batches(columns=["method"], filter=wanted)
    names = {name for batch in batches for name in pc.unique(batch.column("method")).to_pylist()}
    return [spec for spec in run.plan.methods if spec.name in names]


def tested_tokens(run: StoredRun, method: str) -> TestedTokens:
    """The draft tokens and drafts of `method` that have both a prediction and an outcome.

    Raises UserError if records are damaged, or the predictions are not probabilities.
    """
    wanted = of_method(method) & pc.field("predictions").is_valid()
    batches = run.rounds().to_batches(columns=[*DOCUMENT, *LISTS], filter=wanted)
    parts = [_flattened(run, batch) for batch in batches if batch.num_rows]
    tokens, drafts = (pa.concat_tables([part[i] for part in parts]).to_pandas() for i in (0, 1))
    rescued, unscored, unseen = (sum(part[i] for part in parts) for i in (2, 3, 4))
    if not tokens.prediction.between(0, 1).all():
        raise UserError(f"the predictions of {method} in {run.folder} are not probabilities; {NEEDED}")
    if tokens.empty:
        raise UserError(f"{run.folder}: no draft token of {method} was both scored and tested; longer drafts have some")
    return TestedTokens(tokens, drafts, rescued, unscored, unseen)


def _flattened(run: StoredRun, batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table, int, int, int]:
    """Tokens and drafts of a batch of rounds; then the numbers of rescued tokens, unscored tokens and unseen drafts."""
    if batch.column("decisions").null_count:
        raise UserError(f"{run.folder} does not record what became of the drafted tokens")
    elements = flatten(run.folder, batch, LISTS[:2], "confidences")
    row, count = elements.row, batch.num_rows
    decision, prediction, confidence = (elements.values[name] for name in LISTS)
    scored, seen = ~np.isnan(prediction), decision <= RESCUED
    any_scored, refused, hidden = (
        np.bincount(row[where], minlength=count) > 0
        for where in (scored, scored & (decision == REJECTED), scored & ~seen)
    )
    predicted = np.ones(count)
    np.multiply.at(predicted, row[scored], prediction[scored].astype(float))
    at, rounds = np.flatnonzero(scored & seen), np.flatnonzero(any_scored & (refused | ~hidden))
    tokens = {"prediction": prediction[at], "accepted": decision[at] != REJECTED, "confidence": confidence[at]}
    drafts = {"prediction": predicted[rounds], "accepted": ~refused[rounds]}
    return (
        pa.table({**keys_of(batch, DOCUMENT, row[at]), **tokens}),
        pa.table({**keys_of(batch, DOCUMENT, rounds), **drafts}),
        int((decision[at] == RESCUED).sum()),
        int((seen & ~scored).sum()),
        int(any_scored.sum()) - len(rounds),
    )
