"""AASD: thresholds by hand, a decoder without cache, and the laws of what it emits."""

import functools
import math

import naive_lookup
import numpy as np
import oracle
import pytest
import torch
from builders_engine import build, lonely
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, without_looking
from law import texts
from refusals import one_line_error
from watched import reads_of_tensors

from specbench import config
from specbench.engine import speculate, trees
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.lossy import aasd
from specbench.methods.lossy.aasd import AASD, Settings

SHIPPED = config.load_method("aasd").values
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
TEXTBOOK = [0.5, 0.25, 0.125, 0.125]  # 1.75 bits of entropy


def chosen(**changes) -> Settings:
    return Settings(**{**SHIPPED, "gamma": 3, **changes})


def naive_rules(one: Settings) -> tuple[naive_lookup.Rule, naive_lookup.Aligned]:
    rule = naive_lookup.Rule(one.ngram, one.shortest, one.gamma, one.match, one.whole)
    return rule, naive_lookup.Aligned(one.candidates, one.alpha, one.beta)


def method_of(model, **changes) -> AASD:
    return AASD(Session(model, "target"), chosen(**changes))


# Conditional verification

ENTROPY = 1.75 * math.log(2)  # nats: 1.213


@pytest.mark.parametrize(
    ("alpha", "beta", "passing"),
    [
        (0.0, 0.1, "1111"),  # all have at least 0.1
        (0.0, 0.125, "1111"),  # at least means at least
        (0.0, 0.126, "1100"),
        (0.0, 0.26, "1000"),
        (0.0, 0.7, "1000"),  # min(β, max p): the likeliest always stands
        (0.1, 0.7, "1000"),  # 0.7 - 0.121 = 0.579, so max p = 0.5
        (0.1, 0.37, "1100"),  # 0.37 - 0.121 = 0.249
        (0.1, 0.38, "1000"),  # 0.38 - 0.121 = 0.259
        (0.1, 0.24, "1111"),  # 0.24 - 0.121 = 0.119; with entropy in bits 0.065, over ln V 0.15
        (0.1, 0.25, "1100"),  # 0.25 - 0.121 = 0.129; in bits 0.075: all would stand
        (0.1, 0.1, "1111"),  # below 0
    ],
)
def test_thresholds_by_hand(alpha, beta, passing):
    """One level with all four tokens; entropy 1.75 bits, which is 1.213 nats."""
    assert pytest.approx(1.2130, abs=1e-4) == ENTROPY
    logits = torch.tensor([TEXTBOOK] * 5, dtype=torch.float64).log() + 3.0
    draft = Draft(torch.arange(4), None, (-1,) * 4)
    method = method_of(pair("llama")[0], alpha=alpha, beta=beta)
    assert "".join("01"[x] for x in method.stands(draft, logits).tolist()) == passing


def test_a_sure_target_asks_for_beta_or_its_own_choice():
    """At no entropy the threshold is min(β, 1); from a nat on, with α = β, everything stands."""
    sure = torch.tensor([[0.0, -200.0]] * 3, dtype=torch.float64)
    method = method_of(pair("llama")[0], alpha=0.1, beta=0.1)
    both = Draft(torch.tensor([0, 1]), None, (-1, -1))
    assert method.stands(both, sure).tolist() == [True, False]
    unsure = torch.tensor([[0.0] * 2 + [-200.0]] * 3, dtype=torch.float64)  # ln 2 nats
    assert method.stands(Draft(torch.tensor([0, 2]), None, (-1, -1)), unsure).tolist() == [True, False]
    more = torch.tensor([[0.0] * 3 + [-200.0]] * 3, dtype=torch.float64)  # ln 3 = 1.099 nats: 0.1 - 0.11 < 0
    assert method.stands(Draft(torch.tensor([0, 3]), None, (-1, -1)), more).tolist() == [True, True]


def test_each_token_is_tested_by_what_it_follows():
    """Behind the context token 0 is likely, behind token 0 (the first) token 1, behind 2 nothing that is drafted."""
    rows = torch.tensor([[9.0, 0, 0, 0], [0, 9.0, 0, 0], [0, 0, 0, 9.0], [0, 0, 9.0, 0], [0, 0, 0, 9.0]])
    draft = Draft(torch.tensor([0, 2, 1, 0]), None, (-1, -1, 0, 0))
    method = method_of(pair("llama")[0], alpha=0.0, beta=0.5)
    verdict = method.accept(draft, Scored(rows), GREEDY, torch.Generator())
    assert (verdict.path, verdict.token, verdict.rescued) == ((0, 2), 2, ())


