"""Steps of fixed widths: what they compute, when they are captured, and that nothing waits for the device.

Off a GPU nothing can be captured: there the steps are computed launch by launch, or "captured" by a stand-in that does
to the buffers what a graph does to them. What only a GPU can tell is marked so.
"""

import collections
import gc
import weakref

import captured
import oracle
import pytest
import torch
from forms import CLOSE, FIRST, assert_tells_what_eager_tells, eagle, lists, model, path_to, played, steps, text, whole
from gates import DEVICE, assert_greedy_exact, decode, without_looking
from hypothesis import given, settings
from refusals import one_line_error
from stepped import assert_chains_are_steps
from watched import reads_of_tensors

from specbench.engine import accept
from specbench.engine.drafters import ModelDrafter
from specbench.engine.ids import Fed
from specbench.engine.runtimes import graph
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.graph import WIDEST, ChainKey, Graph, Key
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import LAST, Session
from specbench.engine.types import Sampling
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla
from specbench.methods.collaborative.cos.ensemble_parallel import at_once

HERE = torch.device(DEVICE)
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="captures CUDA graphs: SPECBENCH_TEST_DEVICE=cuda")


@pytest.fixture
def little_room(monkeypatch):
    monkeypatch.setattr("specbench.engine.runtimes.lean.FIRST", FIRST)


@pytest.fixture(autouse=True)
def no_room_ahead():
    """Caches that begin small and grow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "ROOM", 1)
        yield


@pytest.fixture
def capturing(monkeypatch):
    """A function that makes runtimes which capture; by the stand-in where there is no GPU."""
    return lambda: captured.capturing(monkeypatch)


def graphs(session: Session) -> list[bool]:
    """Which of a session's steps are captured."""
    return [step.graph is not None for step in session._runner.steps.values()]


# What the steps compute


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32), ids=str)
@pytest.mark.parametrize("form", (*oracle.ARCHITECTURES, "mistral, window"))
@settings(max_examples=5, deadline=None, derandomize=True)
@given(history=steps, last=lists)
def test_any_history_tells_what_eager_tells(form, dtype, history, last):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.engine.runtimes.lean.FIRST", FIRST)
        assert_tells_what_eager_tells(Graph(HERE, captures=False), form, dtype, history, last)


