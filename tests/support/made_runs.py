"""Run folders made of hand-written or random rounds, with the bundled tokenizer; no model is asked."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import AutoTokenizer

from specbench import config
from specbench.base.folder import Folder
from specbench.config import SUITES
from specbench.engine.clock import Forward, Lap
from specbench.engine.models.tokenizer import tokenizer_hash, vocabulary_hash
from specbench.engine.types import Round, Verdict
from specbench.measure.sample import round_row
from specbench.plan import Plan
from specbench.results import documents, records
from specbench.results.stored import StoredRun

TOKENIZER = AutoTokenizer.from_pretrained(SUITES / "pairs" / "weights" / "target")
STATE = tokenizer_hash(TOKENIZER)
METRIC = "exact_match,none"


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def word(text: str) -> int:
    """The token that is exactly this text."""
    (token,) = ids(text)
    return token


def drafted(drafts, targets, accepted, token, ratios=None, rescued=()) -> Round:
    """A round of a method that drafts; the tokens it commits are the accepted drafts and `token`."""
    verdict = Verdict(tuple(range(accepted)), token, drafts, targets, ratios or [1.0] * len(drafts), rescued)
    return Round([*drafts[:accepted], token], verdict)


def add_sample(tables, task, doc_id, method, rounds, text, finish, milliseconds=10.0, repeat=0):
    """Append one sample and its rounds, as the main loop writes them, to the lists in `tables`."""
    key = {"repeat": repeat, "task": task, "doc_id": doc_id, "method": method, "warmup": False}
    seconds = milliseconds / 1000
    for number, one in enumerate(rounds):
        forwards = [Forward("target", 1, 0, seconds / 2)]
        forwards += [Forward("draft", 1, 0, seconds / 8, seconds / 2 + i * seconds / 8) for i in range(one.drafted)]
        tables["rounds"].append(key | round_row(number, one, Lap(seconds, forwards)))
    tokens = [token for round_ in rounds for token in round_.tokens]
    tables["samples"].append(
        key
        | {"tokens": tokens, "text": text, "finish": finish, "prefill_seconds": seconds, "peak_memory": 10**6}
        | {"decode_seconds": seconds * (len(rounds) - 1)}
    )


def manifest(folder: Path, tasks, methods, documents=1, **changes) -> None:
    specs = tuple(config.load_method("csd").model_copy(update={"name": name}) for name in methods)
    plan = Plan(
        pair=config.load_pair("pocket"),
        methods=specs,
        baseline=methods[0],
        suite="made",
        tasks=[{"task": t} for t in tasks],
    )
    facts = {
        "schema": records.VERSION,
        "started": "2026-01-01T12:00:00+0000",
        "plan": plan.model_dump(mode="json"),
        "models": {"target": {"model": "bundled:target", "dtype": "float32", "tokenizer_state": STATE}},
        "tokenizer_hash": vocabulary_hash(TOKENIZER),
        "inputs": {name: {} for name in methods},
        "prompts_hash": "0",
        "requests": [[task, doc, "", ""] for task in tasks for doc in range(documents)],
        "headline": dict.fromkeys(tasks, METRIC),
        "generation": {task: {"until": ["\n\n"], "max_new_tokens": 9} for task in tasks},
        "environment": {"device": "cpu", "cpu": "a processor", "cores": 2, "load": 0.1, "versions": {"torch": "1"}},
    }
    (folder / "manifest.json").write_text(json.dumps(facts | changes))


def write(folder: Path, tables, scores=()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    records.write_table(folder / "rounds.parquet", tables["rounds"], records.ROUNDS)
    records.write_table(folder / "samples.parquet", tables["samples"], records.SAMPLES)
    records.write_table(folder / "scores.parquet", scores, records.SCORES)


def keep(folder: Path, about) -> None:
    """Write what the documents of a run are about."""
    with Folder.at(folder) as place:
        documents.keep(place, about)


def stored(folder: Path, tables, tasks, methods, scores=(), documents=1, **changes) -> StoredRun:
    """A run of these rows; `changes` are of its manifest."""
    write(folder, tables, scores)
    manifest(folder, tasks, methods, documents, **changes)
    return StoredRun(folder)


def score(task, method, doc_id, value, repeat=0):
    return {"repeat": repeat, "task": task, "method": method, "doc_id": doc_id, "value": value} | {
        "metric": METRIC.split(",")[0],
        "filter": METRIC.split(",")[1],
    }


def large(folder: Path, tasks, methods, documents: int, rounds: int = 45, gamma: int = 4) -> None:
    """A run of random texts: words as frequent as in a language (Zipf), and drafts of which two in three are right."""
    rng = np.random.default_rng(0)
    vocabulary = rng.permutation(np.array([i for i in range(3, 2048) if "�" not in TOKENIZER.decode([i])]))
    shares = 1 / np.arange(1, len(vocabulary) + 1)

    def words(count):
        return vocabulary[rng.choice(len(vocabulary), count, p=shares / shares.sum())]

    tables = {"samples": [], "rounds": []}
    scores = []
    for task in tasks:
        for doc in range(documents):
            shared = words(rounds * (gamma + 1) + 1)
            for at, method in enumerate(methods):
                plain = at == 0
                own = shared.copy()
                if at >= 5:  # the last methods are lossy: they leave the text half way
                    own[60:] = words(len(own) - 60)
                accepted = np.minimum(rng.geometric(0.38, rounds) - 1, gamma)
                committed = accepted + 1
                if plain:
                    committed = np.ones(committed.sum() // 2, dtype=int)
                key = {"repeat": 0, "task": task, "doc_id": doc, "method": method, "warmup": False}
                _rows(tables["rounds"], key, own, committed, 0 if plain else gamma, words, rng)
                tokens = own[: 1 + committed.sum()]
                tables["samples"].append((*key.values(), tokens, 0.01, 0.005 * len(committed)))
                scores.append(score(task, method, doc, float(rng.random() < 0.6)))
    folder.mkdir(parents=True)
    manifest(folder, tasks, methods, documents)
    _save(folder / "samples.parquet", _samples(tables["samples"]))
    _save(folder / "rounds.parquet", pa.concat_tables(tables["rounds"]))
    records.write_table(folder / "scores.parquet", scores, records.SCORES)


def _rows(tables, key, own, committed, gamma, words, rng):
    """The rounds of one sample as a table."""
    count = len(committed) + 1
    starts = np.concatenate([[0], 1 + np.cumsum(committed) - committed])
    columns = {name: pa.repeat(pa.scalar(value), count) for name, value in key.items()}
    columns |= {"round": np.arange(count), "committed": np.concatenate([[1], committed])}
    accepted = np.concatenate([[0], committed - 1]) * (gamma > 0)
    columns |= {"drafted": np.full(count, gamma) * (np.arange(count) > 0), "accepted": accepted}
    columns |= dict.fromkeys(("rescued", "truncated"), np.zeros(count, dtype=int))
    seconds = rng.lognormal(-5, 0.2, count)
    columns |= {"target_forwards": np.ones(count, dtype=int), "draft_forwards": columns["drafted"], "seconds": seconds}
    columns |= {"target_seconds": seconds * 0.6, "draft_seconds": seconds * (0.3 if gamma else 0)}
    if gamma:
        place = starts[1:, None] + np.arange(gamma)
        targets = own[np.minimum(place, len(own) - 1)]
        at = np.arange(gamma) - accepted[1:, None]
        wrong = words(targets.size).reshape(targets.shape)
        drafts = np.where(at < 0, targets, wrong)
        decisions = np.select([at < 0, at == 0], [1, 0], 3)
        ratios = np.where(at < 0, 1.0, rng.beta(0.3, 0.8, targets.shape))
        for name, values in zip(
            ("draft_tokens", "target_tokens", "decisions", "ratios"), (drafts, targets, decisions, ratios), strict=True
        ):
            offsets = np.concatenate([[0, 0], gamma * np.arange(1, count)])
            kind = records.ROUNDS.field(name).type.value_type
            columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values.ravel()).cast(kind))
    absent = {field.name: pa.nulls(count, field.type) for field in records.ROUNDS if field.name not in columns}
    tables.append(pa.table({name: (columns | absent)[name] for name in records.ROUNDS.names}).cast(records.ROUNDS))


def _samples(rows):
    repeat, task, doc, method, warmup, tokens, prefill, decode = zip(*rows, strict=True)
    texts = [TOKENIZER.decode(token) for token in tokens]
    known = {"repeat": repeat, "task": task, "doc_id": doc, "method": method, "warmup": warmup, "text": texts}
    known |= {"tokens": [token.tolist() for token in tokens], "prefill_seconds": prefill, "decode_seconds": decode}
    known |= {"finish": ["length"] * len(rows), "peak_memory": [10**6] * len(rows)}
    columns = {
        f.name: pa.array(known[f.name], f.type) if f.name in known else pa.nulls(len(rows), f.type)
        for f in records.SAMPLES
    }
    return pa.table(columns)


def _save(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path, compression="zstd")
