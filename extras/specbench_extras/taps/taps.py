"""TAPS: draft heads that were trained on different texts draft for one target (arXiv 2603.27027). Lossless.

Each head drafts a tree, as in EAGLE-3. `route` takes the tree of the head that is surer of its tokens; `merge` has the
target test all trees as one; `average` is the control that fails, one head of the mean weights.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field, field_validator

from specbench.base.hashes import short_hash
from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.drafters import Drafter
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.heads import Head, find_head, shipped
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import KIND, SHAPES, EagleDrafter, Grown, eagle_head, head_session


class Settings(Base):
    total_tokens: int = Field(ge=2, description="the most tokens of one head's tree, with the last committed one")
    top_k: int = Field(ge=1, description="children of a node, and nodes of a level that are expanded; 1: a chain")
    depth: int = Field(ge=0, description="levels of a tree after the first one")
    heads: tuple[str, ...] = Field(
        min_length=2, description="trained heads of EAGLE-3: files, or names of those that ship with the pair"
    )
    combine: Literal["route", "merge", "average"] = Field(description="what becomes of several heads' trees")
    surer: Literal["joint", "token"] = Field(
        default="joint",
        description="route: by the mean probability of the tree's paths, or of each token after its path",
    )

    @field_validator("heads", mode="before")
    @classmethod
    def several(cls, value: Any) -> Any:
        """Files with commas between them, as --set gives them."""
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def confidence(grown: Grown, joint: bool) -> float:
    """The mean probability that a head gives the tokens of its tree: of each path, or of each token after its path."""
    if joint:
        return float(grown.values.exp().mean())
    above = torch.where(grown.parents < 0, 0.0, grown.values[grown.parents.clamp(min=0)])
    return float((grown.values - above).exp().mean())


def merged(trees: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[list[int], list[int]]:
    """Trees of tokens and parents (-1: the context) as one: what they share stands once, so that siblings differ.

    The nodes of the first tree come first, in their order, then the new ones of the next.
    """
    tokens: list[int] = []
    parents: list[int] = []
    known: dict[tuple[int, int], int] = {}  # the node by its parent and token
    for some, above in trees:
        places: list[int] = []  # in the merged tree, of the nodes of this one
        for token, parent in zip(some, above, strict=True):
            key = (-1 if parent < 0 else places[parent], token)
            if key not in known:
                known[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
            places.append(known[key])
    return tokens, parents


class Specialists(Drafter):
    """Drafts with several heads, each with a cache of its own, which all read what stands."""

    def __init__(self, drafters: Sequence[EagleDrafter], merge: bool, joint: bool = True) -> None:
        self.drafters, self.merge, self.joint = drafters, merge, joint
        self.reads = drafters[0].reads  # all heads read the same states of the target

    def begin(self, prompt: list[int]) -> None:
        for drafter in self.drafters:
            drafter.begin(prompt)

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """The target has read the prompt once; every head reads it."""
        for drafter in self.drafters:
            drafter.observe_prompt(tokens, scored)

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of point masses, at any temperature. The host waits for the heads once more, to compare them."""
        trees = [drafter.tree(context) for drafter in self.drafters]
        drafts = [drafter.ids[tree.tokens] for drafter, tree in zip(self.drafters, trees, strict=True)]
        if self.merge:
            listed = [(draft.tolist(), tree.parents.tolist()) for draft, tree in zip(drafts, trees, strict=True)]
            tokens, parents = merged(listed)
            return Draft(torch.tensor(tokens, device=drafts[0].device), None, tuple(parents))
        surest = max(range(len(trees)), key=lambda i: confidence(trees[i], self.joint))  # the first of equals
        return Draft(drafts[surest], None, tuple(trees[surest].parents.tolist()))

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        for drafter in self.drafters:
            drafter.observe(scored, verdict)


class Taps(Speculative, Stateless):
    """Speculative decoding with the trees of several heads."""

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, drafter: Specialists, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes
        first, count = drafter.drafters[0], len(drafter.drafters) if drafter.merge else 1
        self.gamma = first.depth + 1
        self.reach = 1 + count * first.most


def averaged(heads: Sequence[Head]) -> Head:
    """The head of the mean weights. Raises UserError unless all have one form and one draft vocabulary."""
    first = heads[0].tensors
    for head in heads[1:]:
        if any(head.tensors[name].shape != tensor.shape for name, tensor in first.items()):
            raise UserError("taps: combine=average needs heads of one size; take route or merge")
        if not torch.equal(head.tensors["d2t"], first["d2t"]):
            raise UserError("taps: combine=average needs heads of one draft vocabulary; take route or merge")
    mean = {name: torch.stack([head.tensors[name] for head in heads]).mean(0) for name in first}
    return Head(KIND, mean, heads[0].trained)


def file_of(name: str, pair: Pair) -> str:
    """The file of a head: as it is named, or the one of this name that ships. Raises UserError if none does."""
    if name.endswith(".safetensors"):
        return name
    if path := shipped(name, pair):
        return str(path)
    raise UserError(
        f"no head {name} ships with {pair.name}; train heads on different texts (specbench train --method {KIND} "
        "--data TASK:SPLIT …) and name them by --set taps.heads=ONE.safetensors,OTHER.safetensors"
    )


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for heads that do not fit it, or one another."""
    target, layers = eagle3.check_target(pair, "taps"), layers_read(pair.models["target"])
    files = [file_of(name, pair) for name in settings.heads]
    if settings.combine == "average":
        read = [find_head(file, KIND, pair, SHAPES) for file in files]
        heads = [eagle_head(averaged(read), target, pair.vocabulary, pair.draft_device)]
        hashes = [head.hashes() for head in read]
    else:
        loaded = [eagle3.loaded(file, pair) for file in files]
        heads, hashes = [head for head, _ in loaded], [own for _, own in loaded]
    sizes = settings.total_tokens, settings.top_k, settings.depth
    drafters = [EagleDrafter(head, head_session(head, pair, watch), layers, *sizes) for head in heads]
    of_all = {"head": short_hash("".join(own["head"] for own in hashes).encode())}
    return Taps(
        pair.session("target", watch),
        Specialists(drafters, settings.combine == "merge", settings.surer == "joint"),
        of_all,
    )
