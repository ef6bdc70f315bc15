"""Check a pair and a suite for what falsifies figures: tokens, templates, stop strings, caches, lengths, leaks."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from specbench.analysis.texts import shared_start
from specbench.analysis.widths import WIDTHS, uneven
from specbench.config import PairSpec, SamplingSpec, SuiteSpec, UserError, validated
from specbench.config.generation import unused, unused_words
from specbench.engine.clock import Stopwatch, now
from specbench.engine.models.pair import Pair, check_rollback
from specbench.engine.session import Unwatched
from specbench.engine.types import Watch
from specbench.measure.machine import Diagnosis
from specbench.measure.prompts import encode, load_tasks
from specbench.plan import Plan, resolve_tasks
from specbench.studies.profile_pair import measure_forwards
from specbench.tasks.harness import Request

SLOW_DRAFT = 0.5  # of a target forward; with a slower draft, no draft length can double the speed
COSTLY = 0.02  # the share of the fastest forward that timing it may take
CONTEXT = 200  # tokens before the forwards that are timed
ROOM = 16  # positions for a draft beyond the longest text
ANCHOR = 32  # characters by which a document is searched for
OWN_TEXT = 24  # the fewest characters that tell a document from others
LOOKS = 5  # forwards of each width
TRIAL = 1000  # empty forwards


def pair_findings(pair: Pair, requests: Sequence[Request] = ()) -> list[Diagnosis]:
    """All checks of a loaded pair, with the prompts and stop strings of `requests`, if any."""
    by_role = forward_seconds(pair)
    times = {role: seconds.get(1) for role, seconds in by_role.items()}
    return [
        vocabulary(pair),
        chat_template(pair),
        prompt_ends(pair),
        generation(pair),
        stop_strings(pair, requests),
        cache(pair),
        context(pair, requests),
        draft_speed(times),
        by_width(by_role),
        instrument(pair, times),
    ]


def vocabulary(pair: Pair) -> Diagnosis:
    """Do the models know every token, and how many of them does a draft with another tokenizer know?"""
    native = {role: model for role, model in pair.models.items() if role not in pair.translations}
    sizes = {role: model.config.get_text_config().vocab_size for role, model in native.items()}
    tokens = 1 + max(pair.tokenizer.get_vocab().values())
    if short := [role for role, size in sizes.items() if size < tokens]:
        message = f"the tokenizer has {tokens} tokens, but the {short[0]} knows {sizes[short[0]]}"
        remedy = f"use the tokenizer that came with the {short[0]}, without added tokens"
        return Diagnosis("vocabulary", "error", message, remedy)
    if translation := pair.translations.get("draft"):
        shared, total = len(translation.shared), len(translation.spellings)
        message = f"the draft has another tokenizer, and {shared} of the target's {total} tokens ({shared / total:.0%})"
        return Diagnosis("vocabulary", "ok", f"{message}: it proposes no others")
    same = "target and draft have the same tokens" if "draft" in sizes else "no draft model to agree with"
    padded = f"; logits beyond {pair.vocabulary} are cut off" if len(set(sizes.values())) > 1 else ""
    return Diagnosis("vocabulary", "ok", f"{same} ({tokens}, {pair.tokenizer_hash}){padded}")


def chat_template(pair: Pair) -> Diagnosis:
    """Is there one, and does it add a begin token besides the tokenizer's?"""
    tokenizer, bos = pair.tokenizer, pair.tokenizer.bos_token_id
    if not tokenizer.chat_template:
        return Diagnosis("chat template", "ok", "none; prompts are plain text")
    messages = [{"role": "user", "content": "Hello"}]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program and may fail in any way
        message = f"the template fails on a plain question ({' '.join(str(error).split())})"
        return Diagnosis("chat template", "warning", message, "do not use --apply-chat-template, or fix the template")
    raw, used = tokenizer(text)["input_ids"], encode(pair, text)
    if bos is not None and used[:2] == [bos, bos]:
        message = f"a prompt in the template begins with {tokenizer.bos_token} twice"
        return Diagnosis("chat template", "error", message, "take it out of the template, or do not use the template")
    doubled = "; its begin token and the tokenizer's become one" if raw != used else ""
    return Diagnosis("chat template", "ok", f"there is one, for chat suites and --apply-chat-template{doubled}")


