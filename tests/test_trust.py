"""Code that specbench did not bring runs where the command line in force says so, and never because a file does."""

import ast
import json
import pickle
import shutil
from pathlib import Path

import command_line
import pytest
import torch
import yaml
from command_line import call, refused
from made_runs import TOKENIZER
from oracle import tiny
from sandboxed import SYSTEM, lacking

from specbench import config, permissions
from specbench.config import PACKAGE, SUITES, ModelSpec, UserError
from specbench.engine.models.folders import location
from specbench.engine.models.pair import load_pair
from specbench.measure import command as commands
from specbench.measure import gate
from specbench.plan import resolve_plan
from specbench.tasks import sandbox
from specbench.tasks.harness import TaskChoice, Tasks
from specbench.tasks.sandbox import Isolation

ROOT = Path(__file__).parents[1]
here = command_line.here  # every test works in an empty folder
SUITE = "description: one\ntasks: [{task: pocket_gsm8k, fewshot: 0, max_new_tokens: 4}]\n"
CODE = "description: programs\ntasks: [{task: pocket_humaneval, fewshot: 0, max_new_tokens: 4}]\n"
FLAGS = {"trust_remote_code": "--trust-remote-code", "allow_pickle": "--allow-pickle"}


class Evil:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def mark(tmp_path) -> Path:
    """The file that hostile code makes."""
    return tmp_path / "ran"


@pytest.fixture
def benign(tmp_path) -> Path:
    """A tiny model in a folder."""
    folder = tmp_path / "benign"
    tiny("llama", 1, vocab=2048).float().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture
def own_model(benign, mark, tmp_path, monkeypatch) -> Path:
    """The model with code of its own, for its settings and its classes."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    report = json.loads((benign / "config.json").read_text())
    classes = {"AutoConfig": "own_model.OwnConfig", "AutoModelForCausalLM": "own_model.Own"}
    (benign / "config.json").write_text(json.dumps(report | {"model_type": "own_model", "auto_map": classes}))
    (benign / "own_model.py").write_text(
        "from pathlib import Path\nfrom transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(mark)!r}).touch()\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own_model'\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    return benign


@pytest.fixture
def own_tokenizer(benign, mark, tmp_path, monkeypatch) -> Path:
    """The model with a tokenizer that is code of its own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    report = json.loads((benign / "tokenizer_config.json").read_text())
    report |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own_tokenizer.OwnTokenizer"]}}
    (benign / "tokenizer_config.json").write_text(json.dumps(report))
    (benign / "own_tokenizer.py").write_text(
        "from pathlib import Path\nfrom transformers import PreTrainedTokenizerFast\n"
        f"Path({str(mark)!r}).touch()\nclass OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    return benign


@pytest.fixture
def pickled(benign, mark) -> Path:
    """The model with weights that make a file when they are unpickled."""
    (benign / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Evil(mark)}, benign / "pytorch_model.bin")
    return benign


def suite(text: str = SUITE) -> str:
    Path("one.yaml").write_text(text)
    return "one.yaml"


def run(target: Path, *flags: str | Path):
    return ("run", "--method", "vanilla", "--suite", suite(), "--limit", "1", "--pair", f"target={target}", *flags)


def plan_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())["plan"]


# Models ---------------------------------------------------------------------------------------------------------------


def test_a_models_own_code_needs_its_flag_each_time(own_model, mark):
    assert "--trust-remote-code" in refused(*run(own_model, "--out", "it"))
    assert not mark.exists()
    done = call(*run(own_model, "--out", "it", "--trust-remote-code"))
    assert done.exit_code == 0, done.output
    assert mark.exists(), "the control: with the flag it runs"
    assert json.loads(Path("it/manifest.json").read_text())["models"]["target"]["architecture"] == "Own"
    assert plan_of(Path("it"))["trust_remote_code"] is True
    mark.unlink()
    reads = ("trace", "it", "--task", "pocket_gsm8k", "--doc", "0")
    for command in (("run", "--resume", "it"), reads, ("serving", "it")):
        assert refused(*command).endswith("add --trust-remote-code"), command
    assert call(*reads, "--trust-remote-code").exit_code == 0
    assert call("run", "--resume", "it", "--trust-remote-code").exit_code == 0


