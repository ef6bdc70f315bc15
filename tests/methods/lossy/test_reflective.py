"""Reflective verification against hand-worked blocks, a slow second implementation, and speculative sampling."""

import itertools
import time

import numpy as np
import oracle
import pytest
import torch
from cases import architectures, mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench import config
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.clock import Stopwatch
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import Pair
from specbench.engine.session import Session, Unwatched
from specbench.engine.types import Draft, Sampling, Scored
from specbench.methods.chains.sps import SpS
from specbench.methods.lossy import reflective
from specbench.methods.lossy.reflective import Reflective, Settings, fuse

SAMPLED = Sampling(1.0, top_p=0.9)
PROMPT = [7, 70, 17]


class Scripted:
    """Stands in for a session: gives the logits it was told to, and notes what was done to it."""

    device = torch.device(DEVICE)

    def __init__(self, logits, length=0):
        self.logits = torch.as_tensor(logits, dtype=torch.float64, device=DEVICE)
        self.length, self.fed = length, []

    def __len__(self):
        return self.length

    def forward(self, tokens):
        assert len(tokens) == len(self.logits)
        self.fed.append(tokens.tolist())
        self.length += len(tokens)
        return Scored(self.logits)

    def truncate(self, length):
        assert length <= self.length
        self.length = length


def reflecting(target, draft, gamma, alpha=0.3, prompt=PROMPT, prefix=4, watch=None):
    drafter = ModelDrafter(Session(draft, "draft", watch))
    chosen = Settings(gamma=gamma, alpha=alpha, prompt="given as ids", prefix_tokens=prefix)
    return Reflective(Session(target, "target", watch), drafter, chosen, prompt)


def judge(logits, recent, drafted, alpha, prompt, prefix, length=20):
    """Fused rows and verdict over hand-made logits, and the stand-in that gave them."""
    target = Scripted(logits, length)
    chosen = Settings(gamma=len(drafted), alpha=alpha, prompt="", prefix_tokens=prefix)
    draft = Draft(torch.tensor(drafted, device=DEVICE), None)
    scored = Reflective(target, None, chosen, prompt).read_twice(target, recent, draft)
    return scored.logits, exact(draft, scored, GREEDY, torch.Generator(DEVICE)), target


# Four tokens; the verified text ends with 2, 1; the draft is 0, 2; the reflective prompt is 3. A row is what the target
# says after the token it stands next to.
BLOCK = [
    (1, [2, 3, 0, 0]),  # last: z⁰ of d_1. By itself the target wants 1.
    (0, [0, 0, 4, 0]),  # d_1: z⁰ of d_2. It agrees with 2.
    (2, [0, 0, 0, 1]),  # d_2: z⁰ of the bonus, 3.
    (3, [0, 0, 0, 90]),  # reflective prompt: predicts the position prefix, no use
    (2, [0, 0, 0, 90]),  # position prefix
    (1, [8, 0, 0, 0]),  # position prefix: zʳ of d_1. On reflection the target wants 0.
    (0, [0, 8, 0, 0]),  # d_1 again: zʳ of d_2. On reflection it wants 1.
    (2, [90, 0, 0, 0]),  # d_2 again: a bonus on reflection, not used
]


@pytest.mark.parametrize(
    ("alpha", "rows", "accepted", "token"),
    [
        # 1st: 0.75·2 + 0.25·8 = 3.5 against 0.75·3 = 2.25, so 0 passes. 2nd: 0.25·8 = 2 against 0.75·4 = 3: 2 passes.
        (0.25, [[3.5, 2.25, 0, 0], [0, 2, 3, 0], [0, 0, 0, 1]], 2, 3),
        # 1st: 1 + 4 = 5 against 1.5: 0 passes. 2nd: 4 against 2, so 2 is rejected for 1.
        (0.5, [[5, 1.5, 0, 0], [0, 4, 2, 0], [0, 0, 0, 1]], 1, 1),
        (0.0, [[2, 3, 0, 0], [0, 0, 4, 0], [0, 0, 0, 1]], 0, 1),
        (1.0, [[8, 0, 0, 0], [0, 8, 0, 0], [0, 0, 0, 1]], 1, 1),
    ],
)
def test_hand_worked_block(alpha, rows, accepted, token):
    logits = [row for _, row in BLOCK]
    fused, verdict, target = judge(logits, [2, 1], [0, 2], alpha, prompt=[3], prefix=2)
    assert target.fed == [[token for token, _ in BLOCK]], "one forward, in the paper's order"
    assert fused.tolist() == rows
    assert (verdict.accepted, verdict.token, verdict.drafted) == (accepted, token, [0, 2])
    assert len(target) == 20 + 3, "the cache ends behind the first reading"


