"""The papers' tables next to ours: hand-worked cells and verdicts of a made-up paper, and what is run for them."""

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml
from papers_made import instead_of_decoding, publish
from synthetic import CHAIN, SINGLE, Rows, Timed, timed_run

from specbench import config
from specbench.base import files
from specbench.base.folder import Folder, FolderFile
from specbench.config import SamplingSpec, UserError
from specbench.measure.prompts import NoDocuments
from specbench.papers import missing_runs, orders, published, reproduce
from specbench.papers.checks import Check, _lowers, difference, once, together
from specbench.papers.on_pair import MISSING
from specbench.papers.ours import Ours, name_of
from specbench.papers.published import Claim
from specbench.papers.side_by_side import side_by_side, written
from specbench.papers.stored import Stored
from specbench.papers.texts import ratio_text
from specbench.results import records
from specbench.results.stored import StoredRun

PAPER = {
    "paper": "paper",
    "title": "On guessing",
    "pairs": {"Big/Small": None},
    "tasks": {"Sums": "gsm8k", "Code": "humaneval", "Chess": None, "Avg.": None},
    "methods": {
        "Plain": {"method": "vanilla"},
        "Spec": {"method": "sps", "settings": {"gamma": 4}},
        "Calibrated": {"method": "csd"},
        "Magic": {"method": "telepathy"},
        "Draft": None,
    },
    "metrics": {"Acc": "accuracy", "Spd": "speedup_decode", "AR": "acceptance_rate", "Watts": None},
    "baseline": "vanilla",
    "tables": {1: {"title": "speed", "lost": ["the temperature"]}, 2: {"title": "against Spec", "baseline": "sps"}},
    "claims": [
        {"table": 1, "text": "Spec is faster", "metric": "speedup_decode", "higher": "sps", "lower": "vanilla"},
        {"table": 1, "text": "Plain is faster", "metric": "speedup_decode", "higher": "vanilla", "lower": "sps"},
        {"table": 1, "text": "Calibrated errs", "metric": "accuracy", "higher": "sps", "lower": "csd", "loss": True},
        {"table": 1, "text": "Calibrated accepts more", "metric": "acceptance_rate", "higher": "csd", "lower": "sps"},
        {"table": 1, "text": "Magic wins", "metric": "speedup_decode", "higher": "telepathy", "lower": "sps"},
        {"table": 1, "text": "in chess", "metric": "accuracy", "higher": "sps", "lower": "csd", "tasks": ["Chess"]},
    ],
}
POCKET = config.load_pair("pocket")
TASKS = {"pocket_gsm8k", "pocket_math500", "pocket_humaneval", "pocket_cnndm"}
HEADER = "paper,table,pair,task,temperature,method,setting,metric,value,unit"
TABLE_1 = f"""{HEADER}
paper,1,Big/Small,Sums,0,Plain,,Acc,50.0,%
paper,1,Big/Small,Sums,0,Plain,,Spd,1.00,x
paper,1,Big/Small,Sums,0,Spec,gpu=A6000,Spd,2.10,x
paper,1,Big/Small,Sums,0,Spec,,AR,61.5,%
paper,1,Big/Small,Sums,0,Spec,,Watts,300,W
paper,1,Big/Small,Sums,0,Spec,gamma=9,Spd,2.50,x
paper,1,Big/Small,Sums,0,Spec,judge=big,Spd,2.60,x
paper,1,Big/Small,Sums,0,Calibrated,,Spd,3.00,x
paper,1,Big/Small,Sums,1,Spec,,Spd,1.50,x
paper,1,Big/Small,Code,0,Spec,,Spd,2.20,x
paper,1,Big/Small,Chess,0,Spec,,Spd,2.30,x
paper,1,Big/Small,Sums,0,Magic,,Spd,9.90,x
paper,1,Big/Small,Avg.,0,Spec,,Spd,2.20,x
"""
TABLE_2 = f"""{HEADER}
paper,2,,Sums,,Spec,baseline=Spec,Spd,1.00,x
paper,2,,Sums,,Calibrated,baseline=Spec,Spd,1.20,x
"""


@pytest.fixture(autouse=True)
def paper(tmp_path, monkeypatch):
    publish(monkeypatch, tmp_path, PAPER, TABLE_1, TABLE_2)
    (result,) = published.papers()
    return result


def settings_of(name, **changes):
    return config.load_method(name).values | changes


def make_run(folder, *, times=(1.0, 0.5, 0.25), tasks=("pocket_gsm8k",), others=None, right=22, documents=30, **plan):
    """Thirty documents of 4 tokens: vanilla 1 s, sps 0.5 s, csd 0.25 s; sps accepts 2 of 6, csd 4 of 8.

    csd answers 22 of them, the others all.
    """
    names, shapes = ("vanilla", "sps[gamma=4]", "csd"), (SINGLE, CHAIN, ((4, 2),) * 2)
    methods = {
        name: Timed(
            lambda task, doc, at=at: (others or {}).get(task, times)[at], shapes[at], (documents, documents, right)[at]
        )
        for at, name in enumerate(names)
    }
    settings = {"sps[gamma=4]": settings_of("sps", gamma=4), "csd": settings_of("csd")}
    plan |= {"pair": config.load_pair("pocket").model_dump(mode="json"), "baseline": "vanilla"}
    return timed_run(folder, methods, tasks=tasks, documents=documents, settings=settings, **plan).folder


