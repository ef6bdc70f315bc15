"""The CoS paper's tables next to ours, of made runs of the bundled pairs that stand for its own."""

from pathlib import Path
from typing import Any

import pytest
from cases import mostly_long
from papers_made import instead_of_decoding
from synthetic import SINGLE, Timed, timed_run

from specbench import config
from specbench.base import files
from specbench.config import SamplingSpec, load_pair
from specbench.papers import checks, missing_runs, published, reproduce
from specbench.papers.ours import Ours
from specbench.papers.reproduce import verdicts
from specbench.papers.side_by_side import side_by_side, written
from specbench.plan import Plan
from specbench.results.stored import StoredRun


@pytest.fixture(autouse=True)
def _few_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FEWEST_DOCUMENTS", 1)


GREEDY, DRAWN = SamplingSpec(), SamplingSpec(temperature=1.0)
TASKS = ["pocket_humaneval", "pocket_gsm8k", "pocket_mmlu", "pocket_cnndm"]
WE = {"ensemble": {}, "ensemble-parallel": {}, "cos-sd": {}, "cos[gamma=1]": {"gamma": 1}}
DUO = {"ensemble": {}, "ensemble-parallel": {}, "cos-sd": {}, "cos[gamma=5]": {"gamma": 5}, "cos-naive": {}}
CD = {
    "ensemble[combine=contrastive]": {},
    "ensemble-parallel[combine=contrastive]": {},
    "cos-sd[combine=contrastive]": {},
    "cos[combine=contrastive,gamma=5]": {"gamma": 5},
    "cos-naive[combine=contrastive]": {},
}
# Seconds for 4 tokens of each method, next to 1 s of the ensemble.
SECONDS = {"ensemble": 1.0, "ensemble-parallel": 1.6, "cos-sd": 0.8, "cos": 0.5, "cos-naive": 0.625}


def paper() -> published.Paper:
    (result,) = published.papers(["cos"])
    return result


def made(folder: Path, pair: str, methods: dict[str, dict[str, Any]], slower: float = 1.0, **plan: Any) -> StoredRun:
    """Ten documents a task: prefill 0.25 s for one token, then 4 tokens by every method in its SECONDS."""
    settings, result = {}, {}
    for name, changes in methods.items():
        method = name.partition("[")[0]
        contrastive = {"combine": "contrastive"} if "contrastive" in name else {}
        settings[name] = config.load_method(method).values | contrastive | changes
        seconds = SECONDS[method] * (slower if method.startswith("cos") else 1.0)
        drafts = {"cos": 3, "cos-sd": 4, "cos-naive": 5}  # of which one passes: no two methods decode alike
        result[name] = Timed(seconds, SINGLE if method.startswith("ensemble") else ((drafts[method], 1),) * 2)
    plan = {"pair": load_pair(pair).model_dump(mode="json"), "baseline": next(iter(methods)), **plan}
    return timed_run(folder, result, tasks=TASKS, documents=10, settings=settings, **plan)


def all_runs(folder: Path) -> list[StoredRun]:
    """The pairs differ in speed: CoS takes 1.5 times as long with three models, 0.8 times as long where greedy."""
    return [
        made(folder / "duo", "pocket-duo", DUO, temperature=1.0),
        made(folder / "trio", "pocket-trio", WE, 1.5, temperature=1.0),
        made(folder / "drawn", "pocket-contrast", CD, temperature=1.0),
        made(folder / "greedy", "pocket-contrast", CD, 0.8, temperature=0.0),
    ]


def ours_of(runs: list[StoredRun]) -> Ours:
    return Ours(runs, pair=load_pair("pocket"))


