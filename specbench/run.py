"""The main loop: documents × methods × repeats into records.

Every document is decoded by every method, one after the other in an order drawn anew, so that a drifting machine
favours nobody. A document is on disk before the next begins; scoring comes last and needs no model.
"""

import gc
import hashlib
import json
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specbench import compare, environment, records
from specbench.config import SUITES, UserError, load_method, task_info
from specbench.config import load_pair as read_pair
from specbench.decoding.generate import Ending, Limits, until_end
from specbench.decoding.prefix import shared_tokens
from specbench.decoding.types import Foresighted, Method, Round, Sampling
from specbench.divergence import Reference, diverged
from specbench.harness import DataUnavailable, Request, TaskChoice, Tasks, scorer
from specbench.manifest import check_same, digest, manifest
from specbench.measure import Lap, Stopwatch, peak_memory
from specbench.models import Pair, load_pair, location
from specbench.plan import Plan
from specbench.ready import apart, at_runtime, begin, build, load_models, note_apart, start, suppress_failures, warn
from specbench.runtimes import choose
from specbench.runtimes.choose import AUTO
from specbench.runtimes.types import Unsupported
from specbench.stored import StoredRun, runtime_of
from specbench.worth import worth

WARMUP_TOKENS = 24


@dataclass(frozen=True)
class Progress:
    """What there is to say after a document."""

    done: int
    total: int
    request: Request
    rounds: list[dict[str, Any]]  # of this document, as recorded


