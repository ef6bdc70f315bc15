"""FLy against hand-worked masks and two naive scans, its neutral settings, and its drafter that looks its tokens up."""

import itertools
import math

import numpy as np
import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, sps, tiny
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judging import assert_rounds, assert_same_rounds, judged
from official import fly as own
from official_cases import official_cases
from recalled import recalled
from watched import Told, reads_of_tensors

from specbench import config
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.sampling import pick
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Scored
from specbench.methods.lossy.fly import FLy, LookupDrafter, Settings, lookup

SAMPLED = Sampling(1.0, top_p=0.9)
SHIPPED = config.load_method("fly").values
ALWAYS, NEVER = 0.0, 9.0  # thresholds below and above any entropy


def chosen(**changes) -> Settings:
    return config.validated(Settings, {**SHIPPED, "ngram": False, **changes}, "fly")


def fly(architecture: str = "llama", **changes) -> FLy:
    target, draft = pair(architecture)
    return FLy(Session(target, "target"), ModelDrafter(Session(draft, "draft")), chosen(**changes))


class Official:
    """A session over the scores of its program; the target tells `first` after the prompt."""

    trees = True
    device = torch.device("cpu")

    def __init__(self, draft: bool, first: int = 0) -> None:
        self.draft, self.first, self.text = draft, first, []

    def __len__(self):
        return len(self.text)

    def restart(self, prompt, *_):
        self.truncate(0)
        return self.forward(prompt)

    def forward(self, tokens, **_):
        begun, self.text = len(self.text), [*self.text, *map(int, tokens)]
        rows = [own.scores(self.text[: end + 1], self.draft) for end in range(begun, len(self.text))]
        if not begun and not self.draft:
            rows[-1] = [float(word == self.first) for word in range(own.SIZE)]
        return Scored(torch.tensor(rows))

    def catch_up(self, context, hidden=()):
        known = next((at for at, both in enumerate(zip(self.text, context, strict=False)) if both[0] != both[1]), None)
        self.truncate(min(len(self.text), len(context) - 1) if known is None else known)
        return self.forward(context[len(self.text) :])

    def draft_chain(self, *_): ...

    def truncate(self, length):
        del self.text[length:]

    def keep(self, start, path):
        self.truncate(start + len(path))


def test_rounds_are_those_of_its_own_code():
    """12 greedy texts with blocks of 9, 15 and 25, half of them drafted by look-up."""
    kept = 0
    for case in official_cases("fly"):
        draft, prompt = Official(True), case["prompt"][:-1]
        drafter = LookupDrafter(draft, 4, 6) if case["ngram"] else ModelDrafter(draft)
        method = FLy(Official(False, case["prompt"][-1]), drafter, chosen(gamma=case["gamma"]))
        made = itertools.islice(method.rounds(prompt, GREEDY, torch.Generator()), 1 + len(case["rounds"]))
        rounds = list(made)[1:]
        assert [each.tokens for each in rounds] == case["rounds"]
        kept += sum(len(each.verdict.rescued) for each in rounds)
    assert kept > 12


# Rows over 8 tokens; the draft is always token 1. `.` a match, `o` a match where the target is unsure, `s` a mismatch
# where it is sure (both entropies near 0), `u` a mismatch where it hesitates between three tokens: weights 1, .9, .81,
# so p = .369, .332, .299, an entropy of 1.095 nats, both of the top three and (nearly) of all, or .527 of ln 8.
FAR = -30.0
ROW = {
    ".": [0.0, 30, 0, 0, 0, 0, 0, 0],
    "o": [math.log(0.9), 0, math.log(0.81), FAR, FAR, FAR, FAR, FAR],
    "s": [30.0, 0, 0, 0, 0, 0, 0, 0],
    "u": [0, math.log(0.9), math.log(0.81), FAR, FAR, FAR, FAR, FAR],
}
BONUS = [0.0, 0, 0, 0, 0, 5, 0, 0]


