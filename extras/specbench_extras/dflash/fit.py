"""Fit a block drafter (arXiv 2602.06036, 2606.02091): random anchors, packed blocks, a loss that decays by slot.

A block begins after a random place of an answer, its anchor, and learns all of its slots from one forward. It reads the
context before its anchor and its own slots. So many blocks of a document are computed side by side.
"""

import math
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.block_head import BlockHead, block_config, spread
from specbench.engine.models.eagle_head import layer_sizes
from specbench.engine.sampling import wide
from specbench.methods.blocks.dflash import HEADS, KIND
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks, sent
from specbench.training.heads import AnsweredTraining, autocast, random_linear
from specbench.training.loop import cosine
from specbench_extras.dflash.outputs import Outputs, read_again
from specbench_extras.dflash.recipe import BlockRecipe, SlotRecipe

# The head's attention on a GPU. Another kernel would be prepared again for each shape, and every batch has a new one.
ON_GPU = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def new_head(target: PreTrainedModel, recipe: SlotRecipe, seed: int, kind: str = KIND) -> BlockHead:
    """A head with layers of the target's sizes, weights drawn from the seed, and a mask as large as embeddings are.

    `kind` is one of HEADS.
    """
    config = target.config.get_text_config()
    inner, stored = layer_sizes(target)
    shape = block_config(config.hidden_size, inner, recipe.layers, config.vocab_size, stored)
    read = spread(config.num_hidden_layers, recipe.features) if isinstance(recipe, BlockRecipe) else []
    embedding = target.get_input_embeddings()
    with torch.random.fork_rng(devices=[]):
        head = HEADS[kind](shape, read, recipe.block, embedding, target.get_output_embeddings()).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "head"))
    random_linear(head, rng)
    with torch.no_grad():
        head.mask.normal_(std=float(embedding.weight.float().std()), generator=rng)
    return head.to(target.device)


@dataclass(frozen=True)
class Packed:
    """A blocks of S slots side by side after each of B documents; some are padding."""

    documents: Sequence[Answered]
    anchors: Tensor  # [B, A]: the places of their first tokens
    counted: Tensor  # [B, A, S - 1] bool: the slots after the first one that lie within the document
    counts: list[int]  # [S - 1], on the host: how often each slot is counted


def pack(some: Sequence[Answered], size: int, anchors: int, rng: random.Random, device: torch.device) -> Packed:
    """Blocks of `size` slots at `anchors` random places of each document's answer, or at all, if there are fewer.

    An anchor is a token of the answer with another one after it.
    """
    drawn = [sorted(rng.sample(range(document.rows), min(anchors, document.rows))) for document in some]
    width = max(map(len, drawn))
    places = [[document.prompt + place for place in row] for document, row in zip(some, drawn, strict=True)]
    ends = [[len(document)] * len(row) + [0] * (width - len(row)) for document, row in zip(some, places, strict=True)]
    at = torch.tensor([row + [0] * (width - len(row)) for row in places])
    counted = at[..., None] + torch.arange(1, size) < torch.tensor(ends)[..., None]
    return Packed(some, sent(at, device), sent(counted, device), counted.sum((0, 1)).tolist())


def fill(head: BlockHead, tokens: Tensor, states: Tensor, anchors: Tensor, size: int) -> Tensor:
    """Logits [B, A, S - 1, V] of the slots of blocks of S tokens, which begin at the places `anchors` [B, A].

    They are computed side by side, by documents [B, L] and the target's states [B, L, T D].

    A block reads the features before its anchor and its own slots, as when decoding.
    """
    device, (rows, length) = tokens.device, tokens.shape
    count = anchors.shape[1]
    places = (anchors[..., None] + torch.arange(size, device=device)).flatten(1)  # [B, A S]
    before = torch.arange(length, device=device) < anchors[..., None]  # [B, A, L]
    context = before.repeat_interleave(size, 1)  # [B, A S, L]
    owner = torch.arange(count, device=device).repeat_interleave(size)
    together = (owner[:, None] == owner).expand(rows, -1, -1)  # [B, A S, A S]
    everywhere = torch.arange(length, device=device).expand(rows, -1)
    filled = head.fill(
        head.embed(tokens.gather(1, anchors), size).flatten(1, 2),
        head.features(tokens, states),
        torch.cat([everywhere, places], 1),
        mask=torch.cat([context, together], -1)[:, None],
    )
    return head.predict(filled.unflatten(1, (count, size))[:, :, 1:])


def weights_of(size: int, decay: float, device: torch.device) -> Tensor:
    """The weights [S - 1] of slots 1 to S - 1: exp(-(k - 1) / decay)."""
    return (-torch.arange(size - 1, device=device) / decay).exp()


