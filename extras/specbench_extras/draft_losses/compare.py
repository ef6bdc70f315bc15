"""`specbench analyze losses`: which loss, on which texts, makes a draft accepted.

The drafts were trained by `specbench train --method draft` from one draft for one target. They are held against each
other on documents that none of them has learned from: test documents of a suite, or those that were held out from
training. The acceptance of a place is Σ min(p, q) of the target's and the draft's distributions at a temperature, along
the target's own answer; at temperature 0 it is 1 where both say the same token, and 0 elsewhere. A document counts
once, by its mean over seeds.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from specbench.analysis.metrics import interval_columns
from specbench.base import stats
from specbench.base.hashes import stable_seed
from specbench.base.stats import Floats
from specbench.config import ModelSpec, PairSpec, UserError, load_method
from specbench.config.prompts import prompt_lines
from specbench.engine.models.heads import fingerprint
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.sampling import probabilities
from specbench.engine.types import Sampling
from specbench.measure.prompts import encode, load_tasks
from specbench.plan import Plan
from specbench.training.answered import ROWS, answers_of, grouped
from specbench.training.documents import Document
from specbench.training.publish import held_out_prompts
from specbench_extras.drafts.data import answer_lesson, packed

ALL = "all"  # the documents of all tasks together, or the mean over all texts or losses of a full grid
FIRST = ("as it was", "")  # texts and loss of the draft that nothing was taught
BUDGET = ("documents", "epochs", "batch", "learning_rate", "warmup", "length", "temperatures", "lora_rank")
DOCUMENT = ["task", "document"]
LEVEL = 0.05


@dataclass(frozen=True)
class Trained:
    """A draft, and how it was trained."""

    folder: Path
    facts: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.facts["data"], self.facts["loss"]

    @property
    def seed(self) -> int:
        return int(self.facts["seed"])


@dataclass(frozen=True)
class Losses:
    pair: str
    suite: str | None  # whose test documents these are; None: held out by the trainings
    # temperature, task, data, loss, seeds, documents; alpha, its gain over the draft as it was, and how far it falls
    # short of the best, with _low and _high (95 %); short_p: that it does not, by Holm within the task. A row with
    # ALL for its texts or its loss is a mean (`averages`), and is compared with means of the same kind.
    table: pd.DataFrame
    # alpha of each draft by temperature, seed, task and document (the prompt's hash), with its number of places
    documents: pd.DataFrame
    mismatches: list[str]


def losses(
    pair: PairSpec,
    folders: Sequence[Path],
    temperatures: Sequence[float],
    device: str,
    dtype: str,
    test: Plan | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> Losses:
    """Measure the drafts in `folders` next to the pair's own, on the documents of `test`, or else on those held out.

    `advance` is called after each draft. Raises UserError for folders that `train` did not write, for drafts of another
    pair, and, without `test`, for held-out documents other than those of other drafts of the seed.
    """
    drafts = [read(folder) for folder in folders]
    check(drafts)
    base = load_pair(pair, device, dtype)
    same_models(base, pair, drafts)
    rows: list[dict[str, Any]] = []
    for seed in dict.fromkeys(draft.seed for draft in drafts):
        of_seed = [draft for draft in drafts if draft.seed == seed]
        documents = documents_of(test, base) if test else held_out(base, pair, of_seed)
        answers = {t: answered(base, documents, Sampling(t), seed) for t in temperatures}
        for draft in (None, *of_seed):
            made = base if draft is None else trained_pair(base, pair, draft, device, dtype)
            data, loss = FIRST if draft is None else draft.key
            for temperature, texts in answers.items():
                what = {"temperature": temperature, "seed": seed, "data": data, "loss": loss}
                for document, alpha, places in acceptance(made, documents, texts, Sampling(temperature)):
                    about = {"task": document.task, "document": document.prompt_hash, "alpha": alpha, "places": places}
                    rows.append(what | about)
            advance(draft is not None)
    cells = pd.DataFrame(rows)
    return Losses(pair.name, test.suite if test else None, table(cells), cells, [*mismatches(drafts)])


def read(folder: Path) -> Trained:
    """A trained draft. Raises UserError if `folder` is none."""
    try:
        facts = json.loads((folder / "training.json").read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no draft that `specbench train --method draft` wrote ({error})") from None
    if missing := {"data", "loss", "seed", "target", "draft"} - set(facts):
        raise UserError(f"{folder / 'training.json'} lacks {', '.join(sorted(missing))}; train the draft again")
    return Trained(folder, facts)


def check(drafts: Sequence[Trained]) -> None:
    """Raises UserError if drafts do not compare."""
    known: dict[tuple[Any, ...], Path] = {}
    for draft in drafts:
        if other := known.get((*draft.key, draft.seed)):
            raise UserError(f"{other} and {draft.folder} have the same loss, texts and seed; leave one out")
        known[(*draft.key, draft.seed)] = draft.folder
    for role in ("target", "draft"):
        if len({draft.facts[role] for draft in drafts}) > 1:
            raise UserError(f"these drafts were not trained from one {role}; compare those of one pair")


def mismatches(drafts: Sequence[Trained]) -> Iterator[str]:
    """What other budgets the drafts had, in words."""
    for name in BUDGET:
        values = sorted({json.dumps(draft.facts.get(name)) for draft in drafts})
        if len(values) > 1:
            yield f"budgets are not equal: {name} is {' and '.join(values)}"


def same_models(pair: Pair, spec: PairSpec, drafts: Sequence[Trained]) -> None:
    """Raises UserError if the drafts were trained from other models than the pair's."""
    for role in ("target", "draft"):
        if role not in pair.models or fingerprint(pair.models[role]) != drafts[0].facts[role]:
            raise UserError(f"{drafts[0].folder} was trained from another {role} than {spec.name}'s; name its --pair")


