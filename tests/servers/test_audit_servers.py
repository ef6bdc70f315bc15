"""The audit of a server finds one wrong count and one wrong token, and says what it could not compare."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from fake import Fake, recorded, serving
from screens import output, refusal, rendered
from test_client import TOKENIZER

from specbench.engine.types import Round, Verdict
from specbench.measure import divergence
from specbench.measure.prompts import load_tasks
from specbench.plan import resolve_plan
from specbench.report.views.audit_server import view
from specbench.servers.evidence import Evidence, of_histogram, of_steps
from specbench.studies import audit_server
from specbench.studies.audit_server import kept, same_rounds

# What vLLM 0.32 accepted in the rounds of the first six documents, with the bundled draft and 5 tokens.
ACCEPTED = [
    [5, 2, 5, 5, 5, 5, 5],
    [1, 5, 5, 5, 5, 5],
    [5, 5, 5, 5, 3, 0, 5, 5, 5],
    [5, 3, 5, 5, 0, 5, 5, 5],
    [5, 2, 5, 5, 5, 5, 5, 5],
    [5, 5, 5, 0, 3, 5, 5, 5],
]
SPS = ("--method", "sps", "--set", "sps.gamma=5")


@pytest.fixture(autouse=True)
def few_probes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(audit_server, "PROBES", 8)


@pytest.fixture
def fake():
    plan = resolve_plan(["vanilla"], task=["pocket_gsm8k"], baseline=None, limit=6)
    prompts = [request.prompt for request in load_tasks(plan, None).requests()]
    with serving(Fake(TOKENIZER, accepted=dict(zip(prompts, ACCEPTED, strict=True)))) as server:
        yield server


def audit(fake, *words, documents=2, code=0):
    text = output("audit", "--server", fake.url, "--task", "pocket_gsm8k", "--documents", documents, *words, code=code)
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_a_server_like_the_engine_here(fake):
    """All six texts, and of each text all rounds but the last; γ is 5 in both."""
    outcome = audit(fake, *SPS, "--out", "found.json", documents=6)
    rounds = 6 + 5 + 8 + 7 + 7 + 7
    assert f"pocket_gsm8k 6 6 0 0 0 {rounds} 0 steps" in outcome
    assert ": as here" in outcome and "vllm 0.32.0" in outcome and "prefix caching False" in outcome
    facts = json.loads(Path("found.json").read_text())
    assert facts["verdict"] == "as here" and len(facts["texts"]) == 6 and facts["models"]


@pytest.mark.long
def test_one_wrong_count_is_found(fake):
    fake.fault, fake.only = "one count", "Sara"
    outcome = audit(fake, *SPS, documents=6, code=1)
    assert "document 0: round 3: 4 tokens accepted, and 5 of 5 here" in outcome
    assert ": other rounds" in outcome and outcome.count(", document ") == 1


def test_one_wrong_token_is_found(fake):
    fake.fault, fake.cached = "another token", 0.05
    outcome = audit(fake, *SPS, code=1)
    assert ": other texts" in outcome and outcome.count("departs from vanilla at token 5") == 2 and "no tie" in outcome
    assert "WARNING: the server keeps prompts" in outcome


def test_a_tie_is_no_defect(fake, monkeypatch):
    """As if rounding could overturn any gap."""
    fake.fault = "another token"
    monkeypatch.setattr(divergence, "TIES", dict.fromkeys(divergence.TIES, math.inf))
    outcome = audit(fake)
    assert ": as here, numeric ties" in outcome and "a numeric tie" in outcome


def test_another_draft_length_is_told(fake):
    outcome = audit(fake, "--method", "sps", "--set", "sps.gamma=3", code=1)
    assert ": other rounds" in outcome and "the server drafts up to 5 tokens and sps 3" in outcome


def test_a_server_that_tells_nothing_but_text(fake):
    fake.engine, fake.ids, fake.tells = "somebody", False, "nothing"
    outcome = audit(fake, *SPS)
    assert "pocket_gsm8k 2 2 0 0 0 0 0" in outcome, outcome
    assert ": as here" in outcome and "does not list its rounds" in outcome
    assert isinstance(fake.requests[0]["prompt"], str)


def test_errors_of_the_server_fail_the_audit(fake):
    fake.fault, fake.only = "refused", recorded()[0]["prompt"][:40]
    assert "the engine is busy" in audit(fake, documents=6, code=1)


WRONG = [
    (["--server", "http://127.0.0.1:9"], "no connection"),
    (["--server", "http://127.0.0.1:9", "--method", "sps", "--method", "pld"], "give --method once"),
    (["--server", "nothing"], "http://HOST:PORT"),
]


@pytest.mark.parametrize(("words", "why"), WRONG)
def test_wrong_options(words, why):
    assert why in " ".join(refusal("audit", "--task", "pocket_gsm8k", *words).split())


def rounds(*drafted_accepted):
    """The prefill, and rounds of (drafted, accepted)."""
    made = [Round([0])]
    for drafted, accepted in drafted_accepted:
        verdict = Verdict(tuple(range(accepted)), 0, [0] * drafted, [0] * drafted, [0.0] * drafted)
        made.append(Round([0] * (accepted + 1), verdict if drafted else None))
    return made


MINE = rounds((5, 2), (0, 0), (5, 5), (5, 1))  # the round without a draft is not in a server's list
STEPS = {
    (2, 5, 4): (2, ""),  # the last round may be anything
    (2, 5): (2, ""),  # or missing, if its draft was cut to nothing
    (2, 4, 1): (1, "round 2: 4 tokens accepted, and 5 of 5 here"),
    (2, 5, 1, 1): (2, "4 rounds with a draft, and 2 or 3 here"),
}


@pytest.mark.parametrize("accepted", STEPS)
def test_rounds_by_hand(accepted):
    assert same_rounds(MINE, of_steps([5] * len(accepted), accepted)) == STEPS[accepted]


def test_sums_by_hand():
    """7 tokens are accepted before the last round, which can add up to 5."""
    assert same_rounds(MINE, of_histogram([0, 1, 1, 0, 0, 1], 15)) == (2, "")  # 1 + 2 + 5 in 3 rounds
    assert same_rounds(MINE, of_histogram([3, 0, 0, 0, 0, 0], 15)) == (0, "0 tokens accepted in all, and 7 to 12 here")
    assert same_rounds(MINE, of_histogram([2, 0, 1, 0, 0, 1], 20))[1].startswith("4 rounds")
    assert same_rounds(MINE, Evidence()) == (0, "")


def test_kept_prompts_by_hand():
    """All of 8 differences have one sign: p = 1/2⁸. As many have either: nothing is seen. Six pairs tell nothing."""
    sooner = [(1.0 + n / 10, 0.5) for n in range(8)]
    assert kept(sooner).p == pytest.approx(1 / 256) and kept(sooner).seen
    assert not kept([(1 + n / 1000, 1.0) for n in range(1, 9)]).seen  # always sooner, but by hardly anything
    assert not kept([(1.0, 1 + n / 10 * (-1) ** n) for n in range(1, 9)]).seen
    assert np.isnan(kept(sooner[:6]).p) and not kept(sooner[:6]).seen and not kept([]).seen


SAYS = {  # what engines tell of themselves, and what the audit says of it
    "prefix caching True": {"engine": "vllm", "cache": {"enable_prefix_caching": "True"}},
    "prefix caching False": {"engine": "vllm", "cache": {"enable_prefix_caching": "False"}},
    "prefix caching True, chunked prefill 8192, requests together 48": {
        "engine": "sglang", "disable_radix_cache": False, "chunked_prefill_size": 8192, "max_running_requests": 48,
    },
    "prefix caching False, chunked prefill True, requests together 4": {
        "engine": "vllm", "cache": {"enable_prefix_caching": "False"},
        "scheduler": {"enable_chunked_prefill": True, "max_num_seqs": 4},
    },
    "engine llamacpp, requests together 1": {"engine": "llamacpp", "total_slots": 1},
}  # fmt: skip


@pytest.mark.parametrize("said", SAYS)
def test_a_server_that_says_that_it_keeps_prompts(said):
    """Even where the probe has seen nothing."""
    result = rendered(view(audit_server.ServerAudit("http://x", SAYS[said], None, None, [], kept([]))), 200)
    assert said in result
    assert ("WARNING: the server says that it keeps prompts" in result) == ("caching True" in said)
