"""Files of SGLang, AIPerf, guidellm, SPEED-Bench's measurement, SpecForge and EAGLE: worked out by hand."""

import json

import pytest
from imported import PLAIN_RESPONSE, answer, jsonl, rows, unknown
from screens import refusal

from specbench.config import UserError
from specbench.results.importers import import_files, tools
from specbench.results.stored import StoredRun
from specbench_extras.other_tools import kinds


def import_(tool, path, *, folder=None, **options):
    return import_files(tool, [path], out=(folder or path.parent) / "run", **options)


def samples(folder):
    return StoredRun(folder).samples().sort_values(["method", "repeat", "doc_id"])


SGLANG = {"backend": "sglang", "dataset_name": "sharegpt", "request_rate": "inf", "max_concurrency": 1, "completed": 2}
SGLANG |= {"total_output_tokens": 12, "total_output_tokens_retokenized": 12, "request_throughput": 2.0}
SGLANG |= {"output_throughput": 12.0, "mean_e2e_latency_ms": 500.0, "median_e2e_latency_ms": 450.0}
SGLANG |= {"p99_e2e_latency_ms": 900.0, "mean_ttft_ms": 100.0, "median_ttft_ms": 90.0, "p99_ttft_ms": 300.0}
SGLANG |= {"mean_tpot_ms": 50.0, "accept_length": 2.5}
DETAILS = {"input_lens": [5, 6], "output_lens": [8, 4], "ttfts": [0.1, 0.2], "itls": [[0.05] * 7, [0.1] * 3]}
DETAILS |= {"generated_texts": ["a", "b"], "errors": ["", ""]}


def test_a_result_of_sglang(tmp_path):
    """The totals are the server's; τ is its own average."""
    row = rows(import_("sglang", jsonl(tmp_path / "eagle.jsonl", SGLANG))).loc[("sglang", "eagle")]
    assert (row.tau, row.request_throughput, row.mean_e2el_ms, row.p99_ttft_ms) == (2.5, 2.0, 500.0, 300.0)
    assert unknown(row, "acceptance_rate", "tokens_per_s")


def test_each_request_of_sglang_with_its_steps(tmp_path):
    """8 tokens: the prefill, 3 + 3 and 1 of a draft of 3 that was accepted whole; 4 tokens: the prefill, and 1 + 2."""
    stats = [
        {"mode": "detailed", "verify_lengths": [4, 4, 4], "accept_lengths": [3, 3, 4]},
        {"mode": "detailed", "verify_lengths": [4, 4], "accept_lengths": [1, 2]},
    ]
    requests = [{"request_index": n, "success": True, "stats": each} for n, each in enumerate(stats)]
    told = {"speculative_decoding_stats": {"schema_version": 1, "num_requests": 2, "requests": requests}}
    folder = import_("sglang", jsonl(tmp_path / "eagle.jsonl", SGLANG | DETAILS | told))
    row = rows(folder).loc[("sglang", "eagle")]
    assert row.tau == pytest.approx((3 + 3 + 1 + 1 + 2) / 5)
    assert row.acceptance_rate == pytest.approx((2 + 2 + 1 + 0 + 1) / 15)
    assert row.acceptance_rate_in_text == pytest.approx(6 / (15 - 2))
    assert row.tokens_per_s == pytest.approx(10 / 0.65) and samples(folder).prompt_tokens.tolist() == [5, 6]


def test_requests_of_sglang_without_steps_have_no_rounds(tmp_path):
    told = {"speculative_decoding_stats": {"requests": [{"request_index": 1, "success": False, "stats": None}]}}
    row = rows(import_("sglang", jsonl(tmp_path / "a.jsonl", SGLANG | DETAILS | told))).loc[("sglang", "a")]
    assert unknown(row, "acceptance_rate") and row.tau == 2.5 and row.documents == 2


@pytest.mark.parametrize("steps", [{"verify_lengths": [2], "accept_lengths": [3]}, {"request_index": 7}])
def test_steps_that_cannot_be(tmp_path, steps):
    request = {"request_index": steps.pop("request_index", 0), "stats": steps}
    told = {"speculative_decoding_stats": {"requests": [request]}}
    with pytest.raises(UserError, match=r"accepted more tokens than it verified|there are 2"):
        import_("sglang", jsonl(tmp_path / "a.jsonl", SGLANG | DETAILS | told))


