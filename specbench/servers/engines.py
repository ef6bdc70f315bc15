"""What is particular to each engine, as tables: which field of an answer is which count, and what requests hold."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specbench.base.errors import UserError
from specbench.config.specs import Constraint
from specbench.servers.facts import cache, scheduler, settings

if TYPE_CHECKING:
    from specbench.engine.types import Sampling  # with torch, which readers of records do without

Fields = dict[str, Any]  # of a request
Read = Callable[[str], dict[str, Any]]  # facts from a page; ValueError or RecursionError for one that is no JSON

# What a field of an answer tells of the text's rounds.
DRAFTED_EACH, ACCEPTED_EACH = "drafted", "accepted"  # lists: of each round, in order
VERIFIED_EACH, KEPT_EACH = "verified", "kept"  # the same with the target's own token in each
HISTOGRAM = "histogram"  # a list: rounds that accepted 0, 1, 2, … tokens
ROUNDS, DRAFTED, ACCEPTED = "verify_rounds", "draft_tokens", "accepted_tokens"  # sums
LONGEST = "longest"  # the length of the longest draft, by the server's settings
PER_ROUND = "tokens_per_forward"  # tokens by forward of the target, the prefill's counted too
KNOWN = ""  # follows from others, or says nothing of rounds

# The fields of OpenAI's own protocol for sampling, and what each is if it changes nothing.
PLAIN: Mapping[str, Any] = {"top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
OPENAI_FIELDS = {"accepted_prediction_tokens": KNOWN, "rejected_prediction_tokens": KNOWN}  # texts given beforehand


def _by_openai(text: str) -> Fields:
    """A JSON schema as OpenAI's own protocol asks for it."""
    schema = {"name": "answer", "schema": json.loads(text), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


@dataclass(frozen=True)
class Engine:
    """An engine's own part of the OpenAI protocol."""

    name: str
    owners: tuple[str, ...] = ()  # as /v1/models names the owner of a model
    takes_ids: bool = False  # prompts as token ids
    asks: Mapping[str, Any] = field(default_factory=dict)  # what a request holds next to the fields of OpenAI
    # Sampling that changes nothing, by field. What a request omits is the server's default, or the model's own.
    neutral: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    repetition: str = "repetition_penalty"  # its name for this penalty
    ignores_eos: bool = False  # it takes `ignore_eos`
    # What a request holds so that its answer follows a constraint, by kind.
    constrains: Mapping[str, Callable[[str], Fields]] = field(default_factory=lambda: {"schema": _by_openai})
    # The fields of an answer that tell of rounds, by their last name, and what each is.
    fields: Mapping[str, str] = field(default_factory=dict)
    # The names at /metrics, by `requests`, `rounds`, `drafted`, `accepted` and `at` (each position).
    counters: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Read] = field(default_factory=dict)  # by the address at which it tells of itself

    def sampling(self, chosen: "Sampling") -> dict[str, Any]:
        """The fields of a request that say how tokens are chosen; settings are named to engines that lack them, too."""
        fields = {"temperature": chosen.temperature, **self.neutral}
        penalties = {self.repetition: chosen.repetition_penalty, "presence_penalty": chosen.presence_penalty}
        penalties |= {"frequency_penalty": chosen.frequency_penalty}
        cuts = {} if chosen.greedy else {"top_p": chosen.top_p, "top_k": chosen.top_k, "min_p": chosen.min_p}
        off = {"top_k": 0, "min_p": 0.0, self.repetition: 1.0, "top_p": 1.0}
        return fields | {name: value for name, value in (penalties | cuts).items() if value != off.get(name, 0.0)}

    def unsent(self, greedy: bool) -> list[str]:
        """The settings of sampling that its requests cannot name, of those that matter."""
        return [name for name in (*(() if greedy else ("top_k", "min_p")), self.repetition) if name not in self.neutral]

    def constraint(self, asked: Constraint) -> Fields:
        """The fields of a request whose answer must follow a constraint. Raises UserError if the engine has none."""
        if asked.kind not in self.constrains:
            kinds = " and ".join(f"--{kind}" for kind in self.constrains)
            raise UserError(f"a request to {self.name} can ask for {kinds} alone, not for --{asked.kind}")
        return self.constrains[asked.kind](asked.text)


FULL = {**PLAIN, "min_p": 0.0, "repetition_penalty": 1.0}

