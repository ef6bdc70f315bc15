"""DEL: the rule by hand, rounds against a second implementation without cache; lossless; files."""

import copy
import functools
import json
import math

import naive_del
import naive_kangaroo
import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, decode, lively
from judging import assert_rounds
from law import fit
from official_cases import official_cases
from refusals import one_line_error
from torch import nn
from watched import Told
from weights import weights_of

from pocket.corpus import prompt_and_completion
from specbench import config
from specbench.engine import accept
from specbench.engine.layer_session import LayerSession
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import Head, find_head
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Sampling
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.del_ import del_
from specbench_extras.del_.del_ import (
    DynamicDrafter,
    DynamicExit,
    Settings,
    Shadows,
    best_choice,
    exit_adapters,
    until_wrong,
)
from specbench_extras.del_.recipe import DelRecipe
from specbench_extras.kangaroo.train import AdapterTraining, first_adapter

ALPHA = 1e-4  # of a right rule being refused; a wrong one must fall below it
SHIPPED = config.load_method("del").values
LONG = pytest.mark.long
SHORT = ("llama",)
ARCHITECTURES = [one if one in SHORT else pytest.param(one, marks=LONG) for one in oracle.ARCHITECTURES]
SHAPES = {"opt": (4, 1)}  # heads of the tiny models, and how many share a key
DEEP = 4
EXITS = [1, 2, 3]


# The rule


@pytest.mark.parametrize(
    ("agreements", "exits", "layers", "most", "expected"),
    [
        # One layer of 4: 1/4, 1.5/5, 1.75/6. Two: 1/4, 1.8/6, 2.44/8.
        ((0.5, 0.8), (1, 2), 4, 2, (1, 2)),
        # Two: 1/4, 1.7/6, 2.19/8. Now 1.5/5 of the first exit is the most.
        ((0.5, 0.7), (1, 2), 4, 2, (0, 1)),
        ((0.0, 0.0), (1, 2), 4, 2, (0, 0)),  # 1/4 without a draft, else 1/5 and less
        ((0.25, 0.5), (1, 2), 4, 2, (0, 0)),  # 1/4 all along: 1.25/5 and 1.5/6 are no more
        # (1 - 0.9^n) / 0.1 / (10 + 2n) for n = γ + 1 = 7, 8, 9: 0.2174, 0.2191, 0.2188.
        ((0.9,), (2,), 12, 17, (0, 7)),
        ((0.9,), (2,), 12, 3, (0, 3)),
    ],
)
def test_the_choice_has_the_most_tokens_per_layer(agreements, exits, layers, most, expected):
    assert best_choice(agreements, exits, layers, most) == expected


def test_choices_and_thresholds_are_those_of_its_own_code():
    """Eight rounds of 8 models, shadow tokens of the prompt among those of the first."""
    drafting = 0
    for case in official_cases("del"):
        exits, choice = list(range(1, case["layers"])), (0, 1)
        shadows = Shadows(len(exits), 0.95)
        for each in case["rounds"]:
            assert each["before"] == [exits[choice[0]], choice[1]]
            right, chances = np.array(each["right"]) == 1, np.array(each["chances"])
            text, after = (right[:, : each["prompt"]], chances[:, : each["prompt"]]), slice(each["prompt"], None)
            told = (right[:, after], chances[:, after])
            if choice[1]:
                told = until_wrong(*told, choice[0])
                drafting += 1
            shadows.add(*(np.concatenate(both, 1) for both in zip(text, told, strict=True)))
            choice = best_choice(shadows.agreements(), exits, case["layers"], 17)
            assert [exits[choice[0]], choice[1]] == each["chosen"]
            threshold = shadows.threshold(choice[0])
            assert (
                math.isnan(threshold)
                if each["threshold"] is None
                else threshold == pytest.approx(each["threshold"], abs=1e-5)
            )
    assert drafting > 20


