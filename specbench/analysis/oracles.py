"""What no drafter knows beforehand: the best draft lengths of recorded texts, and the better of two drafters.

They are bounds in hindsight, from the same records and under the same assumptions as a replay.
"""

from collections.abc import Iterator

from specbench.analysis.drafts import TEXT
from specbench.analysis.replay import Outcome, Replayed, ReplayedText, Rule, Unknown, lay_out, outcomes
from specbench.config import MethodSpec, UserError
from specbench.results.stored import StoredRun


def is_bound(spec: MethodSpec) -> bool:
    """True if a method decodes with what only an oracle knows: its figures are bounds that no method reaches."""
    return spec.method == "oracle" or "oracle" in (spec.values.get("length"), spec.values.get("arbiter"))


def longest(text: ReplayedText, missing: Unknown) -> Replayed:
    """The rounds of a text if every draft ends with the last token that is accepted.

    No drafts give fewer rounds, and none is rejected. So no lengths are faster, unless a drafted token takes longer
    than a round without a draft. The target brings the last token of a round, so a draft ends before the text does.
    """
    size = len(text.agree)
    counts = Replayed(tokens=size)
    never = Rule("fixed", size)

    def rounds(start: int) -> Iterator[Outcome]:
        for chance, _, accepted, _ in outcomes(text, start, never, missing):
            drafted = min(accepted, size - start - 1)
            yield chance, drafted, drafted, False

    for start, weight, outcome in lay_out(size, rounds):
        counts.count(start, weight, outcome)
    return counts


def either(
    texts: tuple[ReplayedText, ReplayedText], gamma: int, missing: tuple[Unknown, Unknown], second_is_cheaper: bool
) -> tuple[Replayed, Replayed]:
    """The rounds of a text that two drafters get if, at every start, the one drafts that is accepted further.

    Both draft γ tokens. If they are accepted equally far, the cheaper one drafts. Whether drafts are accepted at
    positions that were not tested is taken to be independent of the other drafter.
    """
    size = len(texts[0].agree)
    counts = Replayed(tokens=size), Replayed(tokens=size)
    rule = Rule("fixed", gamma)
    chosen: list[int] = []  # by whom each round was drafted that `lay_out` has asked for

    def rounds(start: int) -> Iterator[Outcome]:
        second = [*outcomes(texts[1], start, rule, missing[1])]
        for chance, drafted, accepted, _ in outcomes(texts[0], start, rule, missing[0]):
            for other_chance, other_drafted, other_accepted, _ in second:
                other = other_accepted > accepted or (other_accepted == accepted and second_is_cheaper)
                chosen.append(int(other))
                best = (other_drafted, other_accepted) if other else (drafted, accepted)
                yield chance * other_chance, *best, False

    for start, weight, outcome in lay_out(size, rounds):
        counts[chosen[-1]].count(start, weight, outcome)
    return counts


def together(mine: Replayed, its: Replayed) -> Replayed:
    """The rounds that two drafters got of one text."""
    both = Replayed(tokens=mine.tokens)
    for name in ("rounds", "drafted", "accepted", "guessed", "starts", "drafted_starts"):
        setattr(both, name, getattr(mine, name) + getattr(its, name))
    for part in (mine, its):
        for drafted, count in part.lengths.items():
            both.lengths[drafted] = both.lengths.get(drafted, 0.0) + count
    return both


def same_texts(runs: tuple[StoredRun, StoredRun], methods: tuple[str, str]) -> set[tuple[int, str, int]]:
    """The texts that two methods both wrote, token by token. Raises UserError if the texts that both have differ."""
    tokens = []
    for run, method in zip(runs, methods, strict=True):
        samples = run.samples([*TEXT, "method", "warmup", "finish", "tokens"])
        mine = samples[(samples.method == method) & ~samples.warmup & (samples.finish != "error")]
        tokens.append({(row.repeat, row.task, row.doc_id): row.tokens for row in mine.itertuples()})
    both = tokens[0].keys() & tokens[1].keys()
    prompts = [run.documents() for run in runs]
    for run, documents in zip(runs, prompts, strict=True):
        if unknown := [key for key in both if key[2] not in documents.get(key[1], ())]:
            _, task, doc_id = min(unknown)
            raise UserError(f"{run.folder} is damaged: its manifest.json has no document {doc_id} of {task}")
    different = [key for key in both if [*(tokens[0][key])] != [*(tokens[1][key])]]
    different += [key for key in both if prompts[0][key[1]][key[2]] != prompts[1][key[1]][key[2]]]
    if different or not both:
        what = f"{len(set(different))} of {len(both)} texts differ" if both else "they have no text in common"
        raise UserError(
            f"{methods[0]} and {methods[1]}: {what}; the better of two drafters is known only for the same texts, as "
            "lossless methods write at temperature 0"
        )
    return set(both)
