"""What each command imports: reading a run needs no model, and a misspelt name is refused before one is imported."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from imported import KINDS
from made_runs import large

from specbench.config import PACKAGE

# What takes long to import. Each list is of those that a command may import besides the commands before it.
HEAVY = ("torch", "transformers", "lm_eval", "datasets", "scipy.stats", "matplotlib", "plotly", "jinja2")
PROGRAM = """
import json, sys
from typer.testing import CliRunner
import specbench
assert not {"torch", "pandas", "pydantic", "yaml"} & set(sys.modules), "specbench itself is heavy"
from specbench.cli import app
for line in sys.stdin:
    words = json.loads(line)
    code = CliRunner().invoke(app, words).exit_code
    print(json.dumps([code, [name for name in %r if name in sys.modules]]))
"""
COMMANDS = {
    "--help": (0, []),
    "run --help": (0, []),
    "list": (0, []),
    "shw RUN": (2, []),
    "run --method cds --suite math": (2, []),
    "run --method csd --suite mth": (2, []),
    "run --method csd --suite math --pair pockt": (2, []),
    "run --method csd --suite math --set csd.gama=3": (2, []),
    "run --method csd --suite math --out RUN": (2, []),
    "sweep --method csd --param gama=3 --suite math": (2, []),
    "analyze rejections NONE": (2, []),
    "analyze rejections RUN --method cds": (2, []),
    "analyze acceptance RUN --method cds": (2, []),
    "analyze multi-draft RUN --method cds": (2, []),
    "analyze complementarity RUN --method cds": (2, []),
    "analyze counterfactual RUN --method cds": (2, []),
    "analyze collaboration NONE": (2, []),
    "trace RUN --task gsm --doc 0": (2, []),
    "score NONE --judge x": (2, []),
    "serving NONE": (2, []),
    "throughput --method cds": (2, []),
    "throughput --task gsm8": (2, []),
    "throughput --prompts NONE": (2, []),
    "audit --method cds": (2, []),
    "audit --task gsm8k --suite math": (2, []),
    "audit --task gsm8": (2, []),
    "profile NONE": (2, []),
    "profile --task gsm8": (2, []),
    "doctor --suite mth": (2, []),
    "doctor --pair pockt": (2, []),
    "bench --pair pockt": (2, []),
    "calibrate --suite mth": (2, []),
    "train --method cds --suite math": (2, []),
    "build-datastore --corpus x --pair pockt --out y": (2, []),
    "replay --traces NONE": (2, []),
    "import vllm NONE": (2, []),
    "import eagle3-head NONE --pair pocket": (2, []),
    "show RUN": (0, []),
    "compare RUN --by depth": (0, []),
    "run --resume RUN": (0, []),
    "plot speed-accuracy RUN": (0, ["matplotlib"]),
    "report IMPORTED": (0, ["matplotlib", "plotly", "jinja2"]),
    "report RUN": (0, ["transformers", "matplotlib", "plotly", "jinja2"]),
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> dict[str, tuple[int, list[str]]]:
    """By command: its exit code, and what was imported by then, of all commands in one process."""
    here = tmp_path_factory.mktemp("startup")
    KINDS["spec-bench"](here).rename(here / "imported")
    large(here / "run", ["pocket_gsm8k"], ["vanilla", "csd"], documents=3)
    lines = [json.dumps(command.replace("RUN", "run").replace("IMPORTED", "imported").split()) for command in COMMANDS]
    program = [sys.executable, "-c", PROGRAM % (HEAVY,)]
    done = subprocess.run(
        program,
        input="\n".join(lines),
        cwd=here,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return {command: tuple(json.loads(line)) for command, line in zip(COMMANDS, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_imports_only_what_it_needs(imported, command):
    assert imported[command] == COMMANDS[command]


FILES = """
import sys
from typer.testing import CliRunner
from specbench.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
print(*sorted(name for name, found in sys.modules.items() if name.partition(".")[0] == "specbench" and found.__file__))
"""
MOST_FILES = 110  # of the package, by `run --method csd`; lower it where one is no longer needed


def test_a_run_imports_what_it_uses(tmp_path: Path):
    """A newcomer who follows `run --method csd` reads no more files than these; servers, plots and training are not."""
    line = ["run", "--method", "csd", "--suite", "math", "--limit", "1", "--max-new-tokens", "4", "--out", "run"]
    program = [sys.executable, "-c", FILES, *line]
    own = {"PYTHONPATH": str(PACKAGE.parent), "SPECBENCH_CACHE": str(tmp_path / "cache")}  # no measured ceilings
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env=own, check=True)
    files = done.stdout.split()
    unused = ("servers", "training", "studies", "papers", "tasks.sandbox", "results.importers", "report.plots")
    assert [name for name in files if name.startswith(tuple(f"specbench.{package}" for package in unused))] == []
    assert len(files) <= MOST_FILES, "\n".join(files)


def test_a_finished_run_that_is_damaged_is_decoded_again(tmp_path: Path):
    """Only whole tables spare the models: otherwise the run goes on where it can."""
    from specbench.measure import command
    from specbench.results.stored import StoredRun

    large(tmp_path / "run", ["pocket_gsm8k"], ["vanilla", "csd"], documents=3)
    assert command._is_whole(tmp_path / "run") and StoredRun(tmp_path / "run").finished
    (tmp_path / "run" / "rounds.parquet").write_bytes(b"PAR1")
    assert not command._is_whole(tmp_path / "run")
