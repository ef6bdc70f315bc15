"""Texts of models and data, and names from files, are read and never act: in no command's output, in no format."""

import ast
import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import browsing
import command_line
import fuzz_run
import markdown_it
import pandas as pd
import pytest
from cases import mostly_long
from command_line import call
from made_runs import TOKENIZER, add_sample, drafted, ids, manifest, score, write
from rich.table import Table

from specbench.base.console import PlainConsole, RunProgress, plain, progress
from specbench.base.escape import cell, csv_text, latex_text, markdown_text
from specbench.cli.errors import user_errors
from specbench.config import PACKAGE, MethodSpec, UserError
from specbench.engine.types import Round
from specbench.report.tables import latex, markdown

browser, open_page = browsing.browser, browsing.open_page

here = command_line.here  # every test works in an empty folder
PARTS = [
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b31m",
    "over\rwritten",
    "\u202eright",
    "\u2066left\u2069",
    "<script>window.hacked=1</script>",
    '</script><img src=x onerror="window.hacked=2">',
    "<!--",
    '"onmouseover="window.hacked=3',
    '=HYPERLINK("http://evil.example")',
    r"\write18{touch x}\input{x}\end{tabular}",
    "|",
    "$x^$",
    "`code`",
    "[bold]b[/bold]",
    "[link=http://evil.example]l[/link]",
    "![i](http://evil.example/i.png)",
    "[l](http://evil.example)",
    "&amp; %n #h _u_ *s* ~t~ {b} {{ 7 * 7 }} 100%",
    "a\n\n# head\n- b",
]
HOSTILE = " ".join(PARTS)
FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "＝1+1", "=HYPERLINK(1)", "-", "+", "=-3", "-0x1"]
ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SGR = re.compile(r"\x1b\[[0-9;]*m")


def still(text: str) -> None:
    """Nothing in an output acts on a terminal; without one rich has no styles either."""
    match = ACTING.search(text)
    assert not match, repr(text[max(0, match.start() - 40) : match.end() + 40])


# One text at a time ---------------------------------------------------------------------------------------------------


def test_plain_by_hand():
    assert plain("a\x1b[2Jb\x07\x9bc\x7f\u202ed\r\n\te\ud800") == r"a\x1b[2Jb\x07\x9bc\x7f\u202ed\r\n\te\ud800"
    assert plain("a\n\tb\r", "\n") == "a\n\\tb\\r" and plain("a\n\tb", "\n\t") == "a\n\tb"
    usual = "Größe γ → 3 × [0.1, 0.2] csd[gamma=4] 中文 🙂 é\u200d␣⏎"
    assert plain(usual) == usual


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_acts_on_the_console(terminal):
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=terminal, width=70)
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    for what in (HOSTILE, table, [HOSTILE], {HOSTILE: HOSTILE}):
        console.print(what)
    console.print(HOSTILE, style="bold yellow", soft_wrap=True)
    console.out(HOSTILE)
    console.rule(HOSTILE)
    text = SGR.sub("", out.getvalue()) if terminal else out.getvalue()
    still(text)
    for literal in ("[bold]b[/bold]", "[link=http://evil.example]", r"\x1b]0;title", r"\u202eright", r"\x9b31m"):
        assert literal in text.replace("\n", ""), literal


def test_progress_says_tasks_as_they_are_named(capsys, monkeypatch):
    monkeypatch.setattr("specbench.base.console.QUIET_SECONDS", -1)
    with RunProgress() as bar:
        bar.update(1, 3, HOSTILE, [])
        bar.update(3, 3, HOSTILE, [])
    with progress(HOSTILE, 3, aside=True) as advance:
        advance(3)
    said = capsys.readouterr()
    still(said.out + said.err)
    assert "[bold]b[/bold]" in said.out.replace("\n", "") and r"\x1b[2J" in said.err.replace("\n", "")


@pytest.mark.parametrize("kind", [UserError, OSError])
def test_an_error_is_one_line_whatever_it_quotes(kind, capsys):
    with pytest.raises(BaseException, match="2"), user_errors():
        raise kind(HOSTILE)
    line = capsys.readouterr().err
    still(line)
    assert line.count("\n") == 1 and line.startswith("error: ") and "[bold]b[/bold]" in line


