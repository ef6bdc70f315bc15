"""Training of a draft model: the lessons of each kind of data, learning, resuming, and what is refused."""

import copy
import dataclasses
import functools
import json
import math

import oracle
import pyarrow.parquet as pq
import pytest
import torch
from gates import DEVICE
from jobs import stopping
from made_documents import document
from safetensors.torch import load_file
from screens import call
from transformers import AutoModelForCausalLM
from word_models import tokenizer

from specbench import config
from specbench.config import UserError
from specbench.engine.models.folders import ADAPTER
from specbench.engine.models.pair import Pair, load_pair
from specbench.methods import module
from specbench.plan import Plan
from specbench.training.recipe import load_recipe
from specbench.training.train import Job
from specbench_extras.drafts import data
from specbench_extras.drafts import train as draft_training
from specbench_extras.drafts.data import Lesson, Teacher, packed
from specbench_extras.drafts.fit import DraftTraining, held_lessons, learner
from specbench_extras.drafts.recipe import DraftRecipe
from specbench_extras.drafts.train import PRESETS

VOCABULARY = 96
QUICK = {"autocast": False, "learning_rate": 0.01, "batch": 3, "epochs": 2, "gamma": 3, "length": 64}


@functools.cache
def preset() -> dict:
    return load_recipe("draft-distillspec", []).values


def recipe(**changes) -> DraftRecipe:
    return DraftRecipe(**{**preset(), **QUICK, **changes})


@functools.cache
def pair() -> Pair:
    target, draft = (oracle.tiny("llama", seed=seed).float().to(DEVICE) for seed in (1, 2))
    return Pair("made", {"target": target, "draft": draft}, tokenizer())


def documents(count: int = 6):
    return [document(i, prompt, length=10) for i, prompt in enumerate(oracle.prompts(count, length=7, seed=5))]


@functools.cache
def greedy(role: str, model=None) -> dict[str, list[int]]:
    """The greedy answer to each document by a second implementation, up to the end token."""
    made, cpu = {}, copy.deepcopy(model or pair().models[role]).cpu()
    for one in documents():
        tokens = oracle.greedy(cpu, one.prompt, one.max_new_tokens)
        made[one.name] = tokens[: tokens.index(1) + 1] if 1 in tokens else tokens
    return made


def teacher(draft=None, answers=None, **changes) -> Teacher:
    draft = draft or learner(pair().models["draft"], recipe(), 0)
    return Teacher(pair(), draft, answers or {}, recipe(temperatures=[0], **changes), 0)


# Lessons


@pytest.mark.parametrize("kind", ("ground_truth", "target"))
def test_texts_that_are_given_teach_at_every_token_of_the_answer(kind):
    given = {one.name: [[5, 6, 7], [8, 9]] for one in documents()}
    first, second = (teacher(answers=given, data=kind).lessons(documents()[:1], epoch) for epoch in (0, 1))
    prompt = documents()[0].prompt
    assert first == [Lesson([*prompt, 5, 6, 7], [7, 8, 9])] and second == [Lesson([*prompt, 8, 9], [7, 8])]
    cut = teacher(answers=given, data=kind, length=9).lessons(documents()[:1], 0)
    assert cut == [Lesson([*prompt, 5, 6], [7, 8])]
    assert teacher(answers=given, data=kind, length=7).lessons(documents()[:1], 0) == []


def test_on_policy_texts_are_those_of_the_draft_as_it_is_now():
    """After the weights have changed in place, the lessons are the changed draft's; stale texts would fail."""
    draft = learner(pair().models["draft"], recipe(), 0)
    made = teacher(draft, data="draft")

    def answers():
        return {
            one.name: lesson.tokens[7:] for one, lesson in zip(documents(), made.lessons(documents(), 0), strict=True)
        }

    before, first = answers(), greedy("draft")
    with torch.no_grad():
        draft.get_output_embeddings().weight.neg_()
    after, second = answers(), greedy("draft", draft)
    assert before == first and after == second and before != after


@pytest.mark.parametrize("kind", ("mix_request", "mix_token"))
def test_mixtures_are_the_draft_or_the_target_at_their_ends(kind):
    kept = {name: [tokens] for name, tokens in greedy("target").items()}
    for mix, role in ((0.0, "target"), (1.0, "draft")):
        lessons = teacher(answers=kept, data=kind, mix=mix).lessons(documents(), 0)
        assert sorted(lesson.tokens[7:] for lesson in lessons) == sorted(greedy(role).values())


