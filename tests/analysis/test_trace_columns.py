"""Traces by column are those of `trace`, sample by sample: hand-worked rounds, trees, ends of texts, real records."""

import pytest
from made_runs import TOKENIZER, add_sample, drafted, ids, large, stored, word
from test_trace import EOS, VANILLA, WORKED, plain, worked

from specbench.analysis import trace, trace_columns
from specbench.analysis.texts import load_decode
from specbench.analysis.trace import ORIGINS, Piece, Rejected, Step
from specbench.analysis.trace_columns import TraceColumns, Tracer, Words
from specbench.config import UserError
from specbench.engine.types import Round, Verdict
from specbench.measure import loop
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun


def decode(tokens: list[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=True)


def read(columns: TraceColumns, words: Words) -> dict[tuple[str, int, str], tuple[Step, ...]]:
    """The steps of each sample: every array is read from its beginning, as the page does."""
    streams = {name: iter(getattr(columns, name).tolist()) for name in vars(columns) if name != "samples"}

    def next_text(name):
        return words.texts[next(streams[name])]

    def piece():
        text, origin = next_text("text"), ORIGINS[next(streams["origin"])]
        if not next(streams["more"]):
            return Piece(text, origin)
        return Piece(text, origin, next_text("cut"), next_text("instead"), next(streams["ratio"]))

    def step(number):
        draft, seconds = next(streams["drafted"]), next(streams["seconds"])
        pieces = tuple(piece() for _ in range(next(streams["pieces"])))
        rejected, unread, after = [next(streams["dropped"]) for _ in range(3)] if draft else (0, 0, 0)
        refused = [
            Rejected(next_text("rejected"), next_text("own"), next(streams["rejected_ratio"])) for _ in range(rejected)
        ]
        dropped = [tuple(next_text(name) for _ in range(n)) for name, n in (("unread", unread), ("after", after))]
        return Step(number, seconds, draft, pieces, tuple(refused), *dropped)

    found = {key: tuple(step(i) for i in range(next(streams["rounds"]))) for key in columns.samples}
    assert all(next(stream, None) is None for stream in streams.values())
    return found


def same(run: StoredRun, methods, documents, **options) -> dict[tuple[str, int, str], tuple[Step, ...]]:
    """The steps of each sample by columns, which are those of `trace`."""
    words, found = Words(), {}
    for part in Tracer(run, decode, words, methods, **options).of(documents):
        found |= read(part, words)
    for key, steps in found.items():
        assert repr(steps) == repr(trace.trace(run, *key, **options, decode=decode).steps), key
    return found


@pytest.fixture
def tables():
    return {"samples": [], "rounds": []}


def test_many_samples_are_traced_as_each_alone(tables, tmp_path):
    for doc in (2, 0, 1):
        add_sample(tables, "sums", doc, "vanilla", plain(VANILLA), VANILLA, "eos")
        add_sample(tables, "sums", doc, "csd", worked(), WORKED, "eos")
        add_sample(tables, "words", doc, "csd", plain(" She"), " She", "eos")
        add_sample(tables, "words", doc, "csd", worked(), WORKED, "eos", repeat=1)
    tables["samples"][-2] |= {"finish": "error", "error": "ValueError: x", "tokens": None, "text": None}
    tables["samples"].append(tables["samples"][0] | {"warmup": True, "doc_id": 2, "text": " other", "tokens": [5]})
    run = stored(tmp_path / "run", tables, ("sums", "words"), ("vanilla", "csd"))
    found = same(run, ("vanilla", "csd"), {"sums": [0, 1, 2], "words": [0, 1, 2]})
    assert list(found) == [
        *(("sums", doc, method) for doc in range(3) for method in ("vanilla", "csd")),
        *(("words", doc, "csd") for doc in (0, 2)),
    ]
    assert found["sums", 1, "csd"][3].pieces[0] == Piece(" hours", "rescued", "", " dollars", 0.5)
    assert list(same(run, ("csd",), {"sums": [1], "words": [7]})) == [("sums", 1, "csd")]
    assert list(same(run, ("csd",), {"words": [0]}, repeat=1)) == [("words", 0, "csd")]
    assert same(run, ("csd",), {}) == same(run, (), {"sums": [0]}) == {}


def test_ends_and_characters_and_trees(tables, tmp_path):
    """A stop string within a piece, pieces behind it, characters of several tokens, and a path through a tree."""
    naive, behind = ids("a€ naïve 日本"), ids(" 4 works")
    parts = [naive[1:4], naive[4:]]
    rounds = [Round(naive[:1]), *(drafted(part, part, len(part), 0).cut(len(part)) for part in parts)]
    add_sample(tables, "sums", 0, "csd", rounds, "a€ naïve 日本", "length")
    rounds = [Round([word(" She")]), drafted(behind, behind, len(behind), word(" +"))]
    add_sample(tables, "sums", 1, "csd", rounds, " She 4 w", "stop")
    she, works, hours, four, end = map(word, (" She", " works", " hours", " 4", "."))
    tree = Verdict((0, 2), four, [works, hours, hours], [works, works, hours], [1.0, 0.5, 1.0], parents=(-1, -1, 0))
    wrong = Verdict((0,), EOS, [works, EOS, naive[2]], [works, EOS, end], [1.0, 0.5, 0.5], parents=(-1, -1, 0))
    rounds = [Round([she]), *(Round(one.committed, one) for one in (tree, wrong))]
    add_sample(tables, "sums", 2, "csd", rounds, " She works hours 4 works", "eos")
    tables["rounds"].reverse()
    for row in tables["rounds"][:2]:
        row |= {"seconds": None, "ratios": None}
    run = stored(tmp_path / "run", tables, ("sums",), ("vanilla", "csd"))
    found = same(run, ("csd",), {"sums": [0, 1, 2]})
    assert [(piece.text, piece.cut) for piece in found["sums", 1, "csd"][1].pieces] == [
        (" 4", ""),
        (" w", "orks"),
        ("", " +"),
    ]
    assert [one.text for one in found["sums", 2, "csd"][2].rejected] == ["◌"]
    assert found["sums", 2, "csd"][2].unread == ("<eos>",)


@pytest.mark.parametrize("most", [2**21, 200])
def test_random_records(tmp_path, monkeypatch, most):
    """At once, and in parts that each have a sample or a few."""
    monkeypatch.setattr(trace_columns, "MOST", most)
    large(tmp_path / "run", ["alpha", "beta"], ["vanilla", "csd", "pld"], 4, rounds=30)
    found = same(StoredRun(tmp_path / "run"), ("vanilla", "csd", "pld"), {"alpha": [0, 3], "beta": [1, 2, 3]})
    assert len(found) == 15 and all(len(steps) > 30 for steps in found.values())


@pytest.mark.long
def test_real_records(tmp_path):
    methods = ["sps", "csd", "rsd", "fly", "lookahead"]
    plan = resolve_plan(methods, "pocket", "pocket", [], "vanilla", 1, None, device="cpu", temperature=0.8)
    assert loop.execute(plan, tmp_path / "run", lambda progress: True)
    run = StoredRun(tmp_path / "run")
    documents = {task: list(known) for task, known in run.documents().items()}
    found = same(run, ["vanilla", *methods], documents)
    assert len(found) == 6 * sum(map(len, documents.values()))
    every = {piece.origin for steps in found.values() for step in steps for piece in step.pieces}
    assert every >= set(ORIGINS) - {"rescued"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tables: tables["samples"][1].update(tokens=None), "tokens were not recorded"),
        (lambda tables: tables["rounds"][3].update(draft_tokens=None), "tokens were not recorded"),
        (lambda tables: tables["samples"][1].update(tokens=[5, 6]), "do not add up"),
        (lambda tables: tables["rounds"].pop(), "do not add up"),
        (lambda tables: tables["rounds"][3].update(decisions=[1, 0, 0]), "do not add up"),
        (lambda tables: tables["samples"][1].update(text=" He"), "not their tokenizer"),
    ],
)
def test_what_cannot_be_traced_is_told_as_alone(tables, tmp_path, change, message):
    """Also where a round accepts more drafts than its decisions do."""
    add_sample(tables, "sums", 0, "vanilla", plain(" She"), " She", "eos")
    add_sample(tables, "sums", 0, "csd", worked(), WORKED, "eos")
    change(tables)
    run = stored(tmp_path / "run", tables, ("sums",), ("vanilla", "csd"))
    with pytest.raises(UserError, match=message) as alone:
        trace.trace(run, "sums", 0, "csd", decode=decode)
    with pytest.raises(UserError, match=message) as together:
        list(Tracer(run, decode, Words(), ["vanilla", "csd"]).of({"sums": [0]}))
    assert str(together.value) == str(alone.value)


def test_each_token_is_decoded_once(tables, tmp_path):
    """However many texts it is in, and however often documents are asked for."""
    for doc in range(3):
        add_sample(tables, "sums", doc, "csd", worked(), WORKED, "eos")
    run = stored(tmp_path / "run", tables, ("sums",), ("vanilla", "csd"))
    asked = []
    whole = load_decode(run)
    tracer = Tracer(run, lambda tokens: asked.append(tuple(tokens)) or whole(tokens), Words(), ["csd"])
    for documents in ([0], [1, 2]):
        list(tracer.of({"sums": documents}))
    assert len(asked) == len(set(asked)) > 10
