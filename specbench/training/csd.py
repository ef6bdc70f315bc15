"""CSD's correction memory: count the rejections of speculative sampling on calibration documents, and merge counts."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from specbench import config
from specbench.analysis.rejections import REJECTED, RESCUED, decided, drafting
from specbench.base import files
from specbench.base.console import note, say
from specbench.base.hashes import stable_seed
from specbench.base.untrusted import read_lines, text_of
from specbench.config import UserError
from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.runtimes import choose
from specbench.engine.speculate import speculate
from specbench.engine.types import Sampling
from specbench.measure.parts import Advance, Opened, carry_out
from specbench.measure.prompts import check_lengths, encode, load_tasks
from specbench.measure.staffing import Staffing
from specbench.methods.lossy import csd_memory
from specbench.methods.lossy.csd import Settings
from specbench.methods.lossy.csd_memory import UNIVERSAL, Counts, Rejections, write_memory
from specbench.plan import Plan, preparing
from specbench.results.stored import StoredRun

PREFIX = 64  # tokens of a text of a corpus that serve as the prompt
CONTINUATION = 64  # tokens that are decoded after it
LONGEST = 2**16  # characters of a text that are tokenized to find its first tokens


@dataclass(frozen=True)
class Text:
    """A prompt that is decoded once: that of a document, or the beginning of a text of a corpus."""

    task: str
    number: int
    prompt: list[int]
    until: tuple[str, ...]
    max_new_tokens: int
    doc_hash: str = ""  # of a document; the same text may be a test document elsewhere


@dataclass(frozen=True)
class Known:
    """What is calibrated: the pair's name and the hash of its tokenizer, the runtime that decodes, and the texts."""

    name: str
    tokenizer_hash: str
    runtime: str
    texts: list[Text]


def calibrate(
    suite: str | None,
    corpus: Path | None,
    pair: str | config.PairSpec,
    method: str,
    assignments: Sequence[str],
    documents: int,
    temperature: float,
    seed: int,
    device: str,
    dtype: str,
    runtime: str,
    data_dir: str | None,
    out: Path | None,
    staffing: Staffing | None = None,
) -> None:
    """Count (draft token, target token) at the first rejection of every round (CSD, section 4.2).

    The target token is its likeliest one, also where a correction was drawn (T > 0: our inference, as in decoding).
    `out` is a file for the counts of all tasks together, or a folder, in which each task gets a file of its own and
    `universal.parquet` holds their sum. A corpus makes one file. The workers of `staffing` count, or this process
    without it. Raises UserError.
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
    files.refuse_existing(path)
    gamma = spec.values["gamma"]
    where = corpus or preparing(pair_spec, str(suite), spec, documents, seed, data_dir)
    placed = staffing.device(device) if staffing else device
    opening = partial(_open, pair_spec, placed, dtype, runtime, where, documents, gamma, Sampling(temperature), seed)
    known, counted = carry_out(opening, "calibrating", placed, staffing)
    texts = known.texts
    source = {
        "corpus": name or str(corpus and corpus.name),
        "documents": min(Counter(text.task for text in texts).values()),
        "temperature": temperature,
        "gamma": gamma,
        "runtime": known.runtime,
    }
    metadata = {key: json.dumps(value) for key, value in source.items()}
    counts: dict[str, Rejections] = {text.task: Counter() for text in texts}
    doc_hashes: dict[str, set[str]] = {task: set() for task in counts}
    for text, of_text in zip(texts, counted, strict=True):
        counts[text.task].update(of_text)
        doc_hashes[text.task] |= {text.doc_hash} - {""}
    together = path if path.suffix == ".parquet" or corpus else path / f"{UNIVERSAL}.parquet"
    if together != path:
        for task, of_task in counts.items():
            write_memory(path / f"{task}.parquet", of_task, known, metadata, doc_hashes[task])
    everything = set().union(*doc_hashes.values())
    write_memory(together, sum(counts.values(), Counter()), known, metadata, everything)
    for task, of_task in counts.items():
        pairs = {(d, t) for _, d, t in of_task}
        note(f"{task}: {sum(of_task.values())} rejections of {len(pairs)} pairs")
    say(f"{len(texts)} texts: {path}")
    if suite:
        note(f"next: specbench run --method csd --suite {suite} --set csd.memory={path}")


def _open(
    spec: config.PairSpec,
    device: str,
    dtype: str,
    runtime: str,
    where: Plan | Path,
    documents: int,
    gamma: int,
    sampling: Sampling,
    seed: int,
) -> Opened[Known, Rejections]:
    """Load the pair, and the texts of a plan's tasks or a corpus; a part decodes a text and counts its rejections."""
    pair = choose.placed(runtime, load_pair(spec, device, dtype, runtime=runtime))
    if isinstance(where, Plan):
        texts = list(_documents(where, pair, gamma + 1))
    else:
        texts = list(_beginnings(where, pair, documents, gamma + 1))
    rejections = counting(pair, gamma, sampling, seed)

    def count(number: int, advance: Advance) -> Rejections:
        counts = rejections(texts[number])
        advance(1)
        return counts

    return Opened(Known(pair.name, pair.tokenizer_hash, pair.runtime.name, texts), len(texts), len(texts), count)