@pytest.fixture
def ours(tmp_path):
    return Ours([StoredRun(make_run(tmp_path / "run-a"))])


def ours_of(frame, **wanted):
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]["ours: pocket"]


def test_cells_by_hand(paper, ours):
    frame, notes = side_by_side(paper, 1, ours)
    assert ours_of(frame, method="Plain", metric="Acc") == "100.0 [88.6, 100.0]"  # Wilson: 30 / (30 + 1.96²)
    assert ours_of(frame, method="Plain", metric="Spd") == "1.00"
    assert ours_of(frame, task="Sums", T="0", method="Spec", setting="gpu=A6000") == "2.00 [2.00, 2.00]"
    assert ours_of(frame, method="Spec", metric="AR") == "33.3"
    # csd: 6 tokens in 0.25 s against 4 in 1 s
    assert ours_of(frame, method="Calibrated") == "6.00 [6.00, 6.00]"
    row = frame[frame.method == "Calibrated"].iloc[0]
    assert (row["Big/Small"], row["unit"], row["run"]) == ("3.00", "x", "run-a")
    assert "Sums is met by pocket_gsm8k" in notes


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"metric": "Watts"}, "Watts: no column of ours has this definition"),
        ({"setting": "gamma=9"}, "Spec: not in these runs"),
        ({"setting": "judge=big"}, "Spec with judge=big: no setting of ours"),
        ({"T": "1"}, "Spec: not in these runs"),
        ({"task": "Code"}, "Code: not a task of these runs"),
        ({"task": "Chess"}, "Chess: not a task of these runs"),
        ({"method": "Magic"}, "Magic: not a method of this version"),
        ({"task": "Avg."}, "Avg.: the paper averages over tasks that were not run"),
    ],
)
def test_what_was_not_measured_says_so(paper, ours, wanted, reason):
    frame, notes = side_by_side(paper, 1, ours)
    assert ours_of(frame, **wanted) == MISSING
    assert reason in notes


def test_a_table_against_another_baseline(paper, ours):
    frame, notes = side_by_side(paper, 2, ours)
    assert ours_of(frame, method="Spec") == "1.00"
    assert ours_of(frame, method="Calibrated") == "3.00 [3.00, 3.00]"  # 6 tokens in 0.25 s against 4 in 0.5 s
    assert "T" not in frame and "the paper" in frame
    assert "where the paper does not tell its temperature, ours is greedy" in notes


def test_an_average_over_the_same_tasks(paper, tmp_path, monkeypatch):
    kept = [line for line in TABLE_1.splitlines() if "Chess" not in line]
    (published.FOLDER / "paper-table1.csv").write_text("\n".join(kept) + "\n")
    both = Ours([StoredRun(make_run(tmp_path / "b", tasks=("pocket_gsm8k", "pocket_humaneval")))])
    frame, _ = side_by_side(paper, 1, both)
    assert ours_of(frame, task="Avg.") == "2.00 [2.00, 2.00]"


def test_an_average_leaves_out_tasks_that_the_table_does_not_have(paper, tmp_path, monkeypatch):
    kept = [line for line in TABLE_1.splitlines() if "Chess" not in line]
    (published.FOLDER / "paper-table1.csv").write_text("\n".join(kept) + "\n")
    tasks = ("pocket_gsm8k", "pocket_humaneval", "pocket_cnndm")
    slow = {"pocket_cnndm": (1.0, 4.0, 4.0)}
    frame, _ = side_by_side(paper, 1, Ours([StoredRun(make_run(tmp_path / "c", tasks=tasks, others=slow))]))
    assert ours_of(frame, task="Avg.") == "2.00 [2.00, 2.00]"


def test_files(paper, ours):
    markdown, latex = written(paper, 1, ours)
    assert markdown.startswith(
        "# paper, Table 1: speed\n\nOn guessing\n\n| task | T | method | setting | metric | unit |"
    )
    assert "lost in the paper's text: the temperature" in markdown
    assert "speedups are against vanilla" in markdown
    assert latex.count(r"\\") == 1 + 13 and r"\end{tabular}" in latex and "% Watts" in latex


def test_runs_of_two_pairs_are_refused(tmp_path):
    other = config.load_pair("pocket").model_copy(update={"name": "other"})
    run = make_run(tmp_path / "a")
    shutil.copytree(run, tmp_path / "b")
    second = StoredRun(tmp_path / "b")
    second.plan = second.plan.model_copy(update={"pair": other})
    with pytest.raises(UserError, match="one pair"):
        Ours([StoredRun(run), second])


def verdicts(paper, ours) -> dict[str, Check]:
    return {check.claim: check for check in reproduce.verdicts([paper], ours)}


def test_claims_by_hand(paper, ours):
    judged = verdicts(paper, ours)
    assert judged["Spec is faster"].verdict == "holds"
    assert judged["Spec is faster"].detail == "holds: pocket_gsm8k 2.00 × [2.00, 2.00]"
    assert judged["Plain is faster"].verdict == "fails"
    assert judged["Calibrated errs"].verdict == "holds"  # 8 of 30 documents worse, none better: p = 2 / 2^8
    assert "+26.7 points (p 0.008)" in judged["Calibrated errs"].detail
    assert judged["Calibrated accepts more"].verdict == "holds"
    assert "1.50 ×" in judged["Calibrated accepts more"].detail  # (4 / 8) / (2 / 6)
    assert judged["Magic wins"].verdict == judged["in chess"].verdict == "not measured"
    assert judged["Magic wins"].detail == "no telepathy in these runs"


