"""What forwards of a few tokens take by their width: whether a verification costs what the memory says.

Reading the weights takes the same time for one token as for a few, so the curve ought to be flat. Where it is not,
speculation is compared with a baseline that loses time, or loses time itself.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

FEWEST = 20  # rounds with one draft length that it takes to use their medians
WIDTHS = (1, 2, 3, 4, 5, 8, 16)  # tokens of a forward
UNEVEN = 1.3  # times that neighbouring widths may differ by
FLAT = 1.15  # times that the widest forward of a verification may take of the narrowest, where the memory decides


def steps(seconds: Mapping[int, float]) -> Iterator[tuple[int, int, float]]:
    """Neighbouring widths (narrower, wider) between which the curve falls, or jumps though the width at most doubles,
    by more than UNEVEN; with the ratio of their times.
    """
    for narrow, wide in pairwise(sorted(seconds)):
        ratio = seconds[wide] / seconds[narrow]
        if ratio < 1 / UNEVEN or (ratio > UNEVEN and wide <= 2 * narrow):
            yield narrow, wide, ratio


def uneven(model: str, seconds: Mapping[int, float]) -> str:
    """What to know of an uneven curve, in words; "" if it is even."""
    parts = [
        f"{_ms(seconds[narrow])} for {_count(narrow)} and {_ms(seconds[wide])} for {wide}"
        for narrow, wide, _ in steps(seconds)
    ]
    if not parts:
        return ""
    falls = any(ratio < 1 for *_, ratio in steps(seconds))
    why = "wider forwards cost less, so speedups hold what narrow ones lose" if falls else "wider forwards cost more"
    return f"a forward of the {model} takes {', '.join(parts)}: {why}"


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _count(tokens: int) -> str:
    return f"{tokens} token{'s' * (tokens > 1)}"
