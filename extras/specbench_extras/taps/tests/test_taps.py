"""TAPS: what several heads draft together, by hand and against each head alone; lossless at any temperature."""

import math

import oracle
import pytest
import torch
from cases import mostly_long
from drafted_trees import paths
from gates import decode, lively_prompt, pair
from law import V, fit, small_target
from official import eagle as own
from official_cases import official_cases
from official_heads import official_head
from recalled import recalled
from refusals import one_line_error
from tiny_heads import head, in_file, trained

from specbench import config
from specbench.engine.models.eagle_head import layers_read
from specbench.engine.models.heads import write_head
from specbench.engine.session import Session
from specbench.engine.speculate import read_prompt
from specbench.engine.types import Sampling, Scored
from specbench.methods.heads.eagle3 import EagleDrafter, Grown, eagle_head
from specbench.training.eagle3.fit import new_head
from specbench_extras.taps import taps
from specbench_extras.taps.taps import Specialists, Taps, averaged, confidence, merged

ALPHA = 1e-4  # of a right rule being refused
SIZE = (12, 3, 2)


def method(architecture: str, models, merge: bool, size=SIZE) -> Taps:
    target = pair(architecture)[0]
    made = [
        EagleDrafter(model, Session(model, "draft", vocabulary=model.config.vocab_size), layers_read(target), *size)
        for model in models
    ]
    return Taps(Session(target, "target"), Specialists(made, merge), {})


def specialists(architecture: str):
    """One that is often right, and one that knows nothing."""
    return head(architecture), trained(architecture, 30)


def test_merged_trees_by_hand():
    """Both begin with 5, after which both have 7; 6 is a root of the first alone, 8 of the second."""
    one = ([5, 6, 7], [-1, -1, 0])
    other = ([8, 5, 9, 7, 1], [-1, -1, 0, 1, 3])
    tokens, parents = merged([one, other])
    assert (tokens, parents) == ([5, 6, 7, 8, 9, 1], [-1, -1, 0, -1, 3, 2])
    assert set(paths(tokens, parents)) == {*paths(*one), *paths(*other)}
    assert merged([one, one]) == ([5, 6, 7], [-1, -1, 0])


def test_confidence_by_hand():
    """Roots of .6 and .2, and a child of .5 after the first: the mean of the three."""
    values = torch.tensor([0.6, 0.2, 0.3], dtype=torch.float64).log()
    grown = Grown(torch.tensor([1, 2, 3]), torch.tensor([-1, -1, 0]), values)
    assert math.isclose(confidence(grown, joint=False), (0.6 + 0.2 + 0.5) / 3)
    assert math.isclose(confidence(grown, joint=True), (0.6 + 0.2 + 0.3) / 3)


def test_trees_are_those_of_its_own_code():
    """Of 12 pairs of heads: what both draft as one tree, and which of them is surer."""
    chosen = []
    for case in official_cases("taps"):
        text, states = case["text"], own.numbers(1000 + case["number"], 14, own.WIDTH)
        drafts = []
        for seeds, merge in ((case["seeds"], True), (case["seeds"], False), (case["seeds"][case["chosen"]], False)):
            heads = [official_head("eagle", seed) for seed in (seeds if isinstance(seeds, list) else [seeds])]
            sessions = [Session(one, "draft", vocabulary=own.WORDS) for one in heads]
            drafters = [EagleDrafter(*both, (), *case["size"]) for both in zip(heads, sessions, strict=True)]
            used = Specialists(drafters, merge)
            used.begin(text[:10])
            for drafter in drafters:
                drafter.observe_prompt(text[:10], Scored(states[:0], hidden=states[:10]))
            draft = used.propose(text[:11], case["size"][2] + 1, Sampling(), torch.Generator())
            drafts.append(set(paths(draft.tokens.tolist(), draft.parents)))
        together, surer, expected = drafts
        assert together == {tuple(path[: end + 1]) for path in case["paths"] for end in range(len(path))}
        assert surer == expected
        chosen.append(case["chosen"])
    assert len(chosen) == 12 and set(chosen) == {0, 1}


def spied(monkeypatch, drafter):
    """The contexts and drafts of a drafter, as they are made."""
    seen, propose = [], drafter.propose

    def proposing(context, *others):
        draft = propose(context, *others)
        seen.append((list(context), draft))
        return draft

    monkeypatch.setattr(drafter, "propose", proposing)
    return seen


