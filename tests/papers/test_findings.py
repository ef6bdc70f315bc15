"""Figures that results/README.md, the methods' pages and the page on strength quote, from the files that they cite."""

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
WORDS, ALGEBRA, CODE, NEWS = (f"pocket_{name}" for name in ("gsm8k", "math500", "humaneval", "cnndm"))
FOUR = (WORDS, ALGEBRA, CODE, NEWS)
SIX = (*FOUR, "pocket_ifeval", "pocket_ruler")
LENGTHS = dict(zip(SIX, (10, 12, 14, 2, 2, 6), strict=True))
THRESHOLDS = dict(zip(SIX, (0.7, 0.3, 0.7, 0.3, 0.1, 0.5), strict=True))


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(REFERENCE / f"{name}.csv").set_index(["task", "method"])


def column(name: str, method: str, figure: str, tasks=FOUR, scale: float = 1.0, digits: int = 2) -> list[str]:
    """A figure of a method on each task, as it is printed."""
    rows = table(name)
    return [f"{scale * rows[figure][task, method]:.{digits}f}" for task in tasks]


def gains(name: str) -> list[str]:
    """Tokens per second of the tuned threshold over those of the tuned length, task by task."""
    speed = table(name).tokens_per_s
    return [
        f"{speed[t, f'specdecpp[threshold={THRESHOLDS[t]}]'] / speed[t, f'sps-eos[gamma={LENGTHS[t]}]']:.2f}"
        for t in SIX
    ]


def oracle_share() -> str:
    """The share of the oracle's gain in time per token over γ = 8, by the tasks' mean speeds."""
    seconds = 1 / table("specdecpp-oracle").tokens_per_s["average"]
    fixed, head = seconds["sps-eos[gamma=8]"], seconds["specdecpp[threshold=0.3]"]
    return f"{(fixed - head) / (fixed - seconds['oracle']):.2f}"


def listed(figures: list[str]) -> str:
    return f"{', '.join(figures[:-1])} and {figures[-1]}"


def average(name: str, method: str) -> str:
    row = table(name).loc["average", method]
    bounds = (row.speedup_decode, row.speedup_decode_low, row.speedup_decode_high)
    return "{:.2f} [{:.2f}, {:.2f}] of vanilla".format(*bounds)


def words_interval(name: str, method: str) -> str:
    row = table(name).loc[WORDS, method]
    return f"{row.speedup_decode:.2f} [{row.speedup_decode_low:.2f}, {row.speedup_decode_high:.2f}]"


def pairs(name: str) -> list[str]:
    """CoSpec's speedup and that of SpS on each task."""
    mine, other = (column(name, method, "speedup_decode") for method in ("cospec", "sps[gamma=25]"))
    return [f"{a} and {b}" for a, b in zip(mine, other, strict=True)]


def points_lost() -> list[str]:
    scores = table("cospec-rewards").accuracy
    return [f"{100 * (scores[t, 'vanilla'] - scores[t, 'cospec[arbitrator=sft-only]']):.1f}" for t in (ALGEBRA, CODE)]


SPECDECPP = {
    "sampled": lambda: "sampled {} on word problems, {} algebra, {} code, {} news, {} instructions, {} needles".format(
        *gains("specdecpp-frontier")
    ),
    "greedy": lambda: listed(gains("specdecpp-oracle")),
    "oracle": lambda: f"and {oracle_share()} over γ = 8",
}
COSPEC = {
    "τ": lambda: f"τ {listed(column('cospec-sampled', 'cospec', 'tau'))}",
    "τ of SpS": lambda: f"SpS has {listed(column('cospec-sampled', 'sps[gamma=25]', 'tau'))}",
    "τ of never": lambda: listed(column("cospec-sampled", "cospec[arbiter=never]", "tau")),
    "sampled": lambda: "({} times vanilla, {}, {}, {})".format(*pairs("cospec-sampled")),
    "average": lambda: average("cospec-sampled", "cospec"),
    "other length": lambda: "{} times vanilla on words, {} on algebra, {} on code, where CoSpec has {}".format(
        words_interval("pocket-csd", "sps"),
        *column("pocket-csd", "sps", "speedup_decode", (ALGEBRA, CODE)),
        words_interval("cospec-greedy", "cospec"),
    ),
    "greedy": lambda: "{} times vanilla there, {} on algebra, {} on code, {} on news".format(*pairs("cospec-greedy")),
    "warm-up τ": lambda: "τ {} on algebra and code".format(
        " and ".join(column("cospec-rewards", "cospec[arbitrator=sft-only]", "tau", (ALGEBRA, CODE), digits=1))
    ),
    "warm-up score": lambda: f"loses {' and '.join(points_lost())} points there",
}


