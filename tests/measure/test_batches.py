"""Runs in batches: the records of a run one by one, whatever is interrupted; and learning that is no matter of luck."""

import contextlib
import json
from collections import Counter

import pandas as pd
import pytest
from gates import UNSHIPPED
from screens import call
from tiny_runs import COUNTS, TASKS, always, plan_of, rounds_of, samples_of, save_pair, write_suite

from specbench import config
from specbench.analysis import compare as compared
from specbench.analysis import pooled
from specbench.config import UserError
from specbench.measure import batches, loop, prepare, work
from specbench.plan import resolve_plan
from specbench.results import records
from specbench.results.recorder import Recorder
from specbench.results.stored import StoredRun

DOCUMENTS = 7  # of each task
KEY = ["repeat", "task", "doc_id", "method"]
TEXTS = [*KEY, "seed", "tokens", "text", "finish", "prompt_tokens"]
LISTS = ["draft_tokens", "target_tokens", "decisions"]
METHODS = ("sps", "lossy", "fly", "pld", "mdsd", "lookahead", "confidence", "slimspec", "csd")
CHANGES = ["csd.gamma=3", "csd.count_threshold=1", "csd.gate_threshold=0", "sps.gamma=3", "lossy.gate_threshold=0.2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_pair(folder, 8)
    write_suite(folder, TASKS, DOCUMENTS)
    return folder


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(work, "TURNS", 2)


def plan(place, methods=("sps", "csd"), online=False, **options):
    changes = [change for change in CHANGES if change.split(".")[0] in methods]
    changes += [f"csd.online={str(online).lower()}"] if "csd" in methods else []
    return plan_of(place, methods, **({"assignments": changes, "dtype": "float64", "runtime": "static"} | options))


def in_order(frame, columns):
    keys = [key for key in [*KEY, "round"] if key in frame]
    rows = frame.sort_values(keys)[list(dict.fromkeys([*keys, *columns]))]
    return [[list(x) if hasattr(x, "tolist") else x for x in row] for row in rows.values]


def same_records(ours, theirs):
    assert in_order(samples_of(ours), TEXTS) == in_order(samples_of(theirs), TEXTS)
    assert in_order(rounds_of(ours), COUNTS + LISTS) == in_order(rounds_of(theirs), COUNTS + LISTS)


@pytest.mark.parametrize(
    ("methods", "temperature"),
    [(("sps", "mdsd", "csd"), 0.0), *(pytest.param(METHODS, t, marks=pytest.mark.long) for t in (0.0, 1.0))],
)
def test_the_records_are_those_of_a_run_one_by_one(place, tmp_path, methods, temperature):
    """Texts, counts and decisions of every kind of method, over two tasks, two repeats."""
    options = {"methods": methods, "temperature": temperature, "repeats": 2, "limit": 3}
    assert loop.execute(plan(place, **options), tmp_path / "single", always)
    assert loop.execute(plan(place, batch=2, **options), tmp_path / "batch", always)  # chunks of four and two
    same_records(tmp_path / "batch", tmp_path / "single")
    samples = samples_of(tmp_path / "batch")
    assert samples.finish.isin({"length", "eos", "stop"}).all()
    assert len({token for tokens in samples.tokens for token in tokens}) >= 6
    stored, single = StoredRun(tmp_path / "batch"), StoredRun(tmp_path / "single")
    assert stored.scores().value.tolist() == single.scores().value.tolist()


@pytest.mark.long
@pytest.mark.parametrize("runtime", ("static", "eager"))
def test_untimed_batches_read_prompts_in_the_rounds_of_others(place, tmp_path, monkeypatch, runtime):
    """The same records; and fewer steps, of which each has texts that begin and texts that go on."""
    steps = []
    whole = batches.BatchStopwatch.step
    monkeypatch.setattr(
        batches.BatchStopwatch, "step", lambda self, rows: (steps.append(list(rows)), whole(self, rows))[1]
    )
    options = {"methods": ("sps", "mdsd", "csd"), "limit": 3, "runtime": runtime, "untimed": True}
    assert loop.execute(plan(place, **options), tmp_path / "single", always)
    counts = {}
    for name, untimed in (("timed", False), ("untimed", True)):
        steps.clear()
        assert loop.execute(plan(place, batch=2, **options | {"untimed": untimed}), tmp_path / name, always)
        same_records(tmp_path / name, tmp_path / "single")
        counts[name] = len(steps)
    assert counts["untimed"] < counts["timed"]
    assert samples_of(tmp_path / "untimed").decode_seconds.isna().all()


def test_the_seconds_of_all_texts_are_those_of_the_steps(place, tmp_path, monkeypatch):
    steps = []
    whole = batches.BatchStopwatch.step

    def noted(self, rows):
        inner = whole(self, rows)
        steps.append((self, inner))
        return inner

    monkeypatch.setattr(batches.BatchStopwatch, "step", noted)
    folder = tmp_path / "batch"
    loop.execute(plan(place, batch=3, limit=4), folder, always)
    rounds, samples = rounds_of(folder), samples_of(folder)
    decoding = rounds[rounds["round"] > 0].groupby(KEY).seconds.sum()
    pd.testing.assert_series_equal(decoding, samples.set_index(KEY).sort_index().decode_seconds, check_names=False)
    parts = rounds.target_seconds + rounds.draft_seconds
    assert (parts <= rounds.seconds * (1 + 1e-9)).all()
    assert (rounds.model_seconds <= rounds.seconds * (1 + 1e-9)).all()
    assert (rounds[rounds.method == "sps"].target_seconds > 0).all()
    # The same forward has the same share in all its rows: fewer different times than rows.
    shares = rounds[(rounds.method == "vanilla") & (rounds["round"] > 0)].target_seconds
    assert 0.25 < shares.nunique() / len(shares) < 0.75


@pytest.mark.parametrize(
    ("stop", "room"), ((3, 6), *(pytest.param(*one, marks=pytest.mark.long) for one in ((1, 2), (8, 13), (13, 1))))
)
def test_a_run_that_was_stopped_anywhere_goes_on_as_if_it_had_not(place, tmp_path, stop, room, monkeypatch):
    """Within a chunk, and between the records of its documents; a memory grows all the while.

    Chunks are the documents 0 to 3 and 4 to 6 of a task; what was learned is restored for the second one alone.
    """
    chosen = plan(place, online=True, batch=2)
    assert loop.execute(chosen, tmp_path / "whole", always)
    folder, calls = tmp_path / "stopped", 0

    def report(progress):
        nonlocal calls
        calls += 1
        return calls != stop * 3

    assert not loop.execute(chosen, folder, report)
    written = Recorder.write

    def runs_out(self, *args):
        nonlocal room
        room -= 1
        if room == 0:
            raise OSError("the disk is full")
        written(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "write", runs_out)
        with contextlib.suppress(OSError):
            loop.execute(chosen, folder, always)
    assert loop.execute(chosen, folder, always)
    same_records(folder, tmp_path / "whole")
    hashes = [in_order(samples_of(each), ["state_hash"]) for each in (folder, tmp_path / "whole")]
    assert hashes[0] == hashes[1]


def test_each_repeat_of_the_only_task_begins_anew(place, tmp_path):
    """Of a task of which the first documents are timed alone, so that no chunk of a repeat begins it."""
    few = tmp_path / "few"
    few.mkdir()
    suite = write_suite(few, {"pocket_math500": 20}, 4)
    chosen = plan(place, methods=("csd",), online=True, batch=2, suite=suite, repeats=2, time_documents=2)
    assert loop.execute(chosen, tmp_path / "run", always)
    states = samples_of(tmp_path / "run").query("method == 'csd'").set_index(["repeat", "doc_id"]).state_hash
    assert states[0].tolist() == states[1].tolist() and states.nunique() > 2


def test_what_texts_teach_is_added_up_in_the_order_of_documents(place, tmp_path):
    """Recounted from the rounds: before each text, the mismatches of all texts before the first unfinished one."""
    folder = tmp_path / "run"
    chosen = plan(place, methods=("csd",), online=True, batch=3, limit=None)
    assert loop.execute(chosen, folder, always)
    rounds = rounds_of(folder, "csd")
    hashes = samples_of(folder).query("method == 'csd'").set_index(["task", "doc_id"]).state_hash
    moved = 0
    for task in TASKS:
        known, memories = Counter(), []
        for _, text in rounds[rounds.task == task].groupby("doc_id"):
            memories.append(memory_hash(known))
            for row in text.itertuples():
                if row.draft_tokens is None:
                    continue
                for i, (d, t, decision) in enumerate(
                    zip(row.draft_tokens, row.target_tokens, row.decisions, strict=True)
                ):
                    named = records.DECISIONS[decision]
                    # A rejection is cut off together with the correction that no longer belongs to the text.
                    if named in ("rescued", "rejected") and d != t and i < row.committed:
                        known[int(d), int(t)] += 1
        places = [memories.index(hashes[task, doc]) for doc in range(DOCUMENTS)]
        assert places[:3] == [0, 0, 0]
        assert all(known_texts <= doc for doc, known_texts in enumerate(places)) and places == sorted(places)
        moved += places[-1]
    assert moved


def memory_hash(counts: Counter) -> str:
    from specbench.measure.manifest import digest

    return digest([sorted([d, t, n] for (d, t), n in counts.items()), None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ["bandit"]}, "bandit learns from text to text, and in a batch no text comes before another"),
        ({"methods": ["csd"], "assignments": ["csd.length=bandit"]}, "csd: what its length policy learns"),
        ({"methods": ["cospec"], "assignments": ["cospec.arbiter=oracle"]}, "cospec asks for the worth"),
        ({"methods": ["sps"], "runtime": "openvino"}, "--runtime openvino computes no batches; use eager or static"),
    ],
)
def test_what_cannot_be_decoded_together(place, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        loop.execute(plan_of(place, batch=2, **options), tmp_path / "run", always)
    assert not (tmp_path / "run" / "parts").exists()


@pytest.mark.long
def test_what_cannot_be_decoded_together_is_decoded_alone_where_documents_are_timed_alone(place, tmp_path, monkeypatch):
    """Also in a run that was stopped: what it learns goes on from the beginning of the chunk."""
    said = []
    monkeypatch.setattr(prepare, "warn", said.append)
    chosen = plan(place, methods=("bandit", "sps"), batch=3, time_documents=1)
    assert loop.execute(chosen, tmp_path / "batch", always)
    assert said == [
        "bandit learns from text to text, and in a batch no text comes before another: it is decoded one by one"
    ]
    assert loop.execute(plan(place, methods=("bandit", "sps")), tmp_path / "single", always)
    same_records(tmp_path / "batch", tmp_path / "single")
    samples = samples_of(tmp_path / "batch").set_index("method")
    assert samples.loc["bandit"].decode_seconds.notna().all() and samples.loc["bandit"].batch_seconds.isna().all()
    calls = 0

    def report(progress):
        nonlocal calls
        calls += 1
        return calls != 12

    assert not loop.execute(chosen, tmp_path / "stopped", report)
    assert loop.execute(chosen, tmp_path / "stopped", always)
    same_records(tmp_path / "stopped", tmp_path / "single")


def test_no_conversations(place, tmp_path):
    prompts = tmp_path / "turns.jsonl"
    prompts.write_text(json.dumps({"turns": ["one two", "three"]}) + "\n")
    with pytest.raises(UserError, match="a later turn of a conversation waits for the answer to the earlier one"):
        loop.execute(plan_of(place, ["sps"], suite=None, prompts=prompts, batch=2), tmp_path / "run", always)


def test_a_text_that_fails_is_a_row_and_the_others_go_on(place, tmp_path, monkeypatch):
    from specbench.methods.chains.sps import SpS

    inner = SpS.rounds

    def rounds(self, prompt, sampling, rng):
        for number, step in enumerate(inner(self, prompt, sampling, rng)):
            if number == 2 and len(prompt) % 2:
                raise ZeroDivisionError("odd")
            yield step

    monkeypatch.setattr(SpS, "rounds", rounds)
    loop.execute(plan(place, methods=("sps",), batch=3), tmp_path / "run", always)
    samples = samples_of(tmp_path / "run").query("method == 'sps'")
    failed = samples[samples.prompt_tokens % 2 == 1]
    assert 0 < len(failed) < len(samples)
    assert (failed.finish == "error").all() and failed.error.str.contains("ZeroDivisionError: odd").all()
    assert (samples[samples.prompt_tokens % 2 == 0].finish != "error").all()


@pytest.mark.long
@pytest.mark.parametrize("step", ["reset", "restore", "state", "added"])
def test_a_method_that_fails_between_texts_fails_alone(place, tmp_path, monkeypatch, step):
    """At one of its calls: its own texts are rows of errors, the others' are those of a run without the failure."""
    from specbench.methods.lossy.csd import CSD

    chosen = plan(place, online=True, batch=3)
    loop.execute(chosen, tmp_path / "whole", always)
    inner, calls = getattr(CSD, step), iter(range(10**6))

    def broken(self, *given):
        if next(calls) == 5:
            raise ZeroDivisionError("between texts")
        return inner(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(CSD, step, broken)
        assert loop.execute(chosen, tmp_path / "run", always)
    samples, whole = samples_of(tmp_path / "run"), samples_of(tmp_path / "whole")
    assert len(samples) == len(whole)
    failed = samples[samples.finish == "error"]
    assert len(failed) > 0 and set(failed.method) == {"csd"}
    assert failed.error.str.contains("Traceback").all() and failed.error.str.contains("between texts").all()
    others = [in_order(each[each.method != "csd"], TEXTS) for each in (samples, whole)]
    assert others[0] == others[1]
    assert (samples.query("method == 'csd'").groupby("task").finish.last() != "error").any()  # until its task ends


HEADS = ("eagle3", "eagle3-chain", "judge", "rest", "vocabtrim", "slimspec", "cospec", "specdecpp-pocket", "csd", "pld")


FEW = ("eagle3",)
TREES = ("eagle2", "opt-tree", "sequoia", "rsd", "graft", "graft-sps", "eagle3-typical")
DRAFTS = (  # not recycling, whose matrix goes from text to text: in a batch no text comes before another
    *("rest-aded", "rest-rasd", "logitspec", "suffix", "sam", "anpd"),
    *("cs-drafting", "mirror", "specserve", "speckv", "speckv-time"),
)
# They learn from text to text.
ALONE = {"bandit", "omnidraft", "osd", "routed", "swift", "tlt", "tlt-eagle3", "tlt-online"}


@pytest.mark.long
def test_every_method_is_decoded_in_batches_or_says_why_not(pocket):
    """Those that decode with several models are gated elsewhere."""
    names = [name for name in config.names("methods") if name not in UNSHIPPED]
    specs = [spec for spec in map(config.load_method, names) if spec.baseline == "vanilla"]
    reasons = {spec.name: prepare.why_alone(spec.name, prepare.build_alone(spec, pocket)) for spec in specs}
    assert {name for name, reason in reasons.items() if reason} == ALONE
    assert all("\n" not in reason for reason in reasons.values())


@pytest.mark.parametrize(
    "methods",
    [FEW, *(pytest.param(some, marks=pytest.mark.long) for some in (HEADS, TREES, DRAFTS))],
    ids=["few", "heads", "trees", "drafts"],
)
def test_methods_with_trained_heads_decode_alike_in_batches(tmp_path, methods):
    """The bundled heads, datastore and memory on the bundled pair, in float64."""
    options = {"max_new_tokens": 16, "dtype": "float64", "runtime": "static", "device": "cpu"}
    changes = ["sam.shortest=1"] if "sam" in methods else []  # else it drafts too seldom for texts as short as these
    chosen = [
        resolve_plan(methods, "math", "pocket", changes, "vanilla", 2, batch=batch, **options) for batch in (1, 2)
    ]
    for one in chosen:
        assert loop.execute(one, tmp_path / str(one.batch), always)
    same_records(tmp_path / "2", tmp_path / "1")
    assert (samples_of(tmp_path / "2").finish != "error").all()
    drafted = rounds_of(tmp_path / "2").groupby("method").accepted.sum()
    assert (drafted.drop("vanilla") > 0).all()


def test_the_table_says_so_and_does_not_mix(place, tmp_path, capsys):
    for batch in (1, 3):
        loop.execute(plan(place, methods=("sps",), batch=batch, limit=3), tmp_path / f"b{batch}", always)
    shown = call("show", str(tmp_path / "b3")).output
    assert "in batches of 3, times are shares of the batch's" in " ".join(shown.split())
    both = call("compare", str(tmp_path / "b1"), str(tmp_path / "b3"))
    assert both.exit_code == 2 and "batch" in both.output


def test_some_documents_are_timed_alone(place, tmp_path, monkeypatch):
    """The same texts; all speeds are of the first documents of each task, but for the batch's own."""
    folder, shares = tmp_path / "run", []
    outcome = batches.outcome

    def noted(ending, laps):
        if ending.limits.max_new_tokens != batches.BEGINNING:  # no warm-up
            shares.append(sum(lap.seconds for lap in laps[1:]))
        return outcome(ending, laps)

    monkeypatch.setattr(batches, "outcome", noted)
    chosen = plan(place, online=True, batch=3, time_documents=2)
    assert loop.execute(chosen, folder, always)
    loop.execute(plan(place, online=False, methods=("sps",)), tmp_path / "single", always)
    texts = [in_order(samples_of(each).query("method != 'csd'"), TEXTS) for each in (folder, tmp_path / "single")]
    assert texts[0] == texts[1]
    samples, rounds = samples_of(folder), rounds_of(folder)
    alone = samples[samples.doc_id < 2]
    assert samples.decode_seconds.notna().equals(samples.doc_id < 2)
    assert samples.batch_seconds.notna().equals(samples.doc_id >= 2)
    assert sorted(samples.batch_seconds.dropna()) == sorted(shares), "the decoding's, without the prefill's"
    assert rounds.seconds.notna().equals(rounds.doc_id < 2) and rounds.target_seconds.notna().equals(rounds.doc_id < 2)
    summary = compared.summary(pooled.measured([StoredRun(folder)]))
    for task in TASKS:
        own = {m: alone[(alone.task == task) & (alone.method == m)] for m in ("vanilla", "sps")}
        per_token = {m: s.decode_seconds.sum() / (s.tokens.str.len() - 1).sum() for m, s in own.items()}
        (row,) = summary[(summary.task == task) & (summary.method == "sps")].to_dict("records")
        assert row["documents"] == DOCUMENTS
        assert row["speedup_decode"] == pytest.approx(per_token["vanilla"] / per_token["sps"], rel=0.25)
        assert row["tokens_per_s"] == pytest.approx(1 / per_token["sps"])
        rest = samples[(samples.task == task) & (samples.method == "sps") & (samples.doc_id >= 2)]
        together = (rest.tokens.str.len() - 1).sum() / rest.batch_seconds.sum()
        assert row["tokens_per_s_batch"] == pytest.approx(together)
    shown = " ".join(call("show", str(folder)).output.split())
    assert "in batches of 3, times are of the first 2 of each, alone" in shown
    assert f"{next(iter(TASKS))}, tok/s in batches of 3: vanilla" in shown


@pytest.mark.long
def test_a_stopped_run_with_documents_alone_goes_on(place, tmp_path):
    chosen = plan(place, online=True, batch=3, time_documents=2)
    assert loop.execute(chosen, tmp_path / "whole", always)
    for number in (1, 2, 9):
        calls = 0

        def report(progress, number=number):
            nonlocal calls
            calls += 1
            return calls != number

        assert not loop.execute(chosen, tmp_path / "stopped", report)
    assert loop.execute(chosen, tmp_path / "stopped", always)
    same_records(tmp_path / "stopped", tmp_path / "whole")


def test_alone_only_in_a_run_in_batches(place):
    with pytest.raises(UserError, match="--time-documents is for runs in batches: add --batch, or leave it out"):
        plan(place, time_documents=2)
