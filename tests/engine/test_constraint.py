"""Constraints: the definition, a token at a time; and the enumerated law of sampled texts, whatever the draft."""

from collections import Counter
from dataclasses import replace

import letters
import numpy as np
import oracle
import pytest
import torch
from gates import DEVICE
from letters import END, PATTERN, allowed

from specbench import config
from specbench.base.errors import UserError
from specbench.config.specs import Constraint
from specbench.engine.clock import MASKS, Forward, Lap, RowStopwatch, SharedForward, Stopwatch
from specbench.engine.constraint import Constraining, Grammars, Stuck
from specbench.engine.generate import Ending, Limits, decode_text
from specbench.engine.models.pair import Pair
from specbench.engine.penalties import Penalties
from specbench.engine.sampling import probabilities
from specbench.engine.session import Session, Unwatched
from specbench.engine.speculate import read_in_chunks
from specbench.engine.types import Sampling
from specbench.measure.prepare import build

V = 5
PROMPT = [1, 0, 2, 0]
RULE = Constraint("regex", PATTERN)
LENGTH = 14  # more tokens than any text has


@pytest.fixture(scope="module")
def models():
    return {role: oracle.tiny("llama", seed=seed, vocab=V).to(DEVICE) for role, seed in (("target", 5), ("draft", 2))}


@pytest.fixture(scope="module")
def grammars():
    return Grammars(letters.tokenizer(), V, frozenset({END}))


def session_of(model, grammars, penalties=Penalties()):  # noqa: B008
    change = Constraining(grammars, current=RULE).of("target", penalties, Unwatched())
    return Session(model, "target", change=change)


def masked(logits, answer):
    """The definition."""
    may = allowed(tuple(answer))
    return logits if may is None else torch.tensor([x if ok else -torch.inf for x, ok in zip(logits, may, strict=True)])


def test_each_row_of_a_session_is_constrained_by_the_answer_before_it(models, grammars):
    target, answer = models["target"], [0, 1, 2, 3]
    session = session_of(target, grammars)
    rows, excluded = [session.restart(PROMPT).logits, session.forward(answer).logits], []
    for read, row in enumerate(torch.cat(rows)):
        expected = masked(oracle.next_logits(target, [*PROMPT, *answer[:read]]), answer[:read])
        excluded = [*excluded, int(expected.isinf().sum())]
        torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)
    assert excluded == [2, 2, 1, 1, 0]
    session.truncate(len(PROMPT) + 1)  # a rollback is forgotten
    row = session.forward([3]).logits[-1]
    torch.testing.assert_close(
        row.cpu(), masked(oracle.next_logits(target, [*PROMPT, 0, 3]), [0, 3]), rtol=0, atol=1e-5
    )
    session.change.constraining.current = Constraint("regex", "c*")
    (row,) = session.restart(PROMPT).logits
    assert row.isfinite().tolist() == [False, False, True, False, True], "another text may be another one"
    session.change.constraining.current = None
    (row,) = session.restart(PROMPT).logits
    torch.testing.assert_close(row.cpu(), oracle.next_logits(target, PROMPT), rtol=0, atol=1e-5)


def test_each_node_of_a_tree_is_constrained_by_its_own_path(models, grammars):
    """Nodes that are not allowed, and those after them and after the end, keep their logits."""
    target = models["target"]
    session = session_of(target, grammars)
    session.restart(PROMPT)
    tokens, parents = [0, 1, 1, 2, END, 2, 0], [-1, -1, 0, 1, 0, 2, 4]
    paths = ([0], [1], [0, 1], [1, 2], [0, END], [0, 1, 2], [0, END, 0])
    rows = [
        session.forward(tokens[:3], parents=parents[:3]).logits,
        session.forward(tokens[3:], parents=parents[3:])[0],
    ]
    for path, row in zip(paths, torch.cat(rows), strict=True):
        expected = masked(oracle.next_logits(target, [*PROMPT, *path]), path)
        torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)


def test_a_prompt_that_is_read_in_chunks_is_no_answer(models, grammars):
    rows = [scored.logits for scored in read_in_chunks(session_of(models["target"], grammars), PROMPT, 3)]
    for read, row in enumerate(torch.cat(rows), 1):
        raw = oracle.next_logits(models["target"], PROMPT[:read])
        expected = masked(raw, []) if read == len(PROMPT) else raw
        torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)


def test_penalties_come_first(models, grammars):
    (row,) = session_of(models["target"], grammars, Penalties(repetition=2.0)).restart(PROMPT).logits
    raw = oracle.next_logits(models["target"], PROMPT)
    halved = torch.where(raw > 0, raw / 2, raw * 2)
    expected = masked(torch.stack([halved[i] if i in PROMPT else raw[i] for i in range(V)]), [])
    torch.testing.assert_close(row.cpu(), expected, rtol=0, atol=1e-5)