def of_finding(name: str, sheet: str) -> pd.DataFrame:
    """A table of an analysis that was stored as CSV: a row for each of its rows, numbers where they are."""
    cells = pd.read_csv(REFERENCE / f"{name}.csv")
    wide = cells[cells.table == sheet].pivot(index="row", columns="column", values="value").sort_index()
    return wide.apply(lambda column: pd.to_numeric(column, errors="coerce").where(lambda x: x.notna(), column))


def adjusted(ps: list[float]) -> list[float]:
    """By Holm's rule, worked out here."""
    order, least, result = sorted(range(len(ps)), key=ps.__getitem__), 0.0, [0.0] * len(ps)
    for rank, at in enumerate(order):
        least = max(least, min(1.0, ps[at] * (len(ps) - rank)))
        result[at] = least
    return result


def risen(pair: str, method: str) -> dict[str, tuple[float, float]]:
    """By task, and for their mean: points above vanilla, and p by Holm's rule over the six families."""
    if (pair, method) == ("pocket-complement", "cospec"):
        rows = pd.read_csv(REFERENCE / "strength-cospec-complement.csv").query("method == 'cospec'")
        rows = rows.rename(columns={"accuracy_delta": "delta", "accuracy_p": "delta_p"})
    else:
        rows = of_finding("strength", "methods").query("pair == @pair and method == @method")
    rows = rows.set_index("task")
    ps = adjusted([float(rows.delta_p[task]) for task in SIX])
    return {task: (100 * float(rows.delta[task]), p) for task, p in zip(SIX, ps, strict=True)} | {
        "average": (100 * float(rows.delta["average"]), 1.0)
    }


