"""Whether a batch's caches fit into the memory: sizes by hand, and those that are allocated."""

from functools import partial

import pytest
import torch
from builders_engine import build, made
from gates import DEVICE, GREEDY, tiny, with_settings

from specbench.config import UserError
from specbench.engine.clock import BatchStopwatch
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.rows import Batch, Row, Seats
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.measure import room


def bytes_of(model) -> int:
    """2 · layers · key heads · head width · bytes of a number, for a token."""
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * width * model.dtype.itemsize


def test_caches_by_hand(monkeypatch):
    """In slots that grow by doubling, in both directions."""
    pair = made()
    target, draft = map(bytes_of, pair.models.values())
    vanilla = room.demand(pair, partial(build, name="vanilla"))
    sps = room.demand(pair, partial(build, name="sps", gamma=6))
    assert [[*one.sequences.values()] for one in (vanilla, sps)] == [[1], [1, 1]] and sps.reach >= 6 > vanilla.reach
    assert room.cache_bytes(vanilla, 4, 250) == 4 * 256 * target
    assert room.cache_bytes(vanilla, 5, 257) == 8 * 512 * target
    assert room.cache_bytes(vanilla, 1, 9) == 4 * 256 * target
    assert room.cache_bytes(sps, 4, 256 - sps.reach) == 4 * 256 * (target + draft)
    assert room.cache_bytes(sps, 4, 257 - sps.reach) == 4 * 512 * (target + draft)
    both = {"vanilla": vanilla, "sps": sps}
    monkeypatch.setattr(room, "free_memory", lambda device: 16 * 256 * (2 * target + draft))
    room.check_room(pair, both, 16, 200)
    with pytest.raises(UserError, match=r"40 texts together, of up to 200 tokens.*of 2 methods.*take 10 texts"):
        room.check_room(pair, both, 40, 200)


RUNTIMES = {"eager": EAGER, "static": STATIC}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("name", "rows"),
    [("vanilla", 3), ("sps", 5), ("mdsd", 3), ("reflective", 3), ("cos", 2), ("rsd", 9), ("oracle", 3)],
)
def test_what_is_allocated(name, rows, runtime):
    """The longest text of a batch fills its cache up to the last draft; others end sooner."""
    changes = {"reflective": {"prompt": "7 70 17", "prefix_tokens": 4}, "oracle": {"tokens": 40}}
    build_on = partial(with_settings, name, gamma=4, changes=changes.get(name, {}))
    needed = room.demand(tiny("llama", RUNTIMES[runtime]), lambda pair: build_on(models=pair))
    shared = Batched(runtime)
    pair, count = tiny("llama", shared), 40
    prompt = [1 + i % 90 for i in range(256 - needed.reach - count)]
    for longer in (0, 1):  # the caches just fit into their first size, and just do not

        def begin(method, number, longer=longer):
            ending = Ending(Limits(count if number == 0 else 3, frozenset()), lambda ids: "")
            rng = torch.Generator(DEVICE)
            return Row(decode_text(method, [5] * longer + prompt, GREEDY, rng, ending), ending)

        methods = [build_on(models=pair) for _ in range(rows)]
        seats = Seats(Batch(BatchStopwatch(torch.device(DEVICE))), methods)
        assert not any(row.error for row, _, _ in seats.decode(range(rows), begin))
        allocated = sum(part.nbytes for own in shared._rows.values() for part in (*own.slots.keys, *own.slots.values))
        estimated = room.cache_bytes(needed, rows, len(prompt) + longer + count)
        assert allocated <= estimated and (longer or allocated == estimated)
        del methods, seats
