"""Which drafts of a run were rejected, and which were rescued: CSD's two analyses (arXiv 2604.13634, §3.2, §5.2).

The lists of rounds are flattened column by column, because a run may have many millions of rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specbench.analysis.metrics import headline_scores, of_method
from specbench.analysis.texts import Decode, DecodedTexts
from specbench.analysis.token_kinds import KINDS, kind
from specbench.analysis.trace import LISTS, REJECTED, RESCUED
from specbench.config import UserError
from specbench.results import records
from specbench.results.records import flatten, keys_of
from specbench.results.stored import StoredRun

FREQUENT = 0.2  # the share of pairs that §3.2 calls most frequent
TOP = 10  # pairs listed one by one
EXAMPLES = 3  # of each kind of rescue
CONTEXT = 16  # tokens before an example
DOCUMENT = ["repeat", "task", "doc_id"]
PAIR = ["draft_token", "target_token"]
SPREAD = {"min": 0.0, "q1": 0.25, "median": 0.5, "q3": 0.75, "max": 1.0}


@dataclass(frozen=True)
class Rejections:
    """The first rejection of every round, by pair (draft token, token that the target preferred)."""

    method: str
    total: int  # of pairs; the unpaired ones are not in it
    unpaired: int  # rejected tokens that were the target's likeliest, so have no pair; only in sampled runs
    rescued: int  # mismatches that the method accepted, not counted as rejections
    pairs: pd.DataFrame  # draft_token, target_token, count; the most frequent first
    curve: pd.DataFrame  # Lorenz curve: corners as shares of `pairs` (the most frequent first) and of `rejections`
    top: pd.DataFrame  # PAIR, draft, target (texts), count, share, SPREAD of p(draft)/p(target), tasks (counts by task)

    def covered(self, share: float) -> float:
        """The share of rejections made up by the most frequent `share` of pairs; NaN without rejections."""
        if not self.total:
            return np.nan
        return float(np.interp(share, self.curve["pairs"], self.curve["rejections"]))


@dataclass(frozen=True)
class Rescues:
    """The rescued tokens that stayed in a text, by kind."""

    method: str
    baseline: str | None  # None: there is nothing to compare outcomes with
    total: int
    unjudged: int  # rescues in documents that the baseline gets wrong, or whose score is not 0 or 1
    kinds: pd.DataFrame  # kind, count, share, right, wrong, right_documents, wrong_documents, wrong_share
    pairs: pd.DataFrame  # PAIR, draft, target (texts), kind, count; the most frequent first
    examples: pd.DataFrame  # kind, before, draft, target, ratio, count (of the pair), DOCUMENT, round


def rejections(run: StoredRun, method: str | None, decode: Decode) -> Rejections:
    """The long tail of rejections (§3.2) of `method`; by default the first that drafts, preferably without rescues.

    Quartiles are NaN where ratios were not recorded. Raises UserError if the run has no such method, or no records of
    its drafts.
    """
    sums = drafting(run)
    if method is None:
        method = (sums.index[sums.rescued == 0].tolist() or sums.index.tolist())[0]
    _check_method(run, sums, method)
    rejected = decided(run, method, REJECTED)
    paired = rejected[rejected.draft_token != rejected.target_token]
    pairs = _counted(paired, PAIR)
    total = len(paired)
    return Rejections(
        method=method,
        total=total,
        unpaired=len(rejected) - total,
        rescued=int(sums.rescued[method]),
        pairs=pairs,
        curve=_curve(pairs["count"]),
        top=_top(pairs.head(TOP), paired, Names(run, decode)),
    )


def rescues(run: StoredRun, method: str | None, decode: Decode, examples: int = EXAMPLES) -> Rescues:
    """The rescued tokens (§5.2) of `method`, or of the first that rescued any, with up to `examples` of each kind.

    Outcomes are those of documents that the baseline gets right: `right` and `wrong` count the rescues in documents
    that the method gets right or wrong, if the task's headline metric is 0 or 1. Raises UserError as `rejections` does.
    """
    sums = drafting(run)
    if method is None:
        method = (sums.index[sums.rescued > 0].tolist() or sums.index.tolist())[0]
    _check_method(run, sums, method)
    rescued = decided(run, method, RESCUED)
    names = Names(run, decode)
    pairs = names.added(_counted(rescued, PAIR))
    pairs["kind"] = [kind(draft, target) for draft, target in zip(pairs.draft, pairs.target, strict=True)]
    rescued = rescued.merge(pairs, on=PAIR)
    outcomes = _outcomes(run, method)
    rescued = rescued.merge(outcomes, on=DOCUMENT, how="left") if outcomes is not None else rescued.assign(right=np.nan)
    return Rescues(
        method=method,
        baseline=run.plan.against(method) if outcomes is not None else None,
        total=len(rescued),
        unjudged=int(rescued.right.isna().sum()),
        kinds=_by_kind(rescued),
        pairs=pairs,
        examples=_examples(run, method, rescued, decode, examples),
    )


class Names:
    """Texts of tokens in tables; a token is an end token if a text ended with it."""

    def __init__(self, run: StoredRun, decode: Decode) -> None:
        ended = run.samples(["finish", "tokens"])
        ended = ended[(ended.finish == "eos") & ended.tokens.notna()]
        self.ends = set(ended.tokens.str[-1])
        self.texts = DecodedTexts(decode)

    def added(self, pairs: pd.DataFrame) -> pd.DataFrame:
        """`pairs` with the texts of both tokens as columns `draft` and `target`."""
        return pairs.assign(
            **{name: [self._text(t) for t in pairs[f"{name}_token"].tolist()] for name in ("draft", "target")}
        )

    def _text(self, token: int) -> str:
        return self.texts.draft(token, token if token in self.ends else None)


def drafting(run: StoredRun) -> pd.DataFrame:
    """Tokens `drafted` and `rescued` by each method that drafts, in the run's order. Raises UserError if none does."""
    columns = ["method", "drafted", "rescued"]
    parts = [
        pa.table(batch).group_by("method").aggregate([("drafted", "sum"), ("rescued", "sum")])
        for batch in run.rounds().to_batches(columns=columns, filter=~pc.field("warmup"))
        if batch.num_rows
    ]
    sums = pa.concat_tables(parts).to_pandas().groupby("method").sum() if parts else pd.DataFrame()
    names = [spec.name for spec in run.plan.methods if spec.name in sums.index]
    sums = sums.loc[names].set_axis(columns[1:], axis=1).fillna(0) if names else pd.DataFrame(columns=columns[1:])
    sums = sums[sums.drafted > 0]
    if sums.empty:
        raise UserError(
            f"no method of {run.folder} drafted anything on record; `specbench run --method sps --suite pocket` makes "
            "a run that can be analysed"
        )
    return sums


