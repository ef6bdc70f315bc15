"""Own methods: a file, or an entry point of an installed package, is a method like any other; it needs permission."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from screens import call, output, refusal

import specbench
from specbench import config, methods, permissions
from specbench.config import UserError
from specbench.config.specs import ENTRY
from specbench.results.stored import StoredRun
from specbench.training.train import trainer

PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have?"
LOSSY = ("weighed.rescue(lambda i: False)", "weighed.rescue(lambda i: True)")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder that holds nothing but a suite of few tokens."""
    monkeypatch.chdir(tmp_path)
    text = "description: few\nlimit: 1\ntasks: [{task: gsm8k, fewshot: 0, max_new_tokens: 12}]\n"
    (tmp_path / "few.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def mine(here):
    output("new", "method", "mine")
    return here / "mine.py"


def run_it(*more: object) -> None:
    output("run", "--method", "mine.py", "--suite", "few.yaml", "--out", "runs/one", *more)


def unfinish() -> None:
    """Make the run one that has work left: to score its texts."""
    Path("runs/one/scores.parquet").unlink()


def test_a_file_is_a_method(mine):
    spec = config.load_method("mine.py")
    assert (spec.name, spec.method, spec.baseline) == ("mine", str(mine), "vanilla")
    assert spec.values == {"gamma": 4} and spec.settings["gamma"].source.startswith("our inference")
    assert config.load_method("other=mine.py").name == "other"
    mine.with_suffix(".yaml").unlink()
    assert config.load_method("mine.py").settings == {}


@pytest.mark.parametrize("part", ("method", "length", "output"))
def test_what_new_writes_decodes_as_vanilla(part, here):
    """In float64, token for token."""
    output("new", part, "mine")
    pair = specbench.load_pair("pocket", dtype="float64")
    with specbench.permitted(methods=["mine.py"]):
        decoded = specbench.decode(PROMPT, pair, "mine.py", max_new_tokens=50)
    assert decoded.tokens == specbench.decode(PROMPT, pair, "vanilla", max_new_tokens=50).tokens
    assert decoded.rounds.accepted.sum() > 0 and 1 < decoded.rounds.drafted.max() <= 8


def test_a_combination_that_new_writes_is_one(here):
    output("new", "combination", "geometric")
    pair = specbench.load_pair("pocket")
    named = "cos.combine=geometric.py:combine"
    with specbench.permitted(assignments=[named]):
        settings = {"combine": "geometric.py:combine"}
        decoded = specbench.decode(PROMPT, pair, "cos", settings=settings, max_new_tokens=20)
    assert len(decoded.tokens) == 20 or decoded.finish == "eos"


def test_a_run_keeps_settings_and_hash_and_is_read_without_the_file(mine):
    mine.with_suffix(".yaml").unlink()
    run_it("--set", "mine.gamma=3")
    run = specbench.load_run("runs/one")
    assert run.plan.methods[1].values == {"gamma": 3} and run.rounds.drafted.max() == 3
    assert set(run.manifest["inputs"]["mine"]) == {"code"}
    mine.unlink()
    for words in (("show", "runs/one"), ("compare", "runs/one", "--by", "depth"), ("report", "runs/one")):
        assert "mine" in output(*words) or words[0] == "report"
    assert "mine" in output("trace", "runs/one", "--task", "pocket_gsm8k", "--doc", 0, "--method", "mine")


def test_defaults_of_settings_are_recorded(mine):
    mine.with_suffix(".yaml").unlink()
    run_it()
    (setting,) = [spec.settings["gamma"] for spec in StoredRun(Path("runs/one")).plan.methods if spec.name == "mine"]
    assert (setting.value, setting.source) == (4, "default")


def test_python_records_them_without_a_folder_too(mine):
    mine.with_suffix(".yaml").unlink()
    with specbench.permitted(methods=["mine.py"]):
        run = specbench.run("mine.py", suite="few.yaml")
    assert run.finished and {spec.name: spec.values for spec in run.plan.methods}["mine"] == {"gamma": 4}


def test_only_a_command_line_that_names_it_runs_it(mine):
    run_it()
    unfinish()
    facts = refusal("run", "--resume", "runs/one")
    assert facts.strip().endswith(f"--allow-entry-point {mine}") and facts.count("error:") == 1
    output("run", "--resume", "runs/one", "--allow-entry-point", mine)
    Path("theirs.yaml").write_text("method: mine.py\nsettings: {gamma: 2}\n")
    assert "--allow-entry-point" in refusal("run", "--method", "theirs.yaml", "--suite", "smoke", "--limit", 1)
    with pytest.raises(UserError, match="allow-entry-point"):
        methods.module(str(mine))


def test_a_changed_file_is_another_method(mine):
    run_it()
    mine.write_text(mine.read_text() + "\n# changed\n")
    unfinish()
    assert "has changed since" in refusal("run", "--resume", "runs/one", "--allow-entry-point", mine)
    output("run", "--method", "mine.py", "--suite", "few.yaml", "--out", "runs/before")
    mine.write_text(mine.read_text() + "\n# changed again\n")
    run_again = ("run", "--method", "mine.py", "--suite", "few.yaml", "--out", "runs/two")
    output(*run_again)
    shown = output("compare", "runs/before", "runs/two", "--format", "csv")
    labels = {line.split(",")[3] for line in shown.splitlines() if "mine" in line}
    assert len({label for label in labels if label.startswith("mine code hash=")}) == 2, labels


@pytest.mark.long
def test_sweeps_take_it(mine):
    output("sweep", "--method", "mine.py", "--param", "gamma=2,3", "--suite", "few.yaml", "--out", "runs/s")
    assert [spec.name for spec in StoredRun(Path("runs/s")).plan.methods[1:]] == ["mine[gamma=2]", "mine[gamma=3]"]


def test_length_and_output_settings_take_files(here):
    output("new", "length", "patient")
    output("new", "output", "thin")
    options = ("--set", "sps.length=patient.py", "--set", "sps.output=thin.py")
    output("run", "--method", "sps", *options, "--suite", "few.yaml", "--out", "runs/one")
    assert {"length", "length code", "output", "output code"} <= StoredRun(Path("runs/one")).manifest["inputs"][
        "sps"
    ].keys()


@pytest.mark.long
def test_the_audit_tells_lossless_from_lossy(mine):
    words = ("audit", "--method", "mine.py", "--documents", 2, "--draws", 25, "--suite", "smoke")
    assert "lossless" in output(*words)
    mine.write_text(mine.read_text().replace(*LOSSY))
    assert "defect" in output(*words, code=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", "line 1: ModuleNotFoundError"),
        ("x = 1\n\n1 / 0", "line 3: ZeroDivisionError"),
        ("def f(:\n", "SyntaxError"),
        ("import sys\nsys.exit(0)", "line 2: SystemExit"),
        ("class Settings: ...\ndef build(s, p, w): ...", "Settings must be a class"),
        ("def build(s, p, w): ...", "has no Settings"),
        ("from specbench.config import Settings", "has no build"),
        ("from specbench.config import Settings\nbuild = 1", "build must be a function"),
        ("from specbench.config import Settings\ndef build(s, p, w): return None", "no `rounds` and no `reach`"),
    ],
)
def test_a_file_that_is_no_method_is_one_line(text, message, here):
    Path("bad.py").write_text(text)
    words = refusal("run", "--method", "bad.py", "--suite", "smoke", "--limit", 1)
    assert message in " ".join(words.split()) and "bad" in words and "Traceback" not in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "nowhere.py"), "there is no file nowhere.py"),
        (("--method", "sps.py"), "is called sps"),
        (("--method", "a b=mine.py"), "is not a name"),
        (("--method", "mine.py", "--set", "mine.gama=3"), "gamma"),
        (("--method", "mine.py", "--set", "mine.gamma=0"), "gamma"),
    ],
)
def test_bad_input_is_one_line(words, message, mine):
    shutil.copy(mine, "sps.py")
    assert message in " ".join(refusal("run", *words, "--suite", "smoke", "--limit", 1).split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("settings: {gama: 3}", "unknown key 'gama', did you mean 'gamma'?"),
        ("method: sps", "leave out 'method'"),
        ("x: 1", "'x'"),
    ],
)
def test_a_bad_yaml_beside_it_is_one_line(text, message, mine):
    mine.with_suffix(".yaml").write_text(text)
    assert message in " ".join(refusal("run", "--method", "mine.py", "--suite", "smoke", "--limit", 1).split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method", "a-b"), "not a valid Python name"),
        (("method", "class"), "not a valid Python name"),
        (("method", "sps"), "brings a method"),
        (("length", "mine"), "exists"),
        (("method", "x", "--out", "nowhere"), "no folder"),
    ],
)
def test_new_refuses(words, message, mine):
    assert message in refusal("new", *words)


