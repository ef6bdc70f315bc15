"""What an answer must be, as it is read from the command line and from documents."""

import json

import pytest

from specbench.base.errors import UserError
from specbench.config.constraints import chosen, of_document, schema_text
from specbench.config.specs import Constraint, ConstraintSpec

LIST = {"type": "object", "properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}}


def test_each_option_says_what_all_answers_must_be(tmp_path):
    (tmp_path / "s.json").write_text('{"type": "integer"}')
    (tmp_path / "g.lark").write_text("start: /[0-9]+/\n")
    assert chosen() is None
    assert chosen(schema=tmp_path / "s.json") == ConstraintSpec(kind="schema", text='{"type": "integer"}')
    assert chosen(regex="a+", constrain_draft=True) == ConstraintSpec(kind="regex", text="a+", draft=True)
    assert chosen(lark=tmp_path / "g.lark") == ConstraintSpec(kind="lark", text="start: /[0-9]+/\n")
    assert chosen(schema_field="form") == ConstraintSpec(kind="schema", field="form")


def test_names_distinguish_constraints():
    specs = [ConstraintSpec(kind="regex", text="a"), ConstraintSpec(kind="regex", text="b")]
    specs += [ConstraintSpec(kind="lark", text="a"), ConstraintSpec(kind="regex", text="a", draft=True)]
    assert len({spec.name for spec in specs}) == 4
    assert ConstraintSpec(kind="schema", field="form").name == "schema field form"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"regex": "a", "schema_field": "f"}, "--schema-field and --regex each say"),
        ({"constrain_draft": True}, "--constrain-draft goes with"),
        ({"schema": "missing.json"}, "there is no file"),
        ({"schema": "broken.json"}, "not JSON"),
        ({"schema": "list.json"}, "is an object, not"),
        ({"schema": "binary.json"}, "no text in UTF-8"),
        ({"lark": "missing.lark"}, "there is no file"),
    ],
)
def test_what_cannot_be_read(tmp_path, options, says):
    for name, content in (("broken.json", b"{"), ("list.json", b"[1]"), ("binary.json", b"\xff\xfe")):
        (tmp_path / name).write_bytes(content)
    options = {key: tmp_path / value if key in ("schema", "lark") else value for key, value in options.items()}
    with pytest.raises(UserError, match=says):
        chosen(**options)


def test_documents_say_what_their_answer_must_be():
    spec = ConstraintSpec(kind="schema", field="form")
    expected = Constraint("schema", '{"type": "integer"}')
    assert of_document(spec, {"form": {"type": "integer"}}, "here") == expected
    assert of_document(spec, {"form": '{"type": "integer"}'}, "here") == expected, "as a text, too"
    assert of_document(ConstraintSpec(kind="regex", text="a"), {"form": 1}, "here") == Constraint("regex", "a")
    assert of_document(None, {}, "here") is None
    with pytest.raises(UserError, match=r"here has no field 'form' with a JSON schema \(it has question, answer\)"):
        of_document(spec, {"question": "", "answer": ""}, "here")
    with pytest.raises(UserError, match=r"here, field 'form'.*not JSON"):
        of_document(spec, {"form": "an integer"}, "here")


@pytest.mark.parametrize(
    "schema",
    [
        LIST | {"required": ["next"]},
        LIST | {"allOf": [{"required": ["next"], "properties": {"next": {"$ref": "#"}}}]},
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    ],
)
def test_a_schema_that_requires_itself_is_refused(schema):
    with pytest.raises(UserError, match="has no end"):
        schema_text(schema, "here")


@pytest.mark.parametrize(
    "schema",
    [
        LIST,
        LIST | {"required": ["value"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#"}}]},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
        {"$ref": "https://example.org/other.json"},
        True,
    ],
)
def test_a_schema_that_may_contain_itself_is_read(schema):
    assert json.loads(schema_text(schema, "here")) == schema


def test_a_schema_that_is_nested_too_deeply_is_refused():
    text = '{"allOf":[' * 400 + "{}" + "]}" * 400
    with pytest.raises(UserError, match="nested too deeply"):
        schema_text(text, "here")
