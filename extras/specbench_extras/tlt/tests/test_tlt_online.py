"""A head that learns while it serves: its loss next to another computation, its state and law, and a moved target."""

import json

import oracle
import pytest
import torch
from builders_engine import build, retold
from gates import DEVICE, lively, lively_prompt, pair
from law import fit, small_target
from learning import Serving, equal, serve, weights
from recalled import recalled
from refusals import one_line_error
from tiny_heads import head, in_file, trained
from transformers import DynamicCache

from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.heads import find_head, shipped
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.heads.eagle3 import KIND, SHAPES, eagle_head
from specbench.training.eagle3.fit import new_head
from specbench_extras.osd.osd import UPDATES
from specbench_extras.tlt.tlt import SizedHead, Strategies
from specbench_extras.tlt.tlt_online import HeadLearner, LearningBandit, Settings

ALPHA = 1e-4  # of a right rule being refused; a wrong one must fall below it
LONG = pytest.mark.long
SIZES = ((2, 2, 4), (3, 3, 9), (4, 1, 4))


def chosen(**changes) -> Settings:
    given = {"head": "auto", "strategies": SIZES, "epsilon": 0.3, "window": 99, "token": 0.02, "draft": 0.3}
    given |= {"draft_token": 0.01, "interval": 2, "learning_rate": 0.01, "weight_decay": 0, "clip": 1.0}
    return Settings(**{**given, "count_updates": True, "steps": 3, "step_decay": 0.8, **changes})


def method(target, model, seconds=None, make=Session, **changes) -> LearningBandit:
    """The method with a copy of a head."""
    settings = chosen(**changes)
    copied = eagle_head(in_file(model), target, target.config.vocab_size)
    strategies = Strategies(settings.times(), settings.epsilon, settings.window)
    session = Session(copied, "draft", vocabulary=copied.config.vocab_size)
    drafter = SizedHead(copied, session, layers_read(target), settings.strategies, strategies)
    learner = HeadLearner(copied, target, settings)
    return LearningBandit(make(target, "target"), drafter, {}, learner, {} if seconds is None else seconds)


def drafts(model, target, tokens: list[int], place: int, steps: int) -> list[torch.Tensor]:
    """Logits of the draft steps that predict the tokens from `place` on, by forwards of the head, one after the other.

    The text up to there is read with the target's features, what follows with the head's own states.
    """
    read = torch.tensor([tokens], device=DEVICE)
    with torch.no_grad():
        out = target(read, output_hidden_states=True, use_cache=False)
    features = model.fuse(torch.cat([out.hidden_states[i] for i in layers_read(target)], -1))
    cache, rows = DynamicCache(), []
    scored = model(read[:, 1:place], features[:, : place - 1], cache)
    for step in range(steps):
        rows.append(scored.logits[0, -1])
        if place + step == len(tokens):
            break
        scored = model(read[:, place + step : place + step + 1], scored.hidden_states[1][:, -1:], cache)
    return rows


def test_the_loss_is_that_of_another_computation():
    """Three steps from each place, by the head's own forwards from there. The head lacks half of the tokens."""
    target, model = pair("llama")[0], head("llama")
    prompt, text = lively_prompt("llama", 12, 30)
    tokens, places = [*prompt, *text[:9]], [14, 16, 19, 20]
    learner = HeadLearner(eagle_head(in_file(model), target, 96), target, chosen())
    other = eagle_head(in_file(model), target, 96).requires_grad_(True)
    expected, counted = torch.zeros((), device=DEVICE), []
    for place in places:
        for step, logits in enumerate(drafts(other, target, tokens, place, 3)[: len(tokens) - place]):
            with torch.no_grad():
                row = target(torch.tensor([tokens[: place + step]], device=DEVICE)).logits[0, -1]
            counted.append(int(row.argmax()) in other.ids.tolist())
            if counted[-1]:
                law, log_q = row[other.ids].float().softmax(-1), logits.float().log_softmax(-1)
                expected = expected - 0.8**step * (law * log_q).sum()
    assert len(counted) == 9 and set(counted) == {True, False}
    loss = learner.loss(tokens, places)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    loss.backward()
    expected.backward()
    for (name, mine), theirs in zip(learner.draft.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5), name


def test_the_whole_answer_teaches_but_for_what_the_end_cut_off():
    """The first token of an answer comes with the prompt's forward."""
    served = method(pair("llama")[0], trained("llama", 12), interval=9)
    for count in (7, 12):
        prompt = oracle.prompts(1, length=6)[0]
        text = serve(served, prompt, count)
        assert served.learner.texts[-1] == ([*prompt, *text], list(range(7, 6 + count))) and len(text) == count


