"""Reinforce the arbitrator of CoSpec on its own rollouts (section 3.4): shaped returns, group advantages, clipped PPO.

Each update ends with a checkpoint; now and then the policy is evaluated on held-out documents, and the best is kept.
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

from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.methods.collaborative.cospec import Block
from specbench.methods.collaborative.cospec_arbitrator import detached, load_own, own_parameters
from specbench.training.answered import grouped
from specbench.training.documents import Document
from specbench.training.loop import Advance, Training, descend, ignore
from specbench_extras.cospec.reading import Query, Reading, all_logits, logits_of, parts
from specbench_extras.cospec.recipe import Rl
from specbench_extras.cospec.reward import Decisions, Rollout, decision_advantages, total
from specbench_extras.cospec.rollouts import Decide, Text, decode
from specbench_extras.cospec.traces import new_ending

ROWS = 96  # rollouts that are decoded together
PATIENCE = 3  # bad updates in a row that count as a collapse
LEAST_ENTROPY = 1e-3  # nats per decision; below this a policy explores nothing


@dataclass(frozen=True)
class Played:
    """One rollout's effective decisions [n], in order over rounds, and what they should learn."""

    reading: Reading
    kept: list[bool]
    before: list[float]  # logits of the policy that made the decisions
    advantages: list[float]
    warm: list[float]  # logits of the warm-up policy


@dataclass(frozen=True)
class Figures:
    """Means over rollouts, those of an update or of an evaluation."""

    returned: float  # mean return (Eq. 25)
    accuracy: float
    tau: float  # committed tokens a round
    kept: float  # share of the decided mismatches whose draft token was kept


