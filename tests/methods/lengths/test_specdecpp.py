"""SpecDec++: where its own code ends its drafts (tests/official/specdecpp.json). For its rule see test_lengths.py."""

import torch
from cases import mostly_long
from gates import DEVICE, GREEDY, decode
from official import specdecpp as own
from official_cases import official_cases

from specbench.engine import drafters
from specbench.engine.drafters import ModelDrafter
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.lengths.specdecpp import AcceptanceHead, Predicted


def head(seed):
    depth = seed % 3
    last = own.weights({f"model.{depth}.weight": (2, own.WIDTH), f"model.{depth}.bias": (2,)}, 200 + seed)
    block = own.weights({"weight": (own.WIDTH, own.WIDTH), "bias": (own.WIDTH,)}, 300 + seed)
    blocks = [block["weight"][None], block["bias"][None]]
    if not depth:
        blocks = [blocks[0][:0], blocks[1][:0]]
    parts = [*blocks, last[f"model.{depth}.weight"], torch.tensor([0.0, 1.5])]
    return AcceptanceHead(*(part.float().to(DEVICE) for part in parts), depth)


@mostly_long("number", range(24), range(4))
def test_drafts_end_where_its_own_code_ends_them(monkeypatch, number):
    """12 greedy texts and 12 drawn ones, of heads with no, one and two blocks; half of them may end early.

    The drawn tokens are those that were drawn there; so is the text after each of their drafts.
    """
    case = official_cases("specdecpp")[number]
    threshold, shortest, longest = case["limits"]
    target, draft = (model.to(DEVICE) for model in own.models(case["seed"]))
    ends = frozenset([own.END]) if case["ends"] else frozenset()
    drafter = ModelDrafter(Session(draft, "draft"), Predicted(head(case["seed"]), threshold, shortest, {}), ends)
    draw = drafters.draw
    sampling = GREEDY if case["greedy"] else Sampling(1.0)

    def drawn(*given):
        token, q = draw(*given)
        return (token if case["greedy"] else torch.tensor([waiting.pop(0)], device=DEVICE)), q

    monkeypatch.setattr(drafters, "draw", drawn)
    drafter.begin(case["prompt"][:-1])
    for start, expected in zip(case["starts"], case["drafts"], strict=True):
        waiting = [*expected, *[0] * longest]
        context = [*case["prompt"], *case["text"][:start]]
        draft = drafter.propose(context, longest, sampling, torch.Generator(DEVICE))
        assert draft.tokens.tolist() == expected
    if case["greedy"]:
        method = SpS(Session(target, "target"), drafter, longest)
        text, rounds = decode(method, case["prompt"][:-1], len(case["text"]) + 1)
        assert text == [case["prompt"][-1], *case["text"]]
        assert [step.verdict.drafted for step in rounds[1 : len(case["drafts"]) + 1]] == case["drafts"]


def test_the_cases_say_something():
    """Drafts of many lengths, by the threshold, by both bounds, and by an end token."""
    cases = official_cases("specdecpp")
    lengths = [len(draft) for case in cases for draft in case["drafts"]]
    assert len(lengths) > 350 and len(set(lengths)) > 15
    assert any(len(draft) == case["limits"][1] for case in cases for draft in case["drafts"])
    assert any(len(draft) == case["limits"][2] for case in cases for draft in case["drafts"])
    ended = [(draft, case["limits"][2]) for case in cases if case["ends"] for draft in case["drafts"]]
    assert any(own.END in draft and len(draft) < longest for draft, longest in ended)
