"""Training of EAGLE-3's head by its trees: reward, advantage and loss by hand, gradients, the trees, resuming."""

import copy
import dataclasses
import functools
import math
import random

import oracle
import pytest
import tiny_heads
import torch
from chains import Words
from gates import decode, lively_prompt, pair
from jobs import goes_on, job_of
from made_documents import document
from naive_eagle import predicted, states
from tiny_heads import answered

from specbench import config
from specbench.config import UserError
from specbench.engine.models.eagle_head import EagleHead
from specbench.engine.models.heads import read_head, write_head
from specbench.engine.models.pair import Pair
from specbench.methods.heads import eagle3 as method
from specbench.training import heads
from specbench.training.answered import Answered
from specbench.training.heads import to_learn
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.gto import fit, reward
from specbench_extras.gto import train as gto
from specbench_extras.gto.fit import GroupTraining, branch_chances, first_places
from specbench_extras.gto.recipe import GroupRecipe
from specbench_extras.gto.trees import Judged

QUICK = {"groups": 2, "group": 3, "total_tokens": 9, "top_k": 3, "depth": 3, "steps": 2, "batch": 2, "autocast": False}
QUICK |= {"learning_rate": 0.01, "warmup": 0.0, "weight": 1.0}


def test_the_reward_of_a_tree_of_three_nodes_by_hand():
    """Two branches: a with its child b, p(a) = 0.5 and p(b | a) = 0.4, and c, p(c) = 0.3."""
    lengths = reward.expected_lengths([0.5, 0.3, 0.4], [-1, -1, 0])
    assert lengths == pytest.approx([0.3, 0.5 + 0.5 * 0.4])
    assert reward.tree_reward(lengths, 1.0) == pytest.approx(math.log(math.exp(0.3) + math.exp(0.7)))
    assert reward.tree_reward(lengths, 4.0) == pytest.approx(math.log(math.exp(1.2) + math.exp(2.8)) / 4)
    assert reward.expected_lengths([0.9, 0.5, 0.2], [-1, 0, 1]) == pytest.approx([0.9 + 0.45 + 0.09]), "a chain"


def test_advantages_by_hand():
    """Each group by itself; one whose rewards are equal teaches nothing."""
    gained = reward.advantages(torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [-1.0, -1.0, 2.0]]))
    third = math.sqrt(2 / 3)
    assert gained[0].tolist() == pytest.approx([-1 / third, 0, 1 / third], rel=1e-4)
    assert gained[1].tolist() == [0, 0, 0]
    assert gained[2].tolist() == pytest.approx([-1 / math.sqrt(2), -1 / math.sqrt(2), math.sqrt(2)], rel=1e-4)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope"),
    [(1.1, 2, 2.2, 2.2), (1.5, 2, 2.4, 0), (0.5, 2, 1, 1), (1.5, -2, -3, -3), (0.5, -2, -1.6, 0)],
)
def test_a_ratio_is_clipped_where_it_has_gone_far_enough(ratio, advantage, gain, slope):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    result = reward.clipped_gain(log_ratio, torch.tensor([float(advantage)]), 0.2)
    result.sum().backward()
    assert result.tolist() == pytest.approx([gain]) and log_ratio.grad.tolist() == pytest.approx([slope])


def test_groups_are_adjacent_places_that_no_other_group_has():
    rng = random.Random(0)
    assert first_places(3, 4, 2, rng) == []
    seen = set()
    for _ in range(60):
        firsts = first_places(11, 4, 2, rng)
        places = [first + i for first in firsts for i in range(4)]
        assert len(firsts) == 2 and firsts == sorted(firsts) and len(set(places)) == 8 and max(places) < 11
        seen.update(places)
    assert seen == set(range(11))
    assert first_places(11, 4, 9, random.Random(0)) == first_places(11, 4, 2, random.Random(0))


# Trees of a tiny target


@functools.cache
def models() -> Pair:
    target = pair("llama")[0]
    target.generation_config.eos_token_id = None
    return Pair("made", {"target": target}, Words(None, 96))


