"""A run goes on, and compares, with the models that it began with: an edit anywhere in their folders is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from refusals import one_line_error
from safetensors.torch import load_file, save_file
from tiny_runs import SETTINGS, always, plan_of, save_pair, write_suite

from specbench.analysis import pooled
from specbench.analysis.texts import load_decode
from specbench.base import files
from specbench.engine.models.pair import load_pair
from specbench.measure import loop
from specbench.measure.manifest import digest
from specbench.measure.prompts import encode_all, load_tasks
from specbench.measure.same import check_models, check_same
from specbench.results.stored import StoredRun

Edit = Callable[[Path], Any]


def at(*keys: str | int, to: Any) -> Edit:
    """An edit that changes what lies at a path of keys in a JSON file."""

    def edit(path: Path) -> None:
        whole = value = json.loads(path.read_text())
        for key in keys[:-1]:
            value = value[key]
        assert value.get(keys[-1], "none") != to if isinstance(value, dict) else value[keys[-1]] != to
        value[keys[-1]] = to
        path.write_text(json.dumps(whole))

    return edit


def swapped_merges(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    merges = tokenizer["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    path.write_text(json.dumps(tokenizer))


def swapped_words(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[500:502]
    words[first], words[second] = words[second], words[first]
    path.write_text(json.dumps(tokenizer))


def one_weight(path: Path) -> None:
    tensors = load_file(path)
    tensors["model.norm.weight"][0] += 2**-10
    save_file(tensors, path, {"format": "pt"})


EOS = 7
EDITS: dict[str, tuple[str, Edit, str]] = {  # file, edit, what the error names
    "merges": ("target/tokenizer.json", swapped_merges, "tokenizer of the target"),
    "vocabulary": ("target/tokenizer.json", swapped_words, "tokenizer of the target"),
    "normalizer": ("target/tokenizer.json", at("normalizer", to={"type": "Lowercase"}), "tokenizer of the target"),
    "pre-tokenizer": (
        "target/tokenizer.json",
        at("pre_tokenizer", "pretokenizers", 1, "add_prefix_space", to=True),
        "tokenizer of the target",
    ),
    "begin": ("target/tokenizer.json", at("post_processor", to=None), "tokenizer of the target"),
    "decoder": ("target/tokenizer.json", at("decoder", to={"type": "Fuse"}), "tokenizer of the target"),
    "added token": ("target/tokenizer.json", at("added_tokens", 2, "lstrip", to=True), "tokenizer of the target"),
    "merging": ("target/tokenizer.json", at("model", "ignore_merges", to=True), "tokenizer of the target"),
    "end token": ("target/tokenizer_config.json", at("eos_token", to="<|pad|>"), "tokenizer of the target"),
    "template": ("target/tokenizer_config.json", at("chat_template", to="{{ messages }}"), "tokenizer of the target"),
    "template file": (
        "target/chat_template.jinja",
        lambda path: path.write_text("{{ messages }}"),
        "tokenizer of the target",
    ),
    "rms_norm_eps": ("target/config.json", at("rms_norm_eps", to=0.01), "configuration of the target"),
    "rope_theta": (
        "target/config.json",
        at("rope_parameters", "rope_theta", to=20000.0),
        "configuration of the target",
    ),
    "eos_token_id": ("target/config.json", at("eos_token_id", to=EOS), "configuration of the target"),
    "activation": ("target/config.json", at("hidden_act", to="gelu"), "configuration of the target"),
    "context": ("target/config.json", at("max_position_embeddings", to=1024), "configuration of the target"),
    "generated end": (
        "target/generation_config.json",
        at("eos_token_id", to=[1, EOS]),
        "settings of generation of the target",
    ),
    "temperature": ("target/generation_config.json", at("temperature", to=0.5), "settings of generation of the target"),
    "no settings": ("target/generation_config.json", Path.unlink, "settings of generation of the target"),
    "weight": ("target/model.safetensors", one_weight, "weights of the target"),
    "draft's merges": ("draft/tokenizer.json", swapped_merges, "tokenizer of the draft"),
    "draft's eps": ("draft/config.json", at("rms_norm_eps", to=0.01), "configuration of the draft"),
    "draft's repetition": (
        "draft/generation_config.json",
        at("repetition_penalty", to=1.5),
        "settings of generation of the draft",
    ),
    "draft's weight": ("draft/model.safetensors", one_weight, "weights of the draft"),
}
TRULY = ("merges", "rms_norm_eps", "generated end")  # resumed by the command itself, too


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """The models and a suite, and in `run` an unfinished run of theirs, with one of two documents."""
    folder = tmp_path_factory.mktemp("home")
    save_pair(folder, 8)
    write_suite(folder, {"pocket_gsm8k": 4}, 2)
    loop.execute(plan_of(folder, ["sps"], assignments=SETTINGS[:1]), folder / "run", lambda progress: False)
    assert len(list((folder / "run" / "parts").iterdir())) and not StoredRun(folder / "run").finished
    return folder


@pytest.fixture
def moved(home, tmp_path) -> Path:
    """A copy of it all elsewhere, where the run's plan says so."""
    place = tmp_path / "elsewhere"
    shutil.copytree(home, place)
    path = place / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    for role in ("target", "draft"):
        manifest["plan"]["pair"][role]["model"] = str(place / role)
    path.write_text(json.dumps(manifest))
    return place


