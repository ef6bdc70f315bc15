"""Prompts without scores, in one or several turns: each method answers its own conversation, whatever stops the run."""

import json
import shutil
from dataclasses import replace

import pytest
from cases import mostly_long
from refusals import one_line_error
from screens import call, output
from tiny_runs import SETTINGS, always, facts, samples_of

from specbench.base.hashes import short_hash
from specbench.measure import loop
from specbench.measure.conversations import Conversations
from specbench.measure.divergence import Reference, mark_divergence
from specbench.measure.gate import admit
from specbench.measure.prepare import load_models, prepare
from specbench.measure.prompts import encode, stored_requests
from specbench.methods.chains.sps import SpS
from specbench.plan import resolve_plan
from specbench.report import comparison
from specbench.results.stored import StoredRun
from specbench.tasks.requests import Request

PROMPTS = [
    {"question_id": 7, "category": "talk", "turns": ["Ann has 3 pens.", "How many has Bob?"], "reference": ["", "4"]},
    {"id": "once", "category": "facts", "prompt": "Name a river."},
    {"id": "long", "category": "talk", "prompt": ["Count to 3.", "Go on.", "And on."]},
]
TURNS = [("talk", 0), ("talk", 1), ("talk", 2), ("talk", 3), ("talk", 4), ("facts", 0)]  # task and doc_id, in order
METHODS = ["sps", "csd"]


def written(path, prompts=PROMPTS):
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return path


@pytest.fixture(scope="module")
def plan(place):
    pair = f"target={place / 'target'},draft={place / 'draft'}"
    file = written(place / "asked.jsonl")
    return resolve_plan(
        METHODS, pair=pair, prompts=file, max_new_tokens=40, assignments=SETTINGS, repeats=2, device="cpu"
    )


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("talks") / "whole"
    assert loop.execute(plan, folder, always)
    return folder


def test_each_turn_is_a_document_and_its_prompt_has_the_methods_own_answers(whole):
    samples = samples_of(whole)
    keys = list(samples[samples.repeat == 0][["task", "doc_id"]].drop_duplicates().itertuples(index=False, name=None))
    assert keys == TURNS
    text = samples.set_index(["repeat", "task", "doc_id", "method"]).text
    asked = samples.set_index(["repeat", "task", "doc_id", "method"]).prompt_hash
    for repeat in (0, 1):
        for method in ("vanilla", *METHODS):
            first = f"Count to 3.{text[repeat, 'talk', 2, method]}"
            second = f"{first}\n\nGo on.{text[repeat, 'talk', 3, method]}"
            prompts = ["Count to 3.", f"{first}\n\nGo on.", f"{second}\n\nAnd on."]
            assert [asked[repeat, "talk", at, method] for at in (2, 3, 4)] == list(map(short_hash, prompts))
    assert asked[0, "talk", 3, "csd"] != asked[0, "talk", 3, "vanilla"], "no answer differs: this tests nothing"
    assert asked[0, "talk", 4, "sps"] == asked[0, "talk", 4, "vanilla"], "a lossless method has the same conversation"


def test_the_manifest_tells_ids_categories_and_turns_and_the_file_of_documents_the_rest(whole):
    run = StoredRun(whole)
    places = [["7", "talk", 0], ["7", "talk", 1], ["long", "talk", 0], ["long", "talk", 1], ["long", "talk", 2]]
    assert run.manifest["prompts"] == [*places, ["once", "facts", 0]]
    kept = run.kept({"talk": [1, 4], "facts": [0]})
    assert kept["talk", 1].reference == "4" and kept["talk", 1].category == "talk"
    assert kept["talk", 1].prompt == "Ann has 3 pens.\n\nHow many has Bob?", "with empty answers: they are the methods'"
    assert kept["facts", 0].reference is None