def test_a_mixture_by_request_has_whole_texts_of_both_and_other_ones_in_each_epoch():
    kept = {name: [tokens] for name, tokens in greedy("target").items()}
    made = teacher(answers=kept, data="mix_request", mix=0.5)
    both = {name: (kept[name][0], greedy("draft")[name]) for name in kept}
    sides = []
    for epoch in range(3):
        texts = [lesson.tokens for lesson in made.lessons(documents(), epoch)]
        side = [[one.prompt + tokens in texts for tokens in both[one.name]] for one in documents()]
        assert all(any(row) for row in side) and len(texts) == len(documents())
        sides.append(tuple(map(tuple, side)))
    assert len(set(sides)) > 1


def test_a_mixture_by_token_follows_each_model_after_the_mixed_text():
    """Every token is one of the two models' greedy choices after all tokens before it, and both occur."""
    lessons = teacher(data="mix_token", mix=0.5).lessons(documents(), 0)
    chosen = {"target": 0, "draft": 0}
    for lesson in lessons:
        with torch.no_grad():
            choices = {
                role: model(torch.tensor([lesson.tokens], device=DEVICE)).logits[0].argmax(-1).tolist()
                for role, model in pair().models.items()
            }
        for place in lesson.places:
            fits = [role for role in chosen if choices[role][place - 1] == lesson.tokens[place]]
            assert fits
            for role in fits:
                chosen[role] += 1
    assert min(chosen.values()) > 5


def near() -> torch.nn.Module:
    """A draft that the target often accepts: the target with some noise."""
    model = copy.deepcopy(pair().models["target"])
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng).to(parameter.device)
            parameter.add_(0.1 * parameter.std() * noise)
    return model


def test_served_texts_teach_where_the_draft_was_rejected():
    """Greedy: the text is the target's, and a place is counted where the draft, after the text, differs."""
    draft = near()
    lessons = teacher(draft, data="served").lessons(documents(), 0)
    target, seen = greedy("target"), 0
    for lesson in lessons:
        assert lesson.tokens[7:] in target.values()
        with torch.no_grad():
            choices = draft(torch.tensor([lesson.tokens], device=DEVICE)).logits[0].argmax(-1).tolist()
        assert all(choices[place - 1] != lesson.tokens[place] for place in lesson.places)
        seen += len(lesson.places)
    assert seen > 3


@pytest.mark.parametrize("anchors", ("rounds", "random"))
def test_replayed_blocks_keep_what_was_drafted_after_the_first_rejection(anchors):
    draft = near()
    lessons = teacher(draft, data="replay", anchors=anchors).lessons(documents(), 0)
    target, kinds = greedy("target"), set()
    for lesson in lessons:
        start, text = lesson.places[0], [*lesson.tokens[:7], *target[_name(lesson)]]
        assert lesson.tokens[:start] == text[:start] and lesson.places == list(range(start, len(lesson.tokens)))
        assert lesson.slots == tuple(range(len(lesson.places)))
        with torch.no_grad():
            choices = draft(torch.tensor([lesson.tokens], device=DEVICE)).logits[0].argmax(-1).tolist()
        assert [choices[place - 1] for place in lesson.places] == [lesson.tokens[place] for place in lesson.places]
        for place in lesson.places:
            agrees = lesson.tokens[start : place + 1] == text[start : place + 1]
            if place < len(text):
                assert (place in lesson.rejected) != agrees
                kinds.add(agrees)
    assert kinds == {True, False}


@pytest.mark.long
def test_random_anchors_are_as_many_as_rounds_at_other_places_in_each_epoch():
    draft = near()
    counts, begins = [], []
    for anchors, epoch in (("rounds", 0), ("random", 0), ("random", 0), ("random", 1)):
        lessons = teacher(draft, data="replay", anchors=anchors).lessons(documents(), epoch)
        counts.append(sorted(map(_name, lessons)))
        begins.append([lesson.places[0] for lesson in lessons])
        assert all(len(lesson.places) == 3 for lesson in lessons) or anchors == "rounds"
    assert counts[1] == counts[0] and begins[1] == begins[2]
    assert begins[1] != begins[0] and begins[1] != begins[3] and len(set(begins[1])) > 3


def _name(lesson: Lesson) -> str:
    return next(one.name for one in documents() if one.prompt == lesson.tokens[:7])