@pytest.mark.parametrize(("drafted", "accepted"), [(1, 1), (2, 0)])
def test_ties_go_to_the_lowest_token(drafted, accepted):
    """Fused logits 0, 2, 2: the target's token is 1, whatever each reading says."""
    _, verdict, _ = judge([[0, 0, 4], [5, 0, 0], [0, 4, 0], [0, 0, 9]], [0], [drafted], 0.5, prompt=[0], prefix=0)
    assert (verdict.accepted, verdict.token) == (accepted, 0 if accepted else 1)


@pytest.mark.parametrize(
    ("recent", "prefix", "middle"),
    [([5, 6, 7], 3, [5, 6, 7]), ([6, 7], 3, [6, 7]), ([6, 7], 2, [6, 7]), ([5, 6, 7], 1, [7]), ([7], 0, [])],
    ids=("whole", "text shorter than the prefix", "two", "more at hand than wanted", "none"),
)
@pytest.mark.parametrize("prompt", ([], [8, 9]))
def test_position_prefix_is_the_end_of_the_text(prompt, recent, prefix, middle):
    block = [7, 1, 2, *prompt, *middle, 1, 2]
    _, _, target = judge(np.eye(len(block), 10), recent, [1, 2], 0.3, prompt, prefix)
    assert target.fed == [block]


@pytest.mark.parametrize("position", range(3))
def test_every_position_is_fused_with_its_own_row_alone(position):
    """Only the reflection on one draft token disagrees; the scan stops there and nowhere else."""
    drafted = [1, 2, 3]
    agree = torch.zeros(3 + 1 + 1 + 3, 5)  # last and d_1..3; reflective prompt; d_1..3 again, and no position prefix
    for row, token in enumerate([1, 2, 3, 4, 1, 2, 3, 0]):
        agree[row, token] = 1
    _, verdict, _ = judge(agree, [0], drafted, 0.5, prompt=[0], prefix=0)
    assert (verdict.accepted, verdict.token) == (3, 4)
    agree[4 + position, 0] = 9
    _, verdict, _ = judge(agree, [0], drafted, 0.5, prompt=[0], prefix=0)
    assert (verdict.accepted, verdict.token) == (position, 0)


def test_half_precision_is_fused_in_float32():
    """A quarter of bfloat16's step at 2, which is 1/64, decides here; fused in bfloat16 it would be a tie."""
    logits = torch.tensor([[2, 2], [0, 1], [2, 2.015625], [0, 1]], dtype=torch.bfloat16, device=DEVICE)
    fused = fuse(logits, 1, 0.25)
    assert fused.dtype == torch.float32
    assert fused.tolist() == [[2, 2.00390625], [0, 1]]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_rule_equals_a_naive_one_on_random_logits(data):
    """Small whole logits and weights of quarters, so that ties are frequent and sums exact."""
    count, vocabulary = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 5))
    token = st.integers(0, vocabulary - 1)
    quarters = data.draw(st.integers(0, 4))
    drafted = data.draw(st.lists(token, min_size=count, max_size=count))
    prompt, text = data.draw(st.lists(token, max_size=3)), data.draw(st.lists(token, min_size=1, max_size=4))
    prefix = data.draw(st.integers(0, 4))
    shown = text[-max(1, prefix) :]
    # What a row predicts: a draft token by its number, in the first or second reading, or nothing of interest.
    repeated = min(prefix, len(text))
    predicts = [("first", i) for i in range(count + 1)]
    predicts += [None] * (len(prompt) + repeated - 1 if prompt or repeated else 0)
    if prompt or repeated:
        predicts += [("second", 0)]
    else:
        predicts[count] = ("first", count), ("second", 0)  # nothing between: one row serves as both
    predicts += [("second", i) for i in range(1, count)] + [None]
    rows = data.draw(
        st.lists(
            st.lists(st.integers(-3, 3), min_size=vocabulary, max_size=vocabulary),
            min_size=len(predicts),
            max_size=len(predicts),
        )
    )
    result = {}
    for what, row in zip(predicts, rows, strict=True):
        for one in what if what and isinstance(what[0], tuple) else [what]:
            result[one] = row
    mixed = [
        [((4 - quarters) * a + quarters * b) / 4 for a, b in zip(result["first", i], result["second", i], strict=True)]
        for i in range(count)
    ]
    expected = oracle.sps_scan([*mixed, result["first", count]], drafted)
    _, verdict, _ = judge(rows, shown, drafted, quarters / 4, prompt, prefix)
    assert (verdict.accepted, verdict.token) == (expected.accepted, expected.token)


