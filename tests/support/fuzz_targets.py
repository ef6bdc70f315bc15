"""Every reader of files, with a small valid file of each kind."""

import contextlib
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import fuzz_run
import numpy as np
import oracle
import pyarrow as pa
import torch
from fuzz import Target
from fuzz_doors import DOORS
from imported import of_tools
from made_runs import TOKENIZER
from safetensors.torch import save_file

from specbench import config
from specbench.analysis.forward_times import from_option
from specbench.config import SUITES, own_tasks
from specbench.config.prompts import read_prompts
from specbench.engine.models.heads import read_head, write_head
from specbench.engine.models.pair import Pair
from specbench.methods import module
from specbench.methods.collaborative.cospec_arbitrator import KIND as ARBITRATOR
from specbench.methods.collaborative.cospec_arbitrator import (
    Adapter,
    find_arbitrator,
    new_arbitrator,
    with_backbone,
    write_arbitrator,
)
from specbench.methods.heads import eagle3
from specbench.methods.heads.eagle3 import eagle_head as as_eagle
from specbench.methods.lengths import specdecpp
from specbench.methods.lookup.rest_datastore import ARRAYS, METADATA, Datastore, digest
from specbench.methods.lossy import judge
from specbench.methods.lossy.csd_memory import find_memory, read_memory, write_memory
from specbench.papers import published
from specbench.report.views.roofline import ceiling_notes
from specbench.results import ceilings
from specbench.results.importers import read as read_of_tool
from specbench.results.importers.foreign import write as write_run
from specbench.tasks.prompts import PromptFile
from specbench.training import recipe
from specbench.training.checkpoint import load_checkpoint, save_checkpoint
from specbench.training.collected import put_table, read_collected, state_column, states_of
from specbench.training.csd_texts import beginnings
from specbench_extras.counterfactual.study import Store
from specbench_extras.datastore.build import _of_file, build
from specbench_extras.eagle import released_eagle3 as eagle_head
from specbench_extras.mt_judge.score import _remember
from specbench_extras.other_tools import spec_bench, vllm
from specbench_extras.replay.study import read_traces
from specbench_extras.specdecpp import released as acceptance_head

WORDS = Pair("made", {"target": SimpleNamespace()}, TOKENIZER)  # no reader of these files asks a model
CPU = torch.device("cpu")
_models: dict[str, Pair] = {}


def tiny() -> Pair:
    """A pair of tiny models, made once."""
    if not _models:
        target, draft = oracle.tiny_pair("llama")
        _models["made"] = Pair("made", {"target": target, "draft": draft}, TOKENIZER)
    return _models["made"]


# Settings


def copied(source: Path):
    """Makes `own.yaml` of a file that ships."""

    def make(folder: Path) -> dict[str, str]:
        shutil.copy(source, folder / "own.yaml")
        return {"own.yaml": "yaml"}

    return make


def read_method(folder: Path, rng: random.Random) -> object:
    spec = config.load_method(str(folder / "own.yaml"))
    config.validated(module(spec.method).Settings, spec.values, spec.name)
    return spec.identity, config.baseline_of(spec)


def read_pair(folder: Path, rng: random.Random) -> object:
    spec = config.load_pair(str(folder / "own.yaml"))
    return spec.models, spec.collaboration, spec.bundled


def read_suite(folder: Path, rng: random.Random) -> object:
    return config.suite_methods(config.load_suite(str(folder / "own.yaml")))


def read_paper(folder: Path, rng: random.Random) -> object:
    with patch.object(published, "FOLDER", folder):
        (paper,) = published.papers(["own"])
        return [paper.choice(label, "pocket") for label in paper.methods]


def read_recipe(folder: Path, rng: random.Random) -> object:
    with patch.object(recipe, "FOLDER", folder):
        return recipe.load_recipe("own", ["depth=1"])


OPTIONS = "csd.gamma=4\nsps.gamma=[1, 2]\ngamma=2,4,8\ndepth=1,2\nthreshold=0.5\ntarget=a,draft=b"


def make_options(folder: Path) -> dict[str, str]:
    (folder / "options").write_text(OPTIONS)
    return {"options": "bytes"}


