"""Labels for a judge, mined without a human: does an answer stay right if one of the draft's tokens is swapped in?

As in AutoJudge (github.com/garipovroma/autojudge), but with one swap at a time in the target's own greedy answer.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from torch import Tensor

from specbench.config import UserError
from specbench.decoding.generate import Ending, Limits
from specbench.decoding.session import Session
from specbench.heads import fingerprint
from specbench.models import Pair
from specbench.run import detokenizer, stable_seed
from specbench.train.documents import Document

MOST_SWAPS = 32  # of a document, drawn at random from its mismatches
LARGEST = float(np.finfo(np.float16).max)
SCHEMA = pa.schema(
    [
        ("position", pa.int32()),  # in the answer, from 0
        ("draft_token", pa.int32()),
        ("target_token", pa.int32()),
        ("score", pa.float64()),  # of the answer after the swap
        ("label", pa.bool_()),
        ("hidden", pa.list_(pa.float16())),
    ]
)


@dataclass(frozen=True)
class Mined:
    """The swaps of one document; none where its own answer is wrong, or the draft agrees throughout."""

    positions: list[int]  # [n]
    draft_tokens: list[int]  # [n]
    target_tokens: list[int]  # [n]
    scores: list[float]  # [n]
    labels: list[bool]  # [n]: the score is not lower than the answer's own
    hidden: NDArray[np.float16]  # [n, D]: the target's last hidden state after reading the draft token
    original: float  # the score of the target's own answer


class Miner:
    """Mines one document after the other, with one session of the target and one of the draft."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self.seed = pair, seed
        self.target, self.draft = pair.session("target"), pair.session("draft")

    def mine(self, document: Document) -> Mined:
        """Swap, at each of the document's mismatches, the draft's token into the target's greedy answer and score.

        Mismatches are met by reading the target's answer with the draft: those are what greedy speculative decoding
        meets, and those where it would not have drafted. The answer's first token is the prefill's, never drafted.
        """
        prompt = document.prompt
        ending = self.ending(document)
        finish(self.target, self.target.restart(prompt).logits[-1], ending)
        answer, original = ending.tokens, document.score(ending.text())
        mismatches = self.mismatches(prompt, answer) if original > 0 else {}
        chosen = list(mismatches)
        random.Random(stable_seed(self.seed, "swaps", document.name)).shuffle(chosen)
        # From the last one to the first, so that the cache in front of each still holds the answer itself.
        chosen = sorted(chosen[:MOST_SWAPS], reverse=True)
        states, scores = [], []
        for i in chosen:
            self.target.truncate(len(prompt) + i)
            scored = self.target.forward([mismatches[i]], hidden=True)
            assert scored.hidden is not None
            states.append(half(scored.hidden[0]))
            swapped = self.ending(document)
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
        """The draft's choice by position of the answer, where it is not the answer's own token."""
        if len(answer) < 2:
            return {}
        self.draft.truncate(0)
        choices = self.draft.forward([*prompt, *answer[:-1]], keep=len(answer)).logits.argmax(-1).tolist()
        pairs = enumerate(zip(choices, answer, strict=True))
        return {i: choice for i, (choice, token) in pairs if i and choice != token}

    def ending(self, document: Document) -> Ending:
        return Ending(Limits(document.max_new_tokens, self.pair.eos_ids, document.until), detokenizer(self.pair))


def finish(session: Session, logits: Tensor, ending: Ending) -> None:
    """Go on greedily until the text ends, in place; `logits` [V] predict the next token."""
    while not ending.reason:
        token = int(logits.argmax(-1))
        ending.keep([token])
        if not ending.reason:
            logits = session.forward([token]).logits[-1]


def half(state: Tensor) -> NDArray[np.float16]:
    return state.float().clamp(-LARGEST, LARGEST).cpu().numpy().astype(np.float16)


def mine_all(
    miner: Miner, documents: Sequence[Document], folder: Path, advance: Callable[[int], None]
) -> dict[str, Mined]:
    """Mine every document into a file of its own in `folder`; those that an earlier call left there are read instead.

    `advance` is called with 1 after each. Raises UserError if a file is damaged or was mined otherwise.
    """
    whose = {role: fingerprint(model) for role, model in miner.pair.models.items()}
    found = {}
    for document in documents:
        path = folder / f"{document.name}.parquet"
        facts = {
            **whose,
            "prompt": document.prompt_hash,
            "length": document.max_new_tokens,
            "most_swaps": MOST_SWAPS,
            "seed": miner.seed,
        }
        if not path.exists():
            write_mined(path, miner.mine(document), facts)
        found[document.name] = read_mined(path, facts)
        advance(1)
    return found


def write_mined(path: Path, mined: Mined, facts: dict[str, object]) -> None:
    columns = (mined.positions, mined.draft_tokens, mined.target_tokens, mined.scores, mined.labels, list(mined.hidden))
    metadata = {"facts": json.dumps(facts), "original": json.dumps(mined.original)}
    table = pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA.with_metadata(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    pq.write_table(table, new, compression="zstd")
    new.replace(path)


def read_mined(path: Path, facts: dict[str, object]) -> Mined:
    try:
        table = pq.read_table(path, schema=SCHEMA)
        metadata = pq.read_schema(path).metadata
        stored, original = json.loads(metadata[b"facts"]), json.loads(metadata[b"original"])
        positions, drafts, targets, scores, labels, hidden = (column.to_pylist() for column in table.columns)
        states = np.array(hidden, np.float16).reshape(len(hidden), -1) if hidden else np.empty((0, 0), np.float16)
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
        cause = " ".join(str(error).split())[:80]
        raise UserError(f"{path} is damaged ({cause}); delete it to mine that document again") from None
    if differing := [key for key, value in facts.items() if stored.get(key) != value]:
        raise UserError(
            f"{path.parent} was mined with other {', '.join(differing)}; delete that folder, or choose another --out"
        )
    return Mined(positions, drafts, targets, scores, labels, states, original)