def held_out(pair: Pair, spec: PairSpec, drafts: Sequence[Trained]) -> list[Document]:
    """The documents that no draft of a seed has learned from. Raises UserError if they do not agree which these are."""
    try:
        texts = {draft.folder: held_out_prompts(draft.folder).read_text() for draft in drafts}
    except OSError as error:
        raise UserError(f"the held-out prompts are gone ({error}); name a --suite with test documents") from None
    first = drafts[0].folder
    for folder, text in texts.items():
        if text != texts[first]:
            raise UserError(f"{folder} and {first} have one seed and other held-out documents; train them on the same")
    prompts = held_out_prompts(first)
    plan = Plan(
        pair=spec,
        methods=(load_method("vanilla"),),
        baseline="vanilla",
        suite=prompts.stem,
        tasks=prompt_lines(prompts, None),
        prompts=str(prompts.resolve()),
        seed=drafts[0].seed,
    )
    return documents_of(plan, pair)


def documents_of(plan: Plan, pair: Pair) -> list[Document]:
    return [
        Document(r.task, r.doc_id, encode(pair, r.prompt), r.prompt_hash, r.until, r.max_new_tokens, lambda answer: 0.0)
        for r in load_tasks(plan, pair).requests()
    ]


def answered(pair: Pair, documents: Sequence[Document], sampling: Sampling, seed: int) -> list[list[int]]:
    """The target's answer to each document."""
    answers: dict[str, list[int]] = {}
    for some in grouped(sorted(documents, key=lambda document: (document.max_new_tokens, len(document.prompt))), ROWS):
        rng = torch.Generator(pair.device).manual_seed(stable_seed(seed, some[0].name))
        made = answers_of(pair.models["target"], pair, some, sampling, rng)
        answers |= {document.name: tokens for document, tokens in zip(some, made, strict=True)}
    return [answers[document.name] for document in documents]


def trained_pair(base: Pair, spec: PairSpec, draft: Trained, device: str, dtype: str) -> Pair:
    """The pair with a trained draft in the place of its own, and with the same target in memory."""
    own = spec.draft.dtype if spec.draft else "auto"
    trained = ModelSpec(model=str(draft.folder), dtype=own)
    alone = load_pair(PairSpec(name=draft.folder.name, description="", target=trained), device, dtype)
    return base.with_model("draft", alone.models["target"])


