"""Files from anywhere give a value or one line: some inputs of the fuzzer, and what it found, case by case.

`python tests/fuzz.py --inputs 20000` is the long profile.
"""

import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import fuzz
import fuzz_targets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fuzz import assert_refused
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import one_line_error

from specbench import config
from specbench.base import parquet, parquet_footer, untrusted
from specbench.base.pickles import read_pickle
from specbench.config import UserError
from specbench.engine.models.eagle_head import config_of, head_config, stored_settings
from specbench.methods.lookup.rest_datastore import END, Datastore, digest
from specbench.results.stored import StoredRun
from specbench_extras.other_tools import vllm

INPUTS = 500
BY_NAME = {target.name: target for target in TARGETS}
HALVES = TARGETS[::2], TARGETS[1::2]


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "x"
    folder.mkdir()
    return folder


@pytest.mark.long
@pytest.mark.parametrize("half", range(2))
def test_hostile_files_give_a_value_or_one_line(tmp_path, half):
    share = sum(target.share for target in HALVES[half]) / sum(target.share for target in TARGETS)
    outcome = fuzz.run(HALVES[half], round(INPUTS * share), 0, tmp_path)
    assert [text for one in outcome.values() for text in one.failures] == []
    assert sum(one.valid for one in outcome.values()) > 20 and sum(one.refused for one in outcome.values()) > 100


def test_the_fuzzer_sees_what_must_not_be(tmp_path):
    """Exceptions, hangs, memory, programs, and files that are written elsewhere."""
    tmp_path, elsewhere = tmp_path / "own", tmp_path / "elsewhere"
    tmp_path.mkdir()
    held = []
    facts = {
        "ValueError": lambda: int("x"),
        "KeyError": lambda: {}["x"],
        "SystemExit": lambda: exit(1),
        "MiB more": lambda: held.append(np.ones(fuzz.MEMORY // 8 + 2**22)) or held.clear(),
        "os.system": lambda: os.system("true"),
        "open": lambda: elsewhere.write_text("x"),
    }
    for words, read in facts.items():
        outcome, said = fuzz.judged(read, tmp_path)
        assert outcome == "failed" and words in said, words
    assert fuzz.judged(lambda: (tmp_path / "x").write_text("x"), tmp_path) == ("valid", "")


def _elsewhere(own, name):
    """Ways to change a file or a folder `name` that is not one's own, by the word that names each."""
    made = own / "made"
    return {
        "open": lambda: open(os.fsencode(name), "w").close(),
        "os.rename": lambda: made.rename(name),
        "os.remove": lambda: (name / "file").unlink(),
        "os.mkdir": lambda: name.with_name("new").mkdir(),
        "os.rmdir": lambda: name.with_name("empty").rmdir(),
        "os.symlink": lambda: name.with_name("new").symlink_to(made),
        "os.link": lambda: os.link(made, name.with_name("new")),
        "os.truncate": lambda: os.truncate(name / "file", 1),
        "os.chmod": lambda: (name / "file").chmod(0o600),
        "changes": lambda: pq.write_table(pa.table({"a": [1]}), str(name / "table.parquet")),
        "rmtree": lambda: shutil.rmtree(name),
    }


@pytest.mark.parametrize("next_to", ["own2", "another"])
@pytest.mark.parametrize("way", _elsewhere(Path("own"), Path("own2")))
def test_the_fuzzer_sees_what_is_changed_elsewhere(way, next_to, tmp_path):
    """By every call, in a folder whose name begins like one's own too; the same in one's own folder is allowed."""
    own, other = tmp_path / "own", tmp_path / next_to
    for folder in (own, other, own / next_to, tmp_path / "empty", own / "empty"):
        folder.mkdir()
    for file in (own / "made", other / "file", own / next_to / "file"):
        file.write_text("text")
    inside, outside = _elsewhere(own, own / next_to)[way], _elsewhere(own, other)[way]
    if way not in ("open", "os.rename"):  # a folder has the name
        assert fuzz.judged(inside, own) == ("valid", "")
        for file in (own / "new", own / "empty"):
            file.unlink() if file.is_file() or file.is_symlink() else None
    (own / "made").write_text("text")
    fuzz.judged(outside, own)
    assert any(way in one or way == "rmtree" for one in fuzz.watch().seen) and fuzz.watch().seen


def test_the_fuzzer_sees_a_hang(tmp_path, monkeypatch):
    """One that works, and one that waits for a pipe that nobody writes to."""
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "WAITED", 1)
    os.mkfifo(tmp_path / "pipe")

    def work():
        while True:
            pass

    for read in (work, (tmp_path / "pipe").read_bytes):
        assert fuzz.judged(read, tmp_path) == ("failed", "took over 0.2 s, or waited 1")


# What is no file


@pytest.mark.parametrize("name", [target.name for target in TARGETS if not target.name.startswith("run")])
def test_what_is_no_file(folder, name):
    """A folder, a pipe, a device that never ends, a link to itself, and nothing, in the place of each file."""
    target = BY_NAME[name]
    for file in target.make(folder):
        path = folder / file
        data = path.read_bytes()
        for put in (Path.mkdir, os.mkfifo, lambda one: one.symlink_to("/dev/zero"), lambda one: None):
            path.unlink()
            put(path)
            outcome, said = fuzz.judged(lambda: target.read(folder, random.Random(1)), folder)
            assert outcome != "failed", said
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            path.write_bytes(data)


# YAML and JSON

DEEP = "[" * 5000
LAUGHS = "\n".join(["a0: &a0 [x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])


def test_values_that_aliases_name_are_counted_each_time():
    """400 times 200 values, few enough to be read where nobody counts: the longer text below would then never end."""
    few, many = (f"a: &a [{', '.join(['x'] * 200)}]\nb: [{', '.join(['*a'] * count)}]" for count in (200, 400))
    assert len(untrusted.parse_yaml(few, "here")["b"]) == 200
    with pytest.raises(UserError, match="more than 50000 values"):
        untrusted.parse_yaml(many, "here")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LAUGHS, "more than 50000 values"),
        (f"a: &a {'x' * 50_000}\nb: [{', '.join(['*a'] * 15_000)}]", "more than 50000 values"),
        ("a: &a [*a]", "holds itself"),
        (DEEP, "nested too deeply"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 40 deep"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice"),
        ("a: " + "9" * 5000, "4300 digits"),
        ("a: !!int x", "invalid literal"),
        ("a: 2024-99-99", "month"),
        ("a: 2024-01-01", "a date"),
        ("a: !!binary aGVs", "bytes"),
        ("a: !!set {x, y}", "a set"),
        ('a: "\\uD800"', "unpaired surrogates"),
        ("a: !!bool x", "not YAML"),
        ("a: 0b_", "not YAML"),
        ("a" * (untrusted.MOST_YAML + 1), "such a file at most"),
        ("a: \x00", "not YAML"),
    ],
)
def test_yaml(tmp_path, text, words):
    path = tmp_path / "own.yaml"
    path.write_bytes(text.encode())
    with pytest.raises(UserError, match=words):
        untrusted.read_mapping(path)
    assert_refused(lambda: config.load_suite(str(path)), tmp_path, words)


