"""The Python API; `import specbench` has its names, and imports what they need when they are first used.

What is wrong with an input is a `UserError` of one line. Nothing is permitted that runs other people's code, or fetches
models from a hub, outside of `with specbench.permitted(...)`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from specbench import config
from specbench.analysis import compare as compared
from specbench.analysis import pooled
from specbench.config.chosen import EACH
from specbench.plan import Plan, resolve_plan
from specbench.results import importers
from specbench.results.stored import StoredRun

if TYPE_CHECKING:
    from specbench.engine.models.pair import Pair
    from specbench.measure.single import Decoded

Tool = Literal["spec-bench", "vllm", "sglang", "aiperf", "guidellm", "speed-bench", "specforge"]


class Run:
    """A run folder, finished or not. Its tables are pandas DataFrames, which are read and checked at first use.

        run = specbench.load_run("runs/first")
        run.samples.groupby("method").decode_seconds.sum()

    A damaged table, and scores of an unfinished run, raise a `UserError` when they are asked for.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.stored = StoredRun(self.folder)
        self.plan: Plan = self.stored.plan

    def __repr__(self) -> str:
        methods = ", ".join(spec.name for spec in self.plan.methods)
        state = "" if self.finished else ", unfinished"
        return f"<specbench run {str(self.folder)!r}: {methods} on {len(self.plan.tasks)} tasks{state}>"

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.stored.name

    @property
    def finished(self) -> bool:
        """True if all documents are decoded and scored."""
        return self.stored.finished

    @property
    def manifest(self) -> dict[str, Any]:
        """Plan, models, inputs, requests, environment and versions, as in manifest.json."""
        return self.stored.manifest

    @cached_property
    def samples(self) -> pd.DataFrame:
        """A row for each document, method and repeat: the columns of `specbench.results.records.SAMPLES`.

        Warm-ups (`warmup`) and failed samples (`finish == "error"`) are among them.
        """
        return self.stored.samples()

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row for each round of each sample: the columns of `specbench.results.records.ROUNDS`."""
        return self.stored.rounds().to_table().to_pandas()

    @cached_property
    def scores(self) -> pd.DataFrame:
        """A row for each score of a document, and of a task: the columns of `specbench.results.records.SCORES`."""
        return self.stored.scores()

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The run's own table: a row for each task and method, as `compare` gives it."""
        return compare([self])


AnyRun = Run | str | Path


def load_run(folder: str | Path) -> Run:
    """A run folder, finished or not.

    Raises:
        UserError: there is no run in the folder, or its manifest is damaged.
    """
    return Run(folder)


def import_run(
    tool: Tool,
    files: str | Path | Iterable[str | Path],
    *,
    out: str | Path | None = None,
    baseline: str | Path | None = None,
    method: str | None = None,
    pair: str | None = None,
    by_category: bool = False,
    before: str | Path | None = None,
    allow_mismatch: Sequence[str] = (),
) -> Run:
    """Turn another tool's figures into a run folder, as `specbench import` does.

        eagle = specbench.import_run("spec-bench", "answers-eagle.jsonl", baseline="answers-vanilla.jsonl")

    Args:
        files: one for each method.
        out: the new folder; by default one in runs/.
        baseline: the tool's file of plain decoding, which becomes `vanilla`.
        method: the name of the method of a single file.
        pair: the name of the pair of models; by default the tool's.
        by_category: Spec-Bench and SPEED-Bench only: each category is a task.
        before: vLLM only: a scrape of /metrics before the one in `files`.
        allow_mismatch: conditions in which files may differ from the baseline, such as `rate`.

    Raises:
        UserError: a file is damaged or of another kind, or `out` exists.
    """
    paths = [Path(file) for file in _listed(files)]
    folder = importers.import_files(
        tool,
        paths,
        Path(baseline) if baseline else None,
        method,
        pair,
        Path(out) if out else None,
        by_category,
        Path(before) if before else None,
        allow_mismatch,
    )
    return Run(folder)


def compare(
    runs: AnyRun | Iterable[AnyRun], against: str | None = None, allow_mismatch: Sequence[str] = ()
) -> pd.DataFrame:
    """The table that `specbench compare` prints, with all its columns.

    It has a row for each pair, sampling, task and method, with averages over the tasks (task `average`). Runs of the
    same pair and method are pooled as repeats. docs/pages/columns.md defines the columns.

        table = specbench.compare(["runs/first", "runs/second"], against="vanilla")
        table.loc[table.task == "average", ["method", "speedup_decode", "tau"]]

    Args:
        runs: finished runs, as folders or as `Run`.
        against: the baseline of all methods; by default the one that each was run with.
        allow_mismatch: conditions, such as `cpu`, in which the runs may differ.

    Raises:
        UserError: a run is unfinished or damaged, the runs must not be compared, or no method is called `against`.
    """
    measured = pooled.measured([_run(run).stored for run in _listed(runs)], allow_mismatch)
    return compared.summary(measured if against is None else measured.against(against))