@pytest.fixture(scope="module")
def prompts(home) -> list[str]:
    return [request.prompt for request in load_tasks(StoredRun(home / "run").plan, None).requests()]


def check(run: StoredRun, prompts: list[str]) -> None:
    """What `--resume` checks of the models, without loading the tasks and the methods again."""
    pair = load_pair(run.plan.pair, "cpu")
    now = {"models": pair.describe(), "tokenizer_hash": pair.tokenizer_hash}
    now |= {"prompt_ids": [digest(ids) for ids in encode_all(pair, prompts)]}
    check_same(run.manifest, run.manifest | now, run.folder)


def test_there_are_twenty_edits():
    assert len(EDITS) >= 20


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_folder_is_refused_and_the_edit_named(moved, prompts, name):
    file, edit, named = EDITS[name]
    edit(moved / file)
    run = StoredRun(moved / "run")
    with one_line_error("began with different", named, "start a new run"):
        check(run, prompts)
    with one_line_error("was decoded with different models", named):  # what an analysis that decodes again asks
        check_models(run, load_pair(run.plan.pair, "cpu"))
    if name in TRULY:
        before = sorted((path.name, path.stat().st_mtime_ns) for path in (moved / "run").rglob("*"))
        done = call("run", "--resume", moved / "run")
        assert done.exit_code == 2 and named in done.stderr, done.output
        after = sorted((path.name, path.stat().st_mtime_ns) for path in (moved / "run").rglob("*"))
        assert before == after
    if file == "target/tokenizer.json":
        with one_line_error("tokenizer of", "is not the one that"):
            load_decode(run)


def test_the_prompts_token_ids_are_told_too(moved, prompts):
    at("post_processor", to=None)(moved / "target" / "tokenizer.json")
    with one_line_error("token ids of the prompts"):
        check(StoredRun(moved / "run"), prompts)


def test_an_unedited_copy_elsewhere_goes_on(moved, prompts):
    for role in ("target", "draft"):  # written again, with other spaces
        path = moved / role / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text())))
    run = StoredRun(moved / "run")
    check(run, prompts)
    check_models(run, load_pair(run.plan.pair, "cpu"))
    assert load_decode(run)([300])
    done = call("run", "--resume", moved / "run")
    assert done.exit_code == 0 and "earlier version" not in done.output, done.output
    assert StoredRun(moved / "run").finished


LATER = ("config_hash", "generation_hash", "tokenizer_state")


