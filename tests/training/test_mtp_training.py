"""Training of a multi-token-prediction module: its draft steps against transformers', the file, and what is refused."""

import copy
import dataclasses
from pathlib import Path

import mtp_checkpoints as checkpoints
import pytest
import tiny_architectures as tiny
import torch
from cases import mostly_long
from chains import Words
from gates import decode, pair, with_settings
from jobs import goes_on, job_of
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from tiny_heads import answered
from transformers.cache_utils import MtpCache
from weights import stirred

from specbench.config import SUITES, load_method
from specbench.engine.models.heads import read_head, write_head
from specbench.engine.models.mtp import load_modules
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.training import answered as data
from specbench.training import heads, mtp
from specbench.training.answered import Answered, blocks
from specbench.training.documents import Document
from specbench.training.mtp import MtpTraining, first_module
from specbench.training.recipe import UnrolledRecipe, load_recipe

VOCABULARY = 96


def recipe(**changes):
    return UnrolledRecipe(**{**load_recipe("mtp", []).values, "autocast": False, "learning_rate": 0.003, **changes})


def target(kind):
    made = pair(kind)[0] if kind in ("llama", "gemma2") else tiny.model(kind)
    return copy.deepcopy(made).float()


def texts(vocabulary):
    return [Answered(one.name, [token % vocabulary for token in one.tokens], one.prompt) for one in answered()]


@mostly_long("kind", ("llama", "gemma2", "qwen3_next", "glm4_moe"), ("llama", "qwen3_next"))
def test_every_draft_step_is_that_of_transformers_module(kind):
    """At each place, the module reads the text with the target's states, then with its own, without a cache."""
    model, steps = target(kind), 3
    given = texts(model.config.get_text_config().vocab_size)
    run = MtpTraining(model, given, model.config.get_text_config().vocab_size, recipe(steps=steps), 0)
    stirred(run.head)
    with torch.no_grad():
        (block,) = blocks(given, model.device)
        drafted, taught = run.unrolled(block), run.taught(block)
    (module,) = run.head.model
    checked = 0
    for row, one in enumerate(given):
        for r in range(one.rows):
            place = one.prompt - 1 + r
            states = taught.features[row, : place + 1][None].float()
            for k in range(min(steps, len(one.tokens) - 2 - place)):
                read = torch.tensor([one.tokens[1 : place + 2 + k]])
                at, cache = torch.arange(1, place + 2 + k)[None], MtpCache(config=module.config)
                with torch.no_grad():
                    after = module.forward_layer(0, states, at, cache, input_ids=read)
                    logits = module._project_to_logits(after[0, -1])
                assert torch.allclose(drafted[k].logits[row, r].float(), logits.float(), atol=2e-4)
                assert bool(drafted[k].counted[row, r])
                states = torch.cat([states, after[:, -1:]], 1)
                checked += 1
    assert checked == sum(max(0, one.rows - k) for one in given for k in range(steps)) > 80


def test_a_module_learns_its_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    model = pair("llama")[0]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run = MtpTraining(
        model, answered(), VOCABULARY, recipe(steps=3, step_decay=0.8, epochs=60, batch=3, learning_rate=0.01), 0
    )
    start = run.agreement(answered())
    run.run(tmp_path / "c", {}, lambda count: None)
    end = run.agreement(answered())
    assert max(start) < 0.3 and min(end) > 0.7
    after = model.state_dict()
    assert all(
        torch.equal(tensor, before[name]) and tensor.dtype == before[name].dtype for name, tensor in after.items()
    )
    assert all(name.startswith("layers.0.") for name, _ in run.head.named_parameters())
    assert not hasattr(model.config, "num_mtp_layers") and not hasattr(model.config, "mtp_layer_types")


@pytest.fixture
def job(tmp_path, monkeypatch):
    model = pair("llama")[0]
    made = Pair("made", {"target": model}, Words(7, VOCABULARY))
    model.generation_config.eos_token_id = None
    asked = [
        Document("made", i, one.tokens[: one.prompt], f"hash {i}", ("11 22 33",), len(one.tokens) - one.prompt, float)
        for i, one in enumerate(answered())
    ]
    monkeypatch.setattr(heads, "training_documents", lambda *_: asked)
    monkeypatch.setattr(heads, "HELD_OUT", 3)
    monkeypatch.setattr(data, "ROWS", 4)
    small = {"steps": 3, "epochs": 25, "batch": 2, "learning_rate": 0.01, "autocast": False}

    def make(name="mtp.safetensors", models=made, **changes):
        return job_of("mtp", models, tmp_path / name, 0, None, small | changes)

    return make


def test_a_trained_file_drafts_for_its_target_as_many_tokens_as_it_has_learned(job, capsys):
    mtp.train(job())
    built = with_settings("mtp", job().pair, 4, {"head": str(job().out)})
    assert built.gamma == 3
    assert set(built.hashes) == {"head"}
    accepted = 0
    for one in answered():
        tokens, rounds = decode(built, one.tokens[: one.prompt], len(one.tokens) - one.prompt)
        assert tokens == one.tokens[one.prompt :]
        accepted += sum(round_.accepted for round_ in rounds)
    assert accepted >= 15, "it has learned four of the six texts by heart"
    longer = with_settings("mtp", job().pair, 4, {"head": str(job().out), "steps": 5})
    assert longer.gamma == 5
    printed = " ".join(capsys.readouterr().out.split())
    assert "step 3" in printed and f"mtp.head={job().out}" in printed.replace(" ", "")