@pytest.mark.parametrize("form", ("llama", "gemma2", "opt"))
def test_captured_steps_tell_what_eager_tells(form, little_room, capturing):
    """One history again and again; in the end everything is replayed, at other lengths than it was captured at."""
    history = [
        ("chain", text(13), 1, LAST),
        *[("chain", text(4, seed=seed), 0, ()) for seed in range(3)],
        ("device", text(5, seed=4)),
        ("truncate", 0.7),
        ("tree", text(9, seed=5), [-1, -1, 0, 2, 1, 3, -1, 6], 9, 5),
        ("device", text(5, seed=6)),
        ("together", text(4, seed=7), 2),
        ("catch up", 0.4, text(30, seed=8)),
        ("device", text(5, seed=9)),
    ]
    runtime = capturing()
    session, reference = (Session(model(form), "target", runtime=one) for one in (runtime, EAGER))
    expected, _ = played(reference, history)
    for _ in range(4):
        replayed = any(graphs(session))
        session.truncate(0)
        result, _ = played(session, history)
        for a, b in zip(result, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
        runtime.settle()
    assert replayed and all(graphs(session)) and len(graphs(session)) >= 6


@pytest.mark.parametrize("sampling", (Sampling(), Sampling(0.7, top_k=20, top_p=0.9)), ids=str)
def test_captured_chains_are_their_steps(little_room, capturing, sampling):
    runtime = capturing()
    one, other = (Session(model("llama"), "draft", vocabulary=90, runtime=which) for which in (runtime, EAGER))
    for _ in range(4):
        replayed = any(graphs(one))
        assert_chains_are_steps(one, other, sampling, CLOSE[torch.float64])
        runtime.settle()
    assert replayed and all(graphs(one)) and any(isinstance(key, ChainKey) for key in one._runner.steps)


def test_the_next_bucket_is_met_amid_a_text(capturing):
    """From 512 rows to 1024, forth and back, by blocks of one width: other steps, the same logits."""
    one, tokens, runtime = model("llama"), text(560), capturing()
    expected = whole(one, tokens)[0]
    session = Session(one, "target", runtime=runtime)
    session.forward(tokens[:490], keep=1)
    at, reaches = 490, set()
    for back in (0, 0, 2, 1, 0, 3, 12, 0, 0, 1, 40, 0, 0, 4, 0, 0):
        rows = session.forward(tokens[at : at + 5]).logits
        torch.testing.assert_close(rows, expected[at : at + 5], rtol=0, atol=1e-4)
        at += 5 - back
        session.truncate(at)
        reaches |= {key.reach for key in session._runner.steps}
        runtime.settle()
    assert reaches == {512, 1024} and session._runner.capacity == 1024


@pytest.mark.parametrize("architecture", ("llama", "opt"))
def test_an_eagle_head(architecture, little_room, capturing):
    """Features are copied in for each step; states are told in front of the norm."""
    head, runtime = eagle(architecture), capturing()
    features = torch.randn(60, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    session, reference = Session(head, "draft", vocabulary=48, runtime=runtime), Session(head, "draft", vocabulary=48)
    shapes = ((0, 11, None), (11, 4, None), (15, 4, None), (19, 4, [-1, -1, 0, 2]), (23, 4, [0] * 4))
    for turn in range(4):
        replayed = any(graphs(session))
        for which in (session, reference):
            which.truncate(0)
        for at, width, parents in shapes:
            given = {"features": features[at + turn : at + turn + width], "parents": parents, "hidden": LAST}
            tokens = text(width, seed=at + turn)
            result, expected = (one.forward(tokens, **given) for one in (session, reference))
            torch.testing.assert_close(result.logits, expected.logits, rtol=0, atol=1e-4)
            torch.testing.assert_close(result.hidden, expected.hidden, rtol=0, atol=1e-4)
        runtime.settle()
    assert replayed and all(graphs(session))


@pytest.mark.long
@pytest.mark.parametrize("architecture", ("llama", "gemma2"))
def test_every_lossless_method_is_greedy_exact(architecture, little_room, capturing):
    """Text after text, so that first nothing, then some, then all steps are captured."""
    runtime = capturing()
    assert_greedy_exact(architecture, runtime, texts=2)
    assert runtime.captured > 50


# Which steps there are


def test_a_step_for_each_key_and_no_more(little_room):
    session = Session(model("llama"), "target", runtime=Graph(HERE, captures=False))
    session.forward(text(FIRST - 1))
    runner = session._runner
    for _ in range(3):
        for width in (1, 4, 4):
            session.truncate(6)
            session.forward(text(width))
    wanted = {Key(width, FIRST, (), False, False) for width in (1, 4)}  # no prompt
    assert runner.steps.keys() == wanted
    known = dict(runner.steps)
    session.truncate(6)
    session.forward(text(4), hidden=LAST)
    session.truncate(6)
    session.forward(text(4), parents=[-1] * 4)
    session.truncate(6)
    session.forward(text(4), together=2)
    assert runner.steps.keys() == wanted | {Key(4, FIRST, LAST, False, False), Key(4, FIRST, (), True, False)}
    assert all(runner.steps[key] is step for key, step in known.items())


def test_growth_forgets_the_steps_of_the_cache_that_was(little_room, capturing):
    one, tokens, runtime = model("llama"), text(100), capturing()
    session = Session(one, "target", runtime=runtime)
    session.forward(tokens[:58])
    session.forward(tokens[58:62])
    old = [weakref.ref(step) for step in session._runner.steps.values()]
    runtime.settle()
    captured = runtime.captured
    session.forward(tokens[62:66])  # the same width, one bucket further
    gc.collect()
    assert [step() for step in old] == [None]
    assert session._runner.steps.keys() == {Key(4, 8 * FIRST, (), False, False)}
    runtime.settle()
    assert runtime.captured == captured + 1
    rows = session.forward(tokens[66:70]).logits
    torch.testing.assert_close(rows, whole(one, tokens[:70])[0][-4:], rtol=0, atol=1e-4)


def test_wide_blocks_are_computed_as_static_does(capturing):
    one, tokens = model("llama"), text(WIDEST + 20)
    session = Session(one, "target", runtime=capturing())
    rows = session.forward(tokens[: WIDEST + 1]).logits
    assert not session._runner.steps
    rows = torch.cat([rows, session.forward(tokens[WIDEST + 1 :]).logits])
    assert len(session._runner.steps) == 1
    torch.testing.assert_close(rows, whole(one, tokens)[0], rtol=0, atol=1e-4)


@pytest.mark.skipif(DEVICE != "cpu", reason="of machines without a GPU")
def test_without_a_gpu_it_is_refused_in_one_line():
    with one_line_error(match=r"needs a GPU; use --runtime static or openvino$", kind=Unsupported):
        Graph(torch.device("cpu"))


# When they are captured, and what a capture leaves alone


def test_captures_wait_until_nothing_is_timed(little_room, capturing):
    runtime = capturing()
    session = Session(model("qwen2"), "target", runtime=runtime)
    for _ in range(3):
        session.truncate(0)
        session.forward(text(5))
        session.forward(text(4))
    assert runtime.captured == 0 and not any(graphs(session)) and runtime.seconds == {"capture": 0.0}
    runtime.settle()
    assert runtime.captured == 1 and all(graphs(session)) and runtime.seconds["capture"] > 0
    spent = runtime.seconds["capture"]
    runtime.settle()
    session.truncate(4)
    session.forward(text(4))
    runtime.settle()
    assert runtime.captured == 1 and runtime.seconds["capture"] == spent


def test_what_is_gone_is_not_captured(little_room, capturing):
    runtime = capturing()
    sessions = [Session(model("llama"), "target", runtime=runtime) for _ in range(2)]
    for session in sessions:
        session.forward(text(9))
        session.forward(text(3))
    runner = weakref.ref(sessions[0]._runner)
    del session, sessions[0]
    gc.collect()
    assert runner() is None  # what is wanted holds no sequence
    runtime.settle()
    assert runtime.captured == 1


def test_what_was_returned_stays_as_it_is(little_room, capturing):
    """A later replay overwrites what the graph gave, not what was handed out; nor does writing into that matter."""
    runtime = capturing()
    session = Session(model("llama"), "target", runtime=runtime)
    for turn in range(2):
        session.truncate(0)
        first = session.forward(text(5), hidden=(0, -1))
        kept = [first.logits.clone(), first.hidden.clone()]
        second = session.forward(text(5, seed=1), hidden=(0, -1))
        assert torch.equal(first.logits, kept[0]) and torch.equal(first.hidden, kept[1])
        torch.testing.assert_close(
            second.logits, whole(model("llama"), text(5) + text(5, seed=1))[0][-5:], rtol=0, atol=1e-4
        )
        assert any(graphs(session)) == (turn > 0)
        runtime.settle()


@pytest.mark.parametrize("length", (10, 40))
def test_a_capture_leaves_what_is_cached(length, little_room, capturing):
    """A sequence may go on behind it: drafts catch up with what the next text shares with the last."""
    one, tokens, runtime = model("llama"), text(length + 6), capturing()
    session = Session(one, "target", runtime=runtime)
    session.forward(text(4 * FIRST + 1), keep=1)  # room for all that follows, by a block too wide for a step
    session.truncate(0)
    session.forward(tokens[:5])
    session.forward(tokens[5:10])  # of the bucket of FIRST rows
    if length > 10:
        session.forward(tokens[10:length])
    runtime.settle()
    assert runtime.captured == 1 + (length > 10)
    rows = session.forward(tokens[length:]).logits
    torch.testing.assert_close(rows, whole(one, tokens)[0][-6:], rtol=0, atol=1e-4)


def test_captures_lose_no_steps(little_room, capturing):
    """Nor does one need room behind the sequence."""
    runtime = capturing()
    session = Session(model("llama"), "target", runtime=runtime)
    session.forward(text(9))
    session.forward(text(4))
    runtime.settle()
    assert session._runner.capacity == session._runner.lean.masks.reach(FIRST)  # it holds all that was ever asked for
    assert graphs(session) == [True] and runtime.captured == 1


def test_a_capture_near_the_last_position(monkeypatch, capturing):
    """Learned positions end (OPT's at 2048): a capture that looked further would break the process on a GPU."""
    monkeypatch.setattr("specbench.engine.runtimes.lean.FIRST", 512)
    one, runtime = model("opt"), capturing()
    last = one.config.max_position_embeddings
    session = Session(one, "target", runtime=runtime)
    session.forward(text(30))  # the width of a prompt
    session.forward(text(last - 33, seed=1), keep=1)
    session.forward(text(3, seed=2))  # the text has as many tokens as the model reads
    assert len(session) == last
    runtime.settle()
    assert runtime.captured >= 1


# Together, and without waiting


@pytest.mark.parametrize("turns", (3,))
def test_two_models_at_work_at_once(turns, little_room, capturing):
    """As in ensemble-parallel: a thread each, on a GPU a stream each."""
    ones, runtime = [model("llama"), model("qwen2")], capturing()
    sessions = [Session(one, "member", runtime=runtime) for one in ones]
    forward = at_once(HERE, 2)
    for turn in range(turns):
        texts, at = text(60, seed=turn), 0
        for session in sessions:
            session.truncate(0)
        for width in (9, 1, 1, 3, 1, 3, 3, 1, 1):
            tokens = torch.tensor(texts[at : at + width], device=DEVICE)
            output = forward(sessions, lambda session, tokens=tokens: session.forward(tokens))
            at += width
            for scored, one in zip(output, ones, strict=True):
                torch.testing.assert_close(scored.logits, whole(one, texts[:at])[0][-width:], rtol=0, atol=1e-4)
        runtime.settle()
    assert runtime.captured > 4 and all(graphs(sessions[0])) and all(graphs(sessions[1]))


def speculation(runtime: Graph, sampling: Sampling):
    target, draft = (one.float() for one in oracle.tiny_pair("llama"))
    drafter = ModelDrafter(Session(draft.to(DEVICE), "draft", runtime=runtime))
    method = SpS(Session(target.to(DEVICE), "target", runtime=runtime), drafter, 4)
    prompt = text(12)
    for _ in range(2):  # all steps that the next text has are met, then captured
        decode(method, prompt, 60, sampling)
        runtime.settle()
    return method.rounds(prompt, sampling, torch.Generator(DEVICE).manual_seed(0))


@pytest.mark.parametrize("sampling", (Sampling(), Sampling(1.0)), ids=("greedy", "sampled"))
def test_a_round_reads_back_from_the_device_once(sampling, monkeypatch, capturing):
    """How often a tensor of the device is asked for its values.

    Ids that were fed from there come to the host by a copy of their own, which has arrived by then.
    """
    without_looking(monkeypatch)
    monkeypatch.setattr(
        Fed, "read", lambda self, numpy=torch.Tensor.numpy: list(map(int, numpy(self.ids)[: self.count]))
    )
    monkeypatch.setattr(accept, "on_host", lambda values: False)  # where it does not matter, it is not counted
    rounds = speculation(capturing(), sampling)
    reads = reads_of_tensors(monkeypatch)
    for _ in range(3):
        next(rounds)
    reads.clear()
    for _ in range(7):
        next(rounds)
    assert len(reads) <= 7, collections.Counter(reads)


# On a GPU


WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")


def waits(body) -> collections.Counter[str]:
    """The calls by which the host waits for the device, by name."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as events:
        body()
    return collections.Counter(event.name for event in events.events() if event.name in WAITS)


def test_a_model_is_read_by_one_session_after_another(capturing):
    """Captures outlive the first session's: the memory that they share does not go with its graphs."""
    one, runtime = model("llama"), capturing()
    expected = whole(one, text(9))[0]
    for _ in range(3):
        session = Session(one, "target", runtime=runtime)
        for _ in range(2):
            session.restart(text(7))
            rows = session.forward(text(9)[7:]).logits
            torch.testing.assert_close(rows, expected[7:], rtol=0, atol=1e-4)
            runtime.settle()
        assert graphs(session) == [True]
        del session
        gc.collect()
    assert runtime.captured == 3


@needs_gpu
@pytest.mark.parametrize("sampling", (Sampling(), Sampling(1.0)), ids=("greedy", "sampled"))
def test_a_captured_round_waits_once(sampling):
    """Rounds 3 to 10 of speculative sampling, by the profiler; its own waits are taken off."""
    rounds = speculation(Graph(HERE), sampling)
    for _ in range(3):
        next(rounds)

    def body() -> None:
        for _ in range(7):
            next(rounds)

    waits(lambda: None)  # the first profile starts the profiler
    own, result = waits(lambda: None), waits(body)
    result.subtract(own)
    assert sum(result.values()) <= 7, result


@needs_gpu
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("form", (*oracle.ARCHITECTURES, "mistral, window"))
def test_captured_steps_equal_uncaptured_ones(form, dtype):
    """The same kernels over the same buffers, in every precision."""
    one, log = model(form, dtype), []
    for runtime in (Graph(HERE), Graph(HERE, captures=False)):
        session = Session(one, "target", runtime=runtime)
        for _ in range(3):
            rows = [session.restart(text(20)).logits]
            for width in (1, 4, 5, 8, 1, 5):
                rows.append(session.forward(text(width, seed=width)).logits)
                session.truncate(len(session) - width // 2)
            rows.append(session.forward(text(6), parents=[-1, -1, 0, 1, 2, 2]).logits)
            session.truncate(20)
            runtime.settle()
        log.append(torch.cat(rows).double())
        assert all(graphs(session)) == runtime.captures
    assert log[0].isfinite().all()
    atol = CLOSE[dtype]["atol"] if dtype in CLOSE else 0.05 * float(log[1].std())
    torch.testing.assert_close(log[0], log[1], rtol=0, atol=atol)


@needs_gpu
def test_cuda_graphs_are_captured_by_settle_alone(monkeypatch, little_room):
    begun: list[object] = []
    capture_begin = torch.cuda.CUDAGraph.capture_begin
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "capture_begin", lambda self, *a, **k: begun.append(self) or capture_begin(self, *a, **k)
    )
    runtime = Graph(HERE)
    method = Vanilla(Session(model("llama", torch.float32), "target", runtime=runtime))
    texts = [decode(method, text(9), 30)[0]]
    assert not begun
    runtime.settle()
    assert len(begun) == runtime.captured == 2 and runtime.seconds["capture"] > 0
    texts.append(decode(method, text(9), 30)[0])
    assert len(begun) == 2 and texts[0] == texts[1] and len(set(texts[0])) >= 8
    assert isinstance(next(iter(method.target._runner.steps.values())).graph, torch.cuda.CUDAGraph)


@needs_gpu
def test_a_rollback_to_a_tree_path_on_the_gpu():
    one, runtime = model("gemma2"), Graph(HERE)
    session = Session(one, "target", runtime=runtime)
    parents = [-1, -1, 0, 1, 2, 4]
    path = path_to(parents, 5)
    for _ in range(2):
        session.truncate(0)
        session.forward(text(20))
        session.forward(text(6, seed=1), parents=parents)
        session.keep(20, path)
        kept = text(20) + [text(6, seed=1)[i] for i in path]
        rows = session.forward(text(4, seed=2)).logits
        torch.testing.assert_close(rows, whole(one, kept + text(4, seed=2))[0][-4:], rtol=0, atol=1e-4)
        runtime.settle()
