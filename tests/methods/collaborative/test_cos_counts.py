"""What collaborative decoding costs and records: forwards, rounds and distributions, step by step and by hand."""

import math
import threading
import time
from collections import Counter

import naive_cos as naive
import oracle
import pytest
import torch
from builders_engine import build
from cases import mostly_long
from collaborations import PAIRWISE, ROLES, THREE, Group, made_pair, tables
from gates import DEVICE, GREEDY, decode
from watched import Told

from specbench.engine.clock import Stopwatch
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.types import Sampling
from specbench.measure.sample import round_row, timed
from specbench.methods.collaborative.cos.collaborate import Collaboration


def steps(name, models, prompt, count, sampling=GREEDY, **settings):
    """The first rounds of a text until `count` tokens, uncut, each with its forwards [(member, width)]."""
    watch = Told()
    method = build(made_pair(models), name, watch, **settings)
    results, text = [], []
    for step in method.rounds(prompt, sampling, torch.Generator(DEVICE).manual_seed(0)):
        known = len(prompt) + len(text)
        for _, width, context in watch.forwards:
            assert context + width <= known + method.reach, "no more than the method says beyond the text"
        results.append((step, [(ROLES.index(role), width) for role, width, _ in watch.forwards]))
        watch.forwards.clear()
        text += step.tokens
        if len(text) >= count:
            return results


def forwards(result) -> list[list[int]]:
    """Of each round behind the prefill: which members read, in turn."""
    return [[member for member, _ in one] for _, one in result[1:]]


# By hand --------------------------------------------------------------------------------------------------------------


# Figure 7, proposal lengths 3, 2, 1. Token t is followed by t + 1. The first token, 1, is the prefill's, so x_1 … x_9
# are 2 … 10; x_5 = 6 is what the second model alone says behind x_4 = 5: the others say 11 = x_5'.
SEVEN = [naive.successor(24, {5: 11}), naive.successor(24, {}), naive.successor(24, {5: 11})]


def test_figure_7_in_the_reference():
    combine = naive.weighted(1 / 3, 1 / 3, 1 / 3)
    calls = naive.cos_greedy([naive.reader(model) for model in SEVEN], combine, (3, 2, 1), (0, 1, 2), [0, 1], 5)
    assert [(call.model, call.fed, call.stored, call.left, call.committed) for call in calls] == [
        (0, (1, 1, 1), (3, 0, 0), (3, 0, 0), []),
        (1, (4, 1), (3, 4, 0), (3, 5, 0), []),
        (2, (6,), (3, 5, 6), (0, 2, 3), [2, 3, 4]),
        (0, (4,), (4, 2, 3), (0, 0, 0), [5, 11]),
    ]
    assert calls[-1].judged == [(5, 1), (6, 1)] and calls[-1].cleared == [(7, 2), (8, 0)]


def test_figure_7(monkeypatch):
    caches, judge = [], Collaboration.judge

    def watched(self):
        before = self.cached
        verdict = judge(self)
        caches.append((before, self.cached))
        return verdict

    monkeypatch.setattr(Collaboration, "judge", watched)
    result = steps("cos", SEVEN, [0], 9, gamma=[3, 2, 1], proposer="draft")
    assert caches[:3] == [
        ([3, 4, 0], [3, 4, 0]),  # step 2: M_2 scores x_1, x_2, x_3 and adds x_4; x_5 follows
        ([3, 5, 6], [0, 2, 3]),  # step 3: M_3 scores x_1 … x_5 and adds x_6; three pass, their rows go (step 4)
        ([4, 2, 3], [0, 0, 0]),  # step 5: M_1 scores x_4, x_5, x_6 and adds x_7; x_5 falls, all goes (step 6)
    ]
    first, second, third = (one.verdict for one, _ in result[1:4])
    assert result[1][1] == [(0, 1)] * 3 + [(1, 4), (1, 1), (2, 6)]
    assert (first.drafted, first.accepted, first.token, first.proposers) == ([2, 3, 4], 3, None, [0, 0, 0])
    assert result[2][1] == [(0, 4)], "x_8 and x_9 are not proposed: the verdict comes first, as in the released code"
    assert (second.drafted, second.accepted, second.token) == ([5, 6, 7, 8], 1, 11)
    assert (second.proposers, second.targets) == ([1, 1, 2, 0], [5, 11, -1, -1])
    assert second.decisions() == ["accepted", "rejected", "unread", "unread"]
    # Logits are 9 or 0, so of r two thirds are on 11 and one third is on 6, but for what is left to the other tokens.
    assert second.ratios[:2] == pytest.approx([1, (math.exp(9) + 2) / (2 * math.exp(9) + 1)])
    assert all(math.isnan(x) for x in second.ratios[2:])
    assert second.overlaps is None, "greedy"
    assert result[3][1] == [(0, 1)] * 3 + [(1, 4), (1, 1), (2, 6)], "as in step 1"
    assert third.drafted == [12, 13, 14]


