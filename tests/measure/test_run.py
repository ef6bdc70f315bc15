"""Whole runs on tiny models: what is recorded, and that a run stopped anywhere goes on as if nothing had happened."""

import io
import json
import shutil
import signal
import time
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from faults.child import Command
from screens import call
from tiny_runs import SETTINGS, TASKS, always, facts, rounds_of, samples_of
from transformers import AutoTokenizer

from specbench.base import files
from specbench.config import UserError
from specbench.measure import command as commands
from specbench.measure import loop, prepare
from specbench.measure.manifest import digest, manifest
from specbench.measure.prompts import check_lengths
from specbench.methods.chains.sps import SpS
from specbench.report import comparison
from specbench.results import records
from specbench.results.stored import StoredRun
from specbench.tasks.requests import Request

DOCUMENTS = 4  # of both tasks together


@pytest.fixture(scope="module")
def whole(make_plan, tmp_path_factory):
    """An uninterrupted run with two repeats; next to it `unmerged`, as it was after the last document."""
    folder = tmp_path_factory.mktemp("runs") / "whole"

    def report(progress):
        if progress.done == progress.total:
            shutil.copytree(folder, folder.parent / "unmerged")
        return True

    assert loop.execute(make_plan(repeats=2), folder, report)
    return folder


def test_every_document_and_method_once(whole):
    samples = samples_of(whole)
    keys = list(samples[["repeat", "task", "doc_id", "method"]].itertuples(index=False, name=None))
    methods = ("vanilla", "sps", "csd")
    assert sorted(keys) == sorted((r, t, d, m) for r in (0, 1) for t in TASKS for d in range(2) for m in methods)
    assert set(samples.finish) <= {"length", "eos", "stop"}
    warm = samples_of(whole, warmup=True)
    assert warm[["repeat", "doc_id"]].drop_duplicates().values.tolist() == [[0, 0], [1, 0]]
    assert sorted(warm.method) == sorted([*methods] * 2)
    assert not (whole / "parts").exists()


def test_order_is_drawn_anew_and_by_seed(whole, make_plan, tmp_path):
    orders = (
        samples_of(whole).groupby(["repeat", "task", "doc_id"]).apply(lambda g: tuple(g.sort_values("order").method))
    )
    assert all(sorted(order) == ["csd", "sps", "vanilla"] for order in orders)
    assert len(set(orders)) > 2
    recorded = samples_of(whole).groupby(["repeat", "task", "doc_id"]).order.apply(list)
    assert all(places == [0, 1, 2] for places in recorded)
    loop.execute(make_plan(seed=1), tmp_path / "other", always)
    other = samples_of(tmp_path / "other")
    other = other.groupby(["repeat", "task", "doc_id"]).apply(lambda g: tuple(g.sort_values("order").method))
    assert other.tolist() != orders.loc[[0]].tolist()


def test_rounds_add_up(whole):
    rounds = rounds_of(whole)
    later = rounds[rounds["round"] > 0]
    drafting, plain = later[later.method != "vanilla"], later[later.method == "vanilla"]
    assert (later.target_forwards == 1).all()
    assert (drafting.drafted == 3).all() and (drafting.draft_forwards == 3).all()
    assert (plain[["drafted", "accepted", "rescued", "draft_forwards", "truncated"]] == 0).all(axis=None)
    assert (plain.committed == 1).all()
    uncut = drafting[drafting.truncated == 0]
    assert (uncut.committed == uncut.accepted + 1).all()
    assert (drafting.accepted <= drafting.committed).all() and (later.committed >= 1).all()
    assert drafting.accepted.sum() > 0 and (drafting.accepted < 3).any()
    assert (rounds.seconds >= rounds.target_seconds + rounds.draft_seconds).all()
    assert (drafting.first_draft_seconds < drafting.draft_seconds).all() and plain.first_draft_seconds.isna().all()
    assert (drafting.first_draft_seconds > 0).all()
    assert rounds[rounds.method == "csd"].rescued.sum() > 0 and (rounds[rounds.method != "csd"].rescued == 0).all()


def test_prefill_is_round_zero(whole):
    rounds = rounds_of(whole)
    first = rounds[rounds["round"] == 0]
    assert len(first) == 24 and (first.committed == 1).all() and (first.target_forwards == 1).all()
    assert (first.draft_forwards == (first.method != "vanilla")).all()


def test_samples_agree_with_rounds(whole):
    rounds = rounds_of(whole).groupby(["repeat", "task", "doc_id", "method"])
    for row in samples_of(whole).itertuples():
        mine = rounds.get_group((row.repeat, row.task, row.doc_id, row.method))
        assert len(row.tokens) == mine.committed.sum() <= TASKS[row.task]
        assert row.prefill_seconds == mine.seconds.iloc[0]
        assert row.decode_seconds == pytest.approx(mine.seconds.iloc[1:].sum())
        assert mine["round"].tolist() == list(range(len(mine)))
        assert (mine.truncated.iloc[:-1] == 0).all()


