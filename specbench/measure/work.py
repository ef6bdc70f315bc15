"""A plan with everything that it names loaded, and the order in which its documents are decoded."""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from specbench.base.console import duration, say
from specbench.base.folder import Folder, member
from specbench.engine.clock import Stopwatch, now
from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.models.pair import Pair
from specbench.engine.types import Method, Sampling
from specbench.plan import Plan
from specbench.results import documents, records
from specbench.results.aside import SECONDS, read_seconds
from specbench.results.documents import DocumentRow
from specbench.tasks.harness import Request, Tasks

if TYPE_CHECKING:
    from specbench.servers.client import Client
    from specbench.tasks.prompts import PromptFile

Documents: TypeAlias = "Tasks | PromptFile"  # without scores
SOON = 10.0  # seconds; a run that ends sooner is not announced
TURNS = 8  # a chunk has so many documents for each row of a batch


class Spent(dict[str, float]):
    """Seconds by what they were spent on."""

    def add(self, what: str, seconds: float) -> None:
        self[what] = self.get(what, 0.0) + seconds

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Count the seconds of the block, also if it fails."""
        began = now()
        try:
            yield
        finally:
            self.add(what, now() - began)

    def add_texts(self, rows: Iterable[tuple[dict[str, Any], Any]], seconds: float) -> None:
        """Count the seconds in which texts were decoded; their samples tell how many of them were prefill."""
        prefill = sum(sample.get("prefill_seconds") or 0.0 for sample, _ in rows)
        self.add("prefill", prefill)
        self.add("decoding", seconds - prefill)


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

    @property
    def compared(self) -> bool:
        """True if the texts of some methods must be one another's."""
        return self.sampling.greedy and sum(method.lossless for method in self.methods.values()) > 1

    def watched(self, folder: Path) -> AbstractContextManager[None]:
        """Look at the GPUs within the block, and note in `folder` what they did; nothing on a CPU."""
        if self.pair.device.type != "cuda":
            return nullcontext()
        from specbench.measure.gpus import recorded

        return recorded(folder, self.plan.device)

    def keep_prompts(self, folder: Path) -> None:
        """Write into the run folder what the texts are about, if the plan says so and it is not there yet."""
        if self.plan.keep_prompts:
            about = (DocumentRow(r.task, r.doc_id, r.prompt, *self.tasks.about(r)) for r in self.requests)
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


class Forecast:
    """What is left of a run's documents, in seconds of decoding.

    A document is foreseen to cost its prompt and its longest answer, at the pace of each method's warm-up. Documents
    that are done say by how much that was too much or too little, and the rest is corrected by it.
    """

    def __init__(self, work: Work, first: int) -> None:
        self._work, self._first = work, first
        self._began: float | None = None
        self._costs: list[float] = []  # foreseen seconds of all documents from `first` on

    def begin(self, samples: Iterable[dict[str, Any]]) -> None:
        """Foresee the run from the samples of its first warm-up, and say how long it will take, at most."""
        if self._began is not None:
            return
        paces: dict[str, list[tuple[float, float]]] = {}
        cached = self._work.cached(self._first % len(self._work.requests))
        for sample in samples:
            if (sample.get("prefill_seconds") or 0.0) > 0 and len(sample.get("tokens") or []) > 1:
                read = max(1, sample["prompt_tokens"] - cached)
                pace = sample["prefill_seconds"] / read, sample["decode_seconds"] / (len(sample["tokens"]) - 1)
                paces.setdefault(sample["method"], []).append(pace)
        self._began = now()
        if not paces:
            return
        reading = sum(fmean(read for read, _ in pace) for pace in paces.values())
        writing = sum(fmean(write for _, write in pace) for pace in paces.values())
        work = self._work
        for index in range(self._first, work.span.stop):
            place = index % len(work.requests)
            request, prompt = work.requests[place], work.prompts[place]
            read = len(prompt) - work.cached(place)
            self._costs.append(read * reading + request.max_new_tokens * writing)
        if (whole := sum(self._costs)) > SOON:
            documents, methods = len(self._costs), len(paces)
            say(
                f"at most about {duration(whole)} for {documents} document{'s' * (documents > 1)} by {methods} "
                f"method{'s' * (methods > 1)}, as the warm-up went; less where texts end before their limit",
                "dim",
            )

    def left(self, done: float) -> float | None:
        """Seconds that are left after the documents before index `done`, which may be a part; None if not foreseen."""
        if self._began is None or not self._costs or done <= self._first:
            return None
        whole, part = divmod(done - self._first, 1)
        foreseen = sum(self._costs[: int(whole)]) + (part * self._costs[int(whole)] if part else 0.0)
        return (now() - self._began) / foreseen * (sum(self._costs) - foreseen)


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


def setup_seconds(pair: Pair) -> dict[str, float]:
    """Seconds spent so far on exports, compilations, captures, what methods do besides, and shared prefixes.

    And what rollbacks of models with a state cost, within decoding.
    """
    seconds = {**pair.runtime.seconds, **pair.seconds, "prefix": pair.prefixes.seconds}
    if not (stateful := [model for model in pair.models.values() if has_more_than_keys(model)]):
        return seconds
    from specbench.engine.runtimes.states import counted

    return seconds | counted(stateful)


def since(pair: Pair, before: Mapping[str, float]) -> dict[str, float]:
    """The seconds of `setup_seconds` that were spent after `before`."""
    return {what: seconds - before.get(what, 0.0) for what, seconds in setup_seconds(pair).items()}


def add_seconds(folder: Path, seconds: Mapping[str, float]) -> None:
    """Add seconds to those that earlier calls of the run wrote."""
    path = member(folder, SECONDS)
    earlier = read_seconds(path)
    path.folder.write_json(SECONDS, earlier | {what: earlier.get(what, 0.0) + more for what, more in seconds.items()})


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