def test_lessons_are_packed_with_their_places(monkeypatch):
    monkeypatch.setattr(data, "MICRO_TOKENS", 8)
    some = [Lesson([1, 2, 3, 4], [2, 3], frozenset({3}), (0, 1)), Lesson([5, 6], [1]), Lesson([7, 8, 9], [1])]
    first, second = packed(some, DEVICE)
    assert first.tokens.tolist() == [[5, 6, 0], [7, 8, 9]] and second.tokens.tolist() == [[1, 2, 3, 4]]
    assert (first.targets.tolist(), second.targets.tolist()) == ([6, 8], [3, 4])
    assert (second.rejected.tolist(), second.slots.tolist()) == ([False, True], [0, 1])
    logits = torch.arange(12.0, device=DEVICE).view(1, 4, 3)
    assert second.at_places(logits).tolist() == [[3, 4, 5], [6, 7, 8]]


# Learning


def training(seed=0, **changes) -> DraftTraining:
    answers = {name: [tokens] for name, tokens in greedy("target").items()}
    learned, held = documents()[:4], documents()[4:]
    made = recipe(temperatures=[0], **changes)
    return DraftTraining(pair(), learned, answers, held_lessons(held, answers, 64), made, seed)


def test_the_parts_of_a_split_loss_are_means_of_their_own():
    """One accepted slot, two rejected ones at slots 1 and 2: fkl + (0.8 rkl + 0.64 rkl)/2, and half of the sum."""
    made = training(data="replay", loss="split")
    lesson = Lesson([5, 6, 7, 8, 9], [2, 3, 4], frozenset({3, 4}), (0, 1, 2))
    (block,) = packed([lesson], DEVICE)
    with torch.no_grad():
        result = float(made.loss(block, (1, 2)))
        q, p = (one(block.tokens).logits[0, 1:4].double().softmax(-1) for one in (made.draft, made.target))
    forward = float((p[0] * (p[0] / q[0]).log()).sum())
    reverse = [float((q[i] * (q[i] / p[i]).log()).sum()) for i in (1, 2)]
    assert result == pytest.approx((forward + (0.8 * reverse[0] + 0.64 * reverse[1]) / 2) / 2, rel=1e-4)


DEFAULT = [1 / 4, 1 / 4, 0.64 / 6, 0.512 / 6, 0.4096 / 6]  # half of two accepted slots' mean, and of three rejected
ABLATIONS = {  # Draft-OPD's: the weight of each slot, and its divergence
    "as it is": ({}, DEFAULT, "ffrrr"),
    "gamma 1": ({"reject_decay": 1}, [1 / 4, 1 / 4, 1 / 6, 1 / 6, 1 / 6], "ffrrr"),
    "all forward": ({"rejected": "fkl"}, DEFAULT, "fffff"),
    "all reverse": ({"accepted": "rkl"}, DEFAULT, "rrrrr"),
}


@pytest.mark.parametrize(("changes", "weights", "kinds"), ABLATIONS.values(), ids=ABLATIONS)
def test_the_weight_and_the_divergence_of_each_slot_by_hand(changes, weights, kinds):
    """Of a block of five, of which two were accepted."""
    made = training(data="replay", loss="split", **changes)
    whole = Lesson([5, 6, *[7] * 5], [2, 3, 4, 5, 6], frozenset({4, 5, 6}), (0, 1, 2, 3, 4))
    (block,) = packed([whole], DEVICE)
    (drafted,), taught = made.both(block)
    drafted, taught = drafted.double(), taught.double()
    q, p = drafted.softmax(-1), taught.softmax(-1)
    forward, reverse = (p * (p / q).log()).sum(-1), (q * (q / p).log()).sum(-1)
    values = [float((forward if kind == "f" else reverse)[i]) for i, kind in enumerate(kinds)]
    expected = sum(weight * value for weight, value in zip(weights, values, strict=True))
    assert float(made.loss(block, (2, 3))) == pytest.approx(expected, rel=1e-4)
    single = float(made.loss(packed_one([5, 6, 7], [2]), (1, 0)))
    assert single == pytest.approx(values[0], rel=1e-4), "without rejections the accepted slots are all"


