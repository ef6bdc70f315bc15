"""The correction memory as files: what is read back, what is refused, and what several make together."""

import shutil
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import TOKENIZER, add_sample, drafted, manifest, write
from refusals import one_line_error

from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.models.tokenizer import vocabulary_hash
from specbench.engine.types import Round
from specbench.methods.lossy.csd_memory import Counts, find_memory, merge, read_counts, read_memory, write_memory
from specbench.training import csd as training

SEEN = Counter({(0, 3, 4): 1, (1, 3, 4): 1, (1, 4, 3): 9, (2, 1, 2): 2})  # (document, draft token, target token)
COUNTS = Counter({(3, 4): 2, (4, 3): 9, (1, 2): 2})
HASH = vocabulary_hash(TOKENIZER)


@pytest.fixture
def pair() -> Pair:
    model = SimpleNamespace()  # no memory file asks a model
    return Pair("made", {"target": model}, TOKENIZER)


def test_memory_comes_back(tmp_path, pair):
    path = tmp_path / "deep" / "m.parquet"
    write_memory(path, SEEN, pair, {"corpus": "math"})
    assert read_memory(path, pair).pairs == COUNTS
    memory = find_memory(str(path), "task-specific", pair)
    assert memory.of("gsm8k") == memory.of("") == COUNTS


def test_a_folder_serves_each_task_its_own(tmp_path, pair):
    write_memory(tmp_path / "gsm8k.parquet", Counter({(0, 1, 2): 1}), pair, {})
    write_memory(tmp_path / "universal.parquet", SEEN, pair, {})
    own = find_memory(str(tmp_path), "task-specific", pair)
    assert own.of("gsm8k") == {(1, 2): 1} and own.of("humaneval") == COUNTS
    universal = find_memory(str(tmp_path), "universal", pair)
    assert universal.of("gsm8k") == universal.of("humaneval") == COUNTS
    hashes = own.hashes()
    assert set(hashes) == {"memory", "memory gsm8k"} and len(set(hashes.values())) == 2
    assert universal.hashes() == {"memory": hashes["memory"]}
    (tmp_path / "universal.parquet").unlink()
    assert find_memory(str(tmp_path), "task-specific", pair).of("humaneval") == {}
    with pytest.raises(UserError, match=r"no universal\.parquet; `specbench calibrate"):
        find_memory(str(tmp_path), "universal", pair)


def test_the_counts_of_other_tasks(tmp_path, pair):
    """By hand: each task has the sum of the two others' counts; one without a file has the sum of all three."""
    for task, counts in (("a", {(0, 1, 2): 1}), ("b", {(0, 1, 2): 4, (0, 5, 6): 2}), ("c", {(0, 7, 8): 3})):
        write_memory(tmp_path / f"{task}.parquet", Counter(counts), pair, {})
    with pytest.raises(UserError, match="has memories of one task at most"):
        (tmp_path / "alone").mkdir()
        shutil.copy(tmp_path / "a.parquet", tmp_path / "alone" / "a.parquet")
        find_memory(str(tmp_path / "alone"), "others", pair)
    write_memory(tmp_path / "universal.parquet", SEEN, pair, {})
    others = find_memory(str(tmp_path), "others", pair)
    assert others.of("a") == {(1, 2): 4, (5, 6): 2, (7, 8): 3}
    assert others.of("b") == {(1, 2): 1, (7, 8): 3} and others.of("c") == {(1, 2): 5, (5, 6): 2}
    assert others.of("d") == {(1, 2): 5, (5, 6): 2, (7, 8): 3}
    with pytest.raises(UserError, match="is one file, and others needs a folder"):
        find_memory(str(tmp_path / "a.parquet"), "others", pair)


def test_fewer_documents_of_a_file(tmp_path, pair):
    path = tmp_path / "m.parquet"
    write_memory(path, SEEN, pair, {"documents": "3"})
    assert read_memory(path, pair, 1).pairs == {(3, 4): 1}
    assert read_memory(path, pair, 2).pairs == {(3, 4): 2, (4, 3): 9}
    assert read_memory(path, pair, 3).pairs == read_memory(path, pair).pairs == COUNTS
    assert find_memory(str(path), "universal", pair, 1).of("any") == {(3, 4): 1}
    with pytest.raises(UserError, match=r"does not hold 4 documents.*calibration_size"):
        read_memory(path, pair, 4)
    merge({"m": read_counts(path)}, tmp_path / "merged.parquet")
    with pytest.raises(UserError, match="calibration_size"):
        read_memory(tmp_path / "merged.parquet", pair, 1)


def test_a_file_of_the_first_version_is_read(tmp_path, pair):
    metadata = {"tokenizer": HASH, "documents": "1000"}
    pq.write_table(table().replace_schema_metadata(metadata), tmp_path / "m.parquet")
    assert read_memory(tmp_path / "m.parquet", pair).pairs == {(1, 2): 3}
    with pytest.raises(UserError, match="calibration_size"):
        read_memory(tmp_path / "m.parquet", pair, 10)


