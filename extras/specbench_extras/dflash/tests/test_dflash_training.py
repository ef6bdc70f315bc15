"""Training of block drafters: packed blocks against a second implementation, the loss by hand, resuming."""

import functools
import math
import random
from dataclasses import replace

import pytest
import torch
from chains import Words
from gates import decode, pair
from jobs import goes_on, job_of
from screens import call
from tiny_blocks import apart, naive_lattice, naive_parts, recipe, recipe_of, stirred
from tiny_heads import answered

from specbench import config
from specbench.config import UserError
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.methods import module
from specbench.methods.blocks.dflash import block_head
from specbench.training import answered as data
from specbench.training import heads
from specbench.training.answered import Answered, blocks
from specbench.training.documents import Document
from specbench.training.recipe import load_recipe, recipes
from specbench.training.train import trainer
from specbench_extras.deer.recipe import TextBlockRecipe
from specbench_extras.deer.train import TwoStages
from specbench_extras.dflash import fit, outputs
from specbench_extras.dflash import train as dflash
from specbench_extras.dflash.fit import SlotTraining, new_head, pack, weights_of
from specbench_extras.dflash.recipe import BlockRecipe

KINDS = ("dflash", "dflare", "deer")


@functools.cache
def target():
    return pair("llama")[0]


def test_anchors_are_different_places_of_the_answers():
    """Of an answer of n tokens, the first n - 1 can be anchors; a slot beyond the document is not counted."""
    some = [answered()[4], answered()[0]]  # answers of two and of nine tokens
    packed = pack(some, 4, 5, random.Random(1), target().device)
    assert packed.anchors.shape == (2, 5) and packed.anchors[0].tolist() == [2, 0, 0, 0, 0]
    assert packed.counted[0].tolist() == [[True, False, False], *[[False] * 3] * 4]
    places = packed.anchors[1].tolist()
    assert places == sorted(set(places)) and min(places) >= 6 and max(places) <= 13
    for place, counted in zip(places, packed.counted[1].tolist(), strict=True):
        assert counted == [place + k < 15 for k in (1, 2, 3)]
    everything = pack(some, 4, 50, random.Random(1), target().device)
    assert everything.anchors[1].tolist() == list(range(6, 14))


@pytest.mark.parametrize("kind", KINDS)
def test_every_packed_block_equals_one_alone(kind):
    """At each anchor, what the head says of the text up to there alone."""
    run = SlotTraining(target(), answered(), 96, recipe_of(kind, block=4), 0, kind)
    model = apart(stirred(run.head))
    block = blocks(answered(), target().device)[0]
    packed = pack(answered(), 4, 6, random.Random(0), target().device)
    with torch.no_grad():
        states, taught = run.taught(block, packed)
        filled = fit.fill(model, block.tokens, states, packed.anchors, 4)
    checked = 0
    for row, document in enumerate(answered()):
        whole = naive_parts("llama")[0](torch.tensor([document.tokens])).logits[0]
        for index, anchor in enumerate(packed.anchors[row].tolist()):
            counted = packed.counted[row, index].tolist()
            if not any(counted):
                continue
            expected = naive_lattice("llama", model, document.tokens[: anchor + 1], 4)
            assert torch.allclose(filled[row, index].cpu().double(), expected, atol=1e-4)
            for k in range(sum(counted)):
                assert torch.allclose(taught[row, index, k].cpu(), whole[anchor + k], atol=1e-6)
                checked += 1
    assert checked > 60


def test_a_loss_by_hand(monkeypatch):
    """Two slots of weights 1 and exp(-1/2), of which the second block has only the first; both losses."""
    assert weights_of(3, 2.0, torch.device("cpu")).tolist() == pytest.approx([1, math.exp(-0.5)])
    document = Answered("d", [1, 0, 2, 1], 1)
    logits = torch.log(torch.tensor([[[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], [[0.1, 0.8, 0.1], [1 / 3] * 3]]]))
    taught = torch.log(torch.tensor([[[[0.5, 0.5 - 1e-9, 1e-9], [0.3, 0.3, 0.4]], [[0.2, 0.7, 0.1], [1 / 3] * 3]]]))
    expected = {
        # Slots say 2 and 1 after the anchor 0, then 1 after the anchor 2.
        "tokens": ([-math.log(0.25), -math.log(0.2), -math.log(0.8)], [True, True, True]),
        "distillation": (
            [
                -0.5 * math.log(0.5) - 0.5 * math.log(0.25),
                -0.6 * math.log(0.2) - 0.4 * math.log(0.6),
                -0.3 * math.log(0.1) - 0.7 * math.log(0.8),
            ],
            [True, True, True],
        ),
    }
    for loss, (losses, right) in expected.items():
        run = SlotTraining(target(), [document], 3, recipe(block=3, loss=loss, decay=2.0), 0)
        monkeypatch.setattr(run, "taught", lambda *_: (None, taught))
        monkeypatch.setattr(fit, "fill", lambda *_: logits)
        (block,) = blocks([document], target().device)
        packed = pack([document], 3, 2, random.Random(0), target().device)
        assert packed.anchors.tolist() == [[1, 2]]
        per_slot, agreed = run.losses(block, packed)
        assert per_slot.flatten().tolist() == pytest.approx([*losses, 0], abs=1e-5)
        assert agreed.flatten().tolist() == [*right, False]


