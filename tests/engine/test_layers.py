"""Layers that run apart: every split equals the whole forward bit by bit; every history is exact."""

import copy
import types

import oracle
import pytest
import torch
from forms import FORMS, lists, model, text, whole
from gates import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import one_line_error

from specbench.engine.layer_session import LayerSession
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import Session

RUNTIMES = (EAGER, STATIC)
DEEP = 4
LONG = pytest.mark.long
CASES = [form if form in ("opt", "gemma2") else pytest.param(form, marks=LONG) for form in FORMS]


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one.name)
@pytest.mark.parametrize("form", CASES)
def test_every_split_of_every_form_equals_the_whole_bit_by_bit(form, runtime):
    """Three blocks, over a window's edge."""
    one, tokens = model(form), text(40)
    for split in range(1, 3):
        session, reference = (kind(one, "target", runtime=runtime) for kind in (LayerSession, Session))
        for start, end in ((0, 13), (13, 14), (14, 40)):
            expected = reference.forward(tokens[start:end])
            states = session.read(tokens[start:end], split)
            assert session.cached(0) == end and (split == 2) == (session.cached(1) == end)
            output = session.finish({split: states})
            assert torch.equal(output.logits, expected.logits) and torch.equal(output.hidden, states)
        assert session.tokens == tokens
        close = {"rtol": 0, "atol": 1e-4 * max(1.0, float(expected.logits.std()) / 2)}
        torch.testing.assert_close(output.logits, whole(one, tokens)[0][14:], **close)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one.name)
