"""SpecDec++: where its own code ends its drafts (tests/official/specdecpp.json). For its rule see test_lengths.py."""

import torch
from cases import mostly_long
from gates import DEVICE, GREEDY, decode
from official_cases import official_cases
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.engine import drafters
from specbench.engine.drafters import ModelDrafter
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.lengths.specdecpp import AcceptanceHead, Predicted

WIDTH, END = 32, 7
FACTS = {"vocab_size": 40, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 3}
FACTS |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}


def weights(shapes, seed):
    """Random numbers as in tests/official/specdecpp.py."""
    rng, made = torch.Generator().manual_seed(seed), {}
    for name, shape in sorted(shapes.items()):
        tensor = torch.randn(*shape, generator=rng, dtype=torch.float64)
        size = 4 if "lm_head" in name else 1
        made[name] = tensor if "embed" in name else size * tensor / shape[-1] ** 0.5 + ("norm" in name)
    return made


def models(seed):
    made = [LlamaForCausalLM(LlamaConfig(**FACTS)).double().eval() for _ in range(2)]
    shapes = {name: own.shape for name, own in made[0].state_dict().items()}
    tensors, noise = weights(shapes, seed), weights(shapes, 100 + seed)
    made[0].load_state_dict(tensors)
    made[1].load_state_dict({name: own if "norm" in name else own + 0.1 * noise[name] for name, own in tensors.items()})
    return [model.to(DEVICE) for model in made]


def head(seed):
    depth = seed % 3
    last = weights({f"model.{depth}.weight": (2, WIDTH), f"model.{depth}.bias": (2,)}, 200 + seed)
    block = weights({"weight": (WIDTH, WIDTH), "bias": (WIDTH,)}, 300 + seed)
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
    target, draft = models(case["seed"])
    ends = frozenset([END]) if case["ends"] else frozenset()
    drafter = ModelDrafter(Session(draft, "draft"), Predicted(head(case["seed"]), threshold, shortest, {}), ends)
    own = drafters.draw
    sampling = GREEDY if case["greedy"] else Sampling(1.0)

    def drawn(*given):
        token, q = own(*given)
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
    assert any(
        END in draft and len(draft) < case["limits"][2] for case in cases if case["ends"] for draft in case["drafts"]
    )
