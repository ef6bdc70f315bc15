"""The audit finds six seeded defects, passes what is lossless, and knows what it can see."""

import json
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import torch
from cases import mostly_long
from refusals import one_line_error
from scipy import stats as scipy_stats
from screens import call, output, rendered
from tiny_blocks import in_file, recipe

from specbench.base import stats
from specbench.engine import accept as rules
from specbench.engine.drafters import ModelDrafter
from specbench.engine.models.pair import Pair
from specbench.engine.sampling import draw, pick, probabilities
from specbench.engine.session import Session
from specbench.engine.speculate import speculate
from specbench.engine.types import Draft, Round, Sampling, Stateless
from specbench.measure.divergence import Reference
from specbench.methods.blocks import dflash
from specbench.methods.blocks.dflash import block_head
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla
from specbench.plan import resolve_plan
from specbench.report.views.audit import details, power, view
from specbench.studies import audit, audit_sampling
from specbench_extras.dflash.fit import new_head

DRAWS = 45


@pytest.fixture(scope="module")
def pair():
    """Two tiny models of many opinions: draws cost little."""
    models = {role: oracle.tiny("llama", seed=seed, vocab=12) for role, seed in (("target", 1), ("draft", 2))}
    tokenizer = SimpleNamespace(decode=lambda ids, **_: "", eos_token_id=None)
    return Pair("tiny", models, tokenizer)


@pytest.fixture(scope="module")
def documents(pocket):
    plan = resolve_plan(["sps"], "pocket", "pocket", [], None, 1, None)
    return audit.prompts_of(plan, pocket)


@pytest.fixture(scope="module")
def prompts():
    texts = oracle.prompts(4, length=6, seed=3)
    return [audit_sampling.Start("made up", i, [token % 12 for token in text]) for i, text in enumerate(texts)]


class WithRule(SpS):
    """Speculative sampling under another acceptance rule."""

    def __init__(self, target, drafter, gamma, rule):
        super().__init__(target, drafter, gamma)
        self.rule = rule

    def rounds(self, prompt, sampling, rng):
        return speculate(self.target, self.drafter, self.rule, self.gamma, prompt, sampling, rng)


class OtherDrafter(ModelDrafter):
    """Drafts the likeliest token, or draws from the draft's nucleus, and says that it was drawn from all of q."""

    def __init__(self, session, nucleus):
        super().__init__(session)
        self.nucleus = nucleus  # then top-p is known to p only

    def propose(self, context, gamma, sampling, rng):
        if sampling.greedy:
            return super().propose(context, gamma, sampling, rng)
        scored = self.session.catch_up(context)
        tokens, probs = [], []
        for step in range(gamma):
            last = scored.logits[-1:]
            tokens.append(draw(last, sampling, rng)[0] if self.nucleus else last.argmax(-1))
            probs.append(probabilities(last, Sampling(sampling.temperature) if self.nucleus else sampling))
            if step < gamma - 1:
                scored = self.session.forward(tokens[-1])
        return Draft(torch.cat(tokens), torch.cat(probs))


def without_residual(draft, scored, sampling, rng):
    """A rejected token is replaced by a draw from p."""
    verdict = rules.exact(draft, scored, sampling, rng)
    if sampling.greedy or verdict.accepted == len(verdict.drafted):
        return verdict
    p = probabilities(scored.logits[verdict.accepted : verdict.accepted + 1], sampling)
    return verdict._replace(token=int(pick(p, rng)))


def bonus_of_the_row_before(draft, scored, sampling, rng):
    verdict = rules.exact(draft, scored, sampling, rng)
    if verdict.accepted < len(verdict.drafted):
        return verdict
    token, _ = draw(scored.logits[-2:-1], sampling, rng)
    return verdict._replace(token=int(token))