@pytest.mark.parametrize("loss", ("ce", "fkl"))
def test_the_losses_of_all_exits_add_up_and_reach_the_layers_before_them(loss):
    """Each exit speaks by the model's own norm and output layer."""
    made, plain = (training(data="target", loss=loss, **changes) for changes in ({"exits": (1,)}, {}))
    block = packed_one([5, 6, 7], [2])
    with torch.no_grad():
        out = made.draft(block.tokens, use_cache=False, output_hidden_states=True)
        early = made.draft.lm_head(made.draft.model.norm(out.hidden_states[1]))[0, 1]
        taught = made.target(block.tokens, use_cache=False).logits[0, 1]
    wanted = taught.softmax(-1) if loss == "fkl" else torch.eye(96, device=DEVICE)[7]
    distance = -(wanted * early.log_softmax(-1)).sum() + torch.special.xlogy(wanted, wanted).sum()
    whole = float(plain.loss(block, (1, 0)))
    assert float(made.loss(block, (1, 0))) == pytest.approx(whole + float(distance), rel=1e-4)
    (made.loss(block, (1, 0)) - plain.loss(block, (1, 0)).detach()).backward()
    first, last = (layer.mlp.up_proj.weight.grad for layer in made.draft.model.layers)
    assert first.abs().max() > 0 and last.abs().max() > 0
    made.held = held_lessons(documents()[:2], {one.name: [greedy("target")[one.name]] for one in documents()}, 64)
    plain.held = made.held
    assert made.acceptance() != plain.acceptance()


def packed_one(tokens, places):
    (block,) = packed([Lesson(tokens, places, frozenset(), (0,))], DEVICE)
    return block


@pytest.mark.parametrize(
    "changes",
    ({}, {"lora_rank": 4}, pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.long)),
    ids=str,
)
def test_a_draft_comes_nearer_to_its_target_and_both_models_of_the_pair_stay(tmp_path, changes):
    before = {(r, n): t.clone() for r, model in pair().models.items() for n, t in model.state_dict().items()}
    made = training(data="target", epochs=8, batch=2, **changes)
    made.held = held_lessons(documents()[:4], {one.name: [greedy("target")[one.name]] for one in documents()}, 64)
    made.run(tmp_path / "c", {})
    seen = [row["held_out"] for row in made.log if row["held_out"] is not None]
    assert len(seen) == 9 and max(seen) > seen[0] + 0.05
    model = made.finished()
    assert not any("lora" in name for name in model.state_dict())
    made.draft = model
    assert made.acceptance() == pytest.approx(max(seen), abs=1e-4)
    after = {(r, n): t for r, model in pair().models.items() for n, t in model.state_dict().items()}
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


def test_held_out_acceptance_is_the_mass_that_both_share():
    made = training()
    kept, places = 0.0, 0
    for lesson in made.held:
        for place in lesson.places:
            prefix = torch.tensor([lesson.tokens[:place]], device=DEVICE)
            with torch.no_grad():
                p, q = (one(prefix).logits[0, -1].double().softmax(-1) for one in (made.target, made.draft))
            kept, places = kept + float(torch.minimum(p, q).sum()), places + 1
    assert made.acceptance() == pytest.approx(kept / places, abs=1e-5)


def test_the_weights_that_did_best_are_kept_not_the_last():
    made = training()
    values = iter((0.5, 0.7, 0.6))
    made.acceptance = lambda: next(values)
    weight = made.draft.get_output_embeddings().weight
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        made.look()
    assert float(made.finished().get_output_embeddings().weight.flatten()[0]) == 2.0


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(draft_training, "training_documents", lambda *_, **__: documents())
    monkeypatch.setattr(draft_training, "HELD_OUT", 3)

    def make(name="better", seed=0, grid=None, models=None, preset="distillspec", **changes):
        spec = config.load_method("sps")
        plan = Plan(pair=config.load_pair("pocket"), methods=(spec,), baseline=None, suite="made", tasks=(), seed=seed)
        given = {**QUICK, "batch": 2, **({"exits": 1} if preset == "s2d" else {}), **changes}
        chosen = load_recipe(f"draft-{preset}", [f"{key}={value}" for key, value in given.items()])
        settings = module("sps").Settings(**spec.values)
        made = models or pair()
        return Job(spec, settings, made, plan, tmp_path / name, recipe=chosen, grid=grid or {}, preset=preset)

    return make