def prompt_ends(pair: Pair) -> Diagnosis:
    """Does the tokenizer append an end token to prompts? A model changes the subject after it."""
    ids = encode(pair, "Question: what comes next?")
    if ids[-1] in pair.eos_ids:
        message = f"the tokenizer puts {pair.tokenizer.decode(ids[-1:])} after every prompt"
        return Diagnosis("prompts", "error", message, "set add_eos_token to false in its tokenizer_config.json")
    bos = pair.tokenizer.bos_token_id
    begin = f"begin with {pair.tokenizer.bos_token}" if bos is not None and ids[0] == bos else "have no begin token"
    return Diagnosis("prompts", "ok", f"{begin} and no end token")


def generation(pair: Pair) -> Diagnosis:
    """Does the target's folder ask for a sampling or penalties that a run applies only if it is told to?"""
    words = unused_words(unused(pair.models["target"].generation_config.to_dict(), SamplingSpec()))
    if not words:
        return Diagnosis("generation", "ok", "the target's generation_config.json asks for no sampling of its own")
    message, _, remedy = words.partition("; ")
    return Diagnosis("generation", "warning", message, remedy)


def stop_strings(pair: Pair, requests: Sequence[Request]) -> Diagnosis:
    """The number of tokens that reach over the edges of each stop string."""
    stops = sorted({stop for request in requests for stop in request.until if stop})
    if not stops:
        return Diagnosis("stop strings", "ok", "there are none" if requests else "not checked without a suite")
    decode = pair.detokenizer
    tokens = {decode.single(i) for i in range(1 + max(pair.tokenizer.get_vocab().values()))}
    counts = [(stop, sum(reaches_over(token, stop) for token in tokens)) for stop in stops]
    listed = ", ".join(f"{stop!r} {count}" for stop, count in counts if count)
    if not listed:
        return Diagnosis("stop strings", "ok", f"{len(stops)}, and no token reaches over their edges")
    return Diagnosis(
        "stop strings",
        "ok",
        f"tokens that reach over their edges: {listed}. Harmless: stop strings are searched in the text, "
        "not in the tokens, and the text is cut there; the last token counts as a whole, for every method",
    )


def reaches_over(token: str, stop: str) -> bool:
    """True if `stop` can begin or end inside the text of a token."""
    if stop in token:
        return stop != token
    ends = any(token.startswith(stop[i:]) and len(token) > len(stop) - i for i in range(1, len(stop)))
    return ends or any(token.endswith(stop[:i]) and len(token) > i for i in range(1, len(stop)))


def cache(pair: Pair) -> Diagnosis:
    """Can the caches be rolled back?"""
    for role in pair.models:
        try:
            check_rollback(pair.session(role))
        except UserError as error:
            return Diagnosis("cache", "error", f"{role}: {error}", "choose a model whose layers all keep every token")
    return Diagnosis("cache", "ok", f"{' and '.join(pair.models)}: rolled back and fed again, the logits are the same")


def context(pair: Pair, requests: Sequence[Request]) -> Diagnosis:
    """Do the longest prompt and its text fit into the pair's context?"""
    if not requests:
        return Diagnosis("context", "ok", f"{pair.context} positions; not compared with prompts without a suite")
    lengths = [(len(encode(pair, request.prompt)) + request.max_new_tokens, request) for request in requests]
    need, longest = max(lengths, key=lambda pair: pair[0])
    text = f"{longest.task}, document {longest.doc_id}, needs up to {need} of {pair.context} positions"
    remedy = "use fewer shots, fewer documents (--limit) or a pair with a longer context"
    if need >= pair.context:
        return Diagnosis("context", "error", text, remedy)
    if need + ROOM > pair.context:
        return Diagnosis("context", "warning", f"{text}: little room for a draft", remedy)
    return Diagnosis("context", "ok", text)