def test_sampled_verdicts_follow_the_fused_distribution():
    """The draft says 0 with q = (0.8, 0.1, 0.1); p is the softmax of the fused logits."""
    q = np.array([0.8, 0.1, 0.1])
    first, second, weight = [0.0, 1.0, 0.5], [1.5, 0.0, 0.0], 0.3
    p = oracle.warp(torch.tensor([0.7 * a + 0.3 * b for a, b in zip(first, second, strict=True)]), 1.0).numpy()
    keep = min(1, p[0] / q[0])
    rest = np.clip(p - q, 0, None) / np.clip(p - q, 0, None).sum()
    expected = keep * np.array([1.0, 0, 0]) + (1 - keep) * rest
    logits = torch.tensor([first, [0, 9.0, 0], [0, 0, 0], second, [9.0, 0, 0]], dtype=torch.float64, device=DEVICE)
    # last, d_1, prompt, position prefix, d_1 again
    scored = Scored(fuse(logits, 1, weight))
    draft = Draft(torch.tensor([0], device=DEVICE), torch.tensor(q[None], device=DEVICE))
    rng = torch.Generator(DEVICE).manual_seed(1)
    counts = np.zeros(3)
    for _ in range(3000):
        verdict = exact(draft, scored, Sampling(1.0), rng)
        counts[0 if verdict.accepted else verdict.token] += 1
    assert oracle.chi_square(counts, expected) > 1e-4
    unfused = oracle.warp(torch.tensor(first), 1.0).numpy()
    assert abs(unfused[0] - p[0]) > 0.05, "the two distributions differ enough to be seen as two"


# A slow second implementation: every row from its own full forward, no cache.


def naive_rows(target, text, drafted, alpha, prompt, prefix):
    position = text[-prefix:] if prefix else []
    rows = []
    for i in range(len(drafted)):
        original = oracle.next_logits(target, text + drafted[:i])
        reflected = oracle.next_logits(target, text + drafted + prompt + position + drafted[:i])
        rows.append((1 - alpha) * original + alpha * reflected)
    return [*rows, oracle.next_logits(target, text + drafted)]


def naive_rounds(target, draft, text, rounds, gamma, alpha, prompt, prefix):
    text, done = list(text), []
    for _ in range(rounds):
        drafted = oracle.greedy(draft, text, gamma)
        done.append(oracle.sps_scan(naive_rows(target, text, drafted, alpha, prompt, prefix), drafted))
        text += oracle.committed(done[-1:])
    return done


ids = st.lists(st.integers(0, 95), max_size=4)


