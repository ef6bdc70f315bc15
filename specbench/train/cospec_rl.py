"""Reinforce the arbitrator of CoSpec on its own rollouts (section 3.4): shaped returns, group advantages, clipped PPO.

Nothing is drawn but from the seed and the number of an update, and each update ends with a checkpoint: a training that
was killed goes on from there and ends with the very same arbitrator.
"""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from specbench.arbitrator import detached, load_own, own_parameters
from specbench.config import UserError
from specbench.decoding.arbiters import Block
from specbench.decoding.types import Sampling
from specbench.models import Pair
from specbench.seeds import stable_seed
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.cospec_reading import Asked, Reading, all_logits, logits_of, parts
from specbench.train.cospec_recipe import Rl
from specbench.train.cospec_reward import Decisions, Rollout, decision_advantages, total
from specbench.train.cospec_rollouts import Decide, Text, decode
from specbench.train.cospec_traces import new_ending
from specbench.train.documents import Document
from specbench.train.eagle3_data import grouped

ROWS = 96  # rollouts that are decoded together
PATIENCE = 3  # updates in a row that tell a collapse
LEAST_ENTROPY = 1e-3  # nats of a decision, below which a policy explores nothing


@dataclass(frozen=True)
class Played:
    """One rollout's effective decisions, in order over rounds, and what they are to learn."""

    reading: Reading
    kept: list[bool]
    before: list[float]  # logits of the policy that decided
    advantages: list[float]
    warm: list[float]  # logits of the warm-up policy


@dataclass(frozen=True)
class Figures:
    """Of rollouts, or of an evaluation."""

    returned: float  # mean return (Eq. 25)
    accuracy: float
    tau: float  # committed tokens a round
    kept: float  # share of the decided mismatches whose draft token was kept


