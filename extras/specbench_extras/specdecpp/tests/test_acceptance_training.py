"""Training the acceptance head: what is collected against a reader without cache, heads whose answer is known, and
trainings that were stopped."""

import json
import math
from dataclasses import replace

import numpy as np
import oracle
import pyarrow.parquet as pq
import pytest
import torch
from cases import mostly_long
from chain_models import END, chain
from chains import Words
from gates import decode
from jobs import job_of, stopping
from made_documents import document, plan_of
from recalled import RECALLED
from scipy.special import expit
from screens import output, refusal

from specbench import config
from specbench.config import UserError
from specbench.engine.models.heads import read_head
from specbench.engine.models.pair import Pair
from specbench.engine.types import Sampling
from specbench.methods.lengths import specdecpp as method
from specbench.tasks.data import evaluated_split
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.recipe import load_recipe
from specbench_extras.specdecpp import fit as acceptance_fit
from specbench_extras.specdecpp import train as specdecpp
from specbench_extras.specdecpp.data import Collector, Observed, observe_all
from specbench_extras.specdecpp.fit import Examples, fit, gather, head_of, predicted, start, weighted_loss
from specbench_extras.specdecpp.recipe import HeadRecipe
from specbench_extras.specdecpp.soft_labels import binary_kl, calibration_error

SAMPLED = Sampling(1.5, top_k=20)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny() -> Pair:
    target, draft = oracle.tiny_pair("llama")
    return Pair("tiny", {"target": target, "draft": draft}, Words())


def recipe(**changes) -> HeadRecipe:
    spec = load_recipe("specdecpp", [])
    return HeadRecipe(**{**spec.values, **changes})


# What is collected


def collect(pair: Pair, one: Document, sampling=SAMPLED, warped=True, mix=0.3, seed=0) -> tuple[list[int], Observed]:
    """The response and what was seen of it; the response is drawn first of all, so the same seed gives it again."""
    collector = Collector(pair, sampling, warped, mix, seed)
    observed = collector.collect(one)
    heard: list[list[int]] = []
    original = collector.respond
    collector.respond = lambda *a: (heard.append(original(*a)), heard[-1])[1]
    again = collector.collect(one)
    assert all(np.array_equal(getattr(observed, name), getattr(again, name)) for name in vars(observed))
    return heard[0][0], observed


@pytest.mark.parametrize("warped", (True, False))
@mostly_long("architecture", ("llama", "opt", "gemma2"), ("gemma2",))
def test_positions_equal_a_reader_without_cache(architecture, warped):
    """p, q and the state after Y itself in the mixture, each from one forward over the whole text."""
    target, draft = oracle.tiny_pair(architecture)
    pair, rows = Pair("tiny", {"target": target, "draft": draft}, Words()), 0
    warp = (SAMPLED.temperature, SAMPLED.top_k) if warped else (1.0, 0)
    for number, prompt in enumerate(oracle.prompts(3, length=9)):
        response, seen = collect(pair, document(number, prompt, length=24), warped=warped)
        assert len(response) == 24 and len(set(response)) > 8 and 8 < len(seen.positions) < 24
        mixture = list(response)
        for i, token, accepted, confidence in zip(
            seen.positions, seen.tokens, seen.accepted, seen.confidence, strict=True
        ):
            context = [*prompt, *response[:i]]
            p, q = (oracle.warp(oracle.next_logits(model, context), *warp) for model in (target, draft))
            assert confidence == pytest.approx(float(q[token]), abs=1e-4)
            assert accepted == pytest.approx(min(1.0, float(p[token] / q[token])), rel=1e-2, abs=1e-3)
            mixture[i] = int(token)
        with torch.no_grad():
            read = draft(torch.tensor([prompt + mixture]), use_cache=False, output_hidden_states=True)
        states = read.hidden_states[-1][0, len(prompt) + torch.from_numpy(seen.positions).long()]
        assert np.allclose(seen.hidden, states.numpy(), rtol=2e-3, atol=4e-3)
        rows += len(seen.positions)
        assert seen.hidden.dtype == np.float16 and (mixture != response)
        assert (seen.accepted < 0.9).any() and (seen.accepted == 1).any()
    assert rows > 30


# A target and a draft whose next token depends on the last one only; the state after token s is large in place s.
TARGET = {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: END}
DRAFT = {**TARGET, 1: 13, 2: 12, 4: 15, 6: 17}


