"""The static runtime computes what the eager one and whole forwards without a cache do, whatever was fed before."""

import copy
import dataclasses
import gc
import weakref

import oracle
import pytest
import torch
from cases import architectures, mostly_long
from forms import FIRST, FORMS, assert_tells_what_eager_tells, eagle, lists, model, path_to, rope, steps, text, whole
from gates import DEVICE, assert_greedy_exact
from hypothesis import given, settings
from law import two_tokens
from refusals import one_line_error
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specbench.engine.drafters import ModelDrafter
from specbench.engine.models import packed
from specbench.engine.models.draft_output import slim, trimmed
from specbench.engine.models.layer_skip import without
from specbench.engine.runtimes import static
from specbench.engine.runtimes.blocks import KEYS
from specbench.engine.runtimes.decoder import FEW
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.lean import Lean
from specbench.engine.runtimes.reference import check
from specbench.engine.runtimes.static import STATIC, StaticRunner
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.collaborative.cospec_arbitrator import Adapter, new_arbitrator, own_parameters

ALPHA = 1e-4  # of a right rule being refused; a wrong one must fall below it


@pytest.fixture(autouse=True, scope="module")
def _little_room():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.engine.runtimes.lean.FIRST", FIRST)
        yield


# Chains


@pytest.mark.parametrize("form", FORMS)
def test_chains_equal_a_forward_without_cache(form):
    """Blocks on both sides of the window and of the fused path, rollbacks over all of them, and every hidden state."""
    one = model(form)
    session, runner = Session(one, "target", runtime=STATIC), None
    runner, source, mirror, capacities = session._runner, iter(text(400, seed=3)), [], set()
    scale = max(1.0, float(whole(one, text(30))[0].std()) / 2)
    for width, back in ((5, 0), (1, 0), (12, 4), (1, 13), (17, 1), (FEW + 6, 2), (1, 0), (3, 40), (FEW, 0), (2, 90)):
        new = [next(source) for _ in range(width)]
        mirror += new
        output = session.forward(new, hidden=(0, 1, 2, -1))
        logits, states = whole(one, mirror)
        torch.testing.assert_close(output.logits, logits[-width:], rtol=0, atol=1e-4 * scale)
        expected = torch.cat([states[i][-width:] for i in (0, 1, 2, -1)], -1)
        torch.testing.assert_close(output.hidden, expected, rtol=1e-5, atol=1e-4)
        mirror = mirror[: len(mirror) - back]
        session.truncate(len(mirror))
        capacities.add(runner.capacity)
    least = KEYS if DEVICE == "cpu" else FIRST
    assert capacities == {max(least, room) for room in (FIRST, 2 * FIRST, 8 * FIRST)}
    # It is no text that any cache would pass: other tokens in front give other logits.
    assert len(set(logits.argmax(-1).tolist())) >= 8


@pytest.mark.parametrize("form", ("gemma2", "mistral, window", "qwen2, window above", "qwen3, window above"))
def test_one_token_at_a_time_over_the_edge_of_the_window(form):
    """At every length about it, since single tokens need no mask until it begins to hide some."""
    one, tokens = model(form), text(40)
    session = Session(one, "target", runtime=STATIC)
    rows = [session.forward(tokens[:10]).logits, *(session.forward([token]).logits for token in tokens[10:])]
    torch.testing.assert_close(torch.cat(rows), whole(one, tokens)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ("llama", "gemma2", "mistral, window", "opt"))