def test_what_a_verdict_rests_on(paper, ours):
    judged = verdicts(paper, ours)
    speed, errs, order = (
        judged[name] for name in ("Spec is faster", "Calibrated errs", "the order of methods by speed")
    )
    assert (speed.method, speed.baseline, speed.data_sets, speed.documents) == ("sps[gamma=4]", "vanilla", 1, 30)
    assert (speed.bound, errs.bound) == ("95 % interval of the ratio, without 1", "p < 0.05")
    assert (order.data_sets, order.documents, order.bound) == (1, 30, "τ ≥ 0.8")


def test_too_few_documents_give_no_verdict(paper, tmp_path):
    few = verdicts(paper, Ours([StoredRun(make_run(tmp_path / "few", documents=19, right=15))]))
    enough = verdicts(paper, Ours([StoredRun(make_run(tmp_path / "enough", documents=20, right=15))]))
    for claim in ("Spec is faster", "the order of methods by speed"):
        assert (few[claim].verdict, enough[claim].verdict) == ("too few documents", "holds")


def in_batches_from(folder, first, methods):
    """As if these methods had decoded the documents from `first` on in batches, while others were timed alone."""
    samples = records.read_frame(folder / "samples.parquet")
    of_batch = samples.method.isin(methods) & (samples.doc_id >= first)
    samples["batch_seconds"] = samples.batch_seconds.astype(float).mask(of_batch, 0.1)
    samples.loc[of_batch, ["prefill_seconds", "decode_seconds"]] = np.nan
    records.write_table(FolderFile(Folder.at(folder), "samples.parquet"), records.rows_of(samples), records.SAMPLES)


def test_speeds_are_of_documents_that_were_timed_alone(paper, tmp_path):
    """Also where one of two methods could not be batched, and counts are of all documents."""
    folder = make_run(tmp_path / "run", documents=50, right=40)
    in_batches_from(folder, 30, ["vanilla", "csd"])
    judged = verdicts(paper, Ours([StoredRun(folder)]))
    assert judged["Spec is faster"].detail == "holds: pocket_gsm8k 2.00 × [2.00, 2.00]"
    assert (judged["Spec is faster"].documents, judged["the order of methods by speed"].documents) == (30, 30)
    assert judged["the order of methods by speed"].verdict == "holds"
    assert (judged["Calibrated accepts more"].documents, judged["Calibrated errs"].documents) == (50, 50)
    in_batches_from(folder, 10, ["sps[gamma=4]"])
    few = verdicts(paper, Ours([StoredRun(folder)]))["Spec is faster"]
    assert (few.verdict, few.documents) == ("too few documents", 10)


def test_a_comparison_with_what_collapsed_is_void(paper, tmp_path):
    """Of 30 documents csd answers 20, less than 0.7 of them; that it errs is still a claim that can hold."""
    judged = verdicts(paper, Ours([StoredRun(make_run(tmp_path / "broken", right=20))]))
    assert judged["Calibrated accepts more"].verdict == "void"
    assert judged["Calibrated accepts more"].detail.endswith("where csd collapsed")
    assert (judged["Calibrated errs"].verdict, judged["Spec is faster"].verdict) == ("holds", "holds")
    assert "the order of methods by speed" not in judged, "only two methods are left to be ranked"


def test_tasks_count_alike_however_many_documents_they_have():
    """One of two documents is solved next to the other's, and three of four are not: the mean of 1/2 and -3/4."""
    scores = [([1.0, 1.0], [0.0, 1.0]), ([0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0])]
    pairs = [tuple(pd.DataFrame({"score": column}) for column in pair) for pair in scores]
    assert difference(pairs).value == pytest.approx((0.5 - 0.75) / 2)
    assert difference(pairs[1:]).value == -0.75


def test_a_data_set_counts_once():
    """A mixture leaves out what stands alone, under the same sampling; the same place twice is one."""
    mixture = ("greedy", "Mixed", ("a", "b", "c"))
    assert once(iter([("greedy", "a", ("a",)), mixture, ("greedy", "a", ("a",)), ("T=1", "b", ("b",))])) == [
        ("greedy", "a", ("a",)),
        ("greedy", "Mixed (the average of 2 tasks)", ("b", "c")),
        ("T=1", "b", ("b",)),
    ]
    assert once(iter([mixture, *(("greedy", task, (task,)) for task in "abc")])) == [
        ("greedy", task, (task,)) for task in "abc"
    ]


def test_columns_that_one_data_set_of_ours_stands_for_are_one(paper, ours):
    """The same order printed again for other sums, and once turned round: τ is 1 and -1, of one data set."""
    again = paper.model_copy(update={"tasks": {**paper.tasks, "More sums": "gsm8k"}})
    with (published.FOLDER / "paper-table1.csv").open("a") as table:
        for name, value in (("Plain", 3), ("Spec", 2), ("Calibrated", 1)):
            table.write(f"paper,1,Big/Small,More sums,0,{name},,Spd,{value},x\n")
    order = verdicts(again, ours)["the order of methods by speed"]
    assert (order.data_sets, order.verdict) == (1, "fails")
    assert order.detail.startswith("Kendall's τ 0.00 [0.00, 0.00]")


