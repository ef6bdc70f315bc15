"""Fit draft heads, Medusa's and Hydra's (arXiv 2401.10774, 2402.05109): each learns at every place of the answers.

The target is frozen and answers the documents itself; its states are computed on the fly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.draft_heads import DraftHeads, ResidualBlock
from specbench.engine.sampling import wide
from specbench.training.answered import Answered, PaddedAnswers, batches, blocks
from specbench.training.heads import AnsweredTraining
from specbench.training.loop import cosine
from specbench_extras.medusa.recipe import DraftHeadsRecipe

RANKS = 10  # how often the right token is the first, second, … of a head is measured up to here (official code: TOPK)

# New heads for a recipe, in torch's first weights.
Make = Callable[[PreTrainedModel, DraftHeadsRecipe], DraftHeads]


def first_heads(make: Make, target: PreTrainedModel, recipe: DraftHeadsRecipe, seed: int) -> DraftHeads:
    """Heads before their training, in float32 on the target's device.

    Residual blocks have no weights yet, only random biases, and output layers are the target's (official code). So
    every head begins by saying about what the target says next. Where a block reads several rows, it begins as the
    first one, the target's state (our inference; officially the projection is random).
    """
    with torch.random.fork_rng(devices=[]):
        heads = make(target, recipe).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "heads"))
    with torch.no_grad():
        for block in heads.modules():
            if isinstance(block, ResidualBlock):
                block.linear.weight.zero_()
                bound = block.linear.in_features**-0.5
                block.linear.bias.uniform_(-bound, bound, generator=rng)
                if isinstance(block.res_connection, nn.Linear):
                    nn.init.eye_(block.res_connection.weight)
                    block.res_connection.bias.zero_()
        for layer in heads.outputs():
            layer.weight.copy_(target.get_output_embeddings().weight)
            if layer.bias is not None:
                layer.bias.zero_()
    return heads.to(target.device)


@dataclass(frozen=True)
class Places:
    """The N places of a block's answers from which heads draft."""

    states: Tensor  # [N, D]: the target's after x_t
    tokens: Tensor  # [N, M + 1]: x_{t+1} … x_{t+1+M}; beyond the end of a text, any
    taught: Tensor  # [N, M, V]: the target's logits of x_{t+2} … x_{t+1+M}
    counted: Tensor  # [N, M] bool: the token that a head says is within the text


@torch.no_grad()
def read(target: PreTrainedModel, block: PaddedAnswers, heads: int, vocabulary: int) -> Places:
    """One forward of the target over a block. Padding follows the documents, where nothing reads it.

    The first place is the prompt's last token, since the prefill says the answer's first one.
    """
    out = target(block.tokens, use_cache=False, output_hidden_states=True)
    at = torch.arange(block.tokens.shape[1], device=block.tokens.device)
    row, place = ((at >= block.prompts[:, None] - 1) & (at < block.lengths[:, None] - 2)).nonzero(as_tuple=True)
    ahead = place[:, None] + torch.arange(1, heads + 2, device=place.device)  # [N, M + 1]
    counted = ahead[:, 1:] < block.lengths[row, None]
    ahead = ahead.clamp(max=block.tokens.shape[1] - 1)
    taught = wide(out.logits[row[:, None], ahead[:, :-1]][..., :vocabulary])
    return Places(out.hidden_states[-1][row, place], block.tokens[row[:, None], ahead], taught, counted)


class DraftHeadsTraining(AnsweredTraining):
    """The training of draft heads."""

    head: DraftHeads
    recipe: DraftHeadsRecipe

    def __init__(
        self,
        make: Make,
        target: PreTrainedModel,
        answered: Sequence[Answered],
        vocabulary: int,
        recipe: DraftHeadsRecipe,
        seed: int,
    ) -> None:
        super().__init__(target, first_heads(make, target, recipe, seed), answered, recipe, seed)
        self.vocabulary = vocabulary

    def learn(self, batch: Sequence[Answered]) -> float:
        """Make one step, in place; returns its loss, the weighted sum over the heads of their means over the places."""
        counts = [sum(max(0, document.rows - head) for document in batch) for head in range(len(self.head))]
        total = torch.zeros((), device=self.device)
        for block in blocks(batch, self.device):
            losses = self.losses(read(self.target, block, len(self.head), self.vocabulary))
            weighted = [self.recipe.decay**i * loss / max(1, counts[i]) for i, loss in enumerate(losses)]
            loss = torch.stack(weighted).sum()
            loss.backward()
            total += loss.detach()
        fallen = cosine(self.step, self.steps, self.recipe.warmup * self.steps)
        if self.step >= self.recipe.warmup * self.steps:
            fallen = self.recipe.last_rate + (1 - self.recipe.last_rate) * fallen
        self.descend(fallen)
        return float(total)

    def said(self, places: Places, head: int) -> Tensor:
        """What a head says at the places that count for it: logits [n, V]."""
        here = places.counted[:, head]
        return wide(self.head.predict(head, places.states[here], places.tokens[here, : head + 1]))[:, : self.vocabulary]

    def losses(self, places: Places) -> list[Tensor]:
        """The cross-entropy of each head, summed over the places that count for it."""
        losses = []
        for head in range(len(self.head)):
            here = places.counted[:, head]
            wanted = (
                places.tokens[here, head + 1] if self.recipe.loss == "tokens" else places.taught[here, head].softmax(-1)
            )
            losses.append(F.cross_entropy(self.said(places, head), wanted, reduction="sum"))
        return losses

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[list[float]]:
        """How often the target's choice is the first, second, … of a head, by head, given the text up to there [M][k].

        Heads that no text is long enough for have none.
        """
        count = min(RANKS, self.vocabulary)
        hits = torch.zeros(len(self.head), count, device=self.device)
        places_of = [0] * len(self.head)
        for batch in batches(answered, self.recipe.batch, 0):
            for block in blocks(batch, self.device):
                places = read(self.target, block, len(self.head), self.vocabulary)
                for head in range(len(self.head)):
                    right = places.taught[places.counted[:, head], head].argmax(-1)
                    ranked = self.said(places, head).topk(count).indices
                    hits[head] += (ranked == right[:, None]).sum(0)
                    places_of[head] += len(right)
        return [(row / max(1, counted)).tolist() for row, counted in zip(hits, places_of, strict=True)]

    def first_agreement(self, answered: Sequence[Answered]) -> float:
        return self.agreement(answered)[0][0]