def record(number, latency=900.0, first=100.0, tokens=9, phase="profiling", **others):
    metrics = {
        "time_to_first_token": {"value": first, "unit": "ms"},
        "request_latency": {"value": latency, "unit": "ms"},
    }
    metrics |= {"output_sequence_length": {"value": tokens, "unit": "tokens"}}
    metrics |= {"input_sequence_length": {"value": 40, "unit": "tokens"}}
    start = number * 10**9
    metadata = {"session_num": number, "x_request_id": f"r{number}", "benchmark_phase": phase}
    metadata |= {"request_start_ns": start, "request_end_ns": start + int(latency * 10**6), "was_cancelled": False}
    return {"metadata": metadata, "metrics": metrics, "error": None} | others


def test_records_of_aiperf(tmp_path):
    """Two requests of 0.8 s and 8 tokens after the first; a warm-up, a failure and a cancelled one do not count."""
    cancelled = record(4)
    cancelled["metadata"]["was_cancelled"] = True
    thinks = record(2)
    thinks["metrics"] |= {"reasoning_token_count": {"value": 5, "unit": "tokens"}}
    lines = [record(0, phase="warmup"), record(1), thinks, record(3, error={"code": 500, "message": "no memory"})]
    folder = import_("aiperf", jsonl(tmp_path / "export.jsonl", *lines, cancelled))
    row = rows(folder).loc[("aiperf", "export")]
    assert (row.documents, row.errors) == (2, 2) and row.tokens_per_s == pytest.approx(16 / 1.6)
    assert samples(folder).thought_tokens.tolist()[1] == 5
    assert samples(folder).prefill_seconds.tolist()[:2] == pytest.approx([0.1, 0.1])
    warnings = StoredRun(folder).manifest["imported"]["warnings"]
    assert any("1 requests of the warm-up" in line for line in warnings) and not any("together" in x for x in warnings)


def test_records_of_aiperf_that_ran_together_are_named(tmp_path):
    folder = import_("aiperf", jsonl(tmp_path / "a.jsonl", record(0, latency=1500.0), record(1)))
    assert any("requests ran together" in line for line in StoredRun(folder).manifest["imported"]["warnings"])


def test_units_of_aiperf(tmp_path):
    line = record(0)
    line["metrics"]["request_latency"] = {"value": 0.9, "unit": "sec"}
    row = rows(import_("aiperf", jsonl(tmp_path / "a.jsonl", line))).iloc[0]
    assert row.tokens_per_s == pytest.approx(8 / 0.8)
    line["metrics"]["request_latency"]["unit"] = "fortnights"
    with pytest.raises(UserError, match="the unit of request_latency is 'fortnights'"):
        import_("aiperf", jsonl(tmp_path / "b.jsonl", line), folder=tmp_path / "b")


CSV = """Metric,avg,min,max,sum,p1,p5,p10,p25,p50,p75,p90,p95,p99,std
Time to First Token (ms),100.50,56.5,2506,11601,57,60,61,76,90.25,170,189,196,300.00,287
Inter Token Latency (ms),12.50,11.8,13.0,879,11.8,11.8,12.4,12.5,12.00,12.6,12.9,13,15.00,1
Request Latency (ms),"1,500.00",1,2,3,1,1,1,1,"1,400.00",1,1,1,"2,900.00",1

Metric,Value
Output Token Throughput (tokens/sec),"1,234.50"
Request Throughput (requests/sec),3.25
"""


def test_a_summary_of_aiperf_as_csv(tmp_path):
    (tmp_path / "eagle.csv").write_text(CSV.replace("\n", "\r\n"))
    row = rows(import_("aiperf", tmp_path / "eagle.csv")).loc[("aiperf", "eagle")]
    assert (row.output_throughput, row.request_throughput, row.documents) == (1234.5, 3.25, 0)
    assert (row.mean_ttft_ms, row.median_ttft_ms, row.p99_ttft_ms) == (100.5, 90.25, 300.0)
    assert (row.mean_tpot_ms, row.mean_e2el_ms, row.p99_e2el_ms) == (12.5, 1500.0, 2900.0)
    assert unknown(row, "mean_itl_ms")


def test_a_summary_of_aiperf_as_json(tmp_path):
    metric = {"unit": "ms", "avg": 1500.0, "p50": 1400.0, "p99": 2900.0}
    entry = {"request_latency": metric, "request_throughput": {"unit": "requests/sec", "avg": 3.25}}
    entry |= {"input_config": {"endpoint": {"model_names": ["org/one"], "streaming": True}, "concurrency": 4}}
    folder = import_("aiperf", jsonl(tmp_path / "eagle.json", entry))
    assert rows(folder).iloc[0].mean_e2el_ms == 1500.0
    (file,) = StoredRun(folder).manifest["imported"]["files"]
    assert file["conditions"]["model"] == {"model": "org/one"}
    assert file["conditions"]["concurrency"] == {"max_concurrency": 4}


