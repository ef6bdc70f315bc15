"""SWIFT: a view of a model without some sublayers equals a model whose sublayers add nothing; trees by hand; the search
against exhaustive comparison; and texts that are vanilla's while the skipped sublayers change."""

import copy
import functools
import itertools
import json

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import architectures
from drafted_trees import paths
from forms import alone_steps, lists, played
from gates import DEVICE, GREEDY, decode, lively
from hypothesis import given, settings
from hypothesis import strategies as st
from law import fit
from official import swift_search as own
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from watched import Told

from specbench import config
from specbench.engine.models.layer_skip import decoder_layers, without
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Sampling, Scored
from specbench.methods.chains.vanilla import Vanilla
from specbench.methods.layers import swift as swift_module
from specbench.methods.layers import swift_search
from specbench.methods.layers.swift import SelfDrafter, Settings, Swift, branches, skipped_sublayers
from specbench.methods.layers.swift_search import CANDIDATES, LENGTHS, NOISE, Search, posterior, suggest

LAYERS = 4
COUNT = 40
SHIPPED = config.load_method("swift").values
OUTPUTS = {"attention": ("self_attn.o_proj", "self_attn.out_proj"), "mlp": ("mlp.down_proj", "fc2")}
SETS = [((), ()), ((1,), ()), ((), (2,)), ((1, 2), (1, 2)), ((1,), (2,))]


@functools.cache
def model(architecture, layers=LAYERS, vocab=96):
    """A target whose inner sublayers say little, so that it agrees with itself where some of them are skipped."""
    made = oracle.tiny(architecture, vocab=vocab, num_hidden_layers=layers)
    for layer in list(layers_of(made))[1:-1]:
        for kind in OUTPUTS:
            scale(layer, kind, 0.3)
    return made.to(DEVICE)


def layers_of(target):
    """The decoder layers, found without the code under test."""
    return target.model.decoder.layers if hasattr(target.model, "decoder") else target.model.layers


def scale(layer, kind, factor):
    for name in OUTPUTS[kind]:
        part, _, leaf = name.rpartition(".")
        projection = getattr(getattr(layer, part, None) if part else layer, leaf, None)
        if projection is not None:
            for tensor in projection.parameters():
                tensor.data.mul_(factor)


def silenced(target, attention, mlp):
    """The reference: a copy whose sublayers' output projections are zero."""
    made = copy.deepcopy(target)
    for index, layer in enumerate(layers_of(made)):
        if index in attention:
            scale(layer, "attention", 0)
        if index in mlp:
            scale(layer, "mlp", 0)
    return made


def after(target, reference, text, rest):
    """Logits after `rest`, which the reference reads behind what the whole target has cached of a text."""
    with torch.no_grad():
        cache = target(torch.tensor([text], device=target.device), use_cache=True).past_key_values
        return reference(torch.tensor([rest], device=target.device), past_key_values=cache).logits[0, -1].cpu()


def chosen(**changes) -> Settings:
    return config.validated(Settings, {**SHIPPED, **changes}, "swift")


SEARCHING = {"context_window": 6, "skip_ratio": 0.5, "max_score": 2, "bayes_interval": 5}


def swift(target, watch=None, session=None, **changes) -> Swift:
    picked = chosen(**{**SEARCHING, **changes})
    session = session or Session(target, "target", watch)
    return Swift(session, SelfDrafter(session, watch or Unwatched(), picked), picked)


# The view.


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
@pytest.mark.parametrize(("attention", "mlp"), SETS)
def test_a_view_equals_a_model_whose_sublayers_add_nothing(architecture, attention, mlp):
    target, tokens = model(architecture), oracle.prompts(1, length=30)[0]
    output = Session(without(target, attention, mlp), "draft").forward(tokens).logits
    expected = Session(silenced(target, attention, mlp), "draft").forward(tokens).logits
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)
    whole = Session(target, "target").forward(tokens).logits
    assert bool(attention or mlp) == (float((output - whole).abs().max()) > 0.1)


def test_norms_behind_the_residual_sum_stay():
    """As in OPT-350m."""
    target = oracle.tiny("opt", num_hidden_layers=3, do_layer_norm_before=False)
    tokens = oracle.prompts(1, length=9)[0]
    for attention, mlp in (((1,), ()), ((), (1,)), ((1,), (1,))):
        output = Session(without(target, attention, mlp), "draft").forward(tokens).logits
        expected = Session(silenced(target, attention, mlp), "draft").forward(tokens).logits
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)


