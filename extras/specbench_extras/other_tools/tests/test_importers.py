"""Other tools' files as runs: what they tell is worked out by hand, what they do not tell is unknown and not 0."""

import json
import math

import pyarrow.parquet as pq
import pytest
from imported import CHOICE, PLAIN_RESPONSE, answer, import_spec_bench, import_vllm, jsonl, rows, unknown

from specbench.analysis import compare, pooled
from specbench.analysis.simulate import simulate
from specbench.config import UserError
from specbench.report import comparison
from specbench.results.importers import origin
from specbench.results.stored import StoredRun

NOT_TOLD = ["accuracy", "rescue_rate", "overhead", "peak_memory"]


@pytest.fixture
def answers(tmp_path):
    """15 tokens in 2.25 s and 7 rounds, against 20 tokens in 5 s and as many rounds."""
    mine = jsonl(
        tmp_path / "eagle.jsonl",
        answer(81, [6, 4], [1.0, 0.5], [3, 2, 1, 2, 2]),
        answer(110, [5], [0.75], [4, 1], category="math_reasoning"),
    )
    plain = jsonl(
        tmp_path / "plain.jsonl",
        answer(81, [6, 4], [2.0, 1.25], [1] * 10, model="plain-float16"),
        answer(110, [10], [1.75], [1] * 10, category="math_reasoning", model="plain-float16"),
    )
    return mine, plain


def test_spec_bench_against_its_baseline(tmp_path, answers):
    mine, plain = answers
    folder = import_spec_bench([mine], plain, "eagle", "vicuna", tmp_path / "run")
    cells = rows(folder)
    assert cells.index.tolist() == [("spec-bench", "vanilla"), ("spec-bench", "eagle")]
    eagle, vanilla = cells.loc[("spec-bench", "eagle")], cells.loc[("spec-bench", "vanilla")]
    assert (eagle.pair, eagle.baseline, eagle.documents, eagle.repeats, eagle.errors) == ("vicuna", "vanilla", 2, 1, 0)
    assert eagle.tau == pytest.approx(15 / 7) and vanilla.tau == 1
    assert eagle.verification_rate == pytest.approx(7 / 15)
    assert eagle.speedup_e2e == pytest.approx((5 / 20) / (2.25 / 15))
    assert (eagle.tokens_per_s_e2e, vanilla.tokens_per_s_e2e) == pytest.approx((15 / 2.25, 20 / 5))
    for row in (eagle, vanilla):
        assert unknown(row, *NOT_TOLD, "acceptance_rate", "alpha", "discard_rate", "tokens_per_s", "speedup_decode")
    assert "greedy" not in eagle.sampling


def test_what_spec_bench_does_not_tell_is_null(tmp_path, answers):
    folder = import_spec_bench([answers[0]], out=tmp_path / "run")
    samples, rounds = (pq.read_table(folder / f"{name}.parquet").to_pandas() for name in ("samples", "rounds"))
    assert samples.method.unique().tolist() == ["eagle-float16"]
    assert samples.new_tokens.tolist() == [10, 5] and samples.wall_seconds.tolist() == [1.5, 0.75]
    for name in ("prefill_seconds", "decode_seconds", "prompt_tokens", "tokens", "seed", "peak_memory", "finish"):
        assert samples[name].isna().all(), name
    assert rounds["round"].tolist() == [1, 2, 3, 4, 5, 1, 2] and rounds.committed.tolist() == [3, 2, 1, 2, 2, 4, 1]
    for name in ("drafted", "accepted", "rescued", "truncated", "draft_forwards", "seconds", "target_seconds"):
        assert rounds[name].isna().all(), name
    assert pq.read_table(folder / "scores.parquet").num_rows == 0


def test_the_manifest_names_the_files(tmp_path, answers):
    run = StoredRun(import_spec_bench([answers[0]], answers[1], out=tmp_path / "run"))
    stored = run.manifest["imported"]
    assert stored["from"] == "spec-bench" and stored["warnings"] == []
    assert [(one["method"], one["file"]) for one in stored["files"]] == [
        ("vanilla", "plain.jsonl"),
        ("eagle-float16", "eagle.jsonl"),
    ]
    assert all(len(one["sha256"]) == 64 for one in stored["files"])
    assert run.finished and run.plan.baseline == "vanilla" and run.documents() == {"spec-bench": {81: "", 110: ""}}
    assert {key: value for key, value in run.conditions().items() if value is not None} == {}


