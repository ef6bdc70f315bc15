"""Train the pair's draft model to be accepted by its target: `specbench train --method draft`.

The result is a folder that `--draft` and a pair's YAML take as a draft. Texts, losses and recipes of several papers
share one loop; recipe.py names them.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from safetensors.torch import save_file

from specbench.base import files, parquet
from specbench.base.console import note, progress, say
from specbench.config import UserError
from specbench.engine.models.folders import ADAPTER
from specbench.engine.models.heads import fingerprint
from specbench.engine.session import common
from specbench.engine.types import Sampling
from specbench.measure.manifest import digest
from specbench.measure.prompts import encode
from specbench.plan import Plan
from specbench.report.finding import show
from specbench.training.answered import answer_all, most_tokens
from specbench.training.documents import Document, documents_hash, split_documents, training_documents
from specbench.training.publish import collecting, held_out_prompts, source
from specbench.training.train import Job, checkpoint_of
from specbench_extras.drafts import study
from specbench_extras.drafts.command import drafts_finding
from specbench_extras.drafts.fit import DraftTraining, held_lessons
from specbench_extras.drafts.recipe import ANSWERED, MASKED, SPECULATED, DraftRecipe

SHARED = True  # workers may share what it collects; see train.py
PRESETS = ("distillspec", "fastdraft", "direct-alignment", "draft-opd", "s2d")
HELD_OUT = 10  # one document in this many chooses the weights that are kept
LOG = pa.schema(
    {
        "epoch": pa.int32(),
        "step": pa.int32(),
        "loss": pa.float64(),
        "learning_rate": pa.float64(),
        "places": pa.int64(),
        "held_out": pa.float64(),
    }
)


def train(job: Job) -> None:
    """Train a copy of the job's draft and write it, with its tokenizer, to the folder `job.out`.

    Next to it stay NAME.answers/, the target's answers; NAME.log.parquet, a row for each step and for each look at
    held-out documents; and NAME.held-out.jsonl, the prompts of these documents (--prompts). Raises UserError if there
    is nothing to learn from.
    """
    if job.grid:
        raise UserError("draft is trained one model at a time; leave out --grid")
    recipe = job.recipe_as(DraftRecipe)
    recipe.check()
    if "draft" not in job.pair.models:
        raise UserError(f"the pair {job.pair.name} has no draft to train; choose another --pair, or add --draft")
    layers = job.pair.models["draft"].config.get_text_config().num_hidden_layers
    if any(not 1 <= exit_layer < layers for exit_layer in recipe.exits):
        raise UserError(
            f"the draft has {layers} layers, so exits must be from 1 to {layers - 1}; change them by --recipe"
        )
    spec = job.plan.pair.draft
    apart = bool(spec and spec.layers and recipe.lora_rank)  # the target's own layers, which are not written again
    if apart:
        pair_text(job)
    job.pair.need_one_tokenizer("a draft is trained on the target's own tokens")
    if recipe.data in MASKED and job.pair.chains_only:
        raise UserError(
            f"{job.pair.name}: data={recipe.data} is made for several texts at once by masks, which its models do not "
            "take; choose data=target, draft or mix_request by --recipe"
        )
    reach = recipe.gamma + 1 if recipe.data in SPECULATED else 1
    referenced = recipe.data == "ground_truth"
    documents = training_documents(job.plan, job.pair, reach, job.data, references=referenced)
    learned, held = split_documents(documents, job.plan.seed, HELD_OUT)
    answers = _answers(job, recipe, [*learned, *held] if recipe.data in ANSWERED else held)
    lessons = held_lessons(held, answers, recipe.length)
    if not lessons:
        raise UserError(f"no held-out prompt is shorter than {recipe.length} tokens; set a larger length by --recipe")
    given = {document.name: [_reference(job, document)] for document in learned} if referenced else answers
    models = {role: fingerprint(job.pair.models[role]) for role in ("target", "draft")}
    kept = sorted((name, list(texts)) for name, texts in given.items())
    facts = {**recipe.model_dump(mode="json"), **models, "seed": job.plan.seed}
    facts |= {"documents": documents_hash(documents), "answers": digest(kept)}
    training = DraftTraining(job.pair, learned, given, lessons, recipe, job.plan.seed)
    with progress(f"training {job.out.name}", training.steps) as advance:
        training.run(checkpoint_of(job.out), facts, advance)
    rows = training.log
    first, best = (pick(row["held_out"] for row in rows if row["held_out"] is not None) for pick in (next, max))
    log = job.out.with_name(f"{job.out.name}.log.parquet")
    parquet.write(log, pa.Table.from_pylist(rows, schema=LOG))
    files.write_text(held_out_prompts(job.out), prompt_lines(held))
    trained = {**facts, **source(job, documents), "preset": job.preset, "held_out": [first, best]}
    if apart:
        write_adapters(job, training, trained)
    else:
        write_model(job, training.finished(), trained)
    checkpoint_of(job.out).unlink(missing_ok=True)
    note(
        f"{len(learned)} documents learned, {len(held)} held out: acceptance Σ min(p, q) there {first:.4f} → {best:.4f}"
    )
    if best == first:
        note("no epoch did better on held-out documents, so the draft is as it was; try more --documents")
    say(f"{job.out}; log: {log}")
    target = job.plan.pair.target.model
    tasks = " ".join(f"--task {line.task}" for line in job.plan.tasks)  # a suite may name others for a pair of its own
    both = f"--pair {pair_file(job.out)}" if apart else f"--target {target} --draft {job.out}"
    shown = "--prompts FILE" if job.plan.prompts else tasks
    say(f"next: specbench run --method {job.spec.method} {both} {shown}")


def evaluations(job: Job, device: str, dtype: str, runtime: str) -> Iterator[tuple[Plan, Path]]:
    """As `study.evaluations`, on the documents that the draft has not learned from."""
    prompts = held_out_prompts(job.out)
    return study.evaluations(job.plan.pair, job.out, job.spec, prompts, job.plan.seed, device, dtype, runtime)


def show_evaluations(runs: Sequence[Path]) -> None:
    """Print what these runs say of the draft."""
    show(drafts_finding(runs, None, [], aside=False))


def prompt_lines(documents: Sequence[Document]) -> str:
    """Documents as a file of prompts, with their stop strings and limits; task by task, in the documents' order."""
    lines = [
        {"id": document.name, "category": document.task, "prompt": document.text, "stop": document.until}
        | {"max_new_tokens": document.max_new_tokens}
        for document in documents
    ]
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def _answers(job: Job, recipe: DraftRecipe, documents: Sequence[Document]) -> dict[str, list[list[int]]]:
    """The target's answers to documents by name, one at each temperature of the recipe; made, or read if they are."""
    folder = job.out.with_name(f"{job.out.name}.answers")
    answers: dict[str, list[list[int]]] = {document.name: [] for document in documents}
    tokens = len(recipe.temperatures) * most_tokens(documents)
    with collecting(folder, "answering, tokens at most", tokens, "the answers") as advance:
        for number, temperature in enumerate(recipe.temperatures):
            place, sampling = folder / f"{number}", Sampling(temperature)
            for answered in answer_all(job.pair, documents, 1, sampling, job.plan.seed, place, advance):
                answers[answered.name].append(answered.tokens[answered.prompt :])
    return answers


