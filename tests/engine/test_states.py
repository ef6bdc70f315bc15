"""Models with a state that cannot be cut go back to any token of a block, and say what they say without a cache."""

import copy
import functools
import json
from itertools import pairwise, product

import oracle
import pytest
import tiny_architectures as tiny
import torch
from architectures import eagle3
from cases import mostly_long
from gates import Words, decode, with_settings
from made_runs import TOKENIZER
from refusals import one_line_error
from test_rows import together
from tiny_runs import always, facts, plan_of, samples_of, write_suite
from watched import Told

from specbench.engine.models.identity import has_more_than_keys
from specbench.engine.models.pair import Pair, reads_trees
from specbench.engine.prefix import Prefixes
from specbench.engine.runtimes import states
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.mixers import Mixers
from specbench.engine.session import LAST, Session
from specbench.measure import loop
from specbench.report.comparison import what_states_cost
from specbench_extras.drafts.batch import Batch as FixedBatch

# How each architecture goes back: what the cache of transformers allows, and whether its modules read a block after a
# state rightly.
WAYS = {
    "mamba": states.STEPS,
    "mamba2": states.AGAIN,
    "falcon_mamba": states.STEPS,
    "jamba": states.STEPS,
    "zamba": states.STEPS,
    "recurrent_gemma": states.STEPS,
    "rwkv": states.AGAIN,
    "bamba": states.AGAIN,
    "falcon_h1": states.AGAIN,
    "granitemoehybrid": states.AGAIN,
    "nemotron_h": states.AGAIN,
    "zamba2": states.AGAIN,
    "lfm2": states.RECORDED,
    "lfm2_moe": states.RECORDED,
    "lfm3": states.RECORDED,
    "minimax": states.AGAIN,
    "qwen3_next": states.AGAIN,
    "qwen3_5_text": states.AGAIN,
    "qwen3_5_moe_text": states.AGAIN,
    "bailing_hybrid": states.AGAIN,
    "olmo_hybrid": states.AGAIN,
    "deepseek_v32": states.CUT,
    "glm_moe_dsa": states.CUT,
    "axk2": states.CUT,
}
SHORT = ("jamba", "rwkv", "lfm2", "minimax", "qwen3_next", "nemotron_h", "deepseek_v32")
kinds = mostly_long("kind", WAYS, SHORT)
# What can be read again can be read token by token, too.
PAIRS = list(WAYS.items())
PAIRS += [(kind, states.STEPS) for kind, way in WAYS.items() if way == states.AGAIN]
GAMMA = 4
CLOSE = 1e-3  # parts compute in float32; a rollback that is wrong is off by 0.1 and more
TEXT = oracle.prompts(1, length=110, seed=3)[0]
OTHER = oracle.prompts(1, length=110, seed=4)[0]
# How many of γ tokens are kept, round after round: each count from 0 to γ after each of them.
ACCEPTED = (0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4, 2, 2, 3, 2, 4, 3, 3, 4, 4, 0)


@functools.cache
def target(kind):
    model = tiny.model(kind)
    Session(model, "target")  # prepares it
    return model


@functools.cache
def whole(kind):
    """The logits [n, V] of the text by a forward without a cache."""
    with torch.inference_mode():
        return target(kind)(torch.tensor([TEXT]), use_cache=False).logits[0]


def apart(kind, logits, first):
    return float((logits - whole(kind)[first : first + len(logits)]).abs().max())


@kinds
def test_the_way_back_is_the_first_one_that_is_right(kind):
    assert states.facts(target(kind)) == {"rollback": WAYS[kind]}


@mostly_long("kind, way", PAIRS, lambda kind, way: kind in SHORT)
def test_logits_after_rejections_at_every_place(kind, way):
    """Between blocks a single token is fed, or nothing."""
    assert set(pairwise(ACCEPTED)) == set(product(range(GAMMA + 1), repeat=2))
    session = Session(target(kind), "target")
    session._states.way = way
    at = 13
    assert apart(kind, session.restart(TEXT[:at]).logits, at - 1) < CLOSE
    for turn, accepted in enumerate(ACCEPTED):
        right = TEXT[at : at + 1 + accepted]
        scored = session.forward(right + OTHER[at : at + GAMMA - accepted])
        assert apart(kind, scored.logits[: len(right)], at) < CLOSE, (turn, accepted)
        session.keep(at + 1, range(accepted))
        at += len(right)
        if turn % 3 == 2:
            assert apart(kind, session.forward(TEXT[at : at + 1]).logits, at) < CLOSE
            at += 1
    assert session.tokens == TEXT[:at]


@kinds
def test_a_draft_goes_back_over_its_single_tokens(kind):
    """A chain of single tokens, then the context with the first so many of them, as a draft's session sees it."""
    session = Session(target(kind), "draft")
    session.restart(TEXT[:9])
    at = 9
    for accepted in (2, 0, 4, 1, 3, 4, 0, 2):
        for token in TEXT[at : at + accepted] + OTHER[at : at + GAMMA - accepted]:
            session.forward([token])
        fed = session.catch_up(TEXT[: at + accepted + 1]).logits
        assert apart(kind, fed, at + accepted + 1 - len(fed)) < CLOSE
        at += accepted + 1


