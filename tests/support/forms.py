"""Tiny models of every form that the runtimes read, whole forwards of them without a cache, and histories of calls."""

import copy
import functools

import oracle
import torch
from gates import DEVICE
from hypothesis import strategies as st
from transformers import PreTrainedModel

from specbench.engine.models.eagle_head import EagleHead, head_config
from specbench.engine.runtimes.types import Reads
from specbench.engine.session import LAST, Session

VOCABULARY = 96
FIRST = 16  # room at first, so that short texts outgrow it several times
# Norms and softmax compute in float32 even in a float64 model; in float32 everything does, and logits spread by 2.
CLOSE = {torch.float64: {"rtol": 0, "atol": 1e-4}, torch.float32: {"rtol": 0, "atol": 2e-3}}


def rope(kind: str, **more) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
FORMS = {
    **{architecture: functools.partial(oracle.tiny, architecture) for architecture in oracle.ARCHITECTURES},
    "mistral, window": functools.partial(oracle.tiny, "mistral", sliding_window=16),
    "mistral": functools.partial(oracle.tiny, "mistral", sliding_window=None),
    "qwen2, window above": functools.partial(oracle.tiny, "qwen2", **WINDOW),
    "qwen3, window above": functools.partial(oracle.tiny, "qwen3", **WINDOW),
    "gemma2, low caps": functools.partial(
        oracle.tiny, "gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=1.5
    ),
    "gemma2, own scale": functools.partial(
        oracle.tiny, "gemma2", attn_logit_softcapping=None, query_pre_attn_scalar=24
    ),
    "llama3 positions": functools.partial(oracle.tiny, "llama", **rope("llama3", **LLAMA3)),
    "yarn positions": functools.partial(
        oracle.tiny, "llama", **rope("yarn", factor=4.0, original_max_position_embeddings=64)
    ),
    "linear positions": functools.partial(oracle.tiny, "llama", **rope("linear", factor=4.0)),
    "one group": functools.partial(oracle.tiny, "llama", num_key_value_heads=1),
    "a group for each head": functools.partial(oracle.tiny, "llama", num_key_value_heads=4),
    "wide heads": functools.partial(oracle.tiny, "qwen3", head_dim=20),
    "tied embeddings": functools.partial(oracle.tiny, "llama", tie_word_embeddings=True),
    "all biases": functools.partial(oracle.tiny, "llama", attention_bias=True, mlp_bias=True),
    "no biases": functools.partial(oracle.tiny, "opt", enable_bias=False),
}


@functools.cache
def model(form: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    if dtype == torch.float64:
        return FORMS[form]().to(DEVICE)
    return copy.deepcopy(model(form)).to(dtype)


def text(length: int, seed: int = 0) -> list[int]:
    return oracle.prompts(1, length=length, seed=seed)[0]


@torch.no_grad()
def whole(one: PreTrainedModel, tokens: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [n, V] and all hidden states [n, D] of one forward without a cache, by transformers' own masks."""
    out = one(torch.tensor([tokens], device=DEVICE), use_cache=False, output_hidden_states=True)
    return out.logits[0], [state[0] for state in out.hidden_states]


def eagle(architecture: str, seed: int = 0) -> EagleHead:
    target, ids = model(architecture), torch.arange(0, VOCABULARY, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = EagleHead(head_config(target, len(ids)), ids, target.get_input_embeddings()).double()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(head.named_parameters()):
            noise = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            parameter.copy_(noise * 0.5) if parameter.ndim >= 2 else parameter.add_(0.3 * noise)
    return head.requires_grad_(False).eval().to(DEVICE)


# Histories of calls

lists = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
shapes = st.lists(st.integers(-1, 11), min_size=1, max_size=8)
ALONE = (  # behind these the cache holds what it would hold if the tokens had been read at once
    st.tuples(st.just("chain"), lists, st.integers(0, 3), st.sampled_from([(), LAST, (0, 1), (2, -1)])),
    st.tuples(st.just("device"), lists),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
    st.tuples(st.just("catch up"), st.floats(0, 1), lists),
    st.tuples(st.just("tree"), lists, shapes, st.integers(1, 12), st.integers(0, 11)),
)
TOGETHER = st.tuples(st.just("together"), lists, st.integers(1, 12))
alone_steps = st.lists(st.one_of(*ALONE), min_size=2, max_size=8)
steps = st.lists(st.one_of(*ALONE, TOGETHER), min_size=2, max_size=8)


def tree_reads(root, parents, last):
    """What the last so many tokens of a tree read; also the path to each, as indices of the tree's tokens."""
    paths = [path_to(parents, node) for node in range(len(parents))]
    allowed = torch.ones(last, root + len(parents), dtype=torch.bool)
    allowed[:, root:] = False
    for row, path in enumerate(paths[-last:]):
        allowed[row, [root + i for i in path]] = True
    places = torch.tensor([*range(root), *(root + len(path) - 1 for path in paths)])
    return Reads(allowed, places, root), paths


def path_to(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def played(session: Session, history) -> tuple[list[torch.Tensor], list[int]]:
    """Everything that a history of calls tells, and the tokens that the cache then must hold."""
    log, mirror = [], []

    def note(scored):
        log.extend([scored.logits] if scored.hidden is None else [scored.logits, scored.hidden])

    for kind, *values in history:
        if kind == "chain":
            tokens, keep, hidden = values
            note(session.forward(tokens, keep=min(keep, len(tokens)), hidden=hidden))
            mirror = mirror + tokens
        elif kind == "device":
            note(session.forward(torch.tensor(values[0], device=DEVICE)))
            mirror = mirror + values[0]
        elif kind == "together":
            tokens, count = values
            note(session.forward(tokens, together=min(count, len(tokens))))
            mirror = mirror + tokens
        elif kind == "truncate":
            mirror = mirror[: int(values[0] * len(mirror))]
            session.truncate(len(mirror))
        elif kind == "catch up":
            share, rest = values
            mirror = mirror[: int(share * len(mirror))] + rest
            note(session.catch_up(mirror, hidden=LAST))
        else:
            tokens, shape, parts, pick = values
            parents = [min(parent, i - 1) for i, parent in enumerate((shape * len(tokens))[: len(tokens)])]
            for start in range(0, len(tokens), parts):  # grown over several forwards, from the host and the device
                some = tokens[start : start + parts]
                fed = torch.tensor(some, device=DEVICE) if start else some
                note(session.forward(fed, parents=parents[start : start + parts], hidden=(1,)))
            path = path_to(parents, pick % len(tokens))
            session.keep(len(mirror), path)
            mirror = mirror + [tokens[i] for i in path]
    return log, mirror


def assert_tells_what_eager_tells(runtime, form: str, dtype: torch.dtype, history, last: list[int]) -> None:
    """A session at a runtime tells what one at eager tells all along, and then what a whole forward tells."""
    one = model(form, dtype)
    session, reference = Session(one, "target", runtime=runtime), Session(one, "target")
    (result, mirror), (expected, _) = played(session, history), played(reference, history)
    for a, b in zip(result, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=CLOSE[dtype]["atol"])
    assert session.tokens == mirror and len(session) == len(mirror)
    rows = session.forward(last).logits
    if not any(kind == "together" for kind, *_ in history):  # what was read so stays in the cache
        torch.testing.assert_close(rows, whole(one, mirror + last)[0][len(mirror) :], **CLOSE[dtype])
    torch.testing.assert_close(rows, reference.forward(last).logits, **CLOSE[dtype])
