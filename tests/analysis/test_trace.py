"""What a trace says of a sample: hand-worked rounds, split characters, real records, and the view in the terminal."""

import io
import re

import pytest
from made_runs import TOKENIZER, add_sample, drafted, ids, score, stored, word
from rich.console import Console

from specbench.analysis import trace
from specbench.analysis.texts import DecodedTexts
from specbench.analysis.trace import Piece, Rejected, Step, Trace, first_divergence
from specbench.base.console import PlainConsole
from specbench.config import UserError
from specbench.engine.types import Round, Verdict
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.report.views.trace import PROMPT, print_trace, visible
from specbench.results import records
from specbench.results.documents import DocumentRow
from specbench.results.stored import StoredRun

EOS = TOKENIZER.eos_token_id
NAN = pytest.approx(float("nan"), nan_ok=True)


def plain(text: str) -> list[Round]:
    """The rounds of a method that drafts nothing."""
    return [Round([token]) for token in [*ids(text), EOS]]


def worked() -> list[Round]:
    """A bonus, a rejection, a rescue, and an end by EOS in the middle of a round."""
    works, four, plus, six = map(word, (" works", " 4", " +", " 6"))
    equals, one, two, zero = map(word, (" =", " 1", " 2", "0"))
    hours, dollars, dot, so, nine = map(word, (" hours", " dollars", ".", " So", " 9"))
    return [
        Round([word(" She")]),
        drafted([works, four, plus], [works, four, plus], 3, six),
        drafted([equals, one, zero], [equals, two, zero], 1, two, [1.0, 0.25, 1.0]),
        drafted([hours, dot, so], [dollars, dot, so], 3, word("\n"), [0.5, 1.0, 1.0], rescued=(0,)),
        drafted([nine, EOS, four], [nine, EOS, four], 3, plus).cut(2),
    ]


WORKED = " She works 4 + 6 = 2 hours. So\n 9"
VANILLA = " She works 4 + 6 = 2 dollars. So\n 9"
STEPS = (
    Step(0, 0.01, 0, (Piece(" She", "prefill", ratio=NAN),)),
    Step(
        1,
        0.01,
        3,
        (
            Piece(" works", "accepted", ratio=NAN),
            Piece(" 4", "accepted", ratio=NAN),
            Piece(" +", "accepted", ratio=NAN),
            Piece(" 6", "bonus", ratio=NAN),
        ),
    ),
    Step(
        2,
        0.01,
        3,
        (Piece(" =", "accepted", ratio=NAN), Piece(" 2", "correction", ratio=NAN)),
        rejected=(Rejected(" 1", " 2", 0.25),),
        unread=("0",),
    ),
    Step(
        3,
        0.01,
        3,
        (
            Piece(" hours", "rescued", instead=" dollars", ratio=0.5),
            Piece(".", "accepted", ratio=NAN),
            Piece(" So", "accepted", ratio=NAN),
            Piece("\n", "bonus", ratio=NAN),
        ),
    ),
    Step(4, 0.01, 3, (Piece(" 9", "accepted", ratio=NAN), Piece("", "accepted", "<eos>", ratio=NAN)), cut=(" 4",)),
)


@pytest.fixture
def tables():
    return {"samples": [], "rounds": []}


@pytest.fixture
def made(tables, tmp_path):
    """A function that puts `tables` on disk."""

    return lambda tasks=("sums",), methods=("vanilla", "csd"), **changes: stored(
        tmp_path / "run", tables, tasks, methods, **changes
    )


@pytest.fixture
def two(tables, made):
    """One document, decoded by vanilla and by csd."""
    add_sample(tables, "sums", 0, "vanilla", plain(VANILLA), VANILLA, "eos", 5)
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    return made()


def joined(one: Trace) -> str:
    return "".join(piece.text for step in one.steps for piece in step.pieces)


def test_every_origin(two):
    traced = trace.trace(two, "sums", 0, "csd")
    assert traced.steps == STEPS
    assert (traced.task, traced.doc_id, traced.method, traced.repeat, traced.finish) == ("sums", 0, "csd", 0, "eos")
    assert traced.text == WORKED == joined(traced)


def test_a_method_that_drafts_nothing(two):
    traced = trace.trace(two, "sums", 0, "vanilla")
    origins = [piece.origin for step in traced.steps for piece in step.pieces]
    assert origins == ["prefill"] + ["target"] * (len(ids(VANILLA)))
    assert joined(traced) == VANILLA and traced.steps[-1].pieces[-1].cut == "<eos>"


