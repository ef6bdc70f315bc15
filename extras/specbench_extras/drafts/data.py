"""Lessons for a draft: texts of references, of the target, of the draft itself, of both, or of speculative decoding.

What the draft takes part in is made again in every step with the weights as they are then (on-policy), and no gradient
reaches the drawing of tokens (DistillSpec, arXiv 2310.08461).
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.base.hashes import stable_seed
from specbench.engine.accept import exact
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw
from specbench.engine.speculate import speculate
from specbench.engine.types import Round, Sampling, Verdict
from specbench.training.answered import MICRO_TOKENS, answers_of, grouped
from specbench.training.documents import Document
from specbench_extras.drafts.batch import Batch, until_all_end
from specbench_extras.drafts.recipe import DraftRecipe
from specbench_extras.drafts.speculate_batch import speculate_all

Answers = Mapping[str, Sequence[list[int]]]  # tokens by the document's name, several of each


@dataclass(frozen=True)
class Lesson:
    """A text and the places in it from which the draft learns."""

    tokens: list[int]
    places: list[int]  # indices of `tokens`, from 1 on: the draft predicts these tokens from those before each
    rejected: frozenset[int] = frozenset()  # places whose token the target rejected, or that followed such a one
    slots: tuple[int, ...] = ()  # of a drafted block: the slot of each place, from 0

    def cut(self, length: int) -> "Lesson":
        """The same without tokens from `length` on."""
        places = [place for place in self.places if place < length]
        return Lesson(self.tokens[:length], places, self.rejected, self.slots[: len(places)])


@dataclass(frozen=True)
class Packed:
    """Some lessons, padded at their ends, with their N places one after the other."""

    tokens: Tensor  # [B, T]
    rows: Tensor  # [N]: the text of each place
    places: Tensor  # [N]
    rejected: Tensor  # [N], bool
    slots: Tensor  # [N]; 0 where there is no block

    @property
    def targets(self) -> Tensor:
        """The tokens [N] at the places."""
        return self.tokens[self.rows, self.places]

    def at_places(self, logits: Tensor) -> Tensor:
        """The rows [N, V] of logits [B, n, V] after the last n tokens that predict those at the places."""
        return logits[self.rows, self.places - 1 - (self.tokens.shape[1] - logits.shape[1])]


def packed(lessons: Sequence[Lesson], device: torch.device) -> Iterator[Packed]:
    """The lessons in blocks of at most MICRO_TOKENS tokens with padding (at least one lesson each)."""
    ordered = sorted(lessons, key=lambda lesson: len(lesson.tokens))
    width = max((len(lesson.tokens) for lesson in ordered), default=1)
    for some in grouped(ordered, max(1, MICRO_TOKENS // width)):
        longest = max(len(lesson.tokens) for lesson in some)
        places = [(row, place) for row, lesson in enumerate(some) for place in lesson.places]
        slots = [slot for lesson in some for slot in lesson.slots or [0] * len(lesson.places)]
        yield Packed(
            torch.tensor([lesson.tokens + [0] * (longest - len(lesson.tokens)) for lesson in some], device=device),
            torch.tensor([row for row, _ in places], device=device),
            torch.tensor([place for _, place in places], device=device),
            torch.tensor([place in some[row].rejected for row, place in places], device=device),
            torch.tensor(slots, device=device),
        )


def answer_lesson(prompt: Sequence[int], answer: Sequence[int]) -> Lesson:
    """All tokens of an answer after its prompt."""
    tokens = [*prompt, *answer]
    return Lesson(tokens, list(range(max(1, len(prompt)), len(tokens))))


class Teacher:
    """Makes lessons from documents with the pair's target and the draft as it is."""

    def __init__(self, pair: Pair, draft: PreTrainedModel, answers: Answers, recipe: DraftRecipe, seed: int) -> None:
        """`answers` are the references, or the target's; other data leaves them unread."""
        self.pair, self.draft, self.answers, self.recipe, self.seed = pair, draft, answers, recipe, seed

    @property
    def _both(self) -> tuple[PreTrainedModel, PreTrainedModel]:
        """The target and the draft as it is."""
        return self.pair.models["target"], self.draft

    def lessons(self, documents: Sequence[Document], epoch: int) -> list[Lesson]:
        """Lessons of the documents, cut to the recipe's length; those without a place are left out.

        All that is random follows from the seed, the epoch and the documents' names.
        """
        seed = stable_seed(self.seed, "lessons", epoch, *(document.name for document in documents))
        rng = torch.Generator(self.pair.device).manual_seed(seed)
        sampling = Sampling(self.recipe.temperatures[epoch % len(self.recipe.temperatures)])
        made = [lesson.cut(self.recipe.length) for lesson in self._made(documents, epoch, sampling, rng)]
        return [lesson for lesson in made if lesson.places]

    def _made(
        self, documents: Sequence[Document], epoch: int, sampling: Sampling, rng: torch.Generator
    ) -> Iterator[Lesson]:
        match self.recipe.data:
            case "ground_truth" | "target":
                yield from (self._kept(document, epoch) for document in documents)
            case "draft":
                yield from self._own(documents, sampling, rng)
            case "mix_request":
                coins = [
                    random.Random(stable_seed(self.seed, "mix", epoch, document.name)).random()
                    for document in documents
                ]
                mix = self.recipe.mix
                yield from self._own(
                    [document for document, c in zip(documents, coins, strict=True) if c < mix], sampling, rng
                )
                yield from (
                    self._kept(document, epoch) for document, c in zip(documents, coins, strict=True) if c >= mix
                )
            case "mix_token":
                for document, answer in zip(documents, self._in_turns(documents, sampling, rng), strict=True):
                    yield answer_lesson(document.prompt, answer)
            case "served":
                for document, rounds in zip(documents, self._rounds(documents, sampling, rng), strict=True):
                    yield served_lesson(document.prompt, rounds)
            case "replay":
                for document, rounds in zip(documents, self._rounds(documents, sampling, rng), strict=True):
                    yield from self._blocks(document, rounds, sampling, rng)

    def _kept(self, document: Document, epoch: int) -> Lesson:
        answers = self.answers[document.name]
        return answer_lesson(document.prompt, answers[epoch % len(answers)])

    def _own(self, documents: Sequence[Document], sampling: Sampling, rng: torch.Generator) -> Iterator[Lesson]:
        if documents:
            answers = answers_of(self.draft, self.pair, documents, sampling, rng)
            for document, answer in zip(documents, answers, strict=True):
                yield answer_lesson(document.prompt, answer)

    def _in_turns(self, documents: Sequence[Document], sampling: Sampling, rng: torch.Generator) -> list[list[int]]:
        """Answers each of whose tokens is the draft's with probability `mix`, and the target's otherwise."""
        coins = [
            random.Random(stable_seed(self.seed, "mix", rng.initial_seed(), document.name)) for document in documents
        ]
        endings = [document.ending(self.pair) for document in documents]
        unread = [list(document.prompt) for document in documents]
        models = [Batch(model, len(documents), vocabulary=self.pair.vocabulary) for model in self._both]

        def step(texts: list[int]) -> None:
            target, draft = (model.feed([unread[text] for text in texts])[:, -1] for model in models)
            drafts = torch.tensor([coins[text].random() < self.recipe.mix for text in texts], device=target.device)
            tokens = draw(torch.where(drafts[:, None], draft, target), sampling, rng)[0].tolist()
            for text, token in zip(texts, tokens, strict=True):
                unread[text] = []
                if not endings[text].reason:  # a text that has ended may still have a row
                    endings[text].keep([token])
                    unread[text] = [token]

        until_all_end(models, lambda text: bool(endings[text].reason), step)
        return [ending.tokens for ending in endings]

    def _rounds(self, documents: Sequence[Document], sampling: Sampling, rng: torch.Generator) -> list[list[Round]]:
        """Exact speculative decoding of each document with the draft as it is."""
        target, draft = (Batch(model, len(documents), vocabulary=self.pair.vocabulary) for model in self._both)
        prompts = [document.prompt for document in documents]
        endings = [document.ending(self.pair) for document in documents]
        return speculate_all(target, draft, self.recipe.gamma, prompts, endings, sampling, rng)

    def _blocks(
        self, document: Document, rounds: Sequence[Round], sampling: Sampling, rng: torch.Generator
    ) -> Iterator[Lesson]:
        """Each drafted block after the text before it, the tokens after the first rejection too (Draft-OPD)."""
        context = list(document.prompt)
        blocks: list[Lesson] = []
        for decoded in rounds:
            if decoded.verdict:
                # Nothing was asked for after the end of the text.
                kept = len(decoded.tokens) if decoded.truncated else len(decoded.verdict.drafted)
                blocks.append(block_lesson(context, decoded.verdict, kept))
            context += decoded.tokens
        if self.recipe.anchors == "random":
            return self._elsewhere(document, context, len(blocks), sampling, rng)
        return iter(blocks)

    def _elsewhere(
        self, document: Document, text: list[int], count: int, sampling: Sampling, rng: torch.Generator
    ) -> Iterator[Lesson]:
        """`count` blocks after random places of the answer in `text`; each is drafted after one token of the target."""
        places = random.Random(stable_seed(self.seed, "anchors", rng.initial_seed(), document.name))
        target, drafter = self.pair.session("target"), ModelDrafter(self.pair.session("draft", model=self.draft))
        for _ in range(count):
            context = text[: places.randrange(len(document.prompt), len(text))]
            begun, decoded = islice(speculate(target, drafter, exact, self.recipe.gamma, context, sampling, rng), 2)
            assert decoded.verdict
            yield block_lesson([*context, *begun.tokens], decoded.verdict, self.recipe.gamma)


def served_lesson(prompt: Sequence[int], rounds: Sequence[Round]) -> Lesson:
    """The text that was served; the places are those where the target rejected a token (OSD, arXiv 2310.07177)."""
    tokens, places = list(prompt), []
    for decoded in rounds:
        verdict = decoded.verdict
        if verdict and verdict.accepted < min(len(verdict.drafted), len(decoded.tokens)):
            places.append(len(tokens) + verdict.accepted)
        tokens += decoded.tokens
    return Lesson(tokens, places)


def block_lesson(context: list[int], verdict: Verdict, kept: int) -> Lesson:
    """The first `kept` tokens of a drafted block, of which those from the first rejection on were rejected."""
    drafted = verdict.drafted[:kept]
    places = list(range(len(context), len(context) + len(drafted)))
    return Lesson([*context, *drafted], places, frozenset(places[verdict.accepted :]), tuple(range(len(places))))
