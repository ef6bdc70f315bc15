"""A run folder read back and checked: manifest, plan and tables, and the conditions that comparable runs share."""

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specbench.base.environment import MUST_AGREE
from specbench.base.errors import did_you_mean
from specbench.base.folder import Folder, FolderFile
from specbench.base.parquet import RowGroups
from specbench.base.untrusted import brief, read_json
from specbench.config import MethodSpec, UserError, load_method, validated
from specbench.plan import Plan
from specbench.results import aside, check_tables, documents, records
from specbench.results.check_manifest import Manifest

if TYPE_CHECKING:
    from specbench.results.shard import Stretch

NEEDED = {"schema", "plan", "models", "inputs", "requests", "generation", "headline", "environment"}
MOST_NAME = 1000  # characters of a pair, a suite, a task or a method
TABLES = ("samples", "rounds", "scores")
LOAD = "load.json"  # the manifest of what `specbench load` measured, which is no run


def runtime_of(manifest: Mapping[str, Any]) -> str:
    """The name of a run's runtime; runs that do not record it were made when there was only one."""
    name: str = manifest.get("runtime", {}).get("name", "eager")
    return name


def runtime_text(manifest: Mapping[str, Any]) -> str:
    """A run's runtime in words, with the versions and settings that its numbers depend on."""
    facts = {k: v for k, v in manifest.get("runtime", {}).items() if k not in ("name", "asked", "why")}
    return " ".join([runtime_of(manifest), *([json.dumps(facts, sort_keys=True)] if facts else [])])


def machine_text(manifest: Mapping[str, Any]) -> str:
    """A run's GPU, or the cores that it used and their processor."""
    machine = manifest["environment"]
    cores, threads = machine.get("cores"), machine.get("threads")
    used = f"{threads} of {cores}" if threads and threads != cores else cores
    where: str | None = f"{used} cores of {machine.get('cpu')}" if machine["device"] == "cpu" else machine["device"]
    return where or "machine not known"


def stored_run(folder: Path, method: str | None = None) -> "StoredRun":
    """A run whose plan can be read, and has a method. Raises UserError if it has not, or `folder` holds no run."""
    run = StoredRun(folder)
    names = [spec.name for spec in run.plan.methods]
    if method is not None and method not in names:
        hint = did_you_mean(method, names)
        raise UserError(f"--method {method}: {folder} has no such method{hint}; it has {', '.join(names)}")
    return run


