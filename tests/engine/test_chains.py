"""A draft in one call is what it is token by token: tokens, distributions, draws, and what stays in the cache."""

import pytest
import torch
from forms import CLOSE, model
from gates import DEVICE, pair, without_looking
from stepped import PROMPT, assert_chains_are_steps
from watched import Told, reads_of_tensors

from specbench.engine.clock import Stopwatch
from specbench.engine.drafters import ModelDrafter
from specbench.engine.lengths import Lengths
from specbench.engine.runtimes.batched import Batched
from specbench.engine.runtimes.eager import EAGER
from specbench.engine.runtimes.graph import Graph
from specbench.engine.runtimes.static import STATIC
from specbench.engine.session import Session
from specbench.engine.types import NotFinite, Sampling

RUNTIMES = {"eager": EAGER, "static": STATIC, "graph": Graph(torch.device(DEVICE), captures=False)}
SAMPLINGS = (Sampling(), Sampling(1.0), Sampling(0.7, top_k=20, top_p=0.9))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("form", ("llama", "gemma2", "opt"))
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_chain_is_its_steps(runtime, form, sampling):
    one, other = (Session(model(form), "draft", vocabulary=90, runtime=RUNTIMES[runtime]) for _ in "ab")
    assert_chains_are_steps(one, other, sampling, CLOSE[torch.float64])


def test_the_watch_sees_one_call_with_all_its_passes():
    watched = Told()
    drafter = ModelDrafter(Session(model("llama"), "draft", watched))
    drafter.begin(PROMPT)
    drafter.propose([*PROMPT, 7, 8], 4, Sampling(), torch.Generator())
    assert watched.forwards[1:] == [("draft", 2 + 3, len(PROMPT), 4)]
    watch = Stopwatch(torch.device(DEVICE))
    session = Session(model("llama"), "draft", watch)
    session.restart(PROMPT)
    watch.start()
    session.draft_chain([*PROMPT, 7], 4, Sampling(), torch.Generator())
    watch.lap()
    (lap,) = watch.laps()
    assert lap.count("draft") == 4 and len(lap.forwards) == 1 and lap.time("draft") == lap.forwards[0].seconds > 0


def test_nothing_is_read_from_the_device(monkeypatch):
    without_looking(monkeypatch)
    session = Session(model("llama"), "draft", runtime=RUNTIMES["graph"])
    session.restart(PROMPT)
    reads = reads_of_tensors(monkeypatch)
    for sampling in SAMPLINGS:
        rng = torch.Generator(DEVICE)
        session.draft_chain([*PROMPT, 7], 4, sampling, rng)
        session.truncate(len(PROMPT))
    assert not reads


class Looking(Lengths):
    looks = True


class Changed(Session):
    """Computes forwards in a way of its own."""

    def forward(self, *given, **named):
        return super().forward(*given, **named)


@pytest.mark.parametrize("why", ("looks", "end tokens", "in batches", "a forward of its own", "nothing cached"))
def test_what_needs_a_look_or_another_computation_is_drafted_token_by_token(why):
    watched = Told()
    runtime = Batched("static") if why == "in batches" else STATIC
    session = (Changed if why == "a forward of its own" else Session)(
        pair("llama")[1], "draft", watched, runtime=runtime
    )
    ends = frozenset({95}) if why == "end tokens" else frozenset()
    drafter = ModelDrafter(session, Looking() if why == "looks" else None, ends)
    if why != "nothing cached":
        drafter.begin(PROMPT)
    watched.forwards.clear()
    drafter.propose([*PROMPT, 7], 3, Sampling(), torch.Generator())
    assert [(role, width) for role, width, _ in watched.forwards][1:] == [("draft", 1)] * 2


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU the watch looks later")
def test_a_draft_that_is_not_finite_is_named():
    broken = Session(model("llama"), "draft")
    broken.restart(PROMPT)
    with torch.inference_mode():
        broken._runner._cache.layers[0].values[:] = torch.nan
    with pytest.raises(NotFinite, match="the logits of the draft are not finite after token 7 "):
        broken.draft_chain([*PROMPT, 7], 3, Sampling(), torch.Generator())
