"""Reinforcement of CoSpec's arbitrator: games whose best policy is known, the objective by hand, stops and resuming."""

import collections
import functools
import math

import numpy as np
import oracle
import pytest
import torch
from chain_models import chain
from chains import SIZE, Words
from gates import DEVICE
from jobs import stopping
from scipy.stats import binomtest

from specbench.config import UserError
from specbench.engine.generate import Ending, Limits
from specbench.engine.models.pair import Pair
from specbench.methods.collaborative.cospec import Block
from specbench.methods.collaborative.cospec_arbitrator import Adapter, load_own, new_arbitrator, own_parameters
from specbench.training.documents import Document
from specbench.training.recipe import load_recipe
from specbench_extras.cospec import rl
from specbench_extras.cospec.reading import Reading, logits_of
from specbench_extras.cospec.recipe import Rl
from specbench_extras.cospec.reward import Decisions, decision_advantages
from specbench_extras.cospec.rl import Played, Reinforcement, decisions, objective, reading_of
from specbench_extras.cospec.rollouts import Text, Turn

# The game. The target walks a ring of twelve tokens; after each even one of them the draft goes another way, and the
# token after that is the next but one of the ring. So whatever is kept shows in the text, and nothing else does.
RING = 12
TARGET = {s: (s + 1) % RING for s in range(RING)} | {20 + s: (s + 2) % RING for s in range(RING)}
DRAFT = TARGET | {s: 20 + s + (s // 2) % 2 for s in range(0, RING, 2)}  # 20 23 24 27 28 31
DRAFT |= {20 + s + 1: (s + 2) % RING for s in range(0, RING, 2)}
TARGET |= {20 + s + 1: (s + 2) % RING for s in range(0, RING, 2)}
GAMMA, LENGTH = 5, 19


@functools.cache
def game() -> Pair:
    target, draft = chain(TARGET).float(), chain(DRAFT).float()
    return Pair("made", {"target": target, "draft": draft, "arbitrator": draft}, Words())


def kept_in(text: str) -> list[int]:
    """The tokens of a text that only the draft says."""
    return [int(word) for word in text.split() if int(word) >= 20]


def without_odd(text: str) -> float:
    return float(not any(token % 2 for token in kept_in(text)))


def document(number: int, score=without_odd) -> Document:
    prompt = [32 + number % 8, 35, number % RING]
    return Document("made", number, prompt, f"hash of {number}", (), LENGTH, score)


def recipe(**changes) -> Rl:
    small = {"updates": 4, "prompts": 3, "group": 4, "temperature": 0, "epochs": 2, "batch": 8, "learning_rate": 0.05}
    return Rl(**{**load_recipe("cospec-rl", []).values, **small, "evaluate": 2, **changes})


def policy(seed: int | None = None):
    """A new arbitrator over the draft, with random parameters if a seed is given."""
    model = new_arbitrator(game().models["draft"], Adapter(rank=2, alpha=4), seed=0)
    if seed is not None:
        rng = torch.Generator().manual_seed(seed)
        own = {name: 0.3 * torch.randn(one.shape, generator=rng) for name, one in own_parameters(model).items()}
        load_own(model, own)
        model.get_output_embeddings().bias.data -= 1.5  # so that some answers are right and some are not
    return model


def reinforcement(settings=None, score=without_odd, seed=0, begin=None, gamma=GAMMA) -> Reinforcement:
    learned, held = [document(i, score) for i in range(12)], [document(i, score) for i in range(12, 18)]
    pair, both = game(), (policy(begin), policy(begin))
    return Reinforcement(pair, *both, learned, held, settings or recipe(), gamma, 0.0, True, seed)


def trained(tmp_path, training: Reinforcement, report=lambda facts: None) -> Reinforcement:
    training.report = report
    training.run(tmp_path / "checkpoint.pt", {"of": "the game"})
    return training


def parameters(training: Reinforcement) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in own_parameters(training.arbitrator).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name].cpu(), b[name].cpu()) for name in a)


def untimed(facts):
    return [{name: value for name, value in fact.items() if name != "seconds"} for fact in facts]


