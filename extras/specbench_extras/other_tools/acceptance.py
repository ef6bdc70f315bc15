"""Accepted lengths of recorded texts: prompt_token_ids, generated_token_ids, and acc_len of one or more drafters.

SpecDecode-Bench's traces of vLLM are such files. A drafter's list stands under `acc_NAME`, as {"acc_len": [...]} or
as it is; `acc` alone is named after the file. An entry counts the tokens that a forward of the target brings, its own
token included, even past the end of the text. Entry 0 is the prefill.
- As many entries as tokens: entry i is of a round that would begin after i tokens. The rounds are those of a decoding
  that follows the list from entry 1 on.
- Fewer entries, which add up to the text: they are the rounds themselves, in their order.

How long the drafts were is unknown.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from specbench.config import UserError, validated
from specbench.results.importers.foreign import Count, Entry, Figures, Row

Length = Annotated[int, Field(ge=1, le=2**20)]
ACC = "acc_"


class Text(Entry):
    prompt_token_ids: list[Count]
    generated_token_ids: list[Count] = Field(min_length=1)


class Lengths(Entry):
    acc_len: list[Length] = Field(min_length=1)


def holds(entry: Row) -> bool:
    """True if an object has a text's ids and accepted lengths."""
    return "generated_token_ids" in entry and any(_lists(entry))


def read(path: Path, objects: Sequence[tuple[str, Row]], digest: str) -> list[Figures]:
    """The rounds of every drafter in a file, each of which is a method; a document is a text, by its place."""
    drafters = [key for key, _ in _lists(objects[0][1])]
    figures = {key: Figures(path, digest, key.removeprefix(ACC) if key != "acc" else path.stem) for key in drafters}
    for doc_id, (where, entry) in enumerate(objects):
        text, lists = validated(Text, entry, where), dict(_lists(entry))
        if list(lists) != drafters:
            raise UserError(f"{where} has lists of {', '.join(lists) or 'nothing'}, the first of {', '.join(drafters)}")
        size = len(text.generated_token_ids)
        sample = {"prompt_tokens": len(text.prompt_token_ids), "tokens": text.generated_token_ids, "new_tokens": size}
        for key, lengths in lists.items():
            checked = validated(Lengths, {"acc_len": lengths}, f"{where}, {key}").acc_len
            figures[key].add("vllm", doc_id, 0, sample, list(_rounds(checked, size, f"{where}, {key}")))
    return list(figures.values())


def _lists(entry: Row) -> Iterator[tuple[str, Any]]:
    for key, value in entry.items():
        if key == "acc" or key.startswith(ACC):
            lengths = value.get("acc_len") if isinstance(value, dict) else value
            if isinstance(lengths, list):
                yield key, lengths


def _rounds(lengths: list[int], size: int, where: str) -> Iterator[Row]:
    """Rows of the rounds of a text of `size` tokens after its prefill. Raises UserError if they do not add up to it."""
    each_position = len(lengths) == size
    ends = list(accumulate(lengths))
    if not each_position and not ends[-1] - lengths[-1] < size <= ends[-1]:
        raise UserError(
            f"{where}: {len(lengths)} entries for {size} tokens, which add up to {ends[-1]}; there must be an entry "
            "for each token, or for each round"
        )
    at, number = (1 if each_position else lengths[0]), 1
    while at < size:
        length = lengths[at] if each_position else lengths[number]
        kept = min(length, size - at)
        row: Row = {"accepted": min(length - 1, kept), "committed": kept, "truncated": length - kept}
        yield row | {"target_forwards": 1}
        at, number = at + kept, number + 1
