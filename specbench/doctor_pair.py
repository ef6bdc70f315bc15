"""What would make the numbers of a pair or a suite wrong: tokens, templates, stop strings, caches, lengths, leaks."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import torch

from specbench import bench
from specbench.config import PairSpec, SuiteSpec, UserError, validated
from specbench.decoding.session import Unwatched
from specbench.decoding.types import Watch
from specbench.doctor_machine import Finding
from specbench.harness import Request
from specbench.measure import Stopwatch, now
from specbench.models import Pair, check_rollback
from specbench.plan import Plan, resolve_tasks
from specbench.run import encode, load_tasks

SLOW_DRAFT = 0.5  # of a target forward: with more, no draft length can double the speed
COSTLY = 0.02  # share of the fastest forward that watching it may take
ROOM = 16  # positions for a draft beyond the longest text
ANCHOR = 32  # characters by which a document is looked for
OWN_TEXT = 24  # fewest characters that tell a document from others
TRIAL = 1000  # watched forwards of nothing


def pair_findings(pair: Pair, requests: Sequence[Request] = ()) -> list[Finding]:
    """All checks of a loaded pair; with the prompts and stop strings of `requests`, if any are given."""
    times = forward_seconds(pair)
    return [
        vocabulary(pair),
        chat_template(pair),
        prompt_ends(pair),
        stop_strings(pair, requests),
        cache(pair),
        context(pair, requests),
        draft_speed(times),
        instrument(pair, times),
    ]


def vocabulary(pair: Pair) -> Finding:
    """Do the models know every token, and how many of them does a draft with a tokenizer of its own know?"""
    own = {role: model for role, model in pair.models.items() if role not in pair.translations}
    sizes = {role: model.config.get_text_config().vocab_size for role, model in own.items()}
    tokens = 1 + max(pair.tokenizer.get_vocab().values())
    if short := [role for role, size in sizes.items() if size < tokens]:
        message = f"the tokenizer has {tokens} tokens, but the {short[0]} knows {sizes[short[0]]}"
        remedy = f"use the tokenizer that came with the {short[0]}, without added tokens"
        return Finding("vocabulary", "error", message, remedy)
    if translation := pair.translations.get("draft"):
        shared, many = len(translation.shared), len(translation.spellings)
        message = f"the draft has another tokenizer, and {shared} of the target's {many} tokens ({shared / many:.0%})"
        return Finding("vocabulary", "ok", f"{message}: it proposes no others")
    same = "target and draft have the same tokens" if "draft" in sizes else "no draft model to agree with"
    padded = f"; logits beyond {pair.vocabulary} are cut off" if len(set(sizes.values())) > 1 else ""
    return Finding("vocabulary", "ok", f"{same} ({tokens}, {pair.tokenizer_hash}){padded}")


def chat_template(pair: Pair) -> Finding:
    """Whether there is one, and whether a begin token in its text meets the one that the tokenizer adds."""
    tokenizer, bos = pair.tokenizer, pair.tokenizer.bos_token_id
    if not tokenizer.chat_template:
        return Finding("chat template", "ok", "none; prompts are plain text")
    messages = [{"role": "user", "content": "Hello"}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of its author's
        message = f"the template fails on a plain question ({' '.join(str(error).split())})"
        return Finding("chat template", "warning", message, "do not use --apply-chat-template, or mend the template")
    raw, used = tokenizer(text)["input_ids"], encode(pair, text)
    if bos is not None and used[:2] == [bos, bos]:
        message = f"a prompt in the template begins with {tokenizer.bos_token} twice"
        return Finding("chat template", "error", message, "take it out of the template, or do without the template")
    doubled = "; its begin token and the tokenizer's become one" if raw != used else ""
    return Finding("chat template", "ok", f"there is one, used with --apply-chat-template{doubled}")


def prompt_ends(pair: Pair) -> Finding:
    """Some tokenizers end every text with an end token, behind which a model talks of something else."""
    ids = encode(pair, "Question: what comes next?")
    if ids[-1] in pair.eos_ids:
        message = f"the tokenizer puts {pair.tokenizer.decode(ids[-1:])} behind every prompt"
        return Finding("prompts", "error", message, "set add_eos_token to false in its tokenizer_config.json")
    bos = pair.tokenizer.bos_token_id
    begin = f"begin with {pair.tokenizer.bos_token}" if bos is not None and ids[0] == bos else "have no begin token"
    return Finding("prompts", "ok", f"{begin} and no end token behind")


def stop_strings(pair: Pair, requests: Sequence[Request]) -> Finding:
    """Stop strings that cannot appear in a text, and how many tokens reach over the edges of the others."""
    stops = sorted({stop for request in requests for stop in request.until if stop})
    if not stops:
        return Finding("stop strings", "ok", "none to look at" if requests else "not looked at without a suite")
    unseen = [
        (added.content, number)
        for number, added in pair.tokenizer.added_tokens_decoder.items()
        if added.special and number not in pair.eos_ids and added.content in stops
    ]
    if unseen:
        text = ", ".join(f"{content} ({number})" for content, number in unseen)
        message = f"{text} stops no text: it is a special token, which is left out of texts, and no end token"
        return Finding("stop strings", "warning", message, "add its number to eos_token_id in generation_config.json")
    decode = pair.detokenizer
    tokens = {decode([i]) for i in range(1 + max(pair.tokenizer.get_vocab().values()))}
    odd = [(stop, sum(reaches_over(token, stop) for token in tokens)) for stop in stops]
    shown = ", ".join(f"{stop!r} {count}" for stop, count in odd if count)
    if not shown:
        return Finding("stop strings", "ok", f"{len(stops)}, and no token reaches over their edges")
    return Finding(
        "stop strings",
        "ok",
        f"tokens that reach over their edges: {shown}. Harmless: the end is looked for in the text, not in the tokens, "
        "and the text is cut there; the last token is counted as a whole, for every method",
    )


def reaches_over(token: str, stop: str) -> bool:
    """Whether `stop` can begin or end inside the text of a token."""
    if stop in token:
        return stop != token
    ends = any(token.startswith(stop[i:]) and len(token) > len(stop) - i for i in range(1, len(stop)))
    return ends or any(token.endswith(stop[:i]) and len(token) > i for i in range(1, len(stop)))


def cache(pair: Pair) -> Finding:
    for role in pair.models:
        try:
            check_rollback(pair.session(role))
        except UserError as error:
            return Finding("cache", "error", f"{role}: {error}", "choose a model whose layers all keep every token")
    return Finding("cache", "ok", f"{' and '.join(pair.models)}: rolled back and fed again, the logits are the same")


def context(pair: Pair, requests: Sequence[Request]) -> Finding:
    if not requests:
        return Finding("context", "ok", f"{pair.context} positions; not compared with prompts without a suite")
    lengths = [(len(encode(pair, one.prompt)) + one.max_new_tokens, one) for one in requests]
    need, longest = max(lengths, key=lambda pair: pair[0])
    text = f"{longest.task}, document {longest.doc_id}, needs up to {need} of {pair.context} positions"
    remedy = "use fewer shots, fewer documents (--limit) or a pair with a longer context"
    if need >= pair.context:
        return Finding("context", "error", text, remedy)
    if need + ROOM > pair.context:
        return Finding("context", "warning", f"{text}: little room for a draft", remedy)
    return Finding("context", "ok", text)


def forward_seconds(pair: Pair) -> dict[str, float | None]:
    """Seconds of a forward of one token by role: the least of a few medians, taken in turns; None: no room for it."""
    if pair.context < bench.CONTEXT + max(bench.WIDTHS):
        return dict.fromkeys(pair.models)
    looks = [{role: bench.forward_times(pair, role, repeats=3)[1] / 1000 for role in pair.models} for _ in range(3)]
    return {role: min(look[role] for look in looks) for role in pair.models}


def draft_speed(times: dict[str, float | None]) -> Finding:
    """`times`: seconds of a forward of one token by role, None where there is no measuring it."""
    if "draft" not in times:
        return Finding("draft speed", "ok", "no draft model")
    if not times["draft"] or not times["target"]:
        return Finding("draft speed", "ok", "not measured: the context is too short")
    ratio = times["draft"] / times["target"]
    text = f"a draft forward takes {ratio:.2f} of a target forward"
    text += f" ({1000 * times['draft']:.2f} ms of {1000 * times['target']:.2f} ms)"
    if ratio <= SLOW_DRAFT:
        return Finding("draft speed", "ok", text)
    best = f"even if every draft is accepted, the speedup stays below {1 / ratio:.1f}"
    limit = "speculation can only lose" if ratio >= 1 else best
    return Finding(
        "draft speed", "warning", f"{text}: {limit}", "choose a smaller draft, or let both decode together (cos)"
    )


def instrument(pair: Pair, times: dict[str, float | None]) -> Finding:
    """What it costs to watch a forward, as a share of the pair's fastest one."""
    cost = watching_seconds(pair.device)
    known = [seconds for seconds in times.values() if seconds]
    text = f"watching a forward costs {1e6 * cost:.1f} µs"
    if not known:
        return Finding("instrument", "ok", f"{text}; forwards were not measured")
    share = cost / min(known)
    text += f", {share:.2%} of this pair's fastest forward"
    if share > COSTLY:
        return Finding("instrument", "warning", text, "stop other work; read rates with this in mind (specbench bench)")
    return Finding("instrument", "ok", text)


