"""A trace in the terminal: round by round, coloured by origin, or with plain marks where there is no colour."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specbench.analysis.trace import Piece, Step, Trace, first_divergence, ratio_text
from specbench.report.finding import print_lines
from specbench.results.documents import DocumentRow

PROMPT = 1200  # characters of a prompt that are printed: its end, as few-shot examples come first
WIDE = 110  # columns from which two traces have room for the rounds' times
SIGNS = {"\n": "⏎", "\t": "⇥", "\x7f": "␡"}


@dataclass(frozen=True)
class TokenLook:
    """How a token of an origin is shown, in colour and without."""

    style: str
    mark: str
    meaning: str


LOOKS = {
    "prefill": TokenLook("blue", "", "the prefill's token"),
    "target": TokenLook("", "", "not drafted"),
    "accepted": TokenLook("green", "", "accepted"),
    "rescued": TokenLook("bold underline magenta", "~", "rescued, with p(draft)/p(target) and the target's token"),
    "correction": TokenLook("bold yellow", "!", "correction"),
    "bonus": TokenLook("italic cyan", "+", "bonus"),
    "rejected": TokenLook("strike red", "-", "rejected, with p(draft)/p(target)"),
    "cut": TokenLook("strike dim", "|", "after the end"),
}


def print_trace(
    console: Console,
    traces: Sequence[Trace],
    about: DocumentRow | None = None,
    scores: Mapping[tuple[str, int, str], float] = MappingProxyType({}),
) -> None:
    """Print one trace, or two side by side: up to the first token in which they differ, and from there on.

    Before them what their document is about, if it was kept, and their `scores` by task, document and method.
    """
    plain = console.no_color or not console.is_terminal
    if about:
        print_lines(console, _about(about), "" if plain else "dim")
    print_lines(console, [_headline(trace, scores) for trace in traces])
    console.print(_legend(traces, plain), end="\n\n")
    at = first_divergence(*traces) if len(traces) == 2 else None
    if at is None:
        console.print(_side_by_side(traces, [trace.steps for trace in traces], plain, console.width))
        if len(traces) == 2:
            console.print("\nBoth texts are the same, token for token.")
        return
    before, after = zip(*(_split(trace.steps, at) for trace in traces), strict=True)
    if at:
        console.print(_side_by_side(traces, before, plain, console.width))
    console.rule(style="" if plain else "bold")
    print_lines(console, [_divergence(traces, at)], "" if plain else "bold")
    console.rule(style="" if plain else "bold")
    console.print(_side_by_side(traces, after, plain, console.width))


def visible(text: str) -> str:
    """The text with signs in place of newlines, tabs and all other control characters."""

    def sign(char: str) -> str:
        if char in SIGNS:
            return SIGNS[char]
        if char < " ":
            return chr(0x2400 + ord(char))
        hidden = unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in "\u200c\u200d"
        return f"<U+{ord(char):04X}>" if hidden else char

    return "".join(map(sign, text))


def _about(document: DocumentRow) -> Iterator[str]:
    """The end of a prompt, which is the question, and the reference answer."""
    size = len(document.prompt)
    kind = f", {document.category}" if document.category else ""
    which = f"the last {PROMPT:,} of its {size:,} characters" if size > PROMPT else f"{size:,} characters"
    yield f"PROMPT{kind} ({which})"
    yield document.prompt[-PROMPT:].strip("\n")
    if document.reference is not None:
        yield "REFERENCE ANSWER"
        yield document.reference[:PROMPT].strip("\n")
    yield ""


def _headline(trace: Trace, scores: Mapping[tuple[str, int, str], float]) -> str:
    later = trace.steps[1:]
    drafted, accepted = sum(s.drafted for s in later), sum(p.origin in ("accepted", "rescued") for p in _pieces(later))
    rates = f", {accepted} of {drafted} drafts accepted" if drafted else ""
    seconds = sum(s.seconds for s in later)
    time = f", {1000 * seconds:.0f} ms after the prefill" if seconds == seconds else ""
    ends = {"eos": "EOS", "stop": "a stop string", "length": "the length limit"}.get(trace.finish, trace.finish)
    size = f"{len(trace.tokens)} tokens in {len(later)} rounds"
    score = scores.get((trace.task, trace.doc_id, trace.method)) if trace.repeat == 0 else None
    scored = "" if score is None else f", score {score:g}"
    return f"{trace.task}, document {trace.doc_id}, {trace.method}: {size}{rates}{time}, ended by {ends}{scored}"


def _divergence(traces: Sequence[Trace], at: int) -> str:
    before = f"The first {at} tokens are the same, then they part" if at else "They differ from the first token on"
    endings = []
    for trace in traces:
        pieces = _pieces(trace.steps)
        if at >= len(pieces):
            endings.append(f"{trace.method} has ended")
        else:
            piece = pieces[at]
            endings.append(f"{trace.method} goes on with “{visible(piece.text or piece.cut)}” ({piece.origin})")
    return f"FIRST DIVERGENCE. {before}: {', '.join(endings)}."


def _pieces(steps: Iterable[Step]) -> list[Piece]:
    return [piece for step in steps for piece in step.pieces]


def _split(steps: Sequence[Step], at: int) -> tuple[list[Step], list[Step]]:
    """The rounds of the first `at` tokens, and those of the rest; a round may be in both."""
    before: list[Step] = []
    after: list[Step] = []
    for step in steps:
        room = at - len(_pieces(before))
        if len(step.pieces) <= room:
            before.append(step)
            continue
        if room:
            before.append(step._replace(pieces=step.pieces[:room], rejected=(), unread=(), cut=()))
        after.append(step._replace(pieces=step.pieces[room:]))
    return before, after


def _side_by_side(traces: Sequence[Trace], sides: Sequence[Sequence[Step]], plain: bool, width: int) -> Table:
    """A column for each trace, with a line for each round; rounds in which nothing was drafted share one."""
    timed = len(traces) == 1 or width >= WIDE
    sheet = Table.grid(padding=(0, 2, 0, 0), expand=True)
    tables = []
    for trace, steps in zip(traces, sides, strict=True):
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="" if plain else "bold")
        for name in ("round", "ms") if timed else ("round",):
            table.add_column(name, justify="right", style="" if plain else "dim", no_wrap=True)
        table.add_column(Text(trace.method), ratio=1, overflow="fold")
        for block in _blocks(steps):
            numbers = [_number(block), _milliseconds(block)] if timed else [_number(block)]
            table.add_row(*numbers, _text(block, plain))
        sheet.add_column(ratio=1)
        tables.append(table)
    sheet.add_row(*tables)
    return sheet


def _blocks(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """Rounds one by one, but adjacent ones that drafted nothing together."""
    blocks: list[Sequence[Step]] = []
    for alone, group in groupby(steps, key=lambda step: step.number > 0 and not step.drafted):
        rounds = list(group)
        blocks += [rounds] if alone else [[step] for step in rounds]
    return blocks


def _number(block: Sequence[Step]) -> str:
    numbers = [step.number for step in block]
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _milliseconds(block: Sequence[Step]) -> str:
    seconds = sum(step.seconds for step in block)
    return f"{1000 * seconds:.1f}" if seconds == seconds else ""


def _text(block: Sequence[Step], plain: bool) -> Text:
    line = Text()
    for step in block:
        for piece in step.pieces:
            if piece.origin == "correction":
                _add_rejected(line, step, piece.text, plain)
            note = (
                f"({ratio_text(piece.ratio)} for {visible(piece.instead).strip()})" if piece.origin == "rescued" else ""
            )
            _add(line, piece.text, piece.origin, plain, note)
            if piece.cut:
                _add(line, piece.cut, "cut", plain)
        if step.rejected and not any(piece.origin == "correction" for piece in step.pieces):
            _add_rejected(line, step, "", plain)
        counts = [f"{len(drafts)} {word}" for drafts, word in ((step.unread, "unread"), (step.cut, "cut")) if drafts]
        if counts:
            line.append(f"  [{', '.join(counts)}]", "" if plain else "dim")
    return line


def _add_rejected(line: Text, step: Step, correction: str, plain: bool) -> None:
    """Rejected drafts, each with the target's token unless that is the correction that follows."""
    for draft in step.rejected:
        target = f" against {visible(draft.target).strip()}" if draft.target != correction else ""
        _add(line, draft.text, "rejected", plain, f"({ratio_text(draft.ratio)}{target})")


