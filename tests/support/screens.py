"""What commands print, and what views show."""

import io

from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from specbench.base.console import console
from specbench.cli import app
from specbench.report.finding import show


def call(*words: object) -> Result:
    """Run a command as if in a new process, where no error before has turned the console to stderr."""
    console.stderr = False
    return CliRunner().invoke(app, [str(word) for word in words])


def output(*words: object, code: int = 0) -> str:
    """All that a command prints; it must end with this exit code."""
    result = call(*words)
    assert result.exit_code == code, result.output
    return result.output


def refusal(*words: object) -> str:
    """What a command says that it cannot do."""
    return output(*words, code=2)


def rendered(result: object, width: int = 80) -> str:
    """A view's findings as a terminal of this width shows them, without colours."""
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    show(result, screen=screen)  # type: ignore[arg-type]
    return screen.file.getvalue()  # type: ignore[attr-defined]
