"""Every command that writes, in its smallest form."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults import place
from faults.bench import Bench


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
    code: int = 0


CORPUS = "\n".join(json.dumps({"text": f"Tom has {n} apples and {n + 2} pears. " * 4}) for n in range(40)) + "\n"
VLLM = {
    "date": "20260101-120000",
    "backend": "vllm",
    "model_id": "m",
    "num_prompts": 2,
    "duration": 2.0,
    "completed": 2,
    "total_output_tokens": 20,
    "input_lens": [5, 6],
    "output_lens": [10, 10],
    "ttfts": [0.1, 0.1],
    "itls": [[0.1] * 9, [0.1] * 9],
    "generated_texts": ["a", "b"],
    "errors": ["", ""],
}
DATA = ["--data", "pocket_gsm8k:calibration"]

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
        short=True,
        fresh=True,
    ),
    Writer(
        "merge",
        "m.parquet",
        lambda p: ["merge", p.run, "--method", "csd", *p.out("m.parquet")],
    ),
    Writer(
        "train vocabtrim",
        "h.safetensors",
        lambda p: ["train", "--method", "vocabtrim", *p.pair, *DATA, "--documents", "3", *p.out("h.safetensors")],
    ),
    Writer(
        "train judge",
        "j.safetensors",
        lambda p: ["train", "--method", "judge", *p.pair, *p.suite, "--documents", "3", *p.out("j.safetensors")],
    ),
    Writer(
        "train specdecpp",
        "s.safetensors",
        lambda p: [
            *["train", "--method", "specdecpp", *p.pair, *DATA, "--documents", "4"],
            *["--recipe", "epochs=1", *p.out("s.safetensors")],
        ],
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
        lambda p: ["import", "vllm", p.file("v.json", json.dumps(VLLM)), "--method", "x", *p.out("imported")],
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
    Writer("analyze complementarity", "c.csv", lambda p: ["analyze", "complementarity", p.run, *p.out("c.csv")]),
    Writer(
        "bench",
        "b.json",
        lambda p: ["bench", *p.pair, "--runtime", "eager", "--documents", "2", *p.out("b.json")],
    ),
    Writer(
        "cache of exports",
        "run",
        lambda p: place.run_words(p.bench.place, p.disk / "run", "--runtime", "openvino", methods=("sps",)),
        fresh=True,
        leave=2**20,
        cache=True,
        large=True,
    ),
    Writer(
        "cache of ceilings",
        "cache",
        lambda p: ["profile", "--ceilings", *p.pair],
        fresh=True,
        cache=True,
    ),
)
