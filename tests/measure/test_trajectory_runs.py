"""Runs over recorded conversations: equal contexts, a cache that is kept from turn to turn or cold, and the window."""

import copy
import json
from dataclasses import replace

import pytest
from refusals import one_line_error
from screens import output
from tiny_runs import SETTINGS, always, facts, samples_of

from specbench.base.hashes import short_hash
from specbench.engine.prefix import LEAST
from specbench.engine.session import Session
from specbench.measure import loop
from specbench.measure.gate import admit
from specbench.measure.prepare import load_models, prepare
from specbench.measure.prompts import check_lengths, encode_all, load_tasks, within_window
from specbench.plan import resolve_plan
from specbench.results.stored import StoredRun

WORDS = "the quick brown fox jumps over the lazy dog and runs to the river where Ann has three pens "
TALKS = [
    [WORDS, "A fox.", WORDS.upper(), "No.", "Go on.", "Yes."],
    ["Count to three.", "1, 2, 3", WORDS, "A dog."],
]


def line(said):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("talks") / "agent.jsonl"
    path.write_text("".join(json.dumps(line(said)) + "\n" for said in TALKS))
    return path


def alike(one, other):
    return next(at for at in range(len(other)) if one[at : at + 1] != other[at : at + 1])


def planned(place, file, methods=("sps", "csd", "osd"), **more):
    pair = f"target={place / 'target'},draft={place / 'draft'}"
    chosen = [setting for setting in SETTINGS if setting.split(".")[0] in methods]
    settings = {"max_new_tokens": 12, "assignments": chosen, "device": "cpu", "runtime": "static"}
    return resolve_plan(list(methods), pair=pair, trajectories=file, **(settings | more))