@pytest.mark.parametrize("loss", ("tokens", "distillation"))
def test_micro_batches_do_not_matter(monkeypatch, loss):
    def gradients(size):
        monkeypatch.setattr(data, "MICRO_TOKENS", size)
        run = SlotTraining(target(), answered(), 96, recipe(block=3, loss=loss, anchors=50, clip=1e9), 0)
        kept = {}
        run.optimizer.step = lambda: kept.update({n: p.grad.clone() for n, p in run.head.named_parameters()})
        return float(run.learn(answered())), kept

    value, whole = gradients(4096)
    again, parts = gradients(20)
    assert value == pytest.approx(again, rel=1e-5)
    assert whole.keys() == parts.keys() and all(torch.allclose(whole[n], parts[n], atol=1e-5) for n in whole)


def test_the_target_reads_a_document_once(monkeypatch):
    """And each by itself: what is kept is what it says without padding. A training that may keep little is the same."""
    run = SlotTraining(target(), answered(), 96, recipe(block=4), 0)
    read, forward = [], target().forward

    def counted(tokens, **named):
        read.append(tokens.tolist())
        return forward(tokens, **named)

    monkeypatch.setattr(target(), "forward", counted)
    first, again = (run.agreement(answered()) for _ in range(2))
    assert sorted(read) == sorted([document.tokens] for document in answered())
    monkeypatch.setattr(outputs, "MOST_BYTES", 0)
    poor = SlotTraining(target(), answered(), 96, recipe(block=4), 0)
    assert first == again == poor.agreement(answered()) == poor.agreement(answered())
    assert len(read) == 3 * len(answered()) and not poor.outputs.kept


def test_the_slots_of_deer_weigh_the_same_at_first():
    run = TwoStages(target(), answered()[:4], 96, recipe_of("deer", continued=0.5, epochs=1, decay=3.0), 0, "deer")
    assert run.steps == 4
    decays = []
    for run.step in range(4):
        decays.append(run.decay())
    assert decays == [math.inf, math.inf, 3, 3]
    assert weights_of(4, math.inf, torch.device("cpu")).tolist() == [1, 1, 1]


