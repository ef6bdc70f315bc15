"""Drafts of what a constraint forces: by hand, lossless whatever the tokens, and never a token that is not allowed."""

import letters
import oracle
import pytest
import torch
from gates import DEVICE
from letters import END

from specbench import config
from specbench.base.errors import UserError
from specbench.config.specs import Constraint
from specbench.engine.constraint import Constrained, Constraining, Grammars
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.session import Unwatched
from specbench.engine.types import Sampling
from specbench.measure.prepare import build

V, PROMPT = 5, [1, 0, 2, 0]
FORCING = Constraint("regex", "(a|b)ccabcc(a|b)bbbc")


@pytest.fixture(scope="module")
def pair():
    models = {role: oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for role, seed in (("target", 5), ("draft", 2))}
    grammars = Grammars(letters.tokenizer(), V, frozenset({END}))
    return Pair("tiny", models, letters.tokenizer(), constraining=Constraining(grammars, current=FORCING))


def of_name(pair, name="grammar", **changes):
    spec = config.override(
        config.load_method(name), {key: config.Setting(value=value) for key, value in changes.items()}
    )
    return build(spec, pair, Unwatched())


def answer_of(method, sampling=Sampling(), rng=None):  # noqa: B008
    ending = Ending(Limits(30, frozenset({END})), lambda ids: "")
    steps = list(decode_text(method, PROMPT, sampling, rng or torch.Generator(DEVICE), ending))
    return ending.tokens, [step.verdict for step in steps if step.verdict]


def test_what_is_forced_by_hand(pair):
    """After the first letter six letters follow; `ab` is one token, and its `c` might have begun another one."""
    follower = Constrained(pair.constraining, None, Unwatched())
    assert follower.forced([]) == [], "a and b are both allowed"
    forced = follower.forced([0])
    assert "".join(letters.TEXTS[token] for token in forced) in ("ccabcc", "ccabc", "ccab") and 3 in forced
    assert follower.forced([2]) == follower.forced([0, 0]) == [], "not allowed"
    assert follower.forced([0, 2, 2, 0, 1, 2, 2]) == [], "a and b again, whatever tokens came before"


def test_the_other_drafter_goes_on_after_what_is_forced(pair):
    drafter = of_name(pair, forced=3, gamma=2, drafter="draft").drafter
    drafter.begin(PROMPT)
    for temperature in (0.0, 1.0):
        draft = drafter.propose([*PROMPT, 0], 5, Sampling(temperature), torch.Generator(DEVICE).manual_seed(0))
        assert draft.tokens[:3].tolist() == drafter.follower.forced([0])[:3]
        if temperature:
            logits = oracle.next_logits(pair.models["draft"], [*PROMPT, 0, *draft.tokens[:3].tolist()])
            torch.testing.assert_close(draft.probs[3].cpu(), logits.softmax(-1), rtol=0, atol=1e-6)
            assert draft.probs[range(3), draft.tokens[:3]].tolist() == [1.0] * 3
        else:
            assert draft.tokens[3:].tolist() == oracle.greedy(
                pair.models["draft"], [*PROMPT, 0, *draft.tokens[:3].tolist()], 2
            )


@pytest.mark.parametrize("drafter", ["none", "pld", "sam", "draft"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_vanillas_in_fewer_rounds(pair, drafter, temperature):
    method = of_name(pair, forced=6, gamma=2, drafter=drafter)
    assert method.reach == 7 + 2 * (drafter != "none")
    for seed in range(5):
        rng = torch.Generator(DEVICE).manual_seed(seed)
        tokens, verdicts = answer_of(method, Sampling(temperature), rng)
        text = "".join(letters.TEXTS[token] for token in tokens)
        assert len(text) == 12 and text[1:7] == "ccabcc" and text[8:] == "bbbc" and tokens[-1] == END
        assert all(len(verdict.drafted) < method.reach for verdict in verdicts)
        assert sum(verdict.accepted for verdict in verdicts) >= 4
        if not temperature:
            assert tokens == answer_of(of_name(pair, "vanilla"))[0]


def test_without_a_constraint_the_other_drafter_drafts_alone(pair, capsys):
    free = Pair("tiny", pair.models, letters.tokenizer())
    method = of_name(free)
    assert "grammar drafts what a constraint forces, and there is none" in " ".join(capsys.readouterr().out.split())
    alone = of_name(free, "pld")
    assert answer_of(method)[0] == answer_of(alone)[0]
    assert [v.drafted for v in answer_of(method)[1]] == [v.drafted for v in answer_of(alone)[1]]


def test_another_drafter_is_refused(pair):
    with pytest.raises(UserError, match="drafter=eagle: choose none, draft, pld, sam"):
        of_name(pair, drafter="eagle")