def of_an_earlier_version(run: Path) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["prompt_ids"]
    for model in manifest["models"].values():
        for key in LATER:
            del model[key]
    (run / "manifest.json").write_text(json.dumps(manifest))


def test_a_run_of_an_earlier_version_goes_on_and_what_is_not_checked_is_said(moved):
    of_an_earlier_version(moved / "run")
    done = call("run", "--resume", moved / "run")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if "earlier version" in line]
    for what in ("configuration of the target", "tokenizer of the draft", "token ids", "cannot be checked"):
        assert what in line


# compare


@pytest.fixture(scope="module")
def finished(home, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert loop.execute(plan_of(home, ["sps"], assignments=SETTINGS[:1]), folder, always)
    return folder


def changed(finished: Path, folder: Path, change: Callable[[dict], None]) -> StoredRun:
    shutil.copytree(finished, folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"started": "later"}
    change(manifest)
    files.write_json(folder / "manifest.json", manifest)
    return StoredRun(folder)


@pytest.mark.parametrize("key", [*LATER, "weights_hash"])
def test_runs_of_other_models_under_one_name_do_not_compare(finished, tmp_path, key):
    runs = [StoredRun(finished), changed(finished, tmp_path / "b", lambda m: m["models"]["draft"].update({key: "0"}))]
    with one_line_error(f"two pairs are called {runs[0].plan.pair.name}", "of the draft", "--allow-mismatch models"):
        pooled.measured(runs)
    (line,) = pooled.measured(runs, ["models"]).mismatches
    assert line.startswith("MISMATCH") and "of the draft" in line


def test_nor_do_the_second_and_the_third_of_three(finished, tmp_path):
    def other(manifest):
        manifest["plan"]["pair"]["name"] = "other"

    def edited(manifest):
        other(manifest)
        manifest["models"]["target"]["config_hash"] = "0"

    runs = [StoredRun(finished), changed(finished, tmp_path / "b", other), changed(finished, tmp_path / "c", edited)]
    assert not pooled.measured(runs[:2]).mismatches
    with one_line_error("two pairs are called other", "c has another configuration of the target than b"):
        pooled.measured(runs)


def test_prompts_that_became_other_tokens_do_not_compare(finished, tmp_path):
    runs = [StoredRun(finished), changed(finished, tmp_path / "b", lambda m: m["prompt_ids"].__setitem__(1, "0"))]
    with one_line_error("token ids of pocket_gsm8k", "--allow-mismatch prompts"):
        pooled.measured(runs)
    assert len(pooled.measured(runs, ["prompts"]).mismatches) == 1


def test_names_and_places_do_not_count(finished, tmp_path):
    def elsewhere(manifest):
        for model in manifest["models"].values():
            model |= {"model": "somewhere/else", "revision": "v2"}

    assert not pooled.measured([StoredRun(finished), changed(finished, tmp_path / "b", elsewhere)]).mismatches


def test_what_other_libraries_made_of_a_folder_is_not_compared(finished, tmp_path):
    def newer(manifest):
        manifest["environment"]["versions"]["transformers"] = "99"
        manifest["models"]["target"]["config_hash"] = "0"

    runs = [StoredRun(finished), changed(finished, tmp_path / "b", newer)]
    (line,) = pooled.measured(runs, ["versions"]).mismatches
    assert "versions" in line


def test_a_run_of_an_earlier_version_compares_and_the_caption_says_what_it_lacks(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "b")
    of_an_earlier_version(tmp_path / "b")
    runs = [StoredRun(finished), StoredRun(tmp_path / "b")]
    (line,) = pooled.measured(runs).mismatches
    assert line.startswith("b: no tokenizers and configurations on record")
    assert not pooled.measured(runs[1:]).mismatches


def test_prompt_ids_that_are_too_few_are_damage(finished, tmp_path):
    run = changed(finished, tmp_path / "b", lambda m: m["prompt_ids"].pop())
    with one_line_error("prompt_ids"):
        run.plan  # noqa: B018