class Reinforcement(Training):
    """The reinforcement of an arbitrator; a unit is an update, and `step` counts them.

    `best` is the policy of the highest held-out return so far.
    """

    state_keys = ("own", "optimizer", "step", "told", "best")  # told: the history

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
        report: Callable[[dict[str, float]], None] = lambda figures: None,
    ) -> None:
        """`report` is called with the figures of each update when its checkpoint is saved, and when it is read."""
        self.pair, self.arbitrator, self.warm, self.learned, self.held = pair, arbitrator, warm, learned, held
        self.recipe, self.gamma, self.log_odds, self.hybrid, self.seed = recipe, gamma, log_odds, hybrid, seed
        self.report = report
        self.parameters = own_parameters(arbitrator)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.step = 0
        self.history: list[dict[str, float]] = []  # the figures of each update
        self.best: dict[str, Any] = {}
        self.order: tuple[int, list[Document]] = (-1, [])  # the number of a pass, and its order of the documents

    @property
    def done(self) -> bool:
        return self.step >= self.recipe.updates

    def begin(self) -> None:
        self.consider()

    def learn_unit(self, kept: Path | None) -> None:
        """Carry out an update. Raises UserError if the loss is not finite or the policy has collapsed."""
        start = time.monotonic()
        figures = self.update()
        self.history.append({**figures, "update": self.step + 1, "seconds": time.monotonic() - start})
        if problem := self.wrong():
            last = f"{kept} holds update {self.step}" if kept else "there is no earlier update"
            raise UserError(
                f"stopped at update {self.step + 1}: {problem}; {last}, and running "
                "it again stops there: take another --out and a smaller learning_rate, or a larger kl or entropy"
            )
        self.step += 1
        if self.step % self.recipe.evaluate == 0 or self.done:
            self.history[-1] |= {f"held_{name}": value for name, value in self.consider().items()}

    def after_checkpoint(self) -> None:
        self.report(self.history[-1])

    def state(self) -> dict[str, Any]:
        return {
            "own": detached(self.parameters),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "told": self.history,
            "best": self.best,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        load_own(self.arbitrator, state["own"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.history, self.best = state["step"], state["told"], state["best"]
        for figures in self.history:
            self.report(figures)
        self.advance(self.step * self.recipe.prompts * self.recipe.group)

    def wrong(self) -> str:
        """The reason why the training must not go on; empty if it may."""
        finite = all(bool(parameter.isfinite().all()) for parameter in self.parameters.values())
        if not finite or not all(math.isfinite(value) for value in self.history[-1].values()):
            return "the loss or a weight is not a number"
        recent = self.history[-PATIENCE:]
        if len(recent) < PATIENCE:
            return ""
        if all(figures["entropy"] < LEAST_ENTROPY for figures in recent):
            return f"the policy no longer explores (entropy below {LEAST_ENTROPY:g} nats in {PATIENCE} updates)"
        if all(figures["accuracy"] < 0.5 * self.history[0]["accuracy"] for figures in recent):
            return f"accuracy fell below half of what it was at first in {PATIENCE} updates"
        return ""

    def update(self) -> dict[str, float]:
        """Roll out, credit, learn, in place; returns figures of the rollouts and of the steps."""
        count = self.recipe.prompts
        documents = [self.prompt(self.step * count + i) for i in range(count)]
        texts, rollouts = self.roll_out(
            documents, self.recipe.group, self.recipe.temperature, self.sampled, self.advance
        )
        played = self.credited(texts, rollouts)
        losses = self.learn(played)
        return {**vars(figures(texts, rollouts, self.recipe)), **losses}

    def prompt(self, number: int) -> Document:
        """The document at `number` (from 0) in an endless sequence of passes over all of them, each in a new order."""
        pass_number, index = divmod(number, len(self.learned))
        if self.order[0] != pass_number:
            rng = random.Random(stable_seed(self.seed, "pass", pass_number))
            self.order = pass_number, rng.sample(self.learned, len(self.learned))
        return self.order[1][index]

    def sampled(self, number: int) -> Decide:
        """Decisions drawn from the policy, for rollouts whose first one has this number."""
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
        advance: Advance = ignore,
    ) -> tuple[list[Text], list[Rollout]]:
        """Decode each document `times` times, its texts side by side; returns the texts and their decisions."""
        repeated = [document for document in documents for _ in range(times)]
        texts = [Text(document.prompt, new_ending(self.pair, document)) for document in repeated]
        for number, some in enumerate(grouped(texts, ROWS)):
            rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, "tokens", self.step, number))
            decide = policy(number * ROWS)
            decode(self.pair, self.arbitrator, some, self.gamma, Sampling(float(temperature)), rng, decide, self.hybrid)
            advance(len(some))
        correct: dict[tuple[str, str], bool] = {}
        rollouts = []
        for document, text in zip(repeated, texts, strict=True):
            key = document.name, text.ending.text()
            if key not in correct:
                correct[key] = document.score(key[1]) >= 1
            rollouts.append(Rollout(correct[key], tuple(decisions(text))))
        return texts, rollouts

    def credited(self, texts: Sequence[Text], rollouts: Sequence[Rollout]) -> list[Played]:
        """What the decisions of the rollouts should learn; the `group` rollouts of a prompt stand side by side.

        Rollouts without a decision are left out.
        """
        groups = grouped(rollouts, self.recipe.group)
        advantages = [row for group in groups for row in decision_advantages(group, self.recipe.reward)]
        readings = [reading_of(text) for text in texts]
        decided = [i for i, reading in enumerate(readings) if reading.rounds]
        warm = all_logits(self.warm, [readings[i] for i in decided], self.hybrid)
        return [
            Played(
                readings[i],
                [kept for turn in texts[i].turns for kept in turn.kept],
                [logit for turn in texts[i].turns for logit in turn.logits[: turn.reached]],
                advantages[i],
                warm_logits,
            )
            for i, warm_logits in zip(decided, warm, strict=True)
        ]

    def learn(self, played: Sequence[Played]) -> dict[str, float]:
        """Make `recipe.epochs` passes over the rollouts, in place (Eq. 28); returns means over the decisions."""
        sums: Counter[str] = Counter()
        for epoch in range(self.recipe.epochs):
            rng = random.Random(stable_seed(self.seed, "epoch", self.step, epoch))
            for batch in grouped(rng.sample(played, len(played)), self.recipe.batch):
                count = sum(len(rollout.kept) for rollout in batch)
                for part in parts([rollout.reading for rollout in batch]):
                    chosen = [batch[i] for i in part]
                    logits = logits_of(self.arbitrator, [rollout.reading for rollout in chosen], self.hybrid)
                    loss, part_sums = objective(logits, chosen, self.recipe)
                    (loss / count).backward()
                    sums.update(part_sums)
                descend(self.optimizer, self.recipe.clip)
        decided = sums.pop("decided", 0) or 1
        return {name: value / decided for name, value in sums.items()} or {"entropy": 1.0, "kl": 0.0, "loss": 0.0}

    def consider(self) -> dict[str, float]:
        """Evaluate greedily on held-out documents, deciding by the threshold; keep the policy if it is the best yet."""
        texts, rollouts = self.roll_out(self.held, 1, 0.0, self.by_threshold)
        held_out = vars(figures(texts, rollouts, self.recipe))
        if not self.best or held_out["returned"] > self.best["figures"]["returned"]:
            self.best = {"own": detached(self.parameters), "figures": held_out, "update": self.step}
        return held_out


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def objective(logits: Tensor, played: Sequence[Played], recipe: Rl) -> tuple[Tensor, dict[str, float]]:
    """The sum of Eq. 28 over the decisions of some rollouts, by their logits [n], and sums to report."""

    def column(values: Iterator[float]) -> Tensor:
        return torch.tensor(list(values), dtype=logits.dtype, device=logits.device)

    kept = column(float(x) for rollout in played for x in rollout.kept)
    before = column(x for rollout in played for x in rollout.before)
    warm = column(x for rollout in played for x in rollout.warm)
    advantages = column(x for rollout in played for x in rollout.advantages)
    sign = 2 * kept - 1
    ratio = (F.logsigmoid(sign * logits) - F.logsigmoid(sign * before)).exp()
    bounded = ratio.clamp(1 - recipe.ratio, 1 + recipe.ratio)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    chance = logits.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits, chance, reduction="none")
    kl = F.binary_cross_entropy_with_logits(warm, chance, reduction="none") - entropy  # KL(π ‖ π_SFT)
    loss = (recipe.kl * kl - recipe.entropy * entropy - surrogate).sum()
    clipped = (ratio - bounded).abs() > 0
    sums = {"loss": loss, "entropy": entropy.sum(), "kl": kl.sum(), "clipped": clipped.sum()}
    return loss, {"decided": len(kept), **{name: float(value.detach()) for name, value in sums.items()}}


def decisions(text: Text) -> Iterator[Decisions]:
    """The effective decisions of each round (Eq. 18); positions after the end of the text count as not reached."""
    for turn in text.turns:
        surprisals = tuple(turn.surprisals[: turn.reached])
        yield Decisions(tuple(i + 1 for i in turn.decided), turn.emitted, turn.rejected, surprisals)


def reading_of(text: Text) -> Reading:
    """The rounds of a text that had a decision."""
    return Reading(
        text.tokens,
        [
            Query(turn.context, [*turn.block.drafted, *turn.block.targets], turn.decided)
            for turn in text.turns
            if turn.reached
        ],
    )


def figures(texts: Sequence[Text], rollouts: Sequence[Rollout], recipe: Rl) -> Figures:
    turns = [turn for text in texts for turn in text.turns]
    decided = [kept for turn in turns for kept in turn.kept]
    return Figures(
        sum(total(rollout, recipe.reward) for rollout in rollouts) / len(rollouts),
        sum(rollout.correct for rollout in rollouts) / len(rollouts),
        sum(turn.emitted for turn in turns) / max(1, len(turns)),
        sum(decided) / max(1, len(decided)),
    )