def test_cells_by_hand():
    for formula in FORMULAS:
        assert cell(formula)[0] == "'", formula
    for number in ("-3.5", "+1e3", "-inf", "-0", "3", "", "plain", "a=b", "x@y", "1-1"):
        assert cell(number) == number, number
    assert cell(-3.5) == -3.5 and cell(None) is None
    table = pd.DataFrame({"=a": FORMULAS, "b": -1.5, "c": [None] * len(FORMULAS), "d": pd.array([1] * len(FORMULAS))})
    rows = list(csv.reader(io.StringIO(csv_text(table))))
    assert rows[0] == ["'=a", "b", "c", "d"] and rows[1] == ["'=1+1", "-1.5", "", "1"]


def test_usual_names_stay_as_they_are_in_markdown():
    for usual in ("pocket_gsm8k", "csd[gamma=4]", "100.0 ±0.0", "1 (base)", "<.001", "1.51 [1.44, 1.59]=", "a & b"):
        assert markdown_text(usual) == usual
    assert markdown_text("a|b\n![x](http://y)") == r"a\|b\\n\![x\](http:\//y)"


def cells_of(text: str) -> list[str]:
    """The texts of a Markdown table's cells as they are read; anything but text in them is an error."""
    results = []
    for token in markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").parse(text):
        assert token.type != "html_block", token.content
        for child in token.children or []:
            assert child.type == "text" or child.type == "text_special", (child.type, child.content)
        if token.children is not None:
            results.append("".join(child.content for child in token.children))
    return results


@pytest.mark.parametrize("text", [*PARTS, HOSTILE, "=" + HOSTILE, "www.evil.example", "http://evil.example", "a\\"])
def test_markdown_renders_as_the_text_itself(text):
    result = cells_of(markdown(pd.DataFrame({text: [text, "b"]})))
    assert result == [plain(text).strip()] * 2 + ["b"]
    assert cells_of(f"- {markdown_text(text)}\n") == [plain(text).strip()]
    assert not re.search(r"https?://|www\.(?!\\)", markdown_text(text).replace("www\\.", ""), re.I), "no bare links"


OWN_COMMANDS = {"begin", "end", "toprule", "midrule", "bottomrule", "pm", "alpha", "tau", "Delta", "gamma", "lambda"}
OWN_COMMANDS |= {"mu", "ge", "le", "times", "to", "textbackslash", "textasciitilde", "textasciicircum"}


def typeset(text: str) -> None:
    """LaTeX whose only commands are ours, whose braces match, and whose signs are escaped."""
    still(text)
    text = "\n".join(line for line in text.split("\n") if not line.startswith("%"))
    for line in text.split("\n"):
        rest = re.sub(r"\\\\(?=\s*$)", "", line)
        for name in re.findall(r"\\([a-zA-Z]+)", rest):
            assert name in OWN_COMMANDS, (name, line)
        rest = re.sub(r"\$(?:\\[a-zA-Z]+|-)\$", "", rest)
        rest = re.sub(r"\\(?:begin|end)\{tabular\}(?:\{[lr]*\})?", "", rest)
        rest = re.sub(r"\\[a-zA-Z]+|\\[&%$#_{}]", "", rest)
        rest = rest.replace("{}", "")
        assert not re.search(r"[\\$%#_{}~^]", rest), line
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert not re.search(r"(?m)(?<=\\\\\n)\s*[\[*]|(?<=rule\n)\s*\[", text), "no optional argument of a row"


@pytest.mark.parametrize("text", [*PARTS, HOSTILE, "[2cm] a", "* a", "a\\"])
def test_latex_has_no_commands_of_data(text):
    typeset(latex(pd.DataFrame({"task": [text, "b"], text: ["1 ±2 α", "c"]})))
    assert r"\write" not in latex_text(text)


# A whole run ----------------------------------------------------------------------------------------------------------


