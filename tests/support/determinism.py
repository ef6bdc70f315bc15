"""What two runs must have in common, whatever stood next to a method and however often a run was stopped.

Of the same runtime, machine and number of threads: sums of floating point depend on their order, and nothing is
promised where that is another one. As a program (`python determinism.py FOLDER TEMPERATURE…`) it carries out the runs
of all methods, last ones first, each into FOLDER/TEMPERATURE.
"""

import sys
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
import yaml
from gates import UNSHIPPED

from specbench import config
from specbench.measure import loop
from specbench.measure import sample as one_sample
from specbench.plan import Plan, resolve_plan
from specbench.results import records

# What is measured, and what tells of other methods than a row's own. Every other column is compared, those to come too.
MEASURED = {"prefill_seconds", "decode_seconds", "wall_seconds", "peak_memory", "load", "clock_mhz", "temperature_c"}
MEASURED |= {"host", "device", "worker", "attempt"}  # who decoded it
MEASURED |= {f"{what}_seconds" for what in ("target", "draft", "model", "member", "arbitrator", "branch")}
MEASURED |= {"seconds"}
OF_OTHERS = {"order", "diverged_at", "divergence_gap", "divergence"}
KEY = ("repeat", "task", "doc_id", "method")
TASKS = ("pocket_gsm8k", "pocket_math500")
TEMPERATURES = (0.0, 0.9)
FILTERED = {"top_k": 50, "top_p": 0.95}  # next to a temperature above 0
GREEDY_ONLY = {"oracle"}
UNTRAINED = {"s2d", "speckv", "speckv-time"}  # for the pair of these runs
TOKENS, WARMUP = 8, 3  # of a short text, and of its warm-up
# Under SETTINGS:
LEARNERS = ("bandit", "csd", "csd-ocm", "csd-pocket", "csd-pocket-weak", "sps", "swift", "tlt", "tlt-eagle3")
SETTINGS = (  # what is learned shows within a few short texts
    "csd.count_threshold=1",
    "csd.gate_threshold=0.0001",
    "csd.length=bandit",  # learns in two ways at once
    "sps.length=bandit",
    "swift.context_window=3",
    "swift.gamma=2",
    "swift.bayes_interval=2",
    "swift.max_score=2",
    "cospec.arbiter=random:0.5",
)

Row = dict[str, str]
Facts = dict[tuple[Any, ...], list[Row]]  # by KEY: a sample, and behind it its rounds


def methods(temperature: float) -> list[str]:
    """All that there are for this temperature."""
    left_out = {*UNSHIPPED, *UNTRAINED, *(GREEDY_ONLY if temperature else ())}
    return [name for name in config.names("methods") if name not in left_out]


def suite(folder: Path, documents: int, tokens: int, **changes: Any) -> Path:
    """A file of a suite of two tasks."""
    lines = [{"task": task, "max_new_tokens": tokens, **changes} for task in TASKS]
    path = folder / ("-".join(map(str, [documents, tokens, *changes.values()])) + ".yaml")
    path.write_text(yaml.safe_dump({"description": "few", "limit": documents, "tasks": lines}))
    return path


def chosen_settings(names: list[str]) -> list[str]:
    """Those of SETTINGS that are of these methods."""
    return [setting for setting in SETTINGS if setting.split(".")[0] in names]


def make_plan(names: list[str], path: Path, temperature: float, **options: Any) -> Plan:
    """Of the bundled pair whose draft disagrees most, without a baseline."""
    filters = FILTERED if temperature else {}
    settings = chosen_settings(names)
    given = {"device": "cpu", "temperature": temperature, "limit": None, "baseline": None} | filters | options
    return resolve_plan(names, str(path), "pocket-weak", settings, **given)


def facts(folder: Path) -> Facts:
    """All that must depend on nothing but the method and the documents; numbers to their last bit."""
    result: Facts = {}
    for table in ("samples", "rounds"):
        for row in records.read_rows(folder, table).to_pylist():
            if not row["warmup"]:
                key = tuple(row[name] for name in KEY)
                assert table == "rounds" or key not in result, f"{key} is there twice"
                result.setdefault(key, []).append(values_of(row))
    return result


def values_of(row: Mapping[str, Any]) -> Row:
    """Values as texts: NaN is equal to itself so, and a number to itself alone."""
    return {name: repr(value) for name, value in row.items() if name not in MEASURED | OF_OTHERS}


def difference(one: Facts, other: Facts) -> str:
    """Where two runs differ of the samples that both have, in words; nothing if they do not."""
    for key in sorted(one.keys() & other.keys()):
        for at, (a, b) in enumerate(zip_longest(one[key], other[key], fillvalue={})):
            for name in {**a, **b}:
                if a.get(name) != b.get(name):
                    place = f"round {at - 1}" if at else "sample"
                    return f"{key}, {place}, {name}: {a.get(name)} in one, {b.get(name)} in the other"
    return "" if one.keys() & other.keys() else "no sample in common"


def of(name: str, result: Facts) -> Facts:
    return {key: value for key, value in result.items() if key[3] == name}


def texts(result: Facts) -> dict[tuple[Any, ...], str]:
    return {key: rows[0]["tokens"] for key, rows in result.items()}


def different_tokens(result: Facts) -> int:
    """In all texts together: texts that are all alike prove nothing."""
    return len({token for text in texts(result).values() for token in text.strip("[]").split(", ")})


def main(folder: Path, temperatures: list[float]) -> None:
    torch.set_num_threads(1)
    one_sample.WARMUP_TOKENS = WARMUP
    loop.score = lambda folder, tasks: None
    for temperature in temperatures:
        plan = make_plan(methods(temperature)[::-1], suite(folder, 2, TOKENS), temperature)
        assert loop.execute(plan, folder / str(temperature), lambda progress: True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [float(word) for word in sys.argv[2:]])
