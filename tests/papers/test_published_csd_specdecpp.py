"""The figures of CSD and SpecDec++ as data: form, labels, and the papers' own averages and ratios worked out again."""

import csv
import itertools
import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from specbench import config

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
COLUMNS = ["paper", "table", "pair", "task", "temperature", "method", "setting", "metric", "value", "unit"]
# rows by the form of each table: (method rows) × (columns of figures)
ROWS = {
    ("csd", 1): 9 * 13,
    ("csd", 2): 5 * 20,
    ("csd", 3): 4 * 8,
    ("csd", 4): 5 * 6,
    ("csd", 5): 3 * 6 - 2,  # vanilla has no acceptance rate
    ("specdecpp", 1): 2 * 3,
    ("specdecpp", 2): (3 * 4 + 4) + 2 * (3 * 3 + 4),
    ("specdecpp", 3): 20 * 5,
    ("specdecpp", 4): 3 * 3,
}
# sums over a table, added up from the papers' pages and not from these files
TOTALS = {
    ("csd", 1): {"Acc": "2270.7", "Tp": "780.8", "Spd": "65.31"},
    ("csd", 2): {"Acc": "1481.0", "Tp": "595.2", "Spd": "39.80", "AR": "928.5"},
    ("csd", 3): {"Acc": "472.3", "Tp": "287.8", "Spd": "9.78", "AR": "602.8"},
    ("csd", 4): {"Acc": "601.5", "Spd": "20.18", "AR": "691.9"},
    ("csd", 5): {"Acc": "503.0", "Spd": "7.81", "AR": "238.8"},
    ("specdecpp", 1): {"throughput": "115.75"},
    ("specdecpp", 2): {
        **{"t_draft": "0.2694", "t_draft ±": "0.0014", "t_target": "1.327", "t_target ±": "0.003"},
        **{"R2": "5.9661", "R2 t_draft": "2.9978", "R2 t_target": "2.9988"},
    },
    ("specdecpp", 3): {"throughput": "1192.06", "train/KL": "11.679", "eval/KL": "11.274"},
    ("specdecpp", 4): {"speedup": "9.64", "relative improvement": "21.5"},
}
PLANNED = {"sps-pocket", "specdecpp-pocket"}  # settings of the bundled pair that may not be chosen yet
UNITS = {
    **dict.fromkeys(["Acc", "AR", "relative improvement"], "%"),
    **dict.fromkeys(["Tp", "throughput"], "tokens/s"),
    **dict.fromkeys(["Spd", "speedup"], "x"),
    **dict.fromkeys(["train/KL", "eval/KL"], "nats"),
    **dict.fromkeys(["R2", "R2 t_draft", "R2 t_target"], "ratio"),
    **dict.fromkeys(["t_draft", "t_draft ±", "t_target", "t_target ±"], "s"),
}
TASKS = ["GSM8K", "MATH500", "HumanEval", "CNN/DM"]
DATASETS = ["Alpaca", "HumanEval", "GSM8K"]
LLAMA, QWEN = "Llama-3-70B/1B", "Qwen-2.5-72B/7B"
ALONE = Fraction("9.26")  # SpecDec++, section 4.1: tokens/s of the target alone
SERIES = pytest.mark.parametrize("paper", ["csd", "specdecpp"])


