"""Medusa and Hydra: trees and rounds against a second implementation without cache; lossless."""

import copy
import functools
import types

import naive_draft_heads as naive
import oracle
import pytest
import torch
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import assert_rounds
from law import fit, small_target
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch
from watched import Told
from weights import stored, weights_of

from specbench import config
from specbench.engine.models.draft_heads import DraftHeads
from specbench.engine.models.heads import Head, read_head
from specbench.engine.ranked_trees import best_paths, ranked_tree
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session, Unwatched
from specbench.engine.trees import exact_tree
from specbench.engine.types import Sampling
from specbench.methods.heads import hydra, medusa
from specbench.methods.heads.hydra import HydraDrafter
from specbench.methods.heads.medusa import Medusa, MedusaDrafter, of_file
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.medusa import hydra as hydra_training
from specbench_extras.medusa import train as medusa_training
from specbench_extras.medusa.fit import DraftHeadsTraining, first_heads
from specbench_extras.medusa.recipe import DraftHeadsRecipe

ALPHA = 1e-4  # of a right rule being refused; a wrong one must fall below it
KINDS = ("medusa", "hydra")
MAKE = {"medusa": medusa_training.new_heads, "hydra": hydra_training.new_heads}
OF_TENSORS = {"medusa": medusa.medusa_heads, "hydra": hydra.hydra_heads}
DRAFTER = {"medusa": MedusaDrafter, "hydra": HydraDrafter}
MODULE = {"medusa": medusa, "hydra": hydra}
LONG = pytest.mark.long
SHORT = ("llama",)
ARCHITECTURES = [one if one in SHORT else pytest.param(one, marks=LONG) for one in oracle.ARCHITECTURES]
# No two paths have the same product.
ACCURACIES = [[0.61, 0.17, 0.07], [0.53, 0.19, 0.11], [0.43, 0.13, 0.05]]


def recipe(kind: str, **changes) -> DraftHeadsRecipe:
    facts = {"heads": 3, "layers": 2, "learning_rate": 0.02, "warmup": 0.0, "weight_decay": 0.0, "last_rate": 0.0}
    return DraftHeadsRecipe(**{**load_recipe(kind, []).values, **facts, **changes})


def in_file(kind: str, model: DraftHeads, accuracies=ACCURACIES) -> Head:
    """Heads as they would be read back."""
    return Head(kind, stored(model), {"accuracies": accuracies})


