"""The folder of `load` from somebody else, or after a crash: links, damage, other models, a second process."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from cases import mostly_long
from screens import call
from tiny_runs import TASKS, save_pair, write_suite

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder, 8)
    write_suite(folder, TASKS, 4)
    return folder


def words(place, out):
    pair = f"target={place / 'target'},draft={place / 'draft'}"
    given = ["load", "--pair", pair, "--suite", place / "few.yaml", "--rows", 3, "--requests", 9, "--rate", 20]
    return [*map(str, given), "--device", "cpu", "--runtime", "static", "--saturation", "--out", str(out)]


@pytest.fixture(scope="module")
def measured(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("load") / "whole"
    result = call(*words(place, out))
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def folder(measured, tmp_path):
    """A copy of what was measured, to be spoilt."""
    return Path(shutil.copytree(measured, tmp_path / "copy"))


def refused(place, folder) -> str:
    """The one line that a command which goes on there ends with."""
    result = call(*words(place, folder))
    assert result.exit_code == 2 and "Traceback" not in result.output, result.output
    return " ".join(result.stderr.rpartition("error:")[2].split())


@pytest.mark.parametrize("name", ["load.json", "saturation.json", "steps.parquet", "parts", "parts/PART"])
def test_a_link_leads_nowhere(place, folder, tmp_path, name):
    """At every level; what it leads to is neither read nor written."""
    part = next((folder / "parts").glob("sps-20.0-0.requests.parquet"))
    path = part if name == "parts/PART" else folder / name
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file != folder / ".lock"}
    assert "is a link, which a run folder must not hold" in refused(place, folder)
    assert {file: file.read_bytes() for file in before} == before


def changed(path: Path, **columns) -> None:
    frame = pd.read_parquet(path)
    frame.assign(**columns).to_parquet(path)


REQUESTS = {
    "its method is another": {"method": "vanilla"},
    "its rate is another": {"rate": 7.0},
    "its repeat is another": {"repeat": 1},
    "finish is 'odd'": {"finish": "odd"},
    "came lacks values": {"came": None},
    "came is -3.0": {"came": -3.0},
    "times do not rise": {"began": 1e6},
    "its requests are not all there": {"request": 0},
    "is another kind of file: its column 'tokens' is": {"tokens": "x"},
}


@mostly_long("message", REQUESTS, ("finish is 'odd'", "came is -3.0", "its method is another"))
def test_damaged_requests_are_one_line(place, folder, message):
    path = folder / "parts" / "sps-20.0-0.requests.parquet"
    changed(path, **REQUESTS[message])
    said = refused(place, folder)
    assert message in said and said.startswith(str(path)) and said.endswith("remove it, and it is measured again")
    path.unlink()
    assert call(*words(place, folder)).exit_code == 0


def test_damaged_files_are_one_line(place, folder):
    part = folder / "parts" / "sps-20.0-0.steps.parquet"
    whole = part.read_bytes()
    for message, content in {"is damaged": whole[:50], "is damaged (": whole[:-9] + b"\0" * 9}.items():
        part.write_bytes(content)
        assert message in refused(place, folder)
    part.write_bytes(whole)
    frame = pd.read_parquet(part)
    for message, spoilt in {
        "it has no steps": frame.iloc[:0],
        "no column 'joined'": frame.drop(columns="joined"),
        "its steps are not all there": frame.iloc[1:],
    }.items():
        spoilt.to_parquet(part)
        assert message in refused(place, folder)
    part.write_bytes(whole)
    rates = folder / "saturation.json"
    for content in ("[]", "{", '{"sps": -1}', '{"sps": "4"}', '{"sps": NaN}', '{"pld": 3.0}'):
        rates.write_text(content)
        said = refused(place, folder)
        assert said.startswith(str(rates)) and said.endswith("remove it, and it is measured again")
    rates.unlink()
    facts = folder / "load.json"
    for content in ("{}", "[]", "{", json.dumps({"load": {}}), json.dumps({"load": 3, "plan": 3})):
        facts.write_text(content)
        assert str(facts) in refused(place, folder)


def test_a_part_that_would_fill_the_memory_is_refused(place, folder):
    """A column of equal values takes a few bytes on the disk, however many rows it has."""
    path = folder / "parts" / "sps-20.0-0.requests.parquet"
    frame = pd.read_parquet(path)
    large = pd.concat([frame.iloc[:1]] * 1000, ignore_index=True).assign(error="x" * 300_000)
    large.to_parquet(path, compression="zstd")
    assert path.stat().st_size < 1_000_000
    assert "would take more than" in refused(place, folder)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("target/config.json", {"rms_norm_eps": 0.5}, "configuration of the target"),
        ("draft/config.json", {"rms_norm_eps": 0.25}, "configuration of the draft"),
        ("target/generation_config.json", {"eos_token_id": 9}, "settings of generation of the target"),
    ],
)
def test_other_models_are_not_mixed_in(place, folder, tmp_path, file, change, named):
    edited = Path(shutil.copytree(place, tmp_path / "models"))
    path = edited / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    other = words(edited, folder)
    facts = json.loads((folder / "load.json").read_text())
    (folder / "load.json").write_text(  # models of the same names
        json.dumps(facts).replace(str(place), str(edited))
    )
    result = call(*other)
    assert result.exit_code == 2
    assert named in " ".join(result.stderr.split()) and "choose another --out" in " ".join(result.stderr.split())


def test_what_reads_runs_says_whose_folder_it_is(measured):
    for command in (["show", str(measured)], ["report", str(measured)], ["run", "--resume", str(measured)]):
        result = call(*command)
        assert result.exit_code == 2 and "holds what `specbench load` measured" in result.stderr, command
        assert f"--out {measured.resolve()}" in " ".join(result.stderr.split())


def test_one_process_measures_into_a_folder(place, folder):
    from specbench.results.lock import claimed

    with claimed(folder):
        assert "is being written by process" in refused(place, folder)
    (folder / "load.json").unlink()
    assert "holds other files; choose another --out" in refused(place, folder)


@pytest.mark.long
@pytest.mark.parametrize("parts", [1, 3])
def test_a_killed_command_goes_on(place, tmp_path, parts):
    """What it kept is not measured again, and its leftovers are gone."""
    out = tmp_path / "load"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    command = [sys.executable, "-m", "specbench.cli", *words(place, out)[:-3], "--repeats", "4", "--out", str(out)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(3000):
        if len(list(out.glob("parts/*.requests.parquet"))) >= parts or process.poll() is not None:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = {path: path.read_bytes() for path in out.glob("parts/*.requests.parquet")}
    assert parts <= len(kept)
    (out / "parts" / "sps-20.0-0.steps.parquet.0123abcd.new").write_bytes(b"half")
    result = call(*command[3:])
    assert result.exit_code == 0, result.output
    assert {path: path.read_bytes() for path in kept} == kept
    assert not list(out.rglob("*.new")) and not (out / ".lock").exists()
    requests = pd.read_parquet(out / "requests.parquet")
    assert requests.groupby(["method", "repeat"]).size().to_dict() == {
        (name, repeat): 9 for name in ("vanilla", "sps") for repeat in range(4)
    }
    texts = requests.groupby(["method", "repeat", "request"]).tokens.first().map(tuple)
    assert (texts["sps"] == texts["vanilla"]).all()  # greedy in float32 on this pair