class StoredRun:
    """A finished or unfinished run. Its manifest and tables are checked when they are first read.

    Raises UserError then if `folder` holds no run, or a damaged one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked: dict[str, tuple[RowGroups, pa.Table]] = {}  # by table: its rows, and the keys of its texts

    @cached_property
    def _open(self) -> Folder:
        try:
            return Folder.at(self.folder)
        except FileNotFoundError:
            raise UserError(f"{self.folder} is not a run folder (it has no manifest.json)") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.folder} is not a run folder ({brief(getattr(error, 'strerror', error))})") from None

    def _file(self, name: str) -> FolderFile:
        return FolderFile(self._open, name)

    @cached_property
    def slowed(self) -> str:
        """Which GPUs were slowed down while it decoded, and why; "" if none was, or nobody looked."""
        return aside.read_slowed(self._file(aside.GPUS))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        path = self._file("manifest.json")
        if not path.folder.has(path.name):
            from specbench.results.shard import SHARDS

            if path.folder.has(SHARDS):
                raise UserError(
                    f"{self.folder} holds shards of a run; `specbench join {self.folder}` makes one of them"
                )
            if path.folder.has(LOAD):
                raise UserError(
                    f"{self.folder} holds what `specbench load` measured; the same command with --out {self.folder} "
                    "prints its tables, and goes on if it was stopped"
                )
            raise UserError(f"{self.folder} is not a run folder (it has no manifest.json)")
        manifest = read_json(path, remedy="this run cannot be used")
        if not isinstance(manifest, dict) or not manifest.keys() >= NEEDED:
            raise UserError(f"{path} is not a manifest of a run of this version; run it again")
        if type(manifest["schema"]) is int and manifest["schema"] > records.VERSION:
            raise UserError(f"{self.folder} was written by a later version of specbench; read it with that one")
        validated(Manifest, manifest, str(path), "this run cannot be used")
        return manifest

    @cached_property
    def plan(self) -> Plan:
        plan = validated(Plan, self.manifest["plan"], f"{self.folder}/manifest.json: plan", "this run cannot be used")
        names = [spec.name for spec in plan.methods]
        for shown in (plan.pair.name, plan.suite, *names, *(line.task for line in plan.tasks)):
            if len(shown) > MOST_NAME:  # which no table or plot has room for
                raise UserError(
                    f"{self.folder}/manifest.json is damaged (the name {brief(shown)!r} has {len(shown)} characters); "
                    "put a copy back"
                )
        for name in (plan.baseline, *plan.baselines, *plan.baselines.values()):
            if name is not None and name not in names:
                raise UserError(
                    f"{self.folder}/manifest.json is damaged (no method {name!r} is in its plan); put a copy back"
                )
        if len({*names}) < len(names):
            raise UserError(f"{self.folder}/manifest.json is damaged (two methods have one name); put a copy back")
        return plan

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def length_policy(self, spec: MethodSpec) -> MethodSpec | None:
        """The method that decided how long a method's drafts were: itself, or the one that its `length` names.

        None if their length was fixed.

        Raises:
            UserError: the settings of the method that `length` names have changed since the run.
        """
        length = spec.values.get("length")
        if length is None:
            return spec
        if length == "fixed":
            return None
        policy = load_method(str(length))
        if self.manifest["inputs"].get(spec.name, {}).get("length", policy.digest) != policy.digest:
            raise UserError(f"{self.folder}: {spec.name} was run with length={length}, whose settings have changed")
        return policy

    @property
    def finished(self) -> bool:
        return all(map(self._open.has, (f"{name}.parquet" for name in TABLES)))

    @property
    def decoded(self) -> bool:
        """True if all documents are decoded and their tables are merged; they may not be scored yet."""
        return all(map(self._open.has, ("samples.parquet", "rounds.parquet")))

    @property
    def shard(self) -> "Stretch | None":
        """What of a run the folder holds; None for the whole of it."""
        if not self.manifest.get("shard"):
            return None
        from specbench.results.shard import Stretch

        stretch = Stretch.of(self.manifest["shard"])
        if stretch.documents.stop > self.plan.repeats * len(self.manifest["requests"]):
            raise UserError(f"{self.folder}/manifest.json is damaged (a shard of other documents); put a copy back")
        return stretch

    @property
    def documents_here(self) -> range:
        """The documents to decode, counted over all repeats of the plan: those of a shard, or all."""
        whole = range(self.plan.repeats * len(self.manifest["requests"]))
        return self.shard.documents if self.shard else whole

    @property
    def progress(self) -> tuple[int, int]:
        """The documents that are decoded, and how many there are to decode, over all repeats."""
        total = len(self.documents_here)
        if self._open.has("samples.parquet"):
            return total, total
        return (self._parts[-1].last + 1 if self._parts else 0), total

    @property
    def sampling(self) -> str:
        """`greedy`, or the temperature with those of top-k and top-p that are on; and if end tokens are ignored."""
        if "imported" in self.manifest:
            return "sampling not told"
        constraint = f", {self.plan.constraint.name}" if self.plan.constraint else ""
        return self.plan.sampling.name + ", no end tokens" * self.plan.ignore_eos + constraint

    @cached_property
    def _parts(self) -> list[records.PartFile]:
        """The parts of an unfinished run. It may go on meanwhile, but all tables are read as of the same moment."""
        return records.parts(self._open)

    def samples(self, columns: list[str] | None = None) -> pd.DataFrame:
        """Rows of `records.SAMPLES`, with warm-ups and failed samples. Raises UserError if the table is damaged."""
        return self.scan_samples().to_table(columns=columns).to_pandas()

    def scan_samples(self) -> RowGroups:
        """The same, of which nothing is read yet."""
        return self._checked_rows("samples")

    def rounds(self) -> RowGroups:
        """Rows of `records.ROUNDS`, read in batches: there may be millions. Raises UserError if they are damaged."""
        return self._checked_rows("rounds")

    def scores(self) -> pd.DataFrame:
        """Rows of `records.SCORES`. Raises UserError if the run is unfinished or damaged."""
        if self.shard:
            raise UserError(
                f"{self.folder} has no scores: it is {self.shard.shard} of a run; `specbench join` scores all"
            )
        if not self.finished:
            raise UserError(
                f"{self.folder} has no scores: it is not a finished run; "
                f"`specbench run --resume {self.folder}` continues it"
            )
        return [self._checked_rows(name) for name in TABLES][-1].to_table().to_pandas()

    def _checked_rows(self, name: str) -> RowGroups:
        """A table, after its check, which is done once."""
        if name not in self._checked:
            methods, tasks = [spec.name for spec in self.plan.methods], [line.task for line in self.plan.tasks]
            remedy = f"put a sound copy in its place, or `specbench run --resume {self.folder}` decodes what is lost"
            files = records.files_of(self._open, name, self._parts)
            rows = RowGroups(
                files, check_tables.SCHEMAS[name], remedy, (lambda: self._rounds_told) if name == "rounds" else int
            )
            texts = check_tables.check(rows, name, methods, tasks)
            if name == "rounds" and len(texts):
                self._checked_rows("samples")
                check_tables.check_texts(texts, self._checked["samples"][1], rows.sources[0])
            self._checked[name] = rows, texts
        return self._checked[name][0]

    @cached_property
    def _rounds_told(self) -> int:
        """How many rounds the samples account for: one for each token at most, the prefill's, and one that is cut."""
        tokens = pc.coalesce(pc.field("new_tokens"), pc.list_value_length(pc.field("tokens")), pc.scalar(0))
        batches = self._checked_rows("samples").to_batches({"tokens": tokens})
        return sum((pc.sum(batch["tokens"]).as_py() or 0) + 2 * batch.num_rows for batch in batches)

    def kept(self, chosen: Mapping[str, Collection[int]]) -> dict[documents.Key, documents.DocumentRow]:
        """Prompts and reference answers of documents by task, as far as they were kept. Raises UserError."""
        return documents.find(self._open, chosen, self.documents())

    def headline(self) -> dict[str, str]:
        """The metric that counts as a task's accuracy, as lm-eval's `name,filter`, by task."""
        metrics: dict[str, str] = self.manifest["headline"]
        if lacking := [line.task for line in self.plan.tasks if line.task not in metrics]:
            raise UserError(
                f"{self.folder}/manifest.json is damaged (it does not name the metric of {lacking[0]}); put a copy back"
            )
        return metrics

    def conditions(self) -> dict[str, Any]:
        """What must be the same in runs that are compared; None for what is unknown."""
        environment = self.manifest["environment"]
        models = self.manifest["models"]
        # How the models read the beginning that the prompts of a task share.
        prefix = "read once" if self.manifest.get("prefix_tokens") else "read each time"
        return (
            {key: environment.get(key) for key in MUST_AGREE}
            | {
                "draft_device": environment.get("draft_device", "the target's") if models else None,
                "dtype": models["target"]["dtype"] if models else None,
                "weights": _weights(models) if models else None,
                "runtime": runtime_text(self.manifest) if models else None,
                "prefix": prefix if models else None,
                "batch": self.plan.batch if models else None,
            }
            | ({"requests": self._requests()} if self.plan.servers else {})
        )

    def _requests(self) -> str:
        """When requests went to servers, in words."""
        if self.plan.rate:
            return f"{self.plan.rate:g} a second, {self.plan.arrivals or 'poisson'}"
        return f"{self.plan.concurrency} at a time"

    def documents(self) -> dict[str, dict[int, str]]:
        """The hashes of the prompts, by task and document."""
        return self._by_document([prompt_hash for _, _, prompt_hash, _ in self.manifest["requests"]])

    def token_ids(self) -> dict[str, dict[int, str]]:
        """The hashes of the prompts' token ids, by task and document; empty for runs that do not tell them."""
        return self._by_document(self.manifest.get("prompt_ids") or [])

    def _by_document(self, values: Sequence[str]) -> dict[str, dict[int, str]]:
        """Values in the order of the requests, by task and document."""
        by_task: dict[str, dict[int, str]] = {}
        for (task, doc_id, *_), value in zip(self.manifest["requests"], values, strict=False):
            by_task.setdefault(task, {})[doc_id] = value
        return by_task


def _weights(models: Mapping[str, Mapping[str, Any]]) -> str:
    """How the weights of models are kept, in words: `float`, or what is quantised, by role."""
    words = [f"{role}: {model['weights']}" for role, model in sorted(models.items()) if model.get("weights")]
    return "; ".join(words) or "float"
