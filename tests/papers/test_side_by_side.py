"""A paper's tables next to ours where a task is met by several, texts were sampled, or figures come from files."""

import os
from pathlib import Path

import pandas as pd
import pytest
import yaml
from cases import mostly_long
from papers_made import publish
from synthetic import CHAIN, SINGLE, Timed, timed_run

from specbench import config
from specbench.config import SamplingSpec, UserError
from specbench.papers import checks, missing_runs, published, reproduce
from specbench.papers.on_pair import MISSING
from specbench.papers.ours import Ours
from specbench.papers.reproduce import verdicts
from specbench.papers.side_by_side import side_by_side

POCKET = [f"pocket_{family}" for family in ("gsm8k", "math500", "humaneval", "cnndm", "ifeval", "ruler")]
DRAWN = {"temperature": 1.0, "top_k": 50}
PAPER = {
    "paper": "paper",
    "title": "On mixing",
    "pairs": {},
    "sampling": DRAWN,
    "tasks": {"Mix": "alpaca", "Sums": "gsm8k", "average": None},
    "methods": {
        "Plain": {"method": "vanilla"},
        "Fixed": {"method": "sps", "settings": {"gamma": 4}},
        "Adaptive": {"method": "csd", "settings": {"gamma": 9}, "by_pair": {"pocket": {"method": "csd-pocket"}}},
    },
    "metrics": {"Acc": "accuracy", "Spd": "speedup_decode", "gain": None, "t": None, "KL": None},
    "gains": {"gain": {"metric": "speedup_decode", "over": "sps"}},
    "baseline": "vanilla",
    "tables": {1: {"title": "one"}},
    "claims": [
        {"table": 1, "text": "adaptive is faster", "metric": "speedup_decode", "higher": "csd", "lower": "sps"},
        {"table": 1, "text": "adaptive errs", "metric": "accuracy", "higher": "sps", "lower": "csd", "loss": True},
    ],
}
HEADER = "paper,table,pair,task,temperature,method,setting,metric,value,unit"
TABLE = """
paper,1,,Mix,,Fixed,,Spd,2.00,x
paper,1,,Mix,,Adaptive,,Spd,2.50,x
paper,1,,Sums,,Fixed,,Spd,2.00,x
paper,1,,Sums,0,Fixed,,Spd,2.00,x
paper,1,,Sums,,Adaptive,,Acc,50.0,%
paper,1,,Sums,,Adaptive,,gain,12.5,%
paper,1,,Mix,,Adaptive,,gain,12.5,%
paper,1,,Sums,,Plain,,t,0.108,s
paper,1,,Mix,,Plain,,t,0.108,s
paper,1,,average,,Plain,,t,0.1080,s
paper,1,,Mix,,Adaptive,weight=1;depth=0,KL,0.412,nats
"""


@pytest.fixture(autouse=True)
def paper(tmp_path, monkeypatch):
    publish(monkeypatch, tmp_path, PAPER, HEADER + TABLE)
    monkeypatch.setattr(checks, "FEWEST_DOCUMENTS", 1)
    (result,) = published.papers()
    return result


def make_run(folder: Path, tasks=POCKET, fixed=0.5, adaptive=0.25, only=("vanilla", "sps", "csd"), right=None, **plan):
    """Ten documents a task, 4 tokens each: vanilla 1 s; the others as many seconds, or so many by task."""
    seconds = {"vanilla": 1.0, "sps": fixed, "csd": adaptive}
    methods = {}
    for name in only:
        long, solved = seconds[name], {task: (right or {}).get((task, name), 10) for task in tasks}
        methods[name] = Timed(
            (lambda task, doc, long=long: long[task]) if isinstance(long, dict) else long,
            {"vanilla": SINGLE, "sps": CHAIN, "csd": ((4, 1),) * 2}[name],  # no two decode alike
            {task: [1] * count + [0] * (10 - count) for task, count in solved.items()},
        )
    settings = {"sps": config.load_method("sps").values | {"gamma": 4}, "csd": config.load_method("csd-pocket").values}
    settings = {name: settings.get(name, {}) for name in only}
    plan = {"baseline": "vanilla", "pair": config.load_pair("pocket").model_dump(mode="json"), **DRAWN} | plan
    return timed_run(folder, methods, tasks=tasks, documents=10, settings=settings, **plan)


