"""Fit SpecBlock's drafter (arXiv 2605.07243): blocks that follow one another, each cut at a random slot.

At every place of an answer the first block is conditioned on the target's states. A further block begins after a slot
of the one before, with the text's token there and the drafter's own state. The text stays the target's, whatever the
drafter would have said.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.eagle_head import layer_sizes, layers_read
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks
from specbench.training.heads import AnsweredTraining, autocast, random_linear
from specbench.training.loop import linear
from specbench_extras.dflash.outputs import Outputs, read_again
from specbench_extras.specblock.losses import draft_losses, rank_classes, rank_loss
from specbench_extras.specblock.rank_block_head import RankBlockHead, rank_config
from specbench_extras.specblock.recipe import RankBlockRecipe


def new_head(target: PreTrainedModel, ids: Sequence[int], recipe: RankBlockRecipe, seed: int) -> RankBlockHead:
    """An untrained head on the target's device, in float32.

    Its output layer is the target's, cut to the draft vocabulary (our inference); the other layers are random.
    """
    inner, stored = layer_sizes(target)
    width, kept = target.config.get_text_config().hidden_size, torch.tensor(ids, device=target.device)
    config = rank_config(width, inner, len(ids), recipe.layers, stored)
    with torch.random.fork_rng(devices=[]):
        embedding = target.get_input_embeddings()
        head = RankBlockHead(config, layers_read(target), recipe.slots, recipe.ranking, kept, embedding).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "head"))
    random_linear(head, rng)
    with torch.no_grad():
        head.input_layer.position_queries.weight.normal_(std=0.02, generator=rng)  # official code
        head = head.to(target.device)
        output = target.get_output_embeddings().weight
        if output.shape[1] == width:
            head.lm_head.weight.copy_(output[kept])
    return head


@dataclass(frozen=True)
class Drafted:
    """What the blocks at R places of B documents say; some places are padding, or lie beyond their document."""

    logits: Tensor  # [B, R, K, draft vocabulary]
    states: Tensor  # [B, R, K, D]
    counted: Tensor  # [B, R, K]: True where a slot's token is within the document


def unroll(head: RankBlockHead, block: PaddedAnswers, states: Tensor, cuts: Sequence[int]) -> Iterator[Drafted]:
    """The first block at every place of the answers; then, for each M of `cuts`, one after M slots of the last.

    `states` [B, T, 3 D] are the target's. The first block at the token x_t reads x_t with the target's states of
    x_{t-1}, and all slots of the tokens before. A further one reads these too, but of x_t the slots that were not cut,
    those of the blocks in between likewise, and itself.
    """
    device, (rows_of, length), size = block.tokens.device, block.tokens.shape, head.slots
    cache, slot = DynamicCache(), torch.arange(size, device=device)
    places = torch.arange(1, length, device=device)[:, None] + slot  # [T - 1, K]
    first = head.fill(
        head.read(block.tokens[:, 1:], head.fuse(states[:, :-1])), places.flatten().expand(rows_of, -1), cache
    )
    count = int((block.lengths - block.prompts).max()) - 1
    at = block.prompts[:, None] + torch.arange(count, device=device)  # [B, R]: x_t
    held = at.clamp(max=length - 1)
    drafted = first.unflatten(1, (-1, size))[torch.arange(rows_of, device=device)[:, None], held - 1]

    def said(drafted: Tensor, offset: int) -> Drafted:
        counted = (at + offset)[..., None] + 1 + slot < block.lengths[:, None, None]
        return Drafted(head.predict(drafted), drafted, counted)

    yield said(drafted, 0)
    of_place = held[..., None] + slot  # [B, R, K]: where all blocks of a place stand (official code)
    owner = torch.arange(count, device=device).repeat_interleave(size)
    same = (owner[:, None] == owner).expand(rows_of, -1, -1)  # [B, R K, R K]: of one place
    slot_of = slot.repeat(count)
    everywhere = places[:, :1].expand(-1, size).flatten()  # [(T - 1) K]: the token of each row
    here, nth = held.repeat_interleave(size, 1)[..., None], slot.repeat(length - 1)
    for number, (cut, offset) in enumerate(zip(cuts, accumulate(cuts), strict=True)):
        tokens = block.tokens.gather(1, (at + offset).clamp(max=length - 1))
        allowed = [(everywhere < here) | ((everywhere == here) & (nth < cuts[0]))]
        allowed += [same & (slot_of < earlier) for earlier in cuts[1 : number + 1]]
        allowed.append(same & (slot_of <= slot_of[:, None]))
        rows = head.read(tokens, drafted[:, :, cut - 1])
        mask = torch.cat(allowed, -1)[:, None]
        drafted = head.fill(rows, of_place.flatten(1), cache, mask).unflatten(1, (-1, size))
        yield said(drafted, offset)


class RankBlockTraining(AnsweredTraining):
    """The training of SpecBlock's drafter."""

    head: RankBlockHead
    recipe: RankBlockRecipe

    def __init__(
        self,
        target: PreTrainedModel,
        head: RankBlockHead,
        answered: Sequence[Answered],
        vocabulary: int,
        recipe: RankBlockRecipe,
        seed: int,
    ) -> None:
        super().__init__(target, head, answered, recipe, seed)
        self.vocabulary = vocabulary
        self.outputs = Outputs(target, self.head) if self.device.type == "cpu" else None
        self.micro = max(1, self.micro // recipe.slots)  # tokens, each of as many rows

    def learn(self, batch: Sequence[Answered]) -> Tensor:
        """Make one step, in place; returns its loss, a mean over forwards by their places.

        The means within the losses are over the documents of a forward, as they are over those of a GPU in the official
        code.
        """
        rng = random.Random(stable_seed(self.seed, "cuts", self.step))
        cuts = [rng.randint(1, self.recipe.slots) for _ in range(self.recipe.blocks - 1)]
        places, total = sum(document.rows for document in batch), torch.zeros((), device=self.device)
        for block, some in self.parts(batch):
            with autocast(self.device, self.recipe.autocast):
                loss = self.loss(block, some, cuts) * sum(document.rows for document in some) / places
            loss.backward()
            total += loss.detach()
        self.descend(linear(self.step, self.steps, self.recipe.warmup))
        return total

    def parts(self, batch: Sequence[Answered]) -> Iterator[tuple[PaddedAnswers, Sequence[Answered]]]:
        """The documents of a batch in parts that fit a forward."""
        first = 0
        for block in blocks(batch, self.device, self.micro):
            yield block, batch[first : first + len(block.lengths)]
            first += len(block.lengths)

    def loss(self, block: PaddedAnswers, some: Sequence[Answered], cuts: Sequence[int]) -> Tensor:
        """The loss of some documents: over all blocks, the slots' draft losses and the rank head's."""
        recipe, total = self.recipe, torch.zeros((), device=self.device)
        decay = recipe.decay ** torch.arange(recipe.slots, device=self.device)
        for drafted, taught, wanted in self.compared(block, some, cuts):
            learned = drafted.counted & (wanted >= 0)
            right = drafted.logits.argmax(-1) == wanted
            total = total + (decay * draft_losses(drafted.logits.float(), taught, right, learned)).sum()
            classes = rank_classes(drafted.logits.detach(), wanted.clamp(min=0))
            scores = self.head.rank(drafted.states, drafted.logits)
            total = total + recipe.rank_weight * rank_loss(scores, classes, learned, recipe.budget)
        return total

    def compared(
        self, block: PaddedAnswers, some: Sequence[Answered], cuts: Sequence[int]
    ) -> Iterator[tuple[Drafted, Tensor, Tensor]]:
        """Each block, the target's logits [B, R, K, draft vocabulary], and its choice among the head's tokens.

        The choice [B, R, K] is -1 where it is none of them: there the head cannot be right, and learns nothing.
        """
        size, offsets = self.recipe.slots, [0, *accumulate(cuts)]
        count = int((block.lengths - block.prompts).max()) - 1
        at = block.prompts[:, None] + torch.arange(count, device=self.device)
        reached = torch.cat([offset + torch.arange(size, device=self.device) for offset in offsets])
        states, every = self.taught(block, some, (at[..., None] + reached).clamp(max=block.tokens.shape[1] - 1))
        numbers = torch.full((self.vocabulary,), -1, device=self.device)
        numbers[self.head.ids] = torch.arange(len(self.head.ids), device=self.device)
        for drafted, logits in zip(unroll(self.head, block, states, cuts), every.split(size, 2), strict=True):
            yield drafted, logits[..., self.head.ids], numbers[logits.argmax(-1)]

    @torch.no_grad()
    def taught(self, block: PaddedAnswers, some: Sequence[Answered], places: Tensor) -> tuple[Tensor, Tensor]:
        """The target's states [B, T, 3 D] that the head reads, and its logits [B, R, S, V] after `places` [B, R, S]."""
        if self.outputs:
            return self.outputs.of(some, places, self.vocabulary)
        return read_again(self.target, self.head.hidden, block.tokens, places, self.vocabulary)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> tuple[list[float], list[float], float, float]:
        """How often a slot's choice is the target's, of a first and of a second block, given the right tokens before.

        The second block follows a whole first one. Then the mean number of slots right in a row, of first blocks within
        their document, and how often the rank head says the right class of their slots.
        """
        size = self.recipe.slots
        agreed, counted = torch.zeros(2, size), torch.zeros(2, size)
        in_a_row = whole = classed = ranked = 0.0
        for batch in batches(answered, self.recipe.batch, 0):
            for block, some in self.parts(batch):
                with autocast(self.device, self.recipe.autocast):
                    for number, (drafted, _, wanted) in enumerate(self.compared(block, some, [size])):
                        right = (drafted.logits.argmax(-1) == wanted) & drafted.counted
                        agreed[number] += right.sum((0, 1)).cpu()
                        counted[number] += drafted.counted.sum((0, 1)).cpu()
                        if number:
                            continue
                        complete = drafted.counted.all(-1)
                        in_a_row += float(right.cumprod(-1).sum(-1)[complete].sum())
                        whole += float(complete.sum())
                        scores = self.head.rank(drafted.states, drafted.logits)
                        classes = rank_classes(drafted.logits, wanted.clamp(min=0))
                        seen = drafted.counted & (wanted >= 0)
                        classed += float(((scores.argmax(-1) == classes) & seen).sum())
                        ranked += float(seen.sum())
        first, second = (agreed / counted).tolist()
        return first, second, in_a_row / whole if whole else math.nan, classed / ranked if ranked else math.nan

    def first_agreement(self, answered: Sequence[Answered]) -> float:
        return self.agreement(answered)[0][0]
