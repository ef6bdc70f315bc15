"""Recorded rounds replayed with other draft lengths, without a model.

At every position of a text the draft either has what the target commits there or has not. Of the pairs (committed
token, whether a draft would be accepted), given the text before, the law does not depend on where rounds begin:

- greedy: both are functions of the text before;
- sampled: a position that is tested draws d from q and accepts it with probability min(1, p/q), else commits a draw
  from the residual. Its token is distributed as p, and so is one that is committed untested, the bonus. Both p and q
  depend on the text before alone.

So a text with its acceptances, as recorded, is a draw from what any other draft length would have met; only the rounds
are laid anew. A bonus position was not tested: there a draft would be accepted with some probability, and the rounds
are expected ones, summed over both outcomes exactly. What a length policy goes by at a token depends on the text
before and the token, so it is replayed too. Behind a rejected token the draft goes on along tokens that were never
committed; the record has them as far as the draft went.

This holds for lossless methods with a chain as their draft, and a draft model that reads nothing but the text.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count, groupby
from operator import itemgetter
from typing import Any

NAN = math.nan
ACCEPTED, REJECTED, UNREAD = "accepted", "rejected", "unread"
FEWEST = 50  # tested drafts from which their acceptance is trusted


@dataclass(frozen=True)
class Tail:
    """Drafted tokens that nobody tested: behind a rejected one, or behind the end of a text."""

    signals: Sequence[float]  # what the length policy went by at each; NaN: not recorded
    eos: int | None  # how many of them there are up to a drafted EOS; 0: the rejected token is one


@dataclass(frozen=True)
class Text:
    """One recorded text of N tokens behind the prefill's."""

    key: tuple[int, str, int]  # repeat, task, document
    agree: list[float]  # [N]: 1 the draft's token was accepted here, 0 rejected, NaN not tested
    signals: Sequence[float]  # [N]: what the length policy went by at the token drafted here; NaN: not recorded
    tails: dict[int, Tail]  # by the position of a rejected token; N: behind the end
    eos: bool  # the last token is an end token
    last: tuple[int, int]  # last tokens of drafts: how many were accepted, and how many were tested at all


@dataclass(frozen=True)
class Rule:
    """When a draft ends. `kind` is fixed, or a length method that looks on: it stops by its threshold."""

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
    guessed: float = 0.0  # rounds that needed a signal which was not recorded
    lengths: dict[int, float] = field(default_factory=dict)  # rounds by their draft length


@dataclass(frozen=True)
class Unknown:
    """What is put where the record is silent."""

    agree: float  # the probability that a draft is accepted at a position that was not tested
    signals: dict[str, float]  # by what became of the token


def texts_of(rounds: Iterable[dict[str, Any]], finish: dict[tuple[int, str, int], str], eos: set[int]) -> list[Text]:
    """Recorded rounds of one method, in their order, as texts; `finish` tells how each timed text ended.

    `eos` are end tokens.
    """
    key = itemgetter("repeat", "task", "doc_id")
    found = []
    for text, group in groupby(rounds, key=key):
        if text in finish:
            found.append(_text(text, sorted(group, key=itemgetter("round")), finish[text] == "eos", eos))
    return found


def _text(key: tuple[int, str, int], rounds: list[dict[str, Any]], ended: bool, eos: set[int]) -> Text:
    agree: list[float] = []
    signals: list[float] = []
    tails: dict[int, Tail] = {}
    last_accepted = last_tested = 0
    for one in rounds:
        if one["round"] == 0:
            continue
        drafted, accepted, committed, cut = (one[n] for n in ("drafted", "accepted", "committed", "truncated"))
        seen = list(one.get("predictions") or [NAN] * drafted)
        tokens = list(one.get("draft_tokens") or [-1] * drafted)
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
    return Text(key, agree, signals, tails, ended, (last_accepted, last_tested))


def _tail(signals: Sequence[float], tokens: Sequence[int], eos: set[int]) -> Tail:
    """`tokens` begin one earlier than the tail: with the rejected one."""
    return Tail(signals, next((i for i, token in enumerate(tokens) if token in eos), None))


def unknown(texts: Sequence[Text]) -> Unknown:
    """What the record as a whole says of what single positions do not tell.

    A position that was not tested lies behind drafts that were all accepted. Nearest to it is the last position of such
    drafts, so it gets the acceptance there; where few of them were tested, that of all positions. A signal gets the
    median of those at accepted, rejected or unread tokens.
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


def replay(text: Text, rule: Rule, missing: Unknown) -> Replayed:
    """The expected rounds of a text if drafts end by `rule`."""
    size = len(text.agree)
    done = Replayed(tokens=size)
    begins = [0.0] * (size + 1)  # the probability that a round begins at each position
    begins[0] = 1.0
    for start in range(size):
        if begins[start]:
            for chance, drafted, accepted, guessed in _rounds(text, start, rule, missing):
                weight = begins[start] * chance
                begins[min(start + accepted + 1, size)] += weight
                done.rounds += weight
                done.drafted += weight * drafted
                done.accepted += weight * accepted
                done.guessed += weight * guessed
                done.lengths[drafted] = done.lengths.get(drafted, 0.0) + weight
    return done


def _rounds(text: Text, start: int, rule: Rule, missing: Unknown) -> Iterator[tuple[float, int, int, bool]]:
    """The rounds that may begin at `start`: probability, drafted, accepted, and whether a signal was guessed."""
    size = len(text.agree)
    draft = Drafting(rule, missing)
    chance = 1.0
    for at in count(start):
        if at == size:  # all that was left of the text was drafted, and stands
            yield chance, draft.go_on(text.tails.get(size)), size - start, draft.guessed
            return
        known = text.agree[at] == text.agree[at]
        agrees = text.agree[at] if known else missing.agree
        if agrees < 1:
            other = copy(draft)
            tail = text.tails.get(at) if known else None
            if not (
                other.add(text.signals[at] if known else NAN, REJECTED) or (tail and other.ends_with(tail.eos == 0))
            ):
                other.go_on(tail)
            yield chance * (1 - agrees), other.count, at - start, other.guessed
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
        """One more token; whether the draft ends with it by its length. `signal` is NaN where it is not known."""
        rule = self.rule
        self.count += 1
        if self.count >= rule.longest:
            return True
        if rule.kind == "fixed":
            return False
        may_stop = self.count >= rule.shortest
        if rule.kind == "specdecpp":  # a token is scored only when the next one has been drafted
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
        """Draft on along tokens that are never tested, until the draft ends; returns how many tokens it has."""
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