def read_options(folder: Path, rng: random.Random) -> object:
    """Texts of the command line; a shell gives none with a NUL."""
    result = (folder / "options").read_bytes() if (folder / "options").is_file() else b""
    text = rng.choice(result.decode(errors="surrogateescape").replace("\0", "").split("\n"))
    kind = rng.randrange(6)
    if kind == 0:
        return config.parse_assignments([text])
    if kind == 1:
        return config.grid(config.load_method("csd"), config.parse_params([text]))
    if kind == 2:
        return recipe.parse_grid([text])
    if kind == 3:
        return recipe.assignment(text)
    return config.load_pair(text) if kind == 4 else from_option(text, None)


# Files of methods


def make_memory(folder: Path) -> dict[str, str]:
    seen = Counter({(0, 3, 4): 1, (1, 3, 4): 1, (1, 4, 3): 9, (2, 1, 2): 2})
    for name in ("gsm8k", "universal"):
        write_memory(folder / "memory" / f"{name}.parquet", seen, WORDS, {"documents": "3"})
    return {"memory/gsm8k.parquet": "parquet"}


def read_memories(folder: Path, rng: random.Random) -> object:
    if rng.random() < 0.3:
        return read_memory(folder / "memory" / "gsm8k.parquet", WORDS, rng.randrange(4))
    return find_memory(str(folder / "memory"), "task-specific", WORDS).hashes()


def make_store(folder: Path) -> dict[str, str]:
    rng = np.random.default_rng(0)
    build([rng.integers(0, 9, 40).tolist() for _ in range(6)], folder / "store", 10, "abc", {"made": "here"}, 2**7)
    return {"store/datastore.json": "json"} | {
        f"store/{name}.bin": "bytes" for name in ("tokens", "suffixes", "buckets")
    }


def read_store(folder: Path, rng: random.Random) -> object:
    """Its arrays in one case of two with the hash that they have by now, as somebody who means harm would write it."""
    about = folder / "store" / METADATA
    whole = all((folder / "store" / name).is_file() for name in (METADATA, *ARRAYS))
    if rng.random() < 0.5 and whole:
        with contextlib.suppress(ValueError, OSError, TypeError, RecursionError):
            about.write_text(json.dumps(json.loads(about.read_text()) | {"contents": digest(folder / "store")}))
    store = Datastore(folder / "store")
    for context in ([1, 2, 3], [rng.randrange(9) for _ in range(20)], [10**6]):
        length = store.longest(context, 16, 1)
        rows = store.continuations(context, max(length, 1), 10, 5)
        assert rows.shape[1] == 5 and ((rows <= store.about.largest) | (rows == 2**32 - 1)).all()
    return store


def make_head(folder: Path) -> dict[str, str]:
    rng = torch.Generator().manual_seed(0)
    shapes = {"blocks.weight": (2, 32, 32), "blocks.bias": (2, 32), "out.weight": (2, 32), "out.bias": (2,)}
    tensors = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    trained = {"depth": 2, "inputs": "state", "shared_blocks": False}
    write_head(folder / "head.safetensors", "specdecpp", tensors, tiny(), trained, "draft")
    return {"head.safetensors": "safetensors"}


def read_acceptance(folder: Path, rng: random.Random) -> object:
    head = read_head(folder / "head.safetensors", "specdecpp", tiny(), specdecpp.SHAPES, "draft")
    return head.hashes(), specdecpp.acceptance_head(head, CPU).log_odds(torch.ones(3, 32))


def make_judge(folder: Path) -> dict[str, str]:
    tensors = {name: torch.ones(shape) for name, shape in judge.shapes(tiny()).items()}
    write_head(folder / "head.safetensors", judge.KIND, tensors, tiny(), {"threshold": 0.5})
    return {"head.safetensors": "safetensors"}


def read_judge(folder: Path, rng: random.Random) -> object:
    return read_head(folder / "head.safetensors", judge.KIND, tiny(), judge.shapes(tiny()))


def make_eagle(folder: Path) -> dict[str, str]:
    from specbench.engine.models.eagle_head import EagleHead, head_config, layers_read, stored_settings

    target = tiny().models["target"]
    made = head_config(target, 48)
    ids = torch.arange(0, 96, 2)
    head = EagleHead(made, ids, target.get_input_embeddings())
    tensors = {**head.state_dict(), "d2t": (ids - torch.arange(48)).float()}
    tensors = {name: tensors[name] for name in eagle3.SHAPES}
    trained = {"config": stored_settings(made), "layers": list(layers_read(target)), "draft_vocabulary": 48}
    write_head(folder / "head.safetensors", eagle3.KIND, tensors, tiny(), trained)
    return {"head.safetensors": "safetensors"}


