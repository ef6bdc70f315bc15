"""Train the acceptance head of SpecDec++ (arXiv 2405.19715): collect, fit, and say how well it is calibrated."""

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table
from scipy.special import expit

from specbench.config import Setting, UserError, override, validated
from specbench.console import console, progress
from specbench.decoding.types import Sampling
from specbench.heads import read_head, write_head
from specbench.methods.specdecpp import KIND, SHAPES
from specbench.stats import Interval
from specbench.train import Job
from specbench.train.acceptance import Collector, Observed, observe_all
from specbench.train.acceptance_fit import Examples, Fitted, fit, gather, head_of, predicted
from specbench.train.collected import put_table
from specbench.train.documents import Document, held_apart, training_documents
from specbench.train.recipe import COLLECTING, Recipe
from specbench.train.soft_labels import calibration_error, intervals, rejection_auroc

HELD_OUT = 10  # one document in so many is kept to choose the epoch and for the figures at the end
# Raw probabilities are of the weighted loss; with its weight taken out, their odds are multiplied by w again.
FIGURES = {
    "ece": "calibration error, as predicted",
    "ece_unweighted": "calibration error, loss weight taken out",
    "auroc": "AUROC for rejection",
    "auroc_confidence": "AUROC of the draft's confidence",
    "auroc_difference": "difference",
}


@dataclass(frozen=True)
class Collected:
    """What all heads of a job learn from."""

    documents: list[Document]
    learned: Examples
    held: Examples
    digest: str  # of all of it

    @property
    def told(self) -> dict[str, Any]:
        accepted = np.concatenate([self.learned.accepted, self.held.accepted])
        return {
            "tasks": list(dict.fromkeys(document.task for document in self.documents)),
            "documents": len(self.documents),
            "positions": len(accepted),
            "mean_acceptance": float(accepted.mean(dtype=np.float64)),
            "held_out_documents": len(self.held.bounds),
            "held_out_positions": len(self.held.accepted),
        }


def train(job: Job) -> None:
    """Collect, fit and write the head to `job.out`, or one for each point of `job.grid` into that folder.

    Beside NAME.safetensors stay NAME.collected/, a file a document, and NAME.metrics.parquet, a row an epoch. Raises
    UserError where there is nothing to learn.
    """
    assert job.recipe
    points = grid(job)  # all of them read before anything takes time
    collected = collect(job, points[0])
    if not job.grid:
        figures = train_one(job, points[0], collected, job.out)
        show(collected, figures)
        console.print(f"{job.out}; collected: {collected_folder(job)}", highlight=False, soft_wrap=True)
        console.print(f"next: {job.use(job.out)}", highlight=False, soft_wrap=True)
        return
    rows = []
    for point in points:
        path = job.out / ("-".join(f"{key}{written(getattr(point, key))}" for key in job.grid) + ".safetensors")
        rows.append(train_one(job, point, collected, path))
        put_table(job.out / "grid.parquet", pa.Table.from_pylist([flat(row) for row in rows]), {})
    show_grid(list(job.grid), rows)
    console.print(f"{len(rows)} heads: {job.out}", highlight=False, soft_wrap=True)


def grid(job: Job) -> list[Recipe]:
    """The recipes of a job: every combination of the grid's values. Raises UserError for what cannot be swept."""
    assert job.recipe
    if fixed := [key for key in job.grid if key in COLLECTING]:
        raise UserError(
            f"--grid {fixed[0]}=…: all heads learn from what is collected once; train a head for each value"
        )
    found = []
    for values in itertools.product(*job.grid.values()):
        point = {key: Setting(value=value) for key, value in zip(job.grid, values, strict=True)}
        found.append(validated(Recipe, override(job.recipe, point).values, job.recipe.name))
    return found


