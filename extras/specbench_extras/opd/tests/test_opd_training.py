"""Training of heads on their own drafts: the replay against the target alone, the loss by hand, resuming."""

import copy
import dataclasses
import functools
import math

import oracle
import pytest
import tiny_blocks
import tiny_heads
import torch
from chains import Words
from gates import DEVICE, decode, lively_prompt, pair
from jobs import goes_on, job_of
from made_documents import document

from specbench import config
from specbench.config import UserError
from specbench.engine.models.heads import read_head, write_head
from specbench.engine.models.pair import Pair
from specbench.methods import module
from specbench.training.heads import to_learn
from specbench.training.recipe import load_recipe, recipes
from specbench.training.train import trainer
from specbench_extras.opd import blocks, chain
from specbench_extras.opd.fit import BlockTraining, ChainTraining, ReplayTraining, sides
from specbench_extras.opd.recipe import ChainReplayRecipe, ReplayRecipe
from specbench_extras.opd.replay import Replay

QUICK = {"temperature": 0, "epochs": 3, "batch": 2, "learning_rate": 0.01, "warmup": 0.0, "autocast": False}
KINDS = ("dflash", "eagle3")
MOSTLY = ("dflash", pytest.param("eagle3", marks=pytest.mark.long))


@functools.cache
def models() -> Pair:
    target = pair("llama")[0]
    target.generation_config.eos_token_id = None
    return Pair("made", {"target": target}, Words(None, 96))


def documents(count: int = 6):
    """The document whose text the heads have learned, then others."""
    prompts = [lively_prompt("llama", 12, 30)[0], *oracle.prompts(count - 1, length=7, seed=5)]
    return [document(i, prompt, length=14) for i, prompt in enumerate(prompts)]


def begun(kind: str):
    """A head that has learned one text: of others it drafts some tokens right and many wrong."""
    made = tiny_blocks.trained("llama", 40) if kind == "dflash" else tiny_heads.trained("llama", 25)
    return to_learn(copy.deepcopy(made), made.state_dict())


def training(kind: str, some=None, **changes) -> ReplayTraining:
    values = {**load_recipe(f"{kind}-draft-opd", []).values, **QUICK, **changes}
    some = documents() if some is None else some
    if kind == "dflash":
        return BlockTraining(models(), begun(kind), some, ReplayRecipe(**values), 0)
    return ChainTraining(models(), begun(kind), some, ChainReplayRecipe(**{**values, "gamma": 4}), 0)


@functools.cache
def alone():
    """The target by itself, on the CPU."""
    return copy.deepcopy(models().models["target"]).cpu()


def says(tokens) -> torch.Tensor:
    with torch.no_grad():
        return alone()(torch.tensor([tokens])).logits[0]


def test_a_replay_is_the_head_and_the_target_after_the_drafts_own_tokens():
    """Greedy: what stands is the target's text, and each slot has both models' logits after the draft up to there."""
    for kind in KINDS:
        run = training(kind)
        some = documents(3)
        made = run.replays(some)
        for one, source in zip(made, some, strict=True):
            text = [*source.prompt, *oracle.greedy(alone(), source.prompt, 14)]
            tokens = one.tokens.tolist()
            assert tokens == text[: len(tokens)] and len(tokens) >= 20
            assert len(one.states) == len(tokens) and one.anchors[0] == len(source.prompt)
            drafted = run.drafted(one)
            assert torch.equal(
                drafted.argmax(-1) if kind == "dflash" else run.head.ids[drafted.argmax(-1)], one.drafted
            )
            for anchor, draft, taught, accepted, kept in zip(
                one.anchors.tolist(),
                one.drafted.tolist(),
                one.taught,
                one.accepted.tolist(),
                one.kept.tolist(),
                strict=True,
            ):
                expected = says([*text[: anchor + 1], *draft])[anchor:-1]
                assert torch.allclose(taught.cpu(), expected, atol=1e-4)
                right = [a == b for a, b in zip(draft, expected.argmax(-1).tolist(), strict=True)]
                assert accepted == (right.index(False) if False in right else 4)
                assert kept == min(4, len(text) - anchor - 1) or accepted < kept == 4
        accepted, rejected = sides(made)
        assert accepted > 3 and rejected > 30
        assert accepted + rejected == sum(int(one.kept.sum()) for one in made)


def test_states_are_the_targets_over_the_whole_text():
    run = training("dflash")
    one = run.replays(documents()[:1])[0]
    with torch.no_grad():
        out = alone()(one.tokens[None].cpu(), output_hidden_states=True)
    expected = torch.cat([out.hidden_states[i][0] for i in run.head.hidden], -1)
    assert torch.allclose(one.states.cpu(), expected, atol=1e-4)