@pytest.mark.parametrize(
    ("mask", "code", "paper"),
    [
        # W = 3. Code: two followers; paper: three. Kept mismatches, else None where the scan stops at the first one.
        ("........", (8, ()), (8, ())),
        ("u.......", (8, (0,)), (8, (0,))),  # first position
        ("....u...", (8, (4,)), (8, (4,))),  # the last position that may be kept: three tokens follow
        (".....u..", (5, ()), (5, ())),  # within the last W, although the code's two followers are there and match
        ("......u.", (6, ()), (6, ())),
        (".......u", (7, ()), (7, ())),  # last position
        ("s.......", (0, ()), (0, ())),  # the target is sure
        ("uooooooo", (8, (0,)), (8, (0,))),  # matches need no certainty
        ("u..u....", (8, (0, 3)), (0, ())),  # the third behind is a mismatch: outside the code's window only
        ("u...u...", (8, (0, 4)), (8, (0, 4))),
        ("u.u.....", (0, ()), (0, ())),  # too close: the mask is read raw, so the first is lost with the second
        ("uu......", (0, ()), (0, ())),
        ("u..s....", (3, (0,)), (0, ())),  # the code keeps the first and stops at the second
        ("....u..u", (7, (4,)), (4, ())),
        ("...u....", (8, (3,)), (8, (3,))),
        ("u...", (4, (0,)), (4, (0,))),  # K = W + 1: one place
        ("u..", (0, ()), (0, ())),  # K = W: none
        ("", (0, ()), (0, ())),
    ],
)
@pytest.mark.parametrize("form", ("code", "paper"))
def test_hand_worked_masks(form, mask, code, paper):
    method = fly(form=form, window_length=3, entropy_threshold=0.5)
    verdict = judged(method, [*(ROW[x] for x in mask), BONUS], [1] * len(mask))
    accepted, rescued = code if form == "code" else paper
    assert (verdict.accepted, verdict.rescued) == (accepted, rescued)
    assert verdict.token == (5 if accepted == len(mask) else 0)
    assert verdict.targets == [0 if x in "su" else 1 for x in mask]


@pytest.mark.parametrize("form", ("code", "paper"))
def test_a_window_of_one(form):
    """Code: the mismatch itself, no follower at all; paper: one follower. Never the last position."""
    method = fly(form=form, window_length=1, entropy_threshold=ALWAYS)
    verdict = judged(method, [ROW["s"], ROW["s"], ROW["."], BONUS], [1, 1, 1])
    assert (verdict.accepted, verdict.rescued) == ((3, (0, 1)) if form == "code" else (0, ()))
    assert judged(method, [ROW["."], ROW["s"], BONUS], [1, 1]).accepted == 1


def test_a_tie_is_a_mismatch_unless_the_draft_is_the_lower_index():
    method = fly(window_length=2, entropy_threshold=NEVER)
    tie = [0.0, 4, 4, 0]
    assert judged(method, [tie, BONUS[:4]], [1]).accepted == 1
    verdict = judged(method, [tie, BONUS[:4]], [2])
    assert (verdict.accepted, verdict.token, verdict.ratios) == (0, 1, [1.0])


# Entropies by hand. Two equal tokens: ln 2 nats, over ln 4 exactly one half. Sixteen equal tokens: 1 of ln 16, but the
# three likeliest have 3/16 ln 16 = 0.52 nats: the code finds a flat distribution surer than one over three tokens.
TWO, FLAT = [0.0, 0, -999, -999], [0.0] * 16


@pytest.mark.parametrize(
    ("row", "kind", "threshold", "unsure"),
    [
        (TWO, "full_norm", 0.5, True),  # at least, not more than
        (TWO, "full_norm", 0.5 + 1e-9, False),
        (TWO, "top3", math.log(2) - 1e-9, True),
        (TWO, "top3", math.log(2) + 1e-9, False),
        (FLAT, "full_norm", 1 - 1e-9, True),
        (FLAT, "full_norm", 1 + 1e-9, False),
        (FLAT, "top3", 0.5198, True),
        (FLAT, "top3", 0.5200, False),
        ([0.0, 0, 0, -999], "top3", math.log(3) - 1e-9, True),  # the most there is
        ([0.0, 0, 0, -999], "top3", math.log(3) + 1e-9, False),
        ([0.0, -999, -999, -999], "top3", ALWAYS, True),
        ([0.0, -math.inf, -math.inf, -math.inf], "full_norm", 1e-9, False),  # masked tokens count nothing
        ([0.0, 0.0], "top3", math.log(2) - 1e-9, True),  # fewer than three tokens
    ],
)
def test_entropies(row, kind, threshold, unsure):
    for form in ("paper", "code"):
        method = fly(form=form, entropy=kind, entropy_threshold=threshold)
        rows = torch.tensor([row, row], dtype=torch.float64, device=DEVICE)
        assert method.unsure(rows).tolist() == [unsure] * 2