def weights(folder) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "preset", [preset if i == 0 else pytest.param(preset, marks=pytest.mark.long) for i, preset in enumerate(PRESETS)]
)
def test_every_preset_writes_a_folder_that_is_a_draft(job, preset, capsys):
    made = job(preset=preset)
    draft_training.train(made)
    model = AutoModelForCausalLM.from_pretrained(made.out)
    assert model.config.vocab_size == VOCABULARY and (made.out / "tokenizer.json").exists()
    log = pq.read_table(made.out.with_name("better.log.parquet")).to_pylist()
    assert [row["step"] for row in log if row["held_out"] is not None] == [0, 2, 4]
    assert sum(row["places"] or 0 for row in log) > 10
    asked = [json.loads(line) for line in made.out.with_name("better.held-out.jsonl").read_text().splitlines()]
    assert len(asked) == 2 and {one["id"] for one in asked} < {one.name for one in documents()}
    assert all((one["category"], one["stop"], one["max_new_tokens"]) == ("made", [], 10) for one in asked)
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 held out" in printed and "specbench run --method sps --target" in printed
    assert not made.out.with_suffix(".checkpoint.pt").exists()


def test_a_stopped_training_goes_on_and_gives_the_same_weights(job, monkeypatch):
    draft_training.train(job("whole"))
    monkeypatch.setattr(DraftTraining, "checkpoint_seconds", 0)
    monkeypatch.setattr(DraftTraining, "learn", stopping(4, DraftTraining.learn))
    with pytest.raises(KeyboardInterrupt):
        draft_training.train(job("stopped"))
    assert not job("stopped").out.exists()
    draft_training.train(job("stopped"))
    assert weights(job("stopped").out) == weights(job("whole").out)
    logs = [pq.read_table(job(name).out.with_name(f"{name}.log.parquet")) for name in ("whole", "stopped")]
    assert logs[0].equals(logs[1])


def test_a_draft_of_the_targets_first_layers_is_written_as_adapters_alone(tmp_path, capsys):
    """Neither its embedding nor the layers are stored again; a pair's file puts both together."""
    file, prompts, out = tmp_path / "pair.yaml", tmp_path / "asked.jsonl", tmp_path / "early"
    file.write_text('description: ""\ntarget: {model: "bundled:target"}\ndraft: {of: target, layers: 3}\n')
    prompts.write_text("".join(f'{{"prompt": "{i} times 3?", "max_new_tokens": 8}}\n' for i in range(8)))
    quick = ["epochs=3", "batch=4", "data=target", "lora_rank=2", "learning_rate=0.01"]
    words = ["train", "--method", "draft", "--pair", str(file), "--prompts", str(prompts), "--out", str(out)]
    words += [part for one in quick for part in ("--recipe", one)]
    out.with_suffix(".yaml").write_text("another's")
    assert "early.yaml exists, and the pair" in " ".join(call(*words).output.split())
    out.with_suffix(".yaml").unlink()
    outcome = call(*words)
    assert outcome.exit_code == 0, outcome.output
    printed = " ".join(outcome.output.split())
    assert "before training: acceptance" in printed and "epoch 3 of 3: acceptance" in printed
    assert f"--pair {out}.yaml --prompts FILE" in printed.replace(f"{out} .yaml", f"{out}.yaml")
    assert sorted(path.name for path in out.iterdir()) == [*ADAPTER, "training.json"]
    first, best = json.loads((out / "training.json").read_text())["held_out"]
    stored = load_file(out / "adapter_model.safetensors")
    assert best > first and not any("embed" in name or "base_layer" in name for name in stored)
    plain, trained = (load_pair(config.load_pair(str(path))) for path in (file, f"{out}.yaml"))
    assert [model.config.num_hidden_layers for model in trained.models.values()][1] == 3
    asked = torch.arange(5, 25)[None]
    same = [pair.models["target"](asked).logits for pair in (plain, trained)]
    other = [pair.models["draft"](asked).logits for pair in (plain, trained)]
    assert torch.equal(*same) and not torch.allclose(*other)


def test_what_cannot_be_trained_is_refused_in_a_line(job, monkeypatch):
    def refused(words, made):
        with pytest.raises(UserError) as caught:
            draft_training.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    alone = Pair("alone", {"target": pair().models["target"]}, tokenizer())
    refused("alone has no draft to train", job(models=alone))
    refused("leave out --grid", job(grid={"batch": [1, 2]}))
    refused("take data=replay, not draft", job(loss="split"))
    refused("the draft has 2 layers, so exits must be from 1 to 1; change them by --recipe", job(exits="1,2"))
    refused("data", job(data="nothing"))
    refused("no held-out prompt is shorter than 5 tokens; set a larger length", job(length=5))
    refused("has no reference answers in words; take data=target", job(data="ground_truth"))
    monkeypatch.setattr(draft_training, "training_documents", lambda *_, **__: documents(1))
    refused("no document is left to learn from once 1 is held out; take more --documents", job())