def test_what_the_cos_tables_ask_for() -> None:
    """Each method that Section 4.1 compares, on the pairs that stand for those of Tables 2, 3, 7 and 8."""
    pocket = load_pair("pocket")

    def asked(pair: str, tasks: list[str] = TASKS) -> dict[SamplingSpec, list[str]]:
        missing = missing_runs.needed([paper()], pocket, pair, set(tasks))
        return {sampling: [spec.name for spec in specs] for sampling, specs in missing.items()}

    assert asked("pocket") == {}
    assert asked("pocket-duo") == {DRAWN: [*DUO]}
    assert asked("pocket-trio") == {DRAWN: [*WE]}
    assert asked("pocket-contrast") == {GREEDY: [*CD], DRAWN: [*CD]}
    assert asked("pocket-duo-math") == {DRAWN: [*DUO]} and asked("pocket-contrast-early") == {
        GREEDY: [*CD],
        DRAWN: [*CD],
    }
    # without alternate proposals the paper has two of its pairs only
    assert asked("pocket-duo-experts") == {DRAWN: [name for name in DUO if name != "cos-naive"]}
    alone = [name for name in CD if not name.startswith(("cos-naive", "ensemble-parallel"))]
    assert asked("pocket-contrast-weak") == {GREEDY: alone, DRAWN: alone}
    # Tables 7 and 8 are on two tasks only
    assert asked("pocket-duo", ["pocket_mmlu"]) == {DRAWN: [name for name in DUO if name != "cos-naive"]}
    # a pair of the paper itself meets all of its tables
    large = load_pair("qwen2.5-3b-coder-3b")
    missing = missing_runs.needed([paper()], large, large.name, {"gsm8k"})
    assert {sampling: {spec.method for spec in specs} for sampling, specs in missing.items()} == {
        sampling: {"ensemble", "ensemble-parallel", "cos-sd", "cos", "cos-naive"} for sampling in (DRAWN, GREEDY)
    }


@pytest.mark.long
def test_the_lambdas_of_the_tables_are_equal_weights() -> None:
    figures = [figure for table in (2, 5, 7) for figure in paper().figures(table)]
    assert {figure.setting.partition("lambda=")[2].partition(";")[0] for figure in figures} == {"0.5", "1/3"}
    specs = [paper().method_spec(figure, "pocket-trio") for figure in figures]
    assert all(spec is not None and spec.values["weights"] is None for spec in specs)


def test_cells_of_the_cos_tables(tmp_path: Path) -> None:
    """End to end: ensemble 1.25 s for 5 tokens; CoS 0.75 s with two models, 1 s with three, 0.65 s where greedy."""
    ours = ours_of(all_runs(tmp_path))
    frame, notes = side_by_side(paper(), 2, ours)

    def cell(frame: Any, pair: str, **wanted: str) -> str:
        for name, value in {"task": "GSM8K", "our pair": pair, **wanted}.items():
            frame = frame[frame[name] == value]
        (text,) = frame.ours
        return text

    assert cell(frame, "pocket-duo", method="WE") == "1.00"
    assert cell(frame, "pocket-duo", method="WE-CoS") == "1.67 [1.67, 1.67]"
    assert cell(frame, "pocket-trio", method="WE-CoS") == "1.25 [1.25, 1.25]"
    assert cell(frame, "pocket-duo", method="WE-P") == "0.68 [0.68, 0.68]"  # 1.25 / 1.85
    assert cell(frame, "pocket-trio", method="WE-SD") == "0.86 [0.86, 0.86]"  # 1.25 / 1.45
    beside = frame[(frame.task == "MMLU") & (frame.method == "WE-CoS")].set_index("our pair")
    assert beside["Qwen-3b"]["pocket-duo"] == "1.42" and beside["Qwen-1.5b (3 Model)"]["pocket-duo"] == "-"
    assert beside.run["pocket-duo"] == "duo" and set(frame[frame["our pair"] == "pocket-duo-math"].ours) == {
        "not measured"
    }
    assert {f"pocket-duo-{name}: not the pair of any of these runs" for name in ("math", "experts")} <= set(notes)
    frame, _ = side_by_side(paper(), 3, ours)
    assert cell(frame, "pocket-contrast", method="CD-CoS", T="1") == "1.67 [1.67, 1.67]"
    assert cell(frame, "pocket-contrast", method="CD-CoS", T="0") == "1.92 [1.92, 1.92]"  # 1.25 / 0.65
    for table, method, expected in ((7, "WE-CoS w/o APF", "1.43"), (8, "CD-CoS w/o APF", "1.43")):
        frame, _ = side_by_side(paper(), table, ours)
        wanted = {"T": "1"} if table == 8 else {}
        pair = {7: "pocket-duo", 8: "pocket-contrast"}[table]
        assert cell(frame, pair, method=method, **wanted) == f"{expected} [{expected}, {expected}]"  # 1.25 / 0.875


