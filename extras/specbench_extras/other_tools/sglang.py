"""Results of SGLang's bench_serving: the server's figures, each request's (--output-details), and rounds by step."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from specbench.config import UserError, validated
from specbench.results.importers import conditions
from specbench.results.importers.foreign import Entry, Figures, Row, entries, text_of
from specbench.results.text_rounds import text_rounds
from specbench_extras.other_tools.kinds import check_kind
from specbench_extras.other_tools.vllm_bench import Bench, Served, add_requests

# Its names of what `vllm bench serve` calls otherwise.
RENAMED = {f"{kind}_e2e_latency_ms": f"{kind}_e2el_ms" for kind in ("mean", "median", "p99")}


Length = Annotated[int, Field(ge=1, le=2**20)]


class Stats(Entry):
    """Rounds of one request (--speculative-decoding-stats); lengths hold the target's own token, too."""

    verify_lengths: list[Length] | None = None
    accept_lengths: list[Length] | None = None

    @model_validator(mode="after")
    def _alike(self) -> "Stats":
        verified, kept = self.verify_lengths or [], self.accept_lengths or []
        if len(verified) != len(kept) or any(k > v for v, k in zip(verified, kept, strict=True)):
            raise ValueError("a step accepted more tokens than it verified, or one list is longer than the other")
        return self


def read(path: Path) -> list[Figures]:
    """The figures in a file of results, one a line; several are passes of one method.

    `accept_length` is the server's average over all requests since it started, and not of these alone.
    """
    text, digest = text_of(path)
    objects = entries(path, text)
    for _, entry in objects:
        check_kind(path, entry, "sglang")
    figures = Figures(path, digest, path.stem)
    figures.conditions = conditions.merged([_conditions(entry) for _, entry in objects], f"{path}")
    detailed = ["itls" in entry for _, entry in objects]
    if any(detailed) and not all(detailed):
        raise UserError(
            f"{path}: some results have figures per request (--output-details) and some not; import them apart"
        )
    for repeat, (where, entry) in enumerate(objects):
        renamed = entry | {new: entry[old] for old, new in RENAMED.items() if old in entry}
        totals = validated(Served, renamed, where).model_dump(exclude_none=True)
        length = entry.get("accept_length")
        if isinstance(length, int | float) and length >= 1:
            totals["spec_decode_acceptance_length"] = length
            figures.warnings.append(
                f"{where}: τ is the server's average over all its requests since it started; start it for each result"
            )
        figures.totals.append(totals)
        if all(detailed):
            bench = validated(Bench, renamed, where)
            add_requests(figures, where, bench, repeat, "sglang", _rounds(where, entry, bench))
    return [figures]


def _conditions(entry: Row) -> dict[str, Any]:
    """What a result says of how it was measured; newer ones hold the server's own settings, too."""
    server = entry.get("server_info")
    of_server = {"model": server.get("model_path")} if isinstance(server, dict) and server.get("model_path") else {}
    return conditions.of(of_server | entry)


def _rounds(where: str, entry: Row, bench: Bench) -> list[list[Row]]:
    """The rows of rounds of each request; empty lists where the file does not tell them."""
    size = len(bench.output_lens)
    rows: list[list[Row]] = [[] for _ in range(size)]
    told = entry.get("speculative_decoding_stats")
    requests = told.get("requests") if isinstance(told, dict) else None
    for place, request in enumerate(requests if isinstance(requests, list) else []):
        index = request.get("request_index", place) if isinstance(request, dict) else None
        if not isinstance(index, int) or not 0 <= index < size:
            raise UserError(f"{where}: speculative_decoding_stats has a request {index!r}; there are {size}")
        stats = validated(Stats, request.get("stats") or {}, f"{where}, request {index}")
        verified, kept = stats.verify_lengths or [], stats.accept_lengths or []
        drafted, accepted = ([length - 1 for length in each] for each in (verified, kept))
        rows[index] = text_rounds(drafted, accepted, bench.output_lens[index])
    return rows
