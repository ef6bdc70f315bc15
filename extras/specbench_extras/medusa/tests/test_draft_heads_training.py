"""Training of Medusa's and Hydra's heads: losses and accuracies against plain forwards, resuming, refusals."""

import copy
import functools
import math

import naive_draft_heads as naive
import oracle
import pytest
import torch
from chains import Words
from gates import decode, pair
from jobs import job_of, stopping
from made_documents import document, own_answers
from refusals import one_line_error
from screens import call
from weights import weights_of

from specbench import config
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.methods.heads import hydra, medusa
from specbench.training import heads
from specbench.training.answered import Answered, blocks
from specbench.training.recipe import load_recipe, recipes
from specbench_extras.medusa import hydra as hydra_training
from specbench_extras.medusa import train as medusa_training
from specbench_extras.medusa.fit import DraftHeadsTraining, first_heads, read
from specbench_extras.medusa.recipe import DraftHeadsRecipe

KINDS = ("medusa", "hydra")
METHOD = {"medusa": medusa, "hydra": hydra}
TRAINER = {"medusa": medusa_training, "hydra": hydra_training}


def recipe(kind, **changes) -> DraftHeadsRecipe:
    facts = {"heads": 3, "layers": 2, "learning_rate": 0.02, "warmup": 0.0, "weight_decay": 0.0}
    return DraftHeadsRecipe(**{**load_recipe(kind, []).values, **facts, **changes})


def target():
    return pair("llama")[0]


@functools.cache
def answered() -> list[Answered]:
    """Of different lengths; one is too short for the later heads."""
    return own_answers(target(), (6, 3, 5), (4, 7, 2))


def noisy(kind, **changes):
    training = DraftHeadsTraining(
        TRAINER[kind].new_heads, target(), answered(), 96, recipe(kind, batch=3, **changes), 0
    )
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng).to(parameter.device))
    return training


def said(training, one, place, head):
    """What a head says after the state of a place of a document: logits [V]."""
    on_cpu = copy.deepcopy(target()).cpu()
    with torch.no_grad():
        out = on_cpu(torch.tensor([one.tokens[: place + 1]]), use_cache=False, output_hidden_states=True)
    state = out.hidden_states[-1][0, -1].double()
    return naive.said(weights_of(training.head), on_cpu, head, state, one.tokens[place + 1 : place + 2 + head])


@pytest.mark.parametrize("loss", ("tokens", "distillation"))
@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_accuracies_are_those_of_plain_forwards(kind, loss):
    """From the prompt's last token on; a head counts where its token is within the text. Padding counts nowhere."""
    training, on_cpu = noisy(kind, loss=loss), copy.deepcopy(target()).cpu()
    (block,) = blocks(answered(), target().device)
    losses, hits, counts = [0.0] * 3, [[0] * 10 for _ in range(3)], [0] * 3
    for one in answered():
        for place in range(one.prompt - 1, len(one.tokens) - 2):
            for head in range(min(3, len(one.tokens) - 2 - place)):
                logits = said(training, one, place, head)
                taught = oracle.next_logits(on_cpu, one.tokens[: place + 2 + head])
                chances = logits.log_softmax(-1)
                token = one.tokens[place + 2 + head]
                losses[head] -= float(chances[token] if loss == "tokens" else (taught.softmax(-1) * chances).sum())
                rank = int((logits > logits[oracle.best(taught)]).sum())
                if rank < 10:
                    hits[head][rank] += 1
                counts[head] += 1
    with torch.no_grad():
        values = training.losses(read(target(), block, 3, 96))
    assert counts == [10, 7, 5]
    assert [float(value) for value in values] == pytest.approx(losses, rel=1e-4)
    expected = [[hit / count for hit in row] for row, count in zip(hits, counts, strict=True)]
    assert training.agreement(answered()) == [pytest.approx(row) for row in expected]
    total = sum(
        training.recipe.decay**i * one / count for i, (one, count) in enumerate(zip(losses, counts, strict=True))
    )
    assert training.learn(answered()) == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("output", ("own", "target"))