@kinds
def test_anything_further_back_is_read_again(kind):
    session = Session(target(kind), "target")
    session.restart(TEXT[:30])
    session.forward(TEXT[30:35])
    session.truncate(17)
    assert apart(kind, session.forward(TEXT[17:22]).logits, 17) < CLOSE
    session.truncate(19)
    session.truncate(18)
    assert apart(kind, session.forward(TEXT[18:21]).logits, 18) < CLOSE
    fresh = Session(target(kind), "target")
    fresh.restart(TEXT[:13])
    fresh.forward(TEXT[13:18])  # the last states that are kept are within this block
    for token in TEXT[18:21]:
        fresh.forward([token])
    fresh.truncate(20)
    assert apart(kind, fresh.forward(TEXT[20:23]).logits, 20) < CLOSE


@functools.cache
def pair(kind, runtime=None):
    both = dict(zip(("target", "draft"), tiny.pair(kind), strict=True))
    chains_only = frozenset() if reads_trees(Session(both["target"], "target")) else frozenset(both)
    options = {} if runtime is None else {"runtime": runtime}
    return Pair("tiny", both, Words(), chains_only=chains_only, **options)


METHODS = {
    "sps": {},
    "pld": {"ngram": 2, "shortest": 1},
    "suffix": {"offset": 2.0, "form": "chain", "fallback": "draft"},
}


@functools.cache
def texts(kind):
    """Prompts, and what forwards without a cache say after them."""
    prompts = [tiny.prompt(seed=seed) for seed in range(3)]
    model = pair(kind).models["target"]
    return prompts, [oracle.greedy(model, prompt, 24) for prompt in prompts]


@mostly_long("kind", WAYS, ("lfm2", "qwen3_next"))
@pytest.mark.parametrize("name", METHODS)
def test_texts_one_by_one_and_in_batches_are_vanillas(kind, name):
    prompts, expected = texts(kind)
    method = with_settings(name, pair(kind), GAMMA, METHODS[name])
    assert [decode(method, prompt, 24)[0] for prompt in prompts] == expected
    if name != "suffix":
        batch = pair(kind, Batched("eager"))
        methods = [with_settings(name, batch, GAMMA, METHODS[name]) for _ in range(2)]
        assert [tokens for tokens, _ in together(methods, [(prompt, 24) for prompt in prompts])] == expected


@mostly_long("kind", WAYS, ("lfm2", "qwen3_next"))
def test_of_a_tree_one_path_is_read(kind):
    """A head's tree, and trees that are looked up in repeated text: vanilla's texts, with drafts of several tokens."""
    (prompt, *_), (text, *_) = texts(kind)
    models = pair(kind)
    suffix = with_settings("suffix", models, GAMMA, {"offset": 2.0, "form": "tree"})
    for method in (eagle3(models), suffix, with_settings("recycling", models, GAMMA, {"successors": 3, "nodes": 20})):
        decode(method, prompt, 24)
        tokens, rounds = decode(method, prompt, 24)
        assert tokens == text
        assert max(len(round_.verdict.drafted) for round_ in rounds[1:]) > 1
    with one_line_error("reads chains only"):
        decode(with_settings("rsd", models, GAMMA, {}), prompt, 24)


@kinds
def test_after_a_shared_prefix(kind):
    """Two sessions copy what one of them read; what one does to its state must not change the other's."""
    prefixes = Prefixes()
    prefixes.begin(TEXT[:40])
    sessions = [Session(target(kind), "target", prefixes=prefixes) for _ in range(2)]
    for _ in range(2):
        for session in sessions:
            assert apart(kind, session.restart(TEXT[:45]).logits, 44) < CLOSE
            session.forward(TEXT[45:47] + OTHER[:3])
            session.keep(46, range(1))
    for session in sessions:
        assert apart(kind, session.forward(TEXT[47:50]).logits, 47) < CLOSE


@kinds
def test_hidden_states_are_those_of_the_new_tokens(kind):
    session = Session(target(kind), "target")
    session.restart(TEXT[:20])
    session.forward(TEXT[20:22] + OTHER[:3])
    session.keep(21, range(1))
    with torch.inference_mode():
        expected = target(kind)(torch.tensor([TEXT[:24]]), use_cache=False, output_hidden_states=True).hidden_states
    found = session.forward(TEXT[22:24], hidden=LAST).hidden
    assert float((found - expected[-1][0, 22:]).abs().max()) < CLOSE


