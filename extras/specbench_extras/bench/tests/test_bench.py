"""The bench: ratios and shares by hand, forced acceptance against its law, texts, peers, refusals, what it writes."""

import json
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import oracle
import pytest
import torch
from gates import decode, pair
from scipy import stats
from scipy.stats import t
from screens import call
from transformers import AutoModelForCausalLM

from specbench.base.stats import Interval
from specbench.config import UserError
from specbench.engine import accept
from specbench.engine.clock import Forward, Lap
from specbench.engine.drafters import ModelDrafter
from specbench.engine.runtimes import choose
from specbench.engine.runtimes.types import Unsupported
from specbench.engine.session import Session
from specbench.engine.types import Draft, Sampling, Scored
from specbench.measure.prompts import encode
from specbench.methods.chains.sps import SpS
from specbench.methods.chains.vanilla import Vanilla
from specbench_extras.bench import claims, engines, genai, interleave, main, peers, shapes
from specbench_extras.bench.claims import BenchTimes, Claim
from specbench_extras.bench.engines import Engine
from specbench_extras.bench.forced import Forced, tokens_a_round
from specbench_extras.bench.forced import forced as accepting
from specbench_extras.bench.interleave import EngineTimes, speed_ratio
from specbench_extras.bench.prompts import bundled_prompts

LEVEL = 1e-3


def taken(seconds, tokens, inside=0.0, decode=0.0, rounds=0.0):
    """Of three documents that took the same, in one run."""
    return EngineTimes(*(np.full((1, 3), float(one)) for one in (seconds, tokens, inside, decode, rounds)))


# Figures by hand


def test_ratios_and_shares_by_hand():
    columns = [2, 2, 4], [11, 11, 31], [1, 1, 2.5], [1.5, 1.5, 3.5], [10, 10, 10]
    one = EngineTimes(*(np.array([x], float) for x in columns))
    assert one.rate == pytest.approx(53 / 8)
    assert one.tau == pytest.approx((10 + 10 + 30) / 30)
    share = one.outside
    assert share.value == pytest.approx(1 - 4.5 / 6.5)
    # Without a document 3.5 / 5 is inside, or 2 / 3; of the seconds inside 4.5² / 8.25 documents count.
    factor = 1.05 ** (t.ppf(0.975, 4.5**2 / 8.25 - 1) * 2 / 3)
    assert (share.low, share.high) == (pytest.approx(1 - 4.5 / 6.5 * factor), pytest.approx(1 - 4.5 / 6.5 / factor))
    other = EngineTimes(*(np.array([x], float) for x in ([4, 4, 12], [10] * 3, [0] * 3, [0] * 3, [0] * 3)))
    assert speed_ratio(one, other).value == pytest.approx((53 / 8) / (30 / 20))
    assert speed_ratio(other, one).value == pytest.approx((30 / 20) / (53 / 8))
    assert other.outside is None


def took(missing=None, **rates):
    """Engines by method_runtime and tokens per second, with a tenth of decode time outside forwards."""
    by_name = {name.replace("_", ", "): taken(10 / rate, 10, 0.9, 1.0, 9) for name, rate in rates.items()}
    return BenchTimes(by_name, missing or {})


EVERY = {
    "vanilla_eager": 100, "sps_eager": 120, "csd_eager": 150, "vanilla_static": 160, "sps_static": 250,
    "csd_static": 140, "vanilla_openvino": 170, "sps_openvino": 200, "csd_openvino": 149, "sps_transformers": 125,
}  # fmt: skip


def test_claims_by_hand():
    by_name = {one.what: one for one in claims.of_pair(took({"genai": "not here"}, **EVERY), False, True)}
    facts = {
        what: (None if one.measured is None else round(one.measured.value, 4), one.bar, one.verdict)
        for what, one in by_name.items()
    }
    assert facts == {
        "vanilla: static over eager": (1.6, 1.3, "met"),
        "sps: best over transformers'": (2.0, 1.5, "met"),  # static's: the fastest for sps, not for vanilla
        "sps: best over GenAI's": (None, 1.1, "not measured"),
        "outside forwards: vanilla eager": (0.1, 0.02, "missed"),
        "outside forwards: vanilla openvino": (0.1, 0.05, "missed"),
        "outside forwards: sps eager": (0.1, 0.02, "missed"),
        "outside forwards: sps static": (0.1, 0.05, "missed"),
        "outside forwards: csd eager": (0.1, 0.02, "missed"),  # fastest on eager: one line
        "sps over vanilla, both eager": (1.2, None, ""),
        "sps over vanilla, each at best": (round(250 / 170, 4), None, ""),
    }
    assert by_name["sps: best over GenAI's"].why == "not here"
    assert all(one.bar is None for one in claims.of_pair(took(**EVERY), False, False))
    few = {name: rate for name, rate in EVERY.items() if "static" not in name}
    (line, *_) = claims.of_pair(took(**few), False, True)
    assert line.why == "static was not requested"