def _check_method(run: StoredRun, drafting: pd.DataFrame, method: str) -> None:
    if method not in drafting.index:
        raise UserError(f"{run.folder} has no drafts of a method {method}; it has those of {', '.join(drafting.index)}")


def decided(run: StoredRun, method: str, decision: int) -> pd.DataFrame:
    """The draft tokens with this `decision`, a row for each: DOCUMENT, round, position, PAIR and ratio."""
    some = pc.field("rescued") > 0 if decision == RESCUED else pc.field("accepted") < pc.field("drafted")
    chosen = of_method(method) & some
    columns = [*DOCUMENT, "round", *LISTS]
    nothing = pa.RecordBatch.from_pylist([], pa.schema([records.ROUNDS.field(name) for name in columns]))
    batches = run.rounds().to_batches(columns=columns, filter=chosen)
    parts = [_flattened(run, batch, decision) for batch in (nothing, *batches)]
    return pa.concat_tables(parts).to_pandas()


def _flattened(run: StoredRun, batch: pa.RecordBatch, decision: int) -> pa.Table:
    if any(batch.column(name).null_count for name in LISTS[:3]):
        raise UserError(f"{run.folder} does not record which tokens were drafted and what became of them")
    elements = flatten(run.folder, batch, LISTS[:3], "ratios")
    at = np.flatnonzero(elements.values["decisions"] == decision)
    columns = keys_of(batch, (*DOCUMENT, "round"), elements.row[at])
    names = {"draft_token": "draft_tokens", "target_token": "target_tokens", "ratio": "ratios"}
    values = {name: elements.values[column][at] for name, column in names.items()}
    return pa.table(columns | {"position": elements.position[at]} | values)


