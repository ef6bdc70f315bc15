"""Prompts without scores as the requests of a run, and conversations that go on from a model's own answers."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specbench.base.hashes import short_hash
from specbench.config import UserError
from specbench.config.prompt_forms import Prompt
from specbench.config.prompts import read_file
from specbench.config.specs import Constraint, ConstraintSpec
from specbench.config.trajectories import CALLS, Trajectory, answer_text, arguments
from specbench.tasks.requests import Request
from specbench.tasks.scoring import Score

Chat = Callable[..., str]  # messages and perhaps tools -> the prompt
BETWEEN = "\n\n"  # without a chat template: after each message but the one that is answered
PROBE: dict[str, Any] = {"type": "function", "function": {"name": "probed_call", "arguments": {"probed": 1}}}


class PromptFile:
    """The prompts of a file, as `Tasks` are: requests out, and no scores.

    Each turn is a request of its own; the turns of a conversation have consecutive `doc_id`s in their task. Those of a
    recorded conversation do not depend on what a model answers to others, so each counts as a first turn.

    Args:
        tasks: the tasks in the order of the requests, as they were when the run began.
        limit: first conversations of every task to keep; None keeps all.
        max_new_tokens: by task, the limit of each answer to a prompt without one of its own.
        chat: turns messages (`role`, `content`) into a prompt that ends where the assistant's answer begins; None joins
            texts as they are, with a blank line between an answer and the next turn.
        system: the system prompt of those that have none of their own.
        constraint: what every answer must be, or that each line says it.
        show_tools: False if nobody reads these prompts but chat endpoints, which put tools into their own template.
        recorded: the file holds recorded conversations, whose answers are decoded again.

    Raises:
        UserError: the file cannot be read, has other tasks than `tasks` now, or what no template shows.
    """

    def __init__(
        self,
        path: Path,
        tasks: Sequence[str],
        limit: int | None,
        max_new_tokens: Mapping[str, int],
        chat: Chat | None,
        system: str | None = None,
        constraint: ConstraintSpec | None = None,
        show_tools: bool = True,
        recorded: bool = False,
    ) -> None:
        by_task: dict[str, list[Prompt]] = {}
        read = read_file(path, recorded)
        self.unread = read.unread  # by key, how many lines have it
        for prompt in read.prompts:
            if system and not any(message["role"] == "system" for message in prompt.messages(0, ())):
                prompt = replace(prompt, before=(("system", system), *prompt.before))
            by_task.setdefault(prompt.task, []).append(prompt)
        if list(by_task) != list(tasks):
            raise UserError(f"{path} has other categories than when the run began; put the old file back, or run again")
        self._chat, self._constraint, self._show_tools = chat, constraint, show_tools
        self._turns: dict[tuple[str, int], tuple[Prompt, int]] = {}  # by task and doc_id: the conversation and the turn
        self._requests: list[Request] = []
        for task, prompts in by_task.items():
            turns = [(prompt, turn) for prompt in prompts[:limit] for turn in range(len(prompt.turns))]
            for doc_id, (prompt, turn) in enumerate(turns):
                self._turns[task, doc_id] = prompt, turn
                self._requests.append(self._request(task, doc_id, max_new_tokens[task]))
        self.left_out: dict[str, int] = {}

    def _request(self, task: str, doc_id: int, max_new_tokens: int) -> Request:
        conversation, turn = self._turns[task, doc_id]
        prompt = self._text(conversation, turn, [""] * turn)
        ends = [[conversation.stop, conversation.max_new_tokens]]
        more: list[Any] = (ends if any(ends[0]) else []) + [conversation.before] * bool(conversation.before)
        more += [[conversation.schema, conversation.tools]] * bool(conversation.schema or conversation.tools)
        content = json.dumps([conversation.turns[: turn + 1], conversation.reference, *more], ensure_ascii=False)
        most = conversation.max_new_tokens or max_new_tokens
        hashes = short_hash(prompt), short_hash(content)
        number = turn if conversation.goes_on else 0
        return Request(task, doc_id, prompt, conversation.stop, most, *hashes, number, self._constrained(conversation))

    def _constrained(self, conversation: Prompt) -> Constraint | None:
        """What the answers of a conversation must be."""
        asked = self._constraint
        if asked and asked.text is not None:
            return Constraint(asked.kind, asked.text)
        return Constraint("schema", conversation.schema) if asked and conversation.schema else None

    def names(self) -> list[str]:
        """The tasks that have requests, in order."""
        return list(dict.fromkeys(request.task for request in self._requests))

    def requests(self) -> list[Request]:
        """All texts to generate, in task order, then turn by turn."""
        return list(self._requests)

    def document_count(self, task: str) -> int:
        """How many requests a task has: one for each turn."""
        return Counter(name for name, _ in self._turns)[task]

    def references(self, task: str) -> Iterator[str | None]:
        """None for each request: an answer is not joined to a prompt here."""
        return (None for name, _ in self._turns if name == task)

    def score(self, texts: Mapping[tuple[str, int], str]) -> list[Score]:
        """No scores: nothing tells a right answer."""
        return []

    def places(self) -> list[list[str | int]]:
        """For each request in order: the id of its prompt in the file, its category there, and its turn from 0."""
        turns = (self._turns[request.task, request.doc_id] for request in self._requests)
        return [[prompt.id, prompt.category, turn] for prompt, turn in turns]

    def about(self, request: Request) -> tuple[str | None, str | None]:
        """The reference answer of a request's turn, and the category; None where the file has none."""
        prompt, turn = self._turns[request.task, request.doc_id]
        return (prompt.reference[turn] if turn < len(prompt.reference) else None), prompt.category or None

    def prompt(self, request: Request, answers: Sequence[str]) -> str:
        """The prompt of a turn after these answers to all turns before it."""
        conversation, turn = self._turns[request.task, request.doc_id]
        return self._text(conversation, turn, answers)

    def messages(self, request: Request, answers: Sequence[str]) -> list[dict[str, Any]]:
        """The same as messages (`role`, `content`), which a chat endpoint puts into its own template."""
        conversation, turn = self._turns[request.task, request.doc_id]
        return conversation.messages(turn, answers)

    def recorded(self, request: Request) -> str:
        """The answer to a turn that a trajectory has, as it stands after the prompt there."""
        conversation, turn = self._turns[request.task, request.doc_id]
        assert isinstance(conversation, Trajectory)
        answer = json.loads(conversation.answers[turn])
        if self._chat is None:
            return answer_text(answer)
        whole = self._chat([*self._readable(conversation.messages(turn, ())), *self._readable([answer])], ended=True)
        return whole.removeprefix(request.prompt) if whole.startswith(request.prompt) else answer_text(answer)

    def tools(self, request: Request) -> list[Any]:
        """The tools of a request, which a chat endpoint puts into its own template."""
        prompt, _ = self._turns[request.task, request.doc_id]
        return json.loads(prompt.tools) if prompt.tools else []

    def leave_out(self, requests: Sequence[Request]) -> None:
        """Drop these requests, which no model has room for, in place; `left_out` counts them by task."""
        gone = {(request.task, request.doc_id) for request in requests}
        self._requests = [request for request in self._requests if (request.task, request.doc_id) not in gone]
        self.left_out = dict(Counter(task for task, _ in gone))

    def _text(self, conversation: Prompt, turn: int, answers: Sequence[str]) -> str:
        messages = self._readable(conversation.messages(turn, answers))
        if conversation.tools and self._show_tools:
            text = self._with_tools(conversation, messages)
        elif self._chat is None:
            roles = [message["role"] for message in messages[1:]] + ["assistant"]
            return "".join(
                message["content"] + ("" if role == "assistant" and message["role"] != "system" else BETWEEN)
                for message, role in zip(messages, roles, strict=True)
            )
        else:
            text = self._chat(messages)
        if any(message["role"] == "tool" and message["content"].strip() not in text for message in messages):
            raise UserError(
                f"the conversation {conversation.id!r} has messages of tools, and the chat template leaves them out; "
                "choose a model whose template has them, or leave the prompts as they are with "
                "--no-apply-chat-template"
            )
        return text

    def _readable(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Messages as the chat template reads them: calls with objects, or as text where it shows none."""
        return [self._with_calls(message) if CALLS in message else message for message in messages]

    def _with_calls(self, message: dict[str, Any]) -> dict[str, Any]:
        if not self._shows_calls:
            return {"role": message["role"], "content": answer_text(message)}
        calls = [
            call | {"function": call["function"] | {"arguments": arguments(call["function"])}}
            for call in message[CALLS]
        ]
        return message | {CALLS: calls}

    @cached_property
    def _shows_calls(self) -> bool:
        """Whether the chat template writes the calls of an answer."""
        if self._chat is None:
            return False
        messages = [{"role": "user", "content": "-"}, {"role": "assistant", "content": "", CALLS: [PROBE]}]
        try:
            return PROBE["function"]["name"] in self._chat([*messages, {"role": "user", "content": "-"}])
        except UserError:
            return False

    def _with_tools(self, conversation: Prompt, messages: list[dict[str, Any]]) -> str:
        text = self._chat(messages, json.loads(conversation.tools or "[]")) if self._chat else ""
        if not self._chat or text == self._chat(messages):
            what = "does not show them" if self._chat else "is missing, or left out"
            raise UserError(
                f"the prompt {conversation.id!r} has tools, and the chat template {what}; choose a model whose "
                "template has them, or write the tools into the prompt"
            )
        return text
