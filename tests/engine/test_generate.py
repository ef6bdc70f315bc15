"""Where a text ends: EOS, stop strings split over tokens, and length limits, inside a block, with exact counts."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.engine.generate import Detokenizer, Ending, Limits, until_end
from specbench.engine.types import Round, Verdict

# A toy vocabulary: id -> text.
PIECES = ["", "a", "b", "\n", "Que", "stion", ":", " Question", "é"[:1], "<end>"]
END = 9


def text(ids):
    return "".join(PIECES[i] for i in ids if i != END)


def block(*tokens, accepted=None, rescued=()):
    """A round that commits `tokens`, all but the last of them drafted and accepted (and one more draft rejected)."""
    accepted = len(tokens) - 1 if accepted is None else accepted
    drafted = [*tokens[:accepted], 1]
    verdict = Verdict(tuple(range(accepted)), tokens[-1], drafted, [0] * len(drafted), [0.5] * len(drafted), rescued)
    return Round(list(tokens), verdict)


def run(blocks, limit=100, stops=()):
    ending = Ending(Limits(limit, frozenset({END}), stops), text)
    return ending, list(until_end(iter(blocks), ending))


def test_eos_inside_a_block():
    ending, rounds = run([Round([1]), block(2, 2, END, 1, 1), block(1, 1)])
    assert (ending.reason, ending.tokens, ending.text()) == ("eos", [1, 2, 2, END], "abb")
    last = rounds[-1]
    assert len(rounds) == 2
    assert (last.tokens, last.truncated, last.drafted, last.accepted) == ([2, 2, END], 2, 5, 3)


def test_eos_as_the_bonus_cuts_nothing():
    ending, rounds = run([Round([1]), block(2, 2, END)])
    assert (ending.reason, rounds[-1].truncated, rounds[-1].accepted) == ("eos", 0, 2)


def test_eos_as_the_first_token():
    ending, rounds = run([Round([END]), block(1, 1)])
    assert (ending.reason, ending.tokens, ending.text(), len(rounds)) == ("eos", [END], "", 1)


@pytest.mark.parametrize("limit", range(1, 9))
def test_length_inside_a_block(limit):
    ending, rounds = run([Round([1]), block(2, 2, 2), block(1, 1, 1, 1)], limit)
    assert ending.reason == "length"
    assert len(ending.tokens) == limit == sum(len(r.tokens) for r in rounds)
    whole = {1: 1, 4: 4, 8: 8}
    assert rounds[-1].truncated == (0 if limit in whole else {2: 2, 3: 1, 5: 3, 6: 2, 7: 1}[limit])


def test_stop_string_split_over_tokens_and_blocks():
    # "\nQuestion:" from the tokens "\n", "Que" in one block and "stion", ":" in the next.
    ending, rounds = run([Round([1]), block(2, 3, 4), block(5, 6, 1, 1)], stops=("\nQuestion:",))
    assert (ending.reason, ending.text()) == ("stop", "ab")
    assert ending.tokens == [1, 2, 3, 4, 5, 6], "the token that completes the stop string is the last one counted"
    assert (rounds[-1].tokens, rounds[-1].truncated, rounds[-1].accepted) == ([5, 6], 2, 2)


def test_stop_string_in_the_middle_of_a_long_block():
    ending, rounds = run([Round([1]), block(1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)], stops=("\n\n",))
    assert (ending.text(), len(ending.tokens), rounds[-1].truncated) == ("aaa", 5, 12)


def test_stop_string_that_a_token_holds_in_its_middle():
    ending, _ = run([Round([1]), block(7, 6, 1)], stops=("Quest",))
    assert (ending.reason, ending.text(), ending.tokens) == ("stop", "a ", [1, 7])


def test_the_first_of_several_ends_wins():
    assert run([Round([1]), block(2, 3, END, 1)], stops=("\n",))[0].reason == "stop"
    assert run([Round([1]), block(2, END, 3, 1)], stops=("\n",))[0].reason == "eos"
    ending, _ = run([Round([1]), block(3, 1, 1, 1)], limit=3, stops=("\n",))
    assert (ending.reason, len(ending.tokens)) == ("stop", 2)


def test_blocks_and_single_tokens_end_alike():
    """The same tokens in any division into rounds give the same text, tokens and reason."""
    tokens = [1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 1, END, 2]
    results = set()
    for size in range(1, 14):
        blocks = [Round(tokens[i : i + size]) for i in range(0, 13, size)]
        ending, rounds = run(blocks, stops=("\nQuestion:",))
        results.add((ending.reason, tuple(ending.tokens), ending.text()))
        assert sum(len(r.tokens) for r in rounds) == len(ending.tokens)
    assert results == {("stop", tuple(tokens[:10]), "ab\nQuestionb")}


def test_the_end_token_is_no_part_of_the_text_even_where_its_tokenizer_writes_it():
    ending = Ending(Limits(9, frozenset({END})), lambda ids: "".join(PIECES[i] for i in ids))
    assert ending.keep([1, 2, END, 1]) == 3
    assert (ending.text(), ending.tokens) == ("ab", [1, 2, END])


def test_rescues_behind_the_end_do_not_count():
    _, rounds = run([Round([1]), block(2, END, 2, 2, rescued=(0, 2))])
    assert rounds[-1].rescued == 1


def as_bytes(ids):
    """A tokenizer whose tokens are bytes, as those of text that it has no word for."""
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("stop", ["答えは終わり", "→→→→→", "é" * 9, "🙂🙂🙂", "Frage:"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stop_string_may_take_many_tokens_a_character(stop, size):
    before = b"ein Wort"
    tokens = [*before, *stop.encode(), *b"more"]
    ending = Ending(Limits(100, frozenset(), (stop,)), as_bytes)
    for at in range(0, len(tokens), size):
        ending.keep(tokens[at : at + size])
        if ending.reason:
            break
    assert (ending.reason, ending.text()) == ("stop", "ein Wort")
    assert ending.tokens == tokens[: len(before) + len(stop.encode())]


def test_a_blank_that_is_not_seen_alone_ends_a_stop_string():
    """SentencePiece drops the blank that a text begins with, so a token of one blank by itself says nothing."""
    pieces = {1: "a", 2: "b", 3: " "}
    ending = Ending(Limits(100, frozenset(), ("b ",)), lambda ids: "".join(map(pieces.get, ids)).removeprefix(" "))
    assert [ending.keep([token]) for token in (1, 2)] == [1, 1] and not ending.reason
    ending.keep([3])
    assert (ending.reason, ending.text(), ending.tokens) == ("stop", "a", [1, 2, 3])


# A toy vocabulary of which 7 and 8 are special, and 9 is the end token.
PARTS = {1: "a", 2: "b", 3: "\n", 7: "<|turn|>", 8: "<|pad|>", END: "<|end|>"}
SHOWN = Detokenizer(lambda ids: "".join(PARTS[i] for i in ids if i < 7), lambda ids: "".join(PARTS[i] for i in ids))


@pytest.mark.parametrize(
    ("tokens", "stops", "reason", "count", "text"),
    [
        ([1, 7, 2], ["<|turn|>"], "stop", 2, "a"),  # a special token that is no end token
        ([1, 2, 7, 3, 1], ["<|turn|>\n"], "stop", 4, "ab\n"),  # as in lm-eval, the rest of such a stop string stays
        ([1, 3, 8, 3, 1], ["\n\n"], "stop", 4, "a"),  # a stop string that special tokens interrupt, as engines find it
        ([3, *[8] * 40, 3, 1], ["\n\n"], "stop", 42, ""),
        ([1, 2, END, 1], ["<|end|>"], "eos", 3, "ab"),  # the end token stays one if the task names its text as well
        ([1, 7, 2], ["<|pad|>"], "", 3, "ab"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 50])
def test_stop_strings_are_found_with_and_without_special_tokens(tokens, stops, reason, count, text, size):
    ending = Ending(Limits(100, frozenset({END}), tuple(stops)), SHOWN)
    for at in range(0, len(tokens), size):
        ending.keep(tokens[at : at + size])
        if ending.reason:
            break
    assert (ending.reason, len(ending.tokens), ending.text()) == (reason, count, text)


WORDS = ("Quest", "ion", "Question", ":", "\n", "de", "def", "#", "Then 4 + 5 = 9. ")
SIGNS = ("a", "b", "…", "é", ")", "x", " ", "0", ".")
STOPS = ("Question:", "\ndef", "\n#", "ab", "…", "é)", "x ", "\n\n", "0.")


@pytest.fixture(scope="module")
def stopping(pocket):
    """The first count of tokens whose text holds a stop string, by looking at all of it each time; None: never."""

    def naive(tokens, stops):
        return next(
            (n for n in range(1, len(tokens) + 1) if any(s in pocket.detokenizer(tokens[:n]) for s in stops)), None
        )

    return naive


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    words=st.lists(st.sampled_from(WORDS + SIGNS), min_size=1, max_size=14),
    stops=st.lists(st.sampled_from(STOPS), min_size=1, max_size=3, unique=True),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
def test_a_stop_string_is_found_where_it_ends(pocket, stopping, words, stops, sizes):
    """However the tokens come: the shortcut that looks at single tokens loses none."""
    tokens = [t for word in words for t in pocket.tokenizer(word, add_special_tokens=False)["input_ids"]]
    ending, at = Ending(Limits(10**6, frozenset(), tuple(stops)), pocket.detokenizer), 0
    for turn in itertools.count():
        step = sizes[turn % len(sizes)]
        if ending.reason or at >= len(tokens):
            break
        ending.keep(tokens[at : at + step])
        at += step
    expected = stopping(tokens, stops)
    assert (ending.reason == "stop") == (expected is not None)
    assert len(ending.tokens) == (len(tokens) if expected is None else expected)
