"""Run folders that must stay whole whenever the program is killed."""

import pyarrow.parquet as pq
import pytest
from cases import mostly_long
from recorded import expected_texts, texts, write

from specbench.base import files
from specbench.base.folder import Folder
from specbench.results import recorder as recorder_module
from specbench.results import records
from specbench.results.recorder import BLOCK, Recorder
from specbench.results.records import read_rows


@pytest.fixture
def recorder(tmp_path):
    (tmp_path / "run").mkdir()
    return Recorder(tmp_path / "run")


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
    assert [n for n in names(recorder.folder / "parts") if "states" in n] == [
        "000001.states.json",
        "000002.states.json",
    ]


def test_samples_tell_who_decoded_them_and_how_often_the_folder_was_begun(tmp_path):
    """An attempt that recorded nothing is not counted."""
    (tmp_path / "run").mkdir()
    for index, attempt in enumerate((1, 2, 3)):
        Recorder(tmp_path / "run", origin={"host": "node", "worker": 4})
        begun = Recorder(tmp_path / "run", origin={"host": "node", "worker": 4})
        write(begun, index)
        rows = read_rows(tmp_path / "run", "samples", ["host", "worker", "attempt"]).to_pylist()
        assert rows[-1] == {"host": "node", "worker": 4, "attempt": attempt}


def test_values_survive(recorder):
    write(recorder, 0)
    (first, *_) = read_rows(recorder.folder, "rounds").to_pylist()
    assert first["decisions"] == [1, 0, 3, 3] and first["ratios"] is None and first["drafted"] == 4


def test_an_empty_list_is_not_an_unknown_one(tmp_path):
    """A round that was judged and drafted nothing has an empty list; one that was not judged has none."""
    rows = [{"round": 0, "draft_tokens": None}, {"round": 1, "draft_tokens": []}]
    records.write_table(tmp_path / "rounds.parquet", rows, records.ROUNDS)
    assert read_rows(tmp_path, "rounds", ["draft_tokens"])["draft_tokens"].to_pylist() == [None, []]


def test_schema_version_is_in_every_file(recorder):
    write(recorder, 0)
    paths = list((recorder.folder / "parts").glob("*.parquet"))
    recorder_version = str(records.VERSION).encode()
    assert len(paths) == 2
    for path in paths:
        assert pq.read_schema(path).metadata[b"specbench_schema"] == recorder_version
    recorder.finish()
    for name in ("samples", "rounds"):
        assert pq.read_schema(recorder.folder / f"{name}.parquet").metadata[b"specbench_schema"] == recorder_version