# Games


def chances(training: Reinforcement) -> dict[int, float]:
    """σ of the policy's logits at each of the draft's own tokens, by token, the mean over held-out texts."""
    texts, _ = training.roll_out(
        training.held, 1, 0.0, lambda number: lambda row, block, logits: (True for _ in logits)
    )
    counts = collections.defaultdict(list)
    for text in texts:
        for turn in text.turns:
            for i, logit in zip(turn.block.mismatches, turn.logits, strict=True):
                counts[turn.block.drafted[i]].append(1 / (1 + math.exp(-logit)))
    return {token: float(np.mean(values)) for token, values in counts.items()}


def test_the_game_is_as_it_is_told():
    assert sorted(DRAFT[s] for s in range(0, RING, 2)) == [20, 23, 24, 27, 28, 31]
    assert all(TARGET[DRAFT[s]] == DRAFT[DRAFT[s]] == s + 2 if s + 2 < RING else 0 for s in range(0, RING - 2, 2))
    assert oracle.greedy(game().models["target"].cpu(), [35, 3], 4) == [4, 5, 6, 7]
    assert oracle.greedy(game().models["draft"].cpu(), [35, 3], 5) == [4, 24, 6, 27, 8]
    game().models["target"].to(DEVICE), game().models["draft"].to(DEVICE)


@pytest.mark.long
def test_the_best_policy_is_learned(tmp_path):
    """An answer is right if no odd token of the draft is in it: keep the even ones, which gains tokens, no other."""
    settings = recipe(updates=14, prompts=6, group=6, length=0.05, evaluate=7)
    training = trained(tmp_path, reinforcement(settings))
    result = chances(training)
    assert {token for token, chance in result.items() if chance > 0.5} == {20, 24, 28}
    assert {token for token, chance in result.items() if chance < 0.5} == {23, 27, 31}
    first, last, best = training.history[0], training.history[-1], training.best["figures"]
    assert first["accuracy"] < 0.6 and last["accuracy"] > 0.85 and best["accuracy"] == 1.0
    # By hand: on the ring, after 0: 20 2 23 is drafted, 23 refused for 3; then 4 24 6 27. Half of them are kept.
    assert 0.4 <= best["kept"] <= 0.6
    load_own(training.arbitrator, training.best["own"])
    assert training.consider() == best, "the parameters that are kept are those that were evaluated"


@pytest.mark.long
def test_where_all_is_right_everything_is_kept(tmp_path):
    settings = recipe(updates=10, prompts=4, group=6, length=0.05, evaluate=5)
    training = trained(tmp_path, reinforcement(settings, score=lambda text: 1.0))
    assert min(chances(training).values()) > 0.5
    held = [one for one in training.history if "held_tau" in one]
    assert held[-1]["held_kept"] == 1.0 and held[-1]["held_accuracy"] == 1.0
    assert training.history[-1]["tau"] > training.history[0]["tau"] + 0.5
    assert training.best["figures"]["tau"] > GAMMA, "γ + 1 tokens a round but for the end of a text"


@pytest.mark.long
def test_where_all_is_wrong_nothing_explodes(tmp_path):
    training = trained(tmp_path, reinforcement(recipe(updates=6), score=lambda text: 0.0))
    assert len(training.history) == 6 and all(math.isfinite(v) for one in training.history for v in one.values())
    assert all(one["accuracy"] == 0 and one["returned"] <= 0 for one in training.history)
    assert all(bool(parameter.isfinite().all()) for parameter in training.parameters.values())
    assert max(abs(math.log(p / (1 - p))) for p in chances(training).values()) < 8


def test_without_a_difference_only_entropy_and_kl_act(tmp_path):
    """Groups whose rollouts are all the same (one answer, no reward of length) have no advantage."""
    settings = recipe(length=0, correct=1, entropy=0, kl=0, updates=2)
    training = reinforcement(settings, score=lambda text: 1.0, begin=3)
    before = parameters(training)
    assert same(before, parameters(trained(tmp_path, training)))


# What an update learns from