def test_an_import_is_not_called_faster(tmp_path, monkeypatch):
    """Ten questions of 1 s against 2 s, both written at some second of 2023; which machine, nobody knows."""
    mine, plain = (
        jsonl(
            tmp_path / f"{name}.jsonl", *(answer(n, [10], [seconds + n / 100], [2] * 5, model=name) for n in range(10))
        )
        for name, seconds in (("eagle", 1.0), ("plain", 2.0))
    )
    folder = import_spec_bench([mine], plain, out=tmp_path / "run")
    monkeypatch.setattr(comparison.console, "width", 80)
    comparison.compare([folder], "table", out=tmp_path / "out")
    text = (tmp_path / "out").read_text()
    assert "eagle: 1.96 times the speed of vanilla end to end, if the machine was the same and as idle for both" in text
    assert "faster than" not in text
    assert "eagle (eagle.jsonl): 2023-11-14 22:13 UTC, host not told" in text
    head = text.splitlines()[1]
    assert "tok/s end to end" in head and "end to end [95 %]" in head
    assert not {"score", "p", "accept", "discard", "speedup"} & set(head.replace("end to end [95 %]", "").split())


@pytest.mark.parametrize("stamp", ["soon", -1.0, 1e300, None, [1], float("nan")])
def test_a_time_that_is_none_is_not_told(tmp_path, stamp):
    row = answer(81, [6], [1.0], [3, 3]) | {"tstamp": stamp}
    manifest = StoredRun(import_spec_bench([jsonl(tmp_path / "a.jsonl", row)], out=tmp_path / "run")).manifest
    assert not {"began", "ended", "host"} & set(manifest["imported"]["files"][0])
    assert (
        origin.time_and_host(manifest["imported"]["files"][0])
        == origin.time_and_host({"host": 3})
        == "time not told, host not told"
    )


def test_categories_as_tasks(tmp_path, answers):
    cells = rows(import_spec_bench(answers[:1], answers[1], "eagle", out=tmp_path / "run", by_category=True))
    assert set(cells.index.get_level_values("task")) == {"mt_bench", "math_reasoning", "average"}
    writing, math_, mean = (cells.loc[(task, "eagle")] for task in ("mt_bench", "math_reasoning", "average"))
    assert writing.tau == 2 and writing.speedup_e2e == pytest.approx(3.25 / 1.5)
    assert math_.tau == 2.5 and math_.speedup_e2e == pytest.approx((1.75 / 10) / (0.75 / 5))
    assert mean.speedup_e2e == pytest.approx((3.25 / 1.5 + 0.175 / 0.15) / 2)


def test_choices_are_repeats_and_lengths_may_be_per_turn(tmp_path):
    two = answer(81, [6, 4], [1.0, 0.5], [[3, 3], [4]])
    two["choices"].append(answer(81, [3], [0.25], [2, 1])["choices"][0])
    row = rows(import_spec_bench([jsonl(tmp_path / "a.jsonl", two)], out=tmp_path / "run")).iloc[0]
    assert (row.repeats, row.documents) == (2, 1) and row.tau == pytest.approx(13 / 5)


def test_without_accept_lengths_tau_is_unknown_and_speed_is_not(tmp_path, answers):
    old = answer(81, [6, 4], [1.0, 0.5], [])
    del old["choices"][0]["accept_lengths"]
    folder = import_spec_bench([jsonl(tmp_path / "a.jsonl", old)], answers[1], "old", out=tmp_path / "run")
    row = rows(folder).loc[("spec-bench", "old")]
    assert unknown(row, "tau", "verification_rate") and row.speedup_e2e == pytest.approx(3.25 / 1.5)


