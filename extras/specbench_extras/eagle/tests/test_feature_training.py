"""Losses of a training step of EAGLE's, HASS's, FSPAD's and Dovetail's heads by hand, and the recipes of the four."""

import math

import pytest
import torch

from specbench import config
from specbench.training.eagle3.fit import DraftStep
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.eagle.fit import loss_of
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
