"""Whether the caches of a batch fit into the memory."""

from specbench.config import UserError
from specbench.engine.clock import free_memory
from specbench.engine.models import cost
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.slots import FIRST_ROOM, FIRST_ROWS


def cache_bytes(pair: Pair, rows: int, longest: int) -> int:
    """The bytes of keys and values of all models with so many sequences, of up to `longest` tokens each.

    A cache grows by doubling, in both directions. Models of unknown form count as nothing.
    """
    cells = grown(FIRST_ROWS, rows) * grown(FIRST_ROOM, longest)
    return cells * sum(int(cost.facts(model).get("kv_bytes_per_token", 0)) for model in pair.models.values())


def grown(first: int, needed: int) -> int:
    while first < needed:
        first *= 2
    return first


def check_room(pair: Pair, methods: int, rows: int, longest: int) -> None:
    """Raise UserError if batches of so many rows, of each method one, would not fit into the free memory."""
    needed, free = methods * cache_bytes(pair, rows, longest), free_memory(pair.device)
    if needed <= free:
        return
    fitting = rows
    while fitting > 1 and methods * cache_bytes(pair, fitting, longest) > free:
        fitting //= 2
    raise UserError(
        f"{rows} texts together, of up to {longest} tokens, need about {needed / 1e9:.1f} GB for the caches of "
        f"{methods} methods, and {free / 1e9:.1f} GB are free on {pair.device}; take {fitting} texts, shorter answers "
        "(--max-new-tokens) or fewer methods"
    )
