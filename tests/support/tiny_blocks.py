"""Block drafters for tiny targets: a random one, and one that has learned a text."""

import copy
import functools

import torch
from gates import lively_prompt, pair
from naive_block import lattice, text_lattice
from weights import stirred, stored, weights_of

from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import Head
from specbench.methods.blocks.dflash import block_head
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.deer.recipe import TextBlockRecipe
from specbench_extras.dflash.fit import SlotTraining, new_head
from specbench_extras.dflash.recipe import BlockRecipe, SlotRecipe

GROUPS = {"opt": 1}  # how many heads of the tiny models share a key, where it is not two


def recipe_of(kind: str, **changes) -> SlotRecipe:
    """The recipe of a kind of head, but for sizes of tiny targets and some changes."""
    small = {"layers": 2, "block": 5, "anchors": 8, "batch": 1, "learning_rate": 0.01, "warmup": 0.0, "autocast": False}
    if kind == "deer":
        return TextBlockRecipe(**{**load_recipe(kind, []).values, **small, **changes})
    return BlockRecipe(**{**load_recipe("dflash", []).values, **small, "features": 2, **changes})


recipe = functools.partial(recipe_of, "dflash")


def in_file(model: BlockHead) -> Head:
    """A head as it would be read back."""
    facts = {"config": stored_settings(model.config), "layers": list(model.layers_read), "block": model.block}
    return Head(kind_of(model), stored(model), facts)


def kind_of(model: BlockHead) -> str:
    return "deer" if not model.layers_read else "dflare" if model.mixed else "dflash"


def apart(model: BlockHead) -> BlockHead:
    """The head, in place; a mixed one reads different layers of its target of two: a mix of equal ones says nothing."""
    if model.mixed:
        model.layers_read = (0, 1)
    return model


@functools.cache
def head(architecture: str, block: int = 5, seed: int = 0, kind: str = "dflash") -> BlockHead:
    target = pair(architecture)[0]
    return block_head(in_file(apart(stirred(new_head(target, recipe_of(kind, block=block), seed, kind)))), target)


@functools.cache
def trained(architecture: str, epochs: int, kind: str = "dflash") -> BlockHead:
    """A head that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    target = pair(architecture)[0]
    run = SlotTraining(
        target, [Answered("one", prompt + text, len(prompt))], 96, recipe_of(kind, epochs=epochs), 0, kind
    )
    apart(run.head)
    while run.step < run.steps:
        run.learn(run.answered)
        run.step += 1
    return block_head(in_file(run.head), target)


@functools.cache
def naive_parts(architecture: str):
    """A target on the CPU, its table of embeddings as it is read, and its output layer."""
    target = copy.deepcopy(pair(architecture)[0]).cpu()
    table = target.get_input_embeddings()
    scale = float(getattr(table, "embed_scale", 1.0))
    return target, table.weight.double() * scale, target.get_output_embeddings().weight.double()


def naive_lattice(architecture: str, model: BlockHead, text: list[int], size: int) -> torch.Tensor:
    """The logits of the slots after a text, of whose last token the target says nothing."""
    target, table, output = naive_parts(architecture)
    weights = weights_of(model)
    groups = GROUPS.get(architecture, 2)
    if kind_of(model) == "deer":
        return text_lattice(weights, table, output, text, size, groups=groups)
    with torch.no_grad():
        out = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer + 1][0] for layer in model.layers_read], -1).double()
        return lattice(weights, table, output, states, text[-1], size, groups=groups)
