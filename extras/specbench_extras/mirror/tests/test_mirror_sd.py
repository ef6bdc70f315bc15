"""Mirror-SD: its rounds are those of plain speculative sampling; which drafts are ready, and what the branches cost."""

import oracle
import pytest
import torch
from builders_engine import build, made
from early_exit import exit_logits
from gates import DEVICE, decode, lively_prompt, pair
from judging import assert_rounds
from law import Fit, fit
from recalled import recalled
from refusals import one_line_error
from tiny_runs import always, plan_of, save_pair, write_suite
from watched import Told

from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.measure import loop
from specbench.results import records
from specbench_extras.mirror.mirror import Branches, Mirror, MirrorDrafter

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
LONG = pytest.mark.long


def ready_rounds(target, prompt: list[int], rounds: list[oracle.Round], branches: int) -> list[bool]:
    """For each round, whether the draft before it was followed by a token that an exit after layer 1 named."""
    ready, text = [False], list(prompt)
    for drafted, accepted, token, _ in rounds[:-1]:
        text += drafted[:accepted]
        named = exit_logits(target, text, 1)[-1].argsort(descending=True)[:branches].tolist()
        ready.append(token in named)
        text.append(token)
    return ready


@pytest.mark.parametrize("branches", (pytest.param(1, marks=LONG), 3, pytest.param(8, marks=LONG)))
@pytest.mark.parametrize("prompt_length", (12, pytest.param(18, marks=LONG)))
def test_rounds_are_those_without_branches_and_early_names_make_drafts_ready(branches, prompt_length):
    """Ready drafts are told by the draft's forwards: there are none. References recompute everything."""
    prompt, text = lively_prompt("llama", prompt_length, 40)
    target, draft = oracle.tiny_pair("llama")
    watch = Told()
    method = build(made(*pair("llama")), "mirror", watch, gamma=3, branches=branches)
    rounds = method.rounds(prompt, Sampling(), torch.Generator(DEVICE))
    results, forwards = [next(rounds)], []
    first = results[0].tokens
    expected = oracle.sps_greedy(target, draft, [*prompt, *first], 39, 3)
    for _ in expected:
        watch.forwards.clear()
        results.append(next(rounds))
        forwards.append([role for role, *_ in watch.forwards])
    assert_rounds(results, expected)
    assert [token for step in results for token in step.tokens][:40] == text
    ready = ready_rounds(target, [*prompt, *first], expected, branches)
    assert [roles.count("draft") == 0 for roles in forwards] == ready and len(set(ready)) == 2


def test_what_a_round_reads():
    """A new draft by one call; the target once; branches as a tree of the draft and κ tokens a place, level by level.

    A place's own draft token begins no branch.
    """
    watch = Told()
    method = build(made(), "mirror", watch, gamma=3, branches=2)
    prompt = oracle.prompts(1, length=9)[0]
    rounds = method.rounds(prompt, Sampling(), torch.Generator(DEVICE))
    text = [*prompt, *next(rounds).tokens]
    sizes = set()
    for _ in range(12):
        watch.forwards.clear()
        step = next(rounds)
        drafts = [seen for seen in watch.forwards if seen[0] == "draft"]
        assert [seen[1:] for seen in watch.forwards if seen[0] == "target"] == [(4, len(text) - 1)]
        branches = [seen[1:] for seen in watch.forwards if seen[0] == "branches"]
        named = exit_logits(oracle.tiny_pair("llama")[0], text + step.verdict.drafted, 1)[-4:].topk(2).indices
        own = sum(token in row for token, row in zip(step.verdict.drafted, named.tolist(), strict=False))
        count = 8 - own
        assert branches == [(3 + count, len(text)), (count, len(text) + 3 + count), (count, len(text) + 3 + 2 * count)]
        assert sum(passes[-1] if len(passes) == 4 else 1 for passes in drafts) in (0, 3)
        assert max(width + context for width, context in branches) <= len(text) + method.reach
        text += step.tokens
        sizes.add(count)
    assert len(sizes) > 1


