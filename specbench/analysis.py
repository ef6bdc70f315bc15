"""Which drafts of a run were refused, and which were rescued: CSD's two analyses (arXiv 2604.13634, §3.2, §5.2).

The lists of a round are taken apart by whole columns: a run may have many millions of rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from specbench import records
from specbench.config import UserError
from specbench.stored import StoredRun
from specbench.texts import Decode, Texts
from specbench.token_kinds import KINDS, kind
from specbench.trace import LISTS, REJECTED, RESCUED

FREQUENT = 0.2  # the share of pairs that §3.2 calls the most frequent
TOP = 10  # pairs told one by one
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
    unpaired: int  # sampling only: the rejected token was the target's likeliest, so there is no pair
    rescued: int  # mismatches that the method let pass; they are not among the rejections
    pairs: pd.DataFrame  # draft_token, target_token, count; the most frequent first
    curve: pd.DataFrame  # Lorenz curve: shares of `pairs` (the most frequent first) and of `rejections`; exact between
    top: pd.DataFrame  # PAIR, draft, target (texts), count, share, SPREAD of p(draft)/p(target), tasks (counts by task)

    def covered(self, share: float) -> float:
        """The share of the rejections that the most frequent `share` of the pairs make up; NaN without rejections."""
        if not self.total:
            return np.nan
        return float(np.interp(share, self.curve["pairs"], self.curve["rejections"]))


@dataclass(frozen=True)
class Rescues:
    """Every rescued token that stayed in a text, by kind."""

    method: str
    baseline: str | None  # None: nothing to set the outcomes against
    total: int
    unjudged: int  # rescues in documents that the baseline has wrong, or whose score is not right or wrong
    kinds: pd.DataFrame  # kind, count, share, right, wrong, right_documents, wrong_documents, wrong_share
    pairs: pd.DataFrame  # PAIR, draft, target (texts), kind, count; the most frequent first
    examples: pd.DataFrame  # kind, before, draft, target, ratio, count (of the pair), DOCUMENT, round


def rejections(run: StoredRun, method: str | None, decode: Decode) -> Rejections:
    """The long tail of rejections (§3.2) of `method`: by default the first that drafts and, if possible, never rescues.

    A quartile is NaN where the ratios were not recorded. Raises UserError if the run has no such method, or does not
    tell its drafts.
    """
    sums = drafting(run)
    if method is None:
        method = (sums.index[sums.rescued == 0].tolist() or sums.index.tolist())[0]
    _check_method(run, sums, method)
    found = decided(run, method, REJECTED)
    paired = found[found.draft_token != found.target_token]
    pairs = _counted(paired, PAIR)
    total = len(paired)
    return Rejections(
        method=method,
        total=total,
        unpaired=len(found) - total,
        rescued=int(sums.rescued[method]),
        pairs=pairs,
        curve=_curve(pairs["count"]),
        top=_top(pairs.head(TOP), paired, Names(run, decode)),
    )


def rescues(run: StoredRun, method: str | None, decode: Decode, examples: int = EXAMPLES) -> Rescues:
    """The rescued tokens (§5.2) of `method`, or of the first that rescued any, with up to `examples` of each kind.

    `right` and `wrong` count the rescues in documents that the baseline has right and the method has right or wrong,
    by each task's headline metric where that is 0 or 1. Raises UserError as `rejections` does.
    """
    sums = drafting(run)
    if method is None:
        method = (sums.index[sums.rescued > 0].tolist() or sums.index.tolist())[0]
    _check_method(run, sums, method)
    found = decided(run, method, RESCUED)
    names = Names(run, decode)
    pairs = names.added(_counted(found, PAIR))
    pairs["kind"] = [kind(draft, target) for draft, target in zip(pairs.draft, pairs.target, strict=True)]
    found = found.merge(pairs, on=PAIR)
    outcomes = _outcomes(run, method)
    found = found.merge(outcomes, on=DOCUMENT, how="left") if outcomes is not None else found.assign(right=np.nan)
    return Rescues(
        method=method,
        baseline=run.plan.against(method) if outcomes is not None else None,
        total=len(found),
        unjudged=int(found.right.isna().sum()),
        kinds=_by_kind(found),
        pairs=pairs,
        examples=_examples(run, method, found, decode, examples),
    )


class Names:
    """Texts of tokens in tables; end tokens are known by the texts that they ended."""

    def __init__(self, run: StoredRun, decode: Decode) -> None:
        ended = run.samples(["finish", "tokens"])
        ended = ended[(ended.finish == "eos") & ended.tokens.notna()]
        self.ends = set(ended.tokens.str[-1])
        self.texts = Texts(decode)

    def added(self, pairs: pd.DataFrame) -> pd.DataFrame:
        """`pairs` with columns `draft` and `target`: the texts of both tokens."""
        return pairs.assign(
            **{name: [self._text(t) for t in pairs[f"{name}_token"].tolist()] for name in ("draft", "target")}
        )

    def _text(self, token: int) -> str:
        return self.texts.draft(token, token if token in self.ends else None)


def drafting(run: StoredRun) -> pd.DataFrame:
    """Tokens `drafted` and `rescued` by the methods that draft, in the run's order. Raises UserError if none does."""
    columns = ["method", "drafted", "rescued"]
    parts = [
        pa.table(batch).group_by("method").aggregate([("drafted", "sum"), ("rescued", "sum")])
        for batch in run.rounds().to_batches(columns=columns, filter=~pc.field("warmup"))
        if batch.num_rows
    ]
    sums = pa.concat_tables(parts).to_pandas().groupby("method").sum() if parts else pd.DataFrame()
    named = [spec.name for spec in run.plan.methods if spec.name in sums.index]
    sums = sums.loc[named].set_axis(columns[1:], axis=1).fillna(0) if named else pd.DataFrame(columns=columns[1:])
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
    """The draft tokens of which a round decided so: DOCUMENT, round, position, PAIR and ratio, a row for each."""
    some = pc.field("rescued") > 0 if decision == RESCUED else pc.field("accepted") < pc.field("drafted")
    chosen = ~pc.field("warmup") & (pc.field("method") == method) & some
    columns = [*DOCUMENT, "round", *LISTS]
    nothing = pa.RecordBatch.from_pylist([], pa.schema([records.ROUNDS.field(name) for name in columns]))
    batches = run.rounds().to_batches(columns=columns, filter=chosen, batch_readahead=4, fragment_readahead=2)
    parts = [_taken_apart(run, batch, decision) for batch in (nothing, *batches)]
    return pa.concat_tables(parts).to_pandas()


