"""CSD's correction memory: count the rejections of speculative sampling on calibration documents, and merge counts."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specbench import config
from specbench.analysis.rejections import REJECTED, RESCUED, decided, drafting
from specbench.base import files
from specbench.base.console import note, say, warn
from specbench.config import BATCHED, UserError
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.static import STATIC
from specbench.engine.types import Sampling
from specbench.measure.parts import Opened, carry_out
from specbench.measure.room import Demand, check_room
from specbench.measure.staffing import Staffing
from specbench.methods.lossy import csd_memory
from specbench.methods.lossy.csd import Settings, lacking
from specbench.methods.lossy.csd_memory import UNIVERSAL, Counts, Rejections, write_memory
from specbench.plan import Plan, preparing
from specbench.results.stored import StoredRun
from specbench.training.csd_counting import Counting, CountingWork, PartCounts, counted
from specbench.training.csd_texts import beginnings, of_tasks

ROWS = 16  # texts that are decoded together, where the runtime can


@dataclass(frozen=True)
class Known:
    """What is calibrated: the pair's name and the hashes of its tokenizer and models, the runtime, and the texts."""

    name: str
    tokenizer_hash: str
    models: Mapping[str, str]
    runtime: str
    work: CountingWork


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
    batch: int | None = None,
    staffing: Staffing | None = None,
) -> None:
    """Count (draft token, target token) at the first rejection of every round (CSD, section 4.2).

    The target token is its likeliest one, also where a correction was drawn (T > 0: our inference, as in decoding).
    `out` is a file for the counts of all tasks together, or a folder, in which each task gets a file of its own and
    `universal.parquet` holds their sum. A corpus makes one file. The workers of `staffing` count, or this process
    without it, `batch` texts at a time (None: ROWS, if the runtime computes batches). Until all are counted, the counts
    so far are in a folder next to `out`, and the same call goes on from them. Raises UserError.
    """
    spec = config.load_method(method)
    if spec.method != "csd":
        raise UserError(f"{method} needs no calibration; csd does")
    assigned = config.parse_assignments(assignments)
    if others := set(assigned) - {spec.name}:
        raise UserError(f"--set {others.pop()}.…: only {spec.name} is calibrated")
    spec = config.override(spec, assigned.get(spec.name, {}))
    settings = config.validated(Settings, spec.values, spec.name)
    if (suite is None) == (corpus is None):
        raise UserError("calibrate needs --suite (documents of its tasks) or --corpus FILE (texts), one of them")
    rows = batch or (ROWS if runtime in (*BATCHED, choose.AUTO) else 1)
    pair_spec = config.load_pair(pair)
    name = suite and config.load_suite(suite).name
    path = out or Path(f"memory-{pair_spec.name}-{name or (corpus and corpus.stem)}")
    files.refuse_existing(path)
    begun = path.with_name(f"{path.name}.begun")
    where = corpus or preparing(pair_spec, str(suite), spec, documents, seed, data_dir)
    placed = staffing.device(device) if staffing else device
    drawn = {"temperature": temperature, "gamma": settings.gamma, "seed": seed}
    opening = partial(_open, pair_spec, placed, dtype, runtime, where, documents, rows, drawn)
    if begun.exists():
        note(f"{begun}/ has the counts of a calibration that was stopped; it goes on")
    known, of_parts = carry_out(
        opening,
        "calibrating",
        placed,
        staffing,
        lambda known: PartCounts(begun, known.work, {**drawn, "models": known.models, "runtime": known.runtime}),
    )
    texts = known.work.texts
    tasks = Counter(text.task for text in texts)
    source = {
        "corpus": name or str(corpus and corpus.name),
        "documents": min(tasks.values()),
        "temperature": temperature,
        "gamma": settings.gamma,
        "runtime": known.runtime,
    }
    metadata = {key: json.dumps(value) for key, value in source.items()}
    counts: dict[str, Rejections] = {task: Counter() for task in tasks}
    for part, of_part in zip(known.work.parts, of_parts, strict=True):
        counts[part[0].task].update(of_part)
    doc_hashes = {task: {text.doc_hash for text in texts if text.task == task} - {""} for task in tasks}
    together = path if path.suffix == ".parquet" or corpus else path / f"{UNIVERSAL}.parquet"
    if together != path:
        for task, of_task in counts.items():
            write_memory(path / f"{task}.parquet", of_task, known, metadata, doc_hashes[task])
    everything = set().union(*doc_hashes.values())
    write_memory(together, sum(counts.values(), Counter()), known, metadata, everything)
    shutil.rmtree(begun)
    for task, of_task in counts.items():
        pairs: Counter[tuple[int, int]] = Counter()
        for (_, draft, wanted), count in of_task.items():
            pairs[draft, wanted] += count
        note(f"{task}: {pairs.total()} rejections of {len(pairs)} pairs")
        if why := lacking(pairs, tasks[task], settings):
            warn(f"{task}: {why}")
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
    rows: int,
    drawn: Mapping[str, float],
) -> Opened[Known, Rejections]:
    """Load the pair, and the texts of a plan's tasks or a corpus; a part decodes texts and counts their rejections."""
    pair = load_pair(spec, device, dtype, runtime=runtime)
    if rows > 1:
        choose.for_batches(runtime, pair)
    pair = choose.placed(runtime, pair)
    gamma = int(drawn["gamma"])
    if isinstance(where, Plan):
        texts = list(of_tasks(where, pair, gamma + 1))
    else:
        texts = list(beginnings(where, pair, documents, gamma + 1))
    if rows > 1:
        needed = Demand({pair.models["target"]: 1, pair.models["draft"]: 1}, gamma + 1, pair.runtime is STATIC)
        longest = max(len(text.prompt) + text.max_new_tokens for text in texts)
        check_room(pair, {"csd": needed}, rows, longest)
    work = CountingWork(texts, rows)
    hashes = {role: f"{fingerprint(model)} {model.dtype}" for role, model in pair.models.items()}
    counting = Counting(pair, gamma, Sampling(drawn["temperature"]), int(drawn["seed"]), rows)
    known = Known(pair.name, pair.tokenizer_hash, hashes, pair.runtime.name, work)
    return Opened(known, len(work.parts), len(texts), counted(work, counting))


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