def drawn(sampling: Sampling, draws: int) -> Fit:
    target, draft = (oracle.tiny("llama", seed=seed, vocab=6).to(DEVICE) for seed in (1, 2))
    drafter = MirrorDrafter(recalled(draft, "draft"), layer_runner(EAGER, target), 2, 2, 1)
    return fit(Mirror(recalled(target, "target"), drafter), target, [1, 3, 2], 3, sampling, draws)


@pytest.mark.parametrize("sampling", (Sampling(1.0), pytest.param(Sampling(0.8, top_k=3), marks=LONG)), ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling, 150)
    assert p > ALPHA and accepted > 40 and rejected > 40


@pytest.mark.long
def test_wrong_laws_of_ready_drafts_are_found(monkeypatch):
    """Wrong: a ready draft is told as drawn from what another branch was drawn from."""
    right = Branches.draft
    monkeypatch.setattr(
        Branches, "draft", lambda self, branch: right(self._replace(probs=[q.roll(1, 0) for q in self.probs]), branch)
    )
    assert drawn(Sampling(1.0), 1000).p < ALPHA


def test_nothing_is_left_of_the_last_prompt():
    method, sampling = build(made(), "mirror", gamma=3, branches=4), Sampling(0.9)
    prompt, _ = lively_prompt("llama", 12, 30)
    first = decode(method, prompt, 20, sampling, seed=3)
    decode(method, [9, 8, 7], 10)
    assert decode(method, prompt, 20, sampling, seed=3) == first


@pytest.mark.long
def test_records_tell_branches_apart(tmp_path):
    """Columns of their own, and rounds whose draft was ready have no draft forwards."""
    save_pair(tmp_path, 12)
    write_suite(tmp_path, {"pocket_gsm8k": 28}, 2)
    plan = plan_of(tmp_path, ("sps", "mirror"), assignments=["sps.gamma=3", "mirror.gamma=3", "mirror.branches=2"])
    assert loop.execute(plan, tmp_path / "run", always)
    rounds = records.read_rows(tmp_path / "run", "rounds").to_pandas()
    rounds = rounds[(rounds["round"] > 0) & ~rounds.warmup & (rounds.drafted > 0)]
    own, other = rounds[rounds.method == "mirror"], rounds[rounds.method == "sps"]
    assert (own.branch_forwards == 3).all() and (own.branch_seconds > 0).all()
    assert set(own.draft_forwards) == {0, 3} and (own.draft_seconds[own.draft_forwards == 0] == 0).all()
    assert not other.branch_forwards.any() and not other.branch_seconds.any()
    parts = own.target_seconds + own.draft_seconds + own.branch_seconds
    assert (abs(own.model_seconds - parts) < 1e-9).all() and (own.model_seconds <= own.seconds).all()
    same = ["task", "doc_id", "round", "drafted", "accepted", "committed"]
    assert own[same].to_numpy().tolist() == other[same].to_numpy().tolist()


def test_what_ships_and_what_is_refused():
    method = build(made(), "mirror", branches=2)
    assert method.lossless and method.reach == 6 + 7 * 2 * 6 and method.drafter.reads == (1,)
    one_layer = oracle.tiny("llama", num_hidden_layers=1)
    with one_line_error("mirror reads states between two layers, but the target of made has one; use sps"):
        build(made(one_layer), "mirror", branches=2)


def test_a_draft_that_reads_no_trees_is_refused():
    drafter = MirrorDrafter(
        Session(pair("llama")[1], "draft", trees=False), layer_runner(EAGER, pair("llama")[0]), 2, 2, 1
    )
    method = Mirror(Session(pair("llama")[0], "target"), drafter)
    with one_line_error("reads chains only, no trees"):
        decode(method, [5, 6, 7], 8)
