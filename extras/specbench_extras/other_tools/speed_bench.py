"""What SPEED-Bench's measurement writes (specdec_bench): responses with acceptance lengths, or their histogram."""

from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from specbench.config import UserError, validated
from specbench.results.importers.foreign import Entry, Figures, Row, entries, text_of
from specbench_extras.other_tools.kinds import check_kind

OPTIONS = ("by_category",)

Length = Annotated[int, Field(ge=0, le=2**20)]
HISTOGRAM, AVERAGE, OF_REQUESTS = "Acceptance_Length_Histogram", "Average_AL", "Request_AL"


class Response(Entry):
    question_id: int | str
    category: str = ""
    acceptance_lengths: list[Length | list[Length]] = Field(default_factory=list)
    choices: list[Row] = Field(default_factory=list)
    error: Any = None
    error_message: Any = None


def read(path: Path, by_category: bool = False) -> list[Figures]:
    """The figures in a file, with `by_category` each category a task.

    An acceptance length is what a step committed, the target's own token included. The tool leaves out a first step of
    one token, which is the prefill's, and the last step of a text.
    """
    text, digest = text_of(path)
    objects = entries(path, text)
    failed = [entry for _, entry in objects if entry.get("error") is True]
    for _, entry in objects:
        if entry not in failed:
            check_kind(path, entry, "speed-bench")
    figures = Figures(path, digest, path.stem)
    if HISTOGRAM in objects[0][1]:
        figures.totals += [_of_histogram(where, entry) for where, entry in objects]
        return [figures]
    for doc_id, (where, entry) in enumerate(objects):
        response = validated(Response, entry, where)
        task = (by_category and response.category) or "speed-bench"
        if response.error:
            figures.add(task, doc_id, 0, {"finish": "error", "error": f"{where}: {response.error_message}"[:300]}, [])
            continue
        lengths = [*chain(*(n if isinstance(n, list) else [n] for n in response.acceptance_lengths))]
        turns = response.choices[0].get("turns") if response.choices else None
        said = "\n\n".join(map(str, turns)) if isinstance(turns, list) else None
        rounds = [{"committed": length, "target_forwards": 1} for length in lengths if length]
        figures.add(task, doc_id, 0, {"text": said}, rounds)
    return [figures]


def _of_histogram(where: str, entry: Row) -> Row:
    """The counters of a histogram of acceptance lengths, under vLLM's names."""
    histogram = entry[HISTOGRAM]
    try:
        counts = {int(length): int(number) for length, number in histogram.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{where}: {HISTOGRAM} must count steps by their length") from None
    if not counts or min(*counts, *counts.values()) < 0 or not any(counts.values()):
        raise UserError(f"{where}: {HISTOGRAM} counts no steps")
    rounds = sum(counts.values())
    totals: Row = {"spec_decode_num_drafts": rounds}
    totals["spec_decode_accepted_tokens"] = sum((length - 1) * number for length, number in counts.items())
    requests = entry.get(OF_REQUESTS)
    if isinstance(requests, dict) and isinstance(entry.get(AVERAGE), int | float):
        totals |= {"spec_decode_sum_tau": entry[AVERAGE] * len(requests), "spec_decode_num_texts": len(requests)}
    return totals
