"""What studies share that have models read a run's texts again: prompts as tokens, and drafts in their contexts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.measure.prompts import encode, stored_requests
from specbench.results.stored import StoredRun


class Prompts:
    """The prompts of a run, by the rows of its samples."""

    def __init__(self, run: StoredRun, pair: Pair) -> None:
        """Raises UserError as `stored_requests`."""
        self._run, self._pair = run, pair
        self._requests = {(r.task, r.doc_id): r for r in stored_requests(run, pair)}

    def tokens(self, row: Mapping[str, Any]) -> list[int]:
        """The prompt of a row with `task`, `doc_id` and `prompt_hash`. Raises UserError if it has changed since."""
        request = self._requests.get((row["task"], row["doc_id"]))
        if request is None or request.prompt_hash != row["prompt_hash"]:
            raise UserError(f"{self._run.folder}: the prompts of {row['task']} have changed since; run it again")
        return encode(self._pair, request.prompt)


def drafts_in_context(
    prompt: list[int], tokens: list[int], rounds: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[list[int], list[int], Mapping[str, Any]]]:
    """Of each round of a text that drafted after its first token: what is before the draft, the draft, and its row."""
    committed = 0
    for row in rounds:
        drafted = list(row["draft_tokens"] or ())
        if drafted and committed:
            yield [*prompt, *tokens[:committed]], drafted, row
        committed += row["committed"]
