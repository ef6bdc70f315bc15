"""Count the tokens of the target's own texts, for drafts with fewer of them (VocabTrim, arXiv 2506.22694)."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from rich.table import Table

from specbench.console import console, progress
from specbench.decoding.generate import Ending, Limits
from specbench.heads import fingerprint, write_head
from specbench.methods.vocabtrim import KIND, ranked
from specbench.models import Pair
from specbench.train import Job
from specbench.train.collected import Facts, collect_all
from specbench.train.documents import Document, held_apart, training_documents
from specbench.train.mining import finish

HELD_OUT = 5  # one document in so many tells what kept tokens cover in texts that were not counted
SHARES = (0.03125, 0.0625, 0.125, 0.25, 0.5)
Counts = NDArray[np.int64]


def train(job: Job) -> None:
    """Write the counts [V] of all documents' greedy texts to `job.out`, and print what the frequent tokens cover.

    The texts stay in a folder beside the file, `NAME.collected` for NAME.safetensors. Raises UserError.
    """
    documents = training_documents(job.plan, job.pair, 1, job.data)
    folder = job.out.with_name(f"{job.out.stem}.collected")
    if folder.exists():
        console.print(f"going on with what was collected in {folder}", highlight=False, soft_wrap=True)
    whose = fingerprint(job.pair.models["target"])
    with progress("decoding", len(documents)) as advance:
        texts = collect_all(
            documents,
            folder,
            lambda document: facts(document, whose),
            lambda document: pa.table({"token": pa.array(text(document, job.pair), pa.int32())}),
            lambda table: table["token"].to_pylist(),
            advance,
        )
    counts = counted(texts, job.pair.vocabulary)
    trained = {
        "suite": job.plan.suite,
        "tasks": list(dict.fromkeys(document.task for document in documents)),
        "documents": len(documents),
        "tokens": int(counts.sum()),
        "distinct": int((counts > 0).sum()),
        "seed": job.plan.seed,
    }
    write_head(job.out, KIND, {"counts": torch.from_numpy(counts)}, job.pair, trained)
    console.print(
        f"{len(documents)} texts, {trained['tokens']} tokens, {trained['distinct']} different ones of {len(counts)}",
        highlight=False,
    )
    show(texts, job)
    console.print(f"{job.out}; texts: {folder}", highlight=False, soft_wrap=True)
    console.print(f"next: {job.run} --set {KIND}.counts={job.out}", highlight=False, soft_wrap=True)


def text(document: Document, pair: Pair) -> list[int]:
    """The target's greedy text, its end token included."""
    ending = Ending(Limits(document.max_new_tokens, pair.eos_ids, document.until), pair.detokenizer)
    target = pair.session("target")
    finish(target, target.restart(document.prompt).logits[-1], ending)
    return ending.tokens


def facts(document: Document, whose: str) -> Facts:
    return {
        "target": whose,
        "prompt": document.prompt_hash,
        "length": document.max_new_tokens,
    }


def counted(texts: Mapping[str, list[int]], vocabulary: int) -> Counts:
    """How often each token [V] stands in some texts."""
    tokens = np.array([token for one in texts.values() for token in one], np.int64)
    return np.bincount(tokens, minlength=vocabulary)


def show(texts: Mapping[str, list[int]], job: Job) -> None:
    """Print what share of held-out texts the most frequent tokens of the others are, by how many are kept."""
    learned, held = held_apart(texts, job.plan.seed, HELD_OUT)
    vocabulary = job.pair.vocabulary
    counts = torch.from_numpy(counted({name: texts[name] for name in learned}, vocabulary).astype(np.float32))
    unseen = counted({name: texts[name] for name in held}, vocabulary)
    order = ranked(counts, job.pair.eos_ids)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("tokens kept", "share", f"of {len(held)} other texts"):
        table.add_column(column, justify="right")
    for share in SHARES:
        kept = max(1, round(share * vocabulary))
        covered = unseen[order[:kept]].sum() / max(1, unseen.sum())
        table.add_row(str(kept), f"{share:.1%}", f"{covered:.1%}")
    console.print(table)
