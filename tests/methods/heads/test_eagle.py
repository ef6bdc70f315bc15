"""EAGLE's head and those of HASS, FSPAD and Dovetail: against one without cache; lossless; files."""

import copy
import functools

import naive_eagle
import oracle
import pytest
import torch
from drafted_trees import paths
from gates import decode, lively_prompt, pair
from law import V, fit, small_target
from official import eagle as own
from official_cases import official_cases
from official_heads import official_head
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch
from tiny_heads import feature_states
from weights import stored

from specbench import config
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.feature_head import FeatureHead
from specbench.engine.models.heads import Head
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling, Scored
from specbench.methods.heads.eagle import Settings, feature_head
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.eagle.fit import FeatureTraining, first_head
from specbench_extras.eagle.recipe import FeatureRecipe
from specbench_extras.eagle.train import PRESETS

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
FUSES = ("fc", "gated", "dgf")
LONG = pytest.mark.long
SHORT = ("llama",)
ARCHITECTURES = [one if one in SHORT else pytest.param(one, marks=LONG) for one in oracle.ARCHITECTURES]


def recipe(preset: str, **changes) -> FeatureRecipe:
    facts = {"autocast": False, "learning_rate": 0.01, "warmup": 0.0, "weight_decay": 0.0}
    return FeatureRecipe(**{**load_recipe(f"eagle-{preset}", []).values, **facts, **changes})


def in_file(model: FeatureHead, fuse: str) -> Head:
    """A head as it would be read back."""
    return Head("eagle", stored(model), {"fuse": fuse, "config": stored_settings(model.config)})


def test_trees_are_those_of_its_own_code():
    """32 trees of EAGLE-3's and EAGLE's heads, of four sizes, after a prompt and after three accepted tokens."""
    cases = official_cases("eagle")
    assert [case["kind"] for case in cases] == ["eagle3", "eagle"] * 8
    for case in cases:
        head, text = official_head(case["kind"], case["seed"]), case["text"]
        drafter = EagleDrafter(head, Session(head, "draft", vocabulary=head.config.vocab_size), (), *case["size"])
        states = own.numbers(1000 + case["seed"], 14, (3 if case["kind"] == "eagle3" else 1) * own.WIDTH)
        drafter.begin(text[:10])
        drafter.observe_prompt(text[:10], Scored(states[:0], hidden=states[:10]))
        for end, expected in zip((10, 13), case["rounds"], strict=True):
            if end > 10:
                drafter.unread = head.fuse(states[10:end])
            draft = drafter.propose(text[: end + 1], case["size"][2] + 1, Sampling(), torch.Generator())
            drafted = paths(draft.tokens.tolist(), draft.parents)
            assert set(drafted) == {tuple(path[: level + 1]) for path in expected for level in range(len(path))}


@functools.cache
def noisy(architecture: str, fuse: str) -> FeatureHead:
    """A head with random weights and biases."""
    target = pair(architecture)[0]
    made = first_head(target, 96, fuse, 0)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng).to(parameter.device))
    return feature_head(in_file(made, fuse), target, 96)


