"""One line of a file of prompts, in each form that benchmarks and load generators write, as a conversation.

Read are specbench's own lines; `question.jsonl` of MT-Bench, Spec-Bench and EAGLE; SPEED-Bench's rows; the custom data
sets of vLLM, SGLang, guidellm and AIPerf; requests of OpenAI's API, also in the form of its batches; and ShareGPT's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import brief

MOST_TURNS = 100
MOST_NAME = 200  # characters of an id and of a category
MOST_STOPS = 100
FORM = 'write {"id": …, "prompt": TEXT or [TURN, TURN, …], "category": …}, one on a line'

SAYING = ("prompt", "turns", "messages", "conversations", "text", "texts", "text_input")  # a line has one of them
IDS = ("id", "question_id", "custom_id")
LIMITS = ("max_new_tokens", "output_tokens", "max_tokens", "max_completion_tokens", "output_length")
SYSTEMS = ("system", "system_prompt")
SCHEMAS = ("schema", "response_format")
READ = {*SAYING, *IDS, *LIMITS, *SYSTEMS, *SCHEMAS, "category", "reference", "stop", "tools", "type", "role"}
# What SPEED-Bench says of its rows; the rows are known by these columns.
SPEED_BENCH = {"sub_category", "source", "src_id", "difficulty", "multiturn"}
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED"  # how SPEED-Bench begins a text that it must not publish
MESSAGE = ("role", "from", "content", "value", "name")  # what is read of a message, or changes nothing
MEDIA = ("image", "images", "image_files", "audio", "audios", "video", "videos", "multi_modal_data")
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "developer": "system"}


@dataclass(frozen=True)
class Prompt:
    """One conversation: what the user says, turn by turn. `reference` is a text for each turn that has one.

    `before` are messages before the first turn, as (role, content): a system prompt, or earlier turns with their given
    answers. An answer ends before the first of `stop`, and after `max_new_tokens` where the file gives a limit for this
    prompt; it is JSON under `schema` if there is one. The chat template shows `tools`. Both are JSON.
    """

    id: str
    category: str  # as in the file; empty if it has none
    task: str  # under which it stands in tables
    turns: tuple[str, ...]
    reference: tuple[str, ...]
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    before: tuple[tuple[str, str], ...] = ()
    schema: str | None = None
    tools: str | None = None
    unread: tuple[str, ...] = ()  # keys of the line that change nothing here

    @property
    def goes_on(self) -> bool:
        """True if a later turn has the model's own answers to the turns before it in its prompt."""
        return True

    def messages(self, turn: int, answers: Sequence[str]) -> list[dict[str, Any]]:
        """The messages that a turn's answer follows, after these answers to all turns before it."""
        messages = [{"role": role, "content": content} for role, content in self.before]
        for number, said in enumerate(self.turns[: turn + 1]):
            messages.append({"role": "user", "content": said})
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
        return messages