@pytest.fixture
def chains() -> Pair:
    return Pair("made", {"target": chain(TARGET), "draft": chain(DRAFT)}, Words(END))


def test_a_greedy_document_by_hand(chains):
    """The response is 2 3 4 5 6 and the end; the draft says 13 12 4 15 6 17 to it."""
    response, seen = collect(chains, document(0, [20, 1]), Sampling(0.0), mix=0.0)
    assert response == [2, 3, 4, 5, 6, END]
    assert seen.positions.tolist() == [0, 1, 2, 3, 4, 5] and seen.tokens.tolist() == [13, 12, 4, 15, 6, 17]
    assert seen.accepted.tolist() == [0, 0, 1, 0, 1, 0]
    assert seen.hidden.argmax(-1).tolist() == [13, 12, 4, 15, 6, 17], "the state after Y itself"
    # Logits of the chain: √40 for what follows, 0 for the 39 others.
    assert seen.confidence == pytest.approx(1 / (1 + 39 * math.exp(-math.sqrt(40))), rel=1e-3)


@pytest.mark.parametrize(("limits", "response"), [({"length": 3}, [2, 3, 4]), ({"until": ("4 5",)}, [2, 3, 4, 5])])
def test_responses_end_as_texts_do(chains, limits, response):
    result, seen = collect(chains, document(0, [20, 1], **limits), Sampling(0.0), mix=0.0)
    assert result == response and seen.positions.tolist() == list(range(len(response)))


def test_mixed_in_tokens_are_read_and_not_learned_from(chains):
    """With a share of one half, the state after each Y still is its own, and about half of the places are left."""
    left = 0
    for number in range(60):
        _, seen = collect(chains, document(number, [20, 1]), Sampling(0.0), mix=0.5)
        assert seen.hidden.argmax(-1).tolist() == seen.tokens.tolist()
        left += len(seen.positions)
    assert abs(left / 360 - 0.5) < 0.1


def firsts(pair: Pair, prompt: list[int], count: int, sampling: Sampling, warped: bool) -> np.ndarray:
    """How often each token was the response's first, and the draft's first: [2, V]."""
    collector, counts = Collector(pair, sampling, warped, 0.0, 0), np.zeros((2, 96))
    respond, heard = collector.respond, []
    collector.respond = lambda *a: (heard.append(respond(*a)), heard[-1])[1]
    for number in range(count):
        seen = collector.collect(document(number, prompt, length=1))
        counts[0, heard[-1][0][0]] += 1
        counts[1, seen.tokens[0]] += 1
    return counts


@pytest.mark.parametrize("warped", (True, False))
def test_tokens_are_drawn_from_what_the_probabilities_are_of(tiny, warped):
    (prompt,) = oracle.prompts(1, length=9, seed=3)
    sampling, count = Sampling(0.7, top_k=8), 1500
    result = firsts(replace(tiny, runtime=RECALLED), prompt, count, sampling, warped)
    laws = [
        oracle.warp(oracle.next_logits(tiny.models["target"], prompt), 0.7, 8),
        oracle.warp(oracle.next_logits(tiny.models["draft"], prompt), *((0.7, 8) if warped else (1.0, 0))),
    ]
    for counts, law in zip(result, laws, strict=True):
        assert oracle.chi_square(counts, law.numpy()) > 0.01
    other = oracle.warp(oracle.next_logits(tiny.models["draft"], prompt), *((1.0, 0) if warped else (0.7, 8)))
    assert oracle.chi_square(result[1], other.numpy()) < 1e-6


def test_what_is_drawn_for_a_document_does_not_depend_on_the_others(tiny, tmp_path):
    documents = [document(i, prompt, length=10) for i, prompt in enumerate(oracle.prompts(4, length=9))]
    collector = Collector(tiny, SAMPLED, True, 0.15, 7)
    forth = observe_all(collector, documents, tmp_path / "a", lambda _: None)
    back = observe_all(Collector(tiny, SAMPLED, True, 0.15, 7), documents[::-1], tmp_path / "b", lambda _: None)
    for one in documents:
        mine, other = vars(forth[one.name]), vars(back[one.name])
        assert all(np.array_equal(mine[key], other[key]) for key in mine)
    other = observe_all(Collector(tiny, SAMPLED, True, 0.15, 8), documents, tmp_path / "c", lambda _: None)
    assert other[documents[0].name].tokens.tolist() != forth[documents[0].name].tokens.tolist()