def test_a_stop_string_is_cut_wherever_it_begins(tables, made):
    vocabulary = ["ab", "c.ST", "OP!", "x", "y"]
    rounds = [Round([0]), drafted([1, 2, 3], [1, 2, 3], 3, 4).cut(2)]
    add_sample(tables, "sums", 0, "csd", rounds, "abc.", "stop")
    traced = trace.trace(made(), "sums", 0, "csd", decode=lambda some: "".join(vocabulary[i] for i in some))
    (first,), (second, third) = (step.pieces for step in traced.steps)
    assert (first.text, first.cut) == ("ab", "")
    assert (second.text, second.cut, third.text, third.cut) == ("c.", "ST", "", "OP!")
    assert traced.steps[1].cut == ("x",)


def test_characters_that_span_tokens_and_rounds(tables, made):
    text = "a€ naïve 日本"
    tokens = ids(text)
    assert any("�" in TOKENIZER.decode([token]) for token in tokens), "no character is split: nothing is tested"
    for size in (1, 2, 3):
        tables["samples"].clear(), tables["rounds"].clear()
        rest = [tokens[i : i + size] for i in range(1, len(tokens), size)]
        rounds = [Round(tokens[:1]), *(drafted(part, part, len(part), 0).cut(len(part)) for part in rest)]
        add_sample(tables, "sums", 0, "csd", rounds, text, "length")
        pieces = [p for step in trace.trace(made(), "sums", 0, "csd").steps for p in step.pieces]
        assert "".join(piece.text for piece in pieces) == text
        assert not any("�" in piece.text for piece in pieces)
    spelled = [piece.text for piece in pieces]
    assert spelled[spelled.index("€") - 1] == "", "the character belongs to the token that completes it"


def test_a_rejected_part_of_a_character_has_a_sign(tables, made):
    part = next(token for token in ids("日") if "�" in TOKENIZER.decode([token]))
    rounds = [Round([word(" She")]), drafted([part], [word(" 4")], 0, word(" 4"), [0.1])]
    add_sample(tables, "sums", 0, "csd", rounds, " She 4", "length")
    (step,) = trace.trace(made(), "sums", 0, "csd").steps[1:]
    assert step.rejected[0].text == "◌" and step.unread == ()
    assert [(piece.text, piece.origin) for piece in step.pieces] == [(" 4", "correction")]


def test_a_text_that_ends_within_a_character(tables, made):
    tokens = ids(" She 日")[:-1]
    text = TOKENIZER.decode(tokens)
    assert text.endswith("�")
    add_sample(tables, "sums", 0, "vanilla", [Round([token]) for token in tokens], text, "length")
    assert joined(trace.trace(made(), "sums", 0, "vanilla")) == text


def test_tokenizers_that_drop_the_first_space_and_fall_back_to_bytes():
    vocabulary = {1: b" the", 2: b" cat", 3: b"\xc3", 4: b"\xa9", 5: b"s", 6: b"\n"}

    def decode(tokens):
        """As sentencepiece does: no leading space; a run of bytes that is no text is all signs, newlines too."""
        result, run = "", b""
        for token in [*tokens, None]:
            if token in (3, 4, 6):
                run += vocabulary[token]
                continue
            try:
                result += run.decode()
            except UnicodeDecodeError:
                result += "�" * len(run)
            run = b""
            result += vocabulary[token].decode() if token else ""
        return result.removeprefix(" ")

    assert DecodedTexts(decode).pieces([1, 2, 5, 3, 4, 1], "the catsé the") == ["the", " cat", "s", "", "é", " the"]
    broken = [1, 3, 6, 2]
    assert decode(broken) == "the�� cat"
    assert "".join(DecodedTexts(decode).pieces(broken, "the�� cat")) == "the�� cat"
    assert DecodedTexts(decode).pieces([1, 2], "the dog") is None


def test_the_warm_up_is_no_sample(tables, made):
    add_sample(tables, "sums", 0, "csd", plain(VANILLA), VANILLA, "eos")
    for row in [*tables["samples"], *tables["rounds"]]:
        row["warmup"] = True
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    run = made()
    assert trace.trace(run, "sums", 0, "csd").steps == STEPS


def test_each_repeat_is_its_own(tables, made):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos", repeat=0)
    add_sample(tables, "sums", 0, "csd", plain(VANILLA), VANILLA, "eos", repeat=1)
    run = made()
    assert trace.trace(run, "sums", 0, "csd").text == WORKED
    assert trace.trace(run, "sums", 0, "csd", repeat=1).text == VANILLA


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("sum", 0, "csd"), "no task sum; it has sums"),
        (("sums", 7, "csd"), "task sums, has no document 7; it has 0"),
        (("sums", 0, "sps"), "has no method sps; it has vanilla, csd"),
        (("sums", 0, "csd", 3), "has no repeat 3; it has 0"),
    ],
)
def test_what_is_not_there(two, asked, message):
    with pytest.raises(UserError, match=re.escape(message)):
        trace.trace(two, *asked)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"finish": "error", "error": "Traceback\n  x\nValueError: too long\n", "tokens": None},
            "ValueError: too long",
        ),
        ({"tokens": None}, "tokens were not recorded"),
        ({"tokens": [5, 6]}, "do not add up"),
        ({"text": " He"}, "not their tokenizer"),
    ],
)
def test_samples_that_cannot_be_traced(tables, made, sample, message):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    tables["samples"][0] |= sample
    with pytest.raises(UserError, match=message) as caught:
        trace.trace(made(), "sums", 0, "csd")
    assert "sums, document 0, csd" in str(caught.value) and "\n" not in str(caught.value)


