"""DFlash: layers that read the target's hidden states draft a block at once (arXiv 2602.06036). Lossless.

A forward fills all slots of a block: each has a distribution of its own, given the committed text and nothing of the
other slots' tokens. These distributions are the block's lattice. DFlash reads it as a chain.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from specbench.config import Settings as Base
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import Drafter
from specbench.engine.models.block_head import BlockHead, block_config
from specbench.engine.models.heads import Head, load_once, placed, refuse_damaged
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.sampling import draw
from specbench.engine.session import Session
from specbench.engine.speculate import Speculative
from specbench.engine.types import Draft, Method, Sampling, Scored, Stateless, Verdict, Watch
from specbench.methods.heads.eagle3 import check_target

# Kinds of heads, to which packages add their own. Those of DFlare mix the target's layers for each of their own.
KIND, MIXED = "dflash", "dflare"
HEADS: dict[str, Callable[..., BlockHead]] = {KIND: BlockHead, MIXED: partial(BlockHead, mixed=True)}
MASK = 0  # the id that stands for a mask in the head's sequence, where no embedding is looked up
Proposal = Literal["likeliest", "drawn"]


class Settings(Base):
    block: int = Field(
        ge=0, description="tokens of a block with the last committed one, at most as trained; 0: as trained"
    )
    proposal: Proposal = Field(
        description="at T > 0: each slot's likeliest token, or a draw from the slot's distribution"
    )
    head: str = Field(description="trained head: a file, or `auto` (the one that ships with the pair)")


class SlotDrafter(Drafter, ABC):
    """Drafts `block` - 1 tokens by one forward of the head over the text that it has not read yet and a block.

    The head's cache holds the committed text but for its last token. The block follows there while it is drafted.
    """

    def __init__(self, head: BlockHead, session: Session, block: int, proposal: Proposal) -> None:
        self.head, self.session, self.block, self.proposal = head, session, block, proposal

    @abstractmethod
    def features(self, tokens: list[int]) -> Tensor:
        """Features [n, F] of the n committed tokens that the head reads next."""

    @torch.inference_mode()
    def lattice(self, context: list[int]) -> Tensor:
        """Logits [block - 1, V] of what follows `context`, whose last token no model has read: one row a slot."""
        session = self.session
        unread = context[len(session) :]
        fed = [*unread, *[MASK] * (self.block - 1)]
        scored = session.forward(fed, keep=self.block - 1, features=self.features(unread[:-1]))
        session.truncate(len(context) - 1)
        return scored.logits

    def propose(self, context: list[int], gamma: int, sampling: Sampling, rng: torch.Generator) -> Draft:
        """The lattice as a chain. Tokens that are drawn have their slot's distribution, others are point masses."""
        tokens, probs = draw(self.lattice(context), sampling if self.proposal == "drawn" else Sampling(), rng)
        return Draft(tokens, probs)


class BlockDrafter(SlotDrafter):
    """Drafts by a head that reads the target's hidden states of every round."""

    unread: Tensor  # [n, T D]: the states after each committed token that the head has not read

    def __init__(self, head: BlockHead, session: Session, block: int, proposal: Proposal) -> None:
        super().__init__(head, session, block, proposal)
        self.reads = head.hidden

    def begin(self, prompt: list[int]) -> None:
        self.session.truncate(0)

    @torch.inference_mode()
    def observe_prompt(self, tokens: list[int], scored: Scored) -> None:
        """The head reads all features of the prompt."""
        assert scored.hidden is not None
        self.session.forward(tokens, features=self.head.fuse(scored.hidden))
        self.unread = scored.hidden[:0]

    def features(self, tokens: list[int]) -> Tensor:
        return self.head.fuse(self.unread)

    def observe(self, scored: Scored, verdict: Verdict) -> None:
        """The head reads the last committed token and the accepted ones next."""
        assert scored.hidden is not None
        self.unread = scored.hidden[: 1 + verdict.accepted]


class DFlash(Speculative, Stateless):
    """Speculative decoding with a head's blocks."""

    lossless = True
    accept = staticmethod(exact)

    def __init__(self, target: Session, drafter: SlotDrafter, hashes: dict[str, str]) -> None:
        self.target, self.drafter, self.hashes = target, drafter, hashes
        self.gamma, self.reach = drafter.block - 1, drafter.block


def block_head(head: Head, target: PreTrainedModel) -> BlockHead:
    """The head in a file, on the target's device and in its type. Raises UserError where its parts disagree."""
    config = target.config.get_text_config()
    with refuse_damaged(head.kind):
        read, block = head.trained["layers"], head.trained["block"]
        if type(block) is not int or block < 2:
            raise ValueError(f"its blocks are of {block} tokens")
        if not all(type(layer) is int and 0 <= layer < config.num_hidden_layers for layer in read):
            raise ValueError(f"it reads layers {read} of {config.num_hidden_layers}")
        count = len({name.split(".")[1] for name in head.tensors if name.startswith("layers.")})
        inner = head.tensors["layers.0.mlp.gate_proj.weight"].shape[0]
        shape = block_config(config.hidden_size, inner, count, config.vocab_size, head.trained["config"])
        borrowed = target.get_input_embeddings(), target.get_output_embeddings()
        with torch.random.fork_rng(devices=[]):
            model = HEADS[head.kind](shape, read, block, *borrowed)
        model.load_state_dict(dict(head.tensors))
    placed(model, target)
    return model


def loaded(file: str, pair: Pair, kind: str) -> tuple[BlockHead, dict[str, str]]:
    """The head of a file, or the one that ships with the pair, and its hashes. Raises UserError if it does not fit."""
    target = check_target(pair, kind)
    pair.need_one_device(f"{kind} reads the target's states into the cache of its head")
    return load_once(file, kind, pair, None, lambda head: block_head(head, target))


def build(settings: Settings, pair: Pair, watch: Watch, kind: str = KIND) -> Method:
    """Uses only the pair's target. Raises UserError for a head that does not fit it, and for too large a block.

    The head runs eagerly, or on `graph`: other runtimes know no context of keys and values alone.
    """
    model, hashes = loaded(settings.head, pair, kind)
    block = block_of(settings, model, pair, kind)
    session = Session(model, "draft", watch, pair.vocabulary, pair.runtime if pair.runtime.name == "graph" else EAGER)
    return DFlash(pair.session("target", watch), BlockDrafter(model, session, block, settings.proposal), hashes)


def block_of(settings: Settings, model: BlockHead, pair: Pair, kind: str) -> int:
    """The size of a block that the settings choose. Raises UserError for one that is too large."""
    block = settings.block or model.block
    if not 2 <= block <= model.block:
        raise UserError(
            f"{kind}: block {block} is not from 2 to {model.block}, as the head was trained; choose one that is"
        )
    return block