def test_runs_of_one_method_are_pooled(tmp_path, answers):
    """Two imports of a method: the second took twice as long, so 10 s against 6.75 s, for 40 and 30 tokens."""
    slow = jsonl(
        tmp_path / "slow.jsonl",
        answer(81, [6, 4], [2.0, 1.0], [3, 2, 1, 2, 2]),
        answer(110, [5], [1.5], [4, 1], category="math_reasoning"),
    )
    folders = [import_spec_bench([one], answers[1], "eagle", out=tmp_path / one.stem) for one in (answers[0], slow)]
    row = rows(*folders).loc[("spec-bench", "eagle")]
    assert row.repeats == 2 and row.speedup_e2e == pytest.approx((10 / 40) / (6.75 / 30))


def test_a_failed_prompt_is_an_error_and_not_timed(tmp_path, answers):
    failed = answer(110, [6], [0.5], [2, 2], texts=["ERROR"], category="math_reasoning")
    mine = jsonl(tmp_path / "a.jsonl", answer(81, [6, 4], [1.0, 0.5], [3, 2, 1, 2, 2]), failed)
    row = rows(import_spec_bench([mine], answers[1], "eagle", out=tmp_path / "run")).loc[("spec-bench", "eagle")]
    assert (row.errors, row.documents, row.tau) == (1, 1, 2)
    assert row.speedup_e2e == pytest.approx(3.25 / 1.5)


def test_equal_times_of_two_questions_are_suspicious(tmp_path, capsys):
    mine = jsonl(
        tmp_path / "a.jsonl",
        answer(81, [6], [1.125], [6]),
        answer(82, [6], [1.125], [6]),
        answer(83, [6], [1.25], [6]),
    )
    folder = import_spec_bench([mine], out=tmp_path / "run")
    (line,) = StoredRun(folder).manifest["imported"]["warnings"]
    assert "81" in line and "82" in line and "83" not in line and "1.125" in line
    assert line in capsys.readouterr().out


def test_documents_that_the_baseline_lacks(tmp_path, answers, capsys):
    more = jsonl(tmp_path / "a.jsonl", answer(81, [10], [1.5], [5, 5]), answer(82, [9], [50.0], [9]))
    row = rows(import_spec_bench([more], answers[1], "eagle", out=tmp_path / "run")).loc[("spec-bench", "eagle")]
    assert row.speedup_e2e == pytest.approx(3.25 / 1.5) and "eagle: 1 samples" in capsys.readouterr().out


GOOD = answer(81, [6], [1.0], [6])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(GOOD) + '\n{"question_id": 82, "ca', r"line 2 is damaged \(not JSON"),
        (json.dumps(GOOD) + "\n\n" + json.dumps({"question_id": 82, "model_id": "eagle-float16"}), "line 3: choices"),
        (json.dumps(GOOD) + "\n[1, 2]\n", "line 2: not an object"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD), "line 2: question 81 is there twice"),
        (json.dumps(GOOD) + "\n" + json.dumps(answer(82, [6], [1.0], [6], model="b")), "mixes answers of b, eagle"),
        (json.dumps(answer(81, [6, 4], [1.0], [6])), "new_tokens and wall_time"),
        (json.dumps(answer(81, [6], [-1.0], [6])), "wall_time"),
        (json.dumps(answer(81, [6], [math.nan], [6])), "wall_time"),
        (json.dumps(answer("81a", [6], [1.0], [6])), "question_id"),
        ("question,seconds\n81,1.0\n", r"line 1 is damaged \(not JSON"),
        ("\n", "holds no entries"),
    ],
)
def test_damaged_and_foreign_files(tmp_path, text, words):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        import_spec_bench([path], out=tmp_path / "run")
    assert "a.jsonl" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_wrong_choices_of_files(tmp_path, answers):
    mine, plain = answers
    with pytest.raises(UserError, match="there is no file"):
        import_spec_bench([tmp_path / "none.jsonl"], out=tmp_path / "run")
    with pytest.raises(UserError, match="--method names the method of one file"):
        import_spec_bench([mine, plain], method="eagle", out=tmp_path / "run")
    with pytest.raises(UserError, match="'eagle-float16' already"):
        import_spec_bench([mine, mine], out=tmp_path / "run")
    import_spec_bench([mine, plain], out=tmp_path / "run")
    with pytest.raises(UserError, match="choose another --out"):
        import_spec_bench([mine], out=tmp_path / "run")


