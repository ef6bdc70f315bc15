"""`python -m specbench.training.pocket.ladder [NAME...]`: drafts of graded strength for the bundled target.

Two drafts of another shape each are trained on text at a steady rate, stage by stage. A rung of the ladder leaves such
a trunk after some stages: its rate falls to zero, with the finished target as its teacher, which takes twice the time a
token. Every step resumes.
"""

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.pocket.build import WEIGHTS, Workshop
from specbench.training.pocket.members import shortened
from specbench.training.pocket.train import Plan

# Needles have long texts, so few of them are many tokens.
SHARES = {"gsm8k": 0.26, "math500": 0.36, "humaneval": 0.12, "cnndm": 0.1, "ifeval": 0.1, "ruler": 0.06}
STAGE = Plan(steps=400, block=1024, rate=3e-3, warmup=20, decay=0.001)
FALL = Plan(steps=160, block=1024, rate=3e-3, warmup=1, decay=1.0, distill=0.7)
STAGES = 12
WIDE = 896  # the width of the MLP of the wide draft, 640 in the weak one
DEEP = (0, 6, 11)  # the target's layers that the deep draft begins with
SEEDS = {"wide": 100, "deep": 200}  # of the first stage's text; the next stages' follow


@dataclass(frozen=True)
class Trunk:
    """A draft on its way: what it begins with, and its stages so far."""

    name: str
    start: LlamaForCausalLM

    def stage(self, shop: Workshop, number: int, start: LlamaForCausalLM) -> LlamaForCausalLM:
        """Train the next stage, on a text of its own."""
        name = f"{self.name}-{number}"
        text = shop.text(f"text-{name}", STAGE, SEEDS[self.name] + number, shares=SHARES)
        return shop.stage(name, start, [text], STAGE)

    def rung(self, shop: Workshop, number: int, start: LlamaForCausalLM, teacher: LlamaForCausalLM) -> LlamaForCausalLM:
        """The draft that leaves the trunk after a stage: the rate falls to zero, on a text of its own."""
        name = f"rung-{self.name}-{number}"
        text = shop.text(f"text-{name}", FALL, SEEDS[self.name] + 50 + number, shares=SHARES)
        return shop.stage(name, start, [text], FALL, teacher)


def widened(draft: LlamaForCausalLM, width: int, seed: int = 0) -> LlamaForCausalLM:
    """The same function with MLPs of `width`: the new units write nothing yet."""
    config = type(draft.config).from_dict({**draft.config.to_dict(), "intermediate_size": width})
    torch.manual_seed(seed)
    wide = LlamaForCausalLM(config)
    state = copy.deepcopy(draft.state_dict())
    for name, tensor in wide.state_dict().items():
        old = state[name]
        if old.shape != tensor.shape:
            new = torch.zeros_like(tensor) if "down_proj" in name else tensor.clone()
            new[: old.shape[0], : old.shape[1]] = old
            state[name] = new
    wide.load_state_dict(state)
    return wide


def bundled(name: str) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(WEIGHTS / name, dtype=torch.float32).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trunks", nargs="*", default=list(SEEDS), help="wide, deep, or both")
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="texts, logs and checkpoints")
    parser.add_argument("--stages", type=int, default=STAGES, help="of each trunk")
    parser.add_argument("--rungs", type=int, nargs="*", default=[], help="stages after which a rung leaves the trunk")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.work.mkdir(parents=True, exist_ok=True)
    shop = Workshop(options.work, PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "target"))
    target = bundled("target").to(device)
    starts = {"wide": widened(bundled("draft"), WIDE), "deep": shortened(target, DEEP)}
    for name in options.trunks:
        trunk = Trunk(name, starts[name].to(device))
        model = trunk.start
        for number in range(1, options.stages + 1):
            model = trunk.stage(shop, number, model)
            if number in options.rungs:
                trunk.rung(shop, number, model, target)


if __name__ == "__main__":
    main()
