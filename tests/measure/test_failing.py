"""What fails is told where it failed, and takes nothing else with it: logits, methods, folders, writers."""

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import oracle
import pytest
import torch
from cases import mostly_long
from gates import DEVICE
from tiny_runs import always, rounds_of, samples_of

from specbench.base import files
from specbench.config import UserError
from specbench.engine.clock import RowStopwatch, Stopwatch
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session, highest
from specbench.engine.types import NotFinite
from specbench.measure import loop
from specbench.methods.chains.sps import SpS
from specbench.methods.lossy.csd import CSD
from specbench.results.lock import claimed, unused

BAD = 17  # the token behind which a model has no finite logits


def poisoned(value):
    """A model that gives no finite logits once it has read token BAD.

    Nor for what stands in front in the same block: attention weighs by zero what a token does not read, and zero times
    NaN is NaN.
    """
    model = oracle.tiny("llama").to(DEVICE)
    weights = model.model.embed_tokens.weight
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(weights.clone())  # else it is the same tensor
        weights[BAD, 0] = value
    return model


# Logits


@pytest.mark.parametrize("runtime", [EAGER, STATIC], ids=["eager", "static"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize(
    ("tokens", "keep", "position"), [([3, 4, BAD, 5], 0, 1), ([3, 4, BAD, 5], 1, 4), ([BAD], 0, 1)]
)
def test_a_session_names_the_model_and_the_token(runtime, value, tokens, keep, position):
    session = Session(poisoned(value), "draft", runtime=runtime)
    with pytest.raises(NotFinite, match=f"of the draft are not finite after token {position} "):
        session.forward(tokens, keep=keep)
    session = Session(poisoned(value), "draft", runtime=runtime)
    session.forward([3, 4, 5])
    with pytest.raises(NotFinite, match=f"after token {3 + position} "):
        session.forward(tokens, keep=keep)


def test_of_a_block_the_first_bad_row_is_named():
    session = Session(oracle.tiny("llama").to(DEVICE), "target")
    session.forward([3, 4])
    own = session._runner.forward

    def forward(*given):
        logits, states = own(*given)
        logits = logits.clone()
        logits[2:, 5] = torch.nan
        return logits, states

    session._runner.forward = forward
    with pytest.raises(NotFinite, match="after token 5 "):
        session.forward([5, 6, 7, 8])


def test_tokens_that_cannot_follow_are_no_fault():
    """-inf is how logits say never; a row of nothing else says nothing at all."""
    row = torch.full((2, 5), -torch.inf)
    assert highest(row) == -torch.inf
    row[:, 2] = 3.0
    assert highest(row) == 3.0
    row[1, 1] = torch.nan
    assert highest(row) != highest(row) and highest(row.half()) != highest(row.half())


@pytest.mark.parametrize("watch", [Stopwatch(torch.device("cpu")), RowStopwatch()], ids=["alone", "in a batch"])
def test_a_device_that_is_not_waited_for_tells_in_the_end(watch):
    watch.start()
    watch.saw("draft", 4, torch.tensor([1.0, 2.0]))
    watch.saw("target", 6, torch.tensor([1.0]))
    assert watch.highest.not_finite() is None and watch.laps() == []
    watch.saw("target", 7, torch.tensor([0.5, torch.inf, torch.nan]))
    watch.saw("draft", 9, torch.tensor([torch.nan]))
    with pytest.raises(NotFinite, match="of the target are not finite after token 8 "):
        watch.laps()
    watch.start()
    assert watch.highest.not_finite() is None


# Methods


def break_in(monkeypatch, method, step, documents):
    """Let a step of a method raise at some of its calls, by number."""
    original, calls = getattr(method, step), iter(range(10**6))

    def broken(self, *given):
        if next(calls) in documents:
            raise torch.OutOfMemoryError("no room for this")
        return original(self, *given)

    monkeypatch.setattr(method, step, broken)


# Before the warm-up of a repeat, and before each task, a method is reset: the second call is that of the first task.
@mostly_long(
    "step, broken", [("rounds", {1, 2}), ("reset", {1}), ("state", {1, 2})], lambda step, broken: step == "state"
)
def test_one_method_fails_and_the_others_go_on(make_plan, tmp_path, monkeypatch, step, broken):
    plan = make_plan()
    assert loop.execute(plan, tmp_path / "whole", always)
    break_in(monkeypatch, CSD, step, broken)
    assert loop.execute(plan, tmp_path / "run", always)
    samples, whole = samples_of(tmp_path / "run"), samples_of(tmp_path / "whole")
    failed = samples[samples.finish == "error"]
    assert 0 < len(failed) < (samples.method == "csd").sum() and set(failed.method) == {"csd"}
    assert all("Traceback" in error and "no room for this" in error for error in failed.error)
    for method in ("vanilla", "sps"):
        assert samples[samples.method == method].text.tolist() == whole[whole.method == method].text.tolist()
    assert set(rounds_of(tmp_path / "run", "csd").doc_id) <= set(samples.doc_id)


@pytest.mark.long
def test_a_method_that_cannot_take_up_what_it_had_learned_fails_until_the_task_ends(make_plan, tmp_path, monkeypatch):
    plan = make_plan()
    assert not loop.execute(plan, tmp_path / "run", lambda state: False)
    break_in(monkeypatch, CSD, "restore", [0])
    assert loop.execute(plan, tmp_path / "run", always)
    samples = samples_of(tmp_path / "run")
    first = samples.task.iloc[0]
    errors = samples[samples.method == "csd"].set_index(["task", "doc_id"]).finish == "error"
    assert errors[first].tolist() == [False] + [True] * (len(errors[first]) - 1)
    assert not errors.drop(first, level="task").any()


# Folders


def test_a_folder_is_written_by_one_process(tmp_path):
    folder = tmp_path / "run"
    program = (
        "import sys, time; from pathlib import Path; from specbench.results.lock import claimed\n"
        f"with claimed(Path({str(folder)!r})):\n    print('mine', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "mine\n"
        with pytest.raises(UserError, match=f"is being written by process {process.pid} on .* since"), claimed(folder):
            pass
        process.kill()
    with claimed(folder):  # the lock went with its owner
        assert json.loads((folder / ".lock").read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"process {os.getpid()}"), claimed(folder):
            pass
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_no_run(tmp_path):
    folder = tmp_path / "run"
    assert unused(folder)
    folder.mkdir()
    for name in (".lock", "manifest.json.0123abcd.new"):
        (folder / name).touch()
        assert unused(folder)
    with claimed(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
    (folder / "thesis.new").touch()  # the user's
    assert not unused(folder)
    with claimed(folder):
        assert (folder / "thesis.new").exists()
    (folder / "manifest.json").touch()
    assert not unused(folder) and not unused(folder / "manifest.json")


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    """Scoring leaves one behind, which has the folder and the lock's file open, too."""
    with claimed(tmp_path / "run"):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
    try:
        with claimed(tmp_path / "run"):
            assert child.is_alive()
    finally:
        child.kill()
        child.join()


def test_a_lock_that_leads_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to("../victim")
    with pytest.raises(UserError, match="lock is a link"), claimed(tmp_path / "run"):
        pass
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").hardlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match="lock is not a file of specbench"), claimed(tmp_path / "run"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_lock_that_somebody_removes_still_holds(tmp_path):
    """It is the folder that is locked, not a name in it."""
    with claimed(tmp_path):
        (tmp_path / ".lock").unlink()
        with pytest.raises(UserError, match="is being written by another process"), claimed(tmp_path):
            pass
        assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": "x", "host": 1}'])
def test_whatever_a_lock_says_the_second_is_refused(tmp_path, text):
    with claimed(tmp_path):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(UserError, match="is being written by another process"), claimed(tmp_path):
            pass


def test_many_at_once_and_one_gets_it(tmp_path):
    """Owners that come and go in a hurry: never two at a time, also where one has just removed the lock's file."""
    program = f"""
import time
from pathlib import Path
from specbench.results.lock import claimed
from specbench.config import UserError
end = time.monotonic() + 1.5
inside = Path({str(tmp_path)!r}) / "inside"
while time.monotonic() < end:
    try:
        with claimed(Path({str(tmp_path)!r}) / "run"):
            inside.touch(exist_ok=False)  # FileExistsError: another is in there
            inside.unlink()
    except UserError:
        pass
"""
    several = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [one.wait() for one in several] == [0, 0, 0]


# Writers


def test_whole_files(tmp_path):
    path = tmp_path / "file"
    files.write_text(path, "old")
    with pytest.raises(ZeroDivisionError), files.whole(path) as new:
        new.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["file"]
    link = tmp_path / "link"
    link.symlink_to("file")
    files.write_text(link, "new")
    assert not link.is_symlink() and link.read_text() == "new" and path.read_text() == "old"
    with pytest.raises(OSError, match=r"missing/file'"):
        files.write_text(tmp_path / "missing" / "file", "")
    files.write_text(Path(os.devnull), "gone")
    assert Path(os.devnull).is_char_device()


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        files.write_text(tmp_path / "pipe", "through")
        assert reader.stdout and reader.stdout.read() == "through"


def test_a_document_without_finite_logits_fails_alone(make_plan, tmp_path, monkeypatch):
    """The message is in its sample; the next document is as ever."""
    original, calls = SpS.rounds, iter(range(100))

    def rounds(self, prompt, sampling, rng):
        result = original(self, prompt, sampling, rng)
        if next(calls) != 2:
            yield from result
            return
        yield next(result)
        raise NotFinite("draft", len(prompt) + 1)

    plan = make_plan()
    assert loop.execute(plan, tmp_path / "whole", always)
    monkeypatch.setattr(SpS, "rounds", rounds)
    assert loop.execute(plan, tmp_path / "run", always)
    samples = samples_of(tmp_path / "run")
    (bad,) = samples[samples.finish == "error"].itertuples()
    assert f"the logits of the draft are not finite after token {bad.prompt_tokens + 1} " in bad.error
    same = samples.finish != "error"
    assert samples[same].text.tolist() == samples_of(tmp_path / "whole")[same].text.tolist()
