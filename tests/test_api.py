"""The Python API: cheap to import, and the same runs, tables and texts as the commands."""

import json
import subprocess
import sys
from pathlib import Path

import imported
import pandas as pd
import pytest
from matplotlib.figure import Figure
from screens import call

import specbench
from specbench.base.files import write_json

ROOT = Path(__file__).parent.parent
PROMPT = "Tom has 3 apples and buys 4 more. How many apples does he have?"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "run"
    return specbench.run("sps", "smoke", folder, limit=1, settings={"sps.gamma": 3})


@pytest.fixture(scope="module")
def pair():
    return specbench.load_pair("pocket", dtype="float64")


def in_a_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_is_cheap():
    heavy = "{'torch', 'pandas', 'numpy', 'pyarrow', 'pydantic', 'rich', 'matplotlib'}"
    assert in_a_process(f"import sys, specbench; specbench.__version__; print({heavy} & set(sys.modules))") == "set()"


def test_a_run_is_read_without_torch(run):
    code = (
        f"import sys, specbench; r = specbench.load_run({str(run.folder)!r}); r.samples, r.rounds, r.scores, r.summary"
    )
    assert in_a_process(f"{code}; print({{'torch', 'transformers', 'lm_eval'}} & set(sys.modules))") == "set()"


def test_all_names_are_there():
    for name in specbench.__all__:
        assert getattr(specbench, name) is getattr(specbench, name)
    assert set(specbench.__all__) <= set(dir(specbench))
    with pytest.raises(AttributeError, match="nothing"):
        specbench.nothing  # noqa: B018


def test_the_version_is_the_packages(capsys):
    assert f'version = "{specbench.__version__}"' in (ROOT / "pyproject.toml").read_text()
    result = call("--version")
    assert result.exit_code == 0 and result.output == f"specbench {specbench.__version__}\n"


def test_the_package_is_typed():
    assert (ROOT / "specbench" / "py.typed").exists()


def test_a_run_has_its_tables(run):
    assert run.finished and run.name == "run" and "sps on 2 tasks" in repr(run)
    assert list(run.samples.query("not warmup").groupby("method").size()) == [2, 2]
    committed = run.rounds.query("not warmup").groupby("method").committed.sum()
    lengths = run.samples.query("not warmup").set_index("method").tokens.map(len).groupby("method").sum()
    assert committed.to_dict() == lengths.to_dict()
    assert run.rounds.drafted.max() == 3 and set(run.scores.method) == {"vanilla", "sps"}
    assert run.manifest["plan"]["limit"] == 1 and run.plan.methods[1].values["gamma"] == 3


def test_the_summary_is_the_commands_table(run):
    stored = pd.read_parquet(run.folder / "summary.parquet")
    pd.testing.assert_frame_equal(run.summary.reset_index(drop=True), stored, check_dtype=False)
    pd.testing.assert_frame_equal(specbench.compare(run), run.summary)
    alone = specbench.compare([str(run.folder)], against="sps")
    assert (alone[alone.method == "sps"].speedup_decode == 1).all()


def test_a_folder_goes_on_under_the_same_plan_only(run):
    (run.folder / "summary.parquet").unlink()
    assert specbench.run_plan(run.plan, run.folder).finished and (run.folder / "summary.parquet").exists()
    with pytest.raises(specbench.UserError, match="different settings"):
        specbench.run("sps", "smoke", run.folder, limit=2, settings={"sps.gamma": 3})


