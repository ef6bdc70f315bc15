"""Gate: a session after any sequence of forwards and rollbacks equals a fresh prefill of the same tokens."""

import oracle
import pytest
import torch
from forms import VOCABULARY, alone_steps, lists, model, played
from hypothesis import given, settings
from watched import Told

from specbench.engine.runtimes import eager
from specbench.engine.runtimes.types import LAST
from specbench.engine.session import Session


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(history=alone_steps, last=lists)
def test_any_history_equals_a_fresh_prefill(architecture, history, last):
    session = Session(model(architecture), "target")
    _, mirror = played(session, history)
    assert session.tokens == mirror
    assert len(session) == len(mirror)
    output = session.forward(last).logits
    fresh = Session(model(architecture), "target").forward(mirror + last).logits[len(mirror) :]
    # Norms and softmax compute in float32 even in a float64 model, so other block shapes differ by about 1e-6.
    torch.testing.assert_close(output, fresh, rtol=0, atol=1e-4)
    assert output.argmax(-1).tolist() == fresh.argmax(-1).tolist()


def test_truncate_refuses_what_it_cannot_do():
    session = Session(model("llama"), "target")
    session.forward([1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(ValueError, match="cannot truncate"):
            session.truncate(length)
    assert session.tokens == [1, 2, 3]


def test_restart_gives_the_last_row_only_and_forgets():
    session = Session(model("opt"), "target")
    session.forward([5, 6, 7, 8])
    row = session.restart([1, 2, 3]).logits
    assert row.shape == (1, VOCABULARY)
    expected = oracle.next_logits(oracle.tiny("opt"), [1, 2, 3])
    torch.testing.assert_close(row[0].cpu(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("vocabulary", (VOCABULARY, 90))
def test_what_the_check_read_are_the_likeliest_tokens(vocabulary):
    """Ties go to the lowest; where logits are cut, a token beyond the vocabulary is none."""
    session = Session(model("llama"), "target", vocabulary=vocabulary)
    scored = session.forward([5, 9, 17, 3])
    if scored.best is None:
        assert vocabulary < VOCABULARY or scored.logits.device.type != "cpu"
        return
    assert scored.best.tokens == [oracle.best(row) for row in scored.logits]
    assert scored.best.rows.tolist() == scored.logits.tolist()
    tied = torch.zeros(2, VOCABULARY)
    tied[1, [4, 7]] = 1.0
    assert session._check(tied).tokens == [0, 4]


def test_the_watch_sees_every_forward():
    watch = Told()
    session = Session(model("llama"), "draft", watch)
    session.restart([1, 2, 3])
    session.forward([4])
    session.truncate(2)
    session.catch_up([1, 2, 9, 9])
    assert watch.forwards == [("draft", 3, 0), ("draft", 1, 3), ("draft", 2, 2)]


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_a_long_prompt_is_read_in_pieces(architecture, monkeypatch):
    """13 tokens by 5: the last logits and all hidden states are those of one forward, and what comes after goes on."""
    model = oracle.tiny(architecture)  # in float64
    prompt = [(7 * i + 3) % 96 for i in range(13)]
    whole = Session(model, "target").forward(prompt, keep=1, hidden=(1, *LAST))
    widths = []
    monkeypatch.setattr(eager, "CHUNK", 5)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda ids, **more: (widths.append(ids.shape[1]), forward(ids, **more))[1])
    session = Session(model, "target")
    pieces = session.forward(prompt, keep=1, hidden=(1, *LAST))
    assert widths == [5, 5, 3]
    assert torch.allclose(pieces.logits, whole.logits, atol=1e-4)
    assert torch.allclose(pieces.hidden, whole.hidden, atol=1e-4)
    expected = Session(model, "target").forward([*prompt, 5, 6]).logits[-2:]
    assert torch.allclose(session.forward([5, 6]).logits, expected, atol=1e-4)
    assert widths == [5, 5, 3, 15, 2]
