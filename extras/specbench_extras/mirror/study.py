"""`specbench analyze mirror`: the ranks of the tokens that a target added to drafts, by the states of earlier layers.

The target reads every committed text again; nothing is decoded.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch

from specbench.analysis.drafts import drafting_method
from specbench.analysis.metrics import SAMPLE, of_method, timed_samples
from specbench.config import UserError
from specbench.engine.models.pair import Pair
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.layers import layer_runner
from specbench.engine.session import Session
from specbench.measure.prepare import load_models_of
from specbench.results.stored import StoredRun
from specbench_extras.drafts.read_again import Prompts
from specbench_extras.mirror.analysis import ROUND, Mirror, mirror

COUNTS = ["drafted", "accepted", "committed", "truncated"]


def carry_out(
    run: StoredRun, method: str | None, layers: Sequence[int], advance: Callable[[int], None] = lambda count: None
) -> Mirror:
    """Read the texts of a method that drafts chains by a draft model; `advance` is called after each.

    Without `layers` the exits are at a quarter, half and three quarters of the target. Raises UserError for a run that
    cannot be replayed or was imported, for layers that the target lacks, and if prompts have changed since.
    """
    spec = drafting_method(run, method)
    if not run.manifest.get("models") or "imported" in run.manifest:
        raise UserError(f"{run.folder} was imported, so its texts cannot be read again; choose another run")
    pair = load_models_of(run)
    count = pair.models["target"].config.get_text_config().num_hidden_layers
    chosen = sorted(set(layers)) or sorted({max(1, count * quarter // 4) for quarter in (1, 2, 3)})
    if wrong := [layer for layer in chosen if not 1 <= layer < count]:
        raise UserError(f"--layers {wrong[0]}: the target has {count} layers; give exits from 1 to {count - 1}")
    prompts = Prompts(run, pair)
    samples = timed_samples(run.samples([*SAMPLE, "warmup", "finish", "tokens", "prompt_hash"]))
    rounds = run.rounds().to_table([*ROUND, *COUNTS], filter=of_method(spec.name)).to_pandas()
    by_text = dict(iter(rounds.sort_values("round").groupby(SAMPLE)))
    hits: list[dict[str, Any]] = []
    for row in samples[samples.method == spec.name].to_dict("records"):
        key = {name: row[name] for name in SAMPLE}
        tokens = [int(token) for token in row["tokens"]]
        additions = added(by_text[tuple(key.values())])
        ranks = ranks_of(pair, prompts.tokens(row), tokens, list(additions.place), chosen)
        for layer, of_layer in zip(chosen, ranks, strict=True):
            for addition, rank in zip(additions.to_dict("records"), of_layer, strict=True):
                round_of = {name: addition[name] for name in ("round", "whole")}
                hits.append(key | round_of | {"layer": layer, "rank": rank})
        advance(1)
    if not hits:
        raise UserError(f"{spec.name} of {run.folder} has no whole round; run more documents")
    return mirror(run, spec.name, pd.DataFrame(hits), count)


def added(rounds: pd.DataFrame) -> pd.DataFrame:
    """Of a text's rounds those in which the target added a token: `round`, `place` (in the text), and `whole`.

    `whole` is true if the draft was accepted whole. Rounds that the end of the text cut are left out.
    """
    end = rounds.committed.cumsum()
    kept = rounds.assign(place=end - 1, whole=rounds.accepted == rounds.drafted)
    return kept[(kept["round"] > 0) & (kept.drafted > 0) & (kept.truncated == 0) & (kept.committed > kept.accepted)]


@torch.inference_mode()
def ranks_of(
    pair: Pair, prompt: list[int], tokens: list[int], places: Sequence[int], layers: Sequence[int]
) -> list[list[int]]:
    """For each layer the ranks, from 0, of the tokens at these places of a text by that layer's states before them."""
    if not places:
        return [[] for _ in layers]
    target = pair.models["target"]
    session = Session(target, "target", vocabulary=pair.vocabulary)
    states = session.forward([*prompt, *tokens[:-1]], hidden=layers).hidden
    assert states is not None
    before = torch.tensor(places, device=states.device) + len(prompt) - 1
    added_tokens = torch.tensor([tokens[at] for at in places], device=states.device)
    runner = layer_runner(EAGER, target)
    ranks = []
    for part in states[before].chunk(len(layers), -1):
        logits = runner.output(part)[:, : pair.vocabulary]
        own = logits.gather(-1, added_tokens[:, None])
        ranks.append((logits > own).sum(-1).tolist())
    return ranks
