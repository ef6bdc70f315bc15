"""What files of other tools say of how they were measured: figures are only divided if it agrees."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from specbench.base.errors import did_you_mean
from specbench.base.untrusted import brief
from specbench.config import UserError

# By condition, the keys under which tools write it, all of which count.
KEYS: Mapping[str, tuple[str, ...]] = {
    "model": ("model_id", "model", "model_name", "served_model_name"),
    "tokenizer": ("tokenizer_id", "tokenizer"),
    "concurrency": ("max_concurrency", "concurrency_limit"),
    "rate": ("request_rate", "burstiness", "ramp_up_strategy"),
    "data": (
        *("dataset_name", "dataset_path", "num_prompts", "random_input_len", "random_output_len"),
        *("random_range_ratio", "sharegpt_output_len", "fixed_output_len", "seed"),
    ),
    "options": (
        *("temperature", "top_p", "top_k", "min_p", "ignore_eos", "disable_ignore_eos", "extra_body"),
        *("extra_request_body", "apply_chat_template", "max_tokens", "repetition_penalty", "frequency_penalty"),
        *("presence_penalty", "backend", "endpoint_type", "streaming", "disable_stream"),
    ),
}
LIKE_NONE = {"concurrency": "no limit"}  # what null means, where a file names the key


class Conditioned(Protocol):
    """The figures of a file, as far as conditions go."""

    @property
    def path(self) -> Path: ...

    @property
    def conditions(self) -> dict[str, Any]: ...


def of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions that an entry tells, by name; each holds the values by the entry's keys."""
    told: dict[str, Any] = {}
    for name, keys in KEYS.items():
        values = {key: _plain(entry[key], LIKE_NONE.get(name)) for key in keys if key in entry}
        values = {key: value for key, value in values.items() if value is not None}
        if values:
            told[name] = values
    return told


def merged(every: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """The conditions of all entries of a file. Raises UserError if the model changes within it."""
    first: dict[str, Any] = {}
    for number, told in enumerate(every, 1):
        for name, values in told.items():
            if name == "model" and first.get(name, values) != values:
                raise UserError(
                    f"{where}: entry {number} is of another model ({_words(values)}) than those before "
                    f"({_words(first[name])}); give each model a file of its own"
                )
            first.setdefault(name, values)
    return first


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, str]:
    """The conditions that two files tell differently, in words, by name."""
    differing: dict[str, str] = {}
    for name in KEYS:
        one, other = (told if isinstance(told := every.get(name), dict) else {} for every in (mine, theirs))
        if keys := [key for key in one if key in other and one[key] != other[key]]:
            differing[name] = ", ".join(f"{key} {brief(one[key])} / {brief(other[key])}" for key in keys)
    return differing


def unlike(files: Sequence[Conditioned], baseline: bool, allowed: Sequence[str]) -> list[str]:
    """A line for each difference of the files from the first, which is the baseline if there is one.

    Raises:
        UserError: a file tells another thing than the baseline of a condition that is not in `allowed`.
    """
    for name in allowed:
        if name not in KEYS:
            raise UserError(f"no condition {name!r}{did_you_mean(name, KEYS)}; there are {', '.join(KEYS)}")
    lines: list[str] = []
    refused: dict[str, str] = {}
    for other in files[1:]:
        if other.path == files[0].path:  # a scrape of several models, none of which is divided by another
            continue
        for name, words in differences(files[0].conditions, other.conditions).items():
            both = f"{files[0].path.name} / {other.path.name}"
            if baseline and name not in allowed:
                refused[name] = f"{both} differ in {name} ({words})"
            else:
                lines.append(f"MISMATCH allowed, {both}: {name}: {words}")
    if refused:
        options = " ".join(f"--allow-mismatch {name}" for name in refused)
        raise UserError(
            f"{'; '.join(refused.values())}: their figures cannot be compared; import them apart, or pass {options}"
        )
    return lines


def _plain(value: Any, nothing: str | None) -> Any:
    """A value that JSON can hold, in short."""
    if value is None:
        return nothing
    return value if isinstance(value, bool | int | float) else brief(value)


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
