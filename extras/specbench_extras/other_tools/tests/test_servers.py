"""What vLLM tells of a whole server, and accepted lengths of texts: worked out by hand; what is not told is unknown."""

import json
import math

import pyarrow.parquet as pq
import pytest
from imported import import_vllm, jsonl, rows, unknown
from screens import call

from specbench.analysis import compare, pooled
from specbench.config import UserError
from specbench.results.stored import StoredRun

# 20 rounds of 3 drafts in two engines: 15, 10 and 5 accepted at the three positions.
FIRST = {"drafts": 12, "draft_tokens": 36, "accepted_tokens": 18, "by_position": [9, 6, 3]}
SECOND = {"drafts": 8, "draft_tokens": 24, "accepted_tokens": 12, "by_position": [6, 4, 2]}


def scrape(path, *engines, total="_total", model="m"):
    """A text as a server of vLLM answers at /metrics; `engines` are counters, each of the engine with its number."""
    lines = ["# HELP vllm:spec_decode_num_drafts_total Number of drafts.", 'python_info{version="3"} 1.0']
    for engine, counts in enumerate(engines):
        labels = f'engine="{engine}",model_name="{model}"'
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            if name in counts:
                lines.append(f"vllm:spec_decode_num_{name}{total}{{{labels}}} {float(counts[name])}")
                lines.append(f"vllm:spec_decode_num_{name}_created{{{labels}}} 1.79e+09")
        for place, count in enumerate(counts.get("by_position", [])):
            where = f'{labels},position="{place}"'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos{total}{{{where}}} {float(count)}")
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_created{{{where}}} 1.79e+09")
    path.write_text("\n".join(lines) + "\n")
    return path


def depths(folder):
    return compare.depth_table(pooled.measured([StoredRun(folder)], with_depths=True)).set_index("depth")


@pytest.mark.parametrize("total", ["_total", ""])
def test_counters_of_a_scrape(tmp_path, total):
    row = rows(import_vllm([scrape(tmp_path / "eagle.txt", FIRST, SECOND, total=total)], out=tmp_path / "run"))
    assert row.index.tolist() == [("vllm", "eagle")]
    row = row.iloc[0]
    assert row.acceptance_rate == pytest.approx(30 / 60) and row.tau == pytest.approx(1 + 30 / 20)
    assert row.alpha == pytest.approx(30 / (30 + 20 - 5)) and row.documents == 0
    assert unknown(row, "speedup_decode", "tokens_per_s", "acceptance_rate_in_text", "request_throughput", "accuracy")
    table = depths(tmp_path / "run")
    assert table.joint_accept.tolist() == pytest.approx([15 / 20, 10 / 20, 5 / 20])
    assert table.cond_accept.tolist() == pytest.approx([15 / 20, 10 / 15, 5 / 10])
    assert table.tested.tolist() == pytest.approx([20, 15, 10])


def test_drafts_of_several_lengths_have_shares_of_rounds_alone(tmp_path):
    """59 drafted in 20 rounds: how many reached a position is not told."""
    counts = {"drafts": 20, "draft_tokens": 59, "accepted_tokens": 30, "by_position": [15, 10, 5]}
    folder = import_vllm([scrape(tmp_path / "eagle.txt", counts)], out=tmp_path / "run")
    assert depths(folder).joint_accept.tolist() == pytest.approx([0.75, 0.5, 0.25])
    assert depths(folder)[["cond_accept", "tested"]].isna().all(axis=None)
    assert math.isnan(rows(folder).iloc[0].alpha)


