"""A small run folder with all kinds of methods, and everything that reads one."""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import made_runs
import matplotlib
import numpy as np
from made_runs import METRIC, TOKENIZER

from specbench import config
from specbench.analysis import metrics, roofline
from specbench.analysis import trace as tracing
from specbench.analysis.acceptance import acceptance
from specbench.analysis.complementarity import complementarity
from specbench.analysis.frontier import frontier
from specbench.analysis.rejections import rejections, rescues
from specbench.analysis.simulate import Options, simulate
from specbench.analysis.trace_columns import Tracer, Words
from specbench.config import MethodSpec, Setting
from specbench.papers.ours import Ours
from specbench.plan import Plan
from specbench.report import comparison
from specbench.report.finding import show
from specbench.report.plots import kinds as plots
from specbench.report.views.acceptance import view as acceptance_view
from specbench.report.views.frontier import view as frontier_view
from specbench.report.views.profile import view as profile_view
from specbench.report.views.rejections import view as rejections_view
from specbench.report.views.simulate import view as simulate_view
from specbench.results.documents import DocumentRow
from specbench.results.recorder import Recorder
from specbench.results.stored import StoredRun
from specbench.studies import profile
from specbench.training.csd import rejected_pairs
from specbench_extras.collaboration.analysis import collaboration
from specbench_extras.collaboration.view import view as collaboration_view
from specbench_extras.counterfactual.analysis import draw_states, estimated_seconds, reached_states
from specbench_extras.drafts.two_readings import texts_to_read
from specbench_extras.multidraft.study import first_levels

matplotlib.use("Agg")
TASKS = ("pocket_gsm8k", "pocket_math500")
DOCUMENTS = 2
GAMMA = 3
ORACLES = Options(by_context=True, oracle=True, second="sps")
FORWARD = {
    **{"weight_bytes": 1000, "lookup_bytes": 10, "matrix_weights": 500, "output_weights": 100, "logit_bytes": 40},
    **{"kv_bytes_per_token": 64, "layers": 2, "attention_width": 16, "window": None, "window_layers": 0},
}
CEILINGS = {
    "bandwidth": [{"bytes": 2**20, "median": 1e9}, {"bytes": 2**30, "median": 1e8}],
    "products": [{"median": 1e9}],
    "machine": {"device": "cpu", "cpu": "a processor", "cores": 2, "threads": 2, "driver": "", "torch": "1"},
    **{"schema": 1, "dtype": "float32", "measured": "2026-01-01", "load": 0.1},
}


def _of(name: str, **values: Any) -> MethodSpec:
    return config.variant(config.load_method(name), {key: Setting(value=value) for key, value in values.items()})


def few() -> list[MethodSpec]:
    return [_of("vanilla"), _of("csd")]


def sampled() -> list[MethodSpec]:
    return [_of(name) for name in ("vanilla", "ensemble", "cos", "cos-naive", "mdsd")]


def many() -> list[MethodSpec]:
    return [
        *map(_of, ("vanilla", "sps", "csd", "specdecpp")),
        *(_of("specdecpp", threshold=0.5), _of("sps", gamma=3)),
        *map(_of, ("ensemble", "cos", "cos-naive", "cospec", "member", "mdsd", "oracle")),
    ]


def make(folder: Path, specs: list[MethodSpec], temperature: float = 0.0) -> dict[str, str]:
    """A finished run in `folder/run`, and its files with the kind of each."""
    names = {spec.name for spec in specs}
    plan = Plan(
        pair=config.load_pair("pocket"),
        methods=tuple(specs),
        baseline="vanilla",
        baselines={name: "ensemble" for name in ("cos", "cos-naive") if name in names},
        suite="made",
        temperature=temperature,
        tasks=tuple({"task": task} for task in TASKS),  # type: ignore[arg-type]
    )
    run = folder / "run"
    run.mkdir()
    made_runs.manifest(run, TASKS, ["vanilla"], DOCUMENTS, plan=plan.model_dump(mode="json"), **_facts(specs))
    rng = np.random.default_rng(0)
    tables: dict[str, list[dict[str, Any]]] = {"samples": [], "rounds": []}
    scores = []
    words = [i for i in range(3, 400) if "\ufffd" not in TOKENIZER.decode([i])]
    for task in TASKS:
        for doc in range(DOCUMENTS):
            for spec in specs:
                _sample(tables, {"repeat": 0, "task": task, "doc_id": doc, "method": spec.name}, spec, words, rng)
                scores.append(made_runs.score(task, spec.name, doc, float(rng.random() < 0.6)))
        scores += [made_runs.score(task, spec.name, None, 0.5) for spec in specs]
    made_runs.write(run, tables, scores)
    made_runs.keep(run, (DocumentRow(task, doc, f"Ask {doc}", "7", None) for task in TASKS for doc in range(DOCUMENTS)))
    tables = ("samples", "rounds", "scores", "documents")
    return {"run/manifest.json": "json"} | {f"run/{name}.parquet": "parquet" for name in tables}


