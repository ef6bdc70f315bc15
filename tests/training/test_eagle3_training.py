"""Training of EAGLE-3's head: the target's answers, training-time test against a second implementation, resuming."""

import copy
import dataclasses
import functools
import json
import math
import types

import naive_eagle as naive
import numpy as np
import oracle
import pytest
import torch
from chains import Words
from gates import DEVICE, decode, pair
from jobs import job_of, stopping
from screens import call
from tiny_heads import answered
from weights import stirred, weights_of

from specbench import config
from specbench.config import UserError
from specbench.engine.models.eagle_head import EagleHead
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.methods.heads import eagle3 as method
from specbench.training import answered as data
from specbench.training import heads
from specbench.training.answered import Answered, answer, batches, blocks
from specbench.training.documents import Document, plan_of_prompts, training_documents
from specbench.training.eagle3 import kept
from specbench.training.eagle3 import train as eagle3
from specbench.training.eagle3.fit import (
    DraftStep,
    Eagle3Training,
    draft_ids,
    loss_of,
    new_head,
    teach,
    unroll,
)
from specbench.training.loop import linear
from specbench.training.recipe import EagleRecipe, load_recipe

VOCABULARY = 96


def recipe(**changes) -> EagleRecipe:
    return EagleRecipe(**{**load_recipe("eagle3", []).values, "autocast": False, "learning_rate": 0.003, **changes})


@functools.cache
def target():
    return pair("llama")[0]


# The target's answers


@pytest.mark.parametrize("architecture", ("llama", "opt", "gemma2"))
def test_answers_in_a_batch_are_those_of_each_prompt_alone(architecture):
    """Prompts of different lengths; rows that ended may stay in the batch or leave it; the window is crossed."""
    model = pair(architecture)[0]
    prompts = [one[:length] for one, length in zip(oracle.prompts(5, length=15), (15, 3, 9, 1, 12), strict=True)]
    cpu = copy.deepcopy(model).cpu()
    expected = [oracle.greedy(cpu, prompt, 20) for prompt in prompts]
    ends = frozenset({expected[0][3], expected[1][6], expected[2][9]})
    rng = torch.Generator(DEVICE)
    told: list[int] = []
    reply = answer(model, prompts, 20, ends, VOCABULARY, Sampling(), rng, told.append)
    places = [next((i for i, token in enumerate(one) if token in ends), 19) for one in expected]
    assert len(set(places)) >= 2
    assert reply == [whole[: end + 1] for whole, end in zip(expected, places, strict=True)]
    assert sum(told) == sum(len(prompt) + 20 for prompt in prompts), "as many as were announced, ended early or not"
    assert max(told) <= 20 and len(told) > 20, "a batch is told step by step"


def test_sampled_answers_follow_the_targets_distribution():
    model = oracle.tiny("llama", seed=1, vocab=5, num_hidden_layers=1).to(DEVICE)
    rng = torch.Generator(DEVICE).manual_seed(0)
    rows = answer(model, [[1, 3, 2]] * 2000, 2, frozenset(), 5, Sampling(0.8), rng)
    counts = np.zeros((5, 5))
    for row in rows:
        counts[tuple(row)] += 1
    assert oracle.chi_square(counts, oracle.two_token_distribution(copy.deepcopy(model).cpu(), [1, 3, 2], 0.8)) > 1e-4


def test_the_draft_vocabulary_by_hand():
    log = [Answered("a", [9, 9, 9, 4, 2, 2, 5], 3), Answered("b", [1, 5, 5, 2], 1)]
    # Answers: 4 2 2 5 and 5 5 2. Three times 2 and 5, once 4, nothing else; 9 and 1 are in prompts only.
    assert draft_ids(log, 2, 12) == [2, 5] and draft_ids(log, 3, 12) == [2, 4, 5]
    assert draft_ids(log, 5, 12) == [0, 1, 2, 4, 5], "unseen ones from the lowest id"
    assert draft_ids(log, 12, 12) == draft_ids(log, 32000, 12) == list(range(12))


def test_an_epoch_has_every_document_once_and_its_order_is_the_seeds():
    some = [Answered(str(i), list(range(3 + i % 11)), 1) for i in range(50)]
    first = batches(some, 4, seed=1)
    assert sorted(int(one.name) for batch in first for one in batch) == list(range(50))
    assert first == batches(some, 4, seed=1) != batches(some, 4, seed=2)
    assert max(map(len, first)) == 4
    spread = [max(len(one.tokens) for one in batch) - min(len(one.tokens) for one in batch) for batch in first]
    assert np.mean(spread) <= 2, "documents of about one length together"


