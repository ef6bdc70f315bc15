"""Train the arbitrator of CoSpec (arXiv 2605.24793) in two stages: warm-up on judged mismatches, then reinforcement.

`sft` traces vanilla speculative decoding, has a judge label the mismatches, and fits these labels. `rl` goes on from
there with rollouts that the task itself scores.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedModel

from specbench.base.console import console, note, progress, say, warn
from specbench.base.hashes import stable_seed
from specbench.config import UserError
from specbench.engine.models.heads import Head, fingerprint
from specbench.engine.models.pair import Pair
from specbench.measure.manifest import digest
from specbench.methods.collaborative.cospec import Settings, log_odds
from specbench.methods.collaborative.cospec_arbitrator import (
    KIND,
    ROLE,
    Adapter,
    find_arbitrator,
    load_own,
    new_arbitrator,
    own_parameters,
    with_backbone,
)
from specbench.training.collected import put_table
from specbench.training.documents import Document, hold_out, training_documents
from specbench.training.publish import announce, collecting, flush_right, publish, source
from specbench.training.recipe import load_recipe
from specbench.training.train import Job, checkpoint_of
from specbench_extras.cospec.fit import WarmUp, predictions
from specbench_extras.cospec.judge import load_judge
from specbench_extras.cospec.recipe import Rl, Sft
from specbench_extras.cospec.rl import Reinforcement
from specbench_extras.cospec.traces import ContextJudge, Judge, Lesson, RolloutJudge, need_checkable, trace_all

STAGES = ("sft", "rl")  # each with a recipe
SCORED = True  # a trainer that scores what it generates; see train.py
SHARED = ("sft",)  # the stages in which workers may share what it collects
HELD_OUT = 10  # one document in this many is kept for the figures, and in the second stage to choose the update
FEW = 50  # with fewer held-out mismatches, figures of them tell nothing
MOST_HELD = 96  # documents of an evaluation in the second stage
REJECT_ALL = -3.0  # the logit of an initial policy without a warm-up: it keeps one draft token in 21


def train(job: Job) -> None:
    """Carry out the stage that the job names. Raises UserError for options of the other stage."""
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

    The traces stay in a folder next to the file, `NAME.traces` for NAME.safetensors.
    """
    assert isinstance(job.settings, Settings)
    recipe = job.recipe_as(Sft)
    pair = with_backbone(job.pair, job.settings.backbone)
    gamma, hybrid = job.settings.gamma, job.settings.mask == "hybrid"
    documents = training_documents(job.plan, pair, 2 * gamma + 1, job.data)
    judge = chosen_judge(job, pair, recipe, documents)
    folder = job.folder("traces")
    with collecting(folder, "tracing", recipe.answers * len(documents), "what was traced") as advance:
        lessons = trace_all(pair, documents, judge, recipe, gamma, job.plan.seed, folder, advance)
    learned, held = split(lessons, job.plan.seed)
    facts = {**recipe.model_dump(), "mask": job.settings.mask, "seed": job.plan.seed, "lessons": len(learned)}
    facts |= {"judge": judge.name, "gamma": gamma, "stage": "sft"}
    facts |= {"prompts_hash": prompts_hash(documents), **fingerprints(pair)}
    training = WarmUp(pair.session(ROLE).model, learned, recipe, hybrid, job.plan.seed)
    with progress(f"training {job.out.stem}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    figures = figures_of(training.arbitrator, held, hybrid)
    trained = {**facts, **source(job, documents), "held_out": figures}
    publish(job.out, KIND, own_parameters(training.arbitrator), pair, trained, ROLE)
    labels = [y for lesson in learned for y in lesson.labels]
    note(f"{len(documents)} documents, {len(labels)} mismatches to learn from, mean label {np.mean(labels):.2f}")
    share = "-" if figures["agreement"] is None else f"{figures['agreement']:.1%}"
    note(
        f"held out: {figures['mismatches']} mismatches; cross-entropy {figures['loss']:.3f}, of a constant "
        f"{figures['constant']:.3f}; the better branch is chosen in {share} at 0.5"
        + "; too few to tell"
        * (figures["mismatches"] < FEW)
    )
    command = f"specbench train --method cospec --stage rl --warm-up {job.out}{job.pair_option} {data_options(job)}"
    announce(job.out, f"traces: {folder}", f"{command} --out NAME.safetensors")


def reinforce(job: Job) -> None:
    """Reinforce the arbitrator of `--warm-up`, write the one of the best held-out return, and print its figures.

    The figures of every update stay next to the file, NAME.updates.parquet. Raises UserError if the training collapses.
    """
    assert isinstance(job.settings, Settings)
    recipe = job.recipe_as(Rl)
    pair, settings = with_backbone(job.pair, job.settings.backbone), job.settings
    if job.warm_up is None:
        raise UserError(
            "--stage rl goes on from a warm-up: name its file by --warm-up FILE (specbench train --method cospec "
            "--stage sft makes one), or start without one by --warm-up none"
        )
    documents = training_documents(job.plan, pair, 2 * settings.gamma + 1, job.data)
    need_checkable(documents)
    arbitrator, warm, adapter = load_warm_up(job.warm_up, pair, job.plan.seed)
    by_name = {document.name: document for document in documents}
    learned, held = hold_out(by_name, job.plan.seed, HELD_OUT)
    if not learned:
        raise UserError("one document is too few to learn from, take more --documents")
    facts = {**adapter.model_dump(), **recipe.model_dump(), "mask": settings.mask, "seed": job.plan.seed}
    facts |= {"warm_up": policy_hash(warm), "gamma": settings.gamma, "threshold": settings.threshold, "stage": "rl"}
    facts |= {"prompts_hash": prompts_hash([by_name[name] for name in (*learned, *held)]), **fingerprints(pair)}
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
        report=lambda update: say(update_line(update)),
    )
    with progress(f"rollouts of {job.out.stem}", recipe.updates * recipe.prompts * recipe.group) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    load_own(arbitrator, training.best["own"])
    trained = {**facts, **source(job, documents), "best_update": training.best["update"]}
    trained["held_out"] = training.best["figures"]
    columns = dict.fromkeys(name for update in training.history for name in update)
    table = pa.table({name: [update.get(name) for update in training.history] for name in columns})
    updates = job.out.with_suffix(".updates.parquet")
    put_table(updates, table, {"trained": trained})
    publish(job.out, KIND, own_parameters(arbitrator), pair, trained, ROLE)
    show(training)
    if not training.best["update"]:
        warn("no update was better than the warm-up, so the file holds the warm-up")
    announce(job.out, f"figures of every update: {updates}", f"{job.run} --set cospec.arbitrator={job.out}")


