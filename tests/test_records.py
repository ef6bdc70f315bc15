"""Run folders that must stay whole whenever the program is killed."""

import pyarrow.parquet as pq
import pytest

from specbench import records
from specbench.records import Recorder, read_rows


def key(index, method="sps"):
    return {"repeat": 0, "task": "one", "doc_id": index, "method": method, "warmup": False}


def write(recorder, index, text="text"):
    samples = [key(index, m) | {"text": f"{text} {index}", "tokens": [1, 2], "finish": "eos"} for m in ("sps", "plain")]
    rounds = [key(index) | {"round": i, "drafted": 4, "decisions": [1, 0, 3, 3]} for i in range(3)]
    recorder.write(index, samples, rounds, {"sps": [[index, 1, 2]], "plain": None})


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path / "run")


def texts(folder):
    return [row["text"] for row in read_rows(folder, "samples").to_pylist()]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_are_readable_at_any_moment(recorder):
    assert recorder.done() == 0
    assert read_rows(recorder.folder, "samples").num_rows == 0
    assert read_rows(recorder.folder, "rounds", ["round", "drafted"]).column_names == ["round", "drafted"]
    for index in range(3):
        write(recorder, index)
        assert recorder.done() == index + 1
        assert texts(recorder.folder) == [f"text {i}" for i in range(index + 1) for _ in "ab"]
        assert read_rows(recorder.folder, "rounds").num_rows == 3 * (index + 1)
        assert recorder.states(index) == {"sps": [[index, 1, 2]], "plain": None}
    assert [n for n in names(recorder.parts) if "states" in n] == ["000002.states.json"]


def test_values_survive(recorder):
    write(recorder, 0)
    (first, *_) = read_rows(recorder.folder, "rounds").to_pylist()
    assert first["decisions"] == [1, 0, 3, 3] and first["ratios"] is None and first["drafted"] == 4


def test_schema_version_is_in_every_file(recorder):
    write(recorder, 0)
    paths = list(recorder.parts.glob("*.parquet"))
    recorder_version = str(records.VERSION).encode()
    assert len(paths) == 2
    for path in paths:
        assert pq.read_schema(path).metadata[b"specbench_schema"] == recorder_version
    recorder.finish()
    for name in ("samples", "rounds"):
        assert pq.read_schema(recorder.folder / f"{name}.parquet").metadata[b"specbench_schema"] == recorder_version


def test_torn_files_are_ignored(recorder):
    write(recorder, 0)
    whole = (recorder.parts / "000000.samples.parquet").read_bytes()
    for name in ("000001.samples.parquet.new", "000001.rounds.parquet.new", "000001.states.json.new"):
        (recorder.parts / name).write_bytes(whole[: len(whole) // 2])
    again = Recorder(recorder.folder)
    assert again.done() == 1
    assert texts(recorder.folder) == ["text 0"] * 2
    write(again, 1)
    again.finish()
    assert texts(recorder.folder) == ["text 0"] * 2 + ["text 1"] * 2


def test_rounds_without_samples_are_not_done_and_are_overwritten(recorder):
    write(recorder, 0)
    write(recorder, 1, "lost")
    (recorder.parts / "000001.samples.parquet").unlink()
    again = Recorder(recorder.folder)
    assert again.done() == 1
    assert read_rows(recorder.folder, "rounds").num_rows == 3
    write(again, 1)
    assert read_rows(recorder.folder, "rounds").num_rows == 6
    assert texts(recorder.folder) == ["text 0"] * 2 + ["text 1"] * 2


@pytest.mark.parametrize("files", [("states.json",), ("states.json", "rounds.parquet")])
def test_the_former_state_stays_until_the_document_is_done(recorder, monkeypatch, files):
    """Killed inside `write` of document 1: the state after document 0 must still be there."""
    write(recorder, 0)

    def killed_at_samples(path, rows, schema, put=records.write_table):
        if not path.name.endswith(f"{files[-1]}") and (len(files) == 1 or path.name.endswith("samples.parquet")):
            raise KeyboardInterrupt
        put(path, rows, schema)

    monkeypatch.setattr(records, "write_table", killed_at_samples)
    with pytest.raises(KeyboardInterrupt):
        write(recorder, 1)
    monkeypatch.undo()
    again = Recorder(recorder.folder)
    assert again.done() == 1
    assert again.states(0)["sps"] == [[0, 1, 2]]


def test_finish_merges_all_and_removes_parts(recorder):
    for index in range(12):
        write(recorder, index)
    recorder.finish()
    assert names(recorder.folder) == ["rounds.parquet", "samples.parquet"]
    assert texts(recorder.folder) == [f"text {i}" for i in range(12) for _ in "ab"]
    assert read_rows(recorder.folder, "rounds").num_rows == 36
    assert read_rows(recorder.folder, "rounds").schema.names == records.ROUNDS.names


def test_finish_of_nothing(recorder):
    recorder.finish()
    assert read_rows(recorder.folder, "samples").num_rows == 0


@pytest.mark.parametrize("step", ["samples", "rounds", "removal"])
def test_killed_inside_finish(recorder, monkeypatch, step):
    """Before rounds.parquet, before the parts are removed, or in between their removal: the next finish has all."""
    for index in range(3):
        write(recorder, index)

    def put(path, table, original=records._put):
        if path.name == "rounds.parquet" and step == "samples":
            raise KeyboardInterrupt
        original(path, table)

    def remove(folder, ignore_errors=False):
        if step == "removal":
            (folder / "000000.samples.parquet").unlink()
            (folder / "000002.states.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "_put", put)
    monkeypatch.setattr(records.shutil, "rmtree", remove)
    with pytest.raises(KeyboardInterrupt):
        recorder.finish()
    monkeypatch.undo()
    again = Recorder(recorder.folder)
    assert texts(recorder.folder) == [f"text {i}" for i in range(3) for _ in "ab"]
    assert read_rows(recorder.folder, "rounds").num_rows == 9
    again.finish()
    assert names(recorder.folder) == ["rounds.parquet", "samples.parquet"]
    assert read_rows(recorder.folder, "rounds").num_rows == 9


def test_json_is_put_in_place_whole(tmp_path):
    path = tmp_path / "manifest.json"
    records.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        records.write_json(path, {"a": object()})
    assert path.read_text() == '{\n "a": 1\n}'
