"""The HTML page in a real browser: it sorts, opens documents, fits and prints, and nothing a model printed acts."""

import math
import re
import shutil
from itertools import chain

import browsing
import imported
import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow.compute as pc
import pytest
from made_runs import METRIC, TOKENIZER, add_sample, drafted, ids, keep, large, manifest, score, stored, word, write
from synthetic import change_manifest

from specbench.analysis import compare, metrics, pooled
from specbench.analysis.compare import AVERAGE
from specbench.analysis.trace_columns import Tracer
from specbench.config import UserError
from specbench.engine.types import Round
from specbench.report import comparison, drawing, page, page_documents, page_plots, page_style
from specbench.report.page_traces import _leb128
from specbench.report.plots import style as plot_style
from specbench.report.plots.data import read
from specbench.results.documents import DocumentRow
from specbench.results.stored import StoredRun

browser, open_page = browsing.browser, browsing.open_page

EOS = TOKENIZER.eos_token_id
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&amp;"
SAID = [f"busy {HOSTILE}"], [f"csd is slower {HOSTILE}"], [f"note {HOSTILE}"]  # warnings, sentences, notes
ODD = "<b>x</b>"  # a method's name
PLAIN, CSD = " She works 4 hours", " She works 2 hours.\n"
LARGE_TASKS = ["alpha", "beta", "gamma", "delta"]
LARGE_METHODS = ["vanilla", "sps", "csd", "swift", "eagle", "fly", "judge", "cos"]


def row(task, method, accuracy, speed, **more):
    speed_columns = dict(zip(("", "_low", "_high"), speed, strict=True))
    given = {"task": task, "method": method, "baseline": "vanilla", "metric": METRIC, "accuracy": accuracy}
    given |= {"accuracy_low": accuracy - 0.1, "accuracy_high": accuracy + 0.1}
    given |= {"documents": 2, "errors": 0, "tau": math.nan, "some_other": 1}
    return given | {f"speedup_decode{end}": value for end, value in speed_columns.items()} | more


