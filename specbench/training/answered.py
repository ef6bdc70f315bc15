"""Documents that the target itself answers, many at a time: what draft heads and drafts learn from."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.models.cost import facts
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw
from specbench.engine.session import Session, common
from specbench.engine.types import Sampling
from specbench.methods.chains.vanilla import Vanilla
from specbench.training.collected import left_to_others, put_table, read_collected
from specbench.training.documents import Document, documents_hash
from specbench.training.loop import Advance, ignore

ROWS, MOST_ROWS = 64, 1024  # documents that are answered together, at least and at most
CACHED = 8  # the cache of those that are answered together takes at most one in CACHED of a GPU's bytes
MICRO_TOKENS = 4096  # of a forward in training, padding included; more on a GPU with memory to spare
SPARE = 32  # the logits of such a forward take at most one in SPARE of the free bytes
WINDOW = 16  # batches among which documents are sorted by length, to pad less


T = TypeVar("T")


@dataclass(frozen=True)
class Answered:
    """A document with the target's answer, which follows the first `prompt` tokens."""

    name: str
    tokens: list[int]
    prompt: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def rows(self) -> int:
        """The number of places from which the head drafts: after the answer's first token, which is the prefill's."""
        return max(0, len(self.tokens) - self.prompt - 1)


@dataclass(frozen=True)
class PaddedAnswers:
    """Some answered documents, padded at their ends."""

    tokens: Tensor  # [B, T]
    lengths: Tensor  # [B]
    prompts: Tensor  # [B]