@pytest.mark.parametrize("form", ("gemma2", *(pytest.param(form, marks=LONG) for form in ("llama", "opt", "qwen3"))))
def test_any_cuts_of_the_layers_equal_the_whole_bit_by_bit(form, runtime):
    """Three ranges of four layers, a block at a time; then the last ranges catch up on several blocks at once."""
    one, tokens = deep(form), text(40)
    for cuts in ((1, 2), (1, 3), (2, 3)):
        session, reference = (kind(one, "target", runtime=runtime) for kind in (LayerSession, Session))
        for start, end in ((0, 20), (20, 21), (21, 40)):
            states = session.run(session.read(tokens[start:end], cuts[0]), *cuts)
            assert [session.cached(i) for i in range(DEEP)] == [end] * cuts[1] + [start] * (DEEP - cuts[1])
            expected = reference.forward(tokens[start:end], keep=1, hidden=(cuts[1],))
            assert torch.equal(states, expected.hidden)
            assert torch.equal(session.finish({cuts[1]: states}, keep=1).logits, expected.logits)
        session.truncate(20)
        parts = [session.read(tokens[start:end], cuts[0]) for start, end in ((20, 25), (25, 33))]
        middle = torch.cat([session.run(part, *cuts) for part in parts])
        output = session.finish({cuts[1]: middle}, rest=torch.tensor(tokens[33:], device=DEVICE))
        assert output.hidden.shape[0] == 20 and session.tokens == tokens
        torch.testing.assert_close(output.logits, whole(one, tokens)[0][20:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one.name)
def test_the_states_of_all_layers_are_told_beside_one_another(runtime):
    """Of those that read ahead, of the token that none had read, and of those that follow."""
    one, tokens = deep("llama"), text(20)
    session, reference = (kind(one, "target", runtime=runtime) for kind in (LayerSession, Session))
    session.forward(tokens[:9])
    expected = reference.forward(tokens, hidden=(1, 2, 3))
    rows = [session.through(session.read(tokens[at : at + 1], 1), 1, (1, 2)) for at in range(9, 19)]
    ahead = dict(zip((1, 2), map(torch.cat, zip(*rows, strict=True)), strict=True))
    output = session.finish(ahead, rest=tokens[19:], hidden=(3,))
    torch.testing.assert_close(output.hidden, expected.hidden[9:], rtol=0, atol=1e-4)
    torch.testing.assert_close(output.logits, expected.logits[9:], rtol=0, atol=1e-4)


def deep(form):
    if form not in DEEPER:
        fields = FORMS[form].keywords | {"num_hidden_layers": DEEP}
        if "max_window_layers" in fields:
            fields |= {"max_window_layers": 2}
        DEEPER[form] = oracle.tiny(*FORMS[form].args, **fields).to(DEVICE)
    return DEEPER[form]


DEEPER: dict[str, torch.nn.Module] = {}

# What is read ahead, how much of it the others follow on, and what is cut off then.
histories = st.lists(st.tuples(lists, st.lists(lists, max_size=3), st.floats(0, 1), st.booleans()), max_size=5)


@pytest.mark.parametrize(
    ("form", "runtime"),
    [
        ("llama", STATIC),
        pytest.param("gemma2", EAGER, marks=LONG),
        pytest.param("llama", EAGER, marks=LONG),
        pytest.param("gemma2", STATIC, marks=LONG),
    ],
    ids=lambda one: getattr(one, "name", one),
)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(history=histories, split=st.integers(1, DEEP), last=lists)
def test_any_history_is_cut_exactly(form, runtime, history, split, last):
    one, session, mirror = deep(form), LayerSession(deep(form), "target", runtime=runtime), []
    for whole_block, ahead, share, follow in history:
        session.forward(whole_block)
        mirror = mirror + whole_block
        states, before = [session.read(block, split) for block in ahead], len(mirror)
        mirror = mirror + [token for block in ahead for token in block]
        assert session.cached(0) == len(mirror) and (split == DEEP or session.cached(DEEP - 1) == before)
        if follow and states:
            output = session.finish({split: torch.cat(states)})
            torch.testing.assert_close(output.logits, whole(one, mirror)[0][before:], rtol=0, atol=1e-4)
        elif split < DEEP and states:  # they read ahead in vain
            mirror = mirror[:before]
        mirror = mirror[: int(share * len(mirror))]
        session.truncate(len(mirror))
        assert session.tokens == mirror and {session.cached(i) for i in range(DEEP)} == {len(mirror)}
    torch.testing.assert_close(
        session.forward(last).logits, whole(one, mirror + last)[0][len(mirror) :], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda one: one.name)
def test_it_is_a_session_like_any_other(runtime):
    """Trees, their paths, hidden states and catching up, before and after layers ran apart."""
    one, session = model("llama"), LayerSession(model("llama"), "target", runtime=runtime)
    plain = Session(one, "target", runtime=runtime)
    for each in (session, plain):
        each.forward([5, 6, 7])
    session.finish({1: session.read([8, 9], 1)})
    plain.forward([8, 9])
    for each in (session, plain):
        each.forward([1, 2, 3], parents=[-1, 0, 0])
        each.keep(5, [0, 2])
    assert session.tokens == plain.tokens == [5, 6, 7, 8, 9, 1, 3]
    assert torch.equal(session.catch_up([5, 6, 4, 3]).logits, plain.catch_up([5, 6, 4, 3]).logits)
    assert torch.equal(session.finish({1: session.read([2], 1)}).logits, plain.forward([2]).logits)


def test_the_model_stays_as_it_is():
    one = copy.deepcopy(model("llama"))
    before = {name: set(vars(module)) for name, module in one.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in one.named_modules()}
    session = LayerSession(one, "target")
    session.finish({1: session.read([1, 2], 1)})
    assert {name: set(vars(module)) for name, module in one.named_modules()} == before
    assert {name: len(module._forward_hooks) for name, module in one.named_modules()} == hooks


def test_what_cannot_be_is_refused():
    session = LayerSession(deep("llama"), "target")
    states = session.read([1, 2, 3], 2)
    for words, wrong in (
        ("read ahead", lambda: session.forward([4])),
        ("same number of tokens", lambda: session.run(states, 1, 3)),
        ("cannot read more tokens", lambda: session.run(torch.cat([states, states]), 2, 3)),
        ("all tokens that the first ones have read", lambda: session.finish({2: states[:2]})),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    session.truncate(2)
    session.forward([7, 8], parents=[-1, -1])
    with pytest.raises(ValueError, match="a tree is open"):
        session.read([1], 2)


def test_models_and_runtimes_that_cannot_run_layers_apart():
    shared = copy.deepcopy(model("llama"))
    shared.config.num_kv_shared_layers = 1
    with one_line_error("the layers of LlamaForCausalLM cannot run apart (its layers share keys and values)"):
        LayerSession(shared, "target")
    other = types.SimpleNamespace(name="graph")
    with one_line_error("the graph runtime runs no layers apart; use --runtime static or eager"):
        LayerSession(model("llama"), "target", runtime=other)
    session = LayerSession(model("llama"), "target", runtime=Batched("static"))
    assert session.finish({1: session.read([1, 2], 1)}).logits.shape == (2, 96)


def test_layers_that_change_when_they_run_apart_are_found():
    """A decoder that passes more than states from layer to layer."""
    odd = copy.deepcopy(model("llama"))
    inner, seen = odd.model.layers[1].forward, []
    odd.model.layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    odd.model.layers[1].forward = lambda states, **named: inner(states + 9 * seen[-1].mean(), **named)
    with pytest.raises(Unsupported, match="cannot run apart"):
        LayerSession(odd, "target")
