"""Tables of pages that are made from files as a whole: each a function that gives the Markdown, by name in `TABLES`."""

import re
import textwrap
from collections.abc import Callable, Iterator

import pandas as pd

from figures import engines
from figures import provenance as provenance_index
from figures.markdown import rows as _rows
from figures.stored import RESULTS, table
from figures.workloads import replayed_agent, workloads, workloads_qwen, workloads_qwen_speeds, workloads_speeds
from specbench.base.stats import holm
from specbench.report.columns import COLUMNS
from specbench.report.tables import render
from specbench.report.words import sentences

LEVEL = 0.05
WORDS, ALGEBRA, CODE, NEWS = FOUR = tuple(f"pocket_{name}" for name in ("gsm8k", "math500", "humaneval", "cnndm"))
INSTRUCTIONS, NEEDLES = "pocket_ifeval", "pocket_ruler"
Signs = dict[tuple[str, str], str]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _printed(file: str, head: str, columns: str) -> str:
    """What `specbench compare` prints of a stored run: its table, and a sentence for each method."""
    summary = table(file)
    summary = summary.reindex(columns=list(dict.fromkeys([*summary, *(r for c in COLUMNS.values() for r in c.raw)])))
    of_methods = [line for line in sentences(summary) if line.partition(":")[0] in set(summary.method)]
    return "\n\n".join([head, render(summary, "md", columns=columns.split()).strip(), *map(_wrapped, of_methods)])


def real() -> str:
    head = "smollm2: SmolLM2-135M-Instruct (Q4_1, computed in float32); `sps` drafts with the same model in 4 bits"
    columns = "accuracy acceptance_rate alpha tau discard_rate verification_rate tokens_per_s speedup_decode cut"
    return _printed("everyday-smollm2", head, columns)


def bundled() -> str:
    head = "pocket: a 12-layer target and a strong draft of 3 layers, trained by this project (7 M parameters together)"
    columns = "accuracy accuracy_p acceptance_rate alpha tau discard_rate verification_rate rescue_rate tokens_per_s"
    return _printed("math-csd-static", head, f"{columns} speedup_decode")


def qwen() -> str:
    """Scores and acceptance of a real pair."""
    columns = "accuracy accuracy_p acceptance_rate alpha tau discard_rate rescue_rate"
    return _qwen(columns, "qwen2.5-coder-humaneval")


def qwen_times() -> str:
    """Speeds of the same pair, of fewer documents."""
    columns = "documents acceptance_rate tau tokens_per_s speedup_decode speedup_e2e"
    return _qwen(columns, "qwen2.5-coder-humaneval-times", "qwen2.5-coder-gsm8k-times")


def _qwen(columns: str, *names: str) -> str:
    rows = pd.concat([table(name) for name in names]).query("task != 'average'")
    summary = rows.reindex(columns=list(dict.fromkeys([*rows, *(r for c in COLUMNS.values() for r in c.raw)])))
    return render(summary, "md", columns=columns.split()).strip()


# Drafts compared


def _drafts(name: str) -> tuple[pd.DataFrame, Signs]:
    """The rows of a file by task and method, and + faster, − slower or = neither by Holm's rule over all of it."""
    rows = table(name).set_index(["task", "method"])
    tested = rows[
        (rows.index.get_level_values("task") != "average") & (rows.index.get_level_values(1) != rows.baseline)
    ]
    signs = {
        key: "=" if p >= LEVEL else "+" if rows.speedup_decode[key] > 1 else "−"
        for key, p in zip(tested.index, holm(tested.speedup_decode_p.tolist()), strict=True)
    }
    return rows, signs


def _bounded(rows: pd.DataFrame, key: tuple[str, str], name: str) -> str:
    return "{:.2f} [{:.2f}, {:.2f}]".format(*(rows[name + end][key] for end in ("", "_low", "_high")))