def test_claims_of_a_gpu_and_of_shapes_by_hand():
    rates = {"vanilla_eager": 10, "sps_eager": 10, "vanilla_graph": 30, "sps_graph": 31, "sps_static": 20}
    (first, *rest) = claims.of_pair(took(**rates), True, True)
    assert (first.what, first.measured.value, first.bar) == ("sps: graph over eager", pytest.approx(3.1), 3.0)
    assert all(one.bar is None for one in rest)
    for judged, bar in ((True, 1.3), (False, None)):
        (first, *rest) = claims.of_shapes(took(**rates), True, judged)
        assert (first.what, first.bar) == ("sps: graph over eager", bar)
        assert all(one.bar is None for one in rest)
    (first, *_) = claims.of_shapes(took(**rates), False, True)
    assert (first.what, first.measured.value, first.bar) == ("sps: static over eager", pytest.approx(2), None)


@pytest.mark.parametrize(
    ("value", "low", "high", "at_least", "verdict"),
    (
        (1.4, 1.35, 1.5, True, "met"),
        (1.4, 1.2, 1.5, True, "met, close"),
        (1.2, 1.1, 1.25, True, "missed"),
        (1.2, 1.1, 1.35, True, "missed, close"),
        (1.2, 1.1, 1.25, False, "met"),
        (1.4, 1.35, 1.5, False, "missed"),
        (1.4, math.nan, math.nan, True, "met"),
    ),
)
def test_a_verdict_goes_by_the_figure_and_its_interval(value, low, high, at_least, verdict):
    claim = Claim("", Interval(value, low, high), 1.3, at_least)
    assert claim.verdict == verdict and main.missed([claim]) == (verdict == "missed")


def test_every_engine_is_held_against_its_own_method_on_the_reference():
    result = took(**EVERY).against_reference()
    assert result["sps, transformers"].value == pytest.approx(125 / 120)
    assert result["csd, static"].value == pytest.approx(140 / 150)
    assert result["vanilla, eager"].value == 1


def test_the_limit_of_a_forward_by_hand(monkeypatch):
    """A machine that reads 1 GB/s and computes without end: the limit is the bytes of a forward behind 200 tokens."""
    model = oracle.tiny("llama").float()
    made = SimpleNamespace(device=torch.device("cpu"), models={"target": model})
    forwards = {"eager": {"target": {1: 3.0}}, "static": {"target": {1: 2.0}}}
    known = {"bandwidth": [{"bytes": 1, "median": 1e9}], "products": [{"side": 1, "median": 1e30}]}
    monkeypatch.setattr(claims.ceilings, "stored", lambda device, dtype: known)
    # Two layers of 32 wide: 4 heads and 2 groups of 8, 48 inside; an output layer for 96 tokens; five norms.
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    weights = 2 * layer + 96 * 32 + 5 * 32
    cache = 2 * 2 * 16 * (201 + 1)  # keys and values of both layers, read and written
    seconds = 4 * (weights + 32 + cache + 96) / 1e9
    result = claims.over_limit(made, forwards, True)
    assert result.measured.value == pytest.approx(0.002 / seconds, rel=1e-6)
    assert (result.bar, result.at_least, result.verdict) == (1.3, False, "missed")
    assert claims.over_limit(made, forwards, False).bar is None
    monkeypatch.setattr(claims.ceilings, "stored", lambda device, dtype: None)
    assert claims.over_limit(made, forwards, True).why.endswith("specbench profile --ceilings does that")


# The interleaved clock


