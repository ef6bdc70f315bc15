"""`specbench analyze network`: a draft on the user's device, a target in the cloud, and a modelled channel between.

FlexSpec (arXiv 2601.00644) keeps one draft on the device and chooses its length by the state of the channel. Its full
text was not available; this model is ours. A round with K drafted tokens also takes

    round trip + K · bits of a token / rate

seconds: the device sends the draft, and the answer (a count and a token) is small. The target alone is in the cloud
too. Its tokens come in a stream, so it waits for no round trip after the first token. A trace gives several states of
the channel, which last longer than a round. Nothing of this is measured, and energy is not counted.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from specbench.analysis.simulate import Simulation
from specbench.analysis.simulated_rows import fastest, fixed_length, iid_speedup
from specbench.base.stats import Floats
from specbench.base.untrusted import is_file, read_text
from specbench.config import UserError, validated

ID_BITS = 32.0  # of a token's id, as most protocols send it
MOST_TRACE = 10_000_000  # bytes
MOST_STATES = 10_000
CHANNEL = "by channel"
KEYS = ("rtt", "rate", "bits", "seconds")
HOW = "write rtt=SECONDS,rate=BITS_PER_SECOND, or a CSV file with the columns seconds, rtt and rate"


class State(BaseModel):
    """A channel for some time."""

    model_config = ConfigDict(strict=True, extra="forbid")
    rtt: float = Field(ge=0, le=1e4)  # seconds of a round trip
    rate: float = Field(gt=0, le=1e15)  # bits a second from the device to the cloud
    seconds: float = Field(default=1.0, gt=0, le=1e9)  # how long it lasts, of a trace


class Trace(BaseModel):
    states: list[State] = Field(min_length=1, max_length=MOST_STATES)


@dataclass(frozen=True)
class Network:
    """The states of a channel, and the bits that a drafted token takes; `source` is what the user wrote."""

    states: tuple[State, ...]
    bits: float
    source: str

    @property
    def shares(self) -> Floats:
        """The share of time of each state."""
        seconds = np.array([state.seconds for state in self.states])
        return np.asarray(seconds / seconds.sum())


@dataclass(frozen=True)
class OverNetwork:
    """A simulation over a modelled channel.

    The table has a row for each task and setting of the simulation, and for lengths chosen by the channel: setting,
    tau, acceptance_rate; speedup (of the simulation, without a network); modelled_tokens_per_s, modelled_speedup (over
    the target alone in the cloud), network_share (of the time of rounds that the network takes) and guessed (the share
    of rounds that needed what was not recorded, in the worst state).
    """

    simulation: Simulation
    network: Network
    chosen: tuple[int, ...]  # the draft length of each state, chosen by the channel; empty: no fixed length was tried
    table: pd.DataFrame


def from_option(text: str, greedy: bool) -> Network:
    """What `--channel` names: numbers, or a trace's file. Raises UserError if it is neither, or not complete.

    A sampled draft is sent with what the rule needs of its distributions, so `bits` must be said then.
    """
    values, path = _parsed(text)
    bits = values.pop("bits", ID_BITS if greedy else None)
    if bits is None:
        raise UserError(
            f"--channel {text}: sampled drafts are sent with their distributions; add bits=BITS of a drafted token"
        )
    if not 0 < bits <= 1e15:
        raise UserError(f"--channel {text}: bits must be above 0, not {bits:g}")
    rows = [values] if path is None else _rows(path)
    states = validated(Trace, {"states": rows}, f"--channel {text}", HOW).states
    return Network(tuple(states), bits, text)


def _parsed(text: str) -> tuple[dict[str, float], Path | None]:
    """Values by name, and a trace's file if one is named."""
    values: dict[str, float] = {}
    path = None
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals and path is None:
            path = Path(part)
            continue
        try:
            values[key.strip()] = float(value)
        except ValueError:
            raise UserError(f"--channel {part!r}: {HOW}") from None
    if unknown := [key for key in values if key not in KEYS]:
        raise UserError(f"--channel: there is no {unknown[0]!r}; there are {', '.join(KEYS)}")
    if path is not None and not is_file(path):
        raise UserError(f"--channel {text}: there is no file {path}; {HOW}")
    if path is not None and set(values) - {"bits"}:
        raise UserError(f"--channel {text}: a file has rtt, rate and seconds; only bits=BITS goes with it")
    return values, path


