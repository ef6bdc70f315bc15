"""A plan's documents: lm-eval's tasks or a file of prompts, and prompts as token ids."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specbench.base.console import warn
from specbench.base.untrusted import brief
from specbench.config import SUITES, TaskLine, UserError
from specbench.engine.models.folders import model_folder
from specbench.engine.models.pair import Pair
from specbench.engine.prefix import shared_tokens
from specbench.measure.gate import may_run_code
from specbench.measure.work import Documents
from specbench.plan import Plan
from specbench.results.stored import StoredRun
from specbench.tasks.harness import DataUnavailable, Request, TaskChoice, Tasks

MOST_TEMPLATE = 2**22  # characters of a conversation of one word; system prompts in templates have some 10,000


class NoDocuments(UserError):
    """The documents of a task cannot be loaded here."""


def load_tasks(plan: Plan, pair: Pair | None) -> Documents:
    """The plan's lm-eval tasks, or its prompts. The pair is needed for a chat template and for a plan's `max_length`.

    Raises:
        NoDocuments: a task's data does not exist or cannot be loaded.
        UserError: a task does not exist, or cannot be used.
    """
    if plan.prompts:
        from specbench.config.servers import server_settings
        from specbench.tasks.prompts import PromptFile

        limits = {line.task: line.max_new_tokens or plan.info(line.task).max_new_tokens for line in plan.tasks}
        chat = chat_of(pair) if pair and plan.chat_template and pair.tokenizer.chat_template else None
        shown = bool(plan.own) or any(server_settings(spec).api != "chat" for spec in plan.servers)
        return PromptFile(
            Path(plan.prompts),
            list(limits),
            plan.limit,
            limits,
            chat,
            plan.system_instruction,
            plan.constraint,
            shown,
            plan.trajectories,
        )
    if plan.chat_template:
        assert pair
        if pair.tokenizer.chat_template is None:
            raise UserError(
                f"the tokenizer of {plan.pair.name} has no chat template to wrap prompts in; choose a chat "
                "model, or leave the prompts as they are with `specbench run --no-apply-chat-template`"
            )
    try:
        return Tasks(
            [_choice(plan, line) for line in plan.tasks],
            task_folder=SUITES / "tasks",
            data_dir=Path(plan.data_dir) if plan.data_dir else None,
            limit=plan.limit,
            seed=plan.seed,
            chat=chat_of(pair) if pair and plan.chat_template else None,
            tokenizer=lambda: str(model_folder(plan.pair.target, weights=False)),
            room=_room(plan, pair),
            run_code=may_run_code(plan),
            system=plan.system_instruction,
            multiturn=plan.fewshot_as_multiturn,
            constraint=plan.constraint,
        )
    except DataUnavailable as error:
        raise NoDocuments(" ".join(str(error).split())) from None
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None


def stored_requests(run: StoredRun, pair: Pair, tasks: "Documents | None" = None) -> list[Request]:
    """The requests of a run, to read its texts again; `tasks`: if they are loaded already.

    Raises:
        UserError: they cannot be made again, or prompts hold the answers of a method.
    """
    requests = (tasks or load_tasks(run.plan, pair)).requests()
    if any(request.turn for request in requests):
        raise UserError(
            f"{run.folder} has conversations of several turns, whose prompts hold each method's own answers, but this "
            "command needs one prompt for all methods; give it a run of single prompts"
        )
    return requests


def recorded_answers(path: Path, pair: Pair) -> Iterator[tuple[Request, str, str, int]]:
    """The answers in a file of recorded conversations: request, answer, name of the conversation, and turn.

    Raises UserError for a file that cannot be read.
    """
    from specbench.config.prompts import NEW_TOKENS, prompt_lines
    from specbench.tasks.prompts import PromptFile

    tasks = [line.task for line in prompt_lines(path, None, recorded=True)]
    chat = chat_of(pair) if pair.tokenizer.chat_template else None
    file = PromptFile(path, tasks, None, dict.fromkeys(tasks, NEW_TOKENS), chat, recorded=True)
    for request, (name, _, turn) in zip(file.requests(), file.places(), strict=True):
        yield request, file.recorded(request), str(name), int(turn)


def _choice(plan: Plan, line: TaskLine) -> TaskChoice:
    info = plan.info(line.task)
    return TaskChoice(
        line.task,
        line.fewshot,
        line.max_new_tokens or info.max_new_tokens,
        info.data,
        info.hub or "",
        info.counterpart,
        plan.split,
        line.same_shots,
        Path(line.file) if line.file else None,
    )


def chat_of(pair: Pair) -> Callable[..., str]:
    """The pair's chat template, from messages and perhaps tools to a prompt that ends where the answer begins.

    A last message of the assistant is the beginning of the answer, as for lm-eval's `gen_prefix`, unless it is `ended`.
    Raises UserError if the template takes more time or memory for a word than any does.
    """
    _try_template(pair)

    def chat(messages: list[dict[str, Any]], tools: list[Any] | None = None, ended: bool = False) -> str:
        begun = messages[-1]["role"] == "assistant" and not ended
        try:
            return pair.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=not (begun or ended),
                continue_final_message=begun,
            )
        except Exception as error:  # a template is a program of the model's authors, and fails in any way
            raise UserError(f"the chat template of {pair.name} refuses a conversation: {brief(error)}") from None

    return chat


def _try_template(pair: Pair) -> None:
    """Fill in a chat template in a process of its own, once: it is a program, and may have no end."""
    from specbench.tasks.timed import GaveUp, each, end_child

    def length(word: str) -> int:
        return len(pair.tokenizer.apply_chat_template([{"role": "user", "content": word}], tokenize=False))

    try:
        (tried,) = each(length, [("Hello",)])
    finally:
        end_child()
    if tried in (GaveUp("raised MemoryError"), GaveUp("ended its process")):
        tried = GaveUp("takes more memory than there is")
    if isinstance(tried, int) and tried > MOST_TEMPLATE:
        tried = GaveUp(f"makes {tried} characters")
    if isinstance(tried, GaveUp) and not tried.reason.startswith("raised"):  # what it raises is told where it is used
        raise UserError(f"the chat template of {pair.name} {tried.reason} of one word; fetch the model again")


def _room(plan: Plan, pair: Pair | None) -> Callable[[str], int] | None:
    """A function from a prompt to the new tokens that it leaves room for; None if the plan has no `max_length`."""
    if plan.max_length is None or pair is None:
        return None
    max_length, loaded = plan.max_length, pair
    return lambda prompt: max_length - len(encode(loaded, prompt))


def encode(pair: Pair, prompt: str) -> list[int]:
    """Token ids of a prompt, with the tokenizer's begin token once: a chat template may have written one already."""
    return _one_begin(pair, _coded(pair, prompt))