def test_each_engine_gets_its_own_seconds_and_is_told_of_each_task(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(interleave, "now", lambda: clock[0])
    seen, log, order = [], [], []

    def made(method, by, pace):
        def generate(prompt):
            order.append((len(seen), by))
            clock[0] += pace * prompt[0]
            return prompt[:1] * prompt[0]

        def laps():
            halves = [Forward("target", 1, 0, pace / 4, began=0.0), Forward("target", 1, 0, pace / 4, began=pace / 2)]
            return [Lap(100.0, []), Lap(pace, halves), Lap(pace, halves)]  # the prefill does not count

        return Engine(method, by, generate, lambda task: log.append((len(seen), by, task)), laps)

    slow, fast = made("vanilla", "eager", 2.0), made("vanilla", "static", 0.5)
    mute = Engine("sps", "peer", lambda prompt: [])
    prompts = [("a", [3]), ("a", [5]), ("b", [4]), *(("b", [2]) for _ in range(9))]

    def see(prompt, texts):
        seen.append((prompt, texts))

    result = interleave.interleave([slow, fast, mute], prompts, torch.device("cpu"), see, runs=2)
    lengths = [prompt[0] for _, prompt in prompts]
    assert result["vanilla, eager"].seconds.tolist() == [[2.0 * n for n in lengths]] * 2
    assert result["vanilla, static"].seconds.ravel().tolist() == pytest.approx([0.5 * n for n in lengths] * 2)
    assert result["vanilla, static"].tokens.tolist() == [lengths] * 2
    assert result["vanilla, eager"].inside.tolist() == [[2.0] * 12] * 2  # in two rounds two forwards of half a second
    assert result["vanilla, eager"].decode.tolist() == [[4.0] * 12] * 2
    assert result["vanilla, eager"].outside.value == pytest.approx(0.5)
    assert result["sps, peer"].outside is None
    begun = [
        (at, by, task) for run in (0, 12) for at, task in ((run, "a"), (run + 2, "b")) for by in ("eager", "static")
    ]
    assert sorted(log) == begun
    assert [texts["vanilla, eager"] for _, texts in seen] == [[n] * n for n in lengths * 2]
    firsts = [by for at, by in order[::2]]
    assert set(firsts[:12]) == {"eager", "static"} and firsts[:12] != firsts[12:]  # the order is drawn again


# Forced acceptance


def law(rate, gamma):
    """Of the number of accepted tokens, by enumerating which of γ tokens pass."""
    total = np.zeros(gamma + 1)
    for mask in range(2**gamma):
        passed = [mask >> i & 1 for i in range(gamma)]
        chance = math.prod(rate if one else 1 - rate for one in passed)
        total[[*passed, 0].index(0)] += chance
    return total


def forced(rate, gamma, architecture="llama"):
    target, draft = pair(architecture)
    return Forced(Session(target, "target"), ModelDrafter(Session(draft, "draft")), gamma, rate)


@pytest.mark.parametrize(("rate", "gamma"), ((0.8, 4), (0.35, 3)))
def test_accepted_lengths_follow_their_law(rate, gamma):
    rng = torch.Generator().manual_seed(0)
    scored = Scored(torch.randn(gamma + 1, 20, generator=rng))
    draft = Draft(torch.arange(gamma), None)
    counts = np.zeros(gamma + 1)
    for _ in range(6000):
        counts[accepting(draft, scored, Sampling(), rng, rate).accepted] += 1
    expected = law(rate, gamma)
    assert expected.sum() == pytest.approx(1)
    assert stats.chisquare(counts, expected * counts.sum()).pvalue > LEVEL
    # The same counts show that the rule is not another one: each token for itself, or a neighbouring rate.
    alone = stats.binom.pmf(range(gamma + 1), gamma, rate)
    for wrong in (alone, law(rate - 0.04, gamma), law(rate + 0.04, gamma)):
        assert stats.chisquare(counts, wrong * counts.sum()).pvalue < LEVEL
    assert tokens_a_round(rate, gamma) == pytest.approx(float(expected @ (1 + np.arange(gamma + 1))))


@pytest.mark.parametrize("rate", (0.0, 1.0))
def test_the_ends_of_the_rate(rate):
    prompt = oracle.prompts(1, length=6, seed=3)[0]
    _, rounds = decode(forced(rate, 4), prompt, 60)
    assert {round_.accepted for round_ in rounds[1:-1]} == {round(4 * rate)}


def counted(real, passes, fed):
    """A method of sessions that notes the role of each pass."""

    def noted(self, *given, **more):
        fed.extend([self.role] * passes(*given))
        return real(self, *given, **more)

    return noted


@torch.no_grad()
def test_everything_but_the_verdict_is_real(monkeypatch):
    """Tokens behind the accepted ones are the target's own choice there, drafts the draft's; the exact test is done."""
    tested, fed = [], []
    exact_test = accept.exact_test
    monkeypatch.setattr(accept, "exact_test", lambda *given: tested.append(1) or exact_test(*given))
    for made, passes in (("forward", lambda *_: 1), ("draft_chain", lambda context, count, *_: count)):
        monkeypatch.setattr(Session, made, counted(getattr(Session, made), passes, fed))
    prompt = oracle.prompts(1, length=6, seed=3)[0]
    _, rounds = decode(forced(0.7, 3), prompt, 60)
    target, draft = pair("llama")
    context = [*prompt, *rounds[0].tokens]
    against = 0
    for round_ in rounds[1:-1]:
        verdict = round_.verdict
        assert verdict.drafted == oracle.greedy(draft, context, 3)
        wanted = oracle.greedy(target, context, 1)[0]
        against += round_.accepted > 0 and verdict.drafted[0] != wanted  # what the exact rule would not have accepted
        context += round_.tokens
        assert round_.tokens == [*verdict.drafted[: round_.accepted], verdict.token]
        assert verdict.token == oracle.best(oracle.next_logits(target, context[:-1]))
    assert against
    assert len(tested) == len(rounds) - 1
    assert fed.count("target") == len(rounds) and fed.count("draft") == 1 + 3 * (len(rounds) - 1)


def test_draws_hang_on_the_seed_alone():
    prompt = oracle.prompts(1, length=6, seed=3)[0]
    lengths = [[step.accepted for step in decode(forced(0.5, 4), prompt, 60, seed=seed)[1]] for seed in (1, 1, 2)]
    assert lengths[0] == lengths[1] != lengths[2]


# Texts


def test_texts_are_held_against_vanilla_and_those_of_a_lossy_method_against_its_own(pocket):
    prompt = encode(pocket, bundled_prompts("gsm8k", 1)[0])
    names = [("vanilla", "eager"), ("sps", "eager"), ("csd", "eager"), ("csd", "static"), ("sps", "genai")]
    agreement = main.Agreement(pocket, [Engine(*name, lambda prompt: []) for name in names])
    vanilla, _ = decode(Vanilla(pocket.session("target")), prompt, 12)
    other = [*vanilla[:5], (vanilla[5] + 1) % 2000, *vanilla[6:]]
    texts = dict.fromkeys(("vanilla, eager", "sps, eager"), vanilla)
    agreement.see(prompt, texts | dict.fromkeys(("csd, eager", "csd, static"), other) | {"sps, genai": other})
    assert agreement.same == {
        "vanilla, eager": 1, "sps, eager": 1, "csd, eager": 1, "csd, static": 1, "sps, genai": 0
    }  # fmt: skip
    ((name, left),) = agreement.divergences
    assert (name, left.at, left.kind, agreement.bugs) == ("sps, genai", 5, "bug", 1)
    agreement.see(prompt, texts | {"csd, eager": other, "csd, static": vanilla, "sps, genai": vanilla})
    assert agreement.same["csd, static"] == 1 and agreement.same["sps, genai"] == 1 and len(agreement.divergences) == 1


@pytest.fixture
def quick(monkeypatch):
    """Short texts of few prompts, and no peer but transformers."""
    for module in (engines, peers, main):
        monkeypatch.setattr(module, "NEW_TOKENS", 10)
    monkeypatch.setattr(main, "FAMILIES", ("gsm8k",))
    monkeypatch.setattr(engines, "WIDTHS", (1, 4))
    monkeypatch.setattr("specbench_extras.bench.view.WIDTHS", (1, 4))

    def absent(pair, gamma):
        raise UserError("GenAI is not here")

    monkeypatch.setattr(genai, "engines", absent)


def test_a_bench_of_the_bundled_pair(quick, monkeypatch, tmp_path):
    """With a bar that no engine reaches, so that the exit code says so."""
    out, real = tmp_path / "bench.json", claims.of_pair
    beyond = Claim("beyond all", Interval(1.0, 0.9, 1.1), 1000.0)
    monkeypatch.setattr(claims, "of_pair", lambda *given: [*real(*given), beyond])
    done = call("bench", "--documents", 2, "--device", "cpu", "--gamma", 3, "--runtime", "static", "--out", out)
    assert done.exit_code == main.MISSED == 4, done.output
    assert max(map(len, (line.rstrip() for line in done.output.splitlines() if ": " not in line))) <= 80
    assert "without genai: GenAI is not here" in done.output
    assert "without vllm: vLLM is compared on CUDA only" in done.output
    assert "SYNTHETIC" not in done.output
    report = json.loads(out.read_text())
    names = [f"{method}, {by}" for by in ("eager", "static") for method in ("vanilla", "sps", "csd")]
    bare = [f"{method}, {by}, unwatched" for by in ("eager", "static") for method in ("vanilla", "sps")]
    theirs = ["vanilla, transformers", "sps, transformers"]
    assert set(report["engines"]) == {*names, *bare, *theirs}
    assert report["texts_equal"] == dict.fromkeys(report["engines"], 2) and report["divergences"] == []
    for name, one in report["engines"].items():
        (seconds,), (tokens,) = one["seconds"], one["tokens"]
        assert one["tokens_per_s"] == pytest.approx(sum(tokens) / sum(seconds))
        assert len(tokens) == 2 and all(0 < count <= 10 for count in tokens)
        assert (one["outside_forwards"] is not None) == (name in names)
    assert report["engines"]["vanilla, static"]["tau"] == 1
    assert report["engines"]["sps, static"]["tau"] > 1
    assert set(report["forward_ms"]) == {"eager", "static"}
    assert (report["gamma"], report["documents"], report["runs"], report["new_tokens"]) == (3, 2, 1, 10)
    assert not any(one["by_run"] for one in report["claims"]) and "by run" not in done.output
    assert "genai" in report["missing"] and "graph" not in report["missing"]
    assert {"vanilla: static over eager", "sps: best over GenAI's"} <= {one["what"] for one in report["claims"]}


@pytest.mark.long
def test_a_text_that_is_not_the_targets_fails_the_bench(quick, monkeypatch):
    def wrong(pair, assistant, gamma):
        return lambda prompt: [5, 6, 7] * 3

    monkeypatch.setattr(peers, "_transformers", wrong)
    monkeypatch.setattr(choose, "NAMES", ("eager",))
    done = call("bench", "--documents", 2, "--device", "cpu")
    assert done.exit_code == 1
    assert "4 texts are not vanilla's: 0 numeric ties, 4 bugs" in done.output


def test_runtimes_that_cannot_run_the_pair_are_left_out_unless_asked_for(pocket, monkeypatch):
    def made(name, pair):
        if name != "eager":
            raise Unsupported(f"no {name} here")
        return choose.EAGER

    monkeypatch.setattr(choose, "runtime", made)
    result, left_out = engines.runnable(pocket, [])
    assert list(result) == ["eager"] and left_out == {
        name: f"no {name} here" for name in ("static", "graph", "openvino")
    }
    with pytest.raises(Unsupported, match="no graph here"):
        engines.runnable(pocket, ["graph"])
    with pytest.raises(UserError, match="llamacpp rounds otherwise; leave it out"):
        engines.runnable(pocket, ["llamacpp"])
    result, left_out = engines.runnable(pocket, [], {"openvino": "too large"})
    assert left_out["openvino"] == "too large"


# Shapes


def test_shapes_are_those_of_the_models_that_they_are_called_after():
    """160M: JackFram/llama-160m; 1B: Llama 3.2; 8B: Llama 3.1, as their cards tell their parameters."""
    small, large = 162_417_408, 8_030_261_248
    middle = 1_235_814_400
    assert shapes.weights("160m-1b") == small + middle
    assert shapes.weights("1b-8b") == middle + large


def test_random_models_are_the_same_again_and_disturb_nobody():
    state = torch.get_rng_state()
    one, again = (shapes.make("tiny", torch.device("cpu"), torch.bfloat16) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    for role, model in one.models.items():
        assert model.dtype == torch.bfloat16 and not model.training
        other = again.models[role].state_dict()
        assert all(torch.equal(tensor, other[name]) for name, tensor in model.state_dict().items())
    assert one.eos_ids == frozenset()
    prompts = shapes.prompts(one, 3)
    assert {len(prompt) for prompt in prompts} == {200} and len(set(map(tuple, prompts))) == 3


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(shapes, "free_memory", lambda device: 30e9)
    made = []
    from_config = AutoModelForCausalLM.from_config

    def watched(config, **more):
        made.append(torch.get_default_device().type)
        assert made[-1] == "meta"
        return from_config(config, **more)

    monkeypatch.setattr(AutoModelForCausalLM, "from_config", watched)
    done = call("bench", "--shapes", "1b-8b", "--force-acceptance", 0.8, "--device", "cpu")
    assert done.exit_code == 2
    # 1.1 · 4 bytes of 9.27 billion parameters
    assert "--shapes 1b-8b needs about 40.8 GB, and 30.0 GB are free on cpu; choose a smaller shape" in done.output
    assert set(made) == {"meta"}


def test_a_runtime_that_copies_weights_needs_room_for_them(monkeypatch):
    made = shapes.make("tiny", torch.device("cpu"), torch.float32)
    monkeypatch.setattr(shapes, "free_memory", lambda device: 1000.0)
    assert sorted(shapes.too_large("tiny", made, [])) == ["openvino", "static"]
    assert shapes.too_large("tiny", made, ["eager"]) == {}
    with pytest.raises(UserError, match="tiny on static needs"):
        shapes.too_large("tiny", made, ["static", "openvino"])


def test_what_shapes_print_and_write_is_called_synthetic(quick, tmp_path):
    out = tmp_path / "shapes.json"
    done = call(
        "bench",
        *("--shapes", "tiny", "--force-acceptance", 0.75, "--documents", 4, "--gamma", 2, "--runs", 3),
        *("--device", "cpu", "--runtime", "static", "--out", out),
    )
    assert done.exit_code == 0, done.output
    titles = [line for line in done.output.splitlines() if line.startswith("SYNTHETIC")]
    assert len(titles) == 5 and "the texts mean nothing" in done.output.lower()
    assert "4 random prompts, 3 runs" in done.output and "what documents and what runs differ by" in done.output
    assert "same text" not in done.output and "what the engine has to reach" not in done.output
    report = json.loads(out.read_text())
    assert report["synthetic"] is True and report["shape"] == "tiny" and "SYNTHETIC" in report["warning"]
    assert report["forced_acceptance"] == 0.75 and report["expected_tau"] == pytest.approx(1 + 0.75 + 0.75**2)
    assert "texts_equal" not in report and "divergences" not in report
    assert set(report["engines"]) == {f"{method}, {on}" for method in ("vanilla", "sps") for on in ("eager", "static")}
    assert report["runs"] == 3 and all(one["tokens"] == [[10] * 4] * 3 for one in report["engines"].values())
    seconds = {name: np.array(one["seconds"]).sum(1) for name, one in report["engines"].items()}
    (gain,) = (one for one in report["claims"] if one["what"] == "sps over vanilla, both eager")
    assert gain["by_run"] == pytest.approx((seconds["vanilla, eager"] / seconds["sps, eager"]).tolist())
    (share,) = (one for one in report["claims"] if one["what"] == "outside forwards: sps eager")
    assert len(share["by_run"]) == 3 and min(share["by_run"]) <= share["found"]["value"] <= max(share["by_run"])
    assert report["engines"]["sps, eager"]["tau"] == report["engines"]["sps, static"]["tau"] > 1  # the same draws
    assert all(one["bar"] is None for one in report["claims"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("--force-acceptance", 0.8), "the acceptance rate of a real pair is measured"),
        (("--shapes", "tiny"), "add --force-acceptance, such as 0.8"),
        (("--shapes", "tiny", "--force-acceptance", 0.8, "--pair", "pocket-duo"), "leave out --pair"),
        (("--shapes", "7b", "--force-acceptance", 0.8), "no such shape; choose tiny, 160m-1b, 1b-8b"),
        (("--shapes", "tiny", "--force-acceptance", 0.8, "--dtype", "int8"), "--dtype int8: no such type"),
        (("--shapes", "tiny", "--force-acceptance", 0.8, "--device", "spread"), "made on one device"),
        (("--shapes", "tiny", "--force-acceptance", 0.8, "--device", "tpu"), "--device tpu"),
        (("--shapes", "tiny", "--force-acceptance", 0.8, "--gamma", 1000), "use a smaller --gamma"),
        (("--runtime", "static", "--out", "nowhere/bench.json"), "there is no folder nowhere"),
        (("--runtime", "fast"), "--runtime fast: there is no such runtime"),
        (("--runtime", "auto"), "bench compares runtimes, and auto is one of them"),
        (("--runs", 2), "two runs do not tell how much runs differ; use 3 or more, or 1"),
    ),
)
def test_refusals_are_one_line(arguments, words):
    done = call("bench", *arguments)
    assert done.exit_code == 2, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and words in errors[0]


def test_an_acceptance_rate_is_between_0_and_1():
    assert call("bench", "--shapes", "tiny", "--force-acceptance", 1.2).exit_code == 2


# Peers


def on_cuda():
    specs = {role: SimpleNamespace(model=f"hub/{role}", revision="main") for role in ("target", "draft")}
    models = {"target": SimpleNamespace(dtype=torch.bfloat16)}
    device = SimpleNamespace(type="cuda")
    return SimpleNamespace(device=device, specs=specs, models=models, eos_ids=frozenset({2, 1}), context=8192)


def test_vllm_is_asked_for_the_same_as_the_others(monkeypatch):
    """A stand-in for the package, with its documented names; the real one was never run."""
    started, asked = [], []

    class LLM:
        def __init__(self, **given):
            started.append(given)

        def generate(self, prompts, settings, use_tqdm):
            asked.append((prompts, settings))
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=(4, 5))])]

    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed"):
        peers._vllm(on_cuda(), 3)
    package = ModuleType("vllm")
    package.LLM, package.SamplingParams = LLM, lambda **given: given
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setattr(peers, "model_folder", lambda spec: spec.model)
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: package)
    made = peers._vllm(on_cuda(), 3)
    assert made["sps"]([7, 8]) == [4, 5]
    assert [one.get("speculative_config") for one in started] == [
        None,
        {"method": "draft_model", "model": "hub/draft", "num_speculative_tokens": 3},
    ]
    ((prompts, settings),) = asked
    assert prompts == [{"prompt_token_ids": [7, 8]}]
    assert settings == {"temperature": 0.0, "max_tokens": 96, "stop_token_ids": [1, 2], "detokenize": False}

    def broken(**given):
        raise RuntimeError("no room\nfor a cache")

    package.LLM = broken
    with pytest.raises(UserError, match="vLLM does not start: no room for a cache"):
        peers._vllm(on_cuda(), 3)


