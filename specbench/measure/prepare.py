"""What the main loop needs, made from a plan: models at their runtime, tasks, prompts as token ids, methods."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specbench import permissions
from specbench.base.console import console, warn
from specbench.base.folder import Folder
from specbench.config import MethodSpec, UserError, validated
from specbench.engine.clock import Stopwatch, peak_memory
from specbench.engine.models.load import LLAMACPP
from specbench.engine.models.pair import Pair, load_pair, load_tokenizer
from specbench.engine.prefix import shared_tokens
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.choose import AUTO
from specbench.engine.runtimes.types import Runtime, Unsupported
from specbench.engine.session import Unwatched
from specbench.engine.types import Additive, Calibrated, Foresighted, Method, Sampling, Watch
from specbench.measure.gate import Admitted
from specbench.measure.manifest import manifest
from specbench.measure.prompts import check_lengths, encode_all, kept_tokens, load_tasks, within_window
from specbench.measure.work import Work
from specbench.methods import module
from specbench.plan import Plan
from specbench.results.stored import StoredRun, runtime_of
from specbench.tasks.harness import Request, Tasks

if TYPE_CHECKING:
    from specbench.results.shard import Shard, Stretch

TRIAL_ROOM = 256  # positions left for drafts when a runtime is tried
WARMUP_ROUNDS = 3  # that each method decodes when a task begins


def prepare(admitted: Admitted, folder: Path | None, pair: Pair | None = None, shard: "Shard | None" = None) -> Work:
    """Load what an admitted plan names and check that it fits together.

    Writes the manifest into `folder`, if one is given; if there is one, checks that the run may go on under it. A shard
    goes on with the documents that its manifest names; a new folder gets those of `shard`.

    Raises:
        UserError: something does not exist, does not fit, or differs from the manifest.
    """
    plan = admitted.plan
    if plan.servers:
        from specbench.measure.clients import check_same_servers, connect
    pair = pair or _load_models(plan)
    tasks = load_tasks(plan, pair)
    requests = tasks.requests()
    prompts = encode_all(pair, [request.prompt for request in requests])
    begun = StoredRun(folder) if folder and (folder / "manifest.json").exists() else None
    stored = begun.manifest if begun else None
    longest = max(r.positions(p) for r, p in zip(requests, prompts, strict=True))
    why = ""
    if plan.constraint and plan.own:
        pair = constrained(pair, plan.constraint.draft, requests)
    if plan.own:
        pair, why = at_runtime(plan, pair, prompts[0], longest, runtime_of(stored) if stored else plan.runtime)
        for role, model in pair.models.items():
            if what := pair.runtime.unequal(model):
                warn(f"{role}: near ties may flip, since this machine's kernels differ by width: {what}")
        if slow := choose.slowed(pair):
            warn(
                f"this processor has no products in {slow}, which eager then takes many times as long for as in "
                "float32; use --runtime static, or --dtype float32"
            )
    if "target" in pair.chains_only:
        warn("target: it reads chains only, so of a tree of drafts it reads one path, that of first children")
    stopwatch = Stopwatch(pair.device)
    sampling = Sampling(**plan.sampling.model_dump())
    pair = replace(pair, penalties=sampling.penalties)
    methods = {spec.name: build(spec, pair, stopwatch) for spec in plan.own}
    for name, method in methods.items():
        try:
            method.check(sampling)
        except ValueError as error:
            raise UserError(f"{name}: {error}") from None
        if plan.prompts and isinstance(method, Foresighted) and method.needs_scores:
            raise UserError(f"{name} needs the score of each answer, and --prompts has no scores")
    if plan.batch > 1:
        check_batches(plan, methods, requests)
        together = [
            spec for spec in plan.methods if spec.name in methods and not why_alone(spec.name, methods[spec.name])
        ]
        from specbench.measure.room import check_room, demand

        needed = {spec.name: demand(pair, partial(build_alone, spec)) for spec in together}
        check_room(pair, needed, plan.batch, longest)
    reach = max((method.reach for method in methods.values()), default=0)
    if plan.trajectories:
        requests, prompts = within_window(tasks, requests, prompts, pair, reach)
    check_lengths(requests, prompts, pair, reach)
    tell_lacking(methods, list(dict.fromkeys(request.task for request in requests)))
    by_task: dict[str, list[list[int]]] = {request.task: [] for request in requests}
    for request, prompt in zip(requests, prompts, strict=True):
        if request.turn == 0:  # a later turn begins with the whole prompt of the first
            by_task[request.task].append(prompt)
    shared = {task: shared_tokens(group) if plan.share_prefix else 0 for task, group in by_task.items()}
    turns = kept_tokens(tasks, prompts) if plan.trajectories and plan.share_prefix else []
    if turns:
        shared = {task: sum(n for r, n in zip(requests, turns, strict=True) if r.task == task) for task in by_task}

    facts = manifest(plan, pair, requests, prompts, methods, shared, why) | {"left_out": tasks.left_out}
    clients = connect(plan) if folder and plan.servers else {}
    for client in clients.values():
        for constraint in {request.constraint for request in requests if request.constraint}:
            client.engine.constraint(constraint)
    facts |= {"servers": {name: client.facts for name, client in clients.items()}} if clients else {}
    facts |= {"code_execution": admitted.code_execution} if admitted.code_execution else {}
    facts |= {"memory_loaded": peak_memory(pair.device)} if pair.models else {}
    facts |= {"leaks": leaks} if (leaks := leaked(methods, requests)) else {}
    facts |= {"kept_tokens": turns} if turns else {}
    if not isinstance(tasks, Tasks):
        facts |= {"prompts": tasks.places(), "unread_keys": tasks.unread}
    span = range(plan.repeats * len(requests))
    work = Work(plan, pair, tasks, requests, prompts, shared, stopwatch, methods, sampling, span, clients, turns)
    if own := begun.shard if begun else shard and _stretch(work, shard):
        work, facts = replace(work, span=own.documents), facts | {"shard": own.facts()}
    if stored and folder:
        from specbench.measure.same import check_same

        check_same(stored, facts, folder)
        if plan.servers:
            check_same_servers(stored.get("servers", {}), facts.get("servers", {}))
    elif folder:
        with Folder.at(folder) as place:
            place.write_json("manifest.json", facts)
    return work


def _stretch(work: Work, shard: "Shard") -> "Stretch":
    """The documents of a new shard. Raises UserError if the run cannot be cut so."""
    from specbench.measure.shards import stretch

    return stretch(work, shard)


def load_models(plan: Plan, runtime: str | None = None) -> Pair:
    """The plan's models at `runtime`, by default the plan's, with its penalties; `auto` is the usual one here.

    Weights in fewer bits are those of the plan's runtime, whatever computes with them; those that stay in their file
    for llama.cpp are computed with by llama.cpp. For servers alone only the tokenizer is loaded.

    Raises:
        UserError: the plan lets models run code, and the command line does not; or it has a constraint, which only
            `prepare` applies.
    """
    if plan.constraint:
        raise UserError(f"only `specbench run` and `sweep` decode under a constraint ({plan.constraint.name})")
    permissions.check_loading(plan)
    return _load_models(plan, runtime)


def _load_models(plan: Plan, runtime: str | None = None) -> Pair:
    """The same for a plan that is admitted."""
    if not plan.own:
        tokenizer = load_tokenizer(plan.pair.target, plan.trust_remote_code)
        return Pair(plan.pair.name, {}, tokenizer, plan.pair.models, ignore_eos=plan.ignore_eos)
    pair = load_pair(plan.pair, plan.device, plan.dtype, plan.trust_remote_code, plan.allow_pickle, plan.runtime)
    penalties = Sampling(**plan.sampling.model_dump()).penalties
    pair = replace(pair, penalties=penalties, ignore_eos=plan.ignore_eos)
    return choose.placed(plan.runtime if plan.runtime == LLAMACPP else runtime or plan.runtime, pair)


def load_models_of(run: StoredRun, runtime: str | None = None) -> Pair:
    """The models of a run, at `runtime`, by default the one that it ran on.

    Raises:
        UserError: they cannot be loaded, or have changed since the run.
    """
    from specbench.measure.same import check_models

    pair = load_models(run.plan, runtime or runtime_of(run.manifest))
    check_models(run, pair)
    return pair


def why_alone(name: str, method: Method) -> str:
    """Why a method's texts cannot be decoded at the same time; empty if they can."""
    if isinstance(method, Foresighted) and method.needs_scores:
        return f"{name} asks for the worth of each answer, text by text"
    state = method.state()
    if state is not None and not isinstance(method, Additive):
        return f"{name} learns from text to text, and in a batch no text comes before another"
    try:
        if isinstance(method, Additive):
            method.added(state, state, state)
    except ValueError as error:
        return f"{name}: {error}"
    return ""


