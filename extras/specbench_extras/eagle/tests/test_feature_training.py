"""Training steps of EAGLE's, HASS's, FSPAD's and Dovetail's heads: losses by hand and without a cache; recipes."""

import copy
import math

import pytest
import torch
from gates import pair
from made_documents import own_answers
from tiny_heads import feature_states
from torch.nn import functional as F

from specbench import config
from specbench.training.answered import Answered, blocks
from specbench.training.eagle3.fit import DraftStep
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.eagle.fit import FeatureTraining, loss_of
from specbench_extras.eagle.recipe import FeatureRecipe
from specbench_extras.eagle.train import PRESETS


def test_a_loss_by_hand():
    """One place of two counts. The state is wrong by 2 and 0.5: smooth L1 of 1.5 and 0.125, on the mean 0.8125."""
    logits = torch.tensor([[[0.5, 0.25, 0.25], [1.0, 1.0, 1.0]]]).log()
    taught = torch.tensor([[[0.2, 0.5, 0.3], [1.0, 1.0, 1.0]]]).log()
    carried, wanted = torch.tensor([[[2.0, 0.5], [9.0, 9.0]]]), torch.zeros(1, 2, 2)
    step = DraftStep(logits, taught, torch.tensor([[1, 0]]), torch.tensor([[True, False]]), carried)
    entropy = -(0.2 * math.log(0.5) + 0.5 * math.log(0.25) + 0.3 * math.log(0.25))
    best = -(0.5 * math.log(0.25) + 0.3 * math.log(0.25))
    for weights, expected in (((1.0, 0.0, 0.0), 0.8125), ((0.0, 1.0, 0.0), entropy), ((0.0, 0.0, 1.0), best)):
        names = ("regression", "cross_entropy", "distillation")
        changes = {"top_k": 2, **dict(zip(names, weights, strict=True))}
        chosen = FeatureRecipe(**{**load_recipe("eagle-hass", []).values, **changes})
        assert float(loss_of(step, wanted, chosen)) == pytest.approx(expected, rel=1e-5)


def test_recipes_have_sources_and_differ_as_the_papers_do():
    chosen = {preset: FeatureRecipe(**load_recipe(f"eagle-{preset}", []).values) for preset in PRESETS}
    assert [one.fuse for one in chosen.values()] == ["fc", "fc", "gated", "dgf"]
    assert [one.steps for one in chosen.values()] == [1, 3, 1, 1]
    assert [one.distillation for one in chosen.values()] == [0, 1, 0, 0]
    for preset in PRESETS:
        raw = recipes()[f"eagle-{preset}"].read_text()
        assert raw.count("    source:") == len(FeatureRecipe.model_fields)
        assert config.load_method(preset).values["recipe"] == preset


FUSES = ("fc", "gated", "dgf")
LONG = pytest.mark.long


def answered() -> list[Answered]:
    return own_answers(pair("llama")[0], (6, 3, 5), (4, 6, 2))


@pytest.mark.parametrize("fuse", [FUSES[0], *(pytest.param(fuse, marks=LONG) for fuse in FUSES[1:])])
def test_the_losses_of_all_steps_are_those_of_a_head_without_cache(fuse):
    """Regression on the target's state after the token that is read, cross-entropy, and that of the likeliest three."""
    target, steps = pair("llama")[0], 3
    weights = {"regression": 0.7, "cross_entropy": 0.3, "distillation": 0.2}
    sizes = {"fuse": fuse, "steps": steps, "batch": 3, "top_k": 3, "autocast": False}
    chosen = FeatureRecipe(**{**load_recipe("eagle-hass", []).values, **sizes, **weights})
    run = FeatureTraining(target, answered(), 96, chosen, 0)
    on_cpu = copy.deepcopy(target).cpu()
    output = on_cpu.get_output_embeddings().weight.double()
    expected, places = [0.0] * steps, 0
    for one in answered():
        with torch.no_grad():
            out = on_cpu(torch.tensor([one.tokens]), use_cache=False, output_hidden_states=True)
        for place in range(one.prompt - 1, len(one.tokens) - 2):
            places += 1
            for step in range(min(steps, len(one.tokens) - 2 - place)):
                path = one.tokens[place + 2 : place + 2 + step]
                states, made = feature_states("llama", run.head, fuse, one.tokens[: place + 2], path)
                wanted, p = out.hidden_states[-1][0, place + 1 + step], out.logits[0, place + 1 + step].softmax(-1)
                q = (output @ states[-1]).log_softmax(-1)
                best = sorted(range(96), key=lambda token: -float(p[token]))[:3]
                expected[step] += 0.7 * float(F.smooth_l1_loss(made[-1], wanted)) - 0.3 * float((p * q).sum())
                expected[step] -= 0.2 * sum(float(p[token] * q[token]) for token in best)
    (block,) = blocks(answered(), target.device)
    with torch.no_grad():
        results = [float(loss) for loss in run.losses(block)]
    assert results == pytest.approx(expected, rel=1e-3)
    assert run.learn(answered()) == pytest.approx(sum(expected) / places, rel=1e-3)