def test_figure_3():
    """Three models that agree, one token each: x_1 is judged in step 3; from then on a forward is a token."""
    result = steps("cos", [naive.successor(40, {})] * 3, [0], 9, gamma=[1, 1, 1])
    assert [one for _, one in result[1:5]] == [[(0, 1), (1, 2), (2, 3)], [(0, 3)], [(1, 3)], [(2, 3)]]
    assert [one.tokens for one, _ in result] == [[k] for k in range(1, 10)]
    assert [one.verdict.proposers for one, _ in result[1:5]] == [[0], [1], [2], [0]]


def test_two_models_that_agree_give_a_token_a_forward():
    """γ = 1, 1: one forward more than tokens, where standard decoding takes two for each."""
    models = [naive.successor(64, {})] * 2
    assert forwards(steps("cos", models, [0], 7)) == [[0, 1], [0], [1], [0], [1], [0]]
    assert forwards(steps("ensemble", models, [0], 4)) == [[0, 1]] * 3
    # γ = 3, 2 from the second model on: 2 and 3 tokens by turns, each block scored by the forward that goes on.
    result = steps("cos", models, [0], 13, gamma=[3, 2], proposer="target")
    assert forwards(result) == [[1, 1, 0], [0, 0, 1], [1, 0], [0, 0, 1], [1, 0]]
    assert [len(one.tokens) for one, _ in result] == [1, 2, 3, 2, 3, 2]


# All put most on a token of their own and second most on the same one, which the mixture prefers to either.
DIVIDED = [0.5, 0.4]


def divided(count: int, size: int = 12) -> list[naive.Table]:
    def row(token: int, member: int) -> list[float]:
        chances = [0.1 / (size - 2)] * size
        chances[(token + 1 + member) % size], chances[(token + 5) % size] = DIVIDED
        return chances

    return [naive.rows_of([[*row(token, member)] for token in range(size)]) for member in range(count)]


@pytest.mark.parametrize(("count", "proposer"), [(2, "draft"), (2, "target"), (3, "draft"), (3, "math")])
def test_models_that_never_propose_r_cost_what_the_standard_does(count, proposer):
    """γ = 1 and every proposal rejected: each model reads once a token; nothing is gained, nothing lost (Cor. 3.7)."""
    result = steps("cos", divided(count), [0], 9, gamma=[1] * count, proposer=proposer)
    assert all(sorted(forward) == list(range(count)) for forward in forwards(result))
    assert [one.tokens for one, _ in result] == [[5 * k % 12] for k in range(1, 10)]
    for one, _ in result[1:]:
        assert (one.verdict.accepted, one.drafted) == (0, count)
        assert one.verdict.decisions() == ["rejected"] + ["unread"] * (count - 1)


def test_rejected_blocks_of_naive_and_sd():
    for name, reads in (("cos-naive", [0, 0, 0, 1]), ("cos-sd", [0, 0, 0, 0, 1])):
        result = steps(name, divided(2), [0], 5, gamma=3, proposer="draft")
        assert forwards(result) == [reads] * 4
        assert [one.tokens for one, _ in result] == [[5], [10], [3], [8], [1]]
    for name, reads, widths in (("cos-naive", [0, 0, 1], [1, 1, 2]), ("cos-sd", [0, 0, 0, 1], [1, 1, 3, 3])):
        result = steps(name, [naive.successor(40, {})] * 2, [0], 7, gamma=2, proposer="draft")
        assert forwards(result) == [reads] * (3 if name == "cos-naive" else 2)
        assert [[width for _, width in one] for _, one in result[1:3]] == [widths, widths]
        assert result[1][0].verdict.token == (None if name == "cos-naive" else 4)


