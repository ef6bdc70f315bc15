"""Nothing calls home: commands on local data reach for no host, and names in somebody's run are fetched if asked to."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from command_line import call, refused
from huggingface_hub import constants
from imported import answer, jsonl
from made_runs import TOKENIZER
from oracle import tiny
from tiny_runs import save_pair
from transformers import LlamaForCausalLM

from specbench.base.hub import PROXIES
from specbench.cli import PANEL_OF
from specbench.cli.analyze import all_analyses
from specbench.config import SUITES, plugins

pytestmark = pytest.mark.long

TESTS = Path(__file__).parent
OF_SERVERS = {"requests"}  # analyses of what only a server answers, which is a host
ALONE = ("unshare", "-rn")  # a network namespace in which no host can be reached
SWITCHES = {"HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "CI"}
HONEST = """
run --method sps --method specdecpp --set specdecpp.shortest=20 --set specdecpp.longest=20 --suite one.yaml --out a
run --method sps --method cospec --suite one.yaml --out b
run --method vanilla --suite real.yaml --data-dir data --out d
run --method member --baseline none --suite one.yaml --out e
run --method vanilla --suite others.yaml --runtime openvino --out o
run --method sps --method rsd-constant --suite one.yaml --pair PAIR --temperature 1 --out t
run --method cos --suite one.yaml --pair pocket-duo --temperature 1 --out w
run --method sps --method member --suite whole.yaml --pair pocket-weak --out weak
run --method sps --method member --suite whole.yaml --out fair
run --method pearl --suite one.yaml --out o2
run --method sps --suite one.yaml --pair pocket-weak --temperature 1 --out d1
run --method sps --suite one.yaml --temperature 1 --out d2
run --resume a
run --method vanilla --suite one.yaml --shard 1/1 --out c
join c
sweep --method sps --param gamma=2,3 --suite one.yaml --pair PAIR --out s
score a --judge bundled:target --task pocket_gsm8k
throughput --method sps --suite one.yaml --pair PAIR --batch 1,2 --batches 2 --limit 1
load --method sps --suite one.yaml --pair PAIR --rate inf --rows 2 --requests 8 --limit 1 --out l
show a
compare a b --by method
compare a --by depth --format json
tables a --paper csd --out tables
plot speed-accuracy a
report a b
trace a --task pocket_gsm8k --doc 0
analyze rejections a --method sps
analyze acceptance a --method specdecpp
analyze multi-draft t
analyze rules t
analyze tree t --nodes 4
analyze frontier s --method sps
analyze collaboration w
analyze strength weak fair
analyze drafts d1 d2
analyze overlap o2
analyze network a --method sps --channel rtt=0.05,rate=1e6
analyze mirror a --method sps
analyze context a
train --method draft --suite one.yaml --pair PAIR --documents 2 --recipe epochs=1 --out learned
analyze losses learned --pair PAIR --suite one.yaml --documents 1
analyze complementarity a --draft e
analyze counterfactual b --states 1
serving a
analyze arbitrator b
plan a
serve-recipe vllm --pair pocket --method sps
new method mine
list
profile --pair PAIR --suite one.yaml --documents 2 --repeats 1 --gamma 2,4 --method sps --out p.json
profile a
simulate a --method sps
simulate a --heads heads --method specdecpp
replay --traces traces.jsonl --method pld --pair pocket
calibrate --corpus texts.jsonl --pair PAIR --documents 3 --out m.parquet
merge m.parquet m.parquet --out mm.parquet
train --method vocabtrim --suite one.yaml --documents 2 --out v.safetensors
build-datastore --corpus texts.jsonl --pair pocket --out store
import spec-bench answers.jsonl --out imported
doctor --pair PAIR --suite one.yaml
audit --method sps --suite one.yaml --pair PAIR --documents 1 --draws 4 --length 8
bench --shapes tiny --force-acceptance 0.5 --runtime static --documents 2
"""
FOREIGN = """
run --resume stopped
trace foreign --task pocket_gsm8k --doc 0
report foreign
analyze rejections foreign --method sps
analyze multi-draft sampled
analyze counterfactual foreign --method cospec
serving foreign
simulate foreign --heads heads --method specdecpp
"""
SUITE = "description: one\nlimit: 1\ntasks: [{task: TASK, fewshot: 0, max_new_tokens: 24}]\n"


def environment(home: Path, **changes: str) -> dict[str, str]:
    """That of a user who has switched nothing off, in a home folder of their own."""
    kept = {key: value for key, value in os.environ.items() if key not in SWITCHES and "proxy" not in key.lower()}
    paths = os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "support")))
    own = {"HOME": str(home), "HF_HOME": str(home / "hub"), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return kept | own | {"PYTHONDONTWRITEBYTECODE": "1"} | changes


def lines(text: str, pair: str) -> list[list[str]]:
    return [[pair if word == "PAIR" else word for word in line.split()] for line in text.strip().splitlines()]


def counted(place: Path, commands: list[list[str]]) -> dict:
    """What `offline.py` counted in a process of its own, in an empty network namespace if there can be one."""
    (place / "commands.json").write_text(json.dumps(commands))
    alone = subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0 if shutil.which(ALONE[0]) else False
    done = subprocess.run(
        [*(ALONE if alone else ()), sys.executable, TESTS / "support" / "offline.py", "commands.json"],
        cwd=place,
        env=environment(place / "home"),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"alone": alone}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with everything that the commands read."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "home").mkdir()
    save_pair(folder, 8)
    (folder / "one.yaml").write_text(SUITE.replace("TASK", "pocket_gsm8k"))
    (folder / "whole.yaml").write_text(SUITE.replace("TASK", "pocket_gsm8k").replace("24", "200"))
    (folder / "real.yaml").write_text(SUITE.replace("TASK", "gsm8k"))
    others = [f"{{task: pocket_{name}, max_new_tokens: 4}}" for name in ("math500", "cnndm", "ifeval", "ruler", "mmlu")]
    (folder / "others.yaml").write_text(f"description: others\nlimit: 1\ntasks: [{', '.join(others)}]\n")
    (folder / "data").mkdir()
    jsonl(folder / "data" / "gsm8k_test.jsonl", {"question": "What is 1+1?", "answer": "#### 2"})
    jsonl(folder / "texts.jsonl", *({"text": f"text {i} " * 70} for i in range(3)))
    jsonl(folder / "traces.jsonl", {"prompt": [5, 6, 7, 8], "generated": [5, 6, 7, 8, 9]})
    jsonl(folder / "answers.jsonl", answer(81, [6, 4], [1.0, 0.5], [3, 2, 1, 2, 2]))
    (folder / "heads").mkdir()
    shutil.copy(SUITES / "trained" / "heads" / "specdecpp-pocket.safetensors", folder / "heads")
    return folder


@pytest.fixture(scope="module")
def honest(place) -> dict:
    return counted(place, lines(HONEST, f"target={place / 'target'},draft={place / 'draft'}"))


@pytest.fixture(scope="module")
def foreign(honest, place) -> dict:
    """The same for a run of somebody else, whose manifest names models of a hub."""
    somebodys(place / "b", place / "foreign")
    somebodys(place / "t", place / "sampled")
    somebodys(place / "b", place / "stopped")
    (place / "stopped" / "scores.parquet").unlink()  # else nothing is left to do
    return counted(place, lines(FOREIGN, ""))


def somebodys(run: Path, folder: Path, name: str = "somebody/model") -> None:
    """A copy of a run whose models have a name of the hub."""
    shutil.copytree(run, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for role in ("target", "draft"):
        manifest["plan"]["pair"][role] |= {"model": name}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_every_command_is_among_them():
    assert {words[0] for words in lines(HONEST, "")} == PANEL_OF.keys() | plugins.extras("commands")
    analyses = {one.__name__.rstrip("_").replace("_", "-") for one in all_analyses()}
    assert {words[1] for words in lines(HONEST, "") if words[0] == "analyze"} == analyses - OF_SERVERS


def test_commands_on_local_data_reach_for_no_host(honest):
    for line in honest["lines"]:
        assert line["exit"] == 0, (line["words"], line["output"][-2000:])
        assert line["attempts"] == [], line["words"]
    assert honest["seen"] == 0
    if honest["alone"]:
        assert honest["kernel"] == 0, "a process that was started, or a library that is not Python, tried"


def test_and_leave_no_number_of_the_user_behind(honest, place):
    left = {path.name for path in (place / "home").iterdir()}
    assert left <= {".cache", ".config", "hub"}, left


def test_names_in_somebodys_run_are_looked_up_nowhere(foreign):
    for line in foreign["lines"]:
        assert line["attempts"] == [], line["words"]
        page = line["words"][0] == "report"  # is written, without texts by their tokens
        assert line["exit"] == (0 if page else 2), (line["words"], line["output"][-2000:])
        if not page and line["words"][0] != "simulate":  # which refuses this run for another reason before
            assert "somebody/model" in line["output"] and "--fetch-models" in line["output"], line["output"]
    assert foreign["seen"] == 0 and (not foreign["alone"] or foreign["kernel"] == 0)


def test_the_counts_count(place, honest):
    """The control: where it is asked to, a command tries, and names the host first."""
    if not (place / "asked").exists():
        somebodys(place / "b", place / "asked")
    trace = ["trace", "asked", "--task", "pocket_gsm8k", "--doc", "0", "--fetch-models"]
    real = ["run", "--method", "vanilla", "--suite", "real.yaml", "--pair", f"target={place / 'target'}"]
    counts = counted(place, [trace, real])
    for line, what in zip(counts["lines"], ("somebody/model", "openai/gsm8k"), strict=True):
        assert line["exit"] == 2 and line["attempts"], line
        host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
        assert line["output"].index("fetching") < line["output"].index("error: "), line["output"]
        assert f"{what} from {host}" in line["output"]
    assert counts["seen"] >= 2 and (not counts["alone"] or counts["kernel"] > 0)


# A hub of our own

COMMIT = "1" * 40
MODELS: dict[str, Path] = {}  # folders by name
ASKED: list[str] = []


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as its client asks for: a listing of a model's files, and the files."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        ASKED.append(f"{self.command} {path}")
        for name, folder in MODELS.items():
            files = [each for each in sorted(folder.iterdir()) if each.is_file()]
            if path.startswith(f"api/models/{name}/tree/"):
                listing = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "2" * 40} for f in files]
                return self.answer(json.dumps(listing).encode())
            if path.startswith(f"api/models/{name}"):
                facts = {"id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": []}
                siblings = [{"rfilename": each.name} for each in files]
                return self.answer(json.dumps(facts | {"siblings": siblings}).encode())
            if path.startswith(f"{name}/resolve/") and (folder / path.rpartition("/")[2]).is_file():
                return self.answer((folder / path.rpartition("/")[2]).read_bytes())
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hash(content):x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Path]:
    """A hub with `some/model`, whose weights are several files in the folder; this process knows no other hub.

    The current folder is empty but for a suite.
    """
    folder = tmp_path / "on-hub"
    tiny("llama", 1, vocab=2048).float().save_pretrained(folder, max_shard_size="200KB")
    TOKENIZER.save_pretrained(folder)
    (folder / "original.bin").write_bytes(b"what nobody reads")
    ASKED.clear()
    MODELS["some/model"] = folder
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("one.yaml").write_text(SUITE.replace("TASK", "pocket_gsm8k").replace("24", "4"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        files = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
        changes = {"ENDPOINT": address, "HUGGINGFACE_CO_URL_TEMPLATE": files}
        changes |= {"HF_HUB_OFFLINE": False, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": True}
        for name, value in changes.items():
            monkeypatch.setattr(constants, name, value)
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        yield folder
        server.shutdown()


RUN = ("run", "--method", "vanilla", "--suite", "one.yaml", "--pair", "target=some/model")


def test_a_model_that_is_named_is_fetched_once(hub):
    done = call(*RUN, "--out", "first")
    assert done.exit_code == 0, done.output
    assert "fetching some/model from 127.0.0.1" in done.stderr
    assert any("-of-" in asked for asked in ASKED) and not any("original.bin" in asked for asked in ASKED)
    ASKED.clear()
    done = call(*RUN, "--out", "second", "--seed", "1")  # two that are alike in all are taken for copies
    assert done.exit_code == 0 and "fetching" not in done.stderr and ASKED == [], "it is here now"
    done = call("compare", "first", "second")
    assert done.exit_code == 0 and "MISMATCH" not in done.output, done.output


def test_a_model_that_a_run_names_is_fetched_with_the_flag(hub, tmp_path):
    assert call(*RUN, "--out", "it").exit_code == 0
    shutil.rmtree(tmp_path / "cache")
    ASKED.clear()
    trace = ("trace", "it", "--task", "pocket_gsm8k", "--doc", "0")
    assert "--fetch-models" in refused(*trace) and ASKED == []
    done = call(*trace, "--fetch-models")
    assert done.exit_code == 0 and "fetching some/model from 127.0.0.1" in done.stderr, done.output
    assert not any("-of-" in asked for asked in ASKED), "a tokenizer is enough"
    ASKED.clear()
    Path("it/scores.parquet").unlink()  # a finished run needs no models any more
    done = call("run", "--resume", "it")
    assert done.exit_code == 2 and "--fetch-models" in done.stderr and ASKED == [], "the weights are not here"
    assert call("run", "--resume", "it", "--fetch-models").exit_code == 0 and ASKED


def test_what_a_hubs_index_names_is_checked_before_it_is_fetched(hub):
    index = hub / "model.safetensors.index.json"
    shards = json.loads(index.read_text())
    index.write_text(json.dumps(shards | {"weight_map": dict.fromkeys(shards["weight_map"], "original.bin")}))
    done = call(*RUN)
    assert done.exit_code == 2 and "names 'original.bin'" in done.stderr, done.output
    assert not any("original.bin" in asked for asked in ASKED)


def test_pickles_of_a_hub_are_fetched_with_their_own_flag_only(hub):
    torch.save(dict(LlamaForCausalLM.from_pretrained(hub).state_dict()), hub / "pytorch_model.bin")
    for path in hub.glob("*.safetensors*"):
        path.unlink()
    assert call(*RUN).exit_code == 2 and not any("pytorch_model" in asked for asked in ASKED)
    done = call(*RUN, "--allow-pickle")
    assert done.exit_code == 0 and any("pytorch_model.bin" in asked for asked in ASKED), done.output


def test_a_model_that_the_hub_does_not_have_is_one_line(hub):
    done = call(*RUN[:-1], "target=nobody/nothing")
    lines, error = done.stderr.splitlines()
    assert done.exit_code == 2 and lines == "fetching nobody/nothing from 127.0.0.1" and "nobody/nothing" in error


def test_who_switched_the_hub_off_is_not_overruled(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in refused(*RUN) and ASKED == []