def load_warm_up(file: Path, pair: Pair, seed: int) -> tuple[PreTrainedModel, PreTrainedModel, Adapter]:
    """Two arbitrators with the warm-up policy, one to train and one to compare with, and the size of their adapters."""
    if str(file) == "none":
        recipe = load_recipe(f"{KIND}-sft", ())
        assert recipe
        adapter = Adapter(**{key: recipe.values[key] for key in Adapter.model_fields})
        both = [new_arbitrator(pair.session(ROLE).model, adapter, stable_seed(seed, "arbitrator")) for _ in range(2)]
        for arbitrator in both:
            arbitrator.get_output_embeddings().bias.data.fill_(REJECT_ALL)
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


def split(lessons: Sequence[Lesson], seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """Lessons to learn from, and those of one document in HELD_OUT. Raises UserError if there are too few."""
    labelled = [lesson for lesson in lessons if lesson.labels]
    names = dict.fromkeys(lesson.document for lesson in labelled)
    if len(names) < 2:
        raise UserError(f"{len(names)} of the documents have a mismatch to learn from; take more --documents")
    held = set(hold_out(names, seed, HELD_OUT)[1])
    learned = [lesson for lesson in labelled if lesson.document not in held]
    return learned, [lesson for lesson in labelled if lesson.document in held]


def figures_of(arbitrator: PreTrainedModel, held: Sequence[Lesson], hybrid: bool) -> dict[str, Any]:
    """Figures of the policy on mismatches that it has not learned from; agreement is with labels other than 0.5."""
    logits, labels = np.array(predictions(arbitrator, held, hybrid), dtype=np.float64).T
    loss = labels * np.logaddexp(0, -logits) + (1 - labels) * np.logaddexp(0, logits)
    share, clear = np.clip(labels.mean(), 1e-9, 1 - 1e-9), labels != 0.5
    constant = -(share * math.log(share) + (1 - share) * math.log(1 - share))
    agreed = (logits > 0)[clear] == (labels > 0.5)[clear]
    agreement = float(agreed.mean()) if clear.any() else None
    return {"mismatches": len(labels), "loss": float(loss.mean()), "constant": constant, "agreement": agreement}


def fingerprints(pair: Pair) -> dict[str, str]:
    return {role: fingerprint(pair.session(role).model) for role in ("target", "draft", ROLE)}


def policy_hash(arbitrator: PreTrainedModel) -> str:
    """The hash of an arbitrator's policy."""
    tensors = {name: parameter.detach().float().cpu() for name, parameter in own_parameters(arbitrator).items()}
    return Head(KIND, tensors, {}).hashes()["head"]


def prompts_hash(documents: Sequence[Document]) -> str:
    """The hash of the documents' names and prompts."""
    return digest([[document.name, document.prompt_hash] for document in documents])


def data_options(job: Job) -> str:
    """The options that name the job's documents, as they are typed."""
    return " ".join(f"--data {data}" for data in job.data) if job.data else f"--suite {job.plan.suite}"


def update_line(update: Mapping[str, float]) -> str:
    """One update in words, for the log."""
    text = (
        f"update {update['update']:.0f}: return {update['returned']:.3f}, accuracy {update['accuracy']:.1%}, "
        f"τ {update['tau']:.2f}, kept {update['kept']:.0%}, KL {update['kl']:.4f}, entropy {update['entropy']:.3f}"
    )
    if "held_returned" in update:
        text += (
            f"; held out: return {update['held_returned']:.3f}, accuracy {update['held_accuracy']:.1%}, "
            f"τ {update['held_tau']:.2f}"
        )
    return text


def show(training: Reinforcement) -> None:
    table = flush_right(f"{len(training.held)} held out", "update", "return", "accuracy", "τ", "kept")
    best = training.best["figures"]
    cells = (f"{best['returned']:.3f}", f"{best['accuracy']:.1%}", f"{best['tau']:.2f}", f"{best['kept']:.0%}")
    table.add_row("best", str(training.best["update"]), *cells)
    console.print(table)