@architectures
@settings(max_examples=15, deadline=None, derandomize=True)
@given(skip=st.sampled_from(SETS[1:]), history=alone_steps, last=lists)
def test_any_history_of_a_view_equals_a_fresh_prefill(architecture, skip, history, last):
    session = Session(without(model(architecture), *skip), "draft")
    _, mirror = played(session, history)
    assert session.tokens == mirror
    output = session.forward(last).logits
    fresh = Session(silenced(model(architecture), *skip), "draft").forward(mirror + last).logits[len(mirror) :]
    torch.testing.assert_close(output, fresh, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_a_skipped_sublayer_is_neither_computed_nor_cached(architecture):
    target = copy.deepcopy(model(architecture))
    called = []
    for index, layer in enumerate(layers_of(target)):
        for name, part in layer.named_modules():
            leaf = name.rpartition(".")[2]
            if leaf in ("k_proj", "up_proj", "fc1"):
                part.register_forward_hook(lambda *_, at=(index, leaf): called.append(at))
    session = Session(without(target, (1, 2), (1,)), "draft")
    session.forward([1, 2, 3])
    mlp = "fc1" if architecture == "opt" else "up_proj"
    assert sorted(called) == sorted([(0, "k_proj"), (3, "k_proj"), (0, mlp), (2, mlp), (3, mlp)])
    assert [layer.keys.shape[-2] for layer in session._runner._cache.layers] == [3, 3]


def snapshot(target):
    """Everything that a view could change: what each module holds, its weights, the configuration."""
    result = {}
    for name, module in target.named_modules():
        for key, value in vars(module).items():
            held = {k: id(v) for k, v in value.items()} if isinstance(value, dict) else value
            result[name, key] = held if isinstance(value, (dict, int, float, str, bool)) else id(value)
    weights = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    return result, weights, target.config.to_dict()


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_the_target_stays_as_it_is_while_views_decode(architecture):
    target = model(architecture)
    tokens = oracle.prompts(1, length=24)[0]
    alone = Session(target, "target").forward(tokens).logits
    before = snapshot(target)
    session, rows = Session(target, "target"), []
    for start in range(0, 24, 6):
        rows.append(session.forward(tokens[start : start + 6]).logits)
        view = Session(without(target, (1, 2), (2,)), "draft")
        view.forward(tokens[::-1])
        view.truncate(3)
        view.forward([1, 2], parents=[-1, -1])
        view.keep(3, [1])
    after = snapshot(target)
    torch.testing.assert_close(torch.cat(rows), alone, rtol=0, atol=1e-4)
    assert before[0] == after[0] and before[2] == after[2]
    assert all(torch.equal(before[1][name], after[1][name]) for name in before[1])


def test_a_view_shares_all_weights():
    target = model("gemma2")
    view = without(target, (1,), (2,))
    own = {p.data_ptr() for p in target.parameters()}
    assert {p.data_ptr() for p in view.parameters()} < own
    assert view.config is target.config and view.device == target.device and view.dtype == target.dtype


def test_a_target_spread_by_accelerate_has_views_too():
    accelerate = pytest.importorskip("accelerate")
    plain = copy.deepcopy(model("llama")).cpu()
    parts = {"model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.norm": "cpu", "lm_head": "cpu"}
    parts |= {f"model.layers.{i}": "cpu" for i in range(LAYERS)}
    spread = accelerate.dispatch_model(copy.deepcopy(plain), parts, force_hooks=True, main_device="cpu")
    tokens = oracle.prompts(1, length=9)[0]
    assert "forward" in vars(layers_of(spread)[1])
    output = Session(without(spread, (1, 2), (1,)), "draft").forward(tokens).logits
    expected = Session(silenced(plain, (1, 2), (1,)), "draft").forward(tokens).logits
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-9)
    again = Session(spread, "target").forward(tokens).logits
    torch.testing.assert_close(again, Session(plain, "target").forward(tokens).logits, rtol=0, atol=1e-9)


# Drafting.


