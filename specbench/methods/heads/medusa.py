"""Medusa: heads on the target's last state say the next tokens all at once, and ranks make the tree of drafts.

arXiv 2401.10774. Lossless by the exact rule of trees; with `rule=typical`, the paper's own rule, lossy at T > 0.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import UserError
from specbench.engine.accept import Accept
from specbench.engine.drafters import Drafter
from specbench.engine.models.draft_heads import DraftHeads, MedusaHeads, counted
from specbench.engine.models.heads import Head, hidden_size, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.ranked_trees import RankedTree, best_paths, ranked_tree
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.types import Runtime
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.rules import TreeSettings, is_exact

KIND = "medusa"


class Settings(TreeSettings):
    nodes: int = Field(ge=1, le=1024, description="the most tokens of the tree")
    accuracies: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = Field(
        description="how often the token of each rank is right, by head, which settles the tree; []: as the head's "
        "file says, where they were measured on held-out documents"
    )
    head: str = Field(description="trained heads: a file, or `auto` (those that ship with the pair)")


class RankedDrafter(Drafter):
    """Drafts a tree of one shape. The heads read the target's state after the last token that it has read.

    That is the token before the last committed one.
    """

    reads = LAST
    state: Tensor  # [1, D]
    choose: Callable[..., Tensor]  # the tokens [K] of the tree, on the device

    def __init__(self, heads: Any, tree: RankedTree, vocabulary: int, watch: Watch, runtime: Runtime = EAGER) -> None:
        self.heads, self.chosen = heads, runtime.fixed(self.choose)
        self.tree, self.vocabulary, self.watch = tree, vocabulary, watch

    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        assert scored.hidden is not None
        self.state = scored.hidden[-1:]

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """The tree, at any temperature, for the target to test as point masses. Nothing is copied to the host."""
        return Draft(self.fill(context), None, self.tree.parents)

    @abstractmethod
    def fill(self, context: list[int]) -> Tensor:
        """The tokens [K] of the tree."""

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """The heads read the state after the last accepted token next."""
        assert scored.hidden is not None
        last = verdict.path[-1] + 1 if verdict.path else 0
        self.state = scored.hidden[last : last + 1]


class MedusaDrafter(RankedDrafter):
    """All heads at once: a token stands wherever its head and rank do."""

    heads: MedusaHeads

    @torch.inference_mode()
    def fill(self, context: list[int]) -> Tensor:
        with self.watch.forward("draft", 1, len(context) - 1):
            return self.chosen(self.state)

    def choose(self, state: Tensor) -> Tensor:
        """The tokens [K] of the tree after a state [1, D]."""
        logits = torch.cat([self.heads.of_state(head, state) for head in range(len(self.tree.levels))])
        ranked = logits[:, : self.vocabulary].topk(self.tree.width).indices  # [levels, ranks]
        return ranked[self.tree.depths, self.tree.ranks]


class Medusa(Speculative, Stateless):
    """Speculative decoding with trees of ranks, by the exact rule of trees unless `accept` is another one."""

    def __init__(
        self, target: Session, drafter: RankedDrafter, hashes: dict[str, str], accept: Accept = exact_tree
    ) -> None:
        self.target, self.drafter, self.hashes, self.accept = target, drafter, hashes, accept
        self.lossless = is_exact(accept)
        self.gamma = len(drafter.tree.levels)
        self.reach = 1 + len(drafter.tree.parents)


def medusa_heads(tensors: Mapping[str, Tensor], target: PreTrainedModel) -> MedusaHeads:
    """New heads of the numbers of tensors, in torch's first weights. Raises ValueError or KeyError."""
    heads = counted(tensors, "")
    parts = counted(tensors, "0.")
    own = f"0.{parts - 1}.weight" in tensors
    return MedusaHeads(heads, parts - own, hidden_size(target), own, target.get_output_embeddings())


Make = Callable[[Mapping[str, Tensor], PreTrainedModel], DraftHeads]


def of_file(head: Head, target: PreTrainedModel, make: Make) -> tuple[DraftHeads, list[list[float]]]:
    """The heads in a file, on the target's device and in its type, and how often each rank is right, by head.

    Raises UserError where its parts disagree.
    """
    with refuse_damaged(head.kind):
        with torch.random.fork_rng(devices=[]):
            model = make(head.tensors, target)
        model.load_state_dict(dict(head.tensors))
        accuracies = [[float(share) for share in row] for row in head.trained["accuracies"]]
        if len(accuracies) != len(model) or not all(row and 0 <= min(row) <= max(row) <= 1 for row in accuracies):
            raise ValueError("its accuracies are not those of its heads")
    placed(model, target)
    return model, accuracies


def loaded(settings: Settings, pair: Pair, kind: str, make: Make) -> tuple[DraftHeads, RankedTree, dict[str, str]]:
    """The heads of a file, or those that ship with the pair, the tree for them, and their hashes. Raises UserError."""
    target = pair.models["target"]
    pair.need_one_device(f"{kind} has heads next to the target's output layer")
    (heads, measured), hashes = load_once(settings.head, kind, pair, None, lambda head: of_file(head, target, make))
    accuracies: Sequence[Sequence[float]] = settings.accuracies or measured
    if len(accuracies) > len(heads) or not all(accuracies):
        raise UserError(f"{kind}: accuracies has {len(accuracies)} rows, but {len(heads)} heads; give one row a head")
    paths = best_paths([row[: pair.vocabulary] for row in accuracies], min(settings.nodes, pair.context))
    return heads, ranked_tree(paths, target.device), hashes


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for heads that do not fit it.

    The heads run eagerly; on `graph` they are captured.
    """
    heads, tree, hashes = loaded(settings, pair, KIND, medusa_heads)
    assert isinstance(heads, MedusaHeads)
    drafter = MedusaDrafter(heads, tree, pair.vocabulary, watch, pair.runtime)
    return Medusa(pair.session("target", watch), drafter, hashes, settings.accept())
