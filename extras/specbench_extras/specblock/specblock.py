"""SpecBlock: blocks whose slots depend on one another, and a tree that branches by guessed ranks (arXiv 2605.07243).

Lossless. A round's first block follows the text. Further blocks begin at nodes of the tree so far, with the drafter's
own state there in place of the target's.
"""

from collections.abc import Sequence

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.engine.drafters import Drafter
from specbench.engine.ids import to_device
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.heads import Head, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.heads.eagle3 import best_children, check_target, rising
from specbench_extras.specblock.rank_block_head import CLASSES, RankBlockHead, rank_config
from specbench_extras.specblock.specblock_tree import BlockTree, Slots, widths

KIND = "specblock"


class Settings(Base):
    nodes: int = Field(ge=1, description="the most tokens of a tree")
    blocks: int = Field(ge=1, description="blocks that follow one another in a round; 1: the first one alone")
    leaves: int = Field(ge=1, description="nodes at which a further block begins, after each round of blocks")
    first: int = Field(ge=1, description="tokens of the first slot of a round, whatever its class")
    branches: tuple[NonNegativeInt, ...] = Field(
        min_length=CLASSES,
        max_length=CLASSES,
        description="tokens of another slot, by the class of the right token's rank: 1, 2 to 4, 5 to 10, beyond; "
        "0: the likeliest one, and the block ends",
    )
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


