"""Shards: what several processes decode and `join` makes one run of is, times aside, the run of one process."""

import json
import shutil
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from screens import output, refusal
from tiny_runs import always, plan_of

from specbench.config import UserError
from specbench.engine.types import Sampling
from specbench.measure import join as joining
from specbench.measure import loop, prepare, shards
from specbench.measure.work import Work
from specbench.results.shard import Shard, Stretch
from specbench.results.stored import StoredRun
from specbench.tasks.requests import Request

TIMES = ("seconds", "load", "clock_mhz", "temperature_c", "peak_memory")  # in names of columns that may differ
TIMES += ("host", "device", "worker", "attempt")  # who decoded a text
REPEATS = 3  # of two tasks: six places for methods that learn
CEILINGS = {
    "machine": {"device": "cpu", "cpu": "Z80", "threads": 1},
    "dtype": "float32",
    "measured": "2026-01-01",
    "bandwidth": [{"bytes": 64, "median": 200.0}],
    "products": [{"median": 2000.0}],
}


def columns(folder):
    """All columns of a run's tables but times, as lists, in the order of the rows."""
    result = {}
    for name in ("samples", "rounds", "scores"):
        table = pq.read_table(folder / f"{name}.parquet")
        kept = [column for column in table.column_names if not any(word in column for word in TIMES)]
        result |= {(name, column): list(map(repr, table[column].to_pylist())) for column in kept}
    return result


def differing(one, other):
    there, here = columns(one), columns(other)
    assert there.keys() == here.keys()
    return [key for key in there if there[key] != here[key]]


def decode(plan, folder, count, pair):
    """All shards of a run, the last one first."""
    for number in range(count, 0, -1):
        shard = Shard(number, count)
        assert loop.execute(plan, shard.folder(folder), always, pair, shard=shard)


@pytest.fixture(scope="module")
def pair(make_plan):
    return prepare.load_models(make_plan())


@pytest.fixture(scope="module")
def learning(make_plan):
    return make_plan(["sps", "csd"], repeats=REPEATS)


