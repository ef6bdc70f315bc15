"""What `manifest.json` must be before anything is read from it: the types and bounds of all that is used."""

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Size: TypeAlias = Annotated[int, Field(ge=0, lt=2**62)]
Place: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
Speed: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Told(BaseModel):
    """Part of a manifest; what is not read of it may be anything."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, protected_namespaces=())


class Forward(Told):
    """`roofline.facts` of a model."""

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


class Model(Told):
    dtype: str | None = None
    model: str | None = None
    weights_hash: str | None = None
    shared_tokens: Size | None = None
    forward: Forward | Annotated[dict[str, Any], Field(max_length=0)] | None = None


class Target(Model):
    dtype: str


class Environment(Told):
    device: str | None
    cpu: str | None = None
    cores: Place | None = None
    threads: Place | None = None
    driver: str | None = None
    load: float | None = None
    versions: dict[str, str | None] | None = None


class Bandwidth(Told):
    bytes: Speed
    median: Speed


class Product(Told):
    median: Speed


class Machine(Told):
    device: str
    cpu: str | None
    threads: Place | None


class Ceilings(Told):
    machine: Machine
    dtype: str
    measured: str
    bandwidth: Annotated[list[Bandwidth], Field(min_length=1)]
    products: Annotated[list[Product], Field(min_length=1)]


class Generation(Told):
    until: list[str] | None = None
    max_new_tokens: Place | None = None


class Runtime(Told):
    name: str = "eager"
    asked: str | None = None
    why: str | None = None


class Models(Told):
    """By role; further members have any names."""

    __pydantic_extra__: dict[str, Model]
    target: Target
    draft: Model | None = None


class Manifest(Told):
    version: int = Field(alias="schema", ge=1)
    plan: dict[str, Any]
    models: Models | Annotated[dict[str, Any], Field(max_length=0)] | None
    inputs: dict[str, dict[str, Any]]
    requests: list[Annotated[tuple[str, Place, str, str], Field(strict=False)]]
    generation: dict[str, Generation]
    headline: dict[str, str]
    environment: Environment
    started: str | None = None
    tokenizer_hash: str | None = None
    prompts_hash: str | None = None
    prefix_tokens: dict[str, Place] = {}
    left_out: dict[str, Place] = {}
    ceilings: Ceilings | None = None
    runtime: Runtime = Runtime()
    imported: dict[str, Any] | None = None
