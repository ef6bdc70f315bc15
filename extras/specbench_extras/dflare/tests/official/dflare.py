"""Makes dflare.json: blocks that DFlare's own code drafts. Call here with a folder that holds a checkout of it:

PYTHONPATH=../../../../../tests/official python dflare.py ANGELSLIM dflare.json

ANGELSLIM is github.com/Tencent/AngelSlim at 67394ce5. Of its angelslim/compressor/speculative/train/models/draft/
qwen_dflare.py is imported; called is QwenDFlareDraftModel.spec_generate at T = 0. Targets, weights, prompts and what is
kept are as in dflash.py.
"""

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from dflash import MASK, NEW, Cropped, case

FOLDER = "angelslim/compressor/speculative/train/models/draft"


def main(checkout: str, out: str, count: str = "12") -> None:
    package = types.ModuleType("draft")
    package.__path__ = [str(Path(checkout, FOLDER))]
    factory = types.ModuleType("draft.draft_model_factory")
    factory.DraftModelFactory = types.SimpleNamespace(register=lambda model: model)  # type: ignore[attr-defined]
    sys.modules.update({"draft": package, "draft.draft_model_factory": factory})
    module: Any = importlib.import_module("draft.qwen_dflare")
    module.DynamicCache = Cropped

    def generate(head: Any, target: Any, ids: torch.Tensor) -> Any:
        made = head.spec_generate(target, ids, NEW, None, 0.0)  # it leaves out the token that is its mask
        return torch.cat([ids, made[:, int((ids != MASK).sum()) :]], 1)

    cases = [case(seed, module, module.QwenDFlareDraftModel, generate) for seed in range(int(count))]
    Path(out).write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
