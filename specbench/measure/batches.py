"""Documents decoded in batches, sooner than one by one: the same texts, rounds and counts, if methods learn nothing.

Documents are taken in chunks of one task. Each method decodes the whole chunk, a text joining as soon as another has
ended; then the chunk's documents are recorded in their order. All seconds are shares of the batch's: those of a forward
are shared equally by the texts that it was for, so that sums over texts are the time that the batch took.

What methods learn from text to text is added up in the order of the documents: a text begins with what all texts before
the first unfinished one have taught. This depends on nothing but rounds, so a repeated run learns the same. It is less
than what all texts before have taught, which a text knows that is decoded alone: such a method may say other things.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from specbench.config import MethodSpec
from specbench.engine.clock import BatchStopwatch, RowStopwatch, now, peak_memory
from specbench.engine.generate import decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.rows import Batch, Row, Seats, failing
from specbench.engine.runtimes.batched import Batched
from specbench.engine.types import Additive, Method, NotFinite
from specbench.measure.conversations import Conversations
from specbench.measure.divergence import mark_divergence
from specbench.measure.manifest import digest
from specbench.measure.prepare import build, decode_beginning, suppress_failures, why_alone
from specbench.measure.sample import (
    Decoder,
    Rows,
    beginning,
    ending_of,
    outcome,
    round_rows,
    tell_worth,
    traceback_text,
    untimed,
)
from specbench.measure.served import ServerRows
from specbench.measure.work import Forecast, Progress, Work, shuffled
from specbench.results.recorder import Recorder

BEGINNING, WARM_ROWS = 4, 2  # tokens and texts that a batch decodes before anything is timed: some rounds are enough


class Batches:
    """Decodes chunks of documents, each by every method in batches, and records them.

    The states that are stored with a document are those with which a run that goes on after it begins its chunk: at the
    end of a chunk what was learned, within it what was known at its beginning.
    """

    def __init__(self, work: Work, recorder: Recorder, forecast: Forecast) -> None:
        self.work, self.recorder, self.forecast = work, recorder, forecast
        self.first = recorder.done()
        self.conversations = Conversations(work)
        self.crews: dict[str, MethodRows | Single | ServerRows] = {
            spec.name: ServerRows(work, work.clients[spec.name], self.conversations)
            if spec.name in work.clients
            else Single(work, spec.name, self.conversations)
            if work.plan.batch == 1 or why_alone(spec.name, work.methods[spec.name])
            else MethodRows(work, spec)
            for spec in work.plan.methods
        }
        self.begun: tuple[int, str] | None = None  # the repeat and task that methods have begun

    def decode(self, chunk: range, known: dict[str, Any] | None, report: Callable[[Progress], bool]) -> bool:
        """Decode and record a chunk; if `report` stops it before its last text, it is lost, and this is False.

        `known`: what each method has learned from documents of the task that were decoded alone, if any were.
        """
        work, crews = self.work, self.crews
        repeat, place = divmod(chunk.start, len(work.requests))
        request = work.requests[place]
        if self.begun != (repeat, request.task) or chunk.start <= self.first:
            self.begun = repeat, request.task
            if not work.begins_task(chunk.start) and self.first > work.span.start:
                known = known or self.recorder.states(self.first - 1)
            self._begin(place, len(chunk), known)
        self.conversations.forget()
        if chunk.start < self.first:  # a part of it is on record
            self.conversations.recall(self.recorder.folder, repeat, work.requests[self.first % len(work.requests)])
        before = {name: crew.state for name, crew in crews.items()}
        rows: dict[tuple[int, str], Rows] = {}

        def goes_on(decoded: Rows) -> bool:
            done = min(chunk.start + len(rows) // len(crews), chunk.stop - 1)
            left = self.forecast.left(chunk.start + len(rows) / len(crews))
            return report(Progress(done - work.span.start, len(work.span), request, decoded[1], left))

        began = now()
        for order, name in enumerate(shuffled(work, repeat, request)):
            for index, decoded in crews[name].decode(chunk, repeat, order):
                rows[index, name] = decoded
                if not goes_on(decoded) and len(rows) < len(chunk) * len(crews):
                    return False
        work.spent.add_texts(rows.values(), now() - began)
        after = {name: crew.state for name, crew in crews.items()}
        for index in range(max(self.first, chunk.start), chunk.stop):
            self._write(index, [rows[index, name] for name in crews], after if index == chunk.stop - 1 else before)
        return True

    def _begin(self, place: int, count: int, known: dict[str, Any] | None) -> None:
        """Start on a task, with the document at `place`, or go on with it."""
        work, task = self.work, self.work.requests[place].task
        work.pair.prefixes.begin(work.prompts[place][: work.cached(place)])
        with work.spent.on("warm-up"):
            warm: list[Rows] = []
            for name, crew in self.crews.items():
                crew.begin(task, known and known[name])
                warm += crew.warm_up(range(place, place + count))
        self.forecast.begin(sample for sample, _ in warm)

    def _write(self, index: int, rows: list[Rows], states: dict[str, Any]) -> None:
        work = self.work
        rows = sorted(rows, key=lambda row: row[0]["order"])
        rows = list(map(untimed, rows)) if work.plan.untimed else rows
        samples = [sample for sample, _ in rows]
        if work.sampling.greedy:
            place = index % len(work.requests)
            asked = work.requests[place], work.prompts[place]
            work.pair.constrain(asked[0].constraint)
            ids = {name: self.conversations.prompt(name, *asked)[1] for name in work.methods}
            own = [sample for sample in samples if sample["method"] in work.methods]
            mark_divergence(own, work.methods, work.plan, work.pair, ids)
        self.recorder.write(index, samples, [row for _, rounds in rows for row in rounds], states)


class Single:
    """A method whose texts cannot be decoded at the same time; as `MethodRows`, but one after another."""

    def __init__(self, work: Work, name: str, conversations: Conversations) -> None:
        self.work, self.name, self.method = work, name, work.methods[name]
        self.conversations = conversations
        self.decoder = Decoder(work.pair, work.stopwatch, work.sampling, work.plan.seed)

    @property
    def state(self) -> Any:
        return self.decoder.attempt(self.name, self.method.state)

    def begin(self, task: str, state: Any) -> None:
        self.decoder.forgive()
        self.decoder.attempt(self.name, partial(self.method.reset, task))
        if state is not None:
            self.decoder.attempt(self.name, partial(self.method.restore, state))

    def warm_up(self, places: range) -> list[Rows]:
        """Decode the beginning of the first document; in batches it was, when the first documents were timed."""
        if self.work.plan.batch == 1:
            state = self.state
            with suppress_failures():
                decode_beginning(self.method, self.work.prompts[places.start], self.work.sampling, self.work.pair)
            self.begin(self.work.requests[places.start].task, state)
        return []

    def decode(self, chunk: range, repeat: int, order: int) -> Iterator[tuple[int, Rows]]:
        for index in chunk:
            place = index % len(self.work.requests)
            asked = self.work.requests[place], self.work.prompts[place]
            request, prompt = self.conversations.prompt(self.name, *asked)
            tell_worth(self.work, request, self.decoder, [self.name])
            rows = self.decoder.decode(self.name, self.method, repeat, request, prompt, order)
            self.conversations.add([rows[0]])
            yield index, rows


@dataclass
class SingleText:
    """A method object that decodes one text at a time, with the watch of its forwards."""

    method: Method
    watch: RowStopwatch
    pair: Pair  # with the constraint of its text
    began: dict[str, Any] = field(default_factory=dict)  # the columns of the text's sample so far
    state: Any = None  # what was known when the text began


class FailedBetween(Exception):
    """A method failed between texts; the message is the traceback."""


class MethodRows:
    """One method, as many times as the batch has rows; and what it has learned.

    If the method raises between texts, those that begin afterwards fail until the next task, as in `Decoder`.
    """

    def __init__(self, work: Work, spec: MethodSpec) -> None:
        self.work, self.name = work, spec.name
        pair = replace(work.pair, runtime=Batched(work.pair.runtime.name))
        pairs = [pair.alone() for _ in range(work.plan.batch)]
        self.members = [SingleText(build(spec, each, watch := RowStopwatch()), watch, each) for each in pairs]
        self.stopwatch = BatchStopwatch(work.pair.device)
        self.decoder = Decoder(work.pair, work.stopwatch, work.sampling, work.plan.seed)
        self.state: Any = None

    def begin(self, task: str, state: Any) -> None:
        """Forget what was learned from another task, then take up `state`, if a run goes on from there."""
        self.decoder.forgive()
        for member in self.members:
            self._attempt(partial(member.method.reset, task))
            if state is not None:
                self._attempt(partial(member.method.restore, state))
        self.state = self._attempt(self.members[0].method.state)

    def _attempt(self, step: Callable[[], Any]) -> Any:
        """What a step between texts returns; None if it fails: then nothing is learned any more."""
        result = self.decoder.attempt(self.name, step)
        if self.decoder.failure(self.name):
            self.state = None
        return result

    def warm_up(self, places: range) -> list[Rows]:
        """The records of the first rounds of a batch; what is made once is then made, before anything is timed."""
        seats: Seats[SingleText, int] = Seats(Batch(self.stopwatch), self.members)
        begun = partial(self._begun, repeat=0, order=0, length=BEGINNING)
        warm = [self._records(member, row) for row, member, _ in seats.decode(places[:WARM_ROWS], begun)]
        for member in self.members if self.state is not None else ():
            self._attempt(partial(member.method.restore, self.state))
        return warm

    def decode(self, chunk: range, repeat: int, order: int) -> Iterator[tuple[int, Rows]]:
        """The index and the records of each of a chunk's documents, as soon as its text has ended."""
        seats: Seats[SingleText, int] = Seats(Batch(self.stopwatch, apart=not self.work.plan.untimed), self.members)
        decoded: set[int] = set()
        ended: dict[int, tuple[Any, Any]] = {}  # the states before and after texts that were decoded out of turn
        next_to_learn = chunk.start
        for row, member, index in seats.decode(chunk, partial(self._begun, repeat=repeat, order=order)):
            decoded.add(index)
            if self.state is not None and not row.error:
                ended[index] = member.state, self._attempt(member.method.state)
            while next_to_learn in decoded:
                if next_to_learn in ended and self.state is not None:
                    self.state = self._attempt(partial(self._added, *ended.pop(next_to_learn)))
                next_to_learn += 1
            yield index, self._records(member, row)

    def _added(self, before: Any, after: Any) -> Any:
        learner = self.members[0].method
        assert isinstance(learner, Additive)
        return learner.added(self.state, before, after)

    def _begun(self, member: SingleText, index: int, repeat: int, order: int, length: int | None = None) -> Row:
        """The row of a document that a member begins, or of its first `length` tokens."""
        work, place = self.work, index % len(self.work.requests)
        request, prompt = work.requests[place], work.prompts[place]
        if self.state is not None:
            self._attempt(partial(member.method.restore, self.state))
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id, "method": self.name, "warmup": False}
        member.state = self.state
        member.began = beginning(key, work.plan.seed, order, request, prompt) | {"state_hash": digest(self.state)}
        ending = ending_of(work.pair, request, length)
        member.pair.constrain(request.constraint)
        if failure := self.decoder.failure(self.name):
            return Row(failing(FailedBetween(failure)), ending, member.watch)
        rng = torch.Generator(work.pair.device).manual_seed(member.began["seed"])
        return Row(decode_text(member.method, prompt, work.sampling, rng, ending), ending, member.watch)

    def _records(self, member: SingleText, row: Row) -> Rows:
        """The sample row and the round rows of a text that has ended."""
        sample = member.began
        if isinstance(row.error, FailedBetween):
            return sample | {"finish": "error", "error": str(row.error)}, []
        if row.error:
            why = traceback_text(row.error, member.watch.highest.not_finite())
            return sample | {"finish": "error", "error": why}, []
        self.stopwatch.read()
        try:
            laps = member.watch.laps()
        except NotFinite as error:
            return sample | {"finish": "error", "error": traceback_text(error)}, []
        key = {name: sample[name] for name in ("repeat", "task", "doc_id", "method", "warmup")}
        sample = sample | outcome(row.ending, laps) | {"peak_memory": peak_memory(self.work.pair.device)}
        rounds = round_rows(key, row.finished, laps, self.work.pair.extra_members)
        if self.work.plan.time_documents:  # other documents have the times
            sample |= {"batch_seconds": sample["decode_seconds"], "prefill_seconds": None, "decode_seconds": None}
            rounds = [{name: value for name, value in row.items() if not name.endswith("seconds")} for row in rounds]
        return sample, rounds