@functools.cache
def texts() -> tuple[Answered, ...]:
    """The text that the head has learned, and others."""
    prompt, text = lively_prompt("llama", 12, 30)
    return (Answered("lively", prompt + text, len(prompt)), *answered()[:3])


def begun(epochs: int = 12, ids=None) -> EagleHead:
    made = tiny_heads.trained("llama", epochs) if ids is None else tiny_heads.head("llama", ids)
    return to_learn(copy.deepcopy(made, {id(m): m for m in made.borrowed}), made.state_dict())


def training(head=None, some=None, **changes) -> GroupTraining:
    recipe = GroupRecipe(**{**load_recipe("eagle3-gto", []).values, **QUICK, **changes})
    return GroupTraining(models(), head or begun(), list(texts() if some is None else some), recipe, 0)


def naive_tree(head: EagleHead, tokens: list[int], seen: torch.Tensor, recipe: GroupRecipe):
    """EAGLE-2's tree after a text by a head without cache: paths of tokens with their probability, best first."""
    weights = {name: tensor.detach().double() for name, tensor in head.state_dict().items()}
    table = models().models["target"].get_input_embeddings().weight.double()
    ids = head.ids.tolist()

    def children(path):
        rows = states(weights, table, [*tokens[1:], *path], seen, 4, 2)
        logs = predicted(weights, rows[-1]).log_softmax(-1)
        best = logs.topk(recipe.top_k)
        return [((*path, ids[i]), float(v)) for v, i in zip(best.values, best.indices.tolist(), strict=True)]

    level = every = children(())
    for _ in range(recipe.depth):
        best = sorted(level, key=lambda node: -node[1])[: recipe.top_k]
        level = [(path, value + above) for node, above in best for path, value in children(node)]
        every = every + level
    return sorted(every, key=lambda node: -node[1])[: recipe.total_tokens - 1]


