"""Runs over servers: their texts, rounds and times in the same records and the same table as own methods'."""

import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cases import mostly_long
from fake import Fake, accepted_in_text, recorded, serving
from screens import call, output, refusal
from test_client import TOKENIZER

import specbench
from specbench.analysis import compare, pooled
from specbench.analysis.texts import load_decode
from specbench.analysis.trace_columns import Tracer, Words
from specbench.measure.served import came_late
from specbench.results.stored import StoredRun

TASK = ("--task", "pocket_gsm8k", "--max-new-tokens", "64")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def servers():
    with serving(Fake(TOKENIZER, tells="nothing", coalesce=1)) as plain, serving(Fake(TOKENIZER)) as drafting:
        yield plain, drafting


def run(*words, limit=6, code=0):
    return output("run", *TASK, "--limit", limit, "--out", "run", *words, code=code)


def samples():
    frame = StoredRun(Path("run")).samples()
    return frame[~frame.warmup].set_index(["method", "doc_id"])


def of_documents():
    """The recorded answers by the number of their document."""
    rows = pq.read_table("run/documents.parquet").to_pylist()
    by_prompt = {one["prompt"]: one for one in recorded()}
    return {row["doc_id"]: by_prompt[row["prompt"]] for row in rows if row["prompt"] in by_prompt}


def test_servers_alone(servers):
    plain, drafting = servers
    plain.delay = drafting.delay = 0.002
    outcome = run("--server", f"vanilla={plain.url}", "--server", f"vllm={drafting.url}")
    assert "vllm" in outcome and "100.0" in outcome
    assert " 0 tok/s" not in outcome and "whether it compares" not in outcome
    documents, asked = of_documents(), samples()
    assert len(documents) == 6
    for number, one in documents.items():
        for name in ("vanilla", "vllm"):
            row = asked.loc[name, number]
            assert (row.text, list(row.tokens), row.finish) == (one["text"], one["ids"], "eos")
            assert row.due <= row.sent < row.first_token <= row.ended
            assert row.prefill_seconds == pytest.approx(row.first_token - row.sent)
            if row.chunks[1] > row.chunks[0]:  # this machine was not late
                assert row.decode_seconds == pytest.approx(row.chunks[-1] - row.chunks[0])
            assert sum(row.chunk_tokens) == len(one["ids"])
        assert asked.loc["vllm", number].evidence == "steps"
        assert asked.loc["vanilla", number].evidence == "chunks"
    rounds = StoredRun(Path("run")).rounds().to_table().to_pandas()
    for number, one in documents.items():
        mine = rounds[(rounds.method == "vllm") & (rounds.doc_id == number)].sort_values("round")
        assert mine.accepted.tolist() == accepted_in_text(one) and mine.drafted.tolist() == one["drafted"]
        assert mine.committed.sum() == len(one["ids"]) - 1  # the prefill gave the first
    manifest = json.loads(Path("run/manifest.json").read_text())
    assert manifest["models"] == {} and manifest["servers"]["vllm"]["version"] == "0.32.0"
    assert manifest["plan"]["baseline"] == "vanilla"
    orders = asked.order.unstack("method")
    assert set(orders.vanilla) == {0, 1}  # the order is drawn for each document


def test_beside_own_methods(servers):
    """A real vLLM's texts are those of vanilla decoding and of sps here, and theirs alone can be traced."""
    servers[1].tells = "histogram"
    outcome = run("--server", f"vllm={servers[1].url}", "--method", "sps", "--set", "sps.gamma=5")
    asked = samples()
    for number in range(6):
        assert asked.loc["vllm", number].text == asked.loc["sps", number].text == asked.loc["vanilla", number].text
    assert "vllm" in outcome
    plan = StoredRun(Path("run")).plan
    assert (plan.against("vllm"), plan.against("sps")) == ("vanilla", "vanilla")
    whole = StoredRun(Path("run"))
    tracer = Tracer(whole, load_decode(whole), Words(), ["vanilla", "sps", "vllm"])
    methods = [method for part in tracer.of(whole.documents()) for _, _, method in part.samples]
    assert methods.count("sps") == 6 and set(methods) == {"vanilla", "sps"}
    assert "nothing to trace" in refusal("trace", "run", "--task", "pocket_gsm8k", "--doc", 0, "--method", "vllm")