class Scripted:
    """A session that says what it is told: the likeliest token's probability at each step, token ids by falling rank.

    At step s the k-th likeliest token is 20 s + k.
    """

    def __init__(self, confidences, vocabulary=600):
        self.confidences, self.vocabulary, self.fed = list(confidences), vocabulary, []

    def row(self):
        step = len(self.fed)
        p = torch.full((self.vocabulary,), 1e-15, dtype=torch.float64)
        p[20 * step] = self.confidences[step]
        rest = torch.arange(11, 0, -1, dtype=torch.float64)
        p[20 * step + 1 : 20 * step + 12] = rest / rest.sum() * (1 - self.confidences[step])
        return Scored(p.log()[None] + 3)

    def adopt(self, borrowed):
        self.fed = []

    def catch_up(self, context):
        return self.row()

    def forward(self, token):
        self.fed.append(int(token))
        return self.row()


def drafted(confidences, sampling=GREEDY, gamma=25, kind=Scripted, **changes):
    drafter = swift(model("llama"), max_opt_iter=0, **changes).drafter
    drafter.begin([1, 2, 3])
    drafter.target.restart([1, 2, 3])
    drafter.session = kind(confidences)
    return drafter.propose([1, 2, 3, 4], gamma, sampling, torch.Generator(DEVICE)), drafter.session


class Given(Scripted):
    """Says these logits, one row a step."""

    def row(self):
        return Scored(torch.tensor(self.confidences[len(self.fed)], dtype=torch.float64)[None])


def test_trees_are_those_of_its_own_code():
    """20 greedy drafts of up to 3 and up to 25 steps, some of them ended by a token that the draft is unsure of."""
    steps = []
    for case in official_cases("swift"):
        draft, _ = drafted(case["rows"], gamma=case["gamma"], kind=Given)
        nodes = paths(draft.tokens.tolist(), draft.parents)
        assert set(nodes) == {tuple(path[: end + 1]) for path in case["paths"] for end in range(len(path))}
        steps.append(len(case["rows"]))
    assert 1 in steps and max(steps) > 4


def test_a_tree_by_hand():
    """Four steps: sure, fairly sure, at the edge of going on, unsure; the likeliest of each goes on."""
    draft, session = drafted([0.96, 0.9, 0.81, 0.3])
    assert draft.tokens.tolist() == [0, 1, 2, *range(20, 25), *range(40, 45), *range(60, 70)]
    assert draft.parents == (*[-1] * 3, *[0] * 5, *[3] * 5, *[8] * 10)
    assert session.fed == [0, 20, 40] and draft.probs is None


def test_a_sampled_tree_by_hand():
    """Fewer branches; the numbers do not depend on temperature, top-k or top-p."""
    draft, session = drafted([0.96, 0.9, 0.6, 0.9], Sampling(0.2, top_k=2, top_p=0.3))
    assert draft.tokens.tolist() == [0, *range(20, 23), *range(40, 45)]
    assert draft.parents == (-1, 0, 0, 0, 1, 1, 1, 1, 1)
    assert session.fed == [0, 20]


@pytest.mark.parametrize(
    ("confidence", "count", "sampled"),
    [(0.96, 3, 1), (0.95, 5, 3), (0.81, 5, 3), (0.8, 8, 5), (0.51, 8, 5), (0.5, 10, 10), (0.01, 10, 10)],
)
def test_branches_by_confidence(confidence, count, sampled):
    assert branches(confidence, tuple(SHIPPED["branches"])) == count
    assert branches(confidence, tuple(SHIPPED["branches_sampled"])) == sampled


def test_the_draft_ends_at_gamma_and_stays_within_reach():
    for confidence in (0.99, 0.9, 0.8000001):
        draft, session = drafted([confidence] * 25)
        assert len(session.fed) == 24 and len(set(draft.parents)) == 25
        assert len(draft.tokens) < swift(model("llama")).reach
    assert len(drafted([0.9] * 3, gamma=1)[0].tokens) == 5
    # 24 steps of 8 (a confidence of exactly 0.8 goes on), one of 10, the last committed token.
    assert chosen().reach() == 24 * 8 + 10 + 1
    assert chosen(gamma=2, stop_threshold=0, branches=[1, 1, 1, 1], branches_sampled=[1, 1, 2, 7]).reach() == 7 + 7 + 1


def test_a_small_vocabulary_is_offered_whole():
    drafter = swift(model("llama", vocab=8), gamma=2).drafter
    drafter.begin([1, 2, 3])
    drafter.target.restart([1, 2, 3])
    draft = drafter.propose([1, 2, 3, 4], 2, GREEDY, torch.Generator(DEVICE))
    assert len(draft.tokens) <= 16 and draft.tokens.max() < 8


