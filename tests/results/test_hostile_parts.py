"""A run folder from anywhere that is gone on with: links, bombs and damaged footers, at the door of `--resume`."""

import os
import random

import fuzz
import fuzz_mutations
import fuzz_run
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recorded import expected_texts, texts, write
from screens import call

from specbench.base import parquet
from specbench.base.folder import FolderFile, LinkRefused
from specbench.config import UserError
from specbench.results import records
from specbench.results.recorder import Recorder
from specbench.results.stored import StoredRun

FOOTERS = 50
SAMPLES, ROUNDS = "000001.samples.parquet", "000001.rounds.parquet"


@pytest.fixture
def run(tmp_path):
    """An unfinished run of two documents."""
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder)
    for index in range(2):
        write(recorder, index)
    return folder


@pytest.fixture
def victim(tmp_path):
    """A folder elsewhere with what a resumed run would remove, write or move in its own."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("000000.states.json", "x.0123abcd.new", "000005.samples.parquet", "manifest.json"):
        (folder / name).write_text("precious")
    return folder


def held(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Links


@pytest.mark.parametrize(
    "name",
    [
        *("parts", "damaged", "samples.parquet", "rounds.parquet", "scores.parquet", "apart.json", "anything"),
        *("manifest.json", ".lock", "parts/000000.states.json", f"parts/{SAMPLES}", f"parts/{ROUNDS}"),
        *("parts/000001.states.json", "parts/x.0123abcd.new", "damaged/0-000001.samples.parquet", "damaged/new"),
    ],
)
def test_a_link_is_refused_and_nothing_elsewhere_changes(run, victim, name):
    path, before = run / name, held(victim)
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rename(run.parent / "moved")
    path.unlink(missing_ok=True)
    path.symlink_to(victim if "." not in path.name else victim / "manifest.json")
    own = {path.name for path in run.iterdir()}
    with pytest.raises(LinkRefused, match=f"{name} is a link"):
        Recorder(run)
    assert held(victim) == before and {path.name for path in run.iterdir()} == own and path.is_symlink()


@pytest.mark.parametrize("name", ["parts", "damaged", "manifest.json", ".lock", "summary.parquet"])
def test_the_command_says_so_in_one_line(tmp_path, victim, name):
    """Before any model is loaded."""
    fuzz_run.make_parts(tmp_path)
    path, before = tmp_path / "run" / name, held(victim)
    if path.exists():
        path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved" if name == "manifest.json" else victim)
    outcome = call("run", "--resume", str(tmp_path / "run"))
    lines = [line for line in outcome.stderr.splitlines() if not line.startswith("warning: ")]
    assert outcome.exit_code == 2 and len(lines) == 1 and f"{name} is a link" in lines[0], outcome.stderr
    assert held(victim) == before


def test_readers_follow_no_link(tmp_path, victim):
    fuzz_run.make_parts(tmp_path)
    for name in ("parts", "manifest.json"):
        path = tmp_path / "run" / name
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        with pytest.raises(UserError, match=f"{name} is a link"):
            StoredRun(tmp_path / "run").samples()
        path.unlink()
        (tmp_path / "moved").rename(path)
    assert len(StoredRun(tmp_path / "run").samples())


def test_parts_that_become_a_link_meanwhile(run, victim):
    """The run goes on in the folder that it has opened."""
    recorder, before = Recorder(run), held(victim)
    (run / "parts").rename(run / "kept")
    (run / "parts").symlink_to(victim)
    write(recorder, 2)
    assert (run / "kept" / "000002.samples.parquet").exists()
    with pytest.raises(UserError, match="parts is a link"):
        recorder.finish()
    assert held(victim) == before


# Bombs


def lists(path):
    """A list of ten million zeros in each of eight columns, in a row."""
    names = (
        "draft_tokens",
        "target_tokens",
        "decisions",
        "ratios",
        "predictions",
        "confidences",
        "overlaps",
        "parents",
    )
    values = pa.py_buffer(bytes(40_000_000))
    zeros = pa.Array.from_buffers(pa.int32(), 10_000_000, [None, values])
    column = pa.ListArray.from_arrays(pa.array([0, 10_000_000], pa.int32()), zeros)
    pq.write_table(pa.table(dict.fromkeys(names, column)), path, compression="zstd")


def texts_of(path):
    """A text of 100 kB, once in the file and 60,000 times in its rows."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 60_000, pa.int32()), ["x" * 100_000])
    pq.write_table(pa.table({"task": column}), path, store_schema=False, compression="zstd")


