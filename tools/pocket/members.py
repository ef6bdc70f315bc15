"""`python -m pocket.members`: make the models for collaborative decoding, in steps that each resume.

As Qwen2.5's Math and Coder models continue from their base, these continue from the pair's target: `general` has eight
of its twelve layers and learns from it what the missing ones did; `math` and `code` continue from `general`, each with
its own subject. `small` continues from the weak draft, as the amateur of contrastive decoding. This takes about 35
minutes on one CPU core.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pocket.build import WEIGHTS, Workshop, pack
from pocket.train import Plan

LAYERS = (0, 1, 2, 4, 6, 8, 10, 11)  # of the target's twelve
WHOLE = {"gsm8k": 0.28, "math500": 0.34, "humaneval": 0.22, "cnndm": 0.16}
WHOLE_PLAN = Plan(steps=440, rate=2e-3, warmup=20, decay=0.05, distill=0.7)
MORE_PLAN = Plan(steps=280, rate=2e-3, warmup=20, decay=0.05, distill=0.7, seed=3)
GENERAL = {"gsm8k": 0.19, "math500": 0.25, "humaneval": 0.15, "cnndm": 0.12, "mmlu": 0.29}  # adds multiple choice
GENERAL_PLAN = Plan(steps=560, rate=2e-3, warmup=20, decay=0.9)
MATH = {"gsm8k": 0.35, "math500": 0.45, "humaneval": 0.03, "cnndm": 0.03, "mmlu": 0.14}
MATH_PLAN = Plan(steps=400, rate=2e-3, warmup=20, decay=0.9, seed=1)
CODE = {"gsm8k": 0.06, "math500": 0.06, "humaneval": 0.65, "cnndm": 0.05, "mmlu": 0.18}
CODE_PLAN = Plan(steps=320, rate=2e-3, warmup=20, decay=0.9, seed=2)
SMALL_PLAN = Plan(steps=320, rate=2e-3, warmup=20, decay=0.9, distill=0.7)


def shortened(target: LlamaForCausalLM, layers: tuple[int, ...] = LAYERS) -> LlamaForCausalLM:
    """A model with some of the target's layers and a copy of everything else."""
    config = type(target.config).from_dict({**target.config.to_dict(), "num_hidden_layers": len(layers)})
    config.layer_types = None
    short = LlamaForCausalLM(config)
    kept = {f"model.layers.{old}.": f"model.layers.{new}." for new, old in enumerate(layers)}
    state = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith("model.layers."):
            state[name] = tensor
        elif (prefix := ".".join(name.split(".")[:3]) + ".") in kept:
            state[kept[prefix] + name.removeprefix(prefix)] = tensor
    short.load_state_dict(state)
    return short


def member(
    shop: Workshop,
    name: str,
    start: LlamaForCausalLM,
    shares: dict[str, float],
    plan: Plan,
    seed: int,
    teacher: PreTrainedModel | None = None,
) -> LlamaForCausalLM:
    """Train on from a copy of `start` with a new text."""
    return shop.stage(f"member-{name}", start, [shop.text(name, plan, seed, shares=shares)], plan, teacher)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="texts, logs and checkpoints")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "target")
    shop = Workshop(work, tokenizer)
    target, draft = (
        LlamaForCausalLM.from_pretrained(WEIGHTS / name, dtype=torch.float32).to(device).eval()
        for name in ("target", "weak")
    )
    whole = member(shop, "whole", shortened(target).to(device), WHOLE, WHOLE_PLAN, 21, teacher=target)
    more = member(shop, "more", whole, WHOLE, MORE_PLAN, 26, teacher=target)
    general = member(shop, "general", more, GENERAL, GENERAL_PLAN, 22)
    member(shop, "math", general, MATH, MATH_PLAN, 23)
    member(shop, "code", general, CODE, CODE_PLAN, 24)
    member(shop, "small", draft, GENERAL, SMALL_PLAN, 25, teacher=general)
    for name in ("general", "math", "code", "small"):
        pack(work / f"member-{name}", name, tokenizer)


if __name__ == "__main__":
    main()