def drafts() -> str:
    heads = ["method", "τ", "over the target: mean", "code", "news", "over `sps`: code", "news"]
    (over, first), (beside, second) = _drafts("drafts-default"), _drafts("drafts-default-sps")

    def line(method: str) -> Iterator[str]:
        yield f"`{method}`"
        yield from (_bounded(over, ("average", method), name) for name in ("tau", "speedup_decode"))
        for rows, signs in ((over, first), (beside, second)):
            for key in ((CODE, method), (NEWS, method)):
                yield f"{_bounded(rows, key, 'speedup_decode')} {signs[key]}" if key in signs else "1"

    methods = dict.fromkeys(method for _, method in over.index if method != "vanilla")
    return _rows(heads, [list(line(method)) for method in methods])


def drafts_verdicts() -> str:
    """Which methods have a verdict on all of some tasks, fastest first."""
    (over, first), (beside, second) = _drafts("drafts-default"), _drafts("drafts-default-sps")

    def names(rows: pd.DataFrame, signs: Signs, tasks: tuple[str, ...], allowed: str) -> str:
        methods = dict.fromkeys(method for _, method in signs if method != "vanilla")
        found = [method for method in methods if all(signs[task, method] in allowed for task in tasks)]
        by = tasks[0] if len(tasks) == 1 else "average"
        found.sort(key=lambda method: -rows.speedup_decode[by, method])
        return ", ".join(f"`{method}`" for method in found) or "none"

    rows = beside.loc["average"]
    rows = rows[rows.index != rows.baseline]
    ps = holm(rows.speedup_decode_p.tolist())
    by_mean = [m for m, p in zip(rows.index, ps, strict=True) if p < LEVEL and rows.speedup_decode[m] > 1]
    by_mean.sort(key=lambda method: -rows.speedup_decode[method])
    faster = [f"`{m}` {_bounded(beside, ('average', m), 'speedup_decode')}" for m in by_mean]
    lines = {
        "Faster than the target on code": names(over, first, (CODE,), "+"),
        "Faster than the target on news": names(over, first, (NEWS,), "+"),
        "Faster than the target on none of the four tasks": names(over, first, FOUR, "−="),
        "Slower than the target on all four": names(over, first, FOUR, "−"),
        "Faster than `sps` on code": names(beside, second, (CODE,), "+"),
        "Faster than `sps` on news": names(beside, second, (NEWS,), "+"),
        "Faster than `sps` on the mean of tasks (Holm's for its methods)": ", ".join(faster),
        "Slower than `sps` on all four": names(beside, second, FOUR, "−"),
    }
    return _rows(["", "methods, the fastest first"], [list(line) for line in lines.items()])


def drafts_now() -> str:
    """τ of the methods whose rules are others than in the timed run."""
    rows = table("drafts-now").set_index(["task", "method"])
    tasks = {"mean": "average", "words": WORDS, "algebra": ALGEBRA, "code": CODE, "news": NEWS}
    methods = dict.fromkeys(method for _, method in rows.index if method not in ("vanilla", "anpd"))
    return _rows(
        ["method", *tasks],
        [[f"`{method}`", *(_bounded(rows, (task, method), "tau") for task in tasks.values())] for method in methods],
    )


def drafts_real() -> str:
    """τ of what needs no model, on real texts."""
    found = table("replay-suffix").set_index(["method", "task"]).tau
    rest = table("replay-rest.by_task").set_index("task").tau
    methods = ("pld", "suffix", "suffixdecoding", "anpd", "sam")
    tasks = (("code", "humaneval", "humaneval solutions"), ("news", "cnn_dailymail", "cnn_dm highlights"))
    rows = [
        [word, *(f"{found[m, task]:.2f}" for m in methods), f"{rest[of_rest]:.2f}"] for word, task, of_rest in tasks
    ]
    return _rows(["", *(f"`{m}`" for m in (*methods, "rest"))], rows)


# Training


