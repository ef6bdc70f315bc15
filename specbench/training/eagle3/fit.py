"""Fit the draft head of EAGLE-3 (arXiv 2503.01840, section 3.2): training-time test, AdamW, a linear schedule.

The official code's choices that the paper leaves open are marked as such.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.eagle_head import EagleHead, LayerHead, head_config, layers_read
from specbench.engine.models.eagle_steps import draft_steps
from specbench.engine.sampling import wide
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks
from specbench.training.eagle3.kept import KeptLessons
from specbench.training.heads import AnsweredTraining, autocast, random_linear
from specbench.training.loop import linear
from specbench.training.recipe import UnrolledRecipe


@dataclass(frozen=True)
class Taught:
    """What the target says at the R places of each document from which the head drafts (some are padding)."""

    features: Tensor  # [B, T, n D]: its hidden states after each token that the head reads
    logits: Tensor  # [B, R + steps - 1, draft vocabulary]: row r predicts what follows the first r + 1 answer tokens
    likeliest: Tensor  # [B, R + steps - 1]: its own choice there, any token


@torch.no_grad()
def teach(
    target: PreTrainedModel, head: LayerHead, block: PaddedAnswers, steps: int, layers: Sequence[int] | None = None
) -> Taught:
    """One forward of the target over a block. Padding follows the documents, where nothing reads it.

    `layers` are the hidden states that the head reads; by default those of EAGLE-3.
    """
    length, first = block.tokens.shape[1], int(block.prompts.min())  # no head drafts before
    out = target(block.tokens, use_cache=False, output_hidden_states=True, logits_to_keep=length - first)
    features = torch.cat([out.hidden_states[i] for i in layers or layers_read(target)], -1)
    count = int((block.lengths - block.prompts).max()) - 1 + steps - 1
    at = (block.prompts[:, None] + torch.arange(count, device=block.tokens.device)).clamp_(max=length - 1)
    at -= length - out.logits.shape[1]  # some models give all
    logits = wide(out.logits.gather(1, at[..., None].expand(-1, -1, out.logits.shape[-1])))
    return Taught(features, logits[..., head.ids], logits.argmax(-1))


@dataclass(frozen=True)
class DraftStep:
    """One draft step at all places of a block."""

    logits: Tensor  # [B, R, draft vocabulary]
    taught: Tensor  # [B, R, draft vocabulary]: the target's logits
    likeliest: Tensor  # [B, R]: the target's choice, any token
    counted: Tensor  # [B, R]: True within the answer
    carried: Tensor | None = None  # [B, R, D]: the feature of the token that was read, as the next step reads it


# Drafts as `draft_steps` does; heads of other papers have their own.
Drafting = Callable[[Any, Tensor, Tensor, Tensor, Tensor], Iterator[tuple[Tensor, Tensor]]]


def unroll(
    head: LayerHead, block: PaddedAnswers, taught: Taught, steps: int, drafting: Drafting = draft_steps
) -> list[DraftStep]:
    """Draft `steps` tokens from every place of the answers, each after the target's text up to there.

    Step k of place i reads the text's own x_{i+1+k}, whatever the head would have drafted, and its prediction is
    compared with the target's after that token.
    """
    length = block.tokens.shape[1]
    count = taught.likeliest.shape[1] - steps + 1
    at = block.prompts[:, None] - 1 + torch.arange(count, device=block.tokens.device)  # [B, R]: the places
    ahead = (at[..., None] + 1 + torch.arange(steps, device=at.device)).clamp(max=length - 1)  # [B, R, steps]
    read = block.tokens.gather(1, ahead.flatten(1)).view(ahead.shape)
    drafted = []
    for step, (logits, features) in enumerate(drafting(head, block.tokens, taught.features, at, read)):
        rows = slice(step, step + count)
        counted = at + 2 + step < block.lengths[:, None]
        drafted.append(DraftStep(logits, taught.logits[:, rows], taught.likeliest[:, rows], counted, features))
    return drafted


def loss_of(step: DraftStep, head: LayerHead) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of a step with the target's distribution over the draft vocabulary, and the agreement.

    Places where the target's own choice is not in the draft vocabulary teach nothing (official code). Agreement counts
    how often the head's choice is the target's; at those places it never is.
    """
    learned = step.counted & torch.isin(step.likeliest, head.ids)
    logits = step.logits[learned].float()
    loss = F.cross_entropy(logits, step.taught[learned].float().softmax(-1), reduction="sum")
    agreed = (head.ids[logits.detach().argmax(-1)] == step.likeliest[learned]).sum()
    return loss, agreed