def summary() -> pd.DataFrame:
    """Some of the columns, one unknown to the page, and figures in no order."""
    base, nan = (1.0, 1.0, 1.0), (math.nan,) * 3
    rows = [
        row("sums", "vanilla", 0.5, base, discard_rate=0.0, verification_rate=1.0, tau=1.0),
        row("sums", "csd", 0.25, (1.5, 1.2, 1.8), discard_rate=0.5, verification_rate=0.4, tau=2.5),
        row("sums", ODD, 0.75, (0.9, 0.8, 1.1), discard_rate=0.7, verification_rate=0.5, tau=10.0),
        row("words", "vanilla", 0.5, base),
        row("words", "csd", 0.5, nan, errors=1),
        row("words", ODD, 0.5, (2.0, 1.9, 2.1)),
        row(AVERAGE, "vanilla", 0.5, base),
        row(AVERAGE, "csd", 0.375, (1.25, 1.1, 1.4)),
        row(AVERAGE, ODD, 0.625, (1.45, 1.3, 1.6)),
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> StoredRun:
    """Two tasks, three methods: a rejection, a rescue, a failure, and a hostile text."""
    tables = {"samples": [], "rounds": []}
    she, works, four, two, hours, dot = (word(text) for text in (" She", " works", " 4", " 2", " hours", "."))
    add_sample(tables, "sums", 0, "vanilla", [Round([t]) for t in (she, works, four, hours)], PLAIN, "length", 5)
    speculated = [
        Round([she]),
        drafted([works, four, dot], [works, two, dot], 1, two, [1.0, 0.25, 1.0]),
        drafted([hours, dot, word("\n")], [hours, hours, word("\n")], 3, EOS, [1.0, 0.5, 1.0], rescued=(1,)),
    ]
    add_sample(tables, "sums", 0, "csd", speculated, CSD, "eos")
    tokens = ids(HOSTILE)
    parts = [tokens[i : i + 3] for i in range(1, len(tokens), 3)]
    lines = [drafted(part, part, len(part), 0).cut(len(part)) for part in parts[:-1]]
    lines.append(drafted(tokens[:3], [parts[-1][0]] * 3, 0, parts[-1][0]))
    lines += [Round([token]) for token in parts[-1][1:]]
    add_sample(tables, "sums", 0, ODD, [Round(tokens[:1]), *lines], HOSTILE, "length")
    for method in ("vanilla", "csd", ODD):
        add_sample(tables, "sums", 3, method, [Round([she]), Round([four])], " She 4", "length")
        add_sample(tables, "words", 1, method, [Round([she]), Round([two])], " She 2", "length")
    failed = next(table for table in tables["samples"] if (table["task"], table["method"]) == ("words", "csd"))
    failed |= {"finish": "error", "error": f"Traceback\nValueError: {HOSTILE}", "tokens": None}
    scores = [score("sums", "vanilla", 0, 1.0), score("sums", "csd", 0, 0.0), score("words", "vanilla", 1, 0.5)]
    folder = tmp_path_factory.mktemp("runs") / "small"
    return stored(folder, tables, ("sums", "words"), ("vanilla", "csd", ODD), scores)


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "small.html"
    page.write_page(path, [small], summary(), *SAID)
    return path


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    """A page of 4 tasks, 8 methods and 200 documents of random text, and its run."""
    folder = tmp_path_factory.mktemp("runs") / "large"
    large(folder, LARGE_TASKS, LARGE_METHODS, 200)
    rng = np.random.default_rng(0)
    rows = []
    for task in LARGE_TASKS:
        for method in LARGE_METHODS:
            speed = rng.uniform(1.1, 2)
            rows.append(row(task, method, rng.uniform(0.5, 0.9), (speed, speed - 0.1, speed + 0.1)))
    path = folder.parent / "large.html"
    page.write_page(path, [StoredRun(folder)], pd.DataFrame(rows), [], [], [])
    return path, StoredRun(folder)


@pytest.fixture(scope="module")
def view(open_page, made):
    return open_page(made)


def choose(view, task, document, one, two="none"):
    view.select_option("#doc-task", label=task)
    view.select_option("#doc-id", value=str(document))
    view.select_option("#doc-one", label=one)
    view.select_option("#doc-two", label=two)


def column(view, at):
    return view.eval_on_selector_all(
        "#table tbody tr:not([hidden])", f"rows => rows.map(r => r.cells[{at}].textContent)"
    )


def pieces(view, panel=0):
    """(class, text) of everything in a trace, in its order."""
    script = "node => [...node.querySelectorAll('.pieces > *')].map(e => [e.className, e.textContent])"
    return [tuple(one) for one in view.locator(".sample").nth(panel).evaluate(script)]


def test_it_opens_alone_and_says_what_is_wrong_first(view, made):
    assert view.said == [] and view.asked == [made.as_uri()]
    assert view.get_attribute("body", "data-ready") == "yes" and not view.is_visible(".scripted")
    assert view.title() == f"specbench: vanilla, csd, {ODD}"
    headings = view.locator("main h2").all_text_contents()
    assert headings == ["Warnings", "Comparison", "Latency", "Plots", "Documents", "Environment and settings"]
    text = made.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", text) and "@import" not in text


def test_nothing_that_was_printed_acts(view):
    choose(view, "sums", 0, ODD)
    shown = "".join(text for kind, text in pieces(view) if kind in ("prefill", "target", "accepted", "correction"))
    assert shown == HOSTILE
    choose(view, "words", 1, "csd")
    assert HOSTILE in view.locator(".sample").inner_text()
    for place in (".warnings", ".sentence", "#comparison > .note"):
        assert HOSTILE in view.locator(place).first.text_content()
    view.wait_for_timeout(100)
    assert view.title() == f"specbench: vanilla, csd, {ODD}"
    assert view.locator("img").count() == 0 and view.locator("b").count() == 0
    scripts = view.eval_on_selector_all("script", "all => all.map(one => one.textContent.slice(0, 200))")
    assert not any("owned" in script for script in scripts)
    assert view.said == []


def test_the_table_sorts_by_mouse_and_keyboard(view):
    headings = [text.strip() for text in view.locator("#table thead th").all_text_contents()]
    assert "some_other" not in headings and headings[:2] == ["method", "task"]
    speed, tau = headings.index("speedup [95 %]"), headings.index("τ")
    states = "all => all.map(one => one.getAttribute('aria-sort'))"
    assert set(view.eval_on_selector_all("#table th[scope=col]", states)) == {"none"}
    view.click(f"#table th:nth-child({speed + 1}) button")
    down = ["2.00 [1.90, 2.10]", "1.50 [1.20, 1.80]", "1.45 [1.30, 1.60]", "1.25 [1.10, 1.40]"]
    assert column(view, speed) == [*down, "1 (base)", "1 (base)", "1 (base)", "0.90 [0.80, 1.10]=", "-"]
    assert view.eval_on_selector_all("#table th[scope=col]", states)[speed] == "descending"
    view.focus(f"#table th:nth-child({speed + 1}) button")
    view.keyboard.press("Enter")
    assert column(view, speed) == ["0.90 [0.80, 1.10]=", *["1 (base)"] * 3, *down[::-1], "-"]
    assert view.eval_on_selector_all("#table th[scope=col]", states)[speed] == "ascending"
    view.click(f"#table th:nth-child({tau + 1}) button")
    assert column(view, tau) == ["10.00", "2.50", "1.00", *["-"] * 6]  # by value, not by spelling
    assert view.eval_on_selector_all("#table th[scope=col]", states)[speed] == "none"
    view.click("#table th:first-child button")
    assert column(view, 0) == [*[ODD] * 3, *["csd"] * 3, *["vanilla"] * 3]
    view.select_option("#table-task", label="words")
    assert column(view, 1) == ["words"] * 3
    view.select_option("#table-task", value="")


def test_the_table_is_saved_with_the_bounds_of_its_intervals(view):
    with view.expect_download() as download:
        view.click("button[data-csv=table]")
    rows = pd.read_csv(download.value.path()).set_index(["task", "method"])
    csd = rows.loc[("sums", "csd")]
    assert (csd.speedup_decode, csd.speedup_decode_low, csd.speedup_decode_high) == (1.5, 1.2, 1.8)
    assert math.isnan(rows.speedup_decode["words", "csd"]) and len(rows) == 9


def test_latencies_are_percentiles_over_texts(view):
    """Two texts of csd on sums: 10 ms of prefill each, then 20 ms for six tokens and 10 for one."""
    texts = [row.split("\n") for row in view.locator("#latency tbody tr").all_inner_texts()]
    cells = {tuple(re.split(r"\t", row[0])[:2]): re.split(r"\t", row[0])[2:] for row in texts}
    assert cells["csd", "sums"] == ["2", "10 / 10 / 10", "10 / 10 / 10"]
    assert ("csd", "words") not in cells and ("vanilla", "words") in cells


def test_a_document_with_all_its_origins(view):
    choose(view, "sums", 0, "csd")
    assert pieces(view) == [
        ("prefill", " She"),
        ("accepted", " works"),
        ("rejected dropped", " 4"),
        ("dropped", "0.25"),
        ("correction", " 2"),
        ("unread dropped", "."),
        ("accepted", " hours"),
        ("rescued", "."),
        ("dropped", "0.50 for hours"),
        ("accepted", "⏎\n"),
        ("bonus", ""),
        ("cut", "<eos>"),
    ]
    facts = view.locator(".sample .note").first.text_content()
    for fact in ("7 tokens in 2 rounds", f"score 0 ({METRIC})", "accept 67 %", "τ 3.00", "discard 0.33", "verify 0.33"):
        assert fact in facts
    assert "300 tok/s" in facts and "20 ms after the prefill" in facts and "ended by EOS" in facts
    assert view.locator(".number-of").all_text_contents() == ["0", "1", "2"]
    assert view.locator(".time-of").all_text_contents() == ["10 ms"] * 3
    assert view.is_visible(".rejected.dropped")
    view.uncheck("#show-dropped")
    assert not view.is_visible(".rejected.dropped") and view.is_visible(".sample .correction")
    view.check("#show-dropped")
    assert view.is_visible(".number-of >> nth=0")
    view.uncheck("#show-rounds")
    assert not view.is_visible(".number-of >> nth=0")
    view.check("#show-rounds")


def test_two_methods_side_by_side(view):
    choose(view, "sums", 0, "vanilla", "csd")
    assert pieces(view) == [
        ("prefill", " She"),
        ("target", " works"),
        ("parts", "they part here ▸"),
        ("target", " 4"),
        ("target", " hours"),
    ]
    assert view.locator(".sample").first.locator(".number-of").all_text_contents() == ["0", "1–3"]
    right = pieces(view, 1)
    assert right[2] == ("parts", "they part here ▸") and right[3][0] == "rejected dropped"
    facts = "The first 2 tokens are the same; then vanilla goes on with “ 4”, csd goes on with “ 2”."
    assert view.text_content("#parting") == facts
    view.select_option("#doc-two", label="vanilla")
    assert view.text_content("#parting") == "Both texts are the same, token for token."


def test_walking_through_documents(view):
    choose(view, "sums", 0, "vanilla")
    assert view.locator("#doc-id option").all_text_contents() == ["0 · scores differ", "3"]
    assert view.is_disabled("#doc-back")
    view.click("#doc-on")
    assert view.input_value("#doc-id") == "3" and view.is_disabled("#doc-on")
    assert view.locator("#doc-one option:checked").text_content() == "vanilla"
    view.click("#doc-back")
    assert view.input_value("#doc-id") == "0"
    view.select_option("#doc-task", label="words")
    assert view.locator("#doc-id option").all_text_contents() == ["1 · one failed"]


def test_plots_show_the_figures(view):
    view.select_option("#plot-task", label="sums")
    data = {one["name"]: one for one in view.evaluate("document.getElementById('plot-speed-accuracy').data")}
    assert (data["csd"]["x"], data["csd"]["y"]) == ([1.5], [25])
    error = data["csd"]["error_x"]
    assert (error["array"], error["arrayminus"]) == ([0.3], [0.3])
    assert (data["csd"]["error_y"]["array"], data["csd"]["error_y"]["arrayminus"]) == ([10], [10])
    front = data["Pareto front"]
    # Steps from the left edge to the bottom: the plot's own limits, which noise does not set.
    assert (front["x"][1:-1], front["y"][1:-1]) == ([0.9, 1.0, 1.5], [75, 50, 25])
    assert front["line"]["shape"] == "vh" and front["x"][0] < 0.8 and front["y"][-1] <= 20
    assert len({one["marker"]["color"] for name, one in data.items() if name != "Pareto front"}) == 3
    assert len({one["marker"]["symbol"] for name, one in data.items() if name != "Pareto front"}) == 3
    point = view.locator("#plot-speed-accuracy .scatterlayer .trace").nth(2).locator(".point")
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = view.locator("#plot-speed-accuracy .hoverlayer")
    hover.locator(".hovertext").first.wait_for()
    assert "csd" in hover.text_content() and "speedup 1.50 [1.20, 1.80]" in hover.text_content()
    view.mouse.move(0, 0)
    names = view.locator("#plot-speed-accuracy .legendtext").all_text_contents()
    assert names == ["Pareto front", "vanilla", "csd", ODD]
    assert view.text_content("#of-depth") == "· sums" and view.text_content("#of-speedup") == "· all tasks"
    view.select_option("#plot-task", label="words")
    assert "do not tell how many drafts" in view.text_content("#plot-discard-verification")
    view.select_option("#plot-task", label="sums")
    assert view.locator("#plot-discard-verification .point").count() == 3
    assert view.said == []


def figures(small) -> page_plots.PlottedTables:
    names = {name: name for name in ("vanilla", "csd", ODD)}
    source = page._source(small, names, names)
    return page._figures(summary().assign(label=lambda rows: rows.method), [source])


def test_figures_from_rounds(small):
    plots = {plot["name"]: plot["views"] for plot in page_plots.plots(figures(small))}
    names = [plot["name"] for plot in plots["speed-accuracy"][AVERAGE]["data"]]
    assert names == ["Pareto front", "vanilla", "csd", "&lt;b&gt;x&lt;/b&gt;"]
    front = plots["speed-accuracy"][AVERAGE]["data"][0]
    assert (front["x"][1:-1], front["y"][1:-1]) == ([1.45], [62.5]), "one beats all others: the steps lead to it alone"
    (csd,) = (plot for plot in plots["depth"]["sums"]["data"] if plot["name"] == "csd")
    # The first round accepts one of three, the second all three: two drafts of two stand at depth 1, one of two at 2.
    assert (csd["x"], csd["y"]) == ([1, 2, 3], [100, 50, 100])
    (csd,) = (plot for plot in plots["lengths"]["sums"]["data"] if plot["name"] == "csd")
    assert (csd["x"], csd["y"]) == ([1, 3], [50, 50])
    time = {plot["name"]: dict(zip(plot["y"], plot["x"], strict=True)) for plot in plots["time-0"]["sums"]["data"]}
    # csd: rounds of 10 ms, 5 of them target and 1.25 for each draft; document 0 has two for 6 tokens, 3 one for one.
    assert time["target forwards"]["csd"] == pytest.approx((10 + 5) / 7, rel=1e-3)
    assert time["draft forwards"]["csd"] == pytest.approx(7.5 / 7, rel=1e-3)
    assert time["outside forwards"]["csd"] == pytest.approx(7.5 / 7, rel=1e-3)
    speedups = {plot["name"]: plot for plot in plots["speedup"]["all tasks"]["data"]}
    assert set(speedups) == {"csd", "&lt;b&gt;x&lt;/b&gt;"} and speedups["csd"]["x"] == [1.5, 1.25]
    assert [round(y) for y in speedups["csd"]["y"]] == [0, 2]
    for views in plots.values():
        for view in views.values():
            go.Figure(view)  # raises on what plotly does not know


@pytest.mark.long
def test_it_fits_a_telephone(open_page, made):
    view = open_page(made, width=400)
    for names in (("csd",), (ODD, "csd")):
        choose(view, "sums", 0, *names)
        assert view.evaluate("document.documentElement.scrollWidth") <= 400
    assert view.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('.scroll'))")


