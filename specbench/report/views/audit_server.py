"""An audit of a server: texts and rounds by task, what is not as here, and what the server tells of itself."""

from collections.abc import Iterator, Sequence
from typing import Any

from specbench.report.finding import Finding, Sheet, number
from specbench.studies.audit_server import AuditedText, ServerAudit

MOST = 5  # documents that are told one by one


def view(audited: ServerAudit) -> Finding:
    tasks = dict.fromkeys(text.task for text in audited.texts)
    rows = [_row(task, [text for text in audited.texts if text.task == task]) for task in tasks]
    headings = ["task", "texts", "same", "ties", "other", "failed", "rounds", "wrong", "known by"]
    return Finding(
        "audit",
        sheets=[Sheet(headings, rows, f"audit of {audited.url}: {audited.verdict}", "lrrrrrrrl")],
        sentences=[*_differences(audited), *_rounds(audited), *_cache(audited)],
        notes=[
            _told(audited),
            "same: equal to vanilla's; rounds: in these texts, with a draft, without the last of each text",
            "wrong: texts with other rounds",
        ],
    )


def _row(task: str, texts: Sequence[AuditedText]) -> list[str]:
    kinds = [text.leaving.kind if text.leaving else "failed" if text.error else "same" for text in texts]
    counts = [len(texts), *(kinds.count(kind) for kind in ("same", "tie", "bug", "failed"))]
    rounds = [sum(text.rounds for text in texts), sum(bool(text.other) for text in texts)]
    answered = [text for text in texts if not text.error]
    compared = [text for text in answered if text.rounds or text.other] or answered
    known = ", ".join(dict.fromkeys(text.evidence for text in compared))
    return [task, *map(str, [*counts, *rounds]), known or "-"]


def _differences(audited: ServerAudit) -> Iterator[str]:
    lines = []
    for text in audited.texts:
        where = f"{text.task}, document {text.doc_id}"
        if text.error:
            lines.append(f"{where}: {text.error}")
        elif text.leaving:
            word = "a numeric tie" if text.leaving.kind == "tie" else "no tie: another model, prompt or a defect"
            gap = f"logit gap {text.leaving.gap:.2g}"
            lines.append(f"{where}: departs from vanilla at token {text.leaving.at}, {gap}: {word}")
        elif text.other:
            lines.append(f"{where}: {text.other}")
    yield from lines[:MOST]
    if len(lines) > MOST:
        yield f"and {len(lines) - MOST} more documents"


def _rounds(audited: ServerAudit) -> Iterator[str]:
    if audited.method is None:
        yield "rounds were not compared: name the method that the server runs, such as --method sps --set sps.gamma=5"
    elif audited.lengths is None:
        yield f"the server does not list its rounds, so only sums, if any, were compared with {audited.method}"
    elif audited.lengths[0] != audited.lengths[1] and any(text.other for text in audited.texts):
        theirs, mine = audited.lengths
        yield f"the server drafts up to {theirs} tokens and {audited.method} {mine}: give both the same settings"


def _cache(audited: ServerAudit) -> Iterator[str]:
    kept = audited.kept
    if kept.seen:
        yield (
            f"WARNING: the server keeps prompts: {1000 * kept.second:.1f} ms to the first token of one sent "
            f"again, {1000 * kept.first:.1f} ms at first (p = {kept.p:.1g}); switch its prefix cache off, or times are "
            "wrong for prompts that share a beginning"
        )
    elif _keeps(audited.facts):
        yield "WARNING: the server says that it keeps prompts; switch its prefix cache off, or times may be wrong"
    else:
        yield f"no prefix cache was seen: {kept.pairs} prompts were sent twice (p = {number(kept.p, '.2f')})"


def _told(audited: ServerAudit) -> str:
    facts = audited.facts
    scheduler = facts.get("scheduler") or {}
    said = {
        "engine": " ".join(str(facts[key]) for key in ("engine", "version") if facts.get(key)),
        "model": facts.get("model"),
        "prefix caching": _keeps(facts),
        "chunked prefill": scheduler.get("enable_chunked_prefill", facts.get("chunked_prefill_size")),
        "requests together": scheduler.get("max_num_seqs", facts.get("max_running_requests", facts.get("total_slots"))),
    }
    return "the server says: " + ", ".join(f"{key} {value}" for key, value in said.items() if value is not None)


def _keeps(facts: dict[str, Any]) -> bool | None:
    """Whether a server says that it keeps the prompts that it has read; None if it does not say."""
    if (caching := (facts.get("cache") or {}).get("enable_prefix_caching")) is not None:
        return str(caching).lower() == "true"
    return None if (off := facts.get("disable_radix_cache")) is None else not off