def test_blocks_are_padded_behind_and_no_larger_than_a_forward_may_be(monkeypatch):
    monkeypatch.setattr(data, "MICRO_TOKENS", 40)
    listed = list(blocks(answered(), target().device))
    assert [len(block.tokens) for block in listed] == [2, 2, 2]
    assert listed[0].tokens.shape == (2, 15) and listed[0].lengths.tolist() == [15, 15]
    assert listed[2].tokens[0].tolist() == [*answered()[4].tokens, *[0] * 11]
    assert (listed[2].lengths.tolist(), listed[2].prompts.tolist()) == ([4, 15], [2, 7])


# Training-time test


def test_every_draft_step_equals_a_head_without_cache():
    """At each place, features of the target up to it and then the head's own states, one path after the other."""
    ids, steps = list(range(1, 96, 3)), 4
    model = stirred(new_head(target(), ids, seed=1))
    block = blocks(answered(), target().device)[0]
    with torch.no_grad():
        result = unroll(model, block, teach(target(), model, block, steps), steps)
    cpu = copy.deepcopy(target()).cpu()
    weights = weights_of(model)
    table = cpu.get_input_embeddings().weight.double()
    checked = 0
    for row, one in enumerate(answered()):
        with torch.no_grad():
            out = cpu(torch.tensor([one.tokens]), use_cache=False, output_hidden_states=True)
        seen = torch.cat([out.hidden_states[i][0] for i in (1, 1, 0)], -1)
        for r in range(block.tokens.shape[1] - 2):
            place = one.prompt - 1 + r
            for k in range(steps):
                inside = place + 2 + k < len(one.tokens)
                if r >= result[k].counted.shape[1]:
                    assert not inside
                    continue
                assert bool(result[k].counted[row, r]) == inside
                if not inside:
                    continue
                states = naive.states(weights, table, one.tokens[1 : place + 2 + k], seen[: place + 1], 4, 2)
                expected = naive.predicted(weights, states[-1])
                assert torch.allclose(result[k].logits[row, r].cpu().double(), expected, atol=1e-4)
                taught = out.logits[0, place + 1 + k]
                assert torch.allclose(result[k].taught[row, r].cpu(), taught[ids], atol=1e-4)
                assert int(result[k].likeliest[row, r]) == int(taught.argmax())
                checked += 1
    assert checked == sum(max(0, one.rows - k) for one in answered() for k in range(steps)) > 100


def test_a_loss_by_hand():
    """Draft vocabulary 2, 5, 6. The second place is padding; at the third the target prefers 3, which is not in it."""
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [1.0, 1.0, 1.0], [0.2, 0.2, 0.6], [0.1, 0.1, 0.8]]]))
    taught = torch.log(torch.tensor([[[0.5, 0.5, 1e-9], [1.0, 1.0, 1.0], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]]]))
    counted = torch.tensor([[True, False, True, True]])
    head = types.SimpleNamespace(ids=torch.tensor([2, 5, 6]))
    loss, agreed = loss_of(DraftStep(logits, taught, torch.tensor([[2, 5, 3, 2]]), counted), head)
    first = -(0.5 * math.log(0.5) + 0.5 * math.log(0.25))
    last = -(0.5 * math.log(0.1) + 0.25 * math.log(0.1) + 0.25 * math.log(0.8))
    assert float(loss) == pytest.approx(first + last, abs=1e-5)
    assert int(agreed) == 1, "the first place; the last one's likeliest is 6, and the target's 2"


def test_the_learning_rate_by_hand():
    results = [linear(step, 10, 0.2) for step in range(10)]
    assert results == pytest.approx([0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])
    assert linear(0, 10, 0.0) == 1 and linear(9, 10, 0.0) == pytest.approx(1 / 9)


