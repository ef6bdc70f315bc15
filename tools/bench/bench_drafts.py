"""`dflash` and `mtp` next to transformers' own: its DFlash generation, and `generate(use_mtp=True)`.

    PYTHONPATH=tests/support python tools/bench/bench_drafts.py
    PYTHONPATH=tests/support python tools/bench/bench_drafts.py 5 results/reference/drafts-transformers

Documents of each family, and where a table and its facts go, without an ending. The bundled target with the heads that
ship, greedy, `eager`, one thread: every way answers every prompt, by turns in one process, prefill left out. The module
drafts one token, as transformers has it. Texts and the accepted drafts of every round are to be equal.
"""

import sys
from functools import partial
from typing import Any

import pandas as pd
import torch
from benches import Called, Generate, built, decode, prompts, race_calls, store
from peer_heads import dflash_assistant, handed, noted, with_mask
from transformers import PreTrainedModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator, MTPCandidateGenerator

from specbench.config import load_pair as read_pair
from specbench.engine.models.mtp import announcing
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.types import Method
from specbench.methods.blocks.dflash import loaded as loaded_blocks
from specbench.methods.heads.mtp import loaded as loaded_modules

NEW = 64
OURS, THEIRS = "specbench", "transformers"
KINDS = {"vanilla": None, "dflash": DFlashTokenCandidateGenerator, "mtp": MTPCandidateGenerator}


def main(documents: str = "5", out: str | None = None) -> int:
    torch.set_num_threads(1)
    pair = load_pair(read_pair("pocket"), device="cpu")
    target, texts = pair.models["target"], prompts(pair, int(documents))
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
        rows = []
        for name, kind in KINDS.items():
            rounds = [agrees(methods[name], pair, peers[name], kind, text) for text in texts] if kind else []
            rows.append(row(name, raced, rounds))
    print(f"the bundled target, {len(texts)} prompts, {NEW} tokens at most; torch {torch.__version__}; 95 % intervals")
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    if out:
        store(table, out, pair, len(texts), settings={"new_tokens": NEW, "mtp.steps": 1}, seconds="processor time")
    return int(not (table.texts_equal.eq(len(texts)).all() and table.counts_equal.isin(["", len(texts)]).all()))


def row(name: str, raced: Called, rounds: list[bool]) -> dict[str, Any]:
    """Equal texts and counts of accepted drafts, in prompts, and tokens a second of either and their ratio."""
    mine, other = (name, OURS), (name, THEIRS)
    texts = zip(raced.texts["vanilla", OURS], raced.texts[mine], raced.texts[other], strict=True)
    rates = {each: raced.tokens[each].sum() / raced.seconds[each].sum() for each in (mine, other)}
    over = raced.speedup(mine, other)
    return {
        "method": name,
        "documents": len(raced.texts[mine]),
        "texts_equal": sum(a == b == c for a, b, c in texts),
        "counts_equal": sum(rounds) if rounds else "",
        "tokens_per_s": round(rates[mine], 1),
        "tokens_per_s_transformers": round(rates[other], 1),
        "ratio": round(over.value, 3) if over else "",
        "ratio_low": round(over.low, 3) if over else "",
        "ratio_high": round(over.high, 3) if over else "",
    }


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
    sys.exit(main(*sys.argv[1:]))
