"""Marks of figures on a page, which name the file, the row, the column and the format.

    1.05 [1.01, 1.10]<!--= math-csd-300-sps speedup_decode[average / csd] .2f± -->

shows the column `speedup_decode` of the row of `average` and `csd` in results/reference/math-csd-300-sps.csv, with two
digits and its bounds. The number stands before its mark. Formats: `.2f`, `.1p` (times 100), with `+` in front a sign,
with `,` thousands, with `±` bounds, of other digits as `±.0`; `.1s±` is a score in percent, its bounds widened to whole
ones. An expression computes with several figures, one of another file with that behind it:
`100 * (accuracy[a / vanilla] - accuracy[a / csd]@other) .1f`. A `*` in a key stands for any text, and so for several
rows: `min(tau[pocket_* / csd]) .2f`, also of `max`, `mean`, `sum` and `count`.

    <!--! math-csd-300 tau[average / csd] > tau[average / sps] -->

holds the words around it, which say what the figures are like: the comparison must be true, else the words are wrong.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from figures.stored import NUMBER, Figure, NoFigure, figures, path_of

MARK = re.compile(r"<!--([=!])\s+(\S+)\s+(.*?)\s*-->", re.S)
TERM = re.compile(r"([\w:]+)\[((?:[^\[\]]|\[[^\]]*\])*)\](?:@([\w./-]+))?")
FORMAT = re.compile(
    r"\s(?P<sign>\+?)(?P<thousands>,?)\.(?P<digits>\d)(?P<kind>[fps])(?P<bounds>±(?:\.(?P<other>\d))?)?$"
)
SHOWN = re.compile(rf"({NUMBER})(\*\*)?(?:(\s*[%×]?\s*\[)({NUMBER})(,\s+)({NUMBER})(\]))?(\*\*)?$")
FUNCTIONS = {"abs": abs, "min": min, "max": max, "round": round, "nan": float("nan"), "inf": float("inf")}
FUNCTIONS |= {
    "sum": lambda *values: sum(values),
    "mean": lambda *values: sum(values) / len(values),
    "count": lambda *values: len(values),
}
SUM = re.compile(rf"(?:[\d.eE+\-*/()<>=!, ]|and|or|not|{'|'.join(FUNCTIONS)})*")


@dataclass(frozen=True)
class Wrong:
    """A figure or a statement of a page that is not what its file says."""

    page: str
    line: int
    mark: str
    shown: str
    right: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.shown} should be {self.right} ({self.mark})"


def rewritten(text: str) -> str:
    """The page with each figure as its file has it now; a mark that leads nowhere leaves its number as it is."""
    parts: list[str] = []
    for before, mark in _split(text):
        with suppress(NoFigure):
            before = _placed(before, mark) if mark else before
        parts += [before, mark.group() if mark else ""]
    return "".join(parts)


def wrong(page: str, text: str) -> list[Wrong]:
    """Every figure that differs from its file's, statement that does not hold, and mark that leads nowhere."""
    found, line = [], 1
    for before, mark in _split(text):
        line += before.count("\n")
        if mark is None:
            continue
        short = " ".join(mark.group().split())
        try:
            if mark[1] == "=":
                right = _placed(before, mark)
                if right != before:
                    shown = [SHOWN.search(one.rstrip()).group() for one in (before, right)]  # type: ignore[union-attr]
                    found.append(Wrong(page, line, short, *shown))
            else:
                found += [Wrong(page, line, short, f"{one!r}", "true") for one in _untrue(mark)]
        except NoFigure as error:
            found.append(Wrong(page, line, short, "the mark", f"one that leads to a figure: {error}"))
        line += mark.group().count("\n")
    return found


def without_marks(text: str) -> str:
    """The page as a reader sees it."""
    return MARK.sub("", text)


def _split(text: str) -> Iterator[tuple[str, re.Match[str] | None]]:
    at = 0
    for mark in MARK.finditer(text):
        yield text[at : mark.start()], mark
        at = mark.end()
    yield text[at:], None


def _placed(before: str, mark: re.Match[str]) -> str:
    """The text before a mark with the figure as its file has it."""
    if mark[1] == "!":
        return before
    text = f" {' '.join(mark[3].split())}"
    given = FORMAT.search(text)
    if not given:
        raise NoFigure("no format at its end, as .2f or .1p±")
    value = evaluated(text[: given.start()].strip(), mark[2])
    shown = SHOWN.search(before)
    if not shown:
        raise NoFigure("no number before it")
    if bool(given["bounds"]) != bool(shown[4]):
        raise NoFigure("bounds in one of number and format")
    texts = [_text(value.value, given, int(given["digits"]))]
    if given["bounds"]:
        if value.low is None or value.high is None:
            raise NoFigure("no bounds in the file")
        if not value.low <= value.value <= value.high:
            raise NoFigure(f"{value.low} and {value.high} are no bounds of {value.value}")
        digits = int(given["other"] or given["digits"])
        bounds = value.low, value.high
        if given["kind"] == "s":  # outwards, as a table's scores have them
            bounds, digits = (math.floor(100 * bounds[0]) / 100, math.ceil(100 * bounds[1]) / 100), 0
        texts += [_text(bound, given, digits) for bound in bounds]
        middle = f"{shown[2] or ''}{shown[3]}{texts[1]}{shown[5]}{texts[2]}{shown[7]}"
    else:
        middle = shown[2] or ""
    return before[: shown.start()] + texts[0] + middle + (shown[8] or "")


def _text(value: float, given: re.Match[str], digits: int) -> str:
    value *= 1 if given["kind"] == "f" else 100
    text = f"{value:{given['sign']}{given['thousands']}.{digits}f}"
    bare = text.lstrip("+-")
    return bare if not float(bare.replace(",", "")) and given["sign"] else text.replace("-", "−")


def _untrue(mark: re.Match[str]) -> list[str]:
    """The statements of a mark that do not hold."""
    statements = [" ".join(one.split()) for one in mark[3].split(";")]
    return [one for one in statements if evaluated(one, mark[2]).value != 1]


def evaluated(expression: str, file: str) -> Figure:
    """What an expression over figures comes to; of one figure alone, or times a number, with its bounds."""
    path_of(file)
    terms = [
        figures(term[3] or file, term[1], tuple(key.strip() for key in term[2].split(" / ") if key.strip()))
        for term in TERM.finditer(expression)
    ]
    if not terms:
        raise NoFigure(f"{expression!r} names no figure")

    def result(values: Iterator[str]) -> float:
        text = " ".join(TERM.sub(lambda _: next(values), expression).split())
        if not SUM.fullmatch(text):
            raise NoFigure(f"{expression!r} is no sum of figures")
        try:
            return float(eval(text, {"__builtins__": {}}, FUNCTIONS))
        except TypeError as error:
            raise NoFigure(f"{expression!r}: {error}") from error

    value = result(iter([", ".join(f"({one.value!r})" for one in of_term) for of_term in terms]))
    ((one, *rows), *others) = terms
    if rows or others or one.low is None or one.high is None:
        return Figure(value)
    return Figure(value, *sorted(result(iter([f"({bound!r})"])) for bound in (one.low, one.high)))
