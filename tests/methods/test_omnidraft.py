"""OmniDraft: the law of merged drafts enumerated, what is merged, what is learned, and texts that stay the target's."""

import copy
import functools
import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from enumerated import Laws, finish, target_law
from gates import DEVICE, decode
from law import fit
from tokenizers import Tokenizer
from tokenizers import models as kinds
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast
from two_tokenizers import KINDS, SIZES, TEXTS, byte_level, translation

from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.lengths import DraftToken, Lengths
from specbench.engine.models.pair import Pair
from specbench.engine.translate import Reading, Translation
from specbench.engine.types import Sampling, Scored
from specbench.methods import omnidraft, omnidraft_merge
from specbench.methods.omnidraft import AcceptanceHead, HybridLearner, MergingDrafter, Settings
from specbench.methods.omnidraft_merge import Merging, Spellings, greedy_chances, weighed_moves

EXACT = 1e-12
ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it

# The law of a round, enumerated. The target's tokens are a b c, then ab abc bb, one that the draft cannot spell, yc and
# cay; the draft's are a b c y. So a, b and ab may go on, c may but then not end as ca, and y must go on.
SPELLED = ((0,), (1,), (2,), (0, 1), (0, 1, 2), (1, 1), (0,), (3, 2), (2, 0, 3))
V, OWN, COUNT = len(SPELLED), 4, 3


def small(added=(3, 4, 5, 6, 7, 8)) -> Spellings:
    told = SimpleNamespace(size=V, size_draft=OWN, shared={0: 0, 1: 1, 2: 2}, spell=lambda token: SPELLED[token])
    spellings = Spellings(told, torch.device("cpu"))
    for token in added:
        spellings.add(token)
    return spellings


def rows_of(size: int, seed: int):
    """A random distribution after every text, made where it is asked for."""
    return functools.cache(lambda text: np.random.default_rng((seed, 7, *text)).dirichlet(np.full(size, 0.7)))


class Told:
    """A draft model that says the rows of a table."""

    device = torch.device("cpu")

    def __init__(self, rows) -> None:
        self.rows, self.inner = rows, self

    def read(self, context, hidden=()) -> Scored:
        self.text = [own for token in context for own in SPELLED[token]]
        return self.said()

    def forward(self, token, hidden=()) -> Scored:
        self.text.append(int(token))
        return self.said()

    def said(self) -> Scored:
        return Scored(torch.tensor(self.rows(tuple(self.text))).log()[None])


class Branch(Exception):
    """A draw that the script does not have."""


def proposals(drafter: MergingDrafter, gamma: int, sampling: Sampling, monkeypatch):
    """Every draft that may be drawn after the text `a`, with its chance."""
    scripts = [((), 1.0)]
    while scripts:
        script, weight = scripts.pop()
        left = list(script)

        def scripted(logits, sampling, rng, left=left):
            probs = torch.tensor(np.array([oracle.warp(logits[0], sampling.temperature, sampling.top_k).numpy()]))
            if not left:
                raise Branch(probs[0])
            return torch.tensor([left.pop(0)]), probs

        monkeypatch.setattr(omnidraft, "draw", scripted)
        try:
            yield drafter.propose([0], gamma, sampling, None), weight
        except Branch as more:
            scripts += [((*script, i), weight * float(p)) for i, p in enumerate(more.args[0]) if p]


def law_of_a_round(monkeypatch, sampling: Sampling, gamma: int, seed: int, spellings=None) -> tuple[float, float]:
    """How far the law of a round and the target after it is from the target's; the chance of a merged token in it."""
    spellings = spellings or small()
    says = rows_of(V, seed)
    laws_p: Laws = {}
    for length in range(COUNT):
        for text in itertools.product(range(V), repeat=length):
            laws_p[text] = oracle.warp(np.log(says(text)), sampling.temperature, sampling.top_k).numpy()
    drafter = MergingDrafter(Told(rows_of(OWN, seed + 50)), spellings, Lengths())
    law, merged = np.zeros((V,) * COUNT), 0.0
    for draft, weight in proposals(drafter, gamma, sampling, monkeypatch):
        tokens = tuple(draft.tokens.tolist())
        assert sum(len(SPELLED[token]) for token in tokens) >= gamma
        merged += weight * any(len(SPELLED[token]) > 1 for token in tokens)
        for place, (token, moves) in enumerate(zip(tokens[:COUNT], draft.moves, strict=False)):
            for chance, rest in weighed_moves(spellings, moves, torch.tensor(laws_p[tokens[:place]])):
                emitted = (rest / rest.sum()).numpy() * weight * (1 - float(chance))
                for other in np.flatnonzero(emitted):
                    finish(laws_p, law, (*tokens[:place], int(other)), emitted[other], COUNT)
                weight *= float(chance)
                if not weight:
                    break
            assert token == tokens[place]
        finish(laws_p, law, tokens[:COUNT], weight, COUNT)
    return float(np.abs(law - target_law(laws_p, V, COUNT)).sum() / 2), merged


