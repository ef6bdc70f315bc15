"""What the site takes from the project itself, so that no page goes stale.

A page names a part in an HTML comment on a line of its own, which the build replaces:

    <!-- settings: csd, csd-ocm -->    settings with defaults, meaning and source; of a variant those that it changes
    <!-- recipe: cospec-rl -->         the settings of a training recipe
    <!-- suites: csd -->               the suites whose names begin so
    <!-- claims: csd -->               the claims of a paper, with the verdict on the bundled models
    <!-- lost: csd -->                 what the text of a paper has lost, by table
    <!-- lines: methods | pairs | suites | tasks -->   everything of a kind with a line each
    <!-- faults -->                    the counts of `make fault-test`
    <!-- hostile -->                   what hostile programs got in it
    <!-- promises: seeded | unseeded | by_reading -->   what pages promise, and the checks that hold it
    <!-- part: README.md table -->     what stands between the markers of a file
    <!-- file: PATH -->                a whole Markdown file, its headings one level down
    <!-- page: PATH -->                the same of a paper of the extras, which may name parts too
    <!-- source: PATH NAME -->         the source of a module, or of what it defines by a name
    <!-- modules -->                   every module of the package with its first sentence

What names the file of a figure, `<!--= … -->` behind it (tools/figures), is left out.

The build adds pages of its own: the command line from Typer, and the findings and tables of results/.
"""

import ast
import functools
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, TypeGuard, get_args, get_origin, get_type_hints

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from promises import by_reading, seeded, unseeded  # next to this file, whose folder MkDocs finds while it reads it

ROOT = Path(__file__).parent.parent
SUITES = ROOT / "suites"
RESULTS = ROOT / "results"
EXTRAS = ROOT / "extras" / "specbench_extras"
SETTING = ["setting", "default", "meaning", "source of the default"]
EXIT_CODES = """## Exit codes

| code | meaning |
| --- | --- |
| 0 | all is done |
| 1 | `doctor` or `audit` has an error to report, or a lossless text differs |
| 2 | the request cannot be carried out as it stands; one line says why |
| 3 | some documents of a run failed; the others are recorded |
| 4 | `bench` has missed a bar that its engine has to reach; all texts are right |
| 130 | the run was stopped; `specbench run --resume` goes on |
| 141 | nobody reads the output any more, as after `\\| head -1` |
"""
MARK = re.compile(r"^<!-- (\w+)(?:: (.+?))? -->$", re.M)
OF_FIGURE = re.compile(r"<!--[=!]\s.*?-->", re.S)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference of the command line, and the files of results/."""
    parsed.cache_clear()  # `mkdocs serve` builds again after a change
    if str(ROOT) not in sys.path:  # not above: MkDocs restores the path after it has read this file
        sys.path.insert(0, str(ROOT))
    for name, text in cli_pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted(RESULTS.rglob("*")):
        uri = path.relative_to(ROOT).as_posix()
        if path.suffix == ".md":
            files.append(File.generated(config, uri, content=links_of_the_site(path.read_text())))
        elif path.suffix in (".csv", ".json", ".txt", ".tex", ".yaml", ".parquet"):
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def links_of_the_site(text: str) -> str:
    """A text of results/ with its links to other folders as they are on the site."""
    return text.replace("](../docs/pages/", "](../").replace(
        "](../suites/pairs/weights/MODEL_CARD.md", "](../models.md"
    )


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the tables where a page names them."""

    def replaced(match: re.Match[str]) -> str:
        name, argument = match.groups()
        if name == "page":
            return MARK.sub(replaced, file(argument))
        if name not in PARTS:
            return match.group()
        try:
            return PARTS[name](*([argument] if argument else []))
        except (OSError, KeyError, TypeError, ValueError, StopIteration) as error:
            raise PluginError(f"{page.file.src_uri}: {match.group()}: {error!r}") from error

    return OF_FIGURE.sub("", MARK.sub(replaced, markdown))


