"""Fit a head on its own drafts (Draft-OPD, arXiv 2605.29343): decode, replay the drafts with gradients, learn from both
sides of the first rejection.

On accepted slots the head learns all that the target would say (forward KL), on rejected ones not to say what the
target would not (reverse KL), the less the later a slot comes. Every step decodes its documents again, with the weights
as they are then.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specbench.base.hashes import stable_seed
from specbench.engine.drafters import Drafter
from specbench.engine.models.block_head import BlockHead
from specbench.engine.models.eagle_head import EagleHead, layers_read
from specbench.engine.models.eagle_steps import draft_steps
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.sampling import wide
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.blocks.dflash import BlockDrafter
from specbench.methods.heads.eagle3 import EagleDrafter
from specbench.training.answered import batches
from specbench.training.documents import Document
from specbench.training.heads import HeadTraining, autocast
from specbench.training.loop import cosine
from specbench_extras.dflash.fit import fill
from specbench_extras.drafts.losses import mean_of_sides, split
from specbench_extras.opd.recipe import ChainReplayRecipe, ReplayRecipe
from specbench_extras.opd.replay import Replay, replay, rounds_of


class ReplayTraining(HeadTraining[list[Document]]):
    """The training of a head on the drafts of `gamma` tokens that it makes of documents."""

    recipe: ReplayRecipe
    drafter: Drafter  # drafts with the head as it is

    def __init__(
        self, pair: Pair, head: nn.Module, gamma: int, documents: Sequence[Document], recipe: ReplayRecipe, seed: int
    ) -> None:
        super().__init__(pair.models["target"], head, len(documents), recipe, seed)
        self.pair, self.gamma, self.documents = pair, gamma, documents
        self.sampling = Sampling(recipe.temperature)

    def batches(self, epoch: int) -> list[list[Document]]:
        seed = stable_seed(self.seed, "epoch", epoch)
        return batches(self.documents, self.size, seed, lambda document: len(document.prompt))

    def learn(self, batch: Sequence[Document]) -> float:
        """Make one step, in place; returns its loss, or 0 if nothing was drafted."""
        replays = self.replays(batch)
        counts = sides(replays)
        total = torch.zeros((), device=self.device)
        for made in replays:
            loss = self.loss(made, counts)
            loss.backward()
            total += loss.detach()
        if sum(counts):
            self.descend(cosine(self.step, self.steps, self.recipe.warmup * self.steps))
        return float(total)

    def replays(self, batch: Sequence[Document]) -> list[Replay]:
        """The documents of a batch decoded with the head as it is; those of which nothing was drafted are left out."""
        made = (
            replay(
                self.pair,
                self.drafter,
                self.gamma,
                document,
                self.recipe.length,
                self.sampling,
                self.rng("replay", self.step, document.name),
            )
            for document in batch
        )
        return [one for one in made if one]

    def rng(self, *parts: object) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(stable_seed(self.seed, *parts))

    def loss(self, made: Replay, counts: tuple[int, int]) -> Tensor:
        """The part of a step's loss that a document has; `counts` are the step's slots of both kinds (`sides`)."""
        with autocast(self.device, self.recipe.autocast):
            drafted = self.drafted(made)
        here = made.counted
        log_q = wide(drafted[here]).log_softmax(-1)
        log_p = wide(self.offered(made.taught[here])).log_softmax(-1).to(log_q.dtype)
        rejected = made.rejected[here]
        values = split(self.recipe, log_p, log_q, rejected)
        return mean_of_sides(values, rejected, made.slots[here], counts, self.recipe.reject_decay)

    @abstractmethod
    def drafted(self, made: Replay) -> Tensor:
        """The head's logits [M, K, V] for the slots of a document's drafts, with gradients."""

    def offered(self, taught: Tensor) -> Tensor:
        """The target's logits [n, V], cut to the tokens that the head can draft."""
        return taught

    def tokens_a_round(self, documents: Sequence[Document]) -> float:
        """Tokens that documents gain a round when they are decoded with the head as it is; NaN without rounds."""
        tokens = rounds = 0
        for document in documents:
            rng = self.rng("held out", document.name)
            for decoded in rounds_of(self.pair, self.drafter, self.gamma, document, self.sampling, rng):
                if decoded.verdict:
                    tokens, rounds = tokens + len(decoded.tokens), rounds + 1
        return tokens / rounds if rounds else float("nan")


def sides(replays: Sequence[Replay]) -> tuple[int, int]:
    """How many slots of a step were accepted, and how many rejected."""
    counted = sum(int(made.kept.sum()) for made in replays)
    rejected = sum(int((made.counted & made.rejected).sum()) for made in replays)
    return counted - rejected, rejected


class BlockTraining(ReplayTraining):
    """The training of a block drafter. Its slots do not read the drafted tokens, only the target does."""

    head: BlockHead

    def __init__(
        self, pair: Pair, head: BlockHead, documents: Sequence[Document], recipe: ReplayRecipe, seed: int
    ) -> None:
        super().__init__(pair, head, head.block - 1, documents, recipe, seed)
        self.drafter = BlockDrafter(head, Session(head, "draft", None, pair.vocabulary, EAGER), head.block, "likeliest")

    def drafted(self, made: Replay) -> Tensor:
        logits = fill(self.head, made.tokens[None], made.states[None], made.anchors[None], self.head.block)
        return logits[0, ..., : self.pair.vocabulary]


class ChainTraining(ReplayTraining):
    """The training of EAGLE-3's head, whose drafts are chains that it reads itself."""

    head: EagleHead

    def __init__(
        self, pair: Pair, head: EagleHead, documents: Sequence[Document], recipe: ChainReplayRecipe, seed: int
    ) -> None:
        super().__init__(pair, head, recipe.gamma, documents, recipe, seed)
        session = Session(head, "draft", None, head.config.vocab_size, EAGER)
        layers = layers_read(self.target)
        self.drafter = EagleDrafter(head, session, layers, recipe.gamma + 1, 1, recipe.gamma - 1)

    def drafted(self, made: Replay) -> Tensor:
        read = torch.cat([made.tokens[made.anchors][:, None], made.drafted[:, :-1]], 1)  # [M, K]
        steps = draft_steps(self.head, made.tokens[None], made.states[None], made.anchors[None] - 1, read[None])
        return torch.stack([logits[0] for logits, _ in steps], 1)

    def offered(self, taught: Tensor) -> Tensor:
        """Those of the draft vocabulary, as in EAGLE-3's training. Reverse KL has the gradient that it has over all."""
        return taught[:, self.head.ids]
