"""A plan with everything that it names loaded, and the order in which its documents are decoded."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.base.folder import Folder, member
from specbench.engine.clock import Stopwatch
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Sampling
from specbench.measure.spent import Spent
from specbench.plan import Plan
from specbench.results import documents, records
from specbench.results.documents import Document
from specbench.tasks.harness import Request, Tasks

if TYPE_CHECKING:
    from specbench.servers.client import Client
    from specbench.tasks.prompts import PromptFile

Documents: TypeAlias = "Tasks | PromptFile"  # without scores
TURNS = 8  # a chunk has so many documents for each row of a batch


@dataclass(frozen=True)
class Work:
    """A plan with everything that it names loaded. Documents are counted over all repeats: document `index` is one."""

    plan: Plan
    pair: Pair
    tasks: Documents
    requests: list[Request]
    prompts: list[list[int]]  # token ids, as long as `requests`; of later turns, with empty answers
    shared: dict[str, int]  # by task: how many tokens of a prompt are cached before it is timed; of turns, in sum
    stopwatch: Stopwatch
    methods: dict[str, Method]
    sampling: Sampling
    span: range  # the documents to decode: all, or those of a shard
    clients: "dict[str, Client]" = field(default_factory=dict)  # of servers, by name
    turns: list[int] = field(default_factory=list)  # of trajectories: the same for each prompt, from the turn before
    spent: Spent = field(default_factory=Spent)  # where the time goes

    def cached(self, place: int) -> int:
        """How many tokens of the prompt at a place are cached before it is timed."""
        return self.turns[place] if self.turns else self.shared[self.requests[place].task]

    @property
    def whole(self) -> range:
        """All documents of the plan, whichever of them are to be decoded here."""
        return range(self.plan.repeats * len(self.requests))

    def begins_task(self, index: int) -> bool:
        """True if a document is the first of its task in a repeat. What methods learn lasts until then."""
        place = index % len(self.requests)
        return place == 0 or self.requests[place].task != self.requests[place - 1].task

    def timed_alone(self, index: int) -> bool:
        """True if a document of a run in batches is one of those that are decoded, and timed, one by one."""
        place = index % len(self.requests)
        first = next(i for i, request in enumerate(self.requests) if request.task == self.requests[place].task)
        return place - first < self.plan.time_documents

    def keep_prompts(self, folder: Path) -> None:
        """Write into the run folder what the texts are about, if the plan says so and it is not there yet."""
        if self.plan.keep_prompts:
            about = (Document(r.task, r.doc_id, r.prompt, *self.tasks.about(r)) for r in self.requests)
            with Folder.at(folder) as place:
                documents.keep(place, about)


@dataclass(frozen=True)
class Progress:
    """The state of a run after a document, or after one of its texts where texts are decoded in batches."""

    done: int
    total: int
    request: Request
    rounds: list[dict[str, Any]]  # that were added, as recorded
    left: float | None = None  # seconds, as far as they can be foreseen


def chunks(work: Work) -> Iterator[range]:
    """All documents, by index, in the parts that are decoded one after another; a shard has whole ones.

    A chunk is one document that is decoded alone, or as many as TURNS for each row of a batch, or for each request that
    a server has at a time; all of one task. Where requests come at times of their own, it is all documents of a task.
    Servers are asked whole conversations, each counted as a document.
    """
    together = max(work.plan.batch, work.plan.concurrency)
    size, start, last = work.whole.stop if work.plan.rate else TURNS * together, 0, work.whole.stop
    many = 0  # documents from `start` to `end`, conversations counted once
    for end in range(1, last + 1):
        turns = bool(work.plan.servers)
        many += not (turns and work.requests[(end - 1) % len(work.requests)].turn)
        if turns and work.requests[end % len(work.requests)].turn:
            continue  # the next document goes on with a conversation
        alone = (together == 1 and not work.plan.rate) or work.timed_alone(start)
        if end == last or alone or many == size or work.begins_task(end):
            yield range(start, end)
            start, many = end, 0


def shuffled(work: Work, repeat: int, request: Request) -> list[str]:
    """The methods in the order in which they decode a document."""
    names = [spec.name for spec in work.plan.methods]
    random.Random(f"{work.plan.seed}/{repeat}/{request.task}/{request.doc_id}").shuffle(names)
    return names


def score(folder: Path, tasks: Documents) -> None:
    """Score the stored texts by lm-eval, and write `scores.parquet`."""
    columns = ["repeat", "task", "doc_id", "method", "warmup", "finish", "text"]
    samples = records.read_rows(folder, "samples", columns).to_pandas()
    decoded = samples[~samples.warmup & (samples.finish != "error")]
    rows = []
    for (repeat, method), group in decoded.groupby(["repeat", "method"], sort=False):
        keys = zip(group.task, group.doc_id, strict=True)
        scores = tasks.score(dict(zip(keys, group.text, strict=True)))
        rows += [{"repeat": repeat, "method": method, **vars(row)} for row in scores]
    records.write_table(member(folder, "scores.parquet"), rows, records.SCORES)
