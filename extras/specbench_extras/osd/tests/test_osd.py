"""Online speculative decoding: what it learns from, its steps next to another computation, its state, and its law."""

import copy
import json

import oracle
import pytest
import torch
from builders_engine import build, made
from gates import DEVICE, lively_prompt, pair
from law import fit
from learning import Serving, equal, serve, weights
from recalled import recalled
from refusals import one_line_error
from tiny_runs import SAME, always, plan_of, rounds_of, samples_of, save_pair, write_suite
from torch.nn import functional as F

from specbench.engine.drafters import ModelDrafter
from specbench.engine.session import Unwatched
from specbench.engine.types import Sampling
from specbench.measure import loop
from specbench_extras.osd import osd
from specbench_extras.osd.osd import OSD, UPDATES, Learner, Settings

ALPHA = 1e-4
QUICK = {"gamma": 3, "interval": 2, "learning_rate": 0.01}
VOCABULARY, PROMPT, NUCLEUS = 4, [1, 3, 2, 0], Sampling(0.8, top_p=0.9)


def chosen(**changes) -> Settings:
    given = {"gamma": 3, "interval": 2, "learning_rate": 0.01, "weight_decay": 0, "clip": 1.0, "count_updates": True}
    return Settings(**{**given, **changes})


def test_places_are_those_whose_draft_was_rejected():
    """Greedy: the draft, read behind the text, says another token there than the target wrote."""
    method, draft = build(made(), "osd", **QUICK | {"interval": 9}), pair("llama")[1]
    for prompt in oracle.prompts(3, length=6):
        text = serve(method, prompt)
        tokens, places = method.learner.texts[-1]
        assert tokens == [*prompt, *text]
        with torch.no_grad():
            choices = draft(torch.tensor([tokens], device=DEVICE)).logits[0].argmax(-1).tolist()
        assert places and all(7 <= place < 18 and choices[place - 1] != tokens[place] for place in places)


def test_a_place_where_the_text_ends_is_not_learned_from():
    """The same text up to a rejected draft: what the target would write there is not of the text."""
    prompt = oracle.prompts(1, length=6)[0]
    whole = build(made(), "osd", **QUICK | {"interval": 9})
    serve(whole, prompt, 18)
    places = whole.learner.texts[0][1]
    assert len(places) > 1
    for at, place in enumerate(places):
        method = build(made(), "osd", **QUICK | {"interval": 9})
        serve(method, prompt, place - len(prompt))
        assert method.learner.texts[0] == (whole.learner.texts[0][0][:place], places[:at])


def test_a_step_is_that_of_another_computation():
    """KL(p‖q) has the gradient of the cross-entropy. Means are over all places of the texts."""
    target, draft = pair("llama")
    learner = Learner(copy.deepcopy(draft), target, chosen())
    learner.texts = [([5, 6, 7, 8, 9, 10], [2, 4]), ([3, 2, 1], []), ([8, 8, 4, 1], [1, 2, 3])]
    other = copy.deepcopy(draft).requires_grad_(True)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0)
    loss = torch.zeros(())
    for tokens, places in (learner.texts[0], learner.texts[1]):
        for place in places:
            prefix = torch.tensor([tokens[:place]], device=DEVICE)
            with torch.no_grad():
                p = target(prefix).logits[0, -1].softmax(-1)
            loss = loss + F.kl_div(other(prefix).logits[0, -1].log_softmax(-1), p, reduction="sum") / 2
    loss.backward()
    torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    optimizer.step()
    assert learner.due
    learner.update()
    assert not learner.due and learner.learned == 2
    for mine, theirs in zip(learner.parameters, other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-9)


def test_it_learns_after_every_interval_and_a_reset_gives_the_first_weights_back():
    models = made()
    method, before = build(models, "osd", **QUICK), copy.deepcopy(models.models["draft"].state_dict())
    first, prompts = weights(method), oracle.prompts(4, length=6)
    serve(method, prompts[0])
    assert equal(weights(method), first) and method.learner.hash == ""
    serve(method, prompts[1])
    second = weights(method)
    assert not equal(second, first) and method.learner.hash
    serve(method, prompts[2])
    assert equal(weights(method), second)
    serve(method, prompts[3])
    assert not equal(weights(method), second)
    method.reset("other")
    assert equal(weights(method), first) and method.state() == {"texts": [], "weights": ""}
    after = models.models["draft"].state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)
    for prompt in prompts[:2]:
        serve(method, prompt)
    assert equal(weights(method), second), "the optimiser began again, too"


