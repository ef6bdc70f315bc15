"""Train the arbitrator of CoSpec (arXiv 2605.24793) in two stages: warm-up on judged mismatches, then reinforcement.

`sft` traces vanilla speculative decoding, has a judge label the mismatches and fits them; `rl` goes on from there on
rollouts that the task itself scores.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.table import Table
from transformers import PreTrainedModel

from specbench.arbitrator import (
    KIND,
    ROLE,
    Adapter,
    find_arbitrator,
    load_own,
    new_arbitrator,
    own_parameters,
    with_backbone,
    write_arbitrator,
)
from specbench.config import UserError, validated
from specbench.console import console, progress
from specbench.decoding.arbiters import log_odds
from specbench.heads import Head, fingerprint
from specbench.methods.cospec import Settings
from specbench.models import Pair
from specbench.seeds import stable_seed
from specbench.train import Job
from specbench.train.collected import put_table
from specbench.train.cospec_fit import WarmUp, predictions
from specbench.train.cospec_judge import load_judge
from specbench.train.cospec_recipe import Rl, Sft
from specbench.train.cospec_rl import Reinforcement
from specbench.train.cospec_traces import ContextJudge, Judge, Lesson, RolloutJudge, need_checkable, trace_all
from specbench.train.documents import Document, held_apart, training_documents
from specbench.train.recipe import load_recipe

HELD_OUT = 10  # one document in so many is kept for the figures, and in the second stage to choose the update
FEW = 50  # held-out mismatches, below which figures of them tell nothing
MOST_HELD = 96  # documents of an evaluation in the second stage
REJECT_ALL = -3.0  # logit of a policy to begin with without a warm-up: a draft's token is kept once in 21


def train(job: Job) -> None:
    """Carry out the stage that the job names. Raises UserError for what cannot be trained."""
    if job.grid:
        raise UserError("cospec is trained one arbitrator at a time; leave out --grid")
    if job.stage == "rl":
        if job.judge:
            raise UserError("--judge belongs to --stage sft; rollouts are scored by the task itself")
        reinforce(job)
    else:
        if job.warm_up is not None:
            raise UserError("--warm-up belongs to --stage rl; leave it out of --stage sft")
        warm_up(job)


def warm_up(job: Job) -> None:
    """Trace and judge the job's documents (or go on with that), fit, write the arbitrator, print held-out figures.

    What was traced stays in a folder beside the file, `NAME.traces` for NAME.safetensors.
    """
    assert isinstance(job.settings, Settings) and job.recipe
    recipe = validated(Sft, job.recipe.values, job.recipe.name)
    pair = with_backbone(job.pair, job.settings.backbone)
    gamma, hybrid = job.settings.gamma, job.settings.mask == "hybrid"
    documents = training_documents(job.plan, pair, 2 * gamma + 1, job.data)
    judge = chosen_judge(job, pair, recipe, documents)
    folder = job.out.with_name(f"{job.out.stem}.traces")
    if folder.exists():
        console.print(f"going on with what was traced in {folder}", highlight=False, soft_wrap=True)
    with progress("tracing", recipe.answers * len(documents)) as advance:
        lessons = trace_all(pair, documents, judge, recipe, gamma, job.plan.seed, folder, advance)
    learned, held = apart(lessons, job.plan.seed)
    facts = {**recipe.model_dump(), "mask": job.settings.mask, "seed": job.plan.seed, "lessons": len(learned)}
    facts |= {
        "judge": judge.name,
        "gamma": gamma,
        "stage": "sft",
        "prompts_hash": prompts_hash(documents),
        **whose(pair),
    }
    training = WarmUp(pair.session(ROLE).model, learned, recipe, hybrid, job.plan.seed)
    checkpoint = job.out.with_suffix(".checkpoint.pt")
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint, facts, advance)
    told = fit_of(training.arbitrator, held, hybrid)
    trained = {**facts, **source(job, documents), "held_out": told}
    write_arbitrator(job.out, training.arbitrator, pair, trained)
    checkpoint.unlink(missing_ok=True)
    labels = [y for one in learned for y in one.labels]
    console.print(
        f"{len(documents)} documents, {len(labels)} mismatches to learn from, mean label {np.mean(labels):.2f}",
        highlight=False,
    )
    share = "-" if told["agreement"] is None else f"{told['agreement']:.1%}"
    console.print(
        f"held out: {told['mismatches']} mismatches; cross-entropy {told['loss']:.3f}, of a constant "
        f"{told['constant']:.3f}; the better branch is chosen in {share} at 0.5"
        + "; too few to tell"
        * (told["mismatches"] < FEW),
        highlight=False,
    )
    console.print(f"{job.out}; traces: {folder}", highlight=False, soft_wrap=True)
    console.print(
        f"next: specbench train --method cospec --stage rl --warm-up {job.out}{job.pair_option} {asked(job)} "
        "--out NAME.safetensors",
        highlight=False,
        soft_wrap=True,
    )


def reinforce(job: Job) -> None:
    """Reinforce the arbitrator of `--warm-up`, write the best by held-out return, and print how it went.

    The figures of every update stay beside the file, NAME.updates.parquet. Raises UserError where it breaks down.
    """
    assert isinstance(job.settings, Settings) and job.recipe
    recipe = validated(Rl, job.recipe.values, job.recipe.name)
    pair, settings = with_backbone(job.pair, job.settings.backbone), job.settings
    if job.warm_up is None:
        raise UserError(
            "--stage rl goes on from a warm-up: name its file by --warm-up FILE (specbench train --method cospec "
            "--stage sft makes one), or start without any by --warm-up none"
        )
    documents = training_documents(job.plan, pair, 2 * settings.gamma + 1, job.data)
    need_checkable(documents)
    arbitrator, warm, adapter = begun(job.warm_up, pair, job.plan.seed)
    by_name = {document.name: document for document in documents}
    learned, held = held_apart(by_name, job.plan.seed, HELD_OUT)
    if not learned:
        raise UserError("one document is too few to learn from, take more --documents")
    facts = {**adapter.model_dump(), **recipe.model_dump(), "mask": settings.mask, "seed": job.plan.seed}
    facts |= {"warm_up": digest(warm), "gamma": settings.gamma, "threshold": settings.threshold, "stage": "rl"}
    facts |= {"prompts_hash": prompts_hash([by_name[name] for name in (*learned, *held)]), **whose(pair)}
    training = Reinforcement(
        pair,
        arbitrator,
        warm,
        [by_name[name] for name in learned],
        [by_name[name] for name in held[:MOST_HELD]],
        recipe,
        settings.gamma,
        log_odds(settings.threshold),
        settings.mask == "hybrid",
        job.plan.seed,
    )
    checkpoint = job.out.with_suffix(".checkpoint.pt")
    with progress(f"rollouts of {job.out.stem}", recipe.updates * recipe.prompts * recipe.group) as advance:

        def report(told: Mapping[str, float]) -> None:
            console.print(line(told), highlight=False, soft_wrap=True)

        training.run(checkpoint, facts, report, advance)
    load_own(arbitrator, training.best["own"])
    trained = {**facts, **source(job, documents), "best_update": training.best["update"]}
    trained["held_out"] = training.best["figures"]
    write_arbitrator(job.out, arbitrator, pair, trained)
    columns = dict.fromkeys(name for told in training.told for name in told)
    table = pa.table({name: [told.get(name) for told in training.told] for name in columns})
    put_table(job.out.with_suffix(".updates.parquet"), table, {"trained": trained})
    checkpoint.unlink(missing_ok=True)
    show(training)
    if not training.best["update"]:
        console.print("no update was better than the warm-up there: this is the warm-up", style="yellow")
    console.print(f"{job.out}; figures of every update: {job.out.with_suffix('.updates.parquet')}", soft_wrap=True)
    console.print(f"next: {job.run} --set cospec.arbitrator={job.out}", highlight=False, soft_wrap=True)


def begun(file: Path, pair: Pair, seed: int) -> tuple[PreTrainedModel, PreTrainedModel, Adapter]:
    """Two arbitrators that are the warm-up policy (one to learn, one to hold it to), and the size of their adapters."""
    if str(file) == "none":
        recipe = load_recipe(f"{KIND}-sft", ())
        assert recipe
        adapter = Adapter(**{key: recipe.values[key] for key in Adapter.model_fields})
        both = [new_arbitrator(pair.session(ROLE).model, adapter, stable_seed(seed, "arbitrator")) for _ in range(2)]
        for one in both:
            one.get_output_embeddings().bias.data.fill_(REJECT_ALL)
        return both[0], both[1], adapter
    (first, head), (second, _) = (find_arbitrator(str(file), pair) for _ in range(2))
    return first, second, Adapter(rank=head.trained["rank"], alpha=head.trained["alpha"])


def chosen_judge(job: Job, pair: Pair, recipe: Sft, documents: Sequence[Document]) -> Judge:
    """The judge that the job names. Raises UserError for one that cannot be loaded, or cannot judge these tasks."""
    if job.judge in ("", RolloutJudge.name):
        need_checkable(documents)
        return RolloutJudge(pair, recipe)
    dtype = str(pair.models["target"].dtype).removeprefix("torch.")
    return ContextJudge(load_judge(job.judge, pair, recipe.judge_temperature, str(pair.device), dtype), job.judge)


def apart(lessons: Sequence[Lesson], seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons to learn from, and those of one document in HELD_OUT. Raises UserError if there are too few."""
    taught = [one for one in lessons if one.labels]
    names = dict.fromkeys(one.document for one in taught)
    if len(names) < 2:
        raise UserError(f"{len(names)} of the documents have a mismatch to learn from; take more --documents")
    kept = set(held_apart(names, seed, HELD_OUT)[0])
    return [one for one in taught if one.document in kept], [one for one in taught if one.document not in kept]