def read_eagle(folder: Path, rng: random.Random) -> object:
    head = read_head(folder / "head.safetensors", eagle3.KIND, tiny(), eagle3.SHAPES)
    return as_eagle(head, tiny().models["target"], tiny().vocabulary)


def make_arbitrator(folder: Path) -> dict[str, str]:
    pair = with_backbone(tiny(), "draft")
    made = new_arbitrator(pair.session("arbitrator").model, Adapter(rank=2, alpha=4.0), seed=0)
    write_arbitrator(folder / "head.safetensors", made, pair, {"rank": 2, "alpha": 4.0})
    return {"head.safetensors": "safetensors"}


def read_arbitrator(folder: Path, rng: random.Random) -> object:
    assert ARBITRATOR == "cospec"
    return find_arbitrator(str(folder / "head.safetensors"), with_backbone(tiny(), "draft"))


# Files of others


def make_released(folder: Path) -> dict[str, str]:
    """SpecDec++'s checkpoint, as safetensors or as torch saves it."""
    rng = torch.Generator().manual_seed(0)
    shapes = {"model.0.linear.weight": (8, 8), "model.0.linear.bias": (8,)}
    shapes |= {"model.1.weight": (2, 8), "model.1.bias": (2,)}
    tensors = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text('{"hidden_size": 8, "num_layers": 1}')
    save_file(tensors, folder / "one" / "model.safetensors")
    torch.save(tensors, folder / "two" / "pytorch_model.bin")
    kinds = {"one/model.safetensors": "safetensors", "two/pytorch_model.bin": "bytes"}
    return kinds | {f"{name}/config.json": "json" for name in ("one", "two")}


def read_released(folder: Path, rng: random.Random) -> object:
    return [acceptance_head.AcceptanceImporter().read(folder / name) for name in ("one", "two")]


