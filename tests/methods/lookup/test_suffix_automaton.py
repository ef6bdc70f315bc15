"""The suffix automaton against searches of the whole text, by hand, and in steps."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.methods.lookup.suffix_automaton import END, Automaton, Match

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def built(text, depth: int = 100) -> Automaton:
    automaton = Automaton(depth)
    automaton.extend(text)
    return automaton


def occurrences(text, word) -> int:
    return sum(text[i : i + len(word)] == word for i in range(len(text) - len(word) + 1))


def state_of(automaton, word) -> int | None:
    state = 0
    for token in word:
        state = automaton.followers[state].get(token)
        if state is None:
            return None
    return state


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 8))
def test_it_holds_each_subword_as_often_as_it_occurs(text, depth):
    automaton = built(text, depth)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + depth) + 1):
            word = text[start:end]
            assert automaton.count[state_of(automaton, word)] == occurrences(text, word)
    absent = next((word for word in ([a, b, c] for a in range(3) for b in range(3) for c in range(3))
                   if not occurrences(text, word)), None)  # fmt: skip
    assert absent is None or state_of(automaton, absent) is None
    assert len(automaton.link) <= 2 * len(text) + 1, "the automaton of n tokens has at most 2 n states"


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 6), st.integers(0, 4))
def test_repeated_suffixes_equal_a_search(text, longest, more):
    """Of suffixes that stand at the same places only the longest is named."""
    automaton = built(text, longest + more)
    expected = {}
    for length in range(1, min(longest, len(text)) + 1):
        word = text[-length:]
        places = tuple(i for i in range(length, len(text)) if text[i - length : i] == word)
        if places:
            expected[places] = length
    assert sorted(match.length for match in automaton.repeated(longest)) == sorted(expected.values())
    for state, length in automaton.repeated(longest):
        assert state == state_of(automaton, text[-length:])
        after = Counter(text[i] for i in range(length, len(text)) if text[i - length : i] == text[-length:])
        if length < longest + more:
            assert {t: automaton.count[s] for t, s in automaton.followers[state].items()} == after


@settings(max_examples=300, deadline=None)
@given(TEXTS, TEXTS, st.integers(1, 6))
def test_a_match_with_another_text_equals_a_search(text, context, longest):
    automaton, match = built(text), Match(0, 0)
    for end in range(1, len(context) + 1):
        match = automaton.follow(match, context[end - 1], longest)
        lengths = [n for n in range(1, min(end, longest) + 1) if occurrences(text, context[end - n : end])]
        assert match.length == max(lengths, default=0)
        assert match.state == state_of(automaton, context[end - match.length : end])
        for state, length in automaton.suffixes(match):
            assert state == state_of(automaton, context[end - length : end])


# 1 2 3, 1 2 3, 1 2 4, and 1 2 at the end: after 1 2 come 3, 3 and 4; after 3 always 1 2.
TEXT = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]


@pytest.mark.parametrize(
    ("most", "least", "tokens", "score"),
    [
        # 3 after two of four times 1 2; after 1 2 3 always 1 2; after 1 2 3 1 2 once 3 and once 4: the first, 1/4.
        (1, 0.0, [3], 1 / 2),
        (3, 0.0, [3, 1, 2], 3 / 2),
        (4, 0.0, [3, 1, 2, 3], 3 / 2 + 1 / 4),
        (4, 0.5, [3, 1, 2], 3 / 2),
        (4, 0.7, [], 0.0),
    ],
)
def test_a_chain_by_hand(most, least, tokens, score):
    automaton = built(TEXT)
    result, sum_of_paths = automaton.chain(state_of(automaton, [1, 2]), most, least)
    assert result == tokens and sum_of_paths == pytest.approx(score)


def test_a_tree_by_hand():
    """3, 3-1, 3-1-2 with 1/2; 4, 4-1, 4-1-2 and 3-1-2-3, 3-1-2-4 with 1/4, in the order in which they are reached."""
    automaton = built(TEXT)
    state = state_of(automaton, [1, 2])
    tokens, parents, score = automaton.tree(state, 5, 9, 0.0)
    assert (tokens, parents) == ([3, 1, 2, 4, 3], (-1, 0, 1, -1, 2)) and score == pytest.approx(3 / 2 + 2 / 4)
    tokens, parents, _ = automaton.tree(state, 9, 2, 0.0)
    assert (tokens, parents) == ([3, 1, 4, 1], (-1, 0, -1, 2)), "two levels"
    assert automaton.tree(state, 9, 9, 0.5)[0] == [3, 1, 2]


def test_of_tokens_that_follow_equally_often():
    """Once: the first of them. More often: the last one."""
    automaton = built([1, 2, 1, 3, 1])
    assert automaton.chain(state_of(automaton, [1]), 1, 0.0)[0] == [2]
    automaton.extend([2, 1, 3, 1])
    assert automaton.chain(state_of(automaton, [1]), 1, 0.0)[0] == [3]


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 8))
def test_where_a_subword_occurs_first_and_last_and_which_end_stands_earlier(text, depth):
    automaton = built(text, depth)
    for start in range(len(text)):
        for end in range(start + 1, min(len(text), start + depth) + 1):
            word, state = text[start:end], state_of(automaton, text[start:end])
            ends = [i for i in range(len(word), len(text) + 1) if text[i - len(word) : i] == word]
            assert (automaton.first[state], automaton.latest[state]) == (ends[0], ends[-1])
    for length in range(1, depth + 1):
        found = automaton.ending(length)
        assert found == (state_of(automaton, text[-length:]), min(length, len(text)))
    lengths = [n for n in range(1, len(text)) if occurrences(text, text[len(text) - n :]) > 1]
    ends = {occurrences(text, text[len(text) - n :]): n for n in lengths}  # the longest of those with the same places
    assert [match.length for match in automaton.earlier()] == sorted(ends.values(), reverse=True)


def test_the_end_of_a_text_is_not_drafted():
    automaton = built([1, 2, END, 1, 2, END, 1, 3, END])
    assert automaton.chain(state_of(automaton, [1]), 9, 0.0) == ([2], pytest.approx(2 / 3))
    assert automaton.tree(state_of(automaton, [1]), 9, 9, 0.0)[:2] == ([2, 3], (-1, -1))


@pytest.mark.parametrize("text", ([1], [1, 2, 3, 4, 5, 6, 7], [1, 1, 2]), ids=("one token", "seven", "three"))
def test_steps_grow_with_the_text_and_no_faster(text):
    """Steps are reads of links. Twice the text takes at most about twice the steps, whatever it repeats."""

    class Counted(list):
        reads = 0

        def __getitem__(self, at):
            Counted.reads += 1
            return super().__getitem__(at)

    steps = []
    for repeats in (700, 1400):
        automaton = Automaton(16)
        automaton.link = Counted(automaton.link)
        Counted.reads = 0
        for token in text * (repeats // len(text)):
            automaton.extend([token])
            list(automaton.repeated(8))
        steps.append(Counted.reads)
    assert steps[1] < 2.2 * steps[0]