def test_the_last_rows_alone(form):
    one, session = model(form), Session(model(form), "target", runtime=STATIC)
    tokens = text(40)
    logits, states = whole(one, tokens)
    for keep, hidden in ((1, ()), (3, ()), (1, LAST), (7, (1,))):
        session.truncate(20) if len(session) else session.forward(tokens[:20])
        output = session.forward(tokens[20:], keep=keep, hidden=hidden)
        torch.testing.assert_close(output.logits, logits[-keep:], rtol=0, atol=1e-4)
        assert (output.hidden is None) == (not hidden)
        for index in hidden:  # of all tokens, not only of the last
            torch.testing.assert_close(output.hidden, states[index][20:], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("form", (*oracle.ARCHITECTURES, "mistral, window"))
def test_half_precision_is_as_near_to_the_truth_as_eager(form, dtype):
    """Weights rounded to half; the truth is the same weights in float64."""
    # Weights of the size that real models have: products of larger ones overflow, or lose all their digits.
    small = copy.deepcopy(model(form))
    with torch.no_grad():
        for parameter in small.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(0.3)
    half = small.to(dtype)
    exact = copy.deepcopy(half).double()
    tokens = text(90)
    truth = whole(exact, tokens)[0]
    errors = []
    for runtime in (EAGER, STATIC):
        session = Session(half, "target", runtime=runtime)
        rows = [session.forward(tokens[a:b]).logits for a, b in ((0, 70), (70, 71), (71, 80), (80, 90))]
        errors.append((torch.cat(rows).double() - truth).square().mean().sqrt())
    eager, result = errors
    assert eager > 0 and result <= 1.5 * eager
    assert result < 0.1 * truth.std()


# Any history


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
@pytest.mark.parametrize("form", (*oracle.ARCHITECTURES, "mistral, window"))
@settings(max_examples=12, deadline=None, derandomize=True)
@given(history=steps, last=lists)
def test_any_history_tells_what_eager_tells(form, dtype, history, last):
    assert_tells_what_eager_tells(STATIC, form, dtype, history, last)


@pytest.mark.parametrize("form", (*oracle.ARCHITECTURES, "mistral, window", "qwen2, window above"))
@pytest.mark.parametrize("root", (6, 25))
def test_a_tree_equals_its_paths_by_whole_forwards(form, root):
    """Within the window and beyond it; a wide tree takes the fused path."""
    one, session = model(form), Session(model(form), "target", runtime=STATIC)
    context, tree = text(root, seed=1), text(FEW + 12, seed=2)
    parents = [-1, -1, 0, 0, 2, 1, 4, 3, 5] + [i % 9 for i in range(FEW + 3)]
    session.forward(context)
    # The last 12 hang where they show the most: deep below the others.
    parents[-12:] = [6, 6, 4, 8, 7, *range(FEW + 4, FEW + 11)]
    output = session.forward(tree, parents=parents).logits
    for node in (0, 1, 4, 6, 8, 30, *range(FEW, FEW + 12)):
        path = [tree[i] for i in path_to(parents, node)]
        torch.testing.assert_close(output[node], whole(one, context + path)[0][-1], rtol=0, atol=1e-4)
    path = path_to(parents, FEW + 11)
    assert len(path) > 10
    session.keep(root, path)
    kept = context + [tree[i] for i in path]
    after = text(20, seed=4)
    torch.testing.assert_close(session.forward(after).logits, whole(one, kept + after)[0][-20:], rtol=0, atol=1e-4)


def test_a_runner_moves_by_itself():
    """Without a session, which would tell the length once more."""
    one, runner = model("llama"), STATIC.runner(model("llama"))
    tokens = text(10)
    with torch.inference_mode():
        runner.forward(torch.tensor(tokens, device=DEVICE), 1, (), None, None)
        runner.truncate(9)
        runner.move(7, [0, 1])
        rows, _ = runner.forward(torch.tensor([5], device=DEVICE), 0, (), None, None)
    torch.testing.assert_close(rows, whole(one, [*tokens[:9], 5])[0][-1:], rtol=0, atol=1e-4)


def test_the_cache_grows_where_a_tree_is_open_and_where_it_is_copied():
    one, session = model("llama"), Session(model("llama"), "target", runtime=STATIC)
    context, tree = text(FIRST - 3), text(3 * FIRST, seed=2)
    session.forward(context)
    for start in range(0, len(tree), 6):
        parents = [-1] * 6 if not start else list(range(start - 6, start))
        output = session.forward(tree[start : start + 6], parents=parents).logits
    assert session._runner.capacity == 4 * FIRST
    last = len(tree) - 2
    path = list(range(last % 6, last + 1, 6))
    expected = whole(one, context + [tree[i] for i in path])[0]
    torch.testing.assert_close(output[-2], expected[-1], rtol=0, atol=1e-4)
    session.keep(len(context), path)
    kept = context + [tree[i] for i in path]
    torch.testing.assert_close(session.forward([7]).logits, whole(one, [*kept, 7])[0][-1:], rtol=0, atol=1e-4)


def test_what_was_returned_stays_as_it_is():
    """Logits and states of a forward are not overwritten by a later one, and writing into them reaches no cache."""
    session = Session(model("llama"), "target", runtime=STATIC)
    first = session.forward(text(9), hidden=(0, -1))
    kept = [first.logits.clone(), first.hidden.clone()]
    with torch.inference_mode():
        for _ in range(3):
            session.forward(text(5, seed=1), hidden=(0, -1)).logits.zero_()
    assert torch.equal(first.logits, kept[0]) and torch.equal(first.hidden, kept[1])
    expected = whole(model("llama"), text(9) + text(5, seed=1) * 3 + [3])[0][-1:]
    torch.testing.assert_close(session.forward([3]).logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_what_one_session_lent_another_one_goes_on_with(architecture):
    """Between both runtimes: the same logits after the same text, and a model without an attention has the others'."""
    target, tokens = oracle.tiny(architecture).to(DEVICE), text(40)
    fewer = without(target, (1,), ())
    for runtime in (EAGER, STATIC):
        lender = Session(target, "target", runtime=runtime)
        lender.forward(tokens[:-3])
        kept = lender.lend((0, 1))
        expected = lender.forward(tokens[-3:]).logits
        seen = []
        for other in (EAGER, STATIC):
            borrower = Session(target, "draft", runtime=other)
            borrower.forward(tokens[5:9])
            borrower.adopt(kept)
            assert borrower.tokens == tokens[:-3]
            torch.testing.assert_close(borrower.forward(tokens[-3:]).logits, expected, rtol=0, atol=1e-5)
            smaller = Session(fewer, "draft", runtime=other)
            smaller.adopt(kept.of((0,)))
            seen.append(smaller.forward(tokens[-3:]).logits)
        torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=1e-5)
        assert not torch.allclose(seen[0], expected, atol=1e-2)


def test_sequences_of_one_model_do_not_meet():
    one = model("qwen2")
    sessions = [Session(one, "target", runtime=STATIC) for _ in range(3)]
    texts = [text(30, seed=seed) for seed in range(3)]
    for start in range(0, 30, 5):
        for session, tokens in zip(sessions, texts, strict=True):
            rows = session.forward(tokens[start : start + 5]).logits
            expected = whole(one, tokens[: start + 5])[0][-5:]
            torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)


