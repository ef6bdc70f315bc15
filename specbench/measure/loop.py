"""The main loop: documents × methods × repeats become records.

Every document is decoded by every method before the next one begins, in a new random order each time: a machine that
slows down favours no method. Its records are on disk before the next begins. Scoring comes last and needs no model.
"""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.base import environment
from specbench.base.console import warn
from specbench.engine.clock import now
from specbench.engine.models.pair import Pair
from specbench.measure.gate import admit, importing
from specbench.measure.prepare import decode_beginning, prepare, suppress_failures
from specbench.measure.sample import Decoder, Rows, tell_worth, untimed
from specbench.measure.work import Forecast, Progress, Work, add_seconds, chunks, score, setup_seconds, shuffled, since
from specbench.plan import Plan
from specbench.results.aside import TOTAL
from specbench.results.lock import claimed
from specbench.results.recorder import Recorder
from specbench.results.stored import StoredRun
from specbench.tasks.harness import Request

if TYPE_CHECKING:
    from specbench.measure.conversations import Conversations, Prompts
    from specbench.results.shard import Shard


def execute(
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], bool],
    pair: Pair | None = None,
    started: Callable[[], None] = lambda: None,
    shard: "Shard | None" = None,
    worker: int | None = None,
) -> bool:
    """Carry out a plan, or a shard of it, in `folder`, from the document at which an earlier call stopped.

    Args:
        report: called after every document; False stops the run.
        pair: the plan's models, if they are loaded already.
        started: called before the first document.
        shard: which part of the plan a new folder gets; None for all of it, and for a folder that has begun.
        worker: the number of this worker in a pool; None if there is none.

    Returns:
        True if all documents are done; the folder then holds samples, rounds and scores. A shard is not scored.

    Raises:
        UserError: the plan cannot be carried out, or another process writes this folder.
    """
    admitted, before, began = admit(plan), setup_seconds(pair) if pair else {}, now()
    with claimed(folder):
        with importing():  # what is loaded stays, too
            work = prepare(admitted, folder, pair, shard)
        work.spent.add("loading", now() - began)
        part = StoredRun(folder).shard
        origin = environment.origin(work.pair.device) | {"worker": worker or (part.shard.number if part else 0)}
        recorder = Recorder(folder, warn, work.begins_task, work.span.start, origin)
        work.keep_prompts(folder)
        if recorder.merged and work.clients:
            from specbench.measure.again import ask_again

            if not ask_again(work, recorder, report, started):
                return False
        if not recorder.merged and recorder.done() < work.span.stop:
            started()
            try:
                with work.watched(folder):
                    if not decode_all(work, recorder, report):
                        return False
            finally:
                gc.unfreeze()
                add_seconds(folder, since(work.pair, before) | work.spent | {TOTAL: now() - began})
                work.spent.clear()
                began = now()
        recorder.finish()
        if part is None:
            with work.spent.on("scoring"):
                score(folder, work.tasks)
        add_seconds(folder, work.spent | {TOTAL: now() - began})
    return True


def decode_all(work: Work, recorder: Recorder, report: Callable[[Progress], bool]) -> bool:
    """Decode all documents that are not recorded yet; False if `report` stopped it before the last."""
    first, last = recorder.done(), work.span.stop
    forecast = Forecast(work, first)
    single = OneByOne(work, recorder, forecast)
    batches = None
    if work.plan.batch > 1 or work.clients:
        from specbench.measure.batches import Batches

        batches = Batches(work, recorder, forecast)
    gc.collect()
    gc.freeze()
    for chunk in chunks(work):
        if chunk.stop <= first or chunk.start >= last:
            continue
        request = work.requests[chunk.start % len(work.requests)]
        if batches and not work.timed_alone(chunk.start):
            known = single.states if chunk.start > first else None
            if not batches.decode(chunk, known, report):
                return False
            rounds: list[dict[str, Any]] = []  # reported already
        else:
            rounds = single.decode(chunk.start)
        done = chunk.stop - work.span.start
        if not report(Progress(done, len(work.span), request, rounds, forecast.left(chunk.stop))) and chunk.stop < last:
            return False
    return True


