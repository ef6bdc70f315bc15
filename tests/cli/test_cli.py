"""The command as a user meets it: quick help, names that complete, and one line for everything that is wrong."""

import functools
import inspect
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import command_line
import pandas as pd
import pytest
import yaml
from command_line import call, listing, refused
from typer.testing import CliRunner

from specbench.base.environment import MISMATCHES
from specbench.cli import app, measure
from specbench.cli.analyze import ANALYSES
from specbench.config import PACKAGE

SUITES = Path(__file__).parents[2] / "suites"
here, folders = command_line.here, command_line.folders  # every test works in an empty folder
QUICK = 6  # times what the libraries take that help needs; at 0.2 s a start is felt at 1.2 s
LIBRARIES = "import typer, rich.table, pydantic, yaml"
HEAVY = {"torch", "transformers", "pandas", "pyarrow", "lm_eval", "datasets", "scipy"}
COMMANDS = ("run", "show", "compare", "list", "calibrate", "bench")


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> SimpleNamespace:
    """A run of a user's own method and suite on the bundled pair: its result and its folder."""
    root, before = tmp_path_factory.mktemp("finished"), Path.cwd()
    os.chdir(root)
    try:
        write("mine.yaml", "method: csd\ndescription: mine\nsettings: {gate_threshold: 0.5}\n")
        write("short.yaml", "description: short\ntasks: [{task: gsm8k, fewshot: 1, max_new_tokens: 16}]\nlimit: 1\n")
        words = "run --method mine.yaml --method csd --suite short.yaml --set csd.gamma=4 --out done --seed 3"
        result = call(*words.split())
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return SimpleNamespace(
        result=result,
        root=root,
        folder=root / "done",
        manifest=json.loads((root / "done" / "manifest.json").read_text()),
    )


# Help, lists, completion


def alone(*arguments: str, **environment: str) -> str:
    """The standard output of `specbench` in a process of its own, which must import nothing heavy."""
    program = (
        "import sys, atexit\n"
        f"atexit.register(lambda: sys.stderr.write('HEAVY ' + ' '.join({HEAVY!r} & set(sys.modules)) + chr(10)))\n"
        "sys.argv[0] = 'specbench'\n"
        "from specbench.cli import main\n"
        "main()\n"
    )
    done = started(program, *arguments, **environment)
    assert done.stderr.split("HEAVY")[1].split() == [], "imports what help does not need"
    return done.stdout