@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.5), Sampling(1.3, top_k=3)), ids=str)
@pytest.mark.parametrize("gamma", (1, 3))
def test_merged_drafts_are_lossless(monkeypatch, gamma, sampling):
    distance, merged = law_of_a_round(monkeypatch, sampling, gamma, 0)
    assert distance < EXACT and (merged > 0.1 or gamma == 1)


def forgotten(law, children):
    """Wrong: the law of the draft's next token, as if nothing were known of it."""
    return law


def unmerged(law, children):
    """Wrong: the first token of a merged one keeps all of its mass."""
    return None if law is None else torch.cat([law[children], law.new_ones(1)])


@pytest.mark.parametrize(("name", "wrong"), (("without", forgotten), ("options_law", unmerged)))
def test_a_forgotten_merge_is_found(monkeypatch, name, wrong):
    monkeypatch.setattr(omnidraft_merge, name, wrong)
    assert law_of_a_round(monkeypatch, Sampling(1.0), 3, 0)[0] > 1e-3


def test_a_worked_merge():
    """q(a) = 0.6 and q(b | a) = 0.5: ab has 0.3 and a has 0.3; what follows a is not b, so c has 0.2 / 0.5."""
    first, after = torch.tensor([[[0.6, 0.4, 0.0, 0.0]], [[0.1, 0.5, 0.2, 0.2]]], dtype=torch.float64)
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    assert not merging.tokens and merging.ends
    merging.take(2, after)
    assert merging.tokens == [0, 2]
    (begun, ended), (following,) = merging.moves
    assert float(begun.law[0]) == 0.6 and ended.law.tolist() == [0.5, 0.5] and ended.ends and not begun.ends
    assert following.law.tolist() == pytest.approx([0.2, 0, 0.4, 0.4])
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    merging.take(1, after)
    assert merging.tokens == [3] and [move.chosen for move in merging.moves[0]] == [0, 0]
    merging = Merging(small(added=(3,)))
    merging.take(0, first)
    merging.end()
    assert merging.tokens == [0] and merging.moves[0][1].law.tolist() == [0, 1], "that it ends is certain"


def test_the_longest_run_is_merged_and_others_may_not_follow():
    spellings = small()
    assert spellings.added == [3, 4, 5, 7, 8], "nothing spells the one that looks like a"
    zeros = torch.zeros(1, OWN)
    open_a, open_y = spellings.root.children[0], spellings.root.children[3]
    assert spellings.allowed(zeros, spellings.root).tolist() == [[0, 0, 0, 0]]
    plain = small(added=())
    assert plain.allowed(zeros, plain.root).tolist() == [[0, 0, 0, -math.inf]]
    assert spellings.allowed(zeros, open_a).tolist() == [[0, 0, 0, 0]]
    assert spellings.allowed(zeros, open_y).tolist() == [[-math.inf, -math.inf, 0, -math.inf]]
    merging = Merging(spellings)
    for own in (0, 1, 2, 1, 1, 3, 2, 2):
        merging.take(own, None)
    assert merging.tokens == [4, 5, 7] and merging.ends
    merging.take(0, None)
    assert not merging.ends, "ca is no token"
    merging.take(3, None)
    assert merging.tokens == [4, 5, 7, 8]


def test_what_the_target_agrees_with():
    spellings = small()
    assert greedy_chances(spellings, [1, 4, 2], 3, 0) == [1] * 5
    assert greedy_chances(spellings, [1, 4, 2], 1, 3) == [1, 1, 1, 0], "ab, not abc"
    assert greedy_chances(spellings, [3], 0, 4) == [1, 0], "abc, not ab"
    assert greedy_chances(spellings, [3], 0, 6) == greedy_chances(spellings, [3], 0, 2) == [0]


# The head