@pytest.mark.parametrize("merge", (True, False), ids=("merge", "route"))
def test_heads_together_draft_what_each_drafts_alone(monkeypatch, merge):
    """Each head alone follows the same text from its beginning: its cache and features are those of the method's."""
    models, used = specialists("llama"), method("llama", specialists("llama"), merge)
    seen = spied(monkeypatch, used.drafter)
    prompt, text = lively_prompt("llama", 12, 30)
    assert decode(used, prompt, 20)[0] == text[:20]
    for context, draft in seen[:6]:
        alone = []
        for model in models:
            (one,) = method("llama", [model], False).drafter.drafters
            one.begin(context)
            read_prompt(Session(pair("llama")[0], "target"), one, context[:-1])
            grown = one.tree(context)
            leaves = paths(model.ids[grown.tokens].tolist(), grown.parents.tolist())
            alone.append((leaves, confidence(grown, joint=True)))
        leaves = paths(draft.tokens.tolist(), draft.parents)
        if merge:
            assert len(set(leaves)) == len(leaves) and set(leaves) == {*alone[0][0], *alone[1][0]}
        else:
            assert leaves == max(alone, key=lambda one: one[1])[0]


@pytest.mark.parametrize("merge", (True, False), ids=("merge", "route"))
@mostly_long("architecture", ("llama", "gemma2"), ("gemma2",))
def test_greedy_texts_are_the_targets(architecture, merge):
    prompt, text = lively_prompt(architecture, 12, 30)
    used = method(architecture, specialists(architecture), merge)
    tokens, rounds = decode(used, prompt, 30)
    assert tokens == text and len(rounds) < 29
    assert max(round_.drafted for round_ in rounds) <= used.reach - 1
    assert decode(used, prompt, 30) == (tokens, rounds)  # nothing is left of the last text


@pytest.mark.long
@pytest.mark.parametrize("merge", (True, False), ids=("merge", "route"))
@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.7, top_p=0.9)), ids=str)
def test_samples_from_the_target(sampling, merge):
    target = small_target()
    models = [eagle_head(in_file(new_head(target, ids, 2)), target, V) for ids in ((0, 1, 3, 4), (1, 2, 3))]
    made = [
        EagleDrafter(model, Session(model, "draft", vocabulary=model.config.vocab_size), layers_read(target), 6, 2, 1)
        for model in models
    ]
    p, stood, fell = fit(
        Taps(recalled(target, "target"), Specialists(made, merge), {}), target, [1, 3, 2], 3, sampling, 450
    )
    assert p > ALPHA and stood > 100 and fell > 100


def test_the_mean_of_a_head_and_itself_is_the_head():
    one, other = (in_file(head("llama", seed=seed)) for seed in (0, 1))
    same = averaged([one, one]).tensors
    assert all(torch.equal(same[name], tensor) for name, tensor in one.tensors.items())
    mean = averaged([one, other]).tensors["fc.weight"]
    assert torch.allclose(mean, (one.tensors["fc.weight"] + other.tensors["fc.weight"]) / 2)
    with one_line_error("one draft vocabulary", "take route or merge"):
        averaged([one, in_file(head("llama", ids=tuple(range(1, 96, 2))))])
    with one_line_error("heads of one size", "take route or merge"):
        averaged([one, in_file(head("llama", ids=tuple(range(0, 96, 3))))])


def test_heads_in_files(pocket, tmp_path):
    """Two heads of the bundled target, named as --set names them, in each combination."""
    files = []
    for seed in (1, 2):
        made = in_file(new_head(pocket.models["target"], tuple(range(0, 2048, 4)), seed))
        files.append(tmp_path / f"{seed}.safetensors")
        write_head(files[-1], "eagle3", made.tensors, pocket, made.trained)
    hashes = set()
    for name in ("taps", "taps-route", "taps-average"):
        values = {**config.load_method(name).values, "heads": ",".join(map(str, files)), "total_tokens": 8}
        settings = config.validated(taps.Settings, values, name)
        used = taps.build(settings, pocket, None)
        assert len(used.drafter.drafters) == (1 if name == "taps-average" else 2)
        assert used.reach == (15 if name == "taps" else 8)
        text = decode(used, [5, 6, 7, 8], 8, device="cpu")[0]
        assert text == oracle.greedy(pocket.models["target"], [5, 6, 7, 8], 8)
        hashes.add(used.inputs()["head"])
    assert len(hashes) == 1
    few = config.validated(taps.Settings, {**values, "heads": [str(files[0]), "nobody"]}, "taps")
    with one_line_error("no head nobody ships with pocket", "taps.heads=ONE.safetensors"):
        taps.build(few, pocket, None)