@pytest.mark.long
def test_dark_and_printed(open_page, made, tmp_path):
    view = open_page(made, color_scheme="dark")
    view.select_option("#plot-task", label="sums")

    def level(selector, name):
        color = view.locator(selector).first.evaluate(f"node => getComputedStyle(node).{name}")
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3

    assert level("body", "backgroundColor") < 60
    assert all(level(text, "fill") > 180 for text in (".xtick text", ".legendtext"))
    assert all(level(text, "color") > 150 for text in ("tbody th", ".note", "#traces .text"))
    view.emulate_media(media="print")
    assert level("body", "backgroundColor") > 250
    assert level(".xtick text", "fill") < 60 and level("tbody th", "color") < 60
    assert not view.is_visible("#documents") and not view.is_visible("#plot-task")
    drawn = view.locator(".plot .main-svg:first-child").all()
    assert len(drawn) == 6 and all(one.is_visible() for one in drawn)
    assert max(one.bounding_box()["width"] for one in drawn) <= 700  # A4 less its margins
    view.pdf(path=tmp_path / "page.pdf", format="A4")
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / "page.pdf").read_bytes())) >= 2


@pytest.mark.long
def test_a_large_page_is_small_and_opens(big, open_page):
    path, run = big
    assert path.stat().st_size < 5_000_000
    assert "documents are here" not in path.read_text(), "a page of this size has room for all documents"
    view = open_page(path)
    samples = run.samples(["task", "doc_id", "method", "text"]).set_index(["task", "doc_id", "method"]).text

    def raw(texts):
        text = "".join(texts).translate({ord("⏎"): None, ord("⇥"): None})
        return "".join(chr(ord(char) - 0x2400) if "\u2400" <= char < "\u2420" else char for char in text)

    for task, document, method in (("alpha", 0, "vanilla"), ("gamma", 117, "csd"), ("delta", 199, "cos")):
        choose(view, task, document, method)
        shown = pieces(view)
        assert raw(text for kind, text in shown if "dropped" not in kind) == samples[task, document, method]
        here = (pc.field("task") == task) & (pc.field("doc_id") == document) & (pc.field("method") == method)
        rounds = run.rounds().to_table(filter=here).to_pylist()
        unread = [row["draft_tokens"][i] for row in rounds for i, d in enumerate(row["decisions"] or ()) if d == 3]
        expected = "".join(TOKENIZER.decode([token]) for token in unread).replace("\n", "")
        assert raw(text for kind, text in shown if kind == "unread dropped") == expected
    assert view.locator("#doc-id option").count() == 200 and view.said == []