def _facts(specs: list[MethodSpec]) -> dict[str, Any]:
    models = {
        role: {"model": f"bundled:{role}", "dtype": "float32", "weights_hash": role, "forward": FORWARD}
        for role in ("target", "draft")
    }
    inputs = {spec.name: {"head": "ab"} if spec.method == "cospec" else {} for spec in specs}
    return {"models": models, "inputs": inputs, "ceilings": CEILINGS, "headline": dict.fromkeys(TASKS, METRIC)}


def _sample(
    tables: dict[str, list[dict[str, Any]]], key: dict[str, Any], spec: MethodSpec, words: list[int], rng: Any
) -> None:
    """A text of words, with drafts that are accepted, rescued and refused; the lists that its method would tell."""
    plain = spec.method in ("vanilla", "ensemble", "member")
    tokens: list[int] = []
    key = key | {"warmup": False}
    for number in range(6):
        drafted = 0 if plain or not number else GAMMA
        accepted = int(rng.integers(0, drafted + 1))
        new = [int(one) for one in rng.choice(words, accepted + 1)]
        row = {"round": number, "drafted": drafted, "levels": drafted, "accepted": accepted}
        row |= {"rescued": 0, "truncated": 0, "committed": accepted + 1}
        row |= {"target_forwards": 1, "draft_forwards": drafted, "seconds": 0.01}
        row |= {"target_seconds": 0.005, "draft_seconds": 0.001 * drafted, "model_seconds": 0.006}
        if drafted:
            rest = [int(one) for one in rng.choice(words, drafted - accepted)]
            drafts, targets = [*new[:accepted], *rest], [*new, *rest][:drafted]
            decisions = [1] * accepted + ([0] + [3] * (drafted - accepted - 1) if accepted < drafted else [])
            if accepted and spec.method in ("csd", "cospec"):
                decisions[0], targets[0], row["rescued"] = 2, words[0], 1
            row |= {"draft_tokens": drafts, "target_tokens": targets, "decisions": decisions, "ratios": [0.5] * drafted}
            row |= {"predictions": [0.6] * drafted, "confidences": [0.7] * drafted}
            if spec.method.startswith("cos"):
                row |= {"overlaps": [0.5] * drafted, "proposers": [0] * drafted}
            if spec.method == "mdsd":
                row |= {"parents": list(range(-1, drafted - 1))}
        tokens += new
        tables["rounds"].append(key | row)
    facts = {"order": 0, "seed": 1, "prompt_hash": "", "prompt_tokens": 20, "tokens": tokens, "finish": "length"}
    facts |= {"text": TOKENIZER.decode(tokens), "prefill_seconds": 0.01, "decode_seconds": 0.05, "peak_memory": 10**6}
    tables["samples"].append(key | facts)


def _decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids)


def _traced(run: StoredRun) -> None:
    run.kept({task: range(DOCUMENTS) for task in TASKS})
    tracing.trace(run, TASKS[0], 0, "csd", decode=_decode)
    methods = [spec.name for spec in run.plan.methods]
    list(Tracer(run, _decode, Words(), methods).of({task: range(DOCUMENTS) for task in TASKS}))


def _analyzed(run: StoredRun) -> None:
    findings = rejections_view(rejections(run, "csd", _decode), rescues(run, "csd", _decode))
    show(findings, "json")
    show(findings)


def _drawn(kind: str, run: StoredRun) -> None:
    plots.draw(kind, [run])