@functools.cache
def trained(architecture: str, preset: str = "hass", epochs: int = 30) -> FeatureHead:
    """A head that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    chosen = recipe(preset, epochs=epochs, batch=1, cross_entropy=1.0, clip=10.0)
    run = FeatureTraining(pair(architecture)[0], [Answered("one", prompt + text, len(prompt))], 96, chosen, 0)
    while not run.done:
        run.learn(run.answered)
        run.step += 1
    return feature_head(in_file(run.head, chosen.fuse), pair(architecture)[0], 96)


def method(target, model, total=16, top_k=4, depth=3, session=None) -> Eagle3:
    drafts = Session(model, "draft", vocabulary=model.config.vocab_size)
    drafter = EagleDrafter(model, drafts, LAST, total, top_k, depth)
    return Eagle3(session or Session(target, "target"), drafter, {})


@pytest.mark.parametrize("fuse", FUSES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_equals_one_without_cache(architecture, fuse):
    """Features of the target first, in two parts; then two branches, fed level by level."""
    model, target = noisy(architecture, fuse), Session(pair(architecture)[0], "target")
    output = copy.deepcopy(pair(architecture)[0]).cpu().get_output_embeddings().weight.double()
    text, (left, right) = oracle.prompts(1, length=12)[0], ([3, 5], [3, 9])
    features = target.forward(text[:-1], hidden=LAST).hidden
    session = Session(model, "draft", vocabulary=96)
    rows = [session.forward(text[1:5], features=features[:4]).logits]
    last = session.forward(text[5:], features=features[4:], hidden=LAST)
    rows.append(last.logits)
    first = session.forward([3], parents=[-1], features=last.hidden[-1:], hidden=LAST)
    both = first.hidden.expand(2, -1)
    second = session.forward([left[1], right[1]], parents=[0, 0], features=both, hidden=LAST)
    for branch, path in enumerate((left, right)):
        states, made = feature_states(architecture, model, fuse, text, path)
        expected = torch.stack([output @ state for state in states])
        joined = torch.cat([*rows, first.logits, second.logits[branch : branch + 1]])
        assert torch.allclose(joined.cpu(), expected, atol=1e-4) and expected.std() > 0.5
        assert torch.allclose(second.hidden[branch].cpu(), made[-1], atol=1e-4)


@pytest.mark.parametrize("preset", [PRESETS[0], *(pytest.param(preset, marks=LONG) for preset in PRESETS[1:])])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_texts_are_the_targets(architecture, preset):
    """Random heads, and one that is often right; Gemma 2's window of 16 is crossed."""
    target = pair(architecture)[0]
    prompt, text = lively_prompt(architecture, 12, 30)
    assert decode(method(target, noisy(architecture, recipe(preset).fuse)), prompt, 20)[0] == text[:20]
    tokens, rounds = decode(method(target, trained(architecture, preset)), prompt, 30)
    assert tokens == text and max(round_.accepted for round_ in rounds) >= 2
    other = oracle.prompts(1, length=20, seed=9)[0]
    expected = oracle.greedy(copy.deepcopy(target).cpu(), other, 8)
    assert decode(method(target, trained(architecture, preset)), other, 8)[0] == expected


@pytest.mark.long
@pytest.mark.parametrize("fuse", FUSES)
def test_drafts_equal_those_without_cache(monkeypatch, fuse):
    """After full, partial and no acceptance: which features are read, and with which tokens, shows in the tree."""
    preset = {"fc": "hass", "gated": "fspad", "dgf": "dovetail"}[fuse]
    model, target, drafts = trained("llama", preset), pair("llama")[0], []
    output = target.get_output_embeddings().weight.detach().cpu().double()
    propose = EagleDrafter.propose

    def spied(self, context, *others):
        drafts.append((list(context), propose(self, context, *others)))
        return drafts[-1][1]

    monkeypatch.setattr(EagleDrafter, "propose", spied)
    decode(method(target, model, 12, 3, 2), lively_prompt("llama", 12, 30)[0], 20)
    for context, draft in drafts[:6]:

        def after(path, context=context):
            return (output @ feature_states("llama", model, fuse, context, list(path))[0][-1]).tolist()

        drafted = paths(draft.tokens.tolist(), draft.parents)
        assert drafted == naive_eagle.tree(after, 3, 2, 11)


# Sampling


def drawn(fuse, sampling, draws=450):
    """How texts of three tokens fit the target's law: the joint law of what two rounds commit."""
    target = small_target()
    model = feature_head(in_file(first_head(target, V, fuse, 2), fuse), target, V)
    return fit(method(target, model, 8, 3, 1, recalled(target, "target")), target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("fuse", FUSES)
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(fuse, sampling):
    p, stood, fell = drawn(fuse, sampling)
    assert p > ALPHA
    assert stood > 60 and fell > 60


@pytest.mark.long
def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert drawn("fc", Sampling(1.0))[0] < ALPHA


# Files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, facts: facts.update(fuse="sum"), "it fuses by sum"),
        (lambda t, facts: facts.pop("fuse"), "'fuse'"),
        (lambda t, facts: t.update({"fc.weight": t["fc.weight"][:, :5]}), "fc.weight"),
        (lambda t, facts: facts["config"].pop("head_dim"), "'head_dim'"),
        (lambda t, facts: t.clear(), "gate_proj"),
    ],
)
def test_tensors_that_are_no_head(change, words):
    good = in_file(noisy("llama", "fc"), "fc")
    tensors, facts = dict(good.tensors), {"fuse": "fc", "config": dict(good.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "train or import it again"):
        feature_head(Head("eagle", tensors, facts), pair("llama")[0], 96)


def test_the_settings_are_the_official_codes():
    for preset in PRESETS:
        values = config.load_method(preset).values
        assert values == {"total_tokens": 60, "top_k": 10, "depth": 5, "head": "auto", "recipe": preset}
        assert Settings(**values)