def test_a_run_without_a_folder_gets_one(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = specbench.run_plan(run.plan)
    assert begun.folder.parent == Path("runs") and begun.finished
    texts = [each.samples.query("not warmup").sort_values(["task", "method"]).text.tolist() for each in (run, begun)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("method", ("sps", "csd", "pld"))
def test_decode_is_what_a_run_decodes(method, pair):
    """Lossless methods give vanilla's text; every method's rounds add up to it."""
    decoded = specbench.decode(PROMPT, pair, method, max_new_tokens=40)
    vanilla = specbench.decode(PROMPT, pair, "vanilla", max_new_tokens=40)
    assert len(vanilla.rounds) == len(vanilla.tokens) > 5 and vanilla.tau == 1
    if method != "csd":
        assert decoded.tokens == vanilla.tokens and decoded.text == vanilla.text
    assert decoded.rounds.committed.sum() == len(decoded.tokens)
    assert decoded.tau == (len(decoded.tokens) - 1) / (len(decoded.rounds) - 1)
    assert decoded.finish in ("eos", "length") and decoded.decode_seconds > 0


def test_decode_takes_settings_stops_and_seeds(pair):
    drafts = [specbench.decode(PROMPT, pair, "sps", settings={"gamma": g}).rounds.drafted.max() for g in (2, 5)]
    assert drafts == [2, 5]
    whole = specbench.decode(PROMPT, pair, "vanilla").text
    stop = whole[10:13]
    stopped = specbench.decode(PROMPT, pair, "vanilla", stop=[stop])
    assert stopped.text == whole[: whole.index(stop)] and stopped.finish == "stop"
    texts = [specbench.decode(PROMPT, pair, "sps", temperature=1.5, seed=seed).tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "spss"}, "sps"),
        ({"settings": {"gama": 3}}, "gamma"),
        ({"settings": {"gamma": -1}}, "gamma"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 10**6}, "positions"),
        ({"method": "specdecpp", "pair": "nowhere"}, "nowhere"),
    ],
)
def test_decode_refuses_in_one_line(change, message, pair):
    with pytest.raises(specbench.UserError, match=message) as caught:
        specbench.decode(PROMPT, **{"pair": pair, "method": "sps", **change})
    assert "\n" not in str(caught.value)


def test_decode_needs_room_for_a_draft(pair):
    """The prompt, the new tokens and the draft that may reach beyond them; vanilla reaches less far."""
    ids = pair.tokenizer(PROMPT)["input_ids"]
    with pytest.raises(specbench.UserError, match=f"{len(ids)} tokens and needs {pair.context + 8} positions"):
        specbench.decode(PROMPT, pair, "sps", settings={"gamma": 7}, max_new_tokens=pair.context - len(ids))


def test_import_run(tmp_path):
    answers, baseline = (tmp_path / name for name in ("eagle.jsonl", "vanilla.jsonl"))
    imported.jsonl(answers, *(imported.answer(n, [20], [1.0], [4, 4, 4, 4, 4]) for n in range(3)))
    imported.jsonl(baseline, *(imported.answer(n, [20], [2.0], [], model="vicuna") for n in range(3)))
    run = specbench.import_run("spec-bench", answers, baseline=baseline, out=tmp_path / "run")
    assert set(run.summary.method) >= {"vanilla"} and len(run.samples) == 6
    with pytest.raises(specbench.UserError, match="no importer"):
        specbench.import_run("other", answers)  # type: ignore[arg-type]


def test_plots(run, tmp_path):
    assert "depth" in specbench.plots.KINDS
    figure = specbench.plots.draw("depth", run, out=tmp_path / "depth.svg")
    assert isinstance(figure, Figure) and (tmp_path / "depth.svg").read_text().startswith("<?xml")
    with pytest.raises(specbench.UserError, match="suffix"):
        specbench.plots.draw("depth", run, out=tmp_path / "depth.gif")
    with pytest.raises(specbench.UserError, match="depht"):
        specbench.plots.draw("depht", [run.folder])


def test_what_is_refused(run, tmp_path):
    with pytest.raises(specbench.UserError, match="not a run folder"):
        specbench.load_run(tmp_path)
    with pytest.raises(specbench.UserError, match="nobody"):
        specbench.compare([run], against="nobody")
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "notes.json", {})
    with pytest.raises(specbench.UserError, match="exists"):
        specbench.run_plan(run.plan, tmp_path / "run")


@pytest.mark.long
def test_the_notebook_runs(tmp_path):
    """Every cell, in a kernel of its own and an empty folder; the stored outputs are of an earlier such run."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs" / "pages" / "python.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code" and "=" not in cell.source)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "python.ipynb" in (ROOT / "docs" / "pages" / "python.md").read_text()
    assert json.dumps(notebook).count('"error"') == 0