def run_of(folder: Path, bad: str) -> Path:
    """A finished run whose methods, tasks, pair, suite, machine, texts and errors all carry `bad`."""
    tables: dict[str, list] = {"samples": [], "rounds": []}
    base, fast, slow = f"=base{bad}", f"@fast{bad}", f"{bad}slow"
    tasks = [f"-task{bad}", f"+other{bad}"]
    text = f" one{bad} two"
    tokens = ids(text)
    scores = []
    for task in tasks:
        for doc in range(3):
            for method in (base, fast, slow):
                if method == base:
                    rounds = [Round([token]) for token in tokens]
                else:
                    rounds = [Round(tokens[:1])]
                    for at in range(1, len(tokens), 2):
                        part = tokens[at : at + 2]
                        if len(part) == 2:
                            rounds.append(drafted([part[0], tokens[0]], part, 1, part[1], [1.0, 0.25]))
                        else:
                            rounds.append(drafted(part * 2, part * 2, 0, part[0], [0.5, 0.5]))
                if method == fast and len(tokens) > 3:
                    rounds[1] = drafted(tokens[1:3], [tokens[0], tokens[2]], 2, tokens[3], [0.4, 1.0], rescued=(0,))
                    rounds[2:3] = []
                    rounds = rounds[:2] + [Round([token]) for token in tokens[4:]]
                add_sample(tables, task, doc, method, rounds, text, "length", 10.0 - doc)
                scores.append(score(task, method, doc, float((doc + len(method)) % 2)))
        scores += [score(task, method, None, 0.5) for method in (base, fast, slow)]
    failed = next(table for table in tables["samples"] if table["doc_id"] == 2 and table["method"] == slow)
    failed |= {"finish": "error", "error": f"Traceback\nValueError: {bad}", "tokens": None, "text": None}
    write(folder, tables, scores)
    manifest(folder, tasks, (base, fast, slow), 3)
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    facts["plan"]["pair"] |= {"name": f"pair{bad}", "description": bad, "paper": bad}
    facts["plan"] |= {"suite": f"suite{bad}"}
    facts["environment"] |= {"cpu": f"cpu{bad}", "command": ["run", bad], "versions": {f"v{bad}": bad}, "load": 9.0}
    for fact in facts["plan"]["methods"]:
        fact |= {"description": bad, "paper": bad}
    path.write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run_of(folder / "hostile", HOSTILE)
    run_of(folder / "benign", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz_run, "TASKS", tuple(f"{task}{HOSTILE}" for task in fuzz_run.TASKS))
        for name, specs, temperature in (("many", fuzz_run.many(), 0.0), ("sampled", fuzz_run.sampled(), 1.0)):
            (folder / "made").mkdir()
            fuzz_run.make(folder / "made", [renamed(spec) for spec in specs], temperature)
            (folder / "made" / "run").rename(folder / name)
            (folder / "made").rmdir()
    return folder


def renamed(spec: MethodSpec) -> MethodSpec:
    """With a hostile name and description, if it is not a baseline."""
    hostile = {"name": f"{spec.name}{HOSTILE}", "description": HOSTILE}
    return spec if spec.name in ("vanilla", "ensemble") else spec.model_copy(update=hostile)


TASK, METHOD = f"-task{HOSTILE}", f"@fast{HOSTILE}"
SHOWN = [("show",), ("compare", "--by", "method"), ("compare", "--by", "pair"), ("compare", "--by", "depth")]
SHOWN += [("compare", "--against", METHOD), ("compare", "--limit-share")]
FORMATS = ("table", "md", "latex", "csv", "json")
CSD, SPECDECPP = f"csd{HOSTILE}", f"specdecpp{HOSTILE}"
VIEWS = [  # of a run: those that show something, and those that refuse
    ("hostile", 0, ("trace", "--task", TASK, "--doc", "0", "--method", METHOD)),
    ("hostile", 0, ("trace", "--task", TASK, "--doc", "0", "--method", METHOD, "--method", f"=base{HOSTILE}")),
    ("hostile", 0, ("trace", "--task", TASK, "--doc", "0")),
    ("hostile", 2, ("trace", "--task", TASK, "--doc", "99")),
    ("hostile", 2, ("trace", "--task", TASK, "--doc", "2", "--method", f"{HOSTILE}slow")),
    ("hostile", 2, ("trace", "--task", "none", "--doc", "0")),
    ("hostile", 0, ("analyze", "rejections", "--method", METHOD)),
    ("hostile", 0, ("analyze", "rejections", "--method", METHOD, "--format", "csv")),
    ("hostile", 0, ("analyze", "rejections", "--method", METHOD, "--format", "json")),
    ("hostile", 2, ("analyze", "rejections", "--method", "none")),
    ("many", 0, ("analyze", "acceptance", "--method", SPECDECPP)),
    ("many", 2, ("analyze", "frontier", "--method", SPECDECPP, "--against", f"sps{HOSTILE}")),
    ("many", 0, ("analyze", "tree")),
    ("many", 0, ("analyze", "complementarity")),
    ("many", 0, ("analyze", "complementarity", "--format", "md")),
    ("many", 0, ("simulate", "--method", CSD)),
    ("many", 0, ("simulate", "--method", CSD, "--format", "csv")),
    ("many", 0, ("simulate", "--method", CSD, "--format", "json")),
    ("many", 0, ("profile",)),
    ("many", 0, ("merge", "--method", CSD, "--out", "x.parquet")),
    ("many", 2, ("analyze", "counterfactual", "--method", f"cospec{HOSTILE}")),
    ("many", 2, ("serving",)),
    ("sampled", 0, ("analyze", "collaboration")),
    ("sampled", 2, ("analyze", "multi-draft")),
    ("sampled", 2, ("analyze", "rules")),
    ("hostile", 0, ("plan",)),
    ("hostile", 0, ("plan", "--format", "md")),
    ("hostile", 2, ("profile",)),
    ("hostile", 2, ("score", "--judge", "bundled:none")),
    ("hostile", 2, ("score", "--judge", "bundled:none", "--task", "none")),
    ("hostile", 3, ("run", "--resume")),
    ("hostile", 2, ("merge", "--out", "x.parquet")),
]