def _rows(path: Path) -> list[dict[str, float]]:
    """The rows of a trace. Raises UserError for a file that is no table of numbers."""
    reader = csv.DictReader(read_text(path, MOST_TRACE).splitlines())
    try:
        return [{str(key): float(value) for key, value in row.items()} for row in islice(reader, MOST_STATES + 1)]
    except (ValueError, TypeError, csv.Error):
        where = f"--channel: {path}, line {reader.line_num}"
        raise UserError(f"{where}: a value is not a number; {HOW}") from None


def over_network(figures: Simulation, network: Network) -> OverNetwork:
    """The same rounds over a channel. Over a trace, rates are means over its time.

    The lengths by channel are, in each state, the one of the fixed lengths tried whose `theory` is best: that is what a
    device knows that has measured α, its forwards and the channel.
    """
    lengths = sorted({gamma for gamma in map(fixed_length, figures.table.setting) if gamma is not None})
    chosen: tuple[int, ...] = ()
    if lengths:
        chosen = tuple(max(lengths, key=lambda g: theory(figures, g, network, state)) for state in network.states)
    rows = []
    for task, part in figures.table.groupby("task", sort=False):
        records = part.to_dict("records")
        rows += [{"task": task} | _modelled(network, [row] * len(network.states)) for row in records]
        if chosen:
            by_gamma = {fixed_length(row["setting"]): row for row in records}
            followed = _modelled(network, [by_gamma[gamma] for gamma in chosen])
            rows.append({"task": task} | followed | {"setting": CHANNEL, "fixed": False})
    table = pd.DataFrame(rows)
    table["best"] = fastest(table, "modelled_speedup")
    return OverNetwork(figures, network, chosen, table.drop(columns="fixed"))


def theory(figures: Simulation, gamma: int, network: Network, state: State) -> float:
    """The speedup over a channel if tokens were independent: Leviathan et al.'s, with the network's time in a round."""
    token = figures.times.token
    sending = network.bits / state.rate
    return iid_speedup(figures.alpha, gamma, figures.times.cost_ratio + sending / token, state.rtt / token)


def _modelled(network: Network, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a setting over a channel; `rows` are the simulation's, one for each state."""
    rates, waiting = [], []
    for state, row in zip(network.states, rows, strict=True):
        away = row["verification_rate"] * state.rtt + row["drafted_rate"] * network.bits / state.rate
        seconds = 1 / row["tokens_per_s"] + away  # of a token
        rates.append(1 / seconds)
        waiting.append(away / seconds)
    rate = float(network.shares @ np.array(rates))
    first = rows[0]
    alone = first["tokens_per_s"] / first["speedup"]
    tokens = network.shares * np.array(rates)  # committed in each state, of a second of all

    def mean(values: Iterator[float]) -> float:
        """Over committed tokens."""
        return float(tokens @ np.fromiter(values, float) / tokens.sum())

    rounds, drafted = mean(row["verification_rate"] for row in rows), mean(row["drafted_rate"] for row in rows)
    return {
        "setting": first["setting"],
        "tau": 1 / rounds,
        "acceptance_rate": mean(row["drafted_rate"] - row["discard_rate"] for row in rows) / drafted
        if drafted
        else math.nan,
        "speedup": first["speedup"] if all(row is first for row in rows) else math.nan,
        "modelled_tokens_per_s": rate,
        "modelled_speedup": rate / alone,
        "network_share": float(network.shares @ np.array(waiting)),
        "guessed": max(row["guessed"] for row in rows),
        "fixed": fixed_length(first["setting"]) is not None,
    }
