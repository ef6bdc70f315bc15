"""A suffix automaton that grows with a text: what followed each earlier occurrence of the text's end, and how often.

Blumer et al., The smallest automaton recognizing the subwords of a text, 1985. A state is a class of subwords that end
at the same places; its suffix link leads to the longest suffix that also ends elsewhere.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

END = -1  # ends a text among several; no token, never drafted


class Match(NamedTuple):
    """An earlier occurrence of the end of a text."""

    state: int
    length: int  # tokens


class Automaton:
    """All subwords of a text with their numbers of occurrences, as far as they are of at most `depth` tokens.

    Appending a token takes amortised constant time but for the counts, which cost a step for each state among the
    suffixes of at most `depth` tokens: at most `depth`, and a few in texts that are not one token over and over.
    """

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.followers: list[dict[int, int]] = [{}]  # state -> next token -> state; state 0 is the empty word
        self.link = [-1]
        self.length = [0]  # of the longest word of each state
        self.count = [0]  # occurrences of the words of each state, where its shortest is of at most `depth` tokens
        self.first = [0]  # tokens of the text up to the end of their first occurrence
        self.latest = [0]  # and of their last one, where `count` is known
        self.size = 0  # tokens of the text
        self._last = 0  # the state of the whole text
        self._recent, self._held = 0, 0  # the state of the last `depth` tokens, and how many these are

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text, in place."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        followers, link, length = self.followers, self.link, self.length
        self.size += 1
        new = self._state({}, 0, length[self._last] + 1, 0, self.size)
        state = self._last
        while state >= 0 and token not in followers[state]:
            followers[state][token] = new
            state = link[state]
        if state >= 0:
            old = followers[state][token]
            link[new] = old if length[old] == length[state] + 1 else self._split(state, token, old)
        self._last = new
        self._recent = followers[self._holding(self._recent, self._held)][token]
        self._held = min(self._held + 1, self.depth)
        self._recent = state = self._holding(self._recent, self._held)
        while state:
            self.count[state] += 1
            self.latest[state] = self.size
            state = link[state]

    def _state(self, followers: dict[int, int], link: int, length: int, count: int, first: int) -> int:
        self.followers.append(followers)
        self.link.append(link)
        self.length.append(length)
        self.count.append(count)
        self.first.append(first)
        self.latest.append(first)
        return len(self.link) - 1

    def _split(self, state: int, token: int, old: int) -> int:
        """A new state for the words of `old` that are no longer than those of `state` and `token`."""
        length = self.length[state] + 1
        shorter = self._state(dict(self.followers[old]), self.link[old], length, self.count[old], self.first[old])
        self.latest[shorter] = self.latest[old]
        while state >= 0 and self.followers[state].get(token) == old:
            self.followers[state][token] = shorter
            state = self.link[state]
        self.link[old] = shorter
        return shorter

    def _holding(self, state: int, length: int) -> int:
        """Of a state and those that its links lead to, the one with the suffix of `length` tokens."""
        while state and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state

    def repeated(self, longest: int) -> Iterator[Match]:
        """The suffixes of the text of at most `longest` tokens that also occur earlier; of each state the longest."""
        state = self._recent
        while state:
            shorter = self.length[self.link[state]]
            length = min(self.length[state], self._held, longest)
            if self.count[state] > 1 and length > shorter:
                yield Match(state, length)
            state = self.link[state]

    def ending(self, length: int) -> Match:
        """The last tokens of the text, at most `depth` of them, wherever else they occur."""
        length = min(length, self._held)
        return Match(self._holding(self._recent, length), length)

    def held(self, match: Match) -> Match:
        """The state of a match after the text has grown: states split."""
        return Match(self._holding(*match), match.length)

    def earlier(self) -> Iterator[Match]:
        """As `repeated`, but of any length, from the longest on."""
        state = self.link[self._last]
        while state > 0:
            yield Match(state, self.length[state])
            state = self.link[state]

    def follow(self, match: Match, token: int, longest: int) -> Match:
        """The longest suffix, of at most `longest` tokens, of a matched word and `token` that the text holds."""
        state, length = match
        while state and token not in self.followers[state]:
            state = self.link[state]
            length = self.length[state]
        if token in self.followers[state]:
            state, length = self.followers[state][token], min(length + 1, longest)
        return Match(self._holding(state, length), length)

    def suffixes(self, match: Match) -> Iterator[Match]:
        """A matched word and its suffixes; of each state the longest."""
        state, length = match
        while state:
            yield Match(state, length)
            state = self.link[state]
            length = self.length[state]

    def chain(self, state: int, most: int, least: float) -> tuple[list[int], float]:
        """The most frequent tokens after a state, one after another, and the sum of their paths' probabilities.

        A token's probability is its share of all occurrences of what stands before it, the end of the text among them;
        a path's is their product. The chain ends where only END follows, after `most` tokens, and before a path's
        probability falls below `least`. Of equal tokens the one goes on that followed last, and of those that followed
        once the first one.
        """
        tokens: list[int] = []
        path, score = 1.0, 0.0
        while len(tokens) < most and (found := self._commonest(self.followers[state])):
            token, after = found
            path *= self.count[after] / self.count[state]
            if path < least:
                break
            state = after
            tokens.append(token)
            score += path
        return tokens, score

    def _commonest(self, followers: dict[int, int]) -> tuple[int, int] | None:
        """The most frequent of the tokens that follow, and its state."""
        best, most, latest = None, 0, 0
        for token, state in followers.items():
            count = self.count[state]
            if token != END and (count > most or (count == most > 1 and self.latest[state] > latest)):
                best, most, latest = (token, state), count, self.latest[state]
        return best

    def tree(self, state: int, most: int, levels: int, least: float) -> tuple[list[int], tuple[int, ...], float]:
        """The `most` likeliest paths after a state: tokens [K], parents [K], and the sum of the paths' probabilities.

        Probabilities and `least` are as in `chain`; no path has more than `levels` tokens.
        """
        tokens: list[int] = []
        parents: list[int] = []
        score = 0.0
        entries = 0
        heap: list[tuple[float, int, int, int, int, int]] = []

        def push(path: float, state: int, parent: int, level: int) -> None:
            nonlocal entries
            for token, next_state in self.followers[state].items():
                chance = path * self.count[next_state] / self.count[state]
                if token != END and chance >= least:
                    entries += 1  # of equal paths the earlier one goes first
                    heapq.heappush(heap, (-chance, entries, token, next_state, parent, level))

        push(1.0, state, -1, 1)
        while heap and len(tokens) < most:
            negative, _, token, state, parent, level = heapq.heappop(heap)
            tokens.append(token)
            parents.append(parent)
            score -= negative
            if level < levels and len(tokens) < most:
                push(-negative, state, len(tokens) - 1, level + 1)
        return tokens, tuple(parents), score