class Reinforcement:
    """An arbitrator on its way: `step` counts the updates; `best` is the one of the highest held-out return so far."""

    def __init__(
        self,
        pair: Pair,
        arbitrator: PreTrainedModel,
        warm: PreTrainedModel,
        learned: Sequence[Document],
        held: Sequence[Document],
        recipe: Rl,
        gamma: int,
        log_odds: float,
        hybrid: bool,
        seed: int,
    ) -> None:
        self.pair, self.arbitrator, self.warm, self.learned, self.held = pair, arbitrator, warm, learned, held
        self.recipe, self.gamma, self.log_odds, self.hybrid, self.seed = recipe, gamma, log_odds, hybrid, seed
        self.parameters = own_parameters(arbitrator)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.step = 0
        self.told: list[dict[str, float]] = []  # of each update
        self.best: dict[str, Any] = {}
        self.order: tuple[int, list[Document]] = (-1, [])  # of the documents, in which pass

    def run(
        self,
        checkpoint: Path,
        facts: Mapping[str, Any],
        report: Callable[[dict[str, float]], None],
        advance: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Carry out all updates; `report` is told the figures of each, those of an earlier call too.

        `advance` is called with the number of rollouts done.

        Goes on from `checkpoint` if it was begun under the same `facts` (JSON-like). Raises UserError for another one,
        and where the loss is no number or the policy has collapsed: the checkpoint then holds the last good update.
        """
        if checkpoint.exists():
            state = load_checkpoint(checkpoint, facts, ("own", "optimizer", "step", "told", "best"))
            load_own(self.arbitrator, state["own"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.told, self.best = state["step"], state["told"], state["best"]
            for one in self.told:
                report(one)
            advance(self.step * self.recipe.prompts * self.recipe.group)
        else:
            self.consider()
        while self.step < self.recipe.updates:
            began = time.monotonic()
            told = self.update(advance)
            self.told.append({**told, "update": self.step + 1, "seconds": time.monotonic() - began})
            if why := self.wrong():
                kept = f"{checkpoint} holds update {self.step}" if self.step else "there is no earlier update"
                raise UserError(
                    f"stopped at update {self.step + 1}: {why}; {kept}, and calling "
                    "again stops there again: take another --out and a smaller learning_rate, or a larger kl or entropy"
                )
            self.step += 1
            if self.step % self.recipe.evaluate == 0 or self.step == self.recipe.updates:
                self.told[-1] |= {f"held_{name}": value for name, value in self.consider().items()}
            state = {"own": detached(self.parameters), "optimizer": self.optimizer.state_dict(), "step": self.step}
            save_checkpoint(checkpoint, facts, {**state, "told": self.told, "best": self.best})
            report(self.told[-1])

    def wrong(self) -> str:
        """Why the training must not go on; empty if it may."""
        finite = all(bool(one.isfinite().all()) for one in self.parameters.values())
        if not finite or not all(math.isfinite(value) for value in self.told[-1].values()):
            return "the loss or a weight is no number"
        recent = self.told[-PATIENCE:]
        if len(recent) < PATIENCE:
            return ""
        if all(one["entropy"] < LEAST_ENTROPY for one in recent):
            return f"the policy no longer explores (entropy below {LEAST_ENTROPY:g} nats in {PATIENCE} updates)"
        if all(one["accuracy"] < 0.5 * self.told[0]["accuracy"] for one in recent):
            return f"accuracy fell below half of what it was at first in {PATIENCE} updates"
        return ""

    def update(self, advance: Callable[[int], None]) -> dict[str, float]:
        """Roll out, credit, learn; in place. Returns figures of the rollouts and of the steps."""
        count = self.recipe.prompts
        documents = [self.prompt(self.step * count + i) for i in range(count)]
        texts, rollouts = self.roll_out(documents, self.recipe.group, self.recipe.temperature, self.sampled, advance)
        played = self.credited(texts, rollouts)
        losses = self.learn(played)
        return {**vars(figures(texts, rollouts, self.recipe)), **losses}

    def prompt(self, number: int) -> Document:
        """The documents over and over, each pass in an order of its own."""
        passed, at = divmod(number, len(self.learned))
        if self.order[0] != passed:
            rng = random.Random(stable_seed(self.seed, "pass", passed))
            self.order = passed, rng.sample(self.learned, len(self.learned))
        return self.order[1][at]

    def sampled(self, number: int) -> Decide:
        """Decisions drawn from the policy, for the rollouts from `number` on."""
        sources: dict[int, random.Random] = {}

        def decide(row: int, block: Block, logits: list[float]) -> Iterator[bool]:
            seed = stable_seed(self.seed, "actions", self.step, number + row)
            source = sources.setdefault(row, random.Random(seed))
            return (source.random() < sigmoid(logit) for logit in logits)

        return decide

    def by_threshold(self, number: int) -> Decide:
        return lambda row, block, logits: (logit > self.log_odds for logit in logits)

    def roll_out(
        self,
        documents: Sequence[Document],
        times: int,
        temperature: float,
        policy: Callable[[int], Decide],
        advance: Callable[[int], None] = lambda count: None,
    ) -> tuple[list[Text], list[Rollout]]:
        """`times` texts of each document, one document's side by side, and what each is to learn from."""
        asked = [document for document in documents for _ in range(times)]
        texts = [Text(one.prompt, new_ending(self.pair, one)) for one in asked]
        for number, some in enumerate(grouped(texts, ROWS)):
            rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, "tokens", self.step, number))
            decide = policy(number * ROWS)
            decode(self.pair, self.arbitrator, some, self.gamma, Sampling(float(temperature)), rng, decide, self.hybrid)
            advance(len(some))
        known: dict[tuple[str, str], bool] = {}
        rollouts = []
        for document, text in zip(asked, texts, strict=True):
            key = document.name, text.ending.text()
            if key not in known:
                known[key] = document.score(key[1]) >= 1
            rollouts.append(Rollout(known[key], tuple(decisions(text))))
        return texts, rollouts

    def credited(self, texts: Sequence[Text], rollouts: Sequence[Rollout]) -> list[Played]:
        """What the decisions of the rollouts, `group` of each prompt side by side, are to learn."""
        group = self.recipe.group
        advantages = [own for some in grouped(rollouts, group) for own in decision_advantages(some, self.recipe.reward)]
        readings = [reading_of(text) for text in texts]
        asked = [i for i, reading in enumerate(readings) if reading.rounds]
        warm = all_logits(self.warm, [readings[i] for i in asked], self.hybrid)
        return [
            Played(
                readings[i],
                [kept for turn in texts[i].turns for kept in turn.kept],
                [logit for turn in texts[i].turns for logit in turn.logits[: turn.reached]],
                advantages[i],
                own,
            )
            for i, own in zip(asked, warm, strict=True)
        ]

    def learn(self, played: Sequence[Played]) -> dict[str, float]:
        """`recipe.epochs` passes over the rollouts, in place (Eq. 28). Returns means over the decisions."""
        sums: Counter[str] = Counter()
        for epoch in range(self.recipe.epochs):
            rng = random.Random(stable_seed(self.seed, "epoch", self.step, epoch))
            for batch in grouped(rng.sample(played, len(played)), self.recipe.batch):
                count = sum(len(one.kept) for one in batch)
                for some in parts([one.reading for one in batch]):
                    chosen = [batch[i] for i in some]
                    logits = logits_of(self.arbitrator, [one.reading for one in chosen], self.hybrid)
                    loss, told = objective(logits, chosen, self.recipe)
                    (loss / count).backward()
                    sums.update(told)
                torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.recipe.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
        decided = sums.pop("decided", 0) or 1
        return {name: value / decided for name, value in sums.items()} or {"entropy": 1.0, "kl": 0.0, "loss": 0.0}

    def consider(self) -> dict[str, float]:
        """Evaluate by the threshold on held-out documents, greedily; keep the policy if it is the best so far."""
        texts, rollouts = self.roll_out(self.held, 1, 0.0, self.by_threshold)
        found = vars(figures(texts, rollouts, self.recipe))
        if not self.best or found["returned"] > self.best["figures"]["returned"]:
            self.best = {"own": detached(self.parameters), "figures": found, "update": self.step}
        return found


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def objective(logits: Tensor, played: Sequence[Played], recipe: Rl) -> tuple[Tensor, dict[str, float]]:
    """The sum of Eq. 28 over the decisions of some rollouts, from their logits [n], and sums to report."""

    def column(values: Iterator[float]) -> Tensor:
        return torch.tensor(list(values), dtype=logits.dtype, device=logits.device)

    kept = column(float(x) for one in played for x in one.kept)
    before = column(x for one in played for x in one.before)
    warm = column(x for one in played for x in one.warm)
    advantages = column(x for one in played for x in one.advantages)
    sign = 2 * kept - 1
    ratio = (F.logsigmoid(sign * logits) - F.logsigmoid(sign * before)).exp()
    held = ratio.clamp(1 - recipe.ratio, 1 + recipe.ratio)
    surrogate = torch.minimum(ratio * advantages, held * advantages)
    chance = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, chance, reduction="none")
    kl = F.binary_cross_entropy_with_logits(warm, chance, reduction="none") - entropy  # KL(π ‖ π_SFT)
    loss = (recipe.kl * kl - recipe.entropy * entropy - surrogate).sum()
    clipped = (ratio - held).abs() > 0
    sums = {"loss": loss, "entropy": entropy.sum(), "kl": kl.sum(), "clipped": clipped.sum()}
    return loss, {"decided": len(kept), **{name: float(value.detach()) for name, value in sums.items()}}


def decisions(text: Text) -> Iterator[Decisions]:
    """The effective decisions of each round (Eq. 18); what lies behind the end of the text counts as not reached."""
    for turn in text.turns:
        surprisals = tuple(turn.surprisals[: turn.reached])
        yield Decisions(tuple(i + 1 for i in turn.decided), turn.emitted, turn.rejected, surprisals)


def reading_of(text: Text) -> Reading:
    """The rounds of a text that had a decision."""
    return Reading(
        text.tokens,
        [
            Asked(turn.context, [*turn.block.drafted, *turn.block.targets], turn.decided)
            for turn in text.turns
            if turn.reached
        ],
    )


def figures(texts: Sequence[Text], rollouts: Sequence[Rollout], recipe: Rl) -> Figures:
    turns = [turn for text in texts for turn in text.turns]
    decided = [kept for turn in turns for kept in turn.kept]
    return Figures(
        sum(total(one, recipe.reward) for one in rollouts) / len(rollouts),
        sum(one.correct for one in rollouts) / len(rollouts),
        sum(turn.emitted for turn in turns) / max(1, len(turns)),
        sum(decided) / max(1, len(decided)),
    )