@mostly_long("table", [5, 6], (5,))
def test_raw_speeds_count_the_prefill(tmp_path: Path, table: int) -> None:
    frame, _ = side_by_side(paper(), table, ours_of(all_runs(tmp_path)))
    facts = frame[frame.ours != "not measured"]
    assert set(facts["our pair"]) == ({"pocket-duo", "pocket-trio"} if table == 5 else {"pocket-contrast"})
    assert all(float(text) > 0 for text in facts.ours)


def test_what_was_measured_on_an_npu_is_not_met_by_runs_of_another_machine(tmp_path: Path) -> None:
    ours = ours_of([made(tmp_path / "math", "pocket-duo-math", DUO, temperature=1.0)])
    for table in (9, 10):
        frame, notes = side_by_side(paper(), table, ours)
        assert set(frame.ours) == {"not measured"} and "this table needs what is not here: an NPU" in notes
    by_name = {(verdict.table, verdict.claim): verdict for verdict in verdicts([paper()], ours)}
    claim = by_name[10, "CoS beats standard decoding on an NPU"]
    assert (claim.verdict, claim.detail) == ("not measured", "not here: an NPU")
    assert by_name[2, "CoS beats the standard weighted ensemble"].verdict == "holds"


@pytest.mark.long
def test_every_cos_table_is_written(tmp_path: Path) -> None:
    ours = ours_of(all_runs(tmp_path))
    for table in range(2, 11):
        markdown, latex = written(paper(), table, ours)
        assert markdown.count("\n| ") >= len(paper().figures(table)) / 4 and "bottomrule" in latex
        assert ("speedups are against ensemble" in markdown) == (table not in (5, 6, 9))


@pytest.mark.long
def test_the_claims_of_cos_are_checked_on_their_own_pairs(tmp_path: Path) -> None:
    ours = ours_of(all_runs(tmp_path))
    by_name = {(verdict.table, verdict.claim): verdict for verdict in verdicts([paper()], ours)}
    beats = by_name[2, "CoS beats the standard weighted ensemble"]
    assert beats.verdict == "holds" and beats.detail.count("×") == 8
    assert "pocket-duo pocket_gsm8k 1.67 × [1.67, 1.67]" in beats.detail
    assert "pocket-trio pocket_gsm8k 1.25 × [1.25, 1.25]" in beats.detail
    contrast = by_name[3, "CoS beats plain speculation on the contrast"]
    # greedy: 0.89 s (0.64 and the prefill) against 0.65 s; drawn: 1.05 s against 0.75 s
    assert "greedy pocket_gsm8k 1.37 ×" in contrast.detail and "T=1 pocket_gsm8k 1.40 ×" in contrast.detail
    assert by_name[3, "and so it is with contrastive decoding"].verdict == "holds"
    assert by_name[8, "and the contrast, in all but one cell"].verdict == "holds"
    opt = by_name[4, "CoS beats contrastive decoding with OPT"]
    assert (opt.verdict, opt.detail) == ("not measured", "none of its pairs is met by one of these runs")
    weak = ours_of([made(tmp_path / "weak", "pocket-contrast-weak", CD, temperature=0.0)])
    opt = {(verdict.table, verdict.claim): verdict for verdict in verdicts([paper()], weak)}
    assert opt[4, "CoS beats contrastive decoding with OPT"].verdict == "holds"
    order = by_name[2, "the order of methods by speed"]
    assert order.detail.startswith("Kendall's τ 1.00 [1.00, 1.00]") and order.data_sets == 8
    slow = [made(tmp_path / "slow", "pocket-duo", DUO, 4.0, temperature=1.0)]
    beats = {verdict.claim: verdict for verdict in verdicts([paper()], ours_of(slow))}[
        "CoS beats the standard weighted ensemble"
    ]
    assert beats.verdict == "fails" and beats.detail.count("×") == 4 and "pocket-duo" not in beats.detail