def test_one_number_a_step_comes_to_the_host():
    class Copies(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += "_local_scalar_dense" in str(function)
            return function(*args, **(kwargs or {}))

    drafter = swift(model("llama"), stop_threshold=0, max_opt_iter=0).drafter
    drafter.begin([1, 2, 3])
    drafter.target.restart([1, 2, 3])
    with Copies() as copies:
        draft = drafter.propose([1, 2, 3, 4], 6, GREEDY, torch.Generator(DEVICE))
    assert copies.count == len(set(draft.parents)) == 6


# Texts.


@pytest.mark.long
@pytest.mark.parametrize("length", (1, 3, 15, 17, 50))
@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_greedy_texts_are_vanillas_while_the_skipped_sublayers_change(monkeypatch, architecture, length):
    """With the scores as they are, and with scores that let every try take over, in trees of several levels."""
    prompt, text = lively(model(architecture), length, COUNT)
    assert decode(swift(model(architecture)), prompt, COUNT)[0] == text
    better = itertools.count(1)
    score = swift_module.agreement
    monkeypatch.setattr(swift_module, "agreement", lambda *what: score(*what) + next(better))
    method = swift(model(architecture), stop_threshold=0, gamma=4, max_score=1000)
    result, rounds = decode(method, prompt, COUNT)
    assert result == text
    tried = [skip for skip, _ in method.drafter.search.tried]
    assert len(tried) >= 5 and len(set(tried)) >= 3 and method.drafter.search.best == tried[-1]
    paths = [r.verdict.path for r in rounds[1:]]
    assert max(map(len, paths)) >= 2 and len(set(paths)) >= 3  # several levels stand, and leaves


def test_what_is_drafted_is_what_the_view_says():
    """Each level, recomputed by the reference of the sublayers in use, after what the target has cached of the text."""
    prompt, _ = lively(model("gemma2"), 15, COUNT)
    method = swift(model("gemma2"), stop_threshold=0, gamma=3, max_opt_iter=0)
    reference = silenced(model("gemma2"), (1,), (1,))
    known = list(prompt)
    rounds = decode(method, prompt, 20)[1]
    known += rounds[0].tokens
    for round_ in rounds[1:4]:
        read = known[-1:]
        tokens, parents = round_.verdict.drafted, round_.verdict.parents
        parent = -1
        for _ in range(3):
            logits = after(model("gemma2"), reference, known[:-1], read)
            level = [i for i, p in enumerate(parents) if p == parent]
            order = logits.argsort(descending=True).tolist()
            assert [tokens[i] for i in level] == order[: branches(float(logits.softmax(-1).max()), (3, 5, 8, 10))]
            read.append(order[0])
            parent = level[0]
        known += round_.tokens


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_k=5, top_p=0.7)), ids=str)
def test_sampled_texts_follow_the_target(sampling):
    target = oracle.tiny("llama", vocab=8, num_hidden_layers=3).to(DEVICE)
    changes = {"stop_threshold": 0, "gamma": 2, "branches_sampled": [1, 2, 2, 3], "max_opt_iter": 0}
    method = swift(target, session=recalled(target, "target"), **changes)
    assert fit(method, target, [1, 5, 2], 2, sampling, 1500).p > 1e-4
    assert len({step.verdict.path for step in decode(method, [1, 5, 2], 40, sampling)[1][1:]}) >= 3


def test_the_search_draws_nothing_from_the_texts_generator():
    """A sampled text is the same whether or not another text's rounds were searched before: the seed alone decides."""
    prompt, _ = lively(model("qwen2"), 3, COUNT)
    one, other = swift(model("qwen2")), swift(model("qwen2"))
    texts = [decode(m, prompt, 30, Sampling(1.0), seed=3)[0] for m in (one, other)]
    assert texts[0] == texts[1] and one.state() == other.state() != []
    again = swift(model("qwen2"))
    decode(again, prompt, 30, Sampling(1.0), seed=4)
    assert [skip for skip, _ in again.state()] != [skip for skip, _ in one.state()]


def test_a_pairs_draft_is_ignored(pocket):
    alone = Pair("alone", {"target": pocket.models["target"]}, pocket.tokenizer)
    prompt = pocket.tokenizer("Tom has 3 apples and buys 4 more.")["input_ids"]
    texts = [decode(build(pair, "swift", context_window=5), prompt, 16) for pair in (pocket, alone)]
    assert texts[0] == texts[1]
    assert texts[0][0] == decode(Vanilla(pocket.session("target")), prompt, 16)[0]


