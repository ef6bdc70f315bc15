"""Shards become one run: the tables of the whole, as if one process had decoded it, scored once.

Nothing is joined that is not all of one run: every document is there once, decoded by the same methods with the same
models, inputs and versions. A method begins a task in the same state in every repeat, and has learned nothing where a
shard begins within a task.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from specbench.base.folder import Folder, FolderFile
from specbench.base.parquet import RowGroups
from specbench.base.untrusted import read_json, read_object
from specbench.config import UserError
from specbench.measure.attempts import begun
from specbench.measure.gate import check_code
from specbench.measure.prompts import load_tasks
from specbench.measure.same import differences, other_machine
from specbench.measure.work import Documents, score
from specbench.results import aside, documents, records
from specbench.results.lock import claimed
from specbench.results.records import ROUNDS, SAMPLES
from specbench.results.shard import SHARDS, Shard, attempts
from specbench.results.stored import StoredRun

TEXT = ["repeat", "task", "doc_id", "method"]


def join(folder: Path, allowed: Sequence[str] = ()) -> None:
    """Make one run of the shards in `folder`, in the same folder; the shards stay. A joined run stays as it is.

    `allowed`: what of their machines may differ between the shards, by the names that --allow-mismatch has.

    Raises:
        UserError: a shard is missing, unfinished or damaged, or they are not of one run.
    """
    if (folder / "manifest.json").exists():
        if not (folder / SHARDS).is_dir():
            raise UserError(f"{folder} is a run, and holds no shards")
        return
    shards = finished_shards(folder)
    manifest = joined_manifest(shards, allowed)
    check_rows(shards)
    first = shards[0]
    check_code(first.plan)
    tasks = documents_of(first)
    with claimed(folder), Folder.at(folder) as run:
        opened = [Folder.at(shard.folder) for shard in shards]
        _keep_prompts(run, opened[0])
        _write_seconds(run, opened)
        # A shard decodes every method a little before its first document, as a run does before the first of a repeat.
        task, doc_id = first.manifest["requests"][0][:2]
        timed = ~pc.field("warmup") | ((pc.field("task") == task) & (pc.field("doc_id") == doc_id))
        for name, schema in (("rounds", ROUNDS), ("samples", SAMPLES)):
            files = [FolderFile(shard, f"{name}.parquet") for shard in opened]
            records.stream(FolderFile(run, f"{name}.parquet"), RowGroups(files, schema), timed)
        score(folder, tasks)
        run.write_json("manifest.json", manifest)  # last: from now on the folder is a run


def finished_shards(folder: Path) -> list[StoredRun]:
    """The finished shards in a run's folder, in the order of their documents.

    Raises:
        UserError: one is missing, unfinished, or of another cut.
    """
    place = folder / SHARDS
    if not place.is_dir():
        raise UserError(f"{folder} holds no shards; `specbench run … --shard 1/2 --out {folder}` makes one")
    by_number = {number: run for number in attempts(folder) if (run := begun(folder, number))}
    if not by_number:
        raise UserError(f"{place} is empty: no shard has begun")
    shards = list(by_number.values())
    count = shards[0].shard.shard.of if shards[0].shard else 0
    for number, run in by_number.items():
        own = run.shard
        if own is None or own.shard != Shard(number, count):
            is_there = own.shard if own else "no shard"
            raise UserError(f"{run.folder} holds {is_there}, not shard {number} of {count}; move it elsewhere")
    if missing := [str(number) for number in range(1, count + 1) if number not in by_number]:
        raise UserError(f"{folder} lacks shard {', '.join(missing)} of {count}; run them, then join again")
    for run in shards:
        done, total = run.progress
        if not run.decoded:
            raise UserError(
                f"{run.folder} has {done} of {total} documents; `specbench run --resume {run.folder}` continues it"
            )
    return shards


def joined_manifest(shards: Sequence[StoredRun], allowed: Sequence[str]) -> dict[str, Any]:
    """The manifest of the whole run. Raises UserError if the shards are not of one run."""
    first, stop = shards[0], 0
    parts, environment = [], dict(first.manifest["environment"])
    unlike: set[str] = set()  # what of their machines is not the same for all
    for run in shards:
        assert run.shard
        if _alike(run) != _alike(first):
            raise UserError(f"{run.folder} is of another plan than {first.folder}; join shards of one command")
        if differing := differences(first.manifest, run.manifest):
            raise UserError(f"{run.folder} has other {', '.join(differing)} than {first.folder}: they are of two runs")
        machine = other_machine(first.manifest, run.manifest)
        if refused := [key for key in machine if key == "versions" or key not in allowed]:
            options = " ".join(f"--allow-mismatch {key}" for key in refused)
            hint = "" if "versions" in refused else f", or pass {options}"
            raise UserError(
                f"{run.folder} was decoded with different {', '.join(refused)} than {first.folder}: their times cannot "
                f"be compared; decode it again on the same kind of machine{hint}"
            )
        unlike.update(machine)
        span = run.shard.documents
        if span.start != stop:
            what = "are missing" if span.start > stop else "appear twice"
            raise UserError(f"{run.folder} begins with document {span.start + 1}, not {stop + 1}: documents {what}")
        stop = span.stop
        parts.append({**run.shard.facts(), "started": run.manifest.get("started"), "environment": _machine(run)})
    total = first.plan.repeats * len(first.manifest["requests"])
    if stop != total:
        raise UserError(f"the shards in {first.folder.parent} end with document {stop} of {total}")
    whole = {key: value for key, value in first.manifest.items() if key != "shard"}
    if unlike:
        environment |= dict.fromkeys(unlike)  # unknown
        whole["ceilings"] = None
    return whole | {"environment": environment, "joined": parts}


def check_rows(shards: Sequence[StoredRun]) -> None:
    """Check that every shard holds the samples of its documents, each once, and that what methods learned goes on.

    Raises:
        UserError: it does not.
    """
    requests = shards[0].manifest["requests"]
    methods = [spec.name for spec in shards[0].plan.methods]
    beginnings: dict[tuple[str, str], str] = {}  # by task and method: the state with which its first document begins
    for run in shards:
        assert run.shard
        places = [divmod(index, len(requests)) for index in run.shard.documents]
        samples = run.samples([*TEXT, "warmup", "finish", "state_hash"])
        run.rounds()  # which are checked
        rows = samples[~samples.warmup]
        known = rows.state_hash.where(rows.finish != "error")  # a method that failed tells nothing
        states = dict(zip(rows[TEXT].itertuples(index=False, name=None), known, strict=True))
        wanted = {(repeat, *requests[at][:2], method) for repeat, at in places for method in methods}
        if len(rows) != len(wanted) or states.keys() != wanted:
            raise UserError(f"{run.folder} is damaged (it lacks samples of its documents, or has others); run it again")
        for number, (repeat, at) in enumerate(places):
            task, doc_id = requests[at][:2]
            begins = at == 0 or requests[at - 1][0] != task
            for method in methods if begins or number == 0 else ():
                state = states[repeat, task, doc_id, method]
                if not isinstance(state, str):
                    continue
                before = beginnings.setdefault((task, method), state) if begins else ""  # nothing, within a task
                if state != before:
                    raise UserError(
                        f"{run.folder}: {method} began document {doc_id} of {task} with another state than it had: "
                        "its learned state does not carry over, so these shards are not of one run"
                    )


def documents_of(run: StoredRun) -> Documents:
    """The documents of a run, to score its texts; no model is needed. Raises UserError if they have changed since."""
    plain = run.plan.model_copy(update={"chat_template": False, "max_length": None})
    tasks = load_tasks(plain, None)
    now = {(request.task, request.doc_id): request.doc_hash for request in tasks.requests()}
    for task, doc_id, _, doc_hash in run.manifest["requests"]:
        if now.get((task, doc_id)) != doc_hash:
            raise UserError(f"document {doc_id} of {task} has changed since {run.folder} was decoded")
    return tasks


def _alike(run: StoredRun) -> Any:
    """What of a plan all shards must have; each may be on a device of its own."""
    return run.plan.model_copy(update={"device": ""})


def _machine(run: StoredRun) -> dict[str, Any]:
    environment = run.manifest["environment"]
    return {key: environment.get(key) for key in ("device", "draft_device", "cpu", "cores", "threads", "driver")}


def _keep_prompts(run: Folder, shard: Folder) -> None:
    """The prompts and reference answers, which every shard has of all documents."""
    if shard.has(documents.FILE):
        with open(shard.open(documents.FILE), "rb") as file, run.whole(documents.FILE) as new:
            shutil.copyfileobj(file, new)


def _write_seconds(run: Folder, shards: Sequence[Folder]) -> None:
    """The seconds that all shards spent outside of decoding, added up; and what their GPUs did."""
    total: dict[str, float] = {}
    for shard in shards:
        if shard.has("apart.json"):
            for what, seconds in read_object(FolderFile(shard, "apart.json")).items():
                total[what] = total.get(what, 0.0) + (seconds if isinstance(seconds, float) else 0.0)
    run.write_json("apart.json", total)
    looked = [read_json(FolderFile(shard, aside.GPUS)) for shard in shards if shard.has(aside.GPUS)]
    if looked:
        run.write_json(aside.GPUS, [row for rows in looked if isinstance(rows, list) for row in rows])