@functools.cache
def played():
    """A training with random parameters, its rollouts, and what is credited to them."""
    training = reinforcement(recipe(group=4, length=0.03), begin=6)
    documents = training.learned[:5]
    texts, rollouts = training.roll_out(documents, 4, 0.0, training.sampled)
    return training, documents, texts, rollouts, training.credited(texts, rollouts)


def test_rollouts_are_scored_and_noted():
    _, documents, texts, rollouts, _ = played()
    assert [text.prompt for text in texts] == [document.prompt for document in documents for _ in range(4)]
    for text, rollout in zip(texts, rollouts, strict=True):
        assert rollout.correct == bool(without_odd(text.ending.text()))
        # A kept token of the draft's own stands in the text, and none else does.
        kept = [turn.block.drafted[i] for turn in text.turns for i, k in zip(turn.decided, turn.kept, strict=True) if k]
        assert kept == kept_in(text.ending.text())
        assert sum(turn.emitted for turn in text.turns) + 1 == LENGTH == len(text.ending.tokens)
        for turn, round in zip(text.turns, rollout.rounds, strict=True):
            assert round.mismatches == tuple(i + 1 for i in turn.decided)
            assert (round.emitted, round.rejected) == (turn.emitted, turn.rejected)
            # log Σ exp of one logit √40 and 39 zeros, less the token's own, which is zero
            assert round.surprisals == pytest.approx(
                [math.log(39 + math.exp(math.sqrt(SIZE)))] * len(turn.decided), rel=1e-4
            )
    assert {True, False} == {rollout.correct for rollout in rollouts}