def test_a_trees_reward_and_its_accepted_branch_are_those_of_its_paths_one_by_one():
    """The target reads every path by itself; expected lengths are sums over prefixes."""
    run, rng = training(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in run.reference.parameters():
            parameter.add_(0.5 * parameter.std() * torch.randn(parameter.shape, generator=rng))
    target, rewards, lengths = copy.deepcopy(models().models["target"]), [], set()
    for text in texts()[:2]:
        places = [text.prompt, text.prompt + 1, text.prompt + 4]
        judged, tokens, _ = run.judged(text, places)
        assert tokens.tolist() == text.tokens[: places[-1] + 1]
        for place, one in zip(places, judged, strict=True):
            before = text.tokens[: place + 1]
            with torch.no_grad():
                out = target(torch.tensor([before]), output_hidden_states=True)
            seen = torch.cat([out.hidden_states[i][0, :-1] for i in (1, 1, 0)], -1)
            for head, worth in ((run.head, one.reward), (run.reference, one.reference)):
                paths = [path for path, _ in naive_tree(head, before, seen, run.recipe)]
                leaves = [path for path in paths if not any(other[:-1] == path for other in paths)]
                total = 0.0
                for leaf in leaves:
                    with torch.no_grad():
                        p = target(torch.tensor([[*before, *leaf]])).logits[0, place:].softmax(-1)
                    kept = [float(p[i, token]) for i, token in enumerate(leaf)]
                    total += math.exp(sum(math.prod(kept[: i + 1]) for i in range(len(kept))))
                assert worth == pytest.approx(math.log(total), abs=1e-4)
                if head is run.head:
                    greedy = tuple(oracle.greedy(target, before, 4))
                    whole = max((path for path in paths if greedy[: len(path)] == path), key=len, default=())
                    assert run.head.ids[one.branch].tolist() == list(whole)
                    lengths.add(len(whole))
            rewards.append(one.reward - one.reference)
    assert len(lengths) > 1 and len({round(value, 3) for value in rewards}) > 4


def test_a_head_that_is_its_reference_has_no_reward():
    run = training()
    for text in texts():
        judged, _, _ = run.judged(text, run.places(text, 0))
        assert [one.reward - one.reference for one in judged] == [0.0] * len(judged)
        assert float(run.tree_loss(text, run.places(text, 0))) == 0
    after, before = run.tree_rewards(texts())
    assert after == before > 1


def test_what_a_head_gives_a_branch_is_that_of_its_chain_without_a_cache():
    head = begun(ids=tuple(range(0, 96, 2)))
    text, places, branches = texts()[1], [4, 5, 8], [[3, 40], [], [7, 0, 21]]
    target = models().models["target"]
    with torch.no_grad():
        out = target(torch.tensor([text.tokens]), output_hidden_states=True)
        seen = torch.cat([out.hidden_states[i][0] for i in (1, 1, 0)], -1)
        made = branch_chances(head, torch.tensor(text.tokens), seen.float(), places, branches)
    weights = {name: tensor.detach().double() for name, tensor in head.state_dict().items()}
    table = target.get_input_embeddings().weight.double()
    for place, branch, value in zip(places, branches, made.tolist(), strict=True):
        expected = 0.0
        for i, token in enumerate(branch):
            read = [*text.tokens[1 : place + 1], *(int(head.ids[j]) for j in branch[:i])]
            rows = states(weights, table, read, seen[:place].double(), 4, 2)
            expected += float(predicted(weights, rows[-1]).log_softmax(-1)[token])
        assert value == pytest.approx(expected, abs=1e-3)


def test_the_loss_of_trees_by_hand_and_its_gradient_by_finite_differences(monkeypatch):
    """With trees that stay as they are; ratios within and beyond the clip, and a place without a branch."""
    run = training(some=texts()[:1])
    run.head.double(), run.reference.double()
    text = texts()[0]
    places = [text.prompt + i for i in (0, 1, 2, 5, 6, 7)]
    tokens, states_of = run.judged(text, places)[1:]
    rewards, references = (1.3, 0.9, 1.7, 1.0, 1.9, 0.8), (1.0, 1.0, 1.5, 0.5, 1.0, 1.0)
    branches = ([5, 1], [8], [2, 60, 3], [], [9], [4, 4])
    fixed = [Judged(*both, branch) for *both, branch in zip(rewards, references, branches, strict=True)]
    monkeypatch.setattr(run, "judged", lambda *_: (fixed, tokens, states_of.double()))
    rng, knob = torch.Generator().manual_seed(1), run.head.lm_head.weight
    with torch.no_grad():
        for parameter in run.head.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=rng).double())
        before = branch_chances(run.reference, tokens, states_of.double(), places, branches)
        now = branch_chances(run.head, tokens, states_of.double(), places, branches)
    ratios = ((now - before) / torch.tensor([2, 1, 3, 1, 1, 2])).exp()
    assert (ratios - 1).abs().max() > 0.2 > (ratios - 1).abs()[:3].min()
    loss = run.tree_loss(text, places)
    loss.backward()
    expected = 0.0
    for group, gains in ((0, (0.3, -0.1, 0.2)), (3, (0.5, 0.9, -0.2))):
        mean = sum(gains) / 3
        spread = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / 3)
        for ratio, gain in zip(ratios[group : group + 3].tolist(), gains, strict=True):
            advantage = (gain - mean) / spread
            expected -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    assert float(loss) == pytest.approx(expected, rel=1e-3)
    checked = 0
    for parameter in (knob, run.head.midlayer.self_attn.q_proj.weight, run.head.fc.weight):
        for at in parameter.grad.flatten().abs().topk(3).indices.tolist():
            values = []
            for step in (1e-3, -1e-3):
                with torch.no_grad():
                    parameter.view(-1)[at] += step
                    values.append(float(run.tree_loss(text, places)))
                    parameter.view(-1)[at] -= step
            slope = float(parameter.grad.flatten()[at])
            assert (values[0] - values[1]) / 2e-3 == pytest.approx(slope, rel=1e-2) and abs(slope) > 1e-4
            checked += 1
    assert checked == 9