def test_a_tokenizers_own_code_needs_the_flag(own_tokenizer, mark):
    with pytest.raises(UserError, match="trust-remote-code"):
        load_pair(config.load_pair(f"target={own_tokenizer}"), "cpu")
    assert not mark.exists()
    load_pair(config.load_pair(f"target={own_tokenizer}"), "cpu", trust_remote_code=True)
    assert mark.exists()


def test_a_pickle_is_never_let_run(pickled, mark):
    assert "--allow-pickle" in refused(*run(pickled, "--out", "it"))
    line = refused(*run(pickled, "--out", "it", "--allow-pickle"))
    assert "more than tensors" in line and not mark.exists()
    torch.load(pickled / "pytorch_model.bin", weights_only=False)
    assert mark.exists(), "the control: the file does what it says"


def test_a_kernel_of_the_hub_is_code_too(benign):
    report = json.loads((benign / "config.json").read_text())
    (benign / "config.json").write_text(json.dumps(report | {"attn_implementation": "somebody/kernel"}))
    with pytest.raises(UserError, match="trust-remote-code"):
        load_pair(config.load_pair(f"target={benign}"), "cpu")


READERS = {
    "resume": ("run", "--resume", "evil"),
    "trace": ("trace", "evil", "--task", "pocket_gsm8k", "--doc", "0"),
    "rejections": ("analyze", "rejections", "evil", "--method", "sps"),
    "multi-draft": ("analyze", "multi-draft", "evil", "--method", "sps"),
    "rules": ("analyze", "rules", "evil", "--method", "sps"),
    "counterfactual": ("analyze", "counterfactual", "evil", "--method", "cospec"),
    "simulate": ("simulate", "evil", "--heads", "heads", "--method", "specdecpp"),
    "serving": ("serving", "evil"),
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory) -> Path:
    """Two finished runs of the bundled pair, with drafts, mismatches and distributions."""
    folder = tmp_path_factory.mktemp("honest")
    (folder / "one.yaml").write_text(SUITE.replace("max_new_tokens: 4", "max_new_tokens: 24"))
    fixed = ("--set", "specdecpp.shortest=20", "--set", "specdecpp.longest=20")
    runs = {"sampled": ("--method", "sps", "--temperature", "1")}
    runs["greedy"] = ("--method", "cospec", "--method", "specdecpp", *fixed)
    for name, options in runs.items():
        done = call("run", *options, "--limit", "2", "--suite", folder / "one.yaml", "--out", folder / name)
        assert done.exit_code == 0, done.output
    return folder


def evil_run(honest: Path, target: Path, command: tuple[str, ...] = (), **info: bool) -> None:
    """A run that serves a command in the folder `evil`, by somebody whose plan names a model of theirs, and flags."""
    shutil.copytree(honest / ("sampled" if "sps" in command else "greedy"), "evil")
    if "--resume" in command:  # which loads nothing for a run that is finished
        Path("evil/scores.parquet").unlink()
    facts = json.loads(Path("evil/manifest.json").read_text())
    model = ModelSpec(model=str(target)).model_dump()
    facts["plan"]["pair"] |= {"target": model, "draft": model}
    facts["plan"] |= info
    Path("evil/manifest.json").write_text(json.dumps(facts))
    Path("heads").mkdir()
    shutil.copy(config.SUITES / "trained" / "heads" / "specdecpp-pocket.safetensors", "heads")


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["own_model", "own_tokenizer", "pickled"])
def test_a_run_folder_of_somebody_else_switches_nothing_on(request, honest, kind, command, mark):
    evil_run(honest, request.getfixturevalue(kind), command, trust_remote_code=True, allow_pickle=True)
    done = call(*command)
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert not mark.exists() and len(lines) == 1 and "--trust-remote-code" in lines[0], done.output


def test_a_report_on_such_a_run_has_no_traces_and_says_why(honest, own_tokenizer, mark):
    evil_run(honest, own_tokenizer, trust_remote_code=True)
    assert call("report", "evil").exit_code == 0
    assert not mark.exists() and "--trust-remote-code" in Path("report.html").read_text()


@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
@pytest.mark.parametrize("kind", ["own_model", "pickled"])
def test_nor_does_one_that_tells_of_no_flag(request, honest, kind, command, mark):
    """Without the flags in the plan the models are loaded, as those that bring no code."""
    evil_run(honest, request.getfixturevalue(kind), command)
    done = call(*command)
    assert done.exit_code in (0, 2) and not mark.exists(), done.output
    assert done.exit_code == 2 or command[0] == "trace" or command[1] == "rejections", done.output


