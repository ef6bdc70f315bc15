"""Chimera's head: a training as a command begins it, what it is worth, and released heads in the authors' layout."""

import json
import math

import naive_chimera
import oracle
import pytest
import torch
from gates import Words, decode, pair
from jobs import job_of, stopping
from made_documents import document
from refusals import one_line_error
from safetensors.torch import save_file
from screens import call
from tiny_heads import answered

from specbench import config
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.training import heads
from specbench.training.recipe import load_recipe
from specbench_extras import importer
from specbench_extras.chimera import chimera
from specbench_extras.chimera import released as released_chimera
from specbench_extras.chimera import train as trainer
from specbench_extras.chimera.fit import ChimeraTraining
from specbench_extras.eagle.recipe import StateRecipe
from specbench_extras.released import LayerConfig

TEXT = [5, 17, 900, 33, 210, 8]
PARTS = ("trimlp", "fast_layer1", "chimera_head")


def target():
    return pair("llama")[0]


def built(file, models, **changes):
    settings = chimera.Settings(**{**config.load_method("chimera").values, "head": str(file), **changes})
    return chimera.build(settings, models, Unwatched())


# Training


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Pair("made", {"target": target()}, Words())
    target().generation_config.eos_token_id = None
    documents = [document(i, one.tokens[: one.prompt], length=8) for i, one in enumerate(answered())]
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents)

    def make(name="head.safetensors", seed=0, grid=None, **changes):
        small = {"steps": 2, "epochs": 3, "batch": 1, "learning_rate": 0.01, "autocast": False}
        return job_of("chimera", made, tmp_path / name, seed, grid, small | changes)

    return make


def test_a_stopped_training_goes_on_and_its_file_drafts_for_its_target(job, monkeypatch):
    trainer.train(job())
    head = read_head(job().out, "chimera", job().pair, None)
    assert len(head.trained["held_out_agreement"]) == len(head.trained["held_out_agreement_untrained"]) == 2
    method, one = built(job().out, job().pair, total_tokens=8), answered()[1]
    assert decode(method, one.tokens[: one.prompt], 7)[0] == one.tokens[one.prompt :][:7]
    assert method.inputs() == head.hashes() and method.reach == 8 and method.lossless
    monkeypatch.setattr(ChimeraTraining, "checkpoint_seconds", 0)
    monkeypatch.setattr(ChimeraTraining, "learn", stopping(4, ChimeraTraining.learn))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(job("again.safetensors"))
    trainer.train(job("again.safetensors"))
    assert job("again.safetensors").out.read_bytes() == job().out.read_bytes()


def test_what_cannot_be_trained_is_refused(job, monkeypatch):
    for words, wrong in (
        ("one head at a time; leave out --grid", {"grid": {"batch": [1, 2]}}),
        ("steps", {"steps": 0}),
        ("answers that are long enough to learn from", {"length": 3}),
    ):
        with one_line_error(words):
            trainer.train(job(**wrong))
    monkeypatch.setattr(ChimeraTraining, "learn", lambda self, batch: math.nan)
    with one_line_error("the loss is nan at step 0; try a smaller learning_rate"):
        trainer.train(job())


def test_a_head_learns_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    """It is right at 4 of 5 places of every step, where its untrained self was at most right at 2 of 5."""
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    facts = {"epochs": 40, "batch": 3, "learning_rate": 0.01, "warmup": 0, "steps": 3, "autocast": False}
    recipe = StateRecipe(**{**load_recipe("chimera", []).values, **facts})
    run = ChimeraTraining(target(), answered(), 96, recipe, 0)
    start = run.agreement(answered())
    run.run(tmp_path / "c", {})
    assert max(start) < 0.4 and min(run.agreement(answered())) >= 0.8
    assert all(torch.equal(tensor, before[name]) for name, tensor in target().state_dict().items())


@pytest.mark.long
def test_the_command_line_trains_a_head_that_beats_its_untrained_self(tmp_path, pocket):
    """On documents left out, by 0.1 at the first step, for the bundled pair: a hundred updates on 98 answers."""
    out = tmp_path / "h.safetensors"
    words = ["train", "--method", "chimera", "--suite", "pocket", "--documents", "25", "--out", str(out)]
    quick = ["epochs=4", "batch=4", "learning_rate=0.002", "autocast=false"]
    outcome = call(*words, *(part for one in quick for part in ("--recipe", one)))
    assert outcome.exit_code == 0, outcome.output
    trained = read_head(out, "chimera", pocket, None).trained
    assert trained["documents"] == 100
    assert trained["held_out_agreement"][0] > trained["held_out_agreement_untrained"][0] + 0.1


# Released heads