def watching_seconds(device: torch.device) -> float:
    """Seconds that the watch adds to a forward: `TRIAL` forwards of nothing, watched and unwatched, in turns."""
    stopwatch = Stopwatch(device)

    def trial(watch: Watch) -> float:
        stopwatch.start()
        began = now()
        for _ in range(TRIAL):
            with watch.forward("target", 1, bench.CONTEXT):
                pass
        return (now() - began) / TRIAL

    return max(0.0, statistics.median(trial(stopwatch) - trial(Unwatched()) for _ in range(5)))


def suite_findings(shown: Sequence[Request], bare: Sequence[Request]) -> list[Finding]:
    """Checks of prompts: `shown` as they are evaluated, `bare` the same documents without few-shot examples."""
    return [few_shot(shown, bare), duplicates(bare)]


def few_shot(shown: Sequence[Request], bare: Sequence[Request]) -> Finding:
    """Whether the text of an evaluated document stands in the few-shot examples of any prompt."""
    alone = {(one.task, one.doc_id): one.prompt for one in bare}
    found, most = [], 0
    for task in dict.fromkeys(one.task for one in shown):
        mine = [one for one in shown if one.task == task]
        tails = [_shared_end([one.prompt, alone[task, one.doc_id]]) for one in mine]
        shots = {one.prompt[: len(one.prompt) - size] for one, size in zip(mine, tails, strict=True)}
        most = max(most, *map(len, shots))
        texts = [one.prompt[len(one.prompt) - size :].strip() for one, size in zip(mine, tails, strict=True)]
        if leaked := [mine[at].doc_id for at in _contained(_distinct(texts), shots)]:
            some = ", ".join(map(str, leaked[:3])) + (", …" if len(leaked) > 3 else "")
            found.append(f"{task}: {len(leaked)} of {len(mine)} evaluated documents ({some})")
    if found:
        message = f"evaluated documents stand in few-shot examples, with their answers; {'; '.join(found)}"
        return Finding("few-shot", "error", message, "take the examples from other documents, or set fewshot: 0")
    return Finding("few-shot", "ok", "none of the evaluated documents is among the examples" if most else "no examples")