def make_released_eagle(folder: Path) -> dict[str, str]:
    width, inner, heads, drafted, vocabulary = 8, 12, 2, 6, 10
    shapes = {f"midlayer.self_attn.{name}_proj.weight": (8, 2 * width) for name in "qkv"}
    shapes |= {"midlayer.self_attn.o_proj.weight": (width, 8), "midlayer.mlp.down_proj.weight": (width, inner)}
    shapes |= {f"midlayer.mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    shapes |= {name: (width,) for name, shape in eagle3.SHAPES.items() if len(shape) == 1 and name != "d2t"}
    shapes |= {"fc.weight": (width, 3 * width), "lm_head.weight": (drafted, width)}
    ids = torch.tensor([0, 1, 3, 4, 6, 9])
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    tensors |= {"d2t": ids - torch.arange(drafted), "t2d": torch.zeros(vocabulary, dtype=torch.bool)}
    tensors["t2d"][ids] = True
    save_file(tensors, folder / "model.safetensors")
    facts = {"hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads, "head_dim": 4}
    facts |= {"vocab_size": vocabulary, "draft_vocab_size": drafted, "rope_scaling": {"type": "linear", "factor": 2.0}}
    (folder / "config.json").write_text(json.dumps(facts))
    return {"model.safetensors": "safetensors", "config.json": "json"}


def read_released_eagle(folder: Path, rng: random.Random) -> object:
    result, tensors = eagle_head.Eagle3Importer().read(folder)
    with contextlib.suppress(ValueError, KeyError, TypeError):  # as import_head does
        eagle_head.config_of(
            result.hidden_size, result.intermediate_size, result.draft_vocab_size, result.in_head_file()
        )
    return tensors


def make_answers(folder: Path) -> dict[str, str]:
    def answer(number: int) -> dict[str, Any]:
        choice = {"turns": ["a", "b"], "new_tokens": [6, 4], "accept_lengths": [3, 2, 1]}
        choice |= {"wall_time": [1.0, number / 7]}
        return {"question_id": number, "category": "math", "model_id": "eagle", "choices": [choice]}

    (folder / "a.jsonl").write_text("\n".join(json.dumps(answer(number)) for number in range(1, 5)))
    return {"a.jsonl": "jsonl"}


def read_answers(folder: Path, rng: random.Random) -> object:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    by_category = rng.random() < 0.5
    files = [folder / "a.jsonl"]
    write_run("spec-bench", lambda path: spec_bench.read(path, by_category), files, None, None, "x", out)
    return fuzz_run.StoredRun(out).samples(), fuzz_run.StoredRun(out).rounds()


FROM_VLLM = ("responses", "bench", "served", "lists", "scrape")


def make_responses(folder: Path) -> dict[str, str]:
    speculation = {"num_spec_steps": 2, "num_draft_tokens": 6, "num_spec_tokens": 3}
    speculation |= {"acceptance_histogram": [1, 0, 0, 1]}
    metrics = {"time_to_first_token_ms": 5.0, "generation_time_ms": 9.0, "speculative_decoding": speculation}
    usage = {"prompt_tokens": 3, "completion_tokens": 6}
    one = {"choices": [{"text": "a", "finish_reason": "stop"}], "usage": usage, "metrics": metrics}
    steps = {"per_step_drafted": [3, 3], "per_step_accepted": [0, 3]}
    other = one | {"metrics": metrics | {"speculative_decoding": {"num_spec_steps": 2, **steps}}}
    (folder / "responses.json").write_text(json.dumps([one, other]))
    bench = {"request_throughput": 1.0, "input_lens": [3, 4], "output_lens": [2, 2], "ttfts": [0.1, 0.1]}
    bench |= {"itls": [[0.1], [0.1]], "generated_texts": ["a", "b"], "errors": ["", "x"], "max_concurrency": 1}
    (folder / "bench.json").write_text(json.dumps(bench))
    served = {"request_throughput": 1.0, "mean_ttft_ms": 5.0, "spec_decode_num_drafts": 3}
    (folder / "served.json").write_text(json.dumps(served))
    lists = {"prompt_token_ids": [1, 2], "generated_token_ids": [3, 4, 5], "acc_eagle": {"acc_len": [1, 2, 2]}}
    (folder / "lists.json").write_text(json.dumps([lists | {"acc_ngram": [1, 2]}] * 2))
    counters = {"drafts": 4, "draft_tokens": 8, "accepted_tokens": 5}
    lines = [f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="m"}} {n}' for name, n in counters.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="m",position="{k}"}} {4 - k}' for k in range(2)
    ]
    (folder / "scrape.json").write_text("\n".join(["# TYPE x counter", *lines]))
    return dict.fromkeys((f"{name}.json" for name in FROM_VLLM), "json") | {"scrape.json": "bytes"}


def read_responses(folder: Path, rng: random.Random) -> object:
    results = []
    for name in FROM_VLLM:
        out = folder / f"out-{name}"
        shutil.rmtree(out, ignore_errors=True)
        write_run("vllm", vllm.read, [folder / f"{name}.json"], None, None, "x", out)
        results.append((fuzz_run.StoredRun(out).samples(), fuzz_run.StoredRun(out).rounds()))
    return results


def make_others(folder: Path) -> dict[str, str]:
    for tool, entry in of_tools().items():
        (folder / f"{tool}.json").write_text(json.dumps(entry))
    table = "Metric,avg,p50,p99\nRequest Latency (ms),15.0,14.0,29.0\n\nMetric,Value\na (b),1\n"
    (folder / "aiperf.csv").write_text(table)
    return {f"{tool}.json": "json" for tool in of_tools()} | {"aiperf.csv": "bytes"}


def read_others(folder: Path, rng: random.Random) -> object:
    results = []
    for name in (*(f"{tool}.json" for tool in of_tools()), "aiperf.csv"):
        out = folder / f"out-{name}"
        shutil.rmtree(out, ignore_errors=True)
        tool = name.partition(".")[0]
        write_run(tool, lambda path, tool=tool: read_of_tool(tool, path), [folder / name], None, None, "x", out)
        results.append((fuzz_run.StoredRun(out).samples(), fuzz_run.StoredRun(out).rounds()))
    return results