def _add(line: Text, text: str, origin: str, plain: bool, note: str = "") -> None:
    look = LOOKS[origin]
    word = visible(text).lstrip(" ")
    spaces = len(visible(text)) - len(word)
    if not word:
        word, spaces = "␣" * spaces, 0
    line.append(" " * spaces)
    line.append(look.mark * bool(word) + word if plain else word, "" if plain else look.style)
    line.append(note, "" if plain else "dim")


def _legend(traces: Sequence[Trace], plain: bool) -> Text:
    """The meaning of the colours or marks that occur."""
    steps = [step for trace in traces for step in trace.steps]
    pieces = _pieces(steps)
    rejected, unread, cut = (any(getattr(step, name) for step in steps) for name in ("rejected", "unread", "cut"))
    origins = {piece.origin for piece in pieces} | ({"rejected"} if rejected else set())
    origins |= {"cut"} if any(piece.cut for piece in pieces) else set()
    entries = []
    if plain:
        drafting = "accepted" in origins
        entries.append(Text("word accepted (in round 0: the prefill's)" if drafting else "word not drafted"))
    for origin, look in LOOKS.items():
        name, comma, more = look.meaning.partition(",")
        if origin in origins and (look.mark or not plain):
            entries.append(
                Text(f"{look.mark}word {look.meaning}")
                if plain
                else Text.assemble((name, look.style), (comma + more, "dim"))
            )
    counts = ["[n unread] drafts that were not tested"] * unread + ["[n cut] drafts after the end"] * cut
    entries += [Text(entry, "" if plain else "dim") for entry in counts]
    return Text(" · ").join(entries)
