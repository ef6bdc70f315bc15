"""Training of Kangaroo's adapter: its loss against plain forwards, what it learns, resuming, and what is refused."""

import copy
import functools
import math

import naive_kangaroo as naive
import oracle
import pytest
import torch
from chains import Words
from gates import decode, pair
from jobs import job_of, stopping
from made_documents import document, own_answers
from refusals import one_line_error
from screens import call
from torch import nn
from weights import weights_of

from specbench import config
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.methods.layers import kangaroo as method
from specbench.training import heads
from specbench.training.answered import Answered, blocks
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.kangaroo import train as kangaroo
from specbench_extras.kangaroo.recipe import KangarooRecipe
from specbench_extras.kangaroo.train import AdapterTraining, first_adapter, fit


def recipe(**changes) -> KangarooRecipe:
    facts = {"exit": 1, "learning_rate": 0.02, "warmup": 0.0}
    return KangarooRecipe(**{**load_recipe("kangaroo", []).values, **facts, **changes})


def target():
    return pair("llama")[0]


@functools.cache
def answered() -> list[Answered]:
    return own_answers(target(), (6, 3, 5), (4, 7, 2))


def test_the_loss_is_that_of_plain_forwards():
    """At every answer token but the last: the cross-entropy with the target's distribution. Padding counts nowhere."""
    adapter, on_cpu = first_adapter(target(), 0), copy.deepcopy(target()).cpu()
    (block,) = blocks(answered(), target().device)
    with torch.no_grad():
        (fitted,) = fit(target(), nn.ModuleDict({"1": adapter}), block)
    weights = weights_of(adapter)
    loss, agreed, places = 0.0, 0, 0
    for one in answered():
        for end in range(one.prompt + 1, len(one.tokens)):
            text = one.tokens[:end]
            logits = naive.logits(weights, on_cpu, 1, text, 4, 2)
            taught = oracle.next_logits(on_cpu, text)
            loss -= float((taught.softmax(-1) * logits.log_softmax(-1)).sum())
            agreed += oracle.best(logits) == oracle.best(taught)
            places += 1
    assert (fitted.places, fitted.agreed) == (places, agreed) and places == 3 + 6 + 1
    assert float(fitted.loss) == pytest.approx(loss, rel=1e-4)


@pytest.mark.long
def test_an_adapter_learns_its_documents_by_heart_and_nothing_of_the_target_changes(tmp_path):
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    run = AdapterTraining(target(), answered(), recipe(epochs=60, batch=3), 0)
    (start,) = run.agreements(answered())
    run.run(tmp_path / "c", {})
    assert start < 0.4 and run.agreements(answered())[0] >= 0.8
    assert all(torch.equal(tensor, before[name]) for name, tensor in target().state_dict().items())
    assert not any("borrowed" in name for name, _ in run.head.named_parameters())


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Pair("made", {"target": target()}, Words(7, 96))
    target().generation_config.eos_token_id = None
    documents = [document(i, one.tokens[: one.prompt], length=8) for i, one in enumerate(answered())]
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents)
    small = {"exit": 1, "epochs": 3, "batch": 1, "learning_rate": 0.01}

    def make(name="adapter.safetensors", seed=0, grid=None, **changes):
        return job_of("kangaroo", made, tmp_path / name, seed, grid, small | changes)

    return make


def test_a_stopped_training_goes_on_and_its_file_drafts_for_its_target(job, monkeypatch):
    kangaroo.train(job())
    head = read_head(job().out, "kangaroo", job().pair, method.SHAPES)
    assert head.trained["exit"] == 1 and 0 <= head.trained["held_out_agreement"] <= 1
    settings = method.Settings(**{**config.load_method("kangaroo").values, "head": str(job().out)})
    built = method.build(settings, job().pair, Unwatched())
    one = answered()[1]
    assert decode(built, one.tokens[: one.prompt], 7)[0] == one.tokens[one.prompt :]
    assert built.inputs() == head.hashes() and built.reach == 7
    monkeypatch.setattr(AdapterTraining, "checkpoint_seconds", 0)
    monkeypatch.setattr(AdapterTraining, "learn", stopping(4, AdapterTraining.learn))
    with pytest.raises(KeyboardInterrupt):
        kangaroo.train(job("again.safetensors"))
    kangaroo.train(job("again.safetensors"))
    assert job("again.safetensors").out.read_bytes() == job().out.read_bytes()


def test_what_cannot_be_trained_is_refused(job, monkeypatch):
    for words, wrong in (
        ("one head at a time; leave out --grid", {"grid": {"batch": [1, 2]}}),
        ("the target has 2 layers, so exit must be 1 or less", {"exit": 2}),
        ("answers that are long enough to learn from", {"length": 3}),
    ):
        with one_line_error(words):
            kangaroo.train(job(**wrong))
    monkeypatch.setattr(AdapterTraining, "learn", lambda self, batch: math.nan)
    with one_line_error("the loss is nan at step 0; try a smaller learning_rate"):
        kangaroo.train(job())


def test_the_recipe_is_the_official_codes_and_its_sources_are_named():
    raw = recipes()["kangaroo"]
    spec = load_recipe("kangaroo", [])
    result = KangarooRecipe(**spec.values)
    assert (result.exit, result.epochs, result.batch, result.learning_rate, result.clip) == (2, 20, 32, 5e-5, 0.5)
    assert set(spec.values) == set(KangarooRecipe.model_fields) and raw.read_text().count("source:") == len(spec.values)


@pytest.mark.long
def test_the_command_line_trains_an_adapter_for_the_bundled_pair(tmp_path, pocket):
    out = tmp_path / "h.safetensors"
    words = ["train", "--method", "kangaroo", "--suite", "pocket", "--documents", "2", "--out", str(out)]
    outcome = call(*words, "--recipe", "epochs=1", "--recipe", "batch=4")
    assert outcome.exit_code == 0, outcome.output
    head = read_head(out, "kangaroo", pocket, method.SHAPES)
    assert head.trained["documents"] == 8 and head.trained["exit"] == 2