def test_a_lost_round_is_damage(tables, made):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    del tables["rounds"][2]
    with pytest.raises(UserError, match="do not add up"):
        trace.trace(made(), "sums", 0, "csd")


def test_rounds_are_told_in_their_order_wherever_they_stand(tables, made):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    tables["rounds"].reverse()
    assert trace.trace(made(), "sums", 0, "csd").steps == STEPS


def test_behind_a_path_of_a_tree_that_met_no_further_level_is_a_bonus(tables, made):
    """Two tokens follow the context and one the first of them, which alone is refused in the second round."""
    she, works, hours, four = map(word, (" She", " works", " hours", " 4"))
    whole = Verdict((0, 2), four, [works, hours, hours], [works, works, hours], [1.0, 0.5, 1.0], parents=(-1, -1, 0))
    part = Verdict((0,), four, [works, hours, hours], [works, works, four], [1.0, 0.5, 0.5], parents=(-1, -1, 0))
    rounds = [Round([she]), *(Round(one.committed, one) for one in (whole, part))]
    add_sample(tables, "sums", 0, "csd", rounds, " She works hours 4 works 4", "length")
    steps = trace.trace(made(), "sums", 0, "csd").steps
    assert [[(piece.text, piece.origin) for piece in step.pieces] for step in steps[1:]] == [
        [(" works", "accepted"), (" hours", "accepted"), (" 4", "bonus")],
        [(" works", "accepted"), (" 4", "correction")],
    ]
    assert [[one.text for one in step.rejected] for step in steps[1:]] == [[], [" hours"]]
    assert [step.unread for step in steps[1:]] == [(" hours",), (" hours",)]


def test_a_round_whose_lists_differ_in_length(tables, made):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    tables["rounds"][2]["target_tokens"] = [5]
    with pytest.raises(UserError, match="damaged"):
        trace.trace(made(), "sums", 0, "csd")


def test_rounds_without_tokens(tables, made):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    for row in tables["rounds"]:
        row["draft_tokens"] = None
    with pytest.raises(UserError, match="were not recorded"):
        trace.trace(made(), "sums", 0, "csd")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"tokenizer_hash": "0123"}, "is not the one"), ({"models": None}, "does not name its tokenizer")],
)
def test_another_tokenizer(tables, made, changes, message):
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    with pytest.raises(UserError, match=message):
        trace.trace(made(**changes), "sums", 0, "csd")


def test_the_first_divergence(two):
    one, other = trace.trace(two, "sums", 0, "vanilla"), trace.trace(two, "sums", 0, "csd")
    assert first_divergence(one, other) == 7  # hours for dollars
    assert first_divergence(one, one) is None
    shorter = Trace("sums", 0, "x", 0, "length", "", one.tokens[:3], ())
    assert first_divergence(one, shorter) == first_divergence(shorter, one) == 3


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> StoredRun:
    """A sampled run of the bundled pair over one document of each kind of bundled task."""
    plan = resolve_plan(["sps", "csd"], "pocket", "pocket", [], "vanilla", 1, None, device="cpu", temperature=0.8)
    folder = tmp_path_factory.mktemp("runs") / "real"
    assert loop.execute(plan, folder, lambda progress: True)
    return StoredRun(folder)


@pytest.mark.long
def test_real_records(real):
    samples = records.read_rows(real.folder, "samples").to_pylist()
    samples = [row for row in samples if not row["warmup"]]
    keys = [(row["task"], row["doc_id"], row["method"]) for row in samples]
    by_name = {key: trace.trace(real, *key) for key in keys}
    rounds = [row for row in records.read_rows(real.folder, "rounds").to_pylist() if not row["warmup"]]
    assert len(by_name) == len(samples) == 12
    for sample in samples:
        one = by_name[sample["task"], sample["doc_id"], sample["method"]]
        own = [row for row in rounds if all(row[k] == sample[k] for k in ("task", "doc_id", "method"))]
        assert joined(one) == sample["text"] and list(one.tokens) == sample["tokens"]
        for step, row in zip(one.steps, own, strict=True):
            origins = [piece.origin for piece in step.pieces]
            assert len(origins) == row["committed"] and step.seconds == row["seconds"]
            assert origins.count("accepted") + origins.count("rescued") == row["accepted"]
            assert origins.count("rescued") == row["rescued"]
            refused = len(step.rejected) + len(step.unread) + len(step.cut)
            assert refused == row["drafted"] - row["accepted"]
    every = {piece.origin for one in by_name.values() for step in one.steps for piece in step.pieces}
    assert every >= {"prefill", "target", "accepted", "correction", "bonus"}