def started(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "120", "PYTHONPATH": str(PACKAGE.parent)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done


def quick(*arguments: str) -> str:
    """The same, which must be quick too."""
    before = processor_time()
    for _ in range(2):  # a single start is measured too coarsely
        started(LIBRARIES)
    between = processor_time()
    texts = [alone(*arguments) for _ in range(2)]
    assert processor_time() - between < QUICK * (between - before)
    return texts[0]


def processor_time() -> float:
    """The seconds of processor time of all child processes that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_in_panels():
    text = quick("--help")
    for panel in ("Measure", "Read", "Prepare", "Check"):
        assert f"─ {panel} ─" in text
    for command in COMMANDS:
        assert f"│ {command} " in text


@pytest.mark.parametrize("command", [*COMMANDS, *(f"analyze {one.__name__}".replace("_", "-") for one in ANALYSES)])
def test_help_of_every_command_has_an_example(command):
    text = call(*command.split(), "--help").stdout
    assert f"specbench {command} " in text.split("Options")[0].split("Usage:")[1].split("\n", 1)[1]


def test_help_cuts_no_option_short_in_80_columns():
    """`run` has the longest options; their names must stand there whole."""
    text = alone("run", "--help", COLUMNS="80")
    assert "--no-apply-chat-template" in text and not re.search(r"--[a-z-]*…", text)


def test_help_names_the_fields_in_which_runs_may_differ():
    words = call("compare", "--help").stdout.replace(",", " ").split()
    assert set(MISMATCHES) <= set(words)


def test_lists_are_quick_and_complete():
    text = alone("list")
    methods = [path.stem for path in (SUITES / "methods").rglob("*.yaml")]
    pairs = [path.stem for path in (SUITES / "pairs").glob("*.yaml")]
    suites = [path.stem for path in SUITES.glob("*.yaml")]
    tasks = list(yaml.safe_load((SUITES / "tasks" / "index.yaml").read_text()))
    for names in (methods, pairs, suites, tasks):
        assert names and set(names) <= set(text.split())


@pytest.mark.parametrize(
    ("kind", "some", "other"),
    [
        ("pairs", "qwen2.5-72b-7b", "vanilla"),
        ("methods", "csd-ocm", "pocket"),
        ("suites", "summarization", "vanilla"),
        ("suites", "specdecpp-frontier", "vanilla"),
        ("tasks", "pocket_cnndm", "vanilla"),
        ("tasks", "alpaca", "vanilla"),
    ],
)
def test_list_of_one_kind(kind, some, other):
    words = call("list", kind).stdout.split()
    assert some in words and other not in words


@pytest.mark.parametrize(
    ("typed", "expected", "unexpected"),
    [
        ("run --method cs", {"csd", "csd-ocm", "csd-scg"}, "sps"),
        ("run --suite s", {"smoke", "summarization"}, "math"),
        ("run --pair po", {"pocket"}, "qwen3-32b-4b"),
        ("calibrate --suite ma", {"math"}, "code"),
        ("bench --pair pock", {"pocket"}, "qwen3-32b-4b"),
    ],
)
def test_completion(typed, expected, unexpected):
    line = f"specbench {typed}"
    completion = {"_SPECBENCH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    within = functools.partial(CliRunner().invoke, app, [], prog_name="specbench", env=completion)
    result = (alone(**completion) if "bench" in typed.split() else within().stdout).split()
    assert expected <= set(result) and unexpected not in result


# What a good run keeps


def test_bundled_tasks_stand_in_and_the_user_is_told_in_one_line(finished):
    lines = [line for line in finished.result.stdout.splitlines() if "pocket_gsm8k" in line and "stand in" in line]
    assert len(lines) == 1 and "pocket" in lines[0]
    assert [line["task"] for line in finished.manifest["plan"]["tasks"]] == ["pocket_gsm8k"]


def test_manifest_has_methods_settings_and_sources(finished):
    methods = {spec["name"]: spec for spec in finished.manifest["plan"]["methods"]}
    assert set(methods) == {"vanilla", "mine", "csd"}
    shipped = yaml.safe_load((SUITES / "methods" / "lossy" / "csd.yaml").read_text())["settings"]
    assert methods["csd"]["settings"] == shipped | {"gamma": {"value": 4, "source": "user"}}
    changed = methods["mine"]["settings"]["gate_threshold"]
    assert changed["value"] == 0.5 and Path(changed["source"]).name == "mine.yaml"
    assert methods["mine"]["settings"] == shipped | {"gate_threshold": changed}
    assert finished.manifest["plan"]["suite"] == "short" and finished.manifest["plan"]["seed"] == 3


def test_next_steps_are_named_and_the_rows_are_there(finished):
    text = finished.result.stdout
    assert "specbench show done" in text and "specbench compare done" in text
    shown = call("show", finished.folder, "--format", "json")
    assert shown.exit_code == 0 and {"vanilla", "mine", "csd"} <= {row["method"] for row in json.loads(shown.stdout)}


def test_resume_of_a_finished_run_repeats_nothing(finished, here):
    shutil.copytree(finished.folder, here / "done")
    before = (here / "done" / "samples.parquet").read_bytes()
    result = call("run", "--resume", "done")
    assert result.exit_code == 0, result.output
    assert (here / "done" / "samples.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "sampling"),
    [
        ("run --suite specdecpp", "T=1 top-k=50"),
        ("run --suite specdecpp --temperature 0", "greedy"),
        ("run --suite specdecpp --top-k 0 --top-p 0.9", "T=1 top-p=0.9"),
        ("run --suite specdecpp --temperature 0.5 --top-k 7", "T=0.5 top-k=7"),
        ("run --suite math --method sps", "greedy"),
        ("run --suite math --method sps --temperature 0.5", "T=0.5"),
        ("sweep --suite specdecpp --method sps --param gamma=2,4", "T=1 top-k=50"),
        ("sweep --suite specdecpp --method sps --param gamma=2,4 --top-k 5 --top-p 0.8", "T=1 top-k=5 top-p=0.8"),
        ("sweep --suite specdecpp --method sps --param gamma=2,4 --temperature 0", "greedy"),
    ],
)
def test_a_suites_sampling_counts_where_the_command_line_says_nothing(words, sampling, monkeypatch):
    from specbench.measure import command as commands

    plans = []
    monkeypatch.setattr(commands, "run", lambda plan, out, resume, shard: plans.append(plan))
    result = call(*words.split())
    assert result.exit_code == measure.STOPPED, result.output
    assert plans[0].sampling.name == sampling
    assert plans[0].max_length == (512 if "specdecpp" in words else None)


# Names and files


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run --method cds --suite smoke", "csd"),
        ("run --method csd --suite smok", "smoke"),
        ("run --method csd --suite smoke --pair pockt", "pocket"),
        ("run --method csd --suite smoke --baseline vanila", "vanilla"),
        ("run --method csd --suite smoke --set csd.gama=3", "gamma"),
        ("calibrate --suite mth", "math"),
        ("calibrate --suite math --method cds", "csd"),
        ("bench --pair pockt", "pocket"),
    ],
)
def test_unknown_names(words, meant):
    assert f"did you mean '{meant}'" in refused(*words.split())


def test_a_run_without_a_method_or_suite():
    assert "--suite" in refused("run", "--method", "csd")
    assert "--method" in refused("run", "--suite", "math")


def test_two_methods_of_one_name_do_not_replace_each_other_in_silence():
    write("csd.yaml", "method: csd\nsettings: {gamma: 2}")
    assert "csd" in refused("run", "--method", "csd", "--method", "csd.yaml", "--suite", "smoke", "--limit", "1")


# Settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--set sps.gamma=0", "gamma"),
        ("--set sps.gamma=many", "gamma"),
        ("--set sps.depth=3", "depth"),
        ("--set csd.gamma=3", "csd"),
        ("--set gamma=3", "METHOD.KEY=VALUE"),
        ("--set sps.gamma=[", "sps.gamma"),
        ("--temperature -1", "temperature"),
        ("--temperature nan", "temperature"),
        ("--top-p 0", "top_p"),
        ("--top-p 1.5", "top_p"),
        ("--top-k -1", "top_k"),
        ("--device toaster", "toaster"),
        ("--dtype float7", "float7"),
        ("--data-dir gone", "gone"),
        ("--apply-chat-template", "chat template"),
        ("--apply-chat-template --no-apply-chat-template", "not both"),
    ],
)
def test_settings_that_cannot_be(options, said):
    text = refused("run", "--method", "sps", "--suite", "summarization", "--limit", "1", *options.split())
    assert said in text.replace("top-", "top_")


# Models and data


def unreached(here: Path, *arguments: str) -> str:
    """The error of `specbench run` in a process whose hub is a closed port; it must not try again for long.

    One line before says whom it asks.
    """
    unset = {"HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"}
    hub = {"PYTHONPATH": str(PACKAGE.parent), "HF_HOME": str(here.parent / "hub"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "specbench.cli", "run", *arguments],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key not in unset} | hub,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    share = 4 + os.getloadavg()[0]  # seconds that pass for one that it works, on a busy machine
    assert time.monotonic() - began < 10 + share * worked, "it waited, which a busy machine does not explain"
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 2 and lines[0].endswith(" from 127.0.0.1"), done.stderr
    assert listing(here) == []
    return lines[1]


def test_data_that_cannot_be_reached(folders, here):
    text = unreached(here, "--method", "csd", "--suite", "math", "--pair", folders)
    for said in ("openai/gsm8k", "gsm8k_test.jsonl", "--data-dir", "pocket_gsm8k"):
        assert said in text


def test_models_that_cannot_be_reached(here):
    text = unreached(
        here, "--method", "sps", "--suite", "summarization", "--pair", "target=owner/big,draft=owner/small"
    )
    assert "owner/big" in text and "safetensors" in text


def test_data_folder_without_the_file(folders, here):
    (here / "data").mkdir()
    text = refused("run", "--method", "csd", "--suite", "math", "--pair", folders, "--data-dir", "data")
    assert "gsm8k_test.jsonl" in text and "pocket_gsm8k" in text


def test_prompts_longer_than_the_context(folders):
    write("long.yaml", "description: d\nlimit: 1\ntasks: [{task: pocket_gsm8k, fewshot: 12}]")
    text = refused("run", "--method", "sps", "--suite", "long.yaml", "--pair", folders)
    assert "pocket_gsm8k" in text and "256" in text and "shots" in text


def test_models_that_are_not_there(here):
    text = refused("run", "--method", "sps", "--suite", "summarization", "--pair", "target=no/folder/here,draft=x")
    assert "--target no/folder/here: no such folder" in text


# Run folders


def test_a_folder_that_exists(finished, here):
    (here / "mine").mkdir()
    write("mine/notes.txt", "not to be lost")
    assert "--resume" not in refused("run", "--method", "csd", "--suite", "smoke", "--out", "mine")
    write("mine/manifest.json", "{}")
    text = refused("run", "--method", "csd", "--suite", "smoke", "--out", "mine")
    assert "--resume mine" in text and "--out" in text


@pytest.mark.parametrize("name", ["gone", "."])
def test_resume_of_what_is_no_run(name):
    assert "manifest.json" in refused("run", "--resume", name)
    assert "manifest.json" in refused("show", name) or "not a finished run" in refused("show", name)


def test_resume_of_a_broken_manifest(here):
    (here / "broken").mkdir()
    (here / "broken" / "manifest.json").write_text("{")
    assert "broken" in refused("run", "--resume", "broken")


def test_resume_with_other_settings(finished, monkeypatch):
    monkeypatch.chdir(finished.root)
    words = ["run", "--resume", "done", "--suite", "short.yaml", "--set", "csd.gamma=4", "--seed", "3"]
    text = refused(*words, "--method", "mine.yaml", "--method", "csd", "--repeats", "2")
    assert "repeats" in text and "--resume" in text
    assert "methods" in refused(*words, "--method", "csd")


@pytest.mark.parametrize("option", ["--seed 9", "--set csd.gamma=2", "--method sps"])
def test_resume_does_not_ignore_options(finished, monkeypatch, option):
    """An option that a resumed run would not follow is refused, not dropped in silence."""
    monkeypatch.chdir(finished.root)
    assert "resume" in refused("run", "--resume", "done", *option.split())


def test_a_full_disk(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(total=10**12, used=10**12, free=3 * 2**20))
    text = refused("run", "--method", "csd", "--suite", "smoke")
    assert "3 MiB" in text and "--out" in text


def test_show_and_compare_of_what_is_no_run(finished):
    assert "gone" in refused("compare", finished.folder, "gone")


@pytest.mark.parametrize("words", ["list", "run --help", "show RUN --format json"])
def test_a_closed_pipe_ends_quietly(finished, words):
    """As `specbench … | head -1`: the shell's exit code for it, and not a word."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specbench.cli", *words.replace("RUN", str(finished.folder)).split()]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_stopped_run_without_a_document(finished, here):
    (here / "begun").mkdir()
    shutil.copy(finished.folder / "manifest.json", here / "begun")
    assert "before the first of its 1 documents was done; `specbench run --resume" in refused("show", "begun")


def test_what_is_wrong_is_told_with_its_file_its_key_its_value_and_what_to_do(finished, here):
    write("own.yaml", "description: d\ntasks: gsm8k")
    run = ("run", "--method", "csd", "--suite")
    assert "own.yaml: tasks: input should be a list, not gsm8k" in refused(*run, "own.yaml")
    write("own.yaml", "description: d\ntasks: [{task: gsm8k, fewshot: many}]")
    assert "own.yaml: tasks.0.fewshot: " in (text := refused(*run, "own.yaml")) and text.endswith(", not many")
    assert "--temperature -1.0: input should be" in refused(*run, "smoke", "--temperature", "-1")
    text = refused(*run, "smoke", "--set", "csd.gamma=four")
    assert "method csd: gamma: " in text and "not four; it is from --set csd.gamma=…" in text
    text = refused("sweep", "--method", "csd", "--param", "gamma=2,four", "--suite", "smoke")
    assert "not four; it is from --param gamma=…" in text
    shutil.copytree(finished.folder, here / "done")
    (here / "done" / "rounds.parquet").write_text("x")
    text = refused("show", "done")
    assert "rounds.parquet is damaged" in text and text.endswith("/done` decodes what is lost")
    manifest = json.loads((here / "done" / "manifest.json").read_text())
    manifest["plan"]["temperature"] = "hot"
    (here / "done" / "manifest.json").write_text(json.dumps(manifest))
    text = refused("show", "done")
    assert "done/manifest.json: plan: temperature: " in text and text.endswith(", not hot; this run cannot be used")


def test_a_sweep_is_one_run_with_a_method_for_each_point(tmp_path):
    out = tmp_path / "sweep"
    write("few.yaml", "description: few\ntasks: [{task: gsm8k, fewshot: 0, max_new_tokens: 12}]\nlimit: 1\n")
    options = ("--method", "sps", "--param", "gamma=2,3", "--suite", "few.yaml")
    result = call("sweep", *options, "--out", out)
    assert result.exit_code == 0, result.output
    assert "sps[gamma=2]" in result.output and "sps[gamma=3]" in result.output
    samples = pd.read_parquet(out / "samples.parquet")
    assert set(samples.method) == {"vanilla", "sps[gamma=2]", "sps[gamma=3]"}


def test_plots_of_the_command_line_are_those_there_are_and_its_help_explains_each():
    from specbench.cli.read import Plot, plot
    from specbench.report.plots.listed import KINDS

    assert [kind.value for kind in Plot] == list(KINDS)
    explained = [text.partition(":")[0].strip() for text in inspect.getdoc(plot).split("\n\n")]
    assert set(KINDS) <= set(explained), "the help has a sentence on each"


def test_a_suite_that_brings_its_methods_needs_none(here):
    tasks = "description: two\ntasks: [{task: gsm8k, fewshot: 1, max_new_tokens: 12}]\n"
    write("mine.yaml", tasks + "methods: [{method: sps, settings: {gamma: 3}}, {method: csd}]\n")
    result = call("run", "--suite", "mine.yaml", "--limit", "1", "--split", "validation", "--out", "made")
    assert result.exit_code == 0, result.output
    manifest = json.loads((here / "made" / "manifest.json").read_text())
    assert [m["name"] for m in manifest["plan"]["methods"]] == ["vanilla", "sps[gamma=3]", "csd"]
    assert manifest["plan"]["split"] == "validation"
    other = call("run", "--suite", "mine.yaml", "--method", "sps", "--limit", "1", "--out", "tested")
    assert other.exit_code == 0, other.output
    tested = json.loads((here / "tested" / "manifest.json").read_text())
    assert [m["name"] for m in tested["plan"]["methods"]] == ["vanilla", "sps"]
    assert tested["requests"] != manifest["requests"], "validation documents are others"


def test_suites_without_methods_and_splits_that_do_not_exist():
    assert "--method csd --suite math" in refused("run", "--suite", "math")
    assert "no documents of a split 'sometimes'" in refused(
        "run", "--method", "sps", "--suite", "math", "--split", "sometimes", "--out", "x"
    )


def test_merging_what_is_no_memory(here):
    write("words.parquet", "words")
    assert "is damaged" in refused("merge", "words.parquet", "--out", "all.parquet")
    assert "specbench calibrate" in refused("merge", "gone.parquet", "--out", "all.parquet")