# vLLM 0.27 to 0.32 with --enable-per-request-metrics and --per-request-spec-decode-metrics, in `metrics`.
VLLM = Engine(
    name="vllm",
    owners=("vllm",),
    takes_ids=True,
    asks={"return_token_ids": True},
    neutral={**FULL, "top_k": -1},
    ignores_eos=True,
    constrains={
        "schema": lambda text: {"structured_outputs": {"json": json.loads(text)}},
        "regex": lambda text: {"structured_outputs": {"regex": text}},
    },
    fields={
        "per_step_drafted": DRAFTED_EACH,
        "per_step_accepted": ACCEPTED_EACH,
        "acceptance_histogram": HISTOGRAM,
        "num_spec_steps": ROUNDS,
        "num_draft_tokens": DRAFTED,
        "num_accepted_draft_tokens": ACCEPTED,
        "num_spec_tokens": LONGEST,
        "mean_acceptance_length": KNOWN,
        "draft_acceptance_rate": KNOWN,
        "acceptance_histogram_by_draft_length": KNOWN,
    },
    counters={
        "requests": "vllm:request_success",
        "rounds": "vllm:spec_decode_num_drafts",
        "drafted": "vllm:spec_decode_num_draft_tokens",
        "accepted": "vllm:spec_decode_num_accepted_tokens",
        "at": "vllm:spec_decode_num_accepted_tokens_per_pos",
    },
    facts={"/version": settings, "/metrics": cache, "/server_info?config_format=json": scheduler},
)
# SGLang: `sglext.spec_tokens_details`, if the request asks for it; before that `meta_info`, or next to the usage.
SGLANG = Engine(
    name="sglang",
    owners=("sglang",),
    takes_ids=True,
    asks={"return_spec_tokens_details": True},
    neutral={**FULL, "top_k": -1},
    ignores_eos=True,
    constrains={"schema": _by_openai, "regex": lambda text: {"regex": text}},
    fields={
        "verify_lengths": VERIFIED_EACH,  # --speculative-decoding-stats detailed
        "accept_lengths": KEPT_EACH,
        "spec_verify_ct": ROUNDS,
        "spec_num_proposed_drafts": DRAFTED,
        "spec_num_correct_drafts": ACCEPTED,
        "spec_correct_drafts_histogram": HISTOGRAM,
        "num_verified_draft_tokens": DRAFTED,
        "num_accepted_draft_tokens": ACCEPTED,
        "speculative_decoding_stats": KNOWN,
        "spec_draft_token_num": DRAFTED,
        "spec_accept_token_num": ACCEPTED,
        "spec_accept_histogram": HISTOGRAM,
        "spec_accept_rate": KNOWN,
        "spec_accept_length": KNOWN,
        "spec_cap_length": KNOWN,
        "spec_cap_lens_histogram": KNOWN,
        "spec_block_accept_length": KNOWN,
    },
    facts={"/server_info": settings, "/get_server_info": settings},
)
# llama.cpp's server: `timings`. Some of its kin call the number of verifications `draft_rounds`.
LLAMACPP = Engine(
    name="llamacpp",
    owners=("llamacpp", "llama.cpp"),
    takes_ids=True,
    asks={"return_tokens": True, "timings_per_token": False, "cache_prompt": False},
    neutral={**PLAIN, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
    | {"dry_multiplier": 0.0, "xtc_probability": 0.0, "top_n_sigma": -1.0, "dynatemp_range": 0.0, "mirostat": 0},
    repetition="repeat_penalty",
    ignores_eos=True,
    constrains={"schema": lambda text: {"json_schema": json.loads(text)}},
    fields={
        "draft_n": DRAFTED,
        "draft_n_accepted": ACCEPTED,
        "draft_n_verif_steps": ROUNDS,
        "draft_rounds": ROUNDS,
        "draft_kind": KNOWN,
    },
    facts={"/props": settings},
)
# TensorRT-LLM: a number in the choice. It counts a forward for the prefill, too.
TRTLLM = Engine(
    name="trtllm",
    owners=("tensorrt_llm", "tensorrt-llm", "trtllm"),
    takes_ids=True,
    neutral={**FULL, "top_k": 0},
    ignores_eos=True,
    constrains={
        "schema": _by_openai,
        "regex": lambda text: {"response_format": {"type": "regex", "regex": text}},
    },
    fields={"avg_decoded_tokens_per_iter": PER_ROUND},
    facts={"/version": settings},
)
GENERIC = Engine(name="generic")  # any server of OpenAI's completions: parts of the stream are all that is known

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG, LLAMACPP, TRTLLM, GENERIC)}
NAMED = ("spec", "draft", "accept")  # a field with one of these in its name may tell of rounds


def detected(owner: str) -> Engine:
    """The engine that `/v1/models` names as the owner of its model; else the generic one."""
    return next((engine for engine in ENGINES.values() if owner.lower() in engine.owners), GENERIC)


def read_fields(engine: Engine, told: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """What an answer tells of rounds, by what it is, and the names of fields that may tell of them but are unknown.

    Of two fields for one count the first of the table holds.
    """
    by_last = {name.rpartition(".")[2]: value for name, value in told.items()}
    known: dict[str, Any] = {}
    for name, what in engine.fields.items():
        if what and by_last.get(name) is not None:
            known.setdefault(what, by_last[name])
    fields = engine.fields.keys() | OPENAI_FIELDS
    unknown = {
        name
        for name in told
        if any(part in name.lower() for part in NAMED) and not any(part in fields for part in name.split("."))
    }
    return known, unknown
