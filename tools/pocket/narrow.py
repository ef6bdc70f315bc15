"""`python -m pocket.narrow`: a draft whose tokenizer has half of the target's tokens.

Its tokenizer learns its merges from other documents than the target's. The model begins as the bundled draft, with the
embeddings of the tokens that both have; another token begins as the mean of those that spell it. Then it is trained on
text, without a teacher, since no distribution of the target is over its tokens. Every step resumes; a quarter of an
hour on one CPU core.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from pocket.build import WEIGHTS, Workshop, pack
from pocket.ladder import SHARES
from pocket.tokenizer import train_tokenizer
from pocket.train import Plan
from specbench.engine.translate import Translation

VOCABULARY = 1024
DOCUMENTS, TOKENIZER_SEED = 8_000, 2  # of the text that the tokenizer learns from
PLAN = Plan(steps=400, block=1024, rate=2e-3, warmup=20, decay=0.9)
TEXT_SEED = 400


def with_tokens(
    model: LlamaForCausalLM, before: PreTrainedTokenizerFast, after: PreTrainedTokenizerFast
) -> LlamaForCausalLM:
    """A model of the tokenizer `after`, in place, from one of the tokenizer `before` with tied embeddings."""
    translation = Translation(after, before, (len(after), model.config.vocab_size))
    rows = model.get_input_embeddings().weight.detach()
    embeddings = nn.Embedding(len(after), rows.shape[1])
    with torch.no_grad():
        for token in range(len(after)):
            embeddings.weight[token] = rows[list(translation.spell(token))].mean(0)
    model.set_input_embeddings(embeddings)
    model.config.vocab_size = len(after)
    for kind in ("bos", "eos", "pad"):
        token_id = getattr(after, f"{kind}_token_id")
        setattr(model.config, f"{kind}_token_id", token_id)
        setattr(model.generation_config, f"{kind}_token_id", token_id)
    model.tie_weights()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="texts, logs and checkpoints")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not (work / "tokenizer-narrow").exists():
        train_tokenizer(work / "tokenizer-narrow", DOCUMENTS, TOKENIZER_SEED, VOCABULARY)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer-narrow")
    shop = Workshop(work, tokenizer)
    draft = LlamaForCausalLM.from_pretrained(WEIGHTS / "draft", dtype=torch.float32)
    start = with_tokens(draft, PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "draft"), tokenizer)
    text = shop.text("text-narrow", PLAN, TEXT_SEED, shares=SHARES)
    shop.stage("narrow", start.to(device), [text], PLAN)
    pack(work / "narrow", "narrow", tokenizer)


if __name__ == "__main__":
    main()