@pytest.mark.long
def test_too_many_documents_are_left_out_and_said_so(small, monkeypatch, tmp_path):
    monkeypatch.setattr(page_documents, "DOCUMENTS", 1)
    page.write_page(tmp_path / "few.html", [small], summary(), [], [], [])
    assert "sums: the first 1 of 2 documents are here." in (tmp_path / "few.html").read_text()
    monkeypatch.setattr(page_documents, "DOCUMENTS", 2)
    monkeypatch.setattr(page_documents, "TRACES", 1)
    page.write_page(tmp_path / "fewer.html", [small], summary(), [], [], [])
    assert "sums: the first 1 of 2 documents are here." in (tmp_path / "fewer.html").read_text()


def test_some_documents_tell_how_many_a_page_has_room_for(small, monkeypatch):
    """So that the texts of a large run are not all traced before most are left out."""
    sizes = []

    def packed(self, most):
        sizes.append(most)
        return bytes(100 + 50 * most), []

    monkeypatch.setattr(page_documents._Page, "packed", packed)
    monkeypatch.setattr(page_documents, "TRACES", 5000)
    many = pd.DataFrame({"task": "sums", "doc_id": range(100), "repeat": 0, "method": "vanilla"})
    data, _ = page_documents.packed([page_documents.PageRun(small, {}, {}, many, many)], {})
    assert sizes == [16, 32, 93] and len(data) == 4750  # 900 and 1,700 bytes: 16 + 0.95 · (5,000 - 900) / 50
    sizes.clear()
    page_documents.packed([page_documents.PageRun(small, {}, {}, many[:64], many)], {})
    assert sizes == [200, 94], "of few documents all are tried: 0.95 · 200 · 5,000 / 10,100"