@pytest.mark.parametrize("kind", ("qwen3_next", "mamba2"))
def test_a_target_with_a_state_answers_as_a_forward_without_cache_says(kind):
    model = tiny.model(kind)
    prompts = [tiny.prompt(seed=seed)[:length] for seed, length in enumerate((9, 3, 6))]
    expected = []
    for prompt in prompts:
        text = list(prompt)
        with torch.inference_mode():
            for _ in range(8):
                text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        expected.append(text[len(prompt) :])
    ends = frozenset({expected[0][4]})
    told: list[int] = []
    said = data.answer(model, prompts, 8, ends, 96, Sampling(), torch.Generator(), told.append)
    assert told == [len(prompt) + 8 for prompt in prompts]
    for one, whole in zip(said, expected, strict=True):
        last = next((i for i, token in enumerate(whole) if token in ends), 7)
        assert one == whole[: last + 1]
    assert len({token for one in expected for token in one}) >= 5


def test_a_stopped_training_goes_on_and_gives_the_same_file(job, monkeypatch):
    goes_on(mtp.train, MtpTraining, lambda name: job(name, epochs=3), monkeypatch)


def test_a_checkpoints_own_module_is_what_the_training_begins_with(tmp_path):
    checkpoints.save("glm4_moe", 1, tmp_path / "one")
    model = checkpoints.load(tmp_path / "one")
    own = load_modules(model).layers.state_dict()
    begun, words = first_module(model, VOCABULARY, 0)
    assert words == "the checkpoint's module"
    assert all(torch.equal(tensor, own[name].float()) for name, tensor in begun.layers.state_dict().items())
    checkpoints.save("glm4_moe", 2, tmp_path / "two")
    with one_line_error("has 2 modules, and one is trained"):
        first_module(checkpoints.load(tmp_path / "two"), VOCABULARY, 0)


def test_a_training_goes_on_from_the_module_that_is_named(job, monkeypatch):
    mtp.train(job("first.safetensors", epochs=2))
    first, begun, learn = load_file(job("first.safetensors").out), [], MtpTraining.learn

    def spied(self, batch):
        begun.append({name: tensor.clone() for name, tensor in self.head.state_dict().items()})
        return learn(self, batch)

    monkeypatch.setattr(MtpTraining, "learn", spied)
    named = job("second.safetensors", epochs=1)
    mtp.train(dataclasses.replace(named, warm_up=job("first.safetensors").out))
    assert begun[0].keys() == first.keys()
    assert all(torch.equal(tensor.float(), begun[0][name]) for name, tensor in first.items())
    assert read_head(named.out, "mtp", named.pair, None).trained["begun"] == "an earlier module"
    with one_line_error("there is no head gone"):
        mtp.train(dataclasses.replace(job("third.safetensors"), warm_up=Path("gone")))


def test_only_a_checkpoint_without_modules_gets_a_new_one(tmp_path):
    """One of which a part is there, one in fewer bits, and one whose modules nothing here computes are refused."""
    checkpoints.save("glm4_moe", 1, tmp_path)
    file = tmp_path / "model.safetensors"
    whole, last = load_file(file), tiny.COMMON["num_hidden_layers"]
    target = {name: tensor for name, tensor in whole.items() if f"layers.{last}." not in name}
    save_file(target, file, {"format": "pt"})
    assert first_module(checkpoints.load(tmp_path), VOCABULARY, 0)[1] == "a new module"
    save_file({name: tensor for name, tensor in whole.items() if "hnorm" not in name}, file, {"format": "pt"})
    model = checkpoints.load(tmp_path)
    with one_line_error("lacks 1 of their", "layers.0.hnorm.weight for one"):
        first_module(model, VOCABULARY, 0)
    model.config.quantization_config = {"quant_method": "fp8"}
    with one_line_error("in fewer bits", "load a checkpoint in bfloat16"):
        first_module(model, VOCABULARY, 0)
    with one_line_error("its module is two layers"):
        first_module(tiny.model("nemotron_h"), VOCABULARY, 0)


def test_files_and_targets_that_do_not_fit_are_one_line(job, monkeypatch, tmp_path):
    mtp.train(job(epochs=1))
    tensors = load_file(job().out)
    for name, changed in (
        ("smaller", tensors | {"layers.0.eh_proj.weight": tensors["layers.0.eh_proj.weight"][:, :-1]}),
        ("fewer", {name: tensor for name, tensor in tensors.items() if "hnorm" not in name}),
    ):
        write_head(tmp_path / name, "mtp", changed, job().pair, {"steps": 3})
        with one_line_error("the head for mtp is damaged", "train or import it again"):
            with_settings("mtp", job().pair, 4, {"head": str(tmp_path / name)})
    monkeypatch.setattr(heads, "training_documents", None)  # refused before anything is answered
    opt = Pair("opt", {"target": pair("opt")[0]}, Words(7, VOCABULARY))
    with one_line_error("transformers makes no module of OPTForCausalLM's layers"):
        mtp.train(job("other.safetensors", models=opt))
    mamba = Pair("mamba", {"target": tiny.model("mamba2")}, Words(7, VOCABULARY))
    with one_line_error("transformers makes no module of Mamba2ForCausalLM's layers"):
        mtp.train(job("other.safetensors", models=mamba))


def test_the_recipe_is_the_official_codes_and_its_sources_are_named():
    values = UnrolledRecipe(**load_recipe("mtp", []).values)
    assert (values.steps, values.step_decay, values.epochs, values.batch) == (3, 0.6, 3, 64)
    assert (values.learning_rate, values.warmup, values.length) == (5e-5, 0.05, 4096)
    assert "official code" in (SUITES / "training" / "mtp.yaml").read_text()
    assert load_method("mtp").values == {"steps": 0, "head": "auto"}