@pytest.mark.long
def test_both_combinations_on_one_pair_keep_their_own_ensembles(tmp_path: Path) -> None:
    """The weighted ensemble comes first, and neither is the other's baseline."""
    both = [
        made(tmp_path / "we", "pocket-contrast", WE | {"cos-naive": {}}, temperature=1.0),
        made(tmp_path / "cd", "pocket-contrast", CD, temperature=1.0),
    ]
    frame, _ = side_by_side(paper(), 8, ours_of(both))
    chosen = frame[(frame.task == "GSM8K") & (frame["T"] == "1") & (frame["our pair"] == "pocket-contrast")]
    assert chosen.ours.tolist() == ["1.43 [1.43, 1.43]", "1.67 [1.67, 1.67]"]
    by_name = {(verdict.table, verdict.claim): verdict for verdict in verdicts([paper()], ours_of(both))}
    claim = by_name[8, "and the contrast, in all but one cell"]
    assert claim.verdict == "holds" and "pocket_gsm8k 1.17 × [1.17, 1.17]" in claim.detail  # 0.875 / 0.75


def test_a_method_is_the_one_of_the_figures_that_the_pair_meets(tmp_path: Path) -> None:
    """Of the four sets of models in Table 2 only that of three names a gamma."""
    (own,) = ours_of([made(tmp_path / "trio", "pocket-trio", WE | {"cos": {}}, temperature=1.0)]).of_table(paper(), 2)
    assert own.method(paper(), 2, "cos") == "cos[gamma=1]"