def test_documents_that_told_how_many_there_is_room_for_are_not_traced_again(tmp_path, monkeypatch):
    large(tmp_path / "run", ["alpha"], ["vanilla", "csd"], 70, rounds=5)
    run, asked = StoredRun(tmp_path / "run"), []
    whole = Tracer.of
    monkeypatch.setattr(Tracer, "of", lambda self, chosen: asked.append(chosen["alpha"]) or whole(self, chosen))
    samples = run.samples()
    counts = metrics.per_document(samples, run.rounds())
    names = {"vanilla": "vanilla", "csd": "csd"}
    data, notes = page_documents.packed([page_documents.PageRun(run, names, names, samples, counts)], {"alpha": METRIC})
    assert [len(some) for some in asked] == [16, 16, 38] and [*chain(*asked)] == list(range(70)) and not notes
    assert len(data) < page_documents.TRACES


@pytest.mark.long
def test_without_its_tokenizer_a_page_has_no_traces_but_all_else(small, tmp_path, open_page):
    shutil.copytree(small.folder, tmp_path / "other")
    manifest(tmp_path / "other", ("sums", "words"), ("vanilla", "csd", ODD), tokenizer_hash="0123")
    page.write_page(tmp_path / "page.html", [StoredRun(tmp_path / "other")], summary(), [], [], [])
    view = open_page(tmp_path / "page.html")
    assert "other has no traces here" in view.text_content("#documents .note")
    choose(view, "sums", 0, "csd", "vanilla")
    assert "There is no trace of it." in view.locator(".sample").first.inner_text()
    assert "accept 67 %" in view.locator(".sample").first.inner_text() and view.said == []