@pytest.mark.parametrize("flag", FLAGS)
def test_a_plan_is_loaded_only_with_the_flags_it_was_made_with(benign, flag):
    plan = resolve_plan(["vanilla"], suite(), f"target={benign}", [], None, 1, **{flag: True})
    with pytest.raises(UserError, match=f"add {FLAGS[flag]}$"):
        permissions.check_loading(plan)
    others = dict.fromkeys(set(FLAGS) - {flag}, True)
    with permissions.permitted(**others), pytest.raises(UserError):
        permissions.check_loading(plan)
    with permissions.permitted(**{flag: True}):
        permissions.check_loading(plan)
    with pytest.raises(UserError):  # it held for the block
        permissions.check_loading(plan)


# Functions of the user's own ------------------------------------------------------------------------------------------


@pytest.fixture
def function(mark) -> str:
    """A function of one's own in a file of the current folder, which says that it was imported."""
    Path("mine.py").write_text(
        f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef mean(rows):\n    return sum(rows) / len(rows)\n"
    )
    return "mine.py:mean"


ENSEMBLE = ("run", "--suite", "one.yaml", "--limit", "1", "--baseline", "none")


def test_a_function_that_a_file_names_is_named_again_on_the_command_line(function, mark):
    suite()
    Path("own.yaml").write_text(f"method: ensemble\nsettings: {{combine: {function!r}}}\n")
    facts = f"add --allow-entry-point {function}"
    assert facts in refused(*ENSEMBLE, "--method", "own.yaml", "--out", "it")
    assert not mark.exists()
    other = (*ENSEMBLE, "--method", "own.yaml", "--out", "it", "--allow-entry-point", "other.py:mean")
    assert facts in refused(*other) and not mark.exists()
    done = call(*ENSEMBLE, "--method", "own.yaml", "--out", "it", "--allow-entry-point", function)
    assert done.exit_code == 0, done.output
    assert f"combine: {function} from {Path('mine.py').resolve()}" in done.stderr.replace("\n", "")
    assert mark.exists() and plan_of(Path("it"))["methods"][0]["settings"]["combine"]["value"] == function
    mark.unlink()
    Path("it/scores.parquet").unlink()  # a finished run needs no function any more
    assert facts in refused("run", "--resume", "it") and facts in refused("audit", "--method", "own.yaml")
    assert not mark.exists()
    assert call("run", "--resume", "it", "--allow-entry-point", function).exit_code == 0 and mark.exists()


def test_set_names_and_allows_a_function(function, mark):
    suite()
    done = call(*ENSEMBLE, "--method", "ensemble", "--set", f"ensemble.combine={function}")
    assert done.exit_code == 0 and mark.exists(), done.output
    assert done.stderr.count("combine: mine.py:mean from ") == 1, "however often it is built"


def test_what_a_command_line_allows():
    def allowed(text: str, *assignments: str) -> bool:
        with permissions.permitted(assignments=assignments):
            try:
                permissions.check_entry_point(text, "it")
            except UserError:
                return False
        return True

    assert allowed("a:f", "cos.combine=a:f") and allowed("a:f", "cos.combine='a:f'")
    assert allowed("a:f", "combine=weighted,a:f") and allowed("b.py:g", "combine=a:f, b.py:g")
    assert not allowed("a:f") and not allowed("a:f", "cos.gamma=a:f") and not allowed("a:f", "cos.combine=b:a:f")


def test_a_file_of_the_current_folder_is_never_imported_by_accident(mark):
    """`colorsys` is a module of Python's own that nothing here has imported; one of this name lies in the folder."""
    for name in ("colorsys", "only_here"):
        Path(f"{name}.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nf = sum\n")
    suite()
    for name in ("colorsys", "only_here"):
        line = refused(*ENSEMBLE, "--method", "ensemble", "--set", f"ensemble.combine={name}:f", "--out", "it")
        assert line.endswith(f"write combine={name}.py:f") and not mark.exists()


# Generated programs ---------------------------------------------------------------------------------------------------


WHOLE = Isolation("bubblewrap", True, "")
LIMITS = Isolation("limits", False, "programs can reach the network")
ROOTS = Isolation("unsafe", False, "programs run as root")


