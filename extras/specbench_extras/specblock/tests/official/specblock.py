"""Makes specblock.json: what SpecBlock's own drafter says. Call here with a folder that holds a checkout of it:

python specblock.py SPECBLOCK specblock.json

SpecBlock is github.com/shiweijiezero/SpecBlock at b7938c5b. Of its specforge/modeling/draft llama3_specblock.py and
_llama3_specblock_base.py are executed; called is LlamaForCausalLMSpecBlock.forward_parallel, for a first block over a
text, with flex attention as it is instead of compiled. Weights and states are those of `numbers`, in float64; flex
attention, norms and what the rank head reads are in float32.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from transformers import LlamaConfig

WIDTH, WORDS, DRAFTED, SLOTS, TOKENS = 32, 48, 40, 4, 7


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def official(checkout: str) -> Any:
    """Its module, as part of a package whose base class is transformers' own."""
    package, base = types.ModuleType("draft"), types.ModuleType("draft.base")
    package.__path__ = [str(Path(checkout, "specforge/modeling/draft"))]
    base.Eagle3DraftModel = nn.Module  # type: ignore[attr-defined]
    sys.modules |= {"draft": package, "draft.base": base}
    for name in ("_llama3_specblock_base", "llama3_specblock"):
        spec = importlib.util.spec_from_file_location(f"draft.{name}", Path(package.__path__[0], f"{name}.py"))
        assert spec and spec.loader
        module = sys.modules[f"draft.{name}"] = importlib.util.module_from_spec(spec)
        source = (
            Path(package.__path__[0], f"{name}.py")
            .read_text()
            .replace("super().__init__(config)", "super().__init__()")
        )
        exec(compile(source, f"{name}.py", "exec"), vars(module))
    sys.modules["draft._llama3_specblock_base"].get_compiled_flex_attention = lambda length: flex_attention  # type: ignore[attr-defined]
    return sys.modules["draft.llama3_specblock"].LlamaForCausalLMSpecBlock  # type: ignore[attr-defined]


def case(seed: int, model: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": 48, "vocab_size": WORDS, "rms_norm_eps": 1e-5}
    facts |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2 + seed % 2}
    config = LlamaConfig(**facts, diffspec_draft_token_num=SLOTS, draft_vocab_size=DRAFTED)
    head = model(config).float().eval()
    named = sorted((name, own) for name, own in head.named_parameters())
    with torch.no_grad():
        for at, (name, own) in enumerate(named):
            size = 1 if "norm" in name or "embed" in name or "queries" in name else own.shape[-1] ** -0.5
            own.copy_(size * numbers(97 * seed + at, *own.shape) + ("norm" in name))
        states = numbers(1000 + seed, 1, TOKENS, 3 * WIDTH).float()
        tokens = torch.randint(WORDS, (1, TOKENS), generator=torch.Generator().manual_seed(seed))
        logits, ranks, *_ = head.forward_parallel(states, tokens, None)
    rounded = [[round(x, 5) for x in row] for row in logits[0, -1].tolist()]
    classes = [[round(x, 5) for x in row] for row in ranks[0, -1].tolist()]
    return {"seed": seed, "tokens": tokens[0].tolist(), "logits": rounded, "ranks": classes}


def main(checkout: str, out: str, count: str = "6") -> None:
    model = official(checkout)
    cases = [case(seed, model) for seed in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
