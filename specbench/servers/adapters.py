"""From an answer, or from counters around it, to what is known of its rounds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specbench.servers import engines
from specbench.servers.engines import Engine, read_fields
from specbench.servers.evidence import CHUNKS, COUNTERS, Evidence, fits, of_histogram, of_steps, of_sums
from specbench.servers.facts import samples
from specbench.servers.reply import Reply, count, counts

Counters = dict[str, float]
NEAR = 0.02  # of a whole number of forwards, which a rounded average may miss


def evidence(engine: Engine, reply: Reply, before: Counters | None, after: Counters | None) -> Evidence:
    """The best evidence of a text's rounds: what the answer says, else counters that prove it alone, else its parts.

    `before`, `after`: the server's counters around this request alone; None if it was not the only one.
    """
    if rounds := told(engine, reply) or _grown(before, after):
        return rounds
    sizes = [len(chunk.ids) for chunk in reply.chunks if chunk.ids]
    if len(reply.chunks) > 1 and any(size > 1 for size in sizes):
        return Evidence(CHUNKS, rounds=len(reply.chunks) - 1)
    return Evidence()


def told(engine: Engine, reply: Reply) -> Evidence | None:
    """What the answer itself says of its rounds; None if nothing, or only what contradicts itself."""
    known, _ = read_fields(engine, _flat(reply))
    if steps := of_steps(counts(known.get(engines.DRAFTED_EACH)), counts(known.get(engines.ACCEPTED_EACH))):
        return steps
    verified, kept = counts(known.get(engines.VERIFIED_EACH)), counts(known.get(engines.KEPT_EACH))
    if (
        verified
        and kept
        and min(*verified, *kept) > 0
        and (steps := of_steps(*(_less(each) for each in (verified, kept))))
    ):
        return steps
    rounds, drafted, accepted, longest = (
        count(known.get(name)) for name in (engines.ROUNDS, engines.DRAFTED, engines.ACCEPTED, engines.LONGEST)
    )
    of_rounds = of_histogram(counts(known.get(engines.HISTOGRAM)), drafted, longest)
    if of_rounds and (rounds, accepted) in ((None, None), (of_rounds.rounds, of_rounds.accepted_tokens)):
        return of_rounds
    if of_rounds:  # its histogram counts otherwise: what the text's length allows holds
        of_rounds = replace(of_rounds, draft_tokens=drafted) if fits(of_rounds, reply.tokens) else None
        rounds = of_rounds.rounds if rounds is None and of_rounds else rounds
        accepted = of_rounds.accepted_tokens if accepted is None and of_rounds else accepted
    average = known.get(engines.PER_ROUND)
    if rounds is None and isinstance(average, int | float) and not isinstance(average, bool):
        return _of_average(float(average), reply.tokens)
    return of_sums(rounds, drafted, accepted)


def _less(lengths: list[int]) -> list[int]:
    """Lengths without the target's own token."""
    return [length - 1 for length in lengths]


def unknown_fields(engine: Engine, reply: Reply) -> set[str]:
    """The names of an answer's fields that may tell of rounds, but that no table knows."""
    return read_fields(engine, _flat(reply))[1]


def _of_average(average: float, tokens: int | None) -> Evidence | None:
    """The rounds of a text by its tokens for each forward of the target, of which the prefill is one."""
    if not tokens or not 1 <= average <= tokens:
        return None
    forwards = tokens / average
    if abs(forwards - round(forwards)) > NEAR * forwards:
        return None
    rounds = round(forwards) - 1
    return of_sums(rounds, None, tokens - 1 - rounds)


def _flat(reply: Reply) -> dict[str, Any]:
    """All that is sent next to the text, the usage included, by dotted name."""
    flat: dict[str, Any] = {}

    def add(values: Mapping[str, Any], before: str) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                if before.count(".") < 4:
                    add(value, f"{before}{key}.")
            elif value is not None:
                flat[f"{before}{key}"] = value

    add(reply.usage, "usage.")
    return flat | reply.told


def parse_counters(engine: Engine, text: str) -> Counters:
    """The counters of rounds in an answer at /metrics, over all series of a name; {} if the engine has none.

    `at 0` is how many rounds accepted the first token of their draft, `at 1` the second, and so on.
    """
    wanted = {name: key for key, name in engine.counters.items()}
    sums: Counters = {}
    for name, labels, value in samples(text):
        key = wanted.get(name.removesuffix("_total"))
        if key is None or name.endswith("_created"):
            continue
        key = f"at {labels.get('position')}" if key == "at" else key
        try:
            sums[key] = sums.get(key, 0.0) + float(value)
        except ValueError:
            return {}
    return sums


def _grown(before: Counters | None, after: Counters | None) -> Evidence | None:
    """What counters grew by, if there was exactly one request between the two."""
    if not before or not after or after.get("requests", 0.0) - before.get("requests", 0.0) != 1:
        return None
    counted = {key for key in after if key in ("rounds", "drafted", "accepted") or key.startswith("at ")}
    grown = {key: after[key] - before.get(key, 0.0) for key in counted}
    if not grown or any(value < 0 or value % 1 for value in grown.values()):
        return None
    exact = {key: int(value) for key, value in grown.items()}
    rounds, drafted, accepted = (exact.get(key) for key in ("rounds", "drafted", "accepted"))
    sums = of_sums(rounds, drafted, accepted, COUNTERS)
    longest = sum(key.startswith("at ") for key in exact)
    if sums and rounds is not None and longest and drafted == rounds * longest:
        return replace(sums, whole=exact.get(f"at {longest - 1}"))
    return sums