def test_positions_are_consistent(whole):
    rejected, accepted, rescued, unread, cut = range(5)
    assert records.DECISIONS == ("rejected", "accepted", "rescued", "unread", "cut")
    rounds = rounds_of(whole)
    assert rounds[rounds.drafted == 0].decisions.isna().all()
    for row in rounds[rounds.drafted > 0].itertuples():
        assert len(row.decisions) == len(row.ratios) == len(row.draft_tokens) == len(row.target_tokens) == row.drafted
        passed = [d in (accepted, rescued) for d in row.decisions]
        run = passed.index(False) if False in passed else row.drafted
        rest = [cut] * row.drafted if row.truncated else [rejected, *[unread] * row.drafted]
        assert list(row.decisions[run:]) == rest[: row.drafted - run]
        assert row.accepted == run <= row.committed, "what lies beyond the end of the text was cut"
        assert row.rescued == list(row.decisions[: row.accepted]).count(rescued)
        assert all(0 <= ratio <= 1 for ratio in row.ratios)
        for mine, wanted, decision, ratio in zip(
            row.draft_tokens, row.target_tokens, row.decisions, row.ratios, strict=True
        ):
            if decision not in (unread, cut):
                assert (mine == wanted) == (decision == accepted)
            assert mine != wanted or ratio == 1


def test_a_sample_may_take_every_position_there_is():
    """A prompt of 3 tokens, 5 new ones and drafts of 4."""
    request = Request("sums", 7, "", (), 5, "", "")
    check_lengths([request], [[1, 2, 3]], SimpleNamespace(name="made", context=12, window="12"), 4)
    with pytest.raises(UserError, match=r"sums, document 7: .* need 12 positions, but made has 11"):
        check_lengths([request], [[1, 2, 3]], SimpleNamespace(name="made", context=11, window="11"), 4)


def test_limits_are_of_the_longest_text_and_a_combination_is_not_the_targets_law(make_plan):
    """Texts of a task may have less room than others, where its prompts are long."""
    plan = make_plan(["sps"])
    requests = [Request("pocket_gsm8k", n, "", (), most, "", "") for n, most in enumerate((5, 9, 7))]
    alone, several = (SimpleNamespace(inputs=dict, lossless=True, combination=one) for one in (None, object()))
    methods = {"vanilla": alone, "sps": several}
    stored = manifest(plan, prepare.load_models(plan), requests, [[1]] * 3, methods, {})
    assert stored["lossless"] == ["vanilla"]
    assert stored["generation"] == {"pocket_gsm8k": {"until": (), "max_new_tokens": 9}}


def test_text_is_that_of_the_tokens(whole, place):
    tokenizer = AutoTokenizer.from_pretrained(place / "target")
    for row in samples_of(whole).itertuples():
        if row.finish == "length":
            assert row.text == tokenizer.decode(row.tokens, skip_special_tokens=True)
        assert tokenizer.eos_token not in row.text


def test_lossless_methods_agree_and_repeats_do_too(whole):
    samples = samples_of(whole)
    texts = samples.pivot(index=["repeat", "task", "doc_id"], columns="method", values="text")
    assert (texts.vanilla == texts.sps).all()
    assert texts.loc[0].equals(texts.loc[1])
    states = samples[samples.method == "csd"].groupby("repeat").state_hash.apply(list)
    assert states[0] == states[1] and len(set(states[0])) > 1  # it learns within a repeat, and again in the next


@pytest.mark.long
@pytest.mark.parametrize("stops", [(1, 3), (4, 7)])
def test_interrupted_run_goes_on_as_if_it_had_not(whole, make_plan, tmp_path, stops):
    done = []

    def report(progress):
        done.append(progress.done)
        return progress.done not in stops

    folder, plan = tmp_path / "run", make_plan(repeats=2)
    for _ in stops:
        assert not loop.execute(plan, folder, report)
        assert not (folder / "scores.parquet").exists()
    assert loop.execute(plan, folder, report)
    assert done == list(range(1, 2 * DOCUMENTS + 1))
    assert facts(folder) == facts(whole)


def test_what_texts_were_about_is_kept_once_and_made_good_by_a_resume(whole, make_plan, tmp_path):
    kept = StoredRun(whole).kept({task: range(2) for task in TASKS})
    assert list(kept) == [(task, doc) for task in TASKS for doc in range(2)]
    assert all("Question:" in row.prompt or "Problem:" in row.prompt for row in kept.values())
    assert all(row.reference for row in kept.values())
    before = (whole / "documents.parquet").read_bytes()
    folder, plan = tmp_path / "run", make_plan(repeats=2)
    assert not loop.execute(plan, folder, lambda progress: False)
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-9])):
        damage(folder / "documents.parquet")
        loop.execute(plan, folder, lambda progress: False)
        assert (folder / "documents.parquet").read_bytes() == before