def checkpoint(folder, safe=False, change=None, outputs=1, **facts):
    """A checkpoint for the bundled target, in half precision."""
    rng = torch.Generator().manual_seed(5)

    def noise(*shape):
        return (torch.randn(*shape, generator=rng) * 0.05).half()

    layer = {f"0.self_attn.{name}_proj.weight": noise(192 if name in "qo" else 96, 192) for name in "qkvo"}
    layer |= {f"0.mlp.{name}_proj.weight": noise(512, 192) for name in ("gate", "up")}
    layer |= {"0.mlp.down_proj.weight": noise(192, 512), "0.self_attn.rotary_emb.inv_freq": noise(16)}
    layer |= {f"0.{name}_layernorm.weight": 1 + noise(192) for name in ("input", "post_attention")}
    parts = {
        "trimlp": {"0.linear.weight": noise(576, 576), "0.linear.bias": noise(576), "1.weight": noise(192, 576)},
        "fast_layer1": layer,
        "chimera_head": {f"{number}.0.weight": noise(2048, 384) for number in range(outputs)},
    }
    if change:
        change(parts)
    folder.mkdir()
    facts = {"chimera_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3", **facts}
    (folder / "config.json").write_text(json.dumps({"chimera_num_heads": outputs, **facts}))
    for name, tensors in parts.items():
        if safe:
            save_file(tensors, folder / f"{name}.safetensors")
        else:
            torch.save(tensors, folder / f"{name}.pt")
    return folder, {f"{part}.{name}": tensor for part in parts for name, tensor in parts[part].items()}


@pytest.fixture
def bundled(pocket, monkeypatch):
    monkeypatch.setattr(importer, "load_models", lambda *_: pocket)
    return pocket


@pytest.mark.parametrize("outputs", (1, 4))
def test_a_released_head_drafts_what_its_own_weights_say(tmp_path, bundled, outputs):
    """Further output layers are left out."""
    folder, tensors = checkpoint(tmp_path / "head", outputs == 4, outputs=outputs)
    file = released_chimera.import_head(folder, "pocket", tmp_path / "h.safetensors")
    head = read_head(file, "chimera", bundled, None)
    assert head.trained["released"] == "head" and sum(name.startswith("chimera_head") for name in head.tensors) == 1
    method, model = built(file, bundled, total_tokens=4, top_k=1, depth=2), bundled.models["target"]
    tokens, rounds = decode(method, TEXT, 8)
    assert tokens == oracle.greedy(model, TEXT, 8) and method.inputs() == head.hashes()
    context = [*TEXT, *rounds[0].tokens]
    with torch.no_grad():
        seen = model(torch.tensor([context[:-1]]), use_cache=False, output_hidden_states=True).hidden_states[-1][0]
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    table, path = model.get_input_embeddings().weight.detach().double(), []
    for _ in range(3):
        _, logits = naive_chimera.drafted(weights, table, [*context, *path], seen.double(), 6, 2)
        path.append(int(logits.argmax()))
    assert list(rounds[1].verdict.drafted) == path


def test_the_shapes_are_those_of_the_released_heads_for_vicuna_7b():
    """202 million numbers in the layer, 151 + 50 in the encoder, 2 x 131 in the output layer."""
    facts = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
    sizes = released_chimera.shapes(LayerConfig(**facts), 32000)
    millions = [
        round(sum(math.prod(shape) for name, shape in sizes.items() if name.startswith(part)) / 1e6) for part in PARTS
    ]
    assert millions == [201, 202, 262]


def without(part, name):
    return lambda parts: parts[part].pop(name)


@pytest.mark.parametrize(
    ("change", "facts", "words"),
    [
        (without("trimlp", "1.weight"), {}, "it lacks trimlp.1.weight; name the folder of a head"),
        (without("chimera_head", "0.0.weight"), {}, "it lacks chimera_head.0.0.weight"),
        (None, {"chimera_num_heads": 2}, "it lacks chimera_head.1.0.weight"),
        (None, {"chimera_num_heads": 0}, "chimera_num_heads"),
        (lambda parts: parts["fast_layer1"].update({"1.extra": torch.zeros(3)}), {}, "it has fast_layer1.1.extra too"),
        (
            lambda parts: parts["trimlp"].update({"1.weight": torch.zeros(64, 576)}),
            {},
            "reads 64 values, but the target of pocket has 192",
        ),
        (
            lambda parts: parts["chimera_head"].update({"0.0.weight": torch.zeros(100, 384)}),
            {},
            "chimera_head.0.0.weight is 100 x 384, and the target of pocket says 2048 x 384",
        ),
        (lambda parts: parts["trimlp"]["0.linear.bias"].fill_(torch.nan), {}, "no numbers"),
    ],
)
def test_checkpoints_that_are_no_head(tmp_path, bundled, change, facts, words):
    folder, _ = checkpoint(tmp_path / "head", True, change, **facts)
    with one_line_error(words):
        released_chimera.import_head(folder, "pocket", tmp_path / "h.safetensors")
    assert not (tmp_path / "h.safetensors").exists()


def test_a_folder_that_lacks_a_file(tmp_path, bundled):
    folder, _ = checkpoint(tmp_path / "head")
    (folder / "fast_layer1.pt").unlink()
    with one_line_error("neither fast_layer1.safetensors nor fast_layer1.pt"):
        released_chimera.import_head(folder, "pocket", tmp_path / "h.safetensors")


@pytest.mark.long
def test_the_command_line_imports_a_head(tmp_path):
    folder, _ = checkpoint(tmp_path / "head")
    out = tmp_path / "h.safetensors"
    outcome = call("import", "chimera-head", str(folder), "--pair", "pocket", "--out", str(out))
    assert outcome.exit_code == 0 and f"chimera.head={out}" in outcome.output and out.is_file()