def check_batches(plan: Plan, methods: Mapping[str, Method], requests: Sequence[Request]) -> None:
    """Raise UserError if a run cannot be decoded in batches.

    Methods that cannot be are decoded one by one, if that is how the documents are timed.
    """
    if any(request.turn for request in requests):
        raise UserError("a later turn of a conversation waits for the answer to the earlier one; leave out --batch")
    for why in filter(None, (why_alone(name, method) for name, method in methods.items())):
        if not plan.time_documents:
            raise UserError(f"{why}; add --time-documents, and it is decoded one by one, or leave out --batch")
        warn(f"{why}: it is decoded one by one")


def leaked(methods: Mapping[str, Method], requests: Sequence[Request]) -> dict[str, int]:
    """By method, the number of a run's documents that its inputs were made from; methods without any are left out.

    Raises:
        UserError: there are such documents, and the command line does not have --allow-leak.
    """
    calibrated = {name: method.doc_hashes for name, method in methods.items() if isinstance(method, Calibrated)}
    leaks = {name: sum(r.doc_hash in hashes for r in requests) for name, hashes in calibrated.items()}
    leaks = {name: count for name, count in leaks.items() if count}
    if leaks and not permissions.leak_allowed():
        name, count = next(iter(leaks.items()))
        raise UserError(
            f"{name} would be tested on {count} documents that its inputs were made from (of {len(requests)}); choose "
            "other documents, or add --allow-leak: every table will say so"
        )
    return leaks