def table(heads: list[str], rows: Iterator[list[str]] | list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """A text as a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def code(value: Any) -> str:
    """A value as YAML has it, in a cell."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000).replace("\n...", "").strip()
    return f"`{text.replace('|', chr(92) + '|')}`"


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# Settings


def settings(names: str) -> str:
    return "\n\n".join(_settings(name.strip()) for name in names.split(","))


def _settings(name: str) -> str:
    spec = read(next(path for path in method_files() if path.stem == name))
    module = module_of(spec["method"])
    about = fields(named(module), "Settings")
    given: dict[str, Any] = spec["settings"] or {}
    head = f"**`{name}`**: {spec['description']}" + (f" ({spec['paper']})" if spec["paper"] else "")
    if spec["method"] == name:
        head += f". Its code is `{module.relative_to(ROOT).as_posix()}`"
    if not given:
        return f"{head}. It has no settings."
    if spec["method"] != name:
        head += f". It changes these settings of `{spec['method']}`"
    rows = [[f"`{key}`", code(one["value"]), about[key], cell(one["source"])] for key, one in given.items()]
    return f"{head}:\n\n{table(SETTING, rows)}"


def method_files() -> list[Path]:
    """The settings files of all methods, those of the extras too."""
    return sorted([*(SUITES / "methods").rglob("*.yaml"), *EXTRAS.glob("*/*.yaml")], key=lambda path: path.stem)


def module_of(method: str) -> Path:
    """The file of a method, whose class `Settings` says what each setting means."""
    stem = method.replace("-", "_") + "_" * iskeyword(method)
    return next(iter([*(ROOT / "specbench" / "methods").rglob(f"{stem}.py"), *EXTRAS.glob(f"*/{stem}.py")]))


def named(path: Path) -> str:
    """The name of the module in a file."""
    root = EXTRAS.parent if path.is_relative_to(EXTRAS) else ROOT
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def fields(module: str, name: str) -> dict[str, str]:
    """The fields of a class and of its bases with their descriptions and choices.

    They are read from the source: the modules of methods import torch, and a build needs no torch.
    """
    tree = parsed(module)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("specbench", EXTRAS.name)
        for alias in node.names
    }
    if name not in classes:
        return fields(*imported[name]) if name in imported else {}
    inherited = (fields(module, base.id) for base in classes[name].bases if isinstance(base, ast.Name))
    own = (node for node in classes[name].body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call))
    return {**{key: text for base in inherited for key, text in base.items()}, **dict(map(field, own))}


def field(node: ast.AnnAssign) -> tuple[str, str]:
    """A field's name, and what it means, with the values that it may have if they are few."""
    assert isinstance(node.target, ast.Name) and isinstance(node.value, ast.Call)
    described = [one.value for one in node.value.keywords if one.arg == "description"]
    text = cell(str(ast.literal_eval(described[0]))) if described else ""
    choices = [ast.unparse(one.slice) for one in ast.walk(node.annotation) if is_literal(one)]
    if choices:
        values = ast.literal_eval(choices[0] if choices[0].startswith("(") else f"({choices[0]},)")
        text += f" ({', '.join(f'`{value}`' for value in values)})"
    return node.target.id, text


def is_literal(node: ast.AST) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"


@functools.cache
def parsed(module: str) -> ast.Module:
    root = EXTRAS.parent if module.startswith(EXTRAS.name) else ROOT
    path = root.joinpath(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def recipe(name: str) -> str:
    """The settings of a training recipe, which are the fields of one class of the trainers."""
    (file,) = [*(SUITES / "training").glob(f"{name}.yaml"), *EXTRAS.glob(f"*/recipes/{name}.yaml")]
    spec = read(file)
    given = spec["settings"]
    for path in [*sorted((ROOT / "specbench" / "training").rglob("*.py")), *sorted(EXTRAS.glob("*/*.py"))]:
        module = named(path)
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef) and (about := fields(module, node.name)).keys() >= given.keys():
                rows = [[f"`{key}`", code(one["value"]), about[key], cell(one["source"])] for key, one in given.items()]
                return f"{spec['description']}:\n\n{table(SETTING, rows)}"
    raise KeyError(f"no class of specbench.training has the settings of {name}")


# Lists


