"""TLT: its bandit by hand, its trees those of the chosen size, and texts stay the target's own, greedy and sampled."""

import json
from collections import Counter
from functools import partial

import oracle
import pytest
import torch
from builders_engine import build
from gates import DEVICE, GREEDY, decode, lively_prompt, pair, tiny
from official_cases import official_cases
from refusals import one_line_error
from tabled import draw_for_each_branch, p_of_texts
from tiny_heads import trained

from specbench.engine.models.eagle_head import layers_read
from specbench.engine.session import Session
from specbench.engine.types import Sampling, Verdict
from specbench.methods.heads import eagle3
from specbench.methods.trees.eagle2 import Growing
from specbench_extras.tlt.tlt import Settings, Sized, SizedHead, Strategies, TreeBandit

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
SIZES = ((2, 2, 4), (3, 3, 9), (4, 1, 4))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def observe(bandit: Strategies, accepted: int) -> None:
    bandit.observe(Verdict(tuple(range(accepted)), 0, [1] * 4, [1] * 4, [1.0] * 4))


def test_the_bandit_by_hand():
    """Rounds of 1 and 2 forwards. Each is tried once: 3 / 1 and 4 / 2. Then the first, whose median falls from 3.

    After 1 / 1 it is 2, as much as the other one's: the first of equals. After another 1 it is 1, so the second one.
    """
    bandit = Strategies([1.0, 2.0], epsilon=0.0, window=99)
    chosen = []
    for accepted in (2, 3, 0, 0, 0, 5):
        chosen.append(bandit.choose(rng()))
        observe(bandit, accepted)
    assert chosen == [0, 1, 0, 0, 1, 1]
    assert bandit.state() == [[3.0, 1.0, 1.0], [2.0, 0.5, 3.0]]
    assert json.loads(json.dumps(bandit.state())) == bandit.state()
    other = Strategies([1.0, 2.0], epsilon=0.0, window=99)
    other.restore(bandit.state())
    assert other.choose(rng()) == bandit.choose(rng()) == 1
    bandit.reset()
    assert bandit.choose(rng()) == 0 and bandit.state() == [[], []]


def test_choices_are_those_of_its_own_code(monkeypatch):
    """320 of eight bandits, half of which explore, by the same random numbers."""
    cases = official_cases("tlt")
    assert sum(len(case["rounds"]) for case in cases) == 320
    for case in cases:
        bandit = Strategies(case["times"], case["epsilon"], case["window"])
        for drawn, at, accepted, chosen in case["rounds"]:
            numbers = torch.tensor([drawn, (at + 0.5) / len(case["times"])])
            monkeypatch.setattr(torch, "rand", lambda *_, numbers=numbers, **__: numbers)
            assert bandit.choose(rng()) == chosen
            observe(bandit, accepted)


def test_only_the_last_rounds_of_a_strategy_count():
    bandit = Strategies([1.0, 1.0], epsilon=0.0, window=2)
    bandit.restore([[9.0, 9.0], [2.0]])
    assert bandit.choose(rng()) == 0
    observe(bandit, 0)
    observe(bandit, 0)
    assert bandit.state() == [[1.0, 1.0], [2.0]] and bandit.choose(rng()) == 1


def test_a_share_of_rounds_tries_any_strategy():
    """ε = 0.6 of 3 strategies: the best one in 0.4 + 0.2 of all rounds, the others in 0.2 each; standard error 0.01."""
    bandit, drawn = Strategies([1.0] * 3, epsilon=0.6, window=9), rng(5)
    bandit.restore([[1.0], [3.0], [2.0]])
    counts = Counter(bandit.choose(drawn) for _ in range(2000))
    assert [counts[i] / 2000 for i in range(3)] == pytest.approx([0.2, 0.6, 0.2], abs=0.05)


def test_times_by_hand():
    """4 levels of 3 nodes, 9 tokens: 1 + 9 · .1 + 4 · .2 + 3 · 2 · .01 target forwards."""
    settings = Settings(strategies=((4, 3, 9),), epsilon=0, window=1, token=0.1, draft=0.2, draft_token=0.01)
    assert settings.times() == pytest.approx([2.76])