def test_only_accepted_tokens_are_read_again_and_the_watch_is_told():
    watch = Told()
    session = Session(target("qwen3_next"), "target", watch)
    session.restart(TEXT[:13])
    before = states.counted([session.model])
    session.forward(TEXT[13:18])  # a copy before it
    session.keep(14, range(2))
    session.forward(TEXT[16:21])  # reads 13 to 15 again, and copies the state after them
    session.keep(17, range(4))
    session.forward(TEXT[21:26])  # all were accepted: nothing again
    assert watch.forwards[1:] == [("target", 5, 13), ("target", 8, 13), ("target", 5, 21)]
    cost = {name: value - before[name] for name, value in states.counted([session.model]).items()}
    assert (cost["state copies"], cost["state again"]) == (3, 3)
    layer = session._states.cache.layers[0]
    one = layer.conv_states[0].nbytes + layer.recurrent_states[0].nbytes
    assert cost["state bytes"] == 3 * 2 * one  # two of the four layers have a state


def test_a_session_that_never_goes_back_copies_nothing():
    model = target("qwen3_next")
    before = states.counted([model])["state copies"]
    session = Session(model, "target")
    session.restart(TEXT[:13])
    for token in TEXT[13:20]:
        session.forward([token])
    assert states.counted([model])["state copies"] == before


def test_few_states_are_kept(monkeypatch):
    monkeypatch.setattr(states, "KEPT", 3)
    for kind in ("jamba", "qwen3_next"):
        session = Session(target(kind), "target")
        session.restart(TEXT[:13])
        for width, kept in ((6, 0), (1, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 5), (6, 2), (6, 2), (6, 1)):
            at = len(session)
            assert apart(kind, session.forward(TEXT[at : at + width]).logits, at) < CLOSE
            assert len(session._states._kept) <= 3 + width
            session.truncate(at + max(1, kept) if kept <= width else at + width)
        session.truncate(14)
        assert apart(kind, session.forward(TEXT[14:20]).logits, 14) < CLOSE


@pytest.mark.parametrize("kind", ("nemotron_h", "zamba2"))
def test_single_tokens_and_blocks_are_one_function(kind):
    """In transformers, blocks have a floor of the time step that single tokens lack: two functions of one text."""
    untouched = tiny.model(kind)
    floor = [module.time_step_limit[0] for module in untouched.modules() if hasattr(module, "time_step_limit")]
    assert min(floor) > 0
    Mixers(untouched)
    assert not any(module.time_step_limit[0] for module in untouched.modules() if hasattr(module, "time_step_limit"))
    session = Session(target(kind), "target")
    session.restart(TEXT[:13])
    for at in range(13, 20):
        assert apart(kind, session.forward([TEXT[at]]).logits, at) < CLOSE


def test_what_is_no_chain_is_refused_in_a_line():
    model = target("qwen3_next")
    with one_line_error("Qwen3NextForCausalLM", "chains only"):
        Session(model, "target", trees=False).forward([1, 2], parents=[-1, -1])
    with one_line_error("Qwen3NextForCausalLM", "chains only"):
        Session(model, "target").forward([1, 2], parents=[-1, -1])
    with one_line_error("Qwen3NextForCausalLM", "lent"):
        Session(model, "target").lend([0])
    with one_line_error("Qwen3NextForCausalLM", "fixed batches"):
        FixedBatch(model, 2)
    with one_line_error("Qwen3NextForCausalLM", "more than keys"):
        with_settings("swift", pair("qwen3_next"), GAMMA, {})


def test_a_model_without_a_right_way_is_refused(monkeypatch):
    monkeypatch.setattr(states.StateRunner, "_note", lambda self, at, module: self._kept.setdefault(at, []))
    with one_line_error("Mamba2ForCausalLM cannot be used", "other logits"):
        Session(tiny.model("mamba2"), "target")


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path):
    """And its manifest and the line at its end say what rollbacks were."""
    for role, model in zip(("target", "draft"), tiny.pair("qwen3_next"), strict=True):
        made = copy.deepcopy(model)
        made.resize_token_embeddings(len(TOKENIZER), mean_resizing=False)
        made.lm_head.weight[96:] = 0
        made.config.max_position_embeddings = 2048
        made.config.eos_token_id = made.generation_config.eos_token_id = TOKENIZER.eos_token_id
        made.float().save_pretrained(tmp_path / role)
        TOKENIZER.save_pretrained(tmp_path / role)
    write_suite(tmp_path, {"pocket_gsm8k": 20}, 3)
    plan = plan_of(tmp_path, ("sps", "pld"))
    assert loop.execute(plan, tmp_path / "whole", always)
    calls = iter(range(100))
    assert not loop.execute(plan, tmp_path / "stopped", lambda progress: next(calls) < 1)
    assert loop.execute(plan, tmp_path / "stopped", always)
    assert facts(tmp_path / "stopped") == facts(tmp_path / "whole")
    samples = samples_of(tmp_path / "whole")
    by_method = {name: [list(tokens) for tokens in rows.tokens] for name, rows in samples.groupby("method")}
    assert by_method["sps"] == by_method["pld"] == by_method["vanilla"]
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert {role: model["rollback"] for role, model in manifest["models"].items()} == dict.fromkeys(
        ("target", "draft"), states.AGAIN
    )
    assert "copies of" in what_states_cost(tmp_path / "whole") and "read again" in what_states_cost(tmp_path / "whole")


def test_plain_caches_are_cut_as_ever():
    assert not has_more_than_keys(tiny.model("gemma2"))