def test_what_does_not_rank_is_left_out_with_its_reason(paper, ours):
    table = paper.tables[1].model_copy(update={"unranked": {"Spec": "trained for longer"}})
    unranked = paper.model_copy(update={"tables": {**paper.tables, 1: table}})
    assert "the order of methods by speed" not in verdicts(unranked, ours), "two methods are no order"


def four_methods(folder, *, fifth=CHAIN, longer_differs=0, documents=30):
    """vanilla, sps at γ = 4 and 5, and csd; sps at γ = 5 takes the rounds of γ = 4 but on its first documents."""
    names = {"vanilla": (1.0, SINGLE), "sps[gamma=4]": (0.5, CHAIN), "csd": (0.25, ((4, 2),) * 2)}
    rows = Rows()
    for doc in range(documents):
        longer = (0.45, ((5, 1),) * 2 if doc < longer_differs else fifth)
        for name, (seconds, shapes) in (names | {"sps[gamma=5]": longer}).items():
            rows.add(name, doc, seconds, shapes, task="pocket_gsm8k")
    settings = {f"sps[gamma={gamma}]": settings_of("sps", gamma=gamma) for gamma in (4, 5)}
    return rows.run(
        folder,
        pair=POCKET.model_dump(mode="json"),
        baseline="vanilla",
        settings=settings | {"csd": settings_of("csd")},
    )


def with_longer(paper):
    """The paper with a row of its own for γ = 5, and a claim about it."""
    longer = published.MethodRef(method="sps", settings={"gamma": 5})
    with (published.FOLDER / "paper-table1.csv").open("a") as table:
        table.write("paper,1,Big/Small,Sums,0,Longer,,Spd,2.5,x\n")
        table.write("paper,1,Big/Small,Sums,0,Spec,gamma=5,AR,50,%\n")
    claims = [
        published.Claim(
            table=1, text=f"{metric} of more", metric=metric, higher="sps", lower="sps", higher_setting="gamma=5",
            lower_setting="" if metric == "acceptance_rate" else "gpu=A6000", same_rounds=same,
        )
        for metric, same in (("acceptance_rate", False), ("acceptance_rate", True))
    ]  # fmt: skip
    claims[1] = claims[1].model_copy(update={"text": "the same rounds"})
    return paper.model_copy(update={"methods": {**paper.methods, "Longer": longer}, "claims": claims})


@pytest.mark.parametrize(("differs", "verdict"), [(0, "void"), (1, "void"), (2, "undecided"), (30, "fails")])
def test_a_claim_between_methods_that_decode_alike_is_void(paper, tmp_path, differs, verdict):
    """Of 30 documents 5 % are one and a half: with one that differs nothing is said, with two the ratio decides."""
    judged = verdicts(with_longer(paper), Ours([four_methods(tmp_path / "run", longer_differs=differs)]))
    claim = judged["acceptance_rate of more"]
    assert claim.verdict == verdict
    assert (f"alike: {differs} of 30 documents differ" in claim.detail) == (verdict == "void")
    assert "alike" not in judged["the same rounds"].detail, "a claim about what the same rounds cost"


def test_passes_over_the_documents_do_not_make_methods_differ(paper, tmp_path):
    """Two runs of sps at γ = 4, and one at γ = 5 with the same rounds."""
    whole, again = four_methods(tmp_path / "run"), make_run(tmp_path / "again")
    claim = verdicts(with_longer(paper), Ours([whole, StoredRun(again)]))["acceptance_rate of more"]
    assert (claim.verdict, "0 of 30 documents differ" in claim.detail) == ("void", True)


def test_one_policy_under_two_names_is_not_told_apart(paper, tmp_path):
    """γ = 5 with the rounds of γ = 4 is 1.11 times as fast; that says nothing of a draft length, so τ is not known."""
    paper = with_longer(paper)
    same = verdicts(paper, Ours([four_methods(tmp_path / "same")]))["the order of methods by speed"]
    assert (same.verdict, same.tests) == ("undecided", 6)
    assert same.detail.startswith(
        "Kendall's τ 1.00 [0.67, 1.00], 5 of 6 pairs of methods significantly different; csd, sps[gamma=4]"
    )
    other = verdicts(paper, Ours([four_methods(tmp_path / "other", fifth=((5, 1),) * 2)]))
    assert other["the order of methods by speed"].verdict == "holds"


def test_an_order_of_methods_that_are_not_told_apart_is_void(paper, tmp_path):
    """Two methods take 0.5 s and 1.5 s by turns, a third one 0.97 s: their sums stand as in the paper, by chance."""
    methods = {
        "vanilla": Timed(lambda task, doc: 1.5 if doc % 2 else 0.5, SINGLE),
        "sps[gamma=4]": Timed(lambda task, doc: 0.49 if doc % 2 else 1.49),
        "csd": Timed(0.97, ((4, 1),) * 2),
    }
    settings = {"sps[gamma=4]": settings_of("sps", gamma=4), "csd": settings_of("csd")}
    plan = {"pair": POCKET.model_dump(mode="json"), "baseline": "vanilla", "settings": settings}
    ours = Ours([timed_run(tmp_path / "run", methods, tasks=("pocket_gsm8k",), documents=30, **plan)])
    order = verdicts(paper, ours)["the order of methods by speed"]
    assert order.verdict == "void"
    assert order.detail.startswith("Kendall's τ 1.00 [-1.00, 1.00], 0 of 3 pairs of methods significantly different")


