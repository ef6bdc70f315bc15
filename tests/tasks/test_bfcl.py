"""Function calls: the schema of their arguments, and which arguments are right."""

import importlib.util
import json

import pytest

from specbench.config import SUITES
from specbench.config.constraints import of_document
from specbench.config.specs import ConstraintSpec
from specbench.tasks.harness import TaskChoice, Tasks

_spec = importlib.util.spec_from_file_location("bfcl_utils", SUITES / "tasks" / "bfcl" / "utils.py")
bfcl = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bfcl)

FUNCTION = {
    "name": "book",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "Where."},
            "nights": {"type": "integer"},
            "price": {"type": "float"},
            "guests": {"type": "tuple", "items": {"type": "string"}},
            "extra": {"type": "dict", "properties": {"meal": {"type": "string", "enum": ["half", "full"]}}},
        },
        "required": ["city", "nights"],
    },
}
ANSWER = {
    "city": ["New York, NY", "NYC"],
    "nights": [2],
    "price": [80.0, ""],
    "guests": [["Ann", "Bo"], ""],
    "extra": [{"meal": ["half", "full"]}, ""],
}
DOC = {"schema": json.dumps(bfcl.schema_of(FUNCTION["parameters"])), "answer": json.dumps(ANSWER)}


@pytest.mark.parametrize(
    ("answer", "right", "valid"),
    [
        ('{"city": "NYC", "nights": 2}', 1, 1),
        ('{"city": "new york ny", "nights": 2, "price": 80}', 1, 1),
        ('```json\n{"city": "NYC", "nights": 2}\n```', 1, 1),
        ('{"city": "NYC", "nights": 2, "guests": ["ann", "Bo"], "extra": {"meal": "full"}}', 1, 1),
        ('{"city": "NYC", "nights": 2, "guests": ["Bo", "Ann"]}', 0, 1),
        ('{"city": "NYC", "nights": 2, "extra": {}}', 0, 1),
        ('{"city": "Boston", "nights": 2}', 0, 1),
        ('{"city": "NYC", "nights": 3}', 0, 1),
        ('{"city": "NYC", "nights": 2, "price": 81}', 0, 1),
        ('{"city": "NYC"}', 0, 0),
        ('{"city": "NYC", "nights": "2"}', 0, 0),
        ('{"city": "NYC", "nights": true}', 0, 0),
        ('{"city": "NYC", "nights": 2, "stars": 4}', 0, 0),
        ('{"city": "NYC", "nights": 2, "extra": {"meal": "none"}}', 0, 0),
        ('{"city": "NYC", "nights": 2', 0, 0),
        ("[1]", 0, 0),
        ('The arguments are {"city": "NYC", "nights": 2}', 0, 0),
    ],
)
def test_answers_by_hand(answer, right, valid):
    assert bfcl.score(DOC, [answer]) == {"right": right, "valid": valid}


def test_a_truth_is_no_number():
    assert not bfcl.same(True, 1) and not bfcl.same(0, False) and bfcl.same(1, 1.0) and bfcl.same(False, False)


def test_the_documents_of_a_folder_are_texts_with_a_schema_each(tmp_path):
    rows = [
        {"id": "a", "question": "Book it.", "function": FUNCTION, "answer": ANSWER},
        {
            "question": "How old?",
            "function": {"name": "age", "parameters": {"type": "dict", "properties": {}}},
            "answer": {},
        },
    ]
    (tmp_path / "bfcl_simple_test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = ConstraintSpec(kind="schema", field="schema")
    tasks = Tasks(
        [TaskChoice("bfcl_simple", None, 64, "bfcl_simple", "", None)],
        task_folder=SUITES / "tasks",
        data_dir=tmp_path,
        limit=None,
        seed=0,
        chat=None,
        constraint=spec,
    )
    first, second = tasks.requests()
    assert first.prompt.startswith("Book it.\n\nYou can call this function:") and '"name": "book"' in first.prompt
    assert first.constraint == of_document(spec, DOC, "") and second.constraint.text != first.constraint.text
    assert json.loads(next(tasks.references("bfcl_simple")).removeprefix(first.prompt)) == {
        "city": "New York, NY",
        "nights": 2,
    }
    scores = tasks.score({("bfcl_simple", 0): '{"city": "NYC", "nights": 2}', ("bfcl_simple", 1): "{}"})
    assert {(s.doc_id, s.metric): s.value for s in scores if s.doc_id is not None} == {
        (doc, metric): 1.0 for doc in (0, 1) for metric in ("right", "valid")
    }


def test_of_real_calls_the_schema_is_that_which_others_made(real_data):
    rows = bfcl._lines(real_data / "bfcl_simple_test.jsonl")
    assert len(rows) == 400
    for row in rows:
        assert bfcl.schema_of(row["function"]["parameters"]) == row["schema"], row["id"]
    for doc in bfcl._uniform(rows):
        assert bfcl.score(doc, [doc["target"]]) == {"right": 1.0, "valid": 1.0}, doc["id"]