def test_collected_documents_are_read_again_and_nothing_else_is(tiny, tmp_path, monkeypatch):
    documents = [document(i, prompt, length=6) for i, prompt in enumerate(oracle.prompts(3, length=9))]
    collector, made = Collector(tiny, SAMPLED, True, 0.15, 0), []
    original = Collector.collect
    monkeypatch.setattr(Collector, "collect", lambda self, one: (made.append(one.number), original(self, one))[1])
    first = observe_all(collector, documents[:2], tmp_path, lambda _: None)
    again = observe_all(collector, documents, tmp_path, lambda _: None)
    assert made == [0, 1, 2]
    assert np.array_equal(first["made-00001"].hidden, again["made-00001"].hidden)
    for other, what in (
        (Collector(tiny, Sampling(1.0, 20), True, 0.15, 0), "temperature"),
        (Collector(tiny, Sampling(1.5, 21), True, 0.15, 0), "top_k"),
        (Collector(tiny, SAMPLED, False, 0.15, 0), "warped"),
        (Collector(tiny, SAMPLED, True, 0.2, 0), "mix"),
        (Collector(tiny, SAMPLED, True, 0.15, 1), "seed"),
    ):
        with pytest.raises(UserError, match=rf"collected with different {what}; delete that folder"):
            observe_all(other, documents, tmp_path, lambda _: None)
    file = tmp_path / "made-00000.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"is damaged .* delete it"):
        observe_all(collector, documents, tmp_path, lambda _: None)


# The fit


def made_examples(documents: int, seed: int, law, width: int = 4, size: int = 40) -> Examples:
    rng = np.random.default_rng(seed)
    observed = []
    for _ in range(documents):
        hidden = rng.normal(size=(size, width)).astype(np.float16)
        accepted = expit(law(hidden.astype(np.float64))).astype(np.float32)
        zeros = np.zeros(size, np.int32)
        observed.append(Observed(zeros, zeros, accepted, rng.random(size).astype(np.float32), hidden))
    return gather(observed)


def linear(h):
    return 2 * h[:, 0] - h[:, 1] + 1


def fitted(tmp_path, law=linear, name="c.pt", **changes):
    chosen = recipe(**{"depth": 0, "weight": 1, "epochs": 60, "batch": 4, "learning_rate": 0.05, **changes})
    learned, held = made_examples(40, 0, law), made_examples(10, 1, law)
    return chosen, held, fit(learned, held, chosen, 0, CPU, tmp_path / name, {}, lambda _: None)


def log_odds(chosen: HeadRecipe, result, held: Examples) -> np.ndarray:
    return predicted(head_of(result.tensors, chosen.depth), held.hidden, CPU).astype(np.float64)


def test_a_linear_law_is_learned_by_a_linear_head(tmp_path):
    chosen, held, fit_again = fitted(tmp_path)
    assert fit_again.best.eval_kl < 1e-4 and fit_again.best.train_kl < 1e-4
    difference = fit_again.tensors["out.weight"][1] - fit_again.tensors["out.weight"][0]
    assert difference.tolist() == pytest.approx([2, -1, 0, 0], abs=0.05)
    assert log_odds(chosen, fit_again, held) == pytest.approx(linear(held.hidden.double().numpy()), abs=0.1)


def test_the_weight_divides_the_odds_of_acceptance(tmp_path):
    """What a loss weight of 6 on rejections learns is odds / 6; multiplied again, they are calibrated."""
    chosen, held, fit_again = fitted(tmp_path, weight=6)
    odds, accepted = log_odds(chosen, fit_again, held), held.accepted.astype(float)
    assert odds + math.log(6) == pytest.approx(linear(held.hidden.double().numpy()), abs=0.15)
    figures = specdecpp.judge(fit_again, chosen, held)
    assert figures["ece"].value > 0.2 > 0.02 > figures["ece_unweighted"].value
    assert figures["ece"].value == pytest.approx(calibration_error(accepted, expit(odds))(np.ones(len(odds))))
    assert figures["auroc"].low > 0.7 > 0.6 > figures["auroc_confidence"].high
    assert figures["auroc_difference"].low > 0.1


