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
from specbench.decoding.session import Session, common
from specbench.decoding.translate import Reading, Translation
from specbench.models import Pair, load_pair, vocabulary_hash

UNBOUNDED = 2**31  # positions of models that are made for any length


class ModelJudge:
    """Soft labels y = σ((log p(draft's candidate) - log p(target's)) / temperature), by a causal language model.

    At temperature 1, y is the draft's share of the probability that the judge gives to the two. Tokens are the pair's.
    A judge with another tokenizer (`translation`, from the pair's tokens to its own) reads the text with each of the
    candidates at its end, as its own tokenizer writes it, and the two texts' log-probabilities are compared: of two
    candidates of which one is the beginning of the other it prefers the shorter. A text longer than the judge's
    positions loses its beginning. Raises ValueError for a temperature that is not positive.
    """

    def __init__(self, model: PreTrainedModel, temperature: float, translation: Translation | None = None) -> None:
        if not temperature > 0:
            raise ValueError(f"a judge's temperature must be above 0, not {temperature}")
        self.session = Session(model, "judge")
        self.temperature = temperature
        self.reader = None if translation is None else Reader(translation)
        self.positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or UNBOUNDED

    def labels(
        self, context: Sequence[int], drafted: Sequence[int], targets: Sequence[int], mismatches: Sequence[int]
    ) -> list[float]:
        """y of each mismatch of a round, from 0 (the target's token) to 1 (the draft's).

        `context` is the prompt and what was committed; `drafted` and `targets` [K] are the candidates at each position;
        `mismatches` holds the 0-based positions that are asked about. The context of the one at i is `context` and the
        first i of `drafted`. Changes the judge's cache, and goes on with what it holds of an earlier call. Raises
        ValueError for an empty context.
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
        return [_label((ours - theirs) / self.temperature) for ours, theirs in pairs]

    def label(self, context: Sequence[int], draft: int, target: int) -> float:
        """y of one pair of candidates that follow `context`."""
        return self.labels(context, [draft], [target], [0])[0]

    @torch.inference_mode()
    def _scores(self, texts: list[list[int]]) -> list[float]:
        """Of each text, in the judge's tokens, the log-probability (nats) of what follows the beginning that all share.

        What follows is a tree, of which every token that another one follows is fed, all of them at once.
        """
        texts = self._shortened(texts)
        root = texts[0][: min(common(texts[0], text) for text in texts)]
        nodes, paths = _tree([text[len(root) :] for text in texts])
        followed = sorted({-1, *(before for before, _ in nodes)})
        rows = {node: row for row, node in enumerate(followed)}  # of the logits
        fed = [(rows[before] - 1, token) for (before, token), node in nodes.items() if node in rows]
        logits = self._logits(root, [token for _, token in fed], [parent for parent, _ in fed])
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        behind = torch.tensor([rows[before] for before, _ in nodes], dtype=torch.int64, device=logits.device)
        tokens = torch.tensor([token for _, token in nodes], dtype=torch.int64, device=logits.device)
        found = (precise[behind, tokens] - precise.logsumexp(-1)[behind]).tolist()
        return [math.fsum(found[node] for node in path) for path in paths]

    def _logits(self, root: list[int], tokens: list[int], parents: list[int]) -> torch.Tensor:
        """Logits [1 + n, V] behind `root` and behind each of n tokens that follow it as a tree."""
        session = self.session
        session.truncate(min(common(session.tokens, root), len(root) - 1))
        rest = root[len(session) :]
        if parents == list(range(-1, len(parents) - 1)):  # a chain needs no mask, and one forward is enough
            return session.forward([*rest, *tokens], keep=1 + len(tokens)).logits
        first = session.forward(rest, keep=1).logits
        behind = session.forward(tokens, parents=parents).logits
        session.truncate(len(root))
        return torch.cat([first, behind])

    def _shortened(self, texts: list[list[int]]) -> list[list[int]]:
        """Without their beginning where the longest is too much for the judge; in steps: each cut empties the cache."""
        excess, step = max(map(len, texts)) - self.positions, max(1, self.positions // 4)
        cut = -(-excess // step) * step if excess > 0 else 0
        return [text[cut:] for text in texts]


class Reader:
    """Texts of the pair's tokens as a judge's own tokenizer writes them, to their last word.

    What a text ends with beyond its last whole character cannot be written so, and is spelled token by token.
    """

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self.context = Reading(translation)
        # Behind a special token no word goes on, so that the last one is finished too.
        special = (i for i, spelling in translation.spellings.items() if isinstance(spelling, str))
        self.end = next(special, None)

    def read(self, texts: Sequence[list[int]], shared: int) -> list[list[int]]:
        """The judge's ids of each text; their first `shared` tokens are the same, and are read once."""
        known = texts[0][:shared]
        self.context.read(known, common(self.context.tokens, known))
        found = [self._ids(text) for text in texts]
        if len({ids[0] for ids in found}) > 1:  # within the only word so far: what is scored needs something before it
            found = [[self.translation.stand_in, *ids] for ids in found]
        return found

    def _ids(self, text: list[int]) -> list[int]:
        reading, known = Reading(self.translation), self.context
        reading.tokens, reading.ids, reading.ends = known.tokens[:], known.ids[:], known.ends[:]
        reading.settled = known.settled
        whole = len(text)
        while whole > 1 and self._within_character(text[:whole]):
            whole -= 1
        marked = text[:whole] if self.end is None else [*text[:whole], self.end]
        reading.read(marked, min(whole, len(known.tokens)))
        rest = [i for token in text[whole:] for i in self.translation.spell(token)]
        return reading.ids[: reading.ends[whole - 1]] + rest

    def _within_character(self, text: list[int]) -> bool:
        """Whether a text's last bytes are the beginning of a character of UTF-8 (of which four tokens have all)."""
        last = (self.translation.spellings.get(token, b"") for token in text[-4:])
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(one if isinstance(one, bytes) else one.encode() for one in last))
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
    """A judge of the pair's texts: a model by hub name, folder or bundled:NAME; the pair's own are not loaded anew.

    The other arguments are those of `load_pair`. Raises UserError if it cannot be had, or cannot be used.
    """
    for role, known in pair.specs.items():
        if known.model == name:
            return ModelJudge(pair.models[role], temperature, pair.translations.get(role))
    spec = PairSpec(name=name, description="a judge", target=ModelSpec(model=name))
    judge = load_pair(spec, device, dtype, trust_remote_code, allow_pickle)
    translation = None
    if vocabulary_hash(pair.tokenizer) != vocabulary_hash(judge.tokenizer):
        translation = Translation(pair.tokenizer, judge.tokenizer, (pair.vocabulary, judge.vocabulary))
    return ModelJudge(judge.models["target"], temperature, translation)


def _tree(branches: Sequence[Sequence[int]]) -> tuple[dict[tuple[int, int], int], list[list[int]]]:
    """Branches with a common root as one tree: the number of each node, by the node before it (-1: the root) and its
    token, in an order in which every node comes after the one before it; and the nodes of each branch.
    """
    nodes: dict[tuple[int, int], int] = {}
    paths = []
    for branch in branches:
        path, at = [], -1
        for token in branch:
            at = nodes.setdefault((at, token), len(nodes))
            path.append(at)
        paths.append(path)
    return nodes, paths


def _label(difference: float) -> float:
    """σ, and even odds for two candidates of which the judge holds neither possible."""
    return 0.5 if math.isnan(difference) else 0.5 * (1 + math.tanh(difference / 2))