# Twins of models


def equal_sessions(one: PreTrainedModel, atol: float = 1e-4, vocabulary: int | None = None) -> torch.Tensor:
    """Chains, a rollback and a tree at both runtimes; returns the logits."""
    results = []
    for runtime in (EAGER, STATIC):
        session = Session(one, "draft", vocabulary=vocabulary, runtime=runtime)
        rows = [session.forward(text(21)).logits, session.forward([5]).logits]
        session.truncate(10)
        rows.append(session.forward(text(8, seed=2)).logits)
        rows.append(session.forward(text(5, seed=3), parents=[-1, -1, 0, 1, 2]).logits)
        session.keep(18, [1, 3])
        rows.append(session.forward(text(3, seed=4)).logits)
        results.append(torch.cat(rows))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=atol)
    return results[1]


SKIPPED = {"attention": ({0}, set()), "mlp": (set(), {1}), "both": ({1}, {0}), "a whole layer": ({0}, {0})}


@pytest.mark.parametrize("skipped", SKIPPED)
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_a_model_without_some_sublayers(architecture, skipped):
    one = model(architecture)
    twin = without(one, *SKIPPED[skipped])
    result = equal_sessions(twin)
    assert (result - equal_sessions(one)).abs().max() > 0.1  # something was skipped
    torch.testing.assert_close(result[:21], whole_of_twin(twin, text(21)), rtol=0, atol=1e-4)


