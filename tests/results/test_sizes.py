"""Large runs: what our writers write our readers read, whatever it compresses to; bombs are refused all the same."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import manifest
from refusals import one_line_error

from specbench.analysis import metrics
from specbench.results import importers, records
from specbench.results.stored import StoredRun

ROUNDS = [3, 1, 4, 2]


def answers(path, count, rounds):
    """An answer file in Spec-Bench's form, of `count` questions with `rounds` rounds each."""
    lengths = (ROUNDS * rounds)[:rounds]
    with path.open("w") as file:
        for number in range(count):
            choice = {"turns": ["a text"], "new_tokens": [sum(lengths)], "wall_time": [1.0 + number / 1e6]}
            choice |= {"accept_lengths": lengths}
            answer = {"question_id": number, "category": "qa", "model_id": "eagle", "choices": [choice]}
            file.write(json.dumps(answer) + "\n")
    return path


def test_an_import_of_a_million_rounds_is_read(tmp_path):
    given = [answers(tmp_path / "a.jsonl", 10_000, 100)]
    run = StoredRun(importers.import_files("spec-bench", given, out=tmp_path / "run"))
    assert (tmp_path / "run" / "rounds.parquet").stat().st_size < 2**21, "it compresses well"
    counts = metrics.per_document(run.samples(metrics.TIMED), run.rounds())
    assert len(counts) == 10_000 and (counts.R == 100).all() and (counts.C == 250).all() and counts.E.isna().all()


def one_group(folder, texts, rounds, tokens):
    """A run of `texts`, each of so many rounds and said to be of so many tokens, with all rounds in one row group."""
    manifest(folder, ["sums"], ["vanilla"], texts)
    key = {"repeat": 0, "task": "sums", "method": "vanilla", "warmup": False}
    count = texts * rounds
    columns = {name: pa.repeat(value, count) for name, value in key.items()}
    columns |= {"doc_id": np.repeat(np.arange(texts), rounds), "round": np.tile(np.arange(1, rounds + 1), texts)}
    table = records.filled(columns | {"committed": np.ones(count, np.int32)}, count, records.ROUNDS)
    pq.write_table(table, folder / "rounds.parquet", compression="zstd", row_group_size=count)
    samples = [key | {"doc_id": doc, "finish": "length", "new_tokens": tokens} for doc in range(texts)]
    records.write_table(folder / "samples.parquet", samples, records.SAMPLES)
    records.write_table(folder / "scores.parquet", [], records.SCORES)
    return StoredRun(folder)


def test_rounds_that_samples_account_for_may_compress_as_they_like(tmp_path):
    run = one_group(tmp_path, 10_000, 90, 91)
    assert sum(batch.num_rows for batch in run.rounds().to_batches(["round"])) == 900_000


def test_rounds_that_no_sample_accounts_for_are_a_bomb(tmp_path):
    run = one_group(tmp_path, 10_000, 90, 1)
    with one_line_error("MiB of memory", "rounds.parquet"):
        run.rounds()


def test_columns_that_say_to_be_empty_are_not_read(tmp_path):
    """So that what they hold in truth has no effect."""
    run = one_group(tmp_path, 1, 10, 11)
    table = pq.read_table(tmp_path / "rounds.parquet")
    assert run.rounds().to_table(["target_seconds"]).column(0).null_count == 10 == table["target_seconds"].null_count


def written(folder, rows):
    folder.mkdir()
    manifest(folder, ["sums"], ["vanilla"])
    key = {"repeat": 0, "task": "sums", "doc_id": 0, "method": "vanilla", "warmup": False}
    parts = [records.table_of([key | {"round": n, "committed": 1} for n in part], records.ROUNDS) for part in rows]
    records.write_tables(folder / "rounds.parquet", parts, records.ROUNDS)
    records.write_table(folder / "samples.parquet", [key | {"finish": "length"}], records.SAMPLES)
    records.write_table(folder / "scores.parquet", [], records.SCORES)
    return StoredRun(folder)


@pytest.mark.parametrize("rows", [[[1, 2, 2]], [[1, 2], [2, 3]], [[3, 1, 3]], [[1, 3], [3]]])
def test_a_round_that_is_there_twice_is_damage_in_whatever_part_it_lies(tmp_path, rows):
    with one_line_error("twice"):
        written(tmp_path / "run", rows).rounds()


@pytest.mark.parametrize("rows", [[[1, 2, 3]], [[1, 2], [3, 4]], [[3, 1, 2]], [[3, 4], [1, 2]], [[1, 3], [2, 4]]])
def test_rounds_in_any_order_and_in_several_parts_are_sound(tmp_path, rows):
    counts = metrics.per_document(
        written(tmp_path / "run", rows).samples(metrics.TIMED), StoredRun(tmp_path / "run").rounds()
    )
    assert counts.R.tolist() == [sum(map(len, rows))]
