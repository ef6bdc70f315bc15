"""The list of mutations fits the code: a line whose text is gone would stop `make mutants` before it begins."""

import importlib.util
from pathlib import Path

PLACE = Path(__file__).parents[1] / "mutants" / "main.py"


def test_every_line_of_the_list_can_be_used():
    spec = importlib.util.spec_from_file_location("mutants_main", PLACE)
    assert spec and spec.loader
    mutants = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutants)
    problems = {mutation.name: mutation.problem() for mutation in mutants.read_list()}
    assert {name: problem for name, problem in problems.items() if problem} == {}