@pytest.mark.long
def test_records_that_tell_little(tmp_path, open_page):
    """As imported ones do: lengths of rounds without drafts, tokens or times, and nothing of the machine."""
    tables = {"samples": [], "rounds": []}
    for method in ("vanilla", "csd"):
        add_sample(tables, "sums", 0, method, [Round([5]), Round([6])], "a", "length")
    kept = {"repeat", "task", "doc_id", "method", "warmup", "round", "committed", "target_forwards", "text", "finish"}
    for row_ in (*tables["samples"], *tables["rounds"]):
        row_ |= {name: None for name in row_ if name not in kept}
    folder = tmp_path / "told"
    write(folder, tables)
    unknown = {"device": None, "cpu": None, "cores": None, "versions": None}
    manifest(folder, ["sums"], ("vanilla", "csd"), models=None, tokenizer_hash="", environment=unknown, generation={})
    nan = (math.nan,) * 3
    table = pd.DataFrame([row("sums", "vanilla", math.nan, nan), row("sums", "csd", math.nan, nan, tau=1.0)])
    page.write_page(tmp_path / "page.html", [StoredRun(folder)], table, [], [], [])
    view = open_page(tmp_path / "page.html")
    assert view.said == [] and "does not name its tokenizer" in view.text_content("#documents .note")
    said = view.locator(".plot p").all_text_contents()
    assert len(said) == 6 and "No method here has both" in said[0] and all(line.endswith(".") for line in said)
    assert "verify 1.00" in view.locator(".sample").inner_text()
    with pytest.raises(UserError, match="nothing to report"):
        page.write_page(tmp_path / "page.html", [StoredRun(folder)], pd.DataFrame(), [], [], [])


