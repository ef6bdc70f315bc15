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

from specbench.base.console import console, note, progress, say
from specbench.base.stats import Interval
from specbench.config import Setting, UserError, override, validated
from specbench.engine.models.heads import read_head
from specbench.engine.types import Sampling
from specbench.methods.lengths.specdecpp import KIND, SHAPES
from specbench.training.collected import put_table
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.publish import announce, collecting, flush_right, publish, source
from specbench.training.train import Job, checkpoint_of
from specbench_extras.specdecpp.data import Collector, Observed, observe_all
from specbench_extras.specdecpp.fit import Examples, Fitted, fit, gather, head_of, predicted
from specbench_extras.specdecpp.recipe import COLLECTING, HeadRecipe
from specbench_extras.specdecpp.soft_labels import calibration_error, intervals, rejection_auroc

DECODES = True  # the target and the draft decode what it learns from; see train.py
SHARED = True  # workers may share what it collects; see train.py
HELD_OUT = 10  # one document in this many is kept to choose the epoch and for the figures at the end
# The weighted loss divides the predicted odds by its weight w; "taken out" means that they are multiplied by it again.
FIGURES = {
    "ece": "calibration error, as predicted",
    "ece_unweighted": "calibration error, loss weight taken out",
    "auroc": "AUROC for rejection",
    "auroc_confidence": "AUROC of the draft's confidence",
    "auroc_difference": "difference",
}


@dataclass(frozen=True)
class Collected:
    """The data of all heads of a job."""

    documents: list[Document]
    learned: Examples
    held: Examples
    digest: str  # the hash of both

    @property
    def figures(self) -> dict[str, Any]:
        accepted = np.concatenate([self.learned.accepted, self.held.accepted])
        return {
            "positions": len(accepted),
            "mean_acceptance": float(accepted.mean(dtype=np.float64)),
            "held_out_documents": len(self.held.bounds),
            "held_out_positions": len(self.held.accepted),
        }


def train(job: Job) -> None:
    """Collect, fit and write the head to `job.out`, or one for each point of `job.grid` into that folder.

    NAME.collected/ (a file a document) and NAME.metrics.parquet (a row an epoch) stay next to NAME.safetensors. Raises
    UserError if there is nothing to learn.
    """
    assert job.recipe
    points = grid(job)  # errors in any of them come before anything takes time
    collected = collect(job, points[0])
    if not job.grid:
        show(collected, train_one(job, points[0], collected, job.out))
        announce(job.out, f"collected: {collected_folder(job)}", job.use(job.out))
        return
    rows = []
    for point in points:
        path = job.out / ("-".join(f"{key}{short(getattr(point, key))}" for key in job.grid) + ".safetensors")
        rows.append(train_one(job, point, collected, path))
        put_table(job.out / "grid.parquet", pa.Table.from_pylist([flat(row) for row in rows]), {})
    show_grid(list(job.grid), rows)
    say(f"{len(rows)} heads: {job.out}")


def grid(job: Job) -> list[HeadRecipe]:
    """The recipes of a job: every combination of the grid's values. Raises UserError for what cannot be swept."""
    assert job.recipe
    if fixed := [key for key in job.grid if key in COLLECTING]:
        raise UserError(
            f"--grid {fixed[0]}=…: all heads learn from what is collected once; train a head for each value"
        )
    recipes = []
    for values in itertools.product(*job.grid.values()):
        point = {key: Setting(value=value) for key, value in zip(job.grid, values, strict=True)}
        recipes.append(validated(HeadRecipe, override(job.recipe, point).values, job.recipe.name))
    return recipes