class ShortCache(Stateless):
    """After a rejection the target's cache lacks its last token, which is never fed."""

    lossless = True
    reach = 5

    def __init__(self, target, drafter):
        self.target, self.drafter = target, drafter

    def rounds(self, prompt, sampling, rng):
        self.drafter.begin(prompt)
        token, _ = draw(self.target.restart(prompt).logits, sampling, rng)
        context = [*prompt, int(token)]
        yield Round(context[-1:])
        while True:
            draft = self.drafter.propose(context, 4, sampling, rng)
            scored = self.target.forward(torch.cat([torch.tensor(context[-1:]), draft.tokens]))
            verdict = rules.exact(draft, scored, sampling, rng)
            rejected = verdict.accepted < len(verdict.drafted)
            self.target.truncate(len(self.target) - 4 + verdict.accepted - rejected)
            context += [*verdict.drafted[: verdict.accepted], verdict.token]
            yield Round([*verdict.drafted[: verdict.accepted], verdict.token], verdict)


def defective(pair, name):
    target, drafter = pair.session("target"), ModelDrafter(pair.session("draft"))
    return {
        "draft sampled greedily": lambda: SpS(target, OtherDrafter(pair.session("draft"), nucleus=False), 4),
        "residual missing": lambda: WithRule(target, drafter, 4, without_residual),
        "bonus from the wrong row": lambda: WithRule(target, drafter, 4, bonus_of_the_row_before),
        "cache one token short": lambda: ShortCache(target, drafter),
        "top-p on p only": lambda: SpS(target, OtherDrafter(pair.session("draft"), nucleus=True), 4),
    }[name]()


def audited(pair, prompts, method, draws=DRAWS):
    return audit.Audit(pair, {"m": method}, prompts, 48, draws).finding("m")


@pytest.mark.long
@pytest.mark.parametrize("name", ["draft sampled greedily", "residual missing", "top-p on p only"])
def test_defects_of_sampling_are_found(pair, prompts, name):
    finding = audited(pair, prompts, defective(pair, name))
    assert finding.verdict == "defect" and not finding.failure
    assert finding.same == finding.documents == 4  # greedy texts cannot tell
    assert any("not the target's" in line or "cannot be drawn" in line for line in details(finding))


class Late(Stateless):
    """Tests its first draft only behind six tokens."""

    lossless = True
    reach = 5

    def __init__(self, vanilla, method):
        self.vanilla, self.method = vanilla, method

    def rounds(self, prompt, sampling, rng):
        text = []
        for step in self.vanilla.rounds(prompt, sampling, rng):
            text += step.tokens
            yield step
            if len(text) == 6:
                break
        yield from self.method.rounds([*prompt, *text], sampling, rng)


def block_method(pair, proposal):
    """A block drafter with a head whose weights are drawn at random."""
    model = block_head(in_file(new_head(pair.models["target"], recipe(block=4), 2)), pair.models["target"])
    drafter = dflash.BlockDrafter(model, Session(model, "draft", vocabulary=12), 4, proposal)
    return dflash.DFlash(pair.session("target"), drafter, {})


@pytest.mark.long
@pytest.mark.parametrize("proposal", ["likeliest", "drawn"])
def test_a_greedy_test_of_sampled_block_drafts_is_found(pair, prompts, monkeypatch, proposal):
    """As a build of an engine tests them that lacks its kernel for samples: its texts are greedy, and so look right."""
    honest = audited(pair, prompts[:2], block_method(pair, proposal))
    assert honest.verdict == "lossless" and len(honest.sampled) == 2
    monkeypatch.setattr(
        dflash, "exact", lambda draft, scored, sampling, rng: rules.exact(draft, scored, Sampling(), rng)
    )
    finding = audited(pair, prompts[:2], block_method(pair, proposal))
    assert finding.verdict == "defect" and not finding.failure and not any(test.passed for test in finding.sampled)
    assert finding.same == finding.documents == 2


