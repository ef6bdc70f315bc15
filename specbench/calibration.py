"""Fill CSD's correction memory: plain speculative sampling over calibration documents, whose rejections are counted."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specbench import config
from specbench.config import UserError
from specbench.console import console, progress
from specbench.decoding.accept import exact
from specbench.decoding.drafters import ModelDrafter
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.speculate import speculate
from specbench.decoding.types import Sampling
from specbench.memory import UNIVERSAL, Rejections, write_memory
from specbench.methods.csd import Settings
from specbench.models import Pair, load_pair
from specbench.plan import Plan, preparing
from specbench.run import check_lengths, encode, load_tasks
from specbench.seeds import stable_seed
from specbench.untrusted import read_lines, text_of

PREFIX = 64  # tokens of a text of a corpus that are given
CONTINUATION = 64  # tokens that follow it
LONGEST = 2**16  # characters of a text in which its first tokens are looked for


@dataclass(frozen=True)
class Text:
    """What is decoded once: a document's prompt, or the beginning of a text of a corpus."""

    task: str
    number: int
    prompt: list[int]
    until: tuple[str, ...]
    max_new_tokens: int


def calibrate(
    suite: str | None,
    corpus: Path | None,
    pair: str,
    method: str,
    assignments: Sequence[str],
    documents: int,
    temperature: float,
    seed: int,
    device: str,
    dtype: str,
    data_dir: str | None,
    out: Path | None,
) -> None:
    """Count (draft token, target token) at the first rejection of every round (CSD, section 4.2).

    `out` is a file for the counts of all tasks together, or a folder: then each task has a file of its own there, and
    `universal.parquet` holds their sum. A corpus makes one file.
    """
    spec = config.load_method(method)
    if spec.method != "csd":
        raise UserError(f"{method} needs no calibration; csd does")
    assigned = config.parse_assignments(assignments)
    if others := set(assigned) - {spec.name}:
        raise UserError(f"--set {others.pop()}.…: only {spec.name} is calibrated")
    spec = config.override(spec, assigned.get(spec.name, {}))
    config.validated(Settings, spec.values, spec.name)
    if (suite is None) == (corpus is None):
        raise UserError("calibrate needs --suite (documents of its tasks) or --corpus FILE (texts), one of them")
    pair_spec = config.load_pair(pair)
    name = suite and config.load_suite(suite).name
    path = out or Path(f"memory-{pair_spec.name}-{name or (corpus and corpus.stem)}")
    if path.exists():
        raise UserError(f"{path} exists; choose another --out")
    loaded = load_pair(pair_spec, device, dtype)
    gamma = spec.values["gamma"]
    if suite:
        plan = preparing(pair_spec, suite, spec, documents, seed, data_dir)
        texts = list(_documents(plan, loaded, gamma + 1))
    else:
        assert corpus
        texts = list(_beginnings(corpus, loaded, documents, gamma + 1))
    source = {
        "corpus": name or str(corpus and corpus.name),
        "documents": min(Counter(text.task for text in texts).values()),
        "temperature": temperature,
        "gamma": gamma,
    }
    metadata = {key: json.dumps(value) for key, value in source.items()}
    counts = _count(loaded, texts, gamma, Sampling(temperature), seed)
    if path.suffix == ".parquet" or corpus:
        write_memory(path, sum(counts.values(), Counter()), loaded, metadata)
    else:
        for task, of_task in counts.items():
            write_memory(path / f"{task}.parquet", of_task, loaded, metadata)
        write_memory(path / f"{UNIVERSAL}.parquet", sum(counts.values(), Counter()), loaded, metadata)
    for task, of_task in counts.items():
        pairs = {(d, t) for _, d, t in of_task}
        console.print(f"{task}: {sum(of_task.values())} rejections of {len(pairs)} pairs", highlight=False)
    console.print(f"{len(texts)} texts: {path}", highlight=False, soft_wrap=True)
    if suite:
        console.print(f"next: specbench run --method csd --suite {suite} --set csd.memory={path}", highlight=False)


def _documents(plan: Plan, pair: Pair, reach: int) -> Iterator[Text]:
    """Prompts of the calibration documents of the plan's tasks."""
    for line in plan.tasks:
        where = config.task_info(line.task).calibration
        if where is None:
            raise UserError(
                f"{line.task} has no documents for calibration besides those it tests; calibrate on a suite with "
                "another task of its kind, such as gsm8k, and give the file to run by --set csd.memory=FILE"
            )
        task, _, split = where.rpartition(":")
        stand_in = line.model_copy(update={"task": task or line.task, "fewshot": None if task else line.fewshot})
        requests = load_tasks(plan.model_copy(update={"tasks": (stand_in,), "split": split}), pair).requests()
        prompts = [encode(pair, request.prompt) for request in requests]
        check_lengths(requests, prompts, pair, reach)
        for request, prompt in zip(requests, prompts, strict=True):
            yield Text(line.task, request.doc_id, prompt, request.until, request.max_new_tokens)


def _beginnings(corpus: Path, pair: Pair, documents: int, reach: int) -> Iterator[Text]:
    """The first tokens of the first texts of a JSON Lines file with a field `text`."""
    if PREFIX + CONTINUATION + reach > pair.context:
        raise UserError(f"{pair.name} reads {pair.context} tokens; a corpus wants {PREFIX + CONTINUATION + reach}")
    found = 0
    remedy = 'write JSON Lines with a "text" on every line'
    for number, line, _ in read_lines(corpus, remedy=remedy):
        text = text_of(line, f"{corpus}, line {number}", remedy)
        ids = encode(pair, text[:LONGEST])[:PREFIX]
        if len(ids) == PREFIX:
            yield Text(UNIVERSAL, found, ids, (), CONTINUATION)
            found += 1
        if found == documents:
            return
    if not found:
        raise UserError(f"{corpus} has no text of {PREFIX} tokens or more")


def _count(pair: Pair, texts: list[Text], gamma: int, sampling: Sampling, seed: int) -> dict[str, Rejections]:
    """Rejected pairs of each document, by task."""
    target, drafter = pair.session("target"), ModelDrafter(pair.session("draft"))
    counts: dict[str, Rejections] = {text.task: Counter() for text in texts}
    with progress("calibrating", len(texts)) as advance:
        for text in texts:
            ending = Ending(Limits(text.max_new_tokens, pair.eos_ids, text.until), pair.detokenizer)
            rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, text.task, text.number))
            for one in until_end(speculate(target, drafter, exact, gamma, text.prompt, sampling, rng), ending):
                verdict = one.verdict
                if verdict and not one.truncated and verdict.accepted < len(verdict.drafted):
                    draft, preferred = verdict.drafted[verdict.accepted], verdict.targets[verdict.accepted]
                    if draft != preferred:
                        counts[text.task][text.number, draft, preferred] += 1
            advance(1)
    return counts
