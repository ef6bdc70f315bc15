"""Routed drafts: the choice by hand, drafts of the chosen model alone, exact texts and laws."""

from types import SimpleNamespace

import oracle
import pytest
import torch
from builders_engine import build, made
from collaborations import made_pair
from gates import DEVICE, decode, lively, pair
from law import fit
from recalled import recalled
from refusals import one_line_error
from relatives import relatives
from tabled import V
from watched import Told

from specbench.engine.types import Sampling, Verdict
from specbench.methods.chains.sps import SpS
from specbench_extras.several_drafts.fused import Panel
from specbench_extras.several_drafts.routed import RoutedDrafter, Router

ALPHA = 1e-4  # of a right rule being refused


def round_of(router: Router, said: list[list[int]], targets: list[int], accepted: int) -> None:
    """A round in which the chosen models said these tokens, and so many of the draft were accepted."""
    router.panel.chosen = router.choose()
    router.panel.said = [torch.tensor(row) for row in said]
    router.observe(Verdict(tuple(range(accepted)), 0, [0] * len(said), targets, [1.0] * len(said)))


def test_the_choice_by_hand():
    """Three drafters, one at a time; a score keeps three quarters of itself."""
    router = Router(SimpleNamespace(sessions=[None] * 3), 1, 0.75, 2)
    assert router.choose() == [0]
    round_of(router, [[7], [8], [9]], [7, 8, 1], accepted=2)  # tested: 3 places, right at 2
    assert router.state() == {"scores": [2 / 3, 1.0, 1.0], "turns": [1, 0, 0], "explore": False}
    assert router.choose() == [1], "those without a turn go first"
    round_of(router, [[7], [8]], [7, 8], accepted=2)
    round_of(router, [[5], [6]], [7, 8], accepted=0)  # model 2: wrong at the only place that was tested
    assert router.scores == [2 / 3, 1.0, 0.0] and router.turns == [1, 1, 1]
    assert router.explore and router.choose() == [0], "few were accepted: of the others, the first with fewest turns"
    round_of(router, [[7], [7]], [7, 7], accepted=2)
    assert router.scores[0] == pytest.approx(0.75 * 2 / 3 + 0.25) and router.choose() == [1]
    again = Router(router.panel, 1, 0.75, 2)
    again.restore(router.state())
    assert again.choose() == [1] and again.state() == router.state()
    router.reset()
    assert router.choose() == [0] and router.state()["turns"] == [0, 0, 0]


def test_two_at_a_time():
    """Each has its own score; on trial, the best stays."""
    router = Router(SimpleNamespace(sessions=[None] * 3), 2, 0.0, 2)
    round_of(router, [[7, 7], [8, 1]], [7, 8], accepted=2)
    assert router.scores == [1.0, 0.5, 1.0] and router.choose() == [0, 2]
    round_of(router, [[7, 1], [8, 8]], [7, 8], accepted=0)  # tested: the first place
    assert router.scores == [1.0, 0.5, 0.0]
    assert router.choose() == [0, 2], "the one with fewest turns, of those that are not among the best"
    router.explore = False
    assert router.choose() == [0, 1]


def routed(models, watch=None, **changes):
    return build(models, "routed", watch, **({"gamma": 3, "least": 3} | changes))


def test_drafts_are_those_of_the_chosen_model():
    """Held against whole forwards of that model, over several texts, of which the second begins where it learnt."""
    target, drafts = relatives(3)
    method = routed(made_pair([drafts[0], target, *drafts[1:]]))
    tried = set()
    for length in (12, 9):
        prompt, text = lively(pair("llama")[0], length, 20)
        rounds, router = method.rounds(prompt, Sampling(), torch.Generator(DEVICE)), method.drafter.router
        context = [*prompt, *next(rounds).tokens]
        while len(context) < len(prompt) + 20:
            (leader,) = router.choose()
            tried.add(leader)
            drafted = oracle.greedy(drafts[leader], context, 3)
            step = next(rounds)
            assert step.verdict.drafted == drafted
            context += step.tokens
        assert context[len(prompt) : len(prompt) + 20] == text
    assert tried == {0, 1, 2}


def test_models_that_are_not_chosen_read_nothing():
    target, drafts = relatives(3)
    watch = Told()
    method = routed(made_pair([drafts[0], target, *drafts[1:]]), watch, least=0)
    decode(method, [1, 2, 3], 2)  # one round by the first
    assert {role for role, *_ in watch.forwards} == {"target", "draft"}
    decode(method, [1, 2, 3], 2)  # then the second has its turn, and reads the prompt
    assert {role for role, *_ in watch.forwards} == {"target", "draft", "math"}
    assert [width for role, width, _ in watch.forwards if role == "math"][:2] == [3, 1]


def test_a_state_leads_to_the_same_rounds():
    target, drafts = relatives(3)
    models = made_pair([drafts[0], target, *drafts[1:]])
    first, second = routed(models), routed(models)
    decode(first, [1, 2, 3], 12)
    second.restore(first.state())
    assert decode(second, [4, 5, 6], 12)[1] == decode(first, [4, 5, 6], 12)[1]
    assert second.state() == first.state()
    first.reset("another task")
    assert first.state()["turns"] == [0, 0, 0]


@pytest.mark.long
@pytest.mark.parametrize("drafters", (1, 2))
def test_samples_from_the_target(drafters):
    """Though the choice hangs on what was accepted before."""
    target, *others = (oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for seed in (1, 2, 3, 4))
    readers = Panel([recalled(model, role) for model, role in zip(others, ("draft", "math", "code"), strict=True)])
    method = SpS(recalled(target, "target"), RoutedDrafter(readers, Router(readers, drafters, 0.5, 2)), 3)
    fitted = fit(method, target, [1, 3, 2], 4, Sampling(1.0), 300)
    assert fitted.p > ALPHA and fitted.accepted > 80 and fitted.rejected > 80
    assert min(method.drafter.router.turns) > 20


def test_what_ships_and_what_is_refused():
    target, drafts = relatives(2)
    method = routed(made_pair([drafts[0], target, drafts[1]]))
    assert method.lossless and method.reach == 4
    prompt, text = lively(pair("llama")[0], 12, 20)
    alone, plain = (decode(build(made(), name, gamma=4), prompt, 20) for name in ("routed", "sps"))
    assert alone[0] == text and [step.verdict for step in alone[1]] == [step.verdict for step in plain[1]]
    with one_line_error("routed: memory"):
        routed(made_pair([drafts[0], target, drafts[1]]), memory=1.0)