def lines(kind: str) -> str:
    """Everything of a kind, with the line and the paper that `specbench list` shows."""
    if kind == "tasks":
        index = read(SUITES / "tasks" / "index.yaml")
        rows = [
            [f"`{name}`", cell(one["description"]), counterparts(one), f"`{one['metric']}`"]
            for name, one in index.items()
        ]
        return table(["task", "what it is", "bundled counterpart", "metric and filter"], rows)
    folder = SUITES if kind == "suites" else SUITES / kind
    paths = method_files() if kind == "methods" else [*folder.glob("*.yaml"), *EXTRAS.glob(f"*/{kind}/*.yaml")]
    return listed(sorted(paths, key=lambda path: path.stem), kind.removesuffix("s"))


def counterparts(task: dict[str, Any]) -> str:
    given = task.get("counterpart")
    if task["hub"] is None:
        return "itself"
    return ", ".join(f"`{name}`" for name in ([given] if isinstance(given, str) else given or [])) or "none"


def suites(start: str) -> str:
    paths = [*SUITES.glob("*.yaml"), *EXTRAS.glob("*/suites/*.yaml")]
    return listed(sorted(p for p in paths if p.stem == start or p.stem.startswith(f"{start}-")), "suite")


def listed(paths: list[Path], kind: str) -> str:
    specs = [(path.stem, read(path)) for path in paths]
    rows = [[f"`{name}`", cell(spec["description"]), cell(spec.get("paper") or "")] for name, spec in specs]
    return table([kind, "what it is", "paper"], rows)


# Findings


def claims(paper: str) -> str:
    """The claims of a paper with their verdicts on the bundled models, as `specbench tables --check` wrote them."""
    text = (RESULTS / "tables" / "checks.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {paper} |")]
    heads = ["table", "claim", "verdict on the bundled models", "method", "against", "documents"]
    return table(heads, [[*row[1:6], row[7]] for row in rows])


def lost(paper: str) -> str:
    """What is missing in the text of a paper's tables, from results/published/."""
    spec = read(RESULTS / "published" / f"{paper}.yaml")
    rows = [
        [str(key), cell(one["title"]), cell("; ".join(one["lost"]) or "nothing")] for key, one in spec["tables"].items()
    ]
    return table(["table", "what it holds", "what its text has lost"], rows)


def faults() -> str:
    counted = json.loads((RESULTS / "reference" / "fault-test.json").read_text())["faults"]
    rows = [[name, str(one["tried"]), str(one["recovered"]), str(one["lost"])] for name, one in counted.items()]
    return table(["fault", "times tried", "runs recovered", "rows lost"], rows)


def hostile() -> str:
    counted = json.loads((RESULTS / "reference" / "hostile-programs.json").read_text())
    counted.pop("environment", None)
    rows = [
        [row, *(f"{kind[row][0]} of {kind[row][2]}" for kind in counted.values())]
        for row in next(iter(counted.values()))
    ]
    return table(["class", *counted], rows)


def promises(kind: str) -> str:
    """A table of promises.yaml: those whose checks found a seeded defect, other checks, or what reading alone holds."""
    heads = {
        "seeded": ["promise", "page", "check", "defect", "make"],
        "unseeded": ["promise", "page", "check", "make", "why no defect is in the list"],
        "by_reading": ["promise", "page", "why"],
    }
    rows = {"seeded": seeded, "unseeded": unseeded, "by_reading": by_reading}
    return table(heads[kind], [[cell(one) for one in row] for row in rows[kind]()])


def part(text: str) -> str:
    """What a file has between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; its links become those of the site."""
    file, name = text.split()
    body = (ROOT / file).read_text().split(f"<!-- {name}:begin -->")[1].split(f"<!-- {name}:end -->")[0]
    return body.replace("](docs/pages/", "](").strip()


def file(path: str) -> str:
    parts = re.split(r"(?m)(^```.*?^```$)", (ROOT / path).read_text(), flags=re.S)  # a comment in code is no heading
    return "".join(part if part.startswith("```") else re.sub(r"(?m)^#", "##", part) for part in parts).strip()


# Source


def source(text: str) -> str:
    path, _, name = text.partition(" ")
    body = (ROOT / path).read_text()
    if name:
        node = next(one for one in ast.parse(body).body if name in defined(one))
        body = ast.get_source_segment(body, node) or ""
    return f'```python title="{path}"\n{body.strip()}\n```'


