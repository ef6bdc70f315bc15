"""What the parts of a stream are: thoughts, tool calls and texts, ends of all kinds, and what is told with them."""

import json

import pytest
from scripted import delta, part, usage

from specbench.servers.adapters import told, unknown_fields
from specbench.servers.engines import ENGINES
from specbench.servers.reply import Refusal, Reply
from specbench.servers.stream import Events, StreamReader


def read(*events):
    """The reply to events that come at the seconds 1, 2, …"""
    reader = StreamReader(Reply(0.0), "m")
    for at, event in enumerate(events, 1):
        reader.add(json.dumps(event), float(at))
    reader.end()
    return reader.reply


THOUGHTS = {
    "reasoning_content": {"reasoning_content": "hm"},
    "reasoning": {"reasoning": "hm"},
    "both of vLLM's names": {"reasoning_content": "hm", "reasoning": "hm", "content": None},
    "OpenRouter": {"content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
    "Mistral": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
}


@pytest.mark.parametrize("thought", THOUGHTS.values(), ids=THOUGHTS)
def test_a_thought_is_the_first_token(thought):
    reply = read(delta({"role": "assistant", "content": ""}), *[delta(thought)] * 3, delta({"content": " 4"}, "stop"))
    assert (reply.first, reply.text, [chunk.kind for chunk in reply.chunks]) == (2.0, " 4", ["thought"] * 3 + ["text"])


def test_how_many_tokens_were_thought():
    """By the server's count; by ids; by parts, if there are as many as tokens; else it is not known."""
    thinks, says = delta({"reasoning": "hm hm"}), delta({"content": " 4"}, "stop")
    details = {"completion_tokens_details": {"reasoning_tokens": 5}}
    assert read(thinks, says, usage(6, **details)).thought_tokens == 5
    assert read(thinks, says, usage(2)).thought_tokens == 1
    assert read(thinks, says, usage(6)).thought_tokens is None
    with_ids = [delta({"reasoning": "hm hm"}, token_ids=[1, 2, 3]), delta({"content": "4"}, "stop", token_ids=[4])]
    assert read(*with_ids).thought_tokens == 3
    assert read(says, usage(1)).thought_tokens == 0


def test_thoughts_that_are_not_sent_hide_when_tokens_came():
    details = {"completion_tokens_details": {"reasoning_tokens": 40}}
    hidden = read(delta({"content": " 4"}), delta({"content": "."}, "stop"), usage(42, **details))
    assert hidden.hidden and hidden.thought_tokens == 40
    shown = read(delta({"reasoning": "hm"}), delta({"content": "."}, "stop"), usage(42, **details))
    assert not shown.hidden


@pytest.mark.parametrize(
    "value",
    [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"function_call": {"name": "add", "arguments": "{"}},
        {"refusal": "I cannot"},
        {"novel_channel": "words"},
    ],
)
def test_other_parts_cost_tokens_and_are_no_text(value):
    reply = read(delta(value), delta({"content": " 4"}, "tool_calls"))
    assert (reply.first, reply.text, reply.finish) == (1.0, " 4", "stop")
    assert [chunk.kind for chunk in reply.chunks] == ["other", "text"]


@pytest.mark.parametrize(
    "value", [{}, {"role": "assistant"}, {"content": None}, {"content": "", "tool_calls": []}, {"reasoning": ""}]
)
def test_parts_that_cost_nothing(value):
    reply = read(delta(value), delta({"content": " 4"}, "stop"))
    assert (reply.first, len(reply.chunks)) == (2.0, 1)


ENDS = {"stop": "stop", "eos_token": "stop", "stop_sequence": "stop", "end_turn": "stop", "tool_calls": "stop"}
ENDS |= {"length": "length", "max_tokens": "length", "model_length": "length", "STOP": "stop"}


@pytest.mark.parametrize("reason", ENDS)
def test_known_ends(reason):
    assert read(part("4", reason)).finish == ENDS[reason]


def test_an_end_as_an_object_and_the_token_that_matched():
    reply = read(part("4", {"type": "stop", "matched": 2}, matched_stop=2))
    assert (reply.finish, reply.stop) == ("stop", 2)


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "repetition", "cancelled", "timeout", "novel"])
def test_any_other_end_is_a_failure_in_the_servers_words(reason):
    with pytest.raises(Refusal, match=f"the server ended the text by '{reason}'$"):
        read(part("4"), part("", reason))
    with pytest.raises(Refusal, match=f"by '{reason}'.*: no memory$"):
        read(part("4"), part("", reason, error={"code": 500, "message": "no memory"}))


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "no memory", "code": 500}},
        {"object": "error", "message": "no memory", "code": 400},
        {"detail": "no memory"},
        {"detail": [{"loc": ["body"], "msg": "no memory"}]},
        {"message": "no memory", "statusCode": 500},
        {"error": {"error": {"message": "no memory"}}},
        {"choices": [], "error": "no memory"},
    ],
)
def test_errors_within_a_stream(event):
    with pytest.raises(Refusal, match=r"the server reports an error: .*no memory"):
        read(part("4"), event)


