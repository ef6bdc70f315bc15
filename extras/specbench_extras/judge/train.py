"""Train the head of judge decoding (arXiv 2501.19309): mine labels, fit a logistic regression, say how good it is.

The paper's labels are a human's; ours are mined (mining.py). The head learns from mismatches only, since it is used
only there. Weights that balance the labels, the penalties and the split are our inference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specbench.base.console import console, note
from specbench.config import UserError
from specbench.methods.lossy.judge import KIND, Settings
from specbench.training.documents import hold_out, training_documents
from specbench.training.publish import announce, collecting, flush_right, publish, source
from specbench.training.train import Job
from specbench_extras.judge.logistic import Bools, Floats, Linear, at_threshold, auroc, balanced, choose_penalty, fit
from specbench_extras.judge.mining import Mined, Miner, mine_all

SCORED = True  # a trainer that scores what it generates; see train.py
DECODES = True  # the target and the draft decode what it learns from; see train.py
SHARED = True  # workers may share what it collects; see train.py
PENALTIES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
HELD_OUT = 5  # one document in this many is kept for the figures at the end
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Swaps:
    """The swaps of several documents."""

    hidden: Floats  # [n, D]
    labels: Bools  # [n]
    documents: NDArray[np.int64]  # [n]: the document of each, from 0


def train(job: Job) -> None:
    """Mine the job's documents (or go on with that), fit, write the head to `job.out` and print the held-out figures.

    The mined swaps stay in a folder next to the file, `NAME.mined` for NAME.safetensors. Raises UserError if there is
    nothing to learn.
    """
    settings = job.settings
    assert isinstance(settings, Settings)
    documents = training_documents(job.plan, job.pair, settings.gamma + 1, job.data)
    miner = Miner(job.pair, job.plan.seed)
    folder = job.folder("mined")
    with collecting(folder, "mining", len(documents), "what was mined") as advance:
        mined = mine_all(miner, documents, folder, advance)
    learned, held = split(mined, job.plan.seed)
    head, penalty = learn(learned)
    scores = head.scores(held.hidden)
    accuracy = at_threshold(held.labels, scores, settings.threshold).accuracy
    trained = {
        **source(job, documents),
        "swaps": len(learned.labels),
        "right": int(learned.labels.sum()),
        "penalty": penalty,
        "seed": job.plan.seed,
        "held_out_swaps": len(held.labels),
        "held_out_auroc": _rounded(auroc(held.labels, scores)),
        "held_out_accuracy": _rounded(accuracy),
    }
    tensors = {"weight": torch.from_numpy(head.weight), "bias": torch.tensor(head.bias)}
    publish(job.out, KIND, tensors, job.pair, trained)
    right = sum(swaps.original > 0 for swaps in mined.values())
    note(
        f"{right} of {len(documents)} answers are right; {len(learned.labels)} swaps to learn from, "
        f"{learned.labels.mean():.0%} of them harmless (penalty {penalty:g})"
    )
    show(held, scores, settings.threshold)
    announce(job.out, f"mined labels: {folder}", job.use(job.out))


def split(mined: Mapping[str, Mined], seed: int) -> tuple[Swaps, Swaps]:
    """Swaps to learn from, and those of one document in HELD_OUT, chosen by the documents' names.

    Raises UserError if fewer than two documents have swaps.
    """
    names = [name for name, swaps in mined.items() if swaps.labels]
    if len(names) < 2:
        raise UserError(
            f"{len(names)} of {len(mined)} documents have a right answer and a draft that differs from it; "
            "that is too few to learn from, take more --documents"
        )
    learned, held = hold_out(names, seed, HELD_OUT)
    return gather([mined[name] for name in learned]), gather([mined[name] for name in held])


def gather(mined: Sequence[Mined]) -> Swaps:
    return Swaps(
        np.concatenate([swaps.hidden for swaps in mined]).astype(np.float64),
        np.concatenate([np.array(swaps.labels, bool) for swaps in mined]),
        np.concatenate([np.full(len(swaps.labels), i, np.int64) for i, swaps in enumerate(mined)]),
    )


def learn(swaps: Swaps) -> tuple[Linear, float]:
    """The head, and the penalty that cross-validation by document chose. Raises UserError if only one label occurs."""
    if swaps.labels.all() or not swaps.labels.any():
        outcome = "right" if swaps.labels.all() else "wrong"
        raise UserError(
            f"all {len(swaps.labels)} swaps left the answer {outcome}: nothing tells them apart; take more --documents"
        )
    penalty = choose_penalty(swaps.hidden, swaps.labels, swaps.documents, PENALTIES)
    return fit(swaps.hidden, swaps.labels, balanced(swaps.labels), penalty), penalty


def show(held: Swaps, scores: Floats, threshold: float) -> None:
    """Print how the head does on swaps [n] of documents that it has not seen."""
    right, area = int(held.labels.sum()), _text(auroc(held.labels, scores), ".3f")
    accuracy = _text(at_threshold(held.labels, scores, threshold).accuracy, ".0%")
    note(
        f"held out: {len(held.labels)} swaps, {right} of them harmless; AUROC {area}, "
        f"accuracy at {threshold:g} {accuracy}"
    )
    table = flush_right("threshold", "accepted", "precision", "recall", "accuracy")
    for value in sorted({*THRESHOLDS, threshold}):
        row = at_threshold(held.labels, scores, value)
        shares = (row.accepted, row.precision, row.recall, row.accuracy)
        table.add_row(f"{value:g}", *(_text(share, ".0%") for share in shares))
    console.print(table)


def _text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
