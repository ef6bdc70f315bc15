"""lm-eval behind `specbench.tasks.harness`: prompts, few-shot examples, scores, and the registered model."""

import hashlib
import json
import math
import os
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import one_line_error

from specbench import permissions
from specbench.tasks.harness import DataUnavailable, TaskChoice, Tasks

ROOT = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("SPECBENCH_DATA", ROOT.parent / "shared" / "data"))
needs_real = pytest.mark.skipif(not (REAL / "gsm8k_test.jsonl").is_file(), reason="no real data at SPECBENCH_DATA")

SUMS = r"""
task: sums
dataset_path: nobody/no-such-data-set
dataset_name: main
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
doc_to_text: "Q: {{question}}\nA:"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
generation_kwargs: {until: ["Q:", "</s>"], do_sample: false, max_gen_toks: 40}
num_fewshot: 0
filter_list:
  - name: strict
    filter: [{function: regex, regex_pattern: "#### ([0-9]+)"}, {function: take_first}]
  - name: last
    filter: [{function: regex, group_select: -1, regex_pattern: "([0-9]+)"}, {function: take_first}]
"""
# no training documents, no limit on new tokens, one stop string
ECHO = r"""
task: echo
dataset_path: nobody/no-such-echo
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
generation_kwargs: {until: "\n"}
"""
TEST = [("1+1", "2"), ("2+3", "5"), ("4+4", "8"), ("9+0", "9")]
MISSING = ("nobody/no-such-sums", "sums_test.jsonl", "--data-dir", "pocket_sums")  # what helps, and where it belongs
pytestmark = pytest.mark.usefixtures("own_cache")
TRAIN = [("5+5", "10"), ("6+6", "12"), ("7+7", "14")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`tmp_path` with tasks/ (YAML) and data/ (JSON Lines)."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(SUMS)
    (tmp_path / "tasks" / "echo.yaml").write_text(ECHO)
    for name, pairs in {"sums_test": TEST, "sums_train": TRAIN, "echo_test": TEST}.items():
        lines = [json.dumps({"question": q, "answer": a}) for q, a in pairs]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture(autouse=True)
def permitted() -> Iterator[None]:
    """The tasks of these tests are not specbench's own."""
    with permissions.permitted(allow_code_execution=True):
        yield


def choice(task: str = "sums", fewshot: int | None = None, most: int = 100, data: str | None = "") -> TaskChoice:
    data = task if data == "" else data
    return TaskChoice(task, fewshot, most, data, f"nobody/no-such-{task}", f"pocket_{task}")


def tasks(folder: Path, *choices: TaskChoice, **changes) -> Tasks:
    settings = {"data_dir": folder / "data", "limit": None, "seed": 7, "chat": None} | changes
    return Tasks(choices or (choice(),), task_folder=folder / "tasks", **settings)


def test_requests_in_task_then_document_order(folder: Path) -> None:
    asked = tasks(folder, choice("echo"), choice("sums", most=30), limit=2).requests()
    assert [(r.task, r.doc_id) for r in asked] == [("echo", 0), ("echo", 1), ("sums", 0), ("sums", 1)]
    assert [r.prompt for r in asked] == ["1+1", "2+3", "Q: 1+1\nA:", "Q: 2+3\nA:"]
    assert asked[0].until == ("\n",) and asked[2].until == ("Q:", "</s>")
    assert asked[0].max_new_tokens == 100  # the task names none
    assert asked[2].max_new_tokens == 30  # the task names 40, more than allowed
    assert asked[0].prompt_hash == hashlib.sha256(b"1+1").hexdigest()[:16]
    assert asked[0].doc_hash == asked[2].doc_hash != asked[1].doc_hash


def test_task_limit_below_choice_wins(folder: Path) -> None:
    assert {r.max_new_tokens for r in tasks(folder, choice(most=100)).requests()} == {40}


def test_a_document_whose_prompt_leaves_no_room_has_no_request(folder: Path) -> None:
    """Room for -1, 0, 1 and 50 new tokens, of the 40 that the task asks for."""
    room = {f"Q: {question}\nA:": left for (question, _), left in zip(TEST, (-1, 0, 1, 50), strict=True)}
    listed = tasks(folder, choice(), room=room.__getitem__)
    assert [(r.doc_id, r.max_new_tokens) for r in listed.requests()] == [(2, 1), (3, 40)]
    assert listed.left_out == {"sums": 2}
    with pytest.raises(ValueError, match="the prompts of sums leave no room"):
        tasks(folder, choice(), room=lambda prompt: 0)


def test_few_shot_examples_come_from_train_only(folder: Path) -> None:
    asked = tasks(folder, choice(fewshot=2)).requests()
    shots = {f"Q: {q}\nA: {a}" for q, a in TRAIN}
    for request, (question, _) in zip(asked, TEST, strict=True):
        *examples, last = request.prompt.split("\n\n")
        assert last == f"Q: {question}\nA:"
        assert len(set(examples)) == 2 and set(examples) <= shots
    again = tasks(folder, choice(fewshot=2)).requests()
    assert asked == again
    assert [r.prompt for r in tasks(folder, choice(fewshot=2), seed=8).requests()] != [r.prompt for r in asked]


def test_documents_that_a_task_draws_are_those_of_the_seed(folder: Path) -> None:
    """Whatever was drawn before: a run that goes on has the same documents."""
    code = "import random\n\nimport datasets\n\n\ndef load(**_):\n"
    code += "    rows = [{'question': str(random.random()), 'answer': ''} for _ in range(4)]\n"
    (folder / "tasks" / "drawing.py").write_text(code + "    return {'test': datasets.Dataset.from_list(rows)}\n")
    drawn = ECHO.replace(
        "task: echo\ndataset_path: nobody/no-such-echo", "task: drawn\ncustom_dataset: !function drawing.load"
    )
    (folder / "tasks" / "drawn.yaml").write_text(drawn)

    def prompts(seed: int) -> list[str]:
        return [request.prompt for request in tasks(folder, choice("drawn", data=None), seed=seed).requests()]

    one = prompts(7)
    random.random()
    assert len({*one}) == 4 and prompts(7) == one and not {*prompts(8)} & {*one}


def test_documents_of_the_split_that_examples_come_from_have_none(folder: Path) -> None:
    """Else a prompt would show the answers of others that are asked too, or its own."""
    given = {"task": "sums", "fewshot": 2, "max_new_tokens": 9, "data": "sums", "hub": "", "counterpart": None}
    asked = tasks(folder, TaskChoice(**given, split="train")).requests()
    assert [r.prompt for r in asked] == [f"Q: {question}\nA:" for question, _ in TRAIN]
    asked = tasks(folder, TaskChoice(**given, split="test")).requests()
    assert [r.prompt.count("Q: ") for r in asked] == [3] * len(TEST)


def test_few_shot_without_train_documents(folder: Path) -> None:
    (folder / "data" / "sums_train.jsonl").unlink()
    with pytest.raises(DataUnavailable, match=r"sums_train\.jsonl"):
        tasks(folder, choice(fewshot=2))
    with pytest.raises(DataUnavailable, match=r"echo_train\.jsonl"):
        tasks(folder, choice("echo", fewshot=1))
    assert len(tasks(folder, choice(fewshot=0)).requests()) == 4
    with pytest.raises(ValueError, match="no documents for few-shot examples"):
        tasks(folder, choice("echo", fewshot=1), data_dir=None)


def test_missing_file_message(folder: Path) -> None:
    (folder / "data" / "sums_test.jsonl").unlink()
    with one_line_error(*MISSING, kind=DataUnavailable):
        tasks(folder)


@pytest.mark.parametrize("offline", [True, False])
def test_unreachable_hub_fails_fast(folder: Path, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("socket.create_connection", _no_network)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with one_line_error(*MISSING, kind=DataUnavailable):
        tasks(folder, data_dir=None)
    assert constants.HF_HUB_OFFLINE is offline


def _no_network(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_hub_offline_variable(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from specbench.tasks.harness import *\n"
        "from specbench.permissions import permitted\n"
        "try:\n"
        "  with permitted(allow_code_execution=True):\n"
        "    Tasks([TaskChoice('sums', None, 9, 'sums', 'nobody/x', None)], task_folder=Path(sys.argv[1]),"
        " data_dir=None, limit=None, seed=0, chat=None)\n"
        "except DataUnavailable: print('unavailable')"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder / "tasks")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert (done.stdout.strip(), done.stderr) == ("unavailable", "")


def test_scores_by_hand(folder: Path) -> None:
    # strict wants "#### n", last takes the last number: 1 0 0 of three, and 1 1 0; document 3 has no text
    suite = tasks(folder)
    texts = {("sums", 0): "so #### 2", ("sums", 1): "it is 5", ("sums", 2): "#### 7"}
    scores = suite.score(texts)
    assert all(s.task == "sums" and s.metric == "exact_match" for s in scores)
    values = {(s.doc_id, s.filter): s.value for s in scores}
    third = 1 / 3
    assert values == {
        **{(0, "strict"): 1, (1, "strict"): 0, (2, "strict"): 0, (None, "strict"): pytest.approx(third)},
        **{(0, "last"): 1, (1, "last"): 1, (2, "last"): 0, (None, "last"): pytest.approx(2 * third)},
    }
    # standard error of a mean: sqrt(sample variance / n), the variance of {1,0,0} and of {1,1,0} is 1/3
    for score in scores:
        assert score.stderr == (pytest.approx(math.sqrt(third / 3)) if score.doc_id is None else None)
    assert suite.score(texts) == scores
    assert {s.doc_id: s.value for s in suite.score({("sums", 3): "#### 9"}) if s.filter == "strict"} == {3: 1, None: 1}


def test_nothing_to_score(folder: Path) -> None:
    suite = tasks(folder, choice("sums"), choice("echo"))
    assert suite.score({}) == []
    (document, aggregate) = suite.score({("echo", 2): "8", ("other", 0): "1"})
    assert (document.doc_id, document.value, aggregate.doc_id) == (2, 1.0, None)
    assert aggregate.stderr is None  # of one document


def test_chat_template_once_a_document(folder: Path) -> None:
    seen = []

    def chat(messages: list[dict[str, str]]) -> str:
        seen.append(messages)
        return f"<chat {len(seen)}>"

    suite = tasks(folder, choice(fewshot=1), limit=2, chat=chat)
    assert [r.prompt for r in suite.requests()] == ["<chat 1>", "<chat 2>"]
    suite.requests()
    assert len(seen) == 2
    assert [m["role"] for m in seen[0]] == ["user", "assistant", "user"]
    assert seen[0][-1]["content"] == "Q: 1+1\nA:"


def test_prefix_of_the_answer_follows_the_chat_prompt(folder: Path) -> None:
    (folder / "tasks" / "echo.yaml").write_text(ECHO + 'gen_prefix: "Sure:"\n')
    suite = tasks(folder, choice("echo"), limit=1, chat=lambda messages: f"<{len(messages)}>{messages[-1]['content']}")
    assert suite.requests()[0].prompt == "<2>Sure:"


def test_own_task_wins_over_lm_eval(folder: Path) -> None:
    (folder / "tasks" / "own.yaml").write_text(SUMS.replace("task: sums", "task: gsm8k"))
    asked = tasks(folder, choice("gsm8k", data="sums"), limit=1).requests()
    assert asked[0].prompt == "Q: 1+1\nA:"


@pytest.mark.long  # all of lm-eval's tasks are read
def test_an_unknown_task(folder: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'gsm8k'"):
        tasks(folder, choice("gsm8j"))


def test_refused_tasks(folder: Path) -> None:
    with pytest.raises(ValueError, match="multiple_choice"):
        tasks(folder, choice("arc_easy"))
    with pytest.raises(ValueError, match="model-written code"):
        tasks(folder, choice("mbpp"))


def test_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    suite = tasks(folder, choice(fewshot=1))
    suite.score({("sums", 0): "2", ("sums", 1): "5"})
    assert capfd.readouterr() == ("", "")


def test_registered_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import specbench.cli.lm_eval_model  # noqa: F401  (registers the model)

    calls = []

    def text_generator(**settings: object) -> object:
        def generate(prompt: str, until: tuple[str, ...], max_new_tokens: int, temperature: float, task: str) -> str:
            calls.append((settings, prompt, until, max_new_tokens, temperature, task))
            return " #### 5 Q: #### 2"

        return generate

    monkeypatch.setattr("specbench.cli.lm_eval_model.text_generator", text_generator)
    data = {"dataset_path": "json", "dataset_name": None, "training_split": None, "fewshot_split": None}
    data["dataset_kwargs"] = {"data_files": {"test": str(folder / "data" / "sums_test.jsonl")}}
    results = simple_evaluate(
        model="specbench",
        model_args="pair=pocket,method=sps",
        batch_size=1,
        tasks=[{"group": "one", "task": [{"task": "sums", **data}]}],
        task_manager=TaskManager(include_defaults=False, include_path=folder / "tasks"),
    )
    assert results["results"]["sums"]["exact_match,strict"] == 0.25
    assert results["results"]["sums"]["exact_match,last"] == 0.25  # cut before "Q:", so 5 and not 2
    assert len(calls) == 4
    assert calls[0] == ({"pair": "pocket", "method": "sps"}, "Q: 1+1\nA:", ("Q:", "</s>"), 40, 0.0, "sums")


@pytest.mark.parametrize(
    ("settings", "tokens", "temperature"),
    [
        ({}, 256, 0.0),
        ({"temperature": 0.7}, 256, 0.7),
        ({"do_sample": False, "temperature": 0.7, "max_gen_toks": 5}, 5, 0.0),
        ({"do_sample": True, "max_new_tokens": 6}, 6, 1.0),
        ({"do_sample": True, "temperature": 0.0}, 0, None),
        ({"do_sample": True, "temperature": 0.5, "top_p": 0.9}, 0, None),
    ],
)
def test_generation_settings(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], tokens: int, temperature: float | None
) -> None:
    from specbench.cli.lm_eval_model import SpecbenchLM

    calls = []
    made = lambda **_: lambda *call: calls.append(call) or "text"  # noqa: E731
    monkeypatch.setattr("specbench.cli.lm_eval_model.text_generator", made)
    model = SpecbenchLM(pair="pocket", method="sps")
    request = types.SimpleNamespace(args=("prompt", settings), task_name="a task")
    if temperature is None:
        with pytest.raises(ValueError, match="temperature"):
            model.generate_until([request], disable_tqdm=True)
        return
    assert model.generate_until([request], disable_tqdm=True) == ["text"]
    assert calls == [("prompt", (), tokens, temperature, "a task")]
    for refused in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(NotImplementedError, match="generation only"):
            refused([request])
    with pytest.raises(ValueError, match="batch_size"):
        SpecbenchLM(pair="pocket", method="sps", batch_size=8)


@pytest.mark.parametrize(("asked", "cuda", "passed"), [("cuda:0", False, {}), ("cuda:0", True, {"device": "cuda:0"}),
                                                       ("cpu", True, {"device": "cpu"}), (None, True, {})])  # fmt: skip
def test_device(monkeypatch: pytest.MonkeyPatch, asked: str | None, cuda: bool, passed: dict[str, str]) -> None:
    from specbench.cli.lm_eval_model import SpecbenchLM

    seen = {}
    monkeypatch.setattr("specbench.cli.lm_eval_model.text_generator", lambda **settings: seen.update(settings))
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    SpecbenchLM(pair="pocket", method="sps", device=asked)
    assert seen == {"pair": "pocket", "method": "sps"} | passed


@needs_real
def test_real_data() -> None:
    choices = [
        TaskChoice("gsm8k", None, 256, "gsm8k", "openai/gsm8k", "pocket_gsm8k"),
        TaskChoice("cnn_dailymail_abisee", None, 64, "cnn_dm", "abisee/cnn_dailymail", "pocket_cnndm"),
    ]
    suite = Tasks(choices, task_folder=ROOT / "suites" / "tasks", data_dir=REAL, limit=2, seed=1, chat=None)
    asked = suite.requests()
    assert asked[0].prompt.count("Question:") == 6 and asked[0].prompt.count("####") == 5
    assert asked[0].prompt.endswith("\nAnswer:") and asked[2].prompt.endswith("Summary:")
    assert (asked[0].max_new_tokens, asked[2].max_new_tokens) == (256, 64)
    # the first document's answer is 18; the second text of each task repeats the reference
    documents = [json.loads(x) for x in (REAL / "cnn_dm_test.jsonl").open()][:2]
    texts = {("gsm8k", 0): "9 * 2 = 18. The answer is 18", ("cnn_dailymail_abisee", 1): documents[1]["highlights"]}
    values = {(s.task, s.doc_id, s.metric, s.filter): s.value for s in suite.score(texts)}
    assert values["gsm8k", 0, "exact_match", "strict-match"] == 0
    assert values["gsm8k", None, "exact_match", "flexible-extract"] == 1
    assert values["cnn_dailymail_abisee", 1, "rougeL", "none"] == pytest.approx(1)


@needs_real
def test_real_code_and_mathematics() -> None:
    pytest.importorskip("math_verify")
    choices = [
        TaskChoice("humaneval", None, 512, "humaneval", "openai/openai_humaneval", "pocket_humaneval"),
        TaskChoice("minerva_math500", None, 512, "math500", "HuggingFaceH4/MATH-500", "pocket_math500"),
    ]
    folder = ROOT / "suites" / "tasks"
    suite = Tasks(choices, task_folder=folder, data_dir=REAL, limit=2, seed=1, chat=None, run_code=True)
    solution = json.loads((REAL / "humaneval_test.jsonl").open().readline())["canonical_solution"]
    answer = "Final Answer: The final answer is $\\left( 3, \\frac{\\pi}{2} \\right)$. I hope it is correct."
    texts = {("humaneval", 0): solution, ("humaneval", 1): "    return 0\n", ("minerva_math500", 0): answer}
    values = {(s.task, s.doc_id, s.metric): s.value for s in suite.score(texts)}
    assert [values["humaneval", x, "pass@1"] for x in (0, 1, None)] == [1.0, 0.0, 0.5]
    assert values["minerva_math500", None, "math_verify"] == 1


@pytest.mark.parametrize(
    ("task", "missing"), [("ifeval", "punkt_tab"), ("niah_single_1", "wonderwords")], ids=["scoring", "documents"]
)
def test_what_is_not_installed_is_named_before_anything_is_generated(task, missing, monkeypatch):
    """Both before the first document, though IFEval's scoring would miss its data only after the last."""
    monkeypatch.setitem(sys.modules, "wonderwords", None)
    monkeypatch.setattr("nltk.data.find", lambda name: (_ for _ in ()).throw(LookupError(name)))
    choice = TaskChoice(task, 0, 20, task, "hub", f"pocket_{task}")
    with one_line_error(match=rf"{missing}.*lm-eval\[ifeval,ruler\].*pocket_{task}", kind=DataUnavailable):
        Tasks([choice], task_folder=ROOT / "suites" / "tasks", data_dir=None, limit=1, seed=0, chat=None)
