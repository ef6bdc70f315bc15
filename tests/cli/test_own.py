"""The walks of somebody who has no clone: own tasks, own prompts and own models, from an empty folder."""

import json
import shutil
from pathlib import Path

import command_line
import pytest
from cases import mostly_long
from command_line import call, refused

from specbench.config import TaskLine, own_pair
from specbench.config.own_tasks import own_task
from specbench.results.stored import StoredRun

here, folders = command_line.here, command_line.folders  # every test works in an empty folder
TASK = r"""
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: data/sums.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "Q: {{question}}\nA:"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
filter_list: [{name: last, filter: [{function: regex, group_select: -1, regex_pattern: "([0-9]+)"}]}]
generation_kwargs: {until: ["Q:"], max_gen_toks: 6}
"""
SUMS = [("1+1", "2"), ("2+3", "5"), ("4+4", "8")]
QUESTIONS = [  # in Spec-Bench's form
    {"question_id": 81, "category": "writing", "turns": ["Write about Ann.", "Now about Bob."]},
    {"question_id": 82, "category": "math", "turns": ["Add 1 and 2.", "Add 3."], "reference": ["3", "6"]},
    {"question_id": 300, "category": "summarization", "turns": ["Ann went home. Bob stayed. What happened?"]},
]


@pytest.fixture
def models(folders) -> tuple[str, ...]:
    """--target and --draft of two tiny models."""
    target, draft = (part.partition("=")[2] for part in folders.split(","))
    return "--target", target, "--draft", draft