def response(tokens, ttft, generation, speculation=None, **others):
    """What vLLM answers with its metrics on."""
    row = {"id": "cmpl-1", "object": "chat.completion", "model": "m"}
    row["choices"] = [{"index": 0, "message": {"content": "words"}, "finish_reason": "length", "stop_reason": None}]
    row["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    timing = {"time_to_first_token_ms": ttft, "generation_time_ms": generation, "queue_time_ms": 3.0}
    return row | {"metrics": timing | {"mean_itl_ms": 1.0, "speculative_decoding": speculation}} | others


def detailed(drafted, accepted):
    histogram = [accepted.count(j) for j in range(4)]
    facts = {"num_spec_steps": len(accepted), "num_accepted_draft_tokens": sum(accepted), "num_spec_tokens": 3}
    facts |= {"num_draft_tokens": sum(drafted), "acceptance_histogram": histogram, "mean_acceptance_length": 0.0}
    return facts | {"per_step_drafted": drafted, "per_step_accepted": accepted}


def test_vllm_responses_with_every_round(tmp_path):
    """Round by round 3 + 1 + 4, and 2 + 4 of which the text's end cuts one: 13 tokens behind the first ones."""
    mine = jsonl(
        tmp_path / "mtp.jsonl",
        response(9, 100.0, 900.0, detailed([3, 3, 3], [2, 0, 3])),
        response(6, 100.0, 400.0, detailed([3, 3], [1, 3])),
    )
    plain = jsonl(tmp_path / "plain.jsonl", response(9, 50.0, 1600.0), response(6, 50.0, 1000.0))
    cells = rows(import_vllm([mine], plain, out=tmp_path / "run"))
    row, base = cells.loc[("vllm", "mtp")], cells.loc[("vllm", "vanilla")]
    assert row.tau == pytest.approx(13 / 5)
    assert row.acceptance_rate == pytest.approx(9 / 15) and row.alpha == pytest.approx(9 / 12)
    assert row.discard_rate == pytest.approx(6 / 13) and row.verification_rate == pytest.approx(5 / 13)
    assert row.tokens_per_s == pytest.approx(10) and base.tokens_per_s == pytest.approx(5)
    assert row.speedup_decode == pytest.approx(2) and row.speedup_e2e == pytest.approx(2.7 / 1.5)
    assert unknown(row, *NOT_TOLD) and unknown(base, *NOT_TOLD, "tau", "acceptance_rate", "verification_rate")


def test_depths_of_vllm_rounds(tmp_path):
    mine = jsonl(tmp_path / "mtp.jsonl", response(9, 100.0, 900.0, detailed([3, 3, 3], [2, 0, 3])))
    run = StoredRun(import_vllm([mine], out=tmp_path / "run"))
    table = compare.depth_table(pooled.measured([run], with_depths=True))
    assert table.tested.tolist() == [3, 2, 2] and table.joint_accept.tolist() == pytest.approx([2 / 3, 2 / 3, 1 / 3])


@pytest.mark.parametrize("tokens", [20, 5])
def test_vllm_rounds_that_do_not_add_up(tmp_path, capsys, tokens):
    """Rounds of 8: for 20 tokens there were others without a draft, for 5 the last one's 4 cannot all be cut.

    What was drafted and accepted is known all the same.
    """
    mine = jsonl(tmp_path / "ngram.jsonl", response(tokens, 100.0, 900.0, detailed([3, 3, 3], [2, 0, 3])))
    row = rows(import_vllm([mine], out=tmp_path / "run")).iloc[0]
    assert row.acceptance_rate == pytest.approx(5 / 9) and unknown(row, "tau", "alpha", "verification_rate")
    assert row.tokens_per_s == pytest.approx((tokens - 1) / 0.9) and "1 of 1 responses" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "rate"),
    [
        ({"acceptance_histogram_by_draft_length": {"3": [1, 0, 1, 0], "5": [0, 0, 0, 1, 0, 0]}}, 5 / 11),
        ({"num_draft_tokens": 9, "num_spec_tokens": 3}, 5 / 9),  # every round drafted all it could
        ({"num_draft_tokens": 8, "num_spec_tokens": 3}, math.nan),
        ({}, math.nan),
    ],
)
def test_vllm_summaries(tmp_path, facts, rate):
    """Accepted 0, 2 and 3 in some order, so 1 + 3 + 4 tokens behind the first one."""
    facts = {"num_spec_steps": 3, "acceptance_histogram": [1, 0, 1, 1], "per_step_accepted": None} | facts
    mine = jsonl(tmp_path / "mtp.jsonl", response(9, 100.0, 900.0, facts))
    row = rows(import_vllm([mine], out=tmp_path / "run")).iloc[0]
    assert row.tau == pytest.approx(8 / 3) and row.acceptance_rate == pytest.approx(rate, nan_ok=True)


