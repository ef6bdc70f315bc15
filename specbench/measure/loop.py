"""The main loop: documents × methods × repeats become records.

Every document is decoded by every method before the next one begins, in an order that is drawn anew each time: a
machine that slows down favours no method. A document's records are on disk before the next begins. Scoring comes last
and needs no model.
"""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench.base.console import warn
from specbench.base.folder import member
from specbench.engine.generate import worth
from specbench.engine.models.pair import Pair
from specbench.engine.types import Foresighted, Method
from specbench.measure.conversations import Conversations, Prompts
from specbench.measure.divergence import mark_divergence
from specbench.measure.prepare import (
    Documents,
    Work,
    add_setup_seconds,
    decode_beginning,
    prepare,
    setup_seconds,
    suppress_failures,
)
from specbench.measure.sample import Decoder, Rows, ending_of
from specbench.plan import Plan
from specbench.results import records
from specbench.results.lock import claimed
from specbench.results.recorder import Recorder
from specbench.tasks.harness import Request, scorer


@dataclass(frozen=True)
class Progress:
    """The state of a run after a document."""

    done: int
    total: int
    request: Request
    rounds: list[dict[str, Any]]  # of this document, as recorded


def execute(
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], bool],
    pair: Pair | None = None,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Carry out a plan in `folder`, from the document at which an earlier call stopped.

    Args:
        report: called after every document; False stops the run.
        pair: the plan's models, if they are loaded already.
        started: called before the first document.

    Returns:
        True if all documents are done; the folder then holds samples, rounds and scores.

    Raises:
        UserError: the plan cannot be carried out, or another process writes this folder.
    """
    before = setup_seconds(pair) if pair else {}
    with claimed(folder):
        gc.disable()  # what is being loaded stays; searching it for garbage takes longer than loading it
        try:
            work = prepare(plan, folder, pair)
        finally:
            gc.enable()
        recorder = Recorder(folder, warn, work.begins_task)
        work.keep_prompts(folder)
        if not recorder.merged and recorder.done() < work.total:
            started()
            try:
                if not decode_all(work, recorder, report):
                    return False
            finally:
                add_setup_seconds(folder, work.pair, before)
        recorder.finish()
        score(folder, work.tasks)
    return True


def decode_all(work: Work, recorder: Recorder, report: Callable[[Progress], bool]) -> bool:
    """Decode all documents that are not recorded yet; False if `report` stopped it before the last."""
    decoder = Decoder(work.pair, work.stopwatch, work.sampling, work.plan.seed)
    conversations = Conversations(work)
    gc.collect()
    gc.freeze()
    first = recorder.done()
    for index in range(first, work.total):
        repeat, place = divmod(index, len(work.requests))
        request, prompt = work.requests[place], work.prompts[place]
        if index == first:
            conversations.recall(recorder.folder, repeat, request)
        prompts = conversations.prompts(request, prompt)
        rows: list[Rows] = []

        def decode(name: str, repeat: int = repeat, prompts: Prompts = prompts, **more: Any) -> Rows:
            return decoder.decode(name, work.methods[name], repeat, *prompts[name], **more)

        resumed, task_begins = index == first, work.begins_task(index)
        if resumed or task_begins:
            decoder.forgive()
            work.pair.prefixes.begin(prompt[: work.shared[request.task]])
            _tell_worth(work, request, decoder)
        if resumed or place == 0:
            rows += [decode(name, order=0, warmup=True) for name in work.methods]
        elif task_begins:
            _warm_up(work, prompt)
        work.pair.runtime.settle()
        if resumed or task_begins:
            _reset(work, request, decoder, None if task_begins else recorder.states(index - 1))
        _tell_worth(work, request, decoder)  # again: what a warm-up left in it would differ in a resumed run

        for order, name in enumerate(_shuffled(work, repeat, request)):
            rows.append(decode(name, order=order))
        samples = [sample for sample, _ in rows]
        rounds = [row for _, rounds_of_sample in rows for row in rounds_of_sample]
        if work.sampling.greedy:
            ids = {name: own for name, (_, own) in prompts.items()}
            mark_divergence(samples, work.methods, work.plan, work.pair, ids)
        conversations.add(samples)
        states = {name: decoder.attempt(name, method.state) for name, method in work.methods.items()}
        recorder.write(index, samples, rounds, states)

        if not report(Progress(index + 1, work.total, request, rounds)) and index + 1 < work.total:
            return False
    return True


def _warm_up(work: Work, prompt: list[int]) -> None:
    """Let every method read or make what it needs once a task, before anything is timed."""
    for method in work.methods.values():
        with suppress_failures():
            decode_beginning(method, prompt, work.sampling, work.pair)


def _reset(work: Work, request: Request, decoder: Decoder, states: dict[str, Any] | None) -> None:
    """Let every method forget what it learned, then take up `states` (by method), which a resumed task goes on from."""
    for name, method in work.methods.items():
        decoder.attempt(name, partial(method.reset, request.task))
        if states is not None:
            decoder.attempt(name, partial(_restore, method, states, name))


def _restore(method: Method, states: dict[str, Any], name: str) -> None:
    method.restore(states[name])


def _shuffled(work: Work, repeat: int, request: Request) -> list[str]:
    """The methods in the order in which they decode a document."""
    names = list(work.methods)
    random.Random(f"{work.plan.seed}/{repeat}/{request.task}/{request.doc_id}").shuffle(names)
    return names


def _tell_worth(work: Work, request: Request, decoder: Decoder) -> None:
    """Tell the methods that may know it (oracles) what an answer to the document is worth."""
    metric = work.plan.info(request.task).metric

    def tell(method: Foresighted) -> None:
        score = scorer(work.tasks, request.task, request.doc_id, metric)
        method.set_utility(worth(work.pair.session("target"), partial(ending_of, work.pair, request), score))

    for name, method in work.methods.items():
        if isinstance(method, Foresighted):
            decoder.attempt(name, partial(tell, method))


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