def test_prompts_are_left_out_on_request(make_plan, tmp_path):
    plan = make_plan(["sps"], keep_prompts=False)
    loop.execute(plan, tmp_path / "run", lambda progress: False)
    loop.execute(plan, tmp_path / "run", always)
    assert not (tmp_path / "run" / "documents.parquet").exists()
    assert StoredRun(tmp_path / "run").kept({task: [0] for task in TASKS}) == {}


def test_a_finished_run_is_not_decoded_again(whole, make_plan, tmp_path):
    """Killed between the merge of the tables and the scores, or resumed by mistake: only scoring is left to do."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "scores.parquet").unlink()
    seen = []
    assert loop.execute(make_plan(repeats=2), folder, lambda progress: seen.append(progress) or True)
    assert facts(folder) == facts(whole)
    assert (folder / "scores.parquet").exists()
    assert not seen


@pytest.mark.long
@pytest.mark.parametrize("step", ["samples", "rounds", "removal"])
def test_killed_while_the_tables_are_merged(whole, make_plan, tmp_path, step):
    """After samples.parquet, after rounds.parquet too, or when some of the parts are removed already."""
    folder = tmp_path / "run"
    shutil.copytree(whole.parent / "unmerged", folder)
    shutil.copy(whole / "samples.parquet", folder)
    if step != "samples":
        shutil.copy(whole / "rounds.parquet", folder)
    if step == "removal":
        for path in sorted((folder / "parts").iterdir())[-3:]:
            path.unlink()
    assert loop.execute(make_plan(repeats=2), folder, always)
    assert facts(folder) == facts(whole)
    assert not (folder / "parts").exists() and (folder / "scores.parquet").exists()


@pytest.fixture
def heeded(number):
    """A signal that processes started here heed, even if these tests run under nohup, which lets them ignore SIGHUP."""
    before = signal.signal(number, signal.SIG_DFL)
    yield
    signal.signal(number, before)


def words_of(place, folder) -> list[str]:
    pair = f"target={place / 'target'},draft={place / 'draft'}"
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    methods = ["--method", "sps", "--method", "csd", "--suite", str(place / "few.yaml"), "--repeats", "2"]
    return ["run", "--pair", pair, *methods, *sets, "--device", "cpu", "--out", str(folder)]


def finished(folder) -> int:
    return len(list(folder.glob("parts/*.samples.parquet")))


def third_was_finished(folder, said: str) -> None:
    """The first interrupt came during the third document, and the command said this."""
    assert "finishing this document" in said and "specbench run --resume" in said
    assert finished(folder) == 3, "the one under way was finished"
    count = 2 * len(json.loads((folder / "manifest.json").read_text())["requests"])
    assert f"stopped: 3 of {count} documents are done" in said
    shown = call("show", folder)
    assert shown.exit_code == 0 and {"sps", "csd"} <= set(shown.stdout.split())
    facts = f"UNFINISHED: 3 of {count} documents are decoded, and none is scored; `specbench run --resume"
    assert facts in " ".join(shown.stdout.split()) and facts in call("show", folder, "--format", "csv").stderr
    assert "has no scores" in call("compare", folder).stderr


@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", [signal.SIGINT], ids=["Ctrl-C"])
def test_first_interrupt_finishes_the_document(number, whole, place, make_plan, tmp_path, monkeypatch):
    """Each signal by itself: test_stopping.py. What a run is interrupted or killed by otherwise: tests/faults."""
    folder, rounds, sent = tmp_path / "run", SpS.rounds, []

    def interrupted(self, *given):
        if finished(folder) == 2 and not sent:
            sent.append(number)
            signal.getsignal(number)(number, None)  # a real one ends some test processes, for reasons unknown
        return rounds(self, *given)

    monkeypatch.setattr(SpS, "rounds", interrupted)
    result = call(*words_of(place, folder))
    assert sent and result.exit_code == 130, result.output
    third_was_finished(folder, " ".join(result.output.split()))
    assert loop.execute(make_plan(repeats=2), folder, always)
    assert facts(folder) == facts(whole)


@pytest.mark.long
@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "SIGHUP"])
def test_first_interrupt_of_a_process_of_its_own(number, whole, place, make_plan, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the process that goes on
    folder = tmp_path / "run"
    command = Command(words_of(place, folder), tmp_path / "said", {"slow": 0.3}, fresh=True)
    command.until(lambda: finished(folder) >= 2)
    time.sleep(0.05)
    command.send(number)
    assert command.end() == 130
    third_was_finished(folder, " ".join(command.said().split()))
    assert loop.execute(make_plan(repeats=2), folder, always)
    assert facts(folder) == facts(whole)


def test_a_failing_document_is_a_row(whole, make_plan, tmp_path, monkeypatch, capsys):
    rounds, calls = SpS.rounds, []

    def failing(self, prompt, sampling, rng):
        calls.append(prompt)
        if len(calls) == 3:  # the warm-up, document 0, document 1
            raise RuntimeError("the model broke")
        return rounds(self, prompt, sampling, rng)

    monkeypatch.setattr(SpS, "rounds", failing)
    assert comparison.finish(commands.run(make_plan(), tmp_path / "run", None)) == 3
    samples = samples_of(tmp_path / "run")
    (bad,) = samples[samples.finish == "error"].itertuples()
    assert (bad.method, bad.task, bad.doc_id) == ("sps", "pocket_gsm8k", 1)
    assert "Traceback" in bad.error and "the model broke" in bad.error
    good = samples[samples.finish != "error"].set_index(["task", "doc_id", "method"]).text
    first = samples_of(whole).query("repeat == 0").set_index(["task", "doc_id", "method"]).text
    assert len(good) == 3 * DOCUMENTS - 1 and good.equals(first.reindex(good.index))
    printed = capsys.readouterr().out
    assert "failed samples: 1, the first of sps: RuntimeError: the model broke; " in " ".join(printed.split())


def test_a_method_that_always_fails(make_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(SpS, "rounds", lambda *_: 1 / 0)
    assert comparison.finish(commands.run(make_plan(methods=["sps"], limit=1), tmp_path / "run", None)) == 3
    assert (
        comparison.finish(commands.run(make_plan(methods=["sps"], limit=1, baseline=None), tmp_path / "alone", None))
        == 3
    )


def test_show_prints_what_run_printed(make_plan, tmp_path, capsys):
    folder = tmp_path / "run"
    assert comparison.finish(commands.run(make_plan(limit=1), folder, None)) == 0
    ran = capsys.readouterr().out
    comparison.show(folder, "table")
    shown = capsys.readouterr().out
    assert shown.strip() and shown.strip() in ran
    assert max(map(len, shown.splitlines())) <= 80


def test_a_run_and_a_later_one_are_pooled(whole, tmp_path, capsys):
    shutil.copytree(whole, tmp_path / "copy")
    with pytest.raises(UserError, match="is a copy of"):
        comparison.compare([whole, tmp_path / "copy"], "csv")
    manifest = yaml.safe_load((whole / "manifest.json").read_text()) | {"started": "later"}
    files.write_json(tmp_path / "copy" / "manifest.json", manifest)
    comparison.compare([whole, tmp_path / "copy", whole], "csv")
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert len(table) == 3 * 3  # two tasks and their average, three methods
    assert set(table.repeats) == {4}


def test_resume_under_other_settings_is_refused(whole, make_plan):
    with pytest.raises(UserError, match="seed"):
        commands.run(make_plan(repeats=2, seed=5), None, whole)
    with pytest.raises(UserError, match="exists"):
        commands.run(make_plan(), whole, None)


def test_nothing_learned_goes_from_task_to_task(whole):
    """And within a task it does: only then can the first look of the next one tell."""
    samples = samples_of(whole)
    mine = samples[samples.method == "csd"].sort_values(["repeat", "task", "doc_id"])
    states = mine.groupby(["repeat", "task"]).state_hash.apply(list)
    empty = digest([[], None])
    assert all(first == empty != second for first, second in states)
    assert len(states) == 2 * mine["repeat"].nunique()


def test_each_task_is_decoded_with_its_own_memory(whole, make_plan, tmp_path):
    """A memory that rescues everything, for the second task only."""
    from specbench.methods.lossy.csd_memory import write_memory

    pair = prepare.load_models(make_plan())
    every = {(0, d, t): 99 for d in range(300, 308) for t in range(300, 308) if d != t}
    write_memory(tmp_path / "memory" / "pocket_mmlu.parquet", every, pair, {})
    write_memory(tmp_path / "memory" / "universal.parquet", {}, pair, {})
    settings = [*SETTINGS[1:2], "csd.count_threshold=50", "csd.gate_threshold=0", f"csd.memory={tmp_path / 'memory'}"]
    assert loop.execute(make_plan(["csd"], assignments=settings), tmp_path / "run", always)
    rounds = records.read_rows(tmp_path / "run", "rounds").to_pandas()
    rescued = rounds[(rounds.method == "csd") & ~rounds.warmup].groupby("task").rescued.sum()
    assert rescued["pocket_gsm8k"] == 0 < rescued["pocket_mmlu"]
