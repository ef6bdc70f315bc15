"""`dflash` and `mtp` next to transformers' own: its DFlash generation, and `generate(use_mtp=True)`.

Run by `make bench`. The bundled target with the heads that ship, greedy, `eager`, one thread: every way answers every
prompt, by turns in one process, prefill left out. The module drafts one token, as transformers has it. Texts and the
accepted drafts of every round are to be equal.
"""

import sys
from functools import partial
from typing import Any

import torch
from benches import Generate, built, decode, prompts, race_calls
from peer_heads import dflash_assistant, handed, noted, with_mask
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator, MTPCandidateGenerator

from specbench.config import load_pair as read_pair
from specbench.engine.models.mtp import announcing
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.types import Method
from specbench.methods.blocks.dflash import loaded as loaded_blocks
from specbench.methods.heads.mtp import loaded as loaded_modules

DOCUMENTS = 5  # of each family
NEW = 64
OURS, THEIRS = "specbench", "transformers"


def main() -> int:
    torch.set_num_threads(1)
    pair = load_pair(read_pair("pocket"), device="cpu")
    target, texts = pair.models["target"], prompts(pair, DOCUMENTS)
    methods = {"vanilla": built("vanilla", pair), "dflash": built("dflash", pair), "mtp": built("mtp", pair, steps=1)}
    head = loaded_blocks("auto", pair, "dflash")[0]
    mask = pair.tokenizer.pad_token_id
    (module, _), _ = loaded_modules("auto", pair)
    blocks = partial(generated, pair, with_mask(target, head, mask), assistant_model=dflash_assistant(head, mask))
    peers: dict[str, Any] = {
        "vanilla": partial(generated, pair, target),
        "dflash": partial(blocks, speculation_type="dflash"),
        "mtp": partial(generated, pair, target, use_mtp=True),
    }
    engines: dict[tuple[str, str], Generate] = {(name, OURS): partial(ours, one, pair) for name, one in methods.items()}
    engines |= {(name, THEIRS): one for name, one in peers.items()}
    with announcing(target, 1, None), handed(module):
        for generate in engines.values():  # warm
            generate(texts[0], 4)
        raced = race_calls(engines, texts, NEW)
        wrong = 0
        print(
            f"the bundled target, {len(texts)} prompts, {NEW} tokens at most; torch {torch.__version__}; 95 % intervals"
        )
        for name, kind in (
            ("vanilla", None),
            ("dflash", DFlashTokenCandidateGenerator),
            ("mtp", MTPCandidateGenerator),
        ):
            vanilla = raced.texts["vanilla", OURS]
            same = sum(
                a == b == c for a, b, c in zip(vanilla, *(raced.texts[name, by] for by in (OURS, THEIRS)), strict=True)
            )
            rounds = [agrees(methods[name], pair, peers[name], kind, text) for text in texts] if kind else []
            over = raced.speedup((name, OURS), (name, THEIRS))
            counts = f", accepted drafts are equal in {sum(rounds)}" if kind else ""
            words = f"{over.value:.2f} [{over.low:.2f}, {over.high:.2f}]" if over else "-"
            print(f"  {name}: {same} of {len(texts)} texts are equal{counts}; specbench over transformers: {words}")
            wrong += (same < len(texts)) + (sum(rounds) < len(rounds))
    return int(wrong > 0)


def ours(method: Method, pair: Pair, prompt: list[int], count: int) -> list[int]:
    return decode(method, pair, prompt, count=count).tokens


def generated(pair: Pair, model: PreTrainedModel, prompt: list[int], count: int, **asked: Any) -> list[int]:
    """transformers' text of a prompt."""
    ids, ends = torch.tensor([prompt]), sorted(pair.eos_ids)
    common = {"do_sample": False, "max_new_tokens": count, "eos_token_id": ends, "pad_token_id": ends[0]}
    with torch.inference_mode():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **common, **asked)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def agrees(method: Method, pair: Pair, peer: Any, kind: type[Any], prompt: list[int]) -> bool:
    """True if every round accepts as many drafts as transformers' round does."""
    matches: list[int] = []
    with noted(kind, matches):
        peer(prompt, NEW)
    counts = matches[2:]
    mine = [one.accepted for one in decode(method, pair, prompt, count=NEW).rounds[1:]]
    return mine[: len(counts)] == counts and len(mine) <= len(counts) + 1


if __name__ == "__main__":
    sys.exit(main())
