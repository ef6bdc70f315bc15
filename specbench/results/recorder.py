"""Writes a run folder so that it survives a kill or a power cut at any moment.

During a run, `parts/` holds a part for each document: its rounds, its samples, and what the methods had learned by its
end. A part is on the disk before its document counts as done. Every `BLOCK` parts are joined, so that there are never
many files. When all documents are done, the parts become `samples.parquet` and `rounds.parquet`.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from specbench.base import files, untrusted
from specbench.base.errors import UserError
from specbench.results import records
from specbench.results.records import ROUNDS, SAMPLES, Part

BLOCK = 200  # documents whose parts are joined: a run of any length has some hundred files
STATES_KEPT = 2  # documents: if the last part is damaged, the run goes on from the one before it


class Recorder:
    """Writes one run folder, a document at a time.

    Opening a folder moves damaged files (a disk may have kept a name but not all bytes) to `damaged/`, with a line to
    `warn`. The documents after a damaged one are moved too and decoded again: the run goes on from a document before
    which everything that methods had learned is known. That is the first document of a task, for which `begins` is
    true, or one whose predecessor's states are stored.
    """

    def __init__(
        self,
        folder: Path,
        warn: Callable[[str], None] = lambda line: None,
        begins: Callable[[int], bool] = lambda index: index == 0,
    ) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        self.merged = self._is_merged(warn)
        self._single: list[Part] = []  # parts that are in no block yet
        if not self.merged:
            self.parts.mkdir(exist_ok=True)  # the folder itself must be there: it holds the manifest
            files.sync(folder)
            for path in filter(files.is_left, self.parts.iterdir()):
                path.unlink()
            self._done = self._recover(warn, begins)

    def done(self) -> int:
        """The number of documents that are recorded; they are the first ones, as documents are written in order."""
        return self._done

    def write(self, index: int, samples: list[dict], rounds: list[dict], states: dict[str, Any]) -> None:
        """Write the next document's records to the disk; then it is done.

        `states` is what each method has learned by the end of the document. A resumed run restores it.
        """
        part = Part(index, index)
        files.write_json(self.parts / part.name("states"), states, indent=None)
        records.write_table(self.parts / part.name("rounds"), rounds, ROUNDS)
        records.write_table(self.parts / part.name("samples"), samples, SAMPLES)
        self._done = index + 1
        self._single.append(part)
        if len(self._single) > STATES_KEPT:  # the states at the end of a block stay
            (self.parts / self._single[-1 - STATES_KEPT].name("states")).unlink(missing_ok=True)
        if len(self._single) >= BLOCK:
            self._join()

    def states(self, index: int) -> dict[str, Any]:
        """What the methods had learned by the end of a document: the last one, or the last one of a block."""
        return untrusted.read_json(self.parts / Part(index, index).name("states"))

    def finish(self) -> None:
        """Merge the parts into the two tables, samples last, and remove the parts. A second call does nothing."""
        if not self.merged:
            for name, schema in (("rounds", ROUNDS), ("samples", SAMPLES)):
                records.stream(self.folder / f"{name}.parquet", records.scan(self.folder, name), schema)
            self.merged = True
        shutil.rmtree(self.parts, ignore_errors=True)

    def _join(self) -> None:
        """Join the single parts to a block. They count until the samples of the block are in place."""
        block = Part(self._single[0].first, self._single[-1].last)
        for name, schema in (("rounds", ROUNDS), ("samples", SAMPLES)):
            paths = [self.parts / part.name(name) for part in self._single]
            records.stream(self.parts / block.name(name), ds.dataset(paths, schema), schema)
        self._single = []
        self._drop_covered()

    def _drop_covered(self) -> None:
        """Remove the single parts that are in a block, except the states at its end."""
        blocks = [part for part in records.parts(self.folder) if part.last > part.first]
        covered = {number for block in blocks for number in range(block.first, block.last + 1)}
        ends = {Part(block.last, block.last).name("states") for block in blocks}
        for path in self.parts.glob("*.*"):
            part = Part.of(path.name)
            if part and part.first == part.last and part.first in covered and path.name not in ends:
                path.unlink()

    def _is_merged(self, warn: Callable[[str], None]) -> bool:
        """True if both tables are there. Leftovers of an unfinished or damaged merge are removed or set aside."""
        paths = [self.folder / f"{name}.parquet" for name in ("rounds", "samples")]
        for path in paths:
            if path.exists() and not _is_whole(path):
                warn(f"{path} is damaged; set aside in {self.folder}/damaged")
                self._set_aside(path)
        if all(path.exists() for path in paths):
            return True
        for path in filter(Path.exists, paths):
            if self.parts.exists():  # it was merged from them, and will be again
                path.unlink()
            else:
                warn(f"{path} is of no use without the other table; set aside in {self.folder}/damaged")
                self._set_aside(path)
        return False

    def _recover(self, warn: Callable[[str], None], begins: Callable[[int], bool]) -> int:
        """The first document to decode; damaged parts and those after them are set aside."""
        damaged: list[str] = []
        done, starts = 0, [0]  # documents from which the run could go on
        for part in records.parts(self.folder):
            paths = [self.parts / part.name(name) for name in ("rounds", "samples")]
            damaged += [path.name for path in paths if not _is_whole(path)]
            if damaged:
                break
            done = part.last + 1
            if begins(done) or self._has_states(part.last):
                starts.append(done)
        start = starts[-1]
        named = [(Part.of(path.name), path) for path in self.parts.glob("*.*")]
        aside = [path for part, path in named if part and part.last >= start]
        if damaged:
            names = " and ".join(damaged)
            warn(f"{self.parts}: {names} damaged, as after a power cut; set aside in {self.folder}/damaged")
        if start < done:
            warn(f"{self.parts}: what methods had learned by document {done} is gone; going on from {start + 1}")
        if damaged or start < done:
            for path in aside:
                self._set_aside(path)
        self._drop_covered()
        self._single = [part for part in records.parts(self.folder) if part.first == part.last]
        return start

    def _has_states(self, index: int) -> bool:
        try:
            return isinstance(self.states(index), dict)
        except (OSError, UserError):
            return False

    def _set_aside(self, path: Path) -> None:
        folder = self.folder / "damaged"
        folder.mkdir(exist_ok=True)
        free = next(n for n in range(10**6) if not (folder / f"{n}-{path.name}").exists())
        os.replace(path, folder / f"{free}-{path.name}")


def _is_whole(path: Path) -> bool:
    """True if every page of a table can be read and has its checksum."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for _ in file.iter_batches(columns=None):
                pass
        return True
    except (OSError, pa.ArrowException):
        return False