def text(ours: Ours, paper, **wanted) -> str:
    frame, _ = side_by_side(paper, 1, ours)
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0][f"ours: {ours.pair}"]


# Settings chosen for each task


@pytest.mark.long
def test_what_was_chosen_for_a_task_counts_there(tmp_path):
    """γ = 2 takes 0.4 s where it was chosen, γ = 4 takes 0.5 s elsewhere; both ran everywhere."""
    tuned = {"method": "sps", "settings": {"gamma": 4}, "by_task": {task: {} for task in POCKET}}
    tuned["by_task"]["pocket_gsm8k"] = {"gamma": 2}
    (published.FOLDER / "paper.yaml").write_text(
        yaml.safe_dump(
            PAPER | {"methods": PAPER["methods"] | {"Fixed": {"method": "sps", "by_pair": {"pocket": tuned}}}}
        )
    )
    (paper,) = published.papers()
    methods = {"vanilla": Timed(1.0, SINGLE), "sps[a]": Timed(0.5), "sps[b]": Timed(0.4), "csd": Timed(0.25)}
    values = config.load_method("sps").values
    settings = {"vanilla": {}, "sps[a]": values | {"gamma": 4}, "sps[b]": values | {"gamma": 2}}
    run = timed_run(
        tmp_path / "run",
        methods,
        tasks=POCKET,
        documents=10,
        settings=settings | {"csd": config.load_method("csd-pocket").values},
        baseline="vanilla",
        pair=config.load_pair("pocket").model_dump(mode="json"),
        **DRAWN,
    )
    ours = Ours([run])
    assert text(ours, paper, task="Sums", T="", method="Fixed") == "2.50 [2.50, 2.50]"
    assert text(ours, paper, task="Mix", method="Fixed") == "2.08 [2.08, 2.08]"  # (2.5 + 5 × 2) / 6
    (judged, _, *_) = verdicts([paper], ours)
    assert "(the average of 5 tasks) 2.00 ×" in judged.detail and "pocket_gsm8k 1.60 ×" in judged.detail
    assert "sps[b] on pocket_gsm8k" in judged.baseline and "sps[a] on pocket_ruler" in judged.baseline
    needed = missing_runs.needed([paper], config.load_pair("pocket"), "pocket", POCKET)[SamplingSpec(**DRAWN)]
    assert sorted(spec.values["gamma"] for spec in needed if spec.method == "sps") == [2, 4]


# Several tasks of ours for one of the paper's

UNEVEN = dict.fromkeys(POCKET, 0.5) | {"pocket_ruler": 0.2}


def test_a_mixture_is_the_unweighted_average(paper, tmp_path):
    ours = Ours([make_run(tmp_path / "run", fixed=UNEVEN)])
    assert text(ours, paper, task="Mix", method="Fixed") == "2.50 [2.50, 2.50]"  # (5 × 2 + 5) / 6
    assert text(ours, paper, task="Sums", T="", method="Fixed") == "2.00 [2.00, 2.00]"
    _, notes = side_by_side(paper, 1, ours)
    once = "claims (checks.md) leave out of it the tasks with a row of their own"
    assert f"Mix is met by the average of {', '.join(POCKET)}; {once}" in notes
    assert "Sums is met by pocket_gsm8k" in notes


@pytest.mark.long
def test_the_tasks_of_a_mixture_may_come_from_several_runs(paper, tmp_path):
    runs = [make_run(tmp_path / "a", POCKET[:4]), make_run(tmp_path / "b", POCKET[4:], fixed=0.2)]
    assert text(Ours(runs), paper, task="Mix", method="Fixed") == "3.00 [3.00, 3.00]"  # (4 × 2 + 2 × 5) / 6
    frame, _ = side_by_side(paper, 1, Ours(runs))
    assert frame[(frame.task == "Mix") & (frame.method == "Fixed")].run.tolist() == ["a, b"]


