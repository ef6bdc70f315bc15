"""`python -m specbench.training.pocket.build`: make the pocket pair again from nothing, in steps that each resume.

tokenizer -> text -> target -> the target's own answers -> draft -> the target's last stages -> the draft's last stage.
At most four hours on two CPU cores.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from specbench.base.console import progress
from specbench.config import SUITES
from specbench.tasks.pocket.corpus import ALGEBRA, LATE, PROMPT_WEIGHT, SUMS, prompt_and_completion, write_stream
from specbench.training.pocket.answers import answered
from specbench.training.pocket.tokenizer import CONTEXT, VOCABULARY, train_tokenizer
from specbench.training.pocket.train import Plan, Stream, train

TARGET = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 12, "num_attention_heads": 6}
TARGET_PLAN = Plan(steps=2800)
ALGEBRA_PLAN = Plan(steps=400, rate=2e-3, warmup=20, decay=0.9)  # algebra lags behind the rest after the first stage
LATE_ALGEBRA_PLAN = Plan(steps=800, rate=2e-3, warmup=20, decay=0.9)  # the target's last stage, once the draft is made
DRAFT = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2, "num_attention_heads": 8}
SUMS_PLAN = Plan(steps=600, rate=2e-3, warmup=20, decay=0.05)  # more of the first four families, at a steady rate
FORMATS_PLAN = Plan(steps=520, block=1024, rate=1.5e-3, warmup=20, decay=0.9)  # instructions and needles join
DRAFT_PLAN = Plan(steps=800, distill=0.7)
DRAFT_ALGEBRA_PLAN = Plan(steps=300, rate=2e-3, warmup=20, decay=0.9, distill=0.7)
DRAFT_FORMATS_PLAN = Plan(steps=320, block=1024, rate=1.5e-3, warmup=20, decay=0.9, distill=0.7)
ANSWER_TOKENS = 250_000  # the target's own answers, with their prompts
WEIGHTS = SUITES / "pairs" / "weights"


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
    final = LlamaForCausalLM.from_pretrained(folder / "final", dtype=torch.bfloat16)
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

    text, answers = work / "text", work / "answers"
    if not text.with_suffix(".ids.npy").exists():
        write_stream(tokenizer, text, TARGET_PLAN.steps * TARGET_PLAN.batch_tokens)
    if not (work / "target" / "final").exists():
        train(model(TARGET, tokenizer, seed=0).to(device), [Stream(text)], TARGET_PLAN, work / "target")
    algebra = work / "algebra"
    if not algebra.with_suffix(".ids.npy").exists():
        write_stream(tokenizer, algebra, ALGEBRA_PLAN.steps * ALGEBRA_PLAN.batch_tokens, seed=2, shares=ALGEBRA)
    if not (work / "target-algebra" / "final").exists():
        first_stage = LlamaForCausalLM.from_pretrained(work / "target" / "final").to(device)
        train(first_stage, [Stream(algebra)], ALGEBRA_PLAN, work / "target-algebra")

    target = LlamaForCausalLM.from_pretrained(work / "target-algebra" / "final").to(device).eval()
    if not answers.with_suffix(".ids.npy").exists():
        write_answers(target, tokenizer, answers, ANSWER_TOKENS)
    if not (work / "draft" / "final").exists():
        draft = model(DRAFT, tokenizer, seed=1).to(device)
        train(draft, [Stream(text), Stream(answers)], DRAFT_PLAN, work / "draft", teacher=target)
    if not (work / "draft-algebra" / "final").exists():
        draft = LlamaForCausalLM.from_pretrained(work / "draft" / "final").to(device)
        train(draft, [Stream(algebra)], DRAFT_ALGEBRA_PLAN, work / "draft-algebra", teacher=target)
    late_algebra = work / "late-algebra"
    if not late_algebra.with_suffix(".ids.npy").exists():
        write_stream(tokenizer, late_algebra, LATE_ALGEBRA_PLAN.steps * LATE_ALGEBRA_PLAN.batch_tokens, 3, ALGEBRA)
    if not (work / "target-late-algebra" / "final").exists():
        train(target, [Stream(late_algebra)], LATE_ALGEBRA_PLAN, work / "target-late-algebra")

    sums = work / "sums"
    if not sums.with_suffix(".ids.npy").exists():
        write_stream(tokenizer, sums, SUMS_PLAN.steps * SUMS_PLAN.batch_tokens, 5, SUMS)
    if not (work / "target-sums" / "final").exists():
        target = LlamaForCausalLM.from_pretrained(work / "target-late-algebra" / "final").to(device)
        train(target, [Stream(sums)], SUMS_PLAN, work / "target-sums")

    formats = work / "formats"
    if not formats.with_suffix(".ids.npy").exists():
        write_stream(tokenizer, formats, FORMATS_PLAN.steps * FORMATS_PLAN.batch_tokens, 4, LATE)
    if not (work / "target-formats" / "final").exists():
        target = LlamaForCausalLM.from_pretrained(work / "target-sums" / "final").to(device)
        train(target, [Stream(formats)], FORMATS_PLAN, work / "target-formats")
    pack(work / "target-formats", "target", tokenizer)
    if not (work / "draft-formats" / "final").exists():
        target = LlamaForCausalLM.from_pretrained(work / "target-formats" / "final").to(device).eval()
        draft = LlamaForCausalLM.from_pretrained(work / "draft-algebra" / "final").to(device)
        train(draft, [Stream(formats)], DRAFT_FORMATS_PLAN, work / "draft-formats", teacher=target)
    pack(work / "draft-formats", "draft", tokenizer)


if __name__ == "__main__":
    main()