def test_which_round_of_a_vllm_summary_was_cut_is_not_told(tmp_path):
    """One token fewer than the rounds make: whose it was, a histogram does not say."""
    facts = {"num_spec_steps": 3, "acceptance_histogram": [1, 0, 1, 1], "num_draft_tokens": 9, "num_spec_tokens": 3}
    mine = jsonl(tmp_path / "mtp.jsonl", response(8, 100.0, 900.0, facts))
    row = rows(import_vllm([mine], out=tmp_path / "run")).iloc[0]
    assert row.acceptance_rate == pytest.approx(5 / 9) and unknown(row, "tau", "alpha", "verification_rate")


def test_vllm_responses_that_failed_or_hold_little(tmp_path):
    """A list as one JSON: the end of a stream, an error, an answer of one token, and two choices in one answer."""
    stream = response(3, 100.0, 100.0, object="chat.completion.chunk", choices=[])
    two = response(8, None, None) | {"metrics": None}
    two["choices"] = two["choices"] * 2
    path = tmp_path / "a.json"
    path.write_text(json.dumps([stream, {"error": {"message": "too long", "code": 400}}, response(1, 50.0, 0.0), two]))
    folder = import_vllm([path], out=tmp_path / "run")
    samples = pq.read_table(folder / "samples.parquet").to_pandas().set_index("doc_id")
    assert samples.finish.fillna("").tolist() == ["", "error", "length", ""] and "too long" in samples.error[1]
    assert samples.new_tokens.fillna(-1).tolist() == [3, -1, 1, -1]
    assert samples.decode_seconds.fillna(-1).tolist() == pytest.approx([0.1, -1, 0, -1])
    assert pq.read_table(folder / "rounds.parquet").to_pandas().doc_id.tolist() == [0, 3]


def test_how_vllm_says_that_a_text_ended(tmp_path):
    """Its `stop` is an end token where no `stop_reason` names a stop string or a token of the request's own."""
    message = [("stop", None), ("stop", "\n\n"), ("stop", 7), ("length", None), ("tool_calls", None), (None, None)]
    choices = [{"message": {"content": "words"}, "finish_reason": end, "stop_reason": why} for end, why in message]
    path = jsonl(tmp_path / "a.jsonl", *(response(3, 100.0, 100.0, choices=[choice]) for choice in choices))
    samples = pq.read_table(import_vllm([path], out=tmp_path / "run") / "samples.parquet").to_pandas()
    result = samples.set_index("doc_id").finish.sort_index()
    assert result.fillna("").tolist() == ["eos", "stop", "stop", "length", "eos", ""]


def bench(tokens, ttfts, itls, errors=("", "", ""), inputs=(7, 8, 9), **others):
    """What `vllm bench serve --save-result --save-detailed` writes."""
    row = {"date": "20260101-000000", "backend": "vllm", "model_id": "m", "max_concurrency": 1, "completed": 3}
    row |= {"request_throughput": 1.0, "input_lens": list(inputs), "output_lens": tokens, "ttfts": ttfts, "itls": itls}
    return row | {"generated_texts": ["words"] * len(tokens), "errors": list(errors)} | others