def encode_all(pair: Pair, prompts: Sequence[str]) -> list[list[int]]:
    """The same for many prompts, in a fraction of the time."""
    ids_only = {"return_attention_mask": False, "return_token_type_ids": False}
    return [_one_begin(pair, ids) for ids in _coded(pair, list(prompts), **ids_only)]


def _coded(pair: Pair, text: str | list[str], **options: bool) -> Any:
    """The token ids of a text, or of each. Raises UserError where the tokenizer gives up on one."""
    try:
        return pair.tokenizer(text, **options)["input_ids"]
    except BaseException as error:  # a pattern that searches too long is a panic in Rust, which is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer of {pair.name} fails on a prompt: {brief(error)}") from None


def _one_begin(pair: Pair, ids: list[int]) -> list[int]:
    bos = pair.tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def kept_tokens(tasks: Documents, prompts: Sequence[list[int]]) -> list[int]:
    """Of each prompt of a trajectory, how many tokens the prompt of the turn before it begins with as well."""
    assert not isinstance(tasks, Tasks)
    ids = [name for name, _, _ in tasks.places()]
    pairs = zip(ids, ids[1:], prompts, prompts[1:], strict=False)
    return [0, *(shared_tokens((before, own)) if name == last else 0 for last, name, before, own in pairs)]


def within_window(
    tasks: Documents, requests: list[Request], prompts: list[list[int]], pair: Pair, reach: int
) -> tuple[list[Request], list[list[int]]]:
    """The turns of trajectories that the pair has room for, with drafts of `reach` tokens, and their prompts.

    The others are left out of `tasks`, in place. Raises UserError if no turn is left of a task.
    """
    assert not isinstance(tasks, Tasks)
    fits = [r.positions(prompt) + reach <= pair.context for r, prompt in zip(requests, prompts, strict=True)]
    tasks.leave_out([request for request, fit in zip(requests, fits, strict=True) if not fit])
    for task in dict.fromkeys(request.task for request in requests):
        turns = [(r, len(prompt)) for r, prompt in zip(requests, prompts, strict=True) if r.task == task]
        out = tasks.left_out.get(task, 0)
        if 0 < out < len(turns):
            warn(f"{task}: {out} of {len(turns)} turns left out: {pair.name} has {pair.window} positions")
        if out == len(turns):
            shortest = min(length for _, length in turns)
            raise UserError(
                f"{task}: no turn fits {pair.name}, which has {pair.window} positions; the shortest has {shortest} "
                f"tokens before an answer of {turns[0][0].max_new_tokens} and a draft of up to {reach}: choose a pair "
                "with a longer context, or shorter answers (--max-new-tokens)"
            )
    return tasks.requests(), [prompt for prompt, fit in zip(prompts, fits, strict=True) if fit]


def check_lengths(requests: list[Request], prompts: list[list[int]], pair: Pair, reach: int) -> None:
    """Raise UserError if a text with a draft of `reach` tokens may outgrow the pair's context."""
    for request, prompt in zip(requests, prompts, strict=True):
        need = request.positions(prompt) + reach
        if need > pair.context:
            answers = f" in each of {request.turn + 1} turns" if request.turn else ""
            raise UserError(
                f"{request.task}, document {request.doc_id}: {len(prompt)} prompt tokens, {request.max_new_tokens} new "
                f"ones{answers} and a draft of up to {reach} need {need} positions, but {pair.name} has {pair.window};"
                " use smaller drafts (--set), shorter answers (--max-new-tokens), fewer shots (a suite of your own), "
                "fewer documents (--limit) or a pair with a longer context"
            )
