"""The table of forwards by width, next to the time that reading the weights takes."""

from figures.markdown import rows as _rows
from figures.stored import table


def widths() -> str:
    """Milliseconds of each target's forwards of 1 to 16 tokens, and how far those of up to eight are over the limit."""
    rows = table("widths-cpu").query("model == 'target'")
    counts = list(dict.fromkeys(rows.width))
    lines = []
    for (pair, dtype), some in rows.groupby(["pair", "dtype"], sort=False):
        times = some.set_index("width").fast * 1000
        limit = 1000 * float(some.limit.iloc[0])
        few = times[times.index <= 8]
        over = f"{few.min() / limit:.1f} to {few.max() / limit:.1f}"
        name = pair if "-int" in str(pair) else f"{pair}, {dtype}"
        lines.append([str(name), *(f"{times[count]:.3g}" for count in counts), f"{limit:.2g}", over])
    heads = ["target", *map(str, counts), "limit", "over it, up to 8"]
    return _rows(heads, lines)
