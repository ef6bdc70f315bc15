"""`python -m pocket.hybrid`: a pair whose states cannot be cut, with a module for more tokens in its checkpoint.

The target has gated delta nets next to attention, as Qwen 3.5 has, the draft a short convolution, as LFM2 has. Both
learn from generated text with the bundled tokenizer, with the draft of `pocket` as their teacher, and begin with the
main components of its embeddings. The module for more tokens is trained by `specbench train --method mtp`; `--modules
FILE` puts it into the target's checkpoint, under the names that published checkpoints have. Every step resumes; some
minutes on one idle CPU core.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

from pocket.build import WEIGHTS, Model, Workshop, pack
from pocket.tokenizer import CONTEXT, VOCABULARY
from pocket.train import Plan
from specbench.engine.models.mtp_names import QWEN

SHARES = {"gsm8k": 0.6, "math500": 0.08, "humaneval": 0.24, "cnndm": 0.08}
SMALL: dict[str, Any] = {"batch_tokens": 2048, "long_share": 0.0, "checkpoint_every": 50, "distill": 0.7}
STEADY_PLAN = Plan(steps=200, rate=3e-3, warmup=30, decay=0.001, **SMALL)
FALLING_PLAN = Plan(steps=200, rate=3e-3, warmup=1, decay=1.0, **SMALL)
DRAFT_PLAN = Plan(steps=250, rate=4e-3, warmup=30, decay=0.6, **SMALL)
SCALE = 0.04  # standard deviation of the first embeddings
TARGET_SEED, DRAFT_SEED = 500, 520  # of the first text, the next ones follow; of the draft's
# A module's parts in transformers' MtpModel, and in checkpoints of Qwen 3.5.
PUBLISHED = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}
PUBLISHED |= {"mtp_block": "layers.0"}


def target_config() -> PretrainedConfig:
    """Five layers of width 128, of which two attend; 0.97 M parameters."""
    linear, full = "linear_attention", "full_attention"
    return Qwen3_5TextConfig(
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=5,
        layer_types=[linear, linear, full, linear, full],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        **{QWEN: 1},
        **SHARED,
    )


def draft_config() -> PretrainedConfig:
    """Two layers of width 64, of which the second attends; 0.21 M parameters."""
    return Lfm2Config(
        hidden_size=64,
        intermediate_size=128,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=2,
        layer_types=["conv", "full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        **SHARED,
    )


SHARED = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}


def with_embeddings(model: Model, of: PreTrainedModel) -> Model:
    """The model, in place, whose tied embeddings begin as the main components of another one's, small as usual."""
    rows = of.get_input_embeddings().weight.detach().float()
    own = model.get_input_embeddings().weight
    rows = rows - rows.mean(0)
    _, _, components = torch.linalg.svd(rows, full_matrices=False)
    with torch.no_grad():
        begun = rows @ components[: own.shape[1]].T
        own.copy_(begun * (SCALE / begun.std()))
    return model


def published(module: dict[str, Tensor]) -> dict[str, Tensor]:
    """A trained module's tensors by the names that they have in a checkpoint of Qwen 3.5, in bfloat16."""
    renamed = {}
    for name, tensor in module.items():
        part, _, rest = name.removeprefix("layers.0.").partition(".")
        renamed[f"mtp.{PUBLISHED[part]}.{rest}"] = tensor.to(torch.bfloat16).contiguous()
    return renamed


def with_module(checkpoint: Path, module: Path) -> None:
    """Put a trained module into a packed target's file, in place of one that it has."""
    kept = {name: tensor for name, tensor in load_file(checkpoint).items() if not name.startswith("mtp.")}
    save_file(kept | published(load_file(module)), checkpoint, {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("pocket-work"), help="texts, logs and checkpoints")
    parser.add_argument(
        "--modules", type=Path, help="a trained module; the packed target gets it, and nothing is trained"
    )
    arguments = parser.parse_args()
    if arguments.modules:
        with_module(WEIGHTS / "hybrid" / "model.safetensors", arguments.modules)
        return
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(WEIGHTS / "target")
    shop = Workshop(work, tokenizer)
    teacher = LlamaForCausalLM.from_pretrained(WEIGHTS / "draft", dtype=torch.float32).to(device).eval()
    torch.manual_seed(0)
    target = with_embeddings(Qwen3_5ForCausalLM(target_config()).to(device), teacher)
    for stage, (name, plan) in enumerate({"hybrid-0": STEADY_PLAN, "hybrid": FALLING_PLAN}.items()):
        text = shop.text(f"text-{name}", plan, TARGET_SEED + stage, shares=SHARES)
        target = shop.stage(name, target, [text], plan, teacher)
    pack(work / "hybrid", "hybrid", tokenizer)
    torch.manual_seed(1)
    draft = with_embeddings(Lfm2ForCausalLM(draft_config()).to(device), teacher)
    text = shop.text("text-hybrid-draft", DRAFT_PLAN, DRAFT_SEED, shares=SHARES)
    shop.stage("hybrid-draft", draft, [text], DRAFT_PLAN, teacher)
    pack(work / "hybrid-draft", "hybrid-draft", tokenizer)


if __name__ == "__main__":
    main()