@pytest.fixture(scope="module")
def whole(learning, pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert loop.execute(learning, folder, always, pair)
    return folder


@pytest.fixture(scope="module")
def cut_in_five(learning, pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "five"
    decode(learning, folder, 5, pair)
    return folder


@pytest.fixture
def copied(cut_in_five, tmp_path):
    shutil.copytree(cut_in_five, tmp_path / "run")
    return tmp_path / "run"


def test_joined_shards_are_the_whole_run_to_the_last_column(whole, copied):
    for number in range(1, 6):
        changed(copied / "shards" / str(number), lambda manifest: manifest.update(ceilings=CEILINGS))
        seconds = {"prefix": float(number)} | ({"capture": 0.5} if number == 2 else {})
        (copied / "shards" / str(number) / "apart.json").write_text(json.dumps(seconds))
    joining.join(copied)
    assert json.loads((copied / "apart.json").read_text()) == {"prefix": 15.0, "capture": 0.5}
    assert differing(whole, copied) == []
    assert (copied / "documents.parquet").read_bytes() == (whole / "documents.parquet").read_bytes()
    there, here = StoredRun(whole), StoredRun(copied)
    assert here.finished and here.shard is None and here.progress == there.progress
    same = {"plan", "models", "inputs", "requests", "prompt_ids", "generation", "headline", "tokenizer_hash"}
    assert all(there.manifest[key] == here.manifest[key] for key in same)
    assert [(part["number"], part["of"]) for part in here.manifest["joined"]] == [(n, 5) for n in range(1, 6)]
    assert here.manifest["ceilings"] == CEILINGS, "all shards were decoded on machines of one kind"
    before = (copied / "samples.parquet").stat().st_mtime_ns
    joining.join(copied)
    assert (copied / "samples.parquet").stat().st_mtime_ns == before, "a second join changes nothing"


def test_a_warm_up_within_a_task_is_left_out(copied):
    """As of a shard that begins with the second document of the first task; the whole run warms up before its first."""
    for name in ("samples", "rounds"):
        rewritten(copied / "shards" / "3", name, lambda rows: rows.assign(doc_id=rows.doc_id.where(~rows.warmup, 1)))
    joining.join(copied)
    for name in ("samples", "rounds"):
        table = pq.read_table(copied / f"{name}.parquet").to_pandas()
        assert set(table[table.warmup].doc_id) == {0} and table.warmup.any()


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 5])
def test_documents_of_a_task_are_cut_apart_where_no_method_learns(count, make_plan, pair, tmp_path):
    plan = make_plan(["sps"], limit=3)
    assert loop.execute(plan, tmp_path / "whole", always, pair)
    decode(plan, tmp_path / "cut", count, pair)
    spans = [StoredRun(Shard(n, count).folder(tmp_path / "cut")).shard.documents for n in range(1, count + 1)]
    assert [index for span in spans for index in span] == list(range(6))
    assert count == 2 or any(span.start % 3 for span in spans), "no shard begins within a task: this tests nothing"
    joining.join(tmp_path / "cut")
    assert differing(tmp_path / "whole", tmp_path / "cut") == []


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_sampled_and_in_batches(temperature, place, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("specbench.measure.work.TURNS", 1)
    plan = plan_of(place, ["sps"], limit=6, batch=2, time_documents=1, temperature=temperature, dtype="float64")
    pair = prepare.load_models(plan)
    assert loop.execute(plan, tmp_path / "whole", always, pair)
    decode(plan, tmp_path / "cut", 3, pair)
    joining.join(tmp_path / "cut")
    # Shares of a batch's forwards are times; what began a shard again, a warm-up, is in the whole run where it begins.
    assert differing(tmp_path / "whole", tmp_path / "cut") == []


def test_a_shard_that_was_stopped_goes_on_where_it_was(make_plan, pair, tmp_path, whole, learning):
    for number in (1, 2):
        shard = Shard(number, 2)
        folder = shard.folder(tmp_path)
        assert not loop.execute(learning, folder, lambda progress: progress.done != 2, pair, shard=shard)
        assert StoredRun(folder).progress == (2, 6)
        with pytest.raises(UserError, match=r"(lacks shard 2 of 2|has 2 of 6 documents; `specbench run --resume)"):
            joining.join(tmp_path)
        assert loop.execute(learning, folder, always, pair)  # its manifest says which documents
    joining.join(tmp_path)
    samples = columns(tmp_path)["samples", "doc_id"], columns(whole)["samples", "doc_id"]
    assert [key for key in differing(whole, tmp_path) if key[0] == "scores"] == []
    assert len(samples[0]) == len(samples[1]), "the warm-ups of a shard that went on are left out"
    assert differing(whole, tmp_path) == []


# What is cut


def made_work(learns: bool, turns=(0,) * 6, batch: int = 1, repeats: int = 2) -> Work:
    """Two tasks of three documents, whose answers have 10 and 30 tokens."""
    tasks = ["a"] * 3 + ["b"] * 3
    requests = [
        Request(task, at % 3, "", (), 10 if task == "a" else 30, "", "", turn)
        for at, (task, turn) in enumerate(zip(tasks, turns, strict=True))
    ]
    plan = SimpleNamespace(repeats=repeats, batch=batch, time_documents=0, concurrency=1, rate=None, servers=())
    method = SimpleNamespace(state=lambda: [] if learns else None)
    span = range(6 * repeats)
    return Work(plan, None, None, requests, [], {}, None, {"m": method}, Sampling(), span)  # type: ignore[arg-type]


def bounds(result):
    return [(shard.start, shard.stop) for shard in result.shards]


def test_tasks_stay_whole_where_a_method_learns():
    result = shards.cut(made_work(True), 2)
    assert bounds(result) == [(0, 6), (6, 12)] and result.places == 4 and "m learns" in result.why
    assert result.weights == [120, 120]
    assert bounds(shards.cut(made_work(True), 4)) == [(0, 3), (3, 6), (6, 9), (9, 12)]
    with pytest.raises(UserError, match=r"at most 4 shards, not 5 .*m learns from text to text"):
        shards.cut(made_work(True), 5)


def test_shards_have_about_as_many_new_tokens():
    """Of 240 tokens the first half ends with the first repeat, the first third within its second task."""
    assert bounds(shards.cut(made_work(False), 2)) == [(0, 6), (6, 12)]
    result = shards.cut(made_work(False), 3)
    assert bounds(result) == [(0, 5), (5, 9), (9, 12)] and result.weights == [90, 60, 90]
    assert bounds(shards.cut(made_work(False), 12)) == [(at, at + 1) for at in range(12)]


def test_what_is_in_a_stretch():
    """Repeat, task, first and last document; a task that comes again in the next repeat begins again."""
    work = made_work(False)
    assert shards.contents(work, range(1, 8)) == [(0, "a", 1, 2), (0, "b", 0, 2), (1, "a", 0, 1)]
    work.requests[3:] = []
    assert shards.contents(work, range(2, 6)) == [(0, "a", 2, 2), (1, "a", 0, 2)]


def test_conversations_and_batches_stay_whole():
    talk = made_work(False, turns=(0, 1, 2, 0, 1, 0), repeats=1)
    assert shards.places(talk)[0] == [0, 3, 5] and "conversation" in shards.places(talk)[1]
    assert shards.places(made_work(False, batch=2))[0] == [0, 3, 6, 9], "a batch takes 16 documents of a task"


@pytest.mark.parametrize("text", ["0/3", "4/3", "2", "1/0", "a/b", "1/2/3", "-1/2", "1.0/2"])
def test_a_shard_is_named_by_two_numbers(text):
    with pytest.raises(UserError, match="write K/N"):
        Shard.parse(text)
    assert Shard.parse("2/5") == Shard(2, 5)


# What is refused


def refused(*words):
    """The one line that a command ends with."""
    said = refusal(*words)
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in said, said
    return lines[0]


def changed(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def hash_of_the_target(manifest):
    manifest["models"]["target"]["weights_hash"] = "0" * 16


REFUSED = {
    "a plan with another seed": (lambda m: m["plan"].update(seed=9), "of another plan"),
    "another model": (hash_of_the_target, "other weights of the target"),
    "other versions": (lambda m: m["environment"]["versions"].update(torch="1.0"), "decoded with different versions"),
    "another processor": (lambda m: m["environment"].update(cpu="Z80"), "--allow-mismatch cpu"),
    "another count": (lambda m: m["shard"].update(of=6), "not shard 3 of 5"),
    "another number": (lambda m: m["shard"].update(number=4), "not shard 3 of 5"),
    "a gap": (lambda m: m["shard"].update(first=m["shard"]["first"] + 1), "documents are missing"),
    "documents twice": (lambda m: m["shard"].update(first=m["shard"]["first"] - 1), "appear twice"),
    "beyond the end": (lambda m: m["shard"].update(stop=99), "a shard of other documents"),
    "no documents": (lambda m: m["shard"].update(stop=m["shard"]["first"]), "there is no such shard"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_of_one_run_is_not_joined(name, copied):
    change, words = REFUSED[name]
    changed(copied / "shards" / "3", change)
    allowed = ("--allow-mismatch", "versions") if name == "other versions" else ()  # which no option allows
    assert words in refused("join", copied, *allowed)
    assert not (copied / "manifest.json").exists() and not (copied / "samples.parquet").exists()


def test_unlike_machines_are_joined_when_asked_and_the_run_tells_no_machine(copied):
    for number in range(1, 6):
        changed(copied / "shards" / str(number), lambda manifest: manifest.update(ceilings=CEILINGS))
    changed(copied / "shards" / "3", REFUSED["another processor"][0])
    joining.join(copied, ["cpu"])
    environment = StoredRun(copied).manifest["environment"]
    assert StoredRun(copied).manifest["ceilings"] is None, "the ceilings are of some of the texts only"
    assert environment["cpu"] is None and environment["device"] == "cpu"
    assert "does not record its cpu" in " ".join(output("show", copied).split())


@pytest.mark.parametrize("at", [1, 3, 5])
def test_a_missing_shard_is_named(at, copied):
    shutil.rmtree(copied / "shards" / str(at))
    assert f"lacks shard {at} of 5" in refused("join", copied)


def rewritten(folder, name, change):
    table = pq.read_table(folder / f"{name}.parquet")
    frame = change(table.to_pandas())
    new = pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)
    pq.write_table(new, folder / f"{name}.parquet", write_page_checksum=True)


def without_the_last_sample(frame):
    return frame.iloc[:-1]


def other_state(frame):
    frame.loc[(frame.method == "csd") & ~frame.warmup, "state_hash"] = "0123456789abcdef"
    return frame


def test_lost_samples_are_seen(copied):
    rewritten(copied / "shards" / "2", "samples", without_the_last_sample)
    assert "is damaged" in refused("join", copied)


def test_a_state_that_does_not_go_on_is_seen(copied):
    rewritten(copied / "shards" / "4", "samples", other_state)
    message = refused("join", copied)
    assert "csd began document 0" in message and "does not carry over" in message


def test_a_shard_that_begins_within_a_task_of_a_method_that_learns_is_refused(make_plan, pair, tmp_path, monkeypatch):
    """As a version that cuts otherwise would make them."""
    plan = make_plan(["csd"])
    monkeypatch.setattr(shards, "places", lambda work: (list(work.whole), "anywhere"))
    for number in (1, 2, 3):
        shard = Shard(number, 3)
        assert loop.execute(plan, shard.folder(tmp_path), always, pair, shard=shard)
    assert any(StoredRun(Shard(n, 3).folder(tmp_path)).shard.documents.start % 2 for n in (2, 3))
    with pytest.raises(UserError, match="its learned state does not carry over"):
        joining.join(tmp_path)


# The command


def test_the_command_goes_on_with_its_shard_and_names_what_is_wrong(make_plan, place, tmp_path):
    run = ["run", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", place / "few.yaml"]
    run += ["--method", "sps", "--limit", "1", "--device", "cpu"]
    out = ["--out", tmp_path / "run"]
    assert "--shard needs --out" in refused(*run, "--shard", "1/2")
    assert "write K/N" in refused(*run, "--shard", "3/2", *out)
    said = output(*run, "--shard", "1/2", *out)
    assert "shard 1 of 2 is done" in said and f"specbench join {tmp_path / 'run'}" in "".join(said.splitlines())
    assert "nothing is left to decode" in output(*run, "--shard", "1/2", *out)
    assert "holds shard 1 of 2, not shard 1 of 3" in refused(*run, "--shard", "1/3", *out)
    assert "seed" in refused(*run, "--seed", "4", "--shard", "1/2", *out)
    assert "lacks shard 2 of 2" in refused("join", tmp_path / "run")
    assert "specbench join" in refused("show", tmp_path / "run")
    assert "it is shard 1 of 2" in refused("compare", tmp_path / "run" / "shards" / "1")
    assert "it is shard 1 of 2" in " ".join(output("show", tmp_path / "run" / "shards" / "1").split())
    output(*run, "--shard", "2/2", *out)
    assert "vanilla" in output("join", tmp_path / "run") and "vanilla" in output("compare", tmp_path / "run")
    assert "is a whole run" in refused(*run, "--shard", "1/2", *out)
    assert "holds no shards" in refused("join", tmp_path / "nothing")


def test_a_plan_says_how_it_is_cut(place):
    run = ["run", "--pair", f"target={place / 'target'},draft={place / 'draft'}", "--suite", place / "few.yaml"]
    run += ["--method", "csd", "--repeats", "2", "--device", "cpu", "--plan-shards"]
    said = output(*run, "2")
    assert "1/2" in said and "2/2" in said and "csd learns from text to text" in " ".join(said.split())
    warned = "csd: no rejections"  # a warning is one line, however long
    assert max(len(line) for line in said.splitlines() if not line.startswith(warned)) <= 80
    assert "at most 4 shards, not 5" in refused(*run, "5")


def test_the_shard_of_a_manifest_is_what_was_told():
    stretch = Stretch(Shard(2, 3), range(4, 9))
    assert stretch.facts() == {"number": 2, "of": 3, "first": 4, "stop": 9}
    assert Stretch.of(stretch.facts()) == stretch
