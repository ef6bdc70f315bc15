"""Window drafts: logits against whole forwards under a mask, a cache that does not grow, and exact texts and laws."""

import oracle
import pytest
import torch
from builders_engine import build, made
from forms import CLOSE
from gates import DEVICE, decode, lively, pair
from hypothesis import given, settings
from hypothesis import strategies as st
from law import fit
from recalled import RECALLED, recalled
from refusals import one_line_error
from tabled import V
from watched import Told

from specbench.engine.drafters import ModelDrafter
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Runtime
from specbench.engine.runtimes.window import CHUNK, Window
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS

SINK, RECENT, SPARE = 2, 9, 4
RUNTIMES = {"eager": EAGER, "static": STATIC}
ALPHA = 1e-4  # of a right rule being refused
LONG = pytest.mark.long
SAMPLINGS = (Sampling(1.0), pytest.param(Sampling(0.8, top_k=3), marks=LONG))


def window(model, runtime: Runtime = EAGER, sink=SINK, recent=RECENT, spare=SPARE) -> Session:
    return Session(model, "draft", runtime=Window(runtime, sink, recent, spare))


@torch.no_grad()
def masked(model, tokens: list[int], sink=SINK, recent=RECENT) -> torch.Tensor:
    """Logits [n, V] of one forward without a cache, in which a token reads the sinks and the last tokens."""
    n, near = len(tokens), getattr(model.config, "sliding_window", None)
    places = torch.arange(n, device=DEVICE)
    away = places[:, None] - places
    sees = (away >= 0) & ((places < sink) | (away < recent))
    masks = [torch.log(part.to(model.dtype))[None, None] for part in (sees, sees & (away < (near or n)))]
    both = {"full_attention": masks[0], "sliding_attention": masks[1]}
    given = both if model.config.model_type == "gemma2" else masks[0]
    ids = torch.tensor([tokens], device=DEVICE)
    return model(ids, attention_mask=given, position_ids=places[None], use_cache=False).logits[0]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_a_token_reads_the_sinks_and_the_last_tokens(architecture, runtime):
    """A text of 60 tokens in blocks of 1 to 7, with rollbacks of up to SPARE tokens."""
    model = pair(architecture)[0]
    (tokens,) = oracle.prompts(1, length=60)
    expected = masked(model, tokens)
    session, rows = window(model, RUNTIMES[runtime]), torch.zeros_like(expected)
    step = 0
    while len(session) < 60:
        step += 1
        begin, width = len(session), 1 + step * 5 % 7
        rows[begin : begin + width] = session.forward(tokens[begin : begin + width]).logits
        if step % 2 and width > 1:
            session.truncate(begin + max(1, width - SPARE))
            session.forward([7] * SPARE)  # rejected
            session.truncate(len(session) - SPARE)
    torch.testing.assert_close(rows, expected, **CLOSE[torch.float64])
    whole = Session(model, "target").forward(tokens).logits
    torch.testing.assert_close(rows[: SINK + RECENT], whole[: SINK + RECENT], **CLOSE[torch.float64])
    assert float((rows[-1] - whole[-1]).abs().max()) > 0.1