def plan(pair: str = "pocket", text: str = CODE, **options):
    return resolve_plan(["vanilla"], suite(text), pair, [], None, 1, **options)


def test_who_lets_programs_run(monkeypatch, benign):
    hub = CODE.replace("pocket_humaneval", "humaneval")
    data = {"data_dir": str(benign)}
    own = f"target={benign}"
    #  pair, suite, options, isolation, flag -> who allowed it, or None: nobody
    cases = [
        ("pocket", CODE, {}, WHOLE, False, "bundled"),
        ("pocket", hub, {}, WHOLE, False, "bundled"),  # the bundled task stands in
        ("pocket", CODE, {}, LIMITS, False, None),
        ("pocket", CODE, {}, LIMITS, True, "flag"),
        ("pocket", hub, data, WHOLE, False, None),  # real documents
        ("pocket", hub, data, WHOLE, True, "flag"),
        (own, CODE, {}, WHOLE, False, None),
        (own, CODE, {}, WHOLE, True, "flag"),
        (own, CODE, {}, LIMITS, True, "flag"),
        ("pocket", CODE, {}, ROOTS, False, None),
        (own, CODE, {}, ROOTS, True, None),  # the flag alone is not enough
        (own, CODE, {}, ROOTS, "unsafe", "flag"),
        (own, CODE, {}, LIMITS, "unsafe", "flag"),
    ]
    for pair, text, options, isolation, flag, who in cases:
        monkeypatch.setattr(sandbox, "isolation", lambda result=isolation: result)
        chosen = plan(pair, text, **options)
        with permissions.permitted(allow_code_execution=flag):
            assert gate.may_run_code(chosen) is (who is not None)
            if who is None:
                with pytest.raises(UserError, match="--allow-code-execution" + "=unsafe" * (isolation is ROOTS)):
                    gate.check_code(chosen)
            else:
                facts = {"allowed_by": who, "isolation": isolation.name}
                assert gate.code_execution(chosen) == facts, (pair, text, options)
    assert gate.code_execution(plan(own, SUITE)) is None, "no such task"


def test_programs_of_root_are_permitted_by_name_only(benign):
    """The flag stands alone or with one value, and takes no word that follows it."""
    command = ("run", "--suite", suite(CODE), "--pair", f"target={benign}", "--out", "it")
    for word in ("--allow-code-execution", "--allow-code-execution=unsafe"):
        assert "no method 'cds'" in refused(*command, word, "--method", "cds")
    assert call(*command, "--method", "vanilla", "--allow-code-execution=maybe").exit_code == 2
    assert "Got unexpected extra argument" in call(*command, "--allow-code-execution", "unsafe").output
    for value, flag in (("unsafe", " --allow-code-execution=unsafe"), (True, " --allow-code-execution"), (None, "")):
        with permissions.permitted(allow_code_execution=value):
            assert permissions.flags() == flag


def test_what_is_not_isolated_is_said_loudly_and_once(monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "isolation", lambda: LIMITS)
    with permissions.permitted(allow_code_execution=True):
        gate.check_code(plan())
        gate.check_code(plan())
    assert capsys.readouterr().err.count("WARNING: programs can reach the network") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--method", "vanilla", "--out", "it"),
        ("sweep", "--method", "sps", "--param", "gamma=2,3", "--out", "it"),
        ("profile", "--out", "it.json"),
        ("train", "--method", "judge", "--out", "it"),
    ],
    ids=lambda command: command[0],
)
def test_without_permission_nothing_is_even_loaded(command, monkeypatch, benign):
    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("specbench.measure.prepare.load_pair", load)
    monkeypatch.setattr("specbench.training.train.load_pair", load)
    pair = f"target={benign},draft={benign}"
    assert "--allow-code-execution" in refused(*command, "--suite", suite(CODE), "--pair", pair)


def test_the_bundled_case_needs_no_flag_and_the_manifest_says_so():
    if all(map(lacking, SYSTEM)):
        pytest.skip("; ".join(map(lacking, SYSTEM)))
    done = call("run", "--method", "vanilla", "--suite", suite(CODE), "--limit", "1", "--out", "it")
    assert done.exit_code == 0, done.output
    report = json.loads((Path("it") / "manifest.json").read_text())["code_execution"]
    assert report["allowed_by"] == "bundled" and report["isolation"] in sandbox.COMPLETE