@torch.no_grad()
def whole_of_twin(twin: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    return twin(torch.tensor([tokens], device=DEVICE), use_cache=False).logits[0]


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_lighter_output_layers(architecture):
    one = model(architecture)
    ids = torch.tensor([3, 90, 17, 4, 55])
    result = equal_sessions(trimmed(one, ids))
    full = equal_sessions(one)
    torch.testing.assert_close(result[:, ids], full[:, ids], rtol=0, atol=1e-4)
    assert int(result.isfinite().sum()) == result.shape[0] * len(ids)
    assert (equal_sessions(slim(one, 8)) - full).abs().max() > 0.1
    torch.testing.assert_close(equal_sessions(slim(one, 32)), full, rtol=0, atol=1e-3)


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_a_model_without_attention_anywhere_is_refused(architecture):
    with pytest.raises(Unsupported, match=r"needs a layer with attention; use --runtime eager$"):
        STATIC.runner(without(model(architecture), {0, 1}, set()))


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@architectures
def test_an_arbitrator_with_adapters(architecture, dtype):
    backbone = copy.deepcopy(model(architecture)).to(dtype)
    if dtype == torch.bfloat16:
        with torch.no_grad():
            for parameter in backbone.parameters():
                parameter.mul_(0.3 if parameter.ndim >= 2 else 1)
    arbitrator = new_arbitrator(backbone, Adapter(rank=4, alpha=8), seed=0)
    assert not equal_sessions(arbitrator, vocabulary=1).any()  # a new one says nothing
    rng = torch.Generator().manual_seed(1)
    arbitrator = new_arbitrator(backbone, Adapter(rank=4, alpha=8), seed=0)
    with torch.no_grad():
        for name, parameter in own_parameters(arbitrator).items():
            shift = torch.randn(parameter.shape, generator=rng).to(parameter) / parameter.shape[-1] ** 0.5
            parameter.add_(shift * (0.3 if "lora" in name else 1.0))
    atol = {torch.float64: 1e-4, torch.float32: 2e-3, torch.bfloat16: 0.2}[dtype]
    result = equal_sessions(arbitrator, atol, vocabulary=1)
    assert result.shape[1] == 1 and result.std() > 0.3
    before = new_arbitrator(backbone, Adapter(rank=4, alpha=8), seed=0)
    with torch.no_grad():  # the same head without adapters says something else, so they were read
        for name, parameter in own_parameters(before).items():
            if "lora" not in name:
                parameter.copy_(own_parameters(arbitrator)[name])
    assert (equal_sessions(before, atol, vocabulary=1) - result).abs().max() > 0.1


@pytest.mark.parametrize("architecture", ("llama", "opt", "gemma2"))
def test_an_eagle_head_in_chains_and_trees(architecture):
    """Features next to the tokens; states in front of the norm; growth, rollback and `keep` in between."""
    head, results = eagle(architecture), []
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(140, 32, generator=rng, dtype=torch.float64).to(DEVICE)
    for runtime in (EAGER, STATIC):
        session, log = Session(head, "draft", vocabulary=48, runtime=runtime), []

        def feed(tokens, at, session=session, log=log, **more):
            scored = session.forward(tokens, features=features[at : at + len(tokens)], **more)
            log.extend([scored.logits, *([scored.hidden] if scored.hidden is not None else [])])

        feed(text(20), 0, hidden=LAST)
        feed([3], 20)
        session.truncate(15)
        feed(text(FEW + 4, seed=1), 15, hidden=(0, -1))
        length = len(session)
        feed([4, 9, 11], 90, parents=[-1, -1, 0], hidden=LAST)
        feed([7, 2], 95, parents=[1, 2], hidden=(0, 1))
        session.keep(length, [0, 2, 4])
        feed(text(4, seed=5), 100, keep=2)
        results.append(log)
    for a, b in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-4)
    assert results[0][0].std() > 0.5


# What is refused, and what is left alone