def _states(run: StoredRun) -> None:
    result = reached_states(run, "cospec")
    estimated_seconds(run, "cospec", draw_states(run, "cospec", result, 3, 0))


# Each of them is a command, or as much of one as needs no model.
SUMMARIES: dict[str, Callable[[StoredRun], object]] = {
    "show": lambda run: comparison.show(run.folder, "table"),
    "csv": lambda run: comparison.show(run.folder, "csv"),
    "latex": lambda run: comparison.compare([run.folder], "latex", columns=["accuracy", "tau", "+limit_share"]),
    "depth": lambda run: comparison.compare([run.folder], "json", by="depth"),
    "tables": lambda run: Ours([run]),
    "counts": lambda run: metrics.acceptance_by_depth(metrics.depths(run.rounds())),
    "trace": _traced,
}
ANALYSES: dict[str, Callable[[StoredRun], object]] = {
    "rejections": _analyzed,
    "acceptance": lambda run: show(acceptance_view(acceptance(run, "specdecpp"))),
    "frontier": lambda run: show(frontier_view(frontier(run, "specdecpp", "sps", None)), "json"),
    "complementarity": lambda run: complementarity(run, None, None, ()),
    "simulate": lambda run: show(simulate_view(simulate(run, "sps", None, [1, 2], [], None)), "json"),
    "simulate oracles": lambda run: simulate(run, "sps", None, [1, 2], [], None, options=ORACLES),
    "simulate lengths": lambda run: simulate(run, "specdecpp", "t_draft=0.1,t_target=1", [], [0.5], 1),
    "profile": lambda run: show(profile_view(profile.read(run.folder))),
    "roofline": lambda run: (roofline.of_manifest(run), roofline.recorded(run)),
    "merge": lambda run: rejected_pairs(run, "csd"),
    "states": _states,
    "scores": lambda run: (run.scores(), run.samples(), run.documents(), run.conditions()),
}
SLOW: dict[str, Callable[[StoredRun], object]] = {
    "page": lambda run: comparison.report([run.folder], run.folder.parent / "report.html"),
    **{kind: partial(_drawn, kind) for kind in plots.KINDS},
}
DRAWN: dict[str, Callable[[StoredRun], object]] = {
    "collaboration": lambda run: show(collaboration_view(collaboration(run))),
    "multi-draft": lambda run: (texts_to_read(run, "mdsd"), first_levels(run, "mdsd")),
}


def reader(chosen: dict[str, Callable[[StoredRun], object]]) -> Callable[[Path, random.Random], object]:
    """Reads the run in a folder in one of some ways."""
    return lambda folder, rng: chosen[rng.choice(list(chosen))](StoredRun(folder / "run"))


def compare_two(folder: Path, rng: random.Random) -> object:
    return comparison.compare([folder / "run", folder / "other"], "md")


def make_two(folder: Path) -> dict[str, str]:
    """Two runs of one pair, of which the first one is made hostile."""
    make(folder, few())
    (folder / "run").rename(folder / "other")
    manifest = folder / "other" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("2026-01-01T12", "2026-01-02T12"))
    return make(folder, few())


def make_parts(folder: Path) -> dict[str, str]:
    """An unfinished run, with a document's part and a block of the rest."""
    make(folder, few())
    run, parts = folder / "run", folder / "run" / "parts"
    parts.mkdir()
    for name in ("samples", "rounds"):
        path = run / f"{name}.parquet"
        (parts / f"000000.{name}.parquet").write_bytes(path.read_bytes())
        path.unlink()
    (run / "scores.parquet").unlink()
    tables = ("samples", "rounds")
    return {"run/manifest.json": "json"} | {f"run/parts/000000.{name}.parquet": "parquet" for name in tables}


def resume_parts(folder: Path, rng: random.Random) -> object:
    """What `--resume` does with the folder before it decodes; then a document, and the end."""
    recorder = Recorder(folder / "run")
    done = recorder.done() if not recorder.merged else 0
    if not recorder.merged:
        recorder.write(done, [], [], {})
        recorder.finish()
    return done


def read_parts(folder: Path, rng: random.Random) -> object:
    run = StoredRun(folder / "run")
    return metrics.per_document(run.samples(), run.rounds()), tracing.trace(run, TASKS[0], 0, "csd", decode=_decode)
