"""A server dies in the middle of a run; if it is back when the run goes on, what it failed to answer is asked again."""

import json
from pathlib import Path

import pytest
from fake import Fake, accepted_in_text, recorded, serving
from screens import output, refusal
from test_client import TOKENIZER
from tiny_runs import samples_of

from specbench.results.stored import StoredRun

TASK = ("--task", "pocket_gsm8k", "--max-new-tokens", "64", "--limit", 6)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def fake():
    with serving(Fake(TOKENIZER)) as fake:
        yield fake


def samples():
    frame = samples_of("run")
    return frame[~frame.warmup].set_index(["method", "doc_id"]).sort_index()


def dies_after(fake, count):
    """From then on a server breaks off every answer."""
    answer = type(fake)._stream

    async def stream(request):
        if len(fake.requests) >= count:
            fake.fault = "cut"
        return await answer(fake, request)

    fake._stream = stream


@pytest.mark.parametrize("pace", [[], ["--concurrency", "2"]])
def test_a_server_that_is_back_is_asked_again(fake, pace):
    with serving(Fake(TOKENIZER, tells="nothing")) as other:
        dies_after(fake, 4)
        words = ("--server", f"vllm={fake.url}", "--server", f"vanilla={other.url}", *pace)
        message = " ".join(output("run", *TASK, "--out", "run", *words, code=3).split())
        before = samples()
        failed = before.index[before.finish == "error"]
        assert 2 <= len(failed) <= 4 and {name for name, _ in failed} == {"vllm"}
        assert f"server vllm failed {len(failed)} times" in message and "--resume run` asks again" in message
        del fake._stream
        fake.fault, asked = "", len(fake.requests)
        message = " ".join(output("run", "--resume", "run").split())
        assert "failed" not in message and f"vllm was asked again for {len(failed)} texts, later than" in message
        after = samples()
        by_prompt = {one["prompt"]: one for one in recorded()}
        about = StoredRun(Path("run")).kept({"pocket_gsm8k": list(range(6))})
        for (name, doc_id), row in after.iterrows():
            one = by_prompt[about["pocket_gsm8k", doc_id].prompt]
            assert (row.text, list(row.tokens)) == (one["text"], one["ids"])
            assert row.attempt == (2 if (name, doc_id) in failed else 1)
        assert len(fake.requests) == asked + len(failed) + 1  # with a warm-up
        rounds = StoredRun(Path("run")).rounds().to_table().to_pandas()
        for doc_id in range(6):
            one = by_prompt[about["pocket_gsm8k", doc_id].prompt]
            mine = rounds[(rounds.method == "vllm") & (rounds.doc_id == doc_id)]
            assert mine.accepted.tolist() == accepted_in_text(one)
        scores = StoredRun(Path("run")).scores()
        assert set(scores[scores.doc_id.notna() & (scores.method == "vllm")].doc_id) == set(range(6))
        assert "nothing is left" in output("run", "--resume", "run")


def test_one_that_is_not_back_fails_again(fake):
    fake.fault, fake.only = "cut", "Sara"
    output("run", *TASK, "--out", "run", "--server", f"vllm={fake.url}", code=3)
    fake.fault = "refused"
    text = output("run", "--resume", "run", code=3)
    assert "server vllm failed 1 times: 1 × /v1/completions answers 503" in " ".join(text.split())
    rows = samples()
    assert len(rows) == 6 and (rows.finish == "error").sum() == 1


def test_a_conversation_goes_on_from_the_answers_on_record(fake, here):
    turns = [{"id": "a", "turns": ["Count to 3.", "Go on.", "And on."]}, {"id": "b", "turns": ["Name a river."]}]
    (here / "turns.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    fake.fault, fake.only = "cut", "Go on."
    words = ("--prompts", "turns.jsonl", "--max-new-tokens", "12", "--server", f"x={fake.url}")
    output("run", *words, "--out", "run", code=3)
    first = samples().text["x", 0]
    fake.fault, fake.salt, asked = "", 1, len(fake.requests)
    output("run", "--resume", "run")
    rows = samples()
    assert (rows.finish != "error").all() and rows.text["x", 0] == first
    prompts = [TOKENIZER.decode(body["prompt"], skip_special_tokens=True) for body in fake.requests[asked + 1 :]]
    assert prompts == [
        f"Count to 3.{first}\n\nGo on.",
        f"Count to 3.{first}\n\nGo on.{rows.text['x', 1]}\n\nAnd on.",
    ]


def test_a_key_is_sent_again_only_if_the_command_names_it(fake, here, monkeypatch):
    """A run may be somebody else's, who names a variable of yours and a server of his."""
    fake.key, fake.fault = "s3cret", "refused"
    monkeypatch.setenv("MY_KEY", "s3cret")
    (here / "s.yaml").write_text(f"vllm: {{url: '{fake.url}', key_variable: MY_KEY}}\n")
    text = output("run", *TASK, "--out", "run", "--server", "s.yaml", code=3)
    assert "specbench run --resume run --allow-key MY_KEY` asks again" in " ".join(text.split())
    fake.fault, asked = "", len(fake.paths)
    why = " ".join(refusal("run", "--resume", "run").split())
    assert f"sends what the environment variable MY_KEY holds to {fake.url}" in why and "--allow-key MY_KEY" in why
    assert "--allow-key" in refusal("run", "--resume", "run", "--allow-key", "ANOTHER")
    assert len(fake.paths) == asked
    output("run", "--resume", "run", "--allow-key", "MY_KEY")
    assert (samples().finish != "error").all()