def page(path):
    """A page of ten million values, of which the footer says there are two million."""
    pq.write_table(
        pa.table({"seconds": pa.array([0.0] * 10_000_000)}), path, row_group_size=10_000_000, max_rows_per_page=2**30
    )
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    footer = data[-length:].replace(varint(10_000_000), varint(2_500_000))
    assert footer != data[-length:]
    path.write_bytes(data[:-length] + footer)


def varint(count: int) -> bytes:
    """As thrift writes a number, in four bytes."""
    zigzag = 2 * count
    return bytes([zigzag & 127 | 128, zigzag >> 7 & 127 | 128, zigzag >> 14 & 127 | 128, zigzag >> 21])


def deep(path):
    """A column in 200 columns."""
    column = pa.array([1])
    for _ in range(200):
        column = pa.StructArray.from_arrays([column], ["x"])
    pq.write_table(pa.table({"task": column}), path)


def wide(path):
    """Values of 100 kB each, all of them equal."""
    column = pa.array([bytes(100_000)], pa.binary(100_000)).take(pa.array([0] * 2_000))
    pq.write_table(pa.table({"task": column}), path, compression="zstd")


def delta(path):
    """An encoding whose sizes nobody knows beforehand."""
    table = pa.table({"seconds": pa.array([7] * 100)})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"seconds": "DELTA_BINARY_PACKED"})


@pytest.fixture(scope="module", params=[lists, texts_of, page, deep, wide, delta], ids=lambda make: make.__name__)
def bomb(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("bomb") / "x.parquet"
    request.param(path)
    assert path.stat().st_size < 10**6
    return path


@pytest.mark.parametrize("name", [SAMPLES, ROUNDS])
def test_bombs_are_set_aside_in_one_line(run, bomb, name):
    """And take no more memory than `fuzz.judged` lets a reader take: 500 MB."""
    said = []
    (run / "parts" / name).write_bytes(bomb.read_bytes())
    outcome, why = fuzz.judged(lambda: Recorder(run, said.append), run)
    assert outcome == "valid", why
    assert len(said) == 1 and name in said[0] and "damaged" in said[0]
    assert texts(run) == expected_texts(1)


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
@pytest.mark.parametrize("name", [SAMPLES, ROUNDS, "000001.states.json"])
def test_what_is_no_file_is_set_aside_and_the_document_decoded_again(run, name, make):
    (run / "parts" / name).unlink()
    make(run / "parts" / name)
    said = []
    recorder = Recorder(run, said.append)
    assert name in said[0] and "not a file" in said[0]
    for index in range(recorder.done(), 2):
        write(recorder, index)
    recorder.finish()
    assert texts(run) == expected_texts(2)
    assert [path.name for path in (run / "damaged").iterdir() if not path.is_file()] == [f"0-{name}"]


def test_no_way_to_read_is_without_bounds(bomb):
    source = FolderFile(records.Folder.at(bomb.parent), bomb.name)
    for schema in (records.ROUNDS, records.SAMPLES):
        for read in (
            lambda: parquet.read(source),
            lambda: parquet.check(source, least=parquet.LARGE),
            lambda schema=schema: list(parquet.RowGroups([source], schema).to_batches()),
            lambda: records.read_frame(bomb),
        ):
            outcome, said = fuzz.judged(read, bomb.parent)
            assert outcome == "refused", said


# Footers


def test_damaged_footers_give_one_line(run):
    """Bytes of a footer changed at random: the document counts, or is set aside and named."""
    parts = run / "parts"
    whole = {path.name: path.read_bytes() for path in parts.iterdir()}
    aside = 0
    for seed in range(FOOTERS):
        rng, said = random.Random(seed), []
        name = rng.choice((SAMPLES, ROUNDS))
        (parts / name).write_bytes(fuzz_mutations.of_footer(rng, whole[name]))
        done = Recorder(run, said.append).done()
        assert (done, len(said)) in ((2, 0), (1, 1)) and all(name in line for line in said), (seed, said)
        aside += done == 1
        for path, data in whole.items():
            (parts / path).write_bytes(data)
    assert aside > FOOTERS / 2


def test_footers_that_mean_two_things(tmp_path):
    """A field that is there twice, of another type or beyond 32 bits: pyarrow might take the other one."""
    from specbench.base.parquet_footer import _Reader

    wanted = {5: (5, None)}
    assert _Reader(b"\x55\x04\x00").struct(wanted) == {5: 2}
    for data in (
        b"\x55\x04\x05\x0a\x06\x00",  # field 5 again
        b"\x56\x04\x00",  # of 64 bits
        b"\x55\x80\x80\x80\x80\x10\x00",  # 2³²
        b"\x05\x8a\x80\x08\x04\x00",  # field 65541, which 16 bits cut off to 5
    ):
        with pytest.raises(ValueError, match="its footer has"):
            _Reader(data).struct(wanted)
