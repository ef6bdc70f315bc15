"""Chimera's head: against one without cache; lossless, greedy and sampled; files; training steps."""

import copy
import functools

import naive_chimera as naive
import naive_eagle
import oracle
import pytest
import torch
from builders_engine import build
from drafted_trees import paths
from gates import DEVICE, decode, lively_prompt, pair
from law import V, fit, small_target
from made_documents import own_answers
from recalled import recalled
from refusals import one_line_error
from torch.nn import functional as F
from weights import stored, weights_of

from specbench import config
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import read_prompt
from specbench.engine.types import Sampling
from specbench.methods.heads.eagle3 import Eagle3
from specbench.training.answered import Answered, blocks
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.chimera.chimera import ChimeraDrafter, Settings, chimera_head
from specbench_extras.chimera.chimera_head import ChimeraHead
from specbench_extras.chimera.fit import ChimeraTraining, first_head
from specbench_extras.eagle.recipe import StateRecipe

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
LONG = pytest.mark.long
SHORT = ("llama",)
ARCHITECTURES = [one if one in SHORT else pytest.param(one, marks=LONG) for one in oracle.ARCHITECTURES]
HEADS = {"opt": (4, 1)}  # attention heads of the tiny models, and how many share a key


def recipe(**changes) -> StateRecipe:
    facts = {"autocast": False, "learning_rate": 0.01, "warmup": 0.0}
    return StateRecipe(**{**load_recipe("chimera", []).values, **facts, **changes})


def in_file(model: ChimeraHead) -> Head:
    """A head as it would be read back."""
    tensors = stored(model)
    return Head("chimera", tensors, {"config": stored_settings(model.config)})


@functools.cache
def noisy(architecture: str) -> ChimeraHead:
    """A head whose residual block, norms and two halves of the output layer all say something of their own."""
    target = pair(architecture)[0]
    made = first_head(target, 96, 0)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 1 or name.startswith("trimlp.0") or name.startswith("chimera_head"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng).to(parameter.device))
    return chimera_head(in_file(made), target, 96)


@functools.cache
def trained(architecture: str, epochs: int = 30) -> ChimeraHead:
    """A head that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    chosen = recipe(epochs=epochs, batch=1, clip=10.0)
    run = ChimeraTraining(pair(architecture)[0], [Answered("one", prompt + text, len(prompt))], 96, chosen, 0)
    while not run.done:
        run.learn(run.answered)
        run.step += 1
    return chimera_head(in_file(run.head), pair(architecture)[0], 96)


def method(target, model, total=16, top_k=4, depth=3, session=None) -> Eagle3:
    drafts = Session(model, "draft", vocabulary=model.config.vocab_size)
    drafter = ChimeraDrafter(model, drafts, LAST, total, top_k, depth)
    return Eagle3(session or Session(target, "target"), drafter, {})


@functools.cache
def on_cpu(architecture: str):
    return copy.deepcopy(pair(architecture)[0]).cpu()


def naive_drafted(architecture: str, model: ChimeraHead, text: list[int], drafted: list[int]):
    """The head's state and logits after a text that the target has read but for its last token, then drafted tokens."""
    target = on_cpu(architecture)
    with torch.no_grad():
        seen = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
    weights = weights_of(model)
    layer = target.get_input_embeddings()
    table = layer.weight.detach().double() * float(getattr(layer, "embed_scale", 1.0))
    heads = HEADS.get(architecture, (4, 2))
    return naive.drafted(weights, table, [*text, *drafted], seen.double(), *heads)


@pytest.mark.parametrize("length", (2, 3, 12))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_head_equals_one_without_cache(architecture, length):
    """After texts that are too short for three tokens, too; two branches of a tree, fed level by level."""
    model, target = noisy(architecture), Session(pair(architecture)[0], "target")
    text, (left, right) = oracle.prompts(1, length=12)[0][:length], ([3, 5], [3, 9])
    session = Session(model, "draft", vocabulary=96)
    drafter = ChimeraDrafter(model, session, LAST, 16, 4, 3)
    drafter.begin(text[:-1])
    read_prompt(target, drafter, text[:-1])
    features = drafter.features(text)
    root = session.forward(text[-len(features) :], keep=1, hidden=LAST, features=features)
    first = session.forward([3], parents=[-1], features=root.hidden[-1:], hidden=LAST)
    both = first.hidden.expand(2, -1)
    second = session.forward([left[1], right[1]], parents=[0, 0], features=both, hidden=LAST)
    for branch, path in enumerate((left, right)):
        expected = torch.stack([naive_drafted(architecture, model, text, path[:count])[1] for count in range(3)])
        joined = torch.cat([root.logits, first.logits, second.logits[branch : branch + 1]])
        assert torch.allclose(joined.cpu(), expected, atol=1e-4) and expected.std() > 0.5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_texts_are_the_targets(architecture):
    """A random head, and one that is often right; Gemma 2's window of 16 is crossed."""
    target = pair(architecture)[0]
    prompt, text = lively_prompt(architecture, 12, 30)
    assert decode(method(target, noisy(architecture)), prompt, 20)[0] == text[:20]
    tokens, rounds = decode(method(target, trained(architecture)), prompt, 30)
    assert tokens == text and max(round_.accepted for round_ in rounds) >= 2
    for length in (1, 20):
        other = oracle.prompts(1, length=length, seed=9)[0]
        expected = oracle.greedy(on_cpu(architecture), other, 8)
        assert decode(method(target, trained(architecture)), other, 8)[0] == expected


