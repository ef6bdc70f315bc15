"""Training of SpecBlock's drafter: blocks that are unrolled against a second implementation, the losses by hand."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from chains import Words
from gates import decode, pair
from jobs import goes_on, job_of
from tiny_heads import answered
from tiny_rank_blocks import SOME, naive_blocks, on_cpu, recipe, stirred

from specbench import config
from specbench.config import UserError
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.training import heads
from specbench.training.answered import blocks
from specbench.training.documents import Document
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.specblock import specblock as method
from specbench_extras.specblock import train as specblock
from specbench_extras.specblock.fit import RankBlockTraining, new_head
from specbench_extras.specblock.losses import distance, draft_losses, rank_classes, rank_loss, valid_prefix
from specbench_extras.specblock.recipe import RankBlockRecipe


@functools.cache
def target():
    return pair("llama")[0]


def begun(ids, **changes) -> RankBlockTraining:
    facts = recipe(**changes)
    return RankBlockTraining(target(), new_head(target(), ids, facts, 0), answered(), 96, facts, 0)


def test_every_block_that_is_unrolled_equals_one_alone():
    """Blocks after 2 and then 1 slot, at every place of the answers; and what the target says of their tokens."""
    run = begun(
        SOME,
    )
    model = stirred(run.head)
    block = blocks(answered(), target().device)[0]
    with torch.no_grad():
        made = list(run.compared(block, answered(), [2, 1]))
    checked = 0
    for row, document in list(enumerate(answered()))[:3]:
        whole = on_cpu("llama")(torch.tensor([document.tokens])).logits[0]
        for place in range(0, document.rows, 2):
            at = document.prompt + place
            first, second = at + 2, at + 3
            counted = [[at + offset + k + 1 < len(document) for k in range(3)] for offset in (0, 2, 3)]
            assert [drafted.counted[row, place].tolist() for drafted, _, _ in made] == counted
            if second >= len(document):
                continue
            further = [(document.tokens[first], 2), (document.tokens[second], 1)]
            alone = naive_blocks("llama", model, document.tokens[: at + 1], further)
            for offset, (drafted, taught, wanted), (states, logits, _) in zip((0, 2, 3), made, alone, strict=True):
                assert torch.allclose(drafted.states[row, place].cpu().double(), states, atol=1e-4)
                assert torch.allclose(drafted.logits[row, place].cpu().double(), logits, atol=1e-4)
                for k in range(3):
                    if at + offset + k + 1 < len(document):
                        said = whole[at + offset + k]
                        assert torch.allclose(taught[row, place, k].cpu(), said[list(SOME)], atol=1e-5)
                        choice = int(said.argmax())
                        assert int(wanted[row, place, k]) == (choice // 2 if choice % 2 == 0 else -1)
                        checked += 1
    assert checked > 30


def test_a_prefix_is_valid_up_to_the_first_mistake():
    right = torch.tensor([[True, True, False, True], [False, True, True, True], [True, True, True, False]])
    assert valid_prefix(right).tolist() == [
        [True, True, True, False],
        [True, False, False, False],
        [True, True, True, True],
    ]


def test_a_draft_loss_by_hand():
    """Two blocks of two slots. The second block's first slot is wrong, so that its second one does not count."""
    logits = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], [[0.1, 0.8, 0.1], [0.5, 0.25, 0.25]]]).log()
    taught = torch.tensor([[[0.5, 0.5, 0.0], [0.3, 0.3, 0.4]], [[0.7, 0.2, 0.1], [1.0, 0.0, 0.0]]]).log()
    right = torch.tensor([[True, True], [False, True]])
    everything = torch.ones(2, 2, dtype=torch.bool)
    one = -0.5 * math.log(0.5) - 0.5 * math.log(0.25)
    two = -0.8 * math.log(0.1) - 0.2 * math.log(0.8)
    later = -0.6 * math.log(0.2) - 0.4 * math.log(0.6)
    assert draft_losses(logits, taught, right, everything).tolist() == pytest.approx([(one + two) / 2, later])
    assert draft_losses(logits, taught, ~right, everything).tolist() == pytest.approx([(one + two) / 2, -math.log(0.5)])
    some = torch.tensor([[True, False], [False, False]])
    assert draft_losses(logits, taught, right, some).tolist() == pytest.approx([one, 0])