def grouped(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, `size` at a time; the last group may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


def answer_all(
    pair: Pair,
    documents: Sequence[Document],
    times: int,
    sampling: Sampling,
    seed: int,
    folder: Path,
    advance: Advance,
) -> list[Answered]:
    """Have the target answer each document `times` times, `rows_together` documents to a file in `folder`.

    Files that exist are read instead, and the first of them says how many documents a file has: another device may have
    room for more. `advance` is called with tokens, `times` times `most_tokens(documents)` in all, as they are read and
    said. Raises UserError if a file is damaged or was made under other settings.
    """
    target = fingerprint(pair.models["target"])
    # Documents of similar length together: see `answer`.
    ordered = sorted(documents, key=lambda document: (document.max_new_tokens, len(document.prompt), document.name))
    answered: list[Answered] = []
    first = folder / "00000.parquet"
    rows = read_collected(first, {}, len) if first.exists() else rows_together(pair.models["target"], documents)
    for number, (time, some) in enumerate(product(range(times), grouped(ordered, max(1, rows)))):
        if left_to_others(number):
            continue
        made_under = {
            "target": target,
            "documents": documents_hash(some),
            "temperature": sampling.temperature,
            "time": time,
            "seed": seed,
        }
        path, told = folder / f"{number:05d}.parquet", Told(most_tokens(some), advance)
        if not path.exists():
            made = _answered(pair, some, sampling, stable_seed(seed, "answers", time), told)
            put_table(path, made, {"facts": made_under})
        answers = read_collected(path, made_under, lambda table: table["answer"].to_pylist())
        for document, answer in zip(some, answers, strict=True):
            answered.append(Answered(document.name, [*document.prompt, *answer], len(document.prompt)))
        told(told.left)
    return answered


def most_tokens(documents: Sequence[Document]) -> int:
    """The tokens that are read and said at most when documents are answered."""
    return sum(len(document.prompt) + document.max_new_tokens for document in documents)


class Told:
    """An `Advance` that passes on at most `left` in all, so that a bar ends where it should."""

    def __init__(self, left: int, advance: Advance) -> None:
        self.left, self.advance = left, advance

    def __call__(self, count: int) -> None:
        self.advance(min(count, self.left))
        self.left -= min(count, self.left)


def rows_together(model: PreTrainedModel, documents: Sequence[Document]) -> int:
    """How many of the documents a model answers together: ROWS, and more on a GPU whose memory holds their caches."""
    size = facts(model).get("kv_bytes_per_token")
    if model.device.type != "cuda" or not size:
        return ROWS
    longest = max(len(document.prompt) + document.max_new_tokens for document in documents)
    _, total = torch.cuda.mem_get_info(model.device)
    return min(MOST_ROWS, max(ROWS, total // (CACHED * size * longest)))


def _answered(pair: Pair, documents: Sequence[Document], sampling: Sampling, seed: int, advance: Advance) -> pa.Table:
    rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, documents[0].name))
    answers = answers_of(pair.models["target"], pair, documents, sampling, rng, advance)
    names = [document.name for document in documents]
    return pa.table({"name": names, "answer": pa.array(answers, pa.list_(pa.int32()))})


def answers_of(
    model: PreTrainedModel,
    pair: Pair,
    documents: Sequence[Document],
    sampling: Sampling,
    rng: torch.Generator,
    advance: Advance = ignore,
) -> list[list[int]]:
    """A model's answer to each document, up to its stop strings, its end token or its limit; all in one batch."""
    longest = max(document.max_new_tokens for document in documents)
    prompts = [document.prompt for document in documents]
    rows = answer(model, prompts, longest, pair.eos_ids, pair.vocabulary, sampling, rng, advance)
    answers = []
    for document, row in zip(documents, rows, strict=True):
        ending = document.ending(pair)
        ending.keep(row)
        answers.append(ending.tokens)
    return answers


@torch.inference_mode()
def answer(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    length: int | Sequence[int],
    eos_ids: frozenset[int],
    vocabulary: int,
    sampling: Sampling,
    rng: torch.Generator,
    advance: Advance = ignore,
) -> list[list[int]]:
    """Answer each prompt with at most `length` tokens, up to an end token, all prompts in one batch.

    There is no padding: all rows have read the same number of tokens, and longer prompts are still being read while
    shorter ones are answered. So prompts of similar length cost least. The beginning that all prompts share is read
    once. A target with a state answers one prompt after the other. `advance` is called with the tokens read and said;
    an answer that ends early counts as its whole `length`.
    """
    lengths = [length] * len(prompts) if isinstance(length, int) else length
    if has_more_than_keys(target):
        session = Session(target, "target", vocabulary=vocabulary)
        each = zip(prompts, lengths, strict=True)
        return [_answer_alone(session, list(prompt), most, eos_ids, sampling, rng, advance) for prompt, most in each]
    read, cache = min(map(len, prompts)), DynamicCache()
    shared = min(read - 1, min(common(list(prompts[0]), prompt) for prompt in prompts))
    if shared and len(prompts) > 1:
        target(torch.tensor([prompts[0][:shared]], device=target.device), past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))
    else:
        shared = 0
    fed = torch.tensor([prompt[shared:read] for prompt in prompts], device=target.device)
    active = list(range(len(prompts)))  # the prompts whose rows are in the batch
    answers: list[list[int]] = [[] for _ in prompts]
    over: set[int] = set()  # prompts whose answers have ended; their rows may stay in the batch
    advance(len(prompts) * (read - 1))
    while True:
        out = target(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        drawn = draw(out.logits[:, -1, :vocabulary], sampling, rng)[0].tolist()
        following, before = [], len(over)
        for row, token in zip(active, drawn, strict=True):
            if row not in over and read >= len(prompts[row]):
                answers[row].append(token)
                if ended(answers[row], lengths[row], eos_ids):
                    over.add(row)
                    advance(len(prompts[row]) + lengths[row] - read)
            following.append(prompts[row][read] if read < len(prompts[row]) else token)
        advance(len(prompts) - before)
        read += 1
        if len(over) == len(prompts):
            return answers
        open_rows = [i for i, row in enumerate(active) if row not in over]
        if len(open_rows) <= len(active) * 3 // 4:  # each selection copies the cache
            cache.batch_select_indices(torch.tensor(open_rows, device=target.device))
            active, following = [active[i] for i in open_rows], [following[i] for i in open_rows]
        fed = torch.tensor(following, device=target.device)[:, None]


def _answer_alone(
    target: Session,
    prompt: list[int],
    length: int,
    eos_ids: frozenset[int],
    sampling: Sampling,
    rng: torch.Generator,
    advance: Advance,
) -> list[int]:
    said: list[int] = []
    for round_ in Vanilla(target).rounds(prompt, sampling, rng):
        said += round_.tokens
        if ended(said, length, eos_ids):
            break
    advance(len(prompt) + length)
    return said


def ended(answer: Sequence[int], length: int, eos_ids: frozenset[int]) -> bool:
    return len(answer) >= length or (bool(answer) and answer[-1] in eos_ids)


def batches(items: Sequence[T], size: int, seed: int, length: Callable[[Any], int] = len) -> list[list[T]]:
    """One epoch: every item once, `size` of similar length to a batch, in an order drawn from the seed."""
    rng = random.Random(seed)
    shuffled = rng.sample(items, len(items))
    epoch = []
    for window in grouped(shuffled, size * WINDOW):
        by_length = sorted(window, key=length)
        epoch += [list(batch) for batch in grouped(by_length, size)]
    rng.shuffle(epoch)
    return epoch


def micro_tokens(model: PreTrainedModel) -> int:
    """How many tokens a forward of a model in training reads at most, padding included."""
    if model.device.type != "cuda":
        return MICRO_TOKENS
    free, _ = torch.cuda.mem_get_info(model.device)
    return max(MICRO_TOKENS, free // (SPARE * 4 * model.config.get_text_config().vocab_size))


def sent(values: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device. The host does not wait, even if the device is busy."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def blocks(batch: Sequence[Answered], device: torch.device, most: int = 0) -> list[PaddedAnswers]:
    """The documents of a batch in blocks of at most `most` tokens (0: MICRO_TOKENS), at least one document each."""
    width = max(len(document.tokens) for document in batch)
    made = []
    for some in grouped(batch, max(1, (most or MICRO_TOKENS) // width)):
        lengths, prompts = [len(document.tokens) for document in some], [document.prompt for document in some]
        padded = [document.tokens + [0] * (max(lengths) - len(document.tokens)) for document in some]
        columns = (torch.from_numpy(np.array(column, np.int64)) for column in (padded, lengths, prompts))
        made.append(PaddedAnswers(*(sent(column, device) for column in columns)))
    return made