@pytest.mark.parametrize("text", ["1:30", "a: [1:30:00]", "a: 010", "a: -07", "1:30.5"])
def test_numbers_that_are_not_what_they_look_like(text):
    """In YAML 1.1 they are 90, 5400, 8, -7 and 90.5."""
    with one_line_error("of base", "write it plainly"):
        untrusted.parse_yaml(text, "here")
    assert untrusted.parse_yaml("[0, 10, 0x10, 1.5, 0.5, 1e-3, '1:30']", "here")[:5] == [0, 10, 16, 1.5, 0.5]


def test_yaml_that_is_meant_well():
    merged = untrusted.parse_yaml("a: &x {b: 1}\nc: {<<: *x, d: [1.5, null, true]}", "here")
    assert merged == {"a": {"b": 1}, "c": {"b": 1, "d": [1.5, None, True]}}
    assert untrusted.parse_yaml("", "here") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 5000, "nested too deeply"),
        ("1" * 5000, "not JSON"),
        ('"\\ud800"', "unpaired surrogates"),
        ('{"a": 1', "not JSON"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is there twice"),
        ("", "not JSON"),
        (b"\xff", "UTF-8"),
        ("[" + "0," * 10**4 + "0]", "more than 10000 values"),
    ],
)
def test_json(tmp_path, text, words):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=words):
        untrusted.read_json(path, values=10**4)


