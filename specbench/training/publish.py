"""What all trainers share: the folder of what they collect, the source of a head, and publishing it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from specbench.base.console import progress, say
from specbench.engine.models.heads import Reads, write_head
from specbench.engine.models.pair import Pair
from specbench.training.collected import Collected, shared
from specbench.training.documents import Document
from specbench.training.train import Job, checkpoint_of


@contextmanager
def collecting(folder: Path, label: str, total: int, data: str) -> Iterator[Callable[[int], None]]:
    """The progress of collecting `data` (in words) in `folder`; says so if it goes on from an earlier call.

    Raises Collected in the end if this is a worker, which makes a share of the data.
    """
    if folder.exists():
        say(f"continuing with {data} in {folder}")
    with progress(label, total) as advance:
        yield advance
    if shared():
        raise Collected


def source(job: Job, documents: Sequence[Document]) -> dict[str, Any]:
    """Which documents a head has learned from, as its file says it."""
    tasks = list(dict.fromkeys(document.task for document in documents))
    return {"suite": job.plan.suite, "tasks": tasks, "documents": len(documents)}


def held_out_prompts(draft: Path) -> Path:
    """The file of prompts of the documents that a draft has not learned from."""
    return draft.with_name(f"{draft.name}.held-out.jsonl")


def publish(
    head: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    pair: Pair,
    trained: Mapping[str, Any],
    reads: Reads = "target",
) -> None:
    """Write a trained head and delete the checkpoint of its training. Arguments as in `write_head`."""
    write_head(head, kind, tensors, pair, trained, reads)
    checkpoint_of(head).unlink(missing_ok=True)


def flush_right(*columns: str) -> Table:
    """An empty table without lines, its columns flush right."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right")
    return table


def announce(head: Path, data: str, command: str) -> None:
    """Print where a head and its data are, and the command that goes on from there."""
    say(f"{head}; {data}")
    say(f"next: {command}")
