"""Many rounds of many texts in one forward of the arbitrator, against one forward a round; and texts decoded together.

What is expected comes from the decoder of tests/support/naive_cospec.py, which has no cache and writes every mask out.
"""

import functools
import math

import naive_cospec as naive
import numpy as np
import oracle
import pytest
import torch
from chains import Words
from cospec_models import arbitrator, merged, slow
from gates import DEVICE, GREEDY, pair
from scipy.stats import binomtest

from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.collaborative.cospec import Block, Learned
from specbench.methods.collaborative.cospec_arbitrator import own_parameters
from specbench_extras.cospec import reading
from specbench_extras.cospec.reading import Query, Reading, all_logits, logits_of, parts
from specbench_extras.cospec.rollouts import Text, decode

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
MASKS = pytest.mark.parametrize("hybrid", (True, False), ids=("hybrid", "causal"))
EVERY = pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
NEAR = {"rtol": 0, "atol": 1e-5}  # norms and softmax of these models are in float32


def made(seed: int, length: int, rounds: list[tuple[int, int, list[int]]]) -> Reading:
    """A text of random tokens; of each round its context, its K and what is asked."""
    (numbers,) = oracle.prompts(1, length=length + 2 * sum(k for _, k, _ in rounds), seed=seed)
    text, rest = numbers[:length], numbers[length:]
    asked = []
    for context, k, positions in rounds:
        block, rest = rest[: 2 * k], rest[2 * k :]
        asked.append(Query(context, block, positions))
    return Reading(text, asked)


# Of different lengths, so that there is padding; rounds of one text overlap, and one text goes on behind its last.
READINGS = (
    made(1, 40, [(9, 4, [0, 3]), (14, 4, [1]), (33, 4, [0, 1, 2, 3])]),
    made(2, 12, [(11, 2, [1])]),
    made(3, 27, [(5, 6, [5, 2]), (27, 1, [0])]),
)


@functools.cache
def wanted(architecture: str, hybrid: bool) -> list[list[float]]:
    return [
        [naive.logits(merged(architecture), text.tokens[: one.context], *halves(one), hybrid)[i] for one, i in each]
        for text in READINGS
        for each in [[(round_, i) for round_ in text.rounds for i in round_.positions]]
    ]


def halves(asked: Query) -> tuple[list[int], list[int]]:
    k = len(asked.block) // 2
    return asked.block[:k], asked.block[k:]


def flat(rows):
    return [value for row in rows for value in row]


@MASKS
@EVERY
def test_packed_logits_are_those_of_one_forward_a_round(architecture, hybrid):
    model, expected = arbitrator(architecture), wanted(architecture, hybrid)
    assert np.std(flat(expected)) > 0.3, "logits that are all alike prove nothing"
    with torch.no_grad():
        result = logits_of(model, READINGS, hybrid)
        # Alone, without padding, and the other way round
        alone = torch.cat([logits_of(model, [one], hybrid) for one in READINGS])
        turned = logits_of(model, READINGS[::-1], hybrid)
    torch.testing.assert_close(result.cpu(), torch.tensor(flat(expected), dtype=result.dtype), **NEAR)
    torch.testing.assert_close(alone, result, **NEAR)
    torch.testing.assert_close(turned.cpu(), torch.tensor(flat(expected[::-1]), dtype=result.dtype), **NEAR)
    assert flat(wanted(architecture, not hybrid)) != pytest.approx(flat(expected), abs=0.01)


@MASKS
@EVERY
def test_packed_logits_are_those_that_decoding_asks_for(architecture, hybrid):
    """The arbiter of `specbench run`, whose cache goes on from round to round of a text."""
    text, arbiter = READINGS[0], Learned(Session(arbitrator(architecture), "arbitrator", vocabulary=1), 0.5, hybrid)
    arbiter.begin(text.tokens[:4])
    read, results = 4, []
    for round_ in text.rounds:
        arbiter.read(text.tokens[read : round_.context])
        read = round_.context
        results += arbiter.logits(Block(*halves(round_), round_.positions, torch.tensor(round_.block, device=DEVICE)))
    with torch.no_grad():
        torch.testing.assert_close(
            torch.tensor(results, dtype=torch.float64),
            logits_of(arbitrator(architecture), [text], hybrid).cpu(),
            **NEAR,
        )