@pytest.mark.long
def test_a_defect_behind_a_few_rounds_without_a_draft_is_found(pair, prompts):
    late = Late(Vanilla(pair.session("target")), defective(pair, "draft sampled greedily"))
    assert audited(pair, prompts, late).verdict == "defect"
    right = SpS(pair.session("target"), ModelDrafter(pair.session("draft")), 4)
    assert audited(pair, prompts[:2], Late(Vanilla(pair.session("target")), right)).verdict == "lossless"


@mostly_long("name", ["bonus from the wrong row", "cache one token short"], ("bonus from the wrong row",))
def test_defects_of_the_loop_are_found_greedily(pocket_weak, documents, name):
    finding = audited(pocket_weak, documents, defective(pocket_weak, name), draws=1)
    assert finding.verdict == "defect" and not finding.failure
    assert any(one.kind == "bug" for one in finding.leavings)
    assert any("departs from vanilla at token" in line and "a defect" in line for line in details(finding))


@pytest.mark.long
def test_a_short_cache_is_found_by_sampling_too(pair, prompts):
    finding = audited(pair, prompts, defective(pair, "cache one token short"), draws=20)
    assert not all(one.passed for one in finding.sampled)


@pytest.mark.long
def test_shipped_methods_pass(pair, prompts):
    methods = {
        "vanilla": Vanilla(pair.session("target")),
        "sps": SpS(pair.session("target"), ModelDrafter(pair.session("draft")), 4),
    }
    audited = audit.Audit(pair, methods, prompts[:3], 48, DRAWS)
    for finding in map(audited.finding, methods):
        assert finding.verdict == "lossless", details(finding)
        assert audit.agreement(finding) == 1 and len(finding.sampled) == 2
        assert "a shift of" in power([finding])[0]


def ending_at(pair, tokens):
    """The pair, whose texts end at these tokens."""
    pair.models["target"].generation_config.eos_token_id = sorted(tokens)
    made = Pair("ends", pair.models, pair.tokenizer)
    assert made.eos_ids == tokens
    pair.models["target"].generation_config.eos_token_id = None
    return made


def test_texts_without_tokens_are_not_compared(pair, prompts):
    """A chat model may end its text at once where its template is missing."""
    firsts = [audit._greedy(Vanilla(pair.session("target")), pair, prompt, 1)[0] for prompt in prompts]
    other = next(i for i, token in enumerate(firsts) if token != firsts[0])
    ends = ending_at(pair, {firsts[0]})
    method = SpS(ends.session("target"), ModelDrafter(ends.session("draft")), 4)
    finding = audited(ends, [prompts[0], prompts[other]], method, draws=20)
    assert (finding.empty, finding.documents, finding.same, finding.failure) == (1, 1, 1, "")
    shown = rendered(view([finding]))
    assert "1/1" in shown and "1 of the texts have no tokens" in shown and "nan" not in shown
    with one_line_error("first token after each of the 2 prompts is an end token", "--prompts"):
        audited(ends, [prompts[0], prompts[0]], method, draws=20)


def test_a_method_that_fails_at_once_has_no_figures():
    shown = rendered(view([audit.MethodAudit("broken", True, failure="ValueError: no")]))
    assert "0/0" not in shown and "nan" not in shown and "defect" in shown


def test_a_lossy_method_is_no_defect(pocket, documents):
    method = defective(pocket, "bonus from the wrong row")
    method.lossless = False
    finding = audited(pocket, documents, method)
    assert finding.verdict == "lossy by design" and not finding.sampled
    assert finding.same < finding.documents and audit.agreement(finding) < 1


def test_a_method_that_fails_is_a_defect(pair, prompts):
    class Broken(SpS):
        def rounds(self, prompt, sampling, rng):
            yield Round([5])
            raise RuntimeError("no more")

    finding = audited(pair, prompts, Broken(pair.session("target"), ModelDrafter(pair.session("draft")), 4))
    assert finding.verdict == "defect" and "no more" in details(finding)[0]


AUDIT = ("audit", "--documents", "1", "--length", "24")