def written(value: Any) -> str:
    """A setting as one writes it: 6 for 6.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def collected_folder(job: Job) -> Path:
    return job.out / "collected" if job.grid else job.out.with_name(f"{job.out.stem}.collected")


def collect(job: Job, recipe: Recipe) -> Collected:
    job.pair.need_one_tokenizer("the head learns where the draft reads the target's own tokens")
    documents = training_documents(job.plan, job.pair, 0, job.data, stand_ins=True)
    collector = Collector(
        job.pair, Sampling(float(recipe.temperature), recipe.top_k), recipe.warped, recipe.mix, job.plan.seed
    )
    folder = collected_folder(job)
    if folder.exists():
        console.print(f"going on with what was collected in {folder}", highlight=False, soft_wrap=True)
    with progress("collecting", len(documents)) as advance:
        observed = observe_all(collector, documents, folder, advance)
    return apart(documents, observed, job.plan.seed)


def apart(documents: list[Document], observed: Mapping[str, Observed], seed: int) -> Collected:
    """Positions to learn from, and those of one document in HELD_OUT. Raises UserError if there are too few."""
    names = [name for name, one in observed.items() if len(one.positions)]
    if len(names) < 2:
        raise UserError(
            f"{len(names)} of {len(observed)} documents have draft tokens to learn from; take more --documents"
        )
    learned, held = held_apart(names, seed, HELD_OUT)
    digest = hashlib.sha256()
    for name in (*learned, *held):
        digest.update(name.encode() + observed[name].accepted.tobytes() + observed[name].hidden.tobytes())
    return Collected(
        documents,
        gather([observed[name] for name in learned]),
        gather([observed[name] for name in held]),
        digest.hexdigest()[:16],
    )


def train_one(job: Job, recipe: Recipe, collected: Collected, path: Path) -> dict[str, Any]:
    """Fit one head and write it to `path`; returns what it tells of itself. One that is there is only read.

    Raises UserError for one that was trained otherwise.
    """
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": collected.digest}
    if path.exists():
        trained = dict(read_head(path, KIND, job.pair, SHAPES, "draft").trained)
        if differing := [key for key, value in facts.items() if trained.get(key) != value]:
            raise UserError(f"{path} was trained with other {', '.join(differing)}; delete it, or choose another --out")
        return trained
    checkpoint, device = path.with_suffix(".checkpoint.pt"), job.pair.models["draft"].device
    steps = recipe.epochs * math.ceil(len(collected.learned.bounds) / recipe.batch)
    learned, held = (one.reading(recipe.inputs) for one in (collected.learned, collected.held))
    with progress(f"training {path.stem}", steps) as advance:
        fitted = fit(learned, held, recipe, job.plan.seed, device, checkpoint, facts, advance)
    figures = judge(fitted, recipe, held)
    trained = {
        **facts,
        "suite": job.plan.suite,
        **collected.told,
        "best_epoch": fitted.best.epoch,
        "train_kl": fitted.best.train_kl,
        "eval_kl": fitted.best.eval_kl,
        "held_out": {name: told(one) for name, one in figures.items()},
    }
    metrics = pa.Table.from_pylist([asdict(epoch) for epoch in fitted.epochs])
    put_table(path.with_suffix(".metrics.parquet"), metrics, {"trained": trained})
    write_head(path, KIND, fitted.tensors, job.pair, trained, "draft")
    checkpoint.unlink(missing_ok=True)
    return trained


def judge(fitted: Fitted, recipe: Recipe, held: Examples) -> dict[str, Interval]:
    """The FIGURES on documents that the head did not learn from (but its epoch was chosen by them)."""
    head = head_of(fitted.tensors, recipe.depth)
    log_odds = predicted(head, held.hidden, held.hidden.device).astype(np.float64)
    accepted, confidence = held.accepted.astype(np.float64), held.confidence.astype(np.float64)
    own, other = rejection_auroc(accepted, log_odds), rejection_auroc(accepted, confidence)
    statistics = {
        "ece": calibration_error(accepted, expit(log_odds)),
        "ece_unweighted": calibration_error(accepted, expit(log_odds + math.log(recipe.weight))),
        "auroc": own,
        "auroc_confidence": other,
        "auroc_difference": lambda weights: own(weights) - other(weights),
    }
    return intervals(statistics, held.documents)


def told(one: Interval) -> list[float | None]:
    """Value and limits as JSON knows them."""
    return [None if math.isnan(value) else value for value in (one.value, one.low, one.high)]


def flat(trained: Mapping[str, Any]) -> dict[str, Any]:
    """What a head tells of itself as a row: each figure in three columns."""
    row = {key: value for key, value in trained.items() if key != "held_out"}
    for name, values in trained["held_out"].items():
        row |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), values, strict=True)}
    return row


def show(collected: Collected, trained: Mapping[str, Any]) -> None:
    """Print what was learned from and how the head does on documents that it did not learn from."""
    facts = collected.told
    console.print(
        f"{facts['documents']} documents, {facts['positions']} draft tokens, "
        f"{facts['mean_acceptance']:.1%} of them accepted; epoch {trained['best_epoch']} is the best: "
        f"KL {trained['train_kl']:.4f}, held out {trained['eval_kl']:.4f}",
        highlight=False,
    )
    console.print(
        f"held out: {facts['held_out_documents']} documents, {facts['held_out_positions']} draft tokens",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, label in FIGURES.items():
        value, low, high = (_text(one) for one in trained["held_out"][name])
        table.add_row(label, f"{value} [{low}, {high}]")
    console.print(table)


def show_grid(keys: list[str], rows: list[dict[str, Any]]) -> None:
    """Print the columns of the paper's Table 3 that training gives, in the order of the grid."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    shown = [*dict.fromkeys(["weight", "depth", *keys])]
    for column in (*shown, "train/KL", "eval/KL", "ECE", "AUROC", "difference"):
        table.add_column(column, justify="right")
    for row in rows:
        figures = (row["held_out"][name][0] for name in ("ece_unweighted", "auroc", "auroc_difference"))
        kls = (f"{row[key]:.4f}" for key in ("train_kl", "eval_kl"))
        table.add_row(*(written(row[key]) for key in shown), *kls, *map(_text, figures))
    console.print(table)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
