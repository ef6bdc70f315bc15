"""A judge for CoSpec's warm-up: another language model that weighs two candidates in their context (CoSpec, C.1).

The paper says that a judge "scores the draft and target candidates conditioned on the current context and available
within round prefix", and that the scalar becomes a soft label. Which scalar is our inference: the log-probability of
the text that a candidate adds.
"""

import codecs
import math
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from specbench.config import ModelSpec, PairSpec
from specbench.engine.models.pair import Pair, load_pair
from specbench.engine.models.tokenizer import vocabulary_hash
from specbench.engine.session import Session, common, positions
from specbench.engine.translate import Reading, Translation


class ModelJudge:
    """Soft labels y = σ((log p(draft's candidate) - log p(target's)) / temperature), by a causal language model.

    At temperature 1, y is the draft's share of the probability that the judge gives to the two. Tokens are the pair's.
    A judge with another tokenizer (`translation`, from the pair's tokens to its own) reads the text with each of the
    candidates at its end, as its own tokenizer writes it, and the log-probabilities of the two texts are compared: if
    one candidate is the beginning of the other, it prefers the shorter. A text longer than the judge's positions loses
    its beginning. Raises ValueError for a temperature that is not positive.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, translation: Translation | None = None) -> None:
        if not temperature > 0:
            raise ValueError(f"a judge's temperature must be above 0, not {temperature}")
        self.session = Session(model, "judge")
        self.temperature = temperature
        self.reader = None if translation is None else Reader(translation)
        self.positions = positions(model)

    def labels(
        self, context: Sequence[int], drafted: Sequence[int], targets: Sequence[int], mismatches: Sequence[int]
    ) -> list[float]:
        """y of each mismatch of a round, from 0 (the target's token) to 1 (the draft's).

        `context` is the prompt and what was committed; `drafted` and `targets` [K] are the candidates at each position;
        `mismatches` holds 0-based positions. The context of the mismatch at i is `context` and the first i of
        `drafted`. Changes the judge's cache, and reuses what it holds from earlier calls. Raises ValueError for an
        empty context.
        """
        if not context:
            raise ValueError("a judge needs a text before the candidates")
        texts = []
        for i in mismatches:
            before = [*context, *drafted[:i]]
            texts += [[*before, drafted[i]], [*before, targets[i]]]
        if self.reader and texts:
            texts = self.reader.read(texts, len(context))
        scores = self._scores(texts) if texts else []
        pairs = zip(scores[::2], scores[1::2], strict=True)
        return [_label((draft - target) / self.temperature) for draft, target in pairs]

    def label(self, context: Sequence[int], draft: int, target: int) -> float:
        """y of one pair of candidates that follow `context`."""
        return self.labels(context, [draft], [target], [0])[0]

    @torch.inference_mode()
    def _scores(self, texts: list[list[int]]) -> list[float]:
        """The log-probability (nats) of what follows the shared beginning of texts in the judge's tokens, for each.

        What follows is a tree. All its tokens but the leaves are fed, in one forward.
        """
        texts = self._shortened(texts)
        root = texts[0][: min(common(texts[0], text) for text in texts)]
        nodes, paths = _tree([text[len(root) :] for text in texts])
        inner = sorted({-1, *(parent for parent, _ in nodes)})  # the root and all nodes but the leaves
        rows = {node: row for row, node in enumerate(inner)}  # of the logits
        fed = [(rows[parent] - 1, token) for (parent, token), node in nodes.items() if node in rows]
        logits = self._logits(root, [token for _, token in fed], [parent for parent, _ in fed])
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        before = torch.tensor([rows[parent] for parent, _ in nodes], dtype=torch.int64, device=logits.device)
        tokens = torch.tensor([token for _, token in nodes], dtype=torch.int64, device=logits.device)
        log_probabilities = (precise[before, tokens] - precise.logsumexp(-1)[before]).tolist()
        return [math.fsum(log_probabilities[node] for node in path) for path in paths]

    def _logits(self, root: list[int], tokens: list[int], parents: list[int]) -> torch.Tensor:
        """Logits [1 + n, V] after `root` and after each of n tokens that follow it as a tree."""
        session = self.session
        session.truncate(min(common(session.tokens, root), len(root) - 1))
        rest = root[len(session) :]
        if parents == list(range(-1, len(parents) - 1)):  # a chain needs no mask, and one forward is enough
            return session.forward([*rest, *tokens], keep=1 + len(tokens)).logits
        first = session.forward(rest, keep=1).logits
        others = session.forward(tokens, parents=parents).logits
        session.truncate(len(root))
        return torch.cat([first, others])

    def _shortened(self, texts: list[list[int]]) -> list[list[int]]:
        """The texts without their beginning if the longest has too many tokens for the judge.

        The cut grows in steps, since each new one empties the cache.
        """
        excess, step = max(map(len, texts)) - self.positions, max(1, self.positions // 4)
        cut = -(-excess // step) * step if excess > 0 else 0
        return [text[cut:] for text in texts]


class Reader:
    """Texts of the pair's tokens as a judge's own tokenizer writes them, up to their last word.

    Tokens after a text's last whole character cannot be written so, and are spelled one by one.
    """

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self.context = Reading(translation)
        # No word goes on after a special token, so it finishes the last word.
        special = (i for i, spelling in translation.spellings.items() if isinstance(spelling, str))
        self.end = next(special, None)

    def read(self, texts: Sequence[list[int]], shared: int) -> list[list[int]]:
        """The judge's ids of each text; their first `shared` tokens are the same, and are read once."""
        beginning = texts[0][:shared]
        self.context.read(beginning, common(self.context.tokens, beginning))
        readings = [self._ids(text) for text in texts]
        if len({ids[0] for ids in readings}) > 1:  # they differ in their first word, which needs a token before it
            readings = [[self.translation.stand_in, *ids] for ids in readings]
        return readings

    def _ids(self, text: list[int]) -> list[int]:
        reading, context = Reading(self.translation), self.context
        reading.tokens, reading.ids, reading.ends = context.tokens[:], context.ids[:], context.ends[:]
        reading.settled = context.settled
        whole = len(text)
        while whole > 1 and self._within_character(text[:whole]):
            whole -= 1
        marked = text[:whole] if self.end is None else [*text[:whole], self.end]
        reading.read(marked, min(whole, len(context.tokens)))
        rest = [i for token in text[whole:] for i in self.translation.spell(token)]
        return reading.ids[: reading.ends[whole - 1]] + rest

    def _within_character(self, text: list[int]) -> bool:
        """True if a text ends within a character of UTF-8, whose bytes are in its last four tokens at most."""
        last = (self.translation.spellings.get(token, b"") for token in text[-4:])
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(part if isinstance(part, bytes) else part.encode() for part in last))
        return bool(decoder.getstate()[0])