def test_the_tasks_that_run_code_are_known():
    """The index says what the tasks' own files say."""
    unsafe = set()
    for path in (SUITES / "tasks").rglob("*.yaml"):
        text = path.read_text().replace("!function", "")
        one = yaml.safe_load(text)
        if isinstance(one, dict) and one.get("unsafe_code"):
            unsafe.add(one["task"])
    assert unsafe == {name for name, info in config.tasks().items() if info.runs_code} and len(unsafe) == 6


@pytest.mark.parametrize("allowed", [False, True])
def test_the_last_door_is_the_scoring_itself(allowed, monkeypatch):
    choice = TaskChoice("pocket_humaneval", 0, 9, None, "", None)
    options = {"task_folder": SUITES / "tasks", "data_dir": None, "limit": 1, "seed": 0, "chat": None}
    tasks = Tasks([choice], **options, run_code=allowed)
    texts = {("pocket_humaneval", 0): "    return 0\n"}
    if allowed:
        assert tasks.score(texts)
    else:
        with pytest.raises(UserError, match="--allow-code-execution"):
            tasks.score(texts)


# Tasks ----------------------------------------------------------------------------------------------------------------

TASK = """
task: theirs
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
OF_A_TASK = {  # how the YAML of a task names code
    "function": "process_docs: !function evil.run\n",
    "class": "class: !function evil.Task\n",
    "include": "include: ../outside/included.yaml\n",
    "template": "doc_to_choice: \"{{ cycler.__init__.__globals__.os.system('touch MARK') }}\"\n",
    "metric": "metric_list: [{metric: ./evil.py, hf_evaluate: true}]\n",
    "string": "process_docs: HERE/evil.run\n",
}
EVIL = "from pathlib import Path\nPath(MARK).touch()\ndef run(docs):\n    return docs\nclass Task: ...\n"


@pytest.fixture
def evil(mark) -> str:
    """Code that makes a file when it is imported."""
    return EVIL.replace("MARK", repr(str(mark)))


def their_task(folder: Path, kind: str, evil: str, mark: Path) -> Tasks:
    """A task of somebody else, in a folder of theirs, with documents."""
    folder.mkdir()
    (folder.parent / "outside").mkdir()
    for place in (folder, folder.parent / "outside"):
        (place / "evil.py").write_text(evil)
    (folder.parent / "outside" / "included.yaml").write_text(OF_A_TASK["function"])
    (folder / "theirs.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    text = TASK.replace("DATA", str(folder / "theirs.jsonl"))
    if kind == "metric":
        text = text[: text.index("metric_list")]
    (folder / "theirs.yaml").write_text(text + OF_A_TASK[kind].replace("MARK", str(mark)).replace("HERE", str(folder)))
    choice = TaskChoice("theirs", 0, 9, None, "", None)
    return Tasks([choice], task_folder=folder, data_dir=None, limit=1, seed=0, chat=None)


@pytest.mark.parametrize("kind", OF_A_TASK)
def test_a_task_of_others_runs_nothing_without_permission(kind, here, evil, mark):
    with pytest.raises(UserError, match="task files run code"):
        their_task(here / "theirs", kind, evil, mark)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["function", "include"])
def test_and_with_permission_it_does(kind, here, evil, mark):
    with permissions.permitted(allow_code_execution=True):
        their_task(here / "theirs", kind, evil, mark)
    assert mark.exists(), "the control"


NAMES_OF_TASKS = ["theirs", "./theirs.yaml", "theirs/theirs", "theirs.yaml", "../theirs", "", "pocket_gsm8k/../theirs"]
TAGS = ["!function evil.run", "!!python/object/apply:os.system ['touch MARK']", "!!python/name:evil.run"]


def test_no_file_of_a_user_names_a_task_file_or_a_function(here, evil, mark, benign):
    (here / "evil.py").write_text(evil)
    (here / "theirs.yaml").write_text(TASK + OF_A_TASK["function"])
    pair = ("--pair", f"target={benign}")
    texts = [f"description: one\ntasks: [{{task: {json.dumps(name)}}}]\n" for name in NAMES_OF_TASKS]
    texts += [SUITE + f"{key}: theirs.yaml\n" for key in ("include", "task_folder", "include_path")]
    texts += [SUITE.replace("description: one", f"description: {tag}") for tag in TAGS]
    texts += [SUITE.replace("pocket_gsm8k", tag) for tag in TAGS]
    for text in texts:
        (here / "one.yaml").write_text(text.replace("MARK", str(mark)))
        refused("run", "--method", "vanilla", "--suite", "one.yaml", *pair, "--out", "it")
    for tag in TAGS:
        (here / "own.yaml").write_text(f"description: {tag}\ntarget: {{model: x}}\n".replace("MARK", str(mark)))
        refused("run", "--method", "vanilla", "--suite", "math", "--pair", "own.yaml", "--out", "it")
        (here / "own.yaml").write_text(f"method: sps\nsettings: {{gamma: {tag}}}\n".replace("MARK", str(mark)))
        refused("run", "--method", "own.yaml", "--suite", "math", "--out", "it")
    assert not mark.exists()


@pytest.mark.parametrize("name", NAMES_OF_TASKS)
def test_nor_does_a_run_of_somebody_else(name, honest, here, evil, mark):
    (here / "evil.py").write_text(evil)
    (here / "theirs.yaml").write_text(TASK + OF_A_TASK["function"])
    shutil.copytree(honest / "greedy", "evil")
    manifest = json.loads(Path("evil/manifest.json").read_text())
    manifest["plan"]["tasks"][0]["task"] = name
    Path("evil/manifest.json").write_text(json.dumps(manifest))
    Path("evil/scores.parquet").unlink()  # else nothing is left to do
    assert call("run", "--resume", "evil").exit_code == 2
    assert call("analyze", "counterfactual", "evil", "--method", "cospec").exit_code == 2
    assert not mark.exists()


def test_files_beside_the_user_that_are_called_like_tasks_metrics_and_data(here, evil, mark):
    """lm-eval and its libraries look for some names in the current folder first."""
    metrics = ("math_verify", "rougeL", "rouge1", "pass@1", "exact_match", "code_eval", "contains")
    for name in (*metrics, "gsm8k", "pocket_gsm8k", "json", "utils", "openai/gsm8k"):
        (here / name).mkdir(parents=True)
        (here / name / f"{Path(name).name}.py").write_text(evil)
        (here / f"{Path(name).name}.py").write_text(evil)
        (here / name / f"{Path(name).name}.yaml").write_text(TASK + OF_A_TASK["function"])
    tasks = "description: all\ntasks: [TASKS]\n".replace(
        "TASKS", ", ".join(f"{{task: pocket_{name}, max_new_tokens: 4}}" for name in ("math500", "cnndm", "ruler"))
    )
    done = call("run", "--method", "vanilla", "--suite", suite(tasks), "--limit", "1", "--out", "it")
    assert done.exit_code == 0, done.output
    (here / "data").mkdir()
    question = "{{ cycler.__init__.__globals__.os.system('touch " + str(mark) + "') }} {% raise %}"
    (here / "data" / "gsm8k_test.jsonl").write_text(json.dumps({"question": question, "answer": "#### 2"}) + "\n")
    (here / "data" / "gsm8k.yaml").write_text(TASK + OF_A_TASK["function"])
    (here / "data" / "evil.py").write_text(evil)
    text = SUITE.replace("pocket_gsm8k", "gsm8k")
    done = call("run", "--method", "vanilla", "--suite", suite(text), "--data-dir", "data", "--out", "real")
    assert done.exit_code == 0, done.output
    assert not mark.exists(), "neither a file of such a name, nor a question that looks like a template"


# Names and paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../weights/target", "..", ".", "", "target/..", "/etc", "target/", "nobody"])
def test_a_bundled_name_stays_in_its_folder(name):
    with pytest.raises(UserError, match="bundled are"):
        location(f"bundled:{name}")
    assert Path(location("bundled:target")) == SUITES / "pairs" / "weights" / "target"


@pytest.mark.parametrize("revision", ["../../x", "a b", "", "-x", "/etc", "x\n"])
def test_a_revision_is_no_path(benign, revision):
    pair = config.load_pair(f"target={benign}")
    spec = pair.model_copy(update={"target": pair.target.model_copy(update={"revision": revision})})
    with pytest.raises(UserError, match="not a revision"):
        load_pair(spec, "cpu")


@pytest.mark.parametrize("text", ["../methods/csd", "/etc/passwd", "methods/csd", "x/../csd", "../../x", "a\0b"])
@pytest.mark.parametrize("load", [config.load_pair, config.load_method, config.load_suite])
def test_names_lead_nowhere_else(load, text):
    with pytest.raises(UserError) as caught:
        load(text)
    assert "\n" not in str(caught.value)


def test_a_name_of_a_file_that_becomes_a_path_is_made_safe():
    from specbench.base.files import safe_name

    for usual in ("csd", "sps[gamma=4]", "20260101-120000-math-csd", "mdsd[drafts=[2, 3]]".replace(" ", "")):
        assert safe_name(usual) == usual
    hostile = ["..", "../../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "-rf", "a\0b", "a\nb", "", "é" * 300]
    names = [safe_name(text) for text in hostile]
    assert len(set(names)) == len(names), "two stay two"
    for name in names:
        assert Path(name).name == name and not name.startswith((".", "-")) and len(name.encode()) <= 255
        assert not set("/\\\0\n") & set(name)
    method = config.load_method("csd").model_copy(update={"name": "../../../out"})
    made = commands.default_folder(plan(text=SUITE).model_copy(update={"methods": (method,), "baseline": None}))
    assert made.resolve().parent == Path("runs").resolve()


# The code itself ------------------------------------------------------------------------------------------------------


UNPICKLING = {"pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load", "pandas.read_pickle", "shelve.open"}
UNPICKLING |= {f"{package}.{name}" for package in ("dill", "cloudpickle", "_pickle") for name in ("load", "loads")}
EVALUATING = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "eval", "builtins.eval", "builtins.exec"}
FORBIDDEN = UNPICKLING | EVALUATING
Named = tuple[str, dict[str, ast.expr] | None]  # keywords of its call; None where it is not called


def named(tree: ast.Module) -> list[Named]:
    """Every dotted name that a module uses, by the name that its import gives it, with the keywords of its call."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    called = {node.func: node.keywords for node in ast.walk(tree) if isinstance(node, ast.Call)}
    results: list[Named] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            keywords = {one.arg: one.value for one in called[node] if one.arg} if node in called else None
            results.append((known.get(first, first) + dot + rest, keywords))
    return results


