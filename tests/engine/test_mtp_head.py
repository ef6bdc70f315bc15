"""Modules of MTP as heads: their drafts are those of transformers' own module, on every runtime that knows heads."""

import pytest
from captured import random_module
from cases import mostly_long
from forms import model, text
from gates import DEVICE, decode

from specbench.config import load_pair as read_pair
from specbench.engine.models.mtp import new_modules
from specbench.engine.models.mtp_drafts import Modules
from specbench.engine.models.mtp_head import as_head
from specbench.engine.models.pair import load_pair
from specbench.engine.runtimes.choose import head_runtime
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import LAST, Session, Unwatched
from specbench.measure.prompts import encode
from specbench.methods.heads.eagle3 import EagleDrafter
from specbench.methods.heads.mtp import Mtp, MtpDrafter, loaded
from specbench_extras.bench.prompts import bundled_prompts


def drafted(method: Mtp, prompt, count: int):
    said, rounds = decode(method, prompt, count)
    return said, [(each.verdict.drafted, each.accepted) for each in rounds if each.verdict]


def by_head(target, module, vocabulary: int, steps: int, runtime) -> Mtp:
    head = as_head(module, vocabulary)
    session = Session(head, "draft", vocabulary=vocabulary, runtime=head_runtime(runtime, head))
    drafter = EagleDrafter(head, session, LAST, steps + 1, 1, steps - 1)
    return Mtp(Session(target, "target", vocabulary=vocabulary), drafter, steps, {})


def by_transformers(target, module, vocabulary: int, steps: int) -> Mtp:
    drafter = MtpDrafter(Modules(module, steps), vocabulary, Unwatched())
    return Mtp(Session(target, "target", vocabulary=vocabulary), drafter, steps, {})


@mostly_long(
    "form, runtime",
    [(form, runtime) for form in ("llama", "mistral", "qwen2", "qwen3") for runtime in (EAGER, STATIC)],
    (("llama", STATIC), ("qwen3", STATIC), ("qwen2", EAGER)),
)
@pytest.mark.parametrize("steps", (1, 4))
def test_drafts_are_transformers(form, runtime, steps):
    target, module = model(form), random_module(model(form))
    said, expected = drafted(by_transformers(target, module, 96, steps), text(9), 24)
    assert drafted(by_head(target, module, 96, steps, runtime), text(9), 24) == (said, expected)
    assert len({tokens[-1] for tokens, _ in expected}) > 2
    assert all(len(tokens) == steps for tokens, _ in expected)


def test_a_trained_module_drafts_the_same_where_much_is_accepted():
    pair = load_pair(read_pair("pocket"), DEVICE)
    target = pair.models["target"]
    (module, steps), _ = loaded("auto", pair)
    prompt = encode(pair, bundled_prompts("gsm8k", 1)[0])
    said, expected = drafted(by_transformers(target, module, pair.vocabulary, steps), prompt, 40)
    accepted = [count for _, count in expected]
    assert sum(accepted) > 15 and len(set(accepted)) > 2
    for runtime in (EAGER, STATIC):
        assert drafted(by_head(target, module, pair.vocabulary, steps, runtime), prompt, 40) == (said, expected)


@pytest.mark.parametrize("form", ("gemma2", "mistral, window"))
def test_other_layers_stay_with_transformers(form):
    assert as_head(new_modules(model(form)), 96) is None