def alone(model, text: Reading, asked: Query, hybrid: bool) -> torch.Tensor:
    """One round by itself, with gradients, under a mask that is written out."""
    ids = [*text.tokens[: asked.context], *asked.block]
    config, n = model.config, len(ids)

    def additive(window):
        rows = [
            [0.0 if naive.allowed(q, k, asked.context, hybrid, window) else -math.inf for k in range(n)]
            for q in range(n)
        ]
        return torch.tensor(rows, dtype=torch.float64, device=DEVICE)[None, None]

    kinds = getattr(config, "layer_types", None)
    mask = additive(None)
    if kinds:
        mask = {kind: additive(config.sliding_window if kind == "sliding_attention" else None) for kind in set(kinds)}
    out = model(
        torch.tensor([ids], device=DEVICE),
        attention_mask=mask,
        position_ids=torch.arange(n, device=DEVICE)[None],
        use_cache=False,
    )
    return out.logits[0, [asked.context + i for i in asked.positions], 0]


@EVERY
def test_gradients_are_the_sum_over_the_rounds(architecture):
    model = arbitrator(architecture)
    own = list(own_parameters(model).values())
    logits = logits_of(model, READINGS, True)
    weights = torch.linspace(-1, 2, len(logits), dtype=logits.dtype, device=DEVICE)
    packed = torch.autograd.grad((weights * logits.sigmoid()).sum(), own)
    single = torch.cat([alone(model, text, round_, True) for text in READINGS for round_ in text.rounds])
    summed = torch.autograd.grad((weights * single.sigmoid()).sum(), own)
    assert sum(float(one.abs().sum()) > 0 for one in summed) > len(own) * 0.9
    for a, b in zip(packed, summed, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()) + 1e-9)


def test_parts_are_no_larger_than_a_forward_may_be_and_lose_nothing(monkeypatch):
    monkeypatch.setattr(reading, "MICRO_TOKENS", 60)
    some = [made(i, 10 + i, [(8 + i, 2, [0])]) for i in (3, 40, 0, 7, 12, 5)]
    widths = [round_.context + 4 for text in some for round_ in text.rounds]
    listed = list(parts(some))
    assert sorted(flat(listed)) == list(range(6))
    assert [len(one) * max(widths[i] for i in one) <= 60 or len(one) == 1 for one in listed] == [True] * len(listed)
    assert len(listed) < 6 and max(widths) > 50
    assert all_logits(arbitrator("llama"), [], True) == [] == list(parts([]))


def test_each_text_gets_its_own_logits_however_they_are_divided(monkeypatch):
    silent = Reading([1, 2, 3], [])
    for most in (1, 100, 6144):
        monkeypatch.setattr(reading, "MICRO_TOKENS", most)
        result = all_logits(arbitrator("llama"), READINGS, True)
        assert [len(one) for one in result] == [7, 1, 3]
        assert flat(result) == pytest.approx(flat(wanted("llama", True)), abs=1e-5)
    assert (silent.read, silent.width, silent.logit_count) == (0, 0, 0)
    assert (READINGS[0].read, READINGS[0].width, READINGS[0].logit_count) == (33, 57, 7)


# Texts that are decoded together


def both(architecture: str) -> Pair:
    target, draft = pair(architecture)
    return Pair("tiny", {"target": target, "draft": draft}, Words(size=96))


def texts_of(prompts, counts, ends=frozenset()) -> list[Text]:
    return [
        Text(prompt, Ending(Limits(count, ends), Words().decode)) for prompt, count in zip(prompts, counts, strict=True)
    ]


@EVERY
def test_texts_together_are_each_that_of_the_decoder_without_cache(architecture):
    """Prompts and texts of different lengths, so that rows leave the batch at different times."""
    gamma, counts = 3, (30, 4, 12, 1, 21)
    prompts = [one[:n] for one, n in zip(oracle.prompts(5, length=15, seed=8), (15, 3, 9, 6, 12), strict=True)]
    judge = functools.partial(naive.logits, merged(architecture))
    texts = texts_of(prompts, counts)
    asked = []

    def decide(number, block, logits):
        asked.append((number, block.drafted, block.mismatches))
        return (logit > 0.1 for logit in logits)

    decode(both(architecture), arbitrator(architecture), texts, gamma, GREEDY, torch.Generator(DEVICE), decide)
    kept = rejected = 0
    for number, (text, prompt, count) in enumerate(zip(texts, prompts, counts, strict=True)):
        rounds = slow(architecture).rounds(prompt, count, gamma, naive.worked_out(judge, 1 / (1 + math.exp(-0.1))))
        whole = [slow(architecture).target(tuple(prompt)), *flat(round_.committed for round_ in rounds)]
        assert text.ending.tokens == whole[:count] and text.answer == whole
        assert [block for n, block, _ in asked if n == number] == [round_.drafted for round_ in rounds]
        assert len(text.turns) == len(rounds)
        context = len(prompt) + 1
        for turn, one in zip(text.turns, rounds, strict=True):
            room = count - (context - len(prompt))
            assert (turn.context, turn.block.drafted, turn.block.targets) == (context, one.drafted, one.targets)
            assert turn.block.mismatches == one.mismatches
            decided = [*one.kept, *([] if one.rejected is None else [one.rejected])]
            assert turn.decided == [i for i in decided if i < room]
            assert turn.kept == [i in one.kept for i in decided if i < room]
            assert turn.emitted == min(room, len(one.committed))
            assert turn.rejected == (one.rejected is not None and one.rejected < room)
            values = judge(whole_text(prompt, whole, context), one.drafted, one.targets)
            assert turn.logits == pytest.approx([values[i] for i in one.mismatches], abs=1e-5)
            rows = [
                oracle.next_logits(slow_target(architecture), whole_text(prompt, whole, context) + one.drafted[:i])
                for i in one.mismatches
            ]
            surprisals = [
                float(-row.log_softmax(-1)[one.drafted[i]]) for row, i in zip(rows, one.mismatches, strict=True)
            ]
            assert turn.surprisals == pytest.approx(surprisals, abs=1e-4)
            kept, rejected = kept + len(one.kept), rejected + (one.rejected is not None)
            context += len(one.committed)
    assert kept and rejected > 2 and len(set(flat(text.answer for text in texts))) > 12