def test_trees_are_those_of_the_chosen_size():
    draft, context = pair("llama")[1], oracle.prompts(1, 12)[0]
    bandit = Strategies([1.0] * 3, epsilon=0.0, window=9)
    drafter = Sized(Session(draft, "draft"), SIZES, bandit)
    for levels, top_k, nodes in SIZES:
        drafted = drafter.propose(context, 9, GREEDY, rng())
        plain = Growing(Session(draft, "draft"), partial(eagle3.grow, top_k=top_k, depth=levels - 1, most=nodes))
        expected = plain.propose(context, 9, GREEDY, rng())
        assert drafted.tokens.tolist() == expected.tokens.tolist() and drafted.parents == expected.parents
        assert len(drafted.parents) == nodes
        observe(bandit, 0)


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_greedy_texts_are_the_targets_whatever_was_learned_before(architecture):
    prompt, text = lively_prompt(architecture, 12, 40)
    method = build(tiny(architecture), "tlt", strategies=SIZES, epsilon=0.3)
    tokens, rounds = decode(method, prompt, 40)
    assert tokens == text
    assert {len(round_.verdict.drafted) for round_ in rounds if round_.verdict} == {4, 9}
    learned = method.state()
    assert sum(map(len, learned)) == len([round_ for round_ in rounds if round_.verdict])
    again = decode(method, prompt, 40)
    method.reset()
    method.restore(learned)
    assert again[0] == text and decode(method, prompt, 40) == again


@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_a_head_drafts_trees_of_the_chosen_sizes_and_texts_stay_the_targets(architecture):
    target, head = pair(architecture)[0], trained(architecture, 12)
    bandit = Strategies([1.0] * 3, epsilon=0.3, window=99)
    session = Session(head, "draft", vocabulary=head.config.vocab_size)
    drafter = SizedHead(head, session, layers_read(target), SIZES, bandit)
    method = TreeBandit(Session(target, "target"), drafter, {"head": "hash"})
    prompt, text = lively_prompt(architecture, 12, 40)
    tokens, rounds = decode(method, prompt, 40)
    assert tokens == text
    drafts = [round_.verdict.parents for round_ in rounds[1:]]
    assert {(len(parents), parents.count(-1)) for parents in drafts} == {(4, 2), (9, 3), (4, 1)}
    assert sum(map(len, method.state())) == len(rounds) - 1 and method.inputs() == {"head": "hash"}
    assert sum(round_.accepted for round_ in rounds) > 5


def test_the_head_that_ships_is_taken(pocket):
    method = build(pocket, "tlt", drafter="eagle3")
    assert method.inputs() == build(pocket, "eagle3").inputs() and method.reach == 60
    with one_line_error("there is no head gone"):
        build(pocket, "tlt", drafter="eagle3", head="gone")


def made(target, draft) -> TreeBandit:
    return TreeBandit(target, Sized(draft, ((2, 2, 4), (3, 1, 3)), Strategies([1.0, 1.0], 0.5, 9)))


@pytest.mark.long
@pytest.mark.parametrize("sampling", (Sampling(0.7), Sampling(0.9, top_k=3, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling):
    assert p_of_texts(made, sampling, 700) > ALPHA


def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert p_of_texts(made, Sampling(0.7), 700) < ALPHA


def test_trees_that_do_not_fit_are_refused():
    with one_line_error("tlt: its rounds are of up to 5001 tokens", "choose smaller settings"):
        build(tiny("llama"), "tlt", strategies=((2, 2, 4), (3, 3, 5000)))


REFUSED = [
    ("tlt", {"strategies": []}, "tlt: strategies"),
    ("tlt", {"strategies": [[2, 2]]}, "tlt: strategies"),
    ("tlt", {"strategies": [[2, 0, 4]]}, "tlt: strategies"),
    ("tlt", {"epsilon": 1.5}, "tlt: epsilon"),
    ("tlt-online", {"strategies": []}, "tlt-online: strategies"),
    ("tlt-online", {"interval": 0}, "tlt-online: interval"),
    ("tlt-online", {"learning_rate": float("nan")}, "tlt-online: learning_rate"),
    ("tlt-online", {"steps": 0}, "tlt-online: steps"),
    ("tlt-online", {"step_decay": 1.5}, "tlt-online: step_decay"),
    ("tlt-online", {"head": "gone"}, "there is no head gone"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED, ids=str)
def test_bad_settings_are_one_line(pocket, name, changes, words):
    with one_line_error(words):
        build(pocket, name, **changes)