def load_judge(
    name: str,
    pair: Pair,
    temperature: float,
    device: str = "auto",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> ModelJudge:
    """A judge of the pair's texts: a model by hub name, folder or bundled:NAME. The pair's own are not loaded again.

    The other arguments are those of `load_pair`. Raises UserError for a model that cannot be loaded or used.
    """
    for role, member in pair.specs.items():
        if member.model == name:
            return ModelJudge(pair.models[role], temperature, pair.translations.get(role))
    spec = PairSpec(name=name, description="a judge", target=ModelSpec(model=name))
    judge = load_pair(spec, device, dtype, trust_remote_code, allow_pickle)
    translation = None
    if vocabulary_hash(pair.tokenizer) != vocabulary_hash(judge.tokenizer):
        translation = Translation(pair.tokenizer, judge.tokenizer, (pair.vocabulary, judge.vocabulary))
    return ModelJudge(judge.models["target"], temperature, translation)


def _tree(branches: Sequence[Sequence[int]]) -> tuple[dict[tuple[int, int], int], list[list[int]]]:
    """Branches with a common root as one tree: the number of each node, keyed by its parent (-1: the root) and its
    token, parents first; and the nodes of each branch.
    """
    nodes: dict[tuple[int, int], int] = {}
    paths = []
    for branch in branches:
        path, node = [], -1
        for token in branch:
            node = nodes.setdefault((node, token), len(nodes))
            path.append(node)
        paths.append(path)
    return nodes, paths


def _label(difference: float) -> float:
    """σ(difference); 0.5 if the judge holds neither candidate possible."""
    return 0.5 if math.isnan(difference) else 0.5 * (1 + math.tanh(difference / 2))