def _taken_apart(run: StoredRun, batch: pa.RecordBatch, decision: int) -> pa.Table:
    drafts, targets, decisions, ratios = (batch.column(name) for name in LISTS)
    if drafts.null_count or targets.null_count or decisions.null_count:
        raise UserError(f"{run.folder} does not tell which tokens were drafted and what became of them")
    lengths = pc.list_value_length(decisions).to_numpy()
    known = ratios.is_valid().to_numpy(zero_copy_only=False)
    told = pc.list_value_length(ratios).fill_null(0).to_numpy()
    alike = all(np.array_equal(pc.list_value_length(one).to_numpy(), lengths) for one in (drafts, targets))
    if not alike or not np.array_equal(told, lengths * known):
        raise UserError(f"a round of {run.folder} has lists of different lengths; the records are damaged")
    at = np.flatnonzero(decisions.flatten().to_numpy() == decision)
    ends = np.cumsum(lengths)
    row = np.searchsorted(ends, at, side="right")
    ratio = np.full(lengths.sum(), np.nan)
    ratio[np.repeat(known, lengths)] = ratios.flatten().to_numpy(zero_copy_only=False)
    columns = {name: batch.column(name).take(pa.array(row)) for name in (*DOCUMENT, "round")}
    columns["task"] = columns["task"].dictionary_encode()
    columns |= {"position": at - (ends - lengths)[row]}
    columns |= {"draft_token": drafts.flatten().to_numpy()[at], "target_token": targets.flatten().to_numpy()[at]}
    return pa.table(columns | {"ratio": ratio[at]})


