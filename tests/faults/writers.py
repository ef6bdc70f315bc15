"""Every command that writes, in its smallest form."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults import place
from faults.bench import Bench

HEAD = "h.safetensors"


@dataclass(frozen=True)
class Place:
    """What a writer needs: finished runs, a folder to prepare things in, and the disk to write to."""

    bench: Bench
    work: Path
    disk: Path

    @property
    def run(self) -> str:
        return str(self.bench.runs[0.0])

    @property
    def pair(self) -> list[str]:
        return ["--pair", place.pair(self.bench.place), "--device", "cpu"]

    @property
    def suite(self) -> list[str]:
        return ["--suite", str(self.bench.place / "few.yaml")]

    def out(self, name: str) -> list[str]:
        return ["--out", str(self.disk / name)]

    def train(self, method: str, *more: str) -> list[str]:
        data = ["--data", "pocket_gsm8k:calibration"]
        return ["train", "--method", method, *self.pair, *data, *more, *self.out(HEAD)]

    def file(self, name: str, text: str) -> str:
        path = self.work / name
        path.write_text(text)
        return str(path)


@dataclass(frozen=True)
class Writer:
    """A command that writes `out` on a disk; `fresh`: no older one may be there. `leave`: bytes that are free."""

    name: str
    out: str
    words: Callable[[Place], list[str]]
    fresh: bool = False
    short: bool = False
    leave: int = 0
    cache: bool = False  # it writes to the cache, which is on the disk
    large: bool = False
    tells: str = "No space left on device"
    refused: int = 2  # 0: what it measured is shown all the same


CORPUS = "\n".join(json.dumps({"text": f"Tom has {n} apples and {n + 2} pears. " * 4}) for n in range(40)) + "\n"
TURN = {"output": "a b c", "new_tokens": [9], "decoding_steps": [3], "wall_time": [0.5], "accept_lengths": [3, 3, 3]}
ANSWER = {
    "question_id": 81,
    "category": "writing",
    "model_id": "m",
    "choices": [TURN | {"index": 0, "turns": ["a b c"]}],
}

WRITERS = (
    Writer("compare --out", "t.md", lambda p: ["compare", p.run, "--format", "md", *p.out("t.md")], short=True),
    Writer("compare --format parquet", "t.pq", lambda p: ["compare", p.run, "--format", "parquet", *p.out("t.pq")]),
    Writer("report", "r.html", lambda p: ["report", p.run, *p.out("r.html")], leave=65536),
    Writer("plot svg", "p.svg", lambda p: ["plot", "speed-accuracy", p.run, *p.out("p.svg")]),
    Writer("plot png", "p.png", lambda p: ["plot", "time", p.run, *p.out("p.png")]),
    Writer("tables", "tables", lambda p: ["tables", p.run, "--paper", "csd", *p.out("tables")], fresh=True),
    Writer(
        "calibrate",
        "m.parquet",
        lambda p: ["calibrate", *p.pair, *p.suite, "--documents", "3", *p.out("m.parquet")],
        fresh=True,
    ),
    Writer("merge", "m.parquet", lambda p: ["merge", p.run, "--method", "csd", *p.out("m.parquet")], fresh=True),
    Writer("train vocabtrim", HEAD, lambda p: p.train("vocabtrim", "--documents", "3"), fresh=True),
    Writer(
        "train specdecpp", HEAD, lambda p: p.train("specdecpp", "--documents", "4", "--recipe", "epochs=1"), fresh=True
    ),
    Writer(
        "build-datastore",
        "store",
        lambda p: ["build-datastore", "--corpus", p.file("c.jsonl", CORPUS), *p.pair[:2], *p.out("store")],
        fresh=True,
        short=True,
        leave=4096,
    ),
    Writer(
        "import",
        "imported",
        lambda p: ["import", "spec-bench", p.file("answers.jsonl", json.dumps(ANSWER)), *p.out("imported")],
        fresh=True,
        leave=8192,
    ),
    Writer("profile RUN", "p.json", lambda p: ["profile", p.run, *p.out("p.json")]),
    Writer(
        "audit",
        "a.json",
        lambda p: [
            *["audit", *p.pair, *p.suite, "--method", "sps", "--documents", "1", "--length", "8", "--draws", "2"],
            *p.out("a.json"),
        ],
    ),
    Writer(
        "throughput",
        "t.csv",
        lambda p: [
            *["throughput", *p.pair, *p.suite, "--method", "sps", "--batch", "1,2", "--batches", "2", "--limit", "1"],
            *p.out("t.csv"),
        ],
    ),
    Writer("serving", "s.csv", lambda p: ["serving", p.run, *p.out("s.csv")]),
    Writer(
        "bench",
        "b.json",
        lambda p: [
            *["bench", "--shapes", "tiny", "--force-acceptance", "0.8", "--runtime", "eager", "--documents", "2"],
            *p.out("b.json"),
        ],
    ),
    Writer(
        "cache of exports",
        "run",
        lambda p: place.run_words(p.bench.place, p.disk / "run", "--runtime", "openvino", methods=("sps",)),
        fresh=True,
        leave=2**20,
        cache=True,
        large=True,
        tells="OpenVINO's export cannot be kept",
    ),
    Writer(
        "cache of ceilings",
        "cache",
        lambda p: ["profile", "--ceilings", *p.pair],
        fresh=True,
        cache=True,
        tells="ceilings of this machine cannot be kept ([Errno 28] No space left on device",
        refused=0,
    ),
)
