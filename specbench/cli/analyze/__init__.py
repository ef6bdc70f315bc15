"""The group `specbench analyze`: a command for each analysis of a run, with only its own options."""

from specbench.cli.analyze import records, texts

HELP = (
    "What a run rejected and rescued, how good its predictions were, which method discards less, what an arbitrator or "
    "a stronger draft is worth."
)
ANALYSES = (
    records.requests,
    records.rejections,
    records.acceptance,
    records.frontier,
    records.collaboration,
    records.overlap,
    texts.mirror,
    records.context,
    texts.multi_draft,
    texts.rules,
    records.tree,
    records.complementarity,
    texts.counterfactual,
    texts.arbitrator,
    records.strength,
    texts.drafts,
    texts.losses,
)