def signed(value: float, digits: int) -> str:
    """A difference with its sign, as a page prints it; 0 where it would be printed as that."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return "0" if float(text.replace("−", "-")) == 0 else text


@pytest.mark.parametrize(
    ("pair", "method", "label", "speedup"),
    [
        ("pocket", "csd-pocket", "pocket, `csd-pocket`", "1.65 [1.55, 1.77]"),
        ("pocket", "cospec", "pocket, CoSpec", "1.55 [1.42, 1.69]"),
        ("pocket-complement", "csd-pocket", "pocket-complement, `csd-pocket`", "1.66 [1.55, 1.77]"),
        ("pocket-complement", "cospec", "pocket-complement, CoSpec", "1.23 [1.11, 1.37]"),
    ],
)
def test_what_rises_above_the_target(pair: str, method: str, label: str, speedup: str) -> None:
    """The table of strength.md: points by family, p values of needles and instructions, speedups."""
    page = (ROOT / "docs" / "pages" / "strength.md").read_text(encoding="utf-8")
    line = next(line.strip() for line in page.splitlines() if line.strip().startswith(f"| {label} |"))
    _, mean, needles, instructions, others, fast = (cell.strip() for cell in line.strip("| ").split("|"))
    result = risen(pair, method)
    assert mean == signed(result["average"][0], 1) and fast == speedup
    for cell, task in ((needles, "pocket_ruler"), (instructions, "pocket_ifeval")):
        points, p = re.fullmatch(r"(\S+) \((?:p = )?([\d.]+)\)", cell).groups()  # type: ignore[union-attr]
        assert float(points.replace("−", "-")) == pytest.approx(result[task][0], abs=0.051)
        assert float(p) == pytest.approx(result[task][1], rel=0.2)
    for cell, task in zip(others.split(", "), FOUR, strict=True):
        assert float(cell.replace("−", "-")) == pytest.approx(result[task][0], abs=0.07)
    rows = pd.read_csv(REFERENCE / "strength-cospec-complement.csv").query("method == 'cospec'").set_index("task")
    if (pair, method) != ("pocket-complement", "cospec"):
        rows = of_finding("strength", "methods").query("pair == @pair and method == @method").set_index("task")
        rows = rows.rename(columns={f"speedup{end}": f"speedup_decode{end}" for end in ("", "_low", "_high")})
    shown = [float(rows[f"speedup_decode{end}"]["average"]) for end in ("", "_low", "_high")]
    assert "{:.2f} [{:.2f}, {:.2f}]".format(*shown) == speedup


def mathematics(page: str) -> list[str]:
    """What pages say of 300 documents a task."""
    three = pd.read_csv(REFERENCE / "math-csd-300.csv").set_index(["task", "method"])
    over = pd.read_csv(REFERENCE / "math-csd-300-sps.csv").set_index(["task", "method"])
    words, algebra = ([100 * three.accuracy[task, m] for m in ("csd", "vanilla")] for task in (WORDS, ALGEBRA))
    assert words[0] == words[1]
    assert f"{100 * (three.accuracy['average', 'vanilla'] - three.accuracy['average', 'csd']):.1f}" == "1.0"
    mean = [over[f"speedup_decode{end}"]["average", "csd"] for end in ("", "_low", "_high")]
    parts = ["{:.2f} [{:.2f}, {:.2f}]".format(*mean), f"p = {three.accuracy_p[ALGEBRA, 'csd']:.2f}"]
    told_scores = [f"{words[0]:.1f} % on word problems", f"{algebra[0]:.1f} %", f"vanilla has {algebra[1]:.1f}"]
    return parts if page == "results" else [*parts, *told_scores]


def rescues(page: str) -> list[str]:
    kinds = of_finding("math-csd-rescues", "kinds").set_index("kind")
    digits, rest = kinds.loc["digit for digit"], kinds.drop("digit for digit")
    judged = int(digits.right + digits.wrong)
    return [
        f"of its {int(kinds['count'].sum())} rescues {int(digits['count'])} put a digit for a digit, and "
        f"{int(digits.wrong)} of the {judged} of these in texts that vanilla has right go wrong; "
        f"of the other {int(rest.right.sum() + rest.wrong.sum())} in such texts {int(rest.wrong.sum())} do"
    ]


def arbitrator(page: str) -> list[str]:
    together = of_finding("arbitrator", "changes").query("task == 'together'").set_index("change")
    shares = {
        name: f"{100 * row.share:.1f} % [{100 * row.share_low:.0f}, {100 * row.share_high:.0f}]"
        for name, row in together.iterrows()
    }
    swapped = together.loc["swapped"]
    parts = [shares["random"], f"{int(swapped.decisions)} decisions", f"{100 * swapped.share:.0f} %"]
    return parts if page == "results" else [*parts, shares["removed"]]


def branches(page: str) -> list[str]:
    kinds = of_finding("cospec-default-counterfactual", "kinds").set_index("kind")
    every = kinds.loc["All mismatches"]
    shares = [
        f"{100 * every[name]:.1f} % [{100 * every[f'{name}_low']:.0f}, {100 * every[f'{name}_high']:.0f}]"
        for name in ("not_worse", "agreement")
    ]
    return [f"all {int(every.states)} mismatches", *shares]


def own_head(page: str) -> list[str]:
    """How many fewer tokens a token the paper's head discards, at h = 0.3 and over all tasks."""
    parts = []
    for kind in ("greedy", "sampled"):
        rows = of_finding(f"specdecpp-state-only-{kind}", "compared").query("task == 'pooled'")
        (one,) = rows[rows.method.str.endswith("threshold=0.3]")].to_dict("records")
        assert one["verdict"] == "holds"
        parts.append(f"{-one['difference']:.3f} [{-one['high']:.3f}, {-one['low']:.3f}]")
    return parts


