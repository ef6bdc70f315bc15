"""Fit the draft head of EAGLE-3 (arXiv 2503.01840, section 3.2): training-time test, AdamW, a linear schedule.

Nothing is drawn but from the seed and the epoch's number, and a checkpoint is written now and then: a training that was
killed goes on from there and ends with the very same head.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from specbench.config import UserError
from specbench.decoding.sampling import wide
from specbench.eagle_head import EagleHead, head_config, layers_read
from specbench.seeds import stable_seed
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.eagle3_data import Answered, Block, batches, blocks
from specbench.train.recipe import EagleRecipe

CHECKPOINT_SECONDS = 120


@dataclass(frozen=True)
class Taught:
    """What the target says at the places of a block from which the head drafts, R of each document (some padded)."""

    features: Tensor  # [B, T, 3D]: its hidden states behind each token
    logits: Tensor  # [B, R + steps - 1, draft vocabulary]: row r predicts what follows the first r + 1 answer tokens
    likeliest: Tensor  # [B, R + steps - 1]: its own choice there, any token


@torch.no_grad()
def teach(target: PreTrainedModel, head: EagleHead, block: Block, steps: int) -> Taught:
    """One forward of the target over a block. Padding lies behind the documents, where nothing reads it."""
    out = target(block.tokens, use_cache=False, output_hidden_states=True)
    features = torch.cat([out.hidden_states[i] for i in layers_read(target)], -1)
    count = int((block.lengths - block.prompts).max()) - 1 + steps - 1
    at = (block.prompts[:, None] + torch.arange(count, device=block.tokens.device)).clamp_(
        max=block.tokens.shape[1] - 1
    )
    logits = wide(out.logits.gather(1, at[..., None].expand(-1, -1, out.logits.shape[-1])))
    return Taught(features, logits[..., head.ids], logits.argmax(-1))


@dataclass(frozen=True)
class Step:
    """One draft step at all places of a block."""

    logits: Tensor  # [B, R, draft vocabulary]
    taught: Tensor  # [B, R, draft vocabulary]: the target's logits
    likeliest: Tensor  # [B, R]: the target's choice, any token
    counted: Tensor  # [B, R]: whether it lies within the answer


def unroll(head: EagleHead, block: Block, taught: Taught, steps: int) -> list[Step]:
    """Draft `steps` tokens from every place of the answers, as the head will: behind its own states.

    Step 0 at place i reads the token x_{i+1} and the feature of x_i, and attends to all places up to i; step k reads
    x_{i+1+k} and the state of step k - 1, and attends to step 0 at all places up to i and to steps 1 … k at its own
    (training-time test). Its prediction is compared with the target's behind x_{i+1+k}. So the text stays the target's,
    whatever the head would have drafted.
    """
    layer, attention = head.midlayer, head.midlayer.self_attn
    device, (rows_of, length) = block.tokens.device, block.tokens.shape
    count = taught.likeliest.shape[1] - steps + 1
    at = block.prompts[:, None] - 1 + torch.arange(count, device=device)  # [B, R]: the places
    held = at.clamp(max=length - 2)
    fused = head.fuse(taught.features)
    everywhere = layer.read(head.embed(block.tokens[:, 1:]), fused[:, :-1])  # step 0 at every place
    places = torch.arange(length - 1, device=device)[None]
    groups = attention.num_key_value_groups
    shape = (rows_of, -1, attention.head_dim)

    def parts(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, shape[1:]).transpose(1, 2)  # [B, heads, n, d]

    keys, _ = rotated(head, parts(attention.k_proj(everywhere)), places)
    keys, values = repeat_kv(keys, groups), repeat_kv(parts(attention.v_proj(everywhere)), groups)
    blocked = (places > held[..., None])[:, None]  # [B, 1, R, T - 1]
    features = fused.gather(1, held[..., None].expand(-1, -1, fused.shape[-1]))
    found, own_keys, own_values = [], [], []
    for step in range(steps):
        tokens = block.tokens.gather(1, (at + 1 + step).clamp(max=length - 1))
        read = layer.read(head.embed(tokens), features)
        queries, rotation = rotated(head, parts(attention.q_proj(read)), at + step)
        scores = (queries @ keys.transpose(-1, -2)).float().masked_fill(blocked, -torch.inf)
        if step:
            own, _ = rotated(head, parts(attention.k_proj(read)), at + step, rotation)
            own_keys.append(repeat_kv(own, groups))
            own_values.append(repeat_kv(parts(attention.v_proj(read)), groups))
            scores = torch.cat([scores, *((queries * own).sum(-1, keepdim=True).float() for own in own_keys)], -1)
        weights = (scores * attention.scaling).softmax(-1).to(values.dtype)
        mixed = weights[..., : length - 1] @ values
        for i, own in enumerate(own_values):
            mixed = mixed + weights[..., length - 1 + i, None] * own
        features = layer.finish(features, attention.o_proj(mixed.transpose(1, 2).flatten(2)))
        behind = slice(step, step + count)
        found.append(
            Step(
                head.lm_head(head.norm(features)),
                taught.logits[:, behind],
                taught.likeliest[:, behind],
                at + 2 + step < block.lengths[:, None],
            )
        )
    return found


Rotation = tuple[Tensor, Tensor]


def rotated(head: EagleHead, vectors: Tensor, at: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Rotation]:
    """Keys or queries [B, heads, n, d] turned by their positions [B or 1, n]."""
    rotation = rotation or head.rotary(vectors, at)
    turned, _same = apply_rotary_pos_emb(vectors, vectors[:, :0], *rotation)
    return turned, rotation


def loss_of(step: Step, head: EagleHead) -> tuple[Tensor, Tensor]:
    """Of a step: the summed cross-entropy against the target's distribution over the draft vocabulary, and agreement.

    Places where the target's own choice is no token of the draft vocabulary teach nothing (official code). Agreement is
    how often the head's choice is the target's: there never.
    """
    learned = step.counted & torch.isin(step.likeliest, head.ids)
    logits = step.logits[learned].float()
    loss = F.cross_entropy(logits, step.taught[learned].float().softmax(-1), reduction="sum")
    agreed = (head.ids[logits.detach().argmax(-1)] == step.likeliest[learned]).sum()
    return loss, agreed


def new_head(target: PreTrainedModel, ids: Sequence[int], seed: int) -> EagleHead:
    """A head to begin with, on the target's device, in float32.

    It starts with the target's own output layer, cut to the draft vocabulary, and with random layers (our inference;
    the official code starts all at random).
    """
    kept = torch.tensor(ids, device=target.device)
    with torch.random.fork_rng(devices=[]):
        head = EagleHead(head_config(target, len(ids)), kept, target.get_input_embeddings()).float()
    rng = torch.Generator().manual_seed(stable_seed(seed, "head"))
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5, generator=rng)
    head = head.to(target.device)
    output = target.get_output_embeddings().weight
    if output.shape[1] == head.config.hidden_size:
        with torch.no_grad():
            head.lm_head.weight.copy_(output[kept])
    return head


class Training:
    """A head on its way: `step` counts the batches it has learned from."""

    def __init__(
        self, target: PreTrainedModel, answered: Sequence[Answered], ids: Sequence[int], recipe: EagleRecipe, seed: int
    ) -> None:
        self.target, self.answered, self.recipe, self.seed = target, answered, recipe, seed
        self.head = new_head(target, ids, seed)
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(),
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),  # official code
            weight_decay=recipe.weight_decay,
        )
        self.an_epoch = math.ceil(len(answered) / recipe.batch)
        self.steps = recipe.epochs * self.an_epoch
        self.step = 0

    def run(self, checkpoint: Path, facts: Mapping[str, Any], advance: Callable[[int], None]) -> None:
        """Learn until all epochs are done; `advance` is called with the number of steps done.

        Goes on from `checkpoint` if it was begun under the same `facts` (JSON-like). Raises UserError for another one,
        and where the loss is no number any more.
        """
        if checkpoint.exists():
            self.load(checkpoint, facts)
            advance(self.step)
        saved = time.monotonic()
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.an_epoch)
            order = batches(self.answered, self.recipe.batch, stable_seed(self.seed, "epoch", epoch))
            for batch in order[done:]:
                loss = self.learn(batch)
                if not math.isfinite(loss):
                    raise UserError(f"the loss is {loss} at step {self.step}; try a smaller learning_rate by --recipe")
                self.step += 1
                advance(1)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self.save(checkpoint, facts)
                    saved = time.monotonic()

    def learn(self, batch: Sequence[Answered]) -> float:
        """One step, in place; returns its loss, the weighted sum over draft steps of their means."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate * schedule(self.step, self.steps, self.recipe.warmup)
        places = sum(one.rows for one in batch)
        total = torch.zeros((), device=self.target.device)
        for block in blocks(batch, self.target.device):
            with self.autocast():
                losses = [loss_of(step, self.head)[0] for step in self.unrolled(block)]
            loss = torch.stack([self.recipe.step_decay**i * one for i, one in enumerate(losses)]).sum() / places
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(total)

    def unrolled(self, block: Block) -> list[Step]:
        count = self.recipe.steps
        return unroll(self.head, block, teach(self.target, self.head, block, count), count)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.target.device.type, torch.bfloat16, enabled=self.recipe.autocast)

    @torch.no_grad()
    def agreement(self, answered: Sequence[Answered]) -> list[float]:
        """For each draft step, how often the head chooses what the target does, all before it being the target's."""
        agreed, counted = [0] * self.recipe.steps, [0] * self.recipe.steps
        for batch in batches(answered, self.recipe.batch, 0):
            for block in blocks(batch, self.target.device):
                with self.autocast():
                    found = self.unrolled(block)
                for i, step in enumerate(found):
                    agreed[i] += int(loss_of(step, self.head)[1])
                    counted[i] += int(step.counted.sum())
        return [a / c if c else math.nan for a, c in zip(agreed, counted, strict=True)]

    def save(self, path: Path, facts: Mapping[str, Any]) -> None:
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        save_checkpoint(path, facts, state)

    def load(self, path: Path, facts: Mapping[str, Any]) -> None:
        state = load_checkpoint(path, facts, ("head", "optimizer", "step"), self.target.device)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def schedule(step: int, steps: int, warmup: float) -> float:
    """The share of the highest learning rate: a linear rise, then a linear fall to 0 (official code)."""
    rising = max(1.0, warmup * steps)
    return min((step + 1) / rising, (steps - step) / max(1.0, steps - rising), 1.0)