@pytest.mark.long
@pytest.mark.parametrize("shared", (False, True))
def test_blocks_learn_what_a_linear_head_cannot(tmp_path, shared):
    def law(h):
        return 3 * np.sign(h[:, 0]) * np.sign(h[:, 1])

    settings = {"learning_rate": 0.02, "epochs": 40}
    flat = fitted(tmp_path, law, "flat.pt", **settings)[2].best.eval_kl
    deep = fitted(tmp_path, law, "deep.pt", depth=3, shared_blocks=shared, **settings)[2]
    assert deep.best.eval_kl < 0.7 * flat
    assert deep.tensors["blocks.weight"].shape == (1 if shared else 3, 4, 4)


@pytest.mark.long
def test_a_head_may_read_the_confidence_too(tmp_path):
    """Acceptance that depends on q(d) alone: the state says nothing of it, its log odds say all."""
    learned, held = made_examples(40, 0, linear), made_examples(10, 1, linear)
    lines = [
        replace(one, accepted=one.confidence**2 / (one.confidence**2 + (1 - one.confidence) ** 2))
        for one in (learned, held)
    ]
    kls = []
    for inputs in ("state", "state+confidence"):
        chosen = recipe(inputs=inputs, depth=0, weight=1, epochs=60, batch=4, learning_rate=0.05)
        read = [line.reading(inputs) for line in lines]
        fitted = fit(*read, chosen, 0, CPU, tmp_path / inputs, {}, lambda _: None)
        kls.append(fitted.best.eval_kl)
    assert kls[0] > 0.2 > 1e-3 > kls[1]
    weights = fitted.tensors["out.weight"][1] - fitted.tensors["out.weight"][0]
    assert weights.tolist() == pytest.approx([0, 0, 0, 0, 2], abs=0.05)


def test_the_loss_by_hand():
    """π_1 = .8 and .5, p_acc = .25 and 1, w = 6: (6 · .75 · -ln .2 - .25 ln .8 - ln .5) / (6 · .75 + 1.25)."""
    loss = weighted_loss(torch.tensor([math.log(4), 0.0]), torch.tensor([0.25, 1.0]), 6.0)
    expected = (4.5 * -math.log(0.2) - 0.25 * math.log(0.8) - math.log(0.5)) / 5.75
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_learning_rate_rises_and_falls():
    learned, settings = made_examples(8, 0, linear), recipe(epochs=5, batch=2, warmup=0.2, learning_rate=1.0)
    training = acceptance_fit.AcceptanceTraining(learned, learned, settings, 0, CPU)
    rates = [training.rate(step) for step in range(20)]
    assert (training.epoch_steps, training.steps) == (4, 20) and rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[12] == pytest.approx(0.5) and rates[19] == pytest.approx(0.5 * (1 + math.cos(math.pi * 15 / 16)))


def test_heads_begin_as_linear_layers_do():
    tensors = start(recipe(depth=2), 0, 64)
    assert [tuple(x.shape) for x in tensors.values()] == [(2, 64, 64), (2, 64), (2, 64), (2,)]
    assert 0.12 < tensors["blocks.weight"].abs().max() <= 0.125
    assert not torch.equal(start(recipe(depth=2), 1, 64)["out.weight"], tensors["out.weight"])
    assert start(recipe(depth=0, shared_blocks=True), 0, 64)["blocks.weight"].shape == (0, 64, 64)


def test_the_best_epoch_is_kept_and_patience_ends_it(tmp_path):
    """Twelve positions and a wide head: it soon learns by heart, and the held-out KL rises."""
    rng = np.random.default_rng(0)

    def noise(h):
        return rng.normal(size=len(h)) * 3

    learned, held = (made_examples(4, seed, noise, size=3) for seed in (0, 1))
    settings = {"depth": 2, "weight": 1, "batch": 4, "learning_rate": 0.1, "epochs": 60}
    whole = fit(learned, held, recipe(**settings), 0, CPU, tmp_path / "a.pt", {}, lambda _: None)
    kls = [epoch.eval_kl for epoch in whole.epochs]
    assert len(kls) == 60 and kls[-1] > 1.5 * min(kls) and whole.best.eval_kl == min(kls)
    own = binary_kl(held.accepted, predicted(head_of(whole.tensors, 2), held.hidden, CPU))
    assert own == pytest.approx(min(kls), rel=1e-6)
    short = fit(learned, held, recipe(**settings, patience=3), 0, CPU, tmp_path / "b.pt", {}, lambda _: None)
    stop = next(i for i in range(3, 60) if min(kls[: i - 2]) == min(kls[: i + 1]))
    assert [epoch.eval_kl for epoch in short.epochs] == kls[: stop + 1]