def make_texts(folder: Path) -> dict[str, str]:
    rng = random.Random(0)
    ids = lambda: [rng.randrange(90) for _ in range(6)]  # noqa: E731
    lines = [json.dumps({"prompt": ids(), "generated": ids(), "task": "a", "id": str(n)}) for n in range(4)]
    (folder / "traces.jsonl").write_text("\n".join(lines))
    corpus = [json.dumps({"text": "Tom has 3 apples and buys 4 more. " * 12}) for _ in range(3)]
    (folder / "corpus.jsonl").write_text("\n".join(corpus))
    (folder / "corpus.txt").write_text("One line.\nAnother.\n\nA paragraph.\n")
    return {"traces.jsonl": "jsonl", "corpus.jsonl": "jsonl", "corpus.txt": "bytes"}


def read_texts(folder: Path, rng: random.Random) -> object:
    given = SimpleNamespace(tokenizer=TOKENIZER, context=512, name="made")
    texts = list(beginnings(folder / "corpus.jsonl", given, 9, 5))
    documents = [text for name in ("corpus.jsonl", "corpus.txt") for text in _of_file(folder / name)]
    return read_traces(folder / "traces.jsonl"), texts, documents


def make_prompts(folder: Path) -> dict[str, str]:
    lines = [{"id": n, "category": "ab"[n % 2], "prompt": ["Hello.", "Go on."], "reference": "x"} for n in range(4)]
    lines += [{"question_id": 9, "category": "qa", "turns": ["Who?"]}, {"prompt": "Alone."}]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"prompts.jsonl": "jsonl"}


def read_prompt_file(folder: Path, rng: random.Random) -> object:
    tasks = list(dict.fromkeys(prompt.task for prompt in read_prompts(folder / "prompts.jsonl")))
    return PromptFile(folder / "prompts.jsonl", tasks, 3, dict.fromkeys(tasks, 8), None).requests()


def read_own_task(folder: Path, rng: random.Random) -> object:
    return own_tasks.own_task(folder / "own.yaml"), own_tasks.tasks_of_folder(folder)


def make_profile(folder: Path) -> dict[str, str]:
    times = {"t_draft": 0.001, "t_target": 0.01, "overhead": 0.0}
    models = {"target": {"weights_hash": "aa", "model": "x"}, "draft": {"weights_hash": "bb", "model": "y"}}
    (folder / "profile.json").write_text(json.dumps({"times": times, "models": models}))
    return {"profile.json": "json"}


def read_profile(folder: Path, rng: random.Random) -> object:
    return from_option(
        str(folder / "profile.json"), {"target": {"weights_hash": "aa"}, "draft": {"weights_hash": "bb"}}
    )


def make_figures(folder: Path) -> dict[str, str]:
    source = min(published.FOLDER.glob("*.csv"), key=lambda path: path.stat().st_size)
    (folder / "table.csv").write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:8]))
    return {"table.csv": "bytes"}


def read_figures(folder: Path, rng: random.Random) -> object:
    return [
        (figure.settings, figure.is_average, figure.key("x")) for figure in published.read_figures(folder / "table.csv")
    ]


# What specbench keeps


def make_collected(folder: Path) -> dict[str, str]:
    states = state_column(np.ones((3, 4), np.float16))
    put_table(folder / "c.parquet", pa.table({"states": states, "n": [1, 2, 3]}), {"facts": {"seed": 1}})
    return {"c.parquet": "parquet"}


def read_collected_one(folder: Path, rng: random.Random) -> object:
    return read_collected(folder / "c.parquet", {"seed": 1}, lambda table: (states_of(table["states"]), table["n"]))


def make_checkpoint(folder: Path) -> dict[str, str]:
    state = {"head": {"weight": torch.ones(4, 4)}, "optimizer": {"state": {}, "lr": [0.1]}, "step": 3}
    save_checkpoint(folder / "c.pt", {"seed": 1}, state)
    return {"c.pt": "bytes"}


def read_checkpoint(folder: Path, rng: random.Random) -> object:
    return load_checkpoint(folder / "c.pt", {"seed": 1}, ("head", "step"))


FACTS = {"run": {"started": "x"}, "method": "ab", "name": "cospec", "seed": 0}


def make_branches(folder: Path) -> dict[str, str]:
    store = Store(folder / "branches", FACTS)
    row = {"repeat": 0, "task": "a", "doc_id": 0, "round": 1, "kept": True, "met": True, "same": False}
    scores = dict.fromkeys(("draft_score", "target_score", "recorded_score"), 1.0)
    store.add([row | scores | {"position": at} for at in range(3)])
    return {"branches/facts.json": "json", "branches/000000.parquet": "parquet"}