@mostly_long("drawn", [4, 5], (4,))
def test_a_part_of_a_mixture_is_no_measurement_of_it(paper, tmp_path, drawn):
    part = make_run(tmp_path / "part", POCKET[:drawn])
    assert text(Ours([part]), paper, task="Mix", method="Fixed") == MISSING
    whole = make_run(tmp_path / "whole", temperature=0.0, top_k=0)  # all tasks, but greedy
    ours = Ours([part, whole])
    assert text(ours, paper, task="Mix", method="Fixed") == MISSING
    assert text(ours, paper, task="Sums", T="", method="Fixed") == "2.00 [2.00, 2.00]"


def test_claims_about_a_mixture_are_about_its_average(paper, tmp_path):
    """Adaptive is slower on one task and faster on five, of which one stands alone: it is no part of the average."""
    slow = dict.fromkeys(POCKET, 0.25) | {"pocket_ruler": 1.0}
    ours = Ours([make_run(tmp_path / "run", adaptive=slow)])
    result = {verdict.claim: verdict for verdict in verdicts([paper], ours)}["adaptive is faster"]
    assert result.verdict == "holds"
    assert "Mix (the average of 5 tasks) 1.70 × [1.70, 1.70]" in result.detail  # (4 × 2 + 0.5) / 5
    assert result.data_sets == 6
    assert "pocket_gsm8k 2.00 ×" in result.detail and "pocket_ruler" not in result.detail


def test_tasks_that_a_claim_leaves_out_are_no_part_of_a_mixture(paper, tmp_path):
    """As above, without the slow task; and without that which stands alone too."""
    slow = dict.fromkeys(POCKET, 0.25) | {"pocket_ruler": 1.0}
    ours = Ours([make_run(tmp_path / "run", adaptive=slow)])
    claim = paper.claims[0].model_copy(update={"without": ["pocket_ruler", "pocket_gsm8k"]})
    (judged, *_) = verdicts([paper.model_copy(update={"claims": [claim]})], ours)
    assert judged.detail == "holds: Mix (the average of 4 tasks) 2.00 × [2.00, 2.00]"


@pytest.mark.long
def test_accuracy_of_a_mixture_weighs_its_tasks_alike(paper, tmp_path):
    """Adaptive loses 8 of 10 documents of one task: 80 points there, 80 / 5 on average without what stands alone."""
    ours = Ours([make_run(tmp_path / "run", right={("pocket_math500", "csd"): 2})])
    detail = {verdict.claim: verdict for verdict in verdicts([paper], ours)}["adaptive errs"].detail
    assert "holds: Mix (the average of 5 tasks) +16.0 points (p 0.008)" in detail  # 2 / 2^8
    small = make_run(tmp_path / "small", POCKET[1:2], only=("vanilla", "sps", "csd"), right={(POCKET[1], "csd"): 0})
    for name in ("samples", "rounds", "scores"):  # a task of five documents, all of them lost
        path = small.folder / f"{name}.parquet"
        frame = pd.read_parquet(path)
        frame[~(frame.doc_id >= 5)].to_parquet(path)
    rest = make_run(tmp_path / "rest", [POCKET[0], *POCKET[2:]])
    detail = {verdict.claim: verdict for verdict in verdicts([paper], Ours([small, rest]))}["adaptive errs"].detail
    assert "Mix (the average of 5 tasks) +20.0 points" in detail  # 1 / 5, where 5 / 45 of the documents are lost


# Sampling, and settings of a pair's own


def test_a_figure_without_a_temperature_is_met_as_the_paper_samples(paper, tmp_path):
    drawn = make_run(tmp_path / "drawn", POCKET[:1])
    greedy = make_run(tmp_path / "greedy", POCKET[:1], fixed=0.2, temperature=0.0, top_k=0)
    other = make_run(tmp_path / "other", POCKET[:1], fixed=0.1, top_k=0)
    ours = Ours([drawn, greedy, other])
    assert text(ours, paper, task="Sums", T="", method="Fixed", metric="Spd") == "2.00 [2.00, 2.00]"
    assert text(ours, paper, task="Sums", T="0", method="Fixed") == "5.00 [5.00, 5.00]"
    assert "where the paper does not tell its temperature, ours is T=1 top-k=50" in side_by_side(paper, 1, ours)[1]