def test_classes_of_ranks():
    logits = torch.arange(20.0).flip(0).expand(6, 20)  # token i has rank i + 1
    assert rank_classes(logits, torch.tensor([0, 1, 3, 4, 9, 10])).tolist() == [0, 1, 1, 2, 2, 3]


def test_a_rank_loss_by_hand():
    """Three blocks of two slots, budget 1. d is 1 where choice and class agree, 2 if it is one too high, 3 if too low.

    The choices are 0 and 1; 0 and 0; 2 and 2. The classes are 0 and 1; 1 and 0; 1 and 2. So the second and third
    blocks fail in their first slot, and only the first block's second slot is reached. The first slot meets class 0
    once and class 1 twice, which then weighs 1/2.
    """
    assert distance(torch.tensor([1, 1, 1]), torch.tensor([0, 1, 2])).tolist() == [3, 1, 2]
    said = torch.tensor(
        [[[0.7, 0.1, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1]], [[0.5, 0.3, 0.1, 0.1]] * 2, [[0.2, 0.2, 0.5, 0.1]] * 2]
    )
    classes = torch.tensor([[0, 1], [1, 0], [1, 2]])

    def entropy(row, label):
        kernel = [1 / (1 + abs(c - label) + max(label - c, 0)) ** 2 for c in range(4)]
        return -sum(k / sum(kernel) * math.log(p) for k, p in zip(kernel, row, strict=True))

    rows = said.tolist()
    first = entropy(rows[0][0], 0) + 0.5 * 3 * entropy(rows[1][0], 1) + 0.5 * 2 * entropy(rows[2][0], 1)
    expected = (first + entropy(rows[0][1], 1)) / (1 + 0.5 + 0.5 + 1)
    everything = torch.ones(3, 2, dtype=torch.bool)
    assert float(rank_loss(said.log(), classes, everything, 1)) == pytest.approx(expected, rel=1e-5)
    equal = entropy(rows[0][0], 0) + 3 * entropy(rows[1][0], 1) + 2 * entropy(rows[2][0], 1) + entropy(rows[0][1], 1)
    assert float(rank_loss(said.log(), classes, everything, 0)) == pytest.approx(equal / 4, rel=1e-5)
    assert float(rank_loss(said.log(), classes, ~everything, 1)) == 0


def test_the_rank_head_teaches_nothing_else():
    """Its loss changes its own weights alone, and no slot's loss changes them."""
    block = blocks(answered(), target().device)[0]

    def learned(**changes):
        run = begun(SOME, **changes)
        run.loss(block, answered(), [1, 3]).backward()
        return {name: parameter.grad for name, parameter in run.head.named_parameters()}

    with_ranks, without = learned(rank_weight=1.0), learned(rank_weight=0.0)
    for name, gradient in with_ranks.items():
        if name.startswith("rank_head"):
            assert gradient.abs().sum() > 0 and without[name].abs().sum() == 0
        else:
            assert torch.allclose(gradient, without[name])


def test_blocks_are_cut_at_random_slots(monkeypatch):
    seen = []
    monkeypatch.setattr(
        RankBlockTraining, "loss", lambda self, block, some, cuts: seen.append(cuts) or self.head.norm.weight.sum()
    )
    run = begun(SOME, blocks=4, epochs=20)
    for run.step in range(60):
        run.learn(answered()[:1])
    assert {len(cuts) for cuts in seen} == {3} and {cut for cuts in seen for cut in cuts} == {1, 2, 3}
    assert len({tuple(cuts) for cuts in seen}) > 15


