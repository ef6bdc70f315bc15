"""Numbers of pages that look measured and stand before no mark: each must be in unmarked.yaml, under what it is.

A number looks measured if it has a unit of measurements (%, ×, times, points, ms, tokens/s and the like), bounds, or
a decimal point, or if it follows τ or is so many of so many. What is in code, links and tables that are made from
files is not looked at. The list has for each page the numbers as they stand there, by kind (KINDS). So a new number
is found, and a listed one that was changed. `make docs-figures` takes out of it what is gone, and puts nothing in.
"""

import re
from collections import Counter

import yaml

from figures import blocks, marks
from figures.stored import NUMBER, ROOT

LIST = ROOT / "tools" / "figures" / "unmarked.yaml"
HEAD = "# Numbers of pages that stand before no mark, by page and kind: tools/figures/unmarked.py"
KINDS = {
    "set": "a setting, a bound, a goal, a definition or an example worked by hand",
    "others": "a figure of a paper or of other people's code",
    "counted": "what a test or a program counts or bounds, which fails where it is otherwise",
}
PAST = re.compile(r"```.*?```|`[^`]*`|(?<=\])\([^)\s]*\)|<https?:[^>]*>|^#.*?$|<!-- (?![=!]).*?-->", re.S | re.M)
PLACED = re.compile(rf"{NUMBER}(?:\*\*)?(?:\s*[%×]?\s*\[[^\]]*\])?(?:\*\*)?(?=<!--=)")
NOTHING_MEASURED = re.compile(
    r"95\s%(?:\s(?:intervals?|bounds)|\])|(?:\b[ThK]|[γλμδεκ])\s+=\s+[\d.]+|\bp\s+<\s+[\d.]+"
    r"|arXiv:?\s+[\d.]+(?:,\s+\d{4}\.\d{4,5})*|\b\d{4}\.\d{4,5}\b"
    r"|(?:§+|Theorem|[Ss]ections?|Eqs?\.|Tables?|Figures?|Appendix|Python|transformers|torch|vLLM|SGLang|OpenVINO|NNCF"
    r"|Apache|CUDA|Ray|Qwen|Llama|GLM|Gemma|Ernie|Step)\s*(?:\d+(?:\.\d+)+(?:,?\s(?:and\s)?)?)+",
)
ALONE = r"(?<![\w.=/@-])[+−-]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?![\w]|\.\d|,\d|-\w)"
UNIT = r"(?:%|×|[mµ]s\b|points?\b|tok(?:ens)?/s\b|times\b|tokens\s+a\s+(?:round|second)\b|s\b|seconds\b|[MG]i?B\b)"
LOOKS = re.compile(
    rf"{ALONE}\s+of\s+(?:the\s+|all\s+)?{ALONE}|{ALONE}(?:\*\*)?\s*[%×]?\s*\[{NUMBER},\s+{NUMBER}\]|{ALONE}(?:\*\*)?\s*{UNIT}"
    rf"|τ\s+(?:of\s+|is\s+|was\s+|=\s+)?(?P<tau>{ALONE})|(?<![\w.=/@-])[+−-]?\d[\d,]*\.\d+(?![\w]|\.\d)"
)


def found(text: str) -> list[str]:
    """The numbers of a page that look measured and have no mark, each with its unit, in their order."""
    bare = blocks.BLOCK.sub("", PLACED.sub("…", text))
    for other in (marks.MARK, PAST, NOTHING_MEASURED):
        bare = other.sub(" ", bare)
    return [" ".join(match[0].replace("**", "").split()) for match in LOOKS.finditer(bare)]


Listed = dict[str, dict[str, list[str]]]  # numbers by page and kind


def listed() -> Listed:
    """The numbers of unmarked.yaml, by page and kind. Raises ValueError for a kind that there is not."""
    pages: Listed = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    kinds = {kind for of_page in pages.values() for kind in of_page}
    if other := kinds - {*KINDS}:
        raise ValueError(f"{LIST.name} has no kind {sorted(other)[0]!r}; the kinds are {', '.join(KINDS)}")
    return pages


def wrong(page: str, text: str, known: Listed) -> list[str]:
    """A line for each number of a page that is not in the list, and for each of the list that is not on the page."""
    there = Counter(found(text))
    stand = Counter(number for numbers in known.get(page, {}).values() for number in numbers)
    new = [f"{page}: {one} looks measured and has no mark (or is not in {LIST.name})" for one in there - stand]
    return new + [f"{page}: {one} is not there: take it from {LIST.name}" for one in stand - there]


def pruned(known: Listed, texts: dict[str, str]) -> Listed:
    """The list without the numbers that are on no page any more."""
    left: Listed = {}
    for page, kinds in known.items():
        there = Counter(found(texts.get(page, "")))
        for kind, numbers in kinds.items():
            kept = []
            for number in numbers:
                if there[number] > 0:
                    there[number] -= 1
                    kept.append(number)
            if kept:
                left.setdefault(page, {})[kind] = kept
    return left


class Lines(yaml.SafeDumper):
    """Each list on a line of its own."""


Lines.add_representer(list, lambda one, items: one.represent_sequence("tag:yaml.org,2002:seq", items, True))


def write(known: Listed) -> None:
    text = yaml.dump(known, Dumper=Lines, allow_unicode=True, sort_keys=False, width=118)
    LIST.write_text(f"{HEAD}\n{text}", encoding="utf-8")
