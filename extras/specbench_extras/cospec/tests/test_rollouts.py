"""Rollouts of many texts at once: each is what the method says of it alone, and sampled ones follow their law."""

import functools
import random
import zlib

import naive_cospec as naive
import numpy as np
import oracle
import pytest
import torch
from batches import GAMMA, alone, made, several
from cases import architectures, mostly_long
from cospec_models import SHIPPED, arbitrator, merged, middling, slow, slow_target
from gates import DEVICE, GREEDY, decode, pair
from made_runs import TOKENIZER

from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.collaborative.cospec import Always, CoSpec, Learned, Settings
from specbench_extras.cospec import rollouts

ALPHA = 1e-4  # of a right law being refused; wrong ones must fall below it


def text_of(prompt, count) -> rollouts.Text:
    return rollouts.Text(prompt, Ending(Limits(count, frozenset()), lambda ids: ""))


def unbatched(architecture, arbiter, gamma=GAMMA):
    target, draft = pair(architecture)
    settings = Settings(**{**SHIPPED, "gamma": gamma})
    method = CoSpec(Session(target, "target"), ModelDrafter(Session(draft, "draft")), settings, arbiter, {})
    return [decode(method, *one) for one in several(architecture)]


def together(architecture, decide, policy=None, hybrid=True, sampling=GREEDY, gamma=GAMMA):
    results = [text_of(*one) for one in several(architecture)]
    rng = torch.Generator(DEVICE).manual_seed(0)
    rollouts.decode(made(architecture), policy, results, gamma, sampling, rng, decide, hybrid)
    return results


@architectures
def test_never_is_greedy_vanilla(architecture):
    result = together(architecture, lambda number, block, logits: (False for _ in block.mismatches))
    assert [one.ending.tokens for one in result] == alone(architecture)
    assert len(set(result[0].ending.tokens)) > 11
    assert sum(turn.rejected for one in result for turn in one.turns) > 5
    assert sum(turn.emitted > 1 for one in result for turn in one.turns) > 5


def by_text(context: list[int], d: int, t: int) -> bool:
    """Keeps about half, by what was said so far."""
    return zlib.crc32(repr((context, d, t)).encode()) % 2 == 0


class ByText(Always):
    def begin(self, prompt):
        self.text = list(prompt)

    def read(self, tokens):
        self.text += tokens

    def keeps(self, block, rng):
        for i in block.mismatches:
            yield by_text([*self.text, *block.drafted[:i]], block.drafted[i], block.targets[i])


def assert_same(result, expected):
    """Texts, and round by round what was drafted, reached, kept and emitted."""
    for text, (tokens, rounds) in zip(result, expected, strict=True):
        assert text.ending.tokens == tokens and len(text.turns) == len(rounds) - 1
        context = len(text.prompt) + 1
        for turn, one in zip(text.turns, rounds[1:], strict=True):
            decisions = one.verdict.decisions(len(one.tokens) if one.truncated else None)
            reached = [i for i, decision in enumerate(decisions) if decision in ("rescued", "rejected")]
            assert (turn.context, turn.block.drafted, turn.emitted) == (context, one.verdict.drafted, len(one.tokens))
            assert turn.decided == reached
            assert turn.kept == [decisions[i] == "rescued" for i in reached]
            assert turn.rejected == ("rejected" in decisions)
            context += len(one.tokens)


@mostly_long("gamma", (1, 4, 25), (4,))
@architectures
def test_a_policy_by_text_is_the_method(architecture, gamma):
    results: list[rollouts.Text] = []

    def decide(number, block, logits):
        assert logits == []
        text = results[number].tokens
        for i in block.mismatches:
            yield by_text([*text, *block.drafted[:i]], block.drafted[i], block.targets[i])

    results += [text_of(*one) for one in several(architecture)]
    rng = torch.Generator(DEVICE).manual_seed(0)
    rollouts.decode(made(architecture), None, results, gamma, GREEDY, rng, decide)
    assert_same(results, unbatched(architecture, ByText(), gamma))
    kept = [keeps for result in results for turn in result.turns for keeps in turn.kept]
    assert kept.count(True) > 0 and kept.count(False) > 0


@pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
@architectures
def test_the_trained_policy_is_the_method(architecture, hybrid):
    """As decoded one by one; and its logits are those of the decoder without cache."""
    judge = functools.partial(naive.logits, merged(architecture), hybrid=hybrid)
    threshold = middling(architecture, judge)
    arbiter = Learned(Session(arbitrator(architecture), "arbitrator", vocabulary=1), threshold, hybrid)
    result = together(
        architecture,
        lambda number, block, logits: (logit > arbiter.least for logit in logits),
        arbitrator(architecture),
        hybrid,
    )
    assert_same(result, unbatched(architecture, arbiter))
    (prompt, count), text = several(architecture)[0], result[0]
    wanted = slow(architecture).rounds(prompt, count, GAMMA, naive.worked_out(judge, threshold))
    assert text.answer[1:] == [token for one in wanted for token in one.committed]
    for turn, one in zip(text.turns, wanted, strict=True):
        logits = judge(text.tokens[: turn.context], one.drafted, one.targets)
        assert turn.logits == pytest.approx([logits[i] for i in one.mismatches], abs=1e-4)
        rows = [
            oracle.next_logits(slow_target(architecture), [*text.tokens[: turn.context], *one.drafted[:i]])
            for i in one.mismatches
        ]
        losses = [float(-row.log_softmax(-1)[one.drafted[i]]) for row, i in zip(rows, one.mismatches, strict=True)]
        assert turn.surprisals == pytest.approx(losses, abs=1e-4)


