"""What the prompts of a task begin with alike is read once, and nothing else changes: texts, counts, what is told."""

import dataclasses
import gc
import json
import weakref

import oracle
import pytest
import torch
from cases import mostly_long
from forms import eagle, model, text, whole
from gates import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import TOKENIZER
from refusals import one_line_error
from tiny_runs import always, facts, samples_of, write_suite
from watched import Told

from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.prefix import LEAST, Prefixes, shared_tokens
from specbench.engine.runtimes.eager import EAGER, EagerRunner
from specbench.engine.runtimes.graph import Graph
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import LAST, Session
from specbench.measure import command, loop
from specbench.measure.prompts import encode
from specbench.measure.sample import Decoder
from specbench.plan import resolve_plan
from specbench.tasks import harness

RUNTIMES = {"eager": EAGER, "static": STATIC, "graph": Graph(torch.device(DEVICE), captures=False)}
SHARED = 40
BEGINNING = text(SHARED, seed=7)
LONG = list(range(60))

# How many tokens are shared


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ([], 0),
        ([LONG], 0),  # a single one has nobody to share with
        ([[], LONG], 0),
        ([[*LONG[:40], 98], [*LONG[:40], 99]], 40),
        ([[*LONG[:32], 98], [*LONG[:32], 99]], 32),
        ([[*LONG[:31], 98], [*LONG[:31], 99]], 0),  # not worth a copy
        ([LONG, LONG], 59),  # one of its own is left to each
        ([LONG[:33], LONG], 32),
        ([LONG[:32], LONG], 0),
        ([[98, *LONG], [99, *LONG]], 0),
        ([[*LONG[:50], 1], [*LONG[:35], 77, 5], [*LONG[:50], 2]], 35),  # the one in the middle is what differs
        ([[*LONG[:50], 1], [*LONG[:35], 0, 5], [*LONG[:50], 2]], 35),
        ([[*LONG[:50], 5, 6, 7], [*LONG[:50], 5], [*LONG[:50], 5, 6, 8]], 50),  # 51 are alike, one has no more
    ],
)
def test_shared_tokens_by_hand(prompts, expected):
    assert LEAST == 32
    assert shared_tokens(prompts) == expected


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    front=st.integers(28, 40),
    tails=st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=1, max_size=5),
)
def test_shared_tokens_equal_a_count_one_by_one(front, tails):
    prompts = [LONG[:front] + tail for tail in tails]
    expected = 0
    for count in range(1, min(map(len, prompts))):
        if len({tuple(prompt[:count]) for prompt in prompts}) == 1:
            expected = count
    assert shared_tokens(prompts) == (expected if expected >= 32 and len(prompts) > 1 else 0)


# Sessions


def sessions(one, runtime="eager", beginning=BEGINNING, **more):
    """One with a shared beginning, one without, both watched."""
    prefixes = Prefixes()
    prefixes.begin(beginning)
    made = [
        Session(one, "target", Told(), runtime=RUNTIMES[runtime], prefixes=prefixes, **more),
        Session(one, "target", Told(), runtime=RUNTIMES[runtime], **more),
    ]
    return *made, prefixes