def test_of_several_that_stand_the_likeliest_is_taken_and_rescues_are_told():
    draft = Draft(torch.tensor([3, 1, 0]), None, (-1, -1, 0))
    logits = torch.tensor([TEXTBOOK] * 4).log()
    method = method_of(pair("llama")[0], alpha=0.0, beta=0.1)
    verdict = method.accept(draft, Scored(logits), GREEDY, torch.Generator())
    assert (verdict.path, verdict.token, verdict.rescued) == ((1,), 0, (1,)), "1 is likelier than 3, and no argmax"
    draft = Draft(torch.tensor([3, 0, 1]), None, (-1, -1, 1))
    verdict = method.accept(draft, Scored(logits), GREEDY, torch.Generator())
    assert (verdict.path, verdict.token, verdict.rescued) == ((1, 2), 0, (2,))
    none = Draft(torch.empty(0, dtype=torch.long), None)
    verdict = method.accept(none, Scored(logits[:1]), GREEDY, torch.Generator())
    assert (verdict.path, verdict.token, verdict.drafted) == ((), 0, [])


# The tree


def test_a_tree_by_hand():
    """The prompt 1 2 3 4 1 2, and what the target would have said behind each of its tokens."""
    drafting = aasd.Aligned(chosen(), torch.device("cpu"))
    drafting.begin([1, 2, 3, 4, 1, 2])
    drafting.candidates = [[2, 9], [8, 7], [6, 4], [5, 6], [0, 7], [7, 8]]

    def drafted(context):
        draft = drafting.propose(context, 3, GREEDY, torch.Generator())
        return draft.tokens.tolist(), draft.parents

    # 1 2 is at 0: 3 4 1 follow it, at places 2 to 4. Next to 3 stand 8 and 7, next to 4 only 6 (4 is the trunk's own).
    assert drafted([1, 2, 3, 4, 1, 2, 5, 1, 2]) == ([3, 8, 7, 4, 6, 1, 5, 6], (-1, -1, -1, 0, 0, 3, 3, 3))
    assert drafted([1, 2, 3, 4, 1, 2, 5, 4]) == ([1, 5, 6, 2, 0, 7], (-1, -1, -1, 0, 0, 0)), "near the prompt's end"
    assert drafted([1, 2, 3, 4, 1, 2, 5]) == ([], None)
    assert drafted([1, 2, 3, 4, 1, 2, 5, 5]) == ([], None), "what was generated is not looked up in"
    drafting.candidates = [[2, 2]] * 6  # drawn ones may be equal
    assert drafted([1, 2, 3, 4, 1, 2, 5, 3]) == ([4, 2, 1, 2, 2], (-1, -1, 0, 0, 2))


@architectures
def test_candidates_are_the_targets_own_whatever_the_chunks(monkeypatch, architecture):
    """Chunks of 7 over 7, 15 and 20 tokens, beyond a sliding window of 16; the last row is the prompt's."""
    model = pair(architecture)[0]
    session = Session(model, "target")
    for length in (7, 15, 20):
        (prompt,) = oracle.prompts(1, length=length, seed=length)
        expected = []
        for end in range(1, length + 1):
            logits = oracle.next_logits(model, torch.tensor(prompt[:end], device=DEVICE).tolist())
            expected.append(logits.argsort(descending=True)[:3].tolist())
        monkeypatch.setattr(speculate, "CHUNK", 7)
        session.forward([1, 2, 3])  # something of an earlier text
        drafting = aasd.Aligned(chosen(candidates=3), torch.device(DEVICE))
        drafting.begin(prompt)
        drafting.rng = torch.Generator()
        scored = speculate.read_prompt(session, drafting, prompt)
        assert drafting.candidates == expected
        assert torch.allclose(scored.logits[-1], logits, atol=1e-4) and session.tokens == prompt


