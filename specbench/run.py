"""The main loop: documents × methods × repeats into records.

Every document is decoded by every method, one after the other in an order drawn anew, so that a drifting machine
favours nobody. A document is on disk before the next begins; scoring comes last and needs no model.
"""

import gc
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specbench import compare, files, permissions, records
from specbench.claim import claimed
from specbench.config import SUITES, UserError, task_info
from specbench.decoding.prefix import shared_tokens
from specbench.decoding.types import Foresighted, Method, Sampling
from specbench.divergence import Reference, diverged
from specbench.harness import DataUnavailable, Request, TaskChoice, Tasks, scorer
from specbench.manifest import check_same, manifest
from specbench.measure import Stopwatch
from specbench.models import Pair, location
from specbench.plan import Plan
from specbench.ready import apart, at_runtime, begin, build, load_models, note_apart, suppress_failures, warn
from specbench.recorder import Recorder
from specbench.sample import Decoder, Rows, ending_of
from specbench.stored import StoredRun, runtime_of
from specbench.worth import worth


@dataclass(frozen=True)
class Progress:
    """What there is to say after a document."""

    done: int
    total: int
    request: Request
    rounds: list[dict[str, Any]]  # of this document, as recorded


@dataclass(frozen=True)
class Work:
    """A plan made ready: its models at their runtime, its documents, its methods."""

    plan: Plan
    pair: Pair
    tasks: Tasks
    requests: list[Request]
    prompts: list[list[int]]  # token ids
    shared: dict[str, int]  # tokens that the prompts of a task begin with alike
    stopwatch: Stopwatch
    methods: dict[str, Method]
    sampling: Sampling

    @property
    def total(self) -> int:
        return self.plan.repeats * len(self.requests)

    def begins(self, index: int) -> bool:
        """Whether a task begins with a document; nothing learned goes from task to task, or from repeat to repeat."""
        at = index % len(self.requests)
        return at == 0 or self.requests[at].task != self.requests[at - 1].task


