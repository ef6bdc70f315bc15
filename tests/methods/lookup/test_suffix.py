"""Suffix decoding against a search of whole texts and its own code, from text to text, and the target's law."""

import itertools

import oracle
import pytest
import torch
from builders_engine import build, lonely, made
from drafted_trees import paths
from gates import DEVICE, GREEDY, decode
from hypothesis import example, given, settings
from hypothesis import strategies as st
from law import Fit, fit
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error

from specbench import config
from specbench.engine.session import Session
from specbench.engine.trees import exact_draft
from specbench.engine.types import Round, Sampling
from specbench.methods.lookup import suffix
from specbench.methods.lookup.suffix import Settings, Suffix, SuffixDrafter, drafter
from specbench_extras.replay.study import Trace, replay

SHIPPED = config.load_method("suffix").values
CPU, HERE = torch.device("cpu"), torch.device(DEVICE)
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
CHAIN = {"form": "chain", "probability": 0.0, "gamma": 4}


def chosen(**changes) -> Settings:
    return Settings(**{**SHIPPED, **changes})


def drafts(one: Settings, contexts: list[list[int]], drafting: SuffixDrafter | None = None):
    """The tokens and parents drafted after contexts of one text, the first of which is the prompt."""
    drafting = drafting or drafter(one, None, CPU)
    drafting.begin(contexts[0])
    made = [drafting.propose(context, one.gamma, GREEDY, torch.Generator()) for context in contexts]
    return [(draft.tokens.tolist(), draft.parents) for draft in made]


def chained(one: Settings, text: list[int]) -> list[int]:
    return drafts(one, [text])[0][0]


@pytest.mark.parametrize(
    ("changes", "text", "result"),
    [
        # 1 2 stands twice with 3 after it and once with 4. Two tokens of suffix: two of draft.
        (CHAIN, [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [3, 1]),
        ({**CHAIN, "offset": 2.0}, [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], [3, 1, 2, 3]),
        # After 5 1 2 came 4: three tokens, surely. Of 1 2 alone 3 would be the likelier.
        (CHAIN, [1, 2, 3, 1, 2, 3, 5, 1, 2, 4, 6, 6, 5, 1, 2], [4, 6, 6]),
        # The longest suffix, 7 1, was followed by 2; 1 by 3, three times of four; both expect at most 1 + offset.
        ({**CHAIN, "offset": 9.0}, [1, 3, 5, 1, 3, 5, 1, 3, 5, 7, 1, 2, 9, 8, 7, 1], [2, 9, 8, 7]),
        # The end of the text alone counts for nothing.
        (CHAIN, [1, 2, 3, 4], []),
        (CHAIN, [3], []),
        ({**CHAIN, "shortest": 3}, [1, 2, 9, 1, 2], []),
        # Of three times 1 2, the end among them, one is followed by 3.
        ({**CHAIN, "probability": 0.34}, [1, 2, 3, 1, 2, 4, 1, 2], []),
        ({**CHAIN, "probability": 0.33}, [1, 2, 3, 1, 2, 4, 1, 2], [3, 1]),
        # A suffix and its draft have five tokens together: three after 1 2, which are more than two after 9 1 2.
        ({**CHAIN, "depth": 5, "longest": 4, "offset": 3.0, "shortest": 2}, [9, 1, 2, 3, 4, 5, 6, 9, 1, 2], [3, 4, 5]),
    ],
)
def test_chains_by_hand(changes, text, result):
    assert chained(chosen(**changes), text) == result


def test_a_tree_by_hand():
    """3 and 4 are as likely after 1 2, and each goes on surely; of equal paths the one that is reached first."""
    text = [1, 2, 3, 7, 1, 2, 4, 8, 1, 2]
    assert drafts(chosen(offset=2.0), [text]) == [([3, 4, 7, 8], (-1, -1, 0, 1))]
    assert drafts(chosen(offset=1.0), [text]) == [([3, 4, 7], (-1, -1, 0))]


def places_after(text, word):
    """Where each token follows a word, in the order of their first places."""
    result: dict[int, list[int]] = {}
    for i in range(len(word), len(text)):
        if text[i - len(word) : i] == word:
            result.setdefault(text[i], []).append(i)
    return result


def occurrences(text, word) -> int:
    return sum(text[i - len(word) : i] == word for i in range(len(word), len(text) + 1))


def searched(text: list[int], one: Settings) -> list[int]:
    """The chain of a text by searches of the whole text for every suffix."""
    best: tuple[float, list[int]] = 0.0, []
    for length in range(min(one.longest, len(text) - 1), one.shortest - 1, -1):
        word = text[-length:]
        if not places_after(text, word):
            continue
        tokens: list[int] = []
        path, score = 1.0, 0.0
        while len(tokens) < min(one.gamma, int(one.factor * length + one.offset)):
            result = places_after(text, [*word, *tokens])
            if not result:
                break
            most = max(map(len, result.values()))
            equal = [token for token, places in result.items() if len(places) == most]
            token = equal[0] if most == 1 else max(equal, key=lambda t: result[t][-1])
            path *= most / occurrences(text, [*word, *tokens])
            if path < one.probability:
                break
            tokens.append(token)
            score += path
        if score > best[0] + 1e-9:  # equal but for rounding
            best = score, tokens
        if one.match == "longest":
            break
    return best[1]


RULES = st.builds(
    lambda longest, gamma, factor, offset, probability, match: chosen(
        longest=longest, gamma=gamma, factor=factor, offset=offset, probability=probability, match=match, form="chain"
    ),
    *(st.integers(1, 6), st.integers(1, 5), st.sampled_from((0.0, 0.5, 1.0, 2.0)), st.integers(0, 4)),
    *(st.sampled_from((0.0, 0.1, 0.3, 0.6)), st.sampled_from(("best", "longest"))),
)


EQUAL = chosen(longest=2, gamma=3, factor=0.0, offset=3, probability=0.0, match="best", form="chain")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 4), RULES)
@example([2, 2, 2, 0, 0, 2, 2, 0, 2, 2], 1, EQUAL)  # as many tokens by either suffix
def test_chains_equal_a_search_of_the_whole_text(text, step, one):
    contexts = [text[:end] for end in range(1, len(text) + 1, step)]
    result = drafts(one, contexts)
    assert [tokens for tokens, _ in result] == [searched(context, one) for context in contexts]


