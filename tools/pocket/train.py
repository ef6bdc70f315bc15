"""Train a language model on a stream of tokens: one loop for the target and for the draft, resumable at any time.

Muon trains the matrices inside the layers, AdamW the rest; the learning rate warms up, stays constant, and falls
linearly to zero. The draft's loss mixes the text's own next token with the target's distribution over it (DistillSpec,
arXiv 2310.08461).

This loop is not that of training/loop.py: its checkpoints hold no facts to be resumed under, they come after a fixed
number of steps, and it measures its speed for a log.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from pocket.muon import Muon
from specbench.base import files


@dataclass(frozen=True)
class Plan:
    steps: int
    batch_tokens: int = 4096  # per step
    micro_tokens: int = 2048  # per forward: as many as fit a CPU's cache
    block: int = 256  # tokens a sequence: a few documents
    long_block: int = 1024  # in the last `long_share` of the steps, for few-shot prompts
    long_share: float = 0.1
    rate: float = 3e-3
    warmup: int = 100  # steps
    decay: float = 0.5  # the share of the steps over which the rate falls to zero
    seed: int = 0
    distill: float = 0.0  # weight of the teacher's distribution; that of the text's own token is 1 minus it
    checkpoint_every: int = 200  # steps


class Stream:
    """Token ids and loss weights on disk, read as blocks."""

    def __init__(self, path: Path) -> None:
        self.ids = np.load(path.with_suffix(".ids.npy"), mmap_mode="r")
        self.weights = np.load(path.with_suffix(".weights.npy"), mmap_mode="r")

    def blocks(self, start: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """`rows` sequences of ids [rows, length + 1] and the weights of their targets [rows, length]."""
        offsets = (start + np.arange(rows) * length) % (len(self.ids) - length - 1)
        ids = np.stack([self.ids[o : o + length + 1] for o in offsets]).astype(np.int64)
        weights = np.stack([self.weights[o + 1 : o + length + 1] for o in offsets]).astype(np.float32)
        return torch.from_numpy(ids), torch.from_numpy(weights)


def train(
    model: PreTrainedModel, streams: Sequence[Stream], plan: Plan, folder: Path, teacher: PreTrainedModel | None = None
) -> None:
    """Train `model` in place; checkpoints, a log and the final weights are written to `folder`.

    Batches come from the streams in turn. Goes on from a checkpoint in the folder, which must be of the same plan.
    """
    device = next(model.parameters()).device
    # A processor without instructions for bfloat16 takes eight times as long with it: 209 tokens/s, not 1,599.
    halves = device.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16"))
    optimizers = _optimizers(model, plan.rate)
    step = _resume(model, optimizers, folder, device)
    model.train()
    start = time.monotonic()
    first_step = step
    while step < plan.steps:
        length = plan.long_block if step >= plan.steps * (1 - plan.long_share) else plan.block
        start_token = (step // len(streams)) * plan.batch_tokens
        ids, weights = streams[step % len(streams)].blocks(start_token, plan.batch_tokens // length, length)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate * _schedule(step, plan)
        total = 0.0
        rows = plan.micro_tokens // length
        for micro_ids, micro_weights in zip(ids.to(device).split(rows), weights.to(device).split(rows), strict=True):
            with torch.autocast(device.type, torch.bfloat16, enabled=halves):
                loss = _loss(model, teacher, micro_ids, micro_weights, plan.distill) / weights.sum()
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 20 == 0:
            speed = (step - first_step) * plan.batch_tokens / (time.monotonic() - start)
            _log(folder, {"step": step, "steps": plan.steps, "loss": round(total, 4), "tokens_per_s": round(speed)})
        if step % plan.checkpoint_every == 0:
            _checkpoint(model, optimizers, step, folder)
    model.save_pretrained(folder / "final")


def _loss(
    model: PreTrainedModel, teacher: PreTrainedModel | None, ids: Tensor, weights: Tensor, distill: float
) -> Tensor:
    """The weighted sum of the losses at every position."""
    logits = model(ids[:, :-1], use_cache=False).logits.flatten(0, 1).float()
    weights = weights.flatten()
    losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
    if teacher is not None and distill > 0:
        with torch.no_grad():
            taught = teacher(ids[:, :-1], use_cache=False).logits.flatten(0, 1).float()
        divergence = F.kl_div(logits.log_softmax(-1), taught.log_softmax(-1), log_target=True, reduction="none").sum(-1)
        losses = (1 - distill) * losses + distill * divergence
    return (losses * weights).sum()


def _optimizers(model: PreTrainedModel, rate: float) -> list[torch.optim.Optimizer]:
    matrices = [p for p in model.base_model.layers.parameters() if p.ndim == 2]
    matrix_ids = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in matrix_ids]
    return [
        Muon(matrices, lr=rate, weight_decay=0.05),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def _schedule(step: int, plan: Plan) -> float:
    remaining = (plan.steps - step) / (plan.decay * plan.steps)
    return min(1.0, (step + 1) / plan.warmup, remaining)


def _checkpoint(model: PreTrainedModel, optimizers: list[torch.optim.Optimizer], step: int, folder: Path) -> None:
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers], "step": step}
    with files.whole(folder / "checkpoint.pt") as new:
        torch.save(state, new)


def _resume(model: PreTrainedModel, optimizers: list[torch.optim.Optimizer], folder: Path, device: torch.device) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoint.pt").exists():
        return 0
    state = torch.load(folder / "checkpoint.pt", map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return state["step"]


def _log(folder: Path, entry: dict[str, float]) -> None:
    print(" ".join(f"{key} {value}" for key, value in entry.items()), flush=True)
    with open(folder / "log.jsonl", "a") as log:
        log.write(json.dumps(entry) + "\n")