def forward_seconds(pair: Pair) -> dict[str, dict[int, float]]:
    """Seconds of a forward by role and width, the fastest of a few; empty if there is no room."""
    if pair.context < CONTEXT + max(WIDTHS):
        return {role: {} for role in pair.models}
    table = measure_forwards(pair, WIDTHS, (CONTEXT,), LOOKS)
    return {str(role): some.set_index("width").fast.to_dict() for role, some in table.groupby("model")}


def by_width(times: Mapping[str, Mapping[int, float]]) -> Diagnosis:
    """Does a forward of a few tokens take about as long as one of a single token?"""
    if lines := [line for role in times if (line := uneven(role, times[role]))]:
        remedy = "measure it (specbench profile --widths), and take another --runtime or --dtype"
        return Diagnosis("widths", "warning", "; ".join(lines), remedy)
    if not any(times.values()):
        return Diagnosis("widths", "ok", "not measured: the context is too short")
    target = times["target"]
    text = (
        f"a forward of the target takes {1000 * target[1]:.2f} ms for one token and {1000 * target[8]:.2f} ms for eight"
    )
    return Diagnosis("widths", "ok", text)


def draft_speed(times: dict[str, float | None]) -> Diagnosis:
    """Is the draft fast enough? `times` are seconds of a forward of one token by role, None if not measured."""
    if "draft" not in times:
        return Diagnosis("draft speed", "ok", "no draft model")
    if not times["draft"] or not times["target"]:
        return Diagnosis("draft speed", "ok", "not measured: the context is too short")
    ratio = times["draft"] / times["target"]
    text = f"a draft forward takes {ratio:.2f} of a target forward"
    text += f" ({1000 * times['draft']:.2f} ms of {1000 * times['target']:.2f} ms)"
    if ratio <= SLOW_DRAFT:
        return Diagnosis("draft speed", "ok", text)
    best = f"even if every draft is accepted, the speedup stays below {1 / ratio:.1f}"
    limit = "speculation can only lose" if ratio >= 1 else best
    return Diagnosis(
        "draft speed", "warning", f"{text}: {limit}", "choose a smaller draft, or let both decode together (cos)"
    )


def instrument(pair: Pair, times: dict[str, float | None]) -> Diagnosis:
    """The cost of timing a forward, as a share of the pair's fastest one."""
    cost = watching_seconds(pair.device)
    measured = [seconds for seconds in times.values() if seconds]
    text = f"timing a forward costs {1e6 * cost:.1f} µs"
    if not measured:
        return Diagnosis("instrument", "ok", f"{text}; forwards were not measured")
    share = cost / min(measured)
    text += f", {share:.2%} of this pair's fastest forward"
    if share > COSTLY:
        return Diagnosis(
            "instrument", "warning", text, "stop other work; read rates with this in mind (specbench bench)"
        )
    return Diagnosis("instrument", "ok", text)


def watching_seconds(device: torch.device) -> float:
    """Seconds that the stopwatch adds to a forward, from TRIAL empty forwards with and without it, alternating."""
    stopwatch = Stopwatch(device)

    def trial(watch: Watch) -> float:
        stopwatch.start()
        began = now()
        for _ in range(TRIAL):
            with watch.forward("target", 1, CONTEXT):
                pass
        return (now() - began) / TRIAL

    return max(0.0, statistics.median(trial(stopwatch) - trial(Unwatched()) for _ in range(5)))


def suite_findings(shown: Sequence[Request], bare: Sequence[Request]) -> list[Diagnosis]:
    """Checks of prompts: `shown` as they are evaluated, `bare` for the same documents without few-shot examples."""
    return [few_shot(shown, bare), duplicates(bare)]