def test_steps_are_weighted_and_the_micro_batches_do_not_matter(monkeypatch):
    """The loss of a step is the mean over its places; 0.5 for the second draft step, 0.25 for the third."""

    def gradients(size):
        monkeypatch.setattr(data, "MICRO_TOKENS", size)
        run = Eagle3Training(
            target(), new_head(target(), range(96), 0), answered(), recipe(steps=3, step_decay=0.5, clip=1e9), 0
        )
        kept = {}
        run.optimizer.step = lambda: kept.update({n: p.grad.clone() for n, p in run.head.named_parameters()})
        return run.learn(answered()), kept

    loss, whole = gradients(4096)
    again, parts = gradients(20)
    assert loss == pytest.approx(again, rel=1e-5)
    assert all(torch.allclose(whole[name], parts[name], atol=1e-5) for name in whole)
    run = Eagle3Training(target(), new_head(target(), range(96), 0), answered(), recipe(steps=3), 0)
    places = sum(len(one.tokens) - one.prompt - 1 for one in answered())
    with torch.no_grad():
        unrolled = [run.unrolled(block) for block in blocks(answered(), target().device)]
        first, second, third = (sum(float(loss_of(steps[i], run.head)[0]) for steps in unrolled) for i in range(3))
    assert loss == pytest.approx((first + 0.5 * second + 0.25 * third) / places, rel=1e-5)


def test_the_target_reads_an_answer_once_where_memory_allows(monkeypatch):
    """On a CPU; what is kept, and what no memory is left for, is what a forward over a padded batch says."""
    counts = []
    for free in (2**30, 0):
        monkeypatch.setattr(kept, "free_memory", lambda device, free=free: free)
        run = Eagle3Training(target(), new_head(target(), range(0, 96, 2), 0), answered(), recipe(steps=3), 0)
        forwards = []
        run.teach = lambda block, run=run, forwards=forwards: forwards.append(block) or type(run).teach(run, block)
        for _ in range(2):
            (block,) = blocks(answered(), target().device)
            taught, whole = run.taught(block), teach(target(), run.head, block, 3)
            for row, one in enumerate(answered()):
                rows, length = one.rows, len(one)
                assert torch.allclose(taught.features[row, :length], whole.features[row, :length], atol=1e-5)
                assert torch.allclose(taught.logits[row, :rows], whole.logits[row, :rows], atol=1e-5)
                assert torch.equal(taught.likeliest[row, :rows], whole.likeliest[row, :rows])
        counts.append(len(forwards))
    assert counts == ([2, 2] if target().device.type != "cpu" else [6, 12])


def test_a_head_learns_its_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    run = Eagle3Training(
        target(),
        new_head(target(), range(96), 0),
        answered(),
        recipe(steps=3, epochs=60, batch=3, learning_rate=0.01),
        0,
    )
    start = run.agreement(answered())
    run.run(tmp_path / "c", {}, lambda count: None)
    end = run.agreement(answered())
    assert max(start) < 0.3 and min(end) > 0.8
    assert all(torch.equal(tensor, before[name]) for name, tensor in target().state_dict().items())
    assert not any(name.startswith("borrowed") or "embed" in name for name, _ in run.head.named_parameters())


# A job


def documents() -> list[Document]:
    return [
        Document("made", i, one.tokens[: one.prompt], f"hash {i}", ("11 22 33",), len(one.tokens) - one.prompt, float)
        for i, one in enumerate(answered())
    ]


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Pair("made", {"target": target()}, Words(7, VOCABULARY))
    target().generation_config.eos_token_id = None
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents())
    monkeypatch.setattr(heads, "HELD_OUT", 3)
    monkeypatch.setattr(data, "ROWS", 4)
    small = {"steps": 3, "epochs": 3, "batch": 2, "draft_vocabulary": 40, "learning_rate": 0.01, "autocast": False}

    def make(name="eagle3.safetensors", seed=0, grid=None, **changes):
        return job_of("eagle3", made, tmp_path / name, seed, grid, small | changes)

    return make