# Whole trainings


@pytest.fixture
def job(tiny, tmp_path, monkeypatch):
    """A training on made documents of the tiny pair."""
    documents = [document(i, prompt, length=12) for i, prompt in enumerate(oracle.prompts(12, length=9))]
    monkeypatch.setattr(specdecpp, "training_documents", lambda *_, **__: documents)
    small = {"depth": 1, "batch": 4, "learning_rate": 0.01, "epochs": 4}

    def make(name="head.safetensors", seed=0, grid=None, **changes):
        return job_of("specdecpp", tiny, tmp_path / name, seed, grid, small | changes)

    return make


def read(path, pair):
    return read_head(path, "specdecpp", pair, method.SHAPES, "draft")


def test_a_head_tells_how_it_came_about_and_what_it_is_worth(job, tiny, capsys):
    specdecpp.train(job())
    trained = read(job().out, tiny).trained
    message = {"depth": 1, "weight": 6, "temperature": 1, "top_k": 50, "mix": 0.15, "warped": True, "seed": 0}
    assert {key: trained[key] for key in message} == message
    assert trained["documents"] == 12 and trained["held_out_documents"] == 1
    metrics = pq.read_table(job().out.with_name("head.metrics.parquet"))
    rows = metrics.to_pylist()
    best = min(rows, key=lambda row: row["eval_kl"])
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert (trained["best_epoch"], trained["eval_kl"]) == (best["epoch"], best["eval_kl"])
    assert json.loads(metrics.schema.metadata[b"trained"]) == trained
    files = sorted(path.name for path in job().out.parent.iterdir())
    assert files == ["head.collected", "head.metrics.parquet", "head.safetensors"]
    message = capsys.readouterr().out
    assert "12 documents" in message and "AUROC for rejection" in message and "specdecpp.head=" in message


@mostly_long("at", (1, 3, 5, 7, 8), (5,))
def test_a_killed_training_goes_on_and_gives_the_same_head(job, monkeypatch, at):
    """Three steps an epoch, four epochs; killed within a step, or between an epoch's end and its checkpoint."""
    specdecpp.train(job("whole.safetensors", patience=9))
    steps = []
    monkeypatch.setattr(acceptance_fit, "weighted_loss", stopping(at, acceptance_fit.weighted_loss, steps))
    killed = job("killed.safetensors", patience=9)
    with pytest.raises(KeyboardInterrupt):
        specdecpp.train(killed)
    assert not killed.out.exists() and killed.out.with_name("killed.checkpoint.pt").exists() == (at > 3)
    specdecpp.train(killed)
    assert len(steps) == 12 + (at - 1) % 3 + 1, "finished epochs are not trained again"
    for end in (".safetensors", ".metrics.parquet"):
        assert killed.out.with_suffix(end).read_bytes() == job("whole.safetensors").out.with_suffix(end).read_bytes()
    assert not killed.out.with_name("killed.checkpoint.pt").exists()


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(job, monkeypatch):
    original = acceptance_fit.AcceptanceTraining.end

    def stopping(self, epoch):
        original(self, epoch)
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(acceptance_fit.AcceptanceTraining, "end", stopping)
    with pytest.raises(KeyboardInterrupt):
        specdecpp.train(job())
    with pytest.raises(UserError, match=r"checkpoint.pt was begun with different weight; delete it"):
        specdecpp.train(job(weight=3))
    file = job().out.with_name("head.checkpoint.pt")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"checkpoint.pt is damaged .*delete it"):
        specdecpp.train(job())


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_checkpoint(job, monkeypatch):
    original, steps = acceptance_fit.weighted_loss, []

    def spoilt(*arguments):
        steps.append(1)
        return original(*arguments) * (math.nan if len(steps) == 8 else 1)

    monkeypatch.setattr(acceptance_fit, "weighted_loss", spoilt)
    with pytest.raises(UserError, match=r"a number any more in epoch 3; .*learning_rate=0.001.*kept in .*checkpoint"):
        specdecpp.train(job())
    kept = torch.load(job().out.with_name("head.checkpoint.pt"), weights_only=True)
    assert [epoch["epoch"] for epoch in kept["epochs"]] == [1, 2]
    assert all(tensor.isfinite().all() for tensor in kept["tensors"].values()) and not job().out.exists()


