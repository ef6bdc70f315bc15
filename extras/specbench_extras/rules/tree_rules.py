"""Rules for trees in `specbench analyze rules`: how many tokens of a run's drawn trees each of them would have kept."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.config import MethodSpec
from specbench.engine.joint import traversal_ends
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import probabilities
from specbench.engine.trees import recursive_chances
from specbench.engine.types import Draft, Sampling
from specbench.engine.typical import typical
from specbench.methods.trees.kseq import kseq_chances
from specbench.methods.trees.rsd import given_earlier, merged
from specbench_extras.drafts.read_again import drafts_in_context

EPSILON, DELTA = 0.09, 0.3  # those of lossy.yaml: of medusa_generate in the official code

# A drawn tree of K tokens and the target's p [K + 1, V] after the context and each of them -> expected accepted ones.
TreeRule = Callable[[Draft, Tensor], float]


def recursive(draft: Draft, p: Tensor) -> float:
    """Recursive rejection, one sibling after another."""
    assert draft.probs is not None
    return in_turn(draft, *recursive_chances(draft, draft.probs, p)[:2])


def kseq(draft: Draft, p: Tensor) -> float:
    assert draft.probs is not None
    return in_turn(draft, *kseq_chances(draft, draft.probs, p)[:2])


def in_turn(draft: Draft, p: Tensor, q: Tensor) -> float:
    """Siblings are tested in turn, each passes with min(1, p / q) [K]; a path goes on under the first equal token."""
    reached: defaultdict[int, float] = defaultdict(float, {-1: 1.0})
    waiting: dict[int, float] = {}  # by parent: the chance that the path comes there, and none of its children passed
    first: dict[tuple[int, int], int] = {}
    chances = (p / q).clamp(max=1).tolist()
    for node, (parent, token) in enumerate(zip(draft.parents or (), draft.tokens.tolist(), strict=True)):
        here = waiting.setdefault(parent, reached[parent])
        reached[first.setdefault((parent, token), node)] += here * chances[node]
        waiting[parent] = here * (1 - chances[node])
    return sum(reached.values()) - 1.0


def from_the_leaves(draft: Draft, p: Tensor) -> float:
    """Traversal verification."""
    assert draft.probs is not None
    ends = traversal_ends(draft, draft.probs, p)[0].tolist()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(draft.parents or ()):
        children[parent].append(node)

    def below(node: int, depth: int, chance: float) -> tuple[float, float]:
        """Of the paths through a node: their expected tokens, and what is left of the chance that none was kept."""
        tokens = 0.0
        for child in children[node]:
            more, chance = below(child, depth + 1, chance)
            tokens += more
        return tokens + depth * chance * ends[node + 1], chance * (1 - ends[node + 1])

    return below(-1, 0, 1.0)[0]


def as_typical(draft: Draft, p: Tensor) -> float:
    """The longest path of typical tokens."""
    assert draft.rows is not None
    stands = typical(draft.tokens, p[draft.rows], EPSILON, DELTA).tolist()
    depths = {-1: 0}
    for node, parent in enumerate(draft.parents or ()):
        if stands[node] and parent in depths:
            depths[node] = depths[parent] + 1
    return float(max(depths.values()))


RULES: dict[str, TreeRule] = {
    "recursive": recursive,
    "kseq": kseq,
    "traversal": from_the_leaves,
    "typical": as_typical,
}


def rules_of(spec: MethodSpec) -> list[str]:
    """The rules that fit the trees of a method, RULES' first at the head; none for methods that are not read here.

    K-SEQ is for tokens that were drawn independently. Trees of a beam depend on what follows earlier siblings, which
    traversal excludes; they are not read.
    """
    values = spec.values
    if spec.method == "mdsd":
        return [rule for rule in RULES if values["replacement"] or rule != "kseq"]
    if spec.method == "rsd" and values["search"] == "constant":
        return [rule for rule in RULES if rule != "kseq"]
    return []


@torch.inference_mode()
def of_text(
    pair: Pair,
    spec: MethodSpec,
    prompt: list[int],
    tokens: list[int],
    rounds: Sequence[dict[str, Any]],
    sampling: Sampling,
) -> np.ndarray:
    """The figure of each rule of `rules_of` for each tree of a text [trees, rules]."""
    target, draft = pair.session("target"), pair.session("draft")
    rules = rules_of(spec)
    chains = spec.values["drafts"] if spec.values.get("replacement") else 0
    values = []
    for context, drafted, row in drafts_in_context(prompt, tokens, rounds):
        apart = tuple(max(-1, node - chains) for node in range(len(drafted)))
        parents = apart if chains else tuple(row["parents"])
        rows = []
        for model in (target, draft):
            first = model.catch_up(context).logits[-1:]
            after = torch.cat([first, model.forward(drafted, parents=parents).logits])
            rows.append(probabilities(after.double(), sampling))
        values.append(of_tree(rules, drafted, parents, chains, *rows))
    return np.array(values).reshape(-1, len(rules))


def of_tree(
    rules: Sequence[str], drafted: list[int], parents: tuple[int, ...], chains: int, p: Tensor, q: Tensor
) -> list[float]:
    """The figure of each rule for a tree, by the distributions [K + 1, V] after the context and each of its tokens.

    Independent `chains` share equal beginnings, as in `mdsd`, but for traversal, which needs them apart.
    """
    tokens, rows = torch.tensor(drafted, device=p.device), torch.tensor(parents, device=p.device) + 1
    drawn = q[rows] if chains else given_earlier(q[rows], tokens, rows)
    tree = Draft(tokens, drawn, parents)
    shared = tree
    if chains:
        levels = [drafted[at : at + chains] for at in range(0, len(drafted), chains)]
        shared = Draft(tokens, drawn, merged(levels))
    return [RULES[rule](tree if rule == "traversal" else shared, p) for rule in rules]
