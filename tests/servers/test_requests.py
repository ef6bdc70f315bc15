"""What requests hold, what is timed of the answers, and what a run says of servers that answer in unusual ways."""

import json
from pathlib import Path

import pytest
from cases import mostly_long
from refusals import one_line_error
from screens import output
from scripted import PAUSE, Scripted, delta, part, scripted, usage

from specbench.config.servers import load_servers
from specbench.results.stored import StoredRun

WORDS = ["", "Two", "and", "three", "make", "five,", "so", "it", "is", "five."][1:]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": name, "prompt": text} for name, text in (("a", "What is 2 + 3?"), ("b", "Name a colour."))]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def says(words=WORDS, finish="stop", before=(), counted=None, **details):
    """A chat that says words one by one, after events `before`."""

    def script(body):
        parts = [delta({"content": f" {word}"}) for word in words]
        tokens = len(words) + len(before) if counted is None else counted
        return [delta({"role": "assistant"}), *before, *parts, delta({}, finish), usage(tokens, **details)]

    return script


def either(body):
    """The same answer to chat requests and completions."""
    return says()(body) if "messages" in body else [*[part(f" {word}") for word in WORDS], part("", "stop"), usage(9)]


def run(servers, *options, out="run", code=0):
    lines = [f"{name}: {json.dumps(values)}" for name, values in servers.items()]
    Path("servers.yaml").write_text("\n".join(lines) + "\n")
    words = ("run", "--server", "servers.yaml", "--prompts", "prompts.jsonl", "--max-new-tokens", "24")
    return output(*words, "--out", out, *options, code=code)


def samples():
    frame = StoredRun(Path("run")).samples()
    return frame[~frame.warmup].set_index(["method", "doc_id"])


def chat(server, **settings):
    return {"url": server.url, "api": "chat", **settings}


@pytest.fixture
def plain():
    with scripted(Scripted(says())) as server:
        yield server


def test_a_thinking_server_is_as_fast_as_one_that_does_not(plain):
    """Thirty thoughts and nine words, each at PAUSE seconds: its speed is the other's, not four times as high."""
    with scripted(Scripted(says(before=[delta({"reasoning_content": " hm"})] * 30))) as thinks:
        run({"vanilla": chat(plain), "thinks": chat(thinks)})
    rows = samples()
    for row in (rows.loc["thinks", 0], rows.loc["thinks", 1]):
        assert (row.new_tokens, row.thought_tokens, row.other_chunks) == (39, 30, 30)
        assert row.text == " " + " ".join(WORDS)
        assert row.decode_seconds >= 38 * PAUSE and row.prefill_seconds < 10 * PAUSE + 1
    assert rows.loc["vanilla", 0].thought_tokens == 0


def test_thoughts_that_are_not_sent_leave_no_time_per_token(plain):
    hides = says(counted=200, completion_tokens_details={"reasoning_tokens": 191})
    with scripted(Scripted(hides)) as server:
        shown = run({"vanilla": chat(plain), "hides": chat(server)})
    assert "hides: in 2 of 2 texts tokens were thought that the server did not send" in shown
    assert samples().loc["hides", 0].thought_tokens == 191 and samples().loc["hides"].decode_seconds.isna().all()


def test_thoughts_alone_are_no_empty_answer(plain):
    slow = Scripted(
        says([], "length", [delta({"reasoning": " hm"})] * 9), pause=0.1
    )  # a busy machine has time for each
    with scripted(slow) as server:
        shown = run({"vanilla": chat(plain), "thinks": chat(server)})
    assert "thinks: all 2 answers are thoughts or tool calls alone, without a text" in shown
    assert samples().loc["thinks"].decode_seconds.notna().all() and "empty" not in shown


def test_a_failed_end_is_a_failed_sample(plain):
    with scripted(Scripted(says(finish="content_filter"))) as server:
        shown = run({"vanilla": chat(plain), "filters": chat(server)}, code=3)
    assert "server filters failed 2 times: 2 × the server ended the text by 'content_filter'" in shown
    row = samples().loc["filters", 0]
    assert row.finish == "error" and row.isna()[["text", "decode_seconds", "wall_seconds", "first_token"]].all()


