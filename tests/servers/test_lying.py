"""Servers that keep a client waiting, in ways that no silence shows, and servers that repeat what is secret."""

import asyncio
import gzip
import json
import threading
import time
from contextlib import contextmanager

import pytest

from specbench.config.servers import ServerSettings
from specbench.measure.served import problem
from specbench.servers.client import Client, clock
from specbench.servers.reply import Chunk, Refusal, Reply
from specbench.servers.stream import Events, StreamReader
from specbench.tasks.requests import Request

MODELS = json.dumps({"data": [{"id": "m", "owned_by": "somebody"}]}).encode()
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TICK = 0.05


def chunked(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(text):
    choice = {"index": 0, "text": text, "finish_reason": None}
    return chunked(b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n")


# What is sent again and again, after what is sent once.
LIES = {
    "a header byte by byte": (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
    "headers without an end": (b"HTTP/1.1 200 OK\r\n", b"X-More: 1\r\n"),
    "continue for ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints for ever": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"),
    "empty events": (HEAD, event("")),
    "events without choices": (HEAD, chunked(b'data: {"model": "m", "choices": []}\n\n')),
    "comments": (HEAD, chunked(b": ping\n\n")),
    "one line without an end": (HEAD, chunked(b"x")),
    "a body of JSON without an end": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[", b" 1,"),
    "an error without an end": (b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\n\r\n", b"x"),
}


@contextmanager
def lying(once, again):
    """A server on this machine that lists its model, and answers all else with bytes that do not end."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    places = []

    async def speak(reader, writer):
        asked = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        try:
            if asked == b"/v1/models":
                size = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(MODELS)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + size + MODELS)
                await writer.drain()
                return
            writer.write(once)
            while True:
                writer.write(again)
                await writer.drain()
                await asyncio.sleep(TICK)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def start():
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        places.append(server.sockets[0].getsockname()[1])
        ready.set()

    def run():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield f"http://127.0.0.1:{places[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)


def asked(url, monkeypatch=None, **settings):
    async def ask():
        async with Client("x", ServerSettings(url=url, **settings)) as client:
            return await client.complete("a", {}, clock()), client

    start = time.monotonic()
    reply, client = asyncio.run(ask())
    return reply, time.monotonic() - start, client


@pytest.mark.parametrize("lie", LIES)
def test_bytes_without_tokens_are_not_waited_for(lie, monkeypatch):
    monkeypatch.setattr("specbench.servers.client.CONNECT", 0.3)
    monkeypatch.setattr("specbench.servers.wire.CONNECT", 0.3)
    monkeypatch.setattr("specbench.servers.wire.SHORT", 0.5)
    with lying(*LIES[lie]) as url:
        reply, seconds, _ = asked(url, timeout=0.5)
    assert seconds < 5 and reply.error
    assert "the server hung: no part of the answer in 0.5 s" in reply.error or "answers 500: xx" in reply.error


def test_an_answer_that_never_ends_has_a_deadline():
    """A word every TICK seconds, well within the timeout."""
    with lying(HEAD, event(" word")) as url:
        reply, seconds, _ = asked(url, timeout=1, deadline=0.6)
    assert 0.5 < seconds < 4 and "no end of the answer in 0.6 s" in reply.error


KEY = "sk-very-secret-1234567890"


@pytest.mark.parametrize(
    "words",
    [
        [f"your key is {KEY}"],
        [*KEY],  # one character at a time
    ],
)
def test_an_answer_that_repeats_the_key_keeps_none_of_it(words, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    parts = b"".join(map(event, words))
    last = json.dumps({"model": "m", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}).encode()
    end = chunked(b"data: " + last + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
    with lying(HEAD + parts + end, b"") as url:
        reply, _, _ = asked(url, key_variable="MY_KEY")
    assert KEY not in reply.text or "repeats the API key" in reply.error
    assert KEY not in reply.error


@pytest.mark.parametrize("escaped, after", [(False, ""), (False, r"\ud800"), (True, r"\ud800")])
def test_a_version_that_repeats_the_key_is_masked(escaped, after, monkeypatch):
    from scripted import Scripted, part, scripted

    monkeypatch.setenv("MY_KEY", KEY)
    said = "".join(f"\\u{ord(c):04x}" for c in KEY) if escaped else KEY
    pages = {"/version": f'{{"version": "1 {said} {after}"}}'}
    with scripted(Scripted(lambda body: [part("a", "stop")], "vllm", pages=pages)) as server:
        reply, _, client = asked(server.url, key_variable="MY_KEY")
    assert not reply.error and client.facts["version"].startswith("1 (the API key)")
    json.dumps(client.facts, ensure_ascii=False).encode()


ESCAPED = "".join(f"\\u{ord(c):04x}" for c in KEY)
WIDE = "x" * 65  # so that the beginning that is shown would end within the key
CLOSED = b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n%s"


@pytest.mark.parametrize(
    "answer",
    [
        CLOSED % (b"200 OK", f'data: {{"error": {{"message": "{WIDE}{ESCAPED}"}}}}\n\n'.encode()),
        CLOSED % (b"200 OK", f'data: {{"model": "{WIDE}{ESCAPED}", "choices": []}}\n\n'.encode()),
        CLOSED % (b"200 OK", f'data: {{"choices": [{{"finish_reason": "{WIDE}{ESCAPED}"}}]}}\n\n'.encode()),
        CLOSED % (b"500 No", f'{{"error": {{"message": "{WIDE}{ESCAPED}"}}}}'.encode()),
        CLOSED % (b"200 OK\r\nX " + WIDE[:30].encode() + KEY.encode(), b""),
    ],
    ids=["an error", "a model", "an end", "a status", "a header that is none"],
)
def test_no_part_of_a_key_is_left_where_a_message_is_cut(answer, monkeypatch):
    monkeypatch.setenv("MY_KEY", KEY)
    with lying(answer, b"") as url:
        reply, _, _ = asked(url, key_variable="MY_KEY", timeout=2)
    assert reply.error and KEY[:5] not in reply.error, reply.error


def test_an_answer_of_a_gigabyte_in_a_megabyte_is_not_unpacked():
    packed = gzip.compress(bytes(2**25)) * 32
    with lying(CLOSED % (b"200 OK\r\nContent-Encoding: gzip", packed), b"") as url:
        reply, _, _ = asked(url, timeout=5)
    assert "has more than 16 MiB" in reply.error


def read(data):
    """The text of a stream, or why it is refused."""
    reply, events = Reply(0.0), Events()
    reader = StreamReader(reply, "m")
    try:
        for each in events.feed(data):
            reader.add(each, 1.0)
        reader.end(events.end())
    except Refusal as refusal:
        return str(refusal)
    return reply.text


def told(text, finish=None, **more):
    choice = {"index": 0, "text": text, "finish_reason": finish} | more
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"


END, DONE = told("b", "stop"), b"data: [DONE]\n\n"
STREAMS = {
    "a byte order mark": (b"\xef\xbb\xbf" + told("a") + END, "ab"),
    "a field that nobody knows": (told("a") + b"colour: red\n" + END, "ab"),
    "two ends": (told("a") + END + DONE + DONE, "ab"),
    "a space before": (told("a") + b" " + told("lost") + END, "a line of the stream is no event"),
    "a zero before": (b"\0" + told("lost") + END, "a line of the stream is no event"),
    "capitals": (told("lost").replace(b"data", b"DATA") + END, "a line of the stream is no event"),
    "a text after its end": (told("a") + END + told("late"), "comes after its end"),
    "an event after the last": (told("a") + END + DONE + told("late"), "after the end of the stream"),
    "a second text": (told("a") + told("other", index=1) + END, "of another (index 1)"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_no_part_of_a_stream_is_lost_or_of_another_text(name):
    data, expected = STREAMS[name]
    assert read(data) == expected if expected == "ab" else expected in read(data)


@pytest.mark.parametrize(
    ("tokens", "thoughts", "why"), [(17, 0, "at most 16"), (17, 1, ""), (16, 0, ""), (0, 0, "0 tokens")]
)
def test_counts_that_cannot_be(tokens, thoughts, why):
    usage = {"completion_tokens": tokens, "completion_tokens_details": {"reasoning_tokens": thoughts}}
    reply = Reply(0.0, chunks=[Chunk(1.0, "a", None)], usage=usage)
    request = Request(task="t", doc_id=0, prompt="p", until=(), max_new_tokens=16, prompt_hash="", doc_hash="")
    found = problem(reply, None, request, [1], chat=False)
    assert why in found and bool(found) == bool(why)
