"""What a draft head of EAGLE-3 learns from: documents that the target itself has answered, many at a time."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.decoding.generate import Ending, Limits
from specbench.decoding.sampling import draw
from specbench.decoding.session import common
from specbench.decoding.types import Sampling
from specbench.heads import fingerprint
from specbench.models import Pair
from specbench.seeds import stable_seed
from specbench.train.collected import put_table, read_collected
from specbench.train.documents import Document

ROWS = 64  # documents that are answered together
MICRO_TOKENS = 4096  # of a forward in training, padding included
WINDOW = 16  # batches among which documents are sorted by length, to pad less


T = TypeVar("T")


@dataclass(frozen=True)
class Answered:
    """A document with the target's answer; what lies behind the first `prompt` tokens was answered."""

    name: str
    tokens: list[int]
    prompt: int

    @property
    def rows(self) -> int:
        """Places of the answer from which the head drafts: behind its first token, which is the prefill's, and on."""
        return max(0, len(self.tokens) - self.prompt - 1)


@dataclass(frozen=True)
class Block:
    """Some answered documents, padded behind their ends."""

    tokens: Tensor  # [B, T]
    lengths: Tensor  # [B]
    prompts: Tensor  # [B]


def grouped(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, `size` at a time, the last ones fewer."""
    return (items[start : start + size] for start in range(0, len(items), size))


def answer_all(
    pair: Pair,
    documents: Sequence[Document],
    times: int,
    sampling: Sampling,
    seed: int,
    folder: Path,
    advance: Callable[[int], None],
) -> list[Answered]:
    """`times` answers of the target to each document, ROWS to a file in `folder`; one that is there is read instead.

    `advance` is called with the answers done. Raises UserError if a file is damaged or was made otherwise.
    """
    target = fingerprint(pair.models["target"])
    # Those of like length together: see `answer`.
    ordered = sorted(documents, key=lambda one: (one.max_new_tokens, len(one.prompt), one.name))
    found: list[Answered] = []
    for number, (time, some) in enumerate(product(range(times), grouped(ordered, ROWS))):
        told = [[one.name, one.prompt_hash, one.max_new_tokens, one.until] for one in some]
        facts = {
            "target": target,
            "documents": hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16],
            "temperature": sampling.temperature,
            "time": time,
            "seed": seed,
        }
        path = folder / f"{number:05d}.parquet"
        if not path.exists():
            put_table(path, _answered(pair, some, sampling, stable_seed(seed, "answers", time)), {"facts": facts})
        answers = read_collected(path, facts, lambda table: table["answer"].to_pylist())
        for one, answer in zip(some, answers, strict=True):
            found.append(Answered(one.name, [*one.prompt, *answer], len(one.prompt)))
        advance(len(some))
    return found


def _answered(pair: Pair, documents: Sequence[Document], sampling: Sampling, seed: int) -> pa.Table:
    rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, documents[0].name))
    longest = max(one.max_new_tokens for one in documents)
    rows = answer(
        pair.models["target"], [one.prompt for one in documents], longest, pair.eos_ids, pair.vocabulary, sampling, rng
    )
    answers = []
    for one, row in zip(documents, rows, strict=True):
        ending = Ending(Limits(one.max_new_tokens, pair.eos_ids, one.until), pair.detokenizer)
        ending.keep(row)
        answers.append(ending.tokens)
    return pa.table(
        {"name": [one.name for one in documents], "answer": pa.array(answers, pa.list_(pa.int32()))},
    )


@torch.inference_mode()
def answer(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int],
    eos_ids: frozenset[int],
    vocabulary: int,
    sampling: Sampling,
    rng: torch.Generator,
) -> list[list[int]]:
    """At most `length` tokens behind each prompt, all in one batch, each up to an end token.

    There is no padding: all rows have read as many tokens, those of longer prompts the prompt's own while there are
    any. So prompts of about one length cost least. What all prompts begin with is read once.
    """
    read, cache = min(map(len, prompts)), DynamicCache()
    lengths = [length] * len(prompts) if isinstance(length, int) else length
    shared = min(read - 1, min(common(list(prompts[0]), one) for one in prompts))
    if shared and len(prompts) > 1:
        target(torch.tensor([prompts[0][:shared]], device=target.device), past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))
    else:
        shared = 0
    fed = torch.tensor([one[shared:read] for one in prompts], device=target.device)
    going = list(range(len(prompts)))  # whose rows are in the batch
    answers: list[list[int]] = [[] for _ in prompts]
    while True:
        out = target(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        drawn = draw(out.logits[:, -1, :vocabulary], sampling, rng)[0].tolist()
        following = []
        for row, token in zip(going, drawn, strict=True):
            if read < len(prompts[row]):
                following.append(prompts[row][read])
            else:
                answers[row].append(token)
                following.append(token)
        read += 1
        alive = [at for at, row in enumerate(going) if not ended(answers[row], lengths[row], eos_ids)]
        if not alive:
            return answers
        if len(alive) <= len(going) * 3 // 4:  # each time is a copy of the cache
            cache.batch_select_indices(torch.tensor(alive, device=target.device))
            going, following = [going[at] for at in alive], [following[at] for at in alive]
        fed = torch.tensor(following, device=target.device)[:, None]


def ended(answer: Sequence[int], length: int, eos_ids: frozenset[int]) -> bool:
    return len(answer) >= length or (bool(answer) and answer[-1] in eos_ids)


def draft_ids(answered: Iterable[Answered], size: int, vocabulary: int) -> list[int]:
    """The `size` most frequent tokens of the answers, in rising order; unseen ones fill up from the lowest id."""
    if size >= vocabulary:
        return list(range(vocabulary))
    counts = Counter(token for one in answered for token in one.tokens[one.prompt :])
    ranked = sorted(range(vocabulary), key=lambda token: (-counts[token], token))
    return sorted(ranked[:size])


def batches(answered: Sequence[Answered], size: int, seed: int) -> list[list[Answered]]:
    """One epoch: every document once, `size` of about the same length together, in an order drawn from the seed."""
    rng = random.Random(seed)
    shuffled = rng.sample(answered, len(answered))
    found = []
    for some in grouped(shuffled, size * WINDOW):
        found += [list(few) for few in grouped(sorted(some, key=lambda one: len(one.tokens)), size)]
    rng.shuffle(found)
    return found


def blocks(batch: Sequence[Answered], device: torch.device) -> list[Block]:
    """The documents of a batch in forwards of at most MICRO_TOKENS (at least one document)."""
    width = max(len(one.tokens) for one in batch)
    found = []
    for some in grouped(batch, max(1, MICRO_TOKENS // width)):
        longest = max(len(one.tokens) for one in some)
        padded = [one.tokens + [0] * (longest - len(one.tokens)) for one in some]
        columns = ([len(one.tokens) for one in some], [one.prompt for one in some])
        found.append(Block(*(torch.tensor(column, device=device) for column in (padded, *columns))))
    return found