PLAIN = bench([5, 3, 4], [0.1, 0.1, 0.1], [[0.2] * 4, [0.2] * 2, [0.2] * 3])
MINE = bench([5, 3, 0], [0.2, 0.1, 0.0], [[0.1, 0.2], [0.3], []], ("", "", "timed out"))


def test_vllm_bench(tmp_path):
    """6 tokens in 0.6 s against 1.2 s; with the first ones 8 in 0.9 s against 1.4 s. The third request failed."""
    sums = {"spec_decode_num_drafts": 3, "spec_decode_acceptance_length": 2.0}
    mine, plain = jsonl(tmp_path / "mtp.json", MINE | sums), jsonl(tmp_path / "plain.json", PLAIN)
    folder = import_vllm([mine], plain, out=tmp_path / "run")
    row = rows(folder).loc[("vllm", "mtp")]
    assert row.speedup_decode == pytest.approx(2) and row.speedup_e2e == pytest.approx(1.4 / 0.9)
    assert (row.errors, row.documents) == (1, 2) and unknown(row, *NOT_TOLD, "alpha", "acceptance_rate")
    assert row.tau == 2.0  # the acceptance length that the server tells
    stored = StoredRun(folder).manifest["imported"]
    assert stored["files"][1]["totals"] == [sums | {"request_throughput": 1.0}] and stored["warnings"] == []


def test_host_and_time_of_vllm(tmp_path):
    """A benchmark's date is of its own clock, and its host is metadata; responses tell when they were made."""
    served = jsonl(tmp_path / "served.json", bench([5], [0.1], [[0.2] * 4], [""], [7], host="h" * 99))
    saved = jsonl(tmp_path / "saved.jsonl", *(response(3, 100.0, 100.0) | {"created": n * 3600} for n in (1, 2)))
    for path, words in (
        (served, f"2026-01-01 00:00 (its clock), {'h' * 60}"),
        (saved, "1970-01-01 01:00 UTC to 1970-01-01 02:00 UTC, host not told"),
    ):
        manifest = StoredRun(import_vllm([path], out=tmp_path / f"run-{path.stem}")).manifest
        assert origin.time_and_host(manifest["imported"]["files"][0]) == words


def test_totals_of_vllm_are_rates(tmp_path, capsys):
    """In 10 rounds of 3 drafts 16 were accepted, and in 4 rounds all; then in 5 rounds of 3, 9 and in 2 all."""
    first = {"num_drafts": 10, "draft_tokens": 30, "accepted_tokens": 16}
    first["per_position_acceptance_rates"] = [0.7, 0.5, 0.4]
    second = {"num_drafts": 5, "draft_tokens": 15, "accepted_tokens": 9}
    second["per_position_acceptance_rates"] = [0.8, 0.6, 0.4]
    entries = [MINE | {f"spec_decode_{name}": value for name, value in one.items()} for one in (first, second)]
    folder = import_vllm([jsonl(tmp_path / "mtp.json", *entries)], out=tmp_path / "run")
    row = rows(folder).iloc[0]
    assert row.acceptance_rate == pytest.approx(25 / 45) and row.tau == pytest.approx(1 + 25 / 15)
    assert row.alpha == pytest.approx(25 / (25 + 15 - 6))
    comparison.compare([folder], "md")
    assert "accept, α and τ of mtp are a server's totals" in capsys.readouterr().out
    # Drafts of several lengths: the last position does not tell how many were accepted as a whole.
    entries[0]["spec_decode_draft_tokens"] = 29
    row = rows(import_vllm([jsonl(tmp_path / "odd.json", *entries)], out=tmp_path / "odd")).iloc[0]
    assert row.acceptance_rate == pytest.approx(25 / 44) and unknown(row, "alpha")


