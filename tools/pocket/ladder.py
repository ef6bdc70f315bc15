"""`python -m pocket.ladder`: drafts of graded strength for one target, and one that complements it.

A trunk with three of the target's layers is trained on text at a steady rate, stage by stage. A rung of the ladder
leaves it after some stages: its rate falls to zero, with the target as its teacher. The complementary draft leaves it
for texts of which the target has seen few, without a teacher. Every step resumes; two hours on one CPU core.
"""

import argparse
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from pocket.build import WEIGHTS, Workshop, pack
from pocket.members import shortened
from pocket.train import Plan

LAYERS = (0, 6, 11)  # of the target's twelve
RUNGS = {"early": 1, "middle": 3, "late": 6, "draft": 9}  # the stages of the trunk that each has had
COMPLEMENT_STAGES = 6
STAGE_PLAN = Plan(steps=400, block=1024, rate=3e-3, warmup=20, decay=0.001)
RUNG_PLAN = Plan(steps=160, block=1024, rate=3e-3, warmup=1, decay=1.0, distill=0.7)
COMPLEMENT_PLAN = Plan(steps=640, block=1024, rate=3e-3, warmup=20, decay=0.6)
# Needles have long texts, so few of them are many tokens.
SHARES = {"gsm8k": 0.26, "math500": 0.36, "humaneval": 0.12, "cnndm": 0.1, "ifeval": 0.1, "ruler": 0.06}
LATE_SHARES = {"gsm8k": 0.22, "math500": 0.54, "humaneval": 0.08, "cnndm": 0.06, "ifeval": 0.06, "ruler": 0.04}
LATE_FROM = 8  # the stage from which on algebra, which lags behind, has more than half of the documents
COMPLEMENT = {
    "gsm8k": 0.06,
    "math500": 0.2,
    "humaneval": 0.06,
    "cnndm": 0.06,
    "ifeval": 0.24,
    "ruler": 0.16,
    "mmlu": 0.22,
}
# Seeds of texts: of the first stage, the next ones follow; of the first rung, likewise; of the complementary draft.
STAGE_SEED, RUNG_SEED, COMPLEMENT_SEED = 200, 250, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="texts, logs and checkpoints")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "target")
    shop = Workshop(work, tokenizer)
    target = LlamaForCausalLM.from_pretrained(WEIGHTS / "target", dtype=torch.float32).to(device).eval()
    trunk = shortened(target, LAYERS).to(device)
    for stage in range(1, max(RUNGS.values()) + 1):
        shares = LATE_SHARES if stage >= LATE_FROM else SHARES
        text = shop.text(f"text-deep-{stage}", STAGE_PLAN, STAGE_SEED + stage, shares=shares)
        trunk = shop.stage(f"deep-{stage}", trunk, [text], STAGE_PLAN)
        for name, stages in RUNGS.items():
            if stages == stage:
                last = shop.text(f"text-rung-deep-{stage}", RUNG_PLAN, RUNG_SEED + stage, shares=shares)
                shop.stage(f"rung-deep-{stage}", trunk, [last], RUNG_PLAN, target)
                pack(work / f"rung-deep-{stage}", name, tokenizer)
        if stage == COMPLEMENT_STAGES:
            text = shop.text("text-complement", COMPLEMENT_PLAN, COMPLEMENT_SEED, shares=COMPLEMENT)
            shop.stage("complement", trunk, [text], COMPLEMENT_PLAN)
            pack(work / "complement", "complement", tokenizer)


if __name__ == "__main__":
    main()