class RankDrafter(Drafter):
    """Drafts a tree by `blocks` forwards of the head, the first one over the text that it has not read yet.

    The head's cache holds K rows for each committed token but the first and the last. While a tree is drafted, the rows
    of its blocks follow there.
    """

    unread: Tensor  # [n, D]: the conditions of the committed tokens that the head has not read

    def __init__(self, head: RankBlockHead, session: Session, settings: Settings) -> None:
        self.head, self.session, self.settings = head, session, settings
        self.ids: list[int] = head.ids.tolist()  # the target's tokens by the head's
        self.reads = head.hidden

    def begin(self, prompt: list[int]) -> None:
        self.session.truncate(0)

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """The head reads each token after the first, with the states before it."""
        assert scored.hidden is not None
        conditions = self.head.fuse(scored.hidden)
        if len(tokens) > 1:
            ids, features = self.rows(tokens[1:], conditions[:-1], range(1, len(tokens)))
            self.session.forward(ids, keep=1, features=features)
        self.unread = conditions[-1:]

    def rows(self, tokens: Sequence[int], conditions: Tensor, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Ids [n K] and features [n K, D + 1], for the head, of n of the target's tokens that stand at `places`."""
        device, slots = self.session.device, self.head.slots
        at = to_device(places, device).to(torch.float32)[:, None]  # exact, as half precision would not be
        features = torch.cat([conditions.to(torch.promote_types(conditions.dtype, torch.float32)), at], -1)
        return to_device(tokens, device).repeat_interleave(slots), features.repeat_interleave(slots, 0)

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of likely tokens, at any temperature, for the target to test as point masses."""
        tokens, parents, _ = self.tree(context).best(self.settings.nodes)
        return Draft(to_device([self.ids[token] for token in tokens], self.session.device), None, parents)

    @torch.inference_mode()
    def tree(self, context: list[int]) -> BlockTree:
        """The tree over the committed text, which the head reads to its end.

        All blocks of a round stand at the places of the first (official code). A further block reads the text without
        its last token, the slots of earlier blocks up to the node where it begins, and itself.
        """
        session, own, slots = self.session, self.settings, self.head.slots
        known = len(session)
        places = range(known // slots + 1, len(context))
        ids, features = self.rows(context[places.start :], self.unread, places)
        scored = session.forward(ids, keep=slots, parents=range(-1, len(ids) - 1), hidden=LAST, features=features)
        assert scored.hidden is not None
        states, grown = scored.hidden, BlockTree()
        (block,) = self.said(scored.logits, states[-slots:])
        grown.add(-1, len(ids) - slots, block, widths(block.classes, own.branches, own.first))
        for _ in range(own.blocks - 1):
            starts = grown.starts(own.leaves)
            if not starts:
                break
            began = [grown.rows[node] for node in starts]
            row, conditions = len(states), states[to_device(began, session.device)]
            tokens = [self.ids[grown.tokens[node]] for node in starts]
            ids, features = self.rows(tokens, conditions, [places[-1]] * len(starts))
            parents = [
                one
                for number, before in enumerate(began)
                for one in (before, *range(row + slots * number, row + slots * (number + 1) - 1))
            ]
            scored = session.forward(ids, parents=parents, hidden=LAST, features=features)
            assert scored.hidden is not None
            states = torch.cat([states, scored.hidden])
            for number, block in enumerate(self.said(scored.logits, scored.hidden)):
                grown.add(starts[number], row + slots * number, block, widths(block.classes, own.branches))
        session.keep(known, range(slots * len(places)))
        return grown

    def said(self, logits: Tensor, states: Tensor) -> list[Slots]:
        """What blocks say, by the logits [n K, V] and states [n K, D] of all their slots; copied to the host."""
        values, best = best_children(logits, max(self.settings.first, *self.settings.branches))
        ranks = self.head.rank(states, logits).argmax(-1)
        tokens, logs, classes = best.tolist(), values.tolist(), ranks.tolist()
        size = self.head.slots
        groups = [slice(at, at + size) for at in range(0, len(classes), size)]
        return [Slots(tokens[group], logs[group], classes[group]) for group in groups]

    @torch.inference_mode()
    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """The head reads the last committed token and the accepted ones next."""
        assert scored.hidden is not None
        self.unread = self.head.fuse(scored.hidden[[0, *(node + 1 for node in verdict.path)]])


class SpecBlock(Speculative, Stateless):
    """Speculative decoding with trees of blocks."""

    lossless = True
    accept = staticmethod(exact_tree)

    def __init__(self, target: Session, drafter: RankDrafter, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes
        self.gamma = drafter.settings.blocks * drafter.head.slots
        self.reach = 1 + drafter.settings.nodes


def rank_block_head(head: Head, target: PreTrainedModel, vocabulary: int) -> RankBlockHead:
    """The head in a file, on the target's device and in its type. Raises UserError where its parts disagree."""
    with refuse_damaged(KIND):
        tensors = {name: tensor for name, tensor in head.tensors.items() if name != "d2t"}
        offsets = head.tensors["d2t"]
        ids = torch.arange(len(offsets)) + offsets.long()
        if len(ids) != len(tensors["lm_head.weight"]) or not rising(ids, vocabulary):
            raise ValueError("d2t does not map its tokens to the target's")
        inner = tensors["layers.0.mlp.gate_proj.weight"].shape[0]
        slots, ranking = (len(tensors[name]) for name in ("input_layer.position_queries.weight", "rank_head.0.weight"))
        layers = len({name.split(".")[1] for name in tensors if name.startswith("layers.")})
        width = target.config.get_text_config().hidden_size
        config = rank_config(width, inner, len(ids), layers, head.trained["config"])
        with torch.random.fork_rng(devices=[]):
            embedding = target.get_input_embeddings()
            model = RankBlockHead(config, layers_read(target), slots, ranking, ids, embedding)
        model.load_state_dict(tensors)
    placed(model, target)
    return model


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it.

    The head runs eagerly on every runtime: others know no positions that rows share.
    """
    target = check_target(pair, KIND)
    pair.need_one_device(f"{KIND} reads the target's states into the cache of its head")
    model, hashes = load_once(
        settings.head, KIND, pair, None, lambda head: rank_block_head(head, target, pair.vocabulary)
    )
    session = Session(model, "draft", watch, model.config.vocab_size, EAGER)
    return SpecBlock(pair.session("target", watch), RankDrafter(model, session, settings), hashes)
