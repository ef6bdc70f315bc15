"""What is known of a text's rounds, in one form for all engines. What an engine does not tell is None.

The best that there is counts. In falling order:

- `steps`: drafted and accepted tokens of each round, in order.
- `histogram`: rounds by their accepted tokens, or their number and sums, as the engine tells them of the request.
- `counters`: growth of the server's own counters, if they prove that nobody else was served meanwhile.
- `chunks`: parts of the stream. There are at least as many rounds as parts, if the engine never cuts a round in two.
- `none`: nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

STEPS, HISTOGRAM, COUNTERS, CHUNKS, NONE = ("steps", "histogram", "counters", "chunks", "none")


@dataclass(frozen=True)
class Evidence:
    kind: str = NONE  # one of the five above
    drafted: tuple[int, ...] | None = None  # by round; of `steps`
    accepted: tuple[int, ...] | None = None  # by round; of `steps`
    rounds: int | None = None  # that drafted; of `chunks` the least number
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    whole: int | None = None  # rounds that accepted their whole draft: in all others a token of it was rejected


def of_steps(drafted: Sequence[int] | None, accepted: Sequence[int] | None) -> Evidence | None:
    """The evidence of lists by round; None if they are missing or contradict each other."""
    if drafted is None or accepted is None or len(drafted) != len(accepted):
        return None
    if any(a > d for d, a in zip(drafted, accepted, strict=True)):
        return None
    whole = sum(a == d for d, a in zip(drafted, accepted, strict=True))
    return Evidence(STEPS, tuple(drafted), tuple(accepted), len(drafted), sum(drafted), sum(accepted), whole)


def of_sums(rounds: int | None, drafted: int | None, accepted: int | None, kind: str = HISTOGRAM) -> Evidence | None:
    """The evidence of sums over a text's rounds; None if nothing is told, or more was accepted than drafted."""
    if rounds is drafted is accepted is None:
        return None
    if drafted is not None and accepted is not None and accepted > drafted:
        return None
    return Evidence(kind, rounds=rounds, draft_tokens=drafted, accepted_tokens=accepted)


def of_histogram(histogram: Sequence[int] | None, drafted: int | None, longest: int | None = None) -> Evidence | None:
    """The evidence of rounds counted by their accepted tokens; `longest`: what the engine drafts at most, if it says.

    Rounds that accepted a whole draft are known if all drafts were of that length, as their number then shows. Where
    nothing was drafted all rounds are known: vLLM lists none then.
    """
    if histogram is None:
        return None
    if not any(histogram) and drafted == 0:
        return of_steps((), ())
    rounds, accepted = sum(histogram), sum(rounds * number for number, rounds in enumerate(histogram))
    evidence = of_sums(rounds, drafted, accepted)
    if evidence and longest and drafted == rounds * longest:
        return replace(evidence, whole=sum(histogram[longest:]))
    return evidence


def fits(evidence: Evidence, tokens: int | None) -> bool:
    """True if a text of so many tokens can have been decoded in these rounds.

    The prefill gives a token, and a round at most those that it accepted and one more; the last may be cut at the end
    of the text. Rounds without a draft are not told, so a text may be longer.
    """
    if tokens is None or evidence.accepted_tokens is None or evidence.kind in (CHUNKS, NONE):
        return True
    if evidence.accepted is not None:
        return not evidence.accepted or tokens - 1 > sum(n + 1 for n in evidence.accepted[:-1])
    return evidence.rounds is None or evidence.rounds <= max(tokens - 1, 0)