def equal(result, expected):
    torch.testing.assert_close(result.logits, expected.logits, rtol=0, atol=1e-4)
    assert (result.hidden is None) == (expected.hidden is None)
    if result.hidden is not None:
        torch.testing.assert_close(result.hidden, expected.hidden, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("runtime", RUNTIMES)
@mostly_long("form", (*oracle.ARCHITECTURES, "mistral, window"), ("llama", "gemma2", "opt"))
def test_logits_and_states_are_those_of_a_whole_prompt(form, runtime):
    """The first prompt reads the beginning, the others copy it; of each set of hidden states again."""
    one = model(form)
    session, plain, prefixes = sessions(one, runtime)
    turns = (((), 1), ((), 3), (LAST, 1), ((0, 1, -1), 1), ((), 1), (LAST, 2), ((1,), 1))
    for turn, (hidden, keep) in enumerate(turns):
        prompt = BEGINNING + text(6 + turn, seed=turn)
        for each in (session, plain):
            each.truncate(0)
        equal(*(each.forward(prompt, keep=keep, hidden=hidden) for each in (session, plain)))
        assert session.tokens == prompt and len(session) == len(prompt)
        assert session._watch.forwards[-1] == ("target", 6 + turn, SHARED)
        assert plain._watch.forwards[-1] == ("target", len(prompt), 0)
        more = text(5, seed=9)
        expected = whole(one, prompt + more)[0][-5:]
        torch.testing.assert_close(session.forward(more).logits, expected, rtol=0, atol=1e-4)
        session.truncate(SHARED - 7)  # into the beginning: the copy may be cut
        rows = session.forward(more).logits
        expected = whole(one, BEGINNING[:-7] + more)[0][-5:]
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)
    assert len(prefixes.kept(one)) == 4


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_copies_are_independent(runtime):
    """Sequences next to and behind one another, trees among them, whose paths are moved in place."""
    one = model("llama")
    session, plain, prefixes = sessions(one, runtime)
    other = Session(one, "target", runtime=RUNTIMES[runtime], prefixes=prefixes)
    session.restart([*BEGINNING, 3])
    saved = [tensor.clone() for tensor in flat(prefixes, one)]
    other.restart([*BEGINNING, 4, 5])
    for each in (session, other, plain):
        for last in ([3], [8, 9], [1]):
            each.restart([*BEGINNING, *last])
            each.truncate(SHARED - 20)  # new tokens in the place of the beginning's own
            each.forward(text(30, seed=3))
            length = len(each)
            each.forward(text(6, seed=4), parents=[-1, -1, 0, 1, 2, 2])
            each.keep(length, [0, 2, 5])
            each.forward([7])
        each.restart([*BEGINNING, 11, 12])
    assert all(torch.equal(a, b) for a, b in zip(flat(prefixes, one), saved, strict=True))
    rows = [each.forward(text(4, seed=5)).logits for each in (session, other, plain)]
    expected = whole(one, [*BEGINNING, 11, 12, *text(4, seed=5)])[0][-4:]
    for cells in rows:
        torch.testing.assert_close(cells, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_longer_prefix_grows_from_a_shorter_one(runtime):
    """Only its new tokens are read; another prefix, or a shorter one, begins from nothing."""
    one = model("llama")
    session, plain, prefixes = sessions(one, runtime)
    read, forward = [], type(session._runner).forward

    def told(self, ids, *rest):
        read.append(len(ids))
        return forward(self, ids, *rest)

    grown = [*BEGINNING, *text(15, seed=2)]
    other = [5, *grown[1:]]
    turns = [(BEGINNING, SHARED), (grown, 15), (grown[:50], 50), (other, 55)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session._runner), "forward", told)
        for prefix, new in turns:
            prefixes.begin(prefix)
            for hidden in ((), (0, 1)):
                prompt = [*prefix, 3, 4, 5]
                for each in (session, plain):
                    each.truncate(0)
                read.clear()
                equal(*(each.forward(prompt, keep=1, hidden=hidden) for each in (session, plain)))
                assert read[:2] == [new, 3], (len(prefix), read)


def flat(prefixes, one) -> list[torch.Tensor]:
    """Every tensor that is kept of a model."""
    (kept,) = prefixes.kept(one).values()
    return [tensor for part in kept.cache for tensor in part]


def test_what_does_not_begin_with_it_is_read_whole():
    one = model("opt")
    session, plain, prefixes = sessions(one)
    others = [
        [*BEGINNING[:-1], (BEGINNING[-1] + 1) % 96, 5],
        [5, *BEGINNING, 6],
        BEGINNING,  # nothing of its own
        BEGINNING[:20],
        [3, 4],
    ]
    for prompt in others:
        equal(session.restart(prompt), plain.restart(prompt))
        assert session._watch.forwards[-1] == ("target", len(prompt), 0)
        assert session.tokens == prompt
    assert not prefixes.kept(one)
    session.restart([*BEGINNING, 5])
    session.catch_up([5, *BEGINNING, 6])
    assert session._watch.forwards[-1] == ("target", SHARED + 2, 0)