def test_named_settings_follow_the_form_unless_given():
    code, paper = chosen(form="code"), chosen(form="paper")
    assert (code.normalised, code.followers) == (False, 5)
    assert (paper.normalised, paper.followers) == (True, 6)
    assert chosen(form="code", entropy="full_norm").normalised and chosen(form="code", window="paper").followers == 6
    assert not chosen(form="paper", entropy="top3").normalised and chosen(form="paper", window="code").followers == 5


# The rule twice more, each as it is written down, on lists: `mask` matches, `h` entropies, both [K].


def by_the_paper(mask, h, theta, window):
    """1-based j: kept iff h_j >= θ, no mismatch among the next W, and j + W <= K; stop at the first that is not."""
    count, kept = len(mask), []
    for j in range(1, count + 1):
        if mask[j - 1]:
            continue
        behind = [mask[i - 1] for i in range(j + 1, j + window + 1) if i <= count]
        if h[j - 1] >= theta and behind.count(False) == 0 and j + window <= count:
            kept.append(j - 1)
        else:
            return j - 1, tuple(kept)
    return count, tuple(kept)


def by_the_code(mask, h, theta, window):
    """Arrays: the pattern F T T … of W, none in the last W, not where h < θ; cut at the first False."""
    count = len(mask)
    pattern = [False] + [True] * (window - 1)
    defer = [mask[j : j + window] == pattern for j in range(count)]
    defer[count - window :] = [False] * window
    final = [(a or d) and not (not a and x < theta) for a, d, x in zip(mask, defer, h, strict=True)]
    accepted = final.index(False) if False in final else count
    return accepted, tuple(j for j in range(accepted) if not mask[j])


def entropies(rows, kind):
    results = []
    for row in rows:
        weights = sorted((math.exp(z) for z in row), reverse=True)
        shares = [w / sum(weights) for w in weights]
        if kind == "top3":
            results.append(-sum(p * math.log(p) for p in shares[:3]))
        else:
            results.append(-sum(p * math.log(p) for p in shares) / math.log(len(row)))
    return results


@st.composite
def blocks(draw):
    """Rows [K + 1][V] and drafts [K] that agree more often than not, as real ones do; γ > W."""
    window, vocab = draw(st.integers(1, 3)), draw(st.integers(3, 5))
    count = window + draw(st.integers(1, 6))
    logit = st.integers(-6, 6).map(lambda n: n / 2)
    rows = draw(st.lists(st.lists(logit, min_size=vocab, max_size=vocab), min_size=count + 1, max_size=count + 1))
    stray = draw(st.lists(st.integers(0, 3 * vocab), min_size=count, max_size=count))
    drafted = [s if s < vocab else row.index(max(row)) for s, row in zip(stray, rows, strict=False)]
    return rows, drafted, window


@settings(max_examples=300, deadline=None)
@given(
    blocks(),
    st.sampled_from((0.0, 0.2, 0.6, 1.0)),
    st.sampled_from(("full_norm", "top3")),
    st.sampled_from(("paper", "code")),
)
def test_greedy_rounds_equal_the_naive_scans(block, theta, kind, form):
    rows, drafted, window = block
    h = entropies(rows[:-1], kind)
    assume(all(abs(x - theta) > 1e-9 for x in h))
    mask = [d == row.index(max(row)) for d, row in zip(drafted, rows, strict=False)]
    accepted, rescued = {"paper": by_the_paper, "code": by_the_code}[form](mask, h, theta, window)
    method = fly(window=form, entropy=kind, entropy_threshold=theta, window_length=window)
    verdict = judged(method, rows, drafted)
    assert (verdict.accepted, verdict.rescued) == (accepted, rescued)
    assert verdict.token == rows[accepted].index(max(rows[accepted]))


