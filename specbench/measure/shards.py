"""How a run is cut into shards, which other processes and machines can decode at the same time.

A shard is a stretch of the run's documents. All methods decode a document in the same shard, in the order that was
drawn for it, so what a shard holds are the very rows of the whole run.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from specbench.config import UserError
from specbench.measure.work import Work, chunks
from specbench.results.shard import Shard, Stretch


@dataclass(frozen=True)
class Cut:
    """The documents of each shard, by index over all repeats, and why they are cut so."""

    shards: list[range]
    places: int  # the stretches that could not be cut further
    why: str
    weights: list[int]  # new tokens of each shard at most


def places(work: Work) -> tuple[list[int], str]:
    """The documents that a shard may begin with, and the reason in words."""
    learning = [name for name, method in work.methods.items() if method.state() is not None]
    if learning:
        why = (
            f"{', '.join(learning)} learn{'s' * (len(learning) == 1)} from text to text: each task of a repeat is whole"
        )
        return [index for index in work.whole if work.begins_task(index)], why
    starts = [chunk.start for chunk in chunks(work) if not work.requests[chunk.start % len(work.requests)].turn]
    if any(request.turn for request in work.requests):
        return starts, "no method learns from text to text: each conversation is whole"
    if len(starts) < len(work.whole):
        return starts, "no method learns from text to text: documents that are decoded together stay so"
    return starts, "no method learns from text to text: between any two documents"


def cut(work: Work, count: int) -> Cut:
    """Cut a run into shards of about as many new tokens each, at most.

    Raises:
        UserError: it cannot be cut into so many.
    """
    starts, why = places(work)
    if count > len(starts):
        raise UserError(
            f"this run can be cut into at most {len(starts)} shards, not {count} ({why}); take fewer, or more --repeats"
        )
    longest = [request.max_new_tokens for request in work.requests] * work.plan.repeats
    before = [0, *accumulate(longest)]  # new tokens of all documents before each
    bounds = [0]
    for number in range(1, count):
        free = starts[number : len(starts) - (count - number) + 1]  # so that each shard has something
        goal = before[-1] * number / count
        bounds.append(min((start for start in free if start > bounds[-1]), key=lambda start: abs(before[start] - goal)))
    shards = [range(*ends) for ends in pairwise([*bounds, work.whole.stop])]
    return Cut(shards, len(starts), why, [before[shard.stop] - before[shard.start] for shard in shards])


def stretch(work: Work, shard: Shard) -> Stretch:
    """The documents of one shard. Raises UserError as `cut`."""
    return Stretch(shard, cut(work, shard.of).shards[shard.number - 1])


def contents(work: Work, documents: range) -> list[tuple[int, str, int, int]]:
    """What is in a stretch: repeat, task, and the first and the last of its documents, by their numbers in the task."""
    parts: list[tuple[int, str, int, int]] = []
    for index in documents:
        repeat, place = divmod(index, len(work.requests))
        request = work.requests[place]
        if parts and parts[-1][:2] == (repeat, request.task):
            parts[-1] = (*parts[-1][:3], request.doc_id)
        else:
            parts.append((repeat, request.task, request.doc_id, request.doc_id))
    return parts