def losses() -> str:
    """Mean acceptance at temperature 1 by texts and losses of training."""
    rows = table("draft-losses")
    rows = rows[(rows.temperature == 1) & (rows.task == "all")].fillna({"loss": ""})
    alpha = {(row.data, row.loss): f"{row.alpha:.3f}" for row in rows.itertuples()}
    names = ("ce", "fkl", "rkl", "jsd", "tvd", "tvd++", "all")
    texts = ("target", "ground_truth", "mix_request", "mix_token", "draft", "served", "all")
    heads = ["texts", *("mean" if name == "all" else f"`{name}`" for name in names)]
    lines = [
        ["mean" if data == "all" else f"`{data}`", *(alpha.get((data, name), "") for name in names)] for data in texts
    ]
    return _rows(heads, lines)


# CoSpec

ARBITERS = "cospec[arbiter={}]"


def _scored(file: str, methods: dict[str, str], digits: int) -> str:
    """Score and τ of each method on the four families."""
    rows = table(file).set_index(["task", "method"])

    def cell(task: str, method: str) -> str:
        return f"{100 * rows.accuracy[task, method]:.{digits}f}; {rows.tau[task, method]:.2f}"

    heads = ["score; τ", "word problems", "algebra", "code", "news (ROUGE-L)"]
    return _rows(heads, [[label, *(cell(task, method) for task in FOUR)] for label, method in methods.items()])


def cospec_default() -> str:
    names = {"SpS, with vanilla's scores": "sps[gamma=25]", "**CoSpec**": "cospec"}
    names |= {f"a coin that keeps {share[2:]:0<2} %": ARBITERS.format(f"random:{share}") for share in ("0.91", "0.7")}
    names |= {"`always`": ARBITERS.format("always"), "CSD": "csd[gamma=25]", "FLy": "fly[gamma=25]"}
    return _scored("cospec-default-greedy", names, 1)


def cospec_weak() -> str:
    names = {"SpS, with vanilla's scores": "sps[gamma=25]", "**CoSpec**": "cospec"}
    names |= {f"a coin that keeps {int(share[2:])} %": ARBITERS.format(f"random:{share}") for share in ("0.56", "0.12")}
    names |= {"`always`": ARBITERS.format("always"), "CSD": "csd[gamma=25]", "FLy": "fly[gamma=25]"}
    return _scored("cospec-greedy", names, 1)


def cospec_rewards() -> str:
    names = {"the one that ships": "cospec"}
    trained = {"all parts": "whole", "warm-up alone": "sft-only", "terminal reward alone": "terminal-only"}
    trained |= {"no length reward": "no-length", "no rebalancing": "no-rebalancing", "no judge": "no-judge"}
    trained |= {"the draft as the judge": "draft-judge", "no rejection penalty": "no-rejection"}
    names |= {label: f"cospec[arbitrator={name}]" for label, name in trained.items()}
    return _scored("cospec-rewards", names, 1)


# A draft's strength


def strength() -> str:
    """Of each pair, by its draft's strength: what lossy methods keep of the target's score, and how fast they are."""
    drafts, methods = (table(f"strength.{name}").set_index("pair") for name in ("drafts", "methods"))
    heads = ["pair", "strength", "cost", "alone", "csd kept", "csd-pocket kept", "sps speedup", "csd speedup"]

    def whole(row: pd.Series, name: str) -> str:
        value, low, high = (100 * row[name + end] for end in ("", "_low", "_high"))
        return f"{value:.0f}" if pd.isna(low) else f"{value:.0f} [{low:.0f}, {high:.0f}]"

    def line(pair: str) -> Iterator[str]:
        every = drafts.loc[pair].set_index("task")
        yield pair
        yield whole(every.loc["average"], "strength")
        yield f"{every.cost['average']:.2f}"
        alone = every.drop(index="average")
        yield f"{alone.solved.sum():.0f} of {alone.missed.sum():.0f}"
        means = methods.loc[pair].query("task == 'average'").set_index("method")
        yield from (whole(means.loc[name], "kept") for name in ("csd", "csd-pocket"))
        for name in ("sps", "csd"):
            yield "{:.2f} [{:.2f}, {:.2f}]".format(*(means[f"speedup{end}"][name] for end in ("", "_low", "_high")))

    pairs = drafts[drafts.task == "average"].sort_values("strength").index
    return _rows(heads, [list(line(pair)) for pair in pairs])