# The search.


RNG = torch.Generator(DEVICE)


def weights_of_its_own_code(seed):
    """A tiny Llama as in tests/official/swift_search.py: inner layers say less than the others."""
    made = LlamaForCausalLM(LlamaConfig(**own.CONFIG)).double().eval()
    made.load_state_dict(own.weights({name: tensor.shape for name, tensor in made.state_dict().items()}, seed))
    return made.to(DEVICE)


@pytest.mark.parametrize("number", (1, *(pytest.param(n, marks=pytest.mark.long) for n in (0, 2, 3, 4, 5))))
def test_the_search_is_that_of_its_own_code(monkeypatch, number):
    """Three texts in a row: rounds, when a set is tried and of which kind, its score, the best one, the search's end.

    The sets themselves are those that the official code drew: which random numbers make them is another matter.
    """
    case = official_cases("swift_search")["texts"][number]
    limits, drawn = case["limits"], []
    monkeypatch.setattr(swift_search, "random_set", lambda *_: given(False))
    monkeypatch.setattr(swift_search, "suggest", lambda *_: given(True))

    def given(bayes):
        skip = tuple(waiting.pop(0))
        drawn.append((skip, bayes))
        return skip

    target = weights_of_its_own_code(case["seed"])
    method = swift(target, **{"stop_threshold": 0.8, "gamma": 25, "branches": (3, 5, 8, 10), **limits})
    for text in case["texts"]:
        before, waiting = len(drawn), [one["skip"] for one in text["tries"]]
        # A round of its own is the first token here, there it comes with the first draft; a try follows the last round.
        count = len(text["rounds"])
        rounds = [one.tokens for one in itertools.islice(method.rounds(text["prompt"], GREEDY, RNG), count + 2)]
        tokens = [token for one in rounds[: count + 1] for token in one]
        assert tokens[:-1] == text["text"]
        assert list(map(len, rounds[1 : count + 1])) == text["rounds"]
        made = method.drafter.search.tried[before:]
        assert [skip for skip, _ in made] == [tuple(one["skip"]) for one in text["tries"]]
        assert [bayes for _, bayes in drawn[before:]] == [one["bayes"] for one in text["tries"]]
        assert [score for _, score in made] == pytest.approx([one["score"] for one in text["tries"]])
        assert list(method.drafter.search.best) == text["best"]
        assert method.drafter.search.ended == text["ended"]


def agreeing(target, attention, mlp, prompt, text, window):
    """The share of `window` tokens after a text's first that the reference takes, each from a forward of its own."""
    reference = silenced(target, attention, mlp)
    known = [oracle.best(after(target, reference, prompt, text[: i + 1])) for i in range(window)]
    return sum(a == b for a, b in zip(known, text[1:], strict=False)) / window


def test_a_try_is_scored_on_the_first_tokens_of_the_text_and_kept_if_better():
    target, (prompt, text) = model("llama"), lively(model("llama"), 15, COUNT)
    method = swift(target, bayes_interval=0)
    decode(method, prompt, COUNT)
    names = {(a, b): None for a, b in itertools.combinations(range(4), 2)}
    for a, b in names:  # 0, 1: attention of layers 1, 2; 2, 3: their MLPs
        attention, mlp = [i + 1 for i in (a, b) if i < 2], [i - 1 for i in (a, b) if i >= 2]
        names[a, b] = agreeing(target, attention, mlp, prompt, text, 6)
    tried = method.drafter.search.tried
    assert len({skip for skip, _ in tried}) >= 3 and len(set(names.values())) >= 2
    assert all(score == pytest.approx(names[skip]) for skip, score in tried)
    # On one text every set that was tried is compared fairly: with enough tries the best of all is found.
    for seed in range(4):
        decode(method, prompt, COUNT, seed=seed)
    assert {skip for skip, _ in method.drafter.search.tried} == set(names)
    assert names[method.drafter.search.best] == max(names.values())