@settings(max_examples=120, deadline=None)
@given(blocks(), st.sampled_from((0.0, 0.6)), st.sampled_from(("strict", "code")), st.integers(0, 999))
def test_sampled_rounds_equal_the_naive_scans(block, theta, rule, seed):
    """At T = 2: matches under the same draws, entropies of the raw logits all the same."""
    rows, drafted, window = block
    h = entropies(rows[:-1], "top3")
    assume(all(abs(x - theta) > 1e-9 for x in h))
    rng, count = torch.Generator(DEVICE).manual_seed(seed), len(drafted)
    weights = [[math.exp(z / 2) for z in row] for row in rows]
    p = [[w / sum(ws) for w in ws] for ws in weights]
    on_device = torch.tensor(rows, dtype=torch.float64, device=DEVICE).div(2).softmax(-1)
    if rule == "strict":
        q = [[1 / len(row)] * len(row) for row in rows[:-1]]
        u = torch.rand(count, generator=rng, device=DEVICE, dtype=torch.float64).tolist()
        first = [u[i] < p[i][d] * len(rows[i]) for i, d in enumerate(drafted)]
        mask = first
    else:
        q, draws = None, pick(on_device, rng).tolist()
        again = pick(on_device[:count], rng).tolist()
        first = [d == t for d, t in zip(drafted, draws, strict=False)]
        mask = [a or d == t for a, d, t in zip(first, drafted, again, strict=True)]
    accepted, rescued = by_the_code(mask, h, theta, window)
    rescued = tuple(sorted({*rescued, *(i for i in range(accepted) if not first[i])}))
    method = fly(entropy_threshold=theta, window_length=window, sampling=rule)
    verdict = judged(method, rows, drafted, Sampling(2.0), q, seed)
    assert (verdict.accepted, verdict.rescued) == (accepted, rescued)
    if rule == "code":
        assert verdict.token == draws[accepted]
    elif accepted < count:
        assert p[accepted][verdict.token] > q[accepted][verdict.token] - 1e-9


def test_the_law_of_the_code_at_a_temperature():
    """p = (.3, .5, .2), greedy draft 0: two draws miss it with .7 x .7 = .49, the first alone with .7.

    So 0 comes out with .51, of which .7 x .3 = .21 by the second draw only; the other .49 go .5 : .2 to 1 and 2.
    """
    method, counts, rescued, draws = fly(sampling="code"), np.zeros(3), 0, 3000
    logits = [[math.log(x) for x in (0.3, 0.5, 0.2)], [0.0, 0, 0]]
    for seed in range(draws):
        verdict = judged(method, logits, [0], Sampling(1.0), None, seed)
        counts[0 if verdict.accepted else verdict.token] += 1
        rescued += len(verdict.rescued)
    assert oracle.chi_square(counts, np.array([0.51, 0.35, 0.14])) > 1e-4
    assert abs(rescued / draws - 0.21) < 4 * math.sqrt(0.21 * 0.79 / draws)


@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
@pytest.mark.parametrize("form", ("code", "paper"))
@mostly_long("architecture", ("qwen2", "gemma2"), ("gemma2",))
def test_above_any_entropy_it_is_speculative_sampling(architecture, form, sampling):
    method = fly(architecture, form=form, gamma=6, window_length=1, entropy_threshold=NEVER)
    assert_same_rounds(method, sps(architecture, 6, Lengths()), architecture, sampling)