def test_methods_with_other_baselines_are_not_compared_in_speed(tmp_path: Path) -> None:
    run = made(tmp_path / "a", "pocket-duo", DUO, temperature=1.0, baselines={"cos-sd": "ensemble-parallel"})
    by_name = {(verdict.table, verdict.claim): verdict for verdict in verdicts([paper()], ours_of([run]))}
    assert by_name[2, "CoS beats the standard weighted ensemble"].verdict == "holds"
    assert by_name[2, "CoS beats plain speculation on the ensemble"].verdict == "not measured"
    assert (2, "the order of methods by speed") not in by_name


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Nothing is decoded: the plans that are carried out, and the pairs that are loaded for them."""
    monkeypatch.chdir(tmp_path)
    asked: dict[str, list[Any]] = {"plans": [], "loaded": []}

    def carry_out(plan: Plan, folder: Path, pair: object) -> bool:
        asked["plans"].append(plan)
        folder.mkdir(parents=True)
        for name in ("samples", "rounds", "scores"):
            (folder / f"{name}.parquet").touch()
        facts = {key: {} for key in ("models", "inputs", "generation", "headline")}
        facts |= {"requests": [], "environment": {"device": "cpu"}}
        files.write_json(folder / "manifest.json", {"schema": 1, "plan": plan.model_dump(mode="json"), **facts})
        return True

    instead_of_decoding(monkeypatch, carry_out, lambda plan: asked["loaded"].append(plan.pair.name))
    monkeypatch.setattr(missing_runs.time, "strftime", lambda _: str(len(asked["plans"])))
    return asked


def test_cos_is_measured_on_its_own_pairs_against_the_ensemble(engine: dict[str, list[Any]]) -> None:
    first = missing_runs.measure([paper()], "pocket", None, 5)
    we, cd = (
        [name for name in DUO if name != "cos-naive"],
        [name for name in CD if not name.startswith(("cos-naive", "ensemble-parallel"))],
    )
    assert [(p.pair.name, p.suite, p.sampling, p.limit, [m.name for m in p.methods]) for p in engine["plans"]] == [
        ("pocket-duo-math", "cos-we", DRAWN, 5, [*DUO]),
        ("pocket-duo", "cos-we", DRAWN, 5, [*DUO]),
        ("pocket-duo-experts", "cos-we", DRAWN, 5, we),
        ("pocket-trio", "cos-we", DRAWN, 5, [*WE]),
        *((f"pocket-contrast{name}", "cos-we", how, 5, [*CD]) for name in ("", "-early") for how in (GREEDY, DRAWN)),
        *(("pocket-contrast-weak", "cos-we", how, 5, cd) for how in (GREEDY, DRAWN)),
    ]
    bases = ["ensemble"] * 4 + ["ensemble[combine=contrastive]"] * 6
    assert [(plan.baseline, plan.baselines) for plan in engine["plans"]] == [(base, {}) for base in bases]
    assert all([line.task for line in plan.tasks] == TASKS for plan in engine["plans"])
    assert engine["loaded"] == list(dict.fromkeys(plan.pair.name for plan in engine["plans"]))
    again = missing_runs.measure([paper()], "pocket", None, 5)
    assert len(engine["plans"]) == 10 and [run.folder for run in again] == [run.folder for run in first]


def test_only_what_is_drawn_is_decoded_again(engine: dict[str, list[Any]]) -> None:
    missing_runs.measure([paper()], "pocket", None, 5, repeats=3)
    assert {(plan.sampling, plan.repeats) for plan in engine["plans"]} == {(GREEDY, 1), (DRAWN, 3)}


def test_another_gamma_runs_that_method_alone(engine: dict[str, list[Any]]) -> None:
    missing_runs.measure([paper()], "pocket", None, 5)
    refs = dict(paper().methods)
    chosen = published.MethodChoice(method="cos", settings={"gamma": 3})
    refs["WE-CoS"] = refs["WE-CoS"].model_copy(update={"by_pair": refs["WE-CoS"].by_pair | {"pocket-duo": chosen}})
    missing_runs.measure([paper().model_copy(update={"methods": refs})], "pocket", None, 5)
    (plan,) = engine["plans"][10:]
    assert (plan.pair.name, [m.name for m in plan.methods]) == ("pocket-duo", ["ensemble", "cos[gamma=3]"])


def test_other_papers_stay_on_the_pair_that_was_asked_for(engine: dict[str, list[Any]]) -> None:
    missing_runs.measure(published.papers(), "pocket", None, 5)
    bases: dict[str, set[str]] = {}
    for plan in engine["plans"]:
        bases.setdefault(plan.pair.name, set()).add(plan.baseline)
        assert ("vanilla" in {spec.name for spec in plan.methods}) == (plan.pair.name in ("pocket", "pocket-large"))
    we = {name: {"ensemble"} for name in ("pocket-duo-math", "pocket-duo", "pocket-duo-experts", "pocket-trio")}
    names = ["pocket-contrast", "pocket-contrast-early", "pocket-contrast-weak"]
    contrast = {name: {"ensemble[combine=contrastive]"} for name in names}
    assert bases == {"pocket": {"vanilla"}, "pocket-large": {"vanilla"}, **we, **contrast}
    asked = len(engine["plans"])
    missing_runs.measure([paper()], "qwen2.5-3b-coder-3b", None, 5)  # a pair of the paper meets all of its tables
    new = engine["plans"][asked:]
    assert {plan.pair.name for plan in new} == {"qwen2.5-3b-coder-3b"}
    assert {(plan.baseline, plan.suite) for plan in new} == {
        (base, "csd") for base in ("ensemble", "ensemble[combine=contrastive]")
    }


@pytest.mark.long
def test_runs_of_several_pairs_are_told_apart(tmp_path: Path) -> None:
    runs = all_runs(tmp_path)
    out = {"suite": None, "limit": None, "check": False, "out": tmp_path / "out"}
    assert reproduce.tables([run.folder for run in runs], ["cos"], "pocket", **out) == 0
    assert "hold on pocket-duo, pocket-trio, pocket-contrast" in (tmp_path / "out" / "checks.md").read_text()
    plain = made(tmp_path / "large", "qwen2.5-3b-coder-3b", WE, temperature=1.0)
    with pytest.raises(config.UserError, match="tables need runs of one pair; these are of pocket-duo, qwen"):
        reproduce.tables([runs[0].folder, plain.folder], ["cos"], "pocket", **out)
    with pytest.raises(config.UserError, match="tables need runs of one pair; these are of pocket-duo, pocket-trio"):
        reproduce.tables([run.folder for run in runs[:2]], ["csd"], "pocket", **out)
    alone = Ours([runs[0]])  # of one pair: for every paper
    assert alone.pair == "pocket-duo" and side_by_side(paper(), 2, alone)[0].ours.str.contains("1.67").any()
