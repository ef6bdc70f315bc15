"""What a chain of drafted tokens takes on `openvino`: a call a token, as it is built, or all tokens in one graph.

Run by `make bench`. The bundled draft goes on greedily after 200 tokens. The graph has one copy of the model's layers
for each token, which read the cached keys and values and those of the copies before: for any length of the cache, or
for a room of 512 tokens of which a mask leaves out the empty ones, with all shapes fixed. Its new keys and values are
written into the cache after the call. Seconds of turns in one process, one thread; before each call the target verifies
five tokens, as in a round, and the gain is given as a share of both together, too.
"""

import importlib.util
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from benches import GREEDY, by_turns
from torch import Tensor, nn
from transformers import DynamicCache

from specbench.base.stats import Paired, speedup
from specbench.config import load_pair as read_pair
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes import choose

COUNT, CONTEXT, ROOM, TURNS = 4, 200, 512, 200


class Unrolled(nn.Module):
    """A Llama that chooses COUNT tokens in one forward."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), torch.arange(1024)[None])
        self.register_buffer("cos", cos[0])
        self.register_buffer("sin", sin[0])

    def forward(self, token: Tensor, place: Tensor, past: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """After a `token` [1] at `place` [1], keys and values `past` [2 layers, groups, L, D] and `mask` [L], added:

        the tokens [COUNT], their logits [COUNT, V], and what they add to `past`.
        """
        config, body = self.model.config, self.model.model
        groups, size = config.num_key_value_heads, config.head_dim
        heads = config.num_attention_heads // groups
        added: list[list[Tensor]] = [[] for _ in range(2 * len(body.layers))]
        tokens, rows = [], []

        def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat([-b, a], -1) * sin

        for step in range(COUNT):
            x = body.embed_tokens(token)
            turn = self.cos[place + step], self.sin[place + step]
            for at, layer in enumerate(body.layers):
                own, read = layer.self_attn, layer.input_layernorm(x)
                query = turned(own.q_proj(read).view(groups, heads, size), *turn) * size**-0.5
                added[2 * at].append(turned(own.k_proj(read).view(groups, 1, size), *turn))
                added[2 * at + 1].append(own.v_proj(read).view(groups, 1, size))
                keys, values = (torch.cat(added[2 * at + which], 1) for which in (0, 1))
                old = query @ past[2 * at].transpose(1, 2) + mask
                share = torch.softmax(torch.cat([old, query @ keys.transpose(1, 2)], -1), -1)
                length = past.shape[2]
                mixed = share[:, :, :length] @ past[2 * at + 1] + share[:, :, length:] @ values
                x = x + own.o_proj(mixed.reshape(1, -1))
                x = x + layer.mlp(layer.post_attention_layernorm(x))
            logits = self.model.lm_head(body.norm(x))
            token = logits.argmax(-1)
            tokens.append(token)
            rows.append(logits)
        return torch.cat(tokens), torch.cat(rows), torch.stack([torch.cat(parts, 1) for parts in added])


def main() -> int:
    if importlib.util.find_spec("openvino") is None:
        print("openvino is not installed")
        return 0

    torch.set_num_threads(1)
    pair = load_pair(read_pair("pocket"), device="cpu")
    runtime = choose.runtime("openvino", pair)
    target, draft = (runtime.runner(pair.models[role]) for role in ("target", "draft"))
    text = torch.arange(CONTEXT) + 5
    for run in (target, draft):
        run.forward(text, 1, (), None, None)
    last, verified, rng = torch.tensor([7]), torch.tensor([7, 8, 9, 10, 11]), torch.Generator()

    def verify() -> None:
        target.truncate(CONTEXT)
        target.forward(verified, 0, (), None, None)

    def call_a_token() -> list[int]:
        draft.truncate(CONTEXT)
        return draft.chain(last, COUNT, pair.vocabulary, GREEDY, rng).ids

    for _ in range(6):
        verify()
    runtime.settle()
    cache = DynamicCache()
    with torch.inference_mode():
        pair.models["draft"](text[None], past_key_values=cache)
    past = torch.cat([part for layer in cache.layers for part in (layer.keys, layer.values)]).numpy()
    ways: dict[str, Callable[[], list[int]]] = {
        "a call a token": call_a_token,
        "one graph, any length": graph(pair.models["draft"], past, False),
        f"one graph, room for {ROOM}": graph(pair.models["draft"], past, True),
    }
    seconds, cpu, both = ({way: np.zeros(TURNS) for way in ways} for _ in range(3))
    said = {way: call() for way, call in ways.items()}  # what is compiled on the first call is not timed
    for turn, names in enumerate(by_turns(list(ways), TURNS)):
        for way in names:
            start = process_time()
            verify()
            began, used = perf_counter(), process_time()
            said[way] = ways[way]()
            seconds[way][turn] = perf_counter() - began
            cpu[way][turn], both[way][turn] = process_time() - used, process_time() - start
    print(f"a chain of {COUNT} tokens after {CONTEXT}, {TURNS} turns; milliseconds, medians (processor's)")
    for way in ways:
        print(f"  {way}: {1e3 * np.median(seconds[way]):.2f} ({1e3 * np.median(cpu[way]):.2f})")
    print("by processor seconds, with 95 % intervals")
    once, (base, *others) = np.ones(TURNS), ways
    for way in others:
        for what, times in (("", cpu), (", verification included", both)):
            ratio = speedup(Paired(times[way], once, times[base], once))
            assert ratio
            print(f"  {way} takes {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of {base}{what}")
    return int(len({tuple(tokens) for tokens in said.values()}) > 1)


def graph(model: Any, past: np.ndarray, fixed: bool) -> Callable[[], list[int]]:
    """A call of the model's graph over its cache [2 layers, groups, CONTEXT, D], which is prolonged by the call."""
    import openvino as ov

    from specbench_extras.openvino.paged import settings
    from specbench_extras.openvino.request import shared

    count, groups, _, size = past.shape
    kept = np.zeros((count, groups, ROOM, size), np.float32)
    kept[:, :, :CONTEXT] = past
    mask = np.full(ROOM, -np.inf, np.float32)
    mask[:CONTEXT] = 0
    token, place = np.array([7]), np.array([CONTEXT])
    given = (token, place, kept, mask) if fixed else (token, place, past.copy(), mask[:CONTEXT].copy())
    with torch.inference_mode():
        exported = ov.convert_model(Unrolled(model).eval(), example_input=tuple(map(torch.from_numpy, given)))
    length = ROOM if fixed else -1
    shapes = ([1], [1], [count, groups, length, size], [length])
    exported.reshape(dict(zip(exported.inputs, shapes, strict=True)))
    request = ov.Core().compile_model(exported, "CPU", settings(1)).create_infer_request()
    for index, array in enumerate(given):
        request.set_input_tensor(index, shared(array))

    def call() -> list[int]:
        token[0], place[0] = 7, CONTEXT
        if fixed:
            mask[CONTEXT:] = -np.inf
        request.infer(share_outputs=True)
        tokens, rows, added = (request.get_output_tensor(index).data for index in range(3))
        rows.copy()
        kept[:, :, CONTEXT : CONTEXT + COUNT] = added
        return tokens.tolist()

    return call


if __name__ == "__main__":
    sys.exit(main())