def coins(page: str) -> list[str]:
    """What a coin and `always` score on the complementary pair."""
    rows = pd.read_csv(REFERENCE / "cospec-complement-coin.csv").set_index(["task", "method"]).accuracy * 100
    coin, every, own = (f"cospec[arbiter={name}]" for name in ("random:0.44", "always", "trained"))
    tasks = {"words": WORDS, "algebra": ALGEBRA, "instructions": "pocket_ifeval"}
    each = ", ".join(f"{name} {rows[task, coin]:.0f} for {rows[task, own]:.0f}" for name, task in tasks.items())
    return [
        f"scores {rows['average', coin]:.1f} on the mean of six",
        f"CoSpec {rows['average', own] - rows['average', coin]:.1f} points more",
        f"({each}; needles {rows['pocket_ruler', coin]:.1f} for {rows['pocket_ruler', own]:.1f})",
        f"scores {rows['average', every]:.1f} on the mean: {rows['pocket_ruler', every]:.0f} % of the needles, but "
        f"{rows[WORDS, every]:.0f} % of the words and {rows[ALGEBRA, every]:.0f} % of the algebra",
    ]


def masks(page: str) -> list[str]:
    """The arbitrator that was trained causally against the hybrid one; the mean's bounds from each family's own."""
    rows = table("cospec-mask-complement").xs("causal", level="method")
    six = rows.loc[list(SIX)]
    halves = (six.accuracy_delta_high - six.accuracy_delta_low) / 2
    loss, half = -rows.accuracy_delta["average"], (halves**2).sum() ** 0.5 / 6
    assert (six.accuracy_delta < 0).all() and (6 * six.accuracy_p.min() < 0.1)
    assert min(adjusted([float(p) for p in six.accuracy_p])) > 0.05
    changes = of_finding("arbitrator-causal", "changes").query("task == 'together' and change == 'random'").iloc[0]
    assert int(changes.changed) == 0
    speed = [rows[f"speedup_decode{end}"]["average"] for end in ("", "_low", "_high")]
    return [
        f"{100 * loss:.1f} points less [{100 * (loss - half):.1f}, {100 * (loss + half):.1f}]",
        f"{rows.tau['average']:.1f} on the mean of six families",
        f"{int(changes.decisions)} decisions",
        "speed is {:.2f} [{:.2f}, {:.2f}] times".format(*speed),
    ]


PAGES = {
    "specdecpp": ROOT / "docs" / "pages" / "methods" / "specdecpp.md",
    "results": ROOT / "results" / "README.md",
    "strength": ROOT / "docs" / "pages" / "strength.md",
    "csd": ROOT / "docs" / "pages" / "methods" / "csd.md",
    "cospec": ROOT / "docs" / "pages" / "methods" / "cospec.md",
}


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("results", mathematics),
        ("strength", mathematics),
        ("csd", mathematics),
        ("strength", rescues),
        ("results", arbitrator),
        ("cospec", arbitrator),
        ("cospec", branches),
        ("results", masks),
        ("cospec", masks),
        ("specdecpp", own_head),
        ("results", own_head),
        ("strength", coins),
    ],
)
def test_figures_of_the_default_pair_are_those_of_the_files(page: str, figures) -> None:
    text = re.sub(r"\s+", " ", PAGES[page].read_text(encoding="utf-8"))
    assert [figure for figure in figures(page) if figure not in text] == []