def guidellm(*benchmarks):
    return {
        "metadata": {"version": 2, "guidellm_version": "0.7.2"},
        "args": {"model": "m"},
        "benchmarks": [*benchmarks],
    }


def benchmark(streams=1, failed=()):
    request = {"request_id": "a", "prompt_tokens": 40, "output_tokens": 9, "request_latency": 0.9, "output": "five"}
    request |= {"time_to_first_token_ms": 100.0, "inter_token_latency_ms": 100.0}
    metrics = {"requests_per_second": {"successful": {"mean": 1.1}, "total": {"mean": 2.0}}}
    latency = {"mean": 100.0, "median": 90.0, "percentiles": {"p99": 300.0}}
    metrics |= {"time_to_first_token_ms": {"successful": latency}}
    config = {"strategy": {"type_": "concurrent", "streams": streams}}
    requests = {"successful": [request, request], "incomplete": [], "errored": list(failed)}
    return {"config": config, "metrics": metrics, "requests": requests}


def test_a_report_of_guidellm(tmp_path):
    """Each of two requests took 0.8 s for the 8 tokens after its first."""
    report = guidellm(benchmark(failed=[{"prompt_tokens": 4, "error": "timeout"}]))
    folder = import_("guidellm", jsonl(tmp_path / "eagle.json", report))
    row = rows(folder).loc[("guidellm", "eagle")]
    assert (row.documents, row.errors) == (2, 1) and row.tokens_per_s == pytest.approx(16 / 1.6)
    assert (row.request_throughput, row.mean_ttft_ms, row.median_ttft_ms, row.p99_ttft_ms) == (1.1, 100.0, 90.0, 300.0)
    assert samples(folder).error.dropna().tolist() == ["errored: timeout"]


def test_each_benchmark_of_guidellm_is_a_method(tmp_path):
    folder = import_("guidellm", jsonl(tmp_path / "sweep.json", guidellm(benchmark(), benchmark(16))))
    assert rows(folder).index.get_level_values("method").tolist() == ["sweep-1", "sweep-2"]
    assert any("sweep-2: requests ran together" in line for line in StoredRun(folder).manifest["imported"]["warnings"])


def test_newer_metrics_of_guidellm(tmp_path):
    newer = benchmark()
    request = newer["requests"]["successful"][0]
    request |= {"output_tokens": None, "output_metrics": {"text_tokens": 9, "total_tokens": 9}}
    row = rows(import_("guidellm", jsonl(tmp_path / "a.json", guidellm(newer)))).iloc[0]
    assert row.tokens_per_s == pytest.approx(16 / 1.6)


def response(name, lengths, category="coding"):
    choices = [{"index": 0, "turns": ["five"]}]
    return {
        "question_id": name,
        "category": category,
        "turns": ["q"],
        "acceptance_lengths": lengths,
        "choices": choices,
    }


def test_responses_of_speed_bench(tmp_path):
    """7 tokens in 3 steps of code, 4 in 2 of mathematics; a failed one does not count."""
    failed = {"question_id": "math-1", "category": "math", "error": True, "error_message": "no memory"}
    path = jsonl(
        tmp_path / "eagle.jsonl", response("coding-0", [[3, 3], [1]]), response("math-0", [1, 3], "math"), failed
    )
    cells = rows(import_("speed-bench", path, by_category=True))
    assert cells.loc[("coding", "eagle")].tau == pytest.approx(7 / 3)
    assert (cells.loc[("math", "eagle")].tau, cells.loc[("math", "eagle")].errors) == (2.0, 1)
    row = rows(import_("speed-bench", path, folder=tmp_path / "all")).loc[("speed-bench", "eagle")]
    assert row.tau == pytest.approx(11 / 5) and row.tau_mean == pytest.approx((7 / 3 + 2) / 2)


def test_acceptance_lengths_of_speed_bench(tmp_path):
    """4 steps of one token, 3 of two and 1 of four: 14 tokens in 8 steps; the mean over requests is another figure."""
    entry = {"Request_AL": {"0": {"0": 2.0}, "1": {"0": 1.6}}, "Average_AL": 1.8}
    entry |= {"Acceptance_Length_Histogram": {"1": 4, "2": 3, "4": 1}, "Conditional_Acceptance_Rate": {"1": 1.0}}
    row = rows(import_("speed-bench", jsonl(tmp_path / "a.json", entry))).iloc[0]
    assert (row.tau, row.tau_mean) == pytest.approx((14 / 8, 1.8))
    for wrong in ({}, {"a": 1}, {"1": 0}, {"-1": 2}, [1]):
        with pytest.raises(UserError, match="Acceptance_Length_Histogram"):
            import_("speed-bench", jsonl(tmp_path / "b.json", entry | {"Acceptance_Length_Histogram": wrong}))