@mostly_long("ngram", (False, True), (True,))
@mostly_long("form", ("code", "paper"), ("code",))
def test_rounds_of_real_models_equal_a_decoder_without_cache(form, ngram):
    """Drafts, acceptances, rescues and corrections of whole rounds; the drafter's own acceleration changes nothing."""
    target, draft = oracle.tiny_pair("llama")
    (prompt,) = oracle.prompts(1, length=9, seed=4)
    gamma, window, theta = 6, 2, 0.25

    def scan(rows, drafted, text):
        mask = [d == oracle.best(row) for d, row in zip(drafted, rows, strict=False)]
        h = entropies([row.tolist() for row in rows[:-1]], "top3" if form == "code" else "full_norm")
        accepted, rescued = (by_the_code if form == "code" else by_the_paper)(mask, h, theta, window)
        return oracle.Round(drafted, accepted, oracle.best(rows[accepted]), list(rescued))

    expected = oracle.rounds_by(scan, target, draft, prompt + oracle.greedy(target, prompt, 1), 14, gamma)
    session = Session(pair("llama")[1], "draft")
    drafter = LookupDrafter(session, 4, 6) if ngram else ModelDrafter(session)
    changes = {"form": form, "gamma": gamma, "window_length": window, "entropy_threshold": theta}
    method = FLy(Session(pair("llama")[0], "target"), drafter, chosen(**changes))
    _, rounds = decode(method, prompt, 120)
    assert_rounds(rounds, expected)
    assert sum(len(one.rescued) for one in expected) >= 2
    assert len({one.accepted for one in expected}) > 2


@pytest.mark.parametrize("rule", ("strict", "code"))
def test_only_the_code_drafts_greedily_at_a_temperature(rule):
    _, draft = oracle.tiny_pair("llama")
    prompt, _ = lively_prompt("llama", 12, 30)
    tokens, rounds = decode(fly(gamma=4, window_length=2, sampling=rule), prompt, 24, Sampling(1.0), seed=2)
    text, at, greedy = prompt + tokens, len(prompt) + 1, []
    for round_ in rounds[1:]:
        greedy.append(round_.verdict.drafted == oracle.greedy(draft, text[:at], 4))
        at += len(round_.tokens)
    assert all(greedy) == (rule == "code")


# The drafter that looks its tokens up


@pytest.mark.parametrize(
    ("tokens", "size", "count", "expected"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 4, 6, [9, 1, 2, 3]),  # a shorter continuation than asked for
        ([1, 2, 3, 9, 1, 2, 3], 4, 2, [9, 1]),
        ([1, 5, 1, 6, 1], 4, 3, [5, 1, 6]),  # the earliest
        ([2, 9, 1, 2, 8, 1, 2], 4, 1, [8]),  # the longest (1, 2) wins over the earliest (2)
        ([2, 9, 1, 2, 8, 1, 2], 1, 1, [9]),
        ([1, 1, 1, 1], 4, 6, [1, 1]),  # occurrences do not overlap: two ones follow the first two
        ([4, 7, 7], 4, 6, [7]),
        ([1, 2, 3], 4, 6, []),
        ([1], 4, 6, []),
        ([5, 6, 7, 8, 9, 0, 5, 6, 7, 8], 4, 2, [9, 0]),
        ([0, 6, 7, 8, 3, 0, 5, 6, 7, 8], 4, 2, [3, 0]),  # four do not match, three do
    ],
)
def test_lookup(tokens, size, count, expected):
    assert lookup(tokens, size, count) == expected


def test_a_repeated_text_is_drafted_in_fewer_forwards():
    """A model without attention looks at the last token only, so that its greedy text goes round in a circle."""
    model, watch = oracle.tiny("llama", seed=5), Told()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    texts = (oracle.greedy(model, prompt, 60) for prompt in oracle.prompts(20, length=4))
    context = next(text for text in texts if len(set(text[-30:])) >= 8)
    model = model.to(DEVICE)
    plain, drafter = ModelDrafter(Session(model, "draft")), LookupDrafter(Session(model, "draft", watch), 4, 6)
    rng = torch.Generator(DEVICE)
    plain.begin(context[:3])
    drafter.begin(context[:3])
    watch.forwards.clear()
    expected = plain.propose(context, 15, GREEDY, rng)
    draft = drafter.propose(context, 15, GREEDY, rng)
    assert draft.tokens.tolist() == expected.tokens.tolist() and draft.probs is None
    # Six guesses and the model's own token are seven; 7 + 7 + 1 = 15. The first forward also feeds the context.
    assert [width for _, width, _ in watch.forwards] == [len(context) - 3 + 6, 7, 1]


