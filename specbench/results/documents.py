"""What the texts of a run were about: prompts and reference answers, once a run, in `documents.parquet`.

The file is written before the first document is decoded and never changes. It may be missing: runs made with
--no-prompts, imported runs and runs of earlier versions have none.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from specbench.base import parquet
from specbench.base.errors import UserError
from specbench.base.folder import Folder, FolderFile
from specbench.base.hashes import short_hash
from specbench.base.parquet import RowGroups
from specbench.results.records import WRITING, is_whole

FILE = "documents.parquet"
DOCUMENTS = pa.schema(
    [
        pa.field("task", pa.string()),
        pa.field("doc_id", pa.int32()),  # counts the documents of a task from 0, as in the samples
        pa.field("prompt", pa.string()),  # all that the models read, few-shot examples and chat template included
        pa.field("reference", pa.string()),  # the right answer as the task has it, one a line; null if it is no text
        pa.field("category", pa.string()),  # the kind of document, where its data names one; else null
    ]
)
NEEDED = ["task", "doc_id", "prompt"]
GROUP = 2**23  # characters that are written, and later read, at once
Key = tuple[str, int]  # a task and a doc_id


@dataclass(frozen=True)
class DocumentRow:
    """A row of DOCUMENTS."""

    task: str
    doc_id: int
    prompt: str
    reference: str | None = None
    category: str | None = None

    @property
    def prompt_hash(self) -> str:
        """As the manifest has it: 16 hexadecimal digits."""
        return short_hash(self.prompt)


def keep(folder: Folder, documents: Iterable[DocumentRow]) -> None:
    """Write `documents.parquet`, unless a whole one is there. Raises OSError, LinkRefused."""
    target = FolderFile(folder, FILE)
    if folder.has(FILE) and is_whole(target, DOCUMENTS):
        return
    with parquet.whole(target, DOCUMENTS, WRITING) as writer:
        group: list[DocumentRow] = []
        room = GROUP
        for document in documents:
            group.append(document)
            room -= len(document.prompt) + len(document.reference or "")
            if room <= 0:
                writer.write_table(_table(group))
                group, room = [], GROUP
        if group:
            writer.write_table(_table(group))


def find(
    folder: Folder, chosen: Mapping[str, Collection[int]], hashes: Mapping[str, Mapping[int, str]]
) -> dict[Key, DocumentRow]:
    """The documents `chosen` by task, as far as they were kept; none from a run without the file.

    Args:
        hashes: of the prompts by task and document, of all that the run has; empty texts where they are not known.

    Raises:
        UserError: the file is damaged, of another form, or of other documents than the run's.
    """
    if not chosen or not folder.has(FILE):
        return {}
    source = FolderFile(folder, FILE)
    remedy = "the run's figures do not need it; remove it to go on without prompts"
    parquet.check(source, DOCUMENTS, NEEDED, remedy, least=parquet.LARGE)
    wanted = pc.scalar(False)
    for task, ids in chosen.items():
        wanted |= (pc.field("task") == task) & pc.field("doc_id").isin(list(ids))
    documents: dict[Key, DocumentRow] = {}
    for batch in RowGroups([source], DOCUMENTS).to_batches(filter=wanted):
        for row in batch.to_pylist():
            document = DocumentRow(**row)
            key = document.task, document.doc_id
            recorded = hashes.get(document.task, {}).get(document.doc_id)
            if row["prompt"] is None or key in documents or recorded not in ("", document.prompt_hash):
                raise UserError(f"{source} is damaged (document {key[1]} of {key[0]} is not the run's); {remedy}")
            documents[key] = document
    return documents


def _table(rows: Collection[DocumentRow]) -> pa.Table:
    return pa.Table.from_pylist([vars(row) for row in rows], schema=DOCUMENTS)
