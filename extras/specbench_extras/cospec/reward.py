"""The reward of CoSpec's reinforcement learning and its division over groups and decisions (CoSpec, section 3.4).

The code follows the paper's words. Where only its formulas would settle a detail, and the text of the paper
lacks them, the choice is marked "rebuilt".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# In nats. A token that the target rules out (p = 0) has an infinite surprisal, which would make every mean infinite.
# e^-100 is about the smallest positive float32, so the limit changes no probability that a float32 can tell from zero.
LARGEST_SURPRISAL = 100.0


@dataclass(frozen=True)
class Decisions:
    """The effective decisions of one round, A_r (Eq. 18): the mismatches up to the first that is rejected.

    `mismatches` holds their positions in the block, from 1 and rising; it is empty if the round had none. `emitted` is
    R_r, the position of the rejected one, or K + 1 if none is. `rejected` is True if the last of `mismatches` is
    rejected. `surprisals` holds s_i = -log p_target(d_i | ...) of each in nats, infinite if the target rules the token
    out. Raises ValueError if these contradict one another.
    """

    mismatches: tuple[int, ...]
    emitted: int
    rejected: bool
    surprisals: tuple[float, ...]

    def __post_init__(self) -> None:
        reached = self.mismatches
        if len(self.surprisals) != len(reached):
            raise ValueError(f"{len(reached)} mismatches have {len(self.surprisals)} surprisals")
        if any(math.isnan(surprisal) for surprisal in self.surprisals):
            raise ValueError("a surprisal is not a number")
        if any(after <= before for before, after in zip((0, *reached), reached, strict=False)):
            raise ValueError(f"mismatches must rise from 1: {reached}")
        if self.rejected and (not reached or reached[-1] != self.emitted):
            raise ValueError(f"a round ends where it is rejected: mismatches {reached}, emitted {self.emitted}")
        if reached and reached[-1] > self.emitted:
            raise ValueError(f"a mismatch after the end was never reached: {reached}, emitted {self.emitted}")


@dataclass(frozen=True)
class Rollout:
    """One text: if its final answer is correct, and the decisions of each of its rounds (Eq. 16)."""

    correct: bool
    rounds: tuple[Decisions, ...]


@dataclass(frozen=True)
class Reward:
    """The coefficients, none of which is negative.

    `correct` is c, the worth of a correct rollout by itself; `length` is α, per token of span and decision; `surprisal`
    is β, per nat of an accepted mismatch of a wrong rollout; `rejection` is η, per rejected mismatch of a wrong
    rollout; `all_wrong` is w, the weight of a group without a correct rollout. With `rebalance`, mixed groups are
    rescaled (Eq. 27). `epsilon` is added to the standard deviation of a group.
    """

    correct: float
    length: float
    surprisal: float
    rejection: float
    all_wrong: float
    rebalance: bool
    epsilon: float


def spans(rollout: Rollout) -> list[int]:
    """ℓ_r of each round, in tokens: R_r - f_r, where f_r is the first mismatch; 0 without one (Eq. 19-20).

    Rebuilt: that the span is not divided by K. A round that rejects its first mismatch has 0; one that rejects nothing
    has K + 1 - f_r.
    """
    return [round.emitted - round.mismatches[0] if round.mismatches else 0 for round in rollout.rounds]


def terms(rollout: Rollout, reward: Reward) -> list[float]:
    """The reward of each effective decision, in order over rounds: +α ℓ_r if the rollout is correct, else Eq. 24.

    Rebuilt (Eq. 21-24): in a wrong rollout an accepted mismatch (P_r) earns -β s_i and the rejected one (N_r) -η. No
    surprisal counts for more than LARGEST_SURPRISAL, so every term is finite.
    """
    if rollout.correct:
        return [reward.length * span for span in _spans_of_decisions(rollout)]
    earned = []
    for round in rollout.rounds:
        accepted = round.surprisals[:-1] if round.rejected else round.surprisals
        earned += [-reward.surprisal * min(surprisal, LARGEST_SURPRISAL) for surprisal in accepted]
        earned += [-reward.rejection] * round.rejected
    return earned


def total(rollout: Rollout, reward: Reward) -> float:
    """R, the return of a rollout: c if it is correct, plus the terms of all decisions (Eq. 25; c is rebuilt)."""
    return math.fsum([reward.correct * rollout.correct, *terms(rollout, reward)])


def group_advantages(group: Sequence[Rollout], reward: Reward) -> list[float]:
    """One advantage for each rollout of a prompt: (R - mean) / (std + ε), std of the population (Eq. 26-27).

    The advantages of a group without a correct rollout are multiplied by w. With `rebalance`, the returns of the
    correct rollouts of a mixed group are multiplied by κ first, and mean and std are those of the rescaled returns. All
    are 0 if the returns do not differ, as in a group of one. Rebuilt: the population's std.
    """
    returns = [total(rollout, reward) for rollout in group]
    if reward.rebalance:
        scale = _balance(group, returns)
        returns = [scale * value if rollout.correct else value for rollout, value in zip(group, returns, strict=True)]
    if not returns or min(returns) == max(returns):
        return [0.0] * len(returns)
    weight = 1.0 if any(rollout.correct for rollout in group) else reward.all_wrong
    mean = math.fsum(returns) / len(returns)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / len(returns))
    return [weight * (value - mean) / (std + reward.epsilon) for value in returns]


def decision_advantages(group: Sequence[Rollout], reward: Reward) -> list[list[float]]:
    """The advantage of each rollout divided over its effective decisions, in order over rounds.

    A decision of a correct rollout has a part in proportion to ℓ_r, one of a wrong rollout in proportion to the size of
    its term (Eq. 24). Rebuilt: the normaliser; parts are divided by their mean over the rollout, so that the mean over
    its decisions is its advantage. If every part is 0, each decision gets the advantage itself.
    """
    divided = []
    for rollout, advantage in zip(group, group_advantages(group, reward), strict=True):
        parts = _spans_of_decisions(rollout) if rollout.correct else [abs(term) for term in terms(rollout, reward)]
        whole = math.fsum(parts)
        divided.append([advantage * (part * len(parts) / whole if whole else 1.0) for part in parts])
    return divided


def _spans_of_decisions(rollout: Rollout) -> list[int]:
    return [span for round, span in zip(rollout.rounds, spans(rollout), strict=True) for _ in round.mismatches]


def _balance(group: Sequence[Rollout], returns: Sequence[float]) -> float:
    """κ, the sum of |R| over the wrong rollouts divided by the sum of R over the correct ones (Eq. 27).

    κ is 1 if either sum is 0, as it is if there is no rollout of that kind: if wrong rollouts cost nothing (β and η
    both 0, or none of them has a mismatch), a κ of 0 would erase the difference between correct and wrong ones.
    """
    correct = math.fsum(value for rollout, value in zip(group, returns, strict=True) if rollout.correct)
    wrong = math.fsum(-value for rollout, value in zip(group, returns, strict=True) if not rollout.correct)
    return wrong / correct if wrong > 0 and correct > 0 else 1.0
