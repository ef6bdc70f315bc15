"""A client reads what servers stream, and every way in which they break becomes one line."""

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fake import Fake, recorded, serving
from refusals import one_line_error
from transformers import AutoTokenizer

from specbench.config import SUITES
from specbench.config.servers import ServerSettings, load_servers, server_settings
from specbench.servers.adapters import evidence, parse_counters, told
from specbench.servers.client import Client
from specbench.servers.engines import ENGINES
from specbench.servers.evidence import fits, of_histogram, of_steps
from specbench.servers.reply import Chunk, Refusal, Reply, count, counts
from specbench.servers.schedule import Answer, Ask, Talk, closed_loop, open_loop, single
from specbench.servers.stream import Events, StreamReader

TOKENIZER = AutoTokenizer.from_pretrained(SUITES / "pairs" / "weights" / "target")
OPTIONS = {"max_tokens": 64, "temperature": 0.0}


@pytest.fixture
def server():
    with serving(Fake(TOKENIZER)) as fake:
        yield fake


def asks(count: int) -> list[Talk[Answer]]:
    return [single(Ask(TOKENIZER(one["prompt"])["input_ids"], OPTIONS)) for one in recorded()[:count]]


def answers(fake, asks, concurrency=1, times=None, **settings):
    """The answers of a server, and the client, which is closed."""

    async def ask():
        async with Client("x", ServerSettings(url=fake.url, **settings)) as client:
            if times is not None:
                return await open_loop(client, asks, times), client
            return await closed_loop(client, asks, concurrency), client

    return asyncio.run(ask())


def asked(fake, **settings):
    """The evidence of the first document, and its reply."""
    ((answer,), client) = answers(fake, asks(1), **settings)
    assert answer.reply.error == ""
    return evidence(client.engine, answer.reply, answer.before, answer.after), answer.reply


def test_a_text_with_its_tokens_times_and_steps(server):
    result, reply = asked(server)
    first = recorded()[0]
    assert (reply.text, reply.ids, reply.finish) == (first["text"], first["ids"], "stop")
    assert len(reply.chunks) == 1 + len(first["accepted"])
    assert reply.due <= reply.sent <= reply.first <= reply.chunks[-1].at <= reply.ended
    assert result.kind == "steps"
    assert (list(result.drafted), list(result.accepted)) == ([5] * 8, [5, 2, 5, 5, 5, 1, 5, 5])
    body = server.requests[0]
    assert body["return_token_ids"] and body["stream"] and body["model"] == "pocket"


def test_what_the_server_tells_of_itself(server):
    _, client = answers(server, asks(1))
    assert client.facts == {
        "engine": "vllm",
        "model": "pocket",
        "context": 512,
        "version": "0.32.0",
        "cache": {"enable_prefix_caching": "False", "block_size": "16"},
    }


def test_evidence_in_falling_order(server):
    """The first document: histogram [0, 1, 1, 0, 0, 6] is 8 rounds with 1 + 2 + 30 = 33 of 40 accepted."""
    server.tells = "histogram"
    result, _ = asked(server)
    assert (result.kind, result.rounds, result.draft_tokens, result.accepted_tokens) == ("histogram", 8, 40, 33)
    server.tells = "counters"
    two, client = answers(server, asks(2))
    kinds = [evidence(client.engine, one.reply, one.before, one.after) for one in two]
    assert kinds[0].kind == "chunks"  # the engine was not known before the first request
    assert (kinds[1].kind, kinds[1].rounds, kinds[1].accepted_tokens) == ("counters", 7, 1 + 2 + 5 + 5 + 5 + 0 + 5)
    server.others = 1  # somebody else was served: counters prove nothing
    two, client = answers(server, asks(2))
    assert evidence(client.engine, two[1].reply, two[1].before, two[1].after).kind == "chunks"
    server.tells = "nothing"
    result, _ = asked(server)
    assert result.kind == "chunks" and result.rounds == 8
    server.coalesce = 3
    result, _ = asked(server)
    assert result.rounds == 3 < 8  # the least number: three rounds came at a time
    server.ids = False
    result, reply = asked(server)
    assert result.kind == "none" and reply.ids is None and reply.tokens == 38