def test_statistics_fade_and_the_threshold_lies_between_right_and_wrong_tokens():
    shadows = Shadows(2, 0.5)
    shadows.add(np.array([[True, False], [True, True]]), np.array([[0.9, 0.4], [0.6, 0.8]]))
    assert shadows.agreements() == [0.5, 1.0]
    assert shadows.threshold(0) == pytest.approx((0.9 + 0.4) / 2)
    assert math.isnan(shadows.threshold(1)), "none was wrong yet, so no token is too unsure"
    shadows.add(np.array([[True], [False]]), np.array([[0.7], [0.2]]))
    assert shadows.agreements() == [1.5 / 2, 1 / 2]  # 0.5 + 1 of 1 + 1, and 1 + 0 of 1 + 1
    assert shadows.threshold(0) == pytest.approx(((0.45 + 0.7) / 1.5 + 0.2 / 0.5) / 2)
    assert shadows.threshold(1) == pytest.approx(((0.3 + 0.4) / 1 + 0.2) / 2)


# Rounds


@functools.cache
def deep(architecture: str):
    return oracle.tiny(architecture, num_hidden_layers=DEEP).to(DEVICE)


def in_file(adapters: nn.ModuleDict) -> Head:
    """Adapters as they would be read back."""
    tensors = {name: tensor.detach().cpu() for name, tensor in adapters.state_dict().items()}
    stored = stored_settings(next(iter(adapters.values())).config)
    return Head("del", tensors, {"exits": [int(before) for before in adapters], "config": stored})


@functools.cache
def trained(architecture: str, epochs: int = 30):
    """Adapters after each layer that have learned the text of one prompt, some better than others."""
    prompt, text = lively(deep(architecture), 12, 30)
    changes = {"every": 1, "epochs": epochs, "batch": 1, "learning_rate": 0.02, "warmup": 0.0}
    recipe = DelRecipe(**{**load_recipe("del", []).values, **changes})
    run = AdapterTraining(deep(architecture), [Answered("one", prompt + text, len(prompt))], recipe, 0)
    while not run.done:
        run.learn(run.answered)
        run.step += 1
    return exit_adapters(in_file(run.head), deep(architecture))


def method(target, adapters, runtime=EAGER, watch=None, **changes) -> DynamicExit:
    watch = watch or Unwatched()
    settings = Settings(**{**SHIPPED, "gamma": 5, "memory": 0.6, "prompt": 4, **changes})
    session = LayerSession(target, "target", watch, runtime=runtime)
    sessions = [Session(adapter, "draft", runtime=runtime) for adapter in adapters.values()]
    return DynamicExit(session, DynamicDrafter(session, sessions, list(adapters), settings, watch), {})


def watching(used: DynamicExit) -> list[tuple[int, int]]:
    """The choice of each round, as it begins."""
    chosen, propose = [], used.drafter.propose

    def noted(*given):
        chosen.append(used.drafter.choice)
        return propose(*given)

    used.drafter.propose = noted
    return chosen


@pytest.mark.parametrize("runtime", (pytest.param(EAGER, marks=LONG), STATIC), ids=lambda one: one.name)
@pytest.mark.parametrize("bound", ("both", pytest.param("tpl", marks=LONG), pytest.param("confidence", marks=LONG)))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_and_choices_equal_those_without_cache(architecture, bound, runtime):
    """Drafts of several lengths from several exits; full, partial and no acceptance; beyond Gemma 2's window."""
    target, adapters = deep(architecture), trained(architecture)
    prompt, text = lively(target, 12, 30)
    on_cpu = copy.deepcopy(target).cpu()
    weights = [weights_of(adapter) for adapter in adapters.values()]

    @functools.cache
    def said(index, tokens):
        row = naive_kangaroo.logits(
            weights[index], on_cpu, EXITS[index], list(tokens), *SHAPES.get(architecture, (4, 2))
        )
        return row.softmax(-1).tolist()

    used = method(target, adapters, runtime, bound=bound)
    chosen = watching(used)
    tokens, rounds = decode(used, prompt, 30)
    assert tokens == text
    expected, choices = naive_del.rounds(
        lambda index, tokens: said(index, tuple(tokens)),
        functools.partial(oracle.next_logits, on_cpu),
        EXITS,
        DEEP,
        prompt,
        text[0],
        min(8, len(rounds) - 2),
        5,
        0.6,
        4,
        bound,
    )
    assert_rounds(rounds, expected)
    assert chosen[: len(choices)] == choices and len(set(choices)) > 1
    judged = [round_ for round_ in rounds[1:-1] if round_.verdict]
    assert any(one.accepted == one.drafted > 0 for one in judged)
    assert any(one.accepted < one.drafted for one in judged) and max(one.drafted for one in judged) >= 2