def test_a_result_of_specforge(tmp_path):
    """Requests of 21 and 10 tokens with 2.1 and 2 a verification: 10 and 5 of them, which accepted 10 and 4."""
    metrics = {"latency": 2.0, "output_throughput": 100.0, "accept_length": 2.05, "accuracy": None, "num_questions": 2}
    detailed = metrics | {"per_request_accept_length": [2.1, 2.0], "per_request_output_length": [21, 10]}
    settings = {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4}
    report = {"model": "m", "mtbench": [settings | {"metrics": [detailed], "num_samples": 2}]}
    row = rows(import_("specforge", jsonl(tmp_path / "eagle.json", report))).loc[("mtbench", "eagle")]
    assert row.tau == pytest.approx(1 + 14 / 15) and row.tau_mean == pytest.approx((2 + 1.8) / 2)
    assert row.output_throughput == 100.0
    older = {
        "model": "m",
        "mtbench": [settings | {"metrics": [metrics]}, settings | {"steps": 5, "metrics": [metrics]}],
    }
    cells = rows(import_("specforge", jsonl(tmp_path / "old.json", older), folder=tmp_path / "old"))
    assert len(cells) == 2 and set(cells.tau) == {2.05}


def eagle(question, tokens, idxs, model="ess-vicuna"):
    row = answer(question, tokens, [1.0] * len(tokens), [], model=model)
    del row["choices"][0]["accept_lengths"], row["choices"][0]["decoding_steps"]
    row["choices"][0]["idxs"] = idxs
    return row


def test_answers_of_eagle_with_their_last_rounds(tmp_path):
    """20 tokens in rounds 0 to 4 and 0 to 2: 20 in 8; then 6 in 3. Vanilla takes a round for each token."""
    path = jsonl(tmp_path / "eagle.jsonl", eagle(81, [12, 8], [4, 2]), eagle(82, [6], [2]))
    plain = jsonl(tmp_path / "plain.jsonl", eagle(81, [12, 8], [11, 7], "plain"), eagle(82, [6], [5], "plain"))
    folder = import_files("spec-bench", [path], plain, "eagle", out=tmp_path / "run")
    cells = rows(folder)
    assert cells.loc[("spec-bench", "eagle")].tau == pytest.approx(26 / 11)
    assert cells.loc[("spec-bench", "eagle")].tau_mean == pytest.approx((20 / 8 + 6 / 3) / 2)
    assert cells.loc[("spec-bench", "vanilla")].tau == 1


FILES = {
    "sglang": SGLANG,
    "aiperf": record(0),
    "guidellm": guidellm(benchmark()),
    "speed-bench": response("coding-0", [3]),
    "specforge": {"model": "m", "mtbench": [{"batch_size": 1, "metrics": [{"accept_length": 2.0}]}]},
    "spec-bench": answer(81, [6], [1.0], [3, 3]),
    "vllm": PLAIN_RESPONSE,
}


@pytest.mark.parametrize("tool", tools())
def test_a_file_of_another_tool_says_whose_it_is(tool, tmp_path):
    for owner, entry in FILES.items():
        path = jsonl(tmp_path / f"{owner}.jsonl", entry)
        assert kinds.kind_of(entry).tool == owner
        if owner != tool:
            with pytest.raises(UserError, match=f"{owner}.jsonl is .*; `specbench import {owner}` reads it"):
                import_(tool, path)
    assert not (tmp_path / "run").exists()


UNREAD = {
    "bench_one_batch": {"run_name": "a", "batch_size": 1, "overall_throughput": 3.0, "acc_length": 2.0},
    "llama-bench": {"build_commit": "a", "avg_ts": 3.0, "n_gen": 4},
    "GenAI-Perf": {"service_kind": "openai", "experiments": [], "endpoint": "v1"},
    "lm-evaluation-harness": {"results": {}, "configs": {}},
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_no_importer_reads_is_named(name, tmp_path):
    with pytest.raises(UserError, match=f"{name}.*; no importer reads it"):
        import_("vllm", jsonl(tmp_path / "a.json", UNREAD[name]))


def test_an_unknown_file_is_refused_with_its_keys(tmp_path):
    path = jsonl(tmp_path / "a.json", {"own": 1, "keys": 2})
    with pytest.raises(UserError, match=r"is no file of aiperf that is known \(its first keys: own, keys\)"):
        import_("aiperf", path)
    said = refusal("import", "guidellm", path, "--before", path)
    assert "--before is for vllm" in said
    assert "--by-category is for spec-bench and speed-bench" in refusal("import", "aiperf", path, "--by-category")
    json.loads(path.read_text())
