"""Count the tokens of the target's own texts, for drafts with fewer of them (VocabTrim, arXiv 2506.22694)."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from specbench.base.console import console, note
from specbench.base.stats import Floats
from specbench.engine.generate import finish
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair
from specbench.methods.output.vocabtrim import KIND, ranked
from specbench.training.collected import collect_all
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.publish import announce, collecting, flush_right, publish, source
from specbench.training.train import Job
from specbench_extras.vocabtrim import size as vocabulary_size

DECODES = True  # the target decodes what it learns from; see train.py
SHARED = True  # workers may share what it collects; see train.py
HELD_OUT = 5  # one document in this many shows what the kept tokens cover in texts that were not counted
SHARES = (0.03125, 0.0625, 0.125, 0.25, 0.5)
Counts = NDArray[np.int64]


def train(job: Job) -> None:
    """Write the token counts [V] of all documents' greedy texts to `job.out`, and print what frequent tokens cover.

    The texts stay in a folder next to the file, `NAME.collected` for NAME.safetensors. Raises UserError if there is no
    document to learn from.
    """
    documents = training_documents(job.plan, job.pair, 1, job.data)
    folder = job.folder("collected")
    target = fingerprint(job.pair.models["target"])
    with collecting(folder, "decoding", len(documents), "what was collected") as advance:
        texts = collect_all(
            documents,
            folder,
            lambda document: {"target": target, **document.facts},
            lambda document: pa.table({"token": pa.array(text(document, job.pair), pa.int32())}),
            lambda table: table["token"].to_pylist(),
            advance,
        )
    counts = counted(texts, job.pair.vocabulary)
    trained = {
        **source(job, documents),
        "tokens": int(counts.sum()),
        "distinct": int((counts > 0).sum()),
        "seed": job.plan.seed,
    }
    publish(job.out, KIND, {"counts": torch.from_numpy(counts)}, job.pair, trained)
    note(f"{len(documents)} texts, {trained['tokens']} tokens, {trained['distinct']} different ones of {len(counts)}")
    show(texts, job)
    announce(job.out, f"texts: {folder}", f"{job.run} --set {KIND}.counts={job.out}")


def text(document: Document, pair: Pair) -> list[int]:
    """The target's greedy text, its end token included."""
    ending, target = document.ending(pair), pair.session("target")
    finish(target, target.restart(document.prompt).logits[-1], ending)
    return ending.tokens


def counted(texts: Mapping[str, list[int]], vocabulary: int) -> Counts:
    """How often each token [V] occurs in texts by document."""
    tokens = np.array([token for text in texts.values() for token in text], np.int64)
    return np.bincount(tokens, minlength=vocabulary)


def show(texts: Mapping[str, list[int]], job: Job) -> None:
    """Print the share of held-out texts that the most frequent tokens of the others cover, by how many are kept."""
    learned, held = hold_out(texts, job.plan.seed, HELD_OUT)
    vocabulary = job.pair.vocabulary
    counts = torch.from_numpy(counted({name: texts[name] for name in learned}, vocabulary).astype(np.float32))
    held_counts = counted({name: texts[name] for name in held}, vocabulary)
    order = ranked(counts, job.pair.eos_ids)
    table = flush_right("tokens kept", "share", f"of {len(held)} other texts")
    coverage = np.cumsum(held_counts[order]) / max(1, held_counts.sum())
    for share in SHARES:
        kept = max(1, round(share * vocabulary))
        table.add_row(str(kept), f"{share:.1%}", f"{coverage[kept - 1]:.1%}")
    console.print(table)
    if "draft" in job.pair.models and not job.pair.translations:
        show_best(coverage, np.array(order), job)


def show_best(coverage: Floats, order: Counts, job: Job) -> None:
    """Print the size that gives the most tokens a second by these texts and this machine, next to the fixed share's."""
    gamma, fixed = job.settings.gamma, job.settings.tokens  # type: ignore[attr-defined]
    try:
        costs = vocabulary_size.measured(job.pair, order, gamma)
    except ValueError:  # its output layer cannot be changed, which vocabtrim says when it is used
        return
    best = vocabulary_size.best_size(coverage, costs, gamma)
    chosen = fixed if isinstance(fixed, int) else max(1, round(fixed * len(order)))
    speeds = vocabulary_size.speeds(coverage, costs, gamma)
    share = costs.row * len(order) / (costs.body + costs.row * len(order))
    note(
        f"best size here: tokens={best} ({best / len(order):.1%}, covers {coverage[best - 1]:.1%}), by a scan of all "
        f"sizes at γ = {gamma}; the full output layer takes {share:.0%} of a draft forward"
    )
    note(
        f"at most {speeds[best - 1] / speeds[-1] - 1:+.1%} tokens a second compared with all tokens; the fixed size, "
        f"{chosen}: {speeds[chosen - 1] / speeds[-1] - 1:+.1%}"
    )
