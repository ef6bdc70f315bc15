"""A run folder read back: its manifest and plan, its tables, and what must agree before two runs are compared."""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from specbench import records, stored_tables
from specbench.config import MethodSpec, UserError, load_method, validated
from specbench.environment import MUST_AGREE
from specbench.methods import module
from specbench.plan import Plan
from specbench.stored_manifest import Manifest
from specbench.untrusted import is_file, read_json

NEEDED = {"schema", "plan", "models", "inputs", "requests", "generation", "headline", "environment"}
TABLES = ("samples", "rounds", "scores")


def runtime_of(manifest: Mapping[str, Any]) -> str:
    """The name of the runtime of a run; there was only one before runs told it."""
    name: str = manifest.get("runtime", {}).get("name", "eager")
    return name


def runtime_told(manifest: Mapping[str, Any]) -> str:
    """The runtime of a run, in words, with all that decides its numbers: versions and settings."""
    facts = {k: v for k, v in manifest.get("runtime", {}).items() if k not in ("name", "asked", "why")}
    return " ".join([runtime_of(manifest), *([json.dumps(facts, sort_keys=True)] if facts else [])])


def weights_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The models of a run, without what their forwards move and compute: earlier runs do not tell that."""
    models = manifest["models"] or {}
    return {role: {key: told[key] for key in told if key != "forward"} for role, told in models.items()}


class StoredRun:
    """A finished or unfinished run; reads only what is asked for. Raises UserError where `folder` is no run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checked: dict[str, pa.Table] = {}  # tables that were found whole, and the texts that they have rows of

    @cached_property
    def manifest(self) -> dict[str, Any]:
        path = self.folder / "manifest.json"
        if not is_file(path):
            raise UserError(f"{self.folder} is no run folder (it has no manifest.json)")
        found = read_json(path, remedy="this run cannot be used")
        if not isinstance(found, dict) or not found.keys() >= NEEDED:
            raise UserError(f"{path} is no manifest of a run of this version; run it anew")
        if type(found["schema"]) is int and found["schema"] > records.VERSION:
            raise UserError(f"{self.folder} was written by a later version of specbench; read it with that one")
        validated(Manifest, found, str(path))
        return found

    @cached_property
    def plan(self) -> Plan:
        found = validated(Plan, self.manifest["plan"], f"{self.folder}/manifest.json")
        names = [spec.name for spec in found.methods]
        for name in (found.baseline, *found.baselines, *found.baselines.values()):
            if name is not None and name not in names:
                raise UserError(f"{self.folder}/manifest.json is damaged (no method {name!r} is in its plan)")
        if len({*names}) < len(names):
            raise UserError(f"{self.folder}/manifest.json is damaged (two methods have one name)")
        return found

    def settings(self, spec: MethodSpec) -> dict[str, Any]:
        """A method's values, checked as those of a run to come are; what an earlier version lacked is as it is now.

        Raises UserError for what its method could not have run with.
        """
        values = {**load_method(spec.method).values, **spec.values}
        found = validated(module(spec.method).Settings, values, f"{self.folder}/manifest.json: {spec.name}")
        return values | found.model_dump()

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    def length_policy(self, spec: MethodSpec) -> MethodSpec | None:
        """The length method that made a method's drafts: itself, or the one that its `length` names; None: fixed ones.

        Raises UserError where the named one has other settings by now.
        """
        length = spec.values.get("length")
        if length is None:
            return spec
        if length == "fixed":
            return None
        found = load_method(str(length))
        if self.manifest["inputs"].get(spec.name, {}).get("length", found.digest) != found.digest:
            raise UserError(f"{self.folder}: {spec.name} was run with length={length}, whose settings are others now")
        return found

    @property
    def finished(self) -> bool:
        return all((self.folder / f"{name}.parquet").exists() for name in TABLES)

    @property
    def sampling(self) -> str:
        """`greedy`, or temperature, top-k and top-p where they are in use."""
        return "sampling not told" if "imported" in self.manifest else self.plan.sampling.name

    @cached_property
    def _parts(self) -> list[records.Part]:
        """Of an unfinished run, which may go on meanwhile: all that is read here is of one moment."""
        return records.parts(self.folder)

    def samples(self, columns: list[str] | None = None) -> pd.DataFrame:
        """Rows of `records.SAMPLES`, warm-up and failed ones among them. Raises UserError where they are damaged."""
        return self.scan_samples().to_table(columns=columns).to_pandas()

    def scan_samples(self) -> ds.Dataset:
        """As `samples`, but nothing is read yet."""
        self._check("samples")
        return records.scan(self.folder, "samples", self._parts)

    def rounds(self) -> ds.Dataset:
        """Rows of `records.ROUNDS` to be scanned: there may be millions. Raises UserError where they are damaged."""
        self._check("rounds")
        return records.scan(self.folder, "rounds", self._parts)

    def scores(self) -> pd.DataFrame:
        """Rows of `records.SCORES`; raises UserError for an unfinished run."""
        if not self.finished:
            raise UserError(
                f"{self.folder} has no scores: it is no finished run; `specbench run --resume {self.folder}` goes on"
            )
        for name in TABLES:
            self._check(name)
        return ds.dataset(self.folder / "scores.parquet", records.SCORES).to_table().to_pandas()

    def _check(self, name: str) -> None:
        if name in self._checked:
            return
        whole = self.folder / f"{name}.parquet"
        parts = [self.folder / "parts" / part.name(name) for part in self._parts]
        paths = [whole] if whole.exists() or name == "scores" else parts
        methods, tasks = [spec.name for spec in self.plan.methods], [line.task for line in self.plan.tasks]
        texts = stored_tables.check(paths, name, methods, tasks)
        if name == "rounds" and len(texts):
            self._check("samples")
            stored_tables.check_texts(texts, self._checked["samples"], paths[0])
        self._checked[name] = texts

    def headline(self) -> dict[str, str]:
        """The task's metric that counts as its accuracy, as lm-eval's `name,filter`, by task."""
        found: dict[str, str] = self.manifest["headline"]
        if lacking := [line.task for line in self.plan.tasks if line.task not in found]:
            raise UserError(f"{self.folder}/manifest.json is damaged (it does not tell the metric of {lacking[0]})")
        return found

    def conditions(self) -> dict[str, Any]:
        """What must agree between runs before their figures may stand side by side; None where it is unknown."""
        environment = self.manifest["environment"]
        models = self.manifest["models"]
        return {key: environment.get(key) for key in MUST_AGREE} | {
            "dtype": models["target"]["dtype"] if models else None,
            "runtime": runtime_told(self.manifest) if models else None,
            "prefix": self._shares_prefix() if models else None,
        }

    def _shares_prefix(self) -> str:
        """Whether what prompts begin with alike was read once, where they do."""
        return "read once" if self.manifest.get("prefix_tokens") else "read each time"

    def documents(self) -> dict[str, dict[int, str]]:
        """Hashes of the prompts, by task and document."""
        found: dict[str, dict[int, str]] = {}
        for task, doc_id, prompt_hash, _ in self.manifest["requests"]:
            found.setdefault(task, {})[doc_id] = prompt_hash
        return found