def command_of(parts: tuple[str, ...], run: Path) -> list[str | Path]:
    """The run's folder stands behind the command, or behind the kind of an analysis, or at the end of --resume."""
    if "--resume" in parts:
        return [*parts, run]
    at = 2 if parts[0] == "analyze" else 1
    return [*parts[:at], run, *parts[at:]]


def done(runs: Path, parts: tuple[str, ...], name: str = "hostile"):
    outcome = call(*command_of(parts, runs / name))
    assert isinstance(outcome.exception, SystemExit | None), f"{parts}: {outcome.exception!r}"
    still(outcome.stdout)
    still(outcome.stderr)
    return outcome


@mostly_long(
    "command, format",
    itertools.product(SHOWN, FORMATS),
    lambda command, format: command == ("show",) or (format == "table" and "--by" in command),
    ids=lambda one: one if isinstance(one, str) else "-".join(part[:9] for part in one if part.isascii()),
)
def test_tables_of_runs_do_not_act(runs, command, format):
    result = done(runs, (*command, "--format", format))
    assert result.exit_code == 0, result.stderr
    text = result.stdout
    if format == "csv":
        rows = list(csv.reader(io.StringIO(text)))
        assert len({len(row) for row in rows}) == 1 and any("'-task" in one for row in rows for one in row)
        for one in (one for row in rows for one in row if one):
            assert one[0] not in "=+-@\t\r" or re.fullmatch(r"[-+]?[\d.]+(e[-+]\d+)?", one), one
    elif format == "json":
        assert any(plain(str(value)) != str(value) for row in json.loads(text) for value in row.values()), "as it is"
    elif format == "md":
        cells_of(text)
        assert markdown_text(TASK) in text or "--by" in command
    elif format == "latex":
        typeset(text)
    else:
        assert "[bold]b[/bold]" in re.sub(r"\s", "", text)


@mostly_long("format", FORMATS, ("csv", "latex"))
def test_files_of_tables_do_not_act(runs, format):
    assert done(runs, ("compare", "--format", format, "--out", "it")).exit_code == 0
    still(Path("it").read_text())


@pytest.mark.parametrize(
    ("name", "code", "command"),
    VIEWS,
    ids=lambda one: "-".join(part[:9] for part in one if part.isascii()) if isinstance(one, tuple) else str(one),
)
def test_views_and_errors_do_not_act(runs, name, code, command):
    result = done(runs, command, name)
    assert result.exit_code == code, result.stderr
    assert sum(line.startswith("error: ") for line in result.stderr.splitlines()) == (code == 2)
    assert code == 2 or command[0] == "merge" or "title" in result.output, "nothing hostile is shown"
    if command[-2:] == ("--format", "csv"):
        for one in (one for row in csv.reader(io.StringIO(result.stdout)) for one in row if one):
            assert one[0] not in "=+-@\t\r" or re.fullmatch(r"[-+]?[\d.]+(e[-+]\d+)?", one), one


@pytest.mark.long
def test_published_tables_do_not_act(runs):
    done(runs, ("tables", "--paper", "csd", "--check", "--out", "tables"))
    for path in Path("tables").glob("*.[mt]*"):
        still(path.read_text())
        if path.suffix == ".tex":
            typeset(path.read_text())


