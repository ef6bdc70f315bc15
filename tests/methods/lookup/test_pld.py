"""Prompt lookup against hand-worked texts, a search without an index, and the target alone at any temperature."""

import functools
import itertools

import naive_lookup
import numpy as np
import oracle
import pytest
import torch
from builders_engine import build, lonely
from cases import mostly_long
from gates import DEVICE, GREEDY, decode, without_looking
from hypothesis import given, settings
from hypothesis import strategies as st
from law import Fit, fit
from official_cases import official_cases
from recalled import recalled
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator
from watched import reads_of_tensors

from specbench import config
from specbench.engine import accept
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.measure.prompts import encode
from specbench.methods.chains.sps import SpS
from specbench.methods.lookup.pld import Index, Settings, drafter
from specbench_extras.bench.prompts import bundled_prompts

SHIPPED = config.load_method("pld").values
SMALL = {"gamma": 4, "whole": False}
CPU = torch.device("cpu")
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def chosen(**changes) -> Settings:
    return Settings(**{**SHIPPED, **SMALL, **changes})


def rule_of(one: Settings) -> naive_lookup.Rule:
    return naive_lookup.Rule(one.ngram, one.shortest, one.gamma, one.match, one.whole)


def drafts(one: Settings, contexts: list[list[int]], prompt: int) -> list[list[int]]:
    """The drafts behind some contexts of one text, whose prompt has so many tokens."""
    drafting = drafter(one, None, CPU)
    drafting.begin(contexts[0][:prompt])
    rng = torch.Generator()
    return [drafting.propose(context, one.gamma, GREEDY, rng).tokens.tolist() for context in contexts]


# The index

TEXT = [1, 2, 3, 9, 1, 2, 4, 8, 7, 1, 2, 3, 5, 6, 2]


@pytest.mark.parametrize(
    ("changes", "context", "result"),
    [
        # 1 2 3 stands at 0 and 9. The text ends with it in the second case, and there it must not find itself.
        ({}, [*TEXT, 1, 2, 3], [9, 1, 2, 4]),
        ({}, TEXT[:12], [9, 1, 2, 4]),
        ({"match": "last"}, [*TEXT, 1, 2, 3], [5, 6, 2, 1]),
        ({"match": "last"}, TEXT[:12], [9, 1, 2, 4]),
        # 4 1 2 is nowhere, 1 2 stands at 0, 4 and 9.
        ({}, [*TEXT, 4, 1, 2], [3, 9, 1, 2]),
        ({"match": "last"}, [*TEXT, 4, 1, 2], [3, 5, 6, 2]),
        # 3 2 is nowhere; 2 stands at 1 and last at the end of TEXT, with the 3 behind it.
        ({"match": "last"}, [*TEXT, 3, 2], [3, 2]),
        ({"match": "last", "shortest": 2}, [*TEXT, 3, 2], []),
        # Of the places of 2, four tokens follow at 1, 5 and 10.
        ({"match": "last", "whole": True}, [*TEXT, 3, 2], [3, 5, 6, 2]),
        ({"match": "last", "whole": True, "gamma": 7}, [*TEXT, 3, 2], [4, 8, 7, 1, 2, 3, 5]),
        # An n-gram without γ tokens behind it gives way to a shorter one that has them.
        ({}, [5, 7, 7, 7, 7, 0, 6, 5, 0, 6, 5], [0, 6, 5]),
        ({"whole": True}, [5, 7, 7, 7, 7, 0, 6, 5, 0, 6, 5], [7, 7, 7, 7]),
        # A text may overlap itself; what follows then ends with the text.
        ({"match": "last"}, [3, 3, 3], [3]),
        ({}, [3, 3, 3], [3]),
        ({}, [3], []),
        ({}, [3, 4], []),
    ],
)
def test_drafts_by_hand(changes, context, result):
    assert drafts(chosen(**changes), [context], len(context)) == [result]
    assert drafts(chosen(**changes), [context], 1) == [result], "the text was not there from the start"