def test_an_answer_of_200_that_is_an_error(plain):
    with scripted(Scripted(lambda body: {"error": {"message": "no memory", "code": 500}})) as server:
        shown = run({"vanilla": chat(plain), "fails": chat(server)}, code=3)
    assert "2 × the server answered without a stream: no memory" in shown


def test_answers_that_loop_are_left_out_of_speeds(plain):
    with scripted(Scripted(says([*WORDS[:4], *["very"] * 20], "length"))) as server:
        shown = run({"vanilla": chat(plain), "loops": chat(server)})
    assert "loops: all 2 answers are one string over and over, up to the limit" in shown
    assert "loops: its speed is not known" in shown


def test_an_answer_in_one_part_is_told_as_such(plain):
    with scripted(Scripted(says([" ".join(WORDS)], counted=9))) as server:
        shown = run({"vanilla": chat(plain), "whole": chat(server)})
    assert "whole: in 2 of 2 texts all came in one part" in shown and "came with later ones" not in shown


def test_what_a_chat_request_may_hold(plain):
    extra = {"metadata": {"a": 1}}
    settings = {"system": "Be brief.", "chat_template_kwargs": {"enable_thinking": False}, "extra_body": extra}
    shown = run({"brief": chat(plain, **settings), "usual": chat(plain)})
    brief = [body for body in plain.bodies if "metadata" in body]
    assert len(brief) == 3 == len(plain.bodies) - len(brief)  # with a warm-up each
    assert all(body["messages"][0] == {"role": "system", "content": "Be brief."} for body in brief)
    assert all(len(body["messages"]) == 2 and body["messages"][1]["role"] == "user" for body in brief)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in brief)
    assert all(body["metadata"] == {"a": 1} for body in brief)
    stored = {spec.name: spec.values for spec in StoredRun(Path("run")).plan.servers}
    assert {name: stored["brief"][name] for name in settings} == settings
    assert "asked with other" not in shown  # neither is the other's baseline


def test_servers_that_are_asked_otherwise_are_not_compared(plain):
    shown = run({"vanilla": chat(plain), "brief": chat(plain, system="Be brief.")})
    assert "brief and vanilla were asked with other system: they are not compared" in shown
    assert "speedup" not in shown
    alike = {"vanilla": chat(plain, system="Be brief."), "brief": chat(plain, system="Be brief.")}
    assert "speedup" in output(*_again(alike))


def test_chat_and_completions_are_not_divided():
    """In one run or in two: a server's own template makes another prompt."""
    told = "served and vanilla were asked with other api: they are not compared"
    with scripted(Scripted(either)) as server:
        assert told in run({"vanilla": chat(server), "served": {"url": server.url}})
        run({"vanilla": chat(server)}, out="one")
        run({"served": {"url": server.url}}, out="two")
    shown = output("compare", "one", "two", "--against", "vanilla")
    assert told in shown and "speedup" not in shown
    assert told in output("compare", "run", "--against", "vanilla")
    assert "vanilla and served were asked" in output("compare", "run", "--against", "served")


def test_runs_at_other_loads_are_not_pooled(plain):
    run({"served": chat(plain)})
    output(*_again({"served": chat(plain)}), "--concurrency", "2")
    assert "differ in requests (1 at a time / 2 at a time)" in output("compare", "run", "again", code=2)
    assert "MISMATCH allowed" in output("compare", "run", "again", "--allow-mismatch", "requests")


def _again(servers):
    Path("servers.yaml").write_text("".join(f"{name}: {json.dumps(values)}\n" for name, values in servers.items()))
    words = ("run", "--server", "servers.yaml", "--prompts", "prompts.jsonl", "--max-new-tokens", "24")
    return *words, "--out", "again"