def test_a_failed_answer_without_a_time_is_an_error_row(tmp_path):
    path = jsonl(
        tmp_path / "eagle.jsonl",
        answer(81, [6], [1.0], [3, 3], category="stem"),
        answer(82, [0], [math.nan], [], category="math", texts=["ERROR"]),
        answer(301, [4], [0.5], [4], category="rag"),
    )
    cells = rows(import_spec_bench([path], out=tmp_path / "run", by_category=True))
    assert cells.errors.to_dict() == {
        ("mt_bench", "eagle-float16"): 1,
        ("rag", "eagle-float16"): 0,
        ("average", "eagle-float16"): 1,
    }
    with pytest.raises(UserError, match="wall_time"):
        import_spec_bench([jsonl(tmp_path / "a.jsonl", answer(1, [6], [math.nan], [6]))], out=tmp_path / "odd")


def test_vllm_bench_passes_are_repeats(tmp_path):
    again = MINE | {"itls": [[0.3, 0.3], [0.6], []]}
    mine, plain = jsonl(tmp_path / "mtp.json", MINE, again), jsonl(tmp_path / "plain.json", PLAIN, PLAIN)
    row = rows(import_vllm([mine], plain, out=tmp_path / "run")).loc[("vllm", "mtp")]
    assert row.repeats == 2 and row.speedup_decode == pytest.approx(2.4 / 1.8)


def test_vllm_bench_without_streaming_tells_the_whole_only(tmp_path):
    mine = bench([5, 3, 4], [0.0] * 3, [[], [], []], latencies=[0.5, 0.25, 0.25])
    folder = import_vllm([jsonl(tmp_path / "a.json", mine)], jsonl(tmp_path / "b.json", PLAIN), out=tmp_path / "run")
    row = rows(folder).loc[("vllm", "a")]
    assert row.speedup_e2e == pytest.approx(2.1) and unknown(row, "speedup_decode", "tokens_per_s")


def test_vllm_bench_with_requests_together_is_marked(tmp_path, capsys):
    import_vllm([jsonl(tmp_path / "a.json", PLAIN | {"max_concurrency": 8})], out=tmp_path / "run")
    assert "max_concurrency 8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"request_throughput": 1.0, "mean_ttft_ms": -5.0}, "entry 1: mean_ttft_ms"),
        (bench([5, 3], [0.1, 0.1], [[0.1], [0.1]]), "entry 1: .*differ in length"),
        ({"id": "cmpl-1", "usage": {"completion_tokens": 3}}, "no response has `metrics`"),
        (response(3, "soon", 1.0), "metrics.time_to_first_token_ms"),
        (response(9, 1.0, 1.0, detailed([3, 3], [1, 2]) | {"per_step_drafted": [3]}), "must be as many"),
        (response(9, 1.0, 1.0, detailed([1, 3], [2, 2])), "accepted more than it drafted"),
        (response(9, 1.0, 1.0, {"acceptance_histogram_by_draft_length": {"1": [0, 0, 1]}}), "more than it drafted"),
    ],
)
def test_damaged_and_foreign_vllm_files(tmp_path, row, words):
    with pytest.raises(UserError, match=words) as caught:
        import_vllm([jsonl(tmp_path / "a.json", row)], out=tmp_path / "run")
    assert "a.json" in str(caught.value) and not (tmp_path / "run").exists()


def test_other_prompts_than_the_baseline_had(tmp_path):
    mine = jsonl(tmp_path / "a.json", PLAIN | {"input_lens": [7, 8, 10]})
    with pytest.raises(UserError, match=r"request 3 has 10 prompt tokens in .* and 9 in"):
        import_vllm([mine], jsonl(tmp_path / "b.json", PLAIN), out=tmp_path / "run")