def drafted(one: Settings, text: list[int]) -> list[int]:
    lookup = drafter(one, None, CPU)
    lookup.begin(text)
    return lookup.propose(text, one.gamma, GREEDY, torch.Generator()).tokens.tolist()


def test_drafts_are_those_of_vllm():
    """60 drafts of its n-gram proposer."""
    cases = official_cases("ngram")
    assert len(cases) == 60 and sum(len(case["draft"]) > 1 for case in cases) > 20
    for case in cases:
        sizes = {name: case[name] for name in ("ngram", "shortest", "gamma")}
        assert drafted(Settings(**{**config.load_method("pld-vllm").values, **sizes}), case["text"]) == case["draft"]


def test_drafts_are_those_of_transformers():
    """With `shortest` 1: the first place with the longest n-gram, to the end of the text."""
    rng = np.random.default_rng(5)
    for length in range(2, 62):
        text, ngram, gamma = rng.integers(2 + length % 5, size=length).tolist(), 1 + length % 4, 1 + length % 11
        theirs = PromptLookupCandidateGenerator(num_output_tokens=gamma, max_matching_ngram_size=ngram, max_length=999)
        expected = theirs.get_candidates(torch.tensor([text]))[0][0, length:].tolist()
        assert drafted(chosen(ngram=ngram, gamma=gamma), text) == expected


def test_a_miss_tries_the_last_draft_again():
    contexts = [[1, 2, 3, 1], [1, 2, 3, 1, 7], [1, 2, 3, 1, 7, 8], [1, 2, 3, 1, 7, 8, 7]]
    assert drafts(chosen(), contexts, 3) == [[2, 3, 1], [], [], [8, 7]]
    assert drafts(chosen(reuse=True), contexts, 3) == [[2, 3, 1], [2, 3, 1], [2, 3, 1], [8, 7]]
    drafting = drafter(chosen(reuse=True), None, CPU)
    for prompt, result in (([1, 2, 1], [2, 1]), ([5, 6], [])):  # and nothing of it is left for the next text
        drafting.begin(prompt)
        assert drafting.propose(prompt, 4, GREEDY, torch.Generator()).tokens.tolist() == result


RULES = st.builds(
    lambda ngram, shorter, gamma, match, whole, reuse: Settings(
        ngram=ngram, shortest=max(1, ngram - shorter), gamma=gamma, match=match, whole=whole, reuse=reuse
    ),
    *(st.integers(1, 4), st.integers(0, 3), st.integers(1, 6)),
    *(st.sampled_from(("first", "last")), st.booleans(), st.booleans()),
)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=12), RULES
)
def test_drafts_equal_a_search_of_the_whole_text(text, steps, one):
    """The text grows by one to five tokens a round."""
    ends = [end for end in itertools.accumulate(steps) if end <= len(text)] or [1]
    contexts = [text[:end] for end in ends]
    assert drafts(one, contexts, ends[0]) == list(naive_lookup.drafts(contexts, rule_of(one), one.reuse))


@pytest.mark.parametrize("name", ("pld", "pld-fly"))
def test_drafts_of_real_texts_equal_a_search(pocket, name):
    spec = config.load_method(name)
    one = Settings(**spec.values)
    result = 0
    for family in ("cnndm", "gsm8k"):
        text = [i for prompt in bundled_prompts(family, 4) for i in encode(pocket, prompt)][:400]
        contexts = [text[:end] for end in range(1, len(text))]
        mine = drafts(one, contexts, 1)
        assert mine == list(naive_lookup.drafts(contexts, rule_of(one), one.reuse))
        result += sum(map(bool, mine))
    assert result > 100


def test_a_token_adds_one_entry_of_each_length_and_nothing_is_searched():
    class Counted(list):
        reads = 0

        def __getitem__(self, at):
            result = super().__getitem__(at)
            Counted.reads += len(result) if isinstance(at, slice) else 1
            return result

    index = Index(3, 1, 1, False)
    index.tokens = Counted()
    index.extend(range(5000))
    assert len(index._continuations) == 4999 + 4998 + 4997
    assert Counted.reads == 1 * 4999 + 2 * 4998 + 3 * 4997
    before = Counted.reads
    assert index.find([4000, 4001]) == 4002 and Counted.reads == before


