"""Writes a run folder so that it survives a kill or a power cut at any moment.

During a run, `parts/` holds a part for each document: its rounds, its samples, and what the methods had learned by its
end. A part is on the disk before its document counts as done. Every `BLOCK` parts are joined, so that there are never
many files. When all documents are done, the parts become `samples.parquet` and `rounds.parquet`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from specbench.base import untrusted
from specbench.base.errors import UserError
from specbench.base.folder import Folder, FolderFile, LinkRefused
from specbench.base.parquet import RowGroups
from specbench.results import records
from specbench.results.records import ROUNDS, SAMPLES, PartFile

BLOCK = 200  # documents whose parts are joined: a run of any length has some hundred files
STATES_KEPT = 2  # documents: if the last part is damaged, the run goes on from the one before it


class Recorder:
    """Writes one run folder, a document at a time.

    Opening a folder moves damaged files (a disk may have kept a name but not all bytes) to `damaged/`, with a line to
    `warn`. The documents after a damaged one are moved too and decoded again: the run goes on from a document before
    which everything that methods had learned is known. That is the first document of a task, for which `begins` is
    true, or one whose predecessor's states are stored.

    Documents are counted over the whole run; a folder that holds a shard begins with document `first`, and its files
    are numbered from there.

    `origin` are the columns of every sample that tell who decodes it; the attempt is counted here, from the last part.

    Raises LinkRefused, before anything is written, if there is a link in the folder, in `parts/` or in `damaged/`.
    """

    def __init__(
        self,
        folder: Path,
        warn: Callable[[str], None] = lambda line: None,
        begins: Callable[[int], bool] = lambda index: index == 0,
        first: int = 0,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self._first = folder, first
        self._run = Folder.at(folder)  # which must be there: it holds the manifest
        self._run.refuse_links()
        for name in filter(self._run.has, ("parts", "damaged")):
            self._run.folder(name).refuse_links()
        self.merged = self._is_merged(warn)
        self._single: list[PartFile] = []  # parts that are in no block yet
        if not self.merged:
            self._parts = self._run.folder("parts", make=True)
            self._run.sync()
            self._parts.remove_leftovers()
            for name in self._parts.odd_names():
                warn(f"{folder}/parts/{name} is not a file; set aside in {folder}/damaged")
                self._set_aside(self._parts, name)
            self._done = self._recover(warn, begins)
        self._origin = {**origin, "attempt": self._attempts() + 1} if origin else {}

    def done(self) -> int:
        """The next document to record, as documents are written in order."""
        return self._first + self._done

    def write(self, index: int, samples: list[dict], rounds: list[dict], states: dict[str, Any]) -> None:
        """Write the next document's records to the disk; then it is done.

        `states` is what each method has learned by the end of the document. A resumed run restores it.
        """
        part = self._part(index)
        self._parts.write_json(part.name("states"), states, indent=None)
        records.write_table(self._file(part, "rounds"), rounds, ROUNDS)
        records.write_table(self._file(part, "samples"), [self._origin | row for row in samples], SAMPLES)
        self._done = part.last + 1
        self._single.append(part)
        if len(self._single) > STATES_KEPT:  # the states at the end of a block stay
            self._parts.unlink(self._single[-1 - STATES_KEPT].name("states"))
        if len(self._single) >= BLOCK:
            self._join()

    def states(self, index: int) -> dict[str, Any]:
        """What the methods had learned by the end of a document: the last one, or the last one of a block."""
        return untrusted.read_json(self._file(self._part(index), "states"))

    def finish(self) -> None:
        """Merge the parts into the two tables, samples last, and remove the parts. A second call does nothing."""
        if not self.merged:
            for name in ("rounds", "samples"):
                records.stream(FolderFile(self._run, f"{name}.parquet"), records.open_rows(self._run, name))
            self.merged = True
        self._run.remove_folder("parts")

    def replace(self, count: int, gone: pc.Expression, samples: list[dict], rounds: list[dict]) -> None:
        """Put rows in the place of samples of a finished run of `count` documents; they come last in both tables.

        `gone` is true of the samples that they replace, which have no rounds. A run that is killed meanwhile is then as
        before, or has the new rows.
        """
        whole = PartFile(0, count - 1)
        self._parts = self._run.folder("parts", make=True)
        records.stream(self._file(whole, "rounds"), records.open_rows(self._run, "rounds"), more=rounds)
        rows = [self._origin | row for row in samples]
        records.stream(self._file(whole, "samples"), records.open_rows(self._run, "samples"), ~gone, rows)
        for name in ("samples", "rounds"):  # without one of them neither counts, and the parts do
            self._run.unlink(f"{name}.parquet")
        self.merged = False
        self.finish()

    def _part(self, index: int) -> PartFile:
        return PartFile(index - self._first, index - self._first)

    def _file(self, part: PartFile, name: str) -> FolderFile:
        return FolderFile(self._parts, part.name(name))

    def _join(self) -> None:
        """Join the single parts to a block. They count until the samples of the block are in place."""
        block = PartFile(self._single[0].first, self._single[-1].last)
        for name, schema in (("rounds", ROUNDS), ("samples", SAMPLES)):
            records.stream(
                self._file(block, name), RowGroups([self._file(part, name) for part in self._single], schema)
            )
        self._single = []
        self._drop_covered()

    def _drop_covered(self) -> None:
        """Remove the single parts that are in a block, except the states at its end."""
        blocks = [part for part in records.parts(self._run) if part.last > part.first]
        covered = {number for block in blocks for number in range(block.first, block.last + 1)}
        ends = {PartFile(block.last, block.last).name("states") for block in blocks}
        for name in self._parts.names():
            part = PartFile.of(name)
            if part and part.first == part.last and part.first in covered and name not in ends:
                self._parts.unlink(name)

    def _is_merged(self, warn: Callable[[str], None]) -> bool:
        """True if both tables are there. Leftovers of an unfinished or damaged merge are removed or set aside."""
        tables = {"rounds.parquet": ROUNDS, "samples.parquet": SAMPLES}
        for name, schema in tables.items():
            if self._run.has(name) and not records.is_whole(FolderFile(self._run, name), schema):
                warn(f"{self.folder / name} is damaged; set aside in {self.folder}/damaged")
                self._set_aside(self._run, name)
        if all(map(self._run.has, tables)):
            return True
        for name in filter(self._run.has, tables):
            if self._run.has("parts"):  # it was merged from them, and will be again
                self._run.unlink(name)
            else:
                warn(f"{self.folder / name} is of no use without the other table; set aside in {self.folder}/damaged")
                self._set_aside(self._run, name)
        return False

    def _recover(self, warn: Callable[[str], None], begins: Callable[[int], bool]) -> int:
        """The first document to decode; damaged parts and those after them are set aside."""
        damaged: list[str] = []
        done, starts = 0, [0]  # documents from which the run could go on
        for part in records.parts(self._run):
            tables = ((self._file(part, "rounds"), ROUNDS), (self._file(part, "samples"), SAMPLES))
            damaged += [file.name for file, schema in tables if not records.is_whole(file, schema)]
            if damaged:
                break
            done = part.last + 1
            if begins(self._first + done) or self._has_states(self._first + part.last):
                starts.append(done)
        start = starts[-1]
        named = [(PartFile.of(name), name) for name in self._parts.names()]
        aside = [name for part, name in named if part and part.last >= start]
        parts = self.folder / "parts"
        if damaged:
            names = " and ".join(damaged)
            warn(f"{parts}: {names} damaged, as after a power cut; set aside in {self.folder}/damaged")
        if start < done:
            warn(f"{parts}: what methods had learned by document {done} is gone; continuing from {start + 1}")
        if damaged or start < done:
            for name in aside:
                self._set_aside(self._parts, name)
        self._drop_covered()
        self._single = [part for part in records.parts(self._run) if part.first == part.last]
        return start

    def _attempts(self) -> int:
        """How often the folder was begun and recorded something."""
        last = records.files_of(self._run, "samples")[-1:]
        return pc.max(RowGroups(last, SAMPLES).to_table(["attempt"]).column("attempt")).as_py() or 0

    def _has_states(self, index: int) -> bool:
        try:
            return isinstance(self.states(index), dict)
        except LinkRefused:
            raise
        except (OSError, UserError):
            return False

    def _set_aside(self, place: Folder, name: str) -> None:
        damaged = self._run.folder("damaged", make=True)
        free = next(n for n in range(10**6) if not damaged.has(f"{n}-{name}"))
        place.move(name, damaged, f"{free}-{name}")