@mostly_long(
    "kind", ["speed-accuracy", "discard-verification", "depth", "lengths", "time", "sweep"], ("speed-accuracy", "sweep")
)
def test_plots_show_names_as_they_are(runs, kind):
    outcome = call("plot", kind, runs / "hostile", "--out", "it.svg")
    still(outcome.stdout + outcome.stderr)
    if kind == "sweep":
        assert outcome.exit_code == 2  # nothing was swept
        return
    assert outcome.exit_code == 0, outcome.output
    text = Path("it.svg").read_text()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    root = ElementTree.fromstring(text)
    words = "".join("".join(node.itertext()) for node in root.iter() if node.tag.endswith("text"))
    assert "$x^$" in words and r"\x1b[2J" in re.sub(r"\s", "", words), "as text, not as mathematics"
    assert not [node.tag for node in root.iter() if node.tag.rpartition("}")[2] in ("script", "image", "a")]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["pdf", "png"])
def test_plots_in_other_formats(runs, suffix):
    assert call("plot", "speed-accuracy", runs / "hostile", "--out", f"it.{suffix}").exit_code == 0


# The page -------------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple] = []
        self.comments: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_comment(self, data):
        self.comments.append(data)


def tags(text: str) -> Tags:
    result = Tags()
    result.feed(text)
    return result


@pytest.fixture(scope="module")
def pages(runs) -> Path:
    for name in ("hostile", "benign"):
        made = call("report", runs / name, "--out", runs / f"{name}.html")
        assert made.exit_code == 0, made.output
        still(made.stdout + made.stderr)
    return runs


def test_the_page_has_no_element_of_data(pages):
    text = (pages / "hostile.html").read_text()
    still(re.sub(r"<script.*?</script>", "", text.replace("\t", " "), flags=re.S))
    hostile, benign = (tags((pages / f"{name}.html").read_text()) for name in ("hostile", "benign"))
    assert set(hostile.elements) == set(benign.elements), "the same elements with the same attributes"
    assert Counter(hostile.elements)["script", ("nonce",)] == 1 and not Counter(hostile.elements)["script", ()]
    rows = (1 + 3 * 3) + (1 + 3 * 2)  # headings; three methods on two tasks and their average, and their latencies
    for count in (Counter(name for name, _ in one.elements) for one in (hostile, benign)):
        assert (count["script"], count["tr"], count["section"], count["a"]) == (4, rows, 6, 5)
    assert not hostile.comments and not any(name.startswith("on") for _, names in hostile.elements for name in names)
    assert "window.hacked" in text, "the control: the names are there"


def test_nothing_on_the_page_runs_in_a_browser(pages, open_page):
    view = open_page(pages / "hostile.html")
    assert view.get_attribute("body", "data-ready") == "yes", view.said
    assert view.evaluate("window.hacked") is None
    assert all(url.startswith(("file:", "data:", "blob:")) for url in view.asked), view.asked
    for task in range(2):
        view.select_option("#doc-task", index=task)
        view.select_option("#doc-two", index=1)
        for heading in view.query_selector_all("#table thead button")[:3]:
            heading.evaluate("button => button.click()")
    if view.query_selector("#plot-task"):
        view.select_option("#plot-task", index=1)
    point = view.query_selector("#plot-speed-accuracy .point")
    if point:
        point.hover(force=True)
    assert view.evaluate("window.hacked") is None
    text = view.inner_text("body")
    assert "[bold]b[/bold]" in text and not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert view.evaluate("document.querySelectorAll('img, iframe, object, body a[href^=http]').length") == 0
    assert not [line for line in view.said if "Content Security Policy" in line], "not even the policy was needed"


# The code itself ------------------------------------------------------------------------------------------------------


def test_every_console_is_a_plain_one_and_nothing_prints_past_it():
    """What is written to stdout without a console was escaped before, and this is the list of where that is."""
    past = {
        "report/comparison.py": 3,  # tables, escaped by report/tables.py
        "report/finding.py": 2,  # JSON, and CSV by escape.csv_text
        "studies/doctor.py": 1,  # JSON
    }
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name.startswith("tasks/sandbox/"):
            continue
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "Console" not in calls and "rich.print" not in calls, name
        count = sum(one in ("print", "sys.stdout.write", "sys.stderr.write", "typer.echo") for one in calls)
        assert count == past.get(name, 0), (name, count)


def test_the_bundled_tokenizer_writes_hostile_text():
    """The control of the texts above: tokens can say all of it."""
    assert TOKENIZER.decode(ids(HOSTILE), clean_up_tokenization_spaces=False) == HOSTILE
