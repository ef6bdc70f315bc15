"""Kangaroo: rounds against a second implementation without cache; lossless; nothing is computed twice."""

import copy
import functools
import json
import types

import naive_kangaroo as naive
import oracle
import pytest
import torch
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from judging import assert_rounds
from law import fit
from refusals import one_line_error
from watched import Told
from weights import stirred, stored, weights_of

from pocket.corpus import prompt_and_completion
from specbench import config
from specbench.engine import accept
from specbench.engine.layer_session import LayerSession
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.exit_adapter import ExitAdapter
from specbench.engine.models.heads import Head, find_head
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Sampling
from specbench.methods.layers import kangaroo
from specbench.methods.layers.kangaroo import ExitDrafter, Kangaroo, exit_adapter
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.kangaroo.recipe import KangarooRecipe
from specbench_extras.kangaroo.train import AdapterTraining, first_adapter

ALPHA = 1e-4  # of a right rule being refused; a wrong one must fall below it
SHIPPED = config.load_method("kangaroo").values
LONG = pytest.mark.long
SHORT = ("llama",)
ARCHITECTURES = [one if one in SHORT else pytest.param(one, marks=LONG) for one in oracle.ARCHITECTURES]
SHAPES = {"opt": (4, 1)}  # heads of the tiny models, and how many share a key


def in_file(model: ExitAdapter, exit_layer: int = 1) -> Head:
    """An adapter as it would be read back."""
    return Head("kangaroo", stored(model), {"exit": exit_layer, "config": stored_settings(model.config)})


def adapter(target, seed: int = 0) -> ExitAdapter:
    """An adapter with random weights."""
    return exit_adapter(in_file(stirred(first_adapter(target, seed), seed)), target)[0]


@functools.cache
def trained(architecture: str, epochs: int = 16) -> ExitAdapter:
    """An adapter that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    changes = {"exit": 1, "epochs": epochs, "batch": 1, "learning_rate": 0.02, "warmup": 0.0}
    recipe = KangarooRecipe(**{**load_recipe("kangaroo", []).values, **changes})
    run = AdapterTraining(pair(architecture)[0], [Answered("one", prompt + text, len(prompt))], recipe, 0)
    while not run.done:
        run.learn(run.answered)
        run.step += 1
    return exit_adapter(in_file(run.head["1"]), pair(architecture)[0])[0]


def method(target, model, gamma=5, threshold=0.5, runtime=EAGER, watch=None) -> Kangaroo:
    watch = watch or Unwatched()
    session = LayerSession(target, "target", watch, runtime=runtime)
    drafter = ExitDrafter(session, Session(model, "draft", runtime=runtime), 1, threshold, watch)
    return Kangaroo(session, drafter, gamma, {})


@pytest.mark.parametrize("runtime", (pytest.param(EAGER, marks=LONG), STATIC), ids=lambda one: one.name)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_equal_those_without_cache(architecture, runtime):
    """Drafts that end by the threshold and by γ; full, partial and no acceptance; beyond Gemma 2's window."""
    prompt, text = lively_prompt(architecture, 12, 30)
    target, model = pair(architecture)[0], trained(architecture)
    on_cpu = copy.deepcopy(target).cpu()
    first = oracle.greedy(on_cpu, prompt, 1)
    shape = SHAPES.get(architecture, (4, 2))
    expected = naive.rounds(weights_of(model), on_cpu, 1, prompt + first, 6, 4, 0.2, shape)
    tokens, rounds = decode(method(target, model, 4, 0.2, runtime), prompt, 30)
    assert tokens == text
    assert_rounds(rounds, expected)
    judged = [round_ for round_ in rounds[1:-1] if round_.verdict]
    assert any(one.accepted == one.drafted for one in judged), "the adapter reads two tokens then"
    assert any(one.accepted < one.drafted for one in judged) and max(one.drafted for one in judged) >= 2


def test_nothing_is_computed_twice_and_each_token_is_drafted_by_one_forward():
    """By counts of the tokens that each layer of the target reads: as many as the text and the rejected drafts have."""
    watched, target = Told(), copy.deepcopy(pair("llama")[0])
    read = [0, 0]
    for index, layer in enumerate(target.model.layers):
        layer.self_attn.q_proj.register_forward_hook(
            lambda module, inputs, output, at=index: read.__setitem__(at, read[at] + output.shape[1])
        )
    used = method(target, trained("llama"), watch=watched)
    prompt, text = lively_prompt("llama", 12, 30)
    read[:] = [0, 0]
    rounds = used.rounds(prompt, GREEDY, torch.Generator(DEVICE))
    committed = [*next(rounds).tokens]
    assert watched.forwards == [("target", 12, 0), ("draft", 12, 0)] and read == [12, 12]
    for _ in range(5):
        watched.forwards.clear()
        read[:], length = [0, 0], 12 + len(committed)
        one = next(rounds)
        count = len(one.verdict.drafted)
        committed += one.tokens
        assert [role for role, _, _ in watched.forwards] == ["draft"] * count + ["target"]
        assert watched.forwards[-1][1:] == (count + 1, length - 1) and count < used.reach
        assert read == [count + 1, count + 1], "the committed token and the draft, once in every layer"
    assert committed == text[: len(committed)]