@pytest.mark.parametrize("architecture", ("opt", "gemma2"))
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    text=st.lists(st.integers(0, 95), min_size=2, max_size=24),
    drafted=st.lists(st.integers(0, 95), min_size=1, max_size=5),
    prompt=ids,
    prefix=st.integers(0, 5),
    alpha=st.sampled_from((0.1, 0.3, 1.0)),
)
def test_fused_rows_and_cache_equal_full_forwards(architecture, text, drafted, prompt, prefix, alpha):
    """Learnt positions and a sliding window too; afterwards the cache is that of the text and the draft."""
    target = pair(architecture)[0]
    method = reflecting(target, pair(architecture)[1], len(drafted), alpha, prompt, prefix)
    session = method.target
    session.restart(text[:-1])
    draft = Draft(torch.tensor(drafted, device=DEVICE), None)
    shown = text[-max(1, prefix) :]
    result = method.read_twice(session, shown, draft).logits.cpu()
    expected = torch.stack(naive_rows(oracle.tiny(architecture), text, drafted, alpha, prompt, prefix))
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)
    assert session.tokens == text + drafted
    after = session.forward([3]).logits[0].cpu()
    fresh = oracle.next_logits(oracle.tiny(architecture), [*text, *drafted, 3])
    torch.testing.assert_close(after, fresh, rtol=0, atol=1e-4)


@mostly_long("architecture, length, prefix", [("llama", 9, 4), ("gemma2", 2, 6), ("qwen3", 9, 0)], (("gemma2", 2, 6),))
def test_rounds_equal_the_slow_implementation(architecture, length, prefix):
    """Drafts, acceptance and tokens, round by round, at a weight that changes the text."""
    (prompt,) = oracle.prompts(1, length=length, seed=3)
    target, draft = oracle.tiny_pair(architecture)
    text = prompt + oracle.greedy(target, prompt, 1)
    expected = naive_rounds(target, draft, text, 16, 3, 0.5, PROMPT, prefix)
    _, rounds = decode(reflecting(*pair(architecture), 3, 0.5, PROMPT, prefix), prompt, 100)
    results = [(r.verdict.drafted, r.verdict.accepted, r.verdict.token) for r in rounds[1:17]]
    assert results == [(list(r.drafted), r.accepted, r.token) for r in expected]
    assert len({r.accepted for r in expected}) > 1
    plain = oracle.sps_greedy(target, draft, text, 16, 3)
    assert oracle.committed(plain)[:16] != oracle.committed(expected)[:16], "the second reading had a say"


# Weight 0 is speculative sampling.


@pytest.mark.parametrize("length", (1, 17, 50))
@architectures
def test_weight_zero_is_speculative_sampling(architecture, length):
    prompt, _ = lively_prompt(architecture, length, 40)
    assert_same_as_sps(architecture, prompt, GREEDY, PROMPT)


@pytest.mark.parametrize("prompt", (PROMPT, []), ids=("read twice", "read once"))
@mostly_long("seed", range(3), (0,))
def test_weight_zero_is_speculative_sampling_when_sampled(seed, prompt):
    """No draw of the generator may be lost or added."""
    assert_same_as_sps("qwen2", oracle.prompts(1, length=12, seed=seed)[0], SAMPLED, prompt, seed)


def assert_same_as_sps(architecture, prompt, sampling, reflective_prompt, seed=0):
    target, draft = pair(architecture)
    sps = SpS(Session(target, "target"), ModelDrafter(Session(draft, "draft")), 4)
    expected, expected_rounds = decode(sps, prompt, 40, sampling, seed)
    method = reflecting(target, draft, 4, 0.0, reflective_prompt, 6)
    result, rounds = decode(method, prompt, 40, sampling, seed)
    assert result == expected
    for one, other in zip(rounds[1:], expected_rounds[1:], strict=True):
        assert (one.verdict.drafted, one.verdict.accepted) == (other.verdict.drafted, other.verdict.accepted)
        assert (one.verdict.token, one.verdict.targets) == (other.verdict.token, other.verdict.targets)