@pytest.mark.long
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_greedy_texts_are_the_targets(architecture):
    target = deep(architecture)
    on_cpu = copy.deepcopy(target).cpu()
    for adapters in (untrained(target), trained(architecture)):
        for prompt in (oracle.prompts(1, length=18, seed=9)[0], [5]):
            for bound in ("both", "confidence"):
                expected = oracle.greedy(on_cpu, prompt, 12)
                assert decode(method(target, adapters, bound=bound), prompt, 12)[0] == expected


def untrained(target):
    layers = target.config.num_hidden_layers
    return exit_adapters(in_file(nn.ModuleDict({str(i): first_adapter(target, i) for i in range(1, layers)})), target)


def test_nothing_of_the_target_is_computed_twice():
    """Each layer reads the committed token and the draft once; a round without a draft is one forward."""
    watched, target = Told(), copy.deepcopy(deep("llama"))
    read = [0] * DEEP
    for index, layer in enumerate(target.model.layers):
        layer.self_attn.q_proj.register_forward_hook(
            lambda module, inputs, output, at=index: read.__setitem__(at, read[at] + output.shape[1])
        )
    used = method(target, trained("llama"), watch=watched)
    prompt, _ = lively(deep("llama"), 12, 30)
    read[:] = [0] * DEEP
    rounds = used.rounds(prompt, Sampling(), torch.Generator(DEVICE))
    length = 12 + len(next(rounds).tokens)
    assert watched.forwards == [("target", 12, 0), ("draft", 12, 0)] and read == [12] * DEEP
    for _ in range(5):
        watched.forwards.clear()
        read[:] = [0] * DEEP
        one = next(rounds)
        count = len(one.verdict.drafted)
        assert [role for role, _, _ in watched.forwards] == ["draft"] * count + ["target", "draft"]
        assert watched.forwards[count:] == [
            ("target", count + 1, length - 1),
            ("draft", one.verdict.accepted + 1, length - 1),
        ]
        assert read == [count + 1] * DEEP
        length += len(one.tokens)


@pytest.mark.long
def test_nothing_is_left_of_the_last_prompt():
    used, sampling = method(deep("llama"), trained("llama")), Sampling(0.9)
    prompt, _ = lively(deep("llama"), 12, 30)
    first = decode(used, prompt, 20, sampling, seed=3)
    decode(used, [9, 8, 7], 10)
    assert decode(used, prompt, 20, sampling, seed=3) == first
    assert first == decode(method(deep("llama"), trained("llama")), prompt, 20, sampling, seed=3)


def test_a_draft_whose_length_is_none_leaves_plain_decoding():
    """Exits that are never right are given up; their shadow tokens go on being counted."""
    target = deep("llama")
    adapters = untrained(target)
    for adapter in adapters.values():
        adapter.norm.weight.data.neg_()
    used = method(target, adapters, bound="tpl")
    prompt, text = lively(target, 12, 30)
    tokens, rounds = decode(used, prompt, 12)
    assert tokens == text[:12] and sum(round_.drafted for round_ in rounds[1:]) <= 3
    assert used.drafter.shadows.counts.sum() > 3


# Sampling