def few_shot(shown: Sequence[Request], bare: Sequence[Request]) -> Diagnosis:
    """Is the text of an evaluated document among the few-shot examples of any prompt?"""
    bare_prompts = {(request.task, request.doc_id): request.prompt for request in bare}
    leaks, most = [], 0
    for task in dict.fromkeys(request.task for request in shown):
        mine = [request for request in shown if request.task == task]
        shots, texts = set(), []
        for request in mine:
            begins = len(request.prompt) - _shared_end([request.prompt, bare_prompts[task, request.doc_id]])
            shots.add(request.prompt[:begins])
            texts.append(request.prompt[begins:].strip())
        most = max(most, *map(len, shots))
        if leaked := [mine[at].doc_id for at in _contained(_distinct(texts), shots)]:
            examples = ", ".join(map(str, leaked[:3])) + (", …" if len(leaked) > 3 else "")
            leaks.append(f"{task}: {len(leaked)} of {len(mine)} evaluated documents ({examples})")
    if leaks:
        message = f"evaluated documents are among few-shot examples, with their answers; {'; '.join(leaks)}"
        return Diagnosis("few-shot", "error", message, "take the examples from other documents, or set fewshot: 0")
    return Diagnosis(
        "few-shot", "ok", "none of the evaluated documents is among the examples" if most else "no examples"
    )


def duplicates(bare: Sequence[Request]) -> Diagnosis:
    """Do documents of one task have the same text? Intervals treat documents as independent."""
    tasks: dict[str, list[str]] = {}
    for request in bare:
        tasks.setdefault(request.task, []).append(request.prompt)
    repeated = {task: len(texts) - len(set(texts)) for task, texts in tasks.items()}
    if any(repeated.values()):
        message = "; ".join(f"{task}: {n} of {len(tasks[task])} repeat another" for task, n in repeated.items() if n)
        return Diagnosis(
            "documents", "warning", message, "leave them out, since intervals treat documents as independent"
        )
    summary = f"{len(bare)} document{'s' * (len(bare) != 1)} of {len(tasks)} task{'s' * (len(tasks) != 1)}"
    return Diagnosis("documents", "ok", f"{summary}, no two alike")


def suite_requests(
    suite: SuiteSpec, spec: PairSpec, pair: Pair | None, data_dir: Path | None
) -> tuple[list[Request], list[Request]]:
    """A suite's requests for a pair, as they are evaluated and without few-shot examples.

    Raises UserError if documents are not available.
    """
    data = str(data_dir) if data_dir else None
    lines = resolve_tasks(suite, spec, data)

    def requests(tasks: Iterable[object]) -> list[Request]:
        values = {"pair": spec, "methods": (), "baseline": None, "suite": suite.name, "tasks": tuple(tasks)}
        plan = validated(Plan, {**values, "limit": suite.limit, "data_dir": data}, suite.name)
        return load_tasks(plan, pair).requests()

    return requests(lines), requests(line.model_copy(update={"fewshot": 0}) for line in lines)


def _shared(texts: Sequence[str]) -> int:
    """The length of the longest beginning shared by all texts."""
    return shared_start(min(texts), max(texts))


def _shared_end(texts: Sequence[str]) -> int:
    """The length of the longest ending shared by all texts."""
    return _shared([text[::-1] for text in texts])


def _distinct(texts: list[str]) -> list[str]:
    """Texts without their shared beginning and end, unless too little is left to tell them apart."""
    first, last = _shared(texts), _shared_end(texts)
    return [text[first : len(text) - last] if len(text) - first - last >= OWN_TEXT else text for text in texts]


def _contained(texts: list[str], places: Iterable[str]) -> list[int]:
    """The indices of the texts that any of `places` contains."""
    size = min([ANCHOR, *(len(text) for text in texts if text)])
    by_anchor: dict[str, set[int]] = {}
    for at, text in enumerate(texts):
        if text:
            by_anchor.setdefault(text[:size], set()).add(at)
    contained: set[int] = set()
    for place in places:
        for start in range(len(place) - size + 1):
            if candidates := by_anchor.get(place[start : start + size]):
                contained |= {at for at in candidates if place.startswith(texts[at], start)}
    return sorted(contained)