def test_the_text_ends_inside_a_round():
    """An end token that was accepted in the middle of a draft: what was committed behind it is cut and counted."""
    (prompt,) = oracle.prompts(1, length=9, seed=3)
    target, draft = oracle.tiny_pair("llama")
    first = oracle.greedy(target, prompt, 1)
    reference = naive_rounds(target, draft, prompt + first, 12, 3, 0.5, PROMPT, 4)
    texts = [first, *(oracle.committed([r]) for r in reference)]
    before = [list(itertools.chain(*texts[:i])) for i in range(len(texts))]
    at = next(i for i, text in enumerate(texts) if len(text) > 1 and text[0] not in before[i])
    eos = texts[at][0]
    ending = Ending(Limits(100, frozenset({eos})), lambda ids: "")
    method = reflecting(*pair("llama"), 3, 0.5)
    rounds = list(until_end(method.rounds(prompt, GREEDY, torch.Generator(DEVICE)), ending))
    assert ending.reason == "eos"
    assert ending.tokens == [*before[at], eos]
    assert (rounds[-1].tokens, rounds[-1].accepted, rounds[-1].truncated) == ([eos], 1, len(texts[at]) - 1)


def test_methods_forget_the_last_prompt():
    first, second = oracle.prompts(2, length=20)
    method = reflecting(*pair("llama"), 3)
    fresh = decode(reflecting(*pair("llama"), 3), second, 20)[0]
    decode(method, first, 33)
    assert decode(method, second, 20)[0] == fresh
    assert (method.state(), method.inputs(), method.lossless) == (None, {}, False)


# What a round costs.


@pytest.mark.parametrize(
    ("alpha", "prompt", "prefix", "second"),
    [(0.3, PROMPT, 4, True), (0.0, PROMPT, 4, True), (0.3, [], 4, True), (0.3, [], 0, True), (0.0, [], 4, False)],
)
def test_the_second_reading_shows_in_width_and_time(alpha, prompt, prefix, second, monkeypatch):
    """A clock that only the target moves, one second a token: a weight of 0 costs as much as any other."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    watch, gamma = Stopwatch(torch.device("cpu")), 3
    target, draft = pair("llama")
    method = reflecting(target, draft, gamma, alpha, prompt, prefix, watch)

    def tick(module, arguments):
        clock[0] += arguments[0].shape[1]

    hook = target.register_forward_pre_hook(tick)
    watch.start()
    rounds, text = [], oracle.prompts(1, length=1)[0]
    for step in method.rounds(text, GREEDY, torch.Generator(DEVICE)):
        watch.lap()
        rounds.append(step)
        if len(rounds) == 8:
            break
    hook.remove()
    length = 1 + 1  # prompt and prefill's token
    for one, lap in zip(rounds[1:], watch.laps()[1:], strict=True):
        width = 1 + gamma + (len(prompt) + min(prefix, length) + gamma if second else 0)
        forward = [f for f in lap.forwards if f.model == "target"]
        assert [(f.width, f.context) for f in forward] == [(width, length - 1)]
        assert lap.count("draft") == gamma
        assert lap.time("target") == width
        length += len(one.tokens)
    assert length > 1 + prefix, "the last rounds have a whole prefix"
    assert method.reach == width, "context limits count the widest round"


# Settings.


SHIPPED = config.load_method("reflective").values


def test_built_for_the_bundled_pair(pocket):
    """The prompt's text is tokenised without special tokens, and the shipped settings decode."""
    chosen = config.validated(Settings, SHIPPED, "reflective")
    method = reflective.build(chosen, pocket, Unwatched())
    assert pocket.tokenizer.decode(method.prompt.tolist()) == SHIPPED["prompt"]
    assert not set(method.prompt.tolist()) & set(pocket.tokenizer.all_special_ids)
    assert method.reach == 1 + 2 * chosen.gamma + len(method.prompt) + chosen.prefix_tokens
    text = pocket.tokenizer("Question: What is 12 + 30?\nAnswer:")["input_ids"]
    result, rounds = decode(method, text, 16)
    assert len(result) == 16 and len(rounds) < 16
    empty = reflective.build(chosen.model_copy(update={"prompt": "", "alpha": 0.0}), pocket, Unwatched())
    assert (len(empty.prompt), empty.reach) == (0, chosen.gamma + 1)
    with pytest.raises(UserError, match="has no draft model"):
        alone = Pair("alone", {"target": pocket.models["target"]}, pocket.tokenizer)
        reflective.build(chosen, alone, Unwatched())