def counting(pair: Pair, gamma: int, sampling: Sampling, seed: int) -> Callable[[Text], Rejections]:
    """What decodes a text and counts its rejected pairs."""
    target, drafter = pair.session("target"), ModelDrafter(pair.session("draft"))

    def count(text: Text) -> Rejections:
        counts: Rejections = Counter()
        ending = Ending(Limits(text.max_new_tokens, pair.eos_ids, text.until), pair.detokenizer)
        rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, text.task, text.number))
        for decoded in until_end(speculate(target, drafter, exact, gamma, text.prompt, sampling, rng), ending):
            verdict = decoded.verdict
            if verdict and not decoded.truncated and verdict.accepted < len(verdict.drafted):
                draft, preferred = verdict.drafted[verdict.accepted], verdict.targets[verdict.accepted]
                if draft != preferred:
                    counts[text.number, draft, preferred] += 1
        return counts

    return count


def _documents(plan: Plan, pair: Pair, reach: int) -> Iterator[Text]:
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
        prompts = [encode(pair, request.prompt) for request in requests]
        check_lengths(requests, prompts, pair, reach)
        for request, prompt in zip(requests, prompts, strict=True):
            yield Text(line.task, request.doc_id, prompt, request.until, request.max_new_tokens, request.doc_hash)


def _beginnings(corpus: Path, pair: Pair, documents: int, reach: int) -> Iterator[Text]:
    """The first tokens of the first texts of a JSON Lines file with a field `text`."""
    if PREFIX + CONTINUATION + reach > pair.context:
        raise UserError(f"{pair.name} reads {pair.context} tokens; a corpus wants {PREFIX + CONTINUATION + reach}")
    count = 0
    remedy = 'write JSON Lines with a "text" on every line'
    for number, line, _ in read_lines(corpus, remedy=remedy):
        text = text_of(line, f"{corpus}, line {number}", remedy)
        ids = encode(pair, text[:LONGEST])[:PREFIX]
        if len(ids) == PREFIX:
            yield Text(UNIVERSAL, count, ids, (), CONTINUATION)
            count += 1
        if count == documents:
            return
    if not count:
        raise UserError(f"{corpus} has no text of {PREFIX} tokens or more")


def merge(sources: Sequence[Path], method: str | None, out: Path) -> None:
    """Add up memory files and the rejections of run folders into a new memory file, and print its size."""
    parts = {
        str(path): rejected_pairs(StoredRun(path), method) if path.is_dir() else csd_memory.read_counts(path)
        for path in sources
    }
    total = csd_memory.merge(parts, out)
    for name, counts in parts.items():
        note(f"{name}: {sum(counts.pairs.values())} rejections of {len(counts.pairs)} pairs")
    note(f"together: {sum(total.values())} rejections of {len(total)} pairs: {out}")


def rejected_pairs(run: StoredRun, method: str | None) -> Counts:
    """The pairs that a method of a run rejected or rescued, with their counts.

    Raises UserError if the run has no drafts of the method, or drafts of several and `method` is None.
    """
    names = list(drafting(run).index)
    if method is None and len(names) > 1:
        raise UserError(f"{run.folder} has drafts of {', '.join(names)}; choose one by --method")
    chosen = method or names[0]
    if chosen not in names:
        raise UserError(f"{run.folder} has no drafts of a method {chosen}; it has those of {', '.join(names)}")
    counts: Counter[tuple[int, int]] = Counter()
    for decision in (REJECTED, RESCUED):
        rows = decided(run, chosen, decision)
        rows = rows[rows.draft_token != rows.target_token]
        counts.update(zip(rows.draft_token.tolist(), rows.target_token.tolist(), strict=True))
    doc_hashes = frozenset(doc_hash for *_, doc_hash in run.manifest.get("requests") or () if doc_hash)
    return Counts(counts, run.manifest.get("tokenizer_hash") or "", doc_hashes)