def test_a_lookup_that_finds_nothing_tries_the_last_guess_again():
    draft, watch, context = pair("llama")[1], Told(), [5, 6, 7, 5, 6]
    drafter = LookupDrafter(Session(draft, "draft", watch), 4, 6)
    drafter.begin(context[:4])
    values = drafter.propose(context, 3, GREEDY, torch.Generator(DEVICE)).tokens.tolist()
    assert values[0] != values[1] and not set(values) & set(context), "no guess stands, and no token is found again"
    # The prompt; then one token each time, and as much of the guess 7 5 6 as stays within three tokens.
    assert [width for _, width, _ in watch.forwards] == [4, 3, 2, 1]


def test_lookups_that_fail_cost_no_correctness():
    """Contexts that suggest wrong continuations, of all lengths, one after the other in the same session."""
    draft = pair("qwen2")[1]
    plain, drafter = ModelDrafter(Session(draft, "draft")), LookupDrafter(Session(draft, "draft"), 3, 4)
    rng = torch.Generator(DEVICE)
    plain.begin([1])
    drafter.begin([1])
    for prompt in oracle.prompts(8, length=30, vocab=5):
        for gamma in (1, 2, 7):
            result = drafter.propose(prompt, gamma, GREEDY, rng).tokens
            assert result.tolist() == plain.propose(prompt, gamma, GREEDY, rng).tokens.tolist()


@pytest.mark.long
def test_sampled_drafts_come_from_the_model_and_tell_their_distribution():
    """Two tokens behind a context whose first guess is often right: their joint law, and the q that goes with them."""
    sampling, draws = Sampling(0.8, top_k=4), 600
    reference, context = oracle.tiny("llama", vocab=5), [0, 1, 2, 3, 0, 1]
    drafter = LookupDrafter(recalled(oracle.tiny("llama", vocab=5).to(DEVICE), "draft"), 4, 6)
    drafter.begin(context)
    counts, stood = np.zeros((5, 5)), set()
    for seed in range(draws):
        draft = drafter.propose(context, 3, sampling, torch.Generator(DEVICE).manual_seed(seed))
        a, b, _ = draft.tokens.tolist()
        counts[a, b] += 1
        stood.add((a == 2) + (a == 2 and b == 3))
        if seed < 12:
            for row, ahead in zip(draft.probs.cpu(), ([], [a], [a, b]), strict=True):
                expected = oracle.warp(oracle.next_logits(reference, context + ahead), 0.8, 4)
                assert torch.allclose(row, expected, atol=1e-4)
    assert stood == {0, 1, 2}, "guesses of which none, one and both stood"
    assert oracle.chi_square(counts, oracle.two_token_distribution(reference, context, 0.8, 4)) > 1e-4


@pytest.mark.parametrize("rule", ("strict", "code"))
@pytest.mark.parametrize("sampling", (GREEDY, SAMPLED), ids=("greedy", "sampled"))
def test_one_copy_to_the_host_a_round(monkeypatch, rule, sampling):
    rows, copies = [ROW[x] for x in "u..."], reads_of_tensors(monkeypatch)
    judged(fly(window_length=3, sampling=rule), [*rows, BONUS], [1] * 4, sampling, [[0.125] * 8] * 4)
    assert copies == ["tolist"]


def test_one_more_than_the_window_is_enough():
    assert chosen(gamma=7).gamma == 7


@pytest.mark.parametrize("ngram", (False, True))
def test_build_and_the_shipped_settings(ngram):
    method = build(tiny("llama"), "fly", ngram=ngram)
    assert isinstance(method.drafter, LookupDrafter if ngram else ModelDrafter)
    prompt, _ = lively_prompt("llama", 12, 30)
    _, rounds = decode(method, prompt, 30)
    assert not method.lossless and method.reach == SHIPPED["gamma"] + 1
    assert {r.drafted for r in rounds[1:]} == {15}
    assert SHIPPED["ngram"] is True and SHIPPED["sampling"] == "strict"