def test_a_step_of_the_head_by_hand():
    """q = 0.8 and 0.5, so the inputs are (1, ln 4, 0) and (1, 0, ln 2); rejections weigh 2."""
    head = AcceptanceHead(0.55, rate=0.1, rejection_weight=2.0)
    assert head.most(5, 9) == 5
    ended = [
        head.enough(i, DraftToken(torch.tensor([0]), torch.zeros(1, 2), torch.tensor([[q, 1 - q]]), None))
        for i, q in ((1, 0.8), (2, 0.5))
    ]
    assert ended == [False, True] and head.signals == pytest.approx([0.8, 0.5])
    head.learn([1.0, 0.25])
    first = [0.02, 1 + 0.02 * math.log(4), 0.0]
    accepted = 1 / (1 + math.exp(-0.02))
    slope = 2 * 0.75 * accepted - 0.25 * (1 - accepted)
    expected = [first[0] - 0.1 * slope, first[1], -0.1 * slope * math.log(2)]
    assert head.state() == pytest.approx(expected)
    other = AcceptanceHead(0.55, 0.1, 2.0)
    other.restore(json.loads(json.dumps(head.state())))
    assert other.weights == head.weights
    head.reset()
    assert head.weights == [0, 1, 0]


# Whole texts


@functools.cache
def model(architecture: str, seed: int, size: int, **sizes):
    return oracle.tiny(architecture, seed=seed, vocab=size, **sizes).to(DEVICE)


def two(direction=("bytes", "pieces"), architecture: str = "llama", **models) -> Pair:
    target, draft = (model(architecture, seed, SIZES[kind]) for seed, kind in zip((1, 2), direction, strict=True))
    given = {"target": target, "draft": draft} | models
    return Pair("two", given, KINDS[direction[0]](), translations={"draft": translation(*direction)})


DIRECTIONS = (("bytes", "pieces"), ("pieces", "bytes"))


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=[] if a == "llama" else pytest.mark.long) for a in oracle.ARCHITECTURES]
)
def test_greedy_texts_are_the_targets(architecture, direction):
    """While cache, head and draft learn; of random models, so that tokens that the draft lacks come all the time."""
    pair = two(direction, architecture)
    prompt = [token for (token,) in oracle.prompts(20, 1, SIZES[direction[0]], 3)]
    expected = oracle.greedy(copy.deepcopy(pair.models["target"]).cpu(), prompt, 30)
    changes = {"interval": 1, "length": "adaptive", "learning_rate": 0.01}
    methods = {ngrams: build(pair, "omnidraft", ngrams=ngrams, **changes) for ngrams in ("online", "all", "none")}
    for name, method in methods.items():
        for _ in range(2):
            assert serve(method, prompt, 30) == expected, name
    shared = translation(*direction).shared
    assert len(methods["online"].state()["ngrams"]) < len(methods["all"].state()["ngrams"])
    assert not methods["none"].state()["ngrams"] and not shared.keys() & set(methods["all"].state()["ngrams"])
    learned = set(methods["online"].state()["ngrams"])
    assert learned <= set(expected) - shared.keys() and methods["online"].learner.hash
    assert learned or direction == DIRECTIONS[1], "pieces are mostly bytes, too"


def serve(method, prompt, count: int, sampling=Sampling(), seed: int = 0):  # noqa: B008
    """Decode a text to its end, from which the method learns; returns its tokens."""
    ending = Ending(Limits(count, frozenset(), ()), str)
    for _ in decode_text(method, list(prompt), sampling, torch.Generator(DEVICE).manual_seed(seed), ending):
        pass
    return ending.tokens


def tokenizer(vocabulary: str, merges=()) -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate(vocabulary.split())}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(kinds.BPE(words, list(merges))), eos_token="a")


def letters() -> Pair:
    """A target that has ab and abb where the draft has letters only."""
    merges = [("a", "b"), ("ab", "b")]
    told = Translation(tokenizer("a b c d ab abb", merges), tokenizer("c b a e d"), (6, 5))
    assert told.shared == {0: 2, 1: 1, 2: 0, 3: 4} and told.spell(5) == (2, 1, 1)
    return Pair(
        "letters", {"target": model("llama", 1, 6), "draft": model("llama", 2, 5)}, None, translations={"draft": told}
    )


@pytest.mark.long
def test_samples_follow_the_target():
    method = build(letters(), "omnidraft", gamma=3, ngrams="all", interval=0, length="adaptive")
    found = fit(method, letters().models["target"], [1, 5, 2], 3, Sampling(2.0, top_p=0.95), 1500)
    assert found.p > ALPHA and found.accepted > 300 and found.rejected > 300


@pytest.mark.long
def test_samples_of_a_forgotten_merge_do_not(monkeypatch):
    monkeypatch.setattr(omnidraft_merge, "without", forgotten)
    method = build(letters(), "omnidraft", gamma=3, ngrams="all", interval=0)
    assert fit(method, letters().models["target"], [1, 5, 2], 3, Sampling(2.0), 4000).p < ALPHA