def _reference(job: Job, document: Document) -> list[int]:
    """The tokens of a document's reference answer, its end token included. Raises UserError if it has none in words."""
    if document.reference is None:
        raise UserError(f"{document.task} has no reference answers in words; take data=target")
    tokens = encode(job.pair, document.reference)
    end = job.pair.tokenizer.eos_token_id
    return [*tokens[common(tokens, document.prompt) :], *([] if end is None else [end])]


def write_model(job: Job, model: Any, trained: Mapping[str, Any]) -> None:
    """Write a model, its tokenizer and training.json, on what it was trained, to the folder `job.out`, whole or not."""
    with whole_folder(job.out) as part:
        model.save_pretrained(part)
        job.pair.tokenizer.save_pretrained(part)
        files.write_text(part / "training.json", json.dumps(trained, indent=1))


def write_adapters(job: Job, training: DraftTraining, trained: Mapping[str, Any]) -> None:
    """Write adapters and training.json to the folder `job.out`, after the pair next to it whose draft has them."""
    files.write_text(pair_file(job.out), pair_text(job))
    with whole_folder(job.out) as part:
        settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", **training.adapter_settings()}
        files.write_text(part / ADAPTER[0], json.dumps(settings, indent=1))
        save_file(training.adapters(), part / ADAPTER[1])
        files.write_text(part / "training.json", json.dumps(trained, indent=1))


def pair_file(out: Path) -> Path:
    """The pair that a trained draft without weights of its own comes with."""
    return out.with_name(f"{out.name}.yaml")


def pair_text(job: Job) -> str:
    """The job's pair, whose draft has the adapters in `job.out`, as YAML. Raises UserError if its file is another's."""
    pair = job.plan.pair
    assert pair.draft
    draft = pair.draft.model_copy(update={"adapter": str(job.out.resolve())})
    models = {"target": pair.target.model_dump(exclude_defaults=True), "draft": draft.model_dump(exclude_defaults=True)}
    text = yaml.safe_dump({"description": f"{pair.description}; trained: {job.out.name}", **models}, sort_keys=False)
    file = pair_file(job.out)
    if file.exists() and file.read_text("utf-8") != text:
        raise UserError(f"{file} exists, and the pair with the trained draft is to be called so; choose another --out")
    return text


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder to write to, which has the name `out` in the end, or is not there at all."""
    part = out.with_name(f"{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    for place in (*part.iterdir(), part):
        files.sync(place)
    part.rename(out)
    files.sync(out.parent)
