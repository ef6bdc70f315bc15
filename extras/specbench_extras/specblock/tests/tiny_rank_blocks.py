"""SpecBlock's drafters for tiny targets: a random one, and one that has learned a text."""

import copy
import functools

import naive_rank_block as naive
import torch
from gates import lively_prompt, pair
from weights import stirred, stored, weights_of

from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import Head
from specbench.training.answered import Answered
from specbench.training.recipe import load_recipe
from specbench_extras.specblock.fit import RankBlockTraining, new_head
from specbench_extras.specblock.rank_block_head import RankBlockHead
from specbench_extras.specblock.recipe import RankBlockRecipe
from specbench_extras.specblock.specblock import rank_block_head

GROUPS = {"opt": 1}  # how many heads of the tiny models share a key, where it is not two
SOME = tuple(range(0, 96, 2))  # a draft vocabulary


def recipe(**changes) -> RankBlockRecipe:
    """The recipe, but for sizes of tiny targets and some changes."""
    small = {"slots": 3, "ranking": 16, "batch": 1, "learning_rate": 0.01, "warmup": 0.0, "autocast": False}
    return RankBlockRecipe(**{**load_recipe("specblock", []).values, **small, **changes})


def in_file(model: RankBlockHead) -> Head:
    """A head as it would be read back."""
    ids = model.ids.cpu()
    tensors = stored(model)
    tensors["d2t"] = (ids - torch.arange(len(ids))).float()
    return Head("specblock", tensors, {"config": stored_settings(model.config)})


@functools.cache
def head(architecture: str, ids: tuple[int, ...] = SOME, seed: int = 0) -> RankBlockHead:
    target = pair(architecture)[0]
    return rank_block_head(in_file(stirred(new_head(target, ids, recipe(), seed))), target, 96)


@functools.cache
def trained(architecture: str, epochs: int) -> RankBlockHead:
    """A head that has learned the text of one prompt, more or less by heart."""
    prompt, text = lively_prompt(architecture, 12, 30)
    target = pair(architecture)[0]
    document = Answered("one", prompt + text, len(prompt))
    facts = recipe(epochs=epochs)
    run = RankBlockTraining(target, new_head(target, range(96), facts, 0), [document], 96, facts, 0)
    while run.step < run.steps:
        run.learn(run.answered)
        run.step += 1
    return rank_block_head(in_file(run.head), target, 96)


@functools.cache
def on_cpu(architecture: str):
    return copy.deepcopy(pair(architecture)[0]).cpu()


def naive_blocks(
    architecture: str, model: RankBlockHead, text: list[int], further: list[tuple[int, int]]
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """States, logits and rank scores of the block after a text, then of each further one (token, M)."""
    target = on_cpu(architecture)
    table = target.get_input_embeddings()
    with torch.no_grad():
        out = target(torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True)
    # What enters layers 2, L/2 and L - 3 of a model of two layers, as near as there are: 1, 1 and 0.
    seen = torch.cat([out.hidden_states[i][0] for i in (1, 1, 0)], -1).double()
    weights = weights_of(model)
    embedding = table.weight.double() * float(getattr(table, "embed_scale", 1.0))
    groups = GROUPS.get(architecture, 2)
    made = []
    for states in naive.chain(weights, embedding, text[1:], seen, further, groups=groups):
        logits = naive.predicted(weights, states)
        made.append((states, logits, naive.rank_scores(weights, states, logits)))
    return made
