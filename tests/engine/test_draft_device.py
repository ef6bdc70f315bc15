"""Drafts on another device than the target's: what crosses is copied, and texts and rounds stay what they are."""

import copy
from dataclasses import replace

import oracle
import pytest
import tiny_heads
import torch
from cases import mostly_long
from gates import GREEDY, decode, labelled, made, tiny
from other_device import Tensors, registered
from refusals import one_line_error

from specbench import config
from specbench.engine.models.eagle_head import layers_read, stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.models.pair import Pair, draft_device_of, load_pair
from specbench.engine.runtimes import away, choose
from specbench.engine.runtimes.away import Away
from specbench.engine.runtimes.eager import EAGER, Eager
from specbench.engine.runtimes.static import STATIC
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import LAST, Unwatched
from specbench.engine.types import Method, Sampling
from specbench.methods.heads.eagle3 import Eagle3, EagleDrafter, eagle_head, head_session
from specbench_extras.chimera.chimera import ChimeraDrafter, chimera_head
from specbench_extras.chimera.fit import first_head

COUNT = 8
(PROMPT,) = oracle.prompts(1, length=15)
HERE = torch.device("cpu")
# Methods whose drafts are made by the target itself, or of parts of it.
REFUSED = {"rapid, weight 0": "target itself", "s2d": "layers", "window": "target itself"}

THREADS = ("ensemble-parallel",)  # torch asks `Tensors` in the thread of the test only


@pytest.fixture
def other():
    registered()
    with Tensors():
        yield torch.device("other", 0)


def apart(models: Pair, device: torch.device) -> Pair:
    """The pair with its draft on the device."""
    draft = copy.deepcopy(models.models["draft"]).to(device)
    return replace(models, models={**models.models, "draft": draft}, draft_device=device)


def decoded(method: Method, sampling: Sampling = GREEDY) -> tuple[list[int], list[list]]:
    """A text, and of its rounds what was committed, drafted and accepted; ratios may differ by rounding."""
    text, rounds = decode(method, PROMPT, COUNT, sampling)
    verdicts = [(verdict.path, verdict.drafted, verdict.parents) for each in rounds if (verdict := each.verdict)]
    return text, [[each.tokens for each in rounds], verdicts]


@mostly_long("label", [label for label in labelled() if label not in THREADS], ("window",))
def test_texts_and_rounds_are_those_of_one_device(label, other):
    """Chains, trees, several drafts, members that decode together: every method that tiny models can run."""
    models = tiny("llama")
    moved = apart(models, other)
    if label in REFUSED:
        with one_line_error(REFUSED[label], "other:0", "--draft-device"):
            made(label, moved, 3)
        return
    for sampling in (Sampling(), Sampling(1.0)):
        assert decoded(made(label, moved, 3), sampling) == decoded(made(label, models, 3), sampling)


def chimera(models: Pair, device: torch.device | None) -> Eagle3:
    """Chimera with a head on a device."""
    target = models.models["target"]
    made = first_head(target, 96, 0)
    in_file = Head("chimera", made.state_dict(), {"config": stored_settings(made.config)})
    model = chimera_head(in_file, target, 96, device)
    drafter = ChimeraDrafter(model, head_session(model, models, Unwatched()), LAST, 9, 3, 2)
    return Eagle3(models.session("target"), drafter, {})


def head(models: Pair, device: torch.device | None) -> Eagle3:
    """EAGLE-3 with a head on a device."""
    target = models.models["target"]
    model = eagle_head(tiny_heads.in_file(tiny_heads.head("llama")), target, 96, device)
    drafter = EagleDrafter(model, head_session(model, models, Unwatched()), layers_read(target), 9, 3, 2)
    return Eagle3(models.session("target"), drafter, {})


@pytest.mark.parametrize(
    ("runtime", "head"), [pytest.param(EAGER, head, marks=pytest.mark.long), (STATIC, head), (STATIC, chimera)]
)
def test_a_head_reads_the_states_of_a_target_elsewhere(other, runtime, head):
    """Features, trees and tokens cross; the head has copies of what it borrows, and the target keeps its own."""
    models = tiny("llama", runtime)
    moved = head(replace(models, draft_device=other), other)
    assert decoded(moved) == decoded(head(models, None))
    assert decode(moved, PROMPT, COUNT)[0] == oracle.greedy(models.models["target"], PROMPT, COUNT)
    assert {parameter.device for parameter in moved.drafter.head.parameters()} == {other}
    assert moved.drafter.head.borrowed[0].weight.device == other
    assert moved.target.model.device == HERE


@mostly_long("side", ("there", "home"), ("home",))
def test_a_copy_that_is_left_out_is_seen(side, other, monkeypatch):
    """Of what goes to the draft's device, and of what comes back: the seeded defect that this device is for."""
    wrong = {"there": lambda runner, there, home: Away(runner, home, home)}
    wrong["home"] = lambda runner, there, home: Away(runner, there, there)
    moved = apart(tiny("llama"), other)
    monkeypatch.setattr(away, "Away", wrong[side])
    with pytest.raises(RuntimeError, match=r"two devices|numpy"):
        decode(made("sps", moved, 3), PROMPT, COUNT, Sampling(1.0))


@pytest.mark.long
def test_a_pair_is_loaded_on_two_devices(other):
    spec = config.with_draft_device("pocket", "other")
    loaded = load_pair(spec)
    assert loaded.draft_device == other and loaded.device == HERE
    assert {role: model.device for role, model in loaded.models.items()} == {"target": HERE, "draft": other}
    drafted = loaded.session("draft").forward([5, 7, 11]).logits
    expected = load_pair(config.load_pair("pocket")).session("draft").forward([5, 7, 11]).logits
    assert drafted.device == HERE and torch.equal(drafted, expected)


def test_one_device_under_two_names_is_one_device():
    assert draft_device_of(config.with_draft_device("pocket", "cpu"), HERE) is None
    assert draft_device_of(config.load_pair("pocket"), HERE) is None


@pytest.mark.parametrize("name", ["cuda:7", "abacus", "auto", "spread"])
def test_a_device_that_is_not_there_is_refused(name):
    if name == "cuda:7" and torch.cuda.device_count() > 7:
        pytest.skip("it is there")
    with one_line_error(f"--draft-device {name}", "cpu, cuda or cuda:N"):
        draft_device_of(config.with_draft_device("pocket", name), HERE)


@pytest.mark.parametrize("name", ["openvino", "graph"])
def test_runtimes_of_one_device_are_refused(name, other):
    candidate = Eager()
    candidate.name = name
    with one_line_error(name, "other:0", "eager or static", kind=Unsupported):
        choose._runs(candidate, apart(tiny("llama"), other))