def test_whole_rounds_are_known_of_drafts_of_one_length():
    """8 rounds of 5 drafted 40 tokens, and 6 accepted all 5; 39 tokens are not 8 drafts of 5."""
    assert of_histogram([0, 1, 1, 0, 0, 6], 40, 5).whole == 6
    assert of_histogram([0, 1, 1, 0, 0, 6], 39, 5).whole is None
    assert of_histogram([0, 1, 1], 10, 5).whole == 0  # no round accepted more than 2 of 5
    assert of_histogram([0, 1, 1, 0, 0, 6], 40).whole is None  # the engine's longest draft is not known
    assert of_steps([5, 3, 4], [5, 3, 1]).whole == 2


def test_a_text_without_drafts_has_no_rounds_to_list():
    """vLLM leaves the lists out of such an answer."""
    facts = {"acceptance_histogram": [0] * 6, "num_draft_tokens": 0, "num_spec_tokens": 5}
    parsed = told(ENGINES["vllm"], Reply(0.0, told=facts))
    assert (parsed.kind, parsed.drafted, parsed.accepted, parsed.rounds, parsed.whole) == ("steps", (), (), 0, 0)
    assert fits(parsed, 50) and of_histogram([0] * 6, None).kind == "histogram"


def test_counters_are_asked_until_the_text_is_in_them(server):
    """The second text is in them when they are asked for the third time."""
    server.tells = "counters"

    async def ask():
        async with Client("x", ServerSettings(url=server.url)) as client:
            await closed_loop(client, asks(1), 1)
            server.behind = 2
            return client, *await closed_loop(client, asks(2)[1:], 1)

    client, one = asyncio.run(ask())
    result = evidence(client.engine, one.reply, one.before, one.after)
    assert (result.kind, result.rounds, result.accepted_tokens) == ("counters", 7, 1 + 2 + 5 + 5 + 5 + 0 + 5)


@pytest.mark.parametrize(
    ("engine", "sums"), [("sglang", (8, None, 33)), ("llamacpp", (None, 40, 33)), ("generic", (8, None, None))]
)
def test_other_engines(server, engine, sums):
    server.engine = engine
    result, _ = asked(server)
    assert (result.rounds, result.draft_tokens, result.accepted_tokens) == sums
    assert result.kind == ("chunks" if engine == "generic" else "histogram")


def test_steps_that_contradict_themselves_are_not_believed(server):
    """9 of 5 accepted: what remains is the histogram."""
    server.fault = "lies"
    result, _ = asked(server)
    assert result.kind == "histogram"
    assert of_steps([5], [6]) is of_steps([5, 5], [1]) is of_steps(None, [1]) is None
    assert of_histogram([1, 1], 0) is None  # one accepted and none drafted


def test_rounds_must_fit_the_text():
    """38 tokens: 37 after the prefill's; all rounds but the last commit 6 + 3 + 6 + 6 + 6 + 2 + 6 = 35 of them."""
    steps = of_steps([5] * 8, [5, 2, 5, 5, 5, 1, 5, 5])
    assert fits(steps, 38) and fits(steps, 41) and not fits(steps, 36)
    assert fits(of_histogram([0, 1, 1, 0, 0, 6], 40), 38) and not fits(of_histogram([0, 1, 1, 0, 0, 6], 40), 8)