# Against the slow second implementation -------------------------------------------------------------------------------


def expected_rounds(calls: list[naive.Call]) -> list[tuple[list[tuple[int, int]], naive.Call]]:
    """Calls as rounds: what was fed since the last verdict, and the call that ended with one."""
    rounds, fed = [], []
    for at, call in enumerate(calls):
        fresh = at == 0 or calls[at - 1].correction is not None
        ahead = len(call.fed) if fresh else 1  # forwards before the verdict
        fed += [(call.model, width) for width in call.fed[:ahead]]
        if call.judged:
            rounds.append((fed, call))
            fed = []
        fed = fed + [(call.model, width) for width in call.fed[ahead:]]
    return rounds


@mostly_long(
    "architecture, case, gammas, proposer",
    [
        ("llama", "weighted", [1, 1], "draft"),
        ("llama", "contrastive", [3, 2], "target"),
        ("gemma2", "weights 0.3", [5, 1], "draft"),
        ("llama", "three", [3, 2, 1], "draft"),
        ("opt", "three", [1, 2, 3], "math"),
        ("qwen3", "three", [2, 1, 1], "target"),
    ],
    lambda architecture, case, gammas, proposer: case in ("weights 0.3", "contrastive"),
)
def test_every_step_equals_the_reference(architecture, case, gammas, proposer):
    """Which model reads how many tokens, what is judged, what falls, and the sizes of C_i, round by round."""
    settings, combine = THREE if case == "three" else PAIRWISE[case]
    group = Group(architecture, len(gammas), combine)
    first = ROLES.index(proposer)
    order = [first, *(i for i in range(len(gammas)) if i != first)]
    calls = naive.cos_greedy(group.readers, combine, gammas, order, group.prompt + group.text[:1], 40)
    expected = expected_rounds(calls)
    models = list(group.pair.models.values())
    result = steps("cos", models, group.prompt, 200, gamma=gammas, proposer=proposer, **settings)[1:]
    for (one, fed), (reads, call) in zip(result, expected, strict=False):
        drafted = call.judged + (call.cleared if call.correction is not None else [])
        assert fed == reads
        assert one.tokens == call.committed == one.verdict.committed
        assert list(zip(one.verdict.drafted, one.verdict.proposers, strict=True)) == drafted
        assert (one.verdict.accepted, one.verdict.token) == (call.accepted, call.correction)
    assert len(expected) > 8 and len({call.accepted for _, call in expected}) > 1
    assert any(call.correction is None for _, call in expected) and any(call.cleared for _, call in expected)


@pytest.mark.parametrize("name", ("cos-naive", "cos-sd"))
@mostly_long(
    "case, proposer",
    [("weighted", "draft"), ("contrastive", "draft"), ("three", "math")],
    (("weighted", "draft"), ("contrastive", "draft")),
)
def test_every_block_equals_the_reference(name, case, proposer):
    settings, combine = THREE if case == "three" else PAIRWISE[case]
    group = Group("llama", 3 if case == "three" else 2, combine)
    at, sd = ROLES.index(proposer), name == "cos-sd"
    blocks = naive.block_greedy(group.readers, combine, 3, at, group.prompt + group.text[:1], 40, bonus=sd)
    models = list(group.pair.models.values())
    result = steps(name, models, group.prompt, 200, gamma=3, proposer=proposer, **settings)[1:]
    for (one, fed), block in zip(result, blocks, strict=False):
        assert (one.verdict.drafted, one.verdict.accepted) == (block.drafted, block.accepted)
        assert (one.verdict.token, one.tokens) == (block.token, block.committed)
        assert tuple(Counter(member for member, _ in fed)[i] for i in range(len(models))) == block.forwards
        assert {width for member, width in fed if member != at} == {3 + sd}
    assert len(blocks) > 8 and len({block.accepted for block in blocks}) > 2


# Sampled: overlaps, ratios, counts ------------------------------------------------------------------------------------