def test_rounds_of_vllm_are_simulated_if_their_order_is_known(tmp_path):
    """Accepted 2, 0 and 3 of 3: at γ = 1 the same text takes two rounds, one, and two (the bonus is not tested)."""
    mine = jsonl(tmp_path / "mtp.jsonl", response(9, 100.0, 900.0, detailed([3, 3, 3], [2, 0, 3])))
    run = StoredRun(import_vllm([mine], out=tmp_path / "run"))
    with pytest.raises(UserError, match=r"lack the seconds of forwards; give --forward-times"):
        simulate(run, gammas=[1])
    table = simulate(run, given="t_draft=1,t_target=10", gammas=[1, 3]).table.set_index("setting")
    assert table.tau["gamma=1"] == pytest.approx(8 / 5) and table.tau["gamma=3"] == pytest.approx(8 / 3)
    facts = {"num_spec_steps": 3, "acceptance_histogram": [1, 0, 1, 1], "num_draft_tokens": 9, "num_spec_tokens": 3}
    counts = jsonl(tmp_path / "counts.jsonl", response(9, 100.0, 900.0, facts))
    with pytest.raises(UserError, match="counts: the imported file does not record each round's place in its text"):
        simulate(StoredRun(import_vllm([counts], out=tmp_path / "counts")), given="t_draft=1,t_target=10")
    odd = jsonl(tmp_path / "odd.jsonl", response(20, 100.0, 900.0, detailed([3, 3, 3], [2, 0, 3])))
    with pytest.raises(UserError, match="odd: the imported file does not record each round's committed"):
        simulate(StoredRun(import_vllm([odd], out=tmp_path / "odd")), given="t_draft=1,t_target=10")


OF_RUN = {"model_id": "org/one", "tokenizer_id": "org/one", "max_concurrency": 1, "request_rate": "inf"}
OTHERWISE = {
    "model": {"model_id": "org/other"},
    "tokenizer": {"tokenizer_id": "org/other"},
    "concurrency": {"max_concurrency": 16},
    "rate": {"request_rate": 4.0},
    "data": {"dataset_name": "sharegpt"},
    "options": {"temperature": 0.7},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_files_that_were_measured_otherwise_are_not_divided(name, tmp_path):
    both = OF_RUN | {"dataset_name": "random", "temperature": 0.0}
    plain = jsonl(tmp_path / "plain.json", PLAIN | both)
    mine = jsonl(tmp_path / "mine.json", PLAIN | both | OTHERWISE[name])
    with pytest.raises(UserError, match=rf"mine.json differ in {name} .*--allow-mismatch {name}$"):
        import_vllm([mine], plain, out=tmp_path / "run")
    folder = import_vllm([mine], plain, out=tmp_path / "allowed", allowed=[name])
    assert any(f"MISMATCH allowed, plain.json / mine.json: {name}" in line for line in warned(folder))
    assert jsonl(tmp_path / "same.json", PLAIN | both) and import_vllm(
        [tmp_path / "same.json"], plain, out=tmp_path / "same"
    )


def warned(folder):
    return StoredRun(folder).manifest["imported"]["warnings"]


def test_files_that_were_measured_otherwise_stand_side_by_side(tmp_path):
    """Without a baseline nothing is divided, and `--against` divides only what is alike."""
    paths = [
        jsonl(tmp_path / f"{name}.json", PLAIN | OF_RUN | {"model_id": name}) for name in ("large", "large2", "small")
    ]
    paths[1].write_text(paths[0].read_text())
    run = StoredRun(import_vllm(paths, out=tmp_path / "run"))
    assert any("large.json / small.json: model" in line for line in warned(run.folder))
    against = pooled.measured([run]).against("large")
    assert against.baselines == {"large": "large", "large2": "large"}


def test_a_file_of_several_models_is_refused(tmp_path):
    mixed = jsonl(tmp_path / "a.json", PLAIN | OF_RUN, PLAIN | OF_RUN | {"model_id": "org/other"})
    with pytest.raises(UserError, match="entry 2 is of another model"):
        import_vllm([mixed], out=tmp_path / "run")


@pytest.mark.parametrize("reason", ["abort", "error", "content_filter", "novel"])
def test_a_response_that_the_engine_did_not_finish_is_failed(reason, tmp_path):
    failed = PLAIN_RESPONSE | {"choices": [CHOICE | {"finish_reason": reason}]}
    folder = import_vllm([jsonl(tmp_path / "a.jsonl", PLAIN_RESPONSE, failed)], out=tmp_path / "run")
    row = rows(folder).iloc[0]
    assert (row.documents, row.errors) == (1, 1) and row.tokens_per_s == pytest.approx(8 / 0.09)
    assert f"the engine ended it by '{reason}'" in StoredRun(folder).samples().error[1]
