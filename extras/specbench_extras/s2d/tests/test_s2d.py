"""S2D: rounds against whole forwards without cache; which layers read what; lossless; how its draft is trained."""

import copy
import functools

import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, decode, lively
from judging import assert_rounds
from law import fit
from refusals import one_line_error
from watched import Told

from specbench import config
from specbench.engine.layer_session import LayerSession
from specbench.engine.models.layer_ranges import output_of
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Sampling
from specbench_extras.s2d import s2d
from specbench_extras.s2d.s2d import S2D, Settings, SortedDrafter

ALPHA = 1e-4  # of a right rule being refused
LONG = pytest.mark.long
SHIPPED = config.load_method("s2d").values
DEEP = 3
ARCHITECTURES = ("llama", pytest.param("qwen3", marks=LONG))


@functools.cache
def models(architecture: str):
    """A target and a draft of three layers that is a noisy copy of it."""
    target = oracle.tiny(architecture, num_hidden_layers=DEEP)
    draft = copy.deepcopy(target)
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _, parameter in sorted(draft.named_parameters()):
            parameter.add_(0.1 * parameter.std() * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return target.to(DEVICE), draft.to(DEVICE)


def method(target, draft, gamma=4, exits=(1, 2), thresholds=(0.12, 0.1, 0.08), runtime=EAGER, watch=None) -> S2D:
    watch = watch or Unwatched()
    settings = Settings(gamma=gamma, exits=exits, thresholds=thresholds)
    session = LayerSession(draft, "draft", runtime=runtime)
    return S2D(Session(target, "target", watch, runtime=runtime), SortedDrafter(session, settings, watch), gamma)


def said(draft, text, layers):
    """The probabilities [V] of an exit after a text, by a whole forward."""
    with torch.no_grad():
        out = draft(torch.tensor([text]), use_cache=False, output_hidden_states=True)
        state = out.hidden_states[layers][0, -1]
        logits = out.logits[0, -1] if layers == DEEP else draft.lm_head(draft.model.norm(state))
    return logits.softmax(-1).tolist()


def naive_rounds(target, draft, prompt, count, gamma, exits, thresholds):
    """`count` greedy rounds, and which exit spoke for each token."""
    text, done, spoke = list(prompt), [], []
    for _ in range(count):
        drafted = []
        while len(drafted) < gamma:
            for layers, threshold in zip((*exits, DEEP), thresholds, strict=True):
                row = said(draft, text + drafted, layers)
                if max(row) >= threshold:
                    break
            drafted.append(row.index(max(row)))
            spoke.append(layers)
            if max(row) < threshold:
                break
        rows = [oracle.next_logits(target, text + drafted[:end]) for end in range(len(drafted) + 1)]
        done.append(oracle.sps_scan(rows, drafted))
        text += oracle.committed(done[-1:])
    return done, spoke


@pytest.mark.parametrize("runtime", (pytest.param(EAGER, marks=LONG), STATIC), ids=lambda one: one.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_equal_those_without_cache(architecture, runtime):
    """Tokens of every exit; deeper layers read what earlier tokens left behind; drafts that end early and in full."""
    target, draft = models(architecture)
    prompt, text = lively(target, 12, 30)
    thresholds = spread(draft, prompt + text)
    expected, spoke = naive_rounds(
        copy.deepcopy(target).cpu(), copy.deepcopy(draft).cpu(), prompt + text[:1], 6, 4, (1, 2), thresholds
    )
    tokens, rounds = decode(method(target, draft, thresholds=thresholds, runtime=runtime), prompt, 30)
    assert tokens == text
    assert_rounds(rounds, expected)
    assert {1, 2, 3} <= set(spoke)
    assert {len(one.drafted) for one in expected} >= {4} and any(len(one.drafted) < 4 for one in expected)


def spread(draft, text):
    """Thresholds that each exit reaches about as often as not."""
    on_cpu = copy.deepcopy(draft).cpu()
    sure = [sorted(max(said(on_cpu, text[:end], layers)) for end in range(12, 36, 3)) for layers in (1, 2, 3)]
    return sure[0][5], sure[1][4], sure[2][1]


def test_no_layer_of_the_draft_reads_a_token_twice_nor_one_that_it_need_not():
    watched, (target, draft) = Told(), models("llama")
    draft = copy.deepcopy(draft)
    read = [0] * DEEP
    for index, layer in enumerate(draft.model.layers):
        layer.self_attn.q_proj.register_forward_hook(
            lambda module, inputs, output, at=index: read.__setitem__(at, read[at] + output.shape[1])
        )
    used = method(target, draft, thresholds=(0.0, 0.0, 0.0), watch=watched)
    prompt, _ = lively(target, 12, 30)
    read[:] = [0] * DEEP
    rounds = used.rounds(prompt, Sampling(), torch.Generator(DEVICE))
    next(rounds)
    assert read == [12] * DEEP and watched.forwards == [("draft", 12, 0), ("target", 12, 0)]
    watched.forwards.clear()
    next(rounds)
    assert read == [16, 12, 12], "the first exit is always sure, so no other layer reads"
    assert watched.forwards == [("draft", 1, at) for at in (12, 13, 14, 15)] + [("target", 5, 12)]
    used.drafter.thresholds = (1.0, 1.0, 0.0)
    length = len(used.drafter.draft)
    one = next(rounds)
    new = len(used.drafter.draft)
    assert [used.drafter.draft.cached(layer) for layer in range(DEEP)] == [new] * DEEP
    assert read[1] == read[2] == 12 + new - 12, "what the first layer had read is made up for, once"
    assert length and one.drafted == 4


@pytest.mark.long
def test_nothing_is_left_of_the_last_prompt():
    target, draft = models("llama")
    prompt, text = lively(target, 12, 30)
    used, sampling = method(target, draft, thresholds=spread(draft, prompt + text)), Sampling(0.9)
    first = decode(used, prompt, 20, sampling, seed=3)
    decode(used, [9, 8, 7], 10)
    assert decode(used, prompt, 20, sampling, seed=3) == first


V = 5


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    target = oracle.tiny("llama", seed=1, vocab=V, num_hidden_layers=2).to(DEVICE)
    draft = oracle.tiny("llama", seed=2, vocab=V, num_hidden_layers=3).to(DEVICE)
    used = method(target, draft, 2, thresholds=(0.35, 0.3, 0.25), runtime=STATIC)
    p, stood, fell = fit(used, target, [1, 3, 2], 3, sampling, 900)
    assert p > ALPHA
    assert stood > 60 and fell > 60


# What it is built of


def test_the_output_layer_alone_says_what_the_model_says():
    """Of the states that leave the last layer; and gradients reach the states."""
    _, draft = models("llama")
    ids = torch.tensor([[5, 7, 11]], device=DEVICE)
    left = []
    hook = draft.model.layers[-1].register_forward_hook(lambda layer, inputs, output: left.append(output))
    with torch.no_grad():
        expected = draft(ids, use_cache=False).logits[0]
    hook.remove()
    states = (left[0][0] if isinstance(left[0], tuple) else left[0]).reshape(3, -1).clone().requires_grad_(True)
    logits = output_of(draft)(states)
    assert torch.allclose(logits, expected, atol=1e-6)
    logits.sum().backward()
    assert states.grad.abs().max() > 0


def test_drafts_that_have_no_such_exits():
    target, draft = models("llama")
    made = Pair("made", {"target": target, "draft": draft}, None)
    with one_line_error("exits has 3, but the draft of made has 3 layers; set s2d.exits and s2d.thresholds"):
        s2d.build(Settings(**{**SHIPPED, "exits": (1, 3)}), made, Unwatched())
    assert s2d.build(Settings(**SHIPPED), made, Unwatched()).reach == 6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 0}, "s2d: gamma"),
        ({"exits": [2, 1]}, "s2d: exits: must be rising numbers of layers"),
        ({"thresholds": [0.9, 1.2, 0.3]}, "s2d: thresholds: must be probabilities"),
        ({"thresholds": [0.9, 0.3]}, "s2d: thresholds: needs one for each of exits"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "s2d", **changes)
