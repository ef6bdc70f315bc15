"""Every method of a bundled pair: shards, joined, are the run of one process, by hashes of all columns but times."""

import hashlib
import json

import determinism
import pyarrow.parquet as pq
import pytest
from determinism import OF_OTHERS, TEMPERATURES, make_plan, methods, suite
from tiny_runs import always

from specbench.config import load_pair as read_pair
from specbench.engine.models.pair import load_pair
from specbench.measure import join as joining
from specbench.measure import loop, prepare, sample
from specbench.results.shard import Shard
from specbench.results.stored import StoredRun

pytestmark = pytest.mark.long

TOKENS = 6
REPEATS = 3  # of two tasks: six places for the five shards of methods that learn
ORACLE = "oracle.tokens=8"  # what it decodes beforehand


@pytest.fixture(scope="module")
def pair():
    return load_pair(read_pair("pocket-weak"), device="cpu")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(sample, "WARMUP_TOKENS", determinism.WARMUP)
    monkeypatch.setattr(determinism, "SETTINGS", (*determinism.SETTINGS, ORACLE))


def hashes(folder):
    """A hash of each column, times and what depends on the machine aside."""
    result = {}
    for name in ("samples", "rounds", "scores"):
        table = pq.read_table(folder / f"{name}.parquet")
        kept = [column for column in table.column_names if column not in determinism.MEASURED]
        for column in kept:
            text = json.dumps(list(map(repr, table[column].to_pylist())))
            result[name, column] = hashlib.sha256(text.encode()).hexdigest()
    return result


def learners(names, temperature, folder, pair):
    """Those that carry something from text to text under the settings of these tests."""
    plan = make_plan(names, suite(folder, 1, TOKENS), temperature)
    return [spec.name for spec in plan.methods if prepare.build(spec, pair, prepare.Unwatched()).state() is not None]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("learn", [True, False], ids=["with those that learn", "without"])
def test_joined_is_whole(learn, temperature, pair, tmp_path):
    """With methods that learn, tasks are whole; without, a task is cut apart."""
    known = methods(temperature)
    learning = learners(known, temperature, tmp_path, pair)
    assert {"csd", "swift", "bandit"} <= set(learning)
    names = [*learning, "sps", "eagle3", "lookahead"] if learn else [name for name in known if name not in learning]
    plan = make_plan(names, suite(tmp_path, 3 - learn, TOKENS), temperature, repeats=REPEATS if learn else 1)
    assert loop.execute(plan, tmp_path / "whole", always, pair)
    wanted = hashes(tmp_path / "whole")
    assert {column for _, column in wanted} >= OF_OTHERS
    for count in (2, 5):
        folder = tmp_path / f"cut-{count}"
        for number in range(count, 0, -1):
            shard = Shard(number, count)
            assert loop.execute(plan, shard.folder(folder), always, pair, shard=shard)
        within = [StoredRun(shard.folder(folder)).shard.documents.start % 3 for shard in [Shard(2, count)]]
        assert learn or count == 2 or any(within), "no shard begins within a task"
        joining.join(folder)
        result = hashes(folder)
        assert [key for key in wanted if wanted[key] != result[key]] == []
