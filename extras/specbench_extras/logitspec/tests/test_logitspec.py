"""LogitSpec: its trees by hand, as of its own code and by a search without index; texts, and the target's law."""

import oracle
import pytest
import torch
from builders_engine import build, lonely
from drafted_trees import paths
from gates import DEVICE, decode, lively_prompt, pair
from law import Fit, fit
from official_cases import official_cases
from recalled import recalled
from refusals import one_line_error
from tabled import draw_for_each_branch

from specbench import config
from specbench.engine.session import Session
from specbench.engine.types import Sampling
from specbench_extras.logitspec.logitspec import LogitDrafter, LogitSpec, Settings, prefixes

ALPHA = 1e-4  # of a right rule being refused; wrong rules must fall below it


def sized(**changes) -> Settings:
    return Settings(
        **{"ngram": 3, "shortest": 1, "gamma": 3, "nodes": 9, "ranks": (1, 2), "lengths": (3, 2, 1), **changes}
    )


def test_a_tree_by_hand():
    """The text 1 2 3 1 2 4 1 2: "1 2" was last followed by four tokens, 4 1 of which have states; before by 3 1 2.

    The last logits prefer 2, which is the last token, then 3, 7, 4, 0. After "1 2 3" came 1 2; 7 is new, and gets two
    tokens at most; 4 and 0 stand alone. The last committed token counts among the nodes.
    """
    drafter = LogitDrafter(sized(), torch.device("cpu"))
    drafter.begin([])
    logits = torch.full((9,), -9.0)
    logits[[2, 3, 7, 4, 0]] = torch.tensor([9.0, 8, 7, 6, 5])
    text = [1, 2, 3, 1, 2, 4, 1, 2]

    def tree(nodes):
        drafter.settings = sized(nodes=nodes)
        drafter.see(logits)
        draft = drafter.propose(text, 3, Sampling(), torch.Generator())
        return draft.tokens.tolist(), draft.parents

    assert tree(10) == ([3, 1, 2, 7, 4, 0], (-1, 0, 1, -1, -1, -1))
    assert tree(8) == ([3, 1, 2, 7], (-1, 0, 1, -1)), "tokens that two drafts share count twice"
    assert tree(4) == ([3, 1, 2], (-1, 0, 1))


def test_prefixes_and_lengths_by_hand():
    assert prefixes([(1, 2), (), (1, 3), (4,)], 5) == [(1,), (1, 2), (1, 3), (4,)]
    assert prefixes([(1, 2), (), (1, 3), (4,)], 4) == [(1,), (1, 2), (1, 3)]
    assert prefixes([(1, 2), (3,)], 2) == [(1,), (1, 2)]
    shipped = Settings(**config.load_method("logitspec").values)
    assert [shipped.length(rank) for rank in (1, 8, 9, 32, 33, 64)] == [4, 4, 3, 3, 1, 1]


def test_drafts_are_those_of_its_own_code():
    """Of 24 texts, a third of which repeat a few tokens, after up to five rounds."""
    settings = Settings(**config.load_method("logitspec").values)
    cases = official_cases("logitspec")
    assert len(cases) == 24 and max(len(case["drafts"][0]) for case in cases) == settings.gamma
    for case in cases:
        drafter, context, last = LogitDrafter(settings, torch.device("cpu")), case["prompt"], case["order"][0]
        drafter.begin([])
        logits = torch.empty(len(case["order"]))
        logits[torch.tensor(case["order"])] = torch.arange(len(case["order"]), 0, -1.0)
        drafter.see(logits)
        for tokens in case["rounds"]:
            drafter.propose([*context, last], settings.gamma, Sampling(), torch.Generator())
            context = context + tokens
        draft = drafter.propose([*context, last], settings.gamma, Sampling(), torch.Generator())
        drafted = paths(draft.tokens.tolist(), draft.parents)
        assert set(drafted) == {tuple(path[: end + 1]) for path in case["drafts"] for end in range(len(path))}