def test_a_state_is_taken_up_bit_by_bit_from_anywhere():
    prompts = oracle.prompts(5, length=6)
    whole, states = build(made(), "osd", **QUICK), []
    for prompt in prompts:
        states.append(json.loads(json.dumps(whole.state())))
        serve(whole, prompt)
    other = build(made(), "osd", **QUICK)
    for start in (3, 1, 4):
        other.restore(states[start])
        assert other.state() == states[start]
        for prompt in prompts[start:]:
            serve(other, prompt)
        assert other.state() == whole.state() and equal(weights(other), weights(whole))
    with pytest.raises(ValueError, match="other weights than before from the same texts"):
        other.restore(states[4] | {"weights": "0" * 16})


def test_updates_that_do_not_count_are_made_when_nobody_times():
    models, prompts = made(), oracle.prompts(2, length=6)
    method = build(models, "osd", **QUICK | {"count_updates": False})
    first = weights(method)
    for prompt in prompts:
        serve(method, prompt)
    assert equal(weights(method), first) and models.seconds == {}
    method.state()
    assert not equal(weights(method), first) and models.seconds[UPDATES] > 0
    counted = build(made(), "osd", **QUICK)
    for prompt in prompts:
        serve(counted, prompt)
    assert equal(weights(counted), weights(method))


def test_a_text_that_comes_again_is_drafted_better():
    method = build(made(), "osd", **QUICK | {"interval": 1})
    prompt, text = lively_prompt("llama", 6, 24)
    for _ in range(15):
        assert serve(method, prompt, 24) == text
    counts = [len(places) for _, places in method.learner.texts]
    assert counts[0] >= 6 and counts[-1] <= counts[0] // 2


# The target's law


def served(sampling: Sampling, draws: int):
    """The fit of texts while the draft learns, and whether it has."""
    target, draft = (oracle.tiny("llama", seed=seed, vocab=VOCABULARY).to(DEVICE) for seed in (1, 2))
    learner = Learner(draft, target, chosen(interval=20, learning_rate=0.003))
    method = OSD(recalled(target, "target"), ModelDrafter(osd.Session(draft, "draft")), learner.settings, learner, {})
    fitted = fit(Serving(method), target, PROMPT, 4, sampling, draws)
    return fitted, learner.hash


@pytest.mark.parametrize(
    ("sampling", "draws"),
    [(Sampling(1.0), 120), *(pytest.param(one, 500, marks=pytest.mark.long) for one in (Sampling(1.0), NUCLEUS))],
    ids=str,
)
def test_samples_from_the_target_while_it_learns(sampling, draws):
    (p, accepted, rejected), learned = served(sampling, draws)
    assert p > ALPHA and accepted > draws / 4 and rejected > draws / 8 and learned


@pytest.mark.long
def test_a_draft_that_learns_before_it_is_judged_is_found(monkeypatch):
    """Distributions of the draft as it is later are not those that its tokens were drawn from."""
    original = osd.ModelDrafter.propose

    def late(self, context, gamma, sampling, rng):
        draft = original(self, context, gamma, sampling, rng)
        return type(draft)(draft.tokens, draft.probs.roll(1, -1))

    monkeypatch.setattr(ModelDrafter, "propose", late)
    assert served(Sampling(1.0), 400)[0].p < ALPHA


# A run


@pytest.mark.long
def test_a_stopped_run_goes_on_bit_by_bit(tmp_path):
    save_pair(tmp_path, 5)
    write_suite(tmp_path, {"pocket_gsm8k": 12}, 4)
    settings = ["osd.interval=1", "osd.gamma=3", "osd.learning_rate=0.01", "osd.count_updates=false"]
    plan = plan_of(tmp_path, ["osd"], assignments=settings, temperature=1.0)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert loop.execute(plan, whole, always)
    assert not loop.execute(plan, stopped, lambda progress: progress.done < 2)
    assert loop.execute(plan, stopped, always)
    facts = [samples_of(folder)[SAME].astype(str).values.tolist() for folder in (whole, stopped)]
    assert facts[0] == facts[1] and len({*samples_of(whole).query("method == 'osd'").state_hash}) == 4
    drafts = [rounds_of(folder, "osd").draft_tokens.astype(str).tolist() for folder in (whole, stopped)]
    assert drafts[0] == drafts[1]
    assert json.loads((whole / "apart.json").read_text())[UPDATES] > 0


def test_what_it_needs():
    method = build(made(), "osd")
    assert method.lossless and method.reach == 6 and isinstance(method.drafter.session._watch, Unwatched)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interval": 0}, "osd: interval"),
        ({"learning_rate": float("nan")}, "osd: learning_rate"),
        ({"clip": 0}, "osd: clip"),
        ({"gamma": 9000}, "osd: its rounds are of up to 9001 tokens, but"),
    ],
    ids=str,
)
def test_bad_settings_are_one_line(pocket, changes, words):
    with one_line_error(words):
        build(pocket, "osd", **changes)