def test_drawn_candidates_follow_the_targets_distribution():
    model = sampled_model()
    one = chosen(choice="drawn", candidates=2)
    counts, rng = np.zeros((VOCABULARY, VOCABULARY)), torch.Generator(DEVICE).manual_seed(0)
    logits = Session(model, "target").restart([1, 3, 2]).logits
    for first, second in aasd.choose(logits.repeat(2000, 1), one, rng).tolist():
        counts[first, second] += 1
    p = oracle.warp(oracle.next_logits(model, [1, 3, 2]), 1.0).numpy()
    assert oracle.chi_square(counts, np.outer(p, p)) > ALPHA
    assert aasd.choose(logits, chosen(choice="drawn", candidates=0), rng).shape == (1, 0)


# Greedy texts


MODELS = {
    "llama": lambda: oracle.tiny("llama", seed=3, vocab=16),
    "gemma2": lambda: oracle.tiny("gemma2", seed=3, vocab=16),
    "opt": lambda: oracle.tiny("opt", seed=3, vocab=16),
    "repetitive": lambda: naive_lookup.repetitive(3, 0.05, 16),
}
CHANGES = (
    {"alpha": 0.1, "beta": 0.25},
    {"alpha": 0.0, "beta": 0.15, "candidates": 3, "match": "last", "ngram": 2},
    {"alpha": 0.2, "beta": 0.5, "candidates": 1, "whole": True, "gamma": 5},
    {"alpha": 0.0, "beta": 0.2, "candidates": 0},
)


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@mostly_long("name", MODELS, ("gemma2", "repetitive"))
def test_rounds_equal_a_decoder_without_cache(monkeypatch, name, changes):
    monkeypatch.setattr(speculate, "CHUNK", 8)
    model = MODELS[name]()
    (prompt,) = oracle.prompts(1, length=20, vocab=16, seed=4)
    text, rounds = decode(method_of(model, **changes), prompt, 30)
    context = [*prompt, *oracle.greedy(model, prompt, 1)]
    for round_ in rounds[1:]:
        result = naive_lookup.aside(model, prompt, context, *naive_rules(chosen(**changes)))
        assert round_.verdict.drafted == [token for level in result.levels for token in level]
        if not round_.truncated:
            emitted = oracle.best(oracle.next_logits(model, context + result.path))
            assert round_.tokens == [*result.path, emitted]
        path = round_.verdict.path
        assert [round_.verdict.drafted[i] for i in path] == result.path
        assert [path.index(i) for i in round_.verdict.rescued] == result.rescued
        context += [*result.path, oracle.best(oracle.next_logits(model, context + result.path))]
    assert prompt + text == context[: len(prompt) + 30]


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
def test_the_reference_meets_every_case():
    """Nothing drafted, nothing that stands, leaves and trunks that stand, by the target's choice and rescued."""
    met = set()
    for name in MODELS:
        model, (prompt,) = MODELS[name](), oracle.prompts(1, length=20, vocab=16, seed=4)
        for changes in CHANGES:
            context = [*prompt, *oracle.greedy(model, prompt, 1)]
            for _ in range(8):
                result = naive_lookup.aside(model, prompt, context, *naive_rules(chosen(**changes)))
                met.add("drafted" if result.levels else "nothing drafted")
                met.add(f"{len(result.path)} stand")
                for i, token in enumerate(result.path):
                    kind = "trunk" if token == result.levels[i][0] else "leaf"
                    met.add(f"{kind} {'rescued' if i in result.rescued else 'chosen'}")
                context += [*result.path, oracle.best(oracle.next_logits(model, context + result.path))]
    kinds = {f"{kind} {how}" for kind in ("trunk", "leaf") for how in ("rescued", "chosen")}
    assert kinds | {"drafted", "nothing drafted", "0 stand", "1 stand", "2 stand", "3 stand"} <= met


@architectures
def test_a_threshold_of_the_likeliest_is_the_target_alone(monkeypatch, architecture):
    monkeypatch.setattr(speculate, "CHUNK", 10)
    for length in (1, 15, 50):
        prompt, text = lively_prompt(architecture, length, 40)
        assert decode(method_of(pair(architecture)[0], alpha=0, beta=1), prompt, 40)[0] == text
    if DEVICE != "cpu":
        return
    model, accepted = oracle.tiny(architecture, seed=3, vocab=16), 0
    for prompt in oracle.prompts(3, length=30, vocab=16, seed=5):
        tokens, rounds = decode(method_of(model, alpha=0, beta=1), prompt, 24)
        assert tokens == oracle.greedy(model, prompt, 24)
        assert not any(round_.rescued for round_ in rounds)
        accepted += sum(round_.accepted for round_ in rounds)
    assert accepted >= 8