@settings(max_examples=15, deadline=None, derandomize=True)
@given(sink=st.integers(0, 4), recent=st.integers(1, 9), blocks=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_any_window_in_any_blocks(sink, recent, blocks):
    model = pair("llama")[0]
    (tokens,) = oracle.prompts(1, length=sum(blocks))
    session = window(model, STATIC, sink, recent, 1)
    rows, at = [], 0
    for block in blocks:
        rows.append(session.forward(tokens[at : at + block]).logits)
        at += block
    torch.testing.assert_close(torch.cat(rows), masked(model, tokens, sink, recent), **CLOSE[torch.float64])


@pytest.mark.parametrize("runtime", ("eager", "static", "eager, in batches", "static, in batches"))
def test_a_prompt_that_is_far_longer_than_the_cache(runtime):
    """Positions go on to 700, beyond all that the cache has rows for."""
    model = oracle.tiny("llama", max_position_embeddings=1024).to(DEVICE)
    (prompt,) = oracle.prompts(1, length=700)
    base = Batched(runtime.split(",")[0]) if "batches" in runtime else RUNTIMES[runtime]
    session = window(model, base)
    output = session.restart(prompt).logits[-1]
    torch.testing.assert_close(output, masked(model, prompt)[-1], **CLOSE[torch.float64])
    again = session.catch_up([*prompt, 5, 6]).logits[-1]
    torch.testing.assert_close(again, masked(model, [*prompt, 5, 6])[-1], **CLOSE[torch.float64])
    assert torch.equal(session.restart(prompt[:50]).logits, session.restart(prompt[:50]).logits)


def cached_bytes(session: Session) -> int:
    """The memory of all keys and values that a session's runner holds; they may share it."""
    runner = getattr(session._runner, "base", session._runner)
    if hasattr(runner, "_cache"):
        parts = [part for layer in runner._cache.layers for part in (layer.keys, layer.values)]
    else:
        parts = [*runner.cache.keys, *runner.cache.values]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
    return sum(storages.values())


@pytest.mark.parametrize("runtime", ("eager", pytest.param("static", marks=LONG)))
def test_the_memory_of_a_window_does_not_grow_with_the_text(runtime):
    """Bytes of the caches after 180, 480 and 980 tokens and 20 more, one by one: 512 a token of this model.

    Of each of 2 layers: keys and values of 2 heads × 8 numbers × 8 bytes. The static runtime has room for 512 tokens
    from the beginning, and doubles it.
    """
    model = oracle.tiny("llama", max_position_embeddings=1024).to(DEVICE)
    window_tokens = SINK + RECENT + 2 * SPARE + 1  # with the one that is read before others are dropped
    expected = {"eager": [window_tokens, 200, 500, 1000], "static": [512, 512, 512, 1024]}[runtime]
    for session in (window(model, RUNTIMES[runtime]), Session(model, "target", runtime=RUNTIMES[runtime])):
        sizes = []
        for length in (180, 480, 980):
            session.restart(oracle.prompts(1, length=length)[0])
            most = 0
            for token in range(20):
                session.forward([token])
                most = max(most, cached_bytes(session))
            sizes.append(most // 512)
        assert sizes == ([expected[0]] * 3 if session.role == "draft" else expected[1:])
    assert Window(EAGER, SINK, RECENT, SPARE).most == window_tokens - 1 + CHUNK


def test_what_was_dropped_cannot_come_back():
    session = window(pair("llama")[0])
    session.restart(oracle.prompts(1, length=60)[0])
    with pytest.raises(ValueError, match="cannot roll 60 tokens back to 30"):
        session.truncate(30)
    with pytest.raises(ValueError, match="no trees"):
        session.forward([1, 2], parents=[-1, -1])


def test_a_shared_prefix_is_read_once():
    """The caches of two windows and of the whole text are kept apart."""
    models, prompts = made(), [[*oracle.prompts(1, length=48)[0], *tail] for tail in ([1, 2], [3])]
    plain = {name: [decode(method, prompt, 6)[0] for prompt in prompts] for name, method in several(models).items()}
    models.prefixes.begin(prompts[0][:48])
    for name, method in several(models).items():
        for _ in range(2):
            assert [decode(method, prompt, 6)[0] for prompt in prompts] == plain[name]
    watch = Told()
    draft = build(models, "window", watch, recent=6, sink=1).drafter.session
    draft.restart(prompts[0])
    assert [width for _, width, _ in watch.forwards] == [2]


def several(models):
    return {
        "sps": build(models, "sps"),
        "short": build(models, "window", recent=6, sink=1),
        "shorter": build(models, "window", recent=3, sink=1),
    }


@pytest.mark.parametrize("drafter", ("target", pytest.param("draft", marks=LONG)))
def test_rounds_are_those_of_a_draft_under_the_mask(drafter):
    """Not the text only: each round's draft is what the drafting model says greedily under the mask."""
    target, draft = pair("llama")
    prompt, text = lively(target, 30, 16)
    method = build(made(), "window", gamma=4, sink=1, recent=8, drafter=drafter)
    tokens, rounds = decode(method, prompt, 16)
    assert tokens == text
    context, model = [*prompt, text[0]], target if drafter == "target" else draft
    for step in rounds[1:]:
        drafted = list(context)
        for _ in range(4):
            drafted.append(oracle.best(masked(model, drafted, 1, 8)[-1]))
        assert step.verdict.drafted == drafted[len(context) :]
        context += step.tokens
    assert {step.accepted for step in rounds[1:]} > {0}


def test_a_window_over_the_whole_text_never_misses():
    """The target as its own drafter: only its sight is narrower."""
    prompt, text = lively(pair("llama")[0], 12, 40)
    tokens, rounds = decode(build(made(), "window"), prompt, 40)
    assert tokens == text and all(step.accepted == 3 for step in rounds[1:-1])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_samples_from_the_target(sampling):
    target = oracle.tiny("llama", seed=1, vocab=V).to(DEVICE)
    draft = Session(target, "draft", runtime=Window(RECALLED, 1, 2, 4))
    fitted = fit(SpS(recalled(target, "target"), ModelDrafter(draft), 3), target, [1, 3, 2, 0, 1, 3], 4, sampling, 200)
    assert fitted.p > ALPHA and fitted.accepted > 40 and fitted.rejected > 40


def test_what_ships_and_what_is_refused(pocket):
    method = build(pocket, "window")
    assert method.lossless and method.reach == 4
    assert method.drafter.session.runtime.most == 256 + 2 * 4 + CHUNK
    assert decode(method, [1, 2, 3], 8)[0] == decode(build(pocket, "vanilla"), [1, 2, 3], 8)[0]
    for name, value in {"gamma": 0, "sink": -1, "recent": 0, "drafter": "both"}.items():
        with one_line_error(f"window: {name}"):
            build(pocket, "window", **{name: value})
