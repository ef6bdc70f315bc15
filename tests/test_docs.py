"""Every command of the README and the documentation runs as it is written there, on few documents; the site builds."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import browsing
import pytest
import yaml
from screens import call
from typer.main import get_command

from specbench import config
from specbench.cli import app, lm_eval_model, panels, with_values
from specbench.cli.analyze import all_analyses
from specbench.report.columns import COLUMNS, DEPTH_COLUMNS
from specbench.studies import ceilings, profile_pair
from specbench.training.recipe import recipes
from specbench_extras.bench import engines, genai, main, peers
from specbench_extras.bench.main import MISSED

browser = browsing.browser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SUITES = ROOT / "suites"
BLOCK = re.compile(r"^(<!-- only parsed -->\n)?```(\w*)[^\n]*\n(.*?)^```$", re.M | re.S)
NAMED = re.compile(r"^<!-- as (\S+) -->\n```\w+\n(.*?)^```$", re.M | re.S)
MAKE = re.compile(r"(?:^|`)make\s([a-z][a-z-]*)", re.M)
FEW = {"limit": 1, "documents": 2, "draws": 2, "states": 2, "repeats": 1, "batches": 2}
ENOUGH = {**FEW, "documents": 6}  # of which some have something to learn from
# In this order, since commands of a page read the runs of earlier pages; others follow by name.
FIRST = [ROOT / "README.md", DOCS / "pages" / "tour.md", DOCS / "pages" / "add" / "suite.md"]
PAGES = [*FIRST, *(page for page in sorted((DOCS / "pages").rglob("*.md")) if page not in FIRST)]
PAPER = re.compile(r"^<!-- page: (\S+) -->$", re.M)  # of the extras, in their folders
TEXTS = {page: PAPER.sub(lambda match: (ROOT / match[1]).read_text(), page.read_text()) for page in PAGES}
FILES = dict(file for text in TEXTS.values() for file in NAMED.findall(text))
BLOCKS = [(page, *block) for page, text in TEXTS.items() for block in BLOCK.findall(NAMED.sub("", text))]


def lines(start: str, parsed: bool) -> list[str]:
    """The command lines of all pages that begin so, each once."""
    texts = [text for _, only_parsed, kind, text in BLOCKS if kind in ("", "sh") and bool(only_parsed) == parsed]
    return list(dict.fromkeys(line for text in texts for line in text.splitlines() if line.startswith(start)))


def shell_lines() -> list[str]:
    return [line for _, _, kind, text in BLOCKS if kind in ("", "sh") for line in text.splitlines()]


def within() -> list[str]:
    """The command lines inside other lines of a shell: of a loop, a job, or after the `--` of a script."""
    shell = [line.partition(" # ")[0] for line in shell_lines() if not line.startswith("specbench")]
    found = [re.search(r"specbench [a-z].*?(?=['&]|$)", line.replace(" -- ", " specbench run ")) for line in shell]
    return [re.sub(r"\$\w+", "1", match[0]).strip() for match in found if match]


def examples() -> list[str]:
    """The command lines that the help of each command shows."""
    paragraphs = [
        part
        for one in (*panels().values(), all_analyses())
        for command in one
        for part in inspect.getdoc(command).split("\n\n")
    ]
    return [" ".join(part.split()).strip("`") for part in paragraphs if part.startswith("`specbench")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder like the clone, with the files that the pages show, and suites of one task and of short sweeps."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "suites").mkdir()
    for path in (path for path in SUITES.iterdir() if path.is_dir() or path.suffix == ".yaml"):
        if path.is_dir():
            (folder / "suites" / path.name).symlink_to(path)
        else:
            (folder / "suites" / path.name).write_text(shortened(path.read_text()))
    for _, _, kind, text in BLOCKS:
        if kind == "yaml" and text.startswith("# "):
            (folder / text.split("\n", 1)[0].removeprefix("# ")).write_text(re.sub(r"limit: \d+", "limit: 1", text))
        elif kind == "jsonl":
            (folder / "traces.jsonl").write_text(text)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "SUITES", folder / "suites")
        # What commands measure without documents.
        patch.setattr(profile_pair, "FORWARDS", 5)
        measured = profile_pair.measure_forwards

        def few_forwards(pair, widths=(1, 8), contexts=(32, 128), *repeats, **more):
            return measured(pair, widths, contexts, *repeats, **more)

        patch.setattr(profile_pair, "measure_forwards", few_forwards)
        ceiling = ceilings.measure

        def few_sizes(device, dtype, sizes=(2**20, 2**24), sides=(256, 512), **more):
            return ceiling(device, dtype, sizes, sides, **more)

        patch.setattr(ceilings, "measure", few_sizes)
        for part in (engines, genai, main, peers):  # of each text; all of them the same
            patch.setattr(part, "NEW_TOKENS", 16)
        yield folder


def shortened(text: str) -> str:
    suite = yaml.safe_load(text)
    for line in suite.get("methods", []):
        line["sweep"] = {key: [values[0], values[-1]] for key, values in line.get("sweep", {}).items()}
    return yaml.safe_dump({**suite, "tasks": suite["tasks"][:1]}, allow_unicode=True)


def fewer(command: str) -> list[str]:
    """The arguments of a command line, on few documents."""
    few = ENOUGH if command.startswith("specbench train") else FEW
    return shlex.split(re.sub(r"--(\w+) \d+", lambda m: f"--{m[1]} {few[m[1]]}" if m[1] in few else m[0], command))[1:]


def test_the_pages_have_commands():
    assert len(lines("specbench ", False)) >= 80


@pytest.mark.long
@pytest.mark.parametrize("command", lines("specbench ", False))
def test_command(command, folder, monkeypatch):
    """In the order of the pages, since later commands read the runs of earlier ones."""
    monkeypatch.chdir(folder)
    result = call(*fewer(command))
    missed = MISSED if command.startswith("specbench bench") else 0  # on a busy machine
    assert result.exit_code in (0, missed), result.output
    assert result.output.strip()


@pytest.mark.long
@pytest.mark.parametrize("command", lines("specbench-lm-eval ", False))
def test_lm_eval_command(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["specbench-lm-eval", *fewer(command)])
    lm_eval_model.main()
    assert "pocket_gsm8k" in capsys.readouterr().out


@pytest.mark.parametrize("command", [*lines("specbench ", True), *within(), *examples()])
def test_command_that_needs_more_than_is_here(command):
    """Of a hub, of others' files, or of an example's run: its options and their values exist."""
    _, name, *arguments = shlex.split(command)
    group = get_command(app)
    if name == "analyze":
        group, name, *arguments = group.commands[name], *arguments
    command = group.get_command(None, name)
    assert command, f"there is no {name}"
    assert command.make_context(name, with_values(arguments)).params.keys() <= {one.name for one in command.params}


def test_no_line_of_a_shell_is_left_out():
    """Each line is a command that is run or parsed here, or one of these."""
    loops = r"for k in|done$|wait$|  (CUDA_VISIBLE_DEVICES=\S+( - 1\)\))? )?'?specbench "
    kept = {*lines("specbench", True), *lines("specbench", False)}
    others = re.compile(rf"make [a-z]|sbatch .*\\$|python tools/|{loops}")
    left = [line for line in shell_lines() if line not in kept and not others.match(line)]
    assert left == [] and len(within()) == 3


@pytest.mark.parametrize("target", sorted({name for text in TEXTS.values() for name in MAKE.findall(text)}))
def test_make_targets_exist(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_every_method_has_its_settings_on_a_page():
    groups = [group for text in TEXTS.values() for group in re.findall(r"^<!-- settings: (.+) -->$", text, re.M)]
    named = [name for group in groups for name in group.split(", ")]
    assert sorted(named) == config.names("methods")


def test_every_recipe_has_its_settings_on_a_page():
    named = [name for text in TEXTS.values() for name in re.findall(r"^<!-- recipe: (.+) -->$", text, re.M)]
    assert sorted(named) == sorted(recipes())


def test_every_page_of_the_extras_is_shown():
    shown = [name for page in PAGES for name in PAPER.findall(page.read_text())]
    assert sorted(shown) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "extras").rglob("*.md"))


def test_every_column_is_defined():
    text = TEXTS[DOCS / "pages" / "columns.md"]
    assert [name for name in (*COLUMNS, *DEPTH_COLUMNS) if f"`{name}`" not in text] == []


def test_every_package_has_a_sentence():
    text = TEXTS[DOCS / "pages" / "architecture.md"]
    packages = [path.parent.name for path in (ROOT / "specbench").glob("*/__init__.py")]
    assert [name for name in packages if f"| `{name}/` |" not in text] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """As `make docs`: a dead link is an error, and so is a documented module that does not exist."""
    folder = tmp_path_factory.mktemp("site")
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # --quiet hides warnings from --strict
    command = [*mkdocs, "-f", DOCS / "mkdocs.yml", "-d", folder]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_dead_link(site):
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert len(pages) > 50
    for path, text in pages.items():
        fetched = re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(https?://[^"]+)"', text)
        assert not fetched, f"{path.name} needs a network"
        assert not re.search(r"<!-- \w+: ", text), f"{path.name} has a part that was not replaced"


def test_the_search_works_from_a_file(browser, site):
    view = browser.new_page()
    asked = []
    view.on("request", lambda request: asked.append(request.url))
    view.goto((site / "index.html").as_uri())
    view.click("input[name=query]")
    view.keyboard.type("leaderboard", delay=30)
    found = view.locator(".md-search-result__link")
    found.first.wait_for(state="attached")
    assert "tour.html" in " ".join(one.get_attribute("href") for one in found.all())
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
    view.close()