def test_a_page_says_what_a_text_was_about(small, tmp_path, open_page):
    """Long prompts by their end; a hostile one as the text that it is; none of documents that were not kept."""
    shutil.copytree(small.folder, tmp_path / "kept")
    rows = [
        DocumentRow("sums", 0, "x" * 10 + "a\x1b[31m\n\t" + HOSTILE.ljust(page_documents.LONGEST), HOSTILE, HOSTILE),
        DocumentRow("sums", 3, "short", None, None),
    ]
    change_manifest(tmp_path / "kept", requests=[[row.task, row.doc_id, row.prompt_hash, ""] for row in rows])
    keep(tmp_path / "kept", rows)
    page.write_page(tmp_path / "page.html", [StoredRun(tmp_path / "kept")], summary(), *SAID)
    view = open_page(tmp_path / "page.html")
    choose(view, "sums", 0, "csd")
    assert view.text_content("#prompt").startswith(HOSTILE) and view.text_content("#reference") == HOSTILE
    assert HOSTILE in view.text_content("#about-prompt") and " 18 characters before it" in view.text_content("#about")
    choose(view, "sums", 3, "csd")
    assert view.text_content("#prompt") == "short" and not view.is_visible("#reference")
    assert not view.is_visible("#about-none")
    choose(view, "words", 1, ODD)
    assert not view.is_visible("#about") and view.is_visible("#about-none")
    assert view.said == [] and view.title() != "owned"
    (tmp_path / "kept" / "documents.parquet").write_bytes(b"PAR1")
    page.write_page(tmp_path / "torn.html", [StoredRun(tmp_path / "kept")], summary(), *SAID)
    view = open_page(tmp_path / "torn.html")
    assert "documents.parquet is damaged" in view.text_content("#documents") and view.said == []


@pytest.mark.long
@pytest.mark.parametrize("kind", imported.KINDS)
def test_a_page_of_every_importer(kind, tmp_path, open_page, capsys):
    """Every plot is drawn or says why not, nothing of ours stands in for what nobody told, and it fits a telephone."""
    folder = imported.KINDS[kind](tmp_path)
    comparison.report([folder], tmp_path / "page.html")
    view = open_page(tmp_path / "page.html", width=380)
    assert view.get_attribute("body", "data-ready") == "yes" and view.said == []
    for place in view.locator(".plot").all():
        drawn = place.locator(".point, .points path").count()
        assert drawn or place.text_content().endswith(".")
    facts = view.text_content("#settings")
    assert "imported from" in facts and "not told" in facts
    for ours in ("temperature", "runtime", "eager", "top_p", "seed", "float32"):
        assert ours not in facts
    assert not re.search(r"\b(NaN|nan|undefined|null|None)\b", view.inner_text("main"))
    assert view.evaluate("document.documentElement.scrollWidth") <= 380


