"""EAGLE-3: a trained head that reads the target's hidden states drafts trees (arXiv 2503.01840). Lossless.

The shape of a tree follows EAGLE-2 (arXiv 2406.16858): a node's value is the product of the head's probabilities on its
path. At each level the best nodes are expanded, and the best of all nodes are drafted.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import Accept
from specbench.engine.drafters import Drafter
from specbench.engine.ids import later, to_device
from specbench.engine.level_reader import Grown as Grown
from specbench.engine.level_reader import LevelReader
from specbench.engine.level_reader import Read as Read
from specbench.engine.models.eagle_head import EagleHead, LayerHead, config_of, copied, layers_read
from specbench.engine.models.heads import Head, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.choose import head_runtime
from specbench.engine.sampling import wide
from specbench.engine.session import LAST, Session
from specbench.engine.speculate import Speculative
from specbench.engine.trees import exact_tree
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.rules import is_exact

KIND = "eagle3"


class Settings(Base):
    total_tokens: int = Field(ge=2, description="the most tokens of a tree, including the last committed one")
    top_k: int = Field(ge=1, description="children of a node, and nodes of a level that are expanded; 1: a chain")
    depth: int = Field(ge=0, description="levels of the tree after the first one")
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


EMBEDDING = "embed_tokens.weight"  # of heads that are not as wide as their target, and so bring their own

# The tensors of a head file, by the names of the released checkpoints; -1: sizes that `eagle_head` checks together.
# EMBEDDING may be there too.
SHAPES = {
    **{f"midlayer.self_attn.{name}_proj.weight": (-1, -1) for name in "qkvo"},
    **{f"midlayer.mlp.{name}_proj.weight": (-1, -1) for name in ("gate", "up", "down")},
    **{f"midlayer.{name}.weight": (-1,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
    "fc.weight": (-1, -1),
    "norm.weight": (-1,),
    "lm_head.weight": (-1, -1),
    "d2t": (-1,),
}


class GrowingLevel(NamedTuple):
    """Nodes of one level of a tree that grows."""

    tokens: Tensor  # [n], in the draft vocabulary
    values: Tensor  # [n]: the log-probability of each node's path
    parents: Tensor  # [n]: the index of the parent among the nodes of all levels; -1: the context


def levels(logits: Tensor, read: Read, top_k: int, depth: int) -> Iterator[GrowingLevel]:
    """The levels of a tree over the context, whose next token `logits` [V] predict; at most `depth` + 1.

    Each node that is read has `top_k` children, its likeliest tokens. The whole first level is read; then the `top_k`
    best nodes of each further level. A level is read only when the next one is asked for. Nothing leaves the device.
    V is the size of the draft vocabulary.
    """
    gains, tokens = best_children(logits[None], top_k)  # [1, k]
    width = tokens.shape[1]
    yield GrowingLevel(tokens[0], gains[0], torch.full_like(tokens[0], -1))
    scores, tokens, followed = gains[0], tokens[0], None
    nodes = torch.arange(width, device=logits.device)  # the nodes that are read next, as indices into all nodes
    seen = width
    for _ in range(depth):
        gains, children = best_children(read(tokens, followed), width)  # [k, k]
        values, children = (scores[:, None] + gains).flatten(), children.flatten()
        yield GrowingLevel(children, values, nodes[:, None].expand(-1, width).flatten())
        best = ranked(values)[:width]
        tokens, scores, followed, nodes = children[best], values[best], best // width, seen + best
        seen += len(values)


def best_of(grown: Iterable[GrowingLevel], most: int) -> Grown:
    """The `most` best nodes of all levels (or all, if fewer). Among equals the earlier node is better.

    They form a tree, since no child is better than its parent, and each comes after it.
    """
    every, values, parents = (torch.cat(column) for column in zip(*grown, strict=True))
    chosen = ranked(values)[:most].sort().values
    parents = parents[chosen]
    return Grown(every[chosen], torch.where(parents < 0, -1, torch.searchsorted(chosen, parents)), values[chosen])


def grow(logits: Tensor, read: Read, top_k: int, depth: int, most: int) -> Grown:
    """The `most` best nodes of all `levels`; none is deeper than `most`, since all nodes above it are among them."""
    return best_of(levels(logits, read, top_k, min(depth, most - 1)), most)


def best_children(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities and ids [n, k] of the likeliest tokens of each row of logits [n, V], in falling order."""
    best = wide(logits).log_softmax(-1).topk(min(top_k, logits.shape[-1]))
    return best.values.clamp(max=0), best.indices


def ranked(values: Tensor) -> Tensor:
    """Indices [n] of `values` [n] from the highest to the lowest; equal ones keep their order."""
    return values.sort(descending=True, stable=True).indices


