"""Data and scoring of function calls (BFCL v4, Apache-2.0), for lm-eval's `!function`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets

REPOSITORY = "gorilla-llm/Berkeley-Function-Calling-Leaderboard"
QUESTIONS, ANSWERS = "BFCL_v3_simple.json", "possible_answer/BFCL_v3_simple.json"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}  # of Python, as JSON Schema calls them
PYTHON = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
LEFT_OUT = ("", None)  # among the allowed values of an argument: it may be missing
IGNORED = re.compile(r"[ ,./\-_*^]")  # in strings, as the leaderboard compares them


def load(data_files: Mapping[str, str] | None = None, **_: object) -> dict[str, datasets.Dataset]:
    """The documents by split, from JSON Lines with `question`, `function` and `answer`, or from the hub."""
    if data_files is None:
        return {"test": _uniform(_from_hub())}
    return {split: _uniform(_lines(Path(file))) for split, file in data_files.items()}


def _from_hub() -> list[dict[str, Any]]:
    from huggingface_hub import hf_hub_download

    files = (hf_hub_download(REPOSITORY, name, repo_type="dataset") for name in (QUESTIONS, ANSWERS))
    questions, answers = map(_lines, map(Path, files))
    right = {row["id"]: row["ground_truth"][0] for row in answers}
    return [
        {
            "id": row["id"],
            "question": row["question"][0][0]["content"],
            "function": row["function"][0],
            "answer": next(iter(right[row["id"]].values())),
        }
        for row in questions
    ]


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def _uniform(rows: list[dict[str, Any]]) -> datasets.Dataset:
    """Documents of texts alone: what differs from document to document is JSON."""
    return datasets.Dataset.from_list(
        [
            {
                "id": str(row.get("id", place)),
                "question": row["question"],
                "function": json.dumps(row["function"], indent=1, ensure_ascii=False),
                "schema": json.dumps(schema_of(row["function"]["parameters"])),
                "answer": json.dumps(row["answer"]),
                "target": json.dumps(_target(row["answer"], row["function"]["parameters"].get("required", []))),
            }
            for place, row in enumerate(rows)
        ]
    )


def _target(answer: Mapping[str, list[Any]], needed: list[str]) -> dict[str, Any]:
    """The first allowed value of each argument that may not be missing."""
    named = {name: values for name, values in answer.items() if required(values) or name in needed}
    return {name: _first(values) for name, values in named.items()}


def _first(values: list[Any]) -> Any:
    value = next((value for value in values if value not in LEFT_OUT), values[0])
    return _plain(value)


def _plain(value: Any) -> Any:
    """An allowed value with the first of each list of allowed values that a dictionary in it holds."""
    if isinstance(value, dict):
        return {name: _first(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def required(values: list[Any]) -> bool:
    """True if an argument of these allowed values may not be missing."""
    return not any(value in LEFT_OUT for value in values if not isinstance(value, list | dict))


def schema_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a function's arguments, whose types are those of Python."""
    schema: dict[str, Any] = {"type": TYPES.get(parameters["type"], parameters["type"])}
    if parameters.get("enum"):
        schema["enum"] = parameters["enum"]
    if "properties" in parameters:
        schema["properties"] = {name: schema_of(inner) for name, inner in parameters["properties"].items()}
        schema |= {"required": parameters["required"]} if "required" in parameters else {}
        schema["additionalProperties"] = False
    if "items" in parameters:
        schema["items"] = schema_of(parameters["items"])
    return schema


def score(doc: Mapping[str, str], results: list[str]) -> dict[str, float]:
    """`right`: 1 if every argument has an allowed value; `valid`: 1 if the answer is JSON under the schema.

    A block of code around the JSON is taken off.
    """
    text = re.sub(r"\A\s*```\w*\n(.*?)\n?```\s*\Z", r"\1", results[0], flags=re.DOTALL)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"right": 0.0, "valid": 0.0}
    valid = follows(value, json.loads(doc["schema"]))
    return {"right": float(valid and right(value, json.loads(doc["answer"]))), "valid": float(valid)}


def follows(value: Any, schema: Mapping[str, Any]) -> bool:
    """True if a value is allowed by a schema of `schema_of`."""
    kind = schema["type"]
    if not isinstance(value, PYTHON[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "properties" in schema:
        known = schema["properties"]
        if not (value.keys() <= known.keys() and set(schema.get("required", ())) <= value.keys()):
            return False
        return all(follows(inner, known[name]) for name, inner in value.items())
    return "items" not in schema or all(follows(inner, schema["items"]) for inner in value)


def right(value: Mapping[str, Any], allowed: Mapping[str, list[Any]]) -> bool:
    """True if every argument has an allowed value, and only those are missing that may be."""
    named = all(name in allowed and any(same(inner, one) for one in allowed[name]) for name, inner in value.items())
    return named and not any(required(values) for name, values in allowed.items() if name not in value)


def same(value: Any, allowed: Any) -> bool:
    """Equality as the leaderboard has it: of strings without case, spaces and some signs, of numbers by value.

    A dictionary holds a list of allowed values for each key.
    """
    if isinstance(value, str) and isinstance(allowed, str):
        return IGNORED.sub("", value).lower().replace("'", '"') == IGNORED.sub("", allowed).lower().replace("'", '"')
    if isinstance(value, list) and isinstance(allowed, list):
        return len(value) == len(allowed) and all(same(*pair) for pair in zip(value, allowed, strict=True))
    if isinstance(value, dict) and isinstance(allowed, dict):
        return right(value, allowed)
    return isinstance(value, bool) == isinstance(allowed, bool) and value == allowed