def test_a_line_without_end(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "' + b"x" * 5000)
    with pytest.raises(UserError, match="line 1: more than 1000 bytes"):
        list(untrusted.read_lines(path, most=1000))


def test_messages_are_one_line_of_bounded_length():
    assert str(UserError("a\nb\x1b[2J\ud800\u2028")) == "a b\\x1b[2J\\ud800\\u2028"
    assert len(str(UserError("x" * 10**6))) < 3000


def test_a_suite_of_a_million_variants(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "description: x\ntasks: [{task: pocket_gsm8k}]\nmethods: [{method: csd, sweep: "
        f"{{gamma: {list(range(1, 1001))}, min_count: {list(range(1, 1001))}}}}}]"
    )
    with pytest.raises(UserError, match="1000000 variants"):
        config.suite_methods(config.load_suite(str(tmp_path / "s.yaml")))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def refused_or_valid(target: str, folder, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    outcome, said = fuzz.judged(lambda: BY_NAME[target].read(folder, random.Random(0)), folder)
    assert outcome != "failed", said


@SETTINGS
@given(value=VALUES)
def test_json_from_scratch(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("x")
    data = json.dumps(value).encode()
    for target, name in (("profile", "profile.json"), ("ceilings", "c.json"), ("grades", "judge.json")):
        refused_or_valid(target, folder, name, data)
    (folder / "run").mkdir()
    (folder / "run" / "manifest.json").write_bytes(data)
    with pytest.raises(UserError):
        _ = StoredRun(folder / "run").plan


@pytest.mark.long
@SETTINGS
@given(value=VALUES, text=st.text(max_size=60))
def test_yaml_from_scratch(tmp_path_factory, value, text):
    folder = tmp_path_factory.mktemp("x")
    for data in (json.dumps(value).encode(), text.encode(errors="surrogatepass")):
        for target in ("pair", "method", "suite", "recipe"):
            refused_or_valid(target, folder, "own.yaml", data)


# Parquet


@pytest.mark.parametrize("every", (pytest.param(1, marks=pytest.mark.long), 7))
def test_every_byte_of_a_footer(folder, every):
    """Some flips end the process where pyarrow's view of the footer is asked for a column."""
    path = folder / "x.parquet"
    table = pa.table({"draft_token": [1, 2, 3], "name": ["a", "b", "c"], "list": [[1], [], None]})
    pq.write_table(table, path, write_page_index=True)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    for at in range(len(data) - 8 - length, len(data), every):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        outcome, said = fuzz.judged(lambda: parquet.read(path), folder)
        assert outcome != "failed", said


def test_footers_are_read_as_pyarrow_reads_them(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"a": range(10), "b": ["x"] * 10, "c": [[1.5, 2.5]] * 10, "d": [{"e": True}] * 10})
    pq.write_table(table, path, row_group_size=4)
    with open(path, "rb") as file:
        result, theirs = parquet_footer.columns(file), pq.read_metadata(path)
    assert len(result) == theirs.num_row_groups == 3
    for group, row in enumerate(result):
        for at, mine in enumerate(row):
            other = theirs.row_group(group).column(at)
            assert (mine.path, mine.stored) == (other.path_in_schema, other.total_uncompressed_size)
            assert mine.values == max(other.num_values, theirs.row_group(group).num_rows)
    assert [one.width for one in result[0]] == [8, None, 8, 1]


def test_sizes_by_level_are_those_of_the_columns(tmp_path):
    """pyarrow ends the process where a column has counts by level, and other levels than its schema says."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": pa.array([[1, None], [3]], pa.list_(pa.int32())), "b": ["x", "y"]}), path)
    whole, optional, required = path.read_bytes(), b"\x02\x18\x07element", b"\x00\x18\x07element"
    assert whole.count(optional) == 1, "a value that may be missing, by thrift's compact protocol"
    path.write_bytes(whole.replace(optional, required))
    script = f"import pyarrow.parquet as pq; pq.read_metadata({str(path)!r}).row_group(0).column(0).statistics"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == -signal.SIGABRT
    with open(path, "rb") as file, pytest.raises(ValueError, match="sizes of another kind of column"):
        parquet_footer.columns(file)
    path.write_bytes(whole.replace(optional, b"\x08" + optional[1:]))
    with open(path, "rb") as file, pytest.raises(ValueError, match="no known kind"):
        parquet_footer.columns(file)
    path.write_bytes(whole)
    with open(path, "rb") as file:
        assert [one.path for one in parquet_footer.columns(file)[0]] == ["a.list.element", "b"]


def zeros(path):
    with pq.ParquetWriter(path, pa.schema([("count", pa.int64())])) as writer:
        for _ in range(40):
            writer.write_table(pa.table({"count": pa.array(np.zeros(10**6, np.int64))}))


def texts(path):
    """A text of 100 kB, once in the file and a million times in its rows."""
    indices = pa.array(np.zeros(10**6, np.int32))
    column = pa.DictionaryArray.from_arrays(indices, ["x" * 100_000])
    pq.write_table(pa.table({"a": column}), path, store_schema=False)


def long(path):
    pq.write_table(pa.table({"a": ["x" * 3 * 10**8]}), path, compression="zstd")


@pytest.mark.long
@pytest.mark.parametrize("make", [zeros, texts, long])
def test_parquet_bombs(tmp_path, make):
    path = tmp_path / "x.parquet"
    make(path)
    assert path.stat().st_size < 10**6
    assert_refused(lambda: parquet.read(path), tmp_path, "MiB of memory")


def test_many_equal_texts_are_no_bomb(tmp_path):
    """What is stored once and repeated is measured, not guessed: runs have millions of rows of one method."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": ["a method of this name"] * 10**6}), path)
    assert path.stat().st_size < 10**4 and len(parquet.read(path)) == 10**6


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"a": [1], "b": ["x"]}), "no column 'c'"),
        (pa.table({"a": ["x"], "c": [1]}), "'a' is string, not int32"),
        (pa.table({"a": [[1]], "c": [1]}), "'a' is list"),
        (pa.Table.from_arrays([pa.array([1])] * 3, ["a", "a", "c"]), "two columns 'a'"),
    ],
)
def test_parquet_of_another_form(tmp_path, table, words):
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(UserError, match=words):
        parquet.check(tmp_path / "x.parquet", pa.schema([("a", pa.int32()), ("c", pa.int64())]), ["c"])