def read_branches(folder: Path, rng: random.Random) -> object:
    return Store(folder / "branches", FACTS).keys()


MACHINE = {"device": "cpu", "cpu": "a processor", "threads": 2}


def make_ceilings(folder: Path) -> dict[str, str]:
    facts = {"schema": ceilings.SCHEMA, "machine": MACHINE, "dtype": "float32"}
    (folder / "c.json").write_text(json.dumps(fuzz_run.CEILINGS | facts))
    return {"c.json": "json"}


def read_ceilings(folder: Path, rng: random.Random) -> object:
    here = {"_path": lambda machine, dtype: folder / "c.json", "machine_facts": lambda device: MACHINE}
    with patch.multiple(ceilings, **here):
        result = ceilings.stored(CPU, torch.float32)
        return result and (ceilings.read(result).bandwidth(10**6), list(ceiling_notes(result)))


def make_grades(folder: Path) -> dict[str, str]:
    (folder / "judge.json").write_text('{"mt_bench": {"model": "x", "request": "y"}}')
    return {"judge.json": "json"}


def read_grades(folder: Path, rng: random.Random) -> object:
    judged = SimpleNamespace(describe=lambda: {"target": {"model": "x"}}, tokenizer_hash="ab")
    return _remember(folder, ["a"], judged)


def made(specs, temperature: float = 0.0):
    return lambda folder: fuzz_run.make(folder, specs(), temperature)


TARGETS = [
    Target("pair", copied(SUITES / "pairs" / "pocket-trio.yaml"), read_pair, 2),
    Target("method", copied(SUITES / "methods" / "lossy" / "csd.yaml"), read_method, 3),
    Target("suite", copied(SUITES / "csd-ablation.yaml"), read_suite, 2),
    Target("paper", copied(published.FOLDER / "csd.yaml"), read_paper, 0.5),
    Target("recipe", copied(recipe.recipes()["specdecpp"]), read_recipe, 2),
    Target("options", make_options, read_options, 3),
    Target("memory", make_memory, read_memories, 3),
    Target("datastore", make_store, read_store, 3),
    Target("acceptance head", make_head, read_acceptance, 2),
    Target("judge head", make_judge, read_judge, 1),
    Target("eagle head", make_eagle, read_eagle, 2),
    Target("arbitrator", make_arbitrator, read_arbitrator, 1),
    Target("released head", make_released, read_released, 2),
    Target("released eagle head", make_released_eagle, read_released_eagle, 2),
    Target("spec-bench answers", make_answers, read_answers, 2),
    Target("vllm responses", make_responses, read_responses, 2),
    Target("other tools", make_others, read_others, 2),
    Target("traces and corpora", make_texts, read_texts, 2),
    Target("prompts", make_prompts, read_prompt_file, 2),
    Target("own task", copied(SUITES / "tasks" / "mmlu" / "mmlu.yaml"), read_own_task, 2),
    Target("profile", make_profile, read_profile, 2),
    Target("figures", make_figures, read_figures, 2),
    Target("collected", make_collected, read_collected_one, 2),
    Target("checkpoint", make_checkpoint, read_checkpoint, 2),
    Target("branches", make_branches, read_branches, 1.5),
    Target("ceilings", make_ceilings, read_ceilings, 1.5),
    Target("grades", make_grades, read_grades, 0.5),
    Target("run: tables", made(fuzz_run.few), fuzz_run.reader(fuzz_run.SUMMARIES), 2),
    Target("run: analyses", made(fuzz_run.many), fuzz_run.reader(fuzz_run.ANALYSES), 3),
    Target("run: sampled", made(fuzz_run.sampled, 1.0), fuzz_run.reader(fuzz_run.DRAWN), 0.5),
    Target("run: plots and page", made(fuzz_run.few), fuzz_run.reader(fuzz_run.SLOW), 0.5),
    Target("run: two", fuzz_run.make_two, fuzz_run.compare_two, 0.5),
    Target("run: unfinished", fuzz_run.make_parts, fuzz_run.read_parts, 1.5),
    Target("run: resumed", fuzz_run.make_parts, fuzz_run.resume_parts, 3),
    *DOORS,
]