@pytest.fixture
def package(mine, monkeypatch):
    """An installed package that brings the method `theirs`."""
    site = mine.parent / "site"
    facts = site / "theirs-1.2.dist-info"
    facts.mkdir(parents=True)
    shutil.move(mine, site / "theirs_method.py")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (facts / "RECORD").write_text("theirs_method.py,,\n")
    (facts / "entry_points.txt").write_text("[specbench.methods]\ntheirs = theirs_method\n")
    monkeypatch.syspath_prepend(site)
    trainer.cache_clear()
    yield site
    trainer.cache_clear()  # another file's package may bring one of this name
    sys.modules.pop("theirs_method", None)


def test_entry_points_are_methods(package):
    spec = config.load_method("theirs")
    assert spec.method == f"{ENTRY}theirs" and "theirs 1.2" in spec.description
    assert "theirs 1.2" in " ".join(output("list", "methods").split())
    output("run", "--method", "theirs", "--set", "theirs.gamma=2", "--suite", "few.yaml", "--out", "runs/one")
    stored = json.loads(Path("runs/one/manifest.json").read_text())
    assert len(stored["inputs"]["theirs"]["code"]) == 16
    unfinish()
    assert "--allow-entry-point entry-point:theirs" in " ".join(refusal("run", "--resume", "runs/one").split())
    assert call("run", "--resume", "runs/one", "--allow-entry-point", "theirs").exit_code == 0


