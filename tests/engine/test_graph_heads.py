"""Heads whose drafts are captured: rounds are those of eager, and how often the host waits for the device in one.

Where there is no GPU, captures are a stand-in's, and the device that is waited for is one that the CPU plays.
"""

import json
from pathlib import Path

import pytest
import torch
from captured import HERE, KINDS, LEARNED, capturing, counted_rounds, headed
from cases import mostly_long
from gates import DEVICE, decode, lively_prompt, pair
from weights import stored

from specbench.engine.models.eagle_head import stored_settings
from specbench.engine.models.heads import Head
from specbench.engine.open_tree import DeviceTree, Tree
from specbench.engine.runtimes.choose import head_runtime
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.graph_trees import TreeKey
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import LAST, Session
from specbench.methods.heads.eagle import feature_head
from specbench.methods.heads.eagle3 import EagleDrafter
from specbench_extras.eagle.fit import first_head

STORED = Path(__file__).parents[2] / "results" / "reference" / "round-waits.json"
COUNT = 24


def verdicts(rounds):
    judged = [each.verdict for each in rounds if each.verdict]
    return [each.tokens for each in rounds], [(each.path, each.drafted, each.parents) for each in judged]


@mostly_long(
    "kind, architecture",
    [(kind, form) for kind in KINDS for form in ("llama", "gemma2") if (kind, form) != ("mtp", "gemma2")],
    (
        ("mtp", "llama"),
        ("eagle3", "gemma2"),
        ("eagle", "llama"),
        ("hydra", "llama"),
        ("dflash", "gemma2"),
        ("dflare", "llama"),
    ),
)
def test_captured_heads_draft_and_decode_as_on_eager(kind, architecture, monkeypatch):
    """Three texts: at first nothing is captured, then what the first needed, in the end all."""
    runtime = capturing(monkeypatch)
    target = pair(architecture)[0]
    used, reference = headed(kind, target, runtime, architecture), headed(kind, target, EAGER, architecture)
    prompt, text = lively_prompt(architecture, 12, COUNT)  # which the heads have learned
    expected = decode(reference, prompt, COUNT)
    assert expected[0] == text
    for _ in range(3):
        assert verdicts(decode(used, prompt, COUNT)[1]) == verdicts(expected[1])
        runtime.settle()
    drafter = used.drafter
    steps = (drafter.chosen if kind in ("medusa", "hydra") else drafter.session._runner).steps
    assert steps and all(step.graph for step in steps.values())
    assert any(isinstance(key, TreeKey) for key in steps) == (kind in ("eagle", "eagle3", "mtp"))
    if kind in LEARNED:
        assert max(each.accepted for each in expected[1]) > 1 > min(each.accepted for each in expected[1][1:])


def trees(monkeypatch) -> list:
    """Every tree that is grown from now on."""
    seen = []
    tree = EagleDrafter.tree
    monkeypatch.setattr(EagleDrafter, "tree", lambda self, context: seen.append(made := tree(self, context)) or made)
    return seen


def test_values_of_paths_are_those_of_eager(monkeypatch):
    """Each node reads its own path, at its depth."""
    target = pair("gemma2")[0]
    used, reference = (
        headed("eagle3", target, runtime, "gemma2", total=40, depth=5) for runtime in (capturing(monkeypatch), EAGER)
    )
    prompt, _ = lively_prompt("gemma2", 15, COUNT)
    seen = trees(monkeypatch)
    assert verdicts(decode(used, prompt, COUNT)[1]) == verdicts(decode(reference, prompt, COUNT)[1])
    assert len(seen) % 2 == 0 and len(seen[0].values) == 39
    for one, other in zip(seen[: len(seen) // 2], seen[len(seen) // 2 :], strict=True):
        torch.testing.assert_close(one.values, other.values, rtol=0, atol=1e-4)


def test_which_runtime_a_head_has(monkeypatch):
    """The pair's where it captures, if the lean forward knows the head."""
    model = headed("eagle3", pair("llama")[0], EAGER).drafter.head
    runtime = capturing(monkeypatch)
    assert head_runtime(runtime, model) is runtime
    assert head_runtime(STATIC, model) is STATIC and head_runtime(EAGER, model) is EAGER


@pytest.mark.parametrize("shape", ([-1, -1, 0, 0, 2, 1, 4, 4, -1], [-1, 0, 1, 2, 3, 4, 5, 6, 7], [-1], [-1] * 5))
def test_a_tree_on_the_device_reads_what_one_on_the_host_reads(shape):
    """Fed at once, and in every two parts."""
    for cut in range(len(shape) + 1):
        host, device = Tree(7), DeviceTree(7, HERE)
        for part in (shape[:cut], shape[cut:]):
            if part:
                host.grow(part)
                device.grow(torch.tensor(part, device=HERE))
                expected, found = host.reads(len(part), HERE), device.reads(len(part), HERE)
                assert torch.equal(found.allowed, expected.allowed) and torch.equal(found.places, expected.places)
        assert device.parents == shape and len(device) == len(shape)


def test_a_tree_whose_shape_is_on_the_device_scores_as_one_on_the_host(monkeypatch):
    shape, tokens = [-1, -1, 0, 1, 2, 2], [5, 9, 11, 3, 7, 20]
    rows = []
    for parents in (shape, torch.tensor(shape, device=HERE)):
        session = Session(pair("llama")[0], "target")
        monkeypatch.setattr(session, "_on_host", False)
        session.forward([1, 2, 3], keep=1)
        rows.append(session.forward(tokens, parents=parents).logits)
    assert torch.equal(*rows)


@pytest.mark.skipif(DEVICE != "cpu", reason="the CPU plays the device")
@pytest.mark.parametrize("kind", KINDS)
def test_the_host_waits_once_a_round(kind, monkeypatch):
    """For the verdict. It starts as much work as is stored, each graph counted as one."""
    found = counted_rounds(monkeypatch, kind)
    assert [sum(waits.values()) for waits, _ in found] == [1] * len(found), [dict(waits) for waits, _ in found]
    stored = json.loads(STORED.read_text())["after"]["rounds"][kind]
    assert max(launches for _, launches in found) <= stored["launches"]


@pytest.mark.parametrize("fuse", ("fc", "dgf"))
def test_static_reads_heads_that_go_on_with_the_targets_state(fuse):
    """A chain, then a tree after it: logits, and the states that the next nodes are read with."""
    head = feature(fuse)
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(9, head.config.hidden_size, dtype=torch.float64, generator=rng).to(HERE)
    told = []
    for runtime in (EAGER, head_runtime(STATIC, head)):
        session = Session(head, "draft", vocabulary=96, runtime=runtime)
        chain = session.forward([5, 9, 11, 3, 7], hidden=LAST, features=features[:5])
        tree = session.forward([2, 8, 20, 4], parents=[-1, -1, 0, 2], hidden=LAST, features=features[5:])
        told.append(torch.cat([part.flatten() for part in (*chain[:1], *tree[:1], chain.hidden, tree.hidden)]))
    assert head_runtime(STATIC, head) is STATIC
    torch.testing.assert_close(*told, rtol=0, atol=1e-4)
    assert head_runtime(STATIC, feature("gated")) is EAGER  # whose features are a further layer


def feature(fuse: str):
    """A head of EAGLE with random weights, in float64."""
    made = first_head(pair("llama")[0], 96, fuse, 0)
    facts = {"fuse": fuse, "config": stored_settings(made.config)}
    return feature_head(Head("eagle", stored(made), facts), pair("llama")[0], 96)