def test_the_rows_that_are_wanted_lie_behind_it():
    """Logits of the beginning itself are not kept, so who asks for them has it read."""
    session, plain, _ = sessions(model("llama"))
    prompt = [*BEGINNING, 5, 6]
    for keep, width in ((0, SHARED + 2), (3, SHARED + 2), (2, 2), (1, 2)):
        for each in (session, plain):
            each.truncate(0)
        equal(*(each.forward(prompt, keep=keep) for each in (session, plain)))
        assert session._watch.forwards[-1] == ("target", width, SHARED + 2 - width)
    for each in (session, plain):
        each.truncate(0)
    equal(*(each.catch_up(prompt) for each in (session, plain)))


def test_only_a_plain_chain_from_the_host_uses_it():
    one = model("llama")
    session, plain, prefixes = sessions(one)
    prompt = [*BEGINNING, 5, 6, 7]
    chain = list(range(-1, len(prompt) - 1))
    for more in ({"parents": chain}, {"parents": tuple(chain)}, {"together": 2}):
        for each in (session, plain):
            each.truncate(0)
        equal(*(each.forward(prompt, keep=1, **more) for each in (session, plain)))
        assert session._watch.forwards[-1] == ("target", len(prompt), 0)
    for each in (session, plain):
        each.truncate(0)
    equal(*(each.forward(torch.tensor(prompt, device=DEVICE), keep=1) for each in (session, plain)))
    assert session._watch.forwards[-1] == ("target", len(prompt), 0) and session.tokens == prompt
    assert not prefixes.kept(one)