SMALL = 6


@functools.cache
def small():
    return oracle.tiny("llama", vocab=SMALL), oracle.tiny("llama", seed=3, vocab=SMALL)


@functools.cache
def law(p_kept: float, temperature: float) -> np.ndarray:
    """Of three tokens [V, V, V]: the prefill's is the target's, the others the draft's with chance `p_kept`."""
    prompt, total = [1, 2, 3], np.zeros((SMALL, SMALL, SMALL))

    def says(context: list[int], share: float) -> np.ndarray:
        p, q = (oracle.warp(oracle.next_logits(one, context), temperature).numpy() for one in small())
        return share * q + (1 - share) * p

    for i, first in enumerate(says(prompt, 0)):
        for j, second in enumerate(says([*prompt, i], p_kept)):
            total[i, j] = first * second * says([*prompt, i, j], p_kept)
    return total


def copies(decide, texts=1200, temperature=1.5) -> list[rollouts.Text]:
    """Many copies of a text of three tokens that are decoded together; γ = 2: no bonus is among them."""
    target, draft = (one.to(DEVICE) for one in small())
    results = [text_of([1, 2, 3], 3) for _ in range(texts)]
    rng = torch.Generator(DEVICE).manual_seed(4)
    both = Pair("made", {"target": target, "draft": draft}, TOKENIZER)
    rollouts.decode(both, None, results, 2, Sampling(temperature), rng, decide)
    for one in small():
        one.cpu()
    return results


def sampled(decide) -> np.ndarray:
    """Counts of the three tokens."""
    counts = np.zeros((SMALL, SMALL, SMALL))
    for one in copies(decide):
        counts[tuple(one.ending.tokens)] += 1
    return counts


def test_draft_and_target_agree_as_often_as_can_be():
    """The first drafted token is the target's with chance Σ min(p, q), given the token before it."""
    result = copies(lambda *_: iter([False] * 2))
    expected, spread = 0.0, 0.0
    for one in result:
        chance = agreement(one.answer[0])
        expected, spread = expected + chance, spread + chance * (1 - chance)
        assert one.turns[0].surprisals == pytest.approx(
            [-np.log(_plain(one, i)[one.turns[0].block.drafted[i]]) for i in one.turns[0].block.mismatches], abs=1e-4
        )
    agreed = sum(0 not in one.turns[0].block.mismatches for one in result)
    assert abs(agreed - expected) < 4 * spread**0.5


@functools.cache
def agreement(first: int) -> float:
    p, q = (oracle.warp(oracle.next_logits(one, [1, 2, 3, first]), 1.5) for one in small())
    return float(torch.minimum(p, q).sum())


@functools.cache
def _says(context: tuple[int, ...]) -> np.ndarray:
    return oracle.warp(oracle.next_logits(small()[0], list(context)), 1.0).numpy()


def _plain(text: rollouts.Text, i: int) -> np.ndarray:
    """The target's probabilities at temperature 1 of the i-th drafted token of the first round."""
    return _says((1, 2, 3, text.answer[0], *text.turns[0].block.drafted[:i]))


@mostly_long("p_kept", (0.0, 0.4, 1.0), (0.4,))
def test_sampled_texts_follow_their_law(p_kept):
    rng = random.Random(1)
    decide = lambda number, block, logits: (rng.random() < p_kept for _ in block.mismatches)  # noqa: E731
    counts = sampled(decide)
    assert oracle.chi_square(counts, law(p_kept, 1.5)) > ALPHA
    assert oracle.chi_square(counts, law(1.0 if p_kept < 1 else 0.6, 1.5)) < ALPHA
    assert oracle.chi_square(counts, law(p_kept, 1.0)) < ALPHA


def test_a_wrong_draw_is_found(monkeypatch):
    """Drafts that are not drawn from the distributions they are tested by."""
    drawn = rollouts.draw

    def likeliest(logits, sampling, rng):
        token, q = drawn(logits, sampling, rng)
        return (logits.argmax(-1) if q is not None and len(logits) > 1 else token), q

    monkeypatch.setattr(rollouts, "draw", likeliest)
    assert oracle.chi_square(sampled(lambda *_: iter([False] * 2)), law(0.0, 1.5)) < ALPHA