def of_name(name, models, grammars, draft=False, **changes):
    """A method of tiny models under the constraint, and what its session is under."""
    spec = config.load_method(name)
    changes |= {key: 3 for key in ("gamma", "draft_length") if key in spec.settings}
    changes |= {"branching": [2, 1]} if name == "rsd" else {}
    changes |= {"drafter": "draft"} if name == "grammar" else {}  # nothing is forced by this pattern
    changes |= {"whole": False} if "whole" in spec.settings else {}  # texts are shorter than γ tokens after a place
    spec = config.override(spec, {key: config.Setting(value=value) for key, value in changes.items()})
    constraining = Constraining(grammars, draft, RULE)
    return build(spec, Pair("tiny", models, letters.tokenizer(), constraining=constraining), Unwatched())


def answer_of(method, sampling=Sampling(), rng=None, prompt=PROMPT):  # noqa: B008
    ending = Ending(Limits(LENGTH, frozenset({END})), lambda ids: "")
    verdicts = [step.verdict for step in decode_text(method, prompt, sampling, rng or torch.Generator(), ending)]
    return ending.tokens, sum(verdict.accepted for verdict in verdicts if verdict)


EXACT = [
    "vanilla",
    "sps",
    "pearl",
    "rsd",
    "mdsd",
    "sequoia",
    "pld",
    "lookahead",
    "recycling",
    "suffix",
    "sam",
    "grammar",
]


@pytest.mark.parametrize(("name", "draft"), [*((name, False) for name in EXACT), ("sps", True), ("rsd", True)])
def test_greedy_texts_are_those_of_the_definition(models, grammars, name, draft):
    method, differing = of_name(name, models, grammars, draft), 0
    for prompt in oracle.prompts(8, length=6, vocab=END, seed=3):
        text: list[int] = []
        while END not in text:
            raw = oracle.next_logits(models["target"], [*prompt, *text])
            text.append(int(masked(raw, text).argmax()))
            differing += text[-1] != int(raw.argmax())
        assert answer_of(method, prompt=prompt)[0] == text
    assert differing, "the constraint shows"


def law(target, sampling, each_position=True, answer=()):
    """The probability of every text that the constraint allows.

    The target's, renormalised at every position; or (the control) that of its free texts, given that they are allowed.
    """
    raw = oracle.next_logits(target, [*PROMPT, *answer])
    may = np.array(allowed(answer))
    p = probabilities((masked(raw, answer) if each_position else raw)[None], sampling)[0].numpy() * may
    texts = {(*answer, END): p[END]} if p[END] else {}
    for token in np.flatnonzero(p[:END]).tolist():
        texts |= {t: p[token] * q for t, q in law(target, sampling, each_position, (*answer, token)).items()}
    total = sum(texts.values())
    return texts if each_position or answer else {text: q / total for text, q in texts.items()}


def fits(drawn, expected, draws):
    """The p-value of drawn texts, of which those that are expected less than five times count together."""
    assert drawn.keys() <= expected.keys(), "only what is allowed"
    often = [text for text, p in expected.items() if p * draws >= 5]
    counts = [drawn[text] for text in often]
    likely = [expected[text] for text in often]
    return oracle.chi_square(np.array([*counts, draws - sum(counts)]), np.array([*likely, 1 - sum(likely)]))


SAMPLED = [
    ("sps", False),
    ("rsd", False),
    ("sps", True),
    ("rsd", True),
    ("mdsd", True),
    ("pld", False),
    ("grammar", False),
    ("vanilla", False),
]


@pytest.mark.parametrize(
    ("name", "draft"), [pytest.param(*each, marks=[pytest.mark.long] * (i > 1)) for i, each in enumerate(SAMPLED)]
)
def test_sampled_texts_follow_the_enumerated_law(models, grammars, name, draft):
    sampling, draws = Sampling(0.8), 300
    method, rng = of_name(name, models, grammars, draft), torch.Generator(DEVICE).manual_seed(0)
    drawn, accepted = Counter(), 0
    for _ in range(draws):
        tokens, passed = answer_of(method, sampling, rng)
        drawn[tuple(tokens)] += 1
        accepted += passed
    assert accepted or name == "vanilla"
    assert fits(drawn, law(models["target"], sampling), draws) > 1e-4
    assert fits(drawn, law(models["target"], sampling, False), draws) < 1e-4, "not a free text that happens to follow"


LOSSY = {
    "lossy": {"gate_threshold": 0.0},
    "csd": {"count_threshold": 0, "gate_threshold": 0.0, "memory": "none"},
    "fly": {"entropy_threshold": 0.0, "window_length": 1},
}


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lossy_methods_keep_only_what_is_allowed(models, grammars, name, temperature):
    method, rng = of_name(name, models, grammars, **LOSSY[name]), torch.Generator(DEVICE).manual_seed(0)
    for _ in range(30):
        tokens, _ = answer_of(method, Sampling(temperature), rng)
        assert "".join(letters.TEXTS[token] for token in tokens) in letters.language()


@pytest.mark.parametrize("name", ["reflective", "cos", "cascade", "member"])
def test_methods_that_do_not_ask_the_target_about_the_answer_refuse_constraints(models, grammars, name):
    with pytest.raises(UserError, match="leave out the method or the constraint"):
        of_name(name, models, grammars)


