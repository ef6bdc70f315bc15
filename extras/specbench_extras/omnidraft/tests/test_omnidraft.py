"""OmniDraft: texts that stay the target's while cache, head and draft learn, and what they learn."""

import copy
import functools
import json
import math

import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, decode
from law import fit
from refusals import one_line_error
from tokenizers import Tokenizer
from tokenizers import models as kinds
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast
from two_tokenizers import KINDS, SIZES, TEXTS, byte_level, translation

from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.lengths import DraftToken
from specbench.engine.models.pair import Pair
from specbench.engine.translate import Reading, Translation
from specbench.engine.types import Sampling
from specbench_extras.omnidraft.omnidraft import AcceptanceHead, HybridLearner, Settings

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it

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
    translation = Translation(tokenizer("a b c d ab abb", merges), tokenizer("c b a e d"), (6, 5))
    assert translation.shared == {0: 2, 1: 1, 2: 0, 3: 4} and translation.spell(5) == (2, 1, 1)
    return Pair(
        "letters",
        {"target": model("llama", 1, 6), "draft": model("llama", 2, 5)},
        None,
        translations={"draft": translation},
    )


@pytest.mark.long
def test_samples_follow_the_target():
    method = build(letters(), "omnidraft", gamma=3, ngrams="all", interval=0, length="adaptive")
    fitted = fit(method, letters().models["target"], [1, 5, 2], 3, Sampling(2.0, top_p=0.95), 1500)
    assert fitted.p > ALPHA and fitted.accepted > 300 and fitted.rejected > 300


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
    pair, mapping = two(), translation()
    settings = Settings(**VALUES | {"interval": 1, "ngram_weight": 0.2})
    target, draft = pair.models["target"], copy.deepcopy(pair.models["draft"])
    learner = HybridLearner(draft, target, settings, mapping)
    tokens = texts_of(1)[0]
    places = learner.places(tokens, 5)
    reading = Reading(mapping)
    reading.read(tokens, 0)
    shared = list(mapping.shared)
    own, expected, merged = [mapping.shared[token] for token in shared], 0.0, 0
    for place in places:
        with torch.no_grad():
            start = reading.ends[place - 1]
            if tokens[place] in mapping.shared:
                p = target(torch.tensor([tokens[:place]], device=DEVICE)).logits[0, -1][shared].log_softmax(-1)
                q = draft(torch.tensor([reading.ids[:start]], device=DEVICE)).logits[0, -1][own].log_softmax(-1)
                expected += float(F.kl_div(p, q, log_target=True, reduction="sum"))
                continue
            for at, token in enumerate(mapping.spell(tokens[place]), start):
                q = draft(torch.tensor([reading.ids[:at]], device=DEVICE)).logits[0, -1].log_softmax(-1)
                expected -= 0.2 * float(q[token])
            merged += 1
    assert merged > 3 and len(places) > merged + 3
    with torch.inference_mode():
        mapping.tables(torch.device(DEVICE))
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interval": -1}, "omnidraft: interval"),
        ({"ngrams": "some"}, "omnidraft: ngrams"),
        ({"length": "confidence"}, "omnidraft: length"),
        ({"threshold": 1.0}, "omnidraft: threshold"),
        ({"head_rate": float("nan")}, "omnidraft: head_rate"),
        ({"gamma": 9000}, "omnidraft: its rounds are of up to 9001 tokens, but"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "omnidraft", **changes)