def fit_of(arbitrator: PreTrainedModel, held: Sequence[Lesson], hybrid: bool) -> dict[str, Any]:
    """How the policy does on mismatches that it has not learned from; agreement is with labels other than 0.5."""
    found = np.array(predictions(arbitrator, held, hybrid), dtype=np.float64)
    logits, labels = found[:, 0], found[:, 1]
    loss = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    share, told = np.clip(labels.mean(), 1e-9, 1 - 1e-9), labels != 0.5
    constant = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    agreed = (logits > 0)[told] == (labels > 0.5)[told]
    agreement = float(agreed.mean()) if told.any() else None
    return {"mismatches": len(found), "loss": float(loss.mean()), "constant": constant, "agreement": agreement}


def whose(pair: Pair) -> dict[str, str]:
    return {role: fingerprint(pair.session(role).model) for role in ("target", "draft", ROLE)}


def digest(arbitrator: PreTrainedModel) -> str:
    """Which policy an arbitrator is."""
    tensors = {name: one.detach().float().cpu() for name, one in own_parameters(arbitrator).items()}
    return Head(KIND, tensors, {}).hashes()["head"]


def prompts_hash(documents: Sequence[Document]) -> str:
    """Which documents these are."""
    told = [[one.name, one.prompt_hash] for one in documents]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def source(job: Job, documents: Sequence[Document]) -> dict[str, Any]:
    tasks = list(dict.fromkeys(document.task for document in documents))
    return {"suite": job.plan.suite, "tasks": tasks, "documents": len(documents)}


def asked(job: Job) -> str:
    """Which documents were asked for, as it is typed."""
    return " ".join(f"--data {one}" for one in job.data) if job.data else f"--suite {job.plan.suite}"


def line(told: Mapping[str, float]) -> str:
    """One update in words, for the log."""
    text = (
        f"update {told['update']:.0f}: return {told['returned']:.3f}, accuracy {told['accuracy']:.1%}, "
        f"τ {told['tau']:.2f}, kept {told['kept']:.0%}, KL {told['kl']:.4f}, entropy {told['entropy']:.3f}"
    )
    if "held_returned" in told:
        text += (
            f"; held out: return {told['held_returned']:.3f}, accuracy {told['held_accuracy']:.1%}, "
            f"τ {told['held_tau']:.2f}"
        )
    return text


def show(training: Reinforcement) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in (f"{len(training.held)} held out", "update", "return", "accuracy", "τ", "kept"):
        table.add_column(column, justify="right")
    rows = [("best", training.best["update"], training.best["figures"])]
    for label, update, found in rows:
        cells = (f"{found['returned']:.3f}", f"{found['accuracy']:.1%}", f"{found['tau']:.2f}", f"{found['kept']:.0%}")
        table.add_row(label, str(update), *cells)
    console.print(table)
