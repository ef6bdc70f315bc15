"""Heads for tiny targets: a random one of EAGLE-3, one that has learned a text, and EAGLE's once more, slowly."""

import copy
import functools

import naive_feature_head
import oracle
import torch
from gates import lively_prompt, pair
from weights import stirred, stored, weights_of

from specbench.engine.models.eagle_head import EagleHead, stored_settings
from specbench.engine.models.feature_head import FeatureHead
from specbench.engine.models.heads import Head
from specbench.methods.heads.eagle3 import eagle_head
from specbench.training.answered import Answered
from specbench.training.eagle3.fit import Eagle3Training, new_head
from specbench.training.recipe import EagleRecipe, load_recipe

HEADS = {"opt": (4, 1)}  # attention heads of the tiny models, and how many share a key


def in_file(model: EagleHead) -> Head:
    """A head as it would be read back."""
    ids = model.ids.cpu()
    tensors = stored(model)
    tensors["d2t"] = (ids - torch.arange(len(ids))).float()
    return Head("eagle3", tensors, {"config": stored_settings(model.config)})


@functools.cache
def head(architecture: str, ids: tuple[int, ...] = tuple(range(0, 96, 2)), seed: int = 0) -> EagleHead:
    """A random head for a tiny target, whose states differ from token to token."""
    target = pair(architecture)[0]
    return eagle_head(in_file(stirred(new_head(target, ids, seed), seed)), target, 96)


@functools.cache
def trained(architecture: str, epochs: int) -> EagleHead:
    """A head that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    facts = {**load_recipe("eagle3", []).values, "steps": 3, "epochs": epochs, "batch": 1, "learning_rate": 0.01}
    recipe = EagleRecipe(**{**facts, "autocast": False, "warmup": 0.0})
    target = pair(architecture)[0]
    made = new_head(target, range(96), 0)
    run = Eagle3Training(target, made, [Answered("one", prompt + text, len(prompt))], recipe, 0)
    while run.step < run.steps:
        run.learn(run.answered)
        run.step += 1
    return eagle_head(in_file(run.head), pair(architecture)[0], 96)


@functools.cache
def answered() -> list[Answered]:
    """Six documents of the tiny llama's own greedy text, of different lengths; not one has an end token in it."""
    lengths = ((6, 9), (3, 12), (9, 5), (5, 14), (2, 2), (7, 8))
    prompts = [one[:length] for one, (length, _) in zip(oracle.prompts(6, length=9, seed=3), lengths, strict=True)]
    model = copy.deepcopy(pair("llama")[0]).cpu()
    return [
        Answered(f"d{i}", prompt + oracle.greedy(model, prompt, count), len(prompt))
        for i, (prompt, (_, count)) in enumerate(zip(prompts, lengths, strict=True))
    ]


def feature_states(architecture: str, model: FeatureHead, fuse: str, text: list[int], drafted: list[int]):
    """States and features after x_1 … of a text that the target has read but for its last token, then of a path."""
    target = copy.deepcopy(pair(architecture)[0]).cpu()
    with torch.no_grad():
        seen = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
    layer = target.get_input_embeddings()
    table = layer.weight.double() * float(getattr(layer, "embed_scale", 1.0))
    sizes = HEADS.get(architecture, (4, 2))
    return naive_feature_head.states(weights_of(model), fuse, table, [*text[1:], *drafted], seen.double(), *sizes)