def tell_lacking(methods: Mapping[str, Method], tasks: Sequence[str]) -> None:
    """Print a line for each method whose inputs change nothing about some tasks."""
    for name, method in methods.items():
        if isinstance(method, Calibrated):
            by_reason: dict[str, list[str]] = {}
            for task in tasks:
                by_reason.setdefault(method.lacking(task), []).append(task)
            for why, where in by_reason.items():
                on = "" if where == list(tasks) else f" on {' and '.join(where)}"
                if why:
                    warn(f"{name}{on}: {why}")


def build(spec: MethodSpec, pair: Pair, watch: Watch) -> Method:
    """A method on loaded models. Raises UserError for settings that it does not have or cannot use.

    Nor can those be used that make rounds longer than the pair's context.
    """
    implementation = module(spec.method)
    settings = validated(implementation.Settings, spec.values, spec.name)
    before = len(pair.constraining.roles) if pair.constraining else 0
    built = implementation.build(settings, pair, watch)
    if lacking := [f"`{name}`" for name in ("rounds", "reach") if not hasattr(built, name)]:
        what = f"build returned {type(built).__name__}, not a method: it has no {' and no '.join(lacking)}"
        raise UserError(f"{spec.name}: {what}")
    if built.reach >= pair.context:
        raise UserError(
            f"{spec.name}: its rounds are of up to {built.reach} tokens, but {pair.name} reads {pair.context} with the "
            "text; choose smaller settings"
        )
    if pair.penalties and not getattr(built, "penalised", False):
        raise UserError(
            f"{spec.name} asks the target about other texts than the answer, or combines several models, and a penalty "
            "is of the answer's own tokens; leave out the method or the penalties"
        )
    if pair.constraining:
        check_constrained(spec, built, pair.constraining.roles[before:], pair.constraining.draft)
    return built


