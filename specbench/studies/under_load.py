"""The study of `specbench load`: all methods at all rates, kept as they come; a command that was stopped goes on."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from specbench.analysis.load import Slo, by_rows, figures, speedups
from specbench.base import environment, files, parquet
from specbench.base.folder import Folder, Member
from specbench.base.untrusted import read_json
from specbench.config import UserError
from specbench.measure import prepare
from specbench.plan import Plan
from specbench.studies.load import BISECTIONS, Load

BASE = "vanilla"
SETTINGS, RATES = "load.json", "saturation.json"
REQUESTS = pa.schema(
    [
        pa.field("method", pa.string()),
        pa.field("rate", pa.float64()),  # requests a second; inf: all came at once
        pa.field("request", pa.int32()),
        pa.field("task", pa.string()),
        pa.field("doc_id", pa.int32()),
        pa.field("came", pa.float64()),  # seconds; this and the next two count from the first request
        pa.field("began", pa.float64()),  # a row was free
        pa.field("prompt_tokens", pa.int32()),
        pa.field("tokens", pa.list_(pa.int32())),
        pa.field("finish", pa.string()),
        pa.field("rounds", pa.list_(pa.float64())),  # when each ended
    ]
)
STEPS = pa.schema(
    [
        pa.field("method", pa.string()),
        pa.field("rate", pa.float64()),
        pa.field("step", pa.int32()),
        pa.field("began", pa.float64()),
        pa.field("seconds", pa.float64()),
        pa.field("rows", pa.int32()),
        pa.field("joined", pa.int32()),  # of the rows, those that read their prompts in this step
        pa.field("queue", pa.int32()),
        pa.field("fed", pa.int32()),  # tokens of the target's forwards
        pa.field("committed", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Loaded:
    """Figures of one pair under load; the tables are those of `analysis.load.speedups` and `by_rows`."""

    pair: str
    suite: str
    sampling: str
    arrivals: str
    rows: int
    requests: int
    saturation: dict[str, float]  # by method, requests a second; empty: not looked for
    environment: dict[str, Any]
    settings: dict[str, dict[str, Any]]  # of each method
    table: pd.DataFrame
    by_rows: pd.DataFrame


class Study:
    """All that one command measures. Without a folder nothing is kept."""

    def __init__(self, plan: Plan, folder: Path | None, rows: int, requests: int, arrivals: str) -> None:
        self.plan, self.rows, self.requests, self.arrivals = plan, rows, requests, arrivals
        self.names = [spec.name for spec in plan.methods]
        self.folder = folder
        facts = {"plan": plan.model_dump(mode="json"), "rows": rows, "requests": requests, "arrivals": arrivals}
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            with Folder.at(folder) as place:
                if not place.has(SETTINGS):
                    if place.names():
                        raise UserError(f"{folder} holds other files; choose another --out")
                    place.write_json(SETTINGS, facts)
                elif read_json(Member(place, SETTINGS)) != json.loads(json.dumps(facts)):
                    raise UserError(f"{folder} was measured under other settings; choose another --out")

    def total(self, rates: Sequence[float], to_saturation: bool, saturation: bool) -> int:
        """The steps of `carry_out`."""
        searched = len(self.names) if saturation else int(to_saturation)
        return len(self.names) * len(rates) + searched * (BISECTIONS + 1)

    def carry_out(
        self, rates: Sequence[float], to_saturation: bool, saturation: bool, slo: Slo, advance: Callable[[int], None]
    ) -> Loaded:
        """Measure what is not kept yet.

        Args:
            to_saturation: stretch the rates so that the highest is where vanilla's queue begins to grow.
            saturation: find that rate for every method.
        """
        load = Load(self.plan, prepare.load_models(self.plan), self.rows, self.requests, self.arrivals)
        found = self._kept_rates()
        for name in self.names if saturation else [BASE] * to_saturation:
            if name in found:
                advance(BISECTIONS + 1)
            else:
                found[name] = load.saturation(name, advance)
                self._keep_rates(found)
        if to_saturation:
            rates = [rate * found[BASE] / max(rates) for rate in rates]
        order = random.Random(self.plan.seed)
        requests, steps = [], []
        for rate in rates:
            for name in order.sample(self.names, len(self.names)):
                both = self._kept(name, rate) or load.at(name, rate)
                self._keep(name, rate, *both)
                requests.append(both[0])
                steps.append(both[1])
                advance(1)
        all_requests, all_steps = pd.concat(requests), pd.concat(steps)
        if self.folder:
            parquet.write(self.folder / "requests.parquet", as_table(all_requests, REQUESTS))
            parquet.write(self.folder / "steps.parquet", as_table(all_steps, STEPS))
        table = figures(all_requests, all_steps, slo)
        ranks = table.method.map(self.names.index)
        table = table.assign(rank=ranks).sort_values(["rank", "rate"]).drop(columns="rank").reset_index(drop=True)
        return Loaded(
            self.plan.pair.name,
            self.plan.suite,
            self.plan.sampling.name,
            self.arrivals,
            self.rows,
            self.requests,
            found if saturation or to_saturation else {},
            environment.describe(load.pair.device),
            {spec.name: spec.values for spec in self.plan.methods},
            speedups(table, BASE),
            by_rows(all_steps, BASE),
        )

    def _kept(self, name: str, rate: float) -> tuple[pd.DataFrame, pd.DataFrame] | None:
        if not self.folder:
            return None
        paths = [self.folder / "parts" / f"{_unit(name, rate)}.{kind}.parquet" for kind in ("requests", "steps")]
        if not all(path.exists() for path in paths):
            return None
        requests, steps = (parquet.read(path).to_pandas() for path in paths)
        return requests, steps

    def _keep(self, name: str, rate: float, requests: pd.DataFrame, steps: pd.DataFrame) -> None:
        if self.folder:
            (self.folder / "parts").mkdir(exist_ok=True)
            for kind, frame, schema in (("steps", steps, STEPS), ("requests", requests, REQUESTS)):
                path = self.folder / "parts" / f"{_unit(name, rate)}.{kind}.parquet"
                if not path.exists():
                    parquet.write(path, as_table(frame, schema))

    def _kept_rates(self) -> dict[str, float]:
        if not self.folder:
            return {}
        with Folder.at(self.folder) as place:
            kept: dict[str, float] = read_json(Member(place, RATES)) if place.has(RATES) else {}
        return kept

    def _keep_rates(self, rates: dict[str, float]) -> None:
        if self.folder:
            with Folder.at(self.folder) as place:
                place.write_json(RATES, rates)


def as_table(frame: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)


def _unit(name: str, rate: float) -> str:
    return f"{files.safe_name(name)}-{rate:.6g}"


def parse_slo(text: str | None) -> Slo:
    """`ttft=0.5,tpot=0.02` in seconds. Raises UserError for anything else."""
    bounds: dict[str, float] = {}
    for part in text.split(",") if text else []:
        name, _, value = part.partition("=")
        try:
            bounds[name.strip()] = float(value)
        except ValueError:
            bounds[name.strip()] = math.nan
    if not bounds.keys() <= {"ttft", "tpot"} or not all(bound > 0 for bound in bounds.values()):
        raise UserError(f"--slo {text}: write ttft=SECONDS,tpot=SECONDS, or one of them")
    return Slo(**bounds)