def prompt_of(value: Any, where: str, place: int) -> Prompt:
    """A prompt from a line's value; one without an id is called by its `place`, from 0. Raises UserError."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is not a JSON object; {FORM}")
    request = isinstance(value.get("body"), dict) and "custom_id" in value  # of a batch for OpenAI's API
    value = (
        {**{k: v for k, v in value.items() if k not in ("body", "method", "url")}, **value["body"]}
        if request
        else value
    )
    said = [key for key in SAYING if value.get(key) is not None]
    if len(said) > 1:
        raise UserError(f"{where} has both {said[0]!r} and {said[1]!r}; leave one of them")
    if not said:
        raise UserError(_speechless(value, where))
    if media := next((key for key in MEDIA if value.get(key)), None):
        raise UserError(f"{where} has {media!r}, and specbench reads text alone; leave such prompts out")
    if value.get("role", "user") != "user":
        raise UserError(f"{where}: `role` is {brief(repr(value['role']))}; a prompt is what the user says")
    before, turns, answer = _conversation(said[0], value[said[0]], where)
    if system := _text_of(value, SYSTEMS, where):
        if before and before[0][0] == "system":
            raise UserError(f"{where} has a system prompt twice; leave one of them")
        before = (("system", system), *before)
    if len(turns) > MOST_TURNS:
        raise UserError(f"{where}: {len(turns)} turns, and a conversation has at most {MOST_TURNS}")
    texts = [*turns, *(content for _, content in before)]
    if any(PLACEHOLDER in text for text in texts):
        raise UserError(
            f"{where} holds SPEED-Bench's placeholder instead of a text; fetch the texts with its own prepare_data.py, "
            "or leave such rows out"
        )
    known = READ | (SPEED_BENCH if value.keys() >= {"source", "src_id"} else set())
    known |= {"session_id"} if said[0] == "turns" else set()
    ids = (*IDS, "session_id") if said[0] == "turns" else IDS
    return Prompt(
        id=_name(value, ids, where) or str(place),
        category=_name(value, ("category",), where),
        task="",
        turns=turns,
        reference=_reference(value.get("reference"), where) or answer,
        stop=_stop(value.get("stop"), where),
        max_new_tokens=_limit(value, where),
        before=before,
        schema=_schema(value, where),
        tools=_tools(value.get("tools"), where),
        unread=tuple(key for key in value if key not in known and value[key] is not None),
    )


def _speechless(value: Mapping[str, Any], where: str) -> str:
    if "input_length" in value or "hash_ids" in value:
        return (
            f"{where} has lengths and no text, and drafts of made-up texts say nothing of real ones; give a file with "
            "prompts"
        )
    return f'{where} has no "prompt" (and no {", ".join(repr(key) for key in SAYING[1:])}); {FORM}'


Conversation = tuple[tuple[tuple[str, str], ...], tuple[str, ...], tuple[str, ...]]


def _conversation(key: str, said: Any, where: str) -> Conversation:
    """The messages before the first turn, the turns, and the answer that the file gives to the last one, if any."""
    if key in ("messages", "conversations"):
        return _messages(said, where)
    if key == "texts" and isinstance(said, list) and len(said) > 1:
        raise UserError(f"{where}: `texts` are {len(said)} texts of one request; give each a line of its own")
    parts = said if isinstance(said, list) and key in ("prompt", "turns", "texts") else [said]
    if key == "turns" and parts and all(isinstance(part, dict) for part in parts):
        if all("content" in part for part in parts):
            return _messages(parts, where)
        parts = [_turn(part, where) for part in parts]
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise UserError(f"{where}: a prompt is a text or a list of texts, one for each turn, and none is empty; {FORM}")
    return (), tuple(parts), ()


def _turn(part: Mapping[str, Any], where: str) -> Any:
    """The text of one of AIPerf's turns. Raises UserError if the turn asks for more than a text."""
    if part.get("role", "user") != "user":
        raise UserError(f"{where}: a turn's `role` is {brief(repr(part['role']))}; a turn is what the user says")
    if more := [
        key for key in part if key not in ("text", "texts", "role", "type", "delay", "timestamp") and part[key]
    ]:
        raise UserError(f"{where}: a turn has {more[0]!r}, which is not read; leave it out")
    texts = part.get("texts")
    return texts[0] if isinstance(texts, list) and len(texts) == 1 else part.get("text")


def _messages(said: Any, where: str) -> Conversation:
    """Messages of OpenAI's API or of ShareGPT: the last one of the user is the turn, an answer to it the reference."""
    if not isinstance(said, list) or not said or not all(isinstance(message, dict) for message in said):
        raise UserError(f"{where}: messages are a list of objects with `role` and `content`")
    messages = [_message(message, where) for message in said]
    answer = (messages.pop()[1],) if messages[-1][0] == "assistant" else ()
    if not messages or messages[-1][0] != "user":
        raise UserError(f"{where}: the last message to answer is not the user's; end the messages with one of the user")
    *before, (_, turn) = messages
    return tuple(before), (turn,), answer


def _message(message: Mapping[str, Any], where: str) -> tuple[str, str]:
    role = role_of(message, where)
    if more := [key for key in message if key not in MESSAGE and message[key]]:
        raise UserError(f"{where}: a message has {more[0]!r}, which is not read; leave such prompts out")
    content = content_of(message, where)
    if not content and role != "system":
        raise UserError(f"{where}: the content of a message is {brief(repr(content))}; write a text that is not empty")
    return role, content