def test_an_entry_point_that_is_gone_is_one_line(here):
    with (
        permissions.permitted(entry_points=["entry-point:gone"]),
        pytest.raises(UserError, match="no installed package"),
    ):
        methods.module("entry-point:gone")


def test_a_package_cannot_take_the_name_of_a_shipped_method(package):
    (package / "theirs-1.2.dist-info" / "entry_points.txt").write_text("[specbench.methods]\nsps = theirs_method\n")
    assert config.load_method("sps").method == "sps"
    words = refusal("run", "--method", "entry-point:sps", "--suite", "few.yaml")
    assert "theirs 1.2: specbench has a method sps" in " ".join(words.split())
    assert " ".join(output("list", "methods").split()).count(" sps ") == 1


def test_a_package_without_settings_says_which_file_is_missing(package):
    module = package / "theirs_method.py"
    module.write_text(module.read_text().replace("gamma: int", "gamma: int = ...  # type: ignore", 1))
    words = " ".join(refusal("run", "--method", "theirs", "--suite", "few.yaml").split())
    assert "gamma: field required" in words and "there is no theirs.yaml next to its module" in words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_at_all", "the trainer of theirs: cannot be imported: ModuleNotFoundError"),
        ("from specbench.config import Settings\ndef train(job): job.recipe_as(Settings)", "write recipes/theirs.yaml"),
    ],
)
def test_a_trainer_that_does_not_work_is_one_line(package, text, message):
    facts = package / "theirs-1.2.dist-info" / "entry_points.txt"
    facts.write_text(facts.read_text() + "[specbench.trainers]\ntheirs = theirs_train\n")
    (package / "theirs_train.py").write_text(text)
    words = refusal("train", "--method", "theirs", "--set", "theirs.gamma=2", "--suite", "math", "--documents", 1)
    assert message in " ".join(words.split())
    assert "theirs, draft" in " ".join(refusal("train", "--method", "sps", "--suite", "math", "--documents", 1).split())
    sys.modules.pop("theirs_train", None)
