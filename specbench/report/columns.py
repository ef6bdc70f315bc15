"""The columns of the table of methods: what each is called, how its figures are written, which are shown by default."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from specbench.base.errors import did_you_mean
from specbench.config import UserError

NEAR = 1e-6  # percent: what floating point leaves of a whole one


def number(digits: int, scale: float = 1.0) -> Callable[[object], str]:
    """A function that formats a number to so many digits, and a missing one as `-`."""

    def text(value: object) -> str:
        return "-" if not isinstance(value, float | int) or math.isnan(value) else f"{value * scale:.{digits}f}"

    return text


percent = number(1, 100)


@dataclass(frozen=True)
class Column:
    """A column for people, and the columns of the summary that it is made from."""

    heading: str
    text: Callable[[pd.Series], str]
    raw: tuple[str, ...]


def _plain(heading: str, name: str, text: Callable[[object], str]) -> Column:
    return Column(heading, lambda row: text(row[name]), (name,))


def _interval(heading: str, name: str) -> Column:
    return Column(heading, lambda row: with_interval(row, name), (name, f"{name}_low", f"{name}_high"))


def _latency(heading: str, name: str) -> Column:
    raw = tuple(f"{kind}_{name}_ms" for kind in ("mean", "median", "p99"))

    def text(row: pd.Series) -> str:
        return " / ".join("-" if math.isnan(row[column]) else f"{row[column]:.3g}" for column in raw)

    return Column(f"{heading} ms", text, raw)


def score(row: pd.Series) -> str:
    """A score in percent with its 95 % interval, in whole percents that hold it; `-` if there are no scores."""
    if math.isnan(row.accuracy):
        return "-"
    low, high = 100 * row.accuracy_low + NEAR, 100 * row.accuracy_high - NEAR
    return percent(row.accuracy) + ("" if math.isnan(low) else f" [{math.floor(low)}, {math.ceil(high)}]")


def with_interval(row: pd.Series, name: str) -> str:
    """A speedup with its 95 % interval; `=` marks one whose interval holds 1."""
    if math.isnan(row[name]):
        return "-"
    if row.method == row.baseline:
        return "1 (base)"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if math.isnan(low):
        return f"{row[name]:.2f} [-]"
    return f"{row[name]:.2f} [{low:.2f}, {high:.2f}]{'=' if low <= 1 <= high else ''}"


def bounds(row: pd.Series, name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"[{low:.2f}, {high:.2f}]" if low < high else "-"


def p_text(p: float) -> str:
    """A p value as a sentence has it: `< 0.001`, `0.048`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_value(p: float) -> str:
    """A p value as a column has it: `<.001`, `.048`."""
    return "-" if math.isnan(p) else p_text(p).replace("< ", "<").replace("0.", ".", 1)


def documents(row: pd.Series) -> str:
    """How many documents, and of how many of them the speeds are where some were left out."""
    compared = row.get("compared", 0)
    return f"{compared:.0f} of {row.documents:.0f}" if 0 < compared < row.documents else f"{row.documents:.0f}"


