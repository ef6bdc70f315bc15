"""One line of a file of recorded conversations, such as an agent's: every answer in it is to be decoded again.

The form is that of chat messages with tool calls and their results, as OpenAI's API, ShareGPT and SWE-agent write them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import brief
from specbench.config.prompt_forms import MESSAGE, Prompt, content_of, prompt_of, role_of

MOST_ANSWERS = 1_000
MOST_READ = 2**29  # characters of a conversation, each message counted as often as it is in a prompt
FORM = 'write {"id": …, "messages": [{"role": …, "content": …}, …]}, one on a line'
ROLES = ("system", "user", "assistant", "tool")
HOLDING = ("messages", "conversations")
CALLS = "tool_calls"


@dataclass(frozen=True)
class Trajectory(Prompt):
    """A recorded conversation. Each of its answers is a turn, whose prompt has what was recorded before it.

    `turns` are the messages between answers, and `answers` the recorded ones, each as JSON. So no turn depends on what
    a model answers to another one. `reference` is the text of the answers, with their calls.
    """

    answers: tuple[str, ...] = ()

    @property
    def goes_on(self) -> bool:
        return False

    def messages(self, turn: int, answers: Sequence[str]) -> list[dict[str, Any]]:
        """The messages before a turn's answer, as recorded; `answers` are not read."""
        messages = [{"role": role, "content": content} for role, content in self.before]
        for number, said in enumerate(self.turns[: turn + 1]):
            messages += json.loads(said)
            if number < turn:
                messages.append(json.loads(self.answers[number]))
        return messages


def trajectory_of(value: Any, where: str, place: int) -> Trajectory:
    """A conversation from a line's value; one without an id is called by its `place`, from 0. Raises UserError."""
    held = [key for key in HOLDING if isinstance(value, dict) and value.get(key) is not None]
    if not held:
        raise UserError(f"{where} has no messages; {FORM}")
    if extra := next((key for key in ("prompt", "turns", *held[1:]) if value.get(key) is not None), None):
        raise UserError(f"{where} has both {held[0]!r} and {extra!r}; leave one of them")
    said = value[held[0]]
    if not isinstance(said, list) or not said or not all(isinstance(message, dict) for message in said):
        raise UserError(f"{where}: messages are a list of objects with `role` and `content`; {FORM}")
    rest = {key: part for key, part in value.items() if key not in (*held, "reference")}
    about = prompt_of(rest | {"prompt": "-"}, where, place)  # all but what is said
    messages = [{"role": role, "content": content} for role, content in about.before]
    messages += [_message(message, f"{where}, message {at}") for at, message in enumerate(said, 1)]
    turns, answers = _turns(messages, where)
    unread = about.unread + ("reference",) * bool(value.get("reference"))
    kept = {field.name: getattr(about, field.name) for field in fields(about)}
    reference = tuple(answer_text(json.loads(answer)) for answer in answers)
    return Trajectory(
        **kept | {"turns": turns, "before": (), "unread": unread, "reference": reference}, answers=answers
    )


def answer_text(message: Mapping[str, Any]) -> str:
    """A message's content, followed by its calls as Hermes and Qwen write them, each a line of JSON in tags."""
    parts = [message["content"]] if message["content"] else []
    for call in message.get(CALLS, ()):
        shown = {"name": call["function"]["name"], "arguments": arguments(call["function"])}
        parts.append(f"<tool_call>\n{json.dumps(shown, ensure_ascii=False)}\n</tool_call>")
    return "\n".join(parts)


def arguments(call: Mapping[str, Any]) -> Any:
    """A call's arguments as the object that their text is; the text itself if it is none."""
    try:
        value = json.loads(call["arguments"])
    except (ValueError, RecursionError):
        return call["arguments"]
    return value if isinstance(value, dict) else call["arguments"]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message in the form of OpenAI's API, with the text of its calls' arguments."""
    role = role_of(message, where, ROLES)
    known = {"assistant": (*MESSAGE, CALLS), "tool": (*MESSAGE, "tool_call_id")}.get(role, MESSAGE)
    if more := next((key for key in message if key not in known and message[key]), None):
        raise UserError(f"{where} has {more!r}, which is not read from a message of {role}; leave it out")
    calls = [_call(call, where) for call in _listed(message.get(CALLS), where)]
    empty = calls and message.get("content", message.get("value")) is None
    content = "" if empty else content_of(message, where)
    if role == "assistant" and not content and not calls:
        raise UserError(f"{where}: an answer has neither a text nor tool calls; leave it out")
    read = {"role": role, "content": content}
    if role == "tool":
        read |= {key: message[key] for key in ("name", "tool_call_id") if isinstance(message.get(key), str)}
    return read | ({CALLS: calls} if calls else {})


def _listed(calls: Any, where: str) -> list[Any]:
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise UserError(f"{where}: `{CALLS}` are {brief(repr(calls))}; write a list")
    return calls


def _call(call: Any, where: str) -> dict[str, Any]:
    """A call in the form of OpenAI's API; the name and the arguments may also be those of the call itself."""
    inner = call.get("function", call) if isinstance(call, dict) else None
    name, given = (inner.get("name"), inner.get("arguments")) if isinstance(inner, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(given, str | dict):
        raise UserError(f'{where}: a tool call is {brief(repr(call))}; write {{"name": …, "arguments": …}}')
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return named | {"type": "function", "function": {"name": name, "arguments": text}}


def _turns(messages: Sequence[Mapping[str, Any]], where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is said before each answer, and the answers, as JSON. Raises UserError for roles out of order."""
    turns, answers, said, read, size = [], [], [], 0, 0
    for at, message in enumerate(messages, 1):
        role, last = message["role"], messages[at - 2]["role"] if at > 1 else None
        if role == "system" and last not in (None, "system"):
            wrong = "the system speaks first"
        elif role == "assistant" and last not in ("user", "tool"):
            wrong = "an answer follows the user or a tool"
        elif role == "tool" and last != "tool" and not (last == "assistant" and CALLS in messages[at - 2]):
            wrong = f"a tool follows an answer with `{CALLS}`"
        else:
            size += len(json.dumps(message))
            if role != "assistant":
                said.append(message)
                continue
            read += size
            turns.append(json.dumps(said, ensure_ascii=False))
            answers.append(json.dumps(message, ensure_ascii=False))
            said = []
            if len(answers) > MOST_ANSWERS or read > MOST_READ:
                raise UserError(
                    f"{where}: more than {MOST_ANSWERS} answers, or {MOST_READ} characters of their prompts; cut the "
                    "conversation"
                )
            continue
        raise UserError(f"{where}, message {at} of {role} is out of order: {wrong}")
    if not answers:
        raise UserError(f"{where} has no message of assistant, so there is no answer to decode again; leave it out")
    return tuple(turns), tuple(answers)