@pytest.mark.long
def test_the_command(tmp_path):
    out = tmp_path / "audit.json"
    result = call(*AUDIT, "--method", "sps", "--method", "csd", "--draws", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "lossless" in result.output and "lossy by design" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    kept = json.loads((tmp_path / "audit.json").read_text())
    assert [row["verdict"] for row in kept["methods"]] == ["lossless", "lossy by design"]
    assert kept["environment"]["cpu"] and kept["methods"][0]["sampled"][0][
        "draws"
    ] == 4 * audit_sampling.POSITIONS * 3 * (audit_sampling.DRAWN_TOKENS - 1)


def test_a_defect_is_exit_code_1(monkeypatch):
    monkeypatch.setattr(audit.prepare, "build", lambda spec, pair, watch: defective(pair, "cache one token short"))
    assert "defect" in output(*AUDIT, "--method", "sps", "--draws", "2", code=1)


def test_classes_by_hand(pair):
    """p = (.5, .3, .2), q = (.2, .7, .1): only token 1 is over-proposed, token 0 is the likeliest."""
    target, draft = (torch.tensor([values]).log() for values in ([0.5, 0.3, 0.2], [0.2, 0.7, 0.1]))
    rows, reference = {"target": target, "draft": draft}, Reference(pair, None)
    for token, kind in ((0, 0), (1, 3), (2, 1)):
        drawn, probs, impossible = audit_sampling.classify([token], rows, reference, Sampling(1.0))
        assert (drawn, impossible) == ([kind], 0)
        assert probs[0].tolist() == pytest.approx([0.5, 0.2, 0.0, 0.3])
    # The nucleus holds tokens 0 and 1.
    _, probs, impossible = audit_sampling.classify([2], rows, reference, Sampling(1.0, top_p=0.7))
    assert impossible == 1 and probs.sum() == pytest.approx(1)


def test_chi_square_of_equal_rows_is_pearsons():
    expected, counts = np.array([0.1, 0.2, 0.3, 0.4]), [15, 15, 40, 30]
    drawn = np.repeat(np.arange(4), counts)
    mine = stats.chi_square(drawn, np.tile(expected, (100, 1)), np.array([0.0, 0, 1, 1]), 0.01)
    theirs = scipy_stats.chisquare(counts, 100 * expected)
    assert mine.statistic == pytest.approx(theirs.statistic) and mine.p == pytest.approx(theirs.pvalue)
    assert mine.df == 3


def simulated(shift, runs=600, draws=400, level=0.05):
    """The share of significant tests where every draw has other odds, with `shift` moved to the last class."""
    rng = np.random.default_rng(1)
    hits, seen = 0, []
    for _ in range(runs):
        expected = rng.dirichlet([2, 3, 2], size=draws)
        truth = expected * (1 - shift * draws * expected.sum(0)[:2].sum() ** -1 * np.array([1, 1, 0]))
        truth[:, 2] = 1 - truth[:, :2].sum(1)
        drawn = (truth.cumsum(1) < rng.random((draws, 1))).sum(1)
        statistic = stats.chi_square(drawn, expected, np.array([0.0, 0, 1]), level)
        hits += statistic.p < level
        seen.append(statistic.detectable)
    return hits / runs, float(np.mean(seen))


@pytest.mark.long
def test_false_alarms_are_as_rare_as_said():
    share, _ = simulated(0.0)
    assert 0.025 < share < 0.08


@pytest.mark.long
def test_the_shift_that_is_said_to_be_seen_is_seen_4_times_in_5():
    _, detectable = simulated(0.0, runs=20)
    share, _ = simulated(detectable)
    assert 0.74 < share < 0.86


def test_a_certain_target_leaves_nothing_to_test():
    statistic = stats.chi_square(np.zeros(5, int), np.tile([1.0, 0.0], (5, 1)), np.array([0.0, 1.0]), 0.01)
    assert (statistic.df, statistic.p) == (0, 1.0)
