"""Read what every answer must be: a JSON schema, a regular expression, or a grammar in Lark's form.

llguidance compiles all three (`engine/constraint.py`). Here they are checked as far as that needs no tokenizer.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.base.errors import UserError
from specbench.base.untrusted import MIB, brief, parse_json, read_text
from specbench.config.specs import Constraint, ConstraintSpec

MOST = 4 * MIB  # bytes of a schema or a grammar
MOST_VALUES = 100_000  # of a schema
FORM = 'write a JSON schema, such as {"type": "object"}'


def chosen(
    schema: Path | None = None,
    schema_field: str | None = None,
    regex: str | None = None,
    lark: Path | None = None,
    constrain_draft: bool = False,
) -> ConstraintSpec | None:
    """The constraint that a command line asks for; None if it asks for none.

    Raises:
        UserError: it asks for two, or a file cannot be read or holds no JSON schema.
    """
    options = {"--schema": schema, "--schema-field": schema_field, "--regex": regex, "--lark": lark}
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"{named[0]} and {named[1]} each say what an answer must be; give one")
    if constrain_draft and not named:
        raise UserError("--constrain-draft goes with --schema, --schema-field, --regex or --lark")
    if schema:
        text = schema_text(read_text(schema, MOST), str(schema))
        return ConstraintSpec(kind="schema", text=text, draft=constrain_draft)
    if schema_field is not None:
        return ConstraintSpec(kind="schema", field=schema_field, draft=constrain_draft)
    if regex is not None:
        return ConstraintSpec(kind="regex", text=regex, draft=constrain_draft)
    return ConstraintSpec(kind="lark", text=read_text(lark, MOST), draft=constrain_draft) if lark else None


def of_document(spec: ConstraintSpec | None, document: Mapping[str, Any], where: str) -> Constraint | None:
    """The constraint of a document. Raises UserError, which begins with `where`, if its field holds no schema."""
    if spec is None:
        return None
    if spec.text is not None:
        return Constraint(spec.kind, spec.text)
    assert spec.field is not None
    if document.get(spec.field) is None:
        fields = ", ".join(map(str, document))
        raise UserError(f"{where} has no field {spec.field!r} with a JSON schema (it has {brief(fields)})")
    return Constraint(spec.kind, schema_text(document[spec.field], f"{where}, field {spec.field!r}"))


def schema_text(value: Any, where: str) -> str:
    """A JSON schema, or a text that holds one, as JSON.

    Raises:
        UserError: it is none, or a text under it would have no end, since a part of it requires itself.
    """
    if isinstance(value, str):
        value = parse_json(value, where, FORM, MOST_VALUES)
    if not isinstance(value, dict | bool):
        raise UserError(f"{where}: a JSON schema is an object, not {brief(repr(value))}; {FORM}")
    try:
        ends = _ends(value, value, frozenset())
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; {FORM}") from None
    if not ends:
        raise UserError(f"{where}: a text under this schema has no end, as a part requires itself; make it optional")
    return json.dumps(value, ensure_ascii=False)


def _ends(schema: Any, root: Any, above: frozenset[str]) -> bool:
    """False if a text under a part of the schema `root` holds another one; `above`: the references on the way to it."""
    if not isinstance(schema, dict):
        return True
    needed = list(_list(schema, "allOf"))
    if isinstance(reference := schema.get("$ref"), str):
        if reference in above:
            return False
        if not _ends(_target(root, reference), root, above | {reference}):
            return False
    if isinstance(properties := schema.get("properties"), dict):
        needed += [
            properties[name] for name in _list(schema, "required") if isinstance(name, str) and name in properties
        ]
    if isinstance(least := schema.get("minItems"), int) and least > 0:
        needed.append(schema.get("items"))
    choices = [choice for key in ("anyOf", "oneOf") if (choice := _list(schema, key))]
    return all(_ends(part, root, above) for part in needed) and all(
        any(_ends(part, root, above) for part in choice) for choice in choices
    )


def _list(schema: dict[str, Any], key: str) -> list[Any]:
    return value if isinstance(value := schema.get(key), list) else []


def _target(root: Any, reference: str) -> Any:
    """What a reference points to within the schema; None if that is elsewhere."""
    if not reference.startswith("#"):
        return None
    for part in filter(None, reference[1:].split("/")):
        root = root.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root
