"""Labels for a judge, mined without a human: does an answer stay right if one of the draft's tokens is swapped in?

This is AutoJudge's idea (github.com/garipovroma/autojudge), but with one swap at a time in the target's greedy answer.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from specbench.base.hashes import stable_seed
from specbench.engine.generate import finish
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair
from specbench.engine.session import LAST
from specbench.training.collected import Facts, collect_all, half, state_column, states_of
from specbench.training.documents import Document

MOST_SWAPS = 32  # of a document, drawn at random from its mismatches


@dataclass(frozen=True)
class Mined:
    """The swaps of one document; none if the target's answer is wrong or the draft agrees throughout."""

    positions: list[int]  # [n]
    draft_tokens: list[int]  # [n]
    target_tokens: list[int]  # [n]
    scores: list[float]  # [n]
    labels: list[bool]  # [n]: True if the score is at least that of the target's own answer
    hidden: NDArray[np.float16]  # [n, D]: the target's last hidden state after reading the draft token
    original: float  # the score of the target's own answer


class Miner:
    """Mines one document after the other, with one session of the target and one of the draft."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self.seed = pair, seed
        self.target, self.draft = pair.session("target"), pair.session("draft")

    def mine(self, document: Document) -> Mined:
        """At each of the document's mismatches, swap the draft's token into the target's greedy answer, and score it.

        Mismatches are found by having the draft read the target's answer: they are those that greedy speculative
        decoding meets, and those where it would not have drafted. The prefill gives the answer's first token, which is
        never drafted.
        """
        prompt = document.prompt
        ending = document.ending(self.pair)
        finish(self.target, self.target.restart(prompt).logits[-1], ending)
        answer, original = ending.tokens, document.score(ending.text())
        mismatches = self.mismatches(prompt, answer) if original > 0 else {}
        chosen = list(mismatches)
        random.Random(stable_seed(self.seed, "swaps", document.name)).shuffle(chosen)
        # From the last to the first, so that the cache before each still holds the answer itself.
        chosen = sorted(chosen[:MOST_SWAPS], reverse=True)
        states, scores = [], []
        for i in chosen:
            self.target.truncate(len(prompt) + i)
            scored = self.target.forward([mismatches[i]], hidden=LAST)
            assert scored.hidden is not None
            states.append(half(scored.hidden[0]))
            swapped = document.ending(self.pair)
            swapped.keep([*answer[:i], mismatches[i]])
            finish(self.target, scored.logits[-1], swapped)
            scores.append(document.score(swapped.text()))
        return Mined(
            positions=chosen,
            draft_tokens=[mismatches[i] for i in chosen],
            target_tokens=[answer[i] for i in chosen],
            scores=scores,
            labels=[score >= original for score in scores],
            hidden=np.stack(states) if states else np.empty((0, 0), np.float16),
            original=original,
        )

    def mismatches(self, prompt: list[int], answer: list[int]) -> dict[int, int]:
        """The draft's choice by position in the answer, where it differs from the answer's token."""
        if len(answer) < 2:
            return {}
        self.draft.truncate(0)
        choices = self.draft.forward([*prompt, *answer[:-1]], keep=len(answer)).logits.argmax(-1).tolist()
        pairs = enumerate(zip(choices, answer, strict=True))
        return {i: choice for i, (choice, token) in pairs if i and choice != token}


def mine_all(
    miner: Miner, documents: Sequence[Document], folder: Path, advance: Callable[[int], None]
) -> dict[str, Mined]:
    """Mine every document into a file of its own in `folder`; arguments and errors as in `collect_all`."""
    fingerprints = {role: fingerprint(model) for role, model in miner.pair.models.items()}

    def facts(document: Document) -> Facts:
        return {**fingerprints, **document.facts, "most_swaps": MOST_SWAPS, "seed": miner.seed}

    return collect_all(documents, folder, facts, lambda document: as_table(miner.mine(document)), from_table, advance)


def as_table(mined: Mined) -> pa.Table:
    """One row per swap: position in the answer, tokens, score of the answer after the swap, label, hidden state."""
    columns = {
        "position": pa.array(mined.positions, pa.int32()),
        "draft_token": pa.array(mined.draft_tokens, pa.int32()),
        "target_token": pa.array(mined.target_tokens, pa.int32()),
        "score": pa.array(mined.scores, pa.float64()),
        "label": pa.array(mined.labels, pa.bool_()),
        "hidden": state_column(mined.hidden),
    }
    return pa.table(columns).replace_schema_metadata({"original": json.dumps(mined.original)})


def from_table(table: pa.Table) -> Mined:
    original = json.loads(table.schema.metadata[b"original"])
    positions, drafts, targets, scores, labels = (column.to_pylist() for column in table.columns[:5])
    return Mined(positions, drafts, targets, scores, labels, states_of(table["hidden"]), original)