@pytest.mark.long
@pytest.mark.parametrize("tells", ["steps", "histogram"])
def test_a_page_beside_own_methods(servers, tells):
    """It says why a server has no traces, and the others have theirs."""
    servers[1].tells = tells
    run("--server", f"vllm={servers[1].url}", "--method", "sps", limit=2)
    output("report", "run", "--out", "page.html")
    page = Path("page.html").read_text()
    assert "vllm has no traces: a server does not tell which tokens it drafted." in page
    assert "has no traces here" not in page


def summary():
    return compare.summary(pooled.measured([StoredRun(Path("run"))])).set_index("method")


def by_hand():
    """What the recorded steps of the run's documents add up to: rounds, drafted, accepted."""
    lists = [(document["drafted"], document["accepted"]) for document in of_documents().values()]
    return (
        sum(len(accepted) for _, accepted in lists),
        sum(sum(drafted) for drafted, _ in lists),
        sum(sum(accepted) for _, accepted in lists),
    )


def alpha_by_hand():
    """The share of tested tokens that were accepted: of a draft, tokens are tested up to the first that is rejected."""
    tests = [
        [True] * accepted + [False] * (accepted < drafted)
        for document in of_documents().values()
        for drafted, accepted in zip(document["drafted"], document["accepted"], strict=True)
    ]
    return sum(map(sum, tests)) / sum(map(len, tests))


@mostly_long("tells", ["histogram", "counters"], ("histogram",))
def test_totals_where_rounds_are_not_told(servers, tells):
    servers[1].tells = tells
    outcome = run("--server", f"vanilla={servers[0].url}", "--server", f"vllm={servers[1].url}")
    assert set(samples().loc["vllm"].evidence) == {tells}
    rounds, drafted, accepted = by_hand()
    row = summary().loc["vllm"]
    assert row.acceptance_rate == pytest.approx(accepted / drafted) and row.tau == pytest.approx(1 + accepted / rounds)
    assert (
        row.alpha == pytest.approx(alpha_by_hand())
        and math.isnan(row.discard_rate)
        and math.isnan(summary().loc["vanilla"].tau)
    )
    assert "of vllm are a server's totals" in " ".join(outcome.split())
    servers[1].others = 1  # what the counters grew by is then not of these texts
    if tells == "counters":
        shutil.rmtree("run")
        run("--server", f"vllm={servers[1].url}", "--server", f"vanilla={servers[0].url}")
        assert math.isnan(summary().loc["vllm"].tau)


@mostly_long("engine", ["sglang", "llamacpp"], ("llamacpp",))
def test_totals_of_other_engines(servers, engine):
    """SGLang tells rounds and what they accepted, llama.cpp what was drafted and accepted."""
    servers[1].engine = engine
    run("--server", f"vanilla={servers[0].url}", "--server", f"other={servers[1].url}")
    rounds, drafted, accepted = by_hand()
    row = summary().loc["other"]
    tau, rate = (1 + accepted / rounds, math.nan) if engine == "sglang" else (math.nan, accepted / drafted)
    assert math.isnan(row.alpha)
    assert row.tau == pytest.approx(tau, nan_ok=True) and row.acceptance_rate == pytest.approx(rate, nan_ok=True)


@mostly_long("tells", ["histogram", "steps"], ("steps",))
def test_totals_count_rounds_without_a_draft(servers, tells):
    """Every text has two rounds that accepted 1 and 0, and six of one token without a draft: 2 accepted in 16."""
    servers[1].tells, servers[1].plain = tells, 6
    servers[1].accepted = {one["prompt"]: [1, 0] for one in recorded()}
    run("--server", f"vanilla={servers[0].url}", "--server", f"vllm={servers[1].url}", limit=2)
    assert samples().loc["vllm"].new_tokens.tolist() == [1 + 3 + 6] * 2
    assert summary().loc["vllm"].tau == pytest.approx(1 + 2 / 16)


def test_a_text_that_comes_at_once_has_no_time_per_token(servers):
    servers[1].held = True
    outcome = run("--server", f"vllm={servers[1].url}", "--server", f"vanilla={servers[0].url}", limit=3)
    rows = samples().loc["vllm"]
    assert rows.decode_seconds.isna().all()
    assert rows.wall_seconds.tolist() == pytest.approx([row.chunks[-1] - row.sent for row in rows.itertuples()])
    row = summary().loc["vllm"]
    tokens = sum(len(document["ids"]) for document in of_documents().values())
    assert math.isnan(row.tokens_per_s) and math.isnan(row.speedup_decode)
    assert row.tokens_per_s_e2e == pytest.approx(tokens / rows.wall_seconds.sum())
    assert "vllm: in 3 of 3 texts the first token came with later ones" in " ".join(outcome.split())