@mostly_long("stops", [{1, 3, 4, 9}, {4}], ({4},), ids=["everywhere", "once"])
def test_a_run_stopped_between_two_turns_goes_on_from_the_same_words(whole, plan, tmp_path, stops):
    """After the first turns of conversations, after the second of one, and in the second pass."""
    while not loop.execute(plan, tmp_path / "it", lambda state: state.done not in stops):
        pass
    assert facts(tmp_path / "it") == facts(whole)


def test_what_was_read_once_is_never_a_whole_conversation(plan, tmp_path):
    """The first prompt of a conversation begins the others: read aside, it would cost them nothing."""
    alone = resolve_plan(["sps"], pair=plan.pair, prompts=written(tmp_path / "one.jsonl", PROMPTS[:1]), device="cpu")
    assert prepare(admit(alone), tmp_path).shared == {"talk": 0}


def test_without_scores_there_is_no_accuracy_and_no_verdict_on_it(whole, capsys):
    comparison.finish(whole)
    shown = capsys.readouterr().out
    assert "±" not in shown.split("score (±")[0] and "accuracy lower" not in shown and "same accuracy" not in shown
    assert "talk" in shown and "facts" in shown and "speedup" in shown
    samples = samples_of(whole)
    assert samples.divergence.isna().all(), "texts are compared with vanilla's all the same"


def test_texts_after_different_prompts_are_not_compared(plan, whole, monkeypatch):
    pair = load_models(plan)
    work = SpS.__new__(SpS)  # the methods are asked for these two facts only
    work.combination, work.lossless = None, True
    methods = {"vanilla": work, "sps": work}
    sample = {"warmup": False, "finish": "length", "task": "talk", "doc_id": 1}
    rows = [sample | {"method": "vanilla", "tokens": [301, 302]}, sample | {"method": "sps", "tokens": [302, 301]}]
    two = plan.model_copy(update={"baselines": {}, "baseline": "vanilla"})
    mark_divergence(rows, methods, two, pair, {"vanilla": [5, 6], "sps": [5, 7]})
    assert "divergence" not in rows[1]
    mark_divergence(rows, methods, two, pair, {"vanilla": [5, 6], "sps": [5, 6]})
    assert rows[1]["diverged_at"] == 0
    monkeypatch.setattr(Reference, "rounds", True)  # where forwards of different widths round differently
    shorter = [rows[0], sample | {"method": "sps", "tokens": [301]}]
    mark_divergence(shorter, methods, two, pair, {"vanilla": [5, 6], "sps": [5, 6]})
    assert (shorter[1]["diverged_at"], shorter[1]["divergence"]) == (1, "bug"), "no tie explains a text that stops"


def test_after_a_turn_that_failed_the_conversation_of_that_method_ends(plan, tmp_path, monkeypatch):
    rounds = SpS.rounds

    def fails(self, prompt, *rest):
        if len(prompt) < 14 and self.fails:
            raise RuntimeError("no")
        yield from rounds(self, prompt, *rest)

    monkeypatch.setattr(SpS, "fails", True, raising=False)
    monkeypatch.setattr(SpS, "rounds", fails)
    once = plan.model_copy(update={"repeats": 1})
    assert loop.execute(once, tmp_path / "it", always)
    samples = samples_of(tmp_path / "it").set_index(["task", "doc_id", "method"])
    errors = samples.error[samples.finish == "error"]
    assert {key[2] for key in errors.index} == {"sps"}
    assert "RuntimeError: no" in errors["talk", 2, "sps"]
    assert "gave no answer to an earlier turn" in errors["talk", 3, "sps"]
    assert "gave no answer to an earlier turn" in errors["talk", 4, "sps"]
    assert (samples.finish.xs("csd", level="method") != "error").all()