def test_what_is_credited_is_each_decisions_own():
    """Contexts, actions, logits before and warm, and advantages of the group with which a text shares its prompt."""
    training, _, texts, rollouts, result = played()
    having = [i for i, text in enumerate(texts) if any(turn.decided for turn in text.turns)]
    assert len(result) == len(having) > 10
    for i, one in zip(having, result, strict=True):
        at = i // 4
        group = [rollout for j, rollout in enumerate(rollouts) if j // 4 == at]
        turns = [turn for turn in texts[i].turns if turn.decided]
        assert [asked.context for asked in one.reading.rounds] == [turn.context for turn in turns]
        assert [asked.block for asked in one.reading.rounds] == [turn.block.tokens.tolist() for turn in turns]
        assert [asked.positions for asked in one.reading.rounds] == [turn.decided for turn in turns]
        assert one.reading.tokens == texts[i].tokens
        assert one.kept == [k for turn in turns for k in turn.kept]
        assert one.advantages == decision_advantages(group, training.recipe.reward)[i % 4]
        assert len(one.kept) == len(one.before) == len(one.advantages) == len(one.warm) == one.reading.logit_count
        with torch.no_grad():
            now = logits_of(training.arbitrator, [one.reading], True)
        assert one.before == pytest.approx(now.tolist(), abs=1e-4)
        assert one.warm == pytest.approx(now.tolist(), abs=1e-4), "both policies begin alike"
    assert np.std([x for one in result for x in one.before]) > 0.1


def test_the_warm_up_policy_is_held_to_and_stays(tmp_path):
    training = reinforcement(recipe(updates=2), begin=4)
    warm = {name: one.detach().clone() for name, one in own_parameters(training.warm).items()}
    load_own(training.arbitrator, own_parameters(policy(9)))
    texts, rollouts = training.roll_out(training.learned[:2], 4, 0.0, training.sampled)
    for one in training.credited(texts, rollouts):
        with torch.no_grad():
            assert one.warm == pytest.approx(logits_of(training.warm, [one.reading], True).tolist(), abs=1e-4)
            assert one.before == pytest.approx(logits_of(training.arbitrator, [one.reading], True).tolist(), abs=1e-4)
    trained(tmp_path, training)
    assert same(warm, {name: one.detach() for name, one in own_parameters(training.warm).items()})
    assert training.history[0]["kl"] > 0.001


def test_decisions_are_drawn_with_the_policys_chance():
    """Of the second mismatch only where the first was kept; every rollout has draws of its own, the same each time."""
    training, logits = reinforcement(), [0.7, -1.2]
    block = Block([1, 2], [3, 4], [0, 1], torch.tensor([1, 2, 3, 4]))

    def drawn(number, rows=3000):
        decide = training.sampled(number)
        return [tuple(decide(row, block, logits)) for row in range(rows)]

    draws = drawn(0)
    for i, logit in enumerate(logits):
        count = sum(draw[i] for draw in draws)
        assert binomtest(count, len(draws), 1 / (1 + math.exp(-logit))).pvalue > 1e-4
    both = sum(a and b for a, b in draws) / 3000
    assert both == pytest.approx(np.mean([a for a, _ in draws]) * np.mean([b for _, b in draws]), abs=0.03)
    assert drawn(0, 50) == draws[:50] and drawn(40, 50) == draws[40:90]
    training.step = 1
    assert drawn(0, 50) != draws[:50]
    extreme = training.sampled(0)
    assert list(extreme(0, block, [-5000.0, 5000.0])) == [False, True], "no number is too large"


def test_rollouts_do_not_depend_on_how_many_are_decoded_together(monkeypatch):
    """At T = 0: what is drawn for an action belongs to the rollout. At T > 0 tokens are drawn by chunks."""
    _, documents, texts, rollouts, _ = played()
    for rows in (1, 7):
        monkeypatch.setattr(rl, "ROWS", rows)
        training = reinforcement(recipe(group=4, length=0.03), begin=6)
        others, again = training.roll_out(documents, 4, 0.0, training.sampled)
        assert [one.answer for one in others] == [text.answer for text in texts]
        assert [[round.mismatches for round in one.rounds] for one in again] == [
            [round.mismatches for round in rollout.rounds] for rollout in rollouts
        ]


def test_sampled_rollouts_draw_tokens_of_their_own(monkeypatch):
    """Of one prompt, side by side: in every place, in every chunk that is decoded together, and in every update."""
    monkeypatch.setattr(rl, "ROWS", 60)
    training = reinforcement()

    def drawn():
        texts, _ = training.roll_out(
            [document(0)], 120, 1.0, lambda number: lambda row, block, logits: (True for _ in logits)
        )
        return [text.answer[:LENGTH] for text in texts]

    draws = drawn()
    assert len({tuple(answer) for answer in draws}) > 40
    # After the prompt's last token, 0, the target's logits are √40 for 1 and 0 for each of the 39 others.
    chance = 1 / (1 + 39 * math.exp(-math.sqrt(SIZE)))
    first = [answer[0] for answer in draws]
    assert len(set(first)) > 3 and binomtest(first.count(1), 120, chance).pvalue > 1e-4
    assert draws[:60] != draws[60:] and drawn() == draws
    training.step = 1
    assert drawn() != draws


def test_prompts_take_turns():
    training = reinforcement(recipe(prompts=5))
    names = [training.prompt(i).number for i in range(36)]
    passes = [names[i : i + 12] for i in (0, 12, 24)]
    assert all(sorted(pass_) == list(range(12)) for pass_ in passes) and passes[0] != passes[1] != passes[2]


# The objective


def by_hand(logits, some, settings):
    """Eq. 28 over the decisions, written out."""
    total = 0.0
    rows = [row for one in some for row in zip(one.kept, one.before, one.advantages, one.warm, strict=True)]
    for logit, (kept, before, advantage, warm) in zip(logits, rows, strict=True):
        new, old, start = (1 / (1 + math.exp(-x)) for x in (logit, before, warm))
        ratio = new / old if kept else (1 - new) / (1 - old)
        least, most = 1 - settings.ratio, 1 + settings.ratio
        surrogate = min(ratio * advantage, (least if ratio < least else most if ratio > most else ratio) * advantage)
        entropy = -new * math.log(new) - (1 - new) * math.log(1 - new)
        kl = new * math.log(new / start) + (1 - new) * math.log((1 - new) / (1 - start))
        total += -surrogate - settings.entropy * entropy + settings.kl * kl
    return total


NOTHING = Reading([], [])
CASES = [
    Played(NOTHING, [True, True, True], [0.2, -1.0, 2.0], [1.5, -0.7, 0.4], [0.1, 0.5, -2.0]),
    Played(NOTHING, [False, False, True, False], [0.3, 1.1, -0.4, 0.0], [0.9, -1.2, 2.0, -0.3], [1.0, -1.0, 0.0, 3.0]),
]
# Beyond both ends of the range and within it, for either sign of the advantage
POINTS = (
    [0.2, -1.0, 2.0, 0.3, 1.1, -0.4, 0.0],
    [1.4, 0.3, 1.0, -0.9, 2.5, -2.0, 0.15],
    [-1.0, -2.0, 2.2, 1.5, 0.2, 1.9, -1.4],
)


@pytest.mark.parametrize(
    "changes", ({}, {"kl": 0.7, "entropy": 0}, {"kl": 0, "entropy": 0.4}, {"ratio": 0.05}), ids=str
)
def test_the_objective_and_its_gradient(changes):
    settings = recipe(**changes)
    sides = set()
    for point in POINTS:
        logits = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        loss, facts = objective(logits, CASES, settings)
        assert float(loss) == pytest.approx(by_hand(point, CASES, settings), rel=1e-9)
        assert facts["decided"] == 7 and facts["loss"] == pytest.approx(float(loss))
        (gradient,) = torch.autograd.grad(loss, logits)
        for i in range(7):
            up, down = ([x + step * (i == j) for j, x in enumerate(point)] for step in (1e-6, -1e-6))
            slope = (by_hand(up, CASES, settings) - by_hand(down, CASES, settings)) / 2e-6
            assert float(gradient[i]) == pytest.approx(slope, abs=1e-6)
        sides.add(facts["clipped"])
    assert len(sides) > 1 and 0.0 in sides


def test_a_step_goes_the_way_of_the_advantage():
    """A decision that did well becomes likelier, whichever it was."""
    settings = recipe(kl=0, entropy=0)
    for kept, advantage in ((True, 1.0), (True, -1.0), (False, 1.0), (False, -1.0)):
        logits = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        loss, _ = objective(logits, [Played(NOTHING, [kept], [0.0], [advantage], [0.0])], settings)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert float(-gradient) == pytest.approx((1 if kept else -1) * advantage / 2)


def test_what_is_told_of_the_steps_are_means_over_decisions():
    logits = torch.tensor(POINTS[1], dtype=torch.float64)
    _, facts = objective(logits, CASES, recipe())
    chance = 1 / (1 + np.exp(-np.array(POINTS[1])))
    assert facts["entropy"] == pytest.approx(-(chance * np.log(chance) + (1 - chance) * np.log(1 - chance)).sum())
    assert facts["kl"] == pytest.approx(
        by_hand(POINTS[1], CASES, recipe(kl=1, entropy=0)) - by_hand(POINTS[1], CASES, recipe(kl=0, entropy=0))
    )


# Rounds by hand


def block(mismatches: list[int]) -> Block:
    drafted = [10, 11, 12, 13]
    targets = [30 + d if i in mismatches else d for i, d in enumerate(drafted)]
    return Block(drafted, targets, mismatches, torch.tensor([*drafted, *targets]))


def test_decisions_and_reading_of_turns_by_hand():
    """Kept and then rejected; none; kept throughout; and an end of text behind the first of two kept ones."""
    ending = Ending(Limits(99, frozenset()), Words().decode)
    turns = [
        Turn(3, block([1, 2]), [0.5, -0.5], 2, True, [4.0, 5.0], 3),
        Turn(6, block([]), [], 0, False, [], 5),
        Turn(11, block([0, 3]), [1.0, 2.0], 2, False, [6.0, 7.0], 5),
        Turn(16, block([0, 2, 3]), [1.5, 2.5, -3.5], 1, False, [1.0, 2.0, 3.0], 2),
    ]
    text = Text([1, 2], ending, list(range(50, 68)), turns)
    assert list(decisions(text)) == [
        Decisions((2, 3), 3, True, (4.0, 5.0)),
        Decisions((), 5, False, ()),
        Decisions((1, 4), 5, False, (6.0, 7.0)),
        Decisions((1,), 2, False, (1.0,)),
    ]
    assert [turn.kept for turn in turns] == [[True, False], [], [True, True], [True]]
    reading = reading_of(text)
    assert reading.tokens == [1, 2, *range(50, 68)]
    assert [(round_.context, round_.positions) for round_ in reading.rounds] == [(3, [1, 2]), (11, [0, 3]), (16, [0])]
    assert reading.rounds[0].block == [10, 11, 12, 13, 10, 41, 42, 13]
    nothing = Text([1, 2], ending, [5], [Turn(3, block([3]), [1.0], 0, False, [9.0], 2)])
    assert reading_of(nothing).rounds == [] and list(decisions(nothing)) == [Decisions((), 2, False, ())]


def test_figures_by_hand():
    training = reinforcement()
    turns = [Turn(3, block([1, 2]), [0.5, -0.5], 2, True, [4.0, 5.0], 3), Turn(6, block([]), [], 0, False, [], 5)]
    text = Text([1, 2], Ending(Limits(99, frozenset()), Words().decode), [], turns)
    rollout = rl.Rollout(True, tuple(decisions(text)))
    wrong = rl.Rollout(False, ())
    other = Text([1, 2], Ending(Limits(99, frozenset()), Words().decode), [], [])
    settings = recipe(correct=2, length=0.25)
    numbers = rl.figures([text, other], [rollout, wrong], settings)
    # 2 + two decisions of span 3 - 2; two rounds of 3 and 5 tokens; one of two decided was kept.
    assert vars(numbers) == {"returned": (2 + 2 * 0.25) / 2, "accuracy": 0.5, "tau": 4.0, "kept": 0.5}
    assert training.best == {}


# Stopping and going on


@pytest.mark.long
def test_a_killed_training_goes_on_and_ends_with_the_same_arbitrator(tmp_path, monkeypatch):
    """Killed between two updates, and another time in the middle of one, with steps already made."""
    whole = trained(tmp_path / "whole", reinforcement())
    assert len(whole.history) == 4 and whole.step == 4 and not same(parameters(whole), parameters(reinforcement()))
    within = stopping(10, objective)  # 3 prompts × 4 rollouts, 8 a step, 2 epochs: 4 an update
    for name, report in (("between", stopping(2)), ("within", lambda facts: None)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(rl, "objective", within if name == "within" else objective)
            trained(tmp_path / name, reinforcement(), report)
        heard = []
        again = trained(tmp_path / name, reinforcement(), heard.append)
        assert same(parameters(again), parameters(whole))
        assert untimed(again.history) == untimed(whole.history) == untimed(heard)
        assert same(again.best["own"], whole.best["own"]) and again.best["update"] == whole.best["update"]
    assert same(parameters(whole), parameters(trained(tmp_path / "twice", reinforcement())))
    assert not same(parameters(whole), parameters(trained(tmp_path / "other", reinforcement(seed=1))))


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(tmp_path):
    trained(tmp_path, reinforcement(recipe(updates=1)))
    file = tmp_path / "checkpoint.pt"
    with pytest.raises(UserError, match=r"begun with different of; delete it, or choose another --out"):
        reinforcement().run(file, {"of": "another"})
    whole = file.read_bytes()
    for data in (whole[:-100], b"", b"a checkpoint"):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"is damaged .*delete it"):
            reinforcement().run(file, {"of": "the game"})


def loadable(file) -> dict:
    state = torch.load(file, weights_only=True)
    assert all(bool(one.isfinite().all()) for one in (*state["own"].values(), *state["best"]["own"].values()))
    return state


@pytest.mark.parametrize("at", (0, 1))
def test_a_weight_that_is_no_number_stops_it_and_the_last_good_update_stays(tmp_path, monkeypatch, at):
    """Broken in the last step of update at + 1, behind its last loss."""
    training, real = reinforcement(recipe(evaluate=1)), Reinforcement.learn
    good = []

    def broken(self, some):
        good.append(parameters(self))
        result = real(self, some)
        if self.step == at:
            with torch.no_grad():
                next(iter(self.parameters.values())).fill_(math.nan)
        return result

    monkeypatch.setattr(Reinforcement, "learn", broken)
    with pytest.raises(UserError, match=rf"stopped at update {at + 1}: .*not a number"):
        trained(tmp_path, training)
    file = tmp_path / "checkpoint.pt"
    if at:
        state = loadable(file)
        assert state["step"] == at and same(state["own"], good[at])
    else:
        assert not file.exists() or loadable(file)["step"] == 0
    assert training.best["update"] <= at


def test_a_huge_step_is_one_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"stopped at update \d+: .*smaller learning_rate"):
        trained(tmp_path, reinforcement(recipe(learning_rate=1e30)))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([("entropy", 1e-4)] * 3, "no longer explores"),
        ([("entropy", 1e-4)] * 2 + [("entropy", 0.5)], ""),
        ([("accuracy", 0.6), ("accuracy", 0.29), ("accuracy", 0.2), ("accuracy", 0.1)], "accuracy fell below half"),
        ([("accuracy", 0.6), ("accuracy", 0.29), ("accuracy", 0.31), ("accuracy", 0.1)], ""),
        ([("accuracy", 0.0)] * 4, ""),
        ([("loss", math.nan)], "not a number"),
        ([("kl", math.inf)], "not a number"),
    ],
)
def test_what_counts_as_a_collapse(rows, why):
    training = reinforcement()
    usual = {"returned": 1.0, "accuracy": 0.6, "tau": 3.0, "kept": 0.5, "loss": 0.1, "entropy": 0.5, "kl": 0.1}
    training.history = [{**usual, name: value} for name, value in rows]
    result = training.wrong()
    assert (why in result) if why else result == ""