def risen() -> str:
    """Points above the target by family, p by Holm's rule over the six, and decode speedups."""
    columns = {"accuracy_delta": "delta", "accuracy_p": "delta_p", "speedup_decode": "speedup"}
    columns |= {f"speedup_decode_{end}": f"speedup_{end}" for end in ("low", "high")}
    own = table("strength-cospec-complement").rename(columns=columns).assign(pair="pocket-complement")
    rows = table("strength.methods")
    lines = []
    for pair, method, name in (
        ("pocket", "csd-pocket", "`csd-pocket`"),
        ("pocket", "cospec", "CoSpec"),
        ("pocket-complement", "csd-pocket", "`csd-pocket`"),
        ("pocket-complement", "cospec", "CoSpec"),
    ):
        found = own if (pair, method) == ("pocket-complement", "cospec") else rows
        found = found[(found.pair == pair) & (found.method == method)].set_index("task")
        points = {task: _signed(100 * found.delta[task], 1) for task in (*FOUR, NEEDLES, INSTRUCTIONS, "average")}
        tasks = [*FOUR, INSTRUCTIONS, NEEDLES]
        p = dict(zip(tasks, holm(found.delta_p[tasks].tolist()), strict=True))
        both = [f"{points[task]} ({p[task]:.2g})" for task in (NEEDLES, INSTRUCTIONS)]
        speed = "{:.2f} [{:.2f}, {:.2f}]".format(*(found[f"speedup{end}"]["average"] for end in ("", "_low", "_high")))
        lines.append([f"{pair}, {name}", points["average"], *both, ", ".join(points[task] for task in FOUR), speed])
    return _rows(["pair, method", "mean of six", "needles (p)", "instructions (p)", "the other four", "speedup"], lines)


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return "0" if not float(text[1:]) else text


# Claims


def claims() -> str:
    """How many claims of each paper have each verdict; orders of methods are no claims."""
    lines = (RESULTS / "tables" / "checks.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip("| ") for cell in line.split(" | ")] for line in lines if re.match(r"\| \w+ \| \d", line)]
    kinds = ("holds", "holds on some", "undecided", "fails", "fails on some", "void", "not judged", "not measured")
    found = [(row[0], row[3]) for row in rows if not row[2].startswith("the order of methods")]

    def kind(verdict: str) -> str:
        word, some, _ = verdict.partition(" on ")
        return f"{word} on some" if some and f"{word} on some" in kinds else word

    heads = {"csd": "CSD", "specdecpp": "SpecDec++", "cos": "CoS", "cospec": "CoSpec"}
    counts = [[str(sum(p == paper and kind(v) == one for p, v in found)) for one in kinds] for paper in heads]
    return _rows(["paper", *kinds], [[name, *row] for name, row in zip(heads.values(), counts, strict=True)])


def provenance() -> str:
    """Every file under results/ with the command that made it; files of one command share a line."""
    by_command: dict[tuple[str, ...], list[str]] = {}
    for row in provenance_index.read():
        by_command.setdefault((row["command"], row["machine"], row["date"], row["commit"]), []).append(row["file"])
    heads = ["file", "command", "machine", "stored on", "commit"]
    return _rows(heads, [[", ".join(names), *of] for of, names in sorted(by_command.items(), key=lambda item: item[1])])


TABLES: dict[str, Callable[[], str]] = {
    "real": real,
    "table": bundled,
    "qwen": qwen,
    "qwen-times": qwen_times,
    "drafts": drafts,
    "drafts-verdicts": drafts_verdicts,
    "drafts-now": drafts_now,
    "drafts-real": drafts_real,
    "losses": losses,
    "strength": strength,
    "risen": risen,
    "claims": claims,
    "cospec-default": cospec_default,
    "cospec-weak": cospec_weak,
    "cospec-rewards": cospec_rewards,
    "provenance": provenance,
    "workloads": workloads,
    "workloads-qwen": workloads_qwen,
    "workloads-speeds": workloads_speeds,
    "workloads-qwen-speeds": workloads_qwen_speeds,
    "replay-agent": replayed_agent,
    **engines.TABLES,
}