def test_genai_is_compared_in_float32_on_a_cpu_only(monkeypatch):
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: None if name == "openvino_genai" else True)
    with pytest.raises(UserError, match="openvino_genai is not installed; make bench-peers does that"):
        genai.engines(on_cuda(), 3)
    monkeypatch.setattr(genai.importlib.util, "find_spec", lambda name: True)
    half = SimpleNamespace(device=torch.device("cpu"), models={"target": SimpleNamespace(dtype=torch.bfloat16)})
    whole = SimpleNamespace(device=torch.device("cuda"), models={"target": SimpleNamespace(dtype=torch.float32)})
    for pair_of_models in (half, whole):
        with pytest.raises(UserError, match="on a CPU in float32 only"):
            genai.engines(pair_of_models, 3)


def test_genai_writes_the_same_texts_from_models_that_are_exported_once(pocket, monkeypatch, tmp_path):
    pytest.importorskip("openvino_genai")
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    made = genai.engines(pocket, 4)
    target, draft = pocket.session("target"), ModelDrafter(pocket.session("draft"))
    for family in ("gsm8k", "cnndm"):
        prompt = encode(pocket, bundled_prompts(family, 1)[0])
        rounds = engines._engine(pocket, "sps", SpS(target, draft, 4), engines.Stopwatch(pocket.device))
        text = rounds.generate(prompt)
        assert len(set(text)) > 12
        assert made["vanilla"](prompt) == made["sps"](prompt) == text

    def fails(model):
        raise AssertionError("exported again")

    monkeypatch.setattr(genai, "convert", fails)
    assert set(genai.engines(pocket, 4)) == {"vanilla", "sps"}
    assert len(list((tmp_path / "genai").iterdir())) == 2  # and nothing half-written


def test_a_bench_judges_nothing_where_a_gpu_was_slowed(capsys):
    claim = Claim("sps: graph over eager", Interval(2.0, 1.9, 2.1), 3.0)
    assert main.missed([claim]) and main.unless_slowed([claim], [{"index": 0, "slowed": 0}]) == [claim]
    (left,) = main.unless_slowed([claim], [{"index": 0, "slowed": 0x04}])
    assert left.verdict == "" and not main.missed([left])
