"""Rounds that another engine told of a text, as rows: what stands after the end of the text counts nowhere."""

from collections.abc import Sequence
from typing import Any


def text_rounds(
    drafted: Sequence[int | None], accepted: Sequence[int], tokens: int | None, ordered: bool = True
) -> list[dict[str, Any]]:
    """Rows of the rounds after a text's prefill, of which engines tell those that drafted.

    Engines count what a round accepted before they cut the text at its end. Here a round accepts no more than it
    commits, as with the methods that are decoded here: a draft of five, all of which the target would accept, in a text
    that ends after three of them, has three accepted tokens.

    Args:
        drafted: the drafted tokens of each round; None where they are not told.
        accepted: the accepted ones of each, as the engine counts.
        tokens: of the text, the prefill's included; None if it is not known.
        ordered: the rounds stand in the order of the text, so that its end is in the last one.

    Returns:
        The rows; `committed` and `truncated` are null unless the rounds add up to the text, as they stand or with a cut
        in the last one.
    """
    rows: list[dict[str, Any]] = [
        {"drafted": draft, "accepted": count, "committed": None, "truncated": None, "target_forwards": 1}
        for draft, count in zip(drafted, accepted, strict=True)
    ]
    over = None if tokens is None or not rows else sum(accepted) + len(rows) - (tokens - 1)
    if over is None or not (over == 0 or (ordered and 0 < over <= accepted[-1])):
        return rows
    for row in rows:
        row |= {"committed": row["accepted"] + 1, "truncated": 0}
    kept = accepted[-1] + 1 - over
    rows[-1] |= {"accepted": min(accepted[-1], kept), "committed": kept, "truncated": over}
    return rows