@pytest.mark.long
def test_a_head_learns_its_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    run = SlotTraining(target(), answered(), 96, recipe(block=4, epochs=50, batch=3), 0)
    start = run.agreement(answered())
    run.run(tmp_path / "c", {})
    end = run.agreement(answered())
    assert max(start[:3]) < 0.3 and min(end[:3]) > 0.8
    assert start[3] < 0.5 and end[3] > 2, "of three slots, right in a row"
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
    small = {"layers": 1, "features": 2, "block": 4, "anchors": 4, "epochs": 3, "batch": 2, "autocast": False}

    def make(name="blocks.safetensors", seed=0, grid=None, kind="dflash", **changes):
        own = {name: value for name, value in small.items() if kind != "deer" or name != "features"}
        return job_of(kind, made, tmp_path / name, seed, grid, own | changes)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_file_drafts_for_its_target(job, capsys, kind):
    method = module(kind)
    trainer(kind).train(job(kind=kind))
    facts = read_head(job().out, kind, job().pair, None).trained
    assert (facts["documents"], facts["learned_answers"] + facts["held_out_answers"]) == (6, 6)
    assert facts["block"] == 4 and len(facts["held_out_agreement"]) == 3
    assert facts["layers"] == ([] if kind == "deer" else [1, 1])
    values = {**config.load_method("dflash").values, "head": str(job().out)}
    built = method.build(method.Settings(**values), job().pair, None)
    document = answered()[3]
    assert decode(built, document.tokens[: document.prompt], 14)[0] == document.tokens[document.prompt :]
    assert built.reach == 4
    smaller = method.build(method.Settings(**{**values, "block": 2}), job().pair, None)
    assert smaller.reach == 2
    for block in (1, 5):
        with pytest.raises(UserError, match=f"{kind}: block {block} is not from 2 to 4"):
            method.build(method.Settings(**{**values, "block": block}), job().pair, None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "held out: 2 answers" in printed and "slot 3" in printed and "right in a row, of 3 slots" in printed
    assert not job().out.with_suffix(".checkpoint.pt").exists()


def test_a_stopped_training_goes_on_and_gives_the_same_file(job, monkeypatch):
    goes_on(dflash.train, SlotTraining, job, monkeypatch)
    dflash.train(job("other.safetensors", seed=1))
    assert job("other.safetensors").out.read_bytes() != job("whole.safetensors").out.read_bytes()


def test_a_training_goes_on_from_an_earlier_head(job, monkeypatch):
    """It begins with the same weights, and says which; a head of other sizes or of another kind is refused."""
    first = job("first.safetensors")
    dflash.train(first)
    earlier = read_head(first.out, "dflash", first.pair, None)
    begun, learn = [], SlotTraining.learn

    def spied(self, batch):
        begun.append({name: tensor.clone() for name, tensor in self.head.state_dict().items()})
        return learn(self, batch)

    monkeypatch.setattr(SlotTraining, "learn", spied)
    dflash.train(replace(job("second.safetensors"), warm_up=first.out))
    assert all(torch.equal(begun[0][name].cpu(), tensor) for name, tensor in earlier.tensors.items())
    second = read_head(job("second.safetensors").out, "dflash", first.pair, None)
    assert second.trained["warm_up"] == earlier.hashes()["head"] != second.hashes()["head"]
    for changes, words in (
        ({"block": 3}, "other sizes than the recipe's"),
        ({"layers": 2}, "other sizes than the recipe's"),
        ({"kind": "dflare"}, "is a head for dflash, not for dflare"),
    ):
        with pytest.raises(UserError, match=words):
            dflash.train(replace(job("third.safetensors", **changes), warm_up=first.out))


def test_what_cannot_be_trained_is_refused(job):
    def refused(words, made):
        with pytest.raises(UserError) as caught:
            dflash.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    refused("one head at a time; leave out --grid", job(grid={"batch": [1, 2]}))
    refused("block", job(block=1))
    refused("loss", job(loss="l2"))
    refused("answers that are long enough to learn from", job(length=4))


def test_products_are_in_bfloat16_on_a_gpu_alone():
    """Unless the recipe says otherwise."""
    for wanted, kind in (("auto", torch.float32), (False, torch.float32), (True, torch.bfloat16)):
        with heads.autocast(torch.device("cpu"), wanted):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == kind
    assert {load_recipe(name, []).values["autocast"] for name in ("dflash", "dflare")} == {"auto"}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [("dflash", (5, 5, 16, 512, 7, 6e-4)), ("dflare", (7, 9, 16, 512, 7, 6e-4)), ("deer", (5, 0.5, 32, 512, 7, 6e-4))],
)
def test_the_recipe_has_its_sources(kind, sizes):
    raw = recipes()[kind].read_text()
    spec = load_recipe(kind, [])
    own, form = ("continued", TextBlockRecipe) if kind == "deer" else ("features", BlockRecipe)
    facts = form(**spec.values)
    assert (facts.layers, getattr(facts, own), facts.block, facts.anchors, facts.decay, facts.learning_rate) == sizes
    assert set(spec.values) == set(form.model_fields) and raw.count("    source:") == len(spec.values)


@pytest.mark.long
def test_the_command_line_trains_a_head_for_the_bundled_pair(tmp_path, pocket):
    out = tmp_path / "h.safetensors"
    words = ["train", "--method", "dflash", "--suite", "pocket", "--documents", "2", "--out", str(out)]
    quick = ["epochs=1", "layers=2", "features=3", "block=4", "anchors=4", "batch=4"]
    outcome = call(*words, *(part for word in quick for part in ("--recipe", word)))
    assert outcome.exit_code == 0, outcome.output
    read = read_head(out, "dflash", pocket, None)
    assert read.trained["documents"] == 8 and read.trained["layers"] == [1, 5, 9]
    built = new_head(pocket.models["target"], BlockRecipe(**{**load_recipe("dflash", []).values, "layers": 2}), 0)
    assert block_head(read, pocket.models["target"]).block == 4 and built.block == 16