COLUMNS: dict[str, Column] = {
    "accuracy": Column("score [95 %]", score, ("accuracy", "accuracy_low", "accuracy_high", "accuracy_stderr")),
    "accuracy_delta": _plain("Δ", "accuracy_delta", number(1, 100)),
    "accuracy_p": Column("p", lambda row: p_value(row.accuracy_p), ("accuracy_p", "accuracy_test")),
    "acceptance_rate": _plain("accept", "acceptance_rate", percent),
    "acceptance_rate_in_text": _plain("accept in text", "acceptance_rate_in_text", percent),
    "alpha": _plain("α", "alpha", percent),
    "tau": _plain("τ", "tau", number(2)),
    "tau_mean": _plain("τ by text", "tau_mean", number(2)),
    "tau_interval": Column("τ [95 %]", lambda row: bounds(row, "tau"), ("tau_low", "tau_high")),
    "discard_rate": _plain("discard", "discard_rate", number(2)),
    "verification_rate": _plain("verify", "verification_rate", number(2)),
    "rescue_rate": _plain("rescue", "rescue_rate", percent),
    # 0 for methods without an arbitrator.
    "arbitrator_share": _plain("arbiter", "arbitrator_share", lambda share: percent(share or math.nan)),
    "overhead": _plain("overhead", "overhead", percent),
    "tokens_per_s": _plain("tok/s", "tokens_per_s", number(0)),
    "tokens_per_s_e2e": _plain("tok/s end to end", "tokens_per_s_e2e", number(0)),
    "tokens_per_s_mean": _plain("tok/s mean", "tokens_per_s_mean", number(0)),
    "speedup_decode": _interval("speedup [95 %]", "speedup_decode"),
    "speedup_e2e": _interval("end to end [95 %]", "speedup_e2e"),
    "request_throughput": _plain("req/s", "request_throughput", number(2)),
    "output_throughput": _plain("served tok/s", "output_throughput", number(0)),
    "ttft": _latency("TTFT", "ttft"),
    "tpot": _latency("TPOT", "tpot"),
    "itl": _latency("ITL", "itl"),
    "e2el": _latency("E2EL", "e2el"),
    "peak_memory": _plain("memory MB", "peak_memory", number(0, 1e-6)),
    "documents": Column("docs", documents, ("documents", "compared")),
    "repeats": _plain("repeats", "repeats", number(0)),
    "accuracy_spread": _plain("score sd", "accuracy_spread", percent),
    "speedup_spread": _plain("speedup sd", "speedup_spread", number(3)),
    "cut": _plain("cut", "cut", percent),
    "empty": _plain("empty", "empty", number(0)),
    "loops": _plain("loops", "loops", number(0)),
    "errors": _plain("failed", "errors", number(0)),
    "limit_share": Column("of limit", lambda row: percent(row.limit_share), ("limit_share", "limit_unknown")),
}
MEANINGS = {
    "accuracy": "the task's own metric in percent, with its 95 % interval",
    "accuracy_delta": "score less the baseline's, in points",
    "accuracy_p": "probability of such a difference from the baseline if there were none",
    "acceptance_rate": "accepted drafts / drafts, in percent",
    "acceptance_rate_in_text": "the same without drafts after the end of the text, in percent",
    "alpha": "of the drafts that were tested, the percentage that passed",
    "limit_share": "least time that memory allows the forwards / measured decode time, in percent",
    "tau": "committed tokens per target round",
    "discard_rate": "discarded drafts / committed tokens",
    "verification_rate": "target forwards / committed tokens",
    "rescue_rate": "drafts accepted against the exact rule / drafts, in percent",
    "arbitrator_share": "share of decode time in forwards of an arbitrator, in percent",
    "overhead": "share of decode time outside of the models, in percent",
    "tokens_per_s": "committed tokens / decode seconds, of all documents together",
    "tokens_per_s_e2e": "the same with the prefill and its token",
    "tokens_per_s_mean": "the mean of the documents' own rates",
    "speedup_decode": "decode time per token of the baseline over the method's; = marks an interval that contains 1",
    "speedup_e2e": "the same with the prefill",
    "request_throughput": "requests that the server answered in a second, of all clients",
    "output_throughput": "tokens that the server gave in a second, of all requests",
    "ttft": "time to the first token, by the client: mean, median and 99th percentile",
    "tpot": "time for each token after the first one, one figure per request",
    "itl": "time between two answers of a stream, which may bring several tokens",
    "e2el": "time of a whole request",
    "peak_memory": "the most memory that a sample took, in MB",
    "documents": "documents; `17 of 20`: speeds are of 17, as empty answers, loops and untimed ones are left out",
    "cut": "answers that the limit of new tokens cut, in percent",
    "empty": "empty answers, which no speed is compared on",
    "loops": "answers that repeat one string up to the limit of new tokens; no speed is compared on them",
    "errors": "failed samples, which are left out",
}
ON_REQUEST = ("acceptance_rate_in_text", "tau_mean", "limit_share")  # columns that are shown only on request
SERVED = ("request_throughput", "output_throughput", "ttft", "tpot", "itl", "e2el")  # hidden unless a server told them
COUNTED = ("acceptance_rate", "alpha", "tau")  # what a server's counters tell
CUT = 0.01  # the share of answers cut by the limit of new tokens from which tables show it
NARROW = ["accuracy", "accuracy_p", "acceptance_rate", "tau", "discard_rate", "verification_rate", "tokens_per_s"]
NARROW += ["arbitrator_share", "speedup_decode"]
NOTHING = ("-", "1 (base)")  # cells that tell nothing if all of a column are such
DEPTH_COLUMNS: dict[str, Column] = {
    "depth": _plain("depth", "depth", number(0)),
    "cond_accept": _plain("accepted if tested %", "cond_accept", percent),
    "joint_accept": _plain("accepted of all rounds %", "joint_accept", percent),
    "tested": _plain("tested", "tested", number(0)),
}
WORKER_COLUMNS: dict[str, Column] = {
    "worker": _plain("worker", "worker", number(0)),
    "host": _plain("host", "host", str),
    "device": _plain("device", "device", str),
    "documents": _plain("docs", "documents", number(0)),
    "tokens_per_s": _plain("tok/s", "tokens_per_s", number(1)),
    "speedup_decode": COLUMNS["speedup_decode"],
}