def test_an_error_as_a_field_of_the_stream():
    with pytest.raises(Refusal, match="reports an error: no memory"):
        list(Events().feed(b'error: {"code": 500, "message": "no memory"}\n\n'))


@pytest.mark.parametrize("body", ['{"error": {"message": "no memory"}}', "no memory", '{"detail": "no memory"}'])
def test_an_answer_that_is_no_stream(body):
    events, reader = Events(), StreamReader(Reply(0.0), "m")
    assert list(events.feed(body.encode())) == []
    with pytest.raises(Refusal, match="the server answered without a stream: no memory"):
        reader.end(events.end())


def test_half_a_character_is_refused():
    with pytest.raises(Refusal, match="half a character"):
        StreamReader(Reply(0.0), "m").add('{"choices": [{"text": "a\\ud83d"}]}', 1.0)
    with pytest.raises(Refusal) as caught:
        StreamReader(Reply(0.0), "m").add('{"error": {"message": "a\\ud83d"}}', 1.0)
    str(caught.value).encode()


@pytest.mark.parametrize("deep", [50, 300, 900])
def test_a_nested_error_is_one_line(deep):
    event = '{"error": ' + '{"message": ' * deep + '"no"' + "}" * deep + "}"
    with pytest.raises(Refusal) as caught:
        StreamReader(Reply(0.0), "m").add(event, 1.0)
    assert len(str(caught.value)) < 300
    listed = '{"error": ' + "[" * deep + "]" * deep + "}"
    with pytest.raises(Refusal):
        StreamReader(Reply(0.0), "m").add(listed, 1.0)


def rounds(engine, *events):
    return told(ENGINES[engine], read(*events))


DETAILS = {"spec_accept_rate": 0.5, "spec_accept_length": 2.5, "spec_num_correct_drafts": 6}
DETAILS |= {"spec_num_proposed_drafts": 12, "spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 1, 1]}


def test_sglang_tells_details_beside_the_usage():
    """4 rounds accepted 0, 1, 2 and 3 of 3 drafted tokens."""
    last = usage(11) | {"sglext": {"spec_tokens_details": DETAILS}}
    known = rounds("sglang", part("a"), part("b", "stop"), last)
    assert (known.kind, known.rounds, known.draft_tokens, known.accepted_tokens) == ("histogram", 4, 12, 6)


def test_sums_hold_where_a_histogram_counts_otherwise():
    """The text of 10 tokens has room for 4 rounds and 5 accepted tokens, not 6."""
    last = usage(10) | {"sglext": {"spec_tokens_details": DETAILS | {"spec_num_correct_drafts": 5}}}
    known = rounds("sglang", part("a"), part("b", "stop"), last)
    assert (known.rounds, known.draft_tokens, known.accepted_tokens, known.whole) == (4, 12, 5, None)


@pytest.mark.parametrize("name", ["draft_n_verif_steps", "draft_rounds"])
def test_llamacpp_tells_its_rounds(name):
    timings = {"timings": {"draft_n": 15, "draft_n_accepted": 6, name: 5, "predicted_n": 12}}
    known = rounds("llamacpp", part("a"), part("b", "stop") | timings)
    assert (known.kind, known.rounds, known.draft_tokens, known.accepted_tokens) == ("histogram", 5, 15, 6)


def test_tensorrt_tells_tokens_by_forward_and_the_prefill_is_one():
    """10 tokens in 4 forwards: the prefill gave one, and three rounds nine, of which six were drafted."""
    known = rounds("trtllm", part("a"), part("b", "stop", avg_decoded_tokens_per_iter=2.5), usage(10))
    assert (known.rounds, known.draft_tokens, known.accepted_tokens) == (3, None, 6)
    assert rounds("trtllm", part("b", "stop", avg_decoded_tokens_per_iter=3.0), usage(10)) is None  # no whole number
    assert rounds("trtllm", part("b", "stop", avg_decoded_tokens_per_iter=float("inf")), usage(10)) is None


def test_what_no_table_knows_is_named():
    last = usage(3) | {"metrics": {"speculative_decoding": {"num_tree_drafts": 3, "num_draft_tokens": 5}}}
    reply = read(part("a"), part("b", "stop", acceptance_by_head=[1, 2]), last)
    assert unknown_fields(ENGINES["vllm"], reply) == {
        "acceptance_by_head",
        "metrics.speculative_decoding.num_tree_drafts",
    }
    openai = {"completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}}
    assert unknown_fields(ENGINES["generic"], read(part("b", "stop"), usage(3, **openai))) == set()
