"""The rejections of speculative sampling, counted text by text or many texts at a time, and kept until all are done."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import torch

from specbench.base.hashes import stable_seed
from specbench.engine.accept import exact
from specbench.engine.clock import BatchStopwatch
from specbench.engine.drafters import ModelDrafter
from specbench.engine.generate import Ending, Limits, until_end
from specbench.engine.models.pair import Pair
from specbench.engine.prefix import shared_tokens
from specbench.engine.rows import Batch, Row, Seats
from specbench.engine.runtimes.batched import Batched
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Round, Sampling
from specbench.measure.manifest import digest
from specbench.measure.parts import Advance
from specbench.methods.lossy.csd_memory import SCHEMA, Rejections
from specbench.training.collected import put_table, read_collected
from specbench.training.csd_texts import CountedText

A_PART = 4  # batches, so that few rows are empty near its end; a calibration that is stopped loses one part

Member = tuple[Session, ModelDrafter]


class Counting:
    """Decodes texts by speculative sampling, `rows` of them together, and counts their rejected pairs.

    Each text is drawn from a seed of its own, so that its counts are those of a text that is decoded alone.
    """

    def __init__(self, pair: Pair, gamma: int, sampling: Sampling, seed: int, rows: int = 1) -> None:
        self.gamma, self.sampling, self.seed, self.rows = gamma, sampling, seed, rows
        self.pair = pair if rows == 1 else replace(pair, runtime=Batched(pair.runtime.name))
        self.members = [(self.pair.session("target"), ModelDrafter(self.pair.session("draft"))) for _ in range(rows)]

    def __call__(self, texts: Sequence[CountedText], advance: Advance = lambda count: None) -> Rejections:
        """The counts of texts whose numbers differ; `advance` is told of each as soon as it has ended."""
        counts: Rejections = Counter()
        for text, rounds in self._decoded(texts):
            counts.update(_rejections(text, rounds))
            advance(1)
        return counts

    def _decoded(self, texts: Sequence[CountedText]) -> Iterator[tuple[CountedText, Sequence[Round]]]:
        if self.rows == 1:
            for text in texts:
                yield text, list(self._begun(self.members[0], text).rounds)
            return
        seats: Seats[Member, CountedText] = Seats(Batch(BatchStopwatch(self.pair.device), apart=False), self.members)
        for row, _, text in seats.decode(texts, self._begun):
            if row.error:
                raise row.error
            yield text, row.finished

    def _begun(self, member: Member, text: CountedText) -> Row:
        target, drafter = member
        ending = Ending(Limits(text.max_new_tokens, self.pair.eos_ids, text.until), self.pair.detokenizer)
        rng = torch.Generator(self.pair.device).manual_seed(stable_seed(self.seed, text.task, text.number))
        rounds = speculate(target, drafter, exact, self.gamma, text.prompt, self.sampling, rng)
        return Row(until_end(rounds, ending), ending)


def _rejections(text: CountedText, rounds: Sequence[Round]) -> Rejections:
    """The pair that each round of a text rejected; none where the text ends before it."""
    counts: Rejections = Counter()
    for decoded in rounds:
        verdict = decoded.verdict
        if verdict and not decoded.truncated and verdict.accepted < len(verdict.drafted):
            draft, preferred = verdict.drafted[verdict.accepted], verdict.targets[verdict.accepted]
            if draft != preferred:
                counts[text.number, draft, preferred] += 1
    return counts


@dataclass(frozen=True)
class CountingWork:
    """Texts in parts, each of one task, and how many of them are decoded together."""

    texts: Sequence[CountedText]  # of a task, side by side
    rows: int

    @property
    def parts(self) -> list[Sequence[CountedText]]:
        by_task: dict[str, list[CountedText]] = {}
        for text in self.texts:
            by_task.setdefault(text.task, []).append(text)
        size = A_PART * self.rows
        return [texts[start : start + size] for texts in by_task.values() for start in range(0, len(texts), size)]


def counted(work: CountingWork, counting: Counting) -> Callable[[int, Advance], Rejections]:
    """What counts a part by its number. What a task's prompts begin with is read once."""
    parts = work.parts
    shared = {
        task: shared_tokens([text.prompt for text in work.texts if text.task == task])
        for task in {text.task for text in work.texts}
    }

    def count(number: int, advance: Advance) -> Rejections:
        texts, prefixes = parts[number], counting.pair.prefixes
        prefix = texts[0].prompt[: shared[texts[0].task]]
        if prefixes.tokens != prefix:
            prefixes.begin(prefix)
        return counting(texts, advance)

    return count


class PartCounts:
    """The counts of each part in a file, until the memory is written."""

    def __init__(self, folder: Path, work: CountingWork, facts: Mapping[str, object]) -> None:
        """`facts` (JSON-like) are all that counts depend on besides texts and rows."""
        self.folder, self.parts, self.facts = folder, work.parts, {**facts, "batch": work.rows}

    def read(self, number: int, advance: Advance) -> Rejections | None:
        """The counts of a part; None if it is not done. Raises UserError as `read_collected`."""
        path = self._path(number)
        if not path.exists():
            return None
        counts: Rejections = read_collected(path, self._facts(number), _counts)
        advance(len(self.parts[number]))
        return counts

    def keep(self, number: int, result: Rejections) -> None:
        rows = [(*key, n) for key, n in sorted(result.items())]
        columns = (
            dict(zip(SCHEMA.names, zip(*rows, strict=True), strict=True)) if rows else {n: [] for n in SCHEMA.names}
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        put_table(self._path(number), pa.table(columns, schema=SCHEMA), {"facts": self._facts(number)})

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.parquet"

    def _facts(self, number: int) -> dict[str, object]:
        texts = [[text.task, text.number, text.prompt, text.until, text.max_new_tokens] for text in self.parts[number]]
        return {**self.facts, "texts": digest(texts)}


def _counts(table: pa.Table) -> Rejections:
    *key, counts = (table[name].to_pylist() for name in SCHEMA.names)
    return Counter(dict(zip(zip(*key, strict=True), counts, strict=True)))