@pytest.mark.long
def test_a_head_learns_its_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    run = begun(range(96), epochs=60, batch=3)
    start = run.agreement(answered())
    run.run(tmp_path / "c", {})
    end = run.agreement(answered())
    assert max(start[0] + start[1]) < 0.2 and min(end[0][0], end[1][0]) > 0.5
    assert start[2] < 0.2 and end[2] > 0.8, "of three slots, right in a row"
    assert all(torch.equal(tensor, before[name]) for name, tensor in target().state_dict().items())
    assert not any(name.startswith("borrowed") for name, _ in run.head.named_parameters())


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Pair("made", {"target": target()}, Words(7, 96))
    documents = [
        Document("made", i, facts.tokens[: facts.prompt], f"hash {i}", ("11 22 33",), facts.rows + 1, float)
        for i, facts in enumerate(answered())
    ]
    target().generation_config.eos_token_id = None
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents)
    monkeypatch.setattr(heads, "HELD_OUT", 3)
    small = {"slots": 3, "ranking": 8, "draft_vocabulary": 60, "epochs": 3, "batch": 2, "autocast": False}

    def make(name="blocks.safetensors", seed=0, grid=None, **changes):
        return job_of("specblock", made, tmp_path / name, seed, grid, small | changes)

    return make


def test_a_trained_file_drafts_for_its_target(job, capsys):
    specblock.train(job())
    read = read_head(job().out, "specblock", job().pair, None)
    facts = read.trained
    assert len(read.tensors["d2t"]) == 60
    assert (facts["documents"], facts["learned_answers"] + facts["held_out_answers"]) == (6, 6)
    assert len(facts["held_out_agreement"]) == 3 and 0 <= facts["held_out_classes"] <= 1
    values = {**config.load_method("specblock").values, "head": str(job().out), "nodes": 12}
    built = method.build(method.Settings(**values), job().pair, None)
    document = answered()[3]
    assert decode(built, document.tokens[: document.prompt], 14)[0] == document.tokens[document.prompt :]
    assert built.reach == 13 and set(built.inputs()) == {"head"}
    printed = " ".join(capsys.readouterr().out.split())
    assert "held out: 2 answers" in printed and "second block" in printed and "right in a row, of 3 slots" in printed
    assert not job().out.with_suffix(".checkpoint.pt").exists()


def test_a_stopped_training_goes_on_and_gives_the_same_file(job, monkeypatch):
    goes_on(specblock.train, RankBlockTraining, job, monkeypatch)
    specblock.train(job("other.safetensors", seed=1))
    assert job("other.safetensors").out.read_bytes() != job("whole.safetensors").out.read_bytes()


def test_a_training_goes_on_from_an_earlier_head(job, monkeypatch):
    """It begins with the same weights and vocabulary, and says which; a head of other blocks is refused."""
    first = job("first.safetensors")
    specblock.train(first)
    earlier = read_head(first.out, "specblock", first.pair, None)
    seen, learn = [], RankBlockTraining.learn

    def spied(self, batch):
        seen.append({name: tensor.clone() for name, tensor in self.head.state_dict().items()})
        return learn(self, batch)

    monkeypatch.setattr(RankBlockTraining, "learn", spied)
    specblock.train(replace(job("second.safetensors", draft_vocabulary=70), warm_up=first.out))
    assert all(torch.equal(tensor.cpu(), earlier.tensors[name]) for name, tensor in seen[0].items())
    second = read_head(job("second.safetensors").out, "specblock", first.pair, None)
    assert second.trained["warm_up"] == earlier.hashes()["head"] != second.hashes()["head"]
    assert torch.equal(second.tensors["d2t"], earlier.tensors["d2t"])
    with pytest.raises(UserError, match="has blocks of 3 slots; say so by --recipe slots=3"):
        specblock.train(replace(job("third.safetensors", slots=4), warm_up=first.out))


def test_what_cannot_be_trained_is_refused(job):
    def refused(words, made):
        with pytest.raises(UserError) as caught:
            specblock.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    refused("one head at a time; leave out --grid", job(grid={"batch": [1, 2]}))
    refused("slots", job(slots=1))
    refused("budget", job(budget=-1))
    refused("answers that are long enough to learn from", job(length=4))


def test_the_recipe_has_its_sources():
    raw = recipes()["specblock"].read_text()
    spec = load_recipe("specblock", [])
    facts = RankBlockRecipe(**spec.values)
    assert (facts.layers, facts.slots, facts.blocks, facts.decay, facts.budget, facts.epochs) == (2, 4, 3, 0.8, 10, 20)
    assert set(spec.values) == set(RankBlockRecipe.model_fields) and raw.count("    source:") == len(spec.values)
    built = new_head(target(), range(96), facts, 0)
    assert built.slots == 4 and len(built.layers) == 2 and len(built.shift_proj) == 1
