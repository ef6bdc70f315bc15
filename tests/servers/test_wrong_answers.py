"""What a server says that cannot be used is one line, and what it tells of itself is kept."""

import asyncio
import json
import socket
from contextlib import ExitStack

import pytest
from fake import recorded
from test_client import answers, asks
from test_client import server as server

from specbench.base.untrusted import BRIEF
from specbench.config.servers import ServerSettings
from specbench.servers import wire
from specbench.servers.adapters import parse_counters
from specbench.servers.client import Client
from specbench.servers.engines import ENGINES
from specbench.servers.reply import Refusal, Reply
from specbench.servers.stream import Events, StreamReader, words_of

EVENTS = {
    "[1]": "not a JSON object",
    '{"choices": {"text": "a"}}': "choices of another form",
    '{"choices": [{"text": "a"}, {"text": "b"}]}': "choices of another form",
    '{"choices": ["a"]}': "choices of another form",
    '{"choices": [{"text": 3}]}': "a part of the text is no text",
    '{"error": "no\\nmemory"}': "reports an error: no memory",
    "[" * 100_000: "not JSON",
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event[:20])
def test_an_event_that_no_server_may_send(event):
    with pytest.raises(Refusal, match=EVENTS[event]) as caught:
        StreamReader(Reply(0.0), "m").add(event, 1.0)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_a_stream_without_end_is_refused():
    """Of many short lines: each passes, all together do not."""
    events, line = Events(), b"data: " + b"x" * 2**20 + b"\n"
    with pytest.raises(Refusal, match="MiB"):
        for _ in range(70):
            assert len(list(events.feed(line))) == 1


MODELS = {
    "<html>": "/v1/models is not JSON",
    "[]": "names no model",
    '{"data": [{"id": 3}, "a"]}': "names no model",
    '{"data": 5}': "names no model",
    '{"data": [{"id": "a", "root": []}, {"id": "b"}]}': "it serves a, b; choose one",
    " " * (2**22 + 1): "/v1/models has more than 4 MiB",
}


@pytest.mark.parametrize("page", MODELS, ids=lambda page: page[:20])
def test_an_address_that_is_no_server_of_models(server, page):
    server.pages["/v1/models"] = page
    (one,), client = answers(server, asks(1))
    assert MODELS[page] in one.reply.error and client.model is None and not server.requests


@pytest.mark.parametrize(("answer", "why"), [("", "no message"), ("<p>\nbusy", "<p> busy"), ('"full"', "full")])
def test_errors_without_a_message_of_openai(answer, why):
    assert words_of(answer) == why


SCHEDULER = {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048, "max_num_seqs": 4}
TOLD = {
    "vllm": (
        "/server_info",
        {"vllm_config": {"scheduler_config": SCHEDULER | {"policy": "fcfs"}}, "vllm_env": {"HOME": "/home/me"}},
        {
            "version": "0.32.0",
            "cache": {"enable_prefix_caching": "False", "block_size": "16"},
            "scheduler": SCHEDULER,
        },
    ),
    "sglang": (
        "/server_info",
        {"version": "0.5.23", "chunked_prefill_size": 8192, "max_running_requests": 48, "api_key": "s3cret"},
        {"version": "0.5.23", "chunked_prefill_size": 8192, "max_running_requests": 48},
    ),
    "llamacpp": (
        "/props",
        {"build_info": "b" * 10**6, "total_slots": 1, "model_path": "/home/me", "dtype": ["x"]},
        {"build_info": "b" * BRIEF, "total_slots": 1},
    ),
}


@pytest.mark.parametrize("engine", TOLD)
def test_what_engines_tell_of_themselves(server, engine):
    """Known settings, in short, and nothing else of what they say."""
    path, info, kept = TOLD[engine]
    server.engine, server.pages[path] = engine, json.dumps(info)
    _, client = answers(server, asks(1))
    assert client.facts == {"engine": engine, "model": "pocket", "context": 512, **kept}


@pytest.mark.parametrize("page", ["<html>", "[1]", '{"vllm_config": [1]}', "[" * 100_000], ids=lambda page: page[:20])
def test_what_an_engine_tells_of_itself_may_be_anything(server, page):
    server.pages |= dict.fromkeys(("/version", "/metrics", "/server_info"), page)
    (one,), client = answers(server, asks(1))
    assert one.reply.error == "" and client.facts == {"engine": "vllm", "model": "pocket", "context": 512}


def test_counters_that_are_no_numbers_are_none_at_all():
    text = "vllm:spec_decode_num_drafts_total 4.0\nvllm:spec_decode_num_accepted_tokens_total ?\n"
    assert parse_counters(ENGINES["vllm"], text) == {}


def test_a_connection_serves_one_text_after_another(server, monkeypatch):
    """Else each is timed with opening its own. The end of an answer comes some time after its last event."""
    monkeypatch.setattr(wire, "LINGER", 20.0)
    server.lingers = 0.05
    replies, _ = answers(server, asks(4))
    assert [one.reply.error for one in replies] == [""] * 4 and len(server.used) == 1


def test_an_answer_that_does_not_end_is_not_waited_for(server, monkeypatch):
    """The server has said that it is done, and keeps the connection open."""
    monkeypatch.setattr(wire, "LINGER", 0.05)
    server.lingers = 5.0
    replies, _ = answers(server, asks(2))
    assert [one.reply.text for one in replies] == [one["text"] for one in recorded()[:2]]
    assert all(one.reply.ended - one.reply.sent < 2.5 for one in replies)


def test_proxies_of_the_environment_are_not_used(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    (one,), _ = answers(server, asks(1))
    assert one.reply.error == ""


def test_a_host_that_does_not_answer(monkeypatch):
    """A port whose queue of connections is full: the next one gets no word."""
    monkeypatch.setattr(wire, "CONNECT", 0.3)
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())

        async def meet() -> None:
            async with Client("x", ServerSettings(url=f"http://127.0.0.1:{full.getsockname()[1]}")) as client:
                await client.meet()

        with pytest.raises(Refusal, match=r"no connection to http://127.0.0.1:\d+: no answer in 0.3 s"):
            asyncio.run(meet())