def test_when_a_set_is_tried():
    """Once more than window + 1 tokens are verified, every `opt_interval` rounds from the second draft on.

    The forwards are the draft's.
    """

    prompt, _ = lively(model("opt"), 15, COUNT)
    met = set()
    for interval, window in itertools.product((1, 3), (6, 7, 8, 9)):
        watch = Told()
        one_by_one = {"branches": [1, 1, 1, 1], "gamma": 1}
        method = swift(model("opt"), watch, opt_interval=interval, context_window=window, **one_by_one)
        tokens, expected, tries = 0, 0, []
        for number, one in enumerate(itertools.islice(method.rounds(prompt, GREEDY, torch.Generator(DEVICE)), 20)):
            if number:
                expected += tokens - 1 > window + 1 and number > 1 and (number - 2) % interval == 0
                met |= {tokens - 1 - window}
            tokens += len(one.tokens)
            tries.append(len(method.drafter.search.tried))
            assert tries[-1] == expected
        assert expected >= 3
        # A try reads the first token of the answer and, but for the last, those that it is scored on.
        assert watch.forwards.count(("draft", window, 15)) == expected
        assert {role for role, *_ in watch.forwards} == {"target", "draft"}
    assert {1, 2} <= met


def additive(seed, sublayers):
    gains = np.random.default_rng(seed).random(sublayers)
    return lambda skip: 1 - float(gains[list(skip)].sum()) / sublayers


def searched(score, tries, seed, **limits):
    search = Search((0, 1, 2, 3, 4), 12, 5, **{"max_score": 9, "max_tries": 10**6, **limits})
    for number in range(tries):
        if not search.ended:
            skip = search.propose(np.random.default_rng([seed, number]))
            assert len(skip) == 5 and list(skip) == sorted(set(skip)) and set(skip) <= set(range(12))
            search.learn(skip, score(skip))
    return search


@pytest.mark.long
def test_the_gaussian_process_finds_the_best_of_all_sets_where_chance_does_not():
    """792 sets, 60 tries: chance finds the best one in 7 % of the searches."""
    result = {1: 0, 0: 0}
    for seed, interval in itertools.product(range(6), result):
        score = additive(seed, 12)
        best = max(itertools.combinations(range(12), 5), key=score)
        result[interval] += searched(score, 60, seed, bayes_interval=interval).best == best
    assert result[1] >= 5 and result[0] <= 2


@pytest.mark.long
def test_the_search_finds_as_good_sets_as_its_own_code():
    """20 sums of gains, 60 tries each, every second one by the Gaussian process."""
    cases = official_cases("swift_search")["objectives"]
    for number, case in enumerate(cases):
        found = searched(lambda skip, case=case: sum(case["gains"][i] for i in skip) / 12, 60, number, bayes_interval=2)
        assert 12 * found.score >= case["best"] - 1e-3
    assert len(cases) == 20


def test_chance_alone_finds_the_best_of_a_small_space():
    score = additive(3, 12)
    assert searched(score, 8000, 0, bayes_interval=0, max_stale=10**6).score == max(
        map(score, itertools.combinations(range(12), 5))
    )


def test_the_posterior_is_that_of_another_implementation():
    gaussian = pytest.importorskip("sklearn.gaussian_process")
    random = np.random.default_rng(0)
    seen, asked = ((random.random((n, 9)) < 0.5).astype(float) for n in (30, 20))
    scores = seen @ random.random(9) + 0.1 * random.random(30)
    fits = []
    for length in LENGTHS:
        kernel = gaussian.kernels.Matern(length_scale=length, nu=2.5)
        regressor = gaussian.GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None, normalize_y=True)
        fits.append(regressor.fit(seen, scores))
    theirs = max(fits, key=lambda fit: fit.log_marginal_likelihood_value_)
    assert theirs.kernel_.length_scale not in (LENGTHS[0], LENGTHS[-1])
    mean, deviation = theirs.predict(asked, return_std=True)
    ours = posterior(seen, scores, asked)
    np.testing.assert_allclose(ours[0], mean, rtol=1e-8)
    np.testing.assert_allclose(ours[1], deviation, rtol=1e-6, atol=1e-9)


def test_a_suggestion_is_new_while_there_is_anything_new():
    sets = list(itertools.combinations(range(4), 2))
    random = np.random.default_rng(0)
    tried = [(skip, 0.5) for skip in sets[:5]]
    assert suggest(tried, sets[0], 4, 2.5, random) == sets[5]
    assert suggest([*tried, (sets[5], 0.5)], sets[0], 4, 2.5, random) in sets
    assert suggest([((0, 1), 0.5)], (0, 1, 2), 4, 2.5, random) in sets[1:]  # the first set may be larger
    assert CANDIDATES >= 100