def new_head(target: PreTrainedModel, ids: Sequence[int], seed: int) -> EagleHead:
    """An untrained head on the target's device, in float32.

    Its output layer is the target's, cut to the draft vocabulary; the other layers are random (our inference; in the
    official code all are random).
    """
    kept = torch.tensor(ids, device=target.device)
    with torch.random.fork_rng(devices=[]):
        head = EagleHead(head_config(target, len(ids)), kept, target.get_input_embeddings()).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "head"))
    random_linear(head, rng)
    head = head.to(target.device)
    output = target.get_output_embeddings().weight
    if output.shape[1] == head.config.hidden_size:
        with torch.no_grad():
            head.lm_head.weight.copy_(output[kept])
    return head


class Unrolled(AnsweredTraining):
    """The training of a head of one layer, by several draft steps from each place."""

    head: LayerHead
    recipe: UnrolledRecipe

    def __init__(
        self,
        target: PreTrainedModel,
        head: LayerHead,
        layers: Sequence[int],
        answered: Sequence[Answered],
        recipe: UnrolledRecipe,
        seed: int,
    ) -> None:
        super().__init__(target, head, answered, recipe, seed, betas=(0.9, 0.95))  # betas: official code
        self.layers, self.kept = layers, KeptLessons()

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss."""
        total = self.backward(batch)
        self.descend(linear(self.step, self.steps, self.recipe.warmup))
        return float(total)

    def backward(self, batch: Sequence[Answered]) -> Tensor:
        """Add a batch's gradients, in place; returns its loss, the weighted sum over draft steps of their means."""
        places = sum(document.rows for document in batch)
        total = torch.zeros((), device=self.target.device)
        for block in blocks(batch, self.target.device):
            with self.autocast():
                losses = self.losses(block)
            weighted = [self.recipe.step_decay**i * step_loss for i, step_loss in enumerate(losses)]
            loss = torch.stack(weighted).sum() / places
            loss.backward()
            total += loss.detach()
        return total

    def losses(self, block: PaddedAnswers) -> list[Tensor]:
        """The loss of each draft step, summed over its places."""
        return [loss_of(step, self.head)[0] for step in self.unrolled(block)]

    def unrolled(self, block: PaddedAnswers) -> list[DraftStep]:
        return self.drafted(block, self.taught(block))

    def drafted(self, block: PaddedAnswers, taught: Taught) -> list[DraftStep]:
        return unroll(self.head, block, taught, self.recipe.steps)

    def taught(self, block: PaddedAnswers) -> Taught:
        if self.target.device.type != "cpu":
            return self.teach(block)
        return Taught(*self.kept.of(block, lambda one: tuple(vars(self.teach(one)).values())))

    def teach(self, block: PaddedAnswers) -> Taught:
        return teach(self.target, self.head, block, self.recipe.steps, self.layers)

    def autocast(self) -> torch.autocast:
        return autocast(self.target.device, self.recipe.autocast)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[float]:
        """For each draft step, the share of places where the head's choice is the target's, given the target's text."""
        agreed, counted = [0] * self.recipe.steps, [0] * self.recipe.steps
        for batch in batches(answered, self.recipe.batch, 0):
            for block in blocks(batch, self.target.device):
                with self.autocast():
                    drafted = self.unrolled(block)
                for i, step in enumerate(drafted):
                    agreed[i] += int(loss_of(step, self.head)[1])
                    counted[i] += int(step.counted.sum())
        return [a / c if c else math.nan for a, c in zip(agreed, counted, strict=True)]


class Eagle3Training(Unrolled):
    """The training of EAGLE-3's head."""

    head: EagleHead

    def __init__(
        self, target: PreTrainedModel, head: EagleHead, answered: Sequence[Answered], recipe: UnrolledRecipe, seed: int
    ) -> None:
        super().__init__(target, head, layers_read(target), answered, recipe, seed)


def draft_ids(answered: Iterable[Answered], size: int, vocabulary: int) -> list[int]:
    """The `size` most frequent tokens of the answers, in rising order; if too few occur, the lowest other ids join."""
    if size >= vocabulary:
        return list(range(vocabulary))
    counts = Counter(token for document in answered for token in document.tokens[document.prompt :])
    ranked = sorted(range(vocabulary), key=lambda token: (-counts[token], token))
    return sorted(ranked[:size])
