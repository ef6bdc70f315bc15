"""Results of `vllm bench serve --save-result`: the server's figures, and with --save-detailed each request's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, create_model, model_validator

from specbench.config import UserError, validated
from specbench.results.check_manifest import SERVED
from specbench.results.importers import conditions, origin
from specbench.results.importers.foreign import Count, Entry, Figures, Row, Seconds

Rate = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Served = create_model("Served", __base__=Entry, **{name: (Rate | None, None) for name in SERVED})  # type: ignore[call-overload]


class Bench(Entry):
    input_lens: list[Count]
    output_lens: list[Count]
    ttfts: list[Seconds]
    itls: list[list[Seconds]]
    generated_texts: list[str] | None = None
    errors: list[str] | None = None
    latencies: list[Seconds] | None = None
    max_concurrency: int | None = None

    @model_validator(mode="after")
    def _alike(self) -> "Bench":
        always = (self.input_lens, self.output_lens, self.ttfts, self.itls)
        may_be = (self.generated_texts, self.errors, self.latencies)
        if len({len(entries) for entries in (*always, *may_be) if entries is not None}) != 1:
            raise ValueError("the lists that have an entry per request differ in length")
        return self


def read(path: Path, objects: Sequence[tuple[str, Row]], digest: str) -> Figures:
    """The figures in a file with one or more results; without --save-detailed they are totals alone."""
    figures = Figures(path, digest, path.stem)
    figures.origin = origin.local_date(objects[-1][1].get("date")) | origin.host(objects[-1][1])
    figures.conditions = conditions.merged([conditions.of(entry) for _, entry in objects], f"{path}")
    detailed = ["itls" in entry for _, entry in objects]
    if any(detailed) and not all(detailed):
        raise UserError(
            f"{path}: some results have figures per request (--save-detailed) and some not; import them apart"
        )
    for repeat, (where, entry) in enumerate(objects):
        served = validated(Served, entry, where).model_dump(exclude_none=True)
        figures.totals.append(served | {key: value for key, value in entry.items() if key.startswith("spec_decode_")})
        if all(detailed):
            add_requests(figures, where, validated(Bench, entry, where), repeat)
    return figures


def add_requests(
    figures: Figures,
    where: str,
    bench: Bench,
    repeat: int,
    task: str = "vllm",
    rounds: Sequence[Sequence[Row]] | None = None,
) -> None:
    """Add the requests of one detailed result; `rounds` are rows by request."""
    if bench.max_concurrency != 1:
        figures.warnings.append(
            f"{where}: requests ran together (max_concurrency {bench.max_concurrency}): each one's seconds depend on "
            "the others; use --max-concurrency 1 for the speed of a single text"
        )
    for doc_id, (tokens, itls) in enumerate(zip(bench.output_lens, bench.itls, strict=True)):
        sample: Row = {"prompt_tokens": bench.input_lens[doc_id]}
        if bench.errors and bench.errors[doc_id]:
            sample |= {"finish": "error", "error": bench.errors[doc_id]}
        else:
            sample |= {"text": bench.generated_texts[doc_id] if bench.generated_texts else None, "new_tokens": tokens}
            if itls or tokens == 1:
                sample |= {"prefill_seconds": bench.ttfts[doc_id], "decode_seconds": sum(itls)}
            elif bench.latencies:  # not streamed
                sample |= {"wall_seconds": bench.latencies[doc_id]}
        figures.add(task, doc_id, repeat, sample, rounds[doc_id] if rounds else [])