@pytest.mark.parametrize(
    ("times", "tokens", "late"),
    [
        ([1.0], 1, False),
        ([1.0], 5, True),
        ([1.0, 2.0], 5, False),
        ([1.0, 1.0, 2.0], 3, True),
        ([1.0] * 2 + [2.0] * 9, 11, False),  # one of ten later ones
        ([1.0] * 3 + [2.0] * 8, 11, True),
    ],
)
def test_late_parts(times, tokens, late):
    assert came_late(times, tokens) is late


@mostly_long("named", [dict, list], (dict,))
def test_from_python(servers, named):
    urls = {"vanilla": servers[0].url, "vllm": servers[1].url}
    given = urls if named is dict else [f"{name}={url}" for name, url in urls.items()]
    done = specbench.run(folder="run", suite="math", servers=given, limit=1, max_new_tokens=64, concurrency=2)
    assert done.finished and set(done.samples.method) == set(urls) and done.plan.concurrency == 2


def test_a_document_that_fails_is_a_row(servers):
    servers[1].fault, servers[1].only = "cut", "Sara"
    outcome = run("--server", f"vllm={servers[1].url}", code=3)
    asked = samples()
    failed = asked[asked.finish == "error"]
    assert len(failed) == 1 and "the stream was cut" in failed.iloc[0].error
    assert "1" in outcome


FAULTS = {
    "other text": "are not those of its text",
    "lies": "counts",
    "other prompt": "read the prompt as other tokens",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tokens_that_do_not_fit(servers, fault):
    servers[1].fault, servers[1].only = fault, "Sara"
    run("--server", f"vllm={servers[1].url}", code=3)
    failed = samples().query("finish == 'error'")
    assert len(failed) == 1 and FAULTS[fault] in failed.iloc[0].error


def test_a_run_goes_on(servers):
    fake = servers[1]
    words = ("--server", f"vllm={fake.url}", "--concurrency", "1")
    fake.fault = ""
    run(*words, limit=2)
    assert "nothing is left" in output("run", "--resume", "run")
    before = len(fake.requests)

    shutil.rmtree("run/parts", ignore_errors=True)
    for name in ("samples", "rounds", "scores"):
        (Path("run") / f"{name}.parquet").unlink()
    output("run", "--resume", "run")
    assert len(fake.requests) > before
    fake.models = ("another",)
    (Path("run") / "scores.parquet").unlink()
    assert "another model" in refusal("run", "--resume", "run")


def test_concurrency_and_rates(servers):
    servers[1].delay = 0.01
    run("--server", f"vllm={servers[1].url}", "--concurrency", "3")
    assert servers[1].most == 3
    output(
        "run", *TASK, "--limit", 6, "--out", "rate", "--server", f"a={servers[0].url}", "--server",
        f"b={servers[1].url}", "--rate", "20", "--arrivals", "constant",
    )  # fmt: skip
    frame = StoredRun(Path("rate")).samples().sort_values("due")
    for _, rows in frame.groupby("method"):
        assert rows.due.diff().dropna().tolist() == pytest.approx([0.05] * 5, abs=1e-4)


WRONG = [
    (["--server", "x"], "write NAME=URL"),
    (["--method", "sps", "--concurrency", "2"], "add --server"),
    (["--server", "x=http://h", "--rate", "2", "--concurrency", "2"], "give one"),
    (["--server", "x=http://h", "--arrivals", "constant"], "goes with --rate"),
    (["--server", "sps=http://h", "--method", "sps"], "two different methods are called sps"),
    (["--server", "vanilla=http://h", "--method", "sps"], "sps needs vanilla decoding here as its baseline; give the"),
]


@pytest.mark.parametrize(("words", "why"), WRONG)
def test_wrong_options(words, why):
    assert why in " ".join(refusal("run", *TASK, *words).split())


def test_nobody_is_there():
    result = call("run", *TASK, "--limit", 2, "--out", "run", "--server", "x=http://127.0.0.1:9")
    assert result.exit_code != 0 and "no connection" in result.output and "Traceback" not in result.output
    assert (samples().finish == "error").all()


def test_the_key_is_in_no_file(servers, monkeypatch, here):
    servers[1].key = "s3cret"
    monkeypatch.setenv("MY_KEY", "s3cret")
    (here / "s.yaml").write_text(f"vllm: {{url: '{servers[1].url}', key_variable: MY_KEY}}\n")
    outcome = run("--server", "s.yaml", limit=2)
    assert "s3cret" not in outcome
    for path in (here / "run").rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
