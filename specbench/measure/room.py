"""Whether the caches of batches fit into the memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.clock import free_memory
from specbench.engine.models import cost
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.slots import FIRST_ROOM, FIRST_ROWS
from specbench.engine.runtimes.static import STATIC
from specbench.engine.types import Method


class Demand(NamedTuple):
    """What a method needs to decode a text: the sequences of each model, and tokens after the text's."""

    sequences: Mapping[PreTrainedModel, int]
    reach: int
    static: bool = False  # caches of half precision may be kept in float32, as `static` does on some CPUs


def demand(pair: Pair, make: Callable[[Pair], Method]) -> Demand:
    """What the method that `make` builds from a pair needs."""
    runtime = Batched(pair.runtime.name)
    method = make(replace(pair, runtime=runtime))
    return Demand(runtime.sequences(), method.reach, pair.runtime is STATIC)


def cache_bytes(needed: Demand, rows: int, longest: int) -> int:
    """The bytes of keys and values of a method's models with so many texts, of up to `longest` tokens each.

    A cache grows by doubling, in both directions. Models of unknown form count as nothing.
    """
    room = grown(FIRST_ROOM, longest + needed.reach)
    return room * sum(
        grown(FIRST_ROWS, rows * count)
        * int(cost.facts(model).get("kv_bytes_per_token", 0))
        * (STATIC.bytes_each(model) // model.dtype.itemsize if needed.static else 1)
        for model, count in needed.sequences.items()
    )


def grown(first: int, needed: int) -> int:
    while first < needed:
        first *= 2
    return first


def check_room(pair: Pair, needed: Mapping[str, Demand], rows: int, longest: int) -> None:
    """Raise UserError if batches of so many rows, of each method one, would not fit into the free memory."""

    def total(rows: int) -> int:
        return sum(cache_bytes(demand, rows, longest) for demand in needed.values())

    free = free_memory(pair.device)
    if total(rows) <= free:
        return
    fitting = rows
    while fitting > 1 and total(fitting) > free:
        fitting //= 2
    raise UserError(
        f"{rows} texts together, of up to {longest} tokens, need about {total(rows) / 1e9:.1f} GB for the caches of "
        f"{len(needed)} methods, and {free / 1e9:.1f} GB are free on {pair.device}; take {fitting} texts, shorter "
        "answers (--max-new-tokens) or fewer methods"
    )
