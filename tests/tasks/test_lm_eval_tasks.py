"""lm-eval's tasks, groups and tags by name: what generates text runs as lm-eval has it, the rest is refused."""

import json

import pytest
from refusals import one_line_error
from transformers import AutoTokenizer

from specbench import config
from specbench.config import SUITES, TaskLine
from specbench.plan import resolve_plan
from specbench.tasks.harness import TaskChoice, Tasks

QUESTION = {"question": "Tom has 3 pens and buys 4. How many has he?", "answer": "3 + 4 = 7\n#### 7"}


def lines(name, **settings):
    return config.checked_lines([TaskLine(task=name, **settings)], None, None, "--task")


@pytest.mark.parametrize(
    ("name", "hub", "metric", "most"),
    [
        ("gsm8k_cot", "openai/gsm8k", "exact_match,strict-match", 256),
        ("aime24", "Maxwell-Jia/AIME_2024", "exact_match,none", 32768),
        ("mmlu_pro_math", "TIGER-Lab/MMLU-Pro", "exact_match,custom-extract", 2048),
    ],
)
def test_a_task_by_name(name, hub, metric, most):
    (line,) = lines(name)
    assert (line.task, line.own.hub, line.own.metric, line.own.max_new_tokens) == (name, hub, metric, most)


def test_groups_and_tags_are_their_tasks():
    whole = lines("mmlu_pro")
    assert len(whole) == 14 and whole[0].task == "mmlu_pro_biology" and {line.fewshot for line in whole} == {None}
    assert {line.fewshot for line in lines("mmlu_pro", fewshot=2)} == {2}
    assert len(lines("bbh")) == 27
    assert {"longbench_2wikimqa", "longbench_hotpotqa"} <= {line.task for line in lines("longbench_multi_tasks")}
    plan = resolve_plan(["pld"], task=["mmlu_pro"])
    assert plan.suite == "mmlu_pro" and len(plan.tasks) == 14 and plan.info("mmlu_pro_law").hub == "TIGER-Lab/MMLU-Pro"


def test_a_group_says_whether_its_score_weighs_tasks_by_their_documents():
    """Those of lm-eval say so in `aggregate_metric_list`; without one, lm-eval has no score of the group."""
    assert {line.group for line in lines("mmlu_pro")} == {"mmlu_pro"}  # weight_by_size: true
    assert {line.group for line in lines("longbench_single")} == {None}  # weight_by_size: False
    assert {line.group for line in lines("longbench_multi_tasks")} == {None}  # a tag
    assert {line.group for line in lines("mmlu_pro_math")} == {None}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hellaswag", ("'hellaswag' is scored by log-likelihoods", "multiple_choice", "generates no text")),
        ("wikitext", ("log-likelihoods", "loglikelihood_rolling")),
        ("math_word_problems", ("(of math_word_problems)", "log-likelihoods")),
        ("leaderboard", ("(of leaderboard)", "log-likelihoods")),
        ("squadv2", ("a class of its own",)),
        ("gsm8k_cott", ("did you mean 'gsm8k_cot'",)),
    ],
)
def test_what_generates_no_text_is_refused_with_the_reason(name, words):
    with one_line_error(*words):
        lines(name)


def test_specbenchs_own_entries_come_first():
    assert lines("gsm8k")[0].own is None and lines("humaneval_instruct")[0].own is None


def loaded(folder, name, **options):
    (folder / f"{name}_test.jsonl").write_text(json.dumps(QUESTION) + "\n")
    info = lines(name)[0].own
    choice = TaskChoice(name, None, info.max_new_tokens, info.data, info.hub or "", None)
    return Tasks([choice], task_folder=SUITES / "tasks", data_dir=folder, limit=1, seed=0, **{"chat": None, **options})


def test_prompts_stops_and_scores_are_lm_evals(tmp_path):
    tasks = loaded(tmp_path, "gsm8k_cot")
    (request,) = tasks.requests()
    assert request.prompt.startswith("Q: There are 15 trees in the grove.") and request.prompt.endswith("he?\nA:")
    assert request.until == ("Q:", "</s>", "<|im_end|>") and request.max_new_tokens == 256
    scores = tasks.score({("gsm8k_cot", 0): " He has 3 + 4 = 7 pens. The answer is 7."})
    assert {(s.filter, s.value) for s in scores if s.doc_id == 0} == {("strict-match", 1.0), ("flexible-extract", 1.0)}


def roles(messages):
    return " ".join(f"{message['role']}:{message['content'][:12]}" for message in messages)


def test_system_instruction_and_examples_as_turns_are_lm_evals(tmp_path):
    alone = loaded(tmp_path, "gsm8k_cot", chat=roles).requests()[0].prompt
    assert alone.count("user:") == 9 and alone.count("assistant:") == 8 and "system:" not in alone
    together = loaded(tmp_path, "gsm8k_cot", chat=roles, multiturn=False).requests()[0].prompt
    assert together.count("user:") == 1
    told = loaded(tmp_path, "gsm8k_cot", chat=roles, system="Be brief.").requests()[0].prompt
    assert told.startswith("system:Be brief.")
    plain = loaded(tmp_path, "gsm8k_cot", system="Be brief.").requests()[0].prompt
    assert plain.startswith("Be brief.") and "Q: There are 15 trees" in plain


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)


def test_a_begun_answer_is_continued_as_lm_eval_does(tmp_path, pocket):
    """Not behind the template's prompt for an answer, which may open a thought."""
    from specbench.measure.prompts import chat_of

    class WithTemplate:
        name = "chat"
        tokenizer = AutoTokenizer.from_pretrained(SUITES / "pairs" / "weights" / "target")

    WithTemplate.tokenizer.chat_template = CHATML
    document = {"prompt": "def two():\n", "test": "def check(f): pass", "entry_point": "two", "task_id": "t/0"}
    (tmp_path / "humaneval_test.jsonl").write_text(json.dumps(document) + "\n")
    choice = TaskChoice("humaneval_instruct", None, 1024, "humaneval", "", None)
    tasks = Tasks(
        [choice],
        task_folder=SUITES / "tasks",
        data_dir=tmp_path,
        limit=1,
        seed=0,
        chat=chat_of(WithTemplate()),
        run_code=True,
    )
    prompt = tasks.requests()[0].prompt
    assert prompt.startswith("<|user|>Write a solution to the following problem") and "<think>" not in prompt
    assert prompt.rstrip().endswith("<|assistant|>Here is the completed function:\n```python\ndef two():")
