"""Prompts that a chat model writes itself (Magpie, arXiv 2406.08464), for trainings that need no hub and no data set.

The model goes on from its chat template where the user's turn begins, at a temperature. Most turns begin with nothing,
some with the words of a task (`--begin`), whose text it writes; `--end` closes these. Parts stay next to the file, so a
command that was stopped goes on.
"""

import argparse
import json
import re
from pathlib import Path

import torch

from specbench import config
from specbench.base.hashes import stable_seed
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.types import Sampling
from specbench.training.answered import answer

TOGETHER = 64  # turns that are written together
MARK = "<|turn|>"
SENTENCE = re.compile(r".*[.!?][\"')]?(?=\s|$)", re.DOTALL)


def turn_start(pair: Pair) -> list[int]:
    """What the chat template has before the user's turn."""
    if not pair.tokenizer.chat_template:
        raise SystemExit(f"{pair.name}'s target has no chat template, so it does not write a user's turns")
    messages = [{"role": "user", "content": MARK}]
    text = pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(pair.tokenizer(text.split(MARK)[0], add_special_tokens=False)["input_ids"])


def written(pair: Pair, begin: str, end: str, most: int, count: int, temperature: float, seed: int) -> list[str]:
    """`count` turns that begin with `begin`. Without `begin`, one that does not end within `most` tokens is left out;
    with it, it is cut after its last sentence."""
    start = turn_start(pair) + list(pair.tokenizer(begin, add_special_tokens=False)["input_ids"])
    rng = torch.Generator(pair.device).manual_seed(seed)
    rows = answer(
        pair.models["target"], [start] * count, most, pair.eos_ids, pair.vocabulary, Sampling(temperature), rng
    )
    turns = []
    for row in rows:
        text = pair.tokenizer.decode(row, skip_special_tokens=True).strip()
        if begin and (whole := SENTENCE.match(text)):
            turns.append(f"{begin}{whole[0].strip()}{end}")
        elif not begin and row[-1] in pair.eos_ids and text:
            turns.append(text)
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", required=True, help="a name, a YAML file, or target=FOLDER_OR_NAME")
    parser.add_argument("--count", type=int, default=320, help="turns that are written, some of which are left out")
    parser.add_argument("--begin", default="", help="what each of them begins with")
    parser.add_argument("--end", default="", help="what comes after one with a beginning")
    parser.add_argument("--most", type=int, default=80, help="tokens of a turn")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer to it, as its line says")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines, as --prompts of specbench reads them")
    options = parser.parse_args()
    parts = options.out.with_suffix(".parts")
    parts.mkdir(parents=True, exist_ok=True)
    begin, end = (text.encode().decode("unicode_escape") for text in (options.begin, options.end))
    pair, turns = None, []
    for number, first in enumerate(range(0, options.count, TOGETHER)):
        part = parts / f"{number:05d}.json"
        if not part.exists():
            pair = pair or load_pair(config.load_pair(options.pair), "auto", "auto", runtime="eager")
            size = min(TOGETHER, options.count - first)
            seed = stable_seed(options.seed, begin, number)
            made = written(pair, begin, end, options.most, size, options.temperature, seed)
            part.with_suffix(".new").write_text(json.dumps(made), "utf-8")
            part.with_suffix(".new").rename(part)
        turns += json.loads(part.read_text("utf-8"))
    asked = [{"prompt": turn, "max_new_tokens": options.answer} for turn in dict.fromkeys(turns)]
    lines = [f"{json.dumps(line, ensure_ascii=False)}\n" for line in asked]
    options.out.write_text("".join(lines), "utf-8")
    print(f"{options.out}: {len(lines)} prompts of {options.count} turns")


if __name__ == "__main__":
    main()