def test_a_pair_of_ours_has_settings_of_its_own(paper):
    figure = next(f for f in paper.figures(1) if f.method == "Adaptive" and not f.setting)
    assert paper.method_spec(figure, "pocket").name == "csd-pocket"
    assert paper.method_spec(figure, "qwen3-32b-4b").name == "csd[gamma=9]"
    gone = paper.model_copy(update={"methods": {"Adaptive": published.MethodRef(**UNKNOWN)}})
    assert gone.method_spec(figure, "pocket") is None and gone.method_spec(figure, "other").name == "csd"


UNKNOWN = {"method": "csd", "by_pair": {"pocket": {"method": "csd-not-yet"}}}


def named(result):
    return {sampling: [spec.name for spec in specs] for sampling, specs in result.items()}


def test_what_is_needed_goes_by_sampling_and_pair(paper):
    drawn, greedy = SamplingSpec(**DRAWN), SamplingSpec()
    pocket = config.load_pair("pocket")
    missing = missing_runs.needed([paper], pocket, "pocket", set(POCKET[1:]))  # some tasks of the mixture
    assert named(missing) == {drawn: ["sps[gamma=4]", "csd-pocket"]}
    missing = missing_runs.needed([paper], config.load_pair("qwen3-32b-4b"), "qwen3-32b-4b", {"gsm8k"})
    assert named(missing) == {drawn: ["sps[gamma=4]", "csd[gamma=9]"], greedy: ["sps[gamma=4]"]}


# Gains


def test_a_gain_is_of_the_same_documents(paper, tmp_path):
    ours = Ours([make_run(tmp_path / "run", fixed=0.5, adaptive=0.4)])
    assert text(ours, paper, task="Sums", metric="gain") == "25.0 [25.0, 25.0]"  # 2.5 / 2.0 times as fast
    assert text(ours, paper, task="Mix", metric="gain") == "25.0 [25.0, 25.0]"
    slower = Ours([make_run(tmp_path / "slower", fixed=0.5, adaptive=0.8)])
    assert text(slower, paper, task="Sums", metric="gain") == "-37.5 [-37.5, -37.5]"


def test_a_gain_of_methods_that_ran_apart_has_no_interval(paper, tmp_path):
    """Each against its own baseline; the second run is ten times slower throughout."""
    fixed = make_run(tmp_path / "fixed", POCKET[:1], only=("vanilla", "sps"))
    other = make_run(tmp_path / "other", POCKET[:1], adaptive=0.4, only=("vanilla", "csd"))
    path = other.folder / "samples.parquet"
    frame = pd.read_parquet(path)
    frame.assign(decode_seconds=10 * frame.decode_seconds).to_parquet(path)
    assert text(Ours([fixed, other]), paper, task="Sums", metric="gain") == "25.0"


def test_a_gain_over_what_was_not_run(paper, tmp_path):
    ours = Ours([make_run(tmp_path / "run", POCKET[:1], only=("vanilla", "csd"))])
    assert text(ours, paper, task="Sums", metric="gain") == MISSING
    assert "gain: no sps to compare with in these runs" in side_by_side(paper, 1, ours)[1]


# Figures from files


def csv_file(tmp_path: Path, name: str, *lines: str) -> Path:
    path = tmp_path / name
    path.write_text("\n".join([HEADER, *lines]) + "\n", errors="surrogateescape")
    return path


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", POCKET[:1])


def test_figures_that_come_from_no_run(paper, run, tmp_path):
    lines = [f"paper,1,pocket,{task},1,Plain,,t,{0.0001 * n},s" for n, task in enumerate(POCKET, 5)]
    lines += ["paper,1,pocket,average,1,Plain,,t,0.25,s", "paper,1,other,pocket_gsm8k,1,Plain,,t,9,s"]
    lines += ["paper,2,pocket,pocket_gsm8k,1,Plain,,t,9,s", "papers,1,pocket,pocket_gsm8k,1,Plain,,t,9,s"]
    lines += ["paper,1,pocket,pocket_gsm8k,1,Plain,gamma=2,t,9,s", "paper,1,pocket,pocket_gsm8k,1,Fixed,,t,9,s"]
    ours = Ours([run], files=[csv_file(tmp_path, "times.csv", *lines)])
    assert text(ours, paper, task="Sums", metric="t") == "0.000500"  # not 0.001
    assert text(ours, paper, task="Mix", metric="t") == "0.000750"  # the mean of 5 to 10 ten-thousandths
    assert text(ours, paper, task="average", metric="t") == "0.250"
    frame, notes = side_by_side(paper, 1, ours)
    assert frame[(frame.task == "Mix") & (frame.metric == "t")].run.tolist() == ["times.csv"]
    assert not [note for note in notes if note.startswith("t:")]


