"""Which kind of difference a rescue lets pass, judged by the texts of two tokens (CSD, arXiv 2604.13634, §5.2)."""

import re

from specbench.analysis.texts import PART

KINDS = (
    "formatting",
    "punctuation and spacing",
    "case",
    "connective",
    "word for word",
    "digit for digit",
    "end of text",
    "other",
)
END = "<eos>"  # how `Texts.draft` names an end token
_WORDS = """
accordingly also and as because but consequently finally first furthermore hence however lastly likewise meanwhile
moreover next now or second similarly since so still then therefore third thus while yet
"""
CONNECTIVES = frozenset(_WORDS.split())
CONJUNCTIONS = frozenset(("and", "or", "but"))  # where a comma could stand
# LaTeX commands that mean the same as each other, and commands that mean nothing.
ALIKE = (("cdot", "times"), ("frac", "dfrac", "tfrac"), ("ldots", "cdots", "dots"), ("text", "textbf", "mathrm"))
MUTE = ("left", "right", "big", "bigl", "bigr", "Big", "displaystyle", "quad", "qquad", "boxed")
PUNCTUATION = ".,;:!?…()[]-–—"
_MARK = re.compile(
    rf"\\(?:{'|'.join(MUTE)})(?![A-Za-z])"
    r"""|\\|\$+|[{}]|`+|\*\*+|__+|\#+|~~|["'“”‘’«»]|</?[A-Za-z][^<>]*>"""
)
_WORD = re.compile(r"['’]?[^\W\d_]+(?:['’-][^\W\d_]+)*")
_NO_TEXT = re.compile(r"<\d+>")  # how `Texts.draft` names other tokens without text


def kind(draft: str, target: str) -> str:
    """The one of KINDS that a rescue belongs to, by the texts of both tokens as `Texts.draft` names them.

    A text does not show its context. So whether two words mean the same is not judged, and a token that continues a
    word (no space before it, a small letter) is `other`.
    """
    if END in (draft, target):
        return "end of text" if draft != target else "other"
    if draft == target or any(PART in text or _NO_TEXT.fullmatch(text) for text in (draft, target)):
        return "other"
    if _formatting(draft, target):
        return "formatting"
    if any(char.isdigit() for char in draft + target):
        return "digit for digit" if _number(draft) and _number(target) else "other"
    bare, wanted = _bare(draft), _bare(target)
    if bare == wanted or _comma_for_conjunction(draft, target) or _comma_for_conjunction(target, draft):
        return "punctuation and spacing"
    if bare.casefold() == wanted.casefold():
        return "case"
    if not (_begins_word(draft) and _begins_word(target)):
        return "other"
    if {bare.casefold(), wanted.casefold()} <= CONNECTIVES:
        return "connective"
    return "word for word" if _WORD.fullmatch(bare) and _WORD.fullmatch(wanted) else "other"


def _formatting(draft: str, target: str) -> bool:
    """True if the texts differ in markup only, or in markup and punctuation."""
    left, right = (_MARK.sub("", text).strip() for text in (draft, target))
    if any({left, right} <= set(names) for names in ALIKE):
        return draft[0] != " " != target[0]  # a space before it makes it a word, not a command
    if (left, right) == (draft.strip(), target.strip()):
        return False
    return left == right or not (_bare(left) or _bare(right))


def _number(text: str) -> bool:
    return any(char.isdigit() for char in text) and not any(char.isalpha() for char in text)


def _bare(text: str) -> str:
    """The text without spaces and without punctuation around it."""
    return "".join(text.split()).strip(PUNCTUATION)


def _comma_for_conjunction(comma: str, conjunction: str) -> bool:
    return comma.strip() in (",", ";") and conjunction.strip().casefold() in CONJUNCTIONS


def _begins_word(text: str) -> bool:
    return not text[:1].islower()