def distrusted(tree: ast.Module, path: Path) -> list[str]:
    """What a module does that unpickles, evaluates or trusts by itself."""
    found = []
    for name, keywords in named(tree):
        given = {key: ast.unparse(value) for key, value in (keywords or {}).items()}
        trusting = any(given.get(flag) == "True" for flag in ("trust_remote_code", "allow_pickle"))
        loading = keywords is not None and name.endswith(".from_pretrained") and "pocket" not in path.parts
        # A layer of a tensor, and settings in JSON, bring no code.
        loading &= not name.startswith(("torch.nn.", "transformers.GenerationConfig."))
        if (
            name in FORBIDDEN
            or (name == "exec" and "sandbox" not in path.parts)
            or (name == "torch.load" and given.get("weights_only") != "True")
            or (name == "numpy.load" and (keywords is None or "allow_pickle" in given))
            or (loading and given.get("trust_remote_code") not in ("trust_remote_code", "False"))
            or trusting
        ):
            found.append(f"{path}: {name}")
    return found


def test_nothing_unpickles_evaluates_or_trusts_by_itself():
    paths = [*sorted(PACKAGE.rglob("*.py")), *sorted((ROOT / "extras" / "specbench_extras").rglob("*.py"))]
    paths = [path for path in paths if "tests" not in path.parts[len(ROOT.parts) :]]
    assert len(paths) > 400
    assert [one for path in paths for one in distrusted(ast.parse(path.read_text()), path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "from pickle import loads\nloads(b'')",
        "import pickle as p\np.load(file)",
        "import pickle\nread = pickle.loads",
        "import pandas\npandas.read_pickle(path)",
        "import pandas as pd\npd.read_pickle(path)",
        "from torch import load\nload(path)",
        "import torch as t\nt.load(path, weights_only=False)",
        "import torch\nread = torch.load",
        "import numpy as np\nnp.load(path, allow_pickle=allowed)",
        "from yaml import unsafe_load as read\nread(text)",
        "exec(text)",
        "AutoModel.from_pretrained(name)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "load_pair(spec, trust_remote_code=True)",
    ],
)
def test_each_way_to_trust_is_seen(text):
    assert len(distrusted(ast.parse(text), Path("module.py"))) == 1


def test_the_pickle_of_these_tests_is_alive(mark):
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()