def stale(learned: ReplayTraining) -> None:
    """Decode only once, in the first step: a defect."""
    first = learned.replays(learned.documents)
    learned.replays = lambda batch: first


@pytest.mark.parametrize("kind", MOSTLY)
def test_every_step_learns_from_drafts_of_the_weights_as_they_are_then(kind, monkeypatch):
    """The head chooses the drafted tokens again when it replays them; a training on stale drafts is found out."""
    differing = []
    real = ReplayTraining.loss

    def checked(self, made, counts):
        with torch.no_grad():
            chosen = self.drafted(made).argmax(-1)
        differing.append(int((self.head.ids[chosen] if kind == "eagle3" else chosen).ne(made.drafted).sum()))
        return real(self, made, counts)

    monkeypatch.setattr(ReplayTraining, "loss", checked)
    for defect, wrong in ((None, False), (stale, True)):
        run = training(kind, documents()[:2], batch=2)
        if defect:
            defect(run)
        differing.clear()
        for run.step in range(3):
            run.learn(documents()[:2])
        assert len(differing) == 6 and any(differing) == wrong


def test_the_loss_of_a_draft_by_hand(monkeypatch):
    """Three tokens; of the first draft one slot is accepted and two rejected, of the second only two slots count."""
    run = training("dflash", reject_decay=0.5)
    q = [[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]], [[0.3, 0.3, 0.4], [0.25, 0.5, 0.25], [1 / 3] * 3]]
    p = [[[0.25, 0.5, 0.25], [0.1, 0.3, 0.6], [0.4, 0.5, 0.1]], [[0.6, 0.3, 0.1], [0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]]
    tokens, anchors = torch.zeros(9, dtype=torch.long), torch.tensor([2, 5])
    made = Replay(
        tokens,
        torch.zeros(9, 4),
        anchors,
        torch.zeros(2, 3, dtype=torch.long),
        torch.tensor(p).log(),
        accepted=torch.tensor([1, 2]),
        kept=torch.tensor([3, 2]),
    )
    monkeypatch.setattr(run, "drafted", lambda made: torch.tensor(q).log())
    counts = sides([made])
    assert counts == (3, 2), "one and two accepted slots, two rejected ones; the last slot is after the end"

    def kl(a, b):
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    forward = (kl(p[0][0], q[0][0]) + kl(p[1][0], q[1][0]) + kl(p[1][1], q[1][1])) / 3
    reverse = (0.5 * kl(q[0][1], p[0][1]) + 0.25 * kl(q[0][2], p[0][2])) / 2
    assert float(run.loss(made, counts)) == pytest.approx((forward + reverse) / 2, rel=1e-5)


def test_a_reduced_vocabulary_has_the_targets_distribution_within_it(monkeypatch):
    run = training("eagle3")
    run.head.ids = torch.tensor([0, 2])
    zero = torch.zeros(1, 1, dtype=torch.long)
    p, q = [0.3, 0.6, 0.1], [0.5, 0.5]
    made = Replay(zero[0], torch.zeros(1, 4), zero[0], zero, torch.tensor([[p]]).log(), zero[0] + 1, zero[0] + 1)
    monkeypatch.setattr(run, "drafted", lambda made: torch.tensor([[q]]).log())
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(run.loss(made, sides([made]))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_step_are_those_of_both_means_over_all_of_its_documents(kind):
    """Documents are learned from one by one; the step is that of their slots together."""
    run = training(kind, clip=1e9)
    kept = {}
    run.optimizer.step = lambda: kept.update({n: p.grad.clone() for n, p in run.head.named_parameters()})
    value = run.learn(documents()[:3])
    made = run.replays(documents()[:3])
    run.head.zero_grad()
    logs = []
    for one in made:
        here = one.counted
        q, p = run.drafted(one)[here].double().log_softmax(-1), one.taught[here].double().log_softmax(-1)
        slots = torch.arange(4, device=DEVICE).expand(here.shape)[here]
        refused = slots >= one.accepted[:, None].expand(here.shape)[here]
        logs.append((q, p, slots, refused))
    q, p, slots, refused = map(torch.cat, zip(*logs, strict=True))
    forward, reverse = (p.exp() * (p - q)).sum(-1)[~refused].mean(), (q.exp() * (q - p)).sum(-1)[refused]
    loss = (forward + (reverse * 0.8 ** slots[refused]).mean()) / 2
    loss.backward()
    assert value == pytest.approx(float(loss), rel=1e-5)
    assert all(torch.allclose(kept[n], p.grad, atol=1e-6, rtol=1e-3) for n, p in run.head.named_parameters())


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_head_drafts_longer_for_its_documents_and_the_target_stays(kind, tmp_path):
    before = {name: tensor.clone() for name, tensor in models().models["target"].state_dict().items()}
    some, losses, learn = documents(3), [], ReplayTraining.learn
    run = training(kind, some, epochs=30, batch=3)
    run.learn = lambda batch: losses.append(learn(run, batch)) or losses[-1]
    first = run.tokens_a_round(some)
    run.run(tmp_path / "c", {})
    assert losses[-1] < 0.65 * losses[0] and run.tokens_a_round(some) > first
    assert all(torch.equal(tensor, before[n]) for n, tensor in models().models["target"].state_dict().items())


# A job


@pytest.fixture
def job(tmp_path, monkeypatch):
    for one in (blocks, chain):
        monkeypatch.setattr(one, "training_documents", lambda *_: documents(5))
    written = {}
    for kind, tiny in (("dflash", tiny_blocks), ("eagle3", tiny_heads)):
        facts = tiny.in_file(begun(kind))
        written[kind] = tmp_path / f"{kind}-first.safetensors"
        write_head(written[kind], kind, facts.tensors, models(), facts.trained)

    def make(name="head.safetensors", kind="dflash", seed=0, grid=None, **changes):
        made = job_of(kind, models(), tmp_path / name, seed, grid)
        quick = QUICK | ({"gamma": 4} if kind == "eagle3" else {}) | changes
        recipe = load_recipe(f"{kind}-draft-opd", [f"{key}={value}" for key, value in quick.items()])
        return dataclasses.replace(made, recipe=recipe, preset="draft-opd", warm_up=written[kind])

    return make


@pytest.mark.parametrize("kind", MOSTLY)
def test_a_trained_file_says_what_it_began_as_and_drafts(job, kind, capsys):
    trainer(f"{kind}.draft-opd").train(job(kind=kind))
    shapes = module(kind).SHAPES if kind == "eagle3" else None
    head, first = (read_head(path, kind, models(), shapes) for path in (job(kind=kind).out, job(kind=kind).warm_up))
    assert head.trained["warm_up"] == first.hashes()["head"] != head.hashes()["head"]
    assert (head.trained["preset"], head.trained["documents"], head.trained["reject_decay"]) == ("draft-opd", 5, 0.8)
    gained = head.trained["held_out_tokens_a_round"]
    assert len(gained) == 2 and min(gained) >= 1
    values = {**config.load_method(kind).values, "head": str(job(kind=kind).out)}
    built = module(kind).build(module(kind).Settings(**values), models(), None)
    prompt = documents()[0].prompt
    assert decode(built, prompt, 14)[0] == oracle.greedy(alone(), prompt, 14)
    printed = " ".join(capsys.readouterr().out.split())
    assert "held out: 1 documents; tokens a round" in printed and f"{kind}.head=" in printed.replace(" ", "")


def test_a_stopped_training_goes_on_and_gives_the_same_file(job, monkeypatch):
    goes_on(blocks.train, ReplayTraining, job, monkeypatch)


def test_what_cannot_be_trained_is_refused(job, monkeypatch):
    def refused(words, made):
        with pytest.raises(UserError) as caught:
            blocks.train(made)
        assert words in str(caught.value) and "\n" not in str(caught.value)

    refused("one head at a time; leave out --grid", job(grid={"batch": [1, 2]}))
    refused("reject_decay", job(reject_decay=0))
    refused("is a head for eagle3, not for dflash", dataclasses.replace(job(), warm_up=job(kind="eagle3").warm_up))
    refused("no head of dflash ships with made", dataclasses.replace(job(), warm_up=None))
    monkeypatch.setattr(blocks, "training_documents", lambda *_: documents(1))
    refused("no document is left to learn from once 1 is held out; take more --documents", job())


def test_every_recipe_has_its_sources():
    for kind in ("dflash", "dflare", "eagle3"):
        raw = recipes()[f"{kind}-draft-opd"].read_text()
        spec = load_recipe(f"{kind}-draft-opd", [])
        form = ChainReplayRecipe if kind == "eagle3" else ReplayRecipe
        facts = form(**spec.values)
        assert set(spec.values) == set(form.model_fields) and raw.count("    source:") == len(spec.values)
        assert (facts.accepted, facts.rejected, facts.reject_decay, facts.learning_rate) == ("fkl", "rkl", 0.8, 3e-4)