def test_a_model_of_another_kind_is_refused():
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50, "n_positions": 64}
    config = AutoConfig.for_model("gpt2", **sizes, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        other = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(Unsupported, match=r"^the static runtime does not know GPT2LMHeadModel; use --runtime eager$"):
        STATIC.runner(other)


REFUSED = {
    "norms behind the sublayers": (("opt",), {"do_layer_norm_before": False}, "norms come after"),
    "another width of embeddings": (("opt",), {"word_embed_proj_dim": 16}, "OPT"),
    "positions that go by the length": (("llama",), rope("dynamic", factor=2.0), "positions of kind dynamic"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_it_cannot_read_is_refused_in_one_line(why):
    arguments, fields, words = REFUSED[why]
    with one_line_error(words, "--runtime eager", kind=Unsupported):
        STATIC.runner(oracle.tiny(*arguments, **fields))


def scaled_residual(one: PreTrainedModel) -> None:
    one.model.layers[0].register_forward_hook(lambda module, given, out: out * 1.5)


def other_positions(one: PreTrainedModel) -> None:
    attention = one.model.layers[1].self_attn
    forward = attention.forward
    attention.forward = lambda *given, **named: forward(*given, **(named | {"position_embeddings": flipped(named)}))


def flipped(named):
    cos, sin = named["position_embeddings"]
    return cos, -sin


def louder_logits(one: PreTrainedModel) -> None:
    forward = one.forward

    def loud(*given, **named):
        out = forward(*given, **named)
        out.logits = out.logits * 1.2
        return out

    one.forward = loud


def other_input(one: PreTrainedModel) -> None:
    one.model.layers[0].mlp.gate_proj.register_forward_pre_hook(lambda module, given: (given[0] * 1.2,))


@pytest.mark.parametrize("tamper", (scaled_residual, other_positions, louder_logits, other_input))
def test_a_model_whose_forward_is_another_is_refused(tamper):
    """The check at reading finds what the reading of its parts could not know."""
    one = oracle.tiny("llama").to(DEVICE)
    STATIC.runner(one)
    other = oracle.tiny("llama").to(DEVICE)
    tamper(other)
    with pytest.raises(Unsupported, match=r"other logits for LlamaForCausalLM \(off by .*; use --runtime eager$"):
        STATIC.runner(other)
    Session(other, "target").forward([1, 2, 3])  # eager takes it as it is


def wrong_rotation(patch, lean) -> None:
    angles = lean.angles
    patch.setattr(lean, "angles", lambda count: (angles(count)[0], -angles(count)[1]))


def wrong_norm(patch, lean) -> None:
    attention, mlp = lean.parts.layers[1]
    norm = mlp.before
    lean.parts.layers[1] = attention, dataclasses.replace(mlp, before=lambda x: 1.2 * norm(x))


def wrong_bias(patch, lean) -> None:
    patch.setattr(lean.parts.layers[0][0].qkv, "bias", None)


def wrong_mask(patch, lean) -> None:
    sliced = lean.masks._sliced
    patch.setattr(lean.masks, "_sliced", lambda width, cached, *more: sliced(width, cached - (cached > 0), *more))


def nothing_wrong(patch, lean) -> None:
    pass


@pytest.mark.skipif(DEVICE != "cpu", reason="parts as a CPU has them")
@pytest.mark.parametrize("bits", ("float", "int8"))
@pytest.mark.parametrize("defect", (nothing_wrong, wrong_rotation, wrong_norm, wrong_bias, wrong_mask))
def test_a_wrong_part_in_half_precision_is_refused(defect, bits, monkeypatch):
    """Next to float32, from which the model's own logits are as far as half precision is."""
    one = oracle.tiny("qwen2")
    with torch.no_grad():
        for name, parameter in one.named_parameters():
            parameter.mul_(0.3) if parameter.ndim >= 2 else None
            if name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    half = one.to(torch.bfloat16)
    if bits == "int8":
        for layer in half.model.layers.modules():
            if isinstance(layer, torch.nn.Linear):
                packed.pack(layer, None)
    lean = Lean(half)
    defect(monkeypatch, lean)
    if defect is nothing_wrong:
        check(half, StaticRunner(lean), joins=False)
        return
    with one_line_error("other logits", "times as far from float32", "--runtime eager", kind=Unsupported):
        check(half, StaticRunner(lean), joins=False)


def test_a_hook_that_only_looks_on_does_not_break_it():
    seen, one = [], oracle.tiny("llama").to(DEVICE)
    one.register_forward_hook(lambda module, given, out: seen.append(1))
    try:
        rows = Session(one, "target", runtime=STATIC).forward(text(9)).logits
    except Unsupported:
        return  # one line that `auto` can go on from would do as well
    torch.testing.assert_close(rows, whole(one, text(9))[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_reading_a_model_leaves_it_as_it_was(architecture, dtype):
    one = oracle.tiny(architecture).to(DEVICE, dtype)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    expected, states = whole(one, text(40))
    session = Session(one, "target", runtime=STATIC)
    session.forward(text(40))
    after = one.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(name.shape == other.shape for name, other in zip(after.values(), before.values(), strict=True))
    again, others = whole(one, text(40))
    assert torch.equal(again, expected)
    assert all(torch.equal(a, b) for a, b in zip(others, states, strict=True))
    assert not any(parameter.requires_grad for parameter in one.parameters())
    assert not any(parameter.is_inference() for parameter in one.parameters())


LET_GO = {
    "model": lambda one: one,
    "model without sublayers": lambda one: without(one, {0}, {1}),
    "trimmed": lambda one: trimmed(one, torch.tensor([1, 2, 3])),
    "slim": lambda one: slim(one, 4),
    "arbitrator": lambda one: new_arbitrator(one, Adapter(rank=2, alpha=4), seed=0),
}


@mostly_long("kind", LET_GO, ("model without sublayers", "arbitrator"))
def test_models_are_let_go(kind):
    """Nothing that the runtime keeps holds a model, its layers or its sequences, nor the model that a twin is of."""
    one = oracle.tiny("llama").to(DEVICE)
    twin = LET_GO[kind](one)
    read = len(STATIC._read)
    session = Session(twin, "target", runtime=STATIC)
    session.forward(text(9))
    assert len(STATIC._read) == read + 1
    modules = (twin, twin.model.layers[0].self_attn, twin.get_output_embeddings(), one, one.model.layers[1])
    watched = [weakref.ref(module) for module in modules] + [weakref.ref(session._runner)]
    del one, twin, session, modules
    gc.collect()
    assert [reference() is None for reference in watched] == [True] * 6
    assert len(STATIC._read) == read


def test_a_head_is_let_go():
    head = eagle("llama")
    session = Session(head, "draft", vocabulary=48, runtime=STATIC)
    session.forward([1, 2], features=torch.zeros(2, 32, dtype=torch.float64, device=DEVICE))
    watched = [weakref.ref(head), weakref.ref(head.midlayer), weakref.ref(head.lm_head)]
    del head, session
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3


# Methods


@mostly_long("architecture", ("llama", "gemma2"), ("llama",))
def test_every_lossless_method_is_greedy_exact(architecture):
    """Against whole forwards without a cache, which share nothing with either runtime; beyond Gemma 2's window."""
    assert_greedy_exact(architecture, STATIC, texts=1)


def drawn(sampling: Sampling, draws: int = 1500) -> float:
    """p-value of the first two tokens that SpS says at the static runtime."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=8).to(DEVICE) for seed in (1, 2))
    drafter = ModelDrafter(Session(draft, "draft", runtime=STATIC))
    return two_tokens(SpS(Session(target, "target", runtime=STATIC), drafter, 2), target, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_k=5, top_p=0.7)), ids=str)
def test_sampled_texts_follow_the_target(sampling):
    assert drawn(sampling) > ALPHA


def test_the_same_test_finds_a_rollback_that_keeps_one_too_many(monkeypatch):
    """From one prompt to the next a token stays, so that all places are one too far and it is read."""
    monkeypatch.setattr(static, "check", lambda *_: None)  # which would find it first
    monkeypatch.setattr(StaticRunner, "truncate", lambda self, length: setattr(self, "length", length + 1))
    assert drawn(Sampling(1.0), 300) < ALPHA
