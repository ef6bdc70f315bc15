"""Methods of trees, all alike: greedy texts are the target's, sampled ones follow its law, and reach is exact."""

from collections.abc import Callable
from functools import partial

import pytest
from builders_engine import build
from cases import architectures, mostly_long
from drafted_trees import has_later_sibling
from gates import decode, lively_prompt, pair, tiny
from refusals import one_line_error
from tabled import draw_for_each_branch, p_of_texts, p_with_caches

from specbench.engine.session import Session
from specbench.engine.types import Method, Sampling
from specbench.methods.heads import eagle3
from specbench.methods.trees import opt_tree, rsd
from specbench.methods.trees.eagle2 import Growing
from specbench.methods.trees.mdsd import MDSD
from specbench.methods.trees.mdsd import Settings as Drafts
from specbench.methods.trees.rsd import Beam, Branching, TreeSpeculation
from specbench.methods.trees.sequoia import Planned

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it
SHAPE = [
    [3],
    [2, 0, 1],
    [0, 1, 0],
    [0],
]  # Sequoia's: 3 after the context, 2 + 1 below, 1 below the second of those
SAMPLINGS = (Sampling(0.7), Sampling(0.9, top_k=3, top_p=0.9))


def drafted_by(drafter: Callable) -> Callable[..., Method]:
    return lambda target, draft: TreeSpeculation(target, drafter(draft), 3, 99)


def several(replacement: bool) -> Callable[..., Method]:
    return lambda target, draft: MDSD(target, draft, Drafts(drafts=3, gamma=3, replacement=replacement))


METHODS = {
    "rsd, beam": drafted_by(lambda draft: Beam(draft, 3)),
    "rsd, narrow beam": drafted_by(lambda draft: Beam(draft, 2)),
    "rsd, constant": drafted_by(lambda draft: Branching(draft, (2, 2))),
    "rsd, more than there are": drafted_by(lambda draft: Branching(draft, (9, 1))),
    "mdsd, with replacement": several(True),
    "mdsd, without": several(False),
    "sequoia": drafted_by(lambda draft: Planned(draft, SHAPE)),
    "eagle2": drafted_by(lambda draft: Growing(draft, partial(eagle3.grow, top_k=3, depth=2, most=7))),
    "opt-tree": drafted_by(lambda draft: Growing(draft, partial(opt_tree.grow, nodes=6, threshold=0.05, levels=3))),
}


@architectures
@pytest.mark.parametrize("label", METHODS)
def test_greedy_texts_are_the_targets(architecture, label):
    """Beyond Gemma 2's window of 16; the trees find tokens that one draft would not have had."""
    target, draft = pair(architecture)
    prompt, text = lively_prompt(architecture, 12, 40)
    tokens, rounds = decode(METHODS[label](Session(target, "target"), Session(draft, "draft")), prompt, 40)
    assert tokens == text
    verdicts = [round_.verdict for round_ in rounds if round_.verdict]
    assert any(len(verdict.path) >= 2 for verdict in verdicts), "nothing was accepted in depth"
    assert any(map(has_later_sibling, verdicts)), "no later sibling was accepted"


@mostly_long(
    "label, sampling",
    [(label, sampling) for label in METHODS for sampling in SAMPLINGS],
    lambda label, sampling: label == "mdsd, without" and sampling.top_k,
    ids=str,
)
def test_samples_from_the_target(label, sampling):
    assert p_of_texts(METHODS[label], sampling, 800) > ALPHA


@mostly_long("label", METHODS, ("rsd, beam", "mdsd, without", "sequoia"))
def test_samples_from_a_target_with_a_cache(label):
    assert p_with_caches(METHODS[label]) > ALPHA


@mostly_long("label", ("rsd, beam", "rsd, constant", "sequoia"), ("sequoia",))
def test_rows_as_if_nothing_had_been_drawn_before_are_found(monkeypatch, label):
    monkeypatch.setattr(rsd, "given_earlier", lambda q, tokens, places: q)
    assert p_of_texts(METHODS[label], Sampling(0.7), 1200) < ALPHA


@pytest.mark.long
def test_a_draw_of_its_own_for_each_sibling_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert p_of_texts(METHODS["opt-tree"], Sampling(0.7), 700) < ALPHA


@pytest.mark.parametrize(
    ("name", "fits", "reach", "too_large", "read"),
    [
        ("rsd", {"gamma": 63, "width": 4}, 253, {"gamma": 64, "width": 4}, 257),
        ("rsd", {"search": "constant", "branching": [2, 3, 2, 1], "gamma": 4}, 33, {"gamma": 256}, 1025),
        ("mdsd", {}, 13, {"gamma": 5000}, 15001),
        ("sequoia", {"nodes": 9}, 10, {"nodes": 1000}, 257),
        ("eagle2", {}, 60, {"nodes": 4096}, 4097),
        ("opt-tree", {}, 51, {"nodes": 4096}, 4097),
    ],
)
def test_trees_that_do_not_fit_are_refused(name, fits, reach, too_large, read):
    method = build(tiny("llama"), name, **fits)
    assert method.reach == reach and method.lossless and method.inputs() == {}
    with one_line_error(
        f"{name}: its rounds are of up to {read} tokens, but tiny reads 256", "choose smaller settings"
    ):
        build(tiny("llama"), name, **too_large)