def test_drafts_equal_those_without_cache(monkeypatch):
    """After full, partial and no acceptance: which states and encodings are read shows in the tree."""
    model, target, drafts = trained("llama"), pair("llama")[0], []
    propose = ChimeraDrafter.propose

    def spied(self, context, *others):
        drafts.append((list(context), propose(self, context, *others)))
        return drafts[-1][1]

    monkeypatch.setattr(ChimeraDrafter, "propose", spied)
    _, rounds = decode(method(target, model, 12, 3, 2), lively_prompt("llama", 12, 30)[0], 20)
    assert len({round_.accepted for round_ in rounds[1:6]}) > 1
    for context, draft in drafts[:5]:

        def after(path, context=context):
            return naive_drafted("llama", model, context, list(path))[1].tolist()

        assert paths(draft.tokens.tolist(), draft.parents) == naive_eagle.tree(after, 3, 2, 11)


# Sampling


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    """How texts of three tokens fit the target's law: the joint law of what two rounds commit."""
    target = small_target()
    model = chimera_head(in_file(first_head(target, V, 2)), target, V)
    drawn = method(target, model, 8, 3, 1, recalled(target, "target"))
    p, stood, fell = fit(drawn, target, [1, 3, 2], 3, sampling, 450)
    assert p > ALPHA
    assert stood > 60 and fell > 60


# Training


def answered() -> list[Answered]:
    """One prompt has a single token."""
    return own_answers(pair("llama")[0], (6, 1, 5), (4, 6, 2))


def test_the_losses_of_all_steps_are_those_of_a_head_without_cache():
    """Regression on the target's state after the token that is read, and cross-entropy with its distribution."""
    target, steps = pair("llama")[0], 3
    run = ChimeraTraining(target, answered(), 96, recipe(steps=steps, batch=3, regression=0.7, cross_entropy=0.3), 0)
    run.head.load_state_dict(noisy("llama").state_dict())
    expected, places = [0.0] * steps, 0
    for one in answered():
        with torch.no_grad():
            out = on_cpu("llama")(torch.tensor([one.tokens]), use_cache=False, output_hidden_states=True)
        for place in range(one.prompt - 1, len(one.tokens) - 2):
            places += 1
            for step in range(min(steps, len(one.tokens) - 2 - place)):
                path = one.tokens[place + 2 : place + 2 + step]
                state, logits = naive_drafted("llama", run.head, one.tokens[: place + 2], path)
                wanted, p = out.hidden_states[-1][0, place + 1 + step], out.logits[0, place + 1 + step].softmax(-1)
                expected[step] += 0.7 * float(F.smooth_l1_loss(state, wanted))
                expected[step] -= 0.3 * float((p * logits.log_softmax(-1)).sum())
    (block,) = blocks(answered(), target.device)
    with torch.no_grad():
        results = [float(loss) for loss in run.losses(block)]
    assert results == pytest.approx(expected, rel=1e-3)
    assert run.learn(answered()) == pytest.approx(sum(expected) / places, rel=1e-3)


def test_an_untrained_head_says_what_the_target_said_last_and_its_own_state():
    """The output layer is the target's twice, and the residual block passes on what it reads."""
    target = pair("llama")[0]
    head, output = first_head(target, 96, 0), target.get_output_embeddings().weight.float()
    state, own = torch.randn(2, 1, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)[..., : output.shape[1]]
    assert torch.allclose(head.predict(torch.cat([state, own], -1)), (state + own) @ output.T, atol=1e-5)
    read = torch.randn(1, 3 * output.shape[1], generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert torch.equal(head.trimlp[0](read), read)


def test_the_recipe_is_the_official_codes_and_its_sources_are_named():
    raw = recipes()["chimera"]
    chosen = StateRecipe(**load_recipe("chimera", []).values)
    assert (chosen.epochs, chosen.batch, chosen.learning_rate, chosen.warmup, chosen.length) == (
        2,
        32,
        2e-4,
        0.01,
        1024,
    )
    assert raw.read_text().count("source:") == len(StateRecipe.model_fields)
    values = config.load_method("chimera").values
    assert values == {"total_tokens": 60, "top_k": 10, "depth": 5, "head": "auto"}
    assert Settings(**values)


# Files


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, facts: t.update({"trimlp.1.weight": t["trimlp.1.weight"][:, :5]}), "size mismatch for trimlp.1"),
        (lambda t, facts: t.pop("chimera_head.0.0.weight"), "Missing key"),
        (lambda t, facts: facts["config"].pop("head_dim"), "'head_dim'"),
        (lambda t, facts: facts.pop("config"), "'config'"),
        (lambda t, facts: t.clear(), "gate_proj"),
    ],
)
def test_tensors_that_are_no_head(change, words):
    good = in_file(noisy("llama"))
    tensors, facts = dict(good.tensors), {"config": dict(good.trained["config"])}
    change(tensors, facts)
    with one_line_error(words, "train or import it again"):
        chimera_head(Head("chimera", tensors, facts), pair("llama")[0], 96)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"depth": -1}, "chimera: depth"), ({"head": "gone"}, "there is no head gone")],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "chimera", **changes)