def _counted(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """How often each value of `by` occurs, the most frequent first, by token among equals."""
    counts = rows.groupby(list(by), sort=True).size().rename("count").reset_index()
    return counts.sort_values("count", ascending=False, kind="stable", ignore_index=True)


def _curve(counts: pd.Series) -> pd.DataFrame:
    """Points at which the slope changes: pairs that are equally frequent lie on a line."""
    corners = counts.value_counts().sort_index(ascending=False)
    pairs, rejected = corners.cumsum(), (corners * corners.index).cumsum()
    shares = {"pairs": pairs / len(counts), "rejections": rejected / counts.sum()}
    return pd.DataFrame({name: [0.0, *values] for name, values in shares.items()})


def _top(pairs: pd.DataFrame, rows: pd.DataFrame, names: Names) -> pd.DataFrame:
    """The given pairs with their texts, share, spread of ratios and tasks."""
    mine = rows.merge(pairs[PAIR], on=PAIR)
    ratios = mine.groupby(PAIR).ratio
    spread = pd.DataFrame({name: ratios.quantile(at) for name, at in SPREAD.items()})
    tasks = mine.groupby([*PAIR, "task"], observed=True).size()
    by_pair = [tasks.loc[d, t].sort_values(ascending=False, kind="stable") for d, t in pairs[PAIR].to_numpy()]
    table = names.added(pairs.assign(share=pairs["count"] / max(len(rows), 1)))
    table = table.merge(spread.reset_index(), on=PAIR, how="left")
    return table.assign(tasks=[{task: int(count) for task, count in one.items()} for one in by_pair])


def _outcomes(run: StoredRun, method: str) -> pd.DataFrame | None:
    """Documents that the baseline has right, and whether the method has them `right` (1 or 0); None if unknown."""
    baseline = run.plan.against(method)
    if not run.finished or baseline in (None, method):
        return None
    scores = run.scores()
    wanted = scores.task.map(run.headline()) == scores.metric + "," + scores["filter"]
    scores = scores[wanted & scores.doc_id.notna() & scores.method.isin([method, baseline])]
    graded = scores[~scores["value"].isin([0, 1])].task
    scores = scores[~scores.task.isin(graded)].astype({"doc_id": int})
    mine, base = (scores[scores.method == name].set_index(DOCUMENT).value for name in (method, baseline))
    return mine[mine.index.isin(base.index[base == 1])].rename("right").reset_index()


def _by_kind(found: pd.DataFrame) -> pd.DataFrame:
    """Counts and outcomes of the rescues, a row for each of KINDS."""
    grouped = found.groupby("kind")
    table = pd.DataFrame({"count": grouped.size()}).reindex(KINDS, fill_value=0)
    table["share"] = table["count"] / max(len(found), 1)
    for name, value in (("right", 1), ("wrong", 0)):
        some = found[found.right == value]
        table[name] = some.groupby("kind").size()
        table[f"{name}_documents"] = some.drop_duplicates([*DOCUMENT, "kind"]).groupby("kind").size()
    counts = ["right", "wrong", "right_documents", "wrong_documents"]
    table[counts] = table[counts].fillna(0).astype(int)
    table["wrong_share"] = table.wrong / (table.right + table.wrong).replace(0, np.nan)
    return table.rename_axis("kind").reset_index()


def _examples(run: StoredRun, method: str, found: pd.DataFrame, decode: Decode, most: int) -> pd.DataFrame:
    """Up to `most` rescues of each kind, drawn from its most frequent pairs (one each), with the text before them."""
    drawn = found.sample(frac=1, random_state=0).drop_duplicates(PAIR)
    drawn = drawn.sort_values(["count", *PAIR], ascending=[False, True, True], kind="stable").groupby("kind").head(most)
    drawn = drawn.sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable", ignore_index=True)
    of_method = ~pc.field("warmup") & (pc.field("method") == method)
    chosen = of_method & pc.field("doc_id").isin(drawn.doc_id.unique().tolist())
    rounds = run.rounds().to_table(columns=[*DOCUMENT, "round", "committed"], filter=chosen).to_pandas()
    samples = run.scan_samples().to_table(columns=[*DOCUMENT, "tokens"], filter=chosen).to_pandas()
    tokens = samples.set_index(DOCUMENT).tokens
    committed = rounds.set_index(DOCUMENT).sort_index()
    before = []
    for one in drawn.itertuples():
        document = one.repeat, one.task, one.doc_id
        own = committed.loc[[document]]
        at = int(own.committed[own["round"] < one.round].sum()) + one.position
        if tokens[document][at : at + 1].tolist() != [one.draft_token]:
            raise UserError(
                f"{one.task}, document {one.doc_id}, {method}: its rounds are not its text; damaged records"
            )
        before.append(decode(tokens[document][max(0, at - CONTEXT) : at].tolist()))
    drawn = drawn.assign(before=[text.lstrip("\ufffd") for text in before])
    return drawn[["kind", "before", "draft", "target", "ratio", "count", *DOCUMENT, "round"]]