def execute(plan: Plan, folder: Path, report: Callable[[Progress], bool], pair: Pair | None = None) -> bool:
    """Carry out a plan into `folder`, going on where an earlier call stopped; `pair` may be loaded already.

    `report` is called after every document and says whether to go on. Returns whether all documents are done; then the
    folder holds samples, rounds, scores and summary.
    """
    before = apart(pair) if pair else {}
    pair = pair or load_models(plan)
    tasks = load_tasks(plan, pair)
    requests = tasks.requests()
    prompts = [encode(pair, request.prompt) for request in requests]
    path = folder / "manifest.json"
    stored = json.loads(path.read_text()) if path.exists() else None
    most = max(len(p) + r.max_new_tokens for r, p in zip(requests, prompts, strict=True))
    pair, why = at_runtime(plan, pair, prompts[0], most, runtime_of(stored) if stored else plan.runtime)
    stopwatch = Stopwatch(pair.device)
    methods = {spec.name: build(spec, pair, stopwatch) for spec in plan.methods}
    sampling = Sampling(plan.temperature, plan.top_k, plan.top_p)
    for name, method in methods.items():
        try:
            method.check(sampling)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from None
    check_lengths(requests, prompts, pair, max(method.reach for method in methods.values()))
    by_task = {task: [p for r, p in zip(requests, prompts, strict=True) if r.task == task] for task in tasks.names()}
    shared = {task: shared_tokens(own) if plan.share_prefix else 0 for task, own in by_task.items()}

    facts = manifest(plan, pair, requests, methods, shared, why) | {"left_out": tasks.left_out}
    if stored:
        check_same(stored, facts, folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        records.write_json(path, facts)
    recorder = records.Recorder(folder)
    total = plan.repeats * len(requests)
    done = total if recorder.merged else recorder.done()
    gc.collect()
    gc.freeze()
    for index in range(done, total):
        repeat, at = divmod(index, len(requests))
        request, prompt = requests[at], prompts[at]
        decode = _decoder(pair, stopwatch, sampling, plan.seed, repeat, request, prompt)
        for method in methods.values():
            if isinstance(method, Foresighted):
                method.told(worth(pair.session("target"), partial(_ending, pair, request), _scorer(tasks, request)))
        rows: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        begins = at == 0 or request.task != requests[at - 1].task  # nothing learned goes from task to task
        if index == done or begins:
            pair.prefixes.begin(prompt[: shared[request.task]])
        if index == done or at == 0:
            rows += [decode(name, method, 0, True) for name, method in methods.items()]
        elif begins:
            for method in methods.values():  # what is read or made ready once a task, before anything is timed
                with suppress_failures():
                    begin(method, prompt, sampling, pair)
        pair.runtime.settle()
        if index == done or begins:
            for name, method in methods.items():
                method.reset(request.task)
                if not begins:
                    method.restore(recorder.states(index - 1)[name])
        order = list(methods)
        random.Random(f"{plan.seed}/{repeat}/{request.task}/{request.doc_id}").shuffle(order)
        rows += [decode(name, methods[name], place, False) for place, name in enumerate(order)]
        if sampling.greedy:
            mark_divergence([s for s, _ in rows], methods, plan, pair, prompt)
        rounds = [row for _, document in rows for row in document]
        recorder.write(index, [s for s, _ in rows], rounds, {name: m.state() for name, m in methods.items()})
        go_on = report(Progress(index + 1, total, request, rounds)) or index + 1 == total
        if not go_on or index + 1 == total:
            note_apart(folder, pair, before)
        if not go_on:
            return False
    recorder.finish()
    score(folder, tasks)
    return True


def _decoder(
    pair: Pair,
    stopwatch: Stopwatch,
    sampling: Sampling,
    run_seed: int,
    repeat: int,
    request: Request,
    prompt: list[int],
) -> Callable[[str, Method, int, bool], tuple[dict[str, Any], list[dict[str, Any]]]]:
    """A function that decodes one document by one method into its sample row and its round rows."""

    def decode(name: str, method: Method, order: int, warmup: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        key = {"repeat": repeat, "task": request.task, "doc_id": request.doc_id, "method": name, "warmup": warmup}
        seed = stable_seed(run_seed, repeat, request.task, request.doc_id, name)
        sample = key | {
            "order": order,
            "seed": seed,
            "prompt_hash": request.prompt_hash,
            "prompt_tokens": len(prompt),
            "load": environment.load(),
            "clock_mhz": environment.clock_mhz(),
            "temperature_c": environment.temperature_c(),
            "state_hash": digest(method.state()),
        }
        length = WARMUP_TOKENS if warmup else request.max_new_tokens
        ending = _ending(pair, request, length)
        rng = torch.Generator(pair.device).manual_seed(seed)
        try:
            rounds = timed(until_end(method.rounds(prompt, sampling, rng), ending), stopwatch)
        except Exception as error:  # whatever a method or a model raises is this sample's result
            if warmup and isinstance(error, Unsupported):
                raise
            return sample | {"finish": "error", "error": traceback.format_exc()}, []
        laps = stopwatch.laps()
        sample |= {
            "tokens": ending.tokens,
            "text": ending.text(),
            "finish": ending.reason,
            "prefill_seconds": laps[0].seconds,
            "decode_seconds": sum(lap.seconds for lap in laps[1:]),
            "peak_memory": peak_memory(pair.device),
        }
        laid_out = enumerate(zip(rounds, laps, strict=True))
        return sample, [key | round_row(i, one, lap, pair.further) for i, (one, lap) in laid_out]

    return decode


def _ending(pair: Pair, request: Request, length: int | None = None) -> Ending:
    return Ending(Limits(length or request.max_new_tokens, pair.eos_ids, request.until), pair.detokenizer)


def _scorer(tasks: Tasks, request: Request) -> Callable[[str], float]:
    return scorer(tasks, request.task, request.doc_id, task_info(request.task).metric)


def mark_divergence(
    samples: list[dict[str, Any]], methods: dict[str, Method], plan: Plan, pair: Pair, prompt: list[int]
) -> None:
    """Note in the samples of lossless methods where they leave a lossless baseline's greedy text, in place."""
    good = {s["method"]: s for s in samples if not s["warmup"] and s["finish"] != "error"}
    for name, sample in good.items():
        base = plan.against(name)
        if base is None or base == name or base not in good or not (methods[name].lossless and methods[base].lossless):
            continue
        if methods[name].combination != methods[base].combination:  # exact, but for different things
            continue
        found = diverged(Reference(pair, methods[name].combination), prompt, good[base]["tokens"], sample["tokens"])
        if found:
            sample |= {"diverged_at": found.at, "divergence_gap": found.gap, "divergence": found.kind}


def timed(rounds: Iterator[Round], stopwatch: Stopwatch) -> list[Round]:
    """All rounds of one text, with a lap at the end of each; no garbage collection meanwhile."""
    done = []
    gc.disable()
    try:
        stopwatch.start()
        for one in rounds:
            stopwatch.lap()
            done.append(one)
    finally:
        gc.enable()
    return done


def round_row(number: int, one: Round, lap: Lap, further: tuple[str, ...] = ()) -> dict[str, Any]:
    """A row of `records.ROUNDS`; `further` are the roles of the members that are neither target nor draft."""
    row: dict[str, Any] = {
        "round": number,
        "drafted": one.drafted,
        "accepted": one.accepted,
        "rescued": one.rescued,
        "committed": len(one.tokens),
        "truncated": one.truncated,
        "target_forwards": lap.count("target"),
        "draft_forwards": lap.count("draft"),
        "target_seconds": lap.time("target"),
        "draft_seconds": lap.time("draft"),
        "model_seconds": lap.busy,
        "arbitrator_forwards": lap.count("arbitrator"),
        "arbitrator_seconds": lap.time("arbitrator"),
        "member_forwards": [lap.count(role) for role in further] or None,
        "member_seconds": [lap.time(role) for role in further] or None,
        "seconds": lap.seconds,
    }
    if (verdict := one.verdict) is not None:
        decisions = verdict.decisions(len(one.tokens) if one.truncated else None)
        row |= {
            "levels": verdict.levels,
            "draft_tokens": verdict.drafted,
            "target_tokens": verdict.targets,
            "decisions": [records.DECISIONS.index(decision) for decision in decisions],
            "ratios": verdict.ratios,
            "predictions": verdict.predictions,
            "confidences": verdict.confidences,
            "overlaps": verdict.overlaps,
            "proposers": verdict.proposers,
            "parents": verdict.parents,
        }
    return row


def load_tasks(plan: Plan, pair: Pair | None) -> Tasks:
    """The plan's lm-eval tasks. `pair` is needed for a chat template only."""
    choices = []
    for line in plan.tasks:
        info = task_info(line.task)
        limit = line.max_new_tokens or info.max_new_tokens
        choices.append(
            TaskChoice(
                line.task,
                line.fewshot,
                limit,
                info.data,
                info.hub or "",
                info.counterpart,
                plan.split,
                line.same_shots,
            )
        )
    chat = None
    if plan.chat_template:
        assert pair
        if pair.tokenizer.chat_template is None:
            raise UserError(
                f"the tokenizer of {plan.pair.name} has no chat template; run without --apply-chat-template"
            )

        def chat(messages: list[dict[str, str]]) -> str:
            return pair.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    data_dir = Path(plan.data_dir) if plan.data_dir else None
    folder = SUITES / "tasks"
    try:
        return Tasks(
            choices,
            task_folder=folder,
            data_dir=data_dir,
            limit=plan.limit,
            seed=plan.seed,
            chat=chat,
            tokenizer=location(plan.pair.target.model),
            room=_room(plan, pair),
        )
    except (DataUnavailable, ValueError) as error:
        raise UserError(" ".join(str(error).split())) from None


def _room(plan: Plan, pair: Pair | None) -> Callable[[str], int] | None:
    """How many new tokens a prompt leaves within the plan's `max_length`; None: the tasks' own lengths are all."""
    if plan.max_length is None or pair is None:
        return None
    most, loaded = plan.max_length, pair
    return lambda prompt: most - len(encode(loaded, prompt))


def encode(pair: Pair, prompt: str) -> list[int]:
    """Token ids of a prompt, with the tokenizer's own begin token unless the text (a chat template) brings it."""
    ids = pair.tokenizer(prompt)["input_ids"]
    bos = pair.tokenizer.bos_token_id
    return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids


def check_lengths(requests: list[Request], prompts: list[list[int]], pair: Pair, reach: int) -> None:
    for request, prompt in zip(requests, prompts, strict=True):
        need = len(prompt) + request.max_new_tokens + reach
        if need > pair.context:
            raise UserError(
                f"{request.task}, document {request.doc_id}: {len(prompt)} prompt tokens, {request.max_new_tokens} new "
                f"ones and a draft of up to {reach} need {need} positions, but {pair.name} has {pair.context}; use "
                "smaller drafts (--set), fewer shots (a suite file of your own), fewer documents (--limit) or a pair "
                "with a longer context"
            )


def score(folder: Path, tasks: Tasks) -> None:
    """Judge the stored texts by lm-eval, and write `scores.parquet` and `summary.parquet`."""
    samples = records.read_rows(folder, "samples").to_pandas()
    good = samples[~samples.warmup & (samples.finish != "error")]
    rows = []
    for (repeat, method), group in good.groupby(["repeat", "method"], sort=False):
        texts = {
            (task, doc_id): text for task, doc_id, text in group[["task", "doc_id", "text"]].itertuples(index=False)
        }
        rows += [{"repeat": repeat, "method": method, **vars(one)} for one in tasks.score(texts)]
    records.write_table(folder / "scores.parquet", rows, records.SCORES)
    records.write_frame(folder / "summary.parquet", compare.summary(compare.measured([StoredRun(folder)])))


def text_generator(
    pair: str, method: str, device: str = "auto", dtype: str = "auto", runtime: str = "eager"
) -> Callable[..., str]:
    """A function (prompt, until, max_new_tokens, temperature, task) -> text, for those who start from lm-eval.

    What a method learns goes from text to text, until one of another task comes.
    """
    loaded = load_pair(read_pair(pair), device, dtype)
    spec = load_method(method)
    if runtime == AUTO:
        found, _ = choose.fastest(loaded, lambda one: start(spec, replace(loaded, runtime=one), [0] * 8), warn)
    else:
        found = choose.runtime(runtime, loaded)
    loaded = replace(loaded, runtime=found)
    built = build(spec, loaded, Stopwatch(loaded.device))

    known = ""

    def generate(prompt: str, until: tuple[str, ...], max_new_tokens: int, temperature: float, task: str = "") -> str:
        nonlocal known
        if task != known:
            built.reset(task)
            known = task
        ending = Ending(Limits(max_new_tokens, loaded.eos_ids, until), loaded.detokenizer)
        rng = torch.Generator(loaded.device).manual_seed(stable_seed(prompt))
        ids = encode(loaded, prompt)
        if len(ids) + max_new_tokens + built.reach > loaded.context:
            raise ValueError(f"a prompt of {len(ids)} tokens leaves no room for {max_new_tokens} in {loaded.context}")
        loaded.runtime.settle()
        for _ in until_end(built.rounds(ids, Sampling(temperature), rng), ending):
            pass
        return ending.text()

    return generate


def stable_seed(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:7], "big")
