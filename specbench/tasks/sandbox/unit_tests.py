"""What a benchmark's tests need: which names they take from the solution, and which from the benchmark itself.

Only the benchmark's own text decides. A solution that defines more, such as an `abs` of its own or another version of
a helper that the prompt holds, does not change what the tests use.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class UnitTests:
    """`text` is run after `setup`, both apart from the solution; `names` are what it takes from the solution."""

    text: str = ""
    names: Sequence[str] = ()
    setup: str = ""


def of_prompt(prompt: str, tests: str, entry_point: str) -> UnitTests:
    """Tests in the form of HumanEval: `tests` defines `check`; helpers and imports come from the unfinished prompt."""
    text = f"{tests}\ncheck({entry_point})"
    defined, imported = _top_level(prompt)
    needed = _used(text) & ({*defined, *imported} - {entry_point})
    return UnitTests(text, (entry_point,), prompt if needed else "")


def of_reference(reference: str, tests: Sequence[str]) -> UnitTests:
    """Tests in the form of MBPP, statements that call what the `reference` solution defines, and use its imports."""
    text = "\n".join(tests)
    used = _used(text)
    defined, imported = _top_level(reference)
    imports = {imported[name] for name in used & imported.keys() - defined}
    return UnitTests(text, sorted(used & defined), "\n".join(sorted(imports)))


def _used(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _top_level(text: str) -> tuple[set[str], dict[str, str]]:
    """The names that a program binds at its top level: those it defines, and those it imports with their statements."""
    defined: set[str] = set()
    imported: dict[str, str] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names = [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
            imported |= dict.fromkeys(names, ast.unparse(statement))
        else:
            names_in = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            defined |= {node.id for node in names_in if isinstance(node.ctx, ast.Store)}
    return defined, imported