def test_a_trained_file_drafts_for_its_target(job, capsys):
    eagle3.train(job(answers=2))
    read_again = read_head(job().out, "eagle3", job().pair, method.SHAPES)
    facts = read_again.trained
    # Greedy answers of one document are the same both times, and count once.
    answers = facts["learned_answers"] + facts["held_out_answers"]
    assert (facts["documents"], answers, facts["draft_vocabulary"]) == (6, 6, 40)
    assert facts["steps"] == 3 and len(facts["held_out_agreement"]) == 3 and facts["layers"] == [1, 1, 0]
    assert facts["epochs"] == 3 and facts["seed"] == 0 and facts["tasks"] == ["made"]
    settings = method.Settings(**{**config.load_method("eagle3").values, "head": str(job().out)})
    built = method.build(settings, job().pair, None)
    one = answered()[3]
    assert decode(built, one.tokens[: one.prompt], 14)[0] == one.tokens[one.prompt :]
    drafted = built.drafter.head.ids.tolist()
    assert drafted == sorted(set(drafted)) and len(drafted) == 40
    printed = " ".join(capsys.readouterr().out.split())
    assert "draft vocabulary of 40 tokens" in printed and "held out: 2 answers" in printed and "step 3" in printed
    assert f"eagle3.head={job().out.name}" in printed.replace(str(job().out.parent) + "/", "").replace(" ", "")
    assert not job().out.with_suffix(".checkpoint.pt").exists()


def test_answers_that_were_made_elsewhere_are_read_whatever_this_device_has_room_for(job, monkeypatch):
    eagle3.train(job("here.safetensors"))
    monkeypatch.setattr(data, "ROWS", 3)
    (job().out.parent / "here.answers").rename(job().out.parent / "there.answers")
    monkeypatch.setattr(data, "answers_of", None)  # nothing is answered again
    eagle3.train(job("there.safetensors"))
    assert (job().out.parent / "here.safetensors").read_bytes() == (job().out.parent / "there.safetensors").read_bytes()


def test_answers_are_told_as_they_come_and_as_many_as_announced(job, tmp_path):
    """Documents have limits of their own, and a batch answers up to the largest; files that exist count as whole."""
    assert len({document.max_new_tokens for document in documents()}) > 1
    for times in (2, 2, 3):
        told: list[int] = []
        data.answer_all(job().pair, documents(), times, Sampling(), 0, tmp_path / "answers", told.append)
        assert sum(told) == times * data.most_tokens(documents())
        assert min(told) >= 0
    assert len(told) > 12, "the third time was answered token by token"


def test_a_stopped_training_goes_on_and_gives_the_same_file(job, monkeypatch):
    eagle3.train(job("whole.safetensors", batch=1))
    monkeypatch.setattr(Eagle3Training, "checkpoint_seconds", 0)
    write, answers, steps = data.put_table, [], []

    def stopped(path, *others):
        if path.name == "00001.parquet" and not answers:
            answers.append(path)
            raise KeyboardInterrupt
        write(path, *others)

    monkeypatch.setattr(data, "put_table", stopped)
    monkeypatch.setattr(
        Eagle3Training, "learn", stopping(7, Eagle3Training.learn, steps)
    )  # in the middle of the second epoch
    for learned in (0, 7):
        with pytest.raises(KeyboardInterrupt):
            eagle3.train(job("stopped.safetensors", batch=1))
        assert answers and len(steps) == learned and not job("stopped.safetensors", batch=1).out.exists()
    eagle3.train(job("stopped.safetensors", batch=1))
    assert job("stopped.safetensors", batch=1).out.read_bytes() == job("whole.safetensors", batch=1).out.read_bytes()
    eagle3.train(job("other.safetensors", seed=1, batch=1))
    assert job("other.safetensors").out.read_bytes() != job("whole.safetensors", batch=1).out.read_bytes()


def test_a_training_goes_on_from_an_earlier_head_with_its_draft_vocabulary(job, monkeypatch):
    first = job("first.safetensors")
    eagle3.train(first)
    earlier = read_head(first.out, "eagle3", first.pair, method.SHAPES)
    begun, learn = [], Eagle3Training.learn

    def spied(self, batch):
        begun.append({name: tensor.clone() for name, tensor in self.head.state_dict().items()})
        return learn(self, batch)

    monkeypatch.setattr(Eagle3Training, "learn", spied)
    second = dataclasses.replace(job("second.safetensors", draft_vocabulary=30), warm_up=first.out)
    eagle3.train(second)
    assert all(torch.equal(tensor.cpu(), earlier.tensors[name]) for name, tensor in begun[0].items())
    read_again = read_head(second.out, "eagle3", second.pair, method.SHAPES)
    assert torch.equal(read_again.tensors["d2t"], earlier.tensors["d2t"])
    assert read_again.trained["warm_up"] == earlier.hashes()["head"] != read_again.hashes()["head"]