SAMPLED = [
    ("cos", {"gamma": [3, 1], "weights": 0.3}, naive.weighted(0.3, 0.7), (0.3, 0.7), Sampling(1.0)),
    ("cos", {"gamma": [2, 2], "weights": 0.6}, naive.weighted(0.6, 0.4), (0.6, 0.4), Sampling(0.7, top_p=0.8)),
    ("cos", {"gamma": [2, 1, 3], **THREE[0]}, THREE[1], (0.5, 0.3, 0.2), Sampling(1.0, top_k=4)),
    ("cos-naive", {"gamma": 3, **THREE[0]}, THREE[1], (0.5, 0.3, 0.2), Sampling(1.0)),
    ("cos-sd", {"gamma": 3, "weights": 0.2}, naive.weighted(0.2, 0.8), (0.2, 0.8), Sampling(1.0)),
    ("cos", {"gamma": [3, 1], "combine": "contrastive"}, naive.contrastive(0.1), None, Sampling(0.8, top_p=0.9)),
]


@pytest.mark.parametrize(
    ("name", "settings", "combine", "weights", "sampling"), SAMPLED, ids=[f"{one[0]} {one[1]}" for one in SAMPLED]
)
def test_what_rounds_record_equals_the_reference(name, settings, combine, weights, sampling):
    """Overlap, q, r and the best of r at each judged token; of a weighted ensemble no overlap is below the weight."""
    count = len(weights or (0, 0))
    readers = [naive.reader(model) for model in tables(count)]
    text, rounds = decode(build(made_pair(tables(count)), name, **settings), [0], 400, sampling)
    sampler, context, unscored, lowest = (
        naive.Sampler(sampling.temperature, sampling.top_k, sampling.top_p),
        [0],
        0,
        1.0,
    )
    for round_ in rounds:
        verdict, tokens = round_.verdict, list(context)
        for k, token in enumerate(verdict.drafted if verdict else []):
            if verdict.targets[k] < 0:
                unscored += 1
                assert math.isnan(verdict.overlaps[k]) and math.isnan(verdict.ratios[k])
                continue
            proposer = verdict.proposers[k]
            q = oracle.warp(readers[proposer](tokens), *sampler)
            r = naive.combined(readers, combine, tokens, sampler)
            overlap = naive.overlap(readers, combine, tokens, proposer, sampler)
            assert verdict.overlaps[k] == pytest.approx(overlap, abs=1e-9)
            assert verdict.confidences[k] == pytest.approx(float(q[token]), abs=1e-9)
            assert verdict.ratios[k] == pytest.approx(float(r[token] / r.max()), abs=1e-9)
            assert verdict.targets[k] == oracle.best(r)
            if weights:
                assert verdict.overlaps[k] >= weights[proposer] - 1e-9
                lowest = min(lowest, verdict.overlaps[k] - weights[proposer])
            tokens.append(token)
        context += round_.tokens
    assert context[1:] == text
    assert (unscored > 20) == (name == "cos"), "only cos clears tokens that not all have scored"
    if name == "cos":
        assert {p for round_ in rounds[1:] for p in round_.verdict.proposers} == set(range(count))