@torch.no_grad()
def add_noise(model: DraftHeads, scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(scale * torch.randn(parameter.shape, generator=rng).to(parameter.device))


@functools.cache
def noisy(kind: str, architecture: str, output: str = "own") -> DraftHeads:
    """Heads with random weights."""
    target = pair(architecture)[0]
    made = first_heads(MAKE[kind], target, recipe(kind, output=output), 0)
    add_noise(made, 0.2, 0)
    return of_file(in_file(kind, made), target, OF_TENSORS[kind])[0]


@functools.cache
def trained(kind: str, architecture: str, epochs: int = 25) -> DraftHeads:
    """Heads that have learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    chosen = recipe(kind, epochs=epochs, batch=1, loss="tokens")
    answers = [Answered("one", prompt + text, len(prompt))]
    run = DraftHeadsTraining(MAKE[kind], pair(architecture)[0], answers, 96, chosen, 0)
    while not run.done:
        run.learn(answers)
        run.step += 1
    return of_file(in_file(kind, run.head), pair(architecture)[0], OF_TENSORS[kind])[0]


def method(kind, target, model, nodes=9, runtime=EAGER, watch=None, accuracies=ACCURACIES, rule=exact_tree) -> Medusa:
    tree = ranked_tree(best_paths(accuracies, nodes), target.device)
    session = Session(target, "target", watch, runtime=runtime)
    drafter = DRAFTER[kind](model, tree, target.config.vocab_size, watch or Unwatched())
    return Medusa(session, drafter, {}, rule)


# Trees


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), heads=st.integers(1, 3), ranks=st.integers(1, 4), size=st.integers(1, 90))
def test_the_best_paths_are_those_of_all(seed, heads, ranks, size):
    rng = torch.Generator().manual_seed(seed)
    accuracies = torch.rand(heads, ranks, generator=rng, dtype=torch.float64).sort(-1, descending=True).values.tolist()
    paths = best_paths(accuracies, size)
    assert paths == naive.nodes(accuracies, size)
    tree = ranked_tree(paths, torch.device("cpu"))
    assert [path[:-1] for path in paths] == [() if parent < 0 else paths[parent] for parent in tree.parents]
    rebuilt, having = [], [()]
    for level in tree.levels:
        here = [(*having[row], rank) for row, rank in zip(level.rows.tolist(), level.ranks.tolist(), strict=True)]
        rebuilt += here
        having = [here[number] for number in level.expanded.tolist()]
    assert rebuilt == paths and not having
    assert [len(path) - 1 for path in paths] == tree.depths.tolist()


def test_what_is_worth_nothing_is_left_out():
    assert best_paths([[0.5, 0.0], [0.0, 0.0]], 9) == [(0,)]
    assert best_paths([[0.0, 0.0]], 9) == [(0,)]
    assert best_paths([[0.2, 0.3], [0.5]], 9) == [(0,), (1,), (0, 0), (1, 0)], "a rank is worth no more than the last"


# Rounds


@pytest.mark.parametrize("output", ("own", pytest.param("target", marks=LONG)))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_of_noisy_heads_equal_those_without_cache(architecture, kind, output):
    target, model = pair(architecture)[0], noisy(kind, architecture, output)
    on_cpu = copy.deepcopy(target).cpu()
    prompt, text = lively_prompt(architecture, 12, 30)
    expected = naive.rounds(weights_of(model), on_cpu, ACCURACIES, prompt + text[:1], 4, 11)
    tokens, rounds = decode(method(kind, target, model, 11), prompt, 20)
    assert tokens == text[:20]
    assert_rounds(rounds, expected)


@pytest.mark.parametrize("runtime", (pytest.param(EAGER, marks=LONG), STATIC), ids=lambda one: one.name)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rounds_of_heads_that_are_often_right(architecture, kind, runtime):
    """Full, partial and no acceptance; the state after the last accepted token is read; beyond Gemma 2's window."""
    prompt, text = lively_prompt(architecture, 12, 30)
    target, model = pair(architecture)[0], trained(kind, architecture)
    on_cpu = copy.deepcopy(target).cpu()
    tokens, rounds = decode(method(kind, target, model, 11, runtime), prompt, 30)
    assert tokens == text
    assert_rounds(rounds, naive.rounds(weights_of(model), on_cpu, ACCURACIES, prompt + text[:1], 5, 11))
    assert max(round_.accepted for round_ in rounds) >= 2 and len(rounds) < 25


@pytest.mark.parametrize("kind", KINDS)
def test_forwards_and_reach(kind):
    """One forward of all heads, or a call of all levels with a row for each node that has children; then the target."""
    watched, target = Told(), pair("llama")[0]
    used = method(kind, target, trained(kind, "llama"), 9, watch=watched)
    paths = best_paths(ACCURACIES, 9)
    rows = [1, *(len({path[:-1] for path in paths if len(path) == depth}) for depth in (2, 3))]
    rounds = used.rounds([1, 2, 3, 4], GREEDY, torch.Generator(DEVICE))
    length = 4 + len(next(rounds).tokens)
    assert watched.forwards == [("target", 4, 0)]
    for _ in range(4):
        watched.forwards.clear()
        committed = len(next(rounds).tokens)
        drafts = ("draft", sum(rows), length - 1, 3) if kind == "hydra" else ("draft", 1, length - 1)
        assert watched.forwards == [drafts, ("target", 10, length - 1)] and used.reach == 10
        length += committed


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_the_last_prompt(kind):
    used, sampling = method(kind, pair("llama")[0], trained(kind, "llama")), Sampling(0.9)
    prompt, _ = lively_prompt("llama", 12, 30)
    first = decode(used, prompt, 12, sampling, seed=3)
    assert decode(used, [5], 12)[0] == oracle.greedy(copy.deepcopy(pair("llama")[0]).cpu(), [5], 12)
    assert decode(used, prompt, 12, sampling, seed=3) == first


def test_a_state_that_is_one_token_late_is_found():
    """The defect that a wrong hand-over of the state would be: other drafts, though the text stays."""
    prompt, text = lively_prompt("llama", 12, 30)
    used, right = (method("medusa", pair("llama")[0], trained("medusa", "llama")) for _ in range(2))

    def late(scored, verdict):
        used.drafter.state = scored.hidden[:1]

    used.drafter.observe = late
    tokens, rounds = decode(used, prompt, 30)
    assert tokens == text and len(rounds) > len(decode(right, prompt, 30)[1])


# Sampling


def drawn(kind, sampling, draws=450):
    """How texts of three tokens fit the target's law: the joint law of what two rounds commit."""
    target = small_target()
    made = first_heads(MAKE[kind], target, recipe(kind), 0)
    add_noise(made, 0.3, 1)
    model = of_file(in_file(kind, made), target, OF_TENSORS[kind])[0]
    used = method(kind, target, model, 6)
    used.target = recalled(target, "target")
    return fit(used, target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(kind, sampling):
    p, stood, fell = drawn(kind, sampling)
    assert p > ALPHA
    assert stood > 60 and fell > 60


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch, kind):
    draw_for_each_branch(monkeypatch)
    assert drawn(kind, Sampling(1.0))[0] < ALPHA


# Files


@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_damaged(kind):
    target = pair("llama")[0]
    bias = "0.0.linear.bias" if kind == "medusa" else "hydra_mlp.0.0.linear.bias"
    for words, change in (
        ("size mismatch", lambda tensors, facts: tensors.update({bias: tensors[bias][:5]})),
        ("Missing key", lambda tensors, facts: tensors.pop(bias)),
        ("'accuracies'", lambda tensors, facts: facts.pop("accuracies")),
        ("its accuracies are not", lambda tensors, facts: facts.update(accuracies=[[0.5]])),
        ("its accuracies are not", lambda tensors, facts: facts.update(accuracies=[[0.5], [], [0.1]])),
        ("not numbered from 0 on", lambda tensors, facts: tensors.clear()),
    ):
        good = in_file(kind, noisy(kind, "llama"))
        tensors, facts = dict(good.tensors), dict(good.trained)
        change(tensors, facts)
        with one_line_error(words, "train or import it again"):
            of_file(Head(kind, tensors, facts), target, OF_TENSORS[kind])


def test_targets_whose_embeddings_are_not_as_wide_as_their_states():
    odd = types.SimpleNamespace(models={"target": oracle.tiny("opt", word_embed_proj_dim=16)}, name="odd")
    values = config.load_method("hydra").values
    with one_line_error("hydra reads embeddings and hidden states of one width", "choose another target"):
        hydra.build(hydra.Settings(**values), odd, None)


def test_the_settings_are_the_official_codes_and_one_preset_is_lossy():
    for kind in KINDS:
        values = config.load_method(kind).values
        assert (values["nodes"], values["accuracies"], values["head"], values["rule"]) == (63, [], "auto", "exact")
    typical = config.load_method("medusa-typical")
    assert typical.method == "medusa" and typical.values == {**config.load_method("medusa").values, "rule": "typical"}


# The shipped heads


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_heads_beat_their_untrained_selves(pocket, kind):
    """On held-out answers, by a wide margin; and a text is the bundled target's."""
    head = read_head(config.SUITES / "trained" / "heads" / f"{kind}-pocket.safetensors", kind, pocket, None)
    rows = zip(head.trained["accuracies"], head.trained["accuracies_untrained"], strict=True)
    assert all(row[0] > before[0] + 0.35 for row, before in rows)
    text = [5, 17, 900, 33, 210, 8]
    built = MODULE[kind].build(MODULE[kind].Settings(**config.load_method(kind).values), pocket, Unwatched())
    tokens, _ = decode(built, text, 10)
    assert tokens == oracle.greedy(pocket.models["target"], text, 10) and built.reach == 64