def defined(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [one.id for one in getattr(node, "targets", []) if isinstance(one, ast.Name)]


def modules() -> str:
    """A table for each package, a row for each module."""
    found = [*(ROOT / "specbench").rglob("*.py"), *EXTRAS.rglob("*.py")]
    folders = sorted({path.parent for path in found if path.parent.name != "tests"})
    texts = []
    for folder in folders:
        files = sorted(path for path in folder.glob("*.py") if not path.name.startswith("__"))
        rows = [[f"`{path.name}`", cell(first_sentence(path))] for path in files]
        if rows:
            about = first_sentence(folder / "__init__.py")
            name = folder.relative_to(ROOT).as_posix()
            texts.append(f"### {name}/\n\n{about}\n\n{table(['module', 'content'], rows)}")
    return "\n\n".join(texts)


def first_sentence(path: Path) -> str:
    text = (ast.get_docstring(ast.parse(path.read_text())) or "") if path.exists() else ""
    return " ".join(text.split("\n\n")[0].split())


# The command line


def cli_pages() -> dict[str, str]:
    """A page for each panel of `specbench --help`, and one that lists all commands."""
    from specbench.cli import app, panels
    from specbench.cli.analyze import all_analyses

    pages, overview = {}, [f"# The command line\n\n{app.info.help}\n"]
    for panel, commands in (panels() | {"Analyze": all_analyses()}).items():
        page = f"cli-{panel.lower()}"
        rows = [[f"[`{name_of(one)}`]({page}.md#{name_of(one)})", cell(paragraphs(one)[0])] for one in commands]
        overview.append(f"## {panel}\n\n{table(['command', 'what it does'], rows)}\n")
        pages[page] = f"# {panel}\n\n" + "\n".join(map(command_section, commands))
    return {"cli": "\n".join([*overview, EXIT_CODES]), **pages}


def name_of(command: Callable[..., None]) -> str:
    return command.__name__.rstrip("_").replace("_", "-")


def paragraphs(command: Callable[..., None]) -> list[str]:
    return [" ".join(one.split()) for one in (inspect.getdoc(command) or "").split("\n\n")]


def examples(command: Callable[..., None]) -> list[str]:
    """The command lines that a command's help shows."""
    return [one.strip("`") for one in paragraphs(command) if one.startswith("`specbench")]


def command_section(command: Callable[..., None]) -> str:
    """A command as its help has it: what it does, examples, arguments and options."""
    texts = [one for one in paragraphs(command) if not one.startswith("`specbench")]
    hints = get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters
    annotated = {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}
    parameters = {name: hint for name, hint in annotated.items() if not get_args(hint)[1].hidden}
    rows = [parameter_row(name, hint, given[name].default) for name, hint in parameters.items()]
    shown = "```sh\n" + "\n".join(examples(command)) + "\n```"
    return "\n\n".join([f"## {name_of(command)}", *texts, shown, table(["option", "meaning", "default"], rows), ""])


def parameter_row(name: str, hint: Any, default: Any) -> list[str]:
    """The names of an option or argument, its help with the choices that there are, and its default."""
    kind, info = get_args(hint)[:2]
    kinds = {kind, *get_args(kind)}
    long = f"--{name.strip('_').replace('_', '-')}"
    if type(info).__name__ == "ArgumentInfo":
        names = f"`{name.upper()}`"
    elif info.param_decls:
        names = ", ".join(f"`{one}`" for one in info.param_decls)
    else:
        names = f"`{long}`, `--no-{long[2:]}`" if bool in kinds else f"`{long}`"
    if info.metavar and type(info).__name__ == "OptionInfo":
        names += f" `{cell(info.metavar)}`"
    meaning = cell(info.help or "")
    for choices in (one for one in kinds if inspect.isclass(one) and issubclass(one, Enum)):
        meaning += f" ({', '.join(f'`{choice.value}`' for choice in choices)})"
    return [names, meaning, "required" if default is inspect.Parameter.empty else default_of(default)]


def default_of(default: Any) -> str:
    value = default.value if isinstance(default, Enum) else default
    if value is None or value is False:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


PARTS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (settings, recipe, suites, lines, claims, lost, faults, hostile, promises, part, file, source, modules)
}