def whole_text(prompt, answer, length):
    return [*prompt, *answer][:length]


@functools.cache
def slow_target(architecture):
    return naive.copy.deepcopy(pair(architecture)[0]).cpu()


def test_an_end_token_ends_a_text_and_what_is_behind_it_was_never_decided():
    prompt = oracle.prompts(1, length=15, seed=8)[0]
    (whole,) = texts_of([prompt], [30])
    decode(both("llama"), None, [whole], 6, GREEDY, torch.Generator(DEVICE), lambda *_: iter([True] * 6))
    turn = next(turn for turn in whole.turns if len(turn.decided) > 1)
    last = turn.block.mismatches[1]
    end = turn.block.drafted[last]
    at = whole.answer.index(end)
    assert at == turn.context - len(prompt) + last, "the only one of its kind so far"
    (cut,) = texts_of([prompt], [30], frozenset({end}))
    decode(both("llama"), None, [cut], 6, GREEDY, torch.Generator(DEVICE), lambda *_: iter([True] * 6))
    talk = cut.turns[-1]
    assert cut.ending.reason == "eos" and cut.ending.tokens == whole.answer[: at + 1]
    assert (talk.context, talk.decided, talk.kept, talk.rejected) == (
        turn.context,
        turn.decided[:2],
        [True] * 2,
        False,
    )
    assert talk.emitted == last + 1
    # One token earlier by the limit: the last decision lies behind the end, whether it keeps or rejects.
    for keeps in (True, False):
        (short,) = texts_of([prompt], [at])
        answers = {last: keeps}

        def decide(number, block, logits, answers=answers, context=turn.context):
            return (
                answers.get(i, True) if len(block.drafted) and block.drafted == turn.block.drafted else True
                for i in block.mismatches
            )

        decode(both("llama"), None, [short], 6, GREEDY, torch.Generator(DEVICE), decide)
        talk = short.turns[-1]
        assert (talk.context, talk.decided, talk.rejected) == (turn.context, turn.decided[:1], False)
        assert talk.emitted == last and short.ending.tokens == whole.answer[:at]


@pytest.mark.parametrize("keeps", (False, True))
def test_sampled_texts_follow_their_law(keeps):
    """Two tokens of many texts: both are the target's, or the second is the draft's where all of its are kept.

    Candidates differ with chance 1 - Σ min(p, q), as those of speculative sampling do.
    """
    target, draft = (oracle.tiny("llama", seed=seed, vocab=4, num_hidden_layers=1) for seed in (1, 2))
    prompt, sampling, rng = [1, 3, 2], Sampling(0.8), torch.Generator(DEVICE).manual_seed(0)
    target_law = oracle.two_token_distribution(target, prompt, 0.8)
    first = target_law.sum(1)
    second = [oracle.warp(oracle.next_logits(draft, [*prompt, i]), 0.8).numpy() for i in range(4)]
    draft_law = first[:, None] * np.stack(second)
    models = {"target": target.to(DEVICE), "draft": draft.to(DEVICE)}
    texts = texts_of([prompt] * 1500, [2] * 1500)
    decode(Pair("four", models, Words(size=96)), None, texts, 2, sampling, rng, lambda *_: iter([keeps] * 2))
    counts = np.zeros((4, 4))
    for text in texts:
        counts[tuple(text.ending.tokens)] += 1
    right, other = (draft_law, target_law) if keeps else (target_law, draft_law)
    assert oracle.chi_square(counts, right) > ALPHA > oracle.chi_square(counts, other)
    differ = 1 - np.minimum(target_law, draft_law).sum()
    result = sum(0 in text.turns[0].block.mismatches for text in texts)
    assert 0.05 < differ < 0.95 and binomtest(result, 1500, differ).pvalue > ALPHA