@torch.inference_mode()
def acceptance(
    pair: Pair, documents: Sequence[Document], answers: Sequence[Sequence[int]], sampling: Sampling
) -> list[tuple[Document, float, int]]:
    """The mean acceptance over an answer's places, and their number, of each document with an answer."""
    lessons = [answer_lesson(document.prompt, answer) for document, answer in zip(documents, answers, strict=True)]
    both = [(document, lesson) for document, lesson in zip(documents, lessons, strict=True) if lesson.places]
    both.sort(key=lambda document: len(document[1].tokens))  # as `packed` takes them
    means_and_places: list[tuple[float, int]] = []
    for block in packed([lesson for _, lesson in both], pair.device):
        logits = (pair.models[role](block.tokens, use_cache=False).logits for role in ("target", "draft"))
        p, q = (block.at_places(row)[:, : pair.vocabulary] for row in logits)
        if sampling.greedy:
            kept = (p.argmax(-1) == q.argmax(-1)).float()
        else:
            kept = torch.minimum(probabilities(p, sampling), probabilities(q, sampling)).sum(-1)
        places = torch.bincount(block.rows)
        means = torch.zeros(len(places), device=pair.device).index_add_(0, block.rows, kept.float()) / places
        means_and_places += zip(means.tolist(), places.tolist(), strict=True)
    by_name = {document.name: figures for (document, _), figures in zip(both, means_and_places, strict=True)}
    return [(document, *by_name[document.name]) for document in documents if document.name in by_name]


def table(cells: pd.DataFrame) -> pd.DataFrame:
    """The table of `Losses`, from the acceptance by document."""
    rows: list[dict[str, Any]] = []
    for temperature, of_temperature in cells.groupby("temperature", sort=False):
        for task in (*dict.fromkeys(of_temperature.task), ALL):
            part = of_temperature if task == ALL else of_temperature[of_temperature.task == task]
            rows += _of_task(part, {"temperature": temperature, "task": task})
    return pd.DataFrame(rows)


def _of_task(part: pd.DataFrame, about: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of one task at one temperature: each draft, the mean of each loss, and that of each kind of texts."""
    alphas = part.groupby(["data", "loss", "seed", *DOCUMENT], sort=False).alpha.mean()
    by_draft = alphas.unstack(["data", "loss"])  # [documents of each seed, drafts]
    kinds = (by_draft, *averages(by_draft))
    return [{**about, **row} for kind in kinds for row in _against_best(kind, by_draft[FIRST])]


def averages(by_draft: pd.DataFrame) -> list[pd.DataFrame]:
    """By document, each loss over all texts, and all losses on each kind of texts, if drafts are a full grid of both.

    The grid has all texts that were learned from by several losses, and the losses that learned from each of these.
    The list is empty if it has a single loss or a single kind of texts.
    """
    trained = [key for key in by_draft if key != FIRST]
    texts = [data for data in dict(trained) if len({loss for of, loss in trained if of == data}) > 1]
    names = dict.fromkeys(loss for _, loss in trained)
    losses = [loss for loss in names if all((data, loss) in trained for data in texts)]
    if len(texts) < 2 or len(losses) < 2:
        return []
    of_losses = {(ALL, loss): by_draft[[(data, loss) for data in texts]].mean(axis=1, skipna=False) for loss in losses}
    of_texts = {(data, ALL): by_draft[[(data, loss) for loss in losses]].mean(axis=1, skipna=False) for data in texts}
    return [pd.DataFrame(of_losses), pd.DataFrame(of_texts)]


def _against_best(by_draft: pd.DataFrame, first: "pd.Series[float]") -> list[dict[str, Any]]:
    """A row for each column of `by_draft`, compared document by document with the `first` draft and with the best."""
    best = max(by_draft, key=lambda key: by_document(by_draft[key] - first).mean())
    rows = []
    for key in by_draft:
        alpha = by_document(by_draft[key])
        gain, short = by_document(by_draft[key] - first), by_document(by_draft[best] - by_draft[key])
        data, loss = key
        row = {"data": data, "loss": loss}
        row |= {"seeds": by_draft[key].dropna().index.get_level_values("seed").nunique(), "documents": len(alpha)}
        row |= interval_columns("alpha", stats.mean(alpha))
        row |= interval_columns("gain", None if key == FIRST else stats.mean(gain))
        row |= interval_columns("short", None if key == best else stats.mean(short))
        row["short_p"] = math.nan if key == best else stats.difference(short, 0 * short).p
        rows.append(row)
    for row, p in zip(rows, stats.holm([row["short_p"] for row in rows]), strict=True):
        row["short_p"] = p
    return rows


def by_document(values: "pd.Series[float]") -> Floats:
    """The mean over seeds of each document."""
    means: Floats = values.dropna().groupby(level=DOCUMENT).mean().to_numpy()
    return means