def test_a_collapsed_policy_stops_and_says_what_to_do(tmp_path):
    """Without entropy or KL, and rewarded for keeping all, a hasty one is soon sure of everything."""
    settings = recipe(updates=30, learning_rate=3.0, entropy=0, kl=0, length=0.1, evaluate=30)
    with pytest.raises(UserError) as caught:
        trained(tmp_path, reinforcement(settings, score=lambda text: 1.0))
    assert "no longer explores" in str(caught.value) and "larger kl or entropy" in str(caught.value)
    state = loadable(tmp_path / "checkpoint.pt")
    assert 1 <= state["step"] == len(state["told"])
    assert f"holds update {state['step']}" in str(caught.value)


@pytest.mark.long
def test_the_best_is_the_first_of_the_highest_held_out_return(tmp_path, monkeypatch):
    training, worth = reinforcement(recipe(evaluate=1)), iter([0.3, 0.1, 0.9, 0.9, 0.2])
    real, at_update = rl.figures, {}

    def figures(texts, rollouts, recipe):
        result = vars(real(texts, rollouts, recipe))
        return rl.Figures(**{**result, "returned": next(worth) if len(texts) == len(training.held) else 0.0})

    monkeypatch.setattr(rl, "figures", figures)
    assert len(training.held) != 12, "the rollouts of an update"

    def report(facts):
        at_update[facts["update"]] = parameters(training)
        if facts["update"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, training, report)
    training = trained(tmp_path, reinforcement(recipe(evaluate=1)))  # what was the best before it was killed still is
    assert [one["held_returned"] for one in training.history] == [0.1, 0.9, 0.9, 0.2]
    assert training.best["update"] == 2 and training.best["figures"]["returned"] == 0.9
    assert same(training.best["own"], at_update[2]) and not same(training.best["own"], at_update[3])


def test_it_is_evaluated_at_first_every_so_often_and_at_the_end(tmp_path):
    training = trained(tmp_path, reinforcement(recipe(updates=5, evaluate=2, epochs=1)))
    assert [one["update"] for one in training.history if "held_tau" in one] == [2, 4, 5]
    assert training.best["update"] in (0, 2, 4, 5)
