"""Files that users hand in besides runs: served load, arrivals, models, profiles with batches, documents of tables."""

import json
import random
from pathlib import Path

import made_runs
import oracle
import pyarrow as pa
from fuzz import Target

from specbench import config
from specbench.analysis.forward_times import from_option
from specbench.base import parquet
from specbench.base.arrivals import Arrivals
from specbench.base.folder import Folder
from specbench.engine.models.pair import load_pair
from specbench.papers import stored
from specbench.results import load_folder
from specbench.results.load_folder import LoadFolder, Unit
from specbench_extras.network.analysis import from_option as channel_of

UNIT = Unit("vanilla", 4.0)


def make_load(folder: Path) -> dict[str, str]:
    """A load folder with one method at one rate, as a stopped and as a finished measurement leave it."""
    load = folder / "load"
    load.mkdir()
    made_runs.manifest(load, ["a"], ["vanilla"], 2, load={"rows": 2, "requests": 2, "arrivals": "poisson"})
    (load / "manifest.json").rename(load / load_folder.MANIFEST)
    key = UNIT._asdict()
    request = {"task": "a", "came": 0.1, "began": 0.2, "prompt_tokens": 3, "tokens": [4, 5], "finish": "length"}
    requests = [key | request | {"request": n, "doc_id": n, "error": "", "rounds": [0.3, 0.4]} for n in range(2)]
    counts = {"rows": 2, "joined": 1, "queue": 0, "fed": 2, "committed": 2}
    steps = [key | counts | {"step": n, "began": 0.1 * n, "seconds": 0.1} for n in range(3)]
    frames = {
        kind: pa.Table.from_pylist(rows, schema=load_folder.SCHEMAS[kind])
        for kind, rows in ((load_folder.REQUESTS, requests), (load_folder.STEPS, steps))
    }
    (load / "parts").mkdir()
    for kind, table in frames.items():
        for path in (load / f"{kind}.parquet", load / "parts" / f"{UNIT.name}.{kind}.parquet"):
            parquet.put(path, table, {"compression": "zstd"})
    (load / load_folder.RATES).write_text('{"vanilla": 5.5}')
    kinds = {path.relative_to(folder).as_posix(): "parquet" for path in load.rglob("*.parquet")}
    return kinds | {f"load/{name}": "json" for name in (load_folder.MANIFEST, load_folder.RATES)}


def read_load(folder: Path, rng: random.Random) -> object:
    if rng.random() < 0.5:
        return load_folder.served_steps(folder / "load")
    with Folder.at(folder / "load") as place:
        kept = LoadFolder(place)
        return kept.kept(UNIT, 2), kept.rates(["vanilla"])


def make_arrivals(folder: Path) -> dict[str, str]:
    (folder / "arrivals.txt").write_text("0\n0.25\n1.5\n\n2e0\n")
    return {"arrivals.txt": "bytes"}


def read_arrivals(folder: Path, rng: random.Random) -> object:
    return Arrivals.of(str(folder / "arrivals.txt")).times(2.0, 9, 0)


def make_model(folder: Path) -> dict[str, str]:
    """The folder of a small model with its tokenizer."""
    oracle.tiny("llama", 0, len(made_runs.TOKENIZER)).save_pretrained(folder / "model")
    made_runs.TOKENIZER.save_pretrained(folder / "model")
    kinds = {path.relative_to(folder).as_posix(): "json" for path in (folder / "model").glob("*.json")}
    return kinds | {"model/model.safetensors": "bytes"}


def read_model(folder: Path, rng: random.Random) -> object:
    pair = load_pair(config.own_pair(str(folder / "model")), "cpu")
    return pair.context, pair.vocabulary, pair.eos_ids, pair.tokenizer("Hello.")["input_ids"], pair.describe()


def make_profile(folder: Path) -> dict[str, str]:
    """A profile with forwards of several texts at once."""
    forwards = [
        {"model": role, "runtime": "eager", "rows": rows, "width": width, "context": context, "median": seconds}
        for role, each in (("target", 0.01), ("draft", 0.001))
        for rows in (1, 4)
        for width in (1, 5)
        for context in (16, 64)
        for seconds in (each * (1 + 0.1 * rows * width + 0.001 * rows * context),)
    ]
    facts = {"times": {"t_draft": 0.001, "t_target": 0.01, "overhead": 0.0}, "forwards": forwards[:4] + forwards[8:12]}
    (folder / "profile.json").write_text(json.dumps(facts | {"batches": forwards}))
    return {"profile.json": "json"}


def read_profile(folder: Path, rng: random.Random) -> object:
    return from_option(str(folder / "profile.json"), None, by_context=True)


def make_documents(folder: Path) -> dict[str, str]:
    texts = {"pair": "pocket", "sampling": "greedy", "task": "pocket_gsm8k", "baseline": "vanilla", "run": "0"}
    numbers = dict.fromkeys((*stored.COUNTED, "score"), 1.0)
    rows = [
        texts | numbers | {"method": method, "repeat": 0, "doc_id": doc}
        for method in ("vanilla", "csd")
        for doc in range(3)
    ]
    parquet.put(folder / stored.DOCUMENTS, pa.Table.from_pylist(rows, schema=stored.SCHEMA), {"compression": "zstd"})
    return {stored.DOCUMENTS: "parquet"}


def read_documents(folder: Path, rng: random.Random) -> object:
    return stored.Stored(folder, [])


def make_channel(folder: Path) -> dict[str, str]:
    (folder / "channel.csv").write_text("seconds,rtt,rate\n1,0.02,20e6\n2.5,0,1e6\n")
    return {"channel.csv": "bytes"}


def read_channel(folder: Path, rng: random.Random) -> object:
    return channel_of(str(folder / "channel.csv"), greedy=True).shares


DOORS = [
    Target("load folder", make_load, read_load, 2),
    Target("arrivals", make_arrivals, read_arrivals, 1),
    Target("channel", make_channel, read_channel, 1),
    Target("model folder", make_model, read_model, 0.2),
    Target("profile with batches", make_profile, read_profile, 2),
    Target("documents of tables", make_documents, read_documents, 2),
]
