"""Replay recorded rounds with other draft lengths, without a model.

At every position of a text, the draft either proposes the token that the target commits there or does not. Given the
text before, the law of the pair (committed token, whether a draft would be accepted) does not depend on where rounds
begin:

- greedy: both are functions of the text before;
- sampled: a tested position draws d from q and accepts it with probability min(1, p/q), else commits a draw from the
  residual. Its token is distributed as p, and so is the bonus token, which is committed untested. Both p and q depend
  on the text before alone.

So a recorded text with its acceptances is a draw from what any other draft length would have met, and only the rounds
are laid out again. A bonus position was not tested: a draft would be accepted there with some probability, so counts of
rounds are expectations, summed exactly over both outcomes. The signal of a length policy at a token depends on the
text before and the token, so it is replayed too. After a rejected token, the draft continues along tokens that were
never committed; the record has them as far as the draft went.

This holds for lossless methods that draft chains with a draft model that reads only the text.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import itemgetter
from typing import Any, TypeAlias

NAN = math.nan
ACCEPTED, REJECTED, UNREAD = "accepted", "rejected", "unread"
Outcome: TypeAlias = tuple[float, int, int, bool]  # probability, drafted, accepted, and whether a signal was guessed
FEWEST = 50  # tested drafts that it takes to trust their acceptance


@dataclass(frozen=True)
class Tail:
    """Drafted tokens that were never tested: those after a rejected token or after the end of a text."""

    signals: Sequence[float]  # the length policy's signal at each token; NaN: not recorded
    eos: int | None  # number of these tokens up to a drafted EOS; 0: the rejected token is one


@dataclass(frozen=True)
class ReplayedText:
    """One recorded text of N tokens after the prefill's."""

    key: tuple[int, str, int]  # repeat, task, document
    agree: list[float]  # [N]: 1 if the draft's token was accepted here, 0 if rejected, NaN if not tested
    signals: Sequence[float]  # [N]: the length policy's signal at the token drafted here; NaN: not recorded
    tails: dict[int, Tail]  # by the position of the rejected token; N: after the end of the text
    eos: bool  # the last token is an end token
    last: tuple[int, int]  # last tokens of drafts: how many were accepted, and how many were tested at all


@dataclass(frozen=True)
class Rule:
    """When a draft ends. `kind` is "fixed", or a length method that stops at its threshold."""

    kind: str
    longest: int
    shortest: int = 1
    threshold: float = 0.0
    stop_at_eos: bool = False


@dataclass
class Replayed:
    """Expected counts of one text under a rule."""

    tokens: int = 0  # committed
    rounds: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    guessed: float = 0.0  # rounds that needed a signal that was not recorded
    starts: float = 0.0  # tokens before each round, summed over rounds
    drafted_starts: float = 0.0  # the same, summed over drafted tokens
    lengths: dict[int, float] = field(default_factory=dict)  # rounds by their draft length

    def count(self, start: int, weight: float, outcome: "Outcome") -> None:
        """Add a round from `start` with this outcome; both together have the probability `weight`."""
        _, drafted, accepted, guessed = outcome
        self.rounds += weight
        self.drafted += weight * drafted
        self.accepted += weight * accepted
        self.guessed += weight * guessed
        self.starts += weight * start
        self.drafted_starts += weight * drafted * start
        self.lengths[drafted] = self.lengths.get(drafted, 0.0) + weight


@dataclass(frozen=True)
class Unknown:
    """Values that stand in for what was not recorded."""

    agree: float  # the probability that a draft is accepted at a position that was not tested
    signals: dict[str, float]  # by outcome of the token: ACCEPTED, REJECTED or UNREAD


def texts_of(
    rounds: Iterable[dict[str, Any]], finish: dict[tuple[int, str, int], str], eos: set[int]
) -> list[ReplayedText]:
    """The texts of one method from its recorded rounds, which come text by text.

    `finish` says how each timed text ended; texts without an entry are skipped. `eos` holds the end tokens.
    """
    key = itemgetter("repeat", "task", "doc_id")
    texts = []
    for text, group in groupby(rounds, key=key):
        if text in finish:
            texts.append(_text(text, sorted(group, key=itemgetter("round")), finish[text] == "eos", eos))
    return texts


def _text(key: tuple[int, str, int], rounds: list[dict[str, Any]], ended: bool, eos: set[int]) -> ReplayedText:
    agree: list[float] = []
    signals: list[float] = []
    tails: dict[int, Tail] = {}
    last_accepted = last_tested = 0
    for record in rounds:
        if record["round"] == 0:
            continue
        drafted, accepted, committed, cut = (record[n] for n in ("drafted", "accepted", "committed", "truncated"))
        seen = list(record.get("predictions") or [NAN] * drafted)
        tokens = list(record.get("draft_tokens") or [-1] * drafted)
        agree += [1.0] * accepted
        signals += seen[:accepted]
        if committed > accepted:
            rejected = accepted < drafted
            agree.append(0.0 if rejected else NAN)
            signals.append(seen[accepted] if rejected else NAN)
            if rejected:
                tails[len(agree) - 1] = _tail(seen[accepted + 1 :], tokens[accepted:], eos)
        elif cut:
            tails[len(agree)] = _tail(seen[accepted:], [-1, *tokens[accepted:]], eos)
        if drafted and accepted >= drafted - 1 and not (cut and accepted < drafted):
            last_tested += 1
            last_accepted += accepted == drafted
    return ReplayedText(key, agree, signals, tails, ended, (last_accepted, last_tested))


