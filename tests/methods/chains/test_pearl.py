"""PEARL: rounds against a reference without caches, exact texts and laws; what a rejection drops, and what it costs."""

import oracle
import pytest
import torch
from builders_engine import build, made
from gates import DEVICE, decode, lively_prompt, pair
from law import Fit, fit
from official import pearl as own
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from tabled import V
from watched import Told

from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.chains import pearl
from specbench.methods.chains.pearl import Pearl

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
LONG = pytest.mark.long


class Official:
    """Target and drafter of its program's scores, which keep the text and no cache."""

    lengths = Lengths()

    def begin(self, prompt): ...

    def restart(self, prompt):
        self.text = []
        return Scored(self.forward(prompt).logits[-1:])

    def forward(self, tokens):
        begun, self.text = len(self.text), [*self.text, *tokens]
        rows = [own.scores(self.text[: end + 1], False) for end in range(begun, len(self.text))]
        return Scored(torch.tensor(rows))

    def truncate(self, length):
        del self.text[length:]

    def propose(self, context, gamma, sampling, rng):
        text = list(context)
        for _ in range(gamma):
            said = own.scores(text, True)
            text.append(said.index(max(said)))
        return Draft(torch.tensor(text[len(context) :]), None)


def test_rounds_are_those_of_its_own_code():
    """Of 12 greedy texts: the tokens, and how many stood before each rejection."""
    cases, stood = official_cases("pearl"), 0
    for case in cases:
        method = Pearl(Official(), Official(), case["gamma"])
        text, accepted, since = list(case["prompt"][:-1]), [], 0
        for number, round_ in enumerate(method.rounds(case["prompt"][:-1], Sampling(), torch.Generator())):
            text += round_.tokens
            if number:
                since += round_.accepted
                if round_.verdict.token is not None:
                    accepted, since = [*accepted, since], 0
            if number == case["forwards"]:
                break
        assert text[: len(case["prompt"]) + 40] == [*case["prompt"], *case["text"][:40]]
        assert accepted == case["accepted"]
        stood += sum(accepted)
    assert len(cases) == 12 and stood > 100


def reference(target, draft, text: list[int], count: int, gamma: int) -> list[tuple[list[int], int, list[int]]]:
    """`count` greedy rounds (verified tokens, how many passed, committed tokens), from whole forwards.

    The two stages of the paper, apart: before verification only the next token is at stake, after it all that wait.
    """
    done, verified, waiting = [], list(text), []
    for _ in range(count):
        drafted = oracle.greedy(draft, verified + waiting, gamma)
        if not waiting:  # pre-verify
            wanted = oracle.best(oracle.next_logits(target, verified))
            if drafted[0] == wanted:
                done.append((drafted[:1], 1, drafted[:1]))
                verified, waiting = verified + drafted[:1], drafted[1:]
            else:
                done.append((drafted[:1], 0, [wanted]))
                verified = [*verified, wanted]
            continue
        tested = [*waiting, drafted[0]]  # post-verify, and pre-verify of the next draft
        wanted = oracle.greedy(target, verified, len(tested))
        passed = next((i for i, both in enumerate(zip(tested, wanted, strict=True)) if both[0] != both[1]), len(tested))
        if passed == len(tested):
            done.append((tested, passed, tested))
            verified, waiting = verified + tested, drafted[1:]
        else:
            done.append((tested, passed, wanted[: passed + 1]))
            verified, waiting = verified + wanted[: passed + 1], []
    return done


@pytest.mark.parametrize("gamma", (1, 3, pytest.param(5, marks=LONG)))
@pytest.mark.parametrize("architecture", ("llama", pytest.param("gemma2", marks=LONG)))
def test_rounds_equal_the_reference(architecture, gamma):
    prompt, text = lively_prompt(architecture, 12, 40)
    target, draft = oracle.tiny_pair(architecture)
    method = build(made(*pair(architecture)), "pearl", gamma=gamma)
    tokens, rounds = decode(method, prompt, 40)
    assert tokens == text
    expected = reference(target, draft, [*prompt, text[0]], 12, gamma)
    results = [(step.verdict.drafted, step.accepted, step.tokens) for step in rounds[1:13]]
    assert results == expected
    assert {passed < len(tested) for tested, passed, _ in expected} == {True, False}
    if gamma > 1:
        assert max(len(tested) for tested, _, _ in expected) == gamma


def test_a_round_is_one_target_forward_and_gamma_draft_forwards():
    """The target reads what waits and the token before; the draft's call catches up by one token, or by two.

    A correction follows a token that the draft has read, unless that token was its last one.
    """
    watch = Told()
    method = build(made(), "pearl", watch, gamma=3)
    rounds = method.rounds(oracle.prompts(1, length=9)[0], Sampling(), torch.Generator(DEVICE))
    next(rounds)
    waiting = 0
    for _ in range(15):
        watch.forwards.clear()
        step = next(rounds)
        (draft,) = (passes for role, *passes in watch.forwards if role == "draft")
        assert [width for role, width, *_ in watch.forwards if role == "target"] == [1 + waiting]
        assert draft[0] in (1 + 2, 2 + 2) and draft[2] == 3
        assert max(width + context for _, width, context, *_ in watch.forwards) <= len(method.target) + method.reach
        waiting = 2 if step.verdict.token is None else 0


def drawn(sampling: Sampling, draws: int = 150) -> Fit:
    target, draft = (oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for seed in (1, 2))
    method = Pearl(recalled(target, "target"), ModelDrafter(recalled(draft, "draft")), 3)
    return fit(method, target, [1, 3, 2], 4, sampling, draws)


@pytest.mark.parametrize("sampling", (Sampling(1.0), pytest.param(Sampling(0.8, top_k=3), marks=LONG)), ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling)
    assert p > ALPHA and accepted > 40 and rejected > 40


@pytest.mark.long
def test_a_wrong_law_of_waiting_tokens_is_found(monkeypatch):
    """Wrong: tokens that wait are told as drawn from the distributions of those before them."""
    monkeypatch.setattr(pearl, "part", earlier)
    assert drawn(Sampling(1.0), 1000).p < ALPHA


def earlier(draft, which):
    first = which.start or 0
    tokens = draft.tokens[which]
    return Draft(tokens, draft.probs[max(0, first - 1) :][: len(tokens)])


def test_what_ships_and_what_is_refused():
    method = build(made(), "pearl")
    assert method.lossless and method.reach == 8
    with one_line_error("pearl: gamma"):
        build(made(), "pearl", gamma=0)
