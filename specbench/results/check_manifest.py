"""The form that `manifest.json` must have: types and bounds of everything that is read from it."""

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Size: TypeAlias = Annotated[int, Field(ge=0, lt=2**62)]
Place: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Speed: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# What totals of a server have besides counts. Seconds are the client's, in ms: time to first token, time per output
# token, between tokens, and of the whole request.
LATENCIES = [f"{kind}_{what}_ms" for what in ("ttft", "tpot", "itl", "e2el") for kind in ("mean", "median", "p99")]
SERVED = ["request_throughput", "output_throughput", *LATENCIES]


class Section(BaseModel):
    """A part of a manifest; keys that are not read may hold anything."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, protected_namespaces=())


class StoredForward(Section):
    """What a forward of a model moves and computes (`facts` in engine/models/cost.py)."""

    weight_bytes: Size
    lookup_bytes: Size
    matrix_weights: Size
    output_weights: Size
    logit_bytes: Size
    kv_bytes_per_token: Size
    layers: Size
    attention_width: Size
    window: Annotated[int, Field(ge=1, lt=2**62)] | None
    window_layers: Size


class Model(Section):
    dtype: str | None = None
    model: str | None = None
    weights_hash: str | None = None
    config_hash: str | None = None
    generation_hash: str | None = None
    tokenizer_state: str | None = None
    weights: str | None = None
    shared_tokens: Size | None = None
    forward: StoredForward | Annotated[dict[str, Any], Field(max_length=0)] | None = None


class Target(Model):
    dtype: str


class Environment(Section):
    device: str | None
    cpu: str | None = None
    cores: Place | None = None
    threads: Place | None = None
    driver: str | None = None
    draft_device: str | None = None
    load: float | None = None
    versions: dict[str, str | None] | None = None


class Bandwidth(Section):
    bytes: Speed
    median: Speed


class StoredProduct(Section):
    median: Speed


class StoredMachine(Section):
    device: str
    cpu: str | None
    threads: Place | None


class StoredCeilings(Section):
    machine: StoredMachine
    dtype: str
    measured: str
    bandwidth: Annotated[list[Bandwidth], Field(min_length=1)]
    products: Annotated[list[StoredProduct], Field(min_length=1)]


class Generation(Section):
    until: list[str] | None = None
    max_new_tokens: Place | None = None


class StoredRuntime(Section):
    name: str = "eager"
    asked: str | None = None
    why: str | None = None


class StoredModels(Section):
    """The models by role; members besides target and draft have names of their own."""

    __pydantic_extra__: dict[str, Model]
    target: Target
    draft: Model | None = None


class StoredShard(Section):
    number: Annotated[int, Field(ge=1, lt=2**31)]
    of: Annotated[int, Field(ge=1, lt=2**31)]
    first: Place
    stop: Place
    environment: Environment | None = None  # of a joined run's

    @model_validator(mode="after")
    def _has_documents(self) -> "StoredShard":
        if self.number > self.of or self.first >= self.stop:
            raise ValueError("there is no such shard")
        return self


class Manifest(Section):
    version: int = Field(alias="schema", ge=1)
    plan: dict[str, Any]
    models: StoredModels | Annotated[dict[str, Any], Field(max_length=0)] | None
    inputs: dict[str, dict[str, Any]]
    requests: list[Annotated[tuple[str, Place, str, str], Field(strict=False)]]
    generation: dict[str, Generation]
    unused_generation: dict[str, Any] = {}
    headline: dict[str, str]
    environment: Environment
    started: str | None = None
    tokenizer_hash: str | None = None
    prompts_hash: str | None = None
    prompt_ids: list[str] | None = None
    prompts: list[Annotated[tuple[str, str, Place], Field(strict=False)]] | None = None
    unread_keys: dict[str, Place] = {}
    prefix_tokens: dict[str, Place] = {}
    kept_tokens: list[Place] | None = None  # of trajectories: of each prompt, those that the turn before has cached
    left_out: dict[str, Place] = {}
    leaks: dict[str, Place] = {}
    ceilings: StoredCeilings | None = None
    runtime: StoredRuntime = StoredRuntime()
    imported: dict[str, Any] | None = None
    shard: StoredShard | None = None
    joined: list[StoredShard] | None = None

    @field_validator("prompt_ids")
    @classmethod
    def _one_for_each_request(cls, hashes: list[str] | None, info: ValidationInfo) -> list[str] | None:
        if hashes is not None and len(hashes) != len(info.data.get("requests", hashes)):
            raise ValueError("they are not as many as the requests")
        return hashes