def test_a_grid_collects_once_and_trains_each_head_once(job, tiny, monkeypatch, capsys):
    asked = []
    original = specdecpp.fit
    monkeypatch.setattr(specdecpp, "fit", lambda *a, **k: (asked.append(a[2]), original(*a, **k))[1])
    grid = {"depth": [0, 2], "weight": [1, 6]}
    specdecpp.train(job("heads", grid=grid))
    folder = job("heads").out
    names = ["depth0-weight1", "depth0-weight6", "depth2-weight1", "depth2-weight6"]
    assert sorted(path.stem for path in folder.glob("*.safetensors")) == names
    for name in names:
        head = read(folder / f"{name}.safetensors", tiny)
        assert f"depth{head.trained['depth']}-weight{head.trained['weight']:g}" == name
        assert method.acceptance_head(head, CPU).depth == head.trained["depth"]
    rows = pq.read_table(folder / "grid.parquet").to_pylist()
    assert [(row["depth"], row["weight"]) for row in rows] == [(0, 1), (0, 6), (2, 1), (2, 6)]
    assert {"train_kl", "eval_kl", "epochs", "ece", "auroc", "auroc_difference_low"} <= rows[0].keys()
    printed = capsys.readouterr().out
    assert "train/KL" in printed and f"{rows[1]['eval_kl']:.4f}" in printed
    (folder / "depth2-weight1.safetensors").unlink()
    specdecpp.train(job("heads", grid=grid))
    assert [(one.depth, one.weight) for one in asked] == [(0, 1), (0, 6), (2, 1), (2, 6), (2, 1)]
    assert pq.read_table(folder / "grid.parquet").to_pylist() == rows
    with pytest.raises(UserError, match=r"depth0-weight1.safetensors was trained with different epochs"):
        specdecpp.train(job("heads", grid=grid, epochs=5))
    with pytest.raises(UserError, match=r"--grid mix=…: .*collected once"):
        specdecpp.train(job("heads", grid={"mix": [0.1]}))
    with pytest.raises(UserError, match=r"depth: input should be greater"):
        specdecpp.train(job("heads", grid={"depth": [0, -1]}))
    fewer = specdecpp.training_documents()[:11]
    monkeypatch.setattr(specdecpp, "training_documents", lambda *_, **__: fewer)
    with pytest.raises(UserError, match=r"depth0-weight1.safetensors was trained with different data; delete it"):
        specdecpp.train(job("heads", grid=grid))


def test_too_little_to_learn_from_is_one_line(job, monkeypatch):
    documents = [document(0, [1, 2, 3], length=5)]
    monkeypatch.setattr(specdecpp, "training_documents", lambda *_, **__: documents)
    with pytest.raises(UserError, match=r"1 of 1 documents .* more --documents"):
        specdecpp.train(job())


def test_held_documents_follow_from_their_names():
    names = [f"task-{i:05d}" for i in range(40)]
    learned, held = hold_out(names, 3, 10)
    assert len(held) == 4 and sorted(learned + held) == names
    assert hold_out(names[::-1], 3, 10) == (learned, held) != hold_out(names, 4, 10)
    assert len(hold_out(names[:2], 0, 10)[1]) == 1


# Recipes, documents and the command


def test_the_shipped_recipe_is_the_papers_and_says_whence():
    spec = load_recipe("specdecpp", ["learning_rate=0.001", "shared_blocks=true"])
    chosen = HeadRecipe(**spec.values)
    assert (chosen.depth, chosen.weight, chosen.mix, chosen.epochs, chosen.batch) == (3, 6, 0.15, 3, 32)
    assert chosen.learning_rate == 0.001 and chosen.shared_blocks
    sources = {key: setting.source for key, setting in load_recipe("specdecpp", []).settings.items()}
    assert all(source.startswith(("paper", "official code", "our inference")) for source in sources.values())
    assert set(sources) == set(HeadRecipe.model_fields) and load_recipe("judge", []) is None