def execute(
    plan: Plan,
    folder: Path,
    report: Callable[[Progress], bool],
    pair: Pair | None = None,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Carry out a plan into `folder`, going on where an earlier call stopped; `pair` may be loaded already.

    `started` is called before the first document, `report` after every one; it says whether to go on. Returns whether
    all documents are done; then the folder holds samples, rounds, scores and summary. Raises UserError if another
    process writes this folder.
    """
    before = apart(pair) if pair else {}
    with claimed(folder):
        gc.disable()  # what is loaded stays; looking through it again and again takes longer than reading it
        try:
            work = prepare(plan, folder, pair)
        finally:
            gc.enable()
        recorder = Recorder(folder, warn, work.begins)
        if not recorder.merged and recorder.done() < work.total:
            started()
            try:
                if not decode_all(work, recorder, report):
                    return False
            finally:
                note_apart(folder, work.pair, before)
        recorder.finish()
        score(folder, work.tasks)
    return True


def prepare(plan: Plan, folder: Path, pair: Pair | None = None) -> Work:
    """Load what a plan names and check that it fits together; writes the manifest, or compares with the one there."""
    pair = pair or load_models(plan)
    tasks = load_tasks(plan, pair)
    requests = tasks.requests()
    prompts = encode_all(pair, [request.prompt for request in requests])
    stored = StoredRun(folder).manifest if (folder / "manifest.json").exists() else None
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
    by_task = defaultdict(list)
    for request, prompt in zip(requests, prompts, strict=True):
        by_task[request.task].append(prompt)
    shared = {task: shared_tokens(own) if plan.share_prefix else 0 for task, own in by_task.items()}

    facts = manifest(plan, pair, requests, methods, shared, why) | {"left_out": tasks.left_out}
    if stored:
        check_same(stored, facts, folder)
    else:
        files.write_json(folder / "manifest.json", facts)
    return Work(plan, pair, tasks, requests, prompts, shared, stopwatch, methods, sampling)


def decode_all(work: Work, recorder: Recorder, report: Callable[[Progress], bool]) -> bool:
    """Decode all documents that are not recorded yet; returns whether there are none left."""
    plan, pair, methods = work.plan, work.pair, work.methods
    decoder = Decoder(pair, work.stopwatch, work.sampling, plan.seed)
    gc.collect()
    gc.freeze()
    first = recorder.done()
    for index in range(first, work.total):
        repeat, at = divmod(index, len(work.requests))
        request, prompt = work.requests[at], work.prompts[at]
        decode = partial(decoder.decode, repeat=repeat, request=request, prompt=prompt)
        rows: list[Rows] = []
        begins = work.begins(index)
        if index == first or begins:
            decoder.forgive()
            pair.prefixes.begin(prompt[: work.shared[request.task]])
            _foretell(work, request, decoder)
        if index == first or at == 0:
            rows += [decode(name, method, order=0, warmup=True) for name, method in methods.items()]
        elif begins:
            for method in methods.values():  # what is read or made ready once a task, before anything is timed
                with suppress_failures():
                    begin(method, prompt, work.sampling, pair)
        pair.runtime.settle()
        if index == first or begins:
            learned = {} if begins else recorder.states(index - 1)
            for name, method in methods.items():
                decoder.attempt(name, partial(method.reset, request.task))
                if not begins:
                    decoder.attempt(name, partial(_take_up, name, method, learned))
        _foretell(work, request, decoder)  # anew: what warm-ups left in it would be another thing in a resumed run
        order = list(methods)
        random.Random(f"{plan.seed}/{repeat}/{request.task}/{request.doc_id}").shuffle(order)
        rows += [decode(name, methods[name], order=place) for place, name in enumerate(order)]
        samples, rounds = [sample for sample, _ in rows], [row for _, own in rows for row in own]
        if work.sampling.greedy:
            mark_divergence(samples, methods, plan, pair, prompt)
        learned = {name: decoder.attempt(name, method.state) for name, method in methods.items()}
        recorder.write(index, samples, rounds, learned)
        if not report(Progress(index + 1, work.total, request, rounds)) and index + 1 < work.total:
            return False
    return True


def _take_up(name: str, method: Method, learned: dict[str, Any]) -> None:
    method.restore(learned[name])


def _foretell(work: Work, request: Request, decoder: Decoder) -> None:
    """Tell the methods that may know it what answers to a document are worth."""
    metric = task_info(request.task).metric

    def tell(method: Foresighted) -> None:
        score = scorer(work.tasks, request.task, request.doc_id, metric)
        method.told(worth(work.pair.session("target"), partial(ending_of, work.pair, request), score))

    for name, method in work.methods.items():
        if isinstance(method, Foresighted):
            decoder.attempt(name, partial(tell, method))


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
        try:
            found = diverged(Reference(pair, methods[name].combination), prompt, good[base]["tokens"], sample["tokens"])
        except Exception as error:  # of the models: the texts stand, and where they part is not known
            warn(f"{sample['task']}, document {sample['doc_id']}: {name} was not set against {base}: {error}")
            continue
        if found:
            sample |= {"diverged_at": found.at, "divergence_gap": found.gap, "divergence": found.kind}


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
            run_code=permissions.may_run_code(plan),
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
    return _one_begin(pair, pair.tokenizer(prompt)["input_ids"])


def encode_all(pair: Pair, prompts: Sequence[str]) -> list[list[int]]:
    """As `encode`, of many prompts in a fraction of the time."""
    ids_only = {"return_attention_mask": False, "return_token_type_ids": False}
    return [_one_begin(pair, ids) for ids in pair.tokenizer(list(prompts), **ids_only)["input_ids"]]


def _one_begin(pair: Pair, ids: list[int]) -> list[int]:
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
    columns = ["repeat", "task", "doc_id", "method", "warmup", "finish", "text"]
    samples = records.read_rows(folder, "samples", columns).to_pandas()
    good = samples[~samples.warmup & (samples.finish != "error")]
    rows = []
    for (repeat, method), group in good.groupby(["repeat", "method"], sort=False):
        texts = {
            (task, doc_id): text for task, doc_id, text in group[["task", "doc_id", "text"]].itertuples(index=False)
        }
        rows += [{"repeat": repeat, "method": method, **vars(one)} for one in tasks.score(texts)]
    records.write_table(folder / "scores.parquet", rows, records.SCORES)
    records.write_frame(folder / "summary.parquet", compare.summary(compare.measured([StoredRun(folder)])))