def test_what_was_made_otherwise_is_refused(job, monkeypatch):
    def refused(words, made):
        with pytest.raises(UserError) as caught:
            eagle3.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    refused("one head at a time; leave out --grid", job(grid={"batch": [1, 2]}))
    refused("steps", job(steps=0))
    refused("answers that are long enough to learn from", job(length=4))
    monkeypatch.setattr(Eagle3Training, "checkpoint_seconds", 0)
    monkeypatch.setattr(Eagle3Training, "learn", stopping(3, Eagle3Training.learn))
    with pytest.raises(KeyboardInterrupt):
        eagle3.train(job())
    refused("was begun with different batch; delete it", job(batch=3))
    refused("was collected with different seed", job(seed=1))
    refused("was collected with different temperature", job(temperature=0.5))
    job().out.with_suffix(".checkpoint.pt").write_bytes(b"PK nothing")
    refused("is damaged", job())
    job().out.with_suffix(".checkpoint.pt").unlink()
    monkeypatch.setattr(Eagle3Training, "learn", lambda self, batch: math.nan)
    refused("the loss is nan at step 0; try a smaller learning_rate", job())


def test_the_recipe_is_the_official_codes_and_its_sources_are_named():
    raw = config.SUITES / "training" / "eagle3.yaml"
    spec = load_recipe("eagle3", [])
    result = EagleRecipe(**spec.values)
    assert (result.steps, result.step_decay, result.epochs, result.learning_rate, result.clip) == (
        7,
        0.8,
        40,
        5e-5,
        0.5,
    )
    assert (result.draft_vocabulary, result.length, result.weight_decay) == (32000, 2048, 0)
    assert set(spec.values) == set(EagleRecipe.model_fields) and raw.read_text().count("source:") == len(spec.values)


@pytest.mark.long
def test_the_command_line_trains_a_head_for_the_bundled_pair(tmp_path, pocket):
    out = tmp_path / "h.safetensors"
    words = ["train", "--method", "eagle3", "--suite", "pocket", "--documents", "2", "--out", str(out)]
    quick = ["epochs=1", "steps=2", "draft_vocabulary=64", "batch=4"]
    outcome = call(*words, *(part for one in quick for part in ("--recipe", one)))
    assert outcome.exit_code == 0, outcome.output
    assert "next: specbench run --method eagle3 --suite pocket --set" in " ".join(outcome.output.split())
    head = read_head(out, "eagle3", pocket, method.SHAPES)
    assert head.trained["documents"] == 8 and head.trained["layers"] == [2, 6, 9]
    assert set(head.trained["tasks"]) == {"pocket_gsm8k", "pocket_math500", "pocket_humaneval", "pocket_cnndm"}
    assert isinstance(method.eagle_head(head, pocket.models["target"], pocket.vocabulary), EagleHead)


def test_a_head_learns_from_a_file_of_prompts(tmp_path, pocket):
    """All of them, first turns alone, each with its own limit; a category is part of a file's name."""
    prompts = tmp_path / "asked.jsonl"
    lines = [{"prompt": f"What is {i} times 3?", "category": "a/b", "max_new_tokens": 8 + i} for i in range(5)]
    lines.append({"prompt": ["And now?", "And then?"], "category": "c", "max_new_tokens": 9})
    prompts.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = ["train", "--method", "eagle3", "--prompts", str(prompts), "--out", str(tmp_path / "h.safetensors")]
    quick = ["epochs=1", "steps=2", "draft_vocabulary=64", "batch=4"]
    outcome = call(*words, *(part for one in quick for part in ("--recipe", one)))
    assert outcome.exit_code == 0, outcome.output
    head = read_head(tmp_path / "h.safetensors", "eagle3", pocket, method.SHAPES)
    assert head.trained["documents"] == 6 and head.trained["tasks"] == ["a_b", "c"]
    plan = plan_of_prompts(config.load_pair("pocket"), prompts, config.load_method("eagle3"), None, 0)
    asked = training_documents(plan, pocket, 0)
    assert [one.max_new_tokens for one in asked] == [8, 9, 10, 11, 12, 9] and asked[0].name == "a_b-00000"
    with pytest.raises(UserError, match="no right answers to learn from"):
        asked[0].score("12")
    refused = call("train", "--method", "judge", "--prompts", str(prompts))
    assert "judge learns from scored answers" in " ".join(refused.output.split())
    refused = call(*words[:3], "--suite", "math", *words[3:])
    assert "train needs --suite" in " ".join(refused.output.split())