# Earlier answers


def test_earlier_answers_by_hand():
    one = chosen(**CHAIN, answers=3)
    drafting = drafter(one, None, CPU)
    assert drafts(one, [[1, 2]], drafting)[0][0] == []
    for answer in ([1, 2, 3], [1, 2, 3], [1, 2, 4]):
        drafting.remember(answer)
    assert drafts(one, [[9, 1, 2]], drafting)[0][0] == [3], "no answer goes on after its end"
    # 1 2 stands in the text, too, surely followed by 5 9: two tokens against 2/3 of one.
    assert drafts(one, [[1, 2, 5, 9, 1, 2]], drafting)[0][0] == [5, 9]
    drafting.remember([7, 7])  # one too many: the newer two stay
    assert drafting.answers == [[1, 2, 4], [7, 7]] and drafts(one, [[9, 1, 2]], drafting)[0][0] == [4]
    drafting.forget()
    assert drafts(one, [[9, 1, 2]], drafting)[0][0] == []


def test_of_equal_expectations_the_text_itself_counts():
    one = chosen(**CHAIN, answers=3)
    drafting = drafter(one, None, CPU)
    drafting.remember([1, 5])
    assert drafts(one, [[1, 6, 1]], drafting)[0][0] == [5], "6 followed one of two"
    drafting.remember([8, 1])
    assert drafts(one, [[1, 6, 1]], drafting)[0][0] == [6]


def test_the_answer_in_progress_is_searched_as_earlier_ones_are():
    """After 1 came 5 in an earlier answer, until this one says 1 7: then once of three times, the end among them."""
    one = chosen(**CHAIN, answers=9)
    drafting = drafter(one, None, CPU)
    drafting.remember([1, 5])
    contexts = [[3], [3, 1], [3, 1, 7], [3, 1, 7, 9, 1]]
    assert [tokens for tokens, _ in drafts(one, contexts, drafting)] == [[], [5], [], [7]]
    assert drafts(one, [[3], [3, 1]], drafting)[1][0] == [5], "a text that did not end is forgotten"
    drafting.remember([1, 6])
    assert drafting.answers == [[1, 5], [1, 6]] and drafts(one, [[1, 6, 9, 1]], drafting)[0][0] == [6]


def test_drafts_are_those_of_its_own_code():
    """Of 24 runs of three texts each: chains and trees, with and without earlier answers, of two depths.

    Ties are resolved otherwise now and then: then as many tokens are drafted, and as many are expected.
    """
    count = different = 0
    for case in official_cases("suffix"):
        form, answers = "tree" if case["tree"] else "chain", 99 if case["answers"] else 0
        one = chosen(depth=case["depth"], longest=case["depth"] - 1, gamma=case["gamma"], form=form, answers=answers)
        drafting = drafter(one, None, CPU)
        for text in case["texts"]:
            drafting.begin(text["prompt"])
            context = text["prompt"]
            for tokens, (drafted, parents, _) in zip(text["rounds"], text["drafts"], strict=True):
                context = context + tokens
                draft = drafting.propose(context, one.gamma, GREEDY, torch.Generator())
                ours = draft.tokens.tolist(), draft.parents or tuple(range(-1, len(draft.tokens) - 1))
                assert len(ours[0]) == len(drafted)
                different += set(paths(*ours)) != set(paths(drafted, parents))
                count += 1
            drafting.remember(context[len(text["prompt"]) :])
    assert (count, different) == (369, 3)