@pytest.mark.parametrize(
    ("ps", "verdict", "apart"), [((0.02, 0.03, 0.04), "void", 0), ((0.01, 0.02, 0.04), "holds", 3)]
)
def test_pairs_of_methods_are_told_apart_after_holms_correction(paper, ps, verdict, apart):
    """Of three tests the smallest p counts threefold, the next twofold."""
    names = [("a", "b"), ("a", "c"), ("b", "c")]
    pairs = [orders.Two(two, 1, 1, p, 30) for two, p in zip(names, ps, strict=True)]
    place = ("pocket", "greedy", ("pocket_gsm8k",), "speedup_decode")
    check = orders._order(paper, 1, "speed", {place: [pairs]}, "")
    assert check.verdict == verdict and f"{apart} of 3 pairs of methods significantly different" in check.detail


def test_a_claim_that_cannot_be_told(paper, tmp_path):
    even = Ours([StoredRun(make_run(tmp_path / "even", times=(1.0, 1.0, 1.0)))])
    assert verdicts(paper, even)["Spec is faster"].verdict == "undecided"


def test_a_claim_that_holds_on_some_tasks(paper, tmp_path):
    one = StoredRun(make_run(tmp_path / "one"))
    other = StoredRun(make_run(tmp_path / "two", times=(1.0, 4.0, 0.25), tasks=("pocket_humaneval",)))
    judged = verdicts(paper, Ours([one, other]))["Spec is faster"]
    assert judged.verdict == "holds on 1 of 2, fails on 1"
    assert "holds: pocket_gsm8k" in judged.detail and "fails: pocket_humaneval" in judged.detail


@pytest.mark.parametrize(
    ("counts", "everywhere", "verdict"),
    [
        ({"holds": 3, "fails": 0}, False, "holds"),
        ({"holds": 2, "void": 2}, False, "holds on 2 of 4, void on 2"),
        ({"holds": 2, "undecided": 6}, False, "holds on 2 of 8, undecided on 6"),
        ({"fails": 3, "undecided": 2}, True, "fails on 3 of 5, undecided on 2"),
        ({"holds": 4, "fails": 1}, True, "fails on 1 of 5, holds on 4"),
        ({"holds": 4, "fails": 1}, False, "holds on 4 of 5, fails on 1"),
        ({"fails": 3, "void": 2}, True, "fails on 3 of 5, void on 2"),
        ({"holds": 3, "undecided": 2}, True, "holds on 3 of 5, undecided on 2"),
        ({"void": 1, "too few documents": 1}, False, "void on 1 of 2, too few documents on 1"),
    ],
)
def test_one_verdict_of_several(counts, everywhere, verdict):
    assert together(counts, everywhere) == verdict


def test_a_bound_that_is_not_1_is_not_printed_as_1():
    assert ratio_text(0.99, 0.98, 0.99962) == "0.9900 [0.9800, 0.9996]"
    assert ratio_text(1.2, 1.0, 1.4, " ×") == "1.20 × [1.00, 1.40]"
    assert ratio_text(1.0, 0.99, 1.01) == "1.00 [0.99, 1.01]"


def judged(paper, ours, **claim):
    """The check of one claim."""
    claim = Claim(
        **{"table": 1, "text": "it is so", "metric": "speedup_decode", "higher": "csd", "lower": "sps"} | claim
    )
    return verdicts(paper.model_copy(update={"claims": [claim]}), ours)["it is so"]


def test_the_best_variant_of_a_rival_counts(paper, ours):
    """Spec is twice as fast as the plain target, and a third as fast as another variant of its rival."""
    alone, both = (judged(paper, ours, higher="sps", lower="vanilla", rivals=rivals) for rivals in ([], ["csd"]))
    assert alone.verdict == "holds" and (both.verdict, both.baseline) == ("fails", "vanilla, csd")
    assert both.detail.startswith("fails: pocket_gsm8k (against csd) 0.33 ×")
    missing = judged(paper, ours, higher="sps", lower="vanilla", rivals=["pld"])
    assert (missing.verdict, missing.detail) == (MISSING, "no pld in these runs")


def test_a_rival_with_the_name_of_the_tables_method_stands_next_to_it(paper):
    """The table has Spec at 4 tokens a draft; `sps` by itself drafts 6, and which of the two is faster counts."""
    labels = {"sps[gamma=4]": "sps[gamma=4]", "sps": "sps"}
    pair = SimpleNamespace(method=lambda *_: "sps[gamma=4]", label=lambda spec: labels[spec.name])
    claim = Claim(table=1, text="", metric="speedup_decode", higher="csd", lower="sps", rivals=["sps"])
    assert _lowers(pair, paper, claim) == [("sps", "sps[gamma=4]"), ("sps", "sps")]


def test_a_claim_compares_at_equal_settings_or_not_at_all(paper, ours):
    same, other = (judged(paper, ours, lower_with={"gamma": gamma}) for gamma in (4, 9))
    assert (same.verdict, same.baseline) == ("holds", "sps[gamma=4]")
    assert (other.verdict, other.detail) == (MISSING, "no sps[gamma=9] in these runs")
    claim = Claim(table=1, text="", metric="tau", higher="csd", lower="sps", lower_with={"gamma": 12}, rivals=["pld"])
    needed = missing_runs.needed([paper.model_copy(update={"claims": [claim]})], POCKET, "pocket", {"pocket_gsm8k"})
    assert {"sps[gamma=12]", "pld"} <= {spec.name for spec in needed[SamplingSpec()]}