def check_constrained(spec: MethodSpec, built: Method, roles: Sequence[str], draft: bool) -> None:
    """Raise UserError if a method does not decode under a constraint, given the roles of its sessions under one."""
    if "target" not in roles or not getattr(built, "penalised", False):
        raise UserError(
            f"{spec.name} is not known to judge every token by what the target alone says after the answer so far, and "
            "a constraint is on that; leave out the method or the constraint"
        )
    if isinstance(built, Foresighted) and built.needs_scores:
        raise UserError(f"{spec.name} finishes answers without a constraint; leave out the method or the constraint")
    if draft and len(roles) == 1 and built.reach > 1:
        warn(f"{spec.name}: its drafts are not constrained, as no draft model of the target's tokens makes them")


def constrained(pair: Pair, draft: bool, requests: Sequence[Request]) -> Pair:
    """The pair, ready for what each request's answer must be. Raises UserError for what no text can follow."""
    from specbench.engine.constraint import Constraining, Grammars

    grammars = Grammars(pair.tokenizer, pair.vocabulary, pair.eos_ids)
    for request in requests:
        if request.constraint:
            try:
                grammars.matcher(request.constraint)
            except UserError as error:
                raise UserError(f"{request.task}, document {request.doc_id}: {error}") from None
    return replace(pair, constraining=Constraining(grammars, draft))


def build_alone(spec: MethodSpec, pair: Pair) -> Method:
    """The same for a method whose forwards nobody watches."""
    return build(spec, pair, Unwatched())


def at_runtime(plan: Plan, pair: Pair, prompt: list[int], length: int, name: str) -> tuple[Pair, str]:
    """The pair at a runtime by name, and why it was chosen; `auto` is what suits all methods of the plan.

    Runtimes are tried on the prompt, repeated up to `length` tokens or as many as the pair's context has room for.
    """
    if plan.batch > 1:
        chosen, why = choose.for_batches(name, pair)
        return replace(pair, runtime=chosen), why
    if name != AUTO:
        return (pair if pair.runtime.name == name else replace(pair, runtime=choose.runtime(name, pair))), ""

    text = list(itertools.islice(itertools.cycle(prompt), max(1, min(length, pair.context - TRIAL_ROOM))))

    def trial(candidate: Runtime) -> None:
        for spec in plan.own:
            with suppress_failures():
                try_method(spec, replace(pair, runtime=candidate), text, Sampling(plan.temperature))

    chosen, why = choose.fastest(pair, trial)
    if chosen is not pair.runtime:
        console.print(f"runtime: {chosen.name} ({why})", style="dim", highlight=False, soft_wrap=True)
    return replace(pair, runtime=chosen), why


def try_method(spec: MethodSpec, pair: Pair, prompt: list[int], sampling: Sampling = Sampling()) -> None:  # noqa: B008
    """Build a method and decode a few rounds, to see whether it raises."""
    decode_beginning(build_alone(spec, pair), prompt, sampling, pair)


def decode_beginning(method: Method, prompt: list[int], sampling: Sampling, pair: Pair) -> None:
    """Decode the first rounds of a text and forget them: the method has then loaded and compiled what it needs."""
    for _ in itertools.islice(method.rounds(prompt, sampling, torch.Generator(pair.device)), WARMUP_ROUNDS):
        pass


@contextmanager
def suppress_failures() -> Iterator[None]:
    """Ignore what a method or a model raises: its samples will record it. `Unsupported`, of a runtime, goes on."""
    try:
        yield
    except Unsupported:
        raise
    except Exception:
        pass