def naive_paths(text, scores, settings) -> list[tuple[int, ...]]:
    """The paths of a draft by searching the text itself, from its end on."""

    known = text[:-1]

    def following(end):
        for n in range(min(settings.ngram, len(end)), settings.shortest - 1, -1):
            found = [start for start in range(n, len(known)) if known[start - n : start] == end[len(end) - n :]]
            if found:
                start = max(found, key=lambda start: (min(settings.gamma, len(known) - start), start))
                return tuple(known[start : start + settings.gamma])
        return ()

    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: settings.nodes]
    results = [following(text)]
    for rank, token in enumerate([token for token in order if token != text[-1]], 1):
        length = settings.lengths[0 if rank <= settings.ranks[0] else 1 if rank <= settings.ranks[1] else 2]
        results.append((token, *following([*text, token]))[:length])
    paths: list[tuple[int, ...]] = []
    count = 0
    for path in results:
        for length in range(1, len(path) + 1):
            count += 1
            if path[:length] not in paths and count < settings.nodes:
                paths.append(path[:length])
    return paths


@pytest.mark.skipif(DEVICE != "cpu", reason="the reference is slow")
def test_texts_and_trees_equal_a_decoder_without_cache_or_index():
    model, settings = oracle.tiny("llama", seed=3, vocab=16), sized(nodes=12, gamma=5)
    stood = 0
    for prompt in oracle.prompts(2, length=12, vocab=16, seed=5):
        tokens, rounds = decode(LogitSpec(Session(model, "target"), settings), prompt, 24)
        assert tokens == oracle.greedy(model, prompt, 24)
        text = [*prompt, *rounds[0].tokens]
        for round_ in rounds[1:-1]:
            expected = naive_paths(text, oracle.next_logits(model, text[:-1]).tolist(), settings)
            assert paths(round_.verdict.drafted, round_.verdict.parents) == expected
            text += round_.tokens
            stood += round_.accepted
    assert stood > 5


@pytest.mark.parametrize("architecture", oracle.ARCHITECTURES)
def test_greedy_texts_of_a_prompt_that_holds_them(architecture):
    """The prompt says what will be said, so that long paths stand."""
    prompt, text = lively_prompt(architecture, 12, 30)
    method = LogitSpec(Session(pair(architecture)[0], "target"), sized())
    assert decode(method, prompt, 30)[0] == text
    log = [*prompt, *text, *prompt]
    expected, _ = decode(build(lonely(architecture=architecture), "vanilla"), log, 20)
    assert decode(method, log, 20)[0] == expected


VOCABULARY = 4


def drawn(sampling: Sampling, draws: int = 500) -> Fit:
    target = oracle.tiny("llama", seed=1, vocab=VOCABULARY).to(DEVICE)
    method = LogitSpec(recalled(target, "target"), sized(nodes=6, lengths=(2, 2, 1)))
    return fit(method, target, [1, 3, 2, 0, 1], 4, sampling, draws)


@pytest.mark.parametrize("sampling", (Sampling(1.0), Sampling(0.8, top_k=3)), ids=str)
def test_samples_from_the_target(sampling):
    p, accepted, rejected = drawn(sampling)
    assert p > ALPHA and accepted > 100 and rejected > 100


def test_a_draw_of_its_own_for_each_branch_is_found(monkeypatch):
    draw_for_each_branch(monkeypatch)
    assert drawn(Sampling(1.0)).p < ALPHA


def test_what_ships_and_what_is_refused():
    method = build(lonely(), "logitspec")
    assert method.lossless and method.reach == 64 and method.inputs() == {} and method.state() is None
    with one_line_error("logitspec: its rounds are of up to 64 tokens, but lonely reads 63"):
        build(lonely(63), "logitspec")
    for ranks in ((8,), (32, 8)):
        with one_line_error("logitspec: ranks must increase, and lengths must have one more number"):
            build(lonely(), "logitspec", ranks=ranks)
    with one_line_error("logitspec: shortest: 4 is more than ngram"):
        build(lonely(), "logitspec", shortest=4)