@pytest.fixture
def tasks(here) -> Path:
    """A folder `mine` with a task and its data."""
    write("mine/sums.yaml", TASK)
    write("mine/data/sums.jsonl", "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in SUMS))
    return here / "mine"


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def done(*words: object) -> StoredRun:
    """The run in `it` that a command makes or goes on with."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return StoredRun(Path("it"))


# Tasks


RUN = ("run", "--method", "pld", "--out", "it")
CODE = "--allow-code-execution"
WAYS = {
    "the folder": ("--task-dir", "mine"),
    "a task of the folder": ("--task-dir", "mine", "--task", "sums"),
    "the file": ("--task", "mine/sums.yaml"),
    "a suite next to it": ("--suite", "mine/suite.yaml"),
    "a suite elsewhere": ("--suite", "other.yaml", "--task-dir", "mine"),
}


@mostly_long("way", WAYS, ("a suite elsewhere", "a task of the folder"))
def test_own_tasks_run_from_any_folder(tasks, models, way):
    write("mine/suite.yaml", "description: own\ntasks: [{task: sums.yaml, max_new_tokens: 5}]\n")
    write("other.yaml", "description: own\ntasks: [{task: sums, max_new_tokens: 5}]\n")
    run = done(*RUN, *models, *WAYS[way], CODE)
    assert run.documents().keys() == {"sums"} and len(run.documents()["sums"]) == len(SUMS)
    assert run.headline() == {"sums": "exact_match,last"}
    assert run.scores().value.notna().all() and set(run.scores().metric) == {"exact_match"}
    most = 5 if "suite" in way else 6
    assert run.manifest["generation"]["sums"] == {"until": ["Q:"], "max_new_tokens": most}


def test_an_own_task_stands_in_for_nothing_with_the_bundled_pair(tasks):
    assert done(*RUN, "--task-dir", "mine", "--limit", "1", CODE).plan.tasks[0].task == "sums"


def test_a_run_of_own_tasks_is_resumed_with_their_permission_from_elsewhere(tasks, models, monkeypatch):
    run = done(*RUN, *models, "--task-dir", "mine", CODE)
    texts = run.samples().text.tolist()
    Path("it/scores.parquet").unlink()
    Path("elsewhere").mkdir()
    shutil.move("it", "elsewhere")
    monkeypatch.chdir("elsewhere")
    assert "a file names it, not this command line" in refused("run", "--resume", "it")
    assert f"--task-dir {tasks}" in refused("run", "--resume", "it", CODE), "scoring programs is another permission"
    assert "add --allow-code-execution" in refused("run", "--resume", "it", "--task-dir", tasks)
    again = done("run", "--resume", "it", "--task-dir", tasks, CODE)
    assert again.finished and again.samples().text.tolist() == texts


def test_own_tasks_run_nothing_of_their_own_without_permission(tasks, models):
    write("mine/evil.py", "from pathlib import Path\nPath('mark').touch()\ndef run(docs):\n    return docs\n")
    write("mine/sums.yaml", TASK + "process_docs: !function evil.run\n")
    for way in (WAYS["the folder"], WAYS["the file"]):
        assert CODE in refused(*RUN, *models, *way)
    assert not Path("mark").exists()
    done(*RUN, *models, "--task-dir", "mine", CODE)
    assert Path("mark").exists(), "the control"


def test_a_suite_leads_to_no_task_outside_of_its_folder_by_itself(tasks, models):
    write("suites/one.yaml", "description: own\ntasks: [{task: ../mine/sums.yaml}]\n")
    line = refused(*RUN, *models, "--suite", "suites/one.yaml", CODE)
    assert "a file names it" in line and "--task-dir" in line


WRONG = {
    "nowhere": (("--task", "mine/none.yaml"), "there is no task file mine/none.yaml"),
    "no such name": (("--task-dir", "mine", "--task", "sum"), "did you mean 'sums'?"),
    "no bundled name": (("--task", "gsm8"), "did you mean 'gsm8k'?"),
    "no such folder": (("--task-dir", "nowhere"), "no such folder"),
    "an empty folder": (("--task-dir", "empty"), "holds no task"),
    "a group": (("--task", "group.yaml"), "not a single task"),
    "no YAML": (("--task", "broken.yaml"), "is not YAML"),
    "two of a name": (("--task", "mine/sums.yaml", "--task", "copy/sums.yaml"), "two different tasks are called sums"),
    "two of a name in a folder": (("--task-dir", "twice"), "are both called sums"),
    "no data": (("--task", "copy/sums.yaml", CODE), "has no such file"),
    "programs": (("--task", "unsafe.yaml", CODE), "runs model-written code"),
    "a choice": (("--task", "choice.yaml", CODE), "output type multiple_choice"),
    "includes itself": (("--task", "round.yaml"), "include each other"),
    "a key of ours": (("--suite", "keys.yaml"), "no keys `file` and `own`"),
    "nothing": ((), "say what to run"),
    "too much": (("--task", "gsm8k", "--suite", "math"), "give one"),
    "prompts and tasks": (("--prompts", "p.jsonl", "--task-dir", "mine"), "give one"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_task_that_cannot_be_run_is_refused_in_one_line(tasks, models, name):
    options, words = WRONG[name]
    Path("empty").mkdir()
    write("group.yaml", "group: all\ntask: [a, b]\n")
    write("broken.yaml", "task: [\n")
    write("round.yaml", "task: a\ninclude: round.yaml\n")
    write("keys.yaml", "description: x\ntasks: [{task: gsm8k, file: mine/sums.yaml}]\n")
    write("unsafe.yaml", TASK.replace("data/", "mine/data/") + "unsafe_code: true\n")
    write("choice.yaml", TASK.replace("generate_until", "multiple_choice").replace("data/", "mine/data/"))
    for file in ("copy/sums.yaml", "twice/one.yaml", "twice/in/two.yaml"):
        write(file, TASK)
    assert words in refused(*RUN, *models, *options)


def test_what_is_read_of_a_task_runs_nothing(here):
    write(
        "base.yaml", "task: base\nmetric_list: [{metric: !function evil.run}]\ngeneration_kwargs: {max_gen_toks: 9}\n"
    )
    write("own.yaml", "include: base.yaml\ntask: own\nfilter_list: [{name: strict}]\n")
    line = own_task(Path("own.yaml"), TaskLine(task="own.yaml", fewshot=2))
    assert (line.task, line.fewshot, line.file) == ("own", 2, str(here / "own.yaml"))
    assert (line.own.metric, line.own.max_new_tokens) == ("!function evil.run,strict", 9)


# Prompts


def test_spec_benchs_questions_run_as_they_are(models):
    write("question.jsonl", "".join(json.dumps(question) + "\n" for question in QUESTIONS))
    run = done("run", *models, "--prompts", "question.jsonl", "--method", "sps", "--max-new-tokens", "8", "--out", "it")
    assert {task: len(documents) for task, documents in run.documents().items()} == {"mt_bench": 4, "summarization": 1}
    assert run.finished and run.scores().empty
    shown = call("show", "it").output
    assert "mt_bench" in shown and "summarization" in shown and "accuracy lower" not in shown
    assert "it" in call("compare", "it", "it", "--by", "task").output
    again = done("run", "--resume", "it")
    assert again.samples().text.tolist() == run.samples().text.tolist()


def test_prompts_are_swept_like_a_suite(models):
    write("asked.jsonl", '{"prompt": "Hello there."}\n')
    options = "--method sps --param gamma=1,2 --prompts asked.jsonl --max-new-tokens 4 --out it"
    run = done("sweep", *models, *options.split())
    assert [spec.name for spec in run.plan.methods] == ["vanilla", "sps[gamma=1]", "sps[gamma=2]"]


@pytest.mark.parametrize("extra", [("--data-dir", "."), ("--split", "validation")])
def test_prompts_have_documents_of_their_own(models, extra):
    write("asked.jsonl", '{"prompt": "Hello there."}\n')
    assert "leave out" in refused(*RUN, *models, "--prompts", "asked.jsonl", *extra)


# Pairs


@pytest.mark.long
def test_two_folders_are_a_pair_called_after_both(models, monkeypatch):
    write("asked.jsonl", '{"prompt": "Hello there."}\n')
    for role, folder in zip(("big", "small"), models[1::2], strict=True):
        shutil.copytree(folder, role)
    run = done(
        "run", "--target", "big", "--draft", "small", *RUN[1:], "--prompts", "asked.jsonl", "--max-new-tokens", "4"
    )
    assert run.plan.pair.name == "big-small" and "big-small" in call("show", "it").output
    Path("it/scores.parquet").unlink()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert call("run", "--resume", "../it").exit_code == 0, "folders are found from anywhere"
    shutil.copy("../small/model.safetensors", "../big/model.safetensors")
    Path("../it/scores.parquet").unlink()
    assert "began with different" in refused("run", "--resume", "../it")


def test_a_method_without_a_draft_needs_no_draft(models):
    write("asked.jsonl", '{"prompt": "Hello there."}\n')
    options = ("--prompts", "asked.jsonl", "--max-new-tokens", "4", "--out", "it")
    assert done("run", *models[:2], "--method", "pld", *options).plan.pair.draft is None
    shutil.rmtree("it")
    assert "no draft" in refused("run", *models[:2], "--method", "sps", *options)


COMMANDS = {
    "run": ("--method", "pld", "--suite", "smoke"),
    "sweep": ("--method", "sps", "--param", "gamma=1,2", "--suite", "smoke"),
    "audit": (),
    "doctor": (),
    "profile": (),
    "throughput": (),
    "bench": (),
    "calibrate": ("--suite", "pocket"),
    "train": ("--method", "judge", "--suite", "pocket"),
}
NOT_MODELS = {
    "a path": (("--target", "./nowhere"), "--target ./nowhere: no such folder"),
    "a file": (("--target", "file.txt"), "it is a file"),
    "a draft": (("--target", ".", "--draft", "/no/where"), "--draft /no/where: no such folder"),
    "a draft alone": (("--draft", "."), "--draft goes with --target"),
    "both": (("--pair", "pocket-duo", "--target", "."), "give one of them"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NOT_MODELS)
def test_wherever_a_pair_is_named_models_are_and_what_is_none_is_refused(command, name):
    write("file.txt", "")
    options, words = NOT_MODELS[name]
    assert words in refused(command, *COMMANDS[command], *options)


def test_a_name_that_is_no_folder_may_be_one_of_the_hub():
    assert own_pair("Qwen/Qwen3-8B").target.model == "Qwen/Qwen3-8B"
    assert own_pair("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B").name == "Qwen3-8B-Qwen3-0.6B"


def test_no_name_of_folders_is_that_of_a_shipped_pair():
    """Its heads would be taken for those of the folder."""
    Path("pocket").mkdir()
    assert own_pair("pocket").name == "own-pocket"