NEUTRAL = {
    "vllm": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "sglang": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    "llamacpp": {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "typical_p": 1.0, "xtc_probability": 0.0},
    "tensorrt_llm": {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    "somebody": {},
}


@mostly_long("owner", NEUTRAL, ("vllm", "somebody"))
def test_a_request_names_all_of_the_sampling(owner):
    """A server's defaults (top_k 40 and min_p 0.05 of llama.cpp, generation_config of vLLM) hold for what it lacks."""
    script = [part(" five"), part(".", "stop"), usage(2)]
    with scripted(Scripted(lambda body: script, owner)) as server:
        shown = run({"served": server.url}, "--temperature", "0.8", "--top-p", "0.9")
    common = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    for body in server.bodies:
        assert body.items() >= (common | NEUTRAL[owner]).items() and isinstance(body["seed"], int)
    unknown = "server served was not told top_k, min_p, repetition_penalty" in shown
    assert unknown == (owner == "somebody")


def test_a_field_that_a_server_refuses_is_left_out_and_named(plain):
    plain.owner = "vllm"
    shown = run({"strict": chat(plain, leave_out=["min_p", "return_token_ids"])}, "--top-k", "5", "--temperature", "1")
    assert all("min_p" not in body and "return_token_ids" not in body and body["top_k"] == 5 for body in plain.bodies)
    assert "server strict was not told min_p" in shown


def test_lengths_may_be_fixed(plain):
    shown = run({"served": chat(plain)}, "--ignore-eos")
    assert all(body["ignore_eos"] is True for body in plain.bodies)
    assert "server served may not know ignore_eos" in shown and StoredRun(Path("run")).plan.ignore_eos


ANSWER = {"type": "integer"}
OPENAI = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER, "strict": True}}
}


@pytest.mark.parametrize(
    ("engine", "option", "fields"),
    [
        ("generic", "--schema", OPENAI),
        ("vllm", "--schema", {"structured_outputs": {"json": ANSWER}}),
        ("vllm", "--regex", {"structured_outputs": {"regex": "[0-9]"}}),
        ("sglang", "--regex", {"regex": "[0-9]"}),
        ("llamacpp", "--schema", {"json_schema": ANSWER}),
        ("trtllm", "--schema", OPENAI),
        ("trtllm", "--regex", {"response_format": {"type": "regex", "regex": "[0-9]"}}),
    ],
)
def test_a_constraint_is_asked_for_as_the_engine_knows_it(plain, engine, option, fields):
    Path("answer.json").write_text(json.dumps(ANSWER))
    run({"served": chat(plain, engine=engine)}, option, "answer.json" if option == "--schema" else "[0-9]")
    assert plain.bodies and all(fields.items() <= body.items() for body in plain.bodies)


def test_a_constraint_that_an_engine_does_not_know_is_refused(plain):
    Path("answer.lark").write_text("start: /[0-9]/")
    for option in (("--lark", "answer.lark"), ("--regex", "a")):
        shown = run({"served": chat(plain, engine="llamacpp")}, *option, code=2)
        assert f"a request to llamacpp can ask for --schema alone, not for {option[0]}" in shown
    assert not plain.bodies


def test_schemas_and_tools_of_prompts_are_in_their_requests(plain):
    tools = [{"type": "function", "function": {"name": "search"}}]
    rows = [{"prompt": "What is 2 + 3?", "schema": ANSWER}, {"prompt": "Name a colour.", "tools": tools}]
    Path("prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run({"served": chat(plain)})
    asked = {body["messages"][-1]["content"]: body for body in plain.bodies}
    sums, colour = asked["What is 2 + 3?"], asked["Name a colour."]
    assert OPENAI.items() <= sums.items() and "tools" not in sums
    assert colour["tools"] == tools and "response_format" not in colour


def test_an_unknown_field_is_named_once():
    extra = delta({}, "stop") | {"draft_stats": {"seen": 4}}
    with scripted(Scripted(lambda body: [delta({"content": " 5"}), extra, usage(1)])) as server:
        shown = run({"served": chat(server)})
    assert len(server.bodies) == 3
    assert " ".join(shown.split()).count("server served tells draft_stats.seen, which specbench does not read") == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"system": "Be brief."}, "system is for chat requests"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs is for chat requests"),
        ({"extra_body": {"max_tokens": 5}}, "use --max-new-tokens"),
        ({"extra_body": {"temperature": 1}}, "use --temperature"),
        ({"extra_body": {"stream": False}}, "specbench sets 'stream' itself"),
        ({"leave_out": ["min_q"]}, "did you mean 'min_p'"),
        ({"leave_out": ["prompt"]}, "no field that can be left out"),
        ({"deadline": 0}, "deadline"),
    ],
)
def test_settings_that_cannot_be(settings, why):
    Path("servers.yaml").write_text(f"a: {json.dumps({'url': 'http://127.0.0.1:1', **settings})}\n")
    with one_line_error(why):
        load_servers(["servers.yaml"])