def test_drafts_without_a_model_are_named(models, grammars, capsys):
    of_name("sps", models, grammars, draft=True)
    of_name("vanilla", models, grammars, draft=True)
    assert "not constrained" not in capsys.readouterr().out
    of_name("pld", models, grammars, draft=True)
    assert "pld: its drafts are not constrained" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("schema", '{"type": "strong"}', "the schema cannot be used: Invalid type"),
        ("schema", '{"type": "object", "required": ["a"], "properties": {"a": false}}', "Unsatisfiable"),
        ("schema", '{"enum": []}', "Unsatisfiable"),
        ("regex", "(", "the regex cannot be used"),
        ("regex", r"[^\s\S]", "no text that these models can write follows the regex"),
        ("regex", "d+", "no text that these models can write"),  # of a letter that no token has
        ("lark", 'foo: "a"', "no start rule"),
        ("lark", "start: start", "no text"),
        ("lark", 'start: "a" start', "more than 20000 characters"),
    ],
)
def test_constraints_that_no_text_follows(grammars, kind, text, says):
    with pytest.raises(UserError, match=says):
        grammars.matcher(Constraint(kind, text))


def test_a_text_that_cannot_go_on_is_an_error(models, grammars):
    """After `a` only letters follow that no token has; as a draft it is no error, and the next text is another."""
    session = session_of(models["target"], grammars)
    session.change.constraining.current = Constraint("regex", "ad|bc")
    session.restart(PROMPT)
    with pytest.raises(Stuck, match="cannot be followed further"):
        session.forward([0])
    (row,) = session.restart(PROMPT).logits
    assert row.isfinite().tolist() == [True, True, False, False, False]
    rows = session.forward([1, 2, 0]).logits
    assert rows[0].isfinite().tolist() == [False, False, True, False, False]
    session.restart(PROMPT)
    root, dead, _ = session.forward([1, 0, 2], parents=[-1, 0, 0]).logits
    assert root.isfinite().sum() == 1 and dead.isfinite().all()


def test_a_token_that_is_not_allowed_is_never_read_as_said(models, grammars):
    """Whatever a method does wrong, its text is not taken for one that follows."""
    session = session_of(models["target"], grammars)
    session.restart(PROMPT)
    with pytest.raises(Stuck, match="token 1 of the answer is not allowed"):
        session.forward([2])
    session.restart(PROMPT)
    session.forward([0, 2])  # as a draft it may be read


def test_tokenizers_that_cannot_be_used():
    with pytest.raises(UserError, match="no constraint can be applied to this tokenizer"):
        Grammars(object(), V, frozenset({END}))
    with pytest.raises(UserError, match="ends with an end token"):
        Grammars(letters.tokenizer(), V, frozenset({V}))


def test_models_whose_texts_do_not_end_on_their_own_are_refused(models):
    pair = replace(Pair("tiny", models, letters.tokenizer()), ignore_eos=True)
    with pytest.raises(UserError, match="--ignore-eos"):
        Grammars(pair.tokenizer, pair.vocabulary, pair.eos_ids)


def test_the_time_of_masks_is_no_time_of_forwards(models, grammars):
    lap = Lap(1.0, [Forward("target", 1, 0, 0.25, 10.0), Forward(MASKS, 1, 0, 0.5, 10.25)])
    assert (lap.busy, lap.time(MASKS)) == (0.25, 0.5)
    shared = Lap(1.0, [SharedForward("target", 1, 0, 0.25), SharedForward(MASKS, 1, 0, 0.5)])
    assert (shared.busy, shared.time(MASKS)) == (0.25, 0.5)
    watch = Stopwatch(torch.device("cpu"))
    constraining = Constraining(grammars, current=RULE)
    pair = Pair("tiny", models, letters.tokenizer(), constraining=constraining)
    watch.start()
    pair.session("target", watch).restart(PROMPT)
    watch.lap()
    (lap,) = watch.laps()
    assert lap.count(MASKS) == 1 and 0 < lap.time(MASKS) < lap.seconds - lap.busy
    assert RowStopwatch().forward(MASKS, 1, 0).model == MASKS


@pytest.mark.long
def test_texts_of_every_method_that_tiny_models_can_run_follow_their_constraint(models, grammars):
    """Each refuses, or its texts are in the language; lossless greedy ones are vanilla's."""
    followed = 0
    for name in config.names("methods"):
        try:
            method = of_name(name, models, grammars)
        except UserError:  # a head that is not there, or the constraint
            continue
        for temperature in (0.0,) if name == "oracle" else (0.0, 1.0):
            for seed, prompt in enumerate(oracle.prompts(6, length=6, vocab=END, seed=3)):
                tokens, _ = answer_of(method, Sampling(temperature), torch.Generator(DEVICE).manual_seed(seed), prompt)
                assert "".join(letters.TEXTS[token] for token in tokens) in letters.language(), name
                if method.lossless and not temperature:
                    assert tokens == answer_of(of_name("vanilla", models, grammars), prompt=prompt)[0], name
        followed += 1
    assert followed >= 40