def test_a_repetitive_text_takes_few_rounds_and_one_wait_each(monkeypatch):
    without_looking(monkeypatch)
    model = naive_lookup.repetitive(0, 0.0).to(DEVICE)
    prompt = [1, 2, 3, *oracle.greedy(model.cpu(), [1, 2, 3], 30)]
    rounds = method_of(model.to(DEVICE)).rounds(prompt, GREEDY, torch.Generator(DEVICE))
    next(rounds)
    waits = reads_of_tensors(monkeypatch)
    taken = [next(rounds) for _ in range(6)]
    assert sum(len(one.tokens) for one in taken) > 18
    assert set(waits) == {"tolist"} and len(waits) <= 2 * 6  # a path that skips leaves is read once more by the cache


# Sampling

VOCABULARY, PROMPT = 7, [0, 1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1, 0]
RULES = {"alpha": 0.1, "beta": 0.35, "gamma": 2, "candidates": 1}
STRICT = {"alpha": 0.0, "beta": 0.9, "gamma": 2, "candidates": 1}  # the second likeliest falls as well
HOT = Sampling(2.0)  # what falls, by p at temperature 1, is drawn now and then


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=5, vocab=VOCABULARY)


@functools.cache
def law(count: int, sampling: Sampling, strict: bool) -> np.ndarray:
    """Probabilities of every text of `count` tokens [V, …, V]: what stands follows from the text, what is emitted is a
    draw of the target's."""
    total = np.zeros((VOCABULARY,) * count)
    rules = naive_rules(chosen(**(STRICT if strict else RULES)))

    def grow(text: list[int], chance: float) -> None:
        if len(text) >= count:
            total[tuple(text[:count])] += chance
            return
        context = PROMPT + text
        path = naive_lookup.aside(sampled_model(), PROMPT, context, *rules).path if text else []
        logits = oracle.next_logits(sampled_model(), context + path)
        for token, p in enumerate(oracle.warp(logits, sampling.temperature, sampling.top_k, sampling.top_p).tolist()):
            if p:
                grow([*text, *path, token], chance * p)

    grow([], 1.0)
    return total


def drawn(sampling: Sampling, strict: bool = False, draws: int = 600, count: int = 3) -> float:
    method = method_of(sampled_model(), **(STRICT if strict else RULES))
    drawn = texts(method, VOCABULARY, PROMPT, count, sampling, draws)
    assert drawn.accepted > 100 and drawn.rejected > 60
    return oracle.chi_square(drawn.counts, law(count, sampling, strict))


@pytest.mark.long
@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
@pytest.mark.parametrize(
    ("sampling", "strict"), [(Sampling(0.7, top_p=0.9), False), (HOT, False), (HOT, True)], ids=str
)
def test_samples_follow_their_law(sampling, strict):
    assert drawn(sampling, strict) > ALPHA


@pytest.mark.long
@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
def test_another_way_to_emit_is_found(monkeypatch):
    """One that never emits what fell."""

    def without(draft, logits, sampling, rng):
        below = logits.index_put((draft.rows, draft.tokens), torch.tensor(-torch.inf, dtype=logits.dtype))
        emit = torch.where(below.isfinite().any(-1), trees.draw(below, sampling, rng)[0], logits.argmax(-1))
        return trees.Tested(draft.tokens == emit[draft.rows], emit)

    monkeypatch.setattr(aasd, "tree_test", without)
    assert drawn(HOT, strict=True) < ALPHA


# Settings


def test_build_needs_a_target_only_and_room_for_a_round():
    method = build(lonely(), "aasd")
    assert not method.lossless and method.reach == 1 + 10 * 3 and method.inputs() == {}
    assert build(lonely(32), "aasd").reach == 31
    with one_line_error("rounds are of up to 31 tokens, but lonely reads 31"):
        build(lonely(31), "aasd")