def _tail(signals: Sequence[float], tokens: Sequence[int], eos: set[int]) -> Tail:
    """`tokens` begin one before the tail, with the rejected token."""
    return Tail(signals, next((i for i, token in enumerate(tokens) if token in eos), None))


def unknown(texts: Sequence[ReplayedText]) -> Unknown:
    """Estimates from all texts for what is unknown at single positions.

    An untested position follows a draft that was accepted completely. The most similar tested position is the last one
    of such drafts, so its acceptance is used, or that of all positions if few of them were tested. A missing signal
    becomes the median of those at accepted, rejected or unread tokens.
    """
    tested = [x for text in texts for x in text.agree if x == x]
    hits, tests = (sum(text.last[i] for text in texts) for i in (0, 1))
    if tests < FEWEST:
        hits, tests = int(sum(tested)), len(tested)
    seen: dict[str, list[float]] = {ACCEPTED: [], REJECTED: [], UNREAD: []}
    for text in texts:
        for x, signal in zip(text.agree, text.signals, strict=True):
            if signal == signal:
                seen[ACCEPTED if x else REJECTED].append(signal)
        for tail in text.tails.values():
            seen[UNREAD] += [signal for signal in tail.signals if signal == signal]
    every = sorted(signal for some in seen.values() for signal in some)
    return Unknown(
        hits / tests if tests else 0.0, {kind: _median(sorted(some) or every) for kind, some in seen.items()}
    )


def _median(ordered: Sequence[float]) -> float:
    return ordered[len(ordered) // 2] if ordered else 1.0


def replay(text: ReplayedText, rule: Rule, missing: Unknown) -> Replayed:
    """The expected rounds of a text if its drafts end by `rule`."""
    counts = Replayed(tokens=len(text.agree))
    for start, weight, outcome in lay_out(len(text.agree), lambda start: outcomes(text, start, rule, missing)):
        counts.count(start, weight, outcome)
    return counts


def lay_out(size: int, rounds: Callable[[int], Iterable[Outcome]]) -> Iterator[tuple[int, float, Outcome]]:
    """The rounds of a text of `size` tokens, from what may happen at each start: start, probability, and outcome."""
    begins = [0.0] * (size + 1)  # the probability that a round begins at each position
    begins[0] = 1.0
    for start in range(size):
        if begins[start]:
            for outcome in rounds(start):
                weight = begins[start] * outcome[0]
                begins[min(start + outcome[2] + 1, size)] += weight
                yield start, weight, outcome


def outcomes(text: ReplayedText, start: int, rule: Rule, missing: Unknown) -> Iterator[Outcome]:
    """The possible rounds from `start`."""
    size = len(text.agree)
    draft = Drafting(rule, missing)
    chance = 1.0
    for at in count(start):
        if at == size:  # the rest of the text was drafted and accepted
            yield chance, draft.go_on(text.tails.get(size)), size - start, draft.guessed
            return
        known = text.agree[at] == text.agree[at]
        agrees = text.agree[at] if known else missing.agree
        if agrees < 1:
            rejecting = copy(draft)
            tail = text.tails.get(at) if known else None
            if not (
                rejecting.add(text.signals[at] if known else NAN, REJECTED)
                or (tail and rejecting.ends_with(tail.eos == 0))
            ):
                rejecting.go_on(tail)
            yield chance * (1 - agrees), rejecting.count, at - start, rejecting.guessed
        if agrees == 0:
            return
        chance *= agrees
        if draft.add(text.signals[at], ACCEPTED) or draft.ends_with(text.eos and at == size - 1):
            yield chance, draft.count, at + 1 - start, draft.guessed
            return


class Drafting:
    """A draft as it grows, and the rule that ends it."""

    def __init__(self, rule: Rule, missing: Unknown) -> None:
        self.rule, self.missing = rule, missing
        self.count = 0
        self.product = 1.0  # of the signals so far
        self.guessed = False

    def add(self, signal: float, kind: str) -> bool:
        """Add a token; return whether the draft ends with it, leaving EOS aside. `signal` is NaN if it is not known."""
        rule = self.rule
        self.count += 1
        if self.count >= rule.longest:
            return True
        if rule.kind == "fixed":
            return False
        may_stop = self.count >= rule.shortest
        if rule.kind == "specdecpp":  # a token is scored only after the next one has been drafted
            if may_stop and 1 - self.product > rule.threshold:
                return True
            self.product *= self._known(signal, kind)
            return False
        if rule.kind == "cumulative":
            self.product *= self._known(signal, kind)
            return may_stop and self.product < rule.threshold
        if not may_stop:
            return False
        value = self._known(signal, kind)
        return value > rule.threshold if rule.kind == "entropy" else value < rule.threshold

    def ends_with(self, eos: bool) -> bool:
        return self.rule.stop_at_eos and eos

    def go_on(self, tail: Tail | None) -> int:
        """Continue with tokens that are never tested until the draft ends; return the draft's number of tokens."""
        signals, eos = (tail.signals, tail.eos) if tail else ((), None)
        for i in count(1):
            if self.add(signals[i - 1] if i <= len(signals) else NAN, UNREAD) or self.ends_with(i == eos):
                return self.count
        raise AssertionError

    def _known(self, signal: float, kind: str) -> float:
        if signal == signal:
            return signal
        self.guessed = True
        return self.missing.signals[kind]