@pytest.mark.long
def test_nothing_is_left_of_the_last_prompt():
    used, sampling = method(pair("llama")[0], trained("llama")), Sampling(0.9)
    prompt, _ = lively_prompt("llama", 12, 30)
    first = decode(used, prompt, 20, sampling, seed=3)
    assert decode(used, [5], 10)[0] == oracle.greedy(copy.deepcopy(pair("llama")[0]).cpu(), [5], 10)
    assert decode(used, prompt, 20, sampling, seed=3) == first
    assert first == decode(method(pair("llama")[0], trained("llama")), prompt, 20, sampling, seed=3)


# Sampling

V = 5


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=1, vocab=V, num_hidden_layers=2).to(DEVICE)


def drawn(sampling, draws):
    """How texts of three tokens fit the target's law: the joint law of what two rounds commit."""
    target = sampled_model()
    return fit(method(target, adapter(target, 2), 2, 0.4, STATIC), target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    p, stood, fell = drawn(sampling, 450)
    assert p > ALPHA
    assert stood > 60 and fell > 60


@pytest.mark.long
def test_a_correction_from_the_whole_distribution_is_found(monkeypatch):
    """The residual must be that of p - q; a draw from p itself counts what was drafted twice."""
    monkeypatch.setattr(accept, "residual", lambda p, q: p)
    assert drawn(Sampling(1.0), 450)[0] < ALPHA


def test_states_that_are_one_token_late_are_found():
    """The defect that a wrong hand-over of states would be."""
    used = method(pair("llama")[0], trained("llama"), threshold=0.01)
    prompt, text = lively_prompt("llama", 12, 30)
    score = used.score

    def late(*given):
        used.drafter.ahead = used.drafter.ahead.roll(1, 0)
        return score(*given)

    used.score = late
    assert decode(used, prompt, 12)[0] != text[:12]


# Files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, facts: facts.update(exit=2), "its exit is no layer of 2"),
        (lambda _, facts: facts.pop("exit"), "'exit'"),
        (lambda t, _: t.update({"norm.weight": t["norm.weight"][:5]}), "norm.weight"),
        (lambda _, facts: facts["config"].pop("head_dim"), "'head_dim'"),
        (lambda _, facts: facts["config"].update(num_attention_heads=3), "validate_architecture"),
    ],
)
def test_tensors_that_are_no_adapter(change, words):
    good = in_file(adapter(pair("llama")[0]))
    tensors, facts = dict(good.tensors), {"exit": 1, "config": dict(good.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "train or import it again"):
        exit_adapter(Head("kangaroo", tensors, facts), pair("llama")[0])


def test_targets_whose_states_are_not_as_wide_as_the_output_layer():
    odd = oracle.tiny("opt", word_embed_proj_dim=16)
    lonely = types.SimpleNamespace(models={"target": odd}, name="odd")
    with one_line_error("OPTForCausalLM has 32 and 16; choose another target"):
        kangaroo.build(kangaroo.Settings(**SHIPPED), lonely, None)


def test_the_settings_are_the_official_codes():
    assert SHIPPED == {"gamma": 6, "threshold": 0.6, "head": "auto"}


# The shipped adapter


@pytest.mark.parametrize("family", ("gsm8k", "cnndm"))
def test_the_shipped_adapter_beats_its_untrained_self(pocket, family):
    """On a test document, which it did not learn: other rounds, the same text."""
    head = find_head("auto", "kangaroo", pocket, kangaroo.SHAPES)
    assert head.trained["held_out_agreement"] > head.trained["held_out_agreement_untrained"] + 0.4
    lines = (config.SUITES / "tasks" / "pocket" / f"{family}_test.jsonl").read_text().splitlines()
    prompt = pocket.tokenizer(prompt_and_completion(family, json.loads(lines[3]))[0])["input_ids"]
    text = oracle.greedy(pocket.models["target"], prompt, 20)
    built = kangaroo.build(kangaroo.Settings(**SHIPPED), pocket, Unwatched())
    tokens, rounds = decode(built, prompt, 20)
    assert tokens == text and len(rounds) <= 14
