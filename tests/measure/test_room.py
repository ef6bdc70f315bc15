"""Whether a batch's caches fit into the memory: sizes by hand."""

import pytest
from builders_engine import made

from specbench.config import UserError
from specbench.measure import room


def test_caches_by_hand(monkeypatch):
    """The tiny models: 2 · layers · key heads · head width · 4 bytes a token, in slots that grow by doubling."""
    pair = made()
    a_token = 0
    for model in pair.models.values():
        config = model.config
        width = config.hidden_size // config.num_attention_heads
        a_token += 2 * config.num_hidden_layers * config.num_key_value_heads * width * model.dtype.itemsize
    assert room.cache_bytes(pair, 4, 256) == 4 * 256 * a_token
    assert room.cache_bytes(pair, 5, 257) == 8 * 512 * a_token
    assert room.cache_bytes(pair, 1, 9) == 4 * 256 * a_token
    monkeypatch.setattr(room, "free_memory", lambda device: 2 * 16 * 256 * a_token)
    room.check_room(pair, 2, 16, 256)
    with pytest.raises(UserError, match=r"40 texts together, of up to 256 tokens.*of 2 methods.*take 10 texts"):
        room.check_room(pair, 2, 40, 256)