# Weights


class Command:
    def __reduce__(self):
        return os.system, ("true",)


def archive(path, data: bytes, compressed: bool) -> None:
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as file:
        file.writestr("x/data.pkl", data)
        file.writestr("x/data/0", b"\0" * 10**8 if compressed else b"")
        file.writestr("x/version", "3\n")
        file.writestr("x/byteorder", "little")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: archive(path, pickle.dumps(Command(), 2), False), "system"),
        (lambda path: archive(path, pickle.dumps({}, 2), True), "compressed"),
        (lambda path: torch.save({"a": torch.ones(1).expand(10**7)}, path), "larger than the file"),
        (lambda path: torch.save({"a": torch.ones(3).to_sparse()}, path), "not plain ones"),
        (lambda path: torch.save([torch.ones(3)], path), "no mapping of names"),
        (lambda path: path.write_bytes(pickle.dumps(Command())), "not a zip file"),
    ],
)
def test_pickles(tmp_path, make, words):
    path = tmp_path / "x.bin"
    make(path)
    assert_refused(lambda: read_pickle(path), tmp_path, words)


def test_a_pickle_of_tensors_is_read(tmp_path):
    torch.save(OrderedDict(a=torch.arange(3), b={"c": [torch.ones(2, 2)]}), tmp_path / "x.bin")
    assert read_pickle(tmp_path / "x.bin")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 2**20, 2**62, 2**64 - 1])
def test_headers_of_safetensors_that_claim_other_sizes(folder, length):
    fuzz_targets.make_head(folder)
    path = folder / "head.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert_refused(lambda: fuzz_targets.read_acceptance(folder, random.Random(0)), folder, "damaged")


@pytest.mark.parametrize("change", [{"head_dim": 10**7}, {"num_attention_heads": 10**9}, {"num_key_value_heads": 0}])
def test_a_draft_head_that_claims_to_be_wide(change):
    facts = stored_settings(head_config(fuzz_targets.tiny().models["target"], 48))
    with pytest.raises(ValueError, match=r"heads|attention"):
        config_of(32, 64, 48, facts | change)


# Figures of others


def test_rounds_that_a_few_digits_tell(folder):
    fuzz_targets.make_responses(folder)
    path = folder / "responses.json"
    path.write_text(path.read_text().replace('"acceptance_histogram": [1,', f'"acceptance_histogram": [{2**31 - 1},'))
    assert_refused(lambda: vllm.read(path), folder, "rounds")


def test_more_tokens_together_than_records_hold(folder):
    fuzz_targets.make_answers(folder)
    path = folder / "a.jsonl"
    path.write_text(path.read_text().replace('"new_tokens": [6, 4]', f'"new_tokens": [{2**31 - 2}, 4]'))
    assert_refused(lambda: fuzz_targets.read_answers(folder, random.Random(0)), folder, "new_tokens")


# Datastores


@pytest.fixture
def store(folder):
    fuzz_targets.make_store(folder)
    return folder / "store"


def signed(folder) -> None:
    """As somebody writes it who means harm: the hash is that of the arrays."""
    about = folder / "datastore.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"contents": digest(folder)}))


def test_suffixes_that_are_not_there(store):
    buckets = np.fromfile(store / "buckets.bin", np.uint32)
    buckets[1:9] = 10**6
    buckets.tofile(store / "buckets.bin")
    signed(store)
    with pytest.raises(UserError, match="names suffixes that are not there"):
        Datastore(store)


def test_tokens_that_no_model_has(store):
    tokens = np.fromfile(store / "tokens.bin", ">u4")
    tokens[::2] = 2**31
    tokens.tofile(store / "tokens.bin")
    signed(store)
    result = Datastore(store)
    rows = result.continuations([3], 1, 50, 8)
    assert ((rows <= result.about.largest) | (rows == END)).all()


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": -1},
        {"tokens": "9"},
        {"tokens": 1e999},
        {"shards": 10**30},
        {"largest": END},
        {"more": 1},
        {"source": 1},
    ],
)
def test_datastores_that_tell_what_cannot_be(store, change):
    about = store / "datastore.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | change))
    with pytest.raises(UserError):
        Datastore(store)