V = 5


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=1, vocab=V, num_hidden_layers=3).to(DEVICE)


def drawn(sampling, draws, bound):
    """How texts of four tokens fit the target's law: the joint law of what the rounds commit."""
    target = sampled_model()
    used = method(target, untrained(target), STATIC, gamma=2, bound=bound, memory=0.5)
    return fit(used, target, [1, 3, 2], 4, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("bound", ("both", "confidence"))
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling, bound):
    p, stood, fell = drawn(sampling, 1500, bound)
    assert p > ALPHA
    assert stood > 60 and fell > 60


@pytest.mark.long
def test_a_correction_from_the_whole_distribution_is_found(monkeypatch):
    """The residual must be that of p - q; a draw from p itself counts what was drafted twice."""
    monkeypatch.setattr(accept, "residual", lambda p, q: p)
    assert drawn(Sampling(1.0), 1500, "confidence")[0] < ALPHA


# Files


def of_layer(tensors, before, after):
    """The tensors of an adapter, taken out, by the names that they have after another layer."""
    names = [name for name in tensors if name.startswith(f"{before}.")]
    return {name.replace(f"{before}.", f"{after}.", 1): tensors.pop(name) for name in names}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, facts: (t.update(of_layer(t, 3, 4)), facts.update(exits=[1, 2, 4])), "its exit is no layer of 4"),
        (lambda _, facts: facts.update(exits=[2, 1, 3]), "not in order"),
        (lambda _, facts: facts.update(exits=[]), "not in order"),
        (lambda _, facts: facts.update(exits=[1, 2]), "3.self_attn.q_proj.weight belongs to no exit"),
        (lambda _, facts: facts.pop("exits"), "'exits'"),
        (lambda t, _: t.pop("2.norm.weight"), "Missing key(s)"),
        (lambda _, facts: facts["config"].pop("head_dim"), "'head_dim'"),
    ],
)
def test_tensors_that_are_no_adapters(change, words):
    good = in_file(nn.ModuleDict({str(i): first_adapter(deep("llama"), 0) for i in EXITS}))
    tensors, facts = dict(good.tensors), {"exits": EXITS, "config": dict(good.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "the head for del is damaged", "train or import it again"):
        exit_adapters(Head("del", tensors, facts), deep("llama"))


def test_the_settings_are_the_official_codes():
    assert SHIPPED == {"gamma": 17, "memory": 0.95, "prompt": 32, "bound": "both", "head": "auto"}


# The shipped adapters


@pytest.mark.parametrize("family", ("gsm8k", pytest.param("cnndm", marks=LONG)))
def test_the_shipped_adapters_beat_their_untrained_selves(pocket, family):
    """On a test document, which they did not learn: other rounds, the same text. Deeper exits agree more often."""
    head = find_head("auto", "del", pocket, None)
    figures = head.trained["held_out_agreement"], head.trained["held_out_agreement_untrained"]
    assert head.trained["exits"] == [2, 4, 6, 8, 10]
    margins = (0.25, 0.25, 0.2, 0.15, 0.0)  # the untrained ones of deep exits agree often
    assert all(after > before + margin for after, before, margin in zip(*figures, margins, strict=True))
    assert figures[0] == sorted(figures[0])
    lines = (config.SUITES / "tasks" / "pocket" / f"{family}_test.jsonl").read_text().splitlines()
    prompt = pocket.tokenizer(prompt_and_completion(family, json.loads(lines[3]))[0])["input_ids"]
    text = oracle.greedy(pocket.models["target"], prompt, 20)
    built = del_.build(Settings(**SHIPPED), pocket, Unwatched())
    tokens, rounds = decode(built, prompt, 20)
    assert tokens == text and len(rounds) <= 18


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma": 0}, "del: gamma"),
        ({"memory": 0}, "del: memory"),
        ({"bound": "none"}, "del: bound"),
        ({"head": "gone"}, "there is no head gone"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "del", **changes)
