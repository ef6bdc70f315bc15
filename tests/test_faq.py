"""The messages on the page of what goes wrong are those that the program prints."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNKNOWN = "…"
MESSAGES = re.findall(r"^\| `(.+?)` \|", (ROOT / "docs" / "pages" / "faq.md").read_text(), re.M)


@cache
def texts() -> list[str]:
    """Every text of the package; of those with fields, what they have between the fields."""
    nodes = (node for path in (ROOT / "specbench").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return [text.replace("`", "") for text in map(said, nodes) if text]


def said(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(said(part) or UNKNOWN for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_said(message: str, text: str) -> bool:
    """True if a text has all that a message says between what it leaves open, in its order."""
    parts = [re.escape(part.strip()) for part in message.split(UNKNOWN)]
    return re.search(".*".join(parts), text, re.S) is not None


def test_the_page_has_messages():
    assert len(MESSAGES) >= 20


@pytest.mark.parametrize("message", MESSAGES)
def test_the_program_says_so(message):
    assert any(is_said(message, text) for text in texts())