def short(value: Any) -> str:
    """A setting as text, 6.0 as 6."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def collected_folder(job: Job) -> Path:
    return job.out / "collected" if job.grid else job.folder("collected")


def collect(job: Job, recipe: HeadRecipe) -> Collected:
    job.pair.need_one_tokenizer("the head learns where the draft reads the target's own tokens")
    documents = training_documents(job.plan, job.pair, 0, job.data, stand_ins=True)
    collector = Collector(
        job.pair, Sampling(float(recipe.temperature), recipe.top_k), recipe.warped, recipe.mix, job.plan.seed
    )
    folder = collected_folder(job)
    with collecting(folder, "collecting", len(documents), "what was collected") as advance:
        observed = observe_all(collector, documents, folder, advance)
    return split(documents, observed, job.plan.seed)


def split(documents: list[Document], observed: Mapping[str, Observed], seed: int) -> Collected:
    """Positions to learn from, and those of one document in HELD_OUT. Raises UserError if there are too few."""
    names = [name for name, document in observed.items() if len(document.positions)]
    if len(names) < 2:
        raise UserError(
            f"{len(names)} of {len(observed)} documents have draft tokens to learn from; take more --documents"
        )
    learned, held = hold_out(names, seed, HELD_OUT)
    digest = hashlib.sha256()
    for name in (*learned, *held):
        digest.update(name.encode() + observed[name].accepted.tobytes() + observed[name].hidden.tobytes())
    return Collected(
        documents,
        gather([observed[name] for name in learned]),
        gather([observed[name] for name in held]),
        digest.hexdigest()[:16],
    )


def train_one(job: Job, recipe: HeadRecipe, collected: Collected, path: Path) -> dict[str, Any]:
    """Fit one head and write it to `path`, or read it if it is there; returns the facts in its file.

    Raises UserError for a head that was trained under other settings.
    """
    facts = {**recipe.model_dump(), "seed": job.plan.seed, "data": collected.digest}
    if path.exists():
        trained = dict(read_head(path, KIND, job.pair, SHAPES, "draft").trained)
        if differing := [key for key, value in facts.items() if trained.get(key) != value]:
            raise UserError(
                f"{path} was trained with different {', '.join(differing)}; delete it, or choose another --out"
            )
        return trained
    device = job.pair.models["draft"].device
    steps = recipe.epochs * math.ceil(len(collected.learned.bounds) / recipe.batch)
    learned, held = (examples.reading(recipe.inputs) for examples in (collected.learned, collected.held))
    with progress(f"training {path.stem}", steps) as advance:
        fitted = fit(learned, held, recipe, job.plan.seed, device, checkpoint_of(path), facts, advance)
    figures = judge(fitted, recipe, held)
    trained = {
        **facts,
        **source(job, collected.documents),
        **collected.figures,
        "best_epoch": fitted.best.epoch,
        "train_kl": fitted.best.train_kl,
        "eval_kl": fitted.best.eval_kl,
        "held_out": {name: limits(figure) for name, figure in figures.items()},
    }
    metrics = pa.Table.from_pylist([asdict(epoch) for epoch in fitted.epochs])
    put_table(path.with_suffix(".metrics.parquet"), metrics, {"trained": trained})
    publish(path, KIND, fitted.tensors, job.pair, trained, "draft")
    return trained


def judge(fitted: Fitted, recipe: HeadRecipe, held: Examples) -> dict[str, Interval]:
    """The FIGURES on documents that the head did not learn from, though they chose its epoch."""
    head = head_of(fitted.tensors, recipe.depth)
    log_odds = predicted(head, held.hidden, held.hidden.device).astype(np.float64)
    accepted, confidence = held.accepted.astype(np.float64), held.confidence.astype(np.float64)
    by_head, by_confidence = rejection_auroc(accepted, log_odds), rejection_auroc(accepted, confidence)
    statistics = {
        "ece": calibration_error(accepted, expit(log_odds)),
        "ece_unweighted": calibration_error(accepted, expit(log_odds + math.log(recipe.weight))),
        "auroc": by_head,
        "auroc_confidence": by_confidence,
        "auroc_difference": lambda weights: by_head(weights) - by_confidence(weights),
    }
    return intervals(statistics, held.documents)


def limits(interval: Interval) -> list[float | None]:
    """The value and the limits of an interval, None for NaN, as JSON has none."""
    return [None if math.isnan(value) else value for value in (interval.value, interval.low, interval.high)]


def flat(trained: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a head as a row of a table, each figure in three columns."""
    row = {key: value for key, value in trained.items() if key != "held_out"}
    for name, values in trained["held_out"].items():
        row |= {f"{name}{end}": value for end, value in zip(("", "_low", "_high"), values, strict=True)}
    return row


def show(collected: Collected, trained: Mapping[str, Any]) -> None:
    """Print what the head learned from and how it does on documents that it did not learn from."""
    figures = collected.figures
    note(
        f"{len(collected.documents)} documents, {figures['positions']} draft tokens, "
        f"{figures['mean_acceptance']:.1%} of them accepted; epoch {trained['best_epoch']} is the best: "
        f"KL {trained['train_kl']:.4f}, held out {trained['eval_kl']:.4f}"
    )
    note(f"held out: {figures['held_out_documents']} documents, {figures['held_out_positions']} draft tokens")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, label in FIGURES.items():
        value, low, high = map(_text, trained["held_out"][name])
        table.add_row(label, f"{value} [{low}, {high}]")
    console.print(table)


def show_grid(keys: list[str], rows: list[dict[str, Any]]) -> None:
    """Print the columns of the paper's Table 3 that training gives, in the order of the grid."""
    settings = [*dict.fromkeys(["weight", "depth", *keys])]
    table = flush_right(*settings, "train/KL", "eval/KL", "ECE", "AUROC", "difference")
    for row in rows:
        figures = (row["held_out"][name][0] for name in ("ece_unweighted", "auroc", "auroc_difference"))
        kls = (f"{row[key]:.4f}" for key in ("train_kl", "eval_kl"))
        table.add_row(*(short(row[key]) for key in settings), *kls, *map(_text, figures))
    console.print(table)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