def _counted(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """How often each value of `by` occurs, the most frequent first; ties are in the order of tokens."""
    counts = rows.groupby(list(by), sort=True).size().rename("count").reset_index()
    return counts.sort_values("count", ascending=False, kind="stable", ignore_index=True)


def _curve(counts: pd.Series) -> pd.DataFrame:
    """The points at which the slope changes; equally frequent pairs lie on a line."""
    corners = counts.value_counts().sort_index(ascending=False)
    pairs, rejected = corners.cumsum(), (corners * corners.index).cumsum()
    shares = {"pairs": pairs / len(counts), "rejections": rejected / counts.sum()}
    return pd.DataFrame({name: [0.0, *values] for name, values in shares.items()})


def _top(pairs: pd.DataFrame, rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """Add to `pairs` their texts, share, spread of ratios and counts by task."""
    mine = rows.merge(pairs[PAIR], on=PAIR)
    ratios = mine.groupby(PAIR).ratio
    spread = pd.DataFrame({name: ratios.quantile(at) for name, at in SPREAD.items()})
    tasks = mine.groupby([*PAIR, "task"], observed=True).size()
    by_pair = [tasks.loc[d, t].sort_values(ascending=False, kind="stable") for d, t in pairs[PAIR].to_numpy()]
    table = names.added(pairs.assign(share=pairs["count"] / max(len(rows), 1)))
    table = table.merge(spread.reset_index(), on=PAIR, how="left")
    return table.assign(tasks=[{task: int(count) for task, count in counts.items()} for counts in by_pair])


def _outcomes(run: StoredRun, method: str) -> pd.DataFrame | None:
    """The documents that the baseline gets right, with the method's score (1 or 0) as `right`; None if unknown."""
    baseline = run.plan.against(method)
    if not run.finished or baseline in (None, method):
        return None
    scores = headline_scores(run)
    scores = scores[scores.method.isin([method, baseline])]
    graded = scores[~scores["value"].isin([0, 1])].task
    scores = scores[~scores.task.isin(graded)]
    mine, base = (scores[scores.method == name].set_index(DOCUMENT).value for name in (method, baseline))
    return mine[mine.index.isin(base.index[base == 1])].rename("right").reset_index()


def _by_kind(rescued: pd.DataFrame) -> pd.DataFrame:
    """Counts and outcomes of rescues, a row for each of KINDS."""
    grouped = rescued.groupby("kind")
    table = pd.DataFrame({"count": grouped.size()}).reindex(KINDS, fill_value=0)
    table["share"] = table["count"] / max(len(rescued), 1)
    for name, value in (("right", 1), ("wrong", 0)):
        outcome = rescued[rescued.right == value]
        table[name] = outcome.groupby("kind").size()
        table[f"{name}_documents"] = outcome.drop_duplicates([*DOCUMENT, "kind"]).groupby("kind").size()
    counts = ["right", "wrong", "right_documents", "wrong_documents"]
    table[counts] = table[counts].fillna(0).astype(int)
    table["wrong_share"] = table.wrong / (table.right + table.wrong).replace(0, np.nan)
    return table.rename_axis("kind").reset_index()


def _examples(run: StoredRun, method: str, rescued: pd.DataFrame, decode: Decode, most: int) -> pd.DataFrame:
    """Up to `most` rescues of each kind with the text before them, drawn from its most frequent pairs, one of each."""
    examples = rescued.sample(frac=1, random_state=0).drop_duplicates(PAIR)
    examples = examples.sort_values(["count", *PAIR], ascending=[False, True, True], kind="stable")
    examples = examples.groupby("kind").head(most)
    examples = examples.sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable", ignore_index=True)
    chosen = of_method(method) & pc.field("doc_id").isin(examples.doc_id.unique().tolist())
    rounds = run.rounds().to_table(columns=[*DOCUMENT, "round", "committed"], filter=chosen).to_pandas()
    samples = run.scan_samples().to_table(columns=[*DOCUMENT, "tokens"], filter=chosen).to_pandas()
    tokens = samples.set_index(DOCUMENT).tokens
    by_document = rounds.set_index(DOCUMENT).sort_index()
    before = []
    for example in examples.itertuples():
        document = example.repeat, example.task, example.doc_id
        rounds_of_text = by_document.loc[[document]]
        at = int(rounds_of_text.committed[rounds_of_text["round"] < example.round].sum()) + example.position
        text = tokens[document]  # None if it is not on record
        if text is None or text[at : at + 1].tolist() != [example.draft_token]:
            raise UserError(
                f"{example.task}, document {example.doc_id}, {method}: its rounds are not its text: damaged; this run "
                "cannot be used"
            )
        before.append(decode(text[max(0, at - CONTEXT) : at].tolist()))
    examples = examples.assign(before=[words.lstrip("\ufffd") for words in before])
    return examples[["kind", "before", "draft", "target", "ratio", "count", *DOCUMENT, "round"]]