def role_of(message: Mapping[str, Any], where: str, known: Sequence[str] = ("system", "user", "assistant")) -> str:
    """The role of a message, one of those `known`. Raises UserError for another one."""
    role: Any = message.get("role", message.get("from"))
    role = ROLES.get(role, role) if isinstance(role, str) else role
    if role not in known:
        *others, last = known
        raise UserError(
            f"{where}: the role {brief(repr(role))} of a message is not read; use {', '.join(others)} or {last}"
        )
    return str(role)


def content_of(message: Mapping[str, Any], where: str) -> str:
    """The text of a message, which may be empty. Raises UserError if it is more than text, or none."""
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) < len(content):
            raise UserError(f"{where}: a message has parts that are no text, and specbench reads text alone")
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise UserError(f"{where}: the content of a message is {brief(repr(content))}; write a text that is not empty")
    return content


def _text_of(value: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    for key in keys:
        text = value.get(key)
        if text is not None and not isinstance(text, str):
            raise UserError(f"{where}: `{key}` is {brief(repr(text))}; write a text")
        if text:
            return text
    return ""


def _name(value: Mapping[str, Any], keys: tuple[str, ...], where: str) -> str:
    """An id or a category as text; empty if there is none."""
    for key in keys:
        name = value.get(key)
        if name is None:
            continue
        if not isinstance(name, str | int) or isinstance(name, bool) or len(str(name)) > MOST_NAME:
            raise UserError(f"{where}: `{key}` is {brief(repr(name))}; write a text of at most {MOST_NAME} characters")
        return str(name)
    return ""


def _reference(value: Any, where: str) -> tuple[str, ...]:
    """A text for each turn. Several right answers to one turn, as Spec-Bench's rag has them, are one text, by lines."""
    texts = value if isinstance(value, list) else [] if value is None else [value]
    joined = [part if isinstance(part, list) else [part] for part in texts]
    if not all(isinstance(text, str) for part in joined for text in part):
        raise UserError(f"{where}: `reference` is a text, or a list of texts, one for each turn")
    return tuple("\n".join(part) for part in joined)


def _stop(value: Any, where: str) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [] if value is None else [value]
    if len(texts) > MOST_STOPS or not all(isinstance(text, str) and text for text in texts):
        raise UserError(f"{where}: `stop` is a text, or a list of at most {MOST_STOPS} texts, and none is empty")
    return tuple(texts)


def _schema(value: Mapping[str, Any], where: str) -> str | None:
    """The schema of an answer, by a field of our own or as requests of OpenAI's API have it."""
    asked = {key: value[key] for key in SCHEMAS if value.get(key) is not None}
    if len(asked) > 1:
        raise UserError(f"{where} has both 'schema' and 'response_format'; leave one of them")
    if (schema := asked.get("response_format")) is not None:
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "text":
            return None
        schema = {"type": "object"} if kind == "json_object" else _inner(schema) if kind == "json_schema" else None
        if schema is None:
            raise UserError(f"{where}: `response_format` is no JSON schema that is read; write it as `schema`")
        asked = {"schema": schema}
    if not asked:
        return None
    from specbench.config.constraints import schema_text

    return schema_text(asked["schema"], f"{where}, schema")


def _inner(asked: Mapping[str, Any]) -> Any:
    inner = asked.get("json_schema")
    return inner.get("schema") if isinstance(inner, dict) else None


def _tools(value: Any, where: str) -> str | None:
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise UserError(f"{where}: `tools` are {brief(repr(value))}; write a list of objects, as OpenAI's API has them")
    return json.dumps(value, ensure_ascii=False)


def _limit(value: Mapping[str, Any], where: str) -> int | None:
    limits = {key: value[key] for key in LIMITS if value.get(key) is not None}
    for key, limit in limits.items():
        if not (isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit < 2**31):
            raise UserError(f"{where}: `{key}` is {brief(repr(limit))}; write a number of tokens from 1 on")
    if len({*limits.values()}) > 1:
        raise UserError(f"{where}: {' and '.join(limits)} are different limits of one answer; leave one of them")
    return next(iter(limits.values()), None)