@pytest.fixture(scope="module")
def whole(place, file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "kept"
    assert loop.execute(planned(place, file), folder, always)
    return folder


def test_all_methods_answer_after_what_was_recorded(whole):
    samples = samples_of(whole)
    first = WORDS
    second = f"{first}A fox.\n\n{WORDS.upper()}"
    third = f"{second}No.\n\nGo on."
    prompts = [first, second, third, "Count to three.", f"Count to three.1, 2, 3\n\n{WORDS}"]
    for doc_id, prompt in enumerate(prompts):
        rows = samples[samples.doc_id == doc_id]
        assert len(rows) >= 4 and set(rows.prompt_hash) == {short_hash(prompt)}
    assert (samples.groupby("doc_id").prompt_tokens.nunique() == 1).all(), "a turn has one context length"
    assert [turn for _, _, turn in StoredRun(whole).manifest["prompts"]] == [0, 1, 2, 0, 1]


def test_the_cache_is_kept_from_turn_to_turn(place, file, whole):
    """A turn reads what is new in it, the first one of a conversation everything."""
    work = prepare(admit(planned(place, file)), None)
    assert work.turns == StoredRun(whole).manifest["kept_tokens"]
    first, second, third, *_ = work.prompts
    expected = [0, alike(first, second), alike(second, third), 0, 0]
    assert work.turns == expected and expected[1] >= LEAST, "the second conversation is too short to be kept"
    assert expected[2] >= len(second) - 1, "a token at most is written together with the answer"


def test_cold_and_kept_caches_give_the_same_texts(place, file, whole, tmp_path):
    assert loop.execute(planned(place, file, share_prefix=False), tmp_path / "cold", always)
    cold, kept = StoredRun(tmp_path / "cold"), StoredRun(whole)
    assert "kept_tokens" not in cold.manifest and cold.conditions()["prefix"] != kept.conditions()["prefix"]
    columns = ["doc_id", "method", "warmup", "tokens"]
    assert samples_of(cold.folder)[columns].map(str).equals(samples_of(whole)[columns].map(str))


def test_what_is_timed_reads_only_what_is_new(place, file, tmp_path, monkeypatch):
    """The forwards of the last turn's prefill, of the target: the prefix was read before."""
    read, forward = [], Session.forward

    def told(self, tokens, *rest, **more):
        before = self.prefixes.seconds if self.prefixes else 0
        scored = forward(self, tokens, *rest, **more)
        if self.role == "target" and len(tokens) > 40:
            read.append((len(tokens), self.prefixes.seconds > before, len(self.prefixes.tokens)))
        return scored

    monkeypatch.setattr(Session, "forward", told)
    assert loop.execute(planned(place, file, ["sps"], limit=1), tmp_path / "it", always)
    lengths = [row.prompt_tokens for row in samples_of(tmp_path / "it").itertuples() if row.doc_id == 2]
    timed = [(grew, cached) for length, grew, cached in read if length == lengths[0]]
    kept = StoredRun(tmp_path / "it").manifest["kept_tokens"][2]
    assert timed == [(False, kept)] * 2, "vanilla and sps each fed the prompt once, and neither read its prefix in it"


@pytest.mark.parametrize("stop", [2, 4])
def test_a_run_stopped_within_a_conversation_goes_on(place, file, whole, tmp_path, stop):
    """Also of a draft that learns from turn to turn (osd)."""
    plan = planned(place, file)
    assert not loop.execute(plan, tmp_path / "it", lambda state: state.done != stop)
    assert loop.execute(plan, tmp_path / "it", always)
    assert facts(tmp_path / "it") == facts(whole)


def test_turns_beyond_the_window_are_left_out_and_counted(place, tmp_path, monkeypatch, capsys):
    path = tmp_path / "agent.jsonl"
    path.write_text(json.dumps(line(["Hi.", "Yes.", "x " * 2500, "No.", "Go on.", "Fine."])) + "\n")
    shown = output(
        *("run", "--target", place / "target", "--draft", place / "draft", "--method", "pld", "--trajectories", path),
        *("--max-new-tokens", 4, "--out", tmp_path / "it"),
    )
    assert "agent: 2 documents left out: their prompts leave no room in the models' window" in " ".join(shown.split())
    assert set(samples_of(tmp_path / "it").doc_id) == {0}
    path.write_text(json.dumps(line(["x " * 2500, "No."])) + "\n")
    with one_line_error("agent: no turn fits", "has 2048 positions", "--max-new-tokens"):
        prepare(admit(planned(place, path, ["pld"])), None)


def test_a_draft_that_reads_less_is_named(place, file, tmp_path):
    """What is too long for the draft alone is left out, and refused where prompts are the user's."""
    plan = planned(place, file, ["sps"])
    pair = load_models(plan)
    shorter = copy.copy(pair.models["draft"])
    shorter.config = copy.deepcopy(shorter.config)
    shorter.config.max_position_embeddings = 100
    short = replace(pair, models=pair.models | {"draft": shorter})
    assert (pair.window, short.window) == ("2048", "100 (as its draft reads no more; the target reads 2048)")
    tasks = load_tasks(plan, short)
    prompts = encode_all(short, [request.prompt for request in tasks.requests()])
    lengths = [len(prompt) for prompt in prompts]
    with one_line_error("as its draft reads no more"):
        check_lengths(tasks.requests(), prompts, short, 3)
    requests, fitting = within_window(tasks, tasks.requests(), prompts, short, 3)
    assert [len(prompt) for prompt in fitting] == [length for length in lengths if length + 12 + 3 <= 100]
    assert tasks.left_out == {"agent": len(lengths) - len(requests)} and len(requests) == len(fitting) > 0


def test_batches_need_a_cold_cache(place, file, whole, tmp_path):
    with one_line_error("with --batch add --no-share-prefix"):
        planned(place, file, ["sps"], batch=2)
    assert loop.execute(planned(place, file, ["sps"], batch=2, share_prefix=False), tmp_path / "it", always)
    alone = samples_of(whole).query("method == 'sps' and not warmup").set_index("doc_id").tokens.map(list)
    together = samples_of(tmp_path / "it").query("method == 'sps' and not warmup").set_index("doc_id").tokens.map(list)
    assert together.sort_index().equals(alone.sort_index())


def test_trajectories_are_documents_of_their_own(place, file):
    with one_line_error("--trajectories each say what to run"):
        planned(place, file, suite="smoke")
    with one_line_error("--trajectories has documents of its own"):
        planned(place, file, data_dir="data")