def test_acceptance_is_the_overlap():
    """The share of a proposer's tokens that stand is the mean overlap where they were tested (Eq. 6 and 7)."""
    pair = made_pair(tables(2))
    _, rounds = decode(build(pair, "cos", gamma=[2, 2], weights=0.4), [0], 6000, Sampling(1.0))
    for member in range(2):
        tested, kept = [], 0
        for verdict in (round_.verdict for round_ in rounds[1:-1]):
            for k, decision in enumerate(verdict.decisions()):
                if verdict.proposers[k] == member and decision in ("accepted", "rejected"):
                    tested.append(verdict.overlaps[k])
                    kept += decision == "accepted"
        assert len(tested) > 1000
        deviation = math.sqrt(sum(x * (1 - x) for x in tested))
        assert abs(kept - sum(tested)) < 4 * deviation


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cos", {"gamma": [3, 1, 2]}),
        ("cos", {"gamma": [1, 1, 1], "proposer": "math"}),
        ("cos-naive", {"gamma": 4}),
        ("cos-sd", {"gamma": 4}),
        ("ensemble", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("sampling", (GREEDY, Sampling(1.0)), ids=("greedy", "sampled"))
def test_identities_of_counts(name, settings, sampling):
    """D = accepted + rejected + unread + cut, C = accepted + correction, and the forwards of all rounds are all."""
    watch, models = Stopwatch(torch.device(DEVICE)), tables(3)
    pair = made_pair(models)
    method = build(pair, name, watch, **settings)
    proposals = []
    propose = Collaboration.propose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Collaboration, "propose", lambda self, i: (proposals.append(i), propose(self, i))[1])
        rounds = timed(iter(ended(method, sampling)), watch)
    laps = watch.laps()
    rows = [round_row(i, one, lap, pair.extra_members) for i, (one, lap) in enumerate(zip(rounds, laps, strict=True))]
    assert rows[0]["target_forwards"] == rows[0]["draft_forwards"] == rows[0]["member_forwards"][0] == 1
    for row, one in zip(rows[1:], rounds[1:], strict=True):
        if name == "ensemble":
            assert (row["drafted"], row["committed"], row["target_forwards"]) == (0, 1, 1)
            continue
        kinds = Counter(one.verdict.decisions(len(one.tokens) if one.truncated else None))
        assert row["drafted"] == sum(kinds.values()) == len(row["draft_tokens"]) == len(row["proposers"])
        assert row["accepted"] == kinds["accepted"]
        assert kinds["rejected"] <= 1 and (kinds["unread"] == 0 or kinds["rejected"])
        follows = one.verdict.token is not None and not one.truncated
        assert row["committed"] == row["accepted"] + follows
        assert name == "cos-sd" or (one.verdict.token is not None) == (one.verdict.accepted < min_scored(one.verdict))
        assert (row["overlaps"] is None) == sampling.greedy
    if name != "ensemble":
        # Whatever was proposed was judged or cleared, but for what was pending when the text ended.
        pending = len(proposals) - sum(row["drafted"] for row in rows)
        assert 0 <= pending <= method.reach
        assert pending == 0 or name == "cos"
    total = Counter({"target": 0, "draft": 0, "math": 0})
    for row in rows:
        total += Counter(target=row["target_forwards"], draft=row["draft_forwards"], math=row["member_forwards"][0])
    assert total == Counter(forward.model for lap in laps for forward in lap.forwards)
    assert sum(row["committed"] for row in rows) == 101


def min_scored(verdict) -> int:
    """How many of the drafted tokens all models had scored."""
    return sum(target >= 0 for target in verdict.targets)


def ended(method, sampling):
    """A text of 101 tokens."""
    ending = Ending(Limits(101, frozenset()), lambda ids: "")
    return until_end(method.rounds([0], sampling, torch.Generator(DEVICE).manual_seed(3)), ending)


class Together(naive.Table):
    """Reads a single token only while all others do, and takes its time for it."""

    def __init__(self, barrier: threading.Barrier, seconds: float) -> None:
        super().__init__(torch.eye(8))
        self.barrier, self.seconds = barrier, seconds

    def forward(self, ids, **others):
        if ids.shape[1] == 1:
            self.barrier.wait(10)
            time.sleep(self.seconds)
        return super().forward(ids, **others)

    def __deepcopy__(self, memo):  # a barrier is shared or is none
        return Together(self.barrier, self.seconds)


@pytest.mark.skipif(DEVICE != "cpu", reason="the host's clock is read on a CPU only")
def test_forwards_at_the_same_time_are_each_timed():
    """ensemble-parallel: all models read at once, and each forward has its own seconds."""
    barrier = threading.Barrier(3)
    needed = (0.01, 0.02, 0.03)
    watch = Stopwatch(torch.device(DEVICE))
    method = build(made_pair([Together(barrier, seconds) for seconds in needed]), "ensemble-parallel", watch)
    rounds = method.rounds([0, 1], GREEDY, torch.Generator())
    timed((next(rounds) for _ in range(11)), watch)
    for lap in watch.laps()[1:]:
        assert Counter(forward.model for forward in lap.forwards) == Counter(ROLES[:3])
        for role, seconds in zip(ROLES[:3], needed, strict=True):
            assert lap.time(role) >= seconds, role
    fastest = min(lap.seconds for lap in watch.laps()[1:])  # others may hold up single ones
    assert fastest < sum(needed), "one after another"