def duplicates(bare: Sequence[Request]) -> Finding:
    """Documents of one task with the same text: intervals take them for independent."""
    tasks: dict[str, list[str]] = {}
    for one in bare:
        tasks.setdefault(one.task, []).append(one.prompt)
    twice = {task: len(texts) - len(set(texts)) for task, texts in tasks.items()}
    if any(twice.values()):
        message = "; ".join(f"{task}: {n} of {len(tasks[task])} repeat another" for task, n in twice.items() if n)
        return Finding("documents", "warning", message, "leave them out: the intervals take them for independent")
    many = f"{len(bare)} document{'s' * (len(bare) != 1)} of {len(tasks)} task{'s' * (len(tasks) != 1)}"
    return Finding("documents", "ok", f"{many}, no two alike")


def suite_requests(
    suite: SuiteSpec, spec: PairSpec, pair: Pair | None, data_dir: Path | None
) -> tuple[list[Request], list[Request]]:
    """A suite's requests for a pair, as they are evaluated and without few-shot examples.

    Raises UserError where documents cannot be had.
    """
    data = str(data_dir) if data_dir else None
    lines = resolve_tasks(suite, spec, data)

    def requests(tasks: Iterable[object]) -> list[Request]:
        values = {"pair": spec, "methods": (), "baseline": None, "suite": suite.name, "tasks": tuple(tasks)}
        plan = validated(Plan, {**values, "limit": suite.limit, "data_dir": data}, suite.name)
        return load_tasks(plan, pair).requests()

    return requests(lines), requests(line.model_copy(update={"fewshot": 0}) for line in lines)


def _shared(texts: Sequence[str]) -> int:
    """The length of the beginning that all share."""
    one, other = min(texts), max(texts)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _shared_end(texts: Sequence[str]) -> int:
    return _shared([text[::-1] for text in texts])


def _distinct(texts: list[str]) -> list[str]:
    """Texts without the beginning and the end that all share, where enough is left to tell them apart."""
    first, last = _shared(texts), _shared_end(texts)
    return [text[first : len(text) - last] if len(text) - first - last >= OWN_TEXT else text for text in texts]


def _contained(texts: list[str], places: Iterable[str]) -> list[int]:
    """Which of `texts` stand in any of `places`."""
    size = min([ANCHOR, *(len(text) for text in texts if text)])
    by_anchor: dict[str, set[int]] = {}
    for at, text in enumerate(texts):
        if text:
            by_anchor.setdefault(text[:size], set()).add(at)
    found: set[int] = set()
    for place in places:
        for start in range(len(place) - size + 1):
            if candidates := by_anchor.get(place[start : start + size]):
                found |= {at for at in candidates if place.startswith(texts[at], start)}
    return sorted(found)
