"""What the doctor finds: every check made to fail by a fake, and quiet where all is well or nothing is told."""

import json
import time
from pathlib import Path

import pytest
import torch
import transformers
from cases import mostly_long
from oracle import tiny
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from specbench.base.console import console
from specbench.config import ModelSpec, PairSpec, UserError
from specbench.engine import clock
from specbench.engine.models.pair import Pair, load_pair
from specbench.studies import doctor, doctor_pair
from specbench.studies.doctor import Diagnosis
from specbench.tasks.harness import Request

# A pair


def words(count: int = 90, *, bos: str | None = None, ends: bool = False) -> PreTrainedTokenizerFast:
    """A word tokenizer; `bos` is put before every text, `ends` puts the end token (1) behind it."""
    raw = Tokenizer(models.WordLevel({"<u>": 0, "</s>": 1, "<s>": 2} | {f"w{i}": i for i in range(3, count)}, "<u>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = f"{bos} $A" if bos else "$A </s>" if ends else "$A"
    raw.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 2), ("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token="</s>", unk_token="<u>")


def pair(tokenizer: PreTrainedTokenizerFast | None = None, **changed) -> Pair:
    return Pair("tiny", {"target": tiny("llama", 1), "draft": tiny("llama", 2), **changed}, tokenizer or words())


def request(prompt: str, doc_id: int = 0, task: str = "sums", until: tuple[str, ...] = (), most: int = 20) -> Request:
    return Request(task, doc_id, prompt, until, most, "", "")


def test_the_bundled_pair_is_well(pocket, monkeypatch):
    even = {"target": dict.fromkeys((1, 2, 8), 0.004), "draft": dict.fromkeys((1, 2, 8), 0.001)}
    monkeypatch.setattr(doctor_pair, "forward_seconds", lambda pair: even)  # a busy machine's are not
    findings = doctor.pair_findings(pocket, [request("Question: 1+1?\nAnswer:", until=("Question:", "\n\n"))])
    assert {finding.level for finding in findings} == {"ok"}, findings
    assert len({finding.check for finding in findings}) == len(findings) == 10
    assert "'Question:' 1" in next(finding for finding in findings if finding.check == "stop strings").message


def test_tokens_that_a_model_does_not_know():
    assert doctor_pair.vocabulary(pair()).level == "ok"
    assert "beyond 96" in doctor_pair.vocabulary(pair(target=tiny("llama", vocab=128))).message
    finding = doctor_pair.vocabulary(pair(words(97)))
    assert finding.level == "error" and "97 tokens" in finding.message and "96" in finding.message


@pytest.mark.parametrize(
    ("bos", "template", "level", "text"),
    [
        (None, None, "ok", "none"),
        ("<s>", "{{ messages[0].content }}", "ok", "there is one"),
        ("<s>", "<s> {{ messages[0].content }}", "ok", "become one"),
        ("<s>", "<s> <s> {{ messages[0].content }}", "error", "twice"),
        (None, "{{ raise_exception('no') }}", "warning", "fails"),
    ],
)
def test_chat_template(bos, template, level, text):
    tokenizer = words(bos=bos)
    tokenizer.chat_template = template
    finding = doctor_pair.chat_template(pair(tokenizer))
    assert finding.level == level and text in finding.message
    assert ("become one" in finding.message) == (text == "become one")


def test_an_end_token_behind_every_prompt():
    assert doctor_pair.prompt_ends(pair()).level == "ok"
    finding = doctor_pair.prompt_ends(pair(words(ends=True)))
    assert finding.level == "error" and "</s>" in finding.message


def test_stop_strings_may_be_special_tokens_or_none():
    tokenizer = words()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    assert "1, and no" in doctor_pair.stop_strings(pair(tokenizer), [request("w5", until=("<turn>",))]).message
    assert doctor_pair.stop_strings(pair(), []).level == "ok"


@pytest.mark.parametrize(
    ("token", "stop", "over"),
    [
        ("\n\n", "\n\n", False),
        ("\n", "\n\n", False),
        ("\n\n\n", "\n\n", True),
        (".\n", "\n\n", True),
        ("\n    ", "\n\n", True),
        ("Question", "Question:", False),
        (":", "Question:", False),
        (" Question", "Question:", True),
        (":)", "Question:", True),
        ("answer", "Question:", False),
        ("", "Question:", False),
    ],
)
def test_tokens_over_the_edge_of_a_stop_string(token, stop, over):
    assert doctor_pair.reaches_over(token, stop) == over


def test_stop_strings_inside_tokens_are_counted():
    finding = doctor_pair.stop_strings(pair(), [request("w5", until=("w1",)), request("w5", until=("w77",))])
    assert finding.level == "ok" and "'w1' 10" in finding.message, "w10 to w19"
    assert "w77" not in finding.message


def test_a_cache_that_does_not_roll_back():
    assert doctor_pair.cache(pair()).level == "ok"
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model("xlstm", vocab_size=96, hidden_size=32, num_hidden_layers=2, num_heads=2)
    finding = doctor_pair.cache(pair(draft=AutoModelForCausalLM.from_config(config).eval()))
    assert finding.level == "error" and finding.message.startswith("draft: xLSTMForCausalLM")


@pytest.mark.parametrize(("length", "level"), [(220, "ok"), (221, "warning"), (235, "warning"), (236, "error")])
def test_context(length, level):
    """256 positions, 20 new tokens, and 16 wanted for a draft."""
    finding = doctor_pair.context(pair(), [request("w5"), request("w5 " * length, doc_id=7)])
    assert finding.level == level and "document 7" in finding.message
    assert doctor_pair.context(pair(), []).level == "ok"


@pytest.mark.long
def test_draft_speed(pocket):
    def speed(draft: float | None, target: float | None = 0.01) -> Diagnosis:
        return doctor_pair.draft_speed({"target": target, "draft": draft})

    assert speed(0.005).level == "ok" and "0.50" in speed(0.005).message
    assert speed(0.006).level == "warning" and "below 1.7" in speed(0.006).message
    assert speed(0.02).level == "warning" and "only lose" in speed(0.02).message
    assert speed(None, None).level == "ok"
    assert doctor_pair.draft_speed({"target": 0.01}).level == "ok"
    swapped = Pair("swapped", {"target": pocket.models["draft"], "draft": pocket.models["target"]}, pocket.tokenizer)
    measured = {finding.check: finding for finding in doctor.pair_findings(swapped)}["draft speed"]
    assert measured.level == "warning" and "only lose" in measured.message


def test_widths(pocket):
    even, falling = dict.fromkeys((1, 2, 8), 0.01), {1: 0.03, 2: 0.016, 8: 0.018}
    finding = doctor_pair.by_width({"target": even, "draft": even})
    assert finding.level == "ok" and "10.00 ms for one token and 10.00 ms for eight" in finding.message
    finding = doctor_pair.by_width({"target": even, "draft": falling})
    assert finding.level == "warning" and finding.message.startswith("a forward of the draft takes 30 ms for 1 token")
    assert "specbench profile --widths" in finding.remedy
    assert doctor_pair.by_width({"target": {}}).level == "ok"
    times = doctor_pair.forward_seconds(pocket)
    assert times.keys() == {"target", "draft"} and all(times["target"][width] > 0 for width in (1, 2, 3, 4, 5, 8, 16))


def test_what_watching_costs(monkeypatch):
    assert 0 <= doctor_pair.watching_seconds(torch.device("cpu")) < 1e-3
    times = {"target": 0.004, "draft": 0.001}
    for cost, level, share in ((1e-5, "ok", "1.00%"), (5e-5, "warning", "5.00%")):
        monkeypatch.setattr(doctor_pair, "watching_seconds", lambda device, cost=cost: cost)
        finding = doctor_pair.instrument(pair(), times)
        assert finding.level == level and share in finding.message
    assert doctor_pair.instrument(pair(), {"target": None}).level == "ok"


def test_a_slow_watch_is_noticed(monkeypatch):
    class Slow(clock.Stopwatch):
        def forward(self, model: str, width: int, context: int) -> clock.Stopwatch:
            time.sleep(1e-4)
            return super().forward(model, width, context)

    monkeypatch.setattr(doctor_pair, "Stopwatch", Slow)
    monkeypatch.setattr(doctor_pair, "TRIAL", 20)
    assert doctor_pair.watching_seconds(torch.device("cpu")) >= 1e-4


# A suite

STORIES = {
    0: "Ann has three apples and buys four more. How many apples has she now?",
    1: "A train leaves at noon and drives for two hours at 60 km/h. How far?",
    2: "Ben reads ten pages a day. In how many days does he read 70 pages?",
}
SHOT = "Question: {}\nAnswer: 7\n\n"
OTHER = SHOT.format("Carl sells five cakes at 2 dollars each. What does he earn?")


def prompts(shots: dict[int, str], head: str = "") -> tuple[list[Request], list[Request]]:
    bare = [request(f"{head}Question: {text}\nAnswer:", at) for at, text in STORIES.items()]
    shown = [request(f"{head}{shots[at]}Question: {text}\nAnswer:", at) for at, text in STORIES.items()]
    return shown, bare


@pytest.mark.parametrize("head", ["", "Solve these.\n\n"])
def test_few_shot_examples_of_evaluated_documents(head):
    assert doctor_pair.few_shot(*prompts(dict.fromkeys(STORIES, ""), head)).message == "no examples"
    clean = doctor_pair.few_shot(*prompts(dict.fromkeys(STORIES, OTHER), head))
    assert clean.level == "ok" and clean.message != "no examples"
    alike = SHOT.format("Ann has three apples and buys four more. What do they weigh?")
    assert doctor_pair.few_shot(*prompts(dict.fromkeys(STORIES, alike), head)) == clean, "it only begins like one"
    for at in STORIES:  # its own example, or one of another prompt
        shots = dict.fromkeys(STORIES, OTHER) | {at: OTHER + SHOT.format(STORIES[1])}
        finding = doctor_pair.few_shot(*prompts(shots, head))
        assert finding.level == "error" and "sums: 1 of 3 evaluated documents (1)" in finding.message
    shots = dict.fromkeys(STORIES, "".join(SHOT.format(text) for text in STORIES.values()))
    assert "3 of 3 evaluated documents (0, 1, 2)" in doctor_pair.few_shot(*prompts(shots, head)).message


def test_short_documents_are_not_mistaken_for_parts_of_others():
    def leak(shot: str) -> Diagnosis:
        shown = [request(f"Q: {shot}\nA: 9\n\nQ: {q}\nA:", at) for at, q in enumerate(("1+1", "2+3"))]
        return doctor_pair.few_shot(shown, [request(f"Q: {q}\nA:", at) for at, q in enumerate(("1+1", "2+3"))])

    assert leak("5+4").level == "ok"
    assert leak("11+1").level == "ok"
    assert leak("1+1").level == "error"


def test_tasks_are_looked_at_one_by_one():
    shown, bare = prompts(dict.fromkeys(STORIES, OTHER))
    other = [request(SHOT.format(STORIES[0]) + "Say it.", 0, "other")]
    finding = doctor_pair.few_shot(shown + other, [*bare, request("Say it.", 0, "other")])
    assert finding.level == "ok", "an example of one task may be evaluated in another"


def test_duplicate_documents():
    bare = [request("one", 0), request("two", 1), request("one", 0, "other")]
    assert doctor_pair.duplicates(bare).level == "ok"
    finding = doctor_pair.duplicates([*bare, request("one", 2), request("one", 3)])
    assert finding.level == "warning" and "sums: 2 of 4" in finding.message


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A suite of gsm8k with two shots, and a function that writes its documents."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "mine.yaml").write_text("description: mine\ntasks:\n  - {task: gsm8k, fewshot: 2}\n")

    def write(name: str, *questions: str) -> None:
        lines = [json.dumps({"question": q, "answer": "So it is.\n#### 7"}) for q in questions]
        (tmp_path / f"gsm8k_{name}.jsonl").write_text("\n".join(lines) + "\n")

    return tmp_path, write


def as_json(capsys, *arguments, **named) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code and the findings by check; there is nothing else on stdout."""
    code = doctor.main(*arguments, **named, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert all(set(one) == {"check", "level", "message", "remedy"} for one in report)
    assert len({one["check"] for one in report}) == len(report)
    return code, {one["check"]: one for one in report}


def test_a_leak_in_a_suite_of_ones_own(suite, capsys):
    folder, write = suite
    write("test", *STORIES.values())
    write("train", "What is left of ten pears if Dan eats all of them?", STORIES[2])
    arguments = (None, str(folder / "mine.yaml"), "cpu", "auto", folder)
    code, findings = as_json(capsys, *arguments)
    assert code == 1 and findings["few-shot"]["level"] == "error" and "1 of 3" in findings["few-shot"]["message"]
    write("train", "What is left of ten pears if Dan eats all of them?", "How tall is a tower of 7 cubes?")
    code, findings = as_json(capsys, *arguments)
    assert code == 0 and findings["few-shot"]["level"] == "ok" and "vocabulary" not in findings
    (folder / "gsm8k_train.jsonl").unlink()
    code, findings = as_json(capsys, *arguments)
    assert (
        code == 1
        and findings["documents"]["level"] == "error"
        and "gsm8k_train.jsonl" in findings["documents"]["remedy"]
    )


# The command


@pytest.mark.long
def test_the_bundled_pair_and_a_suite(capsys):
    code, findings = as_json(capsys, "pocket", "smoke", "cpu", "auto", None)
    assert code == 0
    assert {"threads", "disk", "vocabulary", "draft speed", "few-shot", "documents"} <= findings.keys()
    assert "6 documents of 2 tasks" in findings["documents"]["message"]
    assert "pocket_gsm8k" in findings["context"]["message"] or "pocket_humaneval" in findings["context"]["message"]


def save(folder: Path, tokenizer: PreTrainedTokenizerFast) -> ModelSpec:
    tiny("llama").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return ModelSpec(model=str(folder), dtype="float64")


def test_a_draft_of_another_tokenizer_is_told(tmp_path, capsys):
    save(tmp_path / "one", words(90))
    save(tmp_path / "other", words(80))
    _, findings = as_json(capsys, f"target={tmp_path}/one,draft={tmp_path}/other", None, "cpu", "auto", data_dir=None)
    assert (
        findings["vocabulary"]["level"] == "ok" and "80 of the target's 90 tokens" in findings["vocabulary"]["message"]
    )


def test_a_pair_that_does_not_fit_is_a_finding(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("specbench.engine.models.pair.LEAST_SHARED", 0.9)
    save(tmp_path / "one", words(90))
    save(tmp_path / "other", words(80))
    code, findings = as_json(
        capsys, f"target={tmp_path}/one,draft={tmp_path}/other", None, "cpu", "auto", data_dir=None
    )
    assert code == 1 and findings["vocabulary"]["level"] == "error"
    assert "share 80 of" in findings["vocabulary"]["message"] and "choose a draft" in findings["vocabulary"]["remedy"]
    (tmp_path / "empty").mkdir()
    code, findings = as_json(capsys, f"target={tmp_path}/empty", None, "cpu", "auto", data_dir=None)
    assert code == 1 and findings["loading"]["level"] == "error" and "config.json" in findings["loading"]["remedy"]


def test_refusals_by_check():
    texts = {"MambaForCausalLM cannot be used: after a rollback of its cache it gives other logits": "cache"}
    for text, check in texts.items():
        result = doctor.unloadable(UserError(text))
        assert result.check == check and result.level == "error" and result.message == text and result.remedy
    spec = PairSpec(name="tiny", description="", target=ModelSpec(model="bundled:none"))
    with pytest.raises(UserError) as caught:
        load_pair(spec, "cpu")
    assert doctor.unloadable(caught.value).check == "loading"


def test_unknown_names_are_the_users_error():
    with pytest.raises(UserError, match="pocket"):
        doctor.main("pokket", None, "cpu", "auto", None)
    with pytest.raises(UserError, match="math"):
        doctor.main(None, "maths", "cpu", "auto", None)


@mostly_long("columns", [80, 200], (80,))
def test_text_is_80_columns_wide(monkeypatch, capsys, columns, tmp_path):
    monkeypatch.setattr(console, "width", columns)
    bad = Diagnosis("stop strings", "error", "a [b]long[/b] message " * 9 + str(tmp_path) * 3, "do something else " * 9)
    monkeypatch.setattr(doctor, "machine_findings", lambda folder, device: [bad, Diagnosis("GPU", "ok", "none")])
    quiet = Diagnosis("instrument", "ok", "times of a busy machine are not this test's matter")
    monkeypatch.setattr(doctor_pair, "instrument", lambda *_: quiet)
    monkeypatch.setattr(doctor_pair, "draft_speed", lambda *_: quiet)
    monkeypatch.setattr(doctor_pair, "by_width", lambda *_: quiet)
    assert doctor.main("pocket", "smoke", "cpu", "auto", None) == 1
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "✗ error" in text and "✓ ok" in text and "→ do something else" in text and "[b]long[/b]" in text
    assert text.rstrip().splitlines()[-1] == "13 checks ok, 1 error"
    assert [t for t in ("machine", "pair pocket", "suite smoke") if t not in text] == []