def run(
    methods: str | Sequence[str] = (),
    suite: str = "math",
    folder: str | Path | None = None,
    *,
    pair: str = "pocket",
    settings: Mapping[str, Any] | None = None,
    baseline: str | None = EACH,
    servers: str | Path | Mapping[str, str] | Sequence[str | Path] = (),
    **options: Any,
) -> Run:
    """Decode a suite with some methods, as `specbench run` does, and return the run.

        run = specbench.run(["sps", "csd"], suite="math", limit=20, settings={"csd.gamma": 6})
        run.summary[["task", "method", "accuracy", "speedup_decode"]]
        compared = specbench.run("sps", servers={"vllm": "http://127.0.0.1:8000"}, limit=20, concurrency=8)

    A folder that holds an unfinished run of the same plan is continued. After Ctrl-C the run is not `finished`.

    Args:
        methods: names; by default those of the suite.
        suite: a name, or a YAML file.
        folder: the run folder; by default a new one in runs/.
        pair: a name, a YAML file, or target=NAME_OR_PATH,draft=NAME_OR_PATH.
        settings: values by METHOD.KEY.
        baseline: the method that all speedups are against, `each` (every method has its own), or None.
        servers: engines that are measured next to the methods: URLs by name, or NAME=URL texts and YAML files.
        options: fields of the plan, such as limit, temperature, seed, repeats, dtype, device, runtime, data_dir.

    Raises:
        UserError: a name, setting or value does not exist, or the folder cannot be used or belongs to another plan.
    """
    assignments = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    asked = [f"{name}={url}" for name, url in servers.items()] if isinstance(servers, Mapping) else _listed(servers)
    plan = resolve_plan(
        _listed(methods), suite, pair, assignments, baseline, servers=[str(address) for address in asked], **options
    )
    return run_plan(plan, folder)


def run_plan(plan: Plan, folder: str | Path | None = None) -> Run:
    """Carry out a plan of `resolve_plan`, or of another run (`run.plan`), as `run` does.

    Raises:
        UserError: settings are wrong, or the folder cannot be used or belongs to another plan.
    """
    from specbench.measure import command

    folder = Path(folder) if folder else command.default_folder(plan)
    command.carry_out(plan, folder)
    done = Run(folder)
    if done.finished:
        compared.write_summary(folder)
    return done


def load_pair(pair: str = "pocket", device: str = "auto", dtype: str = "auto", runtime: str = "auto") -> "Pair":
    """The models of a pair with their tokenizer, to decode many prompts with.

    Args:
        pair: a name, a YAML file, or target=NAME_OR_PATH,draft=NAME_OR_PATH.
        device: auto, cpu, cuda or cuda:N.
        dtype: auto (the pair's own), or a torch dtype such as float64.
        runtime: eager, static, graph, openvino, llamacpp, or auto: static, or eager for models that it does not know.

    Raises:
        UserError: a model does not exist, cannot be loaded, or does not fit the other.
    """
    from specbench.engine.models import pair as pairs
    from specbench.engine.runtimes import choose

    return choose.placed(runtime, pairs.load_pair(config.load_pair(pair), device, dtype, runtime=runtime))


def decode(
    prompt: str,
    pair: "str | Pair" = "pocket",
    method: str = "sps",
    *,
    settings: Mapping[str, Any] | None = None,
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    seed: int = 0,
) -> "Decoded":
    """Decode one prompt by one method; returns the text with its rounds.

        pair = specbench.load_pair("pocket")
        answer = specbench.decode("Tom has 3 apples and buys 4 more.", pair, "csd", settings={"gamma": 6})
        answer.text, answer.tau, answer.rounds[["drafted", "accepted", "committed"]]

    Args:
        pair: a name or a loaded pair; a name is loaded again by each call.
        method: a name, or a YAML file.
        settings: values by KEY, in place of the method's own.
        stop: texts that end the answer, besides the pair's end tokens.
        temperature: 0 is greedy.
        top_k: the likeliest tokens to sample from; 0 is off.
        top_p: the share of probability to sample from; 1 is off.
        min_p: the least share of the likeliest token's probability that a token must have; 0 is off.
        repetition_penalty: divides the logits of tokens of prompt and answer; 1 is off.
        presence_penalty: is subtracted from the logits of tokens of the answer; 0 is off.
        frequency_penalty: the same, as often as a token is there; 0 is off.
        seed: the same seed, prompt and method give the same text.

    Raises:
        UserError: a name or setting does not exist, or the prompt leaves no room in the pair's context.
    """
    from specbench.engine.generate import Limits
    from specbench.engine.types import Sampling
    from specbench.measure.single import decode

    values = {key: config.Setting(value=value) for key, value in (settings or {}).items()}
    spec = config.override(config.load_method(method), values)
    loaded = load_pair(pair) if isinstance(pair, str) else pair
    try:
        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty)
    except ValueError as error:
        raise config.UserError(str(error)) from None
    if max_new_tokens < 1:
        raise config.UserError(f"max_new_tokens must be 1 or more, not {max_new_tokens}")
    return decode(loaded, spec, prompt, sampling, Limits(max_new_tokens, loaded.eos_ids, tuple(stop)), seed)


def _run(run: AnyRun) -> Run:
    return run if isinstance(run, Run) else Run(run)


def _listed(items: Any) -> list[Any]:
    """One item or several as a list."""
    return [items] if isinstance(items, (str, Path, Run)) else list(items)