# Greedy texts


def test_a_repetitive_text_takes_few_rounds_and_a_miss_is_a_plain_step():
    model = naive_lookup.repetitive(0, 0.0).to(DEVICE)
    tokens, rounds = decode(SpS(Session(model, "target"), drafter(chosen(), None, model.device), 4), [1, 2, 3], 120)
    assert tokens == oracle.greedy(model.cpu(), [1, 2, 3], 120)
    assert len(tokens) / len(rounds) > 3
    missed = [round_ for round_ in rounds[1:] if not round_.drafted]
    assert missed and all(len(one.tokens) == 1 for one in missed)
    assert max(round_.accepted for round_ in rounds) == 4


@pytest.mark.parametrize("sampling", (GREEDY, Sampling(1.0)), ids=("greedy", "sampled"))
def test_the_host_waits_once_a_round(monkeypatch, sampling):
    without_looking(monkeypatch)
    rounds = build(lonely(), "pld", **SMALL).rounds([1, 2, 3, 1, 2], sampling, torch.Generator(DEVICE))
    next(rounds)
    monkeypatch.setattr(accept, "on_host", lambda values: False)  # as on a GPU
    waits = reads_of_tensors(monkeypatch)
    for count in (1, 2, 3):
        next(rounds)
        assert waits == ["tolist"] * count


# Sampling

VOCABULARY, PROMPT = 4, [1, 3, 2, 0, 1, 1, 2, 3, 0, 0]


@functools.cache
def sampled_model():
    return oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)


def drawn(sampling: Sampling, draws: int = 500, count: int = 4, **changes) -> Fit:
    """How so many texts fit the target's law. Every token is followed in the prompt."""
    settings = chosen(gamma=2, **changes)
    method = SpS(recalled(sampled_model(), "target"), drafter(settings, None, torch.device(DEVICE)), settings.gamma)
    return fit(method, sampled_model(), PROMPT, count, sampling, draws)


@mostly_long(
    "sampling, changes",
    [(Sampling(1.0), {}), (Sampling(0.8, top_p=0.9), {"match": "last"}), (Sampling(1.3, top_k=3), {"reuse": True})],
    lambda sampling, changes: sampling.top_k or sampling.top_p < 1,
    ids=str,
)
def test_samples_from_the_target(sampling, changes):
    p, stood, fell = drawn(sampling, **changes)
    assert p > ALPHA and stood > 100 and fell > 100


def test_a_correction_that_may_be_the_rejected_token_is_found(monkeypatch):
    monkeypatch.setattr(accept, "residual", lambda p, q: p)
    assert drawn(Sampling(1.0))[0] < ALPHA


def test_drafts_that_stand_by_being_likely_are_found(monkeypatch):
    def likely(draft, logits, sampling, rng):
        tested = test(draft, logits, sampling, rng)
        p = probabilities(logits, sampling)[: len(draft.tokens)].gather(-1, draft.tokens[:, None])[:, 0]
        return accept.Tested(p > 0.25, tested.emit)

    test = accept.exact_test
    monkeypatch.setattr(accept, "exact_test", likely)
    assert drawn(Sampling(1.0))[0] < ALPHA


# Settings


def test_what_ships_is_spec_benchs_and_flys_lookup():
    assert SHIPPED == {"ngram": 3, "shortest": 1, "gamma": 10, "match": "first", "whole": True, "reuse": False}
    fly = config.load_method("pld-fly").values
    assert fly == {"ngram": 4, "shortest": 1, "gamma": 6, "match": "first", "whole": False, "reuse": True}
    method = build(lonely(), "pld")
    assert method.lossless and method.reach == 11 and method.inputs() == {} and method.state() is None