@pytest.mark.skipif(DEVICE != "cpu", reason="the bundled pair is on the CPU")
def test_one_tokenizer_is_plain_speculative_sampling(pocket):
    """Round by round, with nothing to merge."""
    prompt = pocket.tokenizer(TEXTS[0])["input_ids"]
    mine, theirs = (
        decode(build(pocket, name, gamma=4, **changes), prompt, 16, device="cpu")
        for name, changes in (("omnidraft", {"interval": 0}), ("sps", {}))
    )
    assert [step.tokens for step in mine[1]] == [step.tokens for step in theirs[1]]
    assert sum(step.accepted for step in mine[1]) > 8


# What the draft learns


def texts_of(count: int) -> list[list[int]]:
    return [byte_level()(text, add_special_tokens=False)["input_ids"][:40] for text in TEXTS[:count]]


def test_a_loss_is_that_of_another_computation():
    pair, told = two(), translation()
    settings = Settings(**VALUES | {"interval": 1, "ngram_weight": 0.2})
    target, draft = pair.models["target"], copy.deepcopy(pair.models["draft"])
    learner = HybridLearner(draft, target, settings, told)
    tokens = texts_of(1)[0]
    places = learner.places(tokens, 5)
    reading = Reading(told)
    reading.read(tokens, 0)
    shared = list(told.shared)
    own, expected, merged = [told.shared[token] for token in shared], 0.0, 0
    for place in places:
        with torch.no_grad():
            start = reading.ends[place - 1]
            if tokens[place] in told.shared:
                p = target(torch.tensor([tokens[:place]], device=DEVICE)).logits[0, -1][shared].log_softmax(-1)
                q = draft(torch.tensor([reading.ids[:start]], device=DEVICE)).logits[0, -1][own].log_softmax(-1)
                expected += float(F.kl_div(p, q, log_target=True, reduction="sum"))
                continue
            for at, token in enumerate(told.spell(tokens[place]), start):
                q = draft(torch.tensor([reading.ids[:at]], device=DEVICE)).logits[0, -1].log_softmax(-1)
                expected -= 0.2 * float(q[token])
            merged += 1
    assert merged > 3 and len(places) > merged + 3
    with torch.inference_mode():
        told.tables(torch.device(DEVICE))
    assert float(learner.loss(tokens, places)) == pytest.approx(expected, abs=1e-6)
    learner.texts = [(tokens, places)]
    learner.update()
    assert float(learner.loss(tokens, places)) < expected and learner.hash


VALUES = {
    "gamma": 3,
    "ngrams": "online",
    "interval": 2,
    "ngram_weight": 0.2,
    "learning_rate": 0.01,
    "weight_decay": 0,
    "clip": 1.0,
    "count_updates": True,
    "length": "fixed",
    "threshold": 0.7,
    "head_rate": 0.1,
    "rejection_weight": 2.0,
}


@pytest.mark.parametrize("direction", [DIRECTIONS[0], pytest.param(DIRECTIONS[1], marks=pytest.mark.long)], ids=str)
def test_a_state_is_taken_up_bit_by_bit_from_anywhere(direction):
    changes = VALUES | {"length": "adaptive"}
    prompts = oracle.prompts(5, length=6, vocab=SIZES[direction[0]])
    whole, states = build(two(direction), "omnidraft", **changes), []
    for prompt in prompts:
        states.append(json.loads(json.dumps(whole.state())))
        serve(whole, prompt, 12)
    assert states[0] == {"ngrams": [], "head": [0, 1, 0], "draft": {"texts": [], "weights": ""}}
    other = build(two(direction), "omnidraft", **changes)
    for start in (3, 1, 4):
        other.restore(states[start])
        assert other.state() == states[start]
        for prompt in prompts[start:]:
            serve(other, prompt, 12)
        assert other.state() == whole.state()
    other.reset("another")
    assert other.state() == states[0]


def test_what_the_end_of_a_text_cut_off_is_not_learned():
    pair = two()
    prompt = oracle.prompts(1, length=6, vocab=SIZES["bytes"])[0]
    text = oracle.greedy(copy.deepcopy(pair.models["target"]).cpu(), prompt, 40)
    lacking = set(text) - translation().shared.keys()
    for count in range(3, 12):
        method = build(pair, "omnidraft", **VALUES)
        serve(method, prompt, count)
        assert set(method.state()["ngrams"]) == lacking & set(text[:count])
        assert method.learner.texts[0][0] == [*prompt, *text[:count]]