def test_a_hash_tells_counts_apart(tmp_path, pair):
    write_memory(tmp_path / "a.parquet", SEEN, pair, {"corpus": "one"})
    write_memory(tmp_path / "b.parquet", SEEN, pair, {"corpus": "another"})
    write_memory(tmp_path / "c.parquet", SEEN + Counter({(0, 3, 4): 1}), pair, {})
    a, b, c = (find_memory(str(tmp_path / f"{x}.parquet"), "universal", pair).hashes()["memory"] for x in "abc")
    assert a == b != c


def test_memory_that_is_not_given(pair):
    assert find_memory("none", "universal", pair) is None
    assert find_memory("auto", "task-specific", pair) is None, "nothing is shipped for this pair"
    for asked in (
        ("universal", pair),
        ("task-specific", pair, 60),
    ):  # not silently none: the figures would be CSD's without
        with pytest.raises(UserError, match="comes with the pair made; specbench calibrate"):
            find_memory("auto", *asked)


def table(**columns) -> pa.Table:
    return pa.table({"draft_token": [1], "target_token": [2], "count": [3]} | columns)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"words", "is damaged"),
        (-20, "damaged"),  # a good file whose end is missing
        (None, "specbench calibrate"),
        (table().drop_columns("count"), "not a memory file, or damaged"),
        (table(count=["many"]), "not a memory file, or damaged"),
        (table(count=[-1]), "counts below 0"),
        (table(draft_token=pa.array([None], pa.int32())), "without a token"),
        (table().replace_schema_metadata({"schema": "9", "tokenizer": HASH}), "later version"),
        (
            table().replace_schema_metadata({"schema": "2", "tokenizer": "0123456789abcdef"}),
            "another tokenizer.*specbench calibrate",
        ),
    ],
)
def test_files_that_cannot_serve_are_one_line(tmp_path, pair, content, said):
    path = tmp_path / "m.parquet"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, int):
        write_memory(path, SEEN, pair, {})
        path.write_bytes(path.read_bytes()[:content])
    elif content is not None:
        pq.write_table(content, path)
    with one_line_error("m.parquet", match=said):
        read_memory(path, pair)


def test_merged_counts_add_up(tmp_path, pair):
    write_memory(tmp_path / "monday.parquet", SEEN, pair, {})
    write_memory(tmp_path / "tuesday.parquet", Counter({(0, 3, 4): 5, (7, 8, 9): 1}), pair, {})
    training.merge([tmp_path / "monday.parquet", tmp_path / "tuesday.parquet"], None, tmp_path / "fleet.parquet")
    assert read_memory(tmp_path / "fleet.parquet", pair).pairs == {(3, 4): 7, (4, 3): 9, (1, 2): 2, (8, 9): 1}
    with pytest.raises(UserError, match="exists"):
        training.merge([tmp_path / "monday.parquet"], None, tmp_path / "fleet.parquet")


def test_merging_different_tokenizers_is_refused(tmp_path):
    parts = {"a": Counts(COUNTS, "0123"), "b": Counts(COUNTS, "4567")}
    with pytest.raises(UserError, match="a: 0123, b: 4567"):
        merge(parts, tmp_path / "m.parquet")


def test_a_run_gives_what_it_rejected_and_rescued(tmp_path, pair):
    """Rejected 7 for 8 once and 5 for 6 twice, rescued 5 for 6 once; a rejected argmax is no pair."""
    rounds = [
        Round([1]),
        drafted([2, 5, 9], [2, 6, 9], 1, 6),
        drafted([5, 7], [6, 8], 1, 8, rescued=(0,)),
        drafted([5, 2], [6, 2], 0, 6),
        drafted([3], [3], 0, 4),  # sampled: the argmax was drafted, and rejected
    ]
    tables = {"samples": [], "rounds": []}
    for method in ("vanilla", "csd", "sps"):
        plain = [Round([token]) for round_ in rounds for token in round_.tokens]
        add_sample(tables, "gsm8k", 0, method, plain if method == "vanilla" else rounds, "text", "eos")
    write(tmp_path / "run", tables)
    manifest(tmp_path / "run", ["gsm8k"], ["vanilla", "csd", "sps"])
    with pytest.raises(UserError, match="csd, sps; choose one by --method"):
        training.merge([tmp_path / "run"], None, tmp_path / "m.parquet")
    with pytest.raises(UserError, match="no drafts of a method fly"):
        training.merge([tmp_path / "run"], "fly", tmp_path / "m.parquet")
    training.merge([tmp_path / "run"], "csd", tmp_path / "m.parquet")
    assert read_memory(tmp_path / "m.parquet", pair).pairs == {(5, 6): 3, (7, 8): 1}
    training.merge([tmp_path / "run", tmp_path / "m.parquet"], "sps", tmp_path / "both.parquet")
    assert read_counts(tmp_path / "both.parquet")[:2] == (Counter({(5, 6): 6, (7, 8): 2}), HASH)