@pytest.mark.long
def test_settings_are_read_in_any_order_and_projections_are_marked(paper, run, tmp_path):
    line = "paper,1,pocket,alpaca,,Adaptive,depth=0;weight=1,KL,0.41249,nats"
    path = csv_file(tmp_path, "grid.csv", line)
    assert text(Ours([run], files=[path]), paper, metric="KL") == "0.412"
    path = csv_file(tmp_path, "grid.csv", "paper,1,pocket,alpaca,,Adaptive,depth=0;weight=3,KL,0.41249,nats")
    assert text(Ours([run], files=[path]), paper, metric="KL") == MISSING
    paper.tables[1].projected.append("KL")
    assert text(Ours([run], files=[csv_file(tmp_path, "grid.csv", line)]), paper, metric="KL") == "0.412 projected"
    small = csv_file(tmp_path, "grid.csv", "paper,1,pocket,alpaca,,Adaptive,depth=0;weight=1,KL,0.00004567,nats")
    assert text(Ours([run], files=[small]), paper, metric="KL") == "0.0000457 projected"


def test_a_mixture_of_which_a_file_tells_a_part(paper, run, tmp_path):
    lines = [f"paper,1,pocket,{task},1,Plain,,t,0.1,s" for task in POCKET[1:]]
    assert text(Ours([run], files=[csv_file(tmp_path, "times.csv", *lines)]), paper, task="Mix", metric="t") == MISSING


def test_the_later_file_counts(paper, run, tmp_path):
    files = [csv_file(tmp_path, f"{n}.csv", f"paper,1,pocket,gsm8k,,Plain,,t,{n},s") for n in (2, 3, 1)]
    for age, path in enumerate(files):
        os.utime(path, (100 - age, 100 - age))
    assert text(Ours([run], files=files), paper, task="Sums", metric="t") == "2.00"


def test_a_run_goes_before_a_file(paper, run, tmp_path):
    path = csv_file(tmp_path, "a.csv", "paper,1,pocket,gsm8k,,Fixed,,Spd,7,x", "paper,1,pocket,alpaca,,Fixed,,Spd,7,x")
    ours = Ours([run], files=[path])
    assert text(ours, paper, task="Sums", T="", method="Fixed") == "2.00 [2.00, 2.00]"
    assert text(ours, paper, task="Mix", method="Fixed") == "7.00"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("paper,1,pocket,gsm8k,,Plain,,t,soon,s", "t has the value 'soon'"),
        ("paper,1,pocket,gsm8k,,Plain,,t,0.5,ms", "t is in ms; write it in s"),
        ("paper,one,pocket,gsm8k,,Plain,,t,0.5,s", "table"),
        ("paper,1,pocket,gsm8k", "temperature: input should be"),
        ("paper,1,pocket,gsm8k,,Plain,,t,0.5,s,more", "one more column"),
        ("paper,1,pocket,gsm8k,,Plain,,t,0.5,s\udcff", "no text in UTF-8"),
    ],
)
def test_files_of_another_form_are_refused(paper, run, tmp_path, line, said):
    path = csv_file(tmp_path, "bad.csv", line)
    with pytest.raises(UserError) as caught:
        side_by_side(paper, 1, Ours([run], files=[path]))
    message = str(caught.value)
    assert str(path) in message and said in message and "\n" not in message


def test_the_command_finds_the_files_of_its_store(paper, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reproduce.MEASURED.mkdir(parents=True)
    csv_file(reproduce.MEASURED, "times.csv", "paper,1,pocket,pocket_gsm8k,,Plain,,t,0.00123,s")
    assert reproduce.tables([run.folder], ["paper"], "pocket", None, None, False, tmp_path / "out") == 0
    assert "| 0.108 | 0.00123 | times.csv |" in (tmp_path / "out" / "paper-table1.md").read_text()
