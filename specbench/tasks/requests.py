"""Requests: what is to be generated for each document, with lm-eval's prompts and generation settings."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.base.hashes import short_hash
from specbench.config.specs import Constraint, ConstraintSpec
from specbench.tasks.data import TaskChoice


@dataclass(frozen=True)
class Request:
    """One text to generate. `doc_id` counts the documents of a task from 0. `until` holds the task's own stop strings,
    without the model's end-of-sequence text. The hashes are the first 16 hex digits of SHA-256.

    Each turn of a conversation is a document; `turn` counts them from 0, and their `doc_id`s follow each other. From
    turn 1 on each method's prompt contains its own earlier answers; in `prompt` those answers are empty. `constraint`
    is what the answer must be.
    """

    task: str
    doc_id: int
    prompt: str
    until: tuple[str, ...]
    max_new_tokens: int
    prompt_hash: str
    doc_hash: str
    turn: int = 0
    constraint: Constraint | None = None

    def positions(self, prompt: Sequence[int]) -> int:
        """The most positions that the prompt's token ids, the answer and all answers before it may need."""
        return len(prompt) + (self.turn + 1) * self.max_new_tokens


def build_instances(
    task: Any,
    choice: TaskChoice,
    limit: int | None,
    seed: int,
    chat: Callable[[list[dict[str, str]]], str] | None,
    system: str | None = None,
    multiturn: bool = True,
) -> list[Any]:
    """Have an lm-eval Task build its prompts; returns its Instances, one a document. Arguments as in `Tasks`."""
    task.set_fewshot_seed(seed)
    with _enough_shots(choice):
        task.build_all_requests(
            limit=limit,
            apply_chat_template=chat is not None,
            fewshot_as_multiturn=chat is not None and multiturn,  # as the lm_eval command does
            system_instruction=system,
            chat_template=None if chat is None else _chat_template(chat),
        )
    instances: list[Any] = task.instances
    return instances


def requests_of(
    choice: TaskChoice,
    instances: Sequence[Any],
    room: Callable[[str], int] | None,
    constraint: ConstraintSpec | None = None,
) -> Iterator[Request]:
    """The requests of one task's lm-eval Instances; those whose prompt leaves no `room` (as in `Tasks`) have none.

    Raises UserError for a document whose field for the `constraint` holds no schema.
    """
    from lm_eval.models.utils import normalize_gen_kwargs

    for instance in instances:
        prompt, settings = instance.args
        settings = normalize_gen_kwargs(settings, choice.max_new_tokens)
        max_new_tokens = min(settings["max_gen_toks"], choice.max_new_tokens)
        if room:
            max_new_tokens = min(max_new_tokens, room(prompt))
        if max_new_tokens > 0:
            yield Request(
                task=choice.task,
                doc_id=instance.doc_id,
                prompt=prompt,
                until=tuple(settings["until"]),
                max_new_tokens=max_new_tokens,
                prompt_hash=short_hash(prompt),
                doc_hash=short_hash(json.dumps(instance.doc, sort_keys=True, ensure_ascii=False, default=str)),
                constraint=_constraint(constraint, instance) if constraint else None,
            )


def _constraint(spec: ConstraintSpec, instance: Any) -> Constraint | None:
    from specbench.config.constraints import of_document

    return of_document(spec, instance.doc, f"{instance.task_name}, document {instance.doc_id}")


@contextlib.contextmanager
def _enough_shots(choice: TaskChoice) -> Iterator[None]:
    """lm-eval's own message about too few examples names neither the task nor the number; this one does."""
    try:
        yield
    except (AssertionError, ValueError) as error:
        if not choice.fewshot or not any(word in str(error) for word in ("Sample larger", "shot", "num_fewshot")):
            raise
        raise ValueError(
            f"task {choice.task!r} has fewer than {choice.fewshot} few-shot examples; ask for fewer in a suite file"
        ) from None


def _chat_template(chat: Callable[[list[dict[str, str]]], str]) -> Callable[..., str]:
    """`chat` as lm-eval calls it; a last message of the assistant is the beginning of the answer."""

    def template(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return chat(messages)

    return template