def test_features_are_read_whole():
    head = eagle("llama")
    session, plain, prefixes = sessions(head, vocabulary=48)
    features = torch.randn(SHARED + 3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    equal(*(each.forward([*BEGINNING, 5, 6, 7], keep=1, features=features) for each in (session, plain)))
    assert session._watch.forwards[-1] == ("target", SHARED + 3, 0) and not prefixes.kept(head)


def test_only_an_empty_sequence_uses_it():
    session, plain, _ = sessions(model("llama"))
    for each in (session, plain):
        each.forward([1, 2])
    equal(*(each.forward([*BEGINNING, 5], keep=1) for each in (session, plain)))
    assert session._watch.forwards[-1] == ("target", SHARED + 1, 2) and session.tokens == [1, 2, *BEGINNING, 5]


def test_another_task_forgets_it():
    one = model("llama")
    session, plain, prefixes = sessions(one)
    session.restart([*BEGINNING, 5])
    assert len(prefixes.kept(one)) == 1
    other = text(50, seed=8)
    prefixes.begin(other)
    assert not prefixes.kept(one)
    for prompt, width in (([*BEGINNING, 5], SHARED + 1), ([*other, 5], 1), ([*other, 6, 7], 2)):
        equal(session.restart(prompt), plain.restart(prompt))
        assert session._watch.forwards[-1] == ("target", width, len(prompt) - width)
    prefixes.begin([])
    equal(session.restart([*other, 5]), plain.restart([*other, 5]))
    assert session._watch.forwards[-1] == ("target", 51, 0)


def test_each_runtime_keeps_its_own_and_models_are_let_go():
    one, prefixes = oracle.tiny("llama").to(DEVICE), Prefixes()
    prefixes.begin(BEGINNING)
    for runtime in RUNTIMES.values():
        rows = Session(one, "target", runtime=runtime, prefixes=prefixes).restart([*BEGINNING, 5]).logits
        torch.testing.assert_close(rows, whole(one, [*BEGINNING, 5])[0][-1:], rtol=0, atol=1e-4)
    assert len(prefixes.kept(one)) == 3
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_prefixes_go_from_pair_to_session():
    """Two runtimes of a pair, and the same pair with one more model, share what is kept."""
    pair = Pair("tiny", {"target": model("llama"), "draft": model("qwen2")}, TOKENIZER)
    pair.prefixes.begin(BEGINNING)
    for one in (pair, dataclasses.replace(pair, runtime=STATIC), pair.with_model("arbitrator", model("opt"))):
        assert one.prefixes is pair.prefixes
        watched = Told()
        one.session("draft", watched).restart([*BEGINNING, 1, 2, 3])
        assert watched.forwards == [("draft", 3, SHARED)]


# Runs


EXAMPLES = "Question: What is 12 plus 30? Answer: 12 plus 30 is 42, so the answer is 42.\n\n" * 21
WORDS = {"pocket_gsm8k": EXAMPLES, "pocket_math500": "Other examples. " + EXAMPLES}


@pytest.fixture(scope="module")
def pair():
    """Models that say many things, over the bundled tokenizer."""
    models = dict(zip(("target", "draft"), oracle.tiny_pair("llama", vocab=len(TOKENIZER)), strict=True))
    for one in models.values():
        one.config.max_position_embeddings = 4096
        one.to(DEVICE).set_attn_implementation("sdpa")
    return Pair("tiny", models, TOKENIZER)


@pytest.fixture
def few_shot(monkeypatch):
    """All prompts of a task begin with the same many examples."""
    requests = harness.Tasks.requests
    monkeypatch.setattr(
        harness.Tasks,
        "requests",
        lambda self: [
            dataclasses.replace(request, prompt=WORDS[request.task] + request.prompt) for request in requests(self)
        ],
    )


@pytest.fixture
def forwards(monkeypatch):
    """The forwards of all models: whether timed, which model, which hidden states, width, tokens in front."""
    seen: list[tuple[bool, int, tuple[int, ...], int, int]] = []
    timed = [False]
    forward, decode = EagerRunner.forward, Decoder.decode

    def watched(self, ids, keep, hidden, features, reads):
        seen.append((timed[0], id(self.model), tuple(hidden), ids.shape[0], self._length))
        return forward(self, ids, keep, hidden, features, reads)

    def one(self, *given, warmup=False, **named):
        timed[0] = not warmup
        try:
            return decode(self, *given, warmup=warmup, **named)
        finally:
            timed[0] = False

    monkeypatch.setattr(EagerRunner, "forward", watched)
    monkeypatch.setattr(Decoder, "decode", one)
    return seen


@pytest.fixture(scope="module")
def make_plan(tmp_path_factory):
    suite = write_suite(tmp_path_factory.mktemp("suite"), {"pocket_gsm8k": 14, "pocket_math500": 10}, 2)

    def make(methods=("sps", "csd"), **options):
        sets = [f"{name}.gamma=3" for name in methods]
        given = {"pair": "pocket", "suite": suite, "assignments": sets, "device": DEVICE, "runtime": "eager"}
        return resolve_plan(**(given | {"methods": methods, "baseline": "vanilla", "limit": None} | options))

    return make


def of_manifest(folder):
    return json.loads((folder / "manifest.json").read_text())["prefix_tokens"]


def lengths(pair):
    """Tokens that the examples are, up to the last few: words of the documents may join them."""
    return {task: len(encode(pair, words)) for task, words in WORDS.items()}


@pytest.mark.long
def test_a_run_says_the_same_with_and_without(pair, make_plan, few_shot, forwards, tmp_path):
    assert loop.execute(make_plan(repeats=2), tmp_path / "shared", always, pair)
    shared = list(forwards)
    forwards.clear()
    assert loop.execute(make_plan(repeats=2, share_prefix=False), tmp_path / "whole", always, pair)
    assert facts(tmp_path / "shared") == facts(tmp_path / "whole")
    texts = [row[6] for row in facts(tmp_path / "whole")[0]]
    assert all(len(set(tokens)) >= 5 for tokens in texts) and len({tuple(tokens) for tokens in texts}) >= 4
    info = of_manifest(tmp_path / "shared")
    for task, count in lengths(pair).items():
        assert 600 < count - 5 <= info[task] <= count + 30
    assert info["pocket_gsm8k"] != info["pocket_math500"]
    assert of_manifest(tmp_path / "whole") == {}
    # Without: whole prompts, timed, of every model in every text (vanilla, sps, csd: 3 targets, 2 drafts).
    least = min(info.values())
    assert sum(timed and width > least for timed, _, _, width, _ in forwards) == 2 * 4 * 5
    # With: the beginning alone, before anything is timed, once a task and repeat by each model.
    reads = [(timed, one, width) for timed, one, _, width, at in shared if width >= least]
    expected = [(False, id(one), count) for _ in range(2) for count in info.values() for one in pair.models.values()]
    assert sorted(reads) == sorted(expected)
    assert sum(timed and at in info.values() and width > 1 for timed, _, _, width, at in shared) >= 2 * 4 * 5


def test_a_batch_reads_it_once_too(pair, make_plan, few_shot, tmp_path):
    """The first text of a batch reads it in a forward that no sequence has begun."""
    alone, batch = make_plan(["sps"], limit=3), make_plan(["sps"], limit=3, batch=3)
    for plan, name in ((alone, "alone"), (batch, "batch")):
        assert loop.execute(plan, tmp_path / name, always, pair)
    assert of_manifest(tmp_path / "batch")
    texts = [samples_of(tmp_path / name).query("not warmup") for name in ("alone", "batch")]
    keys = [table.sort_values(["task", "doc_id", "method"]) for table in texts]
    assert set(keys[1].finish) <= {"length", "eos", "stop"}, "a text failed"
    assert keys[0].tokens.map(list).to_list() == keys[1].tokens.map(list).to_list()


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on(pair, make_plan, few_shot, forwards, tmp_path):
    plan = make_plan()
    assert loop.execute(plan, tmp_path / "one", always, pair)
    for stop in (1, 2, 3):
        assert not loop.execute(plan, tmp_path / "two", lambda state, stop=stop: state.done != stop, pair)
    forwards.clear()
    assert loop.execute(plan, tmp_path / "two", always, pair)
    assert facts(tmp_path / "one") == facts(tmp_path / "two")
    count = of_manifest(tmp_path / "two")["pocket_math500"]
    assert [timed for timed, _, _, width, _ in forwards if width >= count] == [False, False]


@mostly_long("begun", (True, False), (True,))
def test_the_other_setting_is_refused(begun, pair, make_plan, few_shot, tmp_path):
    folder = tmp_path / "run"
    one, other = make_plan(["sps"], share_prefix=begun), make_plan(["sps"], share_prefix=not begun)
    assert not loop.execute(one, folder, lambda state: False, pair)
    with one_line_error("share_prefix"):
        command.run(other, None, folder)
    with pytest.raises(UserError, match=r"began with different shared prefixes; start a new run instead of --resume$"):
        loop.execute(other, folder, always, pair)
    assert loop.execute(one, folder, always, pair)


@pytest.mark.long
def test_a_single_document_shares_nothing(pair, make_plan, few_shot, forwards, tmp_path):
    assert loop.execute(make_plan(["sps"], limit=1), tmp_path / "run", always, pair)
    assert of_manifest(tmp_path / "run") == {}
    assert sum(timed and width > 600 for timed, _, _, width, _ in forwards) == 2 * 3


@pytest.mark.long
def test_what_a_failed_sample_left_is_no_harm(pair, make_plan, few_shot, tmp_path, monkeypatch):
    """A method that fails in its warm-up has read nothing: the next text reads the beginning itself, and is right."""
    from specbench.methods.chains.sps import SpS

    plan = make_plan(["sps"])
    assert loop.execute(plan, tmp_path / "whole", always, pair)
    rounds, calls = SpS.rounds, []

    def failing(self, prompt, sampling, rng):
        calls.append(prompt)
        if len(calls) == 1:
            raise RuntimeError("the model broke")
        return rounds(self, prompt, sampling, rng)

    monkeypatch.setattr(SpS, "rounds", failing)
    assert loop.execute(plan, tmp_path / "run", always, pair)
    assert facts(tmp_path / "run") == facts(tmp_path / "whole")
