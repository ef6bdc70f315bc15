"""vLLM's saved API responses; and what kind of file one of vLLM's is."""

import json
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from specbench.base.ends import end_of
from specbench.base.untrusted import brief
from specbench.config import UserError, validated
from specbench.results.importers import conditions, origin
from specbench.results.importers.foreign import Count, Entry, Figures, Row, Seconds, entries, text_of
from specbench.results.text_rounds import text_rounds
from specbench_extras.other_tools import acceptance, prometheus, vllm_bench
from specbench_extras.other_tools.kinds import check_kind

OPTIONS = ("before",)

MOST_ROUNDS = 10**6  # of a response


class Speculation(Entry):
    num_spec_steps: Count = 0
    num_draft_tokens: Count | None = None
    num_spec_tokens: Count | None = None
    acceptance_histogram: list[Count] | None = None
    acceptance_histogram_by_draft_length: dict[int, list[Count]] | None = None
    per_step_accepted: list[Count] | None = None
    per_step_drafted: list[Count] | None = None

    @model_validator(mode="after")
    def _alike(self) -> "Speculation":
        if self._count() > MOST_ROUNDS:
            raise ValueError(f"more than {MOST_ROUNDS} rounds")
        drafted, accepted = self.per_step_drafted, self.per_step_accepted
        if drafted is not None and accepted is not None and len(drafted) != len(accepted):
            raise ValueError("per_step_drafted and per_step_accepted must be as many")
        if any((drafted or 0) < accepted for drafted, accepted in self.rounds() if drafted is not None):
            raise ValueError("a round accepted more than it drafted")
        return self

    def _count(self) -> int:
        """The number of rounds in the histograms: a few digits may mean more than memory holds."""
        of_lengths = (self.acceptance_histogram_by_draft_length or {}).values()
        return max(sum(self.acceptance_histogram or []), sum(map(sum, of_lengths)))

    @property
    def ordered(self) -> bool:
        """True if the file lists the steps, one by one."""
        return None not in (self.per_step_drafted, self.per_step_accepted)

    def rounds(self) -> list[tuple[int | None, int]]:
        """What each round drafted (None if unknown) and accepted; in order only if the file lists the steps."""
        if self.per_step_drafted is not None and self.per_step_accepted is not None:
            return list(zip(self.per_step_drafted, self.per_step_accepted, strict=True))
        if lengths := self.acceptance_histogram_by_draft_length:
            return [(k, j) for k, counts in lengths.items() for j, n in enumerate(counts) for _ in range(n)]
        counts = self.acceptance_histogram or []
        longest = self.num_spec_tokens
        always = longest is not None and self.num_draft_tokens == longest * sum(counts)
        return [(longest if always else None, j) for j, n in enumerate(counts) for _ in range(n)]


class Timing(Entry):
    time_to_first_token_ms: Seconds | None = None
    generation_time_ms: Seconds | None = None
    speculative_decoding: Speculation | None = None


class Usage(Entry):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class Response(Entry):
    choices: list[Row] = Field(default_factory=list)
    usage: Usage | None = None
    metrics: Timing | None = None
    error: Any = None


def read(path: Path, before: Path | None = None) -> list[Figures]:
    """The figures in a file of any form, by method; `before` is a scrape of the same server before the one in `path`.

    Raises UserError for a file of another kind, and if `before` comes with a file that is not a scrape.
    """
    text, digest = text_of(path)
    if prometheus.is_scrape(text):
        return prometheus.read(path, text, digest, before)
    if before:
        raise UserError(f"{path} is not a scrape of /metrics; --before goes with one")
    objects = entries(path, text)
    check_kind(path, objects[0][1], "vllm")
    if acceptance.holds(objects[0][1]):
        return acceptance.read(path, objects, digest)
    if "request_throughput" in objects[0][1]:
        return [vllm_bench.read(path, objects, digest)]
    return [_responses(path, objects, digest)]


def _responses(path: Path, objects: list[tuple[str, Row]], digest: str) -> Figures:
    figures = Figures(path, digest, path.stem)
    figures.origin = origin.span(entry.get("created") for _, entry in objects)
    models = [{"model": {"model": entry["model"]}} for _, entry in objects if isinstance(entry.get("model"), str)]
    figures.conditions = conditions.merged(models, f"{path}")
    responses = [(where, validated(Response, entry, where)) for where, entry in objects]
    if not any(response.metrics for _, response in responses):
        raise UserError(
            f"{path}: no response has `metrics`; start vLLM with --enable-per-request-metrics "
            "--per-request-spec-decode-metrics detailed, or give a result of `vllm bench serve` or a scrape of /metrics"
        )
    unclear = 0
    for doc_id, (where, response) in enumerate(responses):
        usage, metrics = response.usage or Usage(), response.metrics or Timing()
        failure = json.dumps(response.error) if response.error is not None else _failure(response.choices)
        if failure:
            figures.add("vllm", doc_id, 0, {"finish": "error", "error": f"{where}: {failure}"}, [])
            continue
        tokens = usage.completion_tokens if len(response.choices) < 2 else None  # of all choices together
        sample = {"prompt_tokens": usage.prompt_tokens, "new_tokens": tokens, **_text(response.choices)}
        sample |= {"prefill_seconds": _seconds(metrics.time_to_first_token_ms)}
        sample |= {"decode_seconds": _seconds(metrics.generation_time_ms)}
        rounds = _rounds(metrics.speculative_decoding, tokens)
        figures.ordered &= not metrics.speculative_decoding or metrics.speculative_decoding.ordered
        unclear += bool(rounds) and any(row["committed"] is None for row in rounds)
        figures.add("vllm", doc_id, 0, sample, rounds)
    if unclear:
        figures.warnings.append(
            f"{path.name}: in {unclear} of {len(responses)} responses the rounds do not add up to completion_tokens "
            "(some had no draft, or the text was cut): their tokens per round are not known, and tau is not; what they "
            "accepted after the end of a text counts as accepted"
        )
    return figures


def _rounds(speculation: Speculation | None, completion: int | None) -> list[Row]:
    """Rows of the rounds that drafted; `committed` is null unless it adds up to the completion."""
    rounds = speculation.rounds() if speculation else []
    if not rounds or speculation is None:
        return []
    drafted, accepted = zip(*rounds, strict=True)
    return text_rounds(drafted, accepted, completion, speculation.ordered)


def _text(choices: list[Row]) -> Row:
    """The text and the end of a response with a single choice, if it has them."""
    if len(choices) != 1:
        return {}
    (choice,) = choices
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    end = choice.get("finish_reason")
    finish = end_of(end) if isinstance(end, str) else None
    if finish == "stop":
        finish = "eos" if choice.get("stop_reason") is None else "stop"
    return {"text": text if isinstance(text, str) else None, "finish": finish}


def _failure(choices: list[Row]) -> str:
    """The end of a response, if it is a failure of the engine; empty if not."""
    ends = [end for choice in choices if isinstance(end := choice.get("finish_reason"), str)]
    return next((f"the engine ended it by {brief(end)!r}" for end in ends if not end_of(end)), "")


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
