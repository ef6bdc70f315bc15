"""Servers of other engines as methods of a run: `--server NAME=URL`, or a YAML file of names and settings."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from specbench.base.errors import UserError, did_you_mean
from specbench.base.untrusted import read_mapping
from specbench.config.load import validated
from specbench.config.specs import SERVER, MethodSpec, Setting, Settings

# Fields of a request that settings of a run or of a server already say, and how.
SET = dict.fromkeys(("model", "system", "chat_template_kwargs"), "it is a setting of the server, next to extra_body")
SET |= dict.fromkeys(("prompt", "messages", "stream", "stream_options", "stop"), "leave it out")
SET |= dict.fromkeys(("n", "best_of", "echo", "use_beam_search"), "an answer is one text, without the prompt")
SET |= dict.fromkeys(("max_tokens", "max_completion_tokens"), "use --max-new-tokens")
SET |= {"temperature": "use --temperature", "top_k": "use --top-k", "top_p": "use --top-p", "seed": "use --seed"}
SET |= {"ignore_eos": "use --ignore-eos"}
# Fields that a server may refuse and that a run can do without.
OMITTED = (
    *("seed", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("repeat_penalty", "typical_p", "dry_multiplier", "xtc_probability", "top_n_sigma", "dynatemp_range", "mirostat"),
    *("return_token_ids", "return_tokens", "return_spec_tokens_details", "timings_per_token", "cache_prompt"),
    "stream_options",
)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class ServerSettings(Settings):
    """How a server is reached, and what it speaks."""

    url: str = Field(description="http://HOST:PORT, without /v1")
    engine: Literal["auto", "vllm", "sglang", "llamacpp", "trtllm", "generic"] = "auto"
    api: Literal["completions", "chat"] = Field(default="completions", description="chat: the server's own template")
    prompts: Literal["auto", "ids", "text"] = Field(
        default="auto", description="token ids where the engine takes them, or the prompts' text"
    )
    model: str | None = Field(default=None, description="by the server's name; default: the only one that it serves")
    key_variable: str | None = Field(default=None, description="the environment variable that holds the API key")
    timeout: float = Field(default=120.0, gt=0, le=86400, description="seconds without a part of the answer")
    deadline: float | None = Field(
        default=None, gt=0, le=86400, description="seconds for a whole answer; default: 30 times the timeout"
    )
    system: str | None = Field(default=None, description="the system prompt of chat requests")
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="of chat requests, for the server's template, such as enable_thinking: false"
    )
    extra_body: dict[str, Any] = Field(default={}, description="further fields of each request")
    leave_out: tuple[str, ...] = Field(default=(), description="fields that the server refuses, such as min_p")

    @model_validator(mode="after")
    def _consistent(self) -> "ServerSettings":
        if self.api != "chat" and (self.system is not None or self.chat_template_kwargs):
            name = "chat_template_kwargs" if self.system is None else "system"
            raise ValueError(f"{name} is for chat requests; add api: chat, or leave it out")
        for name in self.extra_body:
            if name in SET:
                raise ValueError(f"extra_body: specbench sets {name!r} itself; {SET[name]}")
        for name in self.leave_out:
            if name not in OMITTED:
                near, these = did_you_mean(name, OMITTED), ", ".join(OMITTED)
                raise ValueError(f"leave_out: {name!r} is no field that can be left out{near}; there are {these}")
        return self

    @property
    def body(self) -> dict[str, Any]:
        """The fields that these settings add to each request."""
        of_template = {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
        return of_template | self.extra_body

    @field_validator("url")
    @classmethod
    def _plain(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"it is no address ({error})") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write http://HOST:PORT or https://HOST")
        if parts.username is not None or parts.password is not None:
            raise ValueError("it holds a password, which a run would store; name an environment variable: key_variable")
        if parts.query or parts.fragment or any(ord(character) <= 32 for character in url):
            raise ValueError("write it without a query, a fragment and spaces")
        return url.rstrip("/").removesuffix("/v1")


def load_servers(texts: Iterable[str]) -> list[MethodSpec]:
    """The servers that `--server` names: NAME=URL, or a YAML file of URLs or settings by name.

    Raises:
        UserError: a text is neither, a setting is wrong, or a name comes twice.
    """
    servers: dict[str, MethodSpec] = {}
    for text in texts:
        for name, values in _named(text).items():
            where = f"--server {name}" if "=" in text else f"{text}: {name}"
            if not NAME.fullmatch(name):
                raise UserError(f"{where}: a name has letters, digits and - _ . + only")
            if name in servers:
                raise UserError(f"{where}: two servers have this name; give each its own")
            servers[name] = _method(name, values, where)
    return list(servers.values())


def _named(text: str) -> Mapping[str, Any]:
    """The settings by name in one text of the command line."""
    if text.endswith((".yaml", ".yml")) and "=" not in text:
        return {str(name): {"url": v} if isinstance(v, str) else v for name, v in read_mapping(Path(text)).items()}
    name, equals, url = text.partition("=")
    if not equals or not url:
        raise UserError(f"--server {text}: write NAME=URL, such as vanilla=http://127.0.0.1:8000, or give a YAML file")
    return {name: {"url": url}}


def _method(name: str, values: Any, where: str) -> MethodSpec:
    if not isinstance(values, dict):
        raise UserError(f"{where}: write a URL, or settings such as url: http://127.0.0.1:8000")
    settings = validated(ServerSettings, values, where)
    chosen = {key: Setting(value=value, source="user" if key in values else "default") for key, value in settings}
    return MethodSpec(name=name, method=SERVER, description=f"a server at {settings.url}", settings=chosen)


def server_settings(spec: MethodSpec) -> ServerSettings:
    """The settings of a server. Raises UserError for a wrong value, as `--set` may have brought."""
    return validated(ServerSettings, spec.values, f"server {spec.name}")