@pytest.mark.parametrize("page", ["results", "strength", "csd", "specdecpp", "cospec"])
def test_ratios_of_the_default_pair_are_those_of_the_verdicts(page: str) -> None:
    """Each ratio with bounds that the default pair's section quotes stands in checks.md or in a file of its own."""
    path = PAGES.get(page, ROOT / "docs" / "pages" / "methods" / f"{page}.md")
    text = path.read_text(encoding="utf-8")
    if page == "results":
        text = text.partition("## What the default pair says")[2].partition("\n## ")[0]
    elif page != "strength":
        text = re.split(r"\*\*On `pocket-weak`|## Measured on the weak pair", text)[0]
    checks = (ROOT / "results" / "tables" / "checks.md").read_text(encoding="utf-8")
    verdicts = {tuple(matches) for matches in re.findall(r"([\d.]+) × \[([\d.]+), ([\d.]+)\]", checks)}
    quoted = re.findall(r"(\d\.\d\d)\s+\[(\d\.\d\d),\s+(\d\.\d\d)\]", text)
    assert quoted or page == "strength"
    files = " ".join(path.read_text() for path in (REFERENCE / "batches-cospec.txt",))
    own = {
        tuple(f"{row[f'{kind}{end}']:.2f}" for end in ("", "_low", "_high"))
        for source in ("math-csd-300-sps", "strength-cospec-complement", "cospec-mask-complement")
        for _, row in pd.read_csv(REFERENCE / f"{source}.csv").iterrows()
        for kind in ("speedup_decode", "speedup_e2e")
    }
    methods = of_finding("strength", "methods")
    own |= {
        tuple(f"{float(row[f'speedup{end}']):.2f}" for end in ("", "_low", "_high")) for _, row in methods.iterrows()
    }
    under_load = of_finding("load-methods", "table")
    own |= {
        tuple(f"{float(row[f'{name}{end}']):.2f}" for end in ("", "_low", "_high"))
        for name in ("sooner", "throughput_ratio")
        for _, row in under_load[under_load[name].notna()].iterrows()
    }
    missing = [q for q in quoted if q not in verdicts | own and "{} [{}, {}]".format(*q) not in files]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "name"), [("specdecpp", name) for name in SPECDECPP] + [("cospec", name) for name in COSPEC]
)
def test_figures_are_those_of_the_files(page: str, name: str) -> None:
    expected = {"specdecpp": SPECDECPP, "cospec": COSPEC}[page][name]()
    for path in (ROOT / "results" / "README.md", ROOT / "docs" / "pages" / "methods" / f"{page}.md"):
        assert expected in re.sub(r"\s+", " ", path.read_text(encoding="utf-8")), path.name


@cache
def verdicts(name: str) -> dict[tuple[str, str], str]:
    """+ faster, − slower or = neither, by task and method: a p value below 0.05 by Holm's rule over all of the file."""
    rows = table(name).query("task != 'average' and method != baseline")
    keys = dict.fromkeys(rows.index, "=")
    for left, (key, row) in zip(range(len(rows), 0, -1), rows.sort_values("speedup_decode_p").iterrows(), strict=True):
        if row.speedup_decode_p * left >= 0.05:
            break
        keys[key] = "+" if row.speedup_decode > 1 else "−"
    return keys


def of_a_draft(method: str, over: dict[str, tuple[pd.DataFrame, dict[tuple[str, str], str]]]) -> str:
    """The line of a method in the table of `compared.md`, by the files and their verdicts."""

    def figure(name: str, task: str, value: str = "speedup_decode") -> str:
        rows, signs = over[name]
        key = task, method
        if rows.baseline[key] == method:
            return "1"
        value, low, high = (f"{rows[value + end][key]:.2f}" for end in ("", "_low", "_high"))
        return " ".join([value, f"[{low}, {high}]", *([signs[key]] if key in signs else [])])

    first = [figure("drafts-default", "average", value) for value in ("tau", "speedup_decode")]
    return " | ".join([f"| `{method}`", *first, *(figure(name, task) for name in over for task in (CODE, NEWS))]) + " |"


def test_the_table_of_drafts_is_that_of_its_files():
    text = (ROOT / "docs" / "pages" / "methods" / "compared.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `") and line.endswith(" |")]
    over = {name: (table(name), verdicts(name)) for name in ("drafts-default", "drafts-default-sps")}
    methods = {method for _, method in over["drafts-default"][1]}
    assert sorted(rows) == sorted(of_a_draft(method, over) for method in methods)
    assert len(verdicts("drafts-default")) == len(verdicts("drafts-default-sps")) == 120
    assert {*table("drafts-default").loc[list(FOUR)].documents} == {25}