def choose(summary: pd.DataFrame, wide: bool) -> list[str]:
    """The columns that are printed by default: those that fit and hold more than one trivial value."""
    if not summary.documents.any():  # of servers alone
        return [name for name in (*COUNTED, *SERVED) if is_known(summary, name)] or list(COUNTED)
    chosen = [name for name in COLUMNS if name not in ON_REQUEST] if wide else list(NARROW)
    silent = [name for name in SERVED if not is_known(summary, name)]
    silent += [name for name in ("accuracy_spread", "speedup_spread") if summary[name].isna().all()]
    silent += ["repeats"] if (summary.repeats <= 1).all() else []
    arbitrated = (summary.arbitrator_share > 0).any()
    silent += ["verification_rate"] * (not wide) if arbitrated else ["arbitrator_share"]
    chosen = [column for name in chosen for column in _by_what_is_known(summary, name)]
    silent += [name for name in chosen if all(COLUMNS[name].text(row) in NOTHING for _, row in summary.iterrows())]
    wrong = {"cut": (summary.cut > CUT).any()} | {name: summary[name].any() for name in ("empty", "loops", "errors")}
    return [*(name for name in chosen if name not in (*silent, *wrong)), *(name for name in wrong if wrong[name])]


WHOLE = {"speedup_decode": "speedup_e2e", "tokens_per_s": "tokens_per_s_e2e"}  # what is told with the prefill


def _by_what_is_known(summary: pd.DataFrame, name: str) -> list[str]:
    """The columns for a figure of decoding: some imported runs know whole times only, which have their own column."""
    if name in WHOLE.values():
        return [name] if name == "speedup_e2e" and summary.speedup_decode.notna().all() else []  # else it is next to
    whole = WHOLE.get(name)
    if whole is None:
        return [name]
    lacking = summary[name].isna() & summary[whole].notna()
    return [name] * bool(summary[name].notna().any()) + [whole] * bool(lacking.any())


def is_known(summary: pd.DataFrame, name: str) -> bool:
    """True if a row has a figure in a column."""
    return bool(summary[list(COLUMNS[name].raw)].notna().any(axis=None))


def checked_columns(names: Sequence[str]) -> list[str]:
    """Names of COLUMNS. Raises UserError for an unknown one."""
    for name in names:
        if name not in COLUMNS:
            raise UserError(f"no column {name!r}{did_you_mean(name, COLUMNS)}; there are {', '.join(COLUMNS)}")
    return list(names)
