"""The study of `specbench load`: all methods at all rates, kept as they come; a command that was stopped goes on."""

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from specbench.analysis.load import Slo, by_rows, figures, speedups
from specbench.base import environment
from specbench.base.arrivals import Arrivals
from specbench.config import UserError
from specbench.measure import prepare
from specbench.measure.same import check_same
from specbench.plan import Plan
from specbench.results.load_folder import LoadFolder, Unit
from specbench.studies.load import BISECTIONS, Load, last_line

BASE = "vanilla"


@dataclass(frozen=True)
class LoadFigures:
    """Figures of one pair under load; the tables are those of `analysis.load.speedups` and `by_rows`."""

    pair: str
    suite: str
    sampling: str
    arrivals: str
    rows: int
    requests: int
    repeats: int
    slo: dict[str, float]  # seconds, by the name of the latency that is bounded; empty: none is
    saturation: dict[str, float]  # by method, requests a second; empty: not looked for
    leaks: dict[str, int]  # by method, the documents that its inputs were made from
    failures: dict[str, str]  # by method with requests that an exception ended, the first of these
    environment: dict[str, Any]
    settings: dict[str, dict[str, Any]]  # of each method
    table: pd.DataFrame
    by_rows: pd.DataFrame


@dataclass(frozen=True)
class Asked:
    """What is asked of the server."""

    rows: int  # texts that are decoded together at most
    requests: int  # at each rate
    arrivals: Arrivals
    rates: tuple[float, ...]  # requests a second; inf: all come at once
    to_saturation: bool = False  # stretch the rates so that the highest is where vanilla's queue begins to grow
    saturation: bool = False  # find that rate for every method
    slo: Slo = field(default_factory=Slo)

    def facts(self) -> dict[str, Any]:
        """What must be the same where a command goes on."""
        trace = self.arrivals.digest
        return {"rows": self.rows, "requests": self.requests, "arrivals": self.arrivals.kind, "trace": trace}


class Study:
    """All that one command measures. Without a folder nothing is kept.

    Raises UserError if the folder was measured under other settings.
    """

    def __init__(self, plan: Plan, asked: Asked, folder: LoadFolder | None = None) -> None:
        self.plan, self.asked, self.folder = plan, asked, folder
        self.names = [spec.name for spec in plan.methods]
        if folder:
            folder.check_asked(plan, asked.facts())

    @property
    def total(self) -> int:
        """The steps of `carry_out`."""
        units = len(self.names) * len(self.asked.rates) * self.plan.repeats
        return units + len(self._searched) * (BISECTIONS + 1)

    @property
    def _searched(self) -> list[str]:
        return self.names if self.asked.saturation else [BASE] * self.asked.to_saturation

    def carry_out(self, advance: Callable[[int], None]) -> LoadFigures:
        """Measure what is not kept yet. Raises UserError if models or prompts are others than those of the folder."""
        asked = self.asked
        load = Load(self.plan, prepare.load_models(self.plan), asked.rows, asked.requests, asked.arrivals)
        if self.folder:
            self._check(load.manifest | {"load": asked.facts()}, self.folder)
        saturation = self._saturation(load, advance)
        rates = asked.rates
        if asked.to_saturation:
            rates = tuple(rate * saturation[BASE] / max(rates) for rate in rates)
        order, measured = random.Random(self.plan.seed), []
        for repeat in range(self.plan.repeats):
            for rate in rates:
                for name in order.sample(self.names, len(self.names)):
                    measured.append(self._measured(load, Unit(name, rate, repeat)))
                    advance(1)
        requests, steps = (pd.concat(frames, ignore_index=True) for frames in zip(*measured, strict=True))
        if self.folder:
            self.folder.finish(requests, steps)
        return self._result(load, requests, steps, saturation)

    def _check(self, manifest: Mapping[str, Any], folder: LoadFolder) -> None:
        """Write the manifest, or compare it with the one that is there."""
        if folder.manifest is None:
            folder.begin(manifest)
        else:
            check_same(folder.manifest, dict(manifest), folder.path, "choose another --out")

    def _saturation(self, load: Load, advance: Callable[[int], None]) -> dict[str, float]:
        """The rates at which queues begin to grow, of the methods that are asked for."""
        rates = self.folder.rates(self.names) if self.folder else {}
        for name in self._searched:
            if name in rates:
                advance(BISECTIONS + 1)
                continue
            rates[name] = load.saturation(name, advance)
            if self.folder:
                self.folder.keep_rates(rates)
        return {name: rates[name] for name in self._searched}

    def _measured(self, load: Load, unit: Unit) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Requests and steps of a unit: those that are kept, or new ones, which are kept then."""
        kept = self.folder.kept(unit, self.asked.requests) if self.folder else None
        if kept:
            return kept
        requests, steps = load.at(unit)
        if self.folder:
            self.folder.keep(unit, requests, steps)
        return requests, steps

    def _result(
        self, load: Load, requests: pd.DataFrame, steps: pd.DataFrame, saturation: dict[str, float]
    ) -> LoadFigures:
        plan, asked = self.plan, self.asked
        table = speedups(figures(requests, steps, asked.slo), requests, BASE)
        ranks = table.method.map(self.names.index)
        table = table.assign(rank=ranks).sort_values(["rank", "rate"]).drop(columns="rank").reset_index(drop=True)
        failed = requests[requests.finish == "error"].groupby("method", sort=False).error.first()
        return LoadFigures(
            pair=plan.pair.name,
            suite=plan.suite,
            sampling=plan.sampling.name,
            arrivals=asked.arrivals.kind,
            rows=asked.rows,
            requests=asked.requests,
            repeats=plan.repeats,
            slo={name: bound for name, bound in vars(asked.slo).items() if math.isfinite(bound)},
            saturation=saturation,
            leaks=load.leaks,
            failures={str(name): last_line(error) for name, error in failed.items()},
            environment=environment.describe(load.pair.device, load.pair.draft_device),
            settings={spec.name: spec.values for spec in plan.methods},
            table=table,
            by_rows=by_rows(steps, BASE),
        )


def parse_slo(text: str | None) -> Slo:
    """`ttft=0.5,tpot=0.02` in seconds. Raises UserError for anything else."""
    bounds: dict[str, float] = {}
    for part in text.split(",") if text is not None else []:
        name, _, value = part.partition("=")
        try:
            bound = float(value)
        except ValueError:
            bound = math.nan
        if name.strip() not in vars(Slo()) or name.strip() in bounds or not 0 < bound < math.inf:
            raise UserError(f"--slo {text}: write ttft=SECONDS,tpot=SECONDS, or one of them")
        bounds[name.strip()] = bound
    return Slo(**bounds)