FAULTS = {
    "cut": "the stream was cut",
    "end": "the stream was cut after 1 parts",
    "hang": "no byte in 0.3 s",
    "pings": "no part of the answer in 0.3 s",
    "json": "not JSON",
    "error": "out of memory",
    "model": "another model",
    "refused": "answers 503: the engine is busy",
    "redirect": "redirects to http://127.0.0.1:9/v1/completions, which is refused",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_others_go_on(server, fault):
    server.fault, server.only = fault, "Sara"
    (first, second), _ = answers(server, asks(2), timeout=0.3)
    assert FAULTS[fault] in first.reply.error and "\n" not in first.reply.error
    assert second.reply.error == "" and second.reply.text == recorded()[1]["text"]


def test_a_connection_that_the_server_closed_is_opened_anew(server):
    server.closes = True
    replies, _ = answers(server, asks(3))
    assert [one.reply.error for one in replies] == ["", "", ""] and len(server.requests) == 3
    assert all(one.reply.due <= one.reply.sent < one.reply.first for one in replies)


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the certificate")
def test_only_trusted_certificates(tmp_path):
    """One that nobody whom this machine trusts has signed is refused."""
    file = str(tmp_path / "server.pem")
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", file, "-out", file + ".crt"]
    subprocess.run([*command, *name], check=True, capture_output=True)
    (tmp_path / "server.pem").write_text(Path(file).read_text() + Path(file + ".crt").read_text())
    with serving(Fake(TOKENIZER, certificate=Path(file))) as fake:
        assert fake.url.startswith("https://")
        (one,), _ = answers(fake, asks(1))
        assert "no trusted connection" in one.reply.error and not fake.requests


def test_of_several_closed_connections_none_is_tried_again(server):
    """Three texts at a time leave three connections that the server has closed."""
    server.closes = True
    replies, _ = answers(server, asks(4), times=[0.0, 0.0, 0.0, 0.4])
    assert [one.reply.error for one in replies] == [""] * 4


def test_nobody_is_there(server):
    gone = Fake(TOKENIZER)
    with serving(gone):
        pass
    (one,), client = answers(gone, asks(1))
    assert "no connection to http://127.0.0.1" in one.reply.error and client.model is None


def test_models(server):
    server.models = ("a", "b")
    (one,), _ = answers(server, asks(1))
    assert "it serves a, b; choose one: --set x.model=NAME" in one.reply.error
    (one,), _ = answers(server, asks(1), model="c")
    assert "does not serve 'c', only a, b" in one.reply.error
    server.models = ("b", "a")
    (one,), _ = answers(server, asks(1), model="b")
    assert one.reply.error == ""


def test_names_of_one_model_are_one_model(server):
    """A server may list several names with one root; the first one is asked for."""
    server.pages["/v1/models"] = '{"data": [{"id": "pocket", "root": "/m"}, {"id": "another name", "root": "/m"}]}'
    server.models = ("pocket",)
    (one,), client = answers(server, asks(1))
    assert one.reply.error == "" and client.model == "pocket"


def test_a_model_that_is_named_need_not_be_listed(server):
    """The server of transformers 5.19 lists none, and answers with the revision after the name."""
    server.pages["/v1/models"], server.models = '{"data": []}', ("pocket@main",)
    (one,), client = answers(server, asks(1), model="pocket")
    assert one.reply.error == "" and client.model == "pocket"
    (one,), _ = answers(server, asks(1), model="another")
    assert "the answer is of another model: 'pocket@main', not 'another'" in one.reply.error


def test_a_key_comes_from_the_environment_and_is_never_repeated(server, monkeypatch):
    server.key = "s3cret"
    monkeypatch.setenv("MY_KEY", "wr0ng")
    (one,), _ = answers(server, asks(1), key_variable="MY_KEY")
    assert "401" in one.reply.error and "wr0ng" not in one.reply.error
    monkeypatch.setenv("MY_KEY", "s3cret")
    (one,), _ = answers(server, asks(1), key_variable="MY_KEY")
    assert one.reply.error == ""
    monkeypatch.delenv("MY_KEY")
    with one_line_error("MY_KEY", "holds no API key"):
        answers(server, asks(1), key_variable="MY_KEY")


def test_so_many_at_a_time(server):
    server.delay = 0.01
    replies, _ = answers(server, asks(9), concurrency=3)
    assert server.most == 3
    assert [one.reply.text for one in replies] == [one["text"] for one in recorded()[:9]]
    assert all(reply.before is None for reply in replies)  # counters say nothing of one among others


def test_requests_go_at_their_times(server):
    """Three at 0, 0.1 and 0.2 s of which each takes 0.3 s or more: the later do not wait for the earlier."""
    server.delay = 0.04
    replies, _ = answers(server, asks(3), times=[0.0, 0.1, 0.2])
    due = [one.reply.due - replies[0].reply.due for one in replies]
    assert due == pytest.approx([0.0, 0.1, 0.2])
    assert all(one.reply.sent >= one.reply.due for one in replies)
    assert replies[2].reply.sent < replies[0].reply.ended
    assert server.most == 3


def test_events_are_the_same_however_their_bytes_are_cut():
    raw = 'data: {"a": "ü"}\r\n\r\n: comment\ndata: [DONE]\n\n'.encode()
    for size in range(1, len(raw) + 1):
        events = Events()
        results = [data for i in range(0, len(raw), size) for data in events.feed(raw[i : i + size])]
        assert results == ['{"a": "ü"}', "[DONE]"]
    with pytest.raises(Refusal, match="UTF-8"):
        list(Events().feed(b"data: \xff\n"))
    with pytest.raises(Refusal, match="MiB"):
        list(Events().feed(b"x" * (17 * 2**20)))


def test_the_end_of_a_stream_tells_what_ended_the_text():
    reader = StreamReader(Reply(0.0), "m")
    reader.add('{"choices": [{"text": "a###", "finish_reason": null}]}', 1.0)
    with pytest.raises(Refusal, match="cut after 1 parts"):
        reader.end()
    reader.add('{"choices": [{"text": "", "finish_reason": "stop", "stop_reason": "###"}]}', 2.0)
    reader.end()
    assert (reader.reply.finish, reader.reply.stop) == ("stop", "###")


def test_the_last_word_on_rounds_counts():
    """Each event tells the rounds so far."""
    reader = StreamReader(Reply(0.0), "m")
    for n in (1, 2):
        steps = {"per_step_drafted": [5] * n, "per_step_accepted": [n] * n}
        reader.add(json.dumps({"choices": [], "metrics": {"speculative_decoding": steps}}), float(n))
    assert told(ENGINES["vllm"], reader.reply).accepted == (2, 2)


def test_a_count_is_a_number_from_0():
    assert (count(0), count(7)) == (0, 7)
    assert count(-1) is count(True) is count(1.0) is count(2**31) is count("3") is None
    assert counts([0, 2]) == [0, 2] and counts([1, -1]) is counts(None) is counts({"a": 1}) is None


def test_counters_of_several_engines_add_up():
    text = 'vllm:request_success_total{reason="a"} 2.0\nvllm:request_success_total{reason="b"} 3.0\n'
    text += "vllm:spec_decode_num_drafts_total 4.0\nvllm:spec_decode_num_drafts_created 1e9\nother 1\n"
    assert parse_counters(ENGINES["vllm"], text) == {"requests": 5.0, "rounds": 4.0}
    assert parse_counters(ENGINES["generic"], text) == {}


def test_counters_tell_rounds_that_accepted_whole_drafts_of_one_length():
    """Four drafts of three tokens: three accepted one, two of these two, and one all."""
    before = {"requests": 1.0, "rounds": 10.0, "drafted": 30.0, "accepted": 12.0, "at 0": 6.0, "at 1": 4.0, "at 2": 2.0}
    grown = {"requests": 1, "rounds": 4, "drafted": 12, "accepted": 6, "at 0": 3, "at 1": 2, "at 2": 1}
    reply = Reply(0.0, chunks=[])
    result = evidence(ENGINES["vllm"], reply, before, {name: before[name] + grown[name] for name in before})
    assert (result.kind, result.rounds, result.draft_tokens, result.accepted_tokens, result.whole) == (
        "counters",
        4,
        12,
        6,
        1,
    )
    uneven = before | {"drafted": 31.0}
    result = evidence(ENGINES["vllm"], reply, uneven, {name: before[name] + grown[name] for name in before})
    assert (result.kind, result.draft_tokens, result.whole) == ("counters", 11, None)


def test_single_tokens_say_nothing_of_rounds():
    reply = Reply(0.0, chunks=[Chunk(0.1, "a", (1,)), Chunk(0.2, "b", (2,))])
    assert evidence(ENGINES["generic"], reply, None, None).kind == "none"


def test_servers_on_the_command_line(tmp_path):
    file = tmp_path / "servers.yaml"
    file.write_text("eagle3: {url: 'https://host/v1', engine: vllm, key_variable: K}\nplain: http://host:1\n")
    specs = load_servers(["vanilla=http://127.0.0.1:8000/v1/", str(file)])
    assert [spec.name for spec in specs] == ["vanilla", "eagle3", "plain"]
    assert [server_settings(spec).url for spec in specs] == ["http://127.0.0.1:8000", "https://host", "http://host:1"]
    assert {spec.method for spec in specs} == {"server"} and specs[1].values["key_variable"] == "K"


WRONG = {
    "http://host": "write NAME=URL",
    "x=host:80": "http://HOST:PORT",
    "x=ftp://host": "http://HOST:PORT",
    "x=http://user:pass@host": "key_variable",
    "x=http://host?key=1": "without a query",
    "x=http://host:99999": "no address",
    "a b=http://host": "letters, digits",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_servers(text):
    with one_line_error(WRONG[text]) as caught:
        load_servers([text])
    assert "pass@" not in str(caught.value)


def test_wrong_files_of_servers(tmp_path):
    (tmp_path / "a.yaml").write_text("x: {url: 'http://h', engin: vllm}\n")
    (tmp_path / "b.yaml").write_text("x: 3\n")
    with one_line_error("engin", "did you mean 'engine'"):
        load_servers([str(tmp_path / "a.yaml")])
    with one_line_error("x", "write a URL"):
        load_servers([str(tmp_path / "b.yaml")])
    with one_line_error("two servers have this name"):
        load_servers(["x=http://h", "x=http://i"])
