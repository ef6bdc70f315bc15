"""The texts that fill CSD's correction memory: calibration documents of tasks, or beginnings of a corpus's texts."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench.base.untrusted import read_lines, text_of
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.measure.prompts import check_lengths, encode, encode_all, load_tasks
from specbench.methods.lossy.csd_memory import UNIVERSAL
from specbench.plan import Plan

PREFIX = 64  # tokens of a text of a corpus that serve as the prompt
CONTINUATION = 64  # tokens that are decoded after it
LONGEST = 2**16  # characters of a text that are tokenized to find its first tokens


@dataclass(frozen=True)
class CountedText:
    """A prompt that is decoded once: that of a document, or the beginning of a text of a corpus."""

    task: str
    number: int
    prompt: list[int]
    until: tuple[str, ...]
    max_new_tokens: int
    doc_hash: str = ""  # of a document; the same text may be a test document elsewhere


def of_tasks(plan: Plan, pair: Pair, reach: int) -> Iterator[CountedText]:
    """Prompts of the calibration documents of the plan's tasks."""
    for line in plan.tasks:
        source = plan.info(line.task).calibration
        if source is None:
            raise UserError(
                f"{line.task} has no documents for calibration besides those it tests; calibrate on a suite with "
                "another task of its kind, such as gsm8k, and give the file to run by --set csd.memory=FILE"
            )
        task, _, split = source.rpartition(":")
        stand_in = line.model_copy(update={"task": task or line.task, "fewshot": None if task else line.fewshot})
        requests = load_tasks(plan.model_copy(update={"tasks": (stand_in,), "split": split}), pair).requests()
        prompts = encode_all(pair, [request.prompt for request in requests])
        check_lengths(requests, prompts, pair, reach)
        for request, prompt in zip(requests, prompts, strict=True):
            yield CountedText(
                line.task, request.doc_id, prompt, request.until, request.max_new_tokens, request.doc_hash
            )


def beginnings(corpus: Path, pair: Pair, documents: int, reach: int) -> Iterator[CountedText]:
    """The first tokens of the first texts of a JSON Lines file with a field `text`."""
    if PREFIX + CONTINUATION + reach > pair.context:
        raise UserError(f"{pair.name} reads {pair.context} tokens; a corpus wants {PREFIX + CONTINUATION + reach}")
    count = 0
    remedy = 'write JSON Lines with a "text" on every line'
    for number, line, _ in read_lines(corpus, remedy=remedy):
        text = text_of(line, f"{corpus}, line {number}", remedy)
        ids = encode(pair, text[:LONGEST])[:PREFIX]
        if len(ids) == PREFIX:
            yield CountedText(UNIVERSAL, count, ids, (), CONTINUATION)
            count += 1
        if count == documents:
            return
    if not count:
        raise UserError(f"{corpus} has no text of {PREFIX} tokens or more")