def test_what_nothing_here_has_is_not_measured(paper, ours):
    check = judged(paper, ours, needs="a target of 70B")
    assert (check.verdict, check.detail) == (MISSING, "not here: a target of 70B")


@pytest.mark.parametrize(
    ("slower", "detail", "ranked"),
    [
        (1.2, "holds: pocket_gsm8k 3.00 × [3.00, 3.00]", 3),
        (
            10,
            "void: pocket_gsm8k 3.00 × [3.00, 3.00], where the baseline of one is 10.0 × as fast as that of the other",
            2,
        ),
    ],
)
def test_methods_of_other_runs_compare_by_their_own_baselines(paper, tmp_path, slower, detail, ranked):
    """A second run, slower throughout, in which csd alone was measured next to vanilla; too slow, it tells nothing."""
    slow = make_run(tmp_path / "slow", times=(slower, slower / 2, slower / 4))
    first, second = make_run(tmp_path / "first"), slow
    for folder, gone in ((first, "csd"), (second, "sps[gamma=4]")):
        for name in ("samples", "rounds", "scores"):
            frame = pd.read_parquet(folder / f"{name}.parquet")
            frame[frame.method != gone].to_parquet(folder / f"{name}.parquet")
    both = Ours([StoredRun(first), StoredRun(second)])
    assert judged(paper, both).detail == detail
    of_paper = verdicts(paper, both)
    assert of_paper["Spec is faster"].detail == "holds: pocket_gsm8k 2.00 × [2.00, 2.00]"
    order = f"Kendall's τ 1.00 [1.00, 1.00], {ranked} of {ranked} pairs"
    assert of_paper["the order of methods by speed"].detail.startswith(order)


def test_a_claim_is_judged_within_the_run_that_timed_both(paper, tmp_path):
    """A second run timed sps, too, at its baseline's speed; csd, its rival, is of the first run alone."""
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second", times=(1.0, 1.0, 0.25))
    for name in ("samples", "rounds", "scores"):
        frame = pd.read_parquet(second / f"{name}.parquet")
        frame[frame.method != "csd"].to_parquet(second / f"{name}.parquet")
    alone, both = (Ours([StoredRun(folder) for folder in folders]) for folders in ([first], [first, second]))
    assert judged(paper, both).detail == judged(paper, alone).detail == "holds: pocket_gsm8k 3.00 × [3.00, 3.00]"