def rows(paper, table):
    with (PUBLISHED / f"{paper}-table{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def cells(paper, table):
    """(pair, task, method, setting, metric) -> the figure as printed."""
    return {(r["pair"], r["task"], r["method"], r["setting"], r["metric"]): r["value"] for r in rows(paper, table)}


def notes(paper):
    return yaml.safe_load((PUBLISHED / f"{paper}.yaml").read_text(encoding="utf-8"))


def half(text):
    """Half a unit of the last printed digit."""
    return Fraction(1, 2 * 10 ** len(text.partition(".")[2]))


def bounds(text):
    return Fraction(text) - half(text), Fraction(text) + half(text)


def mean(texts):
    return sum(map(Fraction, texts)) / len(texts)


def is_ratio(printed, above, below):
    """Whether `printed` can be above / below when all three are rounded (`below` exact if it is no text)."""
    low, high = bounds(printed)
    top = bounds(above)
    base = bounds(below) if isinstance(below, str) else (below, below)
    return top[0] / base[1] <= high and top[1] / base[0] >= low


@pytest.mark.parametrize(("paper", "table"), ROWS)
def test_form_of_a_table(paper, table):
    text = (PUBLISHED / f"{paper}-table{table}.csv").read_text(encoding="utf-8")
    assert text.splitlines()[0].split(",") == COLUMNS
    loaded = rows(paper, table)
    assert len(loaded) == ROWS[paper, table] == len(cells(paper, table))
    for row in loaded:
        assert None not in row and None not in row.values(), row
        assert (row["paper"], row["table"]) == (paper, str(table))
        assert row["temperature"] == ("0" if paper == "csd" else "")
        assert row["unit"] == UNITS[row["metric"]], row
        value = float(row["value"])
        assert math.isfinite(value) and value >= 0, row
        assert value <= 1 or row["unit"] != "ratio"
        assert value <= 100 or row["unit"] != "%"
        assert all(part.count("=") == 1 for part in row["setting"].split(";") if part), row
    totals = {metric: Decimal(0) for metric in TOTALS[paper, table]}
    for row in loaded:
        totals[row["metric"]] += Decimal(row["value"])
    assert {metric: str(total) for metric, total in totals.items()} == TOTALS[paper, table]


@SERIES
def test_every_label_is_known_and_every_known_label_is_used(paper):
    known = notes(paper)
    assert known["paper"] == paper
    found = {f"{paper}-table{table}.csv" for name, table in ROWS if name == paper}
    assert {path.name for path in PUBLISHED.glob(f"{paper}-table*.csv")} == found
    assert set(known["tables"]) == {table for name, table in ROWS if name == paper}
    everything = [row for name, table in ROWS if name == paper for row in rows(name, table)]
    for column in ("pair", "task", "method", "metric"):
        assert {row[column] for row in everything} == set(known[column + "s"]), column


@SERIES
def test_labels_lead_to_what_specbench_has(paper):
    known = notes(paper)
    assert set(known["pairs"].values()) <= set(config.names("pairs"))
    assert {task for task in known["tasks"].values() if task} <= set(config.tasks())
    with (ROOT / "results" / "reference" / "math-csd.csv").open(encoding="utf-8") as file:
        summary = next(csv.reader(file))
    assert {metric for metric in known["metrics"].values() if metric} <= set(summary)
    methods = {entry["method"] for entry in known["methods"].values()}
    assert methods <= set(config.names("methods"))
    assert known["baseline"] in methods
    for entry in known["methods"].values():
        assert set(entry) <= {"method", "settings", "by_pair"}
        for pair, choice in entry.get("by_pair", {}).items():
            assert pair in config.names("pairs") and set(choice) <= {"method", "settings"}
            assert choice["method"] in set(config.names("methods")) | PLANNED
    for name, gain in known.get("gains", {}).items():
        assert known["metrics"][name] is None and gain["metric"] in summary and gain["over"] in methods
    for table in known["tables"].values():
        assert set(table) <= {"title", "lost", "baseline"}
        assert table["title"] and all(isinstance(what, str) for what in table["lost"])


@SERIES
def test_claims_hold_in_the_published_figures(paper):
    known = notes(paper)
    labels = {entry["method"]: label for label, entry in known["methods"].items()}
    assert known["claims"]
    for claim in known["claims"]:
        assert set(claim) <= {"table", "text", "metric", "higher", "lower", "tasks"}
        higher, lower = labels[claim["higher"]], labels[claim["lower"]]
        figures = {
            (row["method"], row["pair"], row["task"]): float(row["value"])
            for row in rows(paper, claim["table"])
            if known["metrics"][row["metric"]] == claim["metric"]
        }
        places = set.intersection(*({key[1:] for key in figures if key[0] == name} for name in (higher, lower)))
        if "tasks" in claim:
            assert set(claim["tasks"]) <= {task for _, task in places}, claim
            places = {(pair, task) for pair, task in places if task in claim["tasks"]}
        assert places, claim
        for place in places:
            assert figures[(higher, *place)] > figures[(lower, *place)], (claim["text"], place)


# CSD


@pytest.mark.parametrize(("table", "count"), [(1, 9), (2, 5 * 4), (4, 2 * 3)])
def test_csd_averages_are_means_of_the_printed_cells(table, count):
    printed = cells("csd", table)
    averages = {key: text for key, text in printed.items() if key[1] == "Avg."}
    assert len(averages) == count
    for (pair, _, *rest), text in averages.items():
        again = mean([printed[(pair, task, *rest)] for task in TASKS])
        assert abs(again - Fraction(text)) <= half(text), (table, pair, rest, text, float(again))


@pytest.mark.parametrize(
    ("table", "baseline", "count"), [(1, "Vanilla Decoding", 36), (2, "Vanilla Decoding", 20), (3, "SpecDecode", 8)]
)
def test_csd_speedups_are_ratios_of_printed_throughputs(table, baseline, count):
    """Both throughputs are rounded to 0.1, so a ratio is known to about 0.5 %."""
    printed = {(*key[:3], key[4]): text for key, text in cells("csd", table).items()}
    seen = 0
    for (pair, task, method, metric), text in printed.items():
        if metric == "Spd" and task != "Avg.":
            above, below = printed[pair, task, method, "Tp"], printed[pair, task, baseline, "Tp"]
            assert is_ratio(text, above, below), (table, pair, task, method, text, above, below)
            seen += 1
    assert seen == count


def test_csd_names_the_baseline_of_each_speedup():
    known = notes("csd")
    own = {table: entry.get("baseline", known["baseline"]) for table, entry in known["tables"].items()}
    assert own == {1: "vanilla", 2: "vanilla", 3: "sps", 4: "vanilla", 5: "vanilla"}
    for table in own:
        said = {row["setting"] for row in rows("csd", table) if row["metric"] == "Spd" and "baseline" in row["setting"]}
        assert said == ({"baseline=SpecDecode"} if table == 3 else set())


# What Table 1 or 3 prints for CSD on the Llama pair, and what Table 4 prints for the same run.
CSD_DISCREPANCIES = {("HumanEval", "Acc"): ("79.3", "79.2"), ("MATH500", "Spd"): ("2.33", "2.32")}


def test_csd_tables_agree_on_the_runs_that_they_share():
    one, two, three, four = (cells("csd", table) for table in (1, 2, 3, 4))
    vanilla = [key for key in one if key[0] == LLAMA and key[2] == "Vanilla Decoding"]
    assert len(vanilla) == 13 and all(one[key] == two[key] for key in vanilla)
    for task, method, metric in itertools.product(["MATH500", "HumanEval"], ["SpecDecode", "CSD"], ["Acc", "Tp"]):
        key = (LLAMA, task, method, "", metric)
        assert one[key] == three[key], key
    differing = {}
    for task, metric in itertools.product([*TASKS, "Avg."], ["Acc", "AR", "Spd"]):
        source = three if metric == "AR" else one
        before = source.get((LLAMA, task, "CSD", "", metric))
        after = four[LLAMA, task, "CSD", "calibration=task-specific", metric]
        if before not in (None, after):
            differing[task, metric] = (before, after)
    assert differing == CSD_DISCREPANCIES


def test_csd_figures_of_the_text():
    """Sections 5.2 to 5.6 and appendix A name these figures."""
    one, two, three, four, five = (cells("csd", table) for table in range(1, 6))
    peaks = {task for task in TASKS if one[LLAMA, task, "CSD", "", "Spd"] == "2.33"}
    assert peaks == {"MATH500", "HumanEval"}
    averages = {"SpecDecode": "1.75", "Lossy SD": "1.85", "SWIFT": "1.07", "CSD": "2.02"}
    assert {method: one[LLAMA, "Avg.", method, "", "Spd"] for method in averages} == averages
    assert [one[QWEN, "Avg.", method, "", "Spd"] for method in ("SpecDecode", "CSD")] == ["1.66", "1.86"]
    for pair, task, gain in [(LLAMA, "HumanEval", "2.5"), (LLAMA, "MATH500", "2.0"), (QWEN, "MATH500", "1.0")]:
        ours, target = (Decimal(one[pair, task, method, "", "Acc"]) for method in ("CSD", "Vanilla Decoding"))
        assert ours - target == Decimal(gain)
    rates = {"CSD": "50.2", "Fly": "44.8", "Reflect Verification": "52.6"}
    assert {method: two[LLAMA, "Avg.", method, "gamma=15", "AR"] for method in rates} == rates
    drafted, kept = (Decimal(three[LLAMA, "MATH500", method, "", "AR"]) for method in ("SpecDecode", "CSD"))
    assert kept - drafted == Decimal("16.0")
    assert four[LLAMA, "Avg.", "CSD", "calibration=universal", "Spd"] == "2.02"
    assert [five[LLAMA, "RULER", method, "", "Spd"] for method in ("SpecDecode", "CSD")] == ["1.02", "1.37"]


# SpecDec++


@pytest.mark.parametrize("method", ["stand-alone", "SpecDec", "SpecDec++"])
@pytest.mark.parametrize("metric", ["t_draft", "t_target"])
def test_specdecpp_mean_times_and_their_spread(method, metric):
    """Inputs carry the same last digit as the result: half a unit of theirs adds to half a unit of its own.

    So for the mean, and for the spread too, as a standard deviation moves no more than its inputs do.
    """
    printed = {(task, name, what): text for (_, task, name, _, what), text in cells("specdecpp", 2).items()}
    parts = [printed[task, method, metric] for task in DATASETS]
    average, spread = printed["average", method, metric], printed["average", method, f"{metric} ±"]
    assert {len(text) for text in parts} == {len(average)} == {len(spread)}
    centre = mean(parts)
    deviation = math.sqrt(sum((Fraction(text) - centre) ** 2 for text in parts) / 3)
    assert abs(centre - Fraction(average)) <= 2 * half(average)
    assert abs(deviation - float(spread)) <= 2 * float(half(spread))


def throughputs(table):
    found = {}
    for (_, task, method, setting, metric), text in cells("specdecpp", table).items():
        if metric == "throughput":
            found.setdefault((method, setting), {})[task] = text
    return found


# Figures of the text that do not follow from Table 1: section 1 swaps two gains, section 4.1 has another throughput.
SPECDECPP_DISCREPANCIES = {
    ("section 1", "HumanEval", "gain"): "9.4",  # 20.61 / 18.55 is 11.1 %
    ("section 1", "GSM8K", "gain"): "11.1",  # 20.95 / 19.14 is 9.5 %, or 9.4 % before rounding
    ("section 4.1", "Alpaca", "SpecDec"): "17.58",  # Table 1: 17.62
}


def test_specdecpp_figures_of_the_text_follow_from_table_1():
    """Speedups are over 9.26 tokens/s, which is one token per stand-alone target forward."""
    low, high = bounds(cells("specdecpp", 2)["llama-2-chat 7B & 70B", "average", "stand-alone", "", "t_target"])
    assert 1 / high <= ALONE <= 1 / low
    table = throughputs(1)
    adaptive, fixed = table["SpecDec++", ""], table["SpecDec", ""]
    for task, ours, theirs in [("Alpaca", "2.04", "1.90"), ("HumanEval", "2.23", "2.00"), ("GSM8K", "2.26", "2.07")]:
        assert is_ratio(ours, adaptive[task], ALONE) and is_ratio(theirs, fixed[task], ALONE), task
    gains = {"abstract": ("7.2", "11.1", "9.4"), "section 1": ("7.2", "9.4", "11.1")}
    wrong = {
        (where, task, "gain"): gain
        for where, figures in gains.items()
        for task, gain in zip(DATASETS, figures, strict=True)
        if not is_ratio(str(1 + Decimal(gain) / 100), adaptive[task], fixed[task])
    }
    if fixed["Alpaca"] != "17.58":
        wrong["section 4.1", "Alpaca", "SpecDec"] = "17.58"
    assert wrong == SPECDECPP_DISCREPANCIES


def test_specdecpp_table_1_is_the_best_of_table_3():
    heads = throughputs(3)
    assert set(heads) == {("SpecDec++", f"weight={w};depth={d}") for w in (1, 3, 6, 12) for d in range(5)}
    best = {task: max((head[task] for head in heads.values()), key=Fraction) for task in DATASETS}
    assert best == throughputs(1)["SpecDec++", ""]
    # Section 5.3: one head reaches over 99.3 % of the best everywhere; section D.3: two heads do.
    near = {
        setting
        for (_, setting), head in heads.items()
        if all(Fraction(head[task]) > Fraction("0.993") * Fraction(best[task]) for task in DATASETS)
    }
    assert near == {"weight=3;depth=4", "weight=6;depth=3"}
    recommended = heads["SpecDec++", "weight=6;depth=3"]
    for task, speedup in {"Alpaca": "2.03", "HumanEval": "2.21", "GSM8K": "2.26"}.items():
        assert is_ratio(speedup, recommended[task], ALONE), task


def test_specdecpp_divergence_grows_with_the_weight():
    """Section D.3, and a guard against swapped rows: it holds for every depth."""
    printed = cells("specdecpp", 3)
    for depth, metric in itertools.product(range(5), ["train/KL", "eval/KL"]):
        column = [
            Fraction(printed["llama-2-chat 7B & 70B", "Alpaca", "SpecDec++", f"weight={w};depth={depth}", metric])
            for w in (1, 3, 6, 12)
        ]
        assert column == sorted(set(column)), (depth, metric)


def test_specdecpp_gains_on_gemma_follow_from_the_speedups():
    table = {(task, method, metric): text for (_, task, method, _, metric), text in cells("specdecpp", 4).items()}
    for task in DATASETS:
        gain = table[task, "SpecDec++", "relative improvement"]
        ratio = str(1 + Decimal(gain) / 100)
        assert is_ratio(ratio, table[task, "SpecDec++", "speedup"], table[task, "SpecDec", "speedup"]), task
