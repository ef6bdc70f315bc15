"""`python -m pocket.build`: make the pocket pair again from nothing, in steps that each resume.

tokenizer -> text -> target -> the target's own answers -> draft -> the target's last stages -> the draft's last stage.
At most four hours on two CPU cores.
"""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pocket import corpus
from pocket.answers import answered
from pocket.corpus import PROMPT_WEIGHT, prompt_and_completion, write_stream
from pocket.tokenizer import CONTEXT, VOCABULARY, train_tokenizer
from pocket.train import Plan, Stream, train
from specbench.base.console import progress
from specbench.config import SUITES

TARGET = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 6}
TARGET_PLAN = Plan(steps=2800)
ALGEBRA_PLAN = Plan(steps=400, rate=2e-3, warmup=20, decay=0.9)  # algebra lags behind the rest after the first stage
LATE_ALGEBRA_PLAN = Plan(steps=800, rate=2e-3, warmup=20, decay=0.9)  # the target's last stage, once the draft is made
DRAFT = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "num_attention_heads": 8}
SUMS_PLAN = Plan(steps=600, rate=2e-3, warmup=20, decay=0.05)  # more of the first four families, at a steady rate
FORMATS_PLAN = Plan(steps=520, block=1024, rate=1.5e-3, warmup=20, decay=0.9)  # instructions and needles join
# The target's stages once the draft is made: name, plan, and the seed and shares of its text.
LAST_STAGES = (
    ("late-algebra", LATE_ALGEBRA_PLAN, 3, corpus.ALGEBRA),
    ("sums", SUMS_PLAN, 5, corpus.SUMS),
    ("formats", FORMATS_PLAN, 4, corpus.LATE),
)
DRAFT_PLAN = Plan(steps=800, distill=0.7)
DRAFT_ALGEBRA_PLAN = Plan(steps=300, rate=2e-3, warmup=20, decay=0.9, distill=0.7)
DRAFT_FORMATS_PLAN = Plan(steps=320, block=1024, rate=1.5e-3, warmup=20, decay=0.9, distill=0.7)
ANSWER_TOKENS = 250_000  # the target's own answers, with their prompts
WEIGHTS = SUITES / "pairs" / "weights"
Model = TypeVar("Model", bound=PreTrainedModel)


def model(shape: dict[str, int], tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights, heads of width 32 and two query heads to a key head."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        **shape,
        num_key_value_heads=shape["num_attention_heads"] // 2,
        head_dim=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True)
class Workshop:
    """The folder of the stages' texts, logs and checkpoints, and their tokenizer."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast

    def text(self, name: str, plan: Plan, seed: int, shares: dict[str, float] = corpus.SHARES) -> Stream:
        """A text of its own for a stage of this plan; one that an earlier call wrote is read back."""
        path = self.folder / name
        if not path.with_suffix(".ids.npy").exists():
            write_stream(self.tokenizer, path, plan.steps * plan.batch_tokens, seed, shares)
        return Stream(path)

    def stage(
        self,
        name: str,
        start: Model,
        streams: Sequence[Stream],
        plan: Plan,
        teacher: PreTrainedModel | None = None,
    ) -> Model:
        """Train on from a copy of `start`; a stage that an earlier call finished is read back."""
        folder = self.folder / name
        if not (folder / "final").exists():
            train(copy.deepcopy(start), streams, plan, folder, teacher)
        trained: Model = type(start).from_pretrained(folder / "final")
        return trained.to(start.device).eval()


def write_answers(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, path: Path, tokens: int, temperature: float = 0.7
) -> None:
    """Write a stream of training problems with the target's own answers, as `write_stream` does with reference ones."""
    ids: list[int] = []
    weights: list[float] = []
    with progress(f"writing {path.name}", tokens) as advance:
        for problem, answer in answered(target, tokenizer, "train", seed=11, temperature=temperature):
            prompt = tokenizer(prompt_and_completion(problem.family, problem.fields)[0])["input_ids"]
            ids += prompt + answer
            weights += [PROMPT_WEIGHT] * len(prompt) + [1.0] * len(answer)
            advance(len(prompt) + len(answer))
            if len(ids) >= tokens:
                break
    np.save(path.with_suffix(".weights.npy"), np.array(weights[:tokens], np.float16))
    np.save(path.with_suffix(".ids.npy"), np.array(ids[:tokens], np.uint16))


def pack(folder: Path, name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save a trained model, in bfloat16, and the tokenizer to the folder of bundled weights."""
    final = AutoModelForCausalLM.from_pretrained(folder / "final", dtype=torch.bfloat16)
    final.save_pretrained(WEIGHTS / name)
    tokenizer.save_pretrained(WEIGHTS / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="streams, logs and checkpoints")
    work = parser.parse_args().work
    device = "cuda" if torch.cuda.is_available() else "cpu"

    if not (work / "tokenizer").exists():
        train_tokenizer(work / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    shop = Workshop(work, tokenizer)

    text = shop.text("text", TARGET_PLAN, 0)
    target = shop.stage("target", model(TARGET, tokenizer, seed=0).to(device), [text], TARGET_PLAN)
    algebra = shop.text("algebra", ALGEBRA_PLAN, 2, shares=corpus.ALGEBRA)
    target = shop.stage("target-algebra", target, [algebra], ALGEBRA_PLAN)
    answers = work / "answers"
    if not answers.with_suffix(".ids.npy").exists():
        write_answers(target, tokenizer, answers, ANSWER_TOKENS)
    draft = model(DRAFT, tokenizer, seed=1).to(device)
    draft = shop.stage("draft", draft, [text, Stream(answers)], DRAFT_PLAN, target)
    draft = shop.stage("draft-algebra", draft, [algebra], DRAFT_ALGEBRA_PLAN, target)
    for name, plan, seed, shares in LAST_STAGES:
        last = shop.text(name, plan, seed, shares=shares)
        target = shop.stage(f"target-{name}", target, [last], plan)
    pack(work / "target-formats", "target", tokenizer)
    shop.stage("draft-formats", draft, [last], DRAFT_FORMATS_PLAN, target)
    pack(work / "draft-formats", "weak", tokenizer)


if __name__ == "__main__":
    main()