def test_a_draft_of_another_tokenizer_is_refused(job, monkeypatch):
    other = Pair("other", dict(pair().models), tokenizer(), translations={"draft": object()})
    with pytest.raises(UserError, match="a draft is trained on the target's own tokens"):
        draft_training.train(job(models=other))


def test_a_loss_that_is_not_a_number_stops_and_keeps_the_last_good_checkpoint(job, monkeypatch):
    monkeypatch.setattr(DraftTraining, "checkpoint_seconds", 0)
    real, calls = DraftTraining.loss, []

    def broken(self, *given):
        calls.append(given)
        return real(self, *given) * (math.nan if self.step == 2 else 1.0)

    monkeypatch.setattr(DraftTraining, "loss", broken)
    made = job()
    with pytest.raises(UserError) as caught:
        draft_training.train(made)
    kept = made.out.with_suffix(".checkpoint.pt")
    assert "the loss is nan at step 2 (documents made-" in str(caught.value) and str(kept) in str(caught.value)
    saved = torch.load(kept, weights_only=True)
    assert saved["step"] == 2 and all(tensor.isfinite().all() for tensor in saved["draft"].values())


@pytest.mark.parametrize("kind", ("mix_token", "served", "replay"))
def test_models_that_take_no_masks_are_refused_texts_that_are_made_by_them(job, kind):
    chains = dataclasses.replace(pair(), chains_only=frozenset({"target"}))
    with pytest.raises(UserError, match=f"data={kind} is made for several texts at once by masks"):
        draft_training.train(job(models=chains, data=kind))
    draft_training.train(job(models=chains, data="draft", epochs=1))


def full_gpu(*_):
    raise torch.OutOfMemoryError("no room")


def full_cpu(*_):
    return torch.empty(1 << 45)  # 128 TiB


@pytest.mark.parametrize("full", (full_gpu, full_cpu))
def test_out_of_memory_says_what_to_lower(job, monkeypatch, full):
    monkeypatch.setattr(DraftTraining, "loss", full)
    with pytest.raises(
        UserError, match="out of memory at step 0; lower batch or length, or set gradient_checkpointing"
    ):
        draft_training.train(job())


def test_every_recipe_has_all_settings_with_their_sources():
    for preset in PRESETS:
        spec = load_recipe(f"draft-{preset}", [])
        assert set(spec.values) == set(DraftRecipe.model_fields)
        assert all(setting.source != "user" for setting in spec.settings.values())
        DraftRecipe(**spec.values).check()
    expected = {"distillspec": ("draft", "fkl"), "fastdraft": ("target", "ce")}
    expected |= {"direct-alignment": ("target", "tvd++"), "draft-opd": ("replay", "split"), "s2d": ("target", "ce")}
    by_name = {preset: load_recipe(f"draft-{preset}", []).values for preset in PRESETS}
    assert {preset: (values["data"], values["loss"]) for preset, values in by_name.items()} == expected


@pytest.mark.long
def test_the_command_line_trains_a_draft_of_the_bundled_pair(tmp_path):
    out = tmp_path / "d"
    quick = ["epochs=1", "batch=4", "data=ground_truth", "temperatures=0"]
    words = ["train", "--method", "draft", "--data", "pocket_gsm8k:calibration", "--documents", "12", "--out", str(out)]
    outcome = call(*words, "--evaluate", *(part for one in quick for part in ("--recipe", one)))
    assert outcome.exit_code == 0, outcome.output
    assert "DRAFTS of bundled:target, decoded by sps (T=1)" in outcome.output and "τ is" in outcome.output
    shown = call(
        "run",
        *outcome.output.split("specbench run ")[1].splitlines()[0].split(),
        "--limit",
        "1",
        "--out",
        str(tmp_path / "run"),
    )
    assert shown.exit_code == 0, shown.output
    wrong = call(*words[:-1], str(tmp_path / "e"), "--preset", "nothing")
    assert "draft has the recipes of distillspec, fastdraft" in " ".join(wrong.output.split())
    other = call("train", "--method", "judge", "--preset", "fastdraft", "--suite", "math")
    assert "judge has a single recipe" in " ".join(other.output.split())
    other = call("train", "--method", "judge", "--suite", "math", "--evaluate")
    assert "--evaluate is for --method draft" in " ".join(other.output.split())