def test_torn_files_are_ignored(recorder):
    write(recorder, 0)
    whole = (recorder.folder / "parts" / "000000.samples.parquet").read_bytes()
    for name in ("000001.samples.parquet.new", "000001.rounds.parquet.new", "000001.states.json.new"):
        (recorder.folder / "parts" / name).write_bytes(whole[: len(whole) // 2])
    again = Recorder(recorder.folder)
    assert again.done() == 1
    assert texts(recorder.folder) == ["text 0"] * 2
    write(again, 1)
    again.finish()
    assert texts(recorder.folder) == ["text 0"] * 2 + ["text 1"] * 2


def test_rounds_without_samples_are_not_done_and_are_overwritten(recorder):
    write(recorder, 0)
    write(recorder, 1, "lost")
    (recorder.folder / "parts" / "000001.samples.parquet").unlink()
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

    def killed_at_samples(target, rows, schema, put=records.write_table):
        if not target.name.endswith(f"{files[-1]}") and (len(files) == 1 or target.name.endswith("samples.parquet")):
            raise KeyboardInterrupt
        put(target, rows, schema)

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

    def stream(target, rows, original=records.stream):
        if target.name == "rounds.parquet" and step == "samples":
            raise KeyboardInterrupt
        original(target, rows)

    def remove(folder, name):
        if step == "removal":
            (folder.path / name / "000000.samples.parquet").unlink()
            (folder.path / name / "000002.states.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "stream", stream)
    monkeypatch.setattr(Folder, "remove_folder", remove)
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
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert path.read_text() == '{\n "a": 1\n}' and names(tmp_path) == ["manifest.json"]


# Blocks


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(recorder_module, "BLOCK", 4)


def test_parts_are_joined_and_read_as_before(recorder, small_blocks):
    assert BLOCK > 100
    for index in range(11):
        write(recorder, index)
        assert texts(recorder.folder) == expected_texts(index + 1)
        assert read_rows(recorder.folder, "rounds").num_rows == 3 * (index + 1)
    blocks = [n for n in names(recorder.folder / "parts") if "-" in n]
    assert blocks == [f"{b}.{t}.parquet" for b in ("000000-000003", "000004-000007") for t in ("rounds", "samples")]
    assert [n for n in names(recorder.folder / "parts") if "states" in n] == [
        f"{i:06d}.states.json" for i in (3, 7, 9, 10)
    ]
    again = Recorder(recorder.folder)
    assert again.done() == 11 and again.states(10)["sps"] == [[10, 1, 2]]
    write(again, 11)  # the fourth single one since the last block
    assert "000008-000011.samples.parquet" in names(recorder.folder / "parts")
    again.finish()
    assert names(recorder.folder) == ["rounds.parquet", "samples.parquet"]
    assert texts(recorder.folder) == expected_texts(12)


@mostly_long("left", range(7), (0, 3, 6))
def test_killed_while_parts_are_joined(recorder, small_blocks, monkeypatch, left):
    """After so many steps of the joining: no row is there twice or not at all, and the next opening cleans up."""
    steps = iter(range(100))

    def counted(original):
        def step(*given, **named):
            if next(steps) == left:
                raise KeyboardInterrupt
            return original(*given, **named)

        return step

    for index in range(3):
        write(recorder, index)
    monkeypatch.setattr(recorder_module.records, "stream", counted(records.stream))
    monkeypatch.setattr(Folder, "unlink", counted(Folder.unlink))
    with pytest.raises(KeyboardInterrupt):
        write(recorder, 3)
    monkeypatch.undo()
    monkeypatch.setattr(recorder_module, "BLOCK", 4)
    done = len(texts(recorder.folder)) // 2
    again = Recorder(recorder.folder)
    assert again.done() == done >= 3
    for index in range(done, 9):
        write(again, index)
        assert texts(recorder.folder) == expected_texts(index + 1)
        assert read_rows(recorder.folder, "rounds").num_rows == 3 * (index + 1)


# Torn files


def tear(path, how):
    data = path.read_bytes()
    middle = len(data) // 3
    torn = {
        "empty": b"",
        "half": data[: len(data) // 2],
        "zeros": bytes(len(data)),
        "page": data[: middle - 8] + bytes(16) + data[middle + 8 :],
    }
    path.write_bytes(torn[how])


@pytest.mark.parametrize("how", ["empty", "half", "zeros", "page"])
@pytest.mark.parametrize("table", ["samples", "rounds"])
def test_a_torn_part_is_set_aside_and_named(recorder, how, table):
    for index in range(4):
        write(recorder, index)
    tear(recorder.folder / "parts" / f"000003.{table}.parquet", how)
    said = []
    again = Recorder(recorder.folder, said.append)
    assert again.done() == 3 and again.states(2)["sps"] == [[2, 1, 2]]
    assert len(said) == 1 and f"000003.{table}.parquet" in said[0] and "damaged" in said[0]
    assert f"0-000003.{table}.parquet" in names(recorder.folder / "damaged")
    assert texts(recorder.folder) == expected_texts(3)
    write(again, 3)
    assert texts(recorder.folder) == expected_texts(4)
    tear(recorder.folder / "parts" / f"000003.{table}.parquet", how)
    Recorder(recorder.folder)  # a second one of the same name does not replace the first
    assert {f"{n}-000003.{table}.parquet" for n in (0, 1)} <= set(names(recorder.folder / "damaged"))


def test_values_that_a_disk_changed_are_noticed(recorder):
    """Bytes whose change no reader of tables complains of, though other values come out."""
    write(recorder, 0)
    path = recorder.folder / "parts" / "000000.samples.parquet"
    whole, rows = path.read_bytes(), read_rows(recorder.folder, "samples").to_pylist()
    silent = 0
    for at in range(4, len(whole) // 2, 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            changed = pq.read_table(path).to_pylist() != rows
        except (OSError, ValueError):
            continue
        if changed:
            silent += 1
            assert Recorder(recorder.folder).done() == 0
        if silent == 3:
            return
    raise AssertionError("no byte changes a value: nothing was tried")


def test_documents_behind_a_lost_one_do_not_count(recorder):
    for index in range(4):
        write(recorder, index)
    (recorder.folder / "parts" / "000002.samples.parquet").unlink()
    assert texts(recorder.folder) == expected_texts(2)


@mostly_long("torn, start", [(9, 8), (6, 4), (1, 0)], ((6, 4),))
def test_without_what_was_learned_the_run_goes_back_to_where_it_is_known(recorder, monkeypatch, torn, start):
    """Rot in an early file: states are kept of the last documents and of the ends of blocks only."""
    monkeypatch.setattr(recorder_module, "BLOCK", 4)
    for index in range(12):
        write(recorder, index)
    named = {9: "000008-000011", 6: "000004-000007", 1: "000000-000003"}[torn]
    tear(recorder.folder / "parts" / f"{named}.rounds.parquet", "half")
    again = Recorder(recorder.folder)
    assert again.done() == start
    assert start == 0 or again.states(start - 1)["sps"] == [[start - 1, 1, 2]]
    for index in range(start, 12):
        write(again, index)
    again.finish()
    assert texts(recorder.folder) == expected_texts(12)


def test_a_shard_goes_on_from_the_beginning_of_a_task_counted_over_the_whole_run(tmp_path):
    """Its documents 10 to 14, of which 12 begins a task; rot in 13, and what was learned by 12 is not kept."""
    (tmp_path / "run").mkdir()
    recorder = Recorder(tmp_path / "run", first=10)
    for index in range(10, 15):
        write(recorder, index)
    tear(recorder.folder / "parts" / "000003.rounds.parquet", "half")
    for begins, start in (({10, 12}, 12), ({0, 2}, 10)):
        assert Recorder(recorder.folder, begins=begins.__contains__, first=10).done() == start


@pytest.mark.parametrize("how", ["gone", "empty", "half"])
def test_lost_states_cost_a_document_not_the_run(recorder, how):
    for index in range(4):
        write(recorder, index)
    path = recorder.folder / "parts" / "000003.states.json"
    path.unlink() if how == "gone" else tear(path, how)
    said = []
    again = Recorder(recorder.folder, said.append)
    assert again.done() == 3 and again.states(2)["sps"] == [[2, 1, 2]] and len(said) == 1
    assert texts(recorder.folder) == expected_texts(3), "what is decoded again is not told twice"
    write(again, 3)
    assert texts(recorder.folder) == expected_texts(4)


@pytest.mark.parametrize("table", ["samples", "rounds"])
def test_a_torn_table_of_a_finished_run_is_decoded_again(recorder, table):
    write(recorder, 0)
    recorder.finish()
    tear(recorder.folder / f"{table}.parquet", "half")
    said = []
    again = Recorder(recorder.folder, said.append)
    assert not again.merged and again.done() == 0 and f"{table}.parquet" in said[0]
    write(again, 0)
    again.finish()
    assert texts(recorder.folder) == expected_texts(1)
