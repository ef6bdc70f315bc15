"""What a lighter output layer saves of a draft forward, and what it costs in acceptance.

Run by `make bench`; exits with 1 where with a large vocabulary nothing is saved, or a text is not vanilla's. Times are
of one process, the layers by turns; acceptance is of the pocket pair, greedy.
"""

import statistics
import sys
from time import perf_counter

import torch
from benches import built, by_turns, decode, prompts
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.base.console import progress
from specbench.config import load_pair as read_pair
from specbench.engine.models.draft_output import output_layer, slim, trimmed
from specbench.engine.models.pair import load_pair
from specbench.engine.session import Session

DOCUMENTS = 5  # of each family
TOKENS = 64  # of a text
CONTEXT, FORWARDS = 100, 60
SHARES = (0.5, 0.25, 0.125)
LARGE = 65_536  # tokens of the random model


def main() -> int:
    pair = load_pair(read_pair("pocket"))
    print("a draft forward of one token after 100, median ms; share of the full one's, by turns")
    times("pocket's draft", pair.models["draft"])
    saved = times(f"random, {LARGE} tokens", large(pair.device))
    documents, vanilla = prompts(pair, DOCUMENTS), built("vanilla", pair)
    texts = [(prompt, decode(vanilla, pair, prompt, count=TOKENS).tokens) for prompt in documents]
    base, same = acceptance(pair, "sps", {}, texts)
    print(f"pocket, greedy: {base:.1%} of the drafts of the full layer are accepted")
    for name, key in (("vocabtrim", "tokens"), ("slimspec", "rank")):
        for share in SHARES:
            analysis, equal = acceptance(pair, name, {key: share}, texts)
            same = same and equal
            print(f"  {name}[{key}={share}]: {analysis:.1%}, {100 * (analysis - base):+.1f} points")
    if not same:
        print("some texts are not vanilla's")
    return int(not same or max(saved) > 0.9)


def large(device: torch.device) -> LlamaForCausalLM:
    """As wide as small drafts are, and with few layers, so that the output layer is most of it."""
    config = LlamaConfig(
        vocab_size=LARGE,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).to(device).eval().requires_grad_(False)


def times(label: str, model) -> list[float]:
    """Print the time of a forward with each output layer; returns what they take of the full one's."""
    count, width = output_layer(model).weight.shape
    models = {"full": model}
    for share in SHARES:
        models[f"trimmed to {share:g}"] = trimmed(model, torch.arange(round(share * count)))
        models[f"rank {share:g}"] = slim(model, round(share * width))
    sessions = {name: Session(one, "draft") for name, one in models.items()}
    for session in sessions.values():
        session.restart([7] * CONTEXT)
    seconds = {name: [] for name in sessions}
    for names in by_turns(list(sessions), FORWARDS):
        for name in names:
            session = sessions[name]
            began = perf_counter()
            session.forward([7]).logits.argmax(-1).tolist()
            seconds[name].append(perf_counter() - began)
            session.truncate(CONTEXT)
    whole = statistics.median(seconds["full"])
    print(f"{label}: full {1000 * whole:.2f}")
    shares = []
    for name in list(sessions)[1:]:
        ratio = statistics.median(
            one / other for one, other in zip(seconds[name], seconds["full"], strict=True)
        )  # of the same turn
        shares.append(ratio)
        print(f"  {name}: {1000 * statistics.median(seconds[name]):.2f}, {ratio:.2f} of the full one")
    return shares


def acceptance(pair, name: str, changes: dict[str, float], texts) -> tuple[float, bool]:
    """The share of drafted tokens that is accepted, and whether all texts are vanilla's."""
    method, same = built(name, pair, **changes), True
    drafted = accepted = 0
    with progress(f"{name} {changes or ''}", len(texts)) as advance:
        for prompt, wanted in texts:
            text = decode(method, pair, prompt, count=TOKENS)
            drafted += sum(round_.drafted for round_ in text.rounds)
            accepted += sum(round_.accepted for round_ in text.rounds)
            same = same and text.tokens == wanted
            advance(1)
    return accepted / drafted, same


if __name__ == "__main__":
    sys.exit(main())
