"""An adapter for each engine: what its requests hold, what its answers say of rounds, and where it tells of itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from specbench.servers.evidence import CHUNKS, COUNTERS, Evidence, of_histogram, of_steps, of_sums
from specbench.servers.facts import cache, samples, scheduler, settings
from specbench.servers.reply import Reply, count, counts

Counters = dict[str, float]
Read = Callable[[str], dict[str, Any]]  # facts from a page; ValueError or RecursionError for one that is no JSON


class Adapter(Protocol):
    """An engine's own part of the OpenAI protocol."""

    name: str
    takes_ids: bool  # prompts as token ids
    # The names at /metrics, by `requests`, `rounds`, `drafted`, `accepted` and `at` (each position).
    counters: Mapping[str, str]
    facts: Mapping[str, Read]  # by the address at which it tells of itself

    def extras(self) -> dict[str, Any]:
        """What a request holds beside the fields of OpenAI."""
        ...

    def rounds(self, reply: Reply) -> Evidence | None:
        """What the answer itself says of its rounds; None if nothing."""
        ...


class Generic:
    """Any server of OpenAI's completions: parts of the stream are all that is known."""

    name = "generic"
    takes_ids = False
    counters: Mapping[str, str] = {}
    facts: Mapping[str, Read] = {}

    def extras(self) -> dict[str, Any]:
        return {}

    def rounds(self, reply: Reply) -> Evidence | None:
        return None


class Vllm(Generic):
    """vLLM: steps with --enable-per-request-metrics and --per-request-spec-decode-metrics detailed."""

    name = "vllm"
    takes_ids = True
    counters: Mapping[str, str] = {
        "requests": "vllm:request_success",
        "rounds": "vllm:spec_decode_num_drafts",
        "drafted": "vllm:spec_decode_num_draft_tokens",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
        "at": "vllm:spec_decode_num_accepted_tokens_per_pos",
    }
    facts: Mapping[str, Read] = {
        "/version": settings,
        "/metrics": cache,
        "/server_info?config_format=json": scheduler,
    }

    def extras(self) -> dict[str, Any]:
        return {"return_token_ids": True}

    def rounds(self, reply: Reply) -> Evidence | None:
        metrics = _last(reply, "metrics")
        speculation = metrics.get("speculative_decoding")
        if not isinstance(speculation, dict):
            return None
        steps = of_steps(counts(speculation.get("per_step_drafted")), counts(speculation.get("per_step_accepted")))
        drafted, longest = count(speculation.get("num_draft_tokens")), count(speculation.get("num_spec_tokens"))
        return steps or of_histogram(counts(speculation.get("acceptance_histogram")), drafted, longest)


class Sglang(Generic):
    """SGLang: the number of verifications, and rounds by accepted tokens, in `meta_info` or beside the usage."""

    name = "sglang"
    takes_ids = True
    facts: Mapping[str, Read] = {"/server_info": settings, "/get_server_info": settings}

    def rounds(self, reply: Reply) -> Evidence | None:
        info = _last(reply, "meta_info") or _last(reply, "sglext") or reply.usage
        histogram = counts(info.get("spec_accept_histogram")) or counts(info.get("spec_correct_drafts_histogram"))
        drafted = count(info.get("spec_draft_token_num"))
        if histogram is not None:
            return of_histogram(histogram, drafted)
        accepted = count(info.get("spec_accept_token_num"))
        return of_sums(count(info.get("spec_verify_ct")), drafted, accepted)


class Llamacpp(Generic):
    """llama.cpp's server: drafted and accepted tokens in `timings`."""

    name = "llamacpp"
    takes_ids = True
    facts: Mapping[str, Read] = {"/props": settings}

    def extras(self) -> dict[str, Any]:
        return {"return_tokens": True, "timings_per_token": False, "cache_prompt": False}

    def rounds(self, reply: Reply) -> Evidence | None:
        timings = _last(reply, "timings")
        return of_sums(None, count(timings.get("draft_n")), count(timings.get("draft_n_accepted")))


ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (Vllm(), Sglang(), Llamacpp(), Generic())}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "llama.cpp": "llamacpp"}


def detected(owner: str) -> Adapter:
    """The adapter of the engine that `/v1/models` names as the owner of its model; else the generic one."""
    return ADAPTERS[OWNERS.get(owner.lower(), "generic")]


def evidence(adapter: Adapter, reply: Reply, before: Counters | None, after: Counters | None) -> Evidence:
    """The best evidence of a text's rounds: what the answer says, else counters that prove it alone, else its parts.

    `before`, `after`: the server's counters around this request alone; None if it was not the only one.
    """
    if rounds := adapter.rounds(reply) or _grown(before, after):
        return rounds
    sizes = [len(chunk.ids) for chunk in reply.chunks if chunk.ids]
    if len(reply.chunks) > 1 and any(size > 1 for size in sizes):
        return Evidence(CHUNKS, rounds=len(reply.chunks) - 1)
    return Evidence()


def parse_counters(adapter: Adapter, text: str) -> Counters:
    """The counters of rounds in an answer at /metrics, over all series of a name; {} if the engine has none.

    `at 0` is how many rounds accepted the first token of their draft, `at 1` the second, and so on.
    """
    wanted = {name: key for key, name in adapter.counters.items()}
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


def _last(reply: Reply, key: str) -> dict[str, Any]:
    """The last object under a key of the stream's events, or of a choice in them; {} if there is none."""
    for event in reversed(reply.events):
        choices = event.get("choices")
        for part in (event, *(choices if isinstance(choices, list) else ())):
            if isinstance(part, dict) and isinstance(part.get(key), dict):
                value: dict[str, Any] = part[key]
                return value
    return {}
