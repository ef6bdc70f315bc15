"""Conversations with servers: each turn is asked after the server's own answers to the turns before, never sooner."""

import json

import pytest
from fake import Fake, serving
from screens import output, refusal
from test_client import TOKENIZER
from tiny_runs import samples_of

from specbench.base.hashes import short_hash
from specbench.results.recorder import Recorder

TALKS = [
    {"id": "a", "category": "talk", "turns": ["Ann has 3 pens.", "How many has Bob?"]},
    {"id": "b", "category": "talk", "turns": ["Count to 3.", "Go on.", "And on."]},
    {"id": "c", "category": "talk", "prompt": "Name a river."},
]
PLACES = [
    (turns, turn) for one in TALKS if (turns := one.get("turns", [one.get("prompt")])) for turn in range(len(turns))
]
WORDS = ("--prompts", "turns.jsonl", "--max-new-tokens", "12")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "turns.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in TALKS))
    return tmp_path


@pytest.fixture
def fake():
    with serving(Fake(TOKENIZER, tells="nothing")) as fake:
        yield fake


def samples(folder="run"):
    frame = samples_of(folder)
    return frame[~frame.warmup].set_index(["method", "doc_id"]).sort_index()


def asked(texts):
    """The prompts of a conversation's turns by hand, from the answers [n] to all documents; by doc_id."""
    prompts = []
    for doc_id, (turns, turn) in enumerate(PLACES):
        said = "".join(f"{turns[n]}{texts[doc_id - turn + n]}\n\n" for n in range(turn))
        prompts.append(said + turns[turn])
    return prompts


def sent(fake):
    """The prompts that a server was sent, without those of a warm-up, whose answers have 8 tokens."""
    return [body["prompt"] for body in fake.requests if body["max_tokens"] == 12]


@pytest.mark.parametrize("pace", [[], ["--concurrency", "2"], ["--rate", "50", "--arrivals", "constant"]])
def test_a_turn_holds_the_servers_own_answers(fake, pace):
    fake.delay = 0.03 if "--rate" in pace else 0.005  # an answer of 12 tokens lasts until all have begun, 40 ms later
    output("run", *WORDS, "--server", f"x={fake.url}", *pace, "--out", "run")
    rows = samples().loc["x"]
    prompts = asked(rows.text.tolist())
    assert len(set(rows.text)) > 2, "all answers are alike: this tests nothing"
    assert rows.finish.tolist() == ["length"] * 6 and rows.prompt_hash.tolist() == list(map(short_hash, prompts))
    assert sorted(sent(fake)) == sorted(TOKENIZER(prompt)["input_ids"] for prompt in prompts)
    assert rows.prompt_tokens.tolist() == [len(TOKENIZER(prompt)["input_ids"]) for prompt in prompts]
    first = [doc_id for doc_id, (_, turn) in enumerate(PLACES) if turn == 0]
    for doc_id in set(rows.index) - set(first):
        before = rows.loc[doc_id - 1]
        assert rows.sent[doc_id] >= before.ended
        assert rows.due[doc_id] == before.ended if "--rate" in pace else rows.due[doc_id] >= before.ended
    if "--rate" in pace:
        assert rows.due[first].diff().dropna().tolist() == pytest.approx([0.02] * 2, abs=1e-4)
    assert fake.most == (1 if not pace else 2 if "--concurrency" in pace else 3)


@pytest.mark.long
def test_beside_own_methods(fake):
    """Each goes on from its own answers."""
    output("run", *WORDS, "--server", f"x={fake.url}", "--method", "sps", "--concurrency", "2", "--out", "run")
    rows = samples()
    for name in ("x", "sps", "vanilla"):
        prompts = asked(rows.loc[name].text.tolist())
        assert rows.loc[name].prompt_hash.tolist() == list(map(short_hash, prompts)), name
    assert rows.loc["sps"].text.tolist() == rows.loc["vanilla"].text.tolist() != rows.loc["x"].text.tolist()
    assert rows.divergence.isna().all()


def test_chat_gets_messages(fake, here):
    (here / "s.yaml").write_text(f"x: {{url: '{fake.url}', api: chat}}\n")
    output("run", *WORDS, "--server", "s.yaml", "--out", "run")
    texts = samples().loc["x"].text
    bodies = [body["messages"] for body in fake.requests if body["max_tokens"] == 12]
    for doc_id, (turns, turn) in enumerate(PLACES):
        talk = [{"role": "user", "content": turns[0]}]
        for n in range(turn):
            talk.append({"role": "assistant", "content": texts[doc_id - turn + n]})
            talk.append({"role": "user", "content": turns[n + 1]})
        assert talk == bodies[doc_id]
    task = ("--task", "pocket_gsm8k", "--limit", "1", "--apply-chat-template", "--pair", "pocket")
    assert "give --no-apply-chat-template" in refusal("run", *task, "--server", "s.yaml")


@pytest.mark.parametrize("pace", ["--concurrency", pytest.param("--rate", marks=pytest.mark.long)])
def test_a_turn_that_fails_ends_its_conversation(fake, pace):
    fake.fault, fake.only = "cut", "Go on."
    output("run", *WORDS, "--server", f"x={fake.url}", pace, "2", "--out", "run", code=3)
    rows = samples().loc["x"]
    assert rows.finish.tolist() == ["length"] * 3 + ["error"] * 2 + ["length"]
    assert "the stream was cut" in rows.error[3] and "no answer to an earlier turn" in rows.error[4]
    assert rows.ended.isna().tolist() == [False] * 4 + [True, False]
    table = output("analyze", "requests", "run")
    assert "nan" not in table.lower()


def test_a_run_goes_on_with_the_answers_on_record(fake, monkeypatch):
    """Stopped after the first of three turns; until it goes on, the server has come to answer otherwise."""
    write = Recorder.write

    def killed(self, index, *rows):
        if index == 3:
            raise KeyboardInterrupt
        write(self, index, *rows)

    monkeypatch.setattr(Recorder, "write", killed)
    output("run", *WORDS, "--server", f"x={fake.url}", "--concurrency", "2", "--out", "run", code=130)
    monkeypatch.setattr(Recorder, "write", write)
    fake.salt = 1
    output("run", "--resume", "run")
    rows = samples().loc["x"]
    assert rows.prompt_hash.tolist() == list(map(short_hash, asked(rows.text.tolist())))