def test_what_grew_between_two_scrapes(tmp_path):
    before, after = scrape(tmp_path / "before.txt", FIRST), scrape(tmp_path / "after.txt", FIRST, SECOND)
    result = call("import", "vllm", after, "--before", before, "--method", "mtp", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    row = rows(tmp_path / "run").loc[("vllm", "mtp")]
    assert row.tau == pytest.approx(1 + 12 / 8) and row.acceptance_rate == pytest.approx(12 / 24)
    assert depths(tmp_path / "run").joint_accept.tolist() == pytest.approx([6 / 8, 4 / 8, 2 / 8])
    with pytest.raises(UserError, match=r'before.txt has no .*engine="1".*, which .*after.txt has'):
        import_vllm([before], out=tmp_path / "wrong", before=after)


def restarted(path, counts, created):
    """The scrape of two engines, of which the first began again: its counters are lower, and the second's higher."""
    text = scrape(
        path, counts, {name: [2 * n for n in v] if isinstance(v, list) else 2 * v for name, v in SECOND.items()}
    )
    lines = text.read_text().splitlines()
    mine = [f"{line.split()[0]} {created}" if '_created{engine="0"' in line else line for line in lines]
    path.write_text("\n".join(mine) + "\n")
    return path


LOWER = {"drafts": 4, "draft_tokens": 12, "accepted_tokens": 9, "by_position": [4, 3, 2]}


def test_a_counter_that_began_again_counts_from_then_on(tmp_path):
    """4 rounds and 9 of 12 accepted since the restart of one engine, and 8 with 12 of 24 of the other."""
    before = scrape(tmp_path / "before.txt", FIRST, SECOND)
    after = restarted(tmp_path / "after.txt", LOWER, 1.8e9)
    result = call("import", "vllm", after, "--before", before, "--out", tmp_path / "run")
    assert result.exit_code == 0 and "engine 0 was restarted" in " ".join(result.output.split())
    row = rows(tmp_path / "run").loc[("vllm", "after")]
    assert row.tau == pytest.approx(1 + 21 / 12) and row.acceptance_rate == pytest.approx(21 / 36)


@pytest.mark.parametrize("created", [True, False])
def test_a_counter_that_fell_is_refused_if_nothing_says_when_it_began(tmp_path, created):
    """Together both engines count more than before, which one alone does not."""
    before, after = scrape(tmp_path / "before.txt", FIRST, SECOND), restarted(tmp_path / "after.txt", LOWER, 1.79e9)
    if not created:
        for path in (before, after):
            path.write_text("".join(line for line in path.open() if "_created" not in line))
    with pytest.raises(UserError, match=r'engine="0".* counts less in .*after.txt than in .*before.txt'):
        import_vllm([after], out=tmp_path / "run", before=before)


def test_each_model_of_a_scrape_is_a_method(tmp_path):
    one, two = scrape(tmp_path / "a.txt", FIRST, model="a/b"), scrape(tmp_path / "b.txt", SECOND, model='c "d"')
    both = tmp_path / "both.txt"
    both.write_text(one.read_text() + two.read_text().replace('c "d"', r"c \"d\""))
    cells = rows(import_vllm([both], out=tmp_path / "run"))
    assert cells.index.tolist() == [("vllm", "a/b"), ("vllm", r"c \"d\"")]
    assert cells.tau.tolist() == pytest.approx([2.5, 2.5])
    with pytest.raises(UserError, match="leave out --method"):
        import_vllm([both], method="eagle", out=tmp_path / "named")
    with pytest.raises(UserError, match="a baseline is one method"):
        import_vllm([one], both, out=tmp_path / "base")


def test_counters_of_an_older_server(tmp_path):
    """Without rounds only the acceptance rate is known."""
    older = scrape(tmp_path / "old.txt", {"draft_tokens": 10, "accepted_tokens": 4})
    row = rows(import_vllm([older], out=tmp_path / "run")).iloc[0]
    assert row.acceptance_rate == pytest.approx(0.4) and unknown(row, "tau", "alpha")
    assert depths(tmp_path / "run").empty


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0", "has no vllm:spec_decode_num_… coun"),
        ("vllm:spec_decode_num_drafts_total NaN", "line 1: a counter is a number from 0, not 'NaN'"),
        ("# a\nvllm:spec_decode_num_drafts_total -1", "line 2: a counter is a number from 0, not '-1'"),
        (
            "vllm:spec_decode_num_drafts 1\nvllm:spec_decode_num_drafts_total 2",
            "line 2: the same counter is there twice",
        ),
        ('vllm:spec_decode_num_accepted_tokens_per_pos{position="x"} 1', "line 1: the label position must be"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos{position="1"} 1', "one is missing"),
    ],
)
def test_damaged_scrapes(tmp_path, text, words):
    path = tmp_path / "a.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        import_vllm([path], out=tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_scrape_before_goes_with_a_scrape(tmp_path):
    path = scrape(tmp_path / "a.txt", FIRST)
    with pytest.raises(UserError, match="is not a scrape of /metrics; --before goes with one"):
        import_vllm([jsonl(tmp_path / "a.json", SERVED)], out=tmp_path / "run", before=path)
    with pytest.raises(UserError, match="import several one by one"):
        import_vllm([path, path], out=tmp_path / "run", before=path)
    other = scrape(tmp_path / "b.txt", FIRST, model="other")
    with pytest.raises(UserError, match=r'has no .*model_name="other".*, which .*b.txt has'):
        import_vllm([path], out=tmp_path / "run", before=other)
    refused = call("import", "spec-bench", path, "--before", path)
    assert refused.exit_code == 2 and "--before is for vllm" in " ".join(refused.output.split())