class SlotTraining(AnsweredTraining):
    """The training of a block drafter."""

    head: BlockHead
    recipe: SlotRecipe

    def __init__(
        self,
        target: PreTrainedModel,
        answered: Sequence[Answered],
        vocabulary: int,
        recipe: SlotRecipe,
        seed: int,
        kind: str = KIND,
    ) -> None:
        super().__init__(target, new_head(target, recipe, seed, kind), answered, recipe, seed)
        self.vocabulary = vocabulary
        self.outputs = Outputs(target, self.head) if self.device.type == "cpu" else None

    def learn(self, batch: Sequence[Answered]) -> Tensor:
        """Make one step, in place; returns its loss, the weighted mean over the slots of all blocks."""
        total = torch.zeros((), device=self.device)
        packed = self.packed(batch, stable_seed(self.seed, "anchors", self.step))
        decay = self.decay()
        weights = weights_of(self.recipe.block, decay, self.device)
        weight = sum(math.exp(-k / decay) * n for _, part in packed for k, n in enumerate(part.counts))
        for block, part in packed:
            loss = (self.losses(block, part)[0] * weights).sum() / weight
            loss.backward()
            total += loss.detach()
        self.descend(cosine(self.step, self.steps, self.recipe.warmup * self.steps))
        return total

    def decay(self) -> float:
        """The decay of the slots' weights at this step."""
        return self.recipe.decay

    def packed(self, batch: Sequence[Answered], seed: int) -> list[tuple[PaddedAnswers, Packed]]:
        """The documents of a batch in parts that fit a forward, each with its blocks."""
        rng, made, first = random.Random(seed), [], 0
        for block in blocks(batch, self.device, self.micro):
            some = batch[first : first + len(block.lengths)]
            first += len(some)
            made.append((block, pack(some, self.recipe.block, self.recipe.anchors, rng, self.device)))
        return made

    def losses(self, block: PaddedAnswers, packed: Packed) -> tuple[Tensor, Tensor]:
        """The cross-entropy [B, A, S - 1] of every slot, and where its choice is the target's; 0 if it is not counted.

        The target's choice is the one after the document's text up to there.
        """
        states, taught = self.taught(block, packed)
        with autocast(self.device, self.recipe.autocast), self.attention():
            logits = fill(self.head, block.tokens, states, packed.anchors, self.recipe.block)
        logits = wide(logits)[..., : self.vocabulary]
        if self.recipe.loss == "tokens":
            wanted = block.tokens.gather(1, self.slots(block, packed).flatten(1)).view(packed.counted.shape)
        else:
            wanted = taught.softmax(-1)
        if wanted.dim() == 4:
            loss = -(wanted * logits.log_softmax(-1)).sum(-1)
        else:
            loss = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view(wanted.shape)
        return loss * packed.counted, (logits.argmax(-1) == taught.argmax(-1)) & packed.counted

    def attention(self) -> AbstractContextManager[None]:
        """The kernels that may compute the head's attention."""
        return sdpa_kernel(ON_GPU) if self.device.type == "cuda" else nullcontext()

    @torch.no_grad()
    def taught(self, block: PaddedAnswers, packed: Packed) -> tuple[Tensor, Tensor]:
        """The states [B, L, T D] of the target that the head reads, and its logits [B, A, S - 1, V] for the slots."""
        before = self.slots(block, packed) - 1
        if self.outputs:
            return self.outputs.of(packed.documents, before, self.vocabulary)
        with autocast(self.device, self.recipe.autocast):
            return read_again(self.target, self.head.hidden, block.tokens, before, self.vocabulary)

    def slots(self, block: PaddedAnswers, packed: Packed) -> Tensor:
        """The places [B, A, S - 1] of the tokens that the slots predict; those beyond the documents are cut."""
        slots = packed.anchors[..., None] + torch.arange(1, self.recipe.block, device=self.device)
        return slots.clamp(max=block.tokens.shape[1] - 1)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[float]:
        """For each slot, how often its choice is the target's; then the mean number of slots right in a row.

        The blocks are random ones, and the target reads the documents.
        """
        size = self.recipe.block - 1
        agreed, counted = torch.zeros(size), torch.zeros(size)
        in_a_row = whole = 0.0
        for number, batch in enumerate(batches(answered, self.recipe.batch, 0)):
            for block, packed in self.packed(batch, stable_seed(0, "held out", number)):
                right = self.losses(block, packed)[1]
                agreed += right.sum((0, 1)).cpu()
                counted += torch.tensor(packed.counts)
                complete = packed.counted.all(-1)
                in_a_row += float(right.cumprod(-1).sum(-1)[complete].sum())
                whole += float(complete.sum())
        rates = [a / c if c else math.nan for a, c in zip(agreed.tolist(), counted.tolist(), strict=True)]
        return [*rates, in_a_row / whole if whole else math.nan]