def shown(traces, width=80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    print_trace(console, traces)
    return console.file.getvalue()


def test_the_view_without_colour(two):
    lines = [line.rstrip() for line in shown([trace.trace(two, "sums", 0, "csd")]).splitlines()]
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if line.startswith("round"))
    assert lines[at:] == [
        "round   ms csd",
        "    0 10.0  She",
        "    1 10.0  works 4 + +6",
        "    2 10.0  = -1(0.25) !2  [1 unread]",
        "    3 10.0  ~hours(0.50 for dollars). So+⏎",
        "    4 10.0  9|<eos>  [1 cut]",
    ]
    legend = " ".join(lines[:at])
    for mark in ("word accepted", "~word rescued", "!word correction", "+word bonus", "-word rejected", "|word after"):
        assert mark in legend
    assert "13 tokens in 4 rounds, 9 of 12 drafts accepted, 40 ms" in legend


def test_the_view_in_colour_has_no_marks(two):
    text = shown([trace.trace(two, "sums", 0, "csd")], force_terminal=True, color_system="truecolor")
    assert "\x1b[" in text and "!2" not in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"\x1b\[[0-9;]*\b9;[0-9;]*m1\x1b", text), "a rejected draft is struck through"
    assert "\x1b[" not in shown(
        [trace.trace(two, "sums", 0, "csd")], force_terminal=True, no_color=True, color_system=None
    )


def test_two_methods_part_in_words(two):
    text = shown([trace.trace(two, "sums", 0, "vanilla"), trace.trace(two, "sums", 0, "csd")])
    assert max(len(line) for line in text.splitlines()) <= 80
    before, after = text.split("FIRST DIVERGENCE.")
    sentence = " ".join(after.split("──")[0].split())
    assert sentence == (
        "The first 7 tokens are the same, then they part: vanilla goes on with “ dollars” (target), csd goes on with "
        "“ hours” (rescued)."
    )
    assert "hours" not in before.split("round", 2)[2] and "-1(0.25) !2" in before
    assert "~hours" in after and "dollars. So⏎ 9" in after
    same = shown([trace.trace(two, "sums", 0, "csd")] * 2)
    assert "FIRST DIVERGENCE" not in same and "the same, token for token" in same


def test_nothing_that_a_model_prints_acts_on_the_terminal(tables, made):
    text = "a [red]\x1b[2Jx\u202ey\r"
    assert visible(text) == "a [red]␛[2Jx<U+202E>y␍"
    add_sample(tables, "sums", 0, "csd[gamma=4]", [Round([token]) for token in ids(text)], text, "length")
    out = shown([trace.trace(made(methods=("vanilla", "csd[gamma=4]")), "sums", 0, "csd[gamma=4]")], width=120)
    assert "ms csd[gamma=4]" in out and "[red]␛[2Jx<U+202E>y␍" in out and not {"\x1b", "\u202e", "\r"} & set(out)


def test_what_the_text_was_about_stands_before_it(two):
    """The end of a long prompt, the reference answer and the score; nothing of them acts on the terminal."""
    about = DocumentRow("sums", 0, "x" * PROMPT + "\nHow \x1b[2J[red]many?\n", "nine\u202e\n9", "sums of two")
    console = Console(file=io.StringIO(), width=80)
    traced = trace.trace(two, "sums", 0, "csd")
    print_trace(PlainConsole(file=console.file, width=80), [traced], about, {("sums", 0, "csd"): 0.5})
    text = console.file.getvalue()
    assert text.startswith(f"PROMPT, sums of two (the last 1,200 of its {PROMPT + 20:,} characters)\nxxx")
    assert "How \\x1b[2J[red]many?\nREFERENCE ANSWER\nnine\\u202e\n9\n\n" in text
    assert "ended by EOS, score 0.5" in " ".join(text.split()) and not {"\x1b", "\u202e"} & set(text)
    text = shown([traced], width=200)
    assert "PROMPT" not in text and "score" not in text


def test_scores_of_documents(two):
    scores = [score("sums", "vanilla", 0, 0.5), score("sums", "vanilla", 0, 1.0, repeat=1)]
    scores.append(score("sums", "vanilla", None, 9.0))
    run = stored(two.folder.parent / "scored", {"samples": [], "rounds": []}, ("sums",), ("vanilla",), scores)
    assert trace.document_scores(run, run.headline()) == {("sums", 0, "vanilla"): 0.5}
    (run.folder / "scores.parquet").unlink()
    assert trace.document_scores(StoredRun(run.folder), {}) == {}