# Results of `vllm bench serve` without figures per request.

SERVED = {
    "date": "20260101-000000",
    "completed": 8,
    "duration": 4.0,
    "request_throughput": 2.0,
    "output_throughput": 90.5,
}
SERVED |= {"mean_ttft_ms": 40.0, "median_ttft_ms": 38.0, "p99_ttft_ms": 68.5, "mean_tpot_ms": 4.25}
SERVED |= {"spec_decode_num_drafts": 20, "spec_decode_draft_tokens": 60, "spec_decode_accepted_tokens": 30}
SERVED |= {"spec_decode_per_position_acceptance_rates": [0.75, 0.5, 0.25]}


def test_a_result_without_requests(tmp_path):
    plain = jsonl(tmp_path / "plain.json", {"request_throughput": 1.0, "mean_ttft_ms": 30.0})
    mine = jsonl(tmp_path / "eagle.json", SERVED)
    folder = import_vllm([mine], plain, out=tmp_path / "run")
    cells = rows(folder)
    eagle, vanilla = cells.loc[("vllm", "eagle")], cells.loc[("vllm", "vanilla")]
    assert eagle.tau == pytest.approx(2.5) and eagle.alpha == pytest.approx(30 / 45) and eagle.documents == 0
    names = ["request_throughput", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"]
    assert eagle[names].tolist() == [2.0, 90.5, 40.0, 38.0, 68.5, 4.25]
    assert unknown(eagle, "median_tpot_ms", "mean_itl_ms", "mean_e2el_ms", "tokens_per_s", "speedup_decode")
    assert (vanilla.request_throughput, vanilla.mean_ttft_ms) == (1.0, 30.0) and unknown(vanilla, "tau")
    assert pq.read_table(folder / "samples.parquet").num_rows == 0
    shown = call("show", folder, "--format", "md").output
    assert "| 40 / 38 / 68.5 | 4.25 / - / - |" in shown and "ITL ms" not in shown and "speedup" not in shown
    assert "accept, α and τ of eagle are a server's totals" in shown


def test_medians_of_several_results_are_not_pooled(tmp_path):
    """Rounds and drafts are added up; medians of two passes are no median of both."""
    path = jsonl(tmp_path / "eagle.json", SERVED, SERVED | {"spec_decode_accepted_tokens": 42})
    row = rows(import_vllm([path], out=tmp_path / "run")).iloc[0]
    assert row.tau == pytest.approx(1 + 72 / 40) and unknown(row, "request_throughput", "median_ttft_ms")


def test_totals_that_are_no_figures(tmp_path):
    """They are in no table, and end no command: too large, below 0, and no numbers."""
    odd = {"request_throughput": 1.0, "spec_decode_draft_tokens": 60, "spec_decode_num_drafts": 10**400}
    odd |= {"spec_decode_accepted_tokens": -3, "spec_decode_per_position_acceptance_rates": ["a", 10**400, 7]}
    folder = import_vllm([jsonl(tmp_path / "a.json", odd)], out=tmp_path / "run")
    assert unknown(rows(folder).iloc[0], "tau", "alpha", "acceptance_rate") and depths(folder).empty


def test_results_with_and_without_requests_are_not_mixed(tmp_path):
    lists = {"input_lens": [3], "output_lens": [2], "ttfts": [0.1], "itls": [[0.1]]}
    path = jsonl(tmp_path / "a.json", SERVED, SERVED | lists)
    with pytest.raises(UserError, match=r"some results have figures per request .* import them apart"):
        import_vllm([path], out=tmp_path / "run")


# Accepted lengths of recorded texts.

IDS = {"prompt_token_ids": [5, 6, 7], "generated_token_ids": [1, 2, 3, 4, 5, 6, 7, 8]}


def lengths(path, **lists):
    return jsonl(path, IDS | {"id": "17"} | {key: {"acc_len": entries} for key, entries in lists.items()})


def counts(folder, method):
    table = pq.read_table(folder / "rounds.parquet").to_pandas()
    mine = table[table.method == method]
    assert mine["round"].tolist() == list(range(1, len(mine) + 1))
    assert mine.drafted.isna().all() and mine.rescued.isna().all()
    return mine[["committed", "accepted", "truncated"]].to_numpy().tolist()


def test_lengths_at_each_position(tmp_path):
    """After the prefill's token: 3 tokens from position 1, 1 from 4, and 5 from 5, of which 3 fit."""
    path = lengths(tmp_path / "a.jsonl", acc_eagle=[1, 3, 9, 9, 1, 5, 9, 9], acc_ngram=[1, 1, 2, 9, 1, 1, 2, 9])
    folder = import_vllm([path], out=tmp_path / "run")
    assert counts(folder, "eagle") == [[3, 2, 0], [1, 0, 0], [3, 3, 2]]
    assert counts(folder, "ngram") == [[1, 0, 0], [2, 1, 0], [1, 0, 0], [1, 0, 0], [2, 1, 0]]
    cells = rows(folder)
    assert cells.tau.to_dict() == pytest.approx({("vllm", "eagle"): 7 / 3, ("vllm", "ngram"): 7 / 5})
    assert unknown(cells.iloc[0], "acceptance_rate", "acceptance_rate_in_text", "alpha", "tokens_per_s")
    assert StoredRun(folder).manifest["imported"]["files"][0]["ordered"]
    samples = pq.read_table(folder / "samples.parquet").to_pylist()
    assert [(sample["prompt_tokens"], sample["new_tokens"], sample["tokens"]) for sample in samples] == [
        (3, 8, [*range(1, 9)])
    ] * 2


@pytest.mark.parametrize(("last", "committed"), [(4, 4), (6, 4)])
def test_lengths_of_rounds(tmp_path, last, committed):
    """Fewer entries than tokens: 1 of the prefill, then rounds of 2, 1 and the rest."""
    folder = import_vllm([lengths(tmp_path / "a.jsonl", acc=[1, 2, 1, last])], out=tmp_path / "run")
    assert counts(folder, "a") == [[2, 1, 0], [1, 0, 0], [committed, min(last - 1, 4), last - committed]]


def test_a_list_may_stand_without_its_name_and_a_text_may_be_one_token(tmp_path):
    one = IDS | {"generated_token_ids": [4], "acc_mtp": [1]}
    folder = import_vllm([jsonl(tmp_path / "a.jsonl", IDS | {"acc_mtp": [1, 3, 4]}, one)], out=tmp_path / "run")
    assert counts(folder, "mtp") == [[3, 2, 0], [4, 3, 0]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"acc_eagle": {"acc_len": [1, 3, 3]}}, "entry 1, acc_eagle: 3 entries for 8 tokens, which add up to 7"),
        ({"acc_eagle": {"acc_len": [1, 3, 4, 1]}}, "which add up to 9"),
        ({"acc_eagle": {"acc_len": [1, 0, 7]}}, "acc_len.1"),
        ({"acc_eagle": {"acc_len": [1] * 8}, "generated_token_ids": ["a"]}, "generated_token_ids.0"),
        ({"acc_eagle": []}, "acc_len"),
    ],
)
def test_damaged_lists(tmp_path, row, words):
    with pytest.raises(UserError, match=words) as caught:
        import_vllm([jsonl(tmp_path / "a.jsonl", IDS | row)], out=tmp_path / "run")
    assert "a.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_lists_of_other_drafters_in_one_file(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", IDS | {"acc_a": [1, 3, 4]}, IDS | {"acc_b": [1, 3, 4]})
    with pytest.raises(UserError, match="line 2 has lists of acc_b, the first of acc_a"):
        import_vllm([path], out=tmp_path / "run")


def test_the_totals_of_a_real_server_agree_with_its_rounds(real_data, tmp_path):
    """The same result without its requests; and responses, whose rounds are those that the counters count."""
    path = real_data / "vllm" / "bench.json"
    result = json.loads(path.read_text())
    totals = {key: value for key, value in result.items() if not isinstance(value, list)}
    totals["spec_decode_per_position_acceptance_rates"] = result["spec_decode_per_position_acceptance_rates"]
    row = rows(import_vllm([jsonl(tmp_path / "a.json", totals)], out=tmp_path / "run")).iloc[0]
    assert row.tau == pytest.approx(result["spec_decode_acceptance_length"])
    assert 100 * row.acceptance_rate == pytest.approx(result["spec_decode_acceptance_rate"])
    assert row.mean_e2el_ms == result["mean_e2el_ms"] and row.documents == 0
    whole = rows(import_vllm([path], out=tmp_path / "whole")).iloc[0]
    same = ["tau", "acceptance_rate", "alpha", "request_throughput", "p99_ttft_ms", "median_itl_ms"]
    assert whole[same].tolist() == row[same].tolist() and whole.documents == 12