@pytest.mark.parametrize("kind", KINDS)
def test_new_heads_say_about_what_the_target_says_next(kind, output):
    made = first_heads(TRAINER[kind].new_heads, target(), recipe(kind, output=output), 0)
    assert len(list(made.outputs())) == (3 if output == "own" else 0)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            assert "borrowed" not in name
            if name.endswith("linear.bias"):
                assert parameter.abs().max() > 0
                parameter.zero_()
        state = torch.randn(4, 32, dtype=torch.float64, device=target().device)
        for head in range(3):
            path = torch.randint(96, (4, head + 1), device=state.device)
            expected = target().get_output_embeddings()(state)
            assert torch.allclose(made.predict(head, state, path).double(), expected, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_heads_learn_their_documents_by_heart_and_nothing_of_the_target_changes(tmp_path, kind):
    before = {name: tensor.clone() for name, tensor in target().state_dict().items()}
    run = DraftHeadsTraining(TRAINER[kind].new_heads, target(), answered(), 96, recipe(kind, epochs=60, batch=3), 0)
    start = run.agreement(answered())
    run.run(tmp_path / "c", {})
    assert start[0][0] < 0.4 and all(row[0] >= 0.8 for row in run.agreement(answered()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in target().state_dict().items())


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    made = Pair("made", {"target": target()}, Words(7, 96))
    target().generation_config.eos_token_id = None
    documents = [document(i, one.tokens[: one.prompt], length=8) for i, one in enumerate(answered())]
    monkeypatch.setattr(heads, "training_documents", lambda *_: documents)

    def make(kind, name="heads.safetensors", seed=0, grid=None, **changes):
        small = {"heads": 2, "epochs": 3, "batch": 1, "learning_rate": 0.01}
        return job_of(kind, made, tmp_path / name, seed, grid, small | changes)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_training_goes_on_and_its_file_drafts_for_its_target(job, monkeypatch, kind):
    TRAINER[kind].train(job(kind))
    head = read_head(job(kind).out, kind, job(kind).pair, None)
    assert [len(row) for row in head.trained["accuracies"]] == [10, 10]
    values = {**config.load_method(kind).values, "head": str(job(kind).out), "nodes": 6}
    built = METHOD[kind].build(METHOD[kind].Settings(**values), job(kind).pair, Unwatched())
    one = answered()[1]
    assert decode(built, one.tokens[: one.prompt], 7)[0] == one.tokens[one.prompt :]
    assert built.inputs() == head.hashes() and built.reach <= 7
    monkeypatch.setattr(DraftHeadsTraining, "checkpoint_seconds", 0)
    monkeypatch.setattr(DraftHeadsTraining, "learn", stopping(4, DraftHeadsTraining.learn))
    with pytest.raises(KeyboardInterrupt):
        TRAINER[kind].train(job(kind, "again.safetensors"))
    TRAINER[kind].train(job(kind, "again.safetensors"))
    assert job(kind, "again.safetensors").out.read_bytes() == job(kind).out.read_bytes()


def test_what_cannot_be_trained_is_refused(job, monkeypatch):
    for words, wrong in (
        ("one head at a time; leave out --grid", {"grid": {"batch": [1, 2]}}),
        ("output", {"output": "draft"}),
        ("answers that are long enough to learn from", {"length": 3}),
    ):
        with one_line_error(words):
            medusa_training.train(job("medusa", **wrong))
    monkeypatch.setattr(DraftHeadsTraining, "learn", lambda self, batch: math.nan)
    with one_line_error("the loss is nan at step 0; try a smaller learning_rate"):
        medusa_training.train(job("medusa"))


@pytest.mark.parametrize("kind", KINDS)
def test_accuracies_that_are_set_decide_the_tree(job, kind):
    TRAINER[kind].train(job(kind))
    values = {**config.load_method(kind).values, "head": str(job(kind).out), "accuracies": [[0.5, 0.3], [0.4]]}
    settings = METHOD[kind].Settings(**values)
    built = METHOD[kind].build(settings, job(kind).pair, Unwatched())
    assert built.drafter.tree.parents == (-1, -1, 0, 1) and built.gamma == 2 and built.reach == 5
    with one_line_error("accuracies has 3 rows, but 2 heads"):
        wrong = METHOD[kind].Settings(**{**values, "accuracies": [[0.5], [0.4], [0.3]]})
        METHOD[kind].build(wrong, job(kind).pair, Unwatched())


def test_the_recipes_are_the_official_codes_and_their_sources_are_named():
    for kind, expected in (("medusa", (3, 1, "own", 2, 0.001)), ("hydra", (4, 1, "own", 10, 0.0005))):
        raw, spec = recipes()[kind], load_recipe(kind, [])
        result = DraftHeadsRecipe(**spec.values)
        assert (result.heads, result.layers, result.output, result.epochs, result.learning_rate) == expected
        assert set(spec.values) == set(DraftHeadsRecipe.model_fields)
        assert raw.read_text().count("source:") == len(spec.values)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_line_trains_heads_for_the_bundled_pair(tmp_path, pocket, kind):
    out = tmp_path / "h.safetensors"
    words = ["train", "--method", kind, "--suite", "pocket", "--documents", "2", "--out", str(out)]
    outcome = call(*words, "--recipe", "epochs=1", "--recipe", "batch=4", "--recipe", "output=target")
    assert outcome.exit_code == 0, outcome.output
    assert read_head(out, kind, pocket, None).trained["documents"] == 8