def test_the_words_about_drafts_are_their_verdicts():
    """The methods that a sentence of the page names are those with its verdict on all of its tasks, and no others."""
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "pages" / "methods" / "compared.md").read_text(encoding="utf-8"))
    over, beside = verdicts("drafts-default"), verdicts("drafts-default-sps")

    def all_of(signs: dict[tuple[str, str], str], tasks, allowed: str) -> set[str]:
        methods = {method for _, method in signs} - {"vanilla"}
        return {method for method in methods if all(signs[task, method] in allowed for task in tasks)}

    def named(start: str) -> set[str]:
        sentence = text.split(start)[1].split(". ")[0]
        return set(re.findall(r"`([\w-]+)`", sentence))

    assert named("**On code**, faster than the target alone") == all_of(over, [CODE], "+")
    looked_up = {"mdsd", "pld", "suffix", "suffixdecoding", "anpd"}
    assert all_of(over, [NEWS], "+") == all_of(over, [CODE], "+") | looked_up
    assert named("Faster than `sps` are") == all_of(beside, [NEWS], "+")
    assert named("**Not faster than the target on any of the four tasks**") == all_of(over, FOUR, "−=")
    assert named("Slower than `sps` on all four:") == all_of(beside, FOUR, "−")
    assert all_of(beside, [CODE], "+") == set() and all_of(over, FOUR, "−") == {"logitspec"}
    assert named("these are faster than `sps`:") == told_by_the_mean("drafts-default-sps")
    assert told_by_the_mean("drafts-default") & all_of(over, FOUR, "−=") == {"rest"}


def told_by_the_mean(name: str) -> set[str]:
    """The methods that are faster on the mean of the tasks, by Holm's rule over all methods of the file."""
    rows = table(name).loc["average"].query("index != baseline")
    ps = dict(zip(rows.index, adjusted([float(p) for p in rows.speedup_decode_p]), strict=True))
    return {method for method, p in ps.items() if p < 0.05 and rows.speedup_decode[method] > 1}


def test_how_far_the_baselines_of_drafts_drifted():
    text = re.sub(r"\s+", " ", (ROOT / "docs" / "pages" / "methods" / "compared.md").read_text(encoding="utf-8"))
    words = ("time per token moved by", "that of `sps` by")
    for name, start in zip(("drafts-default", "drafts-default-sps"), words, strict=True):
        moved = [signed(100 * float(table(name).drift[task, "vanilla"]), 0) for task in FOUR]
        assert f"{start} {listed(moved)} %" in text


@pytest.mark.parametrize(
    ("page", "start", "files"),
    [
        (("methods", "compared.md"), "## Worth having where", ("drafts-default", "drafts-default-sps")),
        (
            ("methods", "blocks.md"),
            "## What the bundled heads do",
            ("blocks-greedy", "blocks-sampled", "blocks-drawn", "block-ablations"),
        ),
        (("runtimes.md",), "**Trees do not pay there either**", ("drafts-h200",)),
        (("servers.md",), "## Times next to those here", ("bench-servers",)),
    ],
)
def test_bounded_figures_of_a_section_are_those_of_its_files(page: tuple[str, ...], start: str, files) -> None:
    known = {
        tuple(f"{row[name + end]:.2f}" for end in ("", "_low", "_high"))
        for file in files
        for figures in [pd.read_csv(REFERENCE / f"{file}.csv")]
        for name in ("tau", "gain", "speedup_decode", "speedup_e2e")
        if name in figures
        for _, row in figures.iterrows()
    }
    section = (ROOT / "docs" / "pages").joinpath(*page).read_text(encoding="utf-8").split(start)[1].split("\n## Set")[0]
    section = section.split("\n### ")[0]
    quoted = re.findall(r"(\d\.\d\d) \[(\d\.\d\d),\s+(\d\.\d\d)\]", section)
    assert quoted and [figure for figure in quoted if figure not in known] == []


@pytest.mark.parametrize("page", ["lengths", "lookup", "sps", "eagle3", "trees"])
def test_figures_of_drafts_on_the_default_pair_are_those_of_their_file(page: str) -> None:
    """Every figure with bounds in a paragraph that cites the file, of the methods' averages."""
    averages = table("drafts-default").loc["average"]
    known = {
        tuple(f"{row[name + end]:.2f}" for end in ("", "_low", "_high"))
        for name in ("tau", "speedup_decode")
        for _, row in averages.iterrows()
    }
    text = (ROOT / "docs" / "pages" / "methods" / f"{page}.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- page: (\S+) -->", lambda match: (ROOT / match[1]).read_text(encoding="utf-8"), text)
    cited = [part for part in re.split(r"\n\n|\n- ", text) if "drafts-default.csv" in part]
    quoted = re.findall(r"(\d\.\d\d) \[(\d\.\d\d),\s+(\d\.\d\d)\]", " ".join(cited))
    assert quoted and [figure for figure in quoted if figure not in known] == []
