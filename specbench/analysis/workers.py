"""Who decoded each text of a run, and which texts come from unlike hardware."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from specbench.analysis import metrics
from specbench.results.stored import StoredRun

WHO = ["host", "device", "worker"]
HARDWARE = ("device", "cpu", "cores", "threads", "driver")  # of a manifest's environment: what tokens/s depend on


def of_texts(run: StoredRun, samples: pd.DataFrame) -> pd.DataFrame:
    """Who decoded each timed text, indexed as `metrics.per_document`.

    Returns:
        `worker` counts the run's workers from 0, in the order of their first texts; `host`, `device` and `number` tell
        which it is, empty and 0 if that is not recorded; `hardware` is the machine's as JSON. Runs before version 9 do
        not tell their workers: then each shard counts as one.
    """
    rows = metrics.timed_samples(samples).set_index(metrics.SAMPLE)
    shards = _shards(run, rows.index)
    who = rows.reindex(columns=WHO).astype({"host": object, "device": object, "worker": "Int64"})
    who = who.fillna({"host": "", "device": ""}).assign(worker=who.worker.fillna(pd.Series(shards, who.index)))
    parts = run.manifest.get("joined") or []
    places = [_hardware(part.get("environment") or run.manifest["environment"]) for part in parts]
    hardware = np.array([_hardware(run.manifest["environment"]), *places], object)[shards]
    codes = pd.factorize(pd.MultiIndex.from_frame(who.droplevel("method").reset_index(drop=True)))[0]
    return pd.DataFrame(
        {
            "worker": codes,
            "host": who.host,
            "device": who.device,
            "number": who.worker.astype(int),
            "hardware": hardware,
        },
        index=who.index,
    )


def _shards(run: StoredRun, texts: pd.MultiIndex) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The number of the shard of each text; 0 for all of a run that was never cut."""
    parts = run.manifest.get("joined")
    if not parts:
        return np.zeros(len(texts), np.int64)
    places = {(task, doc_id): place for place, (task, doc_id, *_) in enumerate(run.manifest["requests"])}
    indices = [repeat * len(places) + places.get((task, doc), 0) for repeat, task, doc, _ in texts]
    last = len(parts) - 1
    return 1 + np.minimum(np.searchsorted([part["stop"] for part in parts], indices, side="right"), last)


def _hardware(environment: Mapping[str, Any]) -> str:
    return json.dumps({key: environment.get(key) for key in HARDWARE})


def unlike(counts: pd.DataFrame) -> list[str]:
    """What differs in the hardware of some texts, as far as it is known: their tokens/s are of no machine together."""
    machines = [json.loads(text) for text in counts.hardware.unique()]
    return [key for key in HARDWARE if len({str(m[key]) for m in machines if m[key] is not None}) > 1]