def test_a_step_is_the_loss_of_tokens_and_the_weighted_mean_over_the_places_of_all_documents(monkeypatch):
    run = training(weight=0.5, clip=1e9)
    gradients = {}
    run.optimizer.step = lambda: gradients.update({n: p.grad.clone() for n, p in run.head.named_parameters()})
    with torch.no_grad():
        run.head.lm_head.weight.mul_(1.2)
    batch = list(texts())
    value = run.learn(batch)
    run.head.zero_grad()
    tokens = float(fit.fit.Eagle3Training.backward(run, batch))
    drawn = [run.places(text, 0) for text in batch]
    trees = sum(run.tree_loss(text, places) for text, places in zip(batch, drawn, strict=True))
    (0.5 * trees / sum(map(len, drawn))).backward()
    assert sum(map(len, drawn)) >= 18 and float(trees) != 0
    assert value == pytest.approx(tokens + 0.5 * float(trees) / sum(map(len, drawn)), rel=1e-5)
    assert all(torch.allclose(gradients[n], p.grad, atol=1e-6) for n, p in run.head.named_parameters())


def test_the_reference_stays_as_the_training_began(tmp_path):
    run = training(epochs=1)
    first = {name: tensor.clone() for name, tensor in run.head.state_dict().items()}
    run.run(tmp_path / "c", {})
    assert all(torch.equal(tensor, first[name]) for name, tensor in run.reference.state_dict().items())
    assert any(not torch.equal(tensor, first[name]) for name, tensor in run.head.state_dict().items())
    assert run.reference.borrowed[0] is run.head.borrowed[0] is models().models["target"].get_input_embeddings()


@pytest.mark.long
def test_trees_become_worth_more_to_the_target_than_those_of_the_reference(tmp_path):
    run = training(epochs=12, learning_rate=0.003)
    run.run(tmp_path / "c", {})
    after, before = run.tree_rewards(texts())
    assert after > before + 0.05


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    documents = [document(i, text.tokens[: text.prompt], length=text.rows + 1) for i, text in enumerate(texts())]
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents)
    facts = tiny_heads.in_file(begun())
    write_head(tmp_path / "first.safetensors", "eagle3", facts.tensors, models(), facts.trained)

    def make(name="gto.safetensors", seed=0, grid=None, **changes):
        made = job_of("eagle3", models(), tmp_path / name, seed, grid)
        values = QUICK | {"epochs": 2, "batch": 1} | changes
        recipe = load_recipe("eagle3-gto", [f"{key}={value}" for key, value in values.items()])
        return dataclasses.replace(made, recipe=recipe, preset="gto", warm_up=tmp_path / "first.safetensors")

    return make


def test_a_stopped_training_goes_on_and_gives_the_same_file_which_drafts(job, monkeypatch, capsys):
    goes_on(gto.train, GroupTraining, job, monkeypatch)
    out = job("whole.safetensors").out
    head, first = (read_head(path, "eagle3", models(), method.SHAPES) for path in (out, job().warm_up))
    assert head.trained["warm_up"] == first.hashes()["head"] != head.hashes()["head"]
    assert (head.trained["preset"], len(head.trained["held_out_reward"])) == ("gto", 2)
    built = method.build(method.Settings(**{**config.load_method("eagle3").values, "head": str(out)}), models(), None)
    text = texts()[0]
    assert decode(built, text.tokens[: text.prompt], 14)[0] == text.tokens[text.prompt : text.prompt + 14]
    assert "mean reward of a tree" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_trained_is_refused(job):
    for words, made in (
        ("one head at a time; leave out --grid", job(grid={"batch": [1, 2]})),
        ("ratio_clip", job(ratio_clip=1)),
        ("no head of eagle3 ships with made", dataclasses.replace(job(), warm_up=None)),
    ):
        with pytest.raises(UserError) as caught:
            gto.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_recipe_has_its_sources():
    raw = recipes()["eagle3-gto"].read_text()
    spec = load_recipe("eagle3-gto", [])
    facts = GroupRecipe(**spec.values)
    assert set(spec.values) == set(GroupRecipe.model_fields) and raw.count("    source:") == len(spec.values)
    decoding = config.load_method("eagle3").values
    assert {name: decoding[name] for name in ("total_tokens", "top_k", "depth")} == {
        name: getattr(facts, name) for name in ("total_tokens", "top_k", "depth")
    }
    assert (facts.groups, facts.group, facts.eta, facts.weight, facts.learning_rate) == (16, 8, 1, 0.5, 5e-6)