class OneByOne:
    """Decodes documents one after another, each by every method, and records them."""

    def __init__(self, work: Work, recorder: Recorder, forecast: Forecast) -> None:
        self.work, self.recorder, self.forecast = work, recorder, forecast
        self.first = recorder.done()  # where a run that was stopped goes on
        self.decoder = Decoder(work.pair, work.stopwatch, work.sampling, work.plan.seed)
        self.conversations: Conversations | None = None  # no document is a later turn
        if any(request.turn for request in work.requests):
            from specbench.measure import conversations

            self.conversations = conversations.Conversations(work)
        self.states: dict[str, Any] | None = None  # what each method had learned by the end of the last document

    def decode(self, index: int) -> list[dict[str, Any]]:
        """Decode the next document; returns its rounds as recorded."""
        work, decoder = self.work, self.decoder
        repeat, place = divmod(index, len(work.requests))
        request, prompt = work.requests[place], work.prompts[place]
        first_here, task_begins = index == self.first, work.begins_task(index)
        fresh = task_begins or index == work.span.start  # a shard begins within a task only if no method learns
        prompts: Prompts = dict.fromkeys(work.methods, (request, prompt))
        if self.conversations:
            if first_here:
                self.conversations.recall(self.recorder.folder, repeat, request)
            prompts = self.conversations.prompts(request, prompt)
        rows: list[Rows] = []

        def decode(name: str, **more: Any) -> Rows:
            return decoder.decode(name, work.methods[name], repeat, *prompts[name], **more)

        if first_here or task_begins or work.turns:
            work.pair.prefixes.begin(prompt[: work.cached(place)])
        if first_here or task_begins:
            decoder.forgive()
            tell_worth(work, request, decoder, work.methods)
        if place == 0:  # a warm-up, too, begins with nothing that another repeat has taught
            _reset(work, request, decoder, None)
        with work.spent.on("warm-up"):
            if first_here or place == 0:
                rows += [decode(name, order=0, warmup=True) for name in work.methods]
            elif task_begins or work.turns:
                _warm_up(work, prompt if task_begins else prompt[: work.cached(place) + 1])
        self.forecast.begin(sample for sample, _ in rows)
        work.pair.runtime.settle()
        if first_here or task_begins or work.turns:
            _reset(work, request, decoder, None if fresh else self.states or self.recorder.states(index - 1))
        tell_worth(work, request, decoder, work.methods)  # again: a warm-up left something in it

        began = now()
        decoded = [decode(name, order=order) for order, name in enumerate(shuffled(work, repeat, request))]
        work.spent.add_texts(decoded, now() - began)
        rows = list(map(untimed, rows + decoded)) if work.plan.untimed else rows + decoded
        samples = [sample for sample, _ in rows]
        rounds = [row for _, rounds_of_sample in rows for row in rounds_of_sample]
        if work.compared:
            from specbench.measure.divergence import mark_divergence

            ids = {name: own for name, (_, own) in prompts.items()}
            mark_divergence(samples, work.methods, work.plan, work.pair, ids)
        if self.conversations:
            self.conversations.add(samples)
        self.states = {name: decoder.attempt(name, method.state) for name, method in work.methods.items()}
        self.recorder.write(index, samples, rounds, self.states)
        return rounds


def _warm_up(work: Work, prompt: list[int]) -> None:
    """Let every method read or make what it needs once a task, or turn, before anything is timed."""
    for method in work.methods.values():
        with suppress_failures():
            decode_beginning(method, prompt, work.sampling, work.pair)


def _reset(work: Work, request: Request, decoder: Decoder, states: dict[str, Any] | None) -> None:
    """Let every method forget what it learned, then take up `states` (by method), which a resumed task goes on from."""
    for name, method in work.methods.items():
        decoder.attempt(name, partial(method.reset, request.task))
        if states is not None:
            decoder.restore(name, method, states)