@pytest.mark.parametrize("architecture", ("llama", pytest.param("gemma2", marks=LONG)))
def test_greedy_texts_are_the_targets_while_it_learns(architecture):
    target = pair(architecture)[0]
    served, prompts = method(target, trained(architecture, 12), interval=1), oracle.prompts(4, length=12)
    seen = set()
    for prompt in prompts:
        assert serve(served, prompt, 20) == oracle.greedy(oracle.tiny_pair(architecture)[0], prompt, 20)
        seen.add(served.learner.hash)
    assert len(seen) == 4
    prompt, text = lively_prompt(architecture, 12, 30)
    assert serve(served, prompt, 30) == text


def test_it_learns_after_every_interval_and_a_reset_gives_the_first_weights_back():
    target, seconds = pair("llama")[0], {}
    served, prompts = method(target, trained("llama", 12), seconds), oracle.prompts(3, length=6)
    first = weights(served)
    serve(served, prompts[0])
    assert equal(weights(served), first) and not seconds
    serve(served, prompts[1])
    second = weights(served)
    assert not equal(second, first) and seconds[UPDATES] > 0
    serve(served, prompts[2])
    assert equal(weights(served), second)
    served.reset("other")
    assert equal(weights(served), first)
    assert served.state() == {"strategies": [[], [], []], "head": {"texts": [], "weights": ""}}
    for prompt in prompts[:2]:
        serve(served, prompt)
    assert equal(weights(served), second), "the optimiser began again, too"


def test_a_state_is_taken_up_bit_by_bit_from_anywhere():
    target, prompts = pair("llama")[0], oracle.prompts(5, length=6)
    whole, states = method(target, trained("llama", 12)), []
    for prompt in prompts:
        states.append(json.loads(json.dumps(whole.state())))
        serve(whole, prompt)
    other = method(target, trained("llama", 12))
    for start in (3, 1, 4):
        other.restore(states[start])
        assert other.state() == states[start]
        for prompt in prompts[start:]:
            serve(other, prompt)
        assert other.state() == whole.state() and equal(weights(other), weights(whole))
    with pytest.raises(ValueError, match="other weights than before from the same texts"):
        other.restore(states[4] | {"head": states[4]["head"] | {"weights": "0" * 16}})


def agreement(model, target, prompt: list[int], text: list[int]) -> float:
    """Share of the tokens of a greedy text, but for its first, that the head's first step names."""
    tokens = [*prompt, *text]
    with torch.no_grad():
        named = [
            int(model.ids[drafts(model, target, tokens[:place], place, 1)[0].argmax()])
            for place in range(len(prompt) + 1, len(tokens))
        ]
    return sum(a == b for a, b in zip(named, text[1:], strict=True)) / len(named)


def test_it_follows_a_target_that_moved():
    """A head that knows its target's text by heart, and a target with noise on its weights.

    On the moved target's own text its agreement rises by more than 0.3, and so fewer rounds are needed for it; without
    learning it stays as it is.
    """
    moved = pair("llama")[1]  # the tiny pair's draft is its target with noise
    prompt, text = lively(moved, 12, 30)
    served, model = method(moved, trained("llama", 12), interval=1), trained("llama", 12)
    before = agreement(served.learner.draft, moved, prompt, text)
    assert before == agreement(model, moved, prompt, text)
    for _ in range(12):
        assert serve(served, prompt, 30) == text
    after = agreement(served.learner.draft, moved, prompt, text)
    assert after > before + 0.3, (before, after)
    served.reset()
    assert agreement(served.learner.draft, moved, prompt, text) == before


def learned(sampling: Sampling, draws: int):
    """The fit of texts while the head learns, and whether it has."""
    target = small_target()
    served = method(
        target,
        new_head(target, range(5), 0),
        make=recalled,
        interval=20,
        learning_rate=0.003,
        strategies=((2, 2, 4), (2, 1, 2)),
    )
    return fit(Serving(served), target, [1, 3, 2, 0], 3, sampling, draws), served.learner.hash


@pytest.mark.parametrize(
    ("sampling", "draws"), [(Sampling(1.0), 60), pytest.param(Sampling(0.8, top_p=0.9), 400, marks=LONG)], ids=str
)
def test_samples_from_the_target_while_it_learns(sampling, draws):
    (p, accepted, rejected), hash_of_weights = learned(sampling, draws)
    assert p > ALPHA and accepted > draws / 8 and rejected > draws / 8 and hash_of_weights


def test_a_head_of_an_earlier_target_is_taken(pocket, tmp_path):
    """Where it stays as it is, it is refused."""
    file = tmp_path / "head.safetensors"
    file.write_bytes(shipped(KIND, pocket).read_bytes())
    retold(file, target="another")
    with one_line_error("different weights from this one"):
        build(pocket, "tlt", drafter="eagle3", head=str(file))
    served = build(pocket, "tlt-online", head=str(file))
    assert served.lossless and served.reach == 60
    assert served.inputs() == find_head(str(file), KIND, pocket, SHAPES, same_weights=False).hashes()
    with one_line_error("tlt-online: its rounds are of up to 9001 tokens"):
        build(pocket, "tlt-online", strategies=((2, 2, 9000),))