def test_orders(paper, tmp_path, ours):
    """Published: Plain 1, Spec 2.1, Calibrated 3; ours the same, then turned round."""
    assert verdicts(paper, ours)["the order of methods by speed"].detail.startswith("Kendall's τ 1.00 [1.00, 1.00]")
    turned = verdicts(paper, Ours([StoredRun(make_run(tmp_path / "t", times=(1.0, 2.0, 8.0)))]))
    assert verdicts(paper, ours)["the order of methods by speed"].verdict == "holds"
    assert turned["the order of methods by speed"].verdict == "fails"
    assert turned["the order of methods by speed"].detail.startswith("Kendall's τ -1.00")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Runs are made up instead of measured; the plans that were asked for."""
    monkeypatch.chdir(tmp_path)
    plans = []

    def carry_out(plan, folder, pair):
        plans.append(plan)
        if folder.exists():
            shutil.rmtree(folder)
        make_run(folder, tasks=tuple(line.task for line in plan.tasks))
        data = yaml.safe_load((folder / "manifest.json").read_text())
        asked = plan.model_dump(mode="json")
        others = [one for one in data["plan"]["methods"] if one["name"] not in {spec.name for spec in plan.methods}]
        data["plan"] = asked | {"methods": [*asked["methods"], *others]}  # a made-up run has rows of them too
        files.write_json(folder / "manifest.json", data)
        return True

    instead_of_decoding(monkeypatch, carry_out, lambda plan: object())
    return plans


def test_only_what_is_missing_is_run(paper, engine):
    assert {
        t.name: [s.name for s in specs] for t, specs in missing_runs.needed([paper], POCKET, "pocket", TASKS).items()
    } == {
        "greedy": ["vanilla", "sps[gamma=4]", "sps[gamma=9]", "csd"],
        "T=1": ["sps[gamma=4]"],
    }
    first = missing_runs.measure([paper], "pocket", "pocket", 5)
    assert [(p.temperature, [m.name for m in p.methods]) for p in engine] == [
        (0.0, ["vanilla", "sps[gamma=4]", "sps[gamma=9]", "csd"]),
        (1.0, ["vanilla", "sps[gamma=4]"]),
    ]
    again = missing_runs.measure([paper], "pocket", "pocket", 5)
    assert len(engine) == 2 and [r.folder for r in again] == [r.folder for r in first]
    lines = (published.FOLDER / "paper-table2.csv").read_text() + "paper,2,,Sums,,Spec,gamma=7,Spd,1.00,x\n"
    (published.FOLDER / "paper-table2.csv").write_text(lines)
    missing_runs.measure([paper], "pocket", "pocket", 5)
    assert [m.name for m in engine[2].methods] == ["vanilla", "sps[gamma=7]"] and len(engine) == 3
    missing_runs.measure([paper], "pocket", "pocket", 6)  # other documents: all of it again
    assert len(engine) == 5


def test_methods_are_run_on_the_tasks_that_their_tables_ask_for(paper, engine):
    """Words is asked of one method only, by a table of its own, which a second suite serves."""
    about = yaml.safe_load((published.FOLDER / "paper.yaml").read_text())
    about["tasks"]["Words"] = "ifeval"
    (published.FOLDER / "paper.yaml").write_text(yaml.safe_dump(about))
    lines = (published.FOLDER / "paper-table2.csv").read_text() + "paper,2,,Words,,Spec,gamma=7,Spd,1.00,x\n"
    (published.FOLDER / "paper-table2.csv").write_text(lines)
    (paper,) = published.papers(["paper"])
    greedy = SamplingSpec()
    assert [s.name for s in missing_runs.needed([paper], POCKET, "pocket", {"pocket_ifeval"})[greedy]] == [
        "sps[gamma=7]"
    ]
    assert "sps[gamma=7]" not in [s.name for s in missing_runs.needed([paper], POCKET, "pocket", TASKS)[greedy]]
    missing_runs.measure([paper], "pocket", None, 5)
    assert [(p.suite, p.temperature, len(p.methods)) for p in engine] == [
        ("pocket", 0.0, 4),
        ("pocket", 1.0, 2),
        ("csd-generality", 0.0, 2),
    ]


def test_runs_are_drawn_as_the_papers_say_whatever_their_suite_says(paper, engine):
    """The suite samples with top-k 50; the paper names temperatures in Table 1, and one for all of Table 2."""
    about = PAPER | {"sampling": {"temperature": 0.5, "top_k": 7}}
    (published.FOLDER / "paper.yaml").write_text(yaml.safe_dump(about))
    missing_runs.measure(published.papers(["paper"]), "pocket", "specdecpp", 5)
    assert [(p.temperature, p.top_k) for p in engine] == [(0.0, 0), (1.0, 0), (0.5, 7)]


def test_what_a_real_pair_lacks_is_named_and_left_out(paper, engine, monkeypatch, capsys):
    """A task without documents, and a method without its head; all else is run."""

    def documents(plan, pair):
        if plan.tasks[0].task == "humaneval":
            raise NoDocuments("humaneval: the hub cannot be reached")

    def build(spec, pair):
        if spec.method == "csd":
            raise UserError("no head of csd ships with this pair; train one")

    monkeypatch.setattr(missing_runs, "load_tasks", documents)
    monkeypatch.setattr(missing_runs.prepare, "build_alone", build)
    missing_runs.measure([paper], "smollm2", "csd", 5)
    said = " ".join(capsys.readouterr().out.split())
    assert "left out: humaneval: the hub cannot be reached" in said
    assert "left out: csd: no head of csd ships with this pair; train one" in said
    assert [(p.temperature, [m.name for m in p.methods]) for p in engine] == [
        (0.0, ["vanilla", "sps[gamma=4]", "sps[gamma=9]"]),
        (1.0, ["vanilla", "sps[gamma=4]"]),
    ]
    assert [line.task for line in engine[0].tasks] == ["gsm8k", "minerva_math500", "cnn_dailymail_abisee"]


def test_a_pair_without_any_documents_is_told_where_to_put_some(paper, engine, monkeypatch):
    def documents(plan, pair):
        raise NoDocuments(f"{plan.tasks[0].task}: put it in a folder")

    monkeypatch.setattr(missing_runs, "load_tasks", documents)
    with pytest.raises(UserError, match=r"^none of these tasks has documents here: gsm8k: put it in a folder$"):
        missing_runs.measure([paper], "smollm2", "csd", 5)


def test_an_unfinished_run_goes_on(paper, engine):
    runs = missing_runs.measure([paper], "pocket", "pocket", 5)
    (runs[0].folder / "scores.parquet").unlink()
    again = missing_runs.measure([paper], "pocket", "pocket", 5)
    assert len(engine) == 3 and engine[2] == engine[0]
    assert sorted(r.folder for r in again) == sorted(r.folder for r in runs)


def test_the_command(paper, engine, tmp_path, capsys):
    options = {"pair": "pocket", "suite": None, "limit": 5, "check": True, "out": tmp_path / "tables"}
    assert reproduce.tables([], ["paper"], **options) == 0
    assert {p.name for p in (tmp_path / "tables").iterdir()} == {
        "checks.md",
        "documents.parquet",
        "figures.csv",
        *(f"paper-table{n}.{suffix}" for n in (1, 2) for suffix in ("md", "tex")),
    }
    printed = capsys.readouterr().out
    assert "Spec is faster" in printed and "2 tables" in printed
    assert max(len(line) for line in printed.splitlines() if str(tmp_path) not in line) <= 80
    with pytest.raises(UserError, match="there are paper"):
        reproduce.tables([], ["papyrus"], **options)


def test_a_run_that_keeps_its_prompts_is_no_folder_of_tables(paper, tmp_path):
    """Prompts are kept in a file of the same name."""
    folder = make_run(tmp_path / "run")
    (folder / "documents.parquet").write_bytes(b"prompts")
    assert reproduce.tables([folder], None, "pocket", None, None, False, tmp_path / "tables") == 0
    assert (tmp_path / "tables" / "paper-table1.md").exists()


def test_verdicts_come_again_from_the_stored_documents(paper, tmp_path, monkeypatch):
    """Of two runs in which one method stands twice, some texts in batches, and a figure of a file."""
    first, second = make_run(tmp_path / "first"), make_run(tmp_path / "second", times=(1.0, 0.6, 0.3))
    for folder in (first, second):
        in_batches_from(folder, 25, ["vanilla", "sps[gamma=4]", "csd"])
    facts = {"table": 1, "text": "watts", "metric": "Watts", "above": 200.0}
    about = PAPER | {"cell_claims": [facts]}
    (published.FOLDER / "paper.yaml").write_text(yaml.safe_dump(about))
    out, again = tmp_path / "tables", tmp_path / "again"
    path = tmp_path / "measured" / "watts.csv"
    path.parent.mkdir()
    path.write_text(f"{HEADER},low,high\npaper,1,pocket,pocket_gsm8k,0,Spec,,Watts,310,W,290,330\n")
    (out).mkdir()
    ours = Ours([StoredRun(first), StoredRun(second)], files=[path])
    records.write_frame(out / "documents.parquet", ours.every_document())
    shutil.copy(path, out / "figures.csv")
    expected = {verdict.claim: verdict for verdict in reproduce.verdicts(published.papers(), ours)}
    assert (
        expected["Spec is faster"].documents == 25
        and expected["watts"].verdict == "holds"
        and expected["Spec is faster"].verdict == "holds"
    )
    assert reproduce.tables([out], None, "pocket", None, None, False, again) == 0
    by_name = {
        verdict.claim: verdict for verdict in reproduce.verdicts(published.papers(), Stored(out, published.papers()))
    }
    assert by_name == expected
    for claim, check in expected.items():
        assert f"| {claim} | {check.verdict} |" in (again / "checks.md").read_text()
    (of_runs,) = published.papers()
    table = (again / "paper-table1.md").read_text()
    assert table == written(of_runs, 1, ours)[0].replace("watts.csv", "figures.csv")
    assert "310 [290, 330]" in table and "first, second" in table
    rules = " ".join((again / "checks.md").read_text().split())
    assert "What a method's brackets leave out it has as it ships: γ 6 of csd. " in rules
    # A run after the folder takes the place of the stored one of its name, and a file that of the figures of its table.
    monkeypatch.setattr(reproduce, "MEASURED", path.parent)
    path.write_text(path.read_text().replace("310,W,290,330", "410,W,390,430"))
    shutil.rmtree(second)
    changed = make_run(second, times=(1.0, 0.5, 0.125))
    in_batches_from(changed, 25, ["vanilla", "sps[gamma=4]", "csd"])
    added = tmp_path / "added"
    assert reproduce.tables([out, changed], None, "pocket", None, None, False, added) == 0
    whole = Ours([StoredRun(first), StoredRun(changed)], files=[path])
    assert (added / "paper-table1.md").read_text() == written(of_runs, 1, whole)[0]
    assert "410 [390, 430]" in (added / "paper-table1.md").read_text()
    assert reproduce.tables([added], None, "pocket", None, None, False, again) == 0  # all of it is stored
    assert "410 [390, 430]" in (again / "paper-table1.md").read_text()
    assert (again / "checks.md").read_text() == (added / "checks.md").read_text()


def test_stored_documents_know_a_method_by_its_settings():
    """`--set` leaves a method's name as it is, and rows of two draft lengths must not become one method's."""
    plain, longer = config.load_method("sps"), {"gamma": config.Setting(value=9, source="user")}
    changed = config.override(plain, longer)
    assert changed.name == "sps" and name_of(changed) == "sps[gamma=9]" == name_of(config.variant(plain, longer))
    assert name_of(plain) == "sps" and name_of(changed.model_copy(update={"name": "mine"})) == "mine"


@pytest.mark.long
def test_the_shipped_verdicts_are_those_of_the_shipped_documents(tmp_path, monkeypatch):
    monkeypatch.undo()
    tables = published.FOLDER.parent / "tables"
    assert reproduce.tables([tables], None, "pocket", None, None, False, tmp_path) == 0
    assert (tmp_path / "checks.md").read_text() == (tables / "checks.md").read_text()
    for path in tables.glob("*-table*"):
        assert (tmp_path / path.name).read_text() == path.read_text(), path.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="A"), "has no column 'A'"),
        (lambda rows: rows.assign(decode="long"), "its column 'decode' is"),
        (lambda rows: rows.iloc[:0], "has no documents"),
        (lambda rows: rows.assign(task=None), "has no documents, or some without a pair, sampling, task or method"),
        (lambda rows: rows.assign(pair="nothing"), "nothing"),
    ],
)
def test_documents_of_another_form_are_refused(paper, ours, tmp_path, change, message):
    records.write_frame(tmp_path / "documents.parquet", change(ours.every_document()))
    with pytest.raises(UserError, match=message):
        Stored(tmp_path, [paper])


@pytest.mark.long
def test_every_shipped_table_can_be_written(tmp_path, monkeypatch):
    """And no cell of ours is filled from the paper: methods that were not run stay `not measured`."""
    monkeypatch.undo()
    ours = Ours([StoredRun(make_run(tmp_path / "run"))])
    for paper in published.papers():
        for table in paper.tables:
            if figures := paper.figures(table):
                frame, _ = side_by_side(paper, table, ours)
                (mine,) = (column for column in frame if column.partition(":")[0] == "ours")
                measured = frame[frame[mine] != MISSING]
                assert set(measured.method) <= {"Vanilla Decoding", "CSD", "Target only", "stand-alone"}
                assert len(frame) <= len(figures)
        assert reproduce.verdicts([paper], ours)