class EagleDrafter(Drafter):
    """Drafts trees of at most `total_tokens` - 1 tokens and `depth` + 1 levels, by `depth` + 1 forwards of the head.

    The head's cache holds the committed text, read with the target's features. While a tree is drafted, its nodes
    follow there, read with the head's own states.
    """

    unread: Tensor  # [n, D]: the features before each committed token that the head has not read

    def __init__(
        self, head: LayerHead, session: Session, layers: tuple[int, ...], total_tokens: int, top_k: int, depth: int
    ) -> None:
        self.head, self.session, self.reads = head, session, layers
        self.most, self.top_k, self.depth = total_tokens - 1, top_k, depth
        self.ids = head.ids.to(session.device)  # the target's tokens by the head's, where drafts are
        # Kept, since a runtime knows the work again by it.
        self.whole = partial(grow, top_k=top_k, depth=depth, most=self.most)

    def begin(self, prompt: list[int]) -> None:
        self.session.truncate(0)

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """Read each token of a prompt after the first, with the feature before it."""
        assert scored.hidden is not None
        features = self.head.fuse(scored.hidden)
        if len(tokens) > 1:
            self.session.forward(tokens[1:], keep=1, features=features[:-1])
        self.unread = features[-1:]

    @torch.inference_mode()
    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """A tree of the head's likeliest tokens, at any temperature, for the target to test as point masses."""
        grown = self.tree(context)
        return Draft(self.ids[grown.tokens], None, later(grown.parents))

    @torch.inference_mode()
    def tree(self, context: list[int]) -> Grown:
        """The tree over the committed text, which the head reads to its end. Its nodes are chosen on the device.

        One call of a runtime that has it for trees (`Session.draft_tree`), else a forward a level.
        """
        session, features = self.session, self.features(context)
        root = session.forward(context[-len(features) :], keep=1, hidden=LAST, features=features)
        assert root.hidden is not None
        logits, states = root.logits[-1], root.hidden[-1:]
        width, passes = min(self.top_k, len(logits)), min(self.depth, self.most - 1)
        one_size = type(self).grow is EagleDrafter.grow
        made = session.draft_tree(self.whole, width, passes, logits, states, self.ids) if one_size else None
        grown = Grown(*made) if made else self.grow(logits, LevelReader(session, states, self.ids))
        session.truncate(len(context) - 1)
        return grown

    def features(self, context: list[int]) -> Tensor:
        """What the head reads of the committed text: a feature for each of its last tokens that it has not read."""
        return self.unread

    def grow(self, logits: Tensor, read: Read) -> Grown:
        """The tree over the context, whose next token `logits` [V] predict."""
        return self.whole(logits, read)

    @torch.inference_mode()
    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """Have the head read, in the next round, the tokens that stand, with the target's states of this one."""
        assert scored.hidden is not None
        stand = to_device([0, *(node + 1 for node in verdict.path)], scored.hidden.device)
        self.unread = self.head.fuse(scored.hidden[stand])


class Eagle3(Speculative, Stateless):
    """Speculative decoding with the head's trees, by the exact rule of trees unless `accept` is another one."""

    def __init__(
        self, target: Session, drafter: EagleDrafter, hashes: dict[str, str], accept: Accept = exact_tree
    ) -> None:
        self.target, self.drafter, self.hashes, self.accept = target, drafter, hashes, accept
        self.lossless = is_exact(accept)
        self.gamma = drafter.depth + 1
        width = min(drafter.top_k, drafter.head.config.vocab_size)
        self.reach = 1 + min(drafter.most, width + drafter.depth * width**2)


def check_target(pair: Pair, kind: str = KIND) -> PreTrainedModel:
    """The target, which a head of a kind must be able to read. Raises UserError if it cannot."""
    target = pair.models["target"]
    width, embedded = target.config.get_text_config().hidden_size, target.get_input_embeddings().weight.shape[-1]
    if width != embedded:
        raise UserError(
            f"{kind} reads embeddings and hidden states of one width, but {type(target).__name__} has {embedded} and "
            f"{width}; choose another target or method"
        )
    return target


def eagle_head(head: Head, target: PreTrainedModel, vocabulary: int, where: torch.device | None = None) -> EagleHead:
    """The head in a file, in the target's type and on its device, or on the device `where`.

    Raises UserError where its tensors disagree.
    """
    with refuse_damaged(KIND):
        tensors = {name: tensor for name, tensor in head.tensors.items() if name not in ("d2t", EMBEDDING)}
        offsets = head.tensors["d2t"]
        ids = torch.arange(len(offsets)) + offsets.long()
        inner, drafted = tensors["midlayer.mlp.gate_proj.weight"].shape[0], tensors["lm_head.weight"].shape[0]
        own, width = head.tensors.get(EMBEDDING), target.config.get_text_config().hidden_size
        reads = 3 * width
        if len(ids) != drafted or not rising(ids, vocabulary):
            raise ValueError("d2t does not map its tokens to the target's")
        with torch.random.fork_rng(devices=[]):
            if own is None:
                (embedding,) = copied([target.get_input_embeddings()], where)
            else:
                embedding, width = nn.Embedding.from_pretrained(own), own.shape[1]
                placed(embedding, target, where)
            model = EagleHead(config_of(width, inner, drafted, head.trained["config"]), ids, embedding, reads)
        model.load_state_dict(tensors)
    placed(model, target, where)
    return model


def rising(ids: torch.Tensor, vocabulary: int) -> bool:
    """True if `ids` [n] are ids of the vocabulary in rising order, each once."""
    return bool((ids.diff() > 0).all()) and int(ids[0]) >= 0 and int(ids[-1]) < vocabulary


def loaded(file: str, pair: Pair) -> tuple[EagleHead, dict[str, str]]:
    """The head of a file, or the one that ships with the pair, and its hashes. Raises UserError if it does not fit."""
    target, vocabulary, where = check_target(pair), pair.vocabulary, pair.draft_device
    return load_once(file, KIND, pair, None, lambda head: eagle_head(head, target, vocabulary, where))


def head_session(model: LayerHead, pair: Pair, watch: Watch) -> Session:
    """A new sequence of a head, whose states and logits are where the target is."""
    runtime = head_runtime(pair.runtime, model)
    return Session(model, "draft", watch, model.config.vocab_size, runtime, home=pair.device)


def build(settings: Settings, pair: Pair, watch: Watch) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it."""
    model, hashes = loaded(settings.head, pair)
    layers = layers_read(pair.models["target"])
    session = head_session(model, pair, watch)
    drafter = EagleDrafter(model, session, layers, settings.total_tokens, settings.top_k, settings.depth)
    return Eagle3(pair.session("target", watch), drafter, hashes)