def method_of(one: Settings) -> Suffix:
    return Suffix(Session(oracle.tiny("llama", seed=3, vocab=16).to(DEVICE), "target"), drafter(one, None, HERE), one)


def test_an_answer_is_kept_without_what_its_end_cut_off():
    method = method_of(chosen(answers=9))
    method.answer = [4, 5, 6, 7]
    method.ended(Round([6], truncated=1))
    assert method.state() == {"answers": [[4, 5, 6]], "remembered": 1}
    method.reset()
    assert method.state() == {"answers": [], "remembered": 0}
    assert method_of(chosen()).state() is None


def test_a_state_is_taken_up_from_anywhere():
    one, prompts = chosen(answers=3, form="chain"), oracle.prompts(7, length=8, vocab=16, seed=5)
    method, states, texts = method_of(one), [], []
    for prompt in prompts:
        states.append(method.state())
        tokens, rounds = decode(method, prompt, 20)
        texts.append([tokens, [step.tokens for step in rounds]])
        method.answer = tokens
        method.ended(rounds[-1].cut(len(rounds[-1].tokens)))
    for start, then in itertools.product(range(7), range(0, 7, 2)):  # from one state to another, forwards and back
        other = method_of(one)
        other.restore(states[start])
        other.restore(states[then])
        assert other.state() == states[then]
        tokens, rounds = decode(other, prompts[then], 20)
        assert [tokens, [step.tokens for step in rounds]] == texts[then]


def test_what_texts_taught_adds_up():
    method = method_of(chosen(answers=3))
    before = {"answers": [[1], [2]], "remembered": 2}
    after = {"answers": [[1], [2], [3]], "remembered": 3}
    assert method.added(before, before, after) == after
    other = {"answers": [[1], [2], [4]], "remembered": 3}
    assert method.added(other, before, after) == {"answers": [[4], [3]], "remembered": 4}
    assert method.added(other, before, before) == other
    assert method_of(chosen()).added(None, None, None) is None


def test_replay_searches_the_earlier_texts():
    texts = [Trace([9], [1, 2, 3, 4, 5, 6], "a", "1"), Trace([8], [1, 2, 3, 4, 5, 6], "a", "2")]
    alone = replay("suffix", drafter(chosen(offset=9.0), None, CPU), 9, texts).positions
    assert alone.accepted.tolist() == [0] * 10
    result = replay("suffix", drafter(chosen(offset=9.0, answers=5), None, CPU), 9, texts).positions
    assert result.accepted.tolist() == [0] * 5 + [5, 4, 3, 2, 1]


# Fallback


def test_the_draft_model_drafts_where_little_is_expected():
    method = build(made(), "suffix", fallback="draft", fallback_score=1.5, fallback_gamma=3, gamma=5, form="chain")
    _, rounds = decode(method, [5, 6, 7, 5, 6, 7, 5, 6], 30)
    drafted = {step.drafted for step in rounds[1:]}
    assert method.reach == 6 and 3 in drafted and all(step.drafted >= 2 for step in rounds[1:])


# The target's law

VOCABULARY, PROMPT = 4, [1, 3, 2, 0, 1, 1, 2, 3, 0, 0]


def drawn(sampling: Sampling, draws: int = 500, **changes) -> Fit:
    model = oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)
    one = chosen(**{"gamma": 3, "offset": 2.0, **changes})
    return fit(Suffix(recalled(model, "target"), drafter(one, None, HERE), one), model, PROMPT, 4, sampling, draws)


@pytest.mark.parametrize(("sampling", "form"), [(Sampling(1.0), "tree"), (Sampling(0.8, top_p=0.9), "chain")], ids=str)
def test_samples_from_the_target(sampling, form):
    p, accepted, rejected = drawn(sampling, form=form)
    assert p > ALPHA and accepted > 100 and rejected > 100


def test_a_greedy_test_of_sampled_texts_is_found(monkeypatch):
    wrong = lambda draft, scored, sampling, rng: exact_draft(draft, scored, GREEDY, rng)  # noqa: E731
    monkeypatch.setattr(suffix.Suffix, "accept", staticmethod(wrong))
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    method = build(lonely(), "suffix")
    assert method.lossless and method.reach == 33 and method.inputs() == {} and method.state() is None
    assert config.load_method("suffixdecoding").values["answers"] == 500
    assert build(lonely(), "anpd").reach == 7
    with one_line_error("suffix: its rounds are of up to 33 tokens, but lonely reads 32"):
        build(lonely(32), "suffix")
    with one_line_error("suffix: shortest: 65 is more than longest (63)"):
        build(lonely(), "suffix", shortest=65)
    with one_line_error("lonely has no draft model"):
        build(lonely(), "suffix", fallback="draft")