def test_a_suggestion_weighs_the_mean_against_the_unknown():
    """Near the best set if only the mean counts, far from all that was tried if only the deviation does."""
    tried = [((0, 1, 2, 3, 4), 0.9), ((0, 1, 2, 3, 5), 0.8), ((0, 1, 2, 3, 6), 0.7), ((0, 1, 2, 4, 5), 0.8)]
    common = []
    for kappa in (0, 1000):
        result = suggest(tried, tried[0][0], 12, kappa, np.random.default_rng(0))
        common.append(max(len({*result} & {*skip}) for skip, _ in tried))
    assert common[0] == 4 and common[1] <= 2


@pytest.mark.parametrize(
    ("limits", "tries"),
    [
        ({"max_score": 0.5}, 6),
        ({"max_score": 0.45}, 3),
        ({"max_stale": 1}, 5),
        ({"max_tries": 4}, 5),
        ({"max_tries": 0}, 0),
    ],
)
def test_the_search_ends(limits, tries):
    """Where a limit is exceeded, not where it is reached (swift_optimization in model/swift/utils.py of its code)."""
    search = Search((0,), 4, 1, **{"max_score": 2, **limits})
    for score in (0.1, 0.4, 0.5, 0.5, 0.3, 0.9):
        if not search.ended:
            search.learn((1,), score)
    assert search.ended and len(search.tried) == tries


def test_every_so_many_tries_are_bayesian(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "specbench.methods.layers.swift_search.suggest", lambda tried, *_: asked.append(len(tried)) or (0,)
    )
    search = Search((0,), 4, 1, bayes_interval=25, max_score=2)
    for number in range(60):
        search.learn(search.propose(np.random.default_rng(number)), 0.1)
    assert asked == [24, 49]


def test_a_resumed_method_goes_on_as_if_nothing_had_happened():
    texts = oracle.prompts(3, length=12, seed=4)
    for sampling in (GREEDY, Sampling(0.9)):
        method, resumed = (swift(model("qwen3"), opt_interval=3) for _ in range(2))
        for prompt in texts[:2]:
            decode(method, prompt, 30, sampling)
        state = json.loads(json.dumps(method.state()))
        assert state == method.state() and len(state) >= 3
        expected = decode(method, texts[2], 30, sampling, seed=7)
        resumed.restore(state)
        assert decode(resumed, texts[2], 30, sampling, seed=7) == expected
        assert resumed.state() == method.state() != state
        assert vars(resumed.drafter.search) == vars(method.drafter.search)
        method.reset("another task")
        new = swift(model("qwen3"), opt_interval=3)
        assert method.state() == [] and vars(method.drafter.search) == vars(new.drafter.search)
        fresh = decode(new, texts[2], 30, sampling, seed=7)
        assert decode(method, texts[2], 30, sampling, seed=7) == fresh


# What cannot be done.


def test_what_swift_cannot_do_is_one_clear_line():
    def built(target, **changes):
        return build(Pair("some pair", {"target": target}, None), "swift", **changes)

    three = oracle.tiny("llama", num_hidden_layers=3)
    sizes = {"vocab_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 32}
    parallel, other = (  # attention and MLP side by side, behind one norm; and no list of layers at all
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)) for kind in ("phi", "gpt2")
    )
    for target, words in (
        (oracle.tiny("llama"), "keeps the first and the last layer, and some pair has 2; choose"),
        (three, "skip_ratio 0.45 skips none of the 2 sublayers .* set it to 0.5 or more"),
        (parallel, r"PhiForCausalLM: its layers \(PhiDecoderLayer\) have an unknown form; choose"),
        (other, "no list of decoder layers"),
    ):
        with one_line_error(match=words):
            built(target)
    built(three, skip_ratio=0.5)


def test_first_and_last_layer_are_never_skipped():
    for layers in (3, 4, 7):
        target = oracle.tiny("llama", num_hidden_layers=layers)
        drafter = swift(target, skip_ratio=1.0).drafter
        assert len(drafter.search.best) == 2 * len(range(1, layers - 1, 2))
        view = drafter.view(tuple(range(2 * (layers - 2)))).model
        own = [next(layer.self_attn.parameters(), None) is not None for layer in layers_of(view)]
        assert own == [True, *[False] * (layers - 2), True]
    assert [skipped_sublayers(layers, 0.45) for layers in (3, 4, 12, 40)] == [0, 1, 9, 34]
    assert skipped_sublayers(52, 0.57) == 57  # not 56, as 100 * 0.57 rounds
    assert len(decoder_layers(target)) == 7