def test_a_conversation_that_would_outgrow_the_context_is_refused_before_it_begins(plan, tmp_path):
    long = plan.model_copy(
        update={"tasks": tuple(line.model_copy(update={"max_new_tokens": 700}) for line in plan.tasks)}
    )
    with one_line_error("700 new ones in each of 3 turns", "2048", "--max-new-tokens"):
        loop.execute(long, tmp_path / "it", always)
    file = written(tmp_path / "long.jsonl", [{"id": "x", "prompt": "x " * 5000}])
    with one_line_error("long, document 0", "prompt tokens", "need"):
        loop.execute(resolve_plan(["sps"], pair=plan.pair, prompts=file, device="cpu"), tmp_path / "other", always)


def test_a_turn_that_leaves_no_room_for_a_draft_is_not_decoded(plan, monkeypatch):
    """The text, its 40 new tokens and the method's reach need one position more than there is."""
    work = prepare(admit(plan), None)
    turn = next(request for request in work.requests if request.turn == 1)
    reach = max(method.reach for method in work.methods.values())
    ids = encode(work.pair, work.tasks.prompt(turn, [" 4"]))
    need = len(ids) + 40 + reach
    refusal = f"the conversation needs {need} positions, but the pair has {need - 1}"
    assert reach > 1
    for context, expected in ((need, ids), (need - 1, refusal)):
        talk = Conversations(work)
        asked = {"task": turn.task, "doc_id": turn.doc_id - 1}
        talk.add([{"warmup": False, "finish": "length", "method": "sps", "text": " 4", **asked}])
        monkeypatch.setitem(vars(work.pair), "context", context)  # which it works out once
        assert talk.prompts(turn, [])["sps"][1] == expected


def test_a_resumed_run_needs_the_prompts_that_it_began_with(plan, tmp_path):
    file = written(tmp_path / "asked.jsonl")
    moved = plan.model_copy(update={"prompts": str(file)})
    loop.execute(moved, tmp_path / "it", lambda state: False)
    changed = [PROMPTS[0] | {"turns": ["Ann has 3 pens.", "How many has Eve?"]}, *PROMPTS[1:]]
    for prompts, words in ((changed, "began with different prompts"), (PROMPTS[:1], "other categories")):
        written(file, prompts)
        with one_line_error(words):
            loop.execute(moved, tmp_path / "it", always)
    file.unlink()
    with one_line_error("there is no file"):
        loop.execute(moved, tmp_path / "it", always)


def test_a_study_that_reads_texts_again_refuses_conversations(whole, plan, tmp_path):
    run = StoredRun(whole)
    with one_line_error("conversations of several turns"):
        stored_requests(run, load_models(plan))


def test_a_method_that_needs_scores_is_refused(tmp_path):
    file = written(tmp_path / "asked.jsonl", PROMPTS[:1])
    oracle = resolve_plan(["cospec"], prompts=file, assignments=["cospec.arbiter=oracle"], device="cpu")
    with one_line_error("cospec needs the score of each answer"):
        loop.execute(oracle, tmp_path / "it", always)


def test_names_that_mean_harm_are_shown_and_not_carried_out(place, tmp_path, monkeypatch):
    """Control characters, paths and markup in ids and categories: harmless on a terminal and on a page."""
    monkeypatch.chdir(tmp_path)
    evil = "\x1b[31mred<script>alert(1)</script>../../x\x00\u202e"
    written(tmp_path / "asked.jsonl", [{"id": evil, "category": evil, "prompt": "Hello."}])
    pair = ("--target", place / "target", "--draft", place / "draft")
    shown = output("run", *pair, "--prompts", "asked.jsonl", "--method", "csd", "--max-new-tokens", 4, "--out", "it")
    assert "\x1b[31m" not in shown and "\x00" not in shown and "\u202e" not in shown
    assert call("report", "it", "--out", "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert "<script>alert" not in page and "\x1b" not in page and "\x00" not in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked.jsonl", "it", "page.html"]
    shutil.rmtree("it")


def test_a_request_says_how_many_positions_its_conversation_may_need(plan):
    request = Request("t", 0, "", (), 10, "", "")
    assert request.positions([1, 2]) == 12 and replace(request, turn=2).positions([1, 2]) == 32
