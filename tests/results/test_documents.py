"""What the texts of a run were about: kept once, whole, and read back only if it is the run's own."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import keep, manifest
from refusals import one_line_error

from specbench.base.folder import LinkRefused
from specbench.results import documents
from specbench.results.documents import DocumentRow
from specbench.results.stored import StoredRun

ABOUT = [
    DocumentRow("sums", 0, "What is 1 + 1?\n", "2", "easy"),
    DocumentRow("sums", 1, "Was ist ½ + ½?", None, None),
    DocumentRow("words", 0, "Say \x1b[31mred\u202e", "red\nrouge", None),
]


@pytest.fixture
def run(tmp_path):
    """A run of these documents, which keeps them."""
    requests = [[row.task, row.doc_id, row.prompt_hash, ""] for row in ABOUT]
    manifest(tmp_path, ("sums", "words"), ("vanilla",), requests=requests)
    keep(tmp_path, ABOUT)
    return StoredRun(tmp_path)


def rewrite(run, **changes):
    """The file with other values in its first row."""
    table = pq.read_table(run.folder / documents.FILE)
    rows = table.to_pylist()
    rows[0] |= changes
    pq.write_table(pa.Table.from_pylist(rows, table.schema), run.folder / documents.FILE)


def test_what_was_kept_is_read_back(run):
    assert list(run.kept({"sums": [0, 1], "words": [0]}).values()) == ABOUT
    assert run.kept({"sums": [1], "other": [0]}) == {("sums", 1): ABOUT[1]}
    assert run.kept({}) == {}


def test_a_run_without_the_file_tells_nothing(run):
    (run.folder / documents.FILE).unlink()
    assert run.kept({"sums": [0]}) == {}


def test_many_documents_are_written_and_read_a_few_at_a_time(run, monkeypatch):
    (run.folder / documents.FILE).unlink()
    monkeypatch.setattr(documents, "GROUP", 20)
    keep(run.folder, iter(ABOUT))
    assert pq.ParquetFile(run.folder / documents.FILE).num_row_groups == 2
    assert list(run.kept({"sums": [0, 1], "words": [0]}).values()) == ABOUT


def test_a_whole_file_stays_and_a_torn_one_is_written_again(run):
    path = run.folder / documents.FILE
    before = path.stat().st_ino
    keep(run.folder, ABOUT)
    assert path.stat().st_ino == before
    path.write_bytes(path.read_bytes()[:-40])
    with one_line_error(documents.FILE, "damaged", "remove it"):
        run.kept({"sums": [0]})
    keep(run.folder, ABOUT)
    assert run.kept({"sums": [0]}) == {("sums", 0): ABOUT[0]}


@pytest.mark.parametrize("changes", [{"prompt": "another"}, {"prompt": None}, {"doc_id": 1}, {"doc_id": 5}])
def test_documents_of_another_run_are_refused(run, changes):
    rewrite(run, **changes)
    with one_line_error("is not the run's", "remove it"):
        run.kept({"sums": [0, 1, 5]})


def test_other_files_and_links_are_refused(run):
    path = run.folder / documents.FILE
    pq.write_table(pa.table({"task": ["sums"], "doc_id": ["zero"], "prompt": [""]}), path)
    with one_line_error("another kind of file"):
        run.kept({"sums": [0]})
    path.unlink()
    path.symlink_to("manifest.json")
    for use in (lambda: run.kept({"sums": [0]}), lambda: keep(run.folder, ABOUT)):
        with pytest.raises(LinkRefused):
            use()
    assert path.is_symlink()