def test_runs_of_two_samplings_are_told_apart(small, tmp_path):
    other = tmp_path / "warm"
    shutil.copytree(small.folder, other)
    facts = small.manifest | {"plan": small.manifest["plan"] | {"temperature": 0.5}}
    manifest(other, ("sums", "words"), ("vanilla", "csd", ODD), **{"plan": facts["plan"]})
    table = pd.concat([summary().assign(pair="pocket", sampling=sampling) for sampling in ("greedy", "T=0.5")])
    page.write_page(tmp_path / "two.html", [small, StoredRun(other)], table, [], [], [])
    text = (tmp_path / "two.html").read_text()
    assert "<title>specbench: vanilla · greedy, csd · greedy" in text and "csd · T=0.5" in text
    assert 'data-kind="text">sampling' in text and 'data-kind="text">pair' not in text


def test_a_page_is_the_same_each_time_and_must_be_writable(small, made, tmp_path):
    page.write_page(tmp_path / "again.html", [small], summary(), *SAID)
    assert (tmp_path / "again.html").read_bytes() == made.read_bytes()
    with pytest.raises(UserError, match="cannot write"):
        page.write_page(tmp_path / "none" / "page.html", [small], summary(), [], [], [])


def test_numbers_of_every_length():
    values = np.array([0, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**28 - 1])
    coded = _leb128(values)
    assert coded[:4] == b"\x00\x7f\x80\x01" and len(coded) == 1 + 1 + 2 + 2 + 3 + 3 + 4 + 4
    results, value, shift = [], 0, 0
    for byte in coded:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            results.append(value)
            value = shift = 0
    assert results == values.tolist()


def test_every_baseline_looks_like_one():
    names = ["vanilla", "sps", "ensemble", "cos"]
    result = page_style.looks({name: name for name in names}, ["vanilla", "ensemble"])
    grey = {name for name, look in result.items() if look.colour in drawing.BASES}
    assert grey == {"vanilla", "ensemble"}
    assert len({(look.colour, look.symbol) for look in result.values()}) == 4
    styles = plot_style.styles(["vanilla", "sps", "ensemble", "cos"], ["vanilla", "ensemble"])
    assert [name for name, style in styles.items() if style.color in drawing.BASES] == ["vanilla", "ensemble"]
    assert styles["vanilla"].marker != styles["ensemble"].marker


@pytest.mark.long
def test_a_page_of_two_baselines(tmp_path):
    """sps against vanilla, cos against ensemble: each baseline is one in plots and in the settings."""
    tables = {"samples": [], "rounds": []}
    methods = {"vanilla": 10, "sps": 5, "ensemble": 20, "cos": 10}
    for doc in range(3):
        for name, long in methods.items():
            rounds = [Round([word(" She")]), Round([word(" works")])]
            add_sample(tables, "sums", doc, name, rounds, " She works", "length", long)
    scores = [score("sums", name, doc, 1.0) for name in methods for doc in range(3)]
    run = stored(tmp_path / "two", tables, ["sums"], list(methods), scores, 3)
    run = change_manifest(
        run.folder, plan=run.manifest["plan"] | {"baselines": {"ensemble": "ensemble", "cos": "ensemble"}}
    )
    summed = compare.summary(pooled.measured([run]))
    speeds = summed.set_index("method").speedup_decode
    assert speeds.tolist() == pytest.approx([1, 2, 1, 2])  # cos is no faster than vanilla
    names = {name: name for name in methods}
    figures_of_two = page._figures(summed.assign(label=summed.method), [page._source(run, names, names)])
    plots = {plot["name"]: plot for plot in page_plots.plots(figures_of_two)}
    (speedups,) = plots["speedup"]["views"].values()
    assert [speedup["name"] for speedup in speedups["data"]] == ["sps", "cos"]
    data = read([run], (), with_depths=False)
    assert [data.named(name) for name in methods] == ["vanilla (baseline)", "sps", "ensemble (baseline)", "cos"]
    page.write_page(tmp_path / "two.html", [run], summed, [], [], [])
    assert "vanilla, ensemble of cos" in (tmp_path / "two.html").read_text()