def test_named_splits_are_read_and_tested_ones_are_not(pocket):
    documents = training_documents(plan_of("math", 2), pocket, 0, ["pocket_gsm8k:train", "pocket_gsm8k:calibration"])
    assert [one.name for one in documents] == [
        f"pocket_gsm8k-{s}-0000{i}" for s in ("train", "calibration") for i in (0, 1)
    ]
    assert len({tuple(one.prompt) for one in documents}) == 4
    folder = config.SUITES / "tasks"
    assert {evaluated_split(task, folder) for task in ("pocket_gsm8k", "gsm8k", "humaneval")} == {"test"}
    for text, message in (
        ("pocket_gsm8k:test", "is tested on its test documents"),
        ("humaneval:test", "is tested on its test documents"),
        ("pocket_gsm8k", "write TASK:SPLIT"),
        ("pocket_gsm8:train", "did you mean 'pocket_gsm8k'"),
        ("pocket_cnndm:trian", "has no documents of a split 'trian'|trian"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            training_documents(plan_of("math", 2), pocket, 0, [text])
        assert "\n" not in str(caught.value)


def test_documents_of_another_task_stand_in_where_nothing_is_scored(pocket, tmp_path):
    rows = [{"problem": "What is $1+1$?", "solution": "It is $\\boxed{2}$.", "level": "1", "type": "Algebra"}]
    (tmp_path / "math_train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"question": "What is 2 + 2?", "answer": "It is 4.\n#### 4"}
    (tmp_path / "gsm8k_train.jsonl").write_text(json.dumps(row) + "\n")
    documents = training_documents(plan_of("math", 5, str(tmp_path)), pocket, 0, stand_ins=True)
    assert [one.task for one in documents] == ["gsm8k", "minerva_math500"]
    assert "1+1" in pocket.tokenizer.decode(documents[1].prompt)


def test_the_command_refuses_what_does_not_fit_together(tmp_path):
    words = ("train", "--method", "specdecpp")
    both = ("--suite", "pocket", "--data", "pocket_gsm8k:train")
    assert "one of them" in refusal(*words) and "one of them" in refusal(*words, *both)
    assert "did you mean 'depth'" in refusal(*words, "--suite", "pocket", "--recipe", "dept=3")
    assert "write KEY=VALUE," in refusal(*words, "--suite", "pocket", "--recipe", "depth")
    assert "write KEY=VALUE,VALUE" in refusal(*words, "--suite", "pocket", "--grid", "depth")
    assert "cannot read the value" in refusal(*words, "--suite", "pocket", "--grid", "depth=1,,2")
    of_forwards = refusal("train", "--method", "medusa", "--suite", "pocket", "--runtime", "static")
    assert "medusa learns from transformers' own forwards" in of_forwards and "leave out --runtime" in of_forwards
    assert "--runtime fast: there is no such runtime" in refusal(*words, "--suite", "pocket", "--runtime", "fast")
    assert "without a recipe" in refusal("train", "--method", "judge", "--suite", "pocket", "--recipe", "depth=2")
    (tmp_path / "file").write_text("")
    assert "exists" in refusal(*words, "--suite", "pocket", "--grid", "depth=1,2", "--out", tmp_path / "file")


def test_from_documents_to_a_head_that_decodes(tmp_path, pocket):
    """The bundled pair, few documents: the command trains, and the method reads the head that it wrote."""
    out = tmp_path / "head.safetensors"
    data = ("--data", "pocket_gsm8k:calibration", "--documents", "6", "--recipe", "batch=2")
    text = output("train", "--method", "specdecpp", *data, "--out", str(out))
    assert "6 documents" in text and out.is_file()
    head = read(out, pocket)
    assert head.trained["suite"] == "pocket_gsm8k:calibration" and head.trained["tasks"] == ["pocket_gsm8k"]
    values = {**config.load_method("specdecpp").values, "head": str(out)}
    built = method.build(config.validated(method.Settings, values, "specdecpp"), pocket, None)
    assert built.inputs() == head.hashes()
    prompt = pocket.tokenizer("Question: Tom has 3 apples.\nAnswer:")["input_ids"]
    _, rounds = decode(built, prompt, 20, Sampling(1.0))
    assert any(math.isfinite(x) for r in rounds[1:] for x in r.verdict.predictions)
